"""Turn site settings into the time windows that triage works with; every limit is configuration, none is buried in a rule."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Windows"]


@dataclass(frozen=True, slots=True)
class Windows:
    """
    Time windows in seconds.

    The Xid-to-job join of 20 s and the 10 min / 5 min around a job for health and conditions follow the practice of published
    fleet studies (Delta: errors within 20 s of a job's end count as its cause; RSC: health checks up to 10 min before and 5 min after).
    """

    coalesce: float = 5.0  # same entity and signature within this is one event
    xid_after: float = 20.0  # kernel lines may trail the first job error by this (they share no lock with the job's log)
    before_start: float = 600.0  # health and conditions count from this long before the job …
    after_end: float = 300.0  # … to this long after it
    same_instant: float = 1.0  # two stamps closer than this have no order worth trusting
    survived: float = 20.0  # the job made steps for longer than this after an event: the event did not kill it
    simultaneous: float = 5.0  # ranks or nodes that fail within this fail together
    flap: float = 5.0  # a link that is back before this is ridden out by the transport's retries (RoCE/IB defaults: about 7 s)
    stale_condition: float = 86_400.0  # a condition true for longer than this before the job is no news
