"""
Turn a seed into a fleet that breaks, a controller that mends it, everything that can go wrong between any two calls, and what must hold.

`Sequence(seed).run()` returns the broken invariants, empty when all held. The same seed is the same sequence. As a program it runs many, each
second one through the product's own loop, with a queue and people who decide (`tests.remediation.chaos_turns`):

    python -m tests.remediation.chaos --sequences 100000 --seed 0 --processes 2
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from tests.remediation.invariants import CALL, Invariants
from workbench.errors import WorkbenchError
from workbench.model import Gpu
from workbench.remediation import engine
from workbench.remediation.executors.contract import Deadline
from workbench.remediation.journal import Entry, Journal
from workbench.remediation.ladder import Ladders, ladders
from workbench.remediation.model import Plan, Trouble
from workbench.remediation.planner import make_plan
from workbench.remediation.policy import Auto, Limits, Policy
from workbench.remediation.recheck import Recheck
from workbench.remediation.troubles import Checked
from workbench.testing.fleet import Crash, Fleet
from workbench.testing.fleet_executor import FAULTS, FleetExecutor, FleetLock

MEMORY = Path("/dev/shm")  # a queue is on the disk when its call returns, and what these need is that and not a disk
_AGES = (*([0.0] * 9), 60.0, 3000.0, 30000.0)  # seconds
# code, class, action, cause, what mends it
KINDS = (
    ("xid-95", "hardware/gpu-memory", "reset-gpu", "hardware", ("reset-gpu", "reboot", "replace")),
    ("xid-79", "hardware/gpu-lost", "reboot-node", "hardware", ("reboot", "replace")),
    ("gsp-timeout", "driver/hang", "reboot-node", "driver", ("reboot", "replace")),
    ("nvlink-down", "hardware/nvlink", "drain", "hardware", ("reset-gpu", "reboot")),
    ("row-remap-failed", "hardware/gpu-memory", "replace-node", "hardware", ("replace",)),
    ("mount-missing", "platform/config", "fix-platform", "platform", ()),
    ("sdc", "hardware/sdc", "drain", "hardware", ("replace",)),
    ("task-died", "driver/other", "restart-task", "driver", ("restart-task", "reboot")),
)


def _tainting() -> Ladders:
    """Return the shipped ladders as a site has them that taints its nodes where we cordon them."""
    shipped = ladders()
    rungs = {
        name: replace(one, steps=tuple("taint" if step == "cordon" else step for step in one.steps))
        for name, one in shipped.rungs.items()
    }
    return replace(shipped, rungs=rungs)


TAINTING = _tainting()


class CrashingJournal(Journal):
    """A journal whose controller dies just before or just after a chosen write is on the disk, and whose disk may be slow."""

    writes = 0
    crash: tuple[int, str] | None = None
    disk: Callable[[], None] | None = None
    on_plan: Callable[[Plan], None] | None = None

    def record_plan(self, plan: Plan) -> Entry:
        if self.on_plan is not None:
            self.on_plan(plan)
        return super().record_plan(plan)

    def _write(self, kind: str, **fields: Any) -> Any:
        self.writes += 1
        if self.disk is not None:
            self.disk()
        due = self.crash is not None and self.writes >= self.crash[0]
        if due and self.crash is not None:
            side, self.crash = self.crash[1], None
            if side == "before":
                raise Crash("journal")
            super()._write(kind, **fields)
            raise Crash("journal")
        return super()._write(kind, **fields)


@dataclass
class Controller:
    """One process: its journal outlives it, its lock does not."""

    name: str
    journal: CrashingJournal
    lock: FleetLock
    executor: FleetExecutor
    inside: bool = False
    kept: Plan | None = None


class Sequence:
    """One fleet and what happens to it; all that is random comes from the seed."""

    watches: type[Invariants] = Invariants

    def __init__(self, seed: int, *, nodes: int = 0, rounds: int = 0) -> None:
        self.seed = seed
        self.random = random = Random(seed)
        self.fleet = fleet = Fleet(seed)
        self.jumps = random.random() < 0.2
        self.two = random.random() < 0.2
        self.alone = not self.two and random.random() < 0.3  # one controller without a lock
        self.lease = random.choice((20.0, 60.0))
        self.age = random.choice((0.0, 30.0))
        self.reports: list[Trouble] = []
        self.rate = random.choice((0.0, 0.0, 0.02, 0.1, 0.3))
        self.dead = (0.0, 0.0)  # from when to when the server answers nothing
        self.kill_at = float("inf")
        self.rounds = rounds or random.randint(2, 4)
        size = nodes or (random.randint(60, 200) if random.random() < 0.01 else random.randint(3, 12))
        self.policy = self._policy(size)
        self.flapping: dict[str, tuple[Any, ...]] = {}
        self.false: dict[str, tuple[Any, ...]] = {}
        self.since: dict[tuple[str, str], float] = {}
        self._build(size)
        self.invariants = self.watches(fleet, self.policy, exact=not self.two, original=size)
        fleet.on_effect = self.invariants.effect
        fleet.fault = self._fault
        self.crashes = random.choice((0, 0, 1, 1, 2, 3))
        self.more = more = Random(
            f"more {seed}"
        )  # what was added later: an old seed stays the sequence that it was, with this on top
        self.slow = more.choice((*([0.0] * 9), 3.0, 15.0, 45.0))  # seconds that a write of the journal takes now and then
        self.controllers = [self._controller(name) for name in ("A", "B")[: 2 if self.two else 1]]
        if more.random() < 0.1:
            fleet.later(more.uniform(0.0, 900.0), self._switch)
        self.stops = Random(f"stops {seed}")  # added later still
        if self.two and self.stops.random() < 0.5:
            fleet.pause = self._stands_still
        self.table = TAINTING if self.stops.random() < 0.1 else None
        self.log: list[str] = []

    # the world

    def _policy(self, size: int) -> Policy:
        random = self.random
        limits = Limits(
            out_count=random.randint(1, 6),
            out_percent=random.choice((10.0, 30.0, 60.0, 60.0)),
            pool_count=random.randint(1, 5),
            pool_percent=random.choice((20.0, 40.0, 60.0, 60.0)),
            zone_count=random.randint(1, 5),
            job_count=random.randint(1, 2),
            hour_count=random.randint(1, 5),
            final_hour_count=random.randint(1, 3),
            keep=1,
            keep_percent=random.choice((30.0, 50.0)),
            breaker_count=random.randint(2, 6),
            breaker_percent=random.choice((30.0, 60.0)),
            boot_grace=random.choice((0.0, 600.0)),
            plan_lives=random.choice((120.0, 1800.0, 7200.0)),
        )
        if random.random() < 0.4:  # one guard at a time: the others hold nothing back
            alone = random.choice(
                ("out_count", "pool_count", "zone_count", "job_count", "hour_count", "final_hour_count", "keep", "breaker_count")
            )
            wide = dict.fromkeys(
                ("out_count", "pool_count", "zone_count", "job_count", "hour_count", "final_hour_count", "breaker_count"), 1000
            )
            wide |= {"out_percent": 100.0, "pool_percent": 100.0, "keep": 0, "keep_percent": 0.0, "breaker_percent": 100.0}
            if alone == "keep":
                del wide["keep_percent"]
            limits = replace(limits, **{name: value for name, value in wide.items() if name != alone})
        return Policy(limits=limits, auto=(Auto("report", confidence=0.5, busy=True),), stop_file="")

    def _build(self, size: int) -> None:
        random, fleet = self.random, self.fleet
        cloud = random.random() < 0.6
        for number in range(size):
            name = f"n{number}"
            fleet.add(
                name,
                pool=random.choice(("a", "a", "b")),
                zone=random.choice(("", "z1", "z2")),
                environment="cloud" if cloud else "metal",
                claim=f"claim-{name}" if cloud else "",
                boot_takes=random.choice((60.0, 240.0, 240.0, 5000.0)),
                reset_works=random.random() < 0.7,
            )
        names = list(fleet.nodes)
        for number in range(random.randint(0, max(1, size // 3))):
            budgets = ("pdb",) if random.random() < 0.3 else ()
            if budgets:
                fleet.budgets["pdb"] = random.randint(0, 1)
            places = random.sample(names, min(len(names), random.randint(1, 4)))
            for place in places:
                fleet.run(
                    place,
                    f"ns/j{number}-{place}",
                    job=f"j{number}",
                    gpus=8,
                    job_gpus=8 * len(places),
                    budgets=budgets,
                    grace=random.choice((5.0, 30.0, 600.0)),
                    ignored=random.random() < 0.05,
                )
        for name in names:
            if random.random() < 0.08:
                fleet.hand(name, "cordon", random.choice(("somebody", "alice")))

        for name in random.sample(names, random.randint(0, max(1, size // 3))):
            kind = random.choice(KINDS)
            fleet.break_down(name, kind[0], kind[4])

    def _fault(self, call: str) -> str:
        random = self.random
        if self.dead[0] <= self.fleet.now < self.dead[1]:
            return "refused"
        if self.rate and random.random() < self.rate * (2.0 if call.startswith(("begin", "undo")) else 1.0):
            kind = random.choice(FAULTS)
            if kind.startswith("crash"):
                if not self.crashes:
                    return "lost"
                self.crashes -= 1
            return kind
        return ""

    def _controller(self, name: str, journal: CrashingJournal | None = None) -> Controller:
        fleet = self.fleet
        if journal is None:
            journal = CrashingJournal(None, clock=fleet.clock, by=name, steady=lambda: (fleet.steady(), "here"))
            journal.disk = self._disk
        return Controller(name, journal, FleetLock(fleet, fleet.new(name), self.lease), FleetExecutor(fleet, name))

    def _event(self) -> None:
        """Something happens that nobody asked for."""
        random, fleet = self.random, self.fleet
        name = random.choice(list(fleet.nodes) or ["n0"])
        what = random.random()
        self.invariants.moved()
        if what < 0.35:
            kind = random.choice(KINDS)
            fleet.break_down(name, kind[0], kind[4])
        elif what < 0.45:
            self.flapping[name] = random.choice(KINDS)
        elif what < 0.55:
            self.false[name] = random.choice(KINDS)
        elif what < 0.60:  # a mass of false alarms
            kind = random.choice(KINDS)
            self.false |= dict.fromkeys(fleet.nodes, kind)
        elif what < 0.63:
            self.false.clear()
        elif what < 0.70:
            fleet.go_down(name, random.choice((30.0, 300.0, 4000.0)))
        elif what < 0.90:
            fleet.hand(
                name, random.choice(("cordon", "uncordon", "take", "reboot", "delete")), random.choice(("somebody", "alice"))
            )
        elif what < 0.92:
            fleet.hidden = set(random.sample(sorted(fleet.nodes), min(2, len(fleet.nodes))))
            fleet.later(300.0, fleet.hidden.clear)
        elif what < 0.94:
            self.dead = (fleet.now, fleet.now + random.choice((60.0, 600.0)))
        elif what < 0.95:
            self._switch()
        elif "pdb" in fleet.budgets:
            fleet.budgets["pdb"] += random.choice((-1, 1))
            fleet._budgets_changed()
        if self.jumps and random.random() < 0.3:
            fleet.jump(random.choice((-7200.0, -600.0, 600.0, 7200.0, 100000.0)))
            self.invariants.jumped()

    def _switch(self) -> None:
        """Somebody throws the kill switch, and leaves it on."""
        self.kill_at = self.invariants.kill_at = min(self.kill_at, self.fleet.now)

    def _switch_off(self) -> None:
        self.kill_at = self.invariants.kill_at = float("inf")

    def _disk(self) -> None:
        """The disk of a journal takes its time; everything else goes on meanwhile."""
        if self.slow and self.more.random() < 0.3:
            self.fleet.sleep(self.more.uniform(0.0, self.slow))

    # what the checks say

    def _troubles(self) -> tuple[list[Trouble], list[Checked]]:
        random, fleet = self.random, self.fleet
        wrong: list[Trouble] = []
        checked = []
        for name, machine in fleet.nodes.items():
            kinds = [kind for kind in KINDS if kind[0] in machine.faults and random.random() < 0.9]
            if name in self.flapping and random.random() < 0.5:
                kinds.append(self.flapping[name])
            if name in self.false and random.random() < 0.9:
                kinds.append(self.false[name])
            for key in [key for key in self.since if key[0] == name and key[1] not in {kind[0] for kind in kinds}]:
                del self.since[key]
            if machine.ready and not kinds:
                checked.append(Checked(name, fleet.clock(), True, "idle"))
            for kind in kinds:
                age = random.choice(_AGES)
                since = self.since.setdefault((name, kind[0]), fleet.clock())
                unknown = random.random() < 0.1
                jobs = [one.job for one in machine.work.values() if one.job]
                trouble = Trouble(
                    name,
                    kind[0],
                    "" if unknown else kind[1],
                    "none" if unknown else kind[2],
                    severity="unknown" if unknown else random.choice(("critical", "critical", "warning")),
                    gpu=random.choice((None, Gpu(0, f"GPU-{name}"), Gpu(0, f"GPU-{name}"))),
                    cause="" if unknown else kind[3],
                    confidence=0.0 if unknown else random.choice((0.6, 0.9, 1.0, 1.0, 1.0)),
                    seen=None if random.random() < 0.03 else fleet.clock() - age,
                    since=min(since, fleet.clock() - age),
                    boot=random.choice(("", "", "boot-0")) if random.random() < 0.15 else machine.boot,
                    job=random.choice(jobs) if jobs and random.random() < 0.5 else "",
                    retry=random.choice(("", "exclude-node")),
                    summary=f"{kind[0]} on {name}",
                )
                wrong.append(trouble)
                self.invariants.observed(trouble, fleet.now - age)
        if self.reports and random.random() < 0.2:  # an old report comes once more
            wrong += random.sample(self.reports, min(2, len(self.reports)))
        self.reports += wrong[:2]
        random.shuffle(wrong)
        return wrong, checked

    # the controller

    def _killed(self) -> str:
        return "the switch is on" if self.fleet.now >= self.kill_at else ""

    def act(self, one: Controller) -> None:
        """Let a controller do one round: resume, look, plan, apply; perhaps it dies on the way."""
        random, fleet = self.random, self.fleet
        if one.inside:
            return
        one.inside = True
        common: dict[str, Any] = {
            "lock": None if self.alone else one.lock,
            "kill": self._killed,
            "clock": fleet.clock,
            "steady": fleet.steady,
            "sleep": fleet.sleep,
            "call": CALL,
        }
        try:
            if self.crashes and random.random() < 0.5:
                self.crashes -= 1
                one.journal.crash = (one.journal.writes + random.randint(1, 12), random.choice(("before", "after")))
            if not self.alone and not one.lock.held() and not engine.enter(one.lock, fleet.sleep, call=CALL):
                return
            engine.resume(one.journal, one.executor, wait=random.choice((0.0, 60.0, math.inf)), **common)
            state = one.executor.fleet(Deadline(CALL, fleet.steady))
            wrong, checked = self._troubles()
            plan = make_plan(wrong, state, past=one.journal.past(), policy=self.policy, checked=checked, table=self.table)
            if one.kept is not None and random.random() < 0.3:
                plan = one.kept  # approved long after it was made
            one.kept = plan
            self.invariants.planned(plan, one.name)
            if random.random() < 0.2:
                fleet.sleep(random.choice((30.0, 900.0, 4000.0)))
            only = [random.choice(plan.actions).id] if plan.actions and random.random() < 0.05 else None
            wait = random.choice((60.0, 600.0, math.inf))
            check = Recheck(plan, one.executor, self.policy, clock=fleet.clock, steady=fleet.steady, age=self.age)
            outcomes = engine.apply(
                plan, one.executor, one.journal, check=check, only=only, tries=random.choice((2, 5)), wait=wait, **common
            )
            self.invariants.ended(outcomes)
            if random.random() < 0.1:
                engine.undo(plan, one.executor, one.journal, **common)
            if random.random() < 0.3:
                one.lock.release()
        except Crash:
            fresh = self._controller(one.name, one.journal)
            one.lock, one.executor = fresh.lock, fresh.executor
        except WorkbenchError:
            pass  # the fleet could not be seen
        finally:
            one.inside, one.journal.crash = False, None

    def _stands_still(self, by: str) -> None:
        """A controller freezes between what it decided and its request, for long enough that the other may take over and act."""
        stops = self.stops
        if stops.random() > 0.15:
            return
        self.fleet.sleep(stops.choice((5.0, 70.0, 200.0)))
        other = next(one for one in self.controllers if one.name != by)
        if not other.inside:
            self.act(other)
            self.invariants.counts["freeze"] += 1

    def _other(self, one: Controller) -> None:
        """The first controller freezes (a long pause of its process), and the second has its turn."""
        if self.fleet.changing:  # what is sent is on its way, which takes no longer than `CALL`: no new holder acts before that
            self.fleet.later(1.0, lambda: self._other(one))
            return
        self.fleet.sleep(self.random.choice((0.0, 120.0)))
        self.act(one)

    def run(self) -> list[str]:
        """Return what was broken."""
        random, fleet = self.random, self.fleet
        for _ in range(self.rounds):
            for _ in range(random.randint(0, 3)):
                fleet.later(random.uniform(0.0, 300.0), self._event)
            if random.random() < 0.5:
                self._event()
            if self.two and random.random() < 0.6:
                fleet.later(random.uniform(0.0, 200.0), lambda: self._other(self.controllers[1]))
            self.act(self.controllers[0])
            self.invariants.between(one.journal for one in self.controllers)
            fleet.sleep(random.choice((1.0, 10.0, 60.0, 1000.0, 4000.0)))
            if self.invariants.broken:
                return self.invariants.broken
        self._settle()
        return self.invariants.broken

    def _settle(self) -> None:
        """Everything answers again; every controller starts anew and finds out what became of what it had begun."""
        fleet = self.fleet
        fleet.fault = None
        fleet.pause = None  # nor does a controller stand still any more: its page would wait for a third turn
        fleet.sleep(600.0)
        fleet._due.clear()
        self._switch_off()  # only when nothing can happen any more: somebody may throw it within the last wait
        fleet.lease = ("", fleet.lease[1], 0.0)
        for _ in range(2):  # a page that failed is tried again after a quarter of an hour
            for one in self.controllers:
                common = {"clock": fleet.clock, "steady": fleet.steady, "sleep": fleet.sleep, "call": CALL}
                engine.resume(one.journal, one.executor, kill=self._killed, **common)
            fleet.sleep(1000.0)
        self.invariants.final([one.journal for one in self.controllers])


def one(seed: int) -> tuple[int, list[str], dict[str, int]]:
    """
    Run one sequence; return its seed, what was broken and what happened.

    Of an even seed it is a `Sequence`, of an odd one the product's own loop with a queue and people: `tests.remediation.chaos_turns.Turns`.
    """
    from tests.remediation.chaos_turns import Turns

    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        sequence = Turns(seed, Path(folder)) if seed % 2 else Sequence(seed)
        try:
            broken = sequence.run()
        except (Exception, Crash) as error:
            broken = [f"{type(error).__name__}: {error}"]
    return seed, broken, sequence.invariants.counts


def main() -> int:
    """Run many sequences over all cores."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    words.add_argument("--sequences", type=int, default=100_000)
    words.add_argument("--seed", type=int, default=0, help="the first; the others follow it")
    words.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    given = words.parse_args()
    began, bad = time.monotonic(), 0
    counts: Counter[str] = Counter()
    print(f"seeds {given.seed} to {given.seed + given.sequences - 1}, {given.processes} processes", flush=True)
    with multiprocessing.Pool(given.processes) as pool:
        seeds = range(given.seed, given.seed + given.sequences)
        for number, (seed, broken, seen) in enumerate(pool.imap(one, seeds, chunksize=100), 1):
            counts.update(seen)
            if broken:
                bad += 1
                print(f"seed {seed}: {broken[0]}", flush=True)
                if bad >= 20:
                    print(f"20 are broken; go on with --seed {seed + 1}", flush=True)
                    break
            if number % 10_000 == 0:
                print(f"{number} sequences, up to seed {seed}, {bad} broken, {time.monotonic() - began:.0f} s", flush=True)
    took = time.monotonic() - began
    print(f"{number} sequences in {took:.0f} s ({1000 * took * given.processes / number:.1f} ms each and process), {bad} broken")
    print("  ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
