"""Turn stragglers and lasting slow-downs into the list of parts that are slow, with since when and by how much the job slowed."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import Any

from workbench.model import Event
from workbench.triage.context import Context

__all__ = ["find_degraded", "stragglers_told"]

_SIGNS = ("metric-straggler", "metric-thermal", "metric-power-brake", "metric-port-rate-drop", "metric-pcie-link-degraded")
_NOTICEABLE = 1.05  # steps vary by a few per cent on healthy machines; less than this is no slow-down


def find_degraded(context: Context) -> list[dict[str, Any]]:
    """
    Return the nodes and GPUs that are slow without having failed.

    Returns
    -------
    list of dict
        ``node``, ``gpu`` (dict or None), ``since`` (seconds since the epoch, UTC), ``slowdown`` (median step time after by that before;
        None where no steps tell), ``sign`` (the signature that shows it).
    """
    found: dict[tuple[str | None, Any], dict[str, Any]] = {}
    for event in stragglers_told(context):
        found[(event.node, event.rank)] = {
            "node": event.node,
            "gpu": None,
            "rank": event.rank,
            "since": event.data.get("since") or event.time,
            "slowdown": float(event.data["times"]),
            "sign": event.signature,
        }
    for event in context.events:
        if event.signature not in _SIGNS or context.in_job(event.node) is False or event.data.get("in_job") is False:
            continue
        key = (event.node, event.gpu if event.signature != "metric-straggler" or event.data.get("gpus", 1) == 1 else None)
        slower = _slowdown(context, event.time)
        if key in found or (slower is not None and slower < _NOTICEABLE):
            continue
        found[key] = {
            "node": event.node,
            "gpu": event.gpu.as_dict() if event.gpu is not None else None,
            "since": event.time,
            "slowdown": slower,
            "sign": event.signature,
        }
    return list(found.values())[:16]


def stragglers_told(context: Context) -> list[Event]:
    """Return what `workbench run` told of ranks and nodes whose own part of a step became longer, each once: the steps themselves show it."""
    last: dict[tuple[str | None, int | None], Event] = {}
    for event in context.events:
        if event.signature == "run-straggler" and context.in_job(event.node) is not False and event.data.get("times"):
            last[(event.node, event.rank)] = event
    return list(last.values())


def _slowdown(context: Context, since: float | None) -> float | None:
    """Median step time after a moment by that before it, from the steps of the rank that logs most."""
    if since is None:
        return None
    by_rank: dict[int | None, list[tuple[float, int]]] = {}
    for time, rank, step, _ in context.progress:
        if step is not None:
            by_rank.setdefault(rank, []).append((time, step))
    rows = max(by_rank.values(), key=len, default=[])
    pace: dict[bool, list[float]] = {True: [], False: []}
    for (t0, s0), (t1, s1) in pairwise(rows):
        if s1 > s0 and t1 > t0:
            pace[t0 >= since].append((t1 - t0) / (s1 - s0))
    if len(pace[True]) < 3 or len(pace[False]) < 3:
        return None
    return round(median(pace[True]) / median(pace[False]), 3)
