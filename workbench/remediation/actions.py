"""Turn the rung that a node has reached into its steps: actions with what they expect, what they take away, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from workbench.model import Gpu
from workbench.remediation.ladder import Ladder, Rung
from workbench.remediation.model import OWNER, Action, Blast, Cost, NodeState, Refusal, Trouble, digest
from workbench.remediation.policy import Policy
from workbench.remediation.words import height

__all__ = ["Choice", "steps_of", "tasks_of"]

_UNDO = {"cordon": "uncordon", "taint": "uncordon", "label": "uncordon", "drain": "uncordon", "exclude": "exclude"}


@dataclass(frozen=True, slots=True)
class Choice:
    """What a node has come to: the fault that decides, its ladder, the rung, and why it is this one."""

    trouble: Trouble
    ladder: Ladder
    rung: Rung
    tries: int
    why: str
    before: int = 0  # how often we had taken the node out of service before this time
    refused: tuple[Refusal, ...] = ()


def tasks_of(node: NodeState, trouble: Trouble) -> list[str]:
    return [one.id for one in node.busy() if trouble.job and one.job == trouble.job and one.controlled]


def steps_of(node: NodeState, choice: Choice, policy: Policy, verbs: Collection[str], now: float) -> list[Action]:
    trouble, rung = choice.trouble, choice.rung
    approval = "auto" if _auto(trouble, rung, node, policy, now) else "person"
    base = [node.uid or node.name, node.boot, trouble.id, rung.name, choice.tries, choice.before]
    busy = node.busy()
    made: list[Action] = []

    def add(verb: str, *, target: str = "", **more: Any) -> None:
        held = node.ours or any(one.verb in ("cordon", "drain", "taint") for one in made)
        expects: dict[str, Any] = {"uid": node.uid} if node.uid else {}
        if verb not in ("validate", "uncordon") and node.boot:
            expects["boot"] = node.boot
        elif verb not in ("validate", "uncordon") and node.booted is not None:
            expects["booted"] = node.booted  # Slurm knows no boot ids
        if verb not in ("ticket", "page", "exclude", "restart-task"):
            expects["owner"] = OWNER if held else node.owner
        if verb in ("cordon", "drain", "taint") and not held:
            expects["schedulable"] = node.schedulable
        if verb in ("evict", "drain", "restart-task", "reset-gpu", "reboot", "replace"):
            # after the node was emptied nothing may be left on it
            emptied = any(one.verb in ("evict", "drain") for one in made) or not busy
            expects["work"] = [] if emptied else sorted(one.uid or one.id for one in busy)
        action = Action(
            id=digest([*base, verb, target]),
            verb=verb,
            rung=rung.name,
            node=node.name,
            target=target or node.name,
            gpu=trouble.gpu,
            why=f"{trouble.summary or trouble.code} ({choice.why})",
            evidence=tuple(one.id for one in trouble.evidence),
            trouble=trouble.id,
            expects=expects,
            after=(made[-1].id,) if made else (),
            deadline=rung.deadline,
            undo=_UNDO.get(verb, ""),
            approval=approval,
            **more,
        )
        made.append(action)

    for step in rung.steps:
        if step == "validate" and step not in verbs:
            break  # nobody can prove that it is well again: it stays as it is until a person gives it back
        if step == "cordon":
            if not node.ours:
                verb = "cordon" if "cordon" in verbs else "drain"
                add(verb, args=_restriction(trouble, rung, now), cost=_cost(node, trouble, rung, lost=0.0))
        elif step == "taint":  # a site's rung: what tolerates our taint may still come, where a cordon keeps away all
            if not node.ours:
                add(step, args=_restriction(trouble, rung, now), cost=_cost(node, trouble, rung, lost=0.0))
        elif step == "leave":
            # also of an idle node: it may have got work since, and nothing final is done before it was seen empty
            gentle = trouble.severity == "warning" or "evict" not in verbs
            verb = "drain" if gentle and "drain" in verbs else "evict"
            waits = "running work ends by itself" if verb == "drain" else "work leaves within its grace, as its budgets allow"
            blast = _blast(node, now, lost=verb == "evict")
            cost = _cost(node, trouble, rung, lost=blast.gpu_hours if verb == "evict" else 0.0)
            add(
                verb, blast=blast, waits=waits if busy else "the node is idle", cost=cost, args={"pods": [one.id for one in busy]}
            )
        elif step == "restart-task":
            for task in tasks_of(node, trouble):
                add(step, target=task, blast=_blast(node, now, lost=True))
        elif step == "exclude":
            add(step, target=trouble.job or node.name, args={"job": trouble.job, "node": node.name})
        elif step in ("reset-gpu", "reboot", "replace"):
            target = _gpu_name(trouble.gpu) if step == "reset-gpu" else node.claim if step == "replace" else node.name
            waits = {"reset-gpu": "the GPU answers again", "reboot": "the node is back with another boot id"}.get(
                step, "a machine of another identity has taken its place"
            )
            args = {"reason": _reason(trouble)} | ({"provider": node.provider} if node.provider and step == "replace" else {})
            add(step, target=target, waits=waits, blast=Blast(gpus=node.gpus), args=args)
        elif step == "ticket":
            add(step, args=_told(trouble, node))
        else:
            waits = "the checks of the idle context pass under load" if step == "validate" else ""
            # where no source can be asked, what the plan knows is the evidence that is kept
            add(
                step,
                waits=waits,
                args={"context": "idle"} if step == "validate" else _told(trouble, node) if step == "collect" else {},
            )
    return made


def _restriction(trouble: Trouble, rung: Rung, now: float) -> dict[str, Any]:
    """What is written on a node that we restrict: reason, since, until when, and the rung it is for."""
    return {"reason": _reason(trouble), "rung": rung.name, "since": now, "expires": now + rung.holds, "class": trouble.cls}


def _told(trouble: Trouble, node: NodeState) -> dict[str, Any]:
    """Return what a provider asks for: the machine, the boot, and the lines as they were."""
    lines = [{"time": one.time, "source": one.source, "text": one.text, "file": one.file} for one in trouble.evidence[:20]]
    facts = {"sku": node.sku, "uid": node.uid, "boot": node.boot, "booted": node.booted, "pool": node.pool, "zone": node.zone}
    more = {
        "claim": node.claim,
        "provider": node.provider,
        "class": trouble.cls,
        "code": trouble.code,
        "since": trouble.since,
        "job": trouble.job,
    }
    return {"reason": _reason(trouble), "evidence": lines, **trouble.facts, **facts, **more}


def _reason(trouble: Trouble) -> str:
    whose = {"user": "user", "platform": "platform", "driver": "node", "hardware": "node"}.get(trouble.cause, "unknown")
    return f"[{whose}] {trouble.code}: {trouble.summary}"[:200]


def _gpu_name(gpu: Gpu | None) -> str:
    return "" if gpu is None else gpu.uuid or gpu.pci or str(gpu.index)


def _blast(node: NodeState, now: float, *, lost: bool) -> Blast:
    """Return what ends when the node is emptied; progress is counted over the whole of a gang, since all of it starts again."""
    busy = node.busy()
    hours: float | None = 0.0
    jobs: dict[str, tuple[float | None, int]] = {}
    for one in busy:
        begun = one.saved if one.saved is not None else one.since
        key = one.job or one.id
        gpus = max(one.job_gpus, one.gpus) if one.gang else one.gpus + jobs.get(key, (None, 0))[1]
        jobs[key] = (begun, max(gpus, jobs.get(key, (None, 0))[1]))
    for begun, gpus in jobs.values():
        hours = None if begun is None or hours is None else hours + gpus * max(now - begun, 0.0) / 3600
    return Blast(
        work=tuple(one.id for one in busy),
        jobs=tuple(sorted({one.job for one in busy if one.job})),
        ranks=sum(one.ranks for one in busy),
        gpus=sum(one.gpus for one in busy),
        gpu_hours=(hours if lost else 0.0) if busy else 0.0,
        budgets=tuple(sorted({name for one in busy if one.disruptions == 0 for name in one.budgets})),
    )


def _cost(node: NodeState, trouble: Trouble, rung: Rung, *, lost: float | None) -> Cost:
    """Return GPU-hours of acting now (lost progress and the node's absence) against those of each hour of waiting."""
    if not node.gpus and not node.busy():
        return Cost(note="nobody knows how many GPUs it has")
    now = None if lost is None else round(lost + node.gpus * rung.down / 60, 2)
    held = max((one.job_gpus for one in node.busy() if one.gang), default=0)
    dead = bool(trouble.job) and any(one.job == trouble.job for one in node.busy())
    each = float(max(held if dead else 0, node.gpus))
    note = "each hour of waiting, as GPUs that hang or must not be used" + (": the whole job hangs on it" if dead else "")
    return Cost(now, each, note)


def _auto(trouble: Trouble, rung: Rung, node: NodeState, policy: Policy, now: float) -> bool:
    """Whether a rule of the policy lets it be done without a person."""
    lost = _blast(node, now, lost=True).gpu_hours
    for rule in policy.auto:
        limit = rung.height <= height(rule.up_to)
        what = (not rule.causes or trouble.cause in rule.causes) and (not rule.classes or trouble.cls in rule.classes)
        code = not rule.codes or any(fnmatchcase(trouble.code, one) for one in rule.codes)
        where = not rule.pools or any(fnmatchcase(node.pool, one) for one in rule.pools)
        ends_work = rung.height >= height("evacuate") and trouble.severity != "warning"
        idle = rule.busy or not ends_work or not [one for one in node.busy() if one.job != trouble.job or not trouble.job]
        idle = idle and (not ends_work or (math.inf if lost is None else lost) <= rule.loses)
        if limit and what and code and where and idle and trouble.confidence >= rule.confidence:
            return True
    return False
