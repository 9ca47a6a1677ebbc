"""Turn a snapshot into a poller that tests move by hand, and a fleet with hostile words in every place where words come from elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from workbench.model import Condition, Event, Gpu
from workbench.site.assemble import assemble
from workbench.site.demo import Demo
from workbench.site.model import Heard, Snapshot
from workbench.site.parts import NodeSeen, Part

NOW = 1_796_000_000.0
EVIL = "<script>window.evil=1</script><img src=x onerror=window.evil=2>\x1b[31mred\x1b[0m \u202egnp.exe"


class Still:
    """What views read of a poller; `show` puts another snapshot there."""

    def __init__(self, snapshot: Snapshot, version: int = 1) -> None:
        self.state: tuple[int, Snapshot] = (version, snapshot)
        self.watched: list[str] = []

    @property
    def snapshot(self) -> Snapshot:
        return self.state[1]

    @property
    def version(self) -> int:
        return self.state[0]

    def show(self, snapshot: Snapshot) -> None:
        self.state = self.state[0] + 1, snapshot

    def watch(self, node: str) -> None:
        self.watched.append(node)


def demo(gpus: int = 1024, now: float = NOW, **more: Any) -> Snapshot:
    """Return the demo fleet at a moment."""
    return Demo(gpus, **more).at(now)


def hostile() -> Snapshot:
    """Return a fleet of one node whose every text is what an attacker would have written."""
    seen = NodeSeen(
        "gpu-1", EVIL, EVIL, EVIL, gpus=2, usable=2, ready=True, schedulable=False, held_by=EVIL, reason=EVIL, state=EVIL, fit=False, checked=NOW - 60
    )  # fmt: skip
    finding = {
        "node": "gpu-1", "gpu_index": 0, "check": EVIL, "code": EVIL, "status": "critical", "class": EVIL, "message": EVIL, "action": EVIL,
        "time": NOW, "since": NOW - 60, "source": EVIL,
    }  # fmt: skip
    work = {
        "node": "gpu-1",
        "job": EVIL,
        "namespace": EVIL,
        "user": EVIL,
        "team": EVIL,
        "gpus": 2,
        "ranks": 2,
        "start": NOW - 100,
    }
    incident = {
        "id": EVIL, "time": NOW - 50, "node": "gpu-1", "gpu_index": 0, "job": EVIL, "cause": "hardware", "class": EVIL, "at_fault": "gpu",
        "confidence": 0.9, "state": "new", "summary": EVIL,
    }  # fmt: skip
    act = {
        "time": NOW - 40,
        "node": "gpu-1",
        "plan": EVIL,
        "action": EVIL,
        "verb": EVIL,
        "rung": EVIL,
        "status": "done",
        "detail": EVIL,
        "by": EVIL,
    }
    part = Part(
        "kubernetes", NOW, "partial", EVIL, EVIL, nodes=(seen,), findings=(finding,), work=(work,), incidents=(incident,), actions=(act,),
        conditions=(Condition(EVIL, EVIL, "gpu-1", "condition", True, NOW - 60, EVIL, EVIL),),
        gpus=({"node": "gpu-1", "gpu_index": 0, "gpu_uuid": EVIL, "pci": EVIL, "sku": EVIL, "judged": True},),
        events=(Event("xid-79", "kernel", EVIL, NOW - 30, node="gpu-1", gpu=Gpu(0)),), queries={"xid": {"promql": EVIL}, "conditions": {"kubectl": EVIL}},
    )  # fmt: skip
    return assemble([part], NOW, name=EVIL, period=30.0, data={"asked": 1})


def unwell(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot in which one source is stale and one failed."""
    heard = (
        Heard("prometheus", "stale", NOW - 400, "it does not answer", "is it up?"),
        Heard("slurm", "failed", None, "refused"),
    )
    return replace(snapshot, heard=heard)
