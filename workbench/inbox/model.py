"""Turn one triaged incident into its row of the inbox: the columns that the page, the command and the notes to people share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["STATES", "Entry"]

# new: nobody has looked; acknowledged: somebody has it; resolved: mended; closed: nothing is left to do; muted: a known thing
STATES: tuple[str, ...] = ("new", "acknowledged", "resolved", "closed", "muted")


@dataclass(frozen=True, slots=True)
class Entry:
    """
    One incident of the inbox.

    Times are seconds since the epoch (UTC). `id` is that of its case file; what is not known is None, never a zero. `alerts` are
    the fingerprints of the alerts that rang for it; `told` is when people were told, and by which ways.
    """

    id: str
    time: float | None  # when it failed
    seen: float  # when it came into the inbox
    source: str  # kubernetes | slurm | folder | alert
    evidence: str  # path of the folder or archive, below the inbox or elsewhere
    state: str = "new"
    job: str | None = None
    attempt: int | None = None
    namespace: str | None = None
    user: str | None = None
    team: str | None = None
    cause: str = "unknown"
    cls: str = "unknown"
    confidence: float = 0.0
    summary: str = ""
    node: str | None = None
    gpu: int | None = None
    rank: int | None = None
    at_fault: str | None = None
    retry: str | None = None
    remediation: str | None = None
    ranks: int | None = None
    nodes: int | None = None
    gpus: int | None = None
    gpu_hours: float | None = None  # held from the failure to the job's end
    gpu_hours_lost: float | None = None  # of work since the last checkpoint
    product: str | None = None  # of the GPUs, as the evidence names it
    cost: float | None = None  # of both, by the site's price table (`report.prices`), in its currency
    alerts: tuple[str, ...] = ()
    told: dict[str, float] = field(default_factory=dict)
    problem: str = ""  # why it could not be triaged, when it could not
    data: dict[str, Any] = field(default_factory=dict)
