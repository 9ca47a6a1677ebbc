"""Turn what a Prometheus-like server says of itself and its metrics into lines of ``workbench doctor``."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from workbench.catalog import table
from workbench.errors import SourceError
from workbench.parse.prom_labels import canonical
from workbench.sources.contract import Deadline, Reach
from workbench.sources.prometheus.api import Api
from workbench.sources.prometheus.collect import CLOCK_OFF, STALE
from workbench.sources.prometheus.http import PrometheusTimeout, PrometheusUnavailable, QueryError, shown
from workbench.sources.prometheus.jobs import ENTITY_LABELS, NODE_LABELS, POD_LABELS, Question, anchor_of, questions
from workbench.sources.prometheus.query import selector

__all__ = ["examine"]

RECENT = 3600.0  # seconds: what counts as there now
NAME = "prometheus"


def examine(api: Api, deadline: Deadline) -> list[Reach]:
    """Return what the server has and lacks: version, rights, clock, age of the data, fields, labels, and what it is blind to."""
    lines: list[Reach] = []
    everything = _seen_by_metrics()
    try:
        build = api.build(deadline)
    except Exception as error:  # `examine` never raises
        return [_broken("server", error, everything)]
    lines.append(Reach(NAME, "version", "ok", f"{build.flavour} {build.version} at {api.http.url}"))
    lines.append(_clock(api.http.offset))
    now = time.time() + (api.http.offset or 0.0)
    names: list[str] = []

    def rights() -> list[Reach]:
        names.extend(api.values("__name__", [], now - RECENT, now, deadline))
        if not names:
            fix = "is this the right tenant (X-Scope-OrgID), and does anything scrape into it?"
            return [Reach(NAME, "rights", "warning", "no metric at all in the last hour", fix, everything)]
        return [Reach(NAME, "rights", "ok", f"may read series; {len(names)} metrics in the last hour")]

    steps: tuple[tuple[str, Callable[[], list[Reach]]], ...] = (
        ("rights", rights),
        ("data age", lambda: _age(api, names, now, deadline)),
        ("labels", lambda: _labels(api, names, now, deadline)),
        ("fields", lambda: _fields(names)),
    )
    for item, step in steps:
        try:
            lines += step()
        except Exception as error:
            lines.append(_broken(item, error, everything if item == "rights" else ()))
            if item == "rights":
                break
    return lines


def _broken(item: str, error: Exception, blind: tuple[str, ...]) -> Reach:
    """What could not be checked is never ok: critical when the server refused us, unknown when it gave no answer."""
    status = "critical" if isinstance(error, PrometheusUnavailable) else "unknown"
    if isinstance(error, QueryError) and not isinstance(error, PrometheusTimeout) and error.status in (401, 403):
        item, status = "rights", "critical"
    text = str(error) if isinstance(error, SourceError) else f"{type(error).__name__}: {error}"
    return Reach(NAME, item, status, shown(text, 400), error.hint if isinstance(error, SourceError) else "", blind)


def _seen_by_metrics() -> tuple[str, ...]:
    return tuple(row["class"] for row in table("classes") if "metrics" in row["seen_by"].split(";"))


def _clock(offset: float | None) -> Reach:
    if offset is None:
        return Reach(NAME, "clock", "unknown", "the server does not tell its time (no Date header)")
    if abs(offset) > CLOCK_OFF:
        way = "ahead of" if offset > 0 else "behind"
        return Reach(NAME, "clock", "warning", f"{abs(offset):.0f} s {way} this machine", "chronyc tracking, on both machines")
    return Reach(NAME, "clock", "ok", f"within {max(abs(offset), 1):.0f} s of this machine")


def _age(api: Api, names: list[str], now: float, deadline: Deadline) -> list[Reach]:
    gpu = [name for name in names if name.startswith("DCGM_")]
    anchor = anchor_of(gpu)
    if not anchor:
        return [
            Reach(
                NAME,
                "data age",
                "critical",
                "no metric of any GPU exporter in the last hour",
                "install dcgm-exporter and scrape it",
                _seen_by_metrics(),
            )
        ]
    last = api.newest(selector(anchor), now - RECENT, now, deadline)
    if last is None:
        return [Reach(NAME, "data age", "unknown", f"the age of {anchor} could not be told")]
    age = max(now - last, 0.0)
    if age > STALE:
        return [
            Reach(NAME, "data age", "warning", f"the newest {anchor} is {age / 60:.0f} min old", "see /targets of the server")
        ]
    return [Reach(NAME, "data age", "ok", f"the newest {anchor} is at most {max(age, 15):.0f} s old")]


def _labels(api: Api, names: list[str], now: float, deadline: Deadline) -> list[Reach]:
    anchor = anchor_of([name for name in names if name.startswith("DCGM_")])
    if not anchor:
        return []
    labels = api.labels([selector(anchor)], now - RECENT, now, deadline)
    lines = []
    node = next((name for name in NODE_LABELS if name in labels), "")
    if node in ("", "instance"):
        fix = "relabel: source_labels [__meta_kubernetes_pod_node_name], target_label node"
        lines.append(Reach(NAME, "label node", "warning", "GPU series name their node only by the scraped address", fix))
    else:
        values = set(api.values(node, [selector(anchor)], now - RECENT, now, deadline))
        lost = values & {"localhost", "127.0.0.1"}
        lines.append(
            Reach(
                NAME,
                "label node",
                "warning" if lost else "ok",
                f"{node}, {len(values)} nodes" + (": some say localhost (remote host engine)" if lost else ""),
                "relabel the node's name onto the series of dcgm-exporter" if lost else "",
            )
        )
    pod = next((name for name in POD_LABELS if name in labels), "")
    if pod:
        lines.append(Reach(NAME, "label pod", "ok", f"{pod}: tells which pod held which GPU"))
    else:
        lines.append(
            Reach(
                NAME,
                "label pod",
                "warning",
                "GPU series do not tell which pod or job holds the GPU",
                "dcgm-exporter: DCGM_EXPORTER_KUBERNETES=true and the kubelet's pod-resources socket; with Slurm --hpc-job-mapping-dir",
            )
        )
    if not any(name in labels for name in ("UUID", "uuid", "gpu_uuid")):
        lines.append(
            Reach(NAME, "label UUID", "warning", "GPU series have no UUID: an index is no identity", "use dcgm-exporter")
        )
    others = [name for name in labels if name in ENTITY_LABELS]
    lines.append(Reach(NAME, "labels", "ok", f"identity by {', '.join(others[:10])}"))
    return lines


def _fields(names: list[str]) -> list[Reach]:
    """One line a question of the catalog whose metric is lacking, and one for each class that nothing here can show."""
    here = {canonical(name)[0] for name in names}
    lines: list[Reach] = []
    seen: set[str] = set()
    by_metrics = set(_seen_by_metrics())
    possible: dict[str, list[Question]] = {}
    for row in questions():
        there = _has(row, here)
        for cls in row.classes:
            possible.setdefault(cls, []).append(row)
            if there:
                seen.add(cls)
    for row in questions():
        if not row.classes or _has(row, here):
            continue
        blind = tuple(cls for cls in row.classes if cls not in seen and cls in by_metrics)
        word = row.switch_on.split(",")[0] if row.exporter == "dcgm" else _example(row.field)
        lines.append(
            Reach(
                NAME,
                f"field {word}",
                "critical" if blind and row.score >= 50 else "warning",
                f"not here: {row.why}",
                row.switch_on,
                blind,
            )
        )
    many = sum(_has(row, here) for row in questions())
    lines.insert(
        0, Reach(NAME, "fields", "ok" if many else "critical", f"{many} of {len(questions())} kinds of metrics are here")
    )
    for cls in sorted(by_metrics - seen):
        fix = next((row.switch_on for row in possible.get(cls, ()) if row.switch_on), "")
        lines.append(Reach(NAME, f"class {cls}", "warning", "no metric here can show it", fix, (cls,)))
    return lines


def _example(pattern: str) -> str:
    """Return the first name that a row's pattern stands for."""
    return re.sub(r"\((\w+)(?:\|\w+)*\)", r"\1", re.sub(r"\(\w+\)\?", "", pattern))


def _has(row: Question, here: set[str]) -> bool:
    return any(re.fullmatch(row.field, name) for name in here)
