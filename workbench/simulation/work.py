"""Turn a job's plan and the time that has passed into what it did with it: steps, saves, what was lost, where the next attempt begins."""

from __future__ import annotations

import bisect
import itertools
import math
import random
from dataclasses import dataclass, field

from workbench.simulation.nodes import Machine
from workbench.simulation.spec import Fault, Spec

__all__ = ["Arrivals", "Attempt", "Job", "Spent", "spent", "steps_end"]


@dataclass(slots=True)
class Job:
    """
    A job: what it needs, and how it would end if nothing happened to it.

    `need` and `saved` are seconds of productive steps; `end` is ``completed``, ``user``, ``cancelled`` or ``preempted`` at `end_at` of them.
    """

    id: int
    gpus: int
    need: float
    submitted: float
    team: str
    user: str
    end: str
    end_at: float
    certain: bool
    cls: str
    attempts: int = 0
    saved: float = 0.0
    best: float = 0.0
    queued: float = 0.0
    last_end: float = 0.0
    started: float | None = None
    first_step: float | None = None
    excluded: dict[str, tuple[Machine, int]] = field(default_factory=dict)  # until the node is mended once more
    used: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Attempt:
    """One start of a job; `steps_from` is when its first step began, `slow_since` when one of its nodes became slow."""

    job: Job
    number: int
    begin: float
    steps_from: float
    restore: float
    machines: list[Machine]
    version: int = 0
    slow_since: float | None = None
    slowdown: float = 1.0
    fault: Fault | None = None
    at: Machine | None = None
    gpu: int = 0
    died: float | None = None
    detected: float | None = None


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of an attempt's time since its first step: `step` includes what is `lost`; `kept` is what its checkpoints hold."""

    step: float
    save: float
    slow: float
    lost: float
    kept: float


class Arrivals:
    """Draws jobs one after the other, always the same for the same generator."""

    def __init__(self, spec: Spec, rng: random.Random) -> None:
        self.rng, self.sizes = rng, spec.mix
        self.weights = list(itertools.accumulate(size.share for size in spec.mix))
        self.fails = float(spec["jobs.user_fails"])
        self.cancelled = self.fails + spec["jobs.cancelled"]
        self.preempted = self.cancelled + spec["jobs.preempted"]
        self.certain, self.early, self.teams = (
            float(spec["jobs.user_certain"]),
            float(spec["jobs.user_early"]),
            list(spec["jobs.teams"]),
        )
        self.count = 0

    def draw(self, time: float) -> Job:
        """Return the next job, submitted at `time`."""
        self.count += 1
        draw = self.rng.random
        size = self.sizes[bisect.bisect(self.weights, draw() * self.weights[-1], hi=len(self.weights) - 1)]
        need = min(size.hours * math.exp(size.spread * self.rng.gauss(0, 1)), 24.0 * 60) * 3600
        roll, at, end, cls, where = draw(), draw(), "completed", "", 0.0
        certain, early, team, user = draw() < self.certain, draw() < self.early, draw(), draw()
        if roll < self.fails:
            end, where = "user", min(need, self.rng.expovariate(1 / 300.0)) if early else at * need
            cls = _USER_CLASSES[bisect.bisect(_USER_WEIGHTS, draw(), hi=len(_USER_WEIGHTS) - 1)]
        elif roll < self.cancelled:
            end, where = "cancelled", at * need
        elif roll < self.preempted:
            end, where = "preempted", at * need
        name = self.teams[int(team * len(self.teams))]
        return Job(self.count, size.gpus, need, time, name, f"{name}-{int(user * 20):02d}", end, where, certain, cls)


# shares of the user's failures: script errors by exception (1,890), of framework and configuration (404), out of GPU memory (14) and
# data loaders killed (6) in https://arxiv.org/abs/2403.07648; illegal accesses by the user's code (41) and hangs in https://arxiv.org/abs/2509.16293
_USER_CLASSES = ("user/exception", "user/config", "user/gpu-oom", "user/host-oom", "user/illegal-memory-access", "user/hang")
_USER_WEIGHTS = [0.78, 0.92, 0.95, 0.97, 0.985, 1.0]


def steps_end(attempt: Attempt, target: float, interval: float, save: float) -> float:
    """Return when an attempt has made `target` seconds of productive steps of its job, the save that ends them not included."""
    left = target - attempt.job.saved
    saves = max(0, math.ceil(left / interval) - 1)
    return attempt.steps_from + _wall(attempt, left + saves * save)


def _wall(attempt: Attempt, effective: float) -> float:
    if attempt.slow_since is None:
        return effective
    before = max(0.0, attempt.slow_since - attempt.steps_from)
    return effective if effective <= before else before + (effective - before) * attempt.slowdown


def spent(attempt: Attempt, until: float, interval: float, save: float, *, completed: bool = False) -> Spent:
    """
    Return what an attempt did from its first step to `until`.

    A checkpoint is written after each `interval` of steps and holds them once it is whole; steps wait for it. A slow node makes steps and
    saves slower from `slow_since` on; the time above the usual is `slow`.
    """
    wall = until - attempt.steps_from
    if wall <= 0:
        return Spent(0.0, 0.0, 0.0, 0.0, 0.0)
    slow = 0.0
    if attempt.slow_since is not None:
        slow = min(wall, max(0.0, until - max(attempt.slow_since, attempt.steps_from))) * (1 - 1 / attempt.slowdown)
    effective = wall - slow
    if completed:
        need = attempt.job.need - attempt.job.saved
        return Spent(need, max(0.0, effective - need), slow, 0.0, need)
    whole = math.floor(effective / (interval + save))
    rest = effective - whole * (interval + save)
    kept = whole * interval
    step = kept + min(rest, interval)
    return Spent(step, effective - step, slow, step - kept, kept)
