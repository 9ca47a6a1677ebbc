"""Turn single signs that something failed (a pod, a container, a job's condition, an allocation) into failures: one a job and start."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from workbench.inbox.model import Entry

__all__ = ["QUIET", "Failure", "Seen", "Sighting", "assign", "failure_of", "name_of"]

# Seconds between two signs of one job that still belong to one failure, when nothing tells the start they belong to. A collective's
# time-out lets the last ranks of a job die ten minutes after the first (TORCH_NCCL's default).
QUIET = 900.0
_LISTED = 512  # nodes and pods that an entry lists; more are counted
_REASONS = 8


@dataclass(frozen=True, slots=True)
class Sighting:
    """
    One sign that a job failed.

    Attributes
    ----------
    item : str
        What failed, named for ever: the same sign seen again has the same.
    key : str
        The job: ``kubernetes/train/llm``, ``slurm/4711``.
    source, job, namespace, user, team : str
        Whose it is; empty when not known.
    attempt : int or None
        The start of the job that it belongs to, where the scheduler tells.
    time, begin : float or None
        When it failed, and when it had begun, in seconds since the epoch.
    nodes, pods : tuple of str
    reason : str
        One sentence in the scheduler's words: hostile text.
    job_id : str
        What to ask the sources for, when that is not `job`.
    """

    item: str
    key: str
    source: str
    job: str
    namespace: str = ""
    attempt: int | None = None
    time: float | None = None
    begin: float | None = None
    nodes: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
    reason: str = ""
    user: str = ""
    team: str = ""
    job_id: str = ""


@dataclass(slots=True)
class Seen:
    """What one look at a scheduler showed: signs, what stood in the way, and how far the look came."""

    sightings: list[Sighting] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    position: float | None = None  # up to when all is seen, for a scheduler that is asked for a window


@dataclass(frozen=True, slots=True)
class Failure:
    """
    One failed start of a job, as the inbox remembers it while it is collected.

    `first` and `last` are the times of its first and last sign; `count` is how many signs there were; `items` names them.
    """

    key: str
    source: str
    job: str
    namespace: str = ""
    attempt: int | None = None
    first: float = 0.0
    last: float = 0.0
    begin: float | None = None
    nodes: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    user: str = ""
    team: str = ""
    job_id: str = ""
    items: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The name of its entry: the same failure, seen again, has the same."""
        start = f"attempt {self.attempt}" if self.attempt is not None else ""
        return name_of(self.job, f"{self.key}|{start}|{self.first:.0f}")

    def to_dict(self) -> dict[str, Any]:
        """Return it as the row's ``data`` keeps it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Failure:
        """Return what `to_dict` wrote; fields of a later version are left aside. TypeError when it is something else."""
        known = {item.name for item in fields(cls)}
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in table.items() if key in known
        }
        return cls(**values)

    def with_(self, sign: Sighting, now: float) -> Failure:
        """Return it with one more sign."""
        when = now if sign.time is None else sign.time
        begins = [one for one in (self.begin, sign.begin) if one is not None]
        return replace(
            self,
            attempt=self.attempt if self.attempt is not None else sign.attempt,
            first=min(self.first, when),
            last=max(self.last, when),
            begin=min(begins, default=None),
            nodes=tuple(dict.fromkeys((*self.nodes, *sign.nodes)))[:_LISTED],
            pods=tuple(dict.fromkeys((*self.pods, *sign.pods)))[:_LISTED],
            reasons=tuple(dict.fromkeys((*self.reasons, *([sign.reason] if sign.reason else []))))[:_REASONS],
            user=self.user or sign.user,
            team=self.team or sign.team,
            job_id=self.job_id or sign.job_id,
            items=tuple(dict.fromkeys((*self.items, sign.item))),
        )


def failure_of(entry: Entry) -> Failure | None:
    """Return the failure that an entry is about; None when it is none of the watch's, or not readable."""
    table = entry.data.get("failure")
    if not isinstance(table, Mapping):
        return None
    try:
        return Failure.from_dict(table)
    except TypeError:
        return None


def name_of(job: str, told: str) -> str:
    """Return an id for an entry: readable, and told apart by what identifies it."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", job).strip("-")[:60] or "job"
    return f"{plain}-{hashlib.sha256(told.encode('utf-8', 'replace')).hexdigest()[:10]}"


def assign(sightings: Iterable[Sighting], known: Sequence[tuple[str, Failure]], now: float) -> list[tuple[str, Failure]]:
    """
    Return the failures that are new or have new signs, each with the id of its entry.

    Parameters
    ----------
    sightings : iterable of Sighting
        In any order; a sign that a known failure has already changes nothing.
    known : sequence of (id, Failure)
        What the inbox remembers.
    now : float
        Counts for signs without a time.

    Notes
    -----
    Signs of one job belong together when both tell the same start of it; where one does not tell, when they are `QUIET` seconds or less
    apart. So 512 pods that die of one fault are one failure, and the next start of the job is another.
    """
    by_key: dict[str, dict[str, Failure]] = {}
    have: set[str] = set()
    for name, failure in known:
        by_key.setdefault(failure.key, {})[name] = failure
        have.update(failure.items)
    changed: dict[str, Failure] = {}
    for sign in sorted(sightings, key=lambda one: (now if one.time is None else one.time, one.item)):
        if sign.item in have:
            continue
        have.add(sign.item)
        mine = by_key.setdefault(sign.key, {})
        home = _home(sign, mine, now)
        if home is None:
            when = now if sign.time is None else sign.time
            failure = Failure(
                sign.key, sign.source, sign.job, sign.namespace, sign.attempt, when, when, job_id=sign.job_id
            ).with_(sign, now)
            name = failure.id
            if name in mine:  # the same second: one failure
                failure = mine[name].with_(sign, now)
        else:
            name, failure = home, mine[home].with_(sign, now)
        mine[name] = changed[name] = failure
    return list(changed.items())


def _home(sign: Sighting, mine: Mapping[str, Failure], now: float) -> str | None:
    """Return the failure of its job that a sign belongs to: of the same start first, then the nearest in time."""
    when = now if sign.time is None else sign.time
    near = []
    for name, failure in mine.items():
        apart = max(failure.first - when, when - failure.last, 0.0)
        told = sign.attempt is not None and failure.attempt is not None
        if told and sign.attempt != failure.attempt:
            continue
        # a job of the same name may be made anew and count its starts from one again, so a start is one only while it is not long ago
        if apart <= (86400.0 if told else QUIET):
            near.append((not told, apart, name))
    return min(near)[2] if near else None
