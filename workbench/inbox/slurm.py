"""Turn what Slurm says of the jobs that ended into signs of failures, from where the last look came to."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace

from workbench.errors import SourceError
from workbench.inbox.sightings import Seen, Sighting
from workbench.parse.slurm_words import base_state
from workbench.sources.contract import Deadline, Scope
from workbench.sources.slurm.jobs import Allocation
from workbench.sources.slurm.source import Slurm

__all__ = ["FAILED", "SlurmJobs"]

# https://slurm.schedmd.com/squeue.html#SECTION_JOB-STATE-CODES: states of an allocation that ended otherwise than it should. A job that its
# user cancelled did not fail; one that was requeued did, since the start that it had is over.
FAILED = frozenset(
    {"BOOT_FAIL", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REQUEUED", "TIMEOUT"}
)
_AGAIN = frozenset(
    {"REQUEUED", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "LAUNCH_FAILED"}
)  # after which Slurm starts a job again by itself
_MOST = 50  # jobs of a look that are asked about one by one
_OVERLAP = 900.0  # seconds that a look reaches back: slurmdbd may learn of an end minutes after it


class SlurmJobs:
    """
    Follows the jobs of a Slurm cluster.

    Parameters
    ----------
    slurm : Slurm
    """

    name = "slurm"

    def __init__(self, slurm: Slurm) -> None:
        self._slurm = slurm

    def look(self, since: float, now: float, deadline: Deadline) -> Seen:
        """Return the signs of all jobs that failed since then; `position` is where the next look begins."""
        begin = since - _OVERLAP
        try:
            rows = self._slurm.ended(begin, now, deadline)
        except SourceError as error:
            return Seen(problems=[f"slurm: {error}" + (f" ({error.hint})" if error.hint else "")])
        tries = Counter[str]()
        found, states = list[Sighting](), list[str]()
        for row in sorted(rows, key=lambda one: one.submit or one.start or 0.0):
            tries[row.raw] += 1
            state = base_state(row.state)
            if state in FAILED and row.end is not None and begin <= row.end <= now:
                found.append(self._sign(row, state))
                states.append(state)
        asked = 0
        for at, sign in enumerate(found):
            raw = sign.item.partition("/")[2].partition("@")[0]
            if (tries[raw] > 1 or states[at] in _AGAIN) and asked < _MOST:
                found[at], asked = self._of_start(sign, deadline), asked + 1
        return Seen(found, position=now)

    def _sign(self, row: Allocation, state: str) -> Sighting:
        told = f"Slurm: job {row.id} ({row.name}) ended as {row.state or state}"
        return Sighting(
            item=f"slurm/{row.raw}@{row.end:.0f}",
            key=f"slurm/{row.group}",
            source="slurm",
            job=row.name or row.id,
            job_id=row.id if not row.id.partition("+")[2] else row.group,  # components of a heterogeneous job fail together
            time=row.end,
            begin=row.start,
            nodes=row.nodes,
            reason=told,
            user=row.user,
        )

    def _of_start(self, sign: Sighting, deadline: Deadline) -> Sighting:
        """Add which start of a job it was; when that cannot be asked, the times tell the starts apart."""
        raw = sign.item.partition("/")[2].partition("@")[0]
        with suppress(SourceError):
            taken, _ = self._slurm.allocations(Scope(raw, 0.0, (sign.time or 0.0) + _OVERLAP), deadline)
            ends = [row.end for row in taken if row.raw == raw]
            if len(ends) > 1 and sign.time in ends:
                return replace(sign, attempt=ends.index(sign.time) + 1)
        return sign
