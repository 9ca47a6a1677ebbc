"""
Turn a Prometheus, Thanos, Mimir or VictoriaMetrics into a source of an incident's metrics, and into frames for notebooks.

>>> prometheus = Prometheus("http://prometheus:9090")                                          # doctest: +SKIP
>>> prometheus.frame('DCGM_FI_DEV_POWER_USAGE{Hostname="gpu-node-017"}', start, end, step=30)  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from threading import Event, Semaphore
from typing import TYPE_CHECKING, Any

from workbench.sources.contract import Answer, Deadline, Folder, Reach, Scope, SourceTimeout
from workbench.sources.prometheus.api import Api
from workbench.sources.prometheus.collect import Collection, failure
from workbench.sources.prometheus.http import Http, each
from workbench.sources.prometheus.jobs import GPU_NAMES, NODE_LABELS, POD_LABELS, SPACE_LABELS, anchor_of, by_labels
from workbench.sources.prometheus.query import Matrix, any_of, choose_step, equals, literal, quote, selector
from workbench.sources.prometheus.session import connect

if TYPE_CHECKING:
    import pandas as pd

    from workbench.sources.prometheus.frame import Told

__all__ = ["Prometheus"]

AHEAD = 3  # answers in memory: one is turned into a frame, the next are fetched


class Prometheus:
    """
    A server with Prometheus's HTTP API.

    Parameters
    ----------
    server : str or PrometheusConnect
        Address, with the path prefix that the server has; or a connection of prometheus-api-client, whose session, headers and
        credentials are then used: for Amazon's and Google's services one whose session signs its requests.
    headers : mapping, optional
        Sent with each request.
    tenant : str, optional
        Sent as ``X-Scope-OrgID`` (Mimir, Cortex, Thanos receive).
    params : mapping, optional
        Sent with each question, e.g. ``{"extra_filters[]": '{cluster="a"}'}`` for VictoriaMetrics.
    flavour : str, optional
        ``prometheus``, ``thanos``, ``mimir``, ``victoriametrics``; default: the server is asked.
    job_label : str, optional
        Label of the GPU metrics that carries the job's name, when relabelling adds one.
    token, token_file, username, password, ca, certificate, key, verify : optional
        See `workbench.sources.prometheus.session.connect`.
    """

    name = "prometheus"

    def __init__(
        self,
        server: Any,
        *,
        headers: Mapping[str, str] | None = None,
        tenant: str | None = None,
        params: Mapping[str, str] | None = None,
        flavour: str | None = None,
        job_label: str | None = None,
        token: str | None = None,
        token_file: str | Path | None = None,
        username: str | None = None,
        password: str | None = None,
        ca: str | Path | None = None,
        certificate: str | Path | None = None,
        key: str | Path | None = None,
        verify: bool = True,
    ) -> None:
        if isinstance(server, str):
            server = connect(
                server,
                token=token,
                token_file=token_file,
                username=username,
                password=password,
                ca=ca,
                certificate=certificate,
                key=key,
                verify=verify,
            )
        more = {**dict(headers or {}), **({"X-Scope-OrgID": tenant} if tenant else {})}
        self.api = Api(Http(server, headers=more, params=params), flavour)
        self.job_label = job_label or ""
        self._told: Told | None = None  # the next field has the same series

    # -- the source -------------------------------------------------------------------------------------------------------

    def locate(self, scope: Scope, deadline: Deadline) -> Scope | None:
        """
        Return the scope with the pods and nodes that kube-state-metrics or the GPU metrics' own labels tell of the job.

        Used when there is no scheduler to ask; None when no label tells.
        """
        self.api.build(deadline)
        if (scope.nodes and scope.pods) or scope.since >= scope.until:
            return None
        span = f"{max(scope.until - scope.since, 1):.0f}s"
        wanted = any_of("pod", scope.pods) if scope.pods else f"pod=~{quote(literal(scope.job) + '(-.+)?')}"
        spaces = [equals("namespace", scope.namespace)] if scope.namespace else []
        info = selector("kube_pod_info", [wanted, *spaces])
        rows, _ = self.api.instant(f"count by (namespace, pod, node) (last_over_time({info}[{span}]))", scope.until, deadline)
        found = {(row.get("namespace", ""), row.get("pod", ""), row.get("node", "")) for row, _ in rows}
        if not found:
            found = self._by_labels(scope, span, deadline)
        if not found:
            return None
        spaces_found = {space for space, _, _ in found if space}
        return replace(
            scope,
            namespace=scope.namespace or (spaces_found.pop() if len(spaces_found) == 1 else None),
            pods=tuple(sorted({*scope.pods, *(pod for _, pod, _ in found if pod)})),
            nodes=tuple(sorted({*scope.nodes, *(node for _, _, node in found if node)})),
        )

    def _by_labels(self, scope: Scope, span: str, deadline: Deadline) -> set[tuple[str, str, str]]:
        """Return (namespace, pod, node) that the pod and job labels of the GPU metrics tell."""

        names = self.api.values("__name__", [GPU_NAMES], scope.since, scope.until, deadline)
        anchor = anchor_of([name for name in names if name.startswith("DCGM_")] or names)
        if not anchor:
            return set()
        labels = self.api.labels([selector(anchor)], scope.since, scope.until, deadline)
        node = next((name for name in NODE_LABELS if name in labels and name != "instance"), "")
        pod, space = (next((name for name in few if name in labels), "") for few in (POD_LABELS, SPACE_LABELS))
        by = ",".join(name for name in (space, pod, node) if name)
        for matchers, _ in by_labels(scope, labels, self.job_label):
            query = f"count by ({by}) (last_over_time({selector(anchor, matchers)}[{span}]))"
            rows, _ = self.api.instant(query, scope.until, deadline)
            if rows:
                return {(row.get(space, ""), row.get(pod, ""), row.get(node, "")) for row, _ in rows}
        return set()

    def collect(self, scope: Scope, folder: Folder, deadline: Deadline) -> list[Answer]:
        """Write the job's metrics as ``metrics/NAME.json``; see `Collection`."""
        try:
            return Collection(self.api, scope, folder, deadline, self.job_label).run()
        except Exception as error:  # the promise of a source
            return [failure(error, "the metrics could not be collected")]

    def examine(self, deadline: Deadline) -> list[Reach]:
        """Return what this server has and lacks; see `workbench.sources.prometheus.doctor`."""
        from workbench.sources.prometheus.doctor import examine

        return examine(self.api, deadline)

    # -- notebooks --------------------------------------------------------------------------------------------------------

    def frame(
        self,
        query: str,
        start: datetime | float,
        end: datetime | float,
        step: float | None = None,
        *,
        timeout: float = 60.0,
    ) -> pd.DataFrame:
        """
        Return a range query as one long frame, fast.

        Parameters
        ----------
        query : str
            PromQL.
        start, end : datetime or float
            With a time zone, or seconds since the epoch.
        step : float, optional
            Seconds; default: a readable one that gives at most 1,200 points.
        timeout : float
            Seconds for all of it.

        Returns
        -------
        DataFrame
            See `workbench.sources.prometheus.frame.matrix_frame`. What the server warned of is in ``frame.attrs["warnings"]``.

        Raises
        ------
        QueryError
            With the query and the server's own words; `PrometheusTimeout` and `PrometheusUnavailable` are kinds of it.
        """
        for _, frame in self._each_frame([query], start, end, step, timeout):
            return frame
        raise AssertionError("one query gives one frame")

    def frames(
        self,
        queries: Sequence[str],
        start: datetime | float,
        end: datetime | float,
        step: float | None = None,
        *,
        timeout: float = 300.0,
    ) -> dict[str, pd.DataFrame]:
        """Return the frames of several queries by query; the next ones are fetched while one is turned into its frame."""
        return dict(self._each_frame(queries, start, end, step, timeout))

    def _each_frame(
        self, queries: Sequence[str], start: datetime | float, end: datetime | float, step: float | None, timeout: float
    ) -> Iterator[tuple[str, pd.DataFrame]]:
        from workbench.sources.prometheus.frame import Told, matrix_frame

        self._told = self._told or Told()
        since, until = _seconds(start), _seconds(end)
        if until < since:
            raise ValueError("the end is before the start")
        width = step or choose_step(since, until)
        deadline = Deadline(timeout)
        room, over = Semaphore(AHEAD), Event()

        def fetch(query: str) -> Matrix:
            if not room.acquire(timeout=deadline.left()) or over.is_set():
                raise SourceTimeout("not asked for: the answers before it took all the time")
            return self.api.range(query, since, until, width, deadline, timeout)

        calls = [lambda query=query: fetch(query) for query in queries]
        try:
            for number, result in each(calls, deadline, threads=AHEAD - 1):
                if isinstance(result, BaseException):
                    raise result
                frame = matrix_frame([result], queries[number], self._told)
                del result
                room.release()
                yield queries[number], frame
        finally:
            over.set()
            room.release(AHEAD)


def _seconds(moment: datetime | float) -> float:
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise ValueError(f"{moment} has no time zone: say which, e.g. datetime(…, tzinfo=UTC)")
        return moment.timestamp()
    return float(moment)
