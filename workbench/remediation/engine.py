"""
Turn an approved plan into changes, one journaled step at a time; what a crash left half done into outcomes; and what was done back again.

`apply` executes exactly the plan: what does not fit the world any more is refused, nothing is replaced or added (but a page when a person is
needed). The actions of one node form a chain that stops at its first bad end, so a node whose repair or validation failed stays cordoned with
our reason on it; the chains of other nodes go on, also while one waits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

from workbench.remediation.executors.contract import Deadline, Executor, Lock
from workbench.remediation.expiry import until
from workbench.remediation.flight import TELLS, TICK, Check, Flight, Kill, Outcome, Runner
from workbench.remediation.journal import Entry, Journal
from workbench.remediation.model import Action, Plan
from workbench.remediation.moments import steady as awake
from workbench.remediation.paging import page

__all__ = ["Check", "Kill", "Outcome", "apply", "enter", "resume", "settle", "undo"]

PATIENCE = 3600.0  # seconds after its deadline that an open action is left open while nobody can see it; then a person is called


def apply(
    plan: Plan,
    executor: Executor,
    journal: Journal,
    *,
    check: Check | None = None,
    approved: bool = False,
    only: Collection[str] | None = None,
    lock: Lock | None = None,
    kill: Kill = None,
    stop: Callable[[], bool] | None = None,
    clock: Callable[[], float] = time.time,
    steady: Callable[[], float] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    call: float = 30.0,
    tries: int = 5,
    wait: float = math.inf,
    enough: Callable[[], bool] = lambda: False,
    tell: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """
    Execute exactly the plan, in its order, and return how each action ended.

    Before each action: no switch says stop, the lock is held, the plan has not expired (see `expiry`), it is approved, what it comes after is
    done and it is not done itself (the journal says), the node as it is at this moment is what the action expects and nobody else restricts
    it, and no guard refuses. Then the intent is written, the change begun and looked at until it is over or its deadline has passed, and the
    outcome written.

    Parameters
    ----------
    plan : Plan
    executor : Executor
    journal : Journal
    check : callable, optional
        ``check(action, state, journal)`` returns a `Refusal` or None; `state` is the fresh `NodeState` (None when the action has no node). It
        is asked before an action is begun, and again before it is begun again. See `Check` for one that raises.
    approved : bool, optional
        A person has approved the whole plan; otherwise only actions of ``approval == "auto"`` are done.
    only : collection of str, optional
        Ids of actions or names of nodes: of the plan nothing else is done.
    lock : Lock, optional
        Held already by the caller; asked before each change. Never released here.
    kill : Path or callable, optional
        A file that stops everything when it is there, or a callable that returns something true (a reason). Asked before each step; when it
        cannot be asked it counts as on.
    stop : callable, optional
        Returns true when the controller shall end: nothing more is begun, what is on its way stays open in the journal.
    clock : callable, optional
        Seconds since the epoch.
    steady : callable, optional
        Seconds that only grow, for deadlines; default is `workbench.remediation.moments.steady`, or `clock` when that was
        given.
    sleep : callable, optional
    call : float, optional
        Seconds that one request may take; as long a lost request counts as on its way.
    tries : int, optional
        How often a change is asked for at most when answers are lost or requests fail.
    wait : float, optional
        Seconds after which nothing is waited for any more: what is on its way then stays open, for `resume` to look at in the next turn. So a
        controller that plans anew each minute is not held up by a node that needs hours to drain.
    enough : callable, optional
        Returns true when nothing is to be waited for any more, as if `wait` were over: there is news to look at first.
    tell : callable, optional
        Called with each outcome at once.

    Returns
    -------
    list of Outcome
        In the order of the plan; a page that was needed comes last.

    Raises
    ------
    JournalError
        The journal cannot be written. Nothing is begun without its intent on the disk; what was on its way is open there (`resume`).
    """
    run = Runner(
        executor,
        journal,
        check=check,
        clock=clock,
        steady=_steady(clock, steady),
        sleep=sleep,
        kill=kill,
        stop=stop,
        lock=lock,
        call=call,
        tries=tries,
    )
    wanted = [one for one in plan.actions if only is None or one.id in only or (one.node and one.node in only)]
    if not wanted:
        return []
    journal.record_plan(plan)
    now = run.steady()
    flights = []
    for one in wanted:
        ends = until(plan, one)
        dies = now + max(0.0, ends - clock())  # also when somebody sets the clock back meanwhile
        flights.append(Flight(one, plan.id, "check", now + one.deadline, expires=ends, dies=dies, approved=approved, due=now))
    outcomes = _fly(run, flights, plan.id, tell, wait, enough)
    return outcomes + page(run, outcomes, plan.id, tell)


def resume(
    journal: Journal,
    executor: Executor,
    *,
    lock: Lock | None = None,
    kill: Kill = None,
    stop: Callable[[], bool] | None = None,
    clock: Callable[[], float] = time.time,
    steady: Callable[[], float] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    call: float = 30.0,
    patience: float = PATIENCE,
    wait: float = math.inf,
    enough: Callable[[], bool] = lambda: False,
    tell: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """
    Find out what became of everything that a crash, a stop or an outage left open; begin nothing.

    Done or failed is journaled as such; pending is waited for until the action's deadline; what a disruption budget holds is ``held``, and
    `apply` of the same plan asks again until that deadline; absent is journaled as refused, so that `apply` of the same plan may do it (as
    long as that has not expired); what cannot be told is ``unknown`` and a person is paged; what cannot be seen stays open until `patience`
    seconds after its deadline. An undo that was cut off is settled in the same way.

    Parameters are those of `apply`; with ``wait=0`` each is looked at once (what seems never to have happened, until no request can be on its
    way any more).

    Returns
    -------
    list of Outcome

    Raises
    ------
    JournalError
        The journal cannot be written.
    """
    run = Runner(
        executor,
        journal,
        clock=clock,
        steady=_steady(clock, steady),
        sleep=sleep,
        kill=kill,
        stop=stop,
        lock=lock,
        call=call,
        tries=1,
    )
    journal.lock()  # what another process wrote until now counts
    now = run.steady()
    flights, unreadable = [], []
    for entry in journal.open():
        action = entry.intended()
        if action is None:
            unreadable.append(_unreadable(journal, entry))
            continue
        age = journal.age(entry)
        left = max(0.0, action.deadline - age)
        flights.append(
            Flight(
                action,
                entry.plan,
                "look",
                now + left,
                due=now,
                sure=now + call,  # a request of the controller that died may still be on its way, and no clock says how old it is
                undo=entry.undo,
                may=False,
                began=entry.time,
                before=dict(entry.before),
                sent=True,
                give_up=now + action.deadline + patience - age,
            )
        )
    outcomes = unreadable + _fly(run, flights, "", tell, wait, enough)
    return outcomes + page(run, outcomes, "", tell, owed=True)


def undo(
    what: Plan | Iterable[Action | str],
    executor: Executor,
    journal: Journal,
    *,
    only: Collection[str] | None = None,
    lock: Lock | None = None,
    kill: Kill = None,
    stop: Callable[[], bool] | None = None,
    clock: Callable[[], float] = time.time,
    steady: Callable[[], float] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    call: float = 30.0,
    tries: int = 5,
    tell: Callable[[Outcome], None] | None = None,
) -> list[Outcome]:
    """
    Take back what the journal says was done, last first, and only that.

    What somebody changed since stays and is told (``refused``); what was never done, is undone already or cannot be taken back is told as well.
    An action that expired, failed or cannot be told may have left a part of itself: the executor takes back what still is as the action made it.

    Parameters
    ----------
    what : Plan or iterable of Action or str
        A plan, or actions or their ids.

    The others are those of `apply`. Each undo has its own pair of intent and outcome in the journal.

    Returns
    -------
    list of Outcome
        In the order of undoing; ``undone`` where it was taken back.

    Raises
    ------
    JournalError
        The journal cannot be written.
    """
    run = Runner(
        executor,
        journal,
        clock=clock,
        steady=_steady(clock, steady),
        sleep=sleep,
        kill=kill,
        stop=stop,
        lock=lock,
        call=call,
        tries=tries,
    )
    journal.lock()
    ids = {one if isinstance(one, str) else one.id for one in (what.actions if isinstance(what, Plan) else what)}
    begun: dict[str, Entry] = {}
    for entry in journal.entries():
        if entry.kind == "intent" and not entry.undo and entry.action in ids:
            begun[entry.action] = entry
    outcomes: list[Outcome] = []
    for entry in sorted(begun.values(), key=lambda one: one.seq, reverse=True):
        action = entry.intended()
        if action is None or (only is not None and action.id not in only and action.node not in only):
            continue
        outcome = _take_back(run, action, entry)
        if outcome is not None:
            outcomes.append(outcome)
            if tell is not None:
                tell(outcome)
    return outcomes + page(run, outcomes, next(iter(begun.values())).plan if begun else "", tell)


def settle(journal: Journal, action: str, status: str, why: str) -> Entry:
    """
    Write how an action ended that only a person could find out: one that is open or unknown.

    Parameters
    ----------
    action : str
        Its id.
    status : str
        ``done``, ``failed`` or ``undone``.
    why : str
        What the person saw.

    Raises
    ------
    ValueError
        The journal does not know the action, or its end is known.
    """
    journal.lock()
    intents = [one for one in journal.of_action(action) if one.kind == "intent"]
    if not intents or (intended := intents[-1].intended()) is None:
        raise ValueError(f"the journal has no action {action}")
    if (known := journal.status_of(action)) not in ("open", "unknown"):
        raise ValueError(f"the action {action} is {known}: there is nothing to settle")
    if status not in ("done", "failed", "undone"):
        raise ValueError(f"{status!r} is none of done, failed, undone")
    return journal.outcome(intended, intents[-1].plan, status, f"settled: {why}", intents[-1].before)


def enter(lock: Lock, sleep: Callable[[float], None] = time.sleep, *, call: float = 30.0) -> bool:
    """
    Take the lock, and wait until no request of whoever had it before can still be on its way.

    Parameters
    ----------
    lock : Lock
    sleep : callable, optional
    call : float, optional
        Seconds that one request may take, as of `apply`.

    Returns
    -------
    bool
        False when another controller has it (or it was lost while waiting): do nothing.

    Raises
    ------
    ExecutorError
        Whether it is ours cannot be told.
    """
    if not lock.acquire(Deadline(call)):
        return False
    waited = 0.0
    while waited < call:
        sleep(min(TICK, call - waited))
        waited += TICK
        if not lock.held():
            return False
    return True


# how flights share the time


def _fly(
    run: Runner,
    flights: list[Flight],
    plan: str,
    tell: Callable[[Outcome], None] | None,
    wait: float,
    enough: Callable[[], bool],
) -> list[Outcome]:
    """Fly all: of each node one at a time, in order; return their outcomes in that order."""
    order = {flight.action.id: number for number, flight in enumerate(flights)}
    ended: dict[str, Outcome] = {}
    broken: dict[str, str] = {}  # node → why its chain stopped
    aloft: dict[str, Flight] = {}  # node (or, without one, the action) → what is on its way
    waiting = flights
    until = run.steady() + wait

    def end(flight: Flight, outcome: Outcome) -> None:
        ended[flight.action.id] = outcome
        if outcome.status != "done" and flight.action.verb not in TELLS:
            broken.setdefault(flight.action.node, f"{flight.action.verb} before it is {outcome.status}")
        if tell is not None:
            tell(outcome)

    def advance(key: str) -> None:
        flight = aloft[key]
        outcome = run.advance(flight)
        if outcome is not None:
            del aloft[key]
            end(flight, outcome)

    while waiting or aloft:
        rest: list[Flight] = []
        guard, why, before = "", "", len(ended)
        for flight in waiting:
            action = flight.action
            own = action.verb in TELLS or not action.node
            key = action.id if own else action.node
            if not own and flight.may and action.node in broken:
                end(flight, Outcome(action, "refused", broken[action.node], "chain"))
            elif key in aloft or any(one in order and one not in ended and one != action.id for one in action.after):
                rest.append(flight)
            else:
                guard, why = run.halted()
                if guard:
                    break
                aloft[key] = flight
                advance(key)
            for other in [key for key, one in aloft.items() if one.due <= run.steady() and one is not flight]:
                guard, why = run.halted()
                if guard:
                    break
                advance(other)
            if guard:
                break
        if not guard:
            guard, why = run.halted()
        if guard and (rest or aloft or len(ended) < len(flights)):
            left = [one for one in flights if one.action.id not in ended]
            for flight in left:
                ended[flight.action.id] = run.left(flight, guard, why)
                if tell is not None:
                    tell(ended[flight.action.id])
            run.journal.note(f"{guard}: {why}: {len(left)} actions are left", plan=plan)
            break
        stuck = not aloft and len(rest) == len(waiting) and len(ended) == before
        waiting = rest
        if stuck:  # each waits for one that comes later
            for flight in rest:
                end(flight, Outcome(flight.action, "refused", "it comes after an action that comes after it", "after"))
            break
        # a request that may be on its way is waited for; so is what a budget holds, else it would never be asked for again
        unsure = any(one.sure > run.steady() and (one.blocked or not one.confirmed) for one in aloft.values())
        if aloft and (enough() or (run.steady() >= until and not unsure)):
            for flight in [*aloft.values(), *waiting]:
                why = (
                    "it is not over yet"
                    if flight.began is not None
                    else "what comes before it is not over yet, or the node was not seen"
                )
                end(flight, run.left(flight, "", why))
            break
        if aloft:
            soonest = min(one.due for one in aloft.values())
            if soonest > run.steady():
                run.pause(soonest)
            for key in [key for key, one in aloft.items() if one.due <= run.steady()]:
                if run.halted()[0]:
                    break
                advance(key)
    return [ended[one.action.id] for one in flights]


def _take_back(run: Runner, action: Action, entry: Entry) -> Outcome | None:
    """Undo one action; None when there is nothing of it to undo."""
    status = run.journal.status_of(action.id)
    if status in ("refused", "undone", "") or action.verb in TELLS:
        return None
    if status == "open":
        return Outcome(action, "open", "its end is not known: resume first", "journal", undo=True)
    if not action.undo:
        return Outcome(action, "refused", f"nothing takes back {action.verb}", undo=True) if status == "done" else None
    guard, why = run.halted()
    if guard:
        return Outcome(action, "refused", why, guard, undo=True)
    before: dict[str, Any] = dict(entry.before)
    for one in run.journal.of_action(action.id):
        if one.kind == "outcome" and not one.undo:
            before |= one.before
    try:
        state = run.executor.node(action.node, Deadline(run.call, run.steady)) if action.node else None
    except Exception as error:
        return Outcome(action, "refused", f"the node cannot be seen: {error}", "unseen", undo=True)
    if action.node:
        if state is None or (before.get("uid") and state.uid != before["uid"]):
            why = "the node is gone" if state is None else "the machine was replaced: this is another one"
            return Outcome(action, "refused", why, "world", undo=True)
        if state.foreign and action.verb in ("cordon", "drain", "taint", "label"):
            return Outcome(action, "refused", f"it stays: {state.owner} has restricted the node since", "foreign", undo=True)
    run.journal.intent(action, entry.plan, before, undo=True)
    now = run.steady()
    flight = Flight(action, entry.plan, "undo", now + action.deadline, due=now, undo=True, began=run.clock(), before=before)
    return run.drive(flight)


def _unreadable(journal: Journal, entry: Entry) -> Outcome:
    action = Action(entry.action, entry.verb, entry.rung, entry.node, trouble=entry.trouble)
    detail = "the journal does not hold the whole action: nobody but a person can look what became of it"
    journal.outcome(action, entry.plan, "unknown", detail, entry.before, undo=entry.undo)
    return Outcome(action, "unknown", detail, "", dict(entry.before), entry.time, None, entry.undo)


def _steady(clock: Callable[[], float], steady: Callable[[], float] | None) -> Callable[[], float]:
    if steady is not None:
        return steady
    return awake if clock is time.time else clock
