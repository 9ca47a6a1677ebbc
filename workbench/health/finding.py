"""Turn what a check concluded about one entity into a record: status, what it means, evidence, and the action it calls for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.model import Gpu

__all__ = ["STATUSES", "Finding", "rank", "worst"]

# worst last; unknown is worse than a warning, since whatever was not checked may be critical
STATUSES = ("not-applicable", "ok", "warning", "unknown", "critical")
# what is called for, from what costs least to what costs most: of two findings of one check the one that asks for more is the answer, since a
# node that is rebooted or replaced needs no reset of its GPU
_HEIGHTS = ("none", "restart-task", "fix-user-code", "reset-gpu", "fix-platform", "reboot-node", "drain", "replace-node")


@dataclass(frozen=True, slots=True)
class Finding:
    """
    What a check concluded about an entity.

    Attributes
    ----------
    check : str
        Id of the check.
    status : str
        One of `STATUSES`.
    summary : str
        One sentence that a tired person understands.
    code : str
        What kind of finding: a row of ``catalog/findings.csv`` (``gpu-missing``, ``xid-79``, ``unread``); empty when all is well. It is what
        history counts, what sites override and what the runbooks are filed under.
    node : str
        The node.
    gpu : Gpu or None
        The GPU it speaks of.
    part : str
        Another entity: a link, a port, a mount, a unit, a MIG instance.
    cls : str
        The failure class that it is evidence for; empty when none.
    action : str
        The remediation it calls for: one of `workbench.model.REMEDIATIONS`.
    required : bool
        Whether the node is unfit while this is critical or unknown.
    evidence : tuple of str
        Lines and values as they were, at most ten.
    path : str
        The way it was looked at: ``NVML``, ``nvidia-smi``, ``journal``.
    blind : tuple of str
        What that way cannot show.
    tried : tuple of str
        What better ways said.
    hint : str
        What a person can do to get to know more, or to make the check work.
    seconds : float
        How long the reading took.
    since : float or None
        Seconds since the epoch, UTC: when it was first seen (history) or happened (kernel log).
    device : mapping
        What is known of the GPU as a thing: ``serial``, ``vbios``, ``product``; only of findings that call for something.
    """

    check: str
    status: str
    summary: str
    code: str = ""
    node: str = ""
    gpu: Gpu | None = None
    part: str = ""
    cls: str = ""
    action: str = "none"
    required: bool = True
    evidence: tuple[str, ...] = ()
    path: str = ""
    blind: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()
    hint: str = ""
    seconds: float = 0.0
    since: float | None = None
    device: Mapping[str, str] = field(default_factory=dict)

    @property
    def unfit(self) -> bool:
        """Whether the node must not get a job because of it."""
        return self.required and self.status in ("critical", "unknown")

    @property
    def warns(self) -> bool:
        """Whether somebody should know of it though the node may get jobs."""
        return self.status not in ("ok", "not-applicable") and not self.unfit

    @property
    def who(self) -> str:
        """Of whom it speaks, as the begin of a sentence: ``GPU 3: ``; empty for the node."""
        if self.gpu is not None and self.gpu.index is not None:
            return f"GPU {self.gpu.index}: "
        return f"{self.part}: " if self.part else ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return {
            "check": self.check,
            "status": self.status,
            "summary": self.summary,
            "code": self.code,
            "node": self.node,
            "gpu": self.gpu.as_dict() if self.gpu else None,
            "part": self.part,
            "class": self.cls,
            "action": self.action,
            "required": self.required,
            "evidence": list(self.evidence),
            "path": self.path,
            "blind": list(self.blind),
            "tried": list(self.tried),
            "hint": self.hint,
            "seconds": round(self.seconds, 3),
            "since": self.since,
            **({"device": dict(self.device)} if self.device else {}),
        }


def worst(statuses: Iterable[str]) -> str:
    """Return the worst of several statuses; ``unknown`` for none, since nothing was checked."""
    return max(statuses, key=STATUSES.index, default="unknown")


def rank(one: Finding) -> tuple[int, bool, str, str, int]:
    """Return what findings are sorted by: the worst status, what makes the node unfit, then node and check, and in it what asks for most."""
    height = _HEIGHTS.index(one.action) if one.action in _HEIGHTS else 0  # a kept finding may be of another version
    return (-STATUSES.index(one.status), not one.required, one.node, one.check, -height)
