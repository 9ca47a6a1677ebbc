"""
Turn lines about an attempt that the writer itself gave up for another way (catalog/outlived.csv) into context, where the job then went on.

Such a line is the cause only when its process raised the same, or when nothing came of the job after it.
"""

from __future__ import annotations

from functools import lru_cache

from workbench.catalog import table
from workbench.model import Event
from workbench.parse.job_launcher import Failure
from workbench.parse.job_state import JobState

__all__ = ["outlived"]

_ENDED_BY_OTHERS = (-15, -6)  # SIGTERM by the agent, and abort on what another rank did: they follow, whatever the cause was


@lru_cache(maxsize=1)
def _phases() -> dict[str, str]:
    """Signature → ``any``: a step, or a rank that failed in its own way, is beyond it; ``start``: only when no step came before it."""
    return {row["signature"]: row["phase"] for row in table("outlived")}


def outlived(job: JobState) -> None:
    """
    Take lines for context that the job outlived.

    A rank makes a step only when all ranks have met: whatever hindered the meeting is over by then. The same holds for ranks that fail in
    a way of their own, since an agent starts them after the meeting.
    """
    phases = _phases()
    for event in job.parsed.events:
        phase = phases.get(event.signature)
        if phase is None or "exception" in event.data or event.line is None:
            continue
        if (event.role or job.matcher.rows[event.signature].role) != "cause":
            continue
        if not _raised(job, event) and (_steps(job, event, phase) or _ranks_ran(job, event) or _beyond(job, event)):
            event.role, event.data["handled"] = "context", True


def _raised(job: JobState, event: Event) -> bool:
    """Whether the process, or another one after it, gave up with this very error."""
    return any(
        other.signature == event.signature
        and other.attempt == event.attempt
        and "exception" in other.data
        and not other.data.get("handled")
        and (other.line or 0) > (event.line or 0)
        for other in job.parsed.events
    )


def _steps(job: JobState, event: Event, phase: str) -> bool:
    """Whether the job got a step further after the line, within the same start of the job."""
    line = event.line or 0
    begins = sorted(int(one["line"]) for one in job.attempts)
    since = max((at for at in begins if at <= line), default=0)
    until = min((at for at in begins if at > line), default=None)
    points = [
        (at, step) for _, _, step, _, _, at in job.progress if step is not None and at > since and (not until or at < until)
    ]
    before = max((step for at, step in points if at < line), default=None)
    if before is not None and phase == "start":
        return False
    return any(at > line and (before is None or step > before) for at, step in points)


@lru_cache(maxsize=1)
def _later() -> dict[str, tuple[str, ...]]:
    """Signature → signatures that only a process can show for which the attempt came to something."""
    return {row["signature"]: tuple(filter(None, row["beyond"].split("|"))) for row in table("outlived")}


def _beyond(job: JobState, event: Event) -> bool:
    """Whether a line follows that only a process writes which got beyond the attempt."""
    later = _later().get(event.signature, ())
    return any(
        other.signature in later and (other.line or 0) > (event.line or 0) and other.attempt == event.attempt
        for other in job.parsed.events
    )


def _ranks_ran(job: JobState, event: Event) -> bool:
    """Whether a rank failed after the line in a way that only a rank which had met the others can: by its own error, or by a signal."""
    line, rows, phases = event.line or 0, job.matcher.rows, _phases()
    for other in job.parsed.events:
        known = other.rank is not None or bool(job.summary.failures)  # an agent that lists workers had started them
        own = known and "exception" in other.data and not other.data.get("handled")
        cause = (other.role or rows[other.signature].role) == "cause" and other.signature not in phases
        if own and cause and (other.line or 0) > line and other.attempt == event.attempt:
            return True
    return any(_killed(one) and one.no > line and one.attempt == event.attempt for one in job.summary.failures)


def _killed(failure: Failure) -> bool:
    return failure.code is not None and failure.code < 0 and failure.code not in _ENDED_BY_OTHERS
