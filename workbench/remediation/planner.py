"""
Turn troubles, the fleet and what was tried before into a plan: for each node the rung it has reached, as steps, each let through or refused.

Pure: the same input gives the same plan, with the same ids. An action's id is made of what it does to which node in which boot and of how
often that was tried before, so that two plans for the same fault name the same step, and no step is done twice because a plan was made anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.remediation.actions import Choice, steps_of, tasks_of
from workbench.remediation.guards import Standing, breaker_of
from workbench.remediation.ladder import Attempt, Ladder, Ladders, Past, Rung, attempts_of, ladders, stuck, used_up
from workbench.remediation.model import (
    OWNER,
    VERBS,
    Action,
    FleetState,
    NodeState,
    Plan,
    Refusal,
    Trouble,
    by_node,
    digest,
)
from workbench.remediation.paging import AGAIN
from workbench.remediation.policy import Policy
from workbench.remediation.troubles import Checked, together

__all__ = ["QUIET", "make_plan"]

QUIET = 900.0  # seconds without a trouble before we think of giving a node back: three runs of a check each five minutes
_PAGE_AGAIN = 6 * 3600.0  # seconds after which an open breaker is told again: a storm is one page, not one a minute


def make_plan(
    troubles: Iterable[Trouble],
    fleet: FleetState,
    *,
    past: Sequence[Past] = (),
    policy: Policy | None = None,
    table: Ladders | None = None,
    verbs: Collection[str] = tuple(VERBS),
    checked: Iterable[Checked] = (),
    despite_breaker: str = "",
) -> Plan:
    """
    Return what shall be done.

    Parameters
    ----------
    troubles : iterable of Trouble
        What is wrong, see `workbench.remediation.troubles`.
    fleet : FleetState
        All nodes now; its time is the time of the plan.
    past : sequence of Past, optional
        Entries of the journal.
    policy : Policy, optional
        Default: the careful one, which does nothing without a person.
    table : Ladders, optional
        Default: the shipped ones and the site's.
    verbs : collection of str, optional
        What the executors at hand can do.
    checked : iterable of Checked
        Nodes that were checked lately: what a return to service goes by.
    despite_breaker : str, optional
        Who decided to go on although many nodes fail at once, and why; the caps hold all the same.

    Returns
    -------
    Plan
    """
    policy, table, now = policy or Policy(), table or ladders(), fleet.time
    wrong = together(troubles)
    standing = Standing(fleet, policy, now, past)
    refused: list[Refusal] = []
    notes = list(fleet.problems)
    if not fleet.complete:
        notes = ["The fleet could not be seen whole: " + "; ".join(fleet.problems)]
    choices: list[tuple[NodeState, Choice]] = []
    calling: dict[str, list[Trouble]] = {}
    for name, mine in by_node(wrong).items():
        node = fleet.nodes.get(name)
        if node is None:
            notes.append(f"{name} is not in this cluster: {mine[0].summary}")
            continue
        choice = _choose(mine, node, table, past, verbs, now)
        refused += choice.refused
        if choice.rung.height == 0:
            continue
        choices.append((node, choice))
        if not node.owner and choice.rung.name not in ("restart-task", "exclude-node"):
            calling[name] = [one for one in mine if table.of(one).climb[0] != "tolerate"] or mine
    breaker = breaker_of(calling, fleet, policy)
    if breaker and despite_breaker:
        notes.append(f"The breaker is open ({breaker.why}) and was overruled: {despite_breaker}")
        breaker = None

    actions: list[Action] = []
    if breaker:
        actions += _page(breaker.why, fleet, past, now)
        refused += [
            Refusal("breaker", node.name, choice.rung.name, breaker.why, choice.trouble.id)
            for node, choice in choices
            if not node.ours and choice.rung.name not in ("exclude-node",)
        ]
    for node, choice in sorted(choices, key=_first):
        if breaker and not node.ours and choice.rung.name != "exclude-node":
            continue
        if breaker and choice.rung.height > table.rungs["cordon"].height:
            refused.append(Refusal("breaker", node.name, choice.rung.name, breaker.why, choice.trouble.id))
            continue
        steps, said = _climb(node, choice, standing, policy, verbs, table)
        actions += steps
        refused += said
    actions += _exclusions(wrong, fleet, past, standing, policy, table, verbs, actions, refused)
    back, said, told = _recovery(fleet, wrong, past, table, {one.node: one for one in checked}, verbs, policy, now)
    actions += [*back, *_pages(refused, past, now)]
    refused += said
    notes += told
    plan = Plan(
        made=now,
        expires=now + policy.limits.plan_lives,
        actions=tuple({one.id: one for one in actions}.values()),
        refused=tuple(refused),
        troubles=tuple(wrong),
        notes=tuple(notes),
        cluster=fleet.cluster,
        policy=policy.origin,
        breaker=breaker.why if breaker else "",
    )
    return replace(plan, id=digest(plan.to_dict()))


def _first(item: tuple[NodeState, Choice]) -> tuple[Any, ...]:
    """Order: what is out of service already goes on, then the certain before the doubtful, so that caps are spent on what is sure."""
    node, choice = item
    return (
        not node.ours,
        choice.trouble.severity != "critical",
        -choice.trouble.confidence,
        choice.trouble.since or 0.0,
        node.name,
    )


# ---- which rung ----------------------------------------------------------------------------------------------------------------------


def _choose(
    mine: Sequence[Trouble], node: NodeState, table: Ladders, past: Sequence[Past], verbs: Collection[str], now: float
) -> Choice:
    """Return the highest rung that any of the node's faults has reached."""
    tries = attempts_of(past, node=node.name)
    found = [_reached(one, node, table, tries, past, verbs, now) for one in mine]
    best = max(found, key=lambda one: (one.rung.height, one.trouble.severity == "critical", one.trouble.confidence))
    before = sum(
        one.node == node.name
        and one.kind == "outcome"
        and one.verb in ("cordon", "taint")
        and one.status == "done"
        and one.action != node.op
        for one in past
    )
    return replace(best, before=before, refused=tuple(refusal for one in found for refusal in one.refused))


def _reached(
    trouble: Trouble,
    node: NodeState,
    table: Ladders,
    tries: Sequence[Attempt],
    past: Sequence[Past],
    verbs: Collection[str],
    now: float,
) -> Choice:
    ladder = table.of(trouble)
    said: list[Refusal] = []
    reasons: list[str] = []

    def choice(rung: Rung, why: str) -> Choice:
        # one that goes on keeps its number, so that a plan made meanwhile names the same steps
        done = sum(one.over and one.rung == rung.name and one.trouble == trouble.id for one in tries)
        return Choice(trouble, ladder, rung, done, why, refused=tuple(said))

    def refuse(guard: str, rung: str, why: str, until: float | None = None) -> None:
        said.append(Refusal(guard, node.name, rung, why, trouble.id, until))

    since = trouble.since if trouble.since is not None else trouble.newest
    if ladder.unseen_for and (since is None or now - since < ladder.unseen_for):
        why = f"it could not be checked for less than {ladder.unseen_for / 60:.0f} minutes"
        refuse("unseen-yet", ladder.climb[0], why, None if since is None else since + ladder.unseen_for)
        return choice(table.rungs["tolerate"], why)
    if lost := next((one for one in tries if one.status == "unknown" and one.begun > now - table.rungs[one.rung].window), None):
        why = f"nobody knows how {lost.rung} ended: a person must look, and say so (workbench journal note)"
        refuse("unknown-outcome", lost.rung, why)
        return choice(table.rungs["tolerate"], why)
    for name in ladder.climb:
        rung = table.rungs[name]
        if why := _impossible(rung, trouble, node, verbs):
            reasons.append(f"not {name}, since {why}")
            continue
        if used_up(rung, tries, now, trouble=trouble.id, held=node.restricted if node.ours else None):
            reasons.append(f"{name} did not help or had its {rung.attempts} tries")
            continue
        last = max((one.last for one in tries if one.rung == name and one.status != "refused"), default=None)
        if last is not None and now - last < rung.cool_down and not _going_on(name, tries, trouble):
            refuse("cool-down", name, f"{name} ended less than {rung.cool_down / 60:.0f} minutes ago", last + rung.cool_down)
            return choice(table.rungs["tolerate"], f"{name} cools down")
        held = stuck(past, node=node.name, rung=name, trouble=trouble.id)
        if held is not None and now - held.time < rung.cool_down:
            refuse("held-up", name, f"its work did not leave in time: {held.detail}", held.time + rung.cool_down)
            return choice(table.rungs["tolerate"], f"{name} waits until the node is empty")
        if trouble.severity != "unknown" and trouble.confidence < rung.sure:
            lower = _surest(rung, trouble, table)
            refuse("doubt", name, f"{name} needs a confidence of {rung.sure:.0%}, and this has {trouble.confidence:.0%}")
            return choice(lower, f"{lower.name} instead of {name}, which needs more certainty")
        return choice(rung, "; ".join([*reasons, f"ladder {ladder.name}"]))
    refuse("exhausted", ladder.climb[-1], "every rung was tried: a person must look (" + "; ".join(reasons) + ")")
    return choice(table.rungs["tolerate"], "every rung was tried")


def _going_on(rung: str, tries: Sequence[Attempt], trouble: Trouble) -> bool:
    """Whether this rung is being tried right now: its later steps must not wait for its own cool-down."""
    return any(one.rung == rung and one.trouble == trouble.id and not one.over for one in tries)


def _surest(rung: Rung, trouble: Trouble, table: Ladders) -> Rung:
    """Return what may be done on this much certainty: nothing new for the node, or the job alone leaves it out."""
    lower = [table.rungs[name] for name in ("cordon", "exclude-node") if name in table.rungs]
    fitting = [
        one
        for one in lower
        if one.height < rung.height and one.sure <= trouble.confidence and (one.name != "exclude-node" or trouble.job)
    ]
    return max(fitting, key=lambda one: one.height, default=table.rungs["tolerate"])


def _impossible(rung: Rung, trouble: Trouble, node: NodeState, verbs: Collection[str]) -> str:
    """Return why a rung does not exist for this node and these executors; empty when it does."""
    if rung.environments and node.environment and node.environment not in rung.environments:
        return f"{node.name} is {node.environment}"
    if "gpu" in rung.needs and trouble.gpu is None:
        return "no single GPU is to blame"
    if "claim" in rung.needs and not node.claim:
        return "nobody knows what its machine is to the provider"
    if "work" in rung.needs and not tasks_of(node, trouble):
        return "the failed task is not there any more"
    for step in rung.steps:
        if step == "leave":
            if not {"evict", "drain"} & set(verbs):
                return "no executor can empty a node"
        elif step == "cordon":
            if not {"cordon", "drain"} & set(verbs):
                return "no executor can take a node out of service"
        elif step not in verbs and step not in ("validate", "uncordon"):  # without these it ends restricted, see `steps_of`
            return f"no executor can {VERBS[step].split(' so that')[0]}"
    return ""


def _climb(
    node: NodeState, choice: Choice, standing: Standing, policy: Policy, verbs: Collection[str], table: Ladders
) -> tuple[list[Action], list[Refusal]]:
    """Return the steps of a rung up to the first that a guard refuses; refused what cannot be undone, a cordon still stands."""
    steps = steps_of(node, choice, policy, verbs, standing.now)
    refused: list[Refusal] = []
    let: list[Action] = []
    for action in steps:
        if refusal := standing.check(action, node, choice.trouble):
            refused.append(refusal)
            break
        let.append(action)
    if refused and any(one.destructive for one in steps):
        # nothing is half done: without its deciding step a rung is only the restriction that protects others from the node
        let = [one for one in let if one.verb in ("cordon", "taint", "collect") and not (one.verb == "collect" and node.ours)]
        if not any(one.verb in ("cordon", "taint") for one in let):
            let = []
        if choice.trouble.confidence < table.rungs["cordon"].sure and choice.trouble.severity != "unknown":
            let = []
    elif refused:
        let = [one for one in let if not one.recovery] if any(not one.recovery for one in let) else []
    standing.take(let, node)
    return let, refused


# ---- the job, the way back, the page ---------------------------------------------------------------------------------------------------


def _exclusions(
    wrong: Sequence[Trouble],
    fleet: FleetState,
    past: Sequence[Past],
    standing: Standing,
    policy: Policy,
    table: Ladders,
    verbs: Collection[str],
    actions: Sequence[Action],
    refused: list[Refusal],
) -> list[Action]:
    """Return what keeps a job's next attempt away from the node its verdict names, whatever becomes of the node itself."""
    rung, found = table.rungs["exclude-node"], []
    if "exclude" not in verbs:
        return []
    for trouble in wrong:
        node = fleet.nodes.get(trouble.node)
        if node is None or trouble.retry != "exclude-node" or not trouble.job or trouble.confidence < rung.sure:
            continue
        if any(one.verb == "exclude" and one.node == node.name for one in actions):
            continue
        tries = sum(one.over and one.rung == rung.name and one.trouble == trouble.id for one in attempts_of(past, node=node.name))
        choice = Choice(trouble, Ladder("retry", (rung.name,), ""), rung, tries, "its next attempt must not meet the same node")
        for action in steps_of(node, choice, policy, verbs, standing.now):
            refusal = standing.check(action, node, trouble)
            if refusal is None:
                found.append(action)
            else:
                refused.append(refusal)
    return found


def _recovery(
    fleet: FleetState,
    wrong: Sequence[Trouble],
    past: Sequence[Past],
    table: Ladders,
    checked: Mapping[str, Checked],
    verbs: Collection[str],
    policy: Policy,
    now: float,
) -> tuple[list[Action], list[Refusal], list[str]]:
    """Return how nodes that we restricted come back: checked under load, then given work again; what nobody knows of is told."""
    sick = {one.node for one in wrong if table.of(one).climb[0] != "tolerate"}
    known = {one.action: one for one in past if one.kind == "intent"}
    actions: list[Action] = []
    refused: list[Refusal] = []
    notes: list[str] = []
    for name, node in sorted(fleet.nodes.items()):
        if not node.ours or name in sick:
            continue
        begun = known.get(node.op)
        expired = node.expires is not None and node.expires < now
        if begun is None:
            notes.append(
                f"{name} is restricted in our name by {node.op or 'nobody knows what'}, and the journal does not know why"
            )
            continue
        if begun.rung in ("report", "replace-node") and not expired:
            continue  # a person or the provider says when it is mended
        seen = checked.get(name)
        if not expired and (node.restricted is None or now - node.restricted < QUIET):
            continue
        if not expired and (seen is None or not seen.fit or seen.time <= (node.restricted or 0.0)):
            refused.append(
                Refusal(
                    "unproven", name, begun.rung, "no check since says that it is fit, and silence proves nothing", begun.trouble
                )
            )
            continue
        if any(one.node == name and one.kind == "intent" and one.verb == "validate" and now - one.time < 3600 for one in past):
            continue
        base = [node.uid or name, node.boot, node.op, "back", sum(one.node == name and one.verb == "validate" for one in past)]
        first: Action | None = None
        for verb in ("validate", "uncordon"):
            if verb not in verbs:
                refused.append(Refusal("unproven", name, begun.rung, f"no executor can {VERBS[verb]}", begun.trouble))
                break
            first = Action(
                id=digest([*base, verb]),
                verb=verb,
                rung=begun.rung,
                node=name,
                target=name,
                why="its restriction has expired" if expired else "what it was restricted for is gone",
                trouble=begun.trouble,
                expects={"owner": OWNER, **({"uid": node.uid} if node.uid else {})},
                args={"context": "idle"} if verb == "validate" else {"op": node.op},
                after=(first.id,) if first else (),
                waits="the checks of the idle context pass under load" if verb == "validate" else "",
                deadline=table.rungs["evacuate"].deadline,
                approval="auto" if policy.auto else "person",
            )
            actions.append(first)
    return actions, refused, notes


def _pages(refused: Sequence[Refusal], past: Sequence[Past], now: float) -> list[Action]:
    """Return a page for each node that could not be emptied in time, once each time: nobody but a person may overrule a budget."""
    pages = []
    for one in refused:
        if one.guard != "held-up":
            continue
        number = sum(each.node == one.node and each.status == "expired" for each in past)
        name = digest(["held-up", one.node, one.rung, one.trouble, number])
        if any(each.action == name and (each.status == "done" or now - each.time < AGAIN) for each in past):
            continue
        args = {"title": f"{one.node} cannot be emptied", "text": f"{one.node}: {one.why}", "nodes": [one.node]}
        pages.append(
            Action(name, "page", one.rung, one.node, "on call", why=one.why, trouble=one.trouble, args=args, approval="auto")
        )
    return pages


def _page(why: str, fleet: FleetState, past: Sequence[Past], now: float) -> list[Action]:
    """Return the one page of an open breaker, unless somebody was told lately."""
    if any(one.verb == "page" and one.trouble == "breaker" and now - one.time < _PAGE_AGAIN for one in past):
        return []
    return [
        Action(
            id=digest(["breaker", fleet.cluster, sum(one.verb == "page" and one.trouble == "breaker" for one in past)]),
            verb="page",
            rung="report",
            node="",
            target="on call",
            why=why,
            trouble="breaker",
            approval="auto",
        )
    ]
