"""Turn a launcher's list of failures into what each signal means, and who is missing from it: a rank that left well before its peers."""

from __future__ import annotations

from workbench.model import Event
from workbench.parse.job_launcher import Failure
from workbench.parse.job_state import JobState, add
from workbench.parse.prefix import Prefix

__all__ = ["SIGNALS", "by_signal", "left", "quiet"]

SIGNALS = {
    2: "SIGINT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM",
    24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS",
}  # fmt: skip
_SENT = ("SIGINT", "SIGABRT", "SIGKILL", "SIGTERM")  # somebody sends them, or they follow: the others tell of the process itself

# what ranks say whose peer is gone, or never came to the next collective
_ALONE = ("gloo-closed", "gloo-timeout", "nccl-closed", "nccl-remote-error", "c10d-watchdog-timeout", "py-connection-reset")
_FOLLOW = (-15, -6)  # SIGTERM by the agent, and abort by a watchdog: they follow, whatever the cause was
Words = tuple[int, str, Prefix, float | None]
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
    said = _said(job, failures)
    here = {rank for rank, state in job.ranks.items() if state.lines} | {rank for _, rank, _, _ in job.meshes} | set(said)
    missing = sorted(here - listed)
    if not 0 < len(missing) <= len(here) // 2:
        return
    base = min((failure.rank or 0) - (failure.local_rank or 0) for failure in failures)
    if not set(missing) <= set(range(base, base + len(here | listed))):
        return  # an agent's ranks have no gaps: what a program calls a rank (its process, a group's member) is another number
    now = _now(job)
    if not any(event.signature.startswith(_ALONE) for event in now) or any(_tells(job, event) for event in now):
        return
    for rank in missing:
        _report(job, rank, said.get(rank), now)


def quiet(job: JobState) -> None:
    """
    Report the one rank that ended by a status of its own without a word of it, while its peers only lost it: its program chose to end.

    `sys.exit("message")` prints the message and no stack; `sys.exit(3)` and `os._exit` print nothing. The last that the rank said is the trace.
    """
    failures = [failure for failure in job.summary.failures if failure.attempt == job.attempt and failure.rank is not None]
    own = [failure for failure in failures if (failure.attempt, failure.pid) not in job.signalled]
    now = _now(job)
    if any(failure.code is None or failure.code <= 0 for failure in own) or any(_tells(job, event) for event in now):
        return
    raised = {
        event.rank
        for event in now
        if ("exception" in event.data and not event.signature.startswith("elastic-"))
        or event.signature.startswith(("native-", "fatal-"))
    }
    alone = {event.rank for event in now if event.signature.startswith(_ALONE)}
    words = _said(job, failures)
    silent = [failure for failure in own if failure.rank not in raised and failure.rank not in alone and failure.rank in words]
    if len(silent) != 1 or None in raised or not alone:
        return
    rank, code = silent[0].rank, silent[0].code
    no, text, head, moment = words[rank or 0]
    said = Prefix(rank=rank, local_rank=head.local_rank, node=head.node, pid=head.pid)
    event = add(job, job.matcher.rows["rank-ended-itself"], no, text, said, moment, {})
    if event is not None:
        event.data["exit_code"] = code
    for other in now:
        if (
            code != 1 and other.signature == "elastic-exit" and other.rank == rank
        ):  # a status that no exception gives: the program's own word
            other.role, other.cls, other.weight = "cause", "user/exception", 0.45


def _now(job: JobState) -> list[Event]:
    return [event for event in job.parsed.events if event.attempt == job.attempt and not event.data.get("handled")]


def _tells(job: JobState, event: Event) -> bool:
    """Tell whether a line is a cause that stands on its own."""
    row = job.matcher.rows[event.signature]
    weight = row.weight if event.weight is None else event.weight
    return (event.role or row.role) == "cause" and weight >= 0.35 and event.signature not in _EARLY


def _said(job: JobState, failures: list[Failure]) -> dict[int, Words]:
    """Return the last words by rank; where lines carry local numbers, these count from the first rank of the agent."""
    base = min(((failure.rank or 0) - (failure.local_rank or 0) for failure in failures), default=0)
    words: dict[int, Words] = {}
    for key, last in job.said.items():
        rank = key if key >= 0 else base - 1 - key
        if rank not in words or words[rank][0] < last[0]:
            words[rank] = last
    return words


def _report(job: JobState, rank: int, last: Words | None, now: list[Event]) -> None:
    row = job.matcher.rows["rank-left-early"]
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
    made = add(job, row, no, text or f"rank {rank} is connected, and not among those that failed", said, moment, {})
    if made is not None:
        made.data["exit_code"] = 0
