"""
Turn an action, the fleet, the journal and the policy into a reason not to do it, or none: every guard on one page.

The same functions judge while a plan is made and again just before each action is begun, with the fleet as it is then. They only ever say
no; nothing here makes an action more likely. Recovery (`workbench.remediation.model.RECOVERY`) is held back by nobody's caps and no breaker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from workbench.remediation.expiry import until
from workbench.remediation.ladder import Past
from workbench.remediation.model import FINAL, Action, FleetState, NodeState, Plan, Refusal, Trouble
from workbench.remediation.policy import Policy

__all__ = ["MENDING", "SHRINKING", "TAKING", "Breaker", "Standing", "breaker_of", "recheck"]

HOUR = 3600.0
# what makes the fleet smaller for new work
SHRINKING = frozenset({"cordon", "taint", "drain", "evict", "reset-gpu", "reboot", "replace"})
# what takes a node out of service that was in it
TAKING = ("cordon", "drain", "taint")
# what changes a node so that older evidence says nothing about it any more
MENDING = frozenset({"reset-gpu", "reboot", "replace", "uncordon"})
_AHEAD = 300.0  # seconds: evidence further in the future has a clock that cannot be trusted (design: a clock 10 minutes off is a fault)


@dataclass
class Standing:
    """
    What stands at a moment: the fleet, what we did lately, and what the plan at hand takes away in addition.

    Attributes
    ----------
    fleet : FleetState
    policy : Policy
    now : float
    past : sequence of Past
        Entries of the journal.
    taken : dict
        Nodes that the plan at hand takes out of service, with the jobs whose work ends there.
    finals : int
        Actions of the plan at hand that cannot be taken back.
    """

    fleet: FleetState
    policy: Policy
    now: float
    past: Sequence[Past] = ()
    taken: dict[str, tuple[str, ...]] = field(default_factory=dict)
    finals: int = 0

    def out(self) -> set[str]:
        """Return the nodes that we keep out of service, and those about to be."""
        return {name for name, one in self.fleet.nodes.items() if one.ours} | set(self.taken)

    def begun(self, verbs: Iterable[str], seconds: float = HOUR) -> list[Past]:
        """Return each time that we began an action of some verbs within the last seconds; what was refused then was not begun."""
        wanted, found = frozenset(verbs), dict[int, Past]()
        last: dict[str, int] = {}
        for number, one in enumerate(self.past):
            if one.verb in wanted and one.time > self.now - seconds:
                if one.kind == "intent":
                    found[number], last[one.action] = one, number
                elif one.kind == "outcome" and (begun := last.pop(one.action, None)) is not None and one.status == "refused":
                    del found[begun]  # what was held, and refused when it was asked for again, did happen in part
        return list(found.values())

    def lately(self, verbs: Iterable[str], seconds: float = HOUR) -> dict[str, Past]:
        """Return the actions of some verbs that we began within the last seconds, by id, as they were begun last."""
        return {one.action: one for one in self.begun(verbs, seconds)}

    def check(self, action: Action, node: NodeState, trouble: Trouble | None) -> Refusal | None:
        """Return why an action must not be done, or None."""
        for guard in _GUARDS:
            if refusal := guard(self, action, node, trouble):
                return refusal
        return None

    def take(self, actions: Sequence[Action], node: NodeState) -> None:
        """Count what a plan takes away, so that the next node of the same plan sees it."""
        if any(one.verb in SHRINKING for one in actions):
            self.taken[node.name] = tuple({one.job for one in node.busy() if one.job})
        self.finals += sum(one.verb in _MACHINE for one in actions)


_MACHINE = frozenset({"reset-gpu", "reboot", "replace"})
Guard = Callable[[Standing, Action, NodeState, Trouble | None], Refusal | None]


def _no(guard: str, action: Action, why: str, until: float | None = None) -> Refusal:
    return Refusal(guard, action.node, action.rung, why, action.trouble, until, action.id)


def _never(standing: Standing, action: Action, node: NodeState, trouble: Trouble | None) -> Refusal | None:
    if action.verb not in ("page", "ticket") and standing.policy.untouchable(node.name):
        return _no("never", action, f"the policy says that {node.name} is never touched")
    return None


def _frozen(standing: Standing, action: Action, node: NodeState, trouble: Trouble | None) -> Refusal | None:
    if not action.recovery and standing.policy.frozen(standing.now):
        return _no("freeze", action, "the policy says that nothing is changed at this time of the week")
    return None


def _foreign(standing: Standing, action: Action, node: NodeState, trouble: Trouble | None) -> Refusal | None:
    if node.foreign and action.verb not in ("page", "ticket", "collect", "exclude"):
        said = f" ({node.reason})" if node.reason else ""
        return _no("foreign", action, f"{node.owner} has taken {node.name} out of service{said}: it is theirs")
    return None


def _unseen(standing: Standing, action: Action, node: NodeState, trouble: Trouble | None) -> Refusal | None:
    if action.destructive and "work" in node.unseen:
        return _no("unseen", action, f"nobody can tell what runs on {node.name} and would be lost")
    if action.verb in SHRINKING and not standing.fleet.complete:
        why = "; ".join(standing.fleet.problems[:3]) or "a part of the fleet did not answer"
        return _no("unseen", action, f"the fleet could not be seen whole, so nobody knows what is left of it: {why}")
    return None


def stale(trouble: Trouble | None, node: NodeState, past: Sequence[Past], policy: Policy, now: float) -> str:
    """Return why evidence says nothing about the node as it is now; empty when it does."""
    if trouble is None:
        return ""
    newest = trouble.newest
    if newest is None:
        return "nobody knows when its evidence was observed"
    if newest > now + _AHEAD:
        return f"its evidence lies {newest - now:.0f} s in the future: a clock is wrong"
    if now - newest > policy.limits.fresh:
        return f"its newest evidence is {(now - newest) / HOUR:.1f} h old"
    if trouble.boot and node.boot and trouble.boot != node.boot:
        return "the node has booted since"
    if node.booted is not None and newest < node.booted:
        return "the node has booted since"
    for one in reversed(past):
        if one.node != node.name or one.kind != "outcome" or one.status != "done":
            continue
        if one.verb in MENDING and one.time >= newest:
            return f"{one.verb} was done since"
        if one.verb in TAKING and one.time >= newest and node.schedulable and not node.owner:
            return "we took the node out of service for it and somebody put it back: that was their decision"
    return ""


def _stale(standing: Standing, action: Action, node: NodeState, trouble: Trouble | None) -> Refusal | None:
    if action.recovery or action.verb == "exclude" or trouble is None:
        return None
    if why := stale(trouble, node, standing.past, standing.policy, standing.now):
        return _no("stale", action, why)
    if action.destructive and node.booted is None and not (node.boot and trouble.boot):
        return _no("stale", action, "nobody knows when the node booted, so its evidence may be older than that")
    return None


def _young(standing: Standing, action: Action, node: NodeState, trouble: Trouble | None) -> Refusal | None:
    grace = standing.policy.limits.boot_grace
    if action.verb in SHRINKING and node.booted is not None and standing.now - node.booted < grace:
        if trouble is not None and trouble.severity == "critical" and trouble.confidence >= 0.95 and trouble.cause == "hardware":
            return None
        return _no("boot-grace", action, "the node is still coming up", node.booted + grace)
    return None


def _window(standing: Standing, action: Action, node: NodeState, trouble: Trouble | None) -> Refusal | None:
    if action.destructive and not standing.policy.open(standing.now):
        return _no("window", action, "it cannot be taken back, and no maintenance window is open")
    return None


def _caps(standing: Standing, action: Action, node: NodeState, trouble: Trouble | None) -> Refusal | None:
    if action.verb not in SHRINKING or node.ours or node.name in standing.taken:
        return None  # it counts already
    limits, out = standing.policy.limits, standing.out() - {node.name}
    nodes = standing.fleet.nodes

    def over(what: str, inside: Sequence[str], count: float, percent: float | None) -> str:
        gone = sum(name in out for name in inside)
        if gone + 1 > count:
            return f"{gone} of {len(inside)} nodes of {what} are out of service by us already, and {count:.0f} may be"
        if percent is not None and gone + 1 > max(1, int(len(inside) * percent / 100)):
            return f"{gone} of {len(inside)} nodes of {what} are out of service by us already, and {percent:g} % may be"
        return ""

    pool = [name for name, one in nodes.items() if one.pool == node.pool]
    zone = [name for name, one in nodes.items() if one.zone == node.zone]
    for guard, why in (
        ("cap-fleet", over("the fleet", list(nodes), limits.out_count, limits.out_percent)),
        ("cap-pool", over(f"pool {node.pool or '(none)'}", pool, limits.pool_count, limits.pool_percent)),
        ("cap-zone", over(f"zone {node.zone}", zone, limits.zone_count, None) if node.zone else ""),
    ):
        if why:
            return _no(guard, action, why)
    return None


def _hour(standing: Standing, action: Action, node: NodeState, trouble: Trouble | None) -> Refusal | None:
    limits = standing.policy.limits
    if action.verb in SHRINKING and not node.ours and node.name not in standing.taken:
        lately = {one.node for one in standing.lately(TAKING).values()} | set(standing.taken)
        if len(lately - {node.name}) + 1 > limits.hour_count:
            why = f"{len(lately)} nodes were taken out of service within an hour, and {limits.hour_count} may be"
            return _no("cap-hour", action, why, standing.now + HOUR)
    if action.verb in _MACHINE:
        lately_final = {key for key in standing.lately(_MACHINE) if key != action.id}
        if len(lately_final) + standing.finals + 1 > limits.final_hour_count:
            why = f"{len(lately_final) + standing.finals} resets, reboots and replacements within an hour, and {limits.final_hour_count} may be"
            return _no("cap-hour", action, why, standing.now + HOUR)
    return None


def _job(standing: Standing, action: Action, node: NodeState, trouble: Trouble | None) -> Refusal | None:
    if action.verb not in ("evict", "drain", "restart-task", *_MACHINE) or node.name in standing.taken:
        return None
    jobs = {one.job for one in node.busy() if one.job}
    for job in sorted(jobs):
        nodes = {name for name, hit in standing.taken.items() if job in hit}
        lately = standing.begun(
            ("evict", "restart-task")
        )  # each time: an eviction that was held is begun again with the work that is left
        nodes |= {one.node for one in lately if job in _ended(one) or _runs(standing.fleet, one.node, job)}
        if len(nodes - {node.name}) + 1 > standing.policy.limits.job_count:
            why = (
                f"work of {job} ends on {len(nodes)} nodes within an hour already, and {standing.policy.limits.job_count} may be"
            )
            return _no("cap-job", action, why, standing.now + HOUR)
    return None


def _ended(one: Past) -> Collection[str]:
    """Return the jobs whose work an action was to end: afterwards it runs elsewhere, and the fleet does not show that it was there."""
    data = getattr(one, "data", None) or {}
    return ((data.get("action") or {}).get("blast") or {}).get("jobs") or ()


def _runs(fleet: FleetState, name: str, job: str) -> bool:
    node = fleet.nodes.get(name)
    return node is not None and any(one.job == job for one in node.work)


def _capacity(standing: Standing, action: Action, node: NodeState, trouble: Trouble | None) -> Refusal | None:
    if action.verb not in SHRINKING or not node.healthy or node.name in standing.taken:
        return None  # it is no capacity now, so none is lost
    limits = standing.policy.limits
    pool = [one for one in standing.fleet.nodes.values() if one.pool == node.pool]
    left = sum(one.healthy and one.name != node.name and one.name not in standing.taken for one in pool)
    if left < limits.keep or left * 100 < limits.keep_percent * len(pool):
        name = node.pool or "(none)"
        why = f"pool {name} of {len(pool)} nodes would have {left} healthy ones left, and keeps {limits.keep} and {limits.keep_percent:g} %"
        return _no("capacity", action, why)
    return None


def _burst(standing: Standing, action: Action, node: NodeState, trouble: Trouble | None) -> Refusal | None:
    """What the planner's breaker is for many troubles, this is for many actions: whoever planned them, they stop here."""
    limits = standing.policy.limits
    if action.verb not in SHRINKING or node.ours:
        return None
    lately = {one.node for one in standing.lately(TAKING, limits.breaker_window).values()} - {node.name}
    if len(lately) + 1 > limits.breaker_count:
        why = f"{len(lately)} nodes were taken out of service within {limits.breaker_window / 60:.0f} minutes: first look why"
        return _no("breaker", action, why, standing.now + limits.breaker_window)
    return None


# in the order in which a person wants to hear them: what holds for ever first, what passes by itself last
_GUARDS: tuple[Guard, ...] = (_never, _foreign, _frozen, _unseen, _stale, _young, _capacity, _caps, _job, _hour, _burst, _window)


@dataclass(frozen=True, slots=True)
class Breaker:
    """Many nodes at once: which, since when, and what to suspect before the hardware."""

    nodes: tuple[str, ...]
    since: float
    suspects: tuple[str, ...]

    @property
    def why(self) -> str:
        """One sentence for a person who is woken by it."""
        first = "; ".join(self.suspects) or "what they have in common"
        return f"{len(self.nodes)} nodes call for action within minutes: look first at {first}"


def breaker_of(calling: Mapping[str, Sequence[Trouble]], fleet: FleetState, policy: Policy) -> Breaker | None:
    """
    Return the burst of nodes that began to call for action at about the same time, when it is large enough to be no accident.

    Machines fail one by one; what takes many within minutes is a job, a network, a power feed, or the checker itself. The burst counts by when
    each trouble began, so it stays one however long it lasts, while sick nodes that came one after another in weeks are none.

    Parameters
    ----------
    calling : mapping of str to sequence of Trouble
        Nodes that we have not taken out of service, with what calls for action on them.
    fleet : FleetState
    policy : Policy
    """
    limits = policy.limits
    begun = sorted(
        (min(one.since if one.since is not None else one.newest or fleet.time for one in troubles), name)
        for name, troubles in calling.items()
    )
    best: tuple[str, ...] = ()
    since, low = 0.0, 0
    for high in range(len(begun)):
        while begun[high][0] - begun[low][0] > limits.breaker_window:
            low += 1
        if high - low + 1 > len(best):
            best, since = tuple(name for _, name in begun[low : high + 1]), begun[low][0]
    count, size = len(best), max(len(fleet.nodes), 1)
    if count >= limits.breaker_count or (count >= 3 and count * 100 >= limits.breaker_percent * size):
        return Breaker(best, since, _suspects(best, calling, fleet))
    return None


def _suspects(names: Sequence[str], calling: Mapping[str, Sequence[Trouble]], fleet: FleetState) -> tuple[str, ...]:
    """Name what most of the nodes share and most others do not, the likeliest first."""
    most = 0.8 * len(names)  # ours: a burst has a few bystanders

    def shared(values: Mapping[str, frozenset[str]]) -> list[str]:
        seen: dict[str, int] = {}
        for name in names:
            for value in values.get(name, frozenset()):
                seen[value] = seen.get(value, 0) + 1
        return sorted(value for value, number in seen.items() if value and number >= most)

    jobs = {
        name: frozenset(one.job for one in fleet.nodes[name].work if one.job and not one.ignored)
        if name in fleet.nodes
        else frozenset()
        for name in names
    }
    jobs = {name: jobs[name] | {one.job for one in calling[name] if one.job} for name in names}
    found = [f"job {one}, which runs on them" for one in shared(jobs)]
    codes = {name: frozenset(one.code for one in calling[name]) for name in names}
    unknown = all(one.severity == "unknown" for name in names for one in calling[name])
    found += [f"the checker, since all say {one}" for one in shared(codes)] if unknown or len(names) > 2 else []
    for what, attribute in (("zone", "zone"), ("pool", "pool")):
        inside = {
            name: frozenset([getattr(fleet.nodes[name], attribute)]) if name in fleet.nodes else frozenset() for name in names
        }
        everywhere = {getattr(one, attribute) for one in fleet.nodes.values()}
        found += [f"{what} {one}: its network, power or last change" for one in shared(inside) if len(everywhere) > 1]
    return tuple(found)


def recheck(action: Action, plan: Plan, fleet: FleetState, past: Sequence[Past], policy: Policy, now: float) -> Refusal | None:
    """
    Return why an action of a plan must not be done now, or None: asked just before it, with the fleet as it is then.

    Parameters
    ----------
    action : Action
    plan : Plan
        The plan that it is part of.
    fleet : FleetState
        As fresh as can be had; the node of the action from this very moment.
    past : sequence of Past
        Entries of the journal, those of this plan included.
    policy : Policy
    now : float
    """
    if now > until(plan, action) and not action.recovery:
        return _no("expired", action, "the plan has expired: make a new one")
    node = fleet.nodes.get(action.node)
    if node is None:
        if action.recovery or action.verb == "exclude":
            return None
        return _no("gone", action, f"there is no node {action.node} any more")
    trouble = next((one for one in plan.troubles if one.node == action.node and one.id == action.trouble), None)
    if trouble is None and action.verb in (SHRINKING | FINAL):
        return _no("stale", action, "the plan does not say what it is for")
    return Standing(fleet, policy, now, past).check(action, node, trouble)
