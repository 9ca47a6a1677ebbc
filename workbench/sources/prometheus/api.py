"""
Turn the few calls of the Prometheus HTTP API that the workbench needs into rows, names and range answers of any compatible server.

Prometheus, Thanos, Mimir and VictoriaMetrics answer the same calls and differ in what they need beside them: a tenant, permission to
answer in part, no delay of the newest samples. Which one it is, is asked once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote as in_path

from workbench.errors import SourceError
from workbench.sources.contract import Deadline
from workbench.sources.prometheus.http import Http, QueryError, each, too_much
from workbench.sources.prometheus.query import (
    MOST_POINTS,
    Grid,
    Matrix,
    choose_step,
    chunks,
    duration,
    join,
    renamed,
    shortened,
    split_matrix,
    vector,
    warnings_of,
    without_markers,
)

__all__ = ["FLAVOURS", "Api", "Build"]

# beside the question itself: Thanos merges replicas and says which stores did not answer instead of failing; VictoriaMetrics hides
# the last 30 s and caches what may still change
FLAVOURS: dict[str, tuple[tuple[str, str], ...]] = {
    "prometheus": (),
    "thanos": (("dedup", "true"), ("partial_response", "true")),
    "mimir": (),
    "victoriametrics": (("nocache", "1"), ("latency_offset", "1s")),
    "unknown": (),
}
# the same for lists of names
NAMES: dict[str, tuple[tuple[str, str], ...]] = {"thanos": (("partial_response", "true"),)}

# VictoriaMetrics counts the first sample of a series as a change, so that every pod that began within the window would be a suspect;
# under these names it does as Prometheus does (MetricsQL, 2026-11)
SAME_AS_PROMETHEUS: dict[str, dict[str, str]] = {"victoriametrics": {"changes": "changes_prometheus"}}
# bytes of a query: -search.maxQueryLen, 16 KiB unless it was raised; the others take what a form may hold
LONGEST: dict[str, int] = {"victoriametrics": 16_000}


@dataclass(frozen=True, slots=True)
class Build:
    """What a server says it is."""

    flavour: str
    version: str


class Api:
    """
    Asks questions of one server.

    Parameters
    ----------
    http : Http
    flavour : str, optional
        One of `FLAVOURS`; None asks the server.
    """

    def __init__(self, http: Http, flavour: str | None = None) -> None:
        self.http = http
        self._known = Build(flavour, "") if flavour else None
        self.warnings: dict[str, None] = {}  # what the server said beside lists of names: it may know more than it told

    def build(self, deadline: Deadline) -> Build:
        """Return flavour and version of the server; ``unknown`` when it does not tell (managed services)."""
        if self._known is None or not self._known.version:
            told = self._known.flavour if self._known else ""
            try:
                reply = self.http.ask("/api/v1/status/buildinfo", (), deadline, timeout=10.0)
                data = reply.json().get("data") or {}
                version, name = str(data.get("version", "")), str(data.get("application", "")).lower()
                if "mimir" in name or "cortex" in name:
                    kind = "mimir"
                elif "X-Server-Hostname" in reply.headers or (version and not data.get("goVersion")):
                    kind, version = "victoriametrics", f"(calls itself Prometheus {version} for Grafana's sake)"
                elif version.lstrip("v").startswith("0."):
                    kind = "thanos"
                else:
                    kind = "prometheus"
                self._known = Build(told or kind, version)
            except QueryError as error:
                if error.status not in (400, 404, 405, 501):
                    raise
                self._known = Build(told or "unknown", "not told")
        return self._known

    @property
    def flavour(self) -> str:
        """Which kind of server it is, as far as is known: one of `FLAVOURS`."""
        return self._known.flavour if self._known else "unknown"

    def _beside(self, deadline: Deadline) -> list[tuple[str, str]]:
        limit = max(int(deadline.left(120)), 1)
        return [("timeout", f"{limit}s"), *FLAVOURS.get(self.flavour, ())]

    def _fitting(self, query: str) -> str:
        """Return a query as long as the server takes it; what cannot be made so short is refused by the server, and told of."""
        return shortened(query) if len(query.encode()) > LONGEST.get(self.flavour, len(query) * 4) else query

    def instant(
        self, query: str, at: float, deadline: Deadline, timeout: float = 30.0
    ) -> tuple[list[tuple[dict[str, str], float]], list[str]]:
        """Return (labels, value) of each row at a moment, and the server's warnings; functions mean what they mean in Prometheus."""
        query = self._fitting(renamed(query, SAME_AS_PROMETHEUS.get(self.flavour, {})))
        params = [("query", query), ("time", f"{at:.0f}"), *self._beside(deadline)]  # some servers know whole seconds only
        return vector(self.http.ask("/api/v1/query", params, deadline, timeout=timeout).json(query), query)

    def value(self, query: str, at: float, deadline: Deadline) -> float | None:
        """Return the one number that a question has for an answer, None when it has none."""
        rows, _ = self.instant(query, at, deadline)
        return rows[0][1] if rows and rows[0][1] == rows[0][1] else None

    def _names(self, path: str, matches: Iterable[str], since: float, until: float, deadline: Deadline) -> list[str]:
        fitting = [("match[]", self._fitting(match)) for match in matches]
        params = [*fitting, ("start", f"{since:.0f}"), ("end", f"{until:.0f}"), *NAMES.get(self.flavour, ())]
        data = self.http.ask(path, params, deadline, post=False).json(path)
        self.warnings |= dict.fromkeys(warnings_of(data))
        return [str(name) for name in data.get("data") or ()]

    def labels(self, matches: Iterable[str], since: float, until: float, deadline: Deadline) -> list[str]:
        """Return the label names of the series that match."""
        return self._names("/api/v1/labels", matches, since, until, deadline)

    def values(self, label: str, matches: Iterable[str], since: float, until: float, deadline: Deadline) -> list[str]:
        """Return the values of a label on the series that match."""
        return self._names(f"/api/v1/label/{in_path(label, safe='')}/values", matches, since, until, deadline)

    def range(self, query: str, since: float, until: float, step: float, deadline: Deadline, timeout: float = 30.0) -> Matrix:
        """Return a query at every multiple of `step` in the window, as many range queries as it takes, four at a time."""
        plan = chunks(since, until, step)
        query = self._fitting(query)

        def one(start: float, end: float) -> Matrix:
            span = [("start", f"{start:.3f}".rstrip("0").rstrip(".")), ("end", f"{end:.3f}".rstrip("0").rstrip("."))]
            params = [("query", query), *span, ("step", f"{step:g}"), *self._beside(deadline)]
            return split_matrix(self.http.ask("/api/v1/query_range", params, deadline, timeout=timeout).body, query)

        parts: list[Matrix | None] = [None] * len(plan)
        for number, result in each([lambda chunk=chunk: one(*chunk) for chunk in plan], deadline):  # type: ignore[misc]
            if isinstance(result, BaseException):
                raise result
            parts[number] = result
        whole = join([part for part in parts if part is not None])
        if plan:
            whole.grid = Grid(plan[0].start, step, round((plan[-1].end - plan[0].start) / step) + 1)
        return whole

    def raw(
        self, selector: str, since: float, until: float, interval: float, deadline: Deadline, timeout: float = 30.0
    ) -> Matrix:
        """
        Return the samples themselves, with their own times, of the series that match.

        A range *selector* is asked for, since `query_range` repeats the last sample for five minutes after a series ended, which
        is just what must be seen here. What would be more than `MOST_POINTS` a series, and what a server does not allow, is asked
        for at a step instead.
        """
        if (until - since) / max(interval, 1.0) <= MOST_POINTS:
            query = self._fitting(f"{selector}[{duration(until - since + 0.001)}]")
            params = [("query", query), ("time", f"{until:.0f}"), *self._beside(deadline)]
            try:
                found = split_matrix(self.http.ask("/api/v1/query", params, deadline, timeout=timeout).body, query)
                return without_markers(found) if self.flavour == "victoriametrics" else found
            except QueryError as error:
                if error.status not in (400, 422):
                    raise
                if too_much(error.error):
                    raise  # at a step the server would read as many
        step = choose_step(since, until, MOST_POINTS, interval)
        return self.range(f"last_over_time({selector}[{duration(step)}])", since, until, step, deadline, timeout)

    def newest(self, selector: str, since: float, until: float, deadline: Deadline) -> float | None:
        """Return the time of the last sample of any series that matches, None when there is none in the window."""
        step = choose_step(since, until, 300, 15.0)
        query = f"max(max_over_time(timestamp({selector})[{duration(max(until - since, step))}:{duration(step)}]))"
        with contextlib.suppress(SourceError):
            return self.value(query, until, deadline)
        return None


def first(values: Sequence[str], wanted: Iterable[str]) -> str:
    """Return the first of `wanted` that is among `values`, or an empty text."""
    known = set(values)
    return next((name for name in wanted if name in known), "")
