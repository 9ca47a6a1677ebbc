"""
Turn the queue of plans and the journal into sheets that every session takes without waiting, and a user's yes or no into an event, if he may.

One thread a process looks; sessions only take. Whether somebody may decide is asked here and at that moment, whatever the page showed him.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.errors import WorkbenchError
from workbench.remediation.journal import Entry, Journal, JournalError
from workbench.remediation.proposing import note_down, undo_plan
from workbench.remediation.queue import Proposal, Queue
from workbench.serving.looking import Looking
from workbench.serving.roles import APPROVER, Roles
from workbench.serving.site import Forbidden

__all__ = ["Desk", "Sheet"]

_LOG = logging.getLogger(__name__)
PERIOD = 2.0  # seconds between two looks
ROWS = 2000  # of the journal that are shown, the newest


@dataclass(frozen=True, slots=True)
class Sheet:
    """
    The queue and the journal at one moment.

    Attributes
    ----------
    version : int
        Grows with each change.
    time : float or None
        When it was looked at.
    proposals : tuple of Proposal
        As `Queue.proposals` orders them.
    acts : tuple of dict
        What the journal has, newest first: an action with its last outcome, or a note.
    left_out : int
        Older ones that are not shown.
    problems : tuple of str
        What could not be read, and what of the journal is damaged.
    """

    version: int = 0
    time: float | None = None
    proposals: tuple[Proposal, ...] = ()
    acts: tuple[dict[str, Any], ...] = ()
    left_out: int = 0
    problems: tuple[str, ...] = ()


@dataclass
class Desk(Looking):
    """
    Where plans wait for a person.

    Attributes
    ----------
    queue : Queue
    journal : Path
    roles : Roles
    clock : callable
    worker : callable or None
        Does what was approved after each look: of the demonstration, which has no controller beside it.
    """

    queue: Queue
    journal: Path
    roles: Roles = field(default_factory=Roles)
    clock: Callable[[], float] = time.time
    period: float = PERIOD
    worker: Callable[[], object] | None = None
    _sheet: Sheet = field(default_factory=Sheet)
    _seen: tuple[Any, ...] = ()
    _acts: tuple[tuple[dict[str, Any], ...], int, tuple[str, ...]] = ((), 0, ())

    def __post_init__(self) -> None:
        Looking.__init__(self, "workbench-desk", self.period, rest=10.0)  # a large journal is not read all the time

    @property
    def sheet(self) -> Sheet:
        """The newest sheet; never waits."""
        return self._sheet

    def look(self) -> Sheet:
        """Look once, in the calling thread; what cannot be read leaves what was seen, and says so."""
        old, problems = self._sheet, list[str]()
        try:
            proposals = tuple(self.queue.proposals())
            problems += self.queue.problems
        except WorkbenchError as error:
            proposals = old.proposals
            problems.append(str(error))
        acts, left_out, more = self._journaled()
        problems += more
        same = (proposals, acts, tuple(problems)) == (old.proposals, old.acts, old.problems)
        version = old.version if same and old.version else old.version + 1
        self._sheet = Sheet(version, self.clock(), proposals, acts, left_out, tuple(problems))
        return self._sheet

    # what people do

    def approve(self, user: str | None, id: str, seal: str, reason: str = "") -> Proposal:
        """Say yes for a user; see `Queue.approve`. Raises `Forbidden` when he may not."""
        self._may(user)
        return self._done(self.queue.approve(id, seal, by=self._name(user), reason=reason))

    def reject(self, user: str | None, id: str, seal: str, reason: str) -> Proposal:
        """Say no for a user; see `Queue.reject`. Raises `Forbidden` when he may not."""
        self._may(user)
        return self._done(self.queue.reject(id, seal, by=self._name(user), reason=reason))

    def undo(self, user: str | None, ids: list[str], reason: str) -> Proposal:
        """Propose to take actions back: they wait in the queue as any plan does. Raises `Forbidden` when the user may not."""
        self._may(user)
        journal = Journal(self.journal, clock=self.clock)
        begun = [entry.intended() for id in ids for entry in journal.of_action(id) if entry.kind == "intent" and not entry.undo]
        actions = [one for one in begun if one is not None]
        unique = {one.id: one for one in actions if journal.status_of(one.id) not in ("undone", "refused", "open")}
        plan = undo_plan(list(unique.values()), now=self.clock(), why=reason or f"asked for by {self._name(user)}")
        one = self.queue.propose(plan, by=self._name(user), kind="undo", reason=reason)
        assert one is not None  # only a loop is told no
        return self._done(one)

    def may(self, user: str | None) -> bool:
        """Tell whether a user may decide, now."""
        return self.roles.role_of(user) == APPROVER

    def _may(self, user: str | None) -> None:
        if not self.may(user):
            why = (
                "has only the right to look"
                if self.roles.allow_approve
                else "cannot: the dashboard was started without --allow-approve"
            )
            raise Forbidden(f"{self._name(user)} {why}", hint="nothing was changed")

    @staticmethod
    def _name(user: str | None) -> str:
        return user or "who started the dashboard"

    def _done(self, one: Proposal) -> Proposal:
        """Let the journal know, where no controller holds it and will do so itself."""
        try:
            with Journal(self.journal, clock=self.clock) as journal:
                note_down(self.queue, journal, [one])
        except JournalError as error:
            if error.exit_code != 75:
                _LOG.warning("a decision stands in the queue and not yet in the journal: %s", error)
        self.refresh()
        return one

    # looking

    def _turn(self) -> None:
        self.look()
        if self.worker is not None:
            self.worker()

    def _journaled(self) -> tuple[tuple[dict[str, Any], ...], int, tuple[str, ...]]:
        try:
            stat = self.journal.stat()
            seen: tuple[Any, ...] = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        except FileNotFoundError:
            seen = ()
        except OSError as error:
            return (), 0, (f"the journal {self.journal} cannot be read: {error.strerror or error}",)
        if seen and seen == self._seen:
            return self._acts
        try:
            journal = Journal(self.journal, clock=self.clock)
        except JournalError as error:
            return self._acts[0], self._acts[1], (str(error),)
        acts = _acts(journal)
        problems = tuple(f"the journal is damaged: {one}; nothing that cannot be undone is done" for one in journal.problems)
        self._seen, self._acts = seen, (tuple(acts[:ROWS]), max(0, len(acts) - ROWS), problems)
        return self._acts


def _acts(journal: Journal) -> list[dict[str, Any]]:
    """Return the journal as rows, newest first: one a try of an action with how it ended, one a note."""
    rows: list[dict[str, Any]] = []
    begun: dict[tuple[str, bool], dict[str, Any]] = {}
    for one in journal.entries():
        if one.kind == "plan":
            continue
        key = (one.action, one.undo)
        if one.kind == "outcome" and key in begun:
            begun.pop(key).update(status=one.status, detail=one.detail, ended=one.time)
            continue
        told = float(one.data.get("time") or one.time)  # of the queue's events: when it was, not when it was written down
        row: dict[str, Any] = {
            "time": told,
            "ended": one.time if one.kind == "outcome" else None,
            "node": one.node,
            "verb": _word(one),
            "rung": one.rung,
            "status": one.status or ("open" if one.kind == "intent" else ""),
            "detail": one.detail.partition(": ")[2] if "queue" in one.data else one.detail,
            "by": str(one.data.get("by") or one.by),
            "plan": one.plan,
            "action": one.action,
            "undo": False,
        }
        rows.append(row)
        if one.kind == "intent":
            begun[key] = row
    for row in rows:
        if row["action"] and row["status"] in ("done", "expired", "failed") and not row["verb"].startswith(("undo", "un")):
            intents = [one for one in journal.of_action(row["action"]) if one.kind == "intent" and not one.undo]
            undo = bool(intents and (intents[-1].data.get("action") or {}).get("undo"))
            row["undo"] = undo and journal.status_of(row["action"]) != "undone"
    return [row for _, row in sorted(enumerate(rows), key=lambda pair: (-pair[1]["time"], -pair[0]))]


def _word(one: Entry) -> str:
    if one.kind == "note":
        return f"plan {one.data['state']}" if "queue" in one.data else "note"
    return f"undo {one.verb}" if one.undo and not one.verb.startswith("un") else one.verb
