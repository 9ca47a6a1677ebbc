"""
Turn one action into at most one change: check the world, write the intent, begin, look until it is over, write the outcome.

A lost answer is neither a failure nor a success: `Executor.look` decides, and only ``absent`` lets the same action begin again. Nothing here
sleeps: `Runner.advance` makes one step and says when the next is worth it, so that many nodes can wait at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from workbench.errors import WorkbenchError
from workbench.remediation.executors.contract import Deadline, Executor, Fenced, Lock
from workbench.remediation.executors.expects import misfit
from workbench.remediation.journal import Entry, Journal
from workbench.remediation.model import Action, NodeState, Refusal, Step

__all__ = ["TELLS", "Check", "Flight", "Kill", "Outcome", "Runner"]

TELLS = frozenset({"ticket", "page"})  # they touch no node: they hold up no chain, and a broken chain does not hold them up
LONGEST = 60.0  # seconds that we wait at most before we look again, whatever a server proposes
LOOKS = 3  # failed looks in a row after the deadline before it is left as it is
FRESH = 10.0  # seconds between the last look at node and guards and the change; a disk may take long to write the intent
TICK = 5.0  # seconds that one sleep lasts at most: the kill switch and the lock are asked in between

Kill = Path | Callable[[], object] | None


class Check(Protocol):
    """
    The guards, asked just before an action: a refusal, or None when nothing speaks against it.

    A `WorkbenchError` says that what it goes by cannot be seen at the moment: it is asked again. Any other exception refuses.
    """

    def __call__(self, action: Action, state: NodeState | None, journal: Journal, /) -> Refusal | None: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    How an action ended.

    Attributes
    ----------
    action : Action
    status : str
        One of `workbench.remediation.model.OUTCOMES`, or ``open``: it was begun (or may have been) and its end is not known yet; `resume` looks
        again.
    detail : str
        One sentence: the refusal, the server's words.
    guard : str
        What refused: ``kill-switch``, ``lock``, ``expired``, ``approval``, ``journal``, ``after``, ``chain``, ``world``, ``foreign``,
        ``executor``, ``unseen``, ``stopped`` or the name of a guard; empty otherwise.
    before : mapping
        What was there before.
    began, ended : float or None
        Seconds since the epoch.
    undo : bool
        Whether it is about taking the action back.
    """

    action: Action
    status: str
    detail: str = ""
    guard: str = ""
    before: Mapping[str, Any] = field(default_factory=dict)
    began: float | None = None
    ended: float | None = None
    undo: bool = False


@dataclass(slots=True)
class Flight:
    """An action on its way; `mode` is what the next step does: ``check``, ``begin``, ``look`` or ``undo``; times are of the steady clock."""

    action: Action
    plan: str
    mode: str
    ends: float  # when it counts as expired
    judged: float = float("-inf")  # when the node and the guards were asked last
    expires: float = float("inf")  # seconds since the epoch from which nothing of its plan is begun
    dies: float = float("inf")  # the same by the steady clock
    due: float = 0.0
    sure: float = 0.0  # until then a request of ours may still be on its way: nothing is absent
    undo: bool = False
    may: bool = True  # whether it may be begun (again) at all: not after a crash
    approved: bool = False
    began: float | None = None
    before: dict[str, Any] = field(default_factory=dict)
    sent: bool = False  # whether a change may have reached the other side
    confirmed: bool = False  # whether it was seen on its way
    begins: int = 0
    errors: int = 0
    detail: str = ""
    blocked: bool = False
    give_up: float = 0.0  # of the steady clock: when a look that never succeeds makes it unknown instead of leaving it open


class Runner:
    """
    What the steps of one `apply`, `resume` or `undo` share; see there for the parameters.

    `page` collects what nobody but a person can settle.
    """

    def __init__(
        self,
        executor: Executor,
        journal: Journal,
        *,
        check: Check | None = None,
        clock: Callable[[], float],
        steady: Callable[[], float],
        sleep: Callable[[float], None],
        kill: Kill = None,
        stop: Callable[[], bool] | None = None,
        lock: Lock | None = None,
        call: float = 30.0,
        tries: int = 5,
    ) -> None:
        self.executor, self.journal, self.check = executor, journal, check
        self.clock, self.steady, self.sleep = clock, steady, sleep
        self.kill, self.stop, self.lock = kill, stop, lock
        self.call, self.tries = call, tries

    def halted(self) -> tuple[str, str]:
        """Return which switch says that nothing more may be begun and why; two empty words when none does. What cannot be asked says stop."""
        if self.stop is not None and self.stop():
            return "stopped", "the controller is stopping"
        if self.kill is not None and (why := _killed(self.kill)):
            return "kill-switch", why
        if self.lock is not None:
            try:
                held = self.lock.held()
            except Exception as error:
                return "lock", f"whether the lock is held cannot be told: {error}"
            if not held:
                return "lock", "the lock is not ours (any more): another controller may act"
        return "", ""

    def pause(self, until: float) -> None:
        """Sleep until a moment of the steady clock, but not so long that a switch is noticed late."""
        self.sleep(max(0.01, min(until - self.steady(), TICK)))

    def drive(self, flight: Flight) -> Outcome:
        """Advance one flight to its end, or until a switch stops it."""
        while True:
            guard, why = self.halted()
            if guard:
                return self.left(flight, guard, why)
            if flight.due > self.steady():
                self.pause(flight.due)
                continue
            if (outcome := self.advance(flight)) is not None:
                return outcome

    def left(self, flight: Flight, guard: str, why: str) -> Outcome:
        """Return the outcome of a flight that a switch stopped: open when it was begun, refused when it was not."""
        status = "refused" if flight.began is None else "open"
        return Outcome(flight.action, status, why, guard, flight.before, flight.began, None, flight.undo)

    def advance(self, flight: Flight) -> Outcome | None:
        """
        Make one step of a flight; return its outcome (which is in the journal then), or None while it is not over.

        Raises
        ------
        JournalError
            The journal cannot be written: whatever is on its way stays open, nothing else is begun.
        """
        if flight.mode == "check":
            refused = self._check(flight)
            if refused is not None or flight.mode == "check":
                return refused
        if flight.mode in ("begin", "undo"):
            go, outcome = self._may_begin(flight)
            if not go:
                return outcome
        return self._step(flight)

    # before anything is done

    def _check(self, flight: Flight) -> Outcome | None:
        action, journal = flight.action, self.journal
        if journal.status_of(action.id) == "done":
            return Outcome(action, "done", "the journal says that it is done")
        if (refused := self._forbidden(flight)) is not None:
            return self._refuse(flight, *refused)
        try:
            state, refused = self._judged(action)
        except Exception as error:
            flight.errors += 1
            flight.due = self._later(flight, error)
            if flight.errors < self.tries:
                return None
            return self._refuse(flight, "unseen", f"the node or the fleet cannot be seen: {error}")
        if refused is not None:
            return self._refuse(flight, *refused)
        flight.judged = self.steady()
        again = any(one.kind == "intent" and not one.undo for one in journal.of_action(action.id))
        held = _held(journal, action.id)
        flight.before = {} if state is None else _before(state)
        journal.intent(action, flight.plan, flight.before)
        flight.began = self.clock()
        now = self.steady()
        flight.ends = now + max(0.0, action.deadline - held)
        flight.errors, flight.due = 0, now
        # a try of this action went before, in this or another process: what became of it comes first
        flight.mode, flight.sent = ("look", True) if again else ("begin", False)
        return None

    def _forbidden(self, flight: Flight) -> tuple[str, str] | None:
        action, journal = flight.action, self.journal
        if self._expired(flight):
            return "expired", "the plan has expired: make a new one"
        if action.approval != "auto" and not flight.approved:
            return "approval", "it needs a person's approval"
        if action.verb not in self.executor.verbs:
            return "executor", f"nothing here can do {action.verb}"
        status = journal.status_of(action.id)
        if status == "open":
            return "journal", "it was begun before and its end is not known: resume first"
        if status == "undone":
            return "journal", "it was done and taken back: doing it again needs a new plan"
        if status == "unknown":
            return "journal", "whether it was done cannot be told: a person must settle that"
        if missing := [one for one in action.after if journal.status_of(one) != "done"]:
            return "after", f"it comes after {missing[0]}, which is {journal.status_of(missing[0]) or 'not done'}"
        if action.verb in TELLS:
            return None
        if journal.problems and action.destructive:
            return (
                "journal",
                f"the journal is damaged ({journal.problems[0]}): nothing destructive until a person has accepted that",
            )
        for entry in journal.open():
            if entry.node == action.node and action.node and entry.verb not in TELLS:
                return "journal", f"{entry.verb} of this node was begun before and its end is not known: resume first"
        if action.destructive and action.node:
            for entry in journal.of_node(action.node):
                if entry.status == "unknown" and journal.status_of(entry.action) == "unknown":
                    return "journal", f"whether {entry.verb} of this node was done cannot be told: a person must settle that"
        return None

    def _judged(self, action: Action) -> tuple[NodeState | None, tuple[str, str] | None]:
        """Return the node as it is now and what speaks against the action; raises when that cannot be seen at the moment."""
        state = self._state(action)
        if (refused := self._unfit(action, state)) is not None or self.check is None:
            return state, refused
        try:
            refusal = self.check(action, state, self.journal)
        except WorkbenchError:
            raise
        except Exception as error:  # a guard that fails guards
            return state, ("guard", f"a guard could not be asked: {type(error).__name__}: {error}")
        return state, None if refusal is None else (refusal.guard, refusal.why)

    def _state(self, action: Action) -> NodeState | None:
        if not action.node:
            return None
        try:
            return self.executor.node(action.node, Deadline(self.call, self.steady))
        except Exception:
            if action.verb in TELLS:  # a person is told even, and especially, when the node cannot be seen
                return None
            raise

    def _unfit(self, action: Action, state: NodeState | None) -> tuple[str, str] | None:
        if action.verb in TELLS or not action.node:
            return None
        if state is None:
            return "world", f"the world changed: there is no node {action.node}"
        if state.foreign and action.verb not in ("collect", "exclude"):  # these look, or touch a job
            return "foreign", f"{state.owner} has restricted the node: it is not ours to touch"
        if why := misfit(action.expects, state, foreign=False):
            return "world", f"the world changed: {why}"
        return None

    def _may_begin(self, flight: Flight) -> tuple[bool, Outcome | None]:
        """Ask once more just before a change: the write of the intent may have taken long, and a repetition comes minutes later."""
        outcome = self._stopped(flight)
        if outcome is not None or flight.undo or (not flight.begins and self.steady() - flight.judged <= FRESH):
            return outcome is None, outcome
        try:
            _, refused = self._judged(flight.action)
        except Exception as error:
            flight.detail = str(error)
            flight.errors += 1
            flight.due = self._later(flight, error)
            return False, self._late(flight, seen=False) if self.steady() >= flight.ends else None
        if refused is not None:
            return False, self._end(flight, "expired" if flight.blocked else "refused", refused[1], refused[0])
        flight.judged = self.steady()
        outcome = self._stopped(flight)  # to see the fleet may have taken longer than the lock lasts
        return outcome is None, outcome

    def _stopped(self, flight: Flight) -> Outcome | None:
        guard, why = self.halted()
        if guard:
            return self.left(flight, guard, why) if flight.sent else self._end(flight, "refused", why, guard)
        if self._expired(flight):
            why = f"the plan has expired{'; ' if flight.detail else ''}{flight.detail}"
            return self._end(flight, "expired" if flight.blocked else "refused", why, "expired")
        return None

    def _expired(self, flight: Flight) -> bool:
        return self.clock() >= flight.expires or self.steady() >= flight.dies

    # the change and what becomes of it

    def _step(self, flight: Flight) -> Outcome | None:
        mode, action = flight.mode, flight.action
        wait = Fenced(self.call, self.steady, self._why_not)
        try:
            if mode == "begin":
                flight.begins += 1
                step = self.executor.begin(action, wait)
            elif mode == "undo":
                flight.begins += 1
                step = self.executor.undo(action, flight.before, wait)
            else:
                step = self.executor.look(action, wait)
        except Exception as error:  # also a defect of the executor: what it has done by then is not known either
            return self._lost(flight, error, sent=wait.passed > 1 or getattr(error, "sent", True), barred=wait.barred)
        flight.errors, flight.detail = 0, step.detail
        if mode != "look":
            flight.sent = True
        if step.before and not flight.undo:
            flight.before |= step.before
        return self._undoing(flight, step) if flight.undo else self._doing(flight, step)

    def _why_not(self, deadline: Deadline) -> str:
        """Say why the request that comes next must not be sent: this process may have stood still since it was asked, its clocks too."""
        if self.kill is not None and (why := _killed(self.kill)):
            return why
        if self.lock is not None and not self.lock.confirm(deadline):
            return "the lock is not ours (any more): another controller may act"
        return ""

    def _lost(self, flight: Flight, error: Exception, *, sent: bool, barred: str = "") -> Outcome | None:
        now = self.steady()
        flight.errors += 1
        flight.detail = f"{error}" if str(error) else type(error).__name__
        flight.due = self._later(flight, error)
        if flight.mode == "look":
            if now >= flight.ends and flight.errors >= LOOKS:
                return self._late(flight, seen=False)
            return None
        if sent:
            flight.sent = True
            flight.sure = now + self.call
            flight.mode = "look"
        elif flight.begins >= self.tries or now >= flight.ends:
            if flight.sent:
                flight.mode = "look"
                return None
            if barred:  # no rung is climbed because a controller stood still, or because somebody threw the switch
                return self._end(flight, "refused", barred, self.halted()[0] or "lock")
            return self._end(flight, "failed", f"it could not be begun: {flight.detail}")
        return None

    def _doing(self, flight: Flight, step: Step) -> Outcome | None:
        now, status, looked = self.steady(), step.status, flight.mode == "look"
        if status in ("done", "failed"):
            return self._end(flight, status, step.detail)
        if status == "unknown":
            return self._end(flight, "unknown", step.detail or "whether it was done cannot be told")
        if status == "changed":
            if not looked:
                return self._end(flight, "refused", f"the world changed: {step.detail}", "world")
            if flight.confirmed:
                return self._end(flight, "failed", f"the world changed before it was over: {step.detail}", "world")
            # Perhaps it was done before somebody changed more. A restriction that does not stand is as good as taken back, and not ours to set
            # again; whether work ended or a machine booted, a person must find out
            status = "unknown" if flight.action.destructive else "undone"
            return self._end(
                flight, status, f"it does not stand (any more), somebody has changed it since: {step.detail}", "world"
            )
        flight.confirmed = flight.confirmed or status in ("pending", "blocked")
        flight.blocked = status == "blocked"
        if status in ("absent", "blocked") and looked and now < flight.sure:  # a request of ours may still arrive
            flight.due = min(now + self._wait(step.again), flight.sure)
            return None
        if status == "absent":
            if not flight.may:
                return self._end(flight, "refused", "it was never begun: nothing of it has happened", "journal")
            if flight.begins >= self.tries:
                return self._end(flight, "failed", f"it was asked for {flight.begins} times and nothing of it has happened")
        if now >= flight.ends:
            return self._late(flight, seen=True)
        if flight.blocked and not flight.may:  # who has its plan asks again, as long as its time is not over
            return self._end(flight, "held", step.detail)
        if status == "pending" or not flight.may:
            flight.mode = "look"
            flight.due = min(now + self._wait(step.again), flight.ends)
        elif status == "blocked":
            # what holds it may give way: asked again later, in the same words, so that it stays one change
            flight.mode, flight.begins = "begin", 1
            flight.due = min(now + self._wait(step.again), flight.ends)
        else:
            flight.mode, flight.due = "begin", now
        return None

    def _undoing(self, flight: Flight, step: Step) -> Outcome | None:
        now, status, looked = self.steady(), step.status, flight.mode == "look"
        if status == "absent" or (status == "done" and not looked):
            return self._end(flight, "undone", step.detail)
        if status == "changed":
            return self._end(flight, "refused", f"it stays as somebody changed it since: {step.detail}", "world")
        if status == "unknown" or (status == "failed" and looked):
            return self._end(flight, "unknown", step.detail or "whether it was taken back cannot be told")
        if status == "failed":
            return self._end(flight, "failed", step.detail)
        if looked and status == "done" and now >= flight.sure:
            if not flight.may:
                return self._end(flight, "refused", "it was never taken back: the action stands", "journal")
            if flight.begins >= self.tries:
                return self._end(flight, "failed", f"it was taken back {flight.begins} times and still stands")
        if now >= flight.ends:
            return self._end(flight, "expired", step.detail)
        again = status == "blocked" or (looked and status == "done" and now >= flight.sure)
        flight.mode = "undo" if again and flight.may else "look"
        flight.due = min(now + self._wait(step.again), flight.ends)
        return None

    def _late(self, flight: Flight, *, seen: bool) -> Outcome:
        if seen or not flight.sent:
            held = "held up" if flight.blocked else "not over"
            return self._end(
                flight, "expired", f"{held}, given up after {flight.action.deadline:g} s at most: {flight.detail}".rstrip(": ")
            )
        if flight.give_up and self.steady() >= flight.give_up:
            return self._end(flight, "unknown", f"how it ended could not be seen for too long: {flight.detail}")
        detail = f"how it ended cannot be seen: {flight.detail}"
        return Outcome(flight.action, "open", detail, "", flight.before, flight.began, None, flight.undo)

    def _refuse(self, flight: Flight, guard: str, why: str) -> Outcome:
        now = self.clock()
        words = f"{guard}: {why}"
        if self.journal.status_of(flight.action.id) == "open":
            pass  # it is on its way, which is nothing new
        elif self.journal.of_action(flight.action.id):  # what was begun once stays what it was: caps and ladders count it
            self.journal.note(f"{flight.action.verb} {flight.action.id} was not tried again: {words}", node=flight.action.node)
        else:
            self.journal.outcome(flight.action, flight.plan, "refused", words)
        return Outcome(flight.action, "refused", why, guard, {}, None, now)

    def _end(self, flight: Flight, status: str, detail: str, guard: str = "") -> Outcome:
        words = f"{guard}: {detail}" if guard else detail
        self.journal.outcome(flight.action, flight.plan, status, words, flight.before, undo=flight.undo)
        return Outcome(flight.action, status, detail, guard, dict(flight.before), flight.began, self.clock(), flight.undo)

    def _later(self, flight: Flight, error: Exception) -> float:
        asked = getattr(error, "again", 5.0)
        return self.steady() + self._wait(max(float(asked), 2.0 ** min(flight.errors - 1, 6)))

    def _wait(self, again: float) -> float:
        return max(0.1, min(again, LONGEST))


def _held(journal: Journal, action: str) -> float:
    """Return for how many seconds an action has been asked for again and again by now: its deadline counts from the first time."""
    first: Entry | None = None
    for entry in journal.of_action(action):
        if entry.kind == "intent":
            first = first or entry
        elif entry.status != "held":
            first = None
    return 0.0 if first is None else journal.age(first)


def _killed(kill: Path | Callable[[], object]) -> str:
    try:
        if callable(kill):
            value = kill()
            return (value if isinstance(value, str) else "the kill switch is on") if value else ""
        text = kill.read_text(encoding="utf-8", errors="replace").strip()
        return f"the kill switch {kill} is on" + (f": {text.splitlines()[0]}" if text else "")
    except FileNotFoundError:
        return ""
    except Exception as error:  # what cannot be asked is on
        return f"the kill switch cannot be read: {error}"


def _before(state: NodeState) -> dict[str, Any]:
    names = ("uid", "boot", "schedulable", "owner", "op", "reason", "expires", "version")
    return {name: getattr(state, name) for name in names} | {"marks": dict(state.marks)}
