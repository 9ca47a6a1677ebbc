"""
Turn plans that need a yes into a queue on disk that several processes share: proposed, decided by a person, done by one controller, or over.

A plan is a file that never changes; what happened to it is a file of lines, each on the disk when the call that wrote it returns. A yes is bound
to the digest of its plan: what is executed is that plan and nothing else, and a file that was changed since is refused. Who may say yes is for
the caller to know (`workbench.serving`, or who may write the folder).
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from workbench.durable import sync_folder, write_whole
from workbench.errors import WorkbenchError
from workbench.remediation.model import Action, Plan, digest

__all__ = ["KINDS", "STATES", "WAITING", "Event", "Proposal", "Queue", "QueueError", "digest_of"]

SCHEMA = "workbench.queued/1"
KINDS = ("plan", "undo")
# what an event makes of a plan
STATES = ("proposed", "approved", "applying", "applied", "refused", "rejected", "withdrawn", "expired")
WAITING = ("proposed", "approved", "applying")  # something may still be done because of it
NO_HOLDS = 86400.0  # seconds for which a no to the same steps is not asked again; ours: a shift or two
_NEXT: Mapping[str, tuple[str, ...]] = {
    "proposed": ("approved", "rejected", "withdrawn", "expired"),
    "approved": ("applying", "rejected", "withdrawn", "expired", "refused"),
    "applying": ("applied", "refused", "approved", "expired"),
}
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_REASON = 2000  # characters of a reason


class QueueError(WorkbenchError):
    """It cannot be done to this plan: it is another one by now, decided already, or not there."""

    exit_code = 3


class _NeverAskedError(QueueError):
    """A plan without its first event: its proposal never came to its end."""


@dataclass(frozen=True, slots=True)
class Event:
    """
    What happened to a plan in the queue.

    Attributes
    ----------
    time : float
        Seconds since the epoch.
    state : str
        One of `STATES`: what the plan is from then on.
    by : str
        Who did it: a user, or a controller.
    reason : str
        In the words of who did it.
    digest : str
        Of the plan that was in front of who did it.
    data : mapping
        More of it: how the actions ended, what it follows on.
    """

    time: float
    state: str
    by: str
    reason: str = ""
    digest: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Proposal:
    """
    A plan in the queue.

    Attributes
    ----------
    id : str
        The plan's.
    kind : str
        ``plan``: its actions are done; ``undo``: they are taken back.
    plan : Plan
    digest : str
        What a yes is bound to.
    state : str
        One of `STATES`.
    events : tuple of Event
        Oldest first.
    since : float
        Since when these steps wait, also as an earlier plan that expired.
    problem : str
        Why it cannot be executed whatever was said: its file was changed.
    """

    id: str
    kind: str
    plan: Plan
    digest: str
    state: str
    events: tuple[Event, ...]
    since: float
    problem: str = ""

    @property
    def key(self) -> str:
        """The steps it is about, whenever they were planned: what a repetition of the same proposal shares."""
        return _key(self.kind, self.plan.actions)

    @property
    def last(self) -> Event:
        """The newest event."""
        return self.events[-1]

    def event(self, state: str) -> Event | None:
        """Return the newest event that made it so; None when none did."""
        return next((one for one in reversed(self.events) if one.state == state), None)


def digest_of(kind: str, plan: Plan) -> str:
    """Return what a yes to this plan is bound to: all of it, and whether it is to be done or taken back."""
    return digest([kind, plan.to_dict()["seal"]], 32)


def _key(kind: str, actions: Iterable[Action]) -> str:
    return digest([kind, [(one.id, one.verb, one.target) for one in actions]])


class Queue:
    """
    The queue in a folder.

    Parameters
    ----------
    root : Path
        Made by the first proposal.
    clock : callable, optional
        Seconds since the epoch.

    Attributes
    ----------
    problems : list of str
        What of the folder could not be read at the last look.
    """

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.root, self._clock = root, clock
        self._known: dict[
            str, tuple[tuple[Any, ...], Proposal]
        ] = {}  # plans with what told their files apart when they were read
        self.problems: list[str] = []

    # reading

    def proposals(self) -> list[Proposal]:
        """
        Return every plan, those that wait first and the longest-waiting first of them, then the others, newest first.

        What cannot be read is told in `problems`.

        Raises
        ------
        QueueError
            The folder cannot be read.
        """
        self.problems = []
        try:
            names = sorted(one.name for one in self.root.iterdir() if one.name.endswith(".plan.json"))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise QueueError(f"the queue {self.root} cannot be read: {error.strerror or error}") from None
        found: list[Proposal] = []
        for name in names:
            try:
                found.append(self._proposal(name.removesuffix(".plan.json")))
            except _NeverAskedError:
                pass  # it is being proposed at this moment, or whoever did so died: nobody can have said anything of it
            except QueueError as error:
                self.problems.append(str(error))
        waiting = sorted((one for one in found if one.state in WAITING), key=lambda one: (one.since, one.id))
        over = sorted((one for one in found if one.state not in WAITING), key=lambda one: (-one.last.time, one.id))
        return waiting + over

    def get(self, id: str) -> Proposal:
        """
        Return one plan, as its files are at this moment.

        Raises
        ------
        QueueError
            There is none, or its files cannot be read.
        """
        self._known.pop(id, None)
        return self._proposal(id)

    def _proposal(self, id: str) -> Proposal:
        """Return one plan; its files are read again when they are other ones than at the last look."""
        mark = tuple(_mark(self._file(id, suffix)) for suffix in (".plan.json", ".events.jsonl"))
        was, found = self._known.get(id, ((None, None), None))
        if found is None or was[0] != mark[0] or found.problem:
            found = self._read(id)
        elif was[1] != mark[1]:  # the plan is the one that was read, and more has happened to it
            events = self._events(id)
            same = events and events[0] == found.events[0]
            found = replace(found, state=events[-1].state, events=tuple(events)) if same else self._read(id)
        self._known[id] = mark, found
        waits = found.state in ("proposed", "approved") and not found.problem
        return replace(found, state="expired") if waits and found.plan.expires <= self._clock() else found

    def _read(self, id: str) -> Proposal:
        document, events = self._document(id), self._events(id)
        if not events:
            raise _NeverAskedError(f"the plan {id} in the queue has no event: nobody knows who proposed it")
        kind, proposed, problem = str(document.get("kind")), events[0], ""
        try:
            plan = Plan.from_dict(document["plan"])
            now = digest_of(kind, plan)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            plan, now, problem = Plan(0.0, 0.0, id=id), "", f"its file was changed: {error}"
        if not problem and now != proposed.digest:
            problem = "its file is another plan than the one that was proposed"
        elif not problem and plan.id != id:
            problem = f"its file has the plan {plan.id}"
        since = float(proposed.data.get("since") or proposed.time)
        return Proposal(id, kind, plan, proposed.digest, events[-1].state, tuple(events), since, problem)

    def approved(self) -> list[Proposal]:
        """Return the plans that a person has said yes to and that wait to be done, in the order of the yes."""
        found = [one for one in self.proposals() if one.state in ("approved", "applying")]
        return sorted(found, key=lambda one: (one.event("approved") or one.last).time)

    # writing

    def propose(self, plan: Plan, *, by: str, kind: str = "plan", source: str = "person", reason: str = "") -> Proposal | None:
        """
        Put a plan into the queue.

        Parameters
        ----------
        plan : Plan
            With at least one action.
        by : str
            Who proposes it.
        kind : str
            One of `KINDS`.
        source : str
            ``loop`` when a controller proposes it, which then also withdraws it when it is not called for any more.
        reason : str, optional

        Returns
        -------
        Proposal or None
            The one that waits already when the same steps do in the same world; one that waits for other reasons is replaced. None when a
            person has said no to these steps lately and a loop asks again.
        """
        if kind not in KINDS or not plan.actions or not _ID.fullmatch(plan.id):
            raise QueueError(f"there is nothing to propose: {kind} {plan.id!r} with {len(plan.actions)} actions")
        with self._lock():
            now, key = self._clock(), _key(kind, plan.actions)
            same = [one for one in self.proposals() if one.key == key and not one.problem]
            since = now
            for one in same:
                if one.state in WAITING:
                    if _content(one.plan) == _content(plan) or one.state != "proposed":
                        return one
                    since = min(since, one.since)
                    self._append(
                        one.id, Event(now, "withdrawn", by, "the world has changed: a newer plan takes its place", one.digest)
                    )
                elif one.state == "expired":
                    since = min(since, one.since)
                elif one.state == "rejected" and source == "loop" and now - one.last.time < NO_HOLDS:
                    return None
            document = {"schema": SCHEMA, "kind": kind, "plan": plan.to_dict()}
            file = self._file(plan.id, ".plan.json")
            with suppress(_NeverAskedError):
                if file.exists():
                    return self._proposal(plan.id)
            seal = digest_of(kind, plan)
            try:
                write_whole(file, document)
            except OSError as error:
                raise QueueError(f"the queue {self.root} cannot be written: {error.strerror or error}") from None
            self._append(plan.id, Event(now, "proposed", by, reason[:_REASON], seal, {"since": since, "source": source}))
        return self._proposal(plan.id)

    def approve(self, id: str, seal: str, *, by: str, reason: str = "") -> Proposal:
        """Say yes to exactly the plan with this digest; raises `QueueError` when it is another one, has expired, or was decided already."""
        return self._decide(id, seal, "approved", by, reason)

    def reject(self, id: str, seal: str, *, by: str, reason: str) -> Proposal:
        """Say no to a plan, also after a yes while nothing of it has begun; raises as `approve`, and without a reason."""
        if not reason.strip():
            raise QueueError("a no needs a reason: whoever proposed it must learn from it")
        return self._decide(id, seal, "rejected", by, reason)

    def withdraw(self, id: str, *, by: str, reason: str) -> Proposal:
        """Take a proposal back that nobody has decided."""
        with self._lock():
            if (one := self._proposal(id)).state != "proposed":
                raise QueueError(f"the plan {id} is {one.state}")
            self._append(id, Event(self._clock(), "withdrawn", by, reason[:_REASON], one.digest))
        return self._proposal(id)

    def begin(self, id: str, *, by: str) -> Proposal:
        """
        Take an approved plan in order to do it; what a controller that died had taken may be taken again.

        Raises
        ------
        QueueError
            There is no yes to exactly this plan, or it has expired: nothing of it may be done. That it was refused is written down.
        """
        with self._lock():
            one = self.get(id)
            yes = one.event("approved")
            if one.problem or yes is None or yes.digest != digest_of(one.kind, one.plan):
                why = one.problem or "nobody has said yes to exactly this plan"
                if one.last.state in ("approved", "applying"):
                    self._append(id, Event(self._clock(), "refused", by, why))
                raise QueueError(f"the plan {id} is not executed: {why}")
            if one.state not in ("approved", "applying"):
                if one.state == "expired" and one.last.state != "expired":
                    self._append(id, Event(self._clock(), "expired", by, "it had expired before anybody did it", one.digest))
                raise QueueError(f"the plan {id} is {one.state}", hint="make a new one: workbench plan --queue")
            if one.state == "approved":
                self._append(id, Event(self._clock(), "applying", by, "", one.digest))
        return self.get(id)

    def end(self, id: str, state: str, *, by: str, reason: str = "", ended: Mapping[str, int] | None = None) -> Proposal:
        """Write how the doing of a plan ended: ``applied``, ``refused``, or ``approved`` again when nothing could be begun yet."""
        with self._lock():
            one = self._proposal(id)
            self._may(one, state)
            self._append(id, Event(self._clock(), state, by, reason[:_REASON], one.digest, {"ended": dict(ended or {})}))
        return self._proposal(id)

    def expire(self, *, by: str) -> list[Proposal]:
        """Write down of every plan that nobody did in time that it has expired."""
        found = []
        with self._lock():
            for one in self.proposals():
                if one.state == "expired" and one.last.state != "expired":
                    self._append(
                        one.id,
                        Event(self._clock(), "expired", by, f"it was {one.last.state} and nobody did it in time", one.digest),
                    )
                    found.append(self._proposal(one.id))
        return found

    def _decide(self, id: str, seal: str, state: str, by: str, reason: str) -> Proposal:
        if not by:
            raise QueueError("nobody knows who decides")
        with self._lock():
            if (one := self.get(id)).problem:
                raise QueueError(f"the plan {id} cannot be decided: {one.problem}")
            if seal != one.digest or digest_of(one.kind, one.plan) != one.digest:
                raise QueueError(f"the plan {id} is not the one that was shown", hint="look at it again")
            if one.state == "applying":  # only who does it may put it back
                raise QueueError(
                    f"the plan {id} is applying by {one.last.by} already", hint="the kill switch stops what has begun"
                )
            self._may(one, state)
            self._append(id, Event(self._clock(), state, by, reason.strip()[:_REASON], one.digest))
        return self.get(id)

    def _may(self, one: Proposal, state: str) -> None:
        if state not in _NEXT.get(one.state, ()):
            last = one.last
            who = f" by {last.by}" if last.by and one.state == last.state else ""
            raise QueueError(f"the plan {one.id} is {one.state}{who} already", hint="make a new one: workbench plan --queue")

    # files

    def _file(self, id: str, suffix: str) -> Path:
        if not _ID.fullmatch(id):
            raise QueueError(f"{id!r} is no id of a plan")
        return self.root / f"{id}{suffix}"

    @contextmanager
    def _lock(self) -> Iterator[None]:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            file = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise QueueError(f"the queue {self.root} cannot be written: {error.strerror or error}") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def _document(self, id: str) -> Mapping[str, Any]:
        file = self._file(id, ".plan.json")
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise QueueError(f"there is no plan {id} in the queue") from None
        except (OSError, ValueError) as error:
            raise QueueError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        if not isinstance(document, Mapping) or document.get("schema") != SCHEMA:
            raise QueueError(f"{file} is no plan of the schema {SCHEMA}")
        return document

    def _events(self, id: str) -> list[Event]:
        """Return the events; a torn last line is one that never ended, a damaged one in the middle makes the rest unusable."""
        file = self._file(id, ".events.jsonl")
        try:
            lines = file.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise QueueError(f"{file} cannot be read: {error.strerror or error}") from None
        found = []
        for number, line in enumerate(lines[:-1], 1):
            event = _event(line)
            if event is None:
                raise QueueError(f"{file} line {number} is damaged: what was decided is not known, so nothing is done")
            found.append(event)
        return found

    def _append(self, id: str, event: Event) -> None:
        file = self._file(id, ".events.jsonl")
        body = json.dumps(
            {name: getattr(event, name) for name in Event.__dataclass_fields__},
            ensure_ascii=True,
            allow_nan=False,
            sort_keys=True,
        ).encode()
        line = b"%08x %s\n" % (zlib.crc32(body), body)
        try:
            handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                data = os.pread(handle, os.fstat(handle).st_size, 0)
                whole = data.rfind(b"\n") + 1
                if whole != len(data):
                    os.ftruncate(handle, whole)  # a write that never ended
                os.pwrite(handle, line, whole)
                os.fsync(handle)
            finally:
                os.close(handle)
            sync_folder(self.root)
        except OSError as error:
            raise QueueError(f"{file} cannot be written: {error.strerror or error}") from None


def _mark(file: Path) -> tuple[int, int, int] | None:
    """Return what tells a file from an earlier one of its name; None when there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _event(line: bytes) -> Event | None:
    sum, _, body = line.partition(b" ")
    if sum != b"%08x" % zlib.crc32(body):
        return None
    try:
        table = json.loads(body)
        event = Event(**table)
    except (ValueError, TypeError):
        return None
    return event if event.state in STATES else None


# of arguments: when it was planned and what was seen by then, which makes no other plan
_MOVES = frozenset({"expires", "since", "evidence", "diagnostics"})


def _content(plan: Plan) -> str:
    """Return what of a plan makes it another one: its steps with what they expect and end, but nothing that changes by the minute."""
    return digest(
        [
            {
                "id": one.id,
                "verb": one.verb,
                "target": one.target,
                "expects": dict(one.expects),
                "args": {name: value for name, value in one.args.items() if name not in _MOVES},
                "work": one.blast.work,
                "budgets": one.blast.budgets,
            }
            for one in plan.actions
        ],
        32,
    )
