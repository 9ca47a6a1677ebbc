"""Turn a fleet's description into its history, event by event in virtual time, and hand out its account row by row."""

from __future__ import annotations

import heapq
import itertools
import random
import zlib
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workbench.simulation.account import Account
from workbench.simulation.nodes import Machine, Machines
from workbench.simulation.spec import Fault, Spec, faults
from workbench.simulation.work import Arrivals, Attempt, Job, spent, steps_end

__all__ = ["Result", "Sink", "Truth", "simulate"]

Sink = Callable[[str, Sequence[Mapping[str, Any]]], object]

# outages are nobody's node; what they are called when they are named
_STORAGE = Fault("platform/storage", 0.0, "job", 1.0, "crash", 0.0, 1.0, "", 0.0, 1.0, "")
_LEAF = Fault("platform/network", 0.0, "node", 1.0, "hang", 0.0, 1.0, "", 0.0, 1.0, "")
_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Truth:
    """
    What really happened, for whoever judges a judge: never part of the account.

    Attributes
    ----------
    faults : list of dict
        ``time`` (s), ``cls``, ``node``, ``gpu``, ``jobs`` (ids that died of it), ``lasting``.
    lemons : tuple of str
        Nodes whose rate is `faults.lemon_factor` times the fleet's.
    """

    faults: list[dict[str, Any]] = field(default_factory=list, repr=False)
    lemons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """
    A simulated time in figures.

    Attributes
    ----------
    jobs : Counter
        By state, and ``started``.
    causes : Counter
        Attempts that failed, by true cause.
    seconds : dict
        GPU-seconds of all jobs by phase (`workbench.fleet.tables.PHASES`).
    capacity, held : float
        GPU-seconds of all nodes but spares, and those that jobs held.
    restarts, repairs : int
    busiest_hour : int
        The most restarts within an hour.
    truth : Truth
    """

    jobs: Counter[str]
    causes: Counter[str]
    seconds: dict[str, float]
    capacity: float
    held: float
    restarts: int
    repairs: int
    busiest_hour: int
    truth: Truth

    @property
    def goodput(self) -> float | None:
        """Productive GPU time over held GPU time; None when nothing was held."""
        return self.seconds.get("step", 0.0) / self.held if self.held else None


def simulate(
    spec: Spec, sink: Sink | None = None, *, days: float | None = None, tick: Callable[[float], object] | None = None
) -> Result:
    """
    Run a fleet for its days.

    Parameters
    ----------
    spec : Spec
        What it is.
    sink : callable, optional
        Given a table's name (`workbench.fleet.tables`) and up to 5,000 rows at a time, as they come about.
    days : float, optional
        Instead of the spec's.
    tick : callable, optional
        Told the share of the time that is over, once a virtual day.

    Returns
    -------
    Result

    Notes
    -----
    Faults, jobs and luck are drawn from streams of their own, each by the spec's seed: two policies meet the same jobs at the same times and
    the same faults of the same nodes. What differs afterwards is what the policy changed.
    """
    return _Run(spec, sink, days if days is not None else float(spec["days"]), tick).run()


class _Run:
    def __init__(self, spec: Spec, sink: Sink | None, days: float, tick: Callable[[float], object] | None) -> None:
        self.spec, self.tick = spec, tick
        self.begin = float(spec["begin"])
        self.until = self.begin + days * _DAY
        self.now = self.begin
        seed = int(spec["seed"])
        self.draws = random.Random(f"{seed} arrivals")
        self.arrivals = Arrivals(spec, random.Random(f"{seed} jobs"))
        self.luck = random.Random(f"{seed} luck")
        count, spares = int(spec["nodes.count"]), int(spec["nodes.spares"])
        generator = np.random.default_rng([seed, 1])
        lemons = set(map(int, generator.permutation(count)[: round(spec["faults.lemons"] * count)]))
        self.machines = Machines(count, int(spec["nodes.gpus"]), self.begin, random.Random(f"{seed} places"), spares)
        self.truth = Truth(lemons=tuple(sorted(self.machines.all[index].name for index in lemons)))
        self.account = Account(spec, self.machines, sink, self.begin)
        self.order = itertools.count()
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.waiting: dict[int, deque[Job]] = {size.gpus: deque() for size in sorted(spec.mix, key=lambda size: -size.gpus)}
        self.running: dict[int, Attempt] = {}
        self.storage_until = 0.0
        self.restarts: deque[float] = deque()
        self.busiest = 0
        self.interval, self.save = float(spec["policy.interval"]), float(spec["policy.save"])
        self.rate = spec.jobs_per_day / _DAY
        # looked up a million times
        self.before_steps = float(spec["jobs.start"] + spec["jobs.init"])
        self.restore, self.check = float(spec["jobs.restore"]), float(spec["policy.check"])
        self._draw_faults(generator, count, lemons, days)

    # ---- the clock ------------------------------------------------------------------------------------------------------------------

    def at(self, time: float, what: Callable[..., None], *given: Any) -> None:
        if time <= self.until:
            heapq.heappush(self.events, (time, next(self.order), what, given))

    def run(self) -> Result:
        self._next_arrival()
        day = self.begin
        while self.events:
            self.now, _, what, given = heapq.heappop(self.events)
            if self.tick is not None and self.now >= day:
                self.tick((self.now - self.begin) / (self.until - self.begin))
                day += _DAY
            what(*given)
        self.now = self.until
        for attempt in list(self.running.values()):
            self.account.still(attempt, self.now)
        for queue in self.waiting.values():
            for job in queue:
                self.account.job(job, "pending", None, "", "")
        self.account.close(self.now)
        return Result(
            jobs=self.account.states, causes=self.account.causes, seconds=dict(self.account.seconds), capacity=self.account.capacity,
            held=self.account.held, restarts=self.account.restarts, repairs=self.account.repairs, busiest_hour=self.busiest, truth=self.truth,
        )  # fmt: skip

    # ---- what comes from outside ----------------------------------------------------------------------------------------------------

    def _draw_faults(self, generator: np.random.Generator, count: int, lemons: set[int], days: float) -> None:
        spec = self.spec
        spread = float(spec["faults.spread"])
        factors = generator.gamma(1 / spread, spread, count) if spread > 0 else np.ones(count)
        for index in lemons:
            factors[index] = spec["faults.lemon_factor"]
        rates = factors * spec["faults.per_1000_node_days"] / 1000
        kinds = faults()
        shares = np.array([kind.share for kind in kinds])
        for index, many in enumerate(generator.poisson(rates * days)):
            for time, kind, gpu in zip(
                generator.uniform(self.begin, self.until, many),
                generator.choice(len(kinds), many, p=shares / shares.sum()),
                generator.integers(0, self.machines.gpus, many),
                strict=True,
            ):
                self.at(float(time), self._fault, self.machines.all[index], kinds[int(kind)], int(gpu))
        for key, what in (("storage", self._storage), ("leaf", self._leaf)):
            for time, where in generator.uniform(0, 1, (generator.poisson(spec[f"faults.{key}_per_day"] * days), 2)):
                self.at(self.begin + float(time) * (self.until - self.begin), what, float(where))

    def _next_arrival(self) -> None:
        self.at(self.now + self.draws.expovariate(self.rate), self._arrival)

    def _arrival(self) -> None:
        job = self.arrivals.draw(self.now)
        job.queued = job.last_end = self.now
        self.waiting[job.gpus].append(job)
        self._next_arrival()
        self._schedule(job.gpus)

    def _fault(self, machine: Machine, kind: Fault, gpu: int) -> None:
        if machine.state != "usable" and not machine.jobs:
            return  # what is out of service is not in use
        lasting = self.luck.random() < kind.lasts
        if lasting:
            machine.bad, machine.gpu = kind, gpu
        hit: list[Attempt] = []
        for job in self._whose(machine, kind, gpu):
            attempt = self.running.get(job)
            if attempt is None or attempt.died is not None:
                continue
            if kind.told_by == "slow":
                self._slow(attempt, machine, kind)
            elif self.luck.random() < kind.kills:
                hit.append(attempt)
        self.truth.faults.append(
            {
                "time": self.now, "cls": kind.cls, "node": machine.name, "gpu": gpu if kind.scope == "gpu" else None,
                "jobs": [attempt.job.id for attempt in hit], "lasting": lasting,
            }
        )  # fmt: skip
        for attempt in hit:
            self._die(attempt, kind, machine, gpu)
        if kind.told_by == "silence":
            self._out(machine, kind, self.now, kind.hours * 3600, fixes=True)

    def _whose(self, machine: Machine, kind: Fault, gpu: int) -> list[int]:
        if kind.scope != "gpu":
            return list(machine.jobs)
        slot = 0
        for job, many in machine.jobs.items():
            slot += many
            if gpu < slot:
                return [job]
        return []

    def _storage(self, where: float) -> None:
        self.storage_until = self.now + float(self.spec["faults.storage_lasts"])
        draw = random.Random(f"{self.spec['seed']} storage {where}")
        hit = [one for one in self.running.values() if one.died is None and draw.random() < self.spec["faults.storage_reach"]]
        self._outage(_STORAGE, hit, None)

    def _leaf(self, where: float) -> None:
        size = int(self.spec["faults.leaf_nodes"])
        first = int(where * len(self.machines.all)) // size * size
        nodes = self.machines.all[first : first + size]
        hit = {job: self.running[job] for machine in nodes for job in machine.jobs if self.running[job].died is None}
        self._outage(_LEAF, list(hit.values()), nodes)
        for machine in nodes:
            self._out(machine, _LEAF, self.now, float(self.spec["faults.leaf_lasts"]), fixes=False)

    def _outage(self, kind: Fault, hit: list[Attempt], nodes: list[Machine] | None) -> None:
        names = [machine.name for machine in nodes] if nodes else None
        self.truth.faults.append(
            {"time": self.now, "cls": kind.cls, "node": names, "gpu": None, "jobs": [one.job.id for one in hit], "lasting": False}
        )
        for attempt in hit:
            self._die(attempt, kind, None, 0)

    # ---- a job's life ---------------------------------------------------------------------------------------------------------------

    def _schedule(self, only: int | None = None) -> None:
        """Start what fits: the oldest of each size, large ones first; what does not fit is passed by smaller ones."""
        whole, idle = self.machines.gpus, self.machines.idle
        for gpus, queue in self.waiting.items() if only is None else ((only, self.waiting[only]),):
            while queue:
                if gpus >= whole and gpus > len(idle) * whole:
                    break  # two of three times; looked at here, since asking costs more than the answer
                if not self._start(queue[0], gpus):
                    break
                queue.popleft()

    def _start(self, job: Job, gpus: int) -> bool:
        excluded = {name for name, one in job.excluded.items() if one[0].mended == one[1]} if job.excluded else ()
        machines = self.machines.take(job.id, gpus, excluded)
        if machines is None:
            return False
        bad = [machine for machine in machines if machine.bad is not None]
        caught = [machine for machine in bad if self.luck.random() < self.check]
        if caught:
            for machine in machines:
                self.machines.give(machine, job.id)
            for machine in caught:
                self.account.finding(machine, self.now)
                self._mend(machine)
            return self._start(job, gpus)
        job.attempts += 1
        restore = self.restore if job.saved else 0.0
        steps_from = self.now + self.before_steps + restore
        attempt = self.running[job.id] = Attempt(job, job.attempts, self.now, steps_from, restore, machines)
        if job.started is None:
            job.started = self.now
        self.at(self._planned_end(attempt), self._planned, attempt, attempt.version)
        for machine in bad:
            kind = machine.bad
            assert kind is not None
            if kind.told_by == "slow":
                self._slow(attempt, machine, kind)
            elif kind.scope != "gpu" or job.id in self._whose(machine, kind, machine.gpu):
                self.at(steps_from + self.luck.expovariate(1 / 600.0), self._meets, attempt, attempt.version, machine)
        if self.now < self.storage_until:
            self.at(steps_from, self._no_storage, attempt, attempt.version)
        return True

    def _planned_end(self, attempt: Attempt) -> float:
        job = attempt.job
        if job.end == "completed":
            return steps_end(attempt, job.need, self.interval, self.save) + self.save * attempt.slowdown
        return steps_end(attempt, max(job.end_at, job.saved), self.interval, self.save)

    def _planned(self, attempt: Attempt, version: int) -> None:
        if attempt.version != version or attempt.died is not None:
            return
        job = attempt.job
        if job.end == "completed":
            self._ended(attempt, "completed", "", "")
        elif job.end == "cancelled":
            self._ended(attempt, "cancelled", "", "")
        elif job.end == "preempted":
            job.end = "completed"
            self._ended(attempt, "preempted", "platform", "platform/preemption")
        else:
            self._die(attempt, None, None, 0)

    def _meets(self, attempt: Attempt, version: int, machine: Machine) -> None:
        if attempt.version == version and attempt.died is None and machine.bad is not None:
            self._die(attempt, machine.bad, machine, machine.gpu)

    def _no_storage(self, attempt: Attempt, version: int) -> None:
        if attempt.version == version and attempt.died is None and self.now < self.storage_until:
            self._die(attempt, _STORAGE, None, 0)

    def _slow(self, attempt: Attempt, machine: Machine, kind: Fault) -> None:
        if attempt.slow_since is not None:
            return
        attempt.slow_since, attempt.slowdown = max(self.now, attempt.steps_from), kind.slowdown
        attempt.fault, attempt.at = kind, machine
        attempt.version += 1
        self.at(self._planned_end(attempt), self._planned, attempt, attempt.version)
        self.at(attempt.slow_since + self.spec["policy.detect_slow"], self._found_slow, attempt, attempt.version, machine)

    def _found_slow(self, attempt: Attempt, version: int, machine: Machine) -> None:
        if attempt.version == version and attempt.died is None and machine.bad is not None:
            self._die(attempt, machine.bad, machine, machine.gpu, known=True)

    def _die(self, attempt: Attempt, kind: Fault | None, machine: Machine | None, gpu: int, *, known: bool = False) -> None:
        """An attempt stops making steps; it is known a while later."""
        attempt.version += 1
        attempt.died, attempt.fault, attempt.at, attempt.gpu = self.now, kind, machine, gpu
        told_by = "hang" if kind is None and attempt.job.cls == "user/hang" else "crash" if kind is None else kind.told_by
        attempt.detected = self.now if known else self.now + self.spec[f"policy.detect_{told_by}"]
        self.at(attempt.detected + self.spec["policy.diagnose"], self._known, attempt)

    def _known(self, attempt: Attempt) -> None:
        """The verdict is there: the attempt ends, and what is to be done about it begins."""
        job, kind, machine = attempt.job, attempt.fault, attempt.at
        named = self._named(attempt)
        true = job.cls if kind is None else kind.cls
        cls = true if named else "unknown"
        if named and machine is not None:
            self.account.blame(attempt, machine, self.now)
            if self.spec["policy.exclude"]:
                job.excluded[machine.name] = (machine, machine.mended)
        self._ended(attempt, "failed", cls.split("/")[0], cls)
        if named and machine is not None and kind is not None and kind.rung:
            self._mend(machine)

    def _named(self, attempt: Attempt) -> bool:
        # the same for each policy, and without the price of seeding a generator
        draw = zlib.crc32(f"{self.spec['seed']} {attempt.job.id} {attempt.number}".encode()) / 2**32
        return bool(draw < self.spec["policy.named"])

    def _ended(self, attempt: Attempt, state: str, cause: str, cls: str) -> None:
        job = attempt.job
        stopped = attempt.died if attempt.died is not None else self.now
        used = spent(attempt, stopped, self.interval, self.save, completed=state == "completed")
        if stopped > attempt.steps_from and job.first_step is None:
            job.first_step = attempt.steps_from
        again = state in ("failed", "preempted") and self._again(job, cause, job.saved + used.kept)
        self.account.attempt(attempt, self.now, state, cause, cls, used)
        job.saved += used.kept
        job.last_end = self.now
        attempt.version += 1  # what was to happen to it does not any more
        del self.running[job.id]
        for machine in attempt.machines:
            self.machines.give(machine, job.id)
            if machine.state == "held" and not machine.jobs:
                self._begin_repair(machine)
        if again:
            job.queued = self.now + self._back_off(job, cause)
            self.at(job.queued, self._requeue, job)
        else:
            self.account.job(job, "failed" if state == "preempted" else state, self.now, cause, cls)
        self._schedule()

    def _again(self, job: Job, cause: str, saved: float) -> bool:
        if cause == "platform" and not job.cls and job.end == "completed" and saved >= job.best:
            job.used[cause] = 0
        if saved > job.best:
            job.best = saved
            job.used.clear()  # it went on: budgets are for failures without progress
        job.used[cause] = job.used.get(cause, 0) + 1
        if cause == "user" and not job.certain:
            job.end, job.end_at = "completed", 0.0  # it does not come again
        allowed = {"driver": "hardware"}.get(cause, cause)
        return job.used[cause] <= int(self.spec[f"policy.{allowed}"])

    def _back_off(self, job: Job, cause: str) -> float:
        wait = min(
            float(self.spec["policy.back_off"]) * 2 ** (job.used.get(cause, 1) - 1), float(self.spec["policy.back_off_most"])
        )
        if cause == "platform" and self.now < self.storage_until:
            return max(float(wait), self.storage_until - self.now)  # it waits for what is broken
        return float(wait)

    def _requeue(self, job: Job) -> None:
        while self.restarts and self.restarts[0] <= self.now - 3600:
            self.restarts.popleft()
        storm = int(self.spec["policy.storm"])
        if storm and len(self.restarts) >= storm:
            self.at(self.restarts[0] + 3600, self._requeue, job)
            return
        self.restarts.append(self.now)
        self.account.restarts += 1
        self.busiest = max(self.busiest, len(self.restarts))
        self.waiting[job.gpus].appendleft(job)
        self._schedule(job.gpus)

    # ---- nodes ----------------------------------------------------------------------------------------------------------------------

    def _mend(self, machine: Machine) -> None:
        """Take a node out of service; its repair begins when nothing runs on it any more."""
        if not self.spec["policy.repair"] or machine.state != "usable":
            return
        self.machines.away(machine)
        self.account.node(machine, "held", self.now, machine.bad)
        if not machine.jobs:
            self._begin_repair(machine)

    def _begin_repair(self, machine: Machine) -> None:
        kind = machine.bad
        hours = kind.hours if kind is not None else 0.2
        self._out(machine, kind, self.now + self.spec["policy.repair_begins"], hours * 3600, fixes=True)

    def _out(self, machine: Machine, kind: Fault | None, begin: float, lasts: float, *, fixes: bool) -> None:
        if machine.state == "down":
            return
        self.machines.away(machine)
        self.account.node(machine, "down", self.now, kind)
        spare = self._spare(lasts)
        self.at(begin + lasts, self._repaired, machine, kind, fixes, begin, spare)

    def _spare(self, lasts: float) -> bool:
        if lasts < 3600 or not self.machines.spare:
            return False
        machine = self.machines.spare.pop()
        self.account.node(machine, "usable", self.now, None)
        self.machines.back(machine)
        self.at(self.now, self._schedule)  # not now: a job may just be given its nodes
        return True

    def _repaired(self, machine: Machine, kind: Fault | None, fixes: bool, begin: float, spare: bool) -> None:
        works = kind is None or self.luck.random() < kind.fixes
        if fixes and kind is not None and kind.rung and self.spec["policy.repair"]:
            self.account.action(machine, kind, begin, self.now, works)
            if works and kind.rung == "replace-node":
                self.account.swap(machine, self.now)
        if fixes and works:
            machine.bad = None
        machine.mended += 1
        if spare:
            self.account.node(machine, "held", self.now, None)
            self.machines.spare.append(machine)
            return
        self.account.node(machine, "usable", self.now, None)
        self.machines.back(machine)
        self._schedule()
