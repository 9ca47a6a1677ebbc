"""Turn simulated step times of healthy jobs into false alarms of `workbench.training.hangs.Watch` in 1,000 hours, and the silence before a hang is told."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator

from workbench.training.hangs import Progress, Watch

STEPS = {
    "lognormal, checkpoints": lambda rng, n: 10 * rng.lognormvariate(0, 0.5) * (10 if n % 200 == 0 else 1),
    "changing speed": lambda rng, n: 10 * (1 + n // 2000 % 4) * rng.lognormvariate(0, 0.2),
    "unannounced evaluations": lambda rng, n: (
        600 * rng.lognormvariate(0, 0.5) if n % 1000 == 0 else 8 * rng.lognormvariate(0, 0.3)
    ),
    "stalls": lambda rng, n: 60 * rng.paretovariate(1.5) if rng.random() < 0.001 else 3 * rng.lognormvariate(0, 0.2),
    "heavy tail": lambda rng, n: 5 * rng.paretovariate(2),
}


def times(kind: str, rng: random.Random) -> Iterator[float]:
    number = 0
    while True:
        number += 1
        yield STEPS[kind](rng, number)


def play(kind: str, hours: float, seed: int, every: int, watch: Watch) -> tuple[int, float]:
    """Alarms of one healthy job, and how long a hang at its end is silent before it is told."""
    now = ticked = 0.0
    alarms = 0
    for number, seconds in enumerate(times(kind, random.Random(seed)), 1):
        now += seconds
        while ticked + 30.0 < now:
            ticked += 30.0
            alarms += watch.tick(ticked) is not None
        if number % every == 0:
            watch.note(Progress(number, None, 0), now)
            ticked = now
            if now > hours * 3600:
                return alarms, watch.limit or 0.0
    raise AssertionError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=1000.0, help="of each kind, in jobs of 100 hours")
    hours = parser.parse_args().hours
    print(f"{'step times':<26} {'steps a sign':>12} {'alarms/1,000 h':>15} {'hang told after, s':>20}")
    for kind in STEPS:
        for every in (1, 100):
            told = [play(kind, 100.0, seed, every, Watch()) for seed in range(max(1, round(hours / 100)))]
            waits = sorted(limit for _, limit in told)
            rate = sum(alarms for alarms, _ in told) * 10.0 / len(told)
            print(f"{kind:<26} {every:>12} {rate:>15.1f} {waits[0]:>9.0f} to {waits[-1]:.0f}", flush=True)


if __name__ == "__main__":
    main()
