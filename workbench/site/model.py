"""
Turn what the sources say of a fleet into one immutable snapshot that every page of a process reads.

A poller writes a new snapshot; sessions never ask a server themselves. What a source did not tell is `unknown`, never healthy, and
the snapshot says of each source whether it answered and how old its answer is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ACTIONS", "FINDINGS", "GPUS", "HEALTH", "INCIDENTS", "JOBS", "NODES", "SUSPECTS", "Heard", "Snapshot"]

UTC = "datetime64[us, UTC]"

# Of a GPU or node, by rising severity: pooled into one pixel, the most severe is drawn. `unknown` is worse than `ok`.
HEALTH: tuple[str, ...] = ("absent", "ok", "unknown", "warning", "critical")

NODES: dict[str, str] = {
    "node": "string",
    "pool": "string",
    "zone": "string",
    "sku": "string",
    "gpus": "Int64",
    "gpus_ready": "Int64",
    "health": "string",  # a word of HEALTH
    "why": "string",  # the worst finding or condition, one sentence
    "cause": "string",
    "schedulable": "boolean",
    "held_by": "string",  # who cordoned or drained it
    "state": "string",  # Slurm's or Kubernetes' word
    "job": "string",
    "checked": UTC,  # when the last health check looked
    "since": UTC,  # since when it is so
}
GPUS: dict[str, str] = {
    "node": "string",
    "gpu_index": "Int64",
    "gpu_uuid": "string",
    "pci": "string",
    "sku": "string",
    "pool": "string",
    "health": "string",
    "why": "string",
    "cause": "string",
    "job": "string",
    "rank": "Int64",
    "temperature": "Float64",  # °C
    "power": "Float64",  # W
    "utilization": "Float64",  # %
    "memory_used": "Float64",  # MiB
    "xid": "Int64",  # the last
    "seen": UTC,
}
JOBS: dict[str, str] = {
    "job": "string",
    "namespace": "string",
    "user": "string",
    "team": "string",
    "state": "string",
    "nodes": "Int64",
    "gpus": "Int64",
    "ranks": "Int64",
    "start": UTC,
    "node_names": "object",  # tuple of str
}
SUSPECTS: dict[str, str] = {
    "node": "string",
    "gpu_index": "Int64",
    "score": "Float64",  # 0..1
    "why": "string",
    "incidents": "Int64",
    "last": UTC,
}
FINDINGS: dict[str, str] = {
    "node": "string",
    "gpu_index": "Int64",
    "gpu_uuid": "string",
    "check": "string",
    "code": "string",
    "status": "string",  # a word of workbench.health.STATUSES
    "class": "string",
    "message": "string",  # hostile: log text may stand in it
    "action": "string",
    "time": UTC,  # when it was last confirmed
    "since": UTC,
    "source": "string",  # who told: kubernetes, prometheus, slurm
}
INCIDENTS: dict[str, str] = {
    "id": "string",  # of its case file
    "time": UTC,
    "node": "string",
    "gpu_index": "Int64",
    "job": "string",
    "cause": "string",
    "class": "string",
    "at_fault": "string",
    "confidence": "Float64",
    "state": "string",
    "summary": "string",
}
ACTIONS: dict[str, str] = {
    "time": UTC,
    "node": "string",
    "plan": "string",
    "action": "string",
    "verb": "string",
    "rung": "string",
    "status": "string",
    "detail": "string",
    "by": "string",
}


@dataclass(frozen=True, slots=True)
class Heard:
    """How one source answered the last poll: ``ok | partial | missing | failed | stale``, when (epoch seconds), and what it said when not ok."""

    source: str
    status: str
    time: float | None
    detail: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """
    The fleet at one moment; frames have the columns above and are never changed.

    `findings` has the columns of `FINDINGS`, `conditions` those of `workbench.frames.CONDITIONS`; `samples` those of
    `workbench.frames.METRICS` for the last hour of suspects and of the nodes that people look at, or is empty. `incidents` has the
    columns of `INCIDENTS`, `events` (what kernels, kubelets and exporters told of nodes lately) those of `workbench.frames.EVENTS`; None
    where nobody was asked. `data` has ``demo`` (true when nothing of it is real) and ``asked`` (how many polls there were).
    """

    time: float
    name: str
    nodes: pd.DataFrame
    gpus: pd.DataFrame
    conditions: pd.DataFrame
    findings: pd.DataFrame
    jobs: pd.DataFrame
    suspects: pd.DataFrame
    actions: pd.DataFrame
    samples: pd.DataFrame
    heard: tuple[Heard, ...] = ()
    period: float = 30.0  # seconds between polls; older than two of them is stale
    queries: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    incidents: pd.DataFrame | None = None
    events: pd.DataFrame | None = None

    def age(self, now: float) -> float:
        """Return how old it is in seconds; a clock that was set back makes it no younger than 0."""
        return max(0.0, now - self.time)

    def stale(self, now: float) -> bool:
        """Tell whether it is older than two periods: then it is not how the fleet is."""
        return self.age(now) > 2 * self.period
