"""Turn a launcher's list of failures into what each signal means, and who is missing from it: a rank that left well before its peers."""

from __future__ import annotations

from workbench.model import Event
from workbench.parse.job_state import JobState, add
from workbench.parse.prefix import Prefix

__all__ = ["SIGNALS", "by_signal", "left"]

SIGNALS = {
    2: "SIGINT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM",
    24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS",
}  # fmt: skip
_SENT = ("SIGINT", "SIGABRT", "SIGKILL", "SIGTERM")  # somebody sends them, or they follow: the others tell of the process itself

# what ranks say whose peer is gone, or never came to the next collective
_ALONE = ("gloo-closed", "gloo-timeout", "nccl-closed", "nccl-remote-error", "c10d-watchdog-timeout", "py-connection-reset")
_FOLLOW = (-15, -6)  # SIGTERM by the agent, and abort by a watchdog: they follow, whatever the cause was
_EARLY = ("rank-data-exhausted", "rank-skipped-step")


def by_signal(job: JobState, event: Event) -> None:
    """Give the end of a worker the meaning of the signal that ended it (the rows ``exit-sig...``), or note that the agent sent it."""
    name = event.data.get("signal")
    if (event.attempt, event.pid) in job.signalled:
        event.data["ended_by_launcher"] = True
        return
    row = job.matcher.rows.get(f"exit-{name.lower()}") if isinstance(name, str) and name not in _SENT else None
    if row is not None:
        event.role, event.cls, event.weight = row.role, row.cls, row.weight
        event.data["at_fault"] = row.at_fault or None


def left(job: JobState) -> None:
    """
    Report ranks that ended well while the others lost them in the middle of their work.

    The agent's list has every worker that did not end with 0 (torch/distributed/elastic/multiprocessing/api.py: `_poll` takes the exit codes
    of all when the first fails), so who is missing from it had left before, unless it was told to end and then ended well. A rank that leaves
    alone has done fewer collectives than its peers. Nothing is concluded when a rank died by a signal or tells of an error of its own.
    """
    failures = [failure for failure in job.summary.failures if failure.attempt == job.attempt and failure.rank is not None]
    listed = {failure.rank for failure in failures}
    ended = {failure.pid for failure in failures}
    if (
        not failures
        or len(job.ctx.hosts) > 1
        or len({(failure.rank or 0) - (failure.local_rank or 0) for failure in failures}) > 1
    ):
        return
    if any(failure.code is None or (failure.code < 0 and failure.code not in _FOLLOW) for failure in failures):
        return
    if {pid for attempt, pid in job.signalled if attempt == job.attempt} - ended:
        return
    here = {rank for rank, state in job.ranks.items() if state.lines} | {rank for _, rank, _, _ in job.meshes}
    missing = sorted(here - listed)
    if not 0 < len(missing) <= len(here) // 2:
        return
    now = [event for event in job.parsed.events if event.attempt == job.attempt and not event.data.get("handled")]
    if not any(event.signature.startswith(_ALONE) for event in now) or any(_tells(job, event) for event in now):
        return
    for rank in missing:
        _report(job, rank, now)


def _tells(job: JobState, event: Event) -> bool:
    """Tell whether a line is a cause that stands on its own."""
    row = job.matcher.rows[event.signature]
    weight = row.weight if event.weight is None else event.weight
    return (event.role or row.role) == "cause" and weight >= 0.35 and event.signature not in _EARLY


def _report(job: JobState, rank: int, now: list[Event]) -> None:
    row = job.matcher.rows["rank-left-early"]
    last = job.said.get(rank)
    if last is None:
        last = next(((no, "", head, head.time) for _, who, head, no in reversed(job.meshes) if who == rank), None)
    if last is None:
        return
    no, text, head, moment = last
    for event in now:
        if event.line == no and event.signature in _EARLY:
            event.weight = row.weight  # its own last words say it
            return
    said = Prefix(rank=rank, local_rank=head.local_rank, node=head.node, pid=head.pid)
    event = add(job, row, no, text or f"rank {rank} is connected, and not among those that failed", said, moment, {})
    if event is not None:
        event.data["exit_code"] = 0
