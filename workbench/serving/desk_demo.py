"""
Turn the demonstration's fleet into plans that wait, a journal of repairs that were done, and a controller that does what is approved, in memory.

The nodes, faults and jobs are those that the fleet's page shows; the machines are `workbench.testing.fleet`, so every step is a real step of the
engine on a played fleet.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from workbench.errors import ConfigError
from workbench.model import Gpu
from workbench.remediation.engine import apply, resume
from workbench.remediation.journal import Journal, JournalBusy
from workbench.remediation.loop import Loop
from workbench.remediation.model import Evidence, Plan, Trouble
from workbench.remediation.planner import make_plan
from workbench.remediation.policy import Limits, Policy
from workbench.remediation.proposing import parts
from workbench.remediation.queue import Queue
from workbench.remediation.troubles import Checked
from workbench.serving.desk import Desk
from workbench.serving.roles import Roles
from workbench.site.demo import Played, fleet_world
from workbench.site.demo_world import World
from workbench.site.live import JournalReader
from workbench.sources.contract import Deadline
from workbench.testing.fleet import Fleet
from workbench.testing.fleet_executor import FleetExecutor

__all__ = ["Stage", "demo_desk"]

_SEED = 7  # of `workbench.site.demo`
_WIDE = Limits(out_count=50, out_percent=100.0, pool_count=50, pool_percent=100.0, zone_count=50, hour_count=50, breaker_count=500,
               breaker_percent=100.0, plan_lives=12 * 3600.0)  # fmt: skip
_FIXED = ("fix-platform", "none")


class _Played:
    """The fleet, its controller and what its checks say."""

    def __init__(self, folder: Path, gpus: int) -> None:
        made = fleet_world(gpus, _SEED)
        self.now = time.time()
        self.ago = 0.0  # seconds: what was done before the demonstration began
        self.fleet = fleet = Fleet(_SEED, start=self.now)
        self.troubles = _build(fleet, made, self.now)
        self.queue = Queue(folder / "queue", clock=self.clock)
        self.journal = folder / "journal.jsonl"
        self.policy = Policy(limits=_WIDE, stop_file=str(folder / "stop"), origin="demonstration")
        self.executor = FleetExecutor(fleet, "demonstration")
        self._told = JournalReader(self.journal)
        self.state = Played()

    def seen(self, now: float) -> tuple[list[Trouble], list[Checked]]:
        """What checks say: the faults that machines still have."""
        return [one for one in self.troubles if one.node in self.fleet.nodes and self.fleet.nodes[one.node].faults], []

    def clock(self) -> float:
        return time.time() - self.ago

    def common(self) -> dict[str, Any]:
        return {"clock": self.clock, "steady": self.fleet.steady, "sleep": self.fleet.sleep}

    def history(self) -> None:
        """Do two plans as if a person had approved them, so that there is something to look at and to undo."""
        sick = [
            one for one in self.troubles if one.action in ("reset-gpu", "drain", "reboot-node") and one.severity == "critical"
        ]
        plan = make_plan(sick[-2:], self.fleet.look(), policy=self.policy, verbs=self.executor.verbs - {"ticket", "page"})
        for number, part in enumerate(parts(plan)):
            self.ago = (9.5 - 6 * number) * 3600.0
            one = self.queue.propose(part, by="gpu-workbench", source="loop")
            assert one is not None
            self.ago -= 430.0
            self.queue.approve(one.id, one.digest, by="maria", reason=("seen in the rack too", "nothing runs there")[number % 2])
            self.ago -= 41.0
            self.queue.begin(one.id, by="gpu-workbench")
            self._do(part)
            self.ago -= 600.0
            self.queue.end(one.id, "applied", by="gpu-workbench", ended={"done": len(part.actions)})
        self.ago = 2.2 * 3600.0
        rest = [one for one in sick[:-2] if one.severity == "critical"][-1:]
        for part in parts(make_plan(rest, self.fleet.look(), policy=self.policy, verbs=self.executor.verbs)):
            one = self.queue.propose(part, by="gpu-workbench")
            assert one is not None
            self.ago -= 1260.0
            self.queue.reject(
                one.id, one.digest, by="otto", reason="somebody of the vendor is at the rack until noon; ask again then"
            )

    def _do(self, plan: Plan) -> None:
        with Journal(self.journal, by="gpu-workbench", clock=self.clock) as journal:
            apply(plan, self.executor, journal, approved=True, **self.common())

    def turn(self) -> None:
        """Do what was approved, look, and propose what is called for."""
        with Journal(self.journal, by="gpu-workbench", clock=self.clock) as journal:
            resume(journal, self.executor, **self.common())
            loop = Loop(self.executor, journal, self.policy, seen=(self.seen,), queue=self.queue, **self.common())
            loop.once()
        self.look()

    def look(self) -> None:
        """Keep, for the fleet's page, what is done so far; other threads read it."""
        machines = {one.node: self.fleet.nodes.get(one.node) for one in self.troubles}
        left = {(name, code) for name, one in machines.items() if one is not None for code in one.faults}
        self.state = Played(
            frozenset((one.node, one.code) for one in self.troubles) - left,
            {name: one.owner if one is not None and not one.schedulable else "" for name, one in machines.items()},
            tuple(self._told.read(Deadline(1.0)).actions),
        )


def demo_desk(folder: Path, roles: Roles, *, gpus: int = 1024) -> Stage:
    """
    Return the desk of the demonstration, filled; its `played` tells the fleet's page what was done to its nodes.

    Parameters
    ----------
    folder : Path
        One that goes with the demonstration.
    roles : Roles
    gpus : int
        Of the fleet that is played.

    Raises
    ------
    ConfigError
        Another demonstration plays in this folder: two would do each other's plans.
    """
    lock = _alone(folder)
    played = _Played(folder, gpus)
    played.history()
    played.ago = 17 * 60.0
    played.turn()
    played.ago = 0.0
    desk = Stage(played.queue, played.journal, roles)
    desk.lock, desk.played = lock, lambda: played.state

    def worker() -> None:
        if played.queue.approved():  # nothing else happens to a played fleet
            with contextlib.suppress(JournalBusy):  # somebody's word is being written down: the next look
                played.turn()
            desk.look()

    desk.worker = worker
    desk.start()
    return desk


class Stage(Desk):
    """A desk with a folder of its own for as long as it plays."""

    lock: IO[str]
    played: Callable[[], Played]

    def stop(self) -> None:
        """End the thread, and let another one play here."""
        super().stop()
        self.lock.close()


def _alone(folder: Path) -> IO[str]:
    """Return what holds a folder until it is closed, or the process is gone."""
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / "playing").open("a", encoding="ascii")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise ConfigError(
            f"another demonstration plays in {folder.parent} already",
            hint="give this one an inbox of its own with --inbox, or none at all",
        ) from error
    return file


def _build(fleet: Fleet, made: World, now: float) -> list[Trouble]:
    """Put the world's nodes into the fleet, with work and faults; return what checks say of them."""
    ranks: dict[str, int] = {}
    for number, name in enumerate(made.names):
        model = made.models[number]
        machine = fleet.add(name, pool=made.pools[number], zone=made.zones[number], environment="metal", gpus=model.each)
        machine.boot_takes = 1.0
        if job := made.job_of.get(name):
            told = made.jobs[job]
            total = sum(made.models[made.names.index(one)].each for one in told["nodes"])
            ranks[job] = ranks.get(job, 0) + model.each
            fleet.run(
                name, f"{told['team']}/{job}-{told['nodes'].index(name)}", job=job, ranks=model.each, gpus=model.each, job_gpus=total,
                since=now - 3600 * told["hours"], saved=now - 60.0 * (11 + number % 37),
            )  # fmt: skip
    troubles: list[Trouble] = []
    for name, rows in made.troubles.items():
        node = made.names.index(name)
        for trouble, index, hours in rows:
            if trouble.action in _FIXED or name in made.silent:
                continue
            gpu = None if index is None else Gpu(index, made.uuid(node, index), made.pci(index))
            seen = max(now - 3600 * hours, fleet.nodes[name].booted + 60.0, now - 4 * 3600)
            text = (trouble.kernel or trouble.message).format(gpu=index, pci=made.pci(index or 0).removesuffix(".0"))
            fleet.break_down(name, trouble.code, ("reset-gpu", "reboot", "replace"))
            troubles.append(
                Trouble(
                    name, trouble.code, trouble.cls, trouble.action, trouble.status, gpu=gpu, cause=trouble.cls.split("/")[0],
                    seen=seen, since=seen, boot=fleet.nodes[name].boot, job=made.job_of.get(name, ""),
                    summary=trouble.message.format(gpu=index),
                    evidence=(Evidence(f"{name}-{trouble.code}", f"check {trouble.check}", text, seen, "kernel"),),
                )
            )  # fmt: skip
    return troubles
