"""How often to save: equal to a simulation of the job itself, within published formulae, and silent where they do not hold."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.training.interval import advise, daly, loss, young


def simulated(interval: float, save: float, mttf: float, restart: float, *, failures: int, seed: int) -> float:
    """Run a job second by second of events: work, save, fail, restart, from the last save; return the share of time that is no progress."""
    chance = random.Random(seed)
    now = kept = 0.0
    next_failure = chance.expovariate(1 / mttf)
    seen, todo = 0, interval + save
    while seen < failures:
        if now + todo <= next_failure:  # the work and its save are done
            now, kept, todo = now + todo, kept + interval, interval + save
            continue
        now, seen = next_failure, seen + 1  # all since the last save is lost, and so is a restart that was cut short
        next_failure = now + chance.expovariate(1 / mttf)
        todo = restart + interval + save
    return 1 - kept / now


@pytest.mark.parametrize(
    ("interval", "save", "mttf", "restart"), [(600, 30, 7200, 0), (1800, 60, 10_000, 300), (300, 120, 20_000, 0)]
)
def test_the_loss_is_that_of_the_simulated_job(interval: float, save: float, mttf: float, restart: float) -> None:
    seen = simulated(interval, save, mttf, restart, failures=20_000, seed=1)

    assert loss(interval, save, mttf, restart) == pytest.approx(seen, abs=0.006)


def best(save: float, mttf: float) -> float:
    """Find the interval of least loss by trying them all, ever closer."""
    low, high = 1e-3 * mttf, 10 * mttf
    for _ in range(200):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, b) if loss(a, save, mttf) < loss(b, save, mttf) else (a, high)
    return (low + high) / 2


@given(st.floats(1e-4, 0.1), st.floats(1e3, 1e7))
@settings(max_examples=60, deadline=None)
def test_the_advised_interval_is_the_best_one(share: float, mttf: float) -> None:
    save = share * mttf
    exact = best(save, mttf)

    assert daly(save, mttf) == pytest.approx(exact, rel=0.01)
    assert loss(daly(save, mttf), save, mttf) <= loss(exact, save, mttf) * 1.001 + 1e-12
    assert loss(daly(save, mttf), save, mttf) <= loss(young(save, mttf), save, mttf) + 1e-9


def test_the_simulated_job_agrees_that_it_loses_least_there() -> None:
    save, mttf = 120.0, 10_000.0
    at = daly(save, mttf)
    lost = {factor: simulated(at * factor, save, mttf, 0, failures=30_000, seed=7) for factor in (0.4, 1.0, 2.5)}

    assert lost[1.0] < lost[0.4]
    assert lost[1.0] < lost[2.5]


def test_young_by_hand() -> None:
    assert young(50, 3600) == 600  # √(2 · 50 · 3600)


def test_the_advice_holds_the_numbers_it_rests_on() -> None:
    said = advise([40, 42, 44], 3, 500, nodes=64, present=10_800)

    assert said.save == 42
    assert said.mttf == 500 * 3600 / 3
    # Garwood for three events: 0.6187 to 8.7673 (tables of the Poisson distribution)
    assert said.mttf_low == pytest.approx(500 * 3600 / 8.7673, rel=1e-3)
    assert said.mttf_high == pytest.approx(500 * 3600 / 0.6187, rel=1e-3)
    assert said.interval is not None
    assert said.low is not None
    assert said.high is not None
    assert said.low < said.interval < said.high
    assert said.interval == pytest.approx(daly(42, 600_000))
    assert said.extra is not None
    assert said.gpu_hours_day == pytest.approx(said.extra * 24 * 64 * 8)
    assert said.extra_low is not None
    assert said.extra_high is not None
    assert said.extra_low <= said.extra <= said.extra_high


def test_the_rate_of_a_fleet_is_scaled_to_the_job() -> None:
    small, large = advise([10], 10, 1000, nodes=16, observed_nodes=64), advise([10], 10, 1000, nodes=256, observed_nodes=64)

    assert small.mttf == pytest.approx(16 * (large.mttf or 0))
    assert small.mttf == 1000 * 3600 / 10 * 4


def test_the_best_interval_costs_nothing_and_others_do() -> None:
    at = advise([30], 20, 1000).interval
    assert at is not None
    same, longer, shorter = (advise([30], 20, 1000, present=at * factor) for factor in (1, 4, 0.25))

    assert same.extra == pytest.approx(0, abs=1e-9)
    assert same.extra_low == 0
    for other in (longer, shorter):
        assert other.extra is not None
        assert other.extra > 0.001


def test_no_failure_gives_a_careful_interval_and_no_mean() -> None:
    said = advise([42], 0, 500, present=10_800)

    assert (said.mttf, said.mttf_high, said.high) == (None, None, None)
    assert said.mttf_low == pytest.approx(500 * 3600 / 3.6889, rel=1e-3)  # −ln 0.025
    assert said.interval == pytest.approx(daly(42, said.mttf_low or 0))
    assert "none was seen" in said.reason
    assert said.extra_high is not None
    assert said.extra_high >= 42 / (10_800 + 42) - 1e-9


def test_no_interval_is_advised_where_the_formulae_do_not_hold() -> None:
    said = advise([4200], 5, 50, present=3600)

    assert (said.interval, said.extra, said.gpu_hours_day) == (None, None, None)
    assert "no interval is advised" in said.reason


@pytest.mark.parametrize(
    "wrong",
    [
        {"save_seconds": []}, {"save_seconds": [0]}, {"save_seconds": [-1, 3]}, {"failures": -1}, {"hours": 0}, {"nodes": 0}, {"present": 0},
        {"hours": math.inf}, {"failures": math.nan}, {"observed_nodes": 0}, {"restart_seconds": -1},
    ],
)  # fmt: skip
def test_numbers_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        advise(**{"save_seconds": [1], "failures": 1, "hours": 1} | wrong)  # type: ignore[arg-type]


@given(st.floats(1, 100), st.integers(0, 50), st.floats(10, 1e4), st.floats(60, 1e5))
@settings(max_examples=60, deadline=None)
def test_bounds_always_hold_the_point(save: float, failures: int, hours: float, present: float) -> None:
    said = advise([save, save * 1.3], failures, hours, present=present)
    if said.interval is None:
        return
    assert said.low is not None
    assert said.low <= said.interval
    assert said.high is None or said.interval <= said.high * (1 + 1e-9)
    assert 0 <= (said.extra_low or 0) <= (said.extra or 0) <= (said.extra_high or 0) <= 1
