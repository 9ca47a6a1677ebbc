"""
Turn what a policy leaves to a person into proposals, one a node, and what a person has said yes to into exactly those steps.

Everything that happens in the queue comes into the journal as well, by whoever holds it: the dashboard that takes a yes may not write there
while a controller does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from workbench.remediation import engine
from workbench.remediation.engine import Outcome
from workbench.remediation.executors.contract import Executor
from workbench.remediation.journal import Journal, JournalBusy
from workbench.remediation.model import Action, Plan, digest
from workbench.remediation.policy import Policy
from workbench.remediation.queue import Proposal, Queue, QueueError
from workbench.remediation.recheck import Recheck

__all__ = ["execute", "note_down", "parts", "propose", "undo_plan"]

# of refusals that say nothing of the plan: whoever comes next may do it
_LATER = frozenset({"lock", "stopped", "unseen"})
_LIVES = 1800.0  # seconds that an undo waits for a yes: as a plan does by default


def parts(plan: Plan) -> list[Plan]:
    """Return what of a plan needs a person as plans of their own, one for each node, so that a yes to one is no yes to another."""
    found: dict[str, list[Action]] = {}
    for one in plan.actions:
        if one.approval == "person":
            found.setdefault(one.node or one.target, []).append(one)
    made = []
    for node, actions in found.items():
        part = replace(
            plan,
            actions=tuple(actions),
            troubles=tuple(one for one in plan.troubles if one.node == node),
            refused=tuple(one for one in plan.refused if one.node == node),
            id="",
        )
        made.append(replace(part, id=digest(part.to_dict())))
    return made


def propose(queue: Queue, plan: Plan, *, by: str) -> list[Proposal]:
    """
    Put what needs a person into the queue, and take out what a loop proposed and is not called for any more.

    Parameters
    ----------
    queue : Queue
    plan : Plan
        Of the whole fleet.
    by : str

    Returns
    -------
    list of Proposal
        Those that wait because of this plan.

    Raises
    ------
    QueueError
        The queue cannot be read or written.
    """
    queue.expire(by=by)
    # a yes that is being carried out is no question any more
    busy = {action.node for one in queue.approved() for action in one.plan.actions}
    wanting = [part for part in parts(plan) if not busy & {action.node for action in part.actions}]
    put = [one for part in wanting if (one := queue.propose(part, by=by, source="loop")) is not None]
    wanted = {one.id for one in put}
    for one in queue.proposals():
        if one.state == "proposed" and one.events[0].data.get("source") == "loop" and one.id not in wanted:
            queue.withdraw(one.id, by=by, reason="it is not called for any more")
    return put


def undo_plan(actions: Sequence[Action], *, now: float, why: str, cluster: str = "", policy: str = "") -> Plan:
    """
    Return the plan that takes actions back: the same actions, which the queue holds as ``undo``.

    Parameters
    ----------
    actions : sequence of Action
        As the journal has them.
    now : float
        Seconds since the epoch.
    why : str
    cluster, policy : str, optional
        As of a plan.

    Raises
    ------
    QueueError
        Nothing takes any of them back.
    """
    able = tuple(one for one in actions if one.undo)
    if not able:
        raise QueueError("nothing of it can be taken back")
    left = [one.verb for one in actions if not one.undo]
    notes = (why, *((f"nothing takes back {', '.join(dict.fromkeys(left))}",) if left else ()))
    plan = Plan(now, now + _LIVES, able, notes=tuple(one for one in notes if one), cluster=cluster, policy=policy)
    return replace(plan, id=digest(["undo", plan.to_dict()]))


def execute(
    queue: Queue,
    one: Proposal,
    executor: Executor,
    journal: Journal,
    policy: Policy,
    *,
    by: str,
    clock: Callable[[], float],
    steady: Callable[[], float],
    wait: float = math.inf,
    enough: Callable[[], bool] = lambda: False,
    **common: Any,
) -> list[Outcome]:
    """
    Do exactly what a person has said yes to, once, and write into the queue how it ended.

    A plan that the kill switch, its expiry or a changed world stops is over: what is still wanted then needs another yes.

    Parameters
    ----------
    queue : Queue
    one : Proposal
    executor, journal, policy
        As of the engine and the guards.
    by : str
        Which controller.
    clock, steady : callable
    wait, enough : optional
        As of `workbench.remediation.engine.apply`; what is open then is looked after in a later turn.
    **common
        Of `engine.apply` and `engine.undo`: lock, kill, stop, sleep, tell.

    Returns
    -------
    list of Outcome

    Raises
    ------
    QueueError
        There is no yes to exactly this plan, or it is over: nothing was done.
    JournalError
        As of the engine.
    """
    if any(journal.status_of(action.id) == "open" for action in one.plan.actions) and not one.problem:
        return []  # what was begun is not over yet: `engine.resume` looks after it first
    taken = queue.begin(one.id, by=by)
    plan = taken.plan
    if taken.kind == "undo":
        outcomes = engine.undo(plan, executor, journal, clock=clock, steady=steady, **common)
    else:
        check = Recheck(plan, executor, policy, clock=clock, steady=steady)
        outcomes = engine.apply(
            plan,
            executor,
            journal,
            check=check,
            approved=True,
            clock=clock,
            steady=steady,
            wait=wait,
            enough=enough,
            **common,
        )
    ended = Counter(each.status for each in outcomes)
    if ended["open"]:
        return outcomes  # it goes on; `begin` takes it again, and what is done is not done twice
    wanted = "undone" if taken.kind == "undo" else "done"
    done = sum(journal.status_of(each.id) == wanted for each in plan.actions)
    ours = {action.id for action in plan.actions}
    # a page that could not be sent is no end of what was said yes to: whoever comes next calls a person
    bad = [each for each in outcomes if each.action.id in ours and each.status not in ("done", "undone")]
    why = "; ".join(dict.fromkeys(f"{each.guard or each.status}: {each.detail}" for each in bad))
    ends = [each for each in bad if each.guard != "chain"]
    later = [each for each in ends if each.status == "refused" and each.guard in _LATER]
    if later:
        # nothing speaks against these but this moment: begun, it is whoever comes next who brings the plan to its end
        if not done and len(later) == len(ends):
            queue.end(one.id, "approved", by=by, reason=why)
    else:
        reason = why if done or why else "there was nothing of it to do"
        queue.end(one.id, "applied" if done else "refused", by=by, reason=reason, ended=ended)
    return outcomes


def note_down(queue: Queue, journal: Journal, since: Iterable[Proposal] | None = None) -> int:
    """
    Write what happened in the queue and is not in the journal yet there, as notes; return how many.

    Nothing is written while another process holds the journal: that one does it.
    """
    proposals = list(queue.proposals() if since is None else since)
    try:
        journal.lock()
    except JournalBusy:
        return 0
    known = {str(entry.data["queue"]) for entry in journal.entries() if entry.kind == "note" and "queue" in entry.data}
    found = []
    for one in proposals:
        nodes = {action.node for action in one.plan.actions}
        for number, event in enumerate(one.events):
            if (mark := f"{one.id}/{number}") not in known:
                found.append((event.time, mark, one, event, next(iter(nodes)) if len(nodes) == 1 else ""))
    for _, mark, one, event, node in sorted(found, key=lambda each: each[:2]):
        reason = f": {event.reason}" if event.reason else ""
        what = "undo" if one.kind == "undo" else "plan"
        journal.note(
            f"{what} {one.id} {event.state} by {event.by}{reason}",
            node=node,
            plan=one.id,
            data={"queue": mark, "state": event.state, "by": event.by, "digest": event.digest, "time": event.time},
        )
    return len(found)
