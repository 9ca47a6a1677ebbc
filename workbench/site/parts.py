"""Turn the answer of one source about a fleet into a part of it that the other parts can be laid beside, with its age and what it lacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.errors import SourceError
from workbench.model import Condition
from workbench.site.model import Heard

__all__ = ["NodeSeen", "Part", "failed"]


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """
    A node as one source sees it; what it does not tell is None or empty.

    Attributes
    ----------
    gpus, usable : int or None
        GPUs that it should have, and that its scheduler can give away.
    ready : bool or None
        Whether its agent answers.
    schedulable : bool or None
        Whether new work may come.
    held_by, reason : str
        Who keeps work away from it, and what stands there.
    state : str
        The scheduler's own word.
    since : float or None
        Since when it is held or down.
    fit : bool or None
        What the last health check concluded; None when it could not tell, or nobody checked.
    checked : float or None
        When somebody looked at its health last.
    unchecked : str
        Why its health is not known although it once was: the checker stopped, or it could not look.
    """

    node: str
    pool: str = ""
    zone: str = ""
    sku: str = ""
    gpus: int | None = None
    usable: int | None = None
    ready: bool | None = None
    schedulable: bool | None = None
    held_by: str = ""
    reason: str = ""
    state: str = ""
    since: float | None = None
    fit: bool | None = None
    checked: float | None = None
    unchecked: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """
    What one source told at one time.

    Rows are mappings with keys of the frames in `workbench.site.model`, times in epoch seconds. Of `gpus` the key ``judged`` tells
    whether the source would have told of trouble; of `work` there is a row for each job on each node.

    Attributes
    ----------
    status : str
        ``ok | partial | missing | failed | stale``.
    time : float or None
        When it answered; None when it never did.
    """

    source: str
    time: float | None
    status: str = "ok"
    detail: str = ""
    hint: str = ""
    nodes: tuple[NodeSeen, ...] = ()
    gpus: tuple[Mapping[str, Any], ...] = ()
    findings: tuple[Mapping[str, Any], ...] = ()
    conditions: tuple[Condition, ...] = ()
    work: tuple[Mapping[str, Any], ...] = ()
    actions: tuple[Mapping[str, Any], ...] = ()
    incidents: tuple[Mapping[str, Any], ...] = ()
    events: tuple[Any, ...] = ()  # of workbench.model.Event
    samples: Any = None  # DataFrame with the columns of workbench.frames.METRICS
    addresses: Mapping[str, str] = field(default_factory=dict)  # address → node
    queries: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def heard(self) -> Heard:
        """Return what the page says of this source."""
        return Heard(self.source, self.status, self.time, self.detail, self.hint)


def failed(source: str, error: BaseException, last: Part | None = None) -> Part:
    """Return the part for a source that did not answer: what it said last, as old as it is, or nothing."""
    detail = str(error) if isinstance(error, SourceError | TimeoutError) else f"{type(error).__name__}: {error}"
    hint = str(getattr(error, "hint", "") or "")
    if last is None or last.time is None:
        return Part(source, None, "failed", detail, hint)
    return replace(last, status="stale", detail=f"it does not answer, its last answer is shown: {detail}", hint=hint)
