"""Failure rates, times to failure and to repair: published figures, censoring, outages by hand, curves against their textbook's example."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fleet.account_frames import frame
from workbench.fleet.intervals import poisson
from workbench.fleet.reliability import (
    AtRisk,
    at_risk,
    failure_rate,
    mean_time_to_failure,
    median_bounds,
    outages,
    project,
    repair_times,
    survival,
)

T = 1_777_000_000.0
DAY = 86400.0


# RSC (arXiv 2410.21680): 6.5 failures per 1000 node-days of 8 GPUs; its projections for 16,384 and 131,072 GPUs
@pytest.mark.parametrize(("gpus", "hours"), [(16_384, 1.8), (131_072, 0.23)])
def test_the_published_rate_gives_the_published_projections(gpus: int, hours: float) -> None:
    assert project(6.5, gpus / 8)[0] == pytest.approx(hours, rel=0.03)


def test_the_projection_does_not_hold_for_small_jobs_as_published_too() -> None:
    # measured at 1,024 GPUs: 7.9 h; the rate gives 28.8
    assert project(6.5, 128)[0] == pytest.approx(28.8, abs=0.1)


def test_bounds_of_a_rate_turn_round_in_the_projection() -> None:
    hours, low, high = project(6.5, 2048, bounds=poisson(65, 10).__class__(5.0, 8.0))
    assert (low, high) == (pytest.approx(24000 / (8 * 2048)), pytest.approx(24000 / (5 * 2048)))
    assert low < hours < high  # type: ignore[operator]
    assert project(0, 10)[0] == math.inf
    with pytest.raises(ValueError, match="a job has nodes"):
        project(6.5, 0)


def test_no_failure_is_a_lower_bound_and_no_infinite_time() -> None:
    figure = mean_time_to_failure(AtRisk(0, 100), nodes=4)
    assert (figure.value, figure.high) == (None, None)
    assert figure.low == pytest.approx(100 * 24 / 4 / -math.log(0.025))
    assert "no failure was seen" in figure.method
    rate = failure_rate(AtRisk(0, 100))
    assert (rate.value, rate.low) == (0, 0)
    assert failure_rate(AtRisk(0, 0)).value is None
    assert mean_time_to_failure(AtRisk(0, 0)).method == "no time at risk"


def attempts(*rows: dict[str, Any]) -> Any:
    return frame("attempts", [{"job": "1", "attempt": n, "gpus": 16, **row} for n, row in enumerate(rows, 1)])


JOBS = frame("jobs", [{"job": "1", "nodes": 2, "gpus": 16}, {"job": "2"}])


def test_running_attempts_are_at_risk_and_have_not_failed() -> None:
    rows = attempts(
        {"started": T, "ended": T + DAY, "state": "failed", "cause": "hardware"},
        {"started": T + DAY, "ended": T + 2 * DAY, "state": "failed", "cause": "user"},
        {"started": T + 2 * DAY, "ended": T + 3 * DAY, "state": "failed"},
        {"started": T + 3 * DAY, "state": "running"},
        {"job": "2", "started": T, "ended": T + DAY, "state": "failed", "cause": "driver"},
        {"started": T - 5 * DAY, "ended": T - DAY, "state": "failed", "cause": "hardware"},
    )
    seen = at_risk(rows, JOBS, since=T, until=T + 10 * DAY)["all"]
    assert (seen.failures, seen.node_days) == (1, 20)
    assert seen.notes == (
        "1 attempts left out: their number of nodes was not told",
        "1 failures of unknown cause are not counted",
    )
    figure = failure_rate(seen)
    assert (figure.value, figure.numerator, figure.denominator) == (50, 1, 20)
    assert (figure.low, figure.high) == tuple(pytest.approx(1000 * one) for one in poisson(1, 20))
    every = at_risk(rows, JOBS, since=T, until=T + 10 * DAY, causes=["hardware", "driver", "platform", "user", "unknown"])["all"]
    assert every.failures == 2  # a failure without a cause is none of a named one


def test_the_nodes_that_an_attempt_ran_on_count_more_than_those_asked_for() -> None:
    rows = attempts({"started": T, "ended": T + DAY, "state": "completed", "node_names": ["a", "b", "c"]})
    assert at_risk(rows, JOBS, since=T, until=T + DAY)["all"].node_days == 3
    assert set(at_risk(rows, JOBS, since=T, until=T + DAY, by_size=True)) == {"9-64"}
    assert at_risk(attempts(), JOBS, since=T, until=T + DAY)["all"] == AtRisk(0, 0)


def state(node: str, begin: float, end: float | None, name: str, cause: str | None = None) -> dict[str, Any]:
    return {"node": node, "begin": T + begin, "end": None if end is None else T + end, "state": name, "cause": cause}


STATES = frame(
    "node_states",
    [
        state("a", 0, 100, "usable"),
        state("a", 100, 200, "held"),
        state("a", 200, 3700, "down", "hardware"),
        state("a", 3700, None, "usable"),
        state("b", 0, 7200, "maintenance"),
        state("b", 7200, None, "usable"),
        state("c", 0, 50, "usable"),
        state("c", 50, None, "down", "driver"),
        # nothing is told after 100, then it is down again: two outages, the first of a length that is not known
        state("d", 0, 100, "down"),
        state("d", 500, 7700, "down", "platform"),
        state("d", 7700, 7800, "usable"),
    ],
)


def test_stretches_out_of_service_that_follow_each_other_are_one_outage() -> None:
    found = outages(STATES, until=T + 10_000)
    rows = [
        (node, round(begin / 1e6 - T), round(end / 1e6 - T), over, planned)
        for node, begin, end, over, planned in found[["node", "begin", "end", "over", "planned"]].itertuples(index=False)
    ]
    assert rows == [
        ("a", 100, 3700, True, False),
        ("b", 0, 7200, True, True),
        ("c", 50, 10_000, False, False),
        ("d", 0, 100, False, False),
        ("d", 500, 7700, True, False),
    ]
    assert found["cause"].tolist()[0] == "hardware"


def test_time_to_repair_is_by_the_last_rung_that_was_done() -> None:
    actions = frame(
        "actions",
        [
            {"node": "a", "rung": "reset-gpu", "begin": T + 300, "end": T + 360, "outcome": "done"},
            {"node": "a", "rung": "reboot-node", "begin": T + 3000, "end": T + 3600, "outcome": "done"},
            {"node": "a", "rung": "replace-node", "begin": T + 3650, "end": T + 3660, "outcome": "failed"},
            {"node": "d", "rung": "reboot-node", "begin": T + 9000, "outcome": "done"},
        ],
    )
    whole, *others = repair_times(STATES, actions, since=T, until=T + 10_000)
    assert (whole.value, whole.numerator, whole.denominator) == (1.5, 3, 2)
    assert whole.notes == (
        "median 1.5 h",
        "1 planned outages left out",
        "2 outages last still, or nobody told their end: left out",
    )
    assert {(one.name, *dict(one.by).values()): one.value for one in others} == {
        ("MTTR", "not told"): 2.0,
        ("MTTR", "reboot-node"): 1.0,
        ("rung took", "reboot-node"): pytest.approx(600 / 3600),
        ("rung took", "reset-gpu"): pytest.approx(60 / 3600),
    }
    none = repair_times(frame("node_states", []), since=T, until=T + 10)[0]
    assert (none.value, none.method) == (None, "no data")


def test_bounds_of_a_median_need_six_values_and_are_those_of_the_tables() -> None:
    assert median_bounds([3, 1, 2]) == (2, None, None)
    assert median_bounds(range(1, 7)) == (3.5, 1, 6)
    # ranks of the 95 % sign-test interval: n = 20 → 6 and 15; n = 50 → 18 and 33
    assert median_bounds(range(1, 21)) == (10.5, 6, 15)
    assert median_bounds(range(1, 51)) == (25.5, 18, 33)
    with pytest.raises(ValueError, match="no median"):
        median_bounds([])


def test_the_survival_curve_is_the_textbooks() -> None:
    # Freireich's 6-MP group (Blood 21 (1963) 699), the example of most textbooks: remission in weeks, + still in remission
    told = [6, 6, 6, 7, 10, 13, 16, 22, 23]
    censored = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    points = survival([*told, *censored], [True] * len(told) + [False] * len(censored))
    assert [(one.time, round(one.share, 3), one.at_risk) for one in points] == [
        (6, 0.857, 21), (7, 0.807, 17), (10, 0.753, 15), (13, 0.690, 12), (16, 0.627, 11), (22, 0.538, 7), (23, 0.448, 6),
    ]  # fmt: skip
    # log(-log) bounds at 23 weeks, as R's survfit(conf.type = "log-log") prints them
    assert (round(points[-1].low, 3), round(points[-1].high, 3)) == (0.188, 0.680)
    assert survival([], []) == []


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=30))
def test_without_censoring_the_curve_is_the_share_that_lasted_longer(lengths: list[float]) -> None:
    for point in survival(lengths, [True] * len(lengths)):
        assert point.share == pytest.approx(sum(length > point.time for length in lengths) / len(lengths), abs=1e-12)


def test_bounds_of_mttf_hold_the_truth_as_often_as_they_say_also_when_censored() -> None:
    dice = random.Random(2)
    inside, rounds = 0, 1500
    for _ in range(rounds):
        lengths = [dice.expovariate(1 / 50) for _ in range(30)]  # days; the window ends after 40
        seen = AtRisk(sum(length <= 40 for length in lengths), sum(min(length, 40) for length in lengths))
        figure = mean_time_to_failure(seen)
        inside += figure.low <= 50 * 24 <= (figure.high or math.inf)  # type: ignore[operator]
    print(f"coverage {inside / rounds:.3f}")
    assert 0.94 <= inside / rounds <= 0.99
