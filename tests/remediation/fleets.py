"""Turn a few words into a fleet, troubles and journal entries, for the tests of what is planned."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

from workbench.model import Gpu
from workbench.remediation.model import OWNER, Action, Evidence, FleetState, NodeState, Trouble, Work

NOW = 1_780_000_000.0
BOOTED = NOW - 5 * 86400
_number = itertools.count()


@dataclass(frozen=True)
class Entry:
    """What the journal's entries look like to those who judge by them."""

    kind: str
    node: str
    verb: str
    rung: str
    trouble: str
    time: float
    status: str = ""
    action: str = ""


def node(name: str = "gpu-001", **more: Any) -> NodeState:
    plain = NodeState(
        name, uid=f"uid-{name}", boot="boot-1", booted=BOOTED, pool="h100", zone="a", sku="H100", gpus=8, environment="cloud"
    )
    return replace(plain, **more)


def ours(name: str, op: str = "op-1", **more: Any) -> NodeState:
    """Return a node that we restricted an hour ago."""
    return node(name, schedulable=False, owner=OWNER, op=op, restricted=NOW - 3600, **more)


def fleet(*special: NodeState, size: int = 40, **more: Any) -> FleetState:
    """Return a fleet of `size` healthy nodes, with the special ones in place of those of their names."""
    nodes = {f"gpu-{number:03}": node(f"gpu-{number:03}") for number in range(1, size + 1)}
    nodes |= {one.name: one for one in special}
    return FleetState(NOW, nodes, "test", **more)


def work(job: str = "llm-70b", **more: Any) -> Work:
    plain = Work(
        f"ml/{job}-worker-0",
        uid=f"pod-{job}",
        job=job,
        ranks=8,
        gpus=8,
        job_gpus=512,
        since=NOW - 7200,
        saved=NOW - 1800,
        budgets=("ml/llm",),
    )
    return replace(plain, **more)


def trouble(name: str = "gpu-001", **more: Any) -> Trouble:
    """Return an Xid 79 of a minute ago, as sure as can be."""
    plain = Trouble(
        name,
        "xid-79",
        "hardware/gpu-lost",
        "reboot-node",
        gpu=Gpu(3, "GPU-3", "0000:3b:00.0"),
        cause="hardware",
        seen=NOW - 60,
        since=NOW - 60,
        boot="boot-1",
        summary="GPU 3 fell off the bus",
        evidence=(Evidence("e-1", "kernel", "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", NOW - 60),),
    )
    return replace(plain, **more)


def tried(name: str, verb: str, rung: str, fault: str, ago: float, status: str = "done", action: str = "") -> list[Entry]:
    """Return the two entries of an action that began `ago` seconds back and ended a minute later (empty status: it goes on)."""
    action = action or f"past-{next(_number)}"
    begun = [Entry("intent", name, verb, rung, fault, NOW - ago, action=action)]
    return begun + ([Entry("outcome", name, verb, rung, fault, NOW - ago + 60, status, action)] if status else [])


def verbs_of(plan_actions: tuple[Action, ...], name: str) -> list[str]:
    return [one.verb for one in plan_actions if one.node == name]
