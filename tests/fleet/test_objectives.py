"""Objectives of the fleet: by hand, against a count of everything one by one, and where nobody told anything."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fleet.account_frames import frame
from workbench.fleet.counted import success_of_counts
from workbench.fleet.figures import NOT_TOLD, Figure, figures_frame, micros, size_of
from workbench.fleet.intervals import wilson
from workbench.fleet.ledger import Ledger
from workbench.fleet.objectives import availability, job_starts, job_success

DAY = 86400.0
MONDAY = datetime(2026, 11, 2, tzinfo=UTC).timestamp()


def by(figures: list[Figure]) -> dict[tuple[str, ...], Figure]:
    return {(one.name, *(value for _, value in one.by)): one for one in figures}


def job(number: int, state: str = "completed", cause: str | None = None, **more: Any) -> dict[str, Any]:
    row = {
        "job": str(number),
        "state": state,
        "cause": cause,
        "submitted": MONDAY,
        "started": MONDAY + 60,
        "ended": MONDAY + 3660,
    }
    return row | {"gpus": 8, "team": "a", "source": "slurm"} | more


def test_job_success_says_numerator_denominator_and_what_it_left_out() -> None:
    jobs = frame(
        "jobs",
        [
            *(job(number) for number in range(6)),
            job(6, "failed", "hardware"),
            job(7, "failed", "user"),
            job(8, "failed"),
            job(9, "timeout"),
            job(10, "cancelled"),
            job(11, "preempted"),
            job(12, "running", ended=None),
            job(13, "pending", started=None, ended=None),
        ],
    )
    whole, *causes = job_success(jobs, since=MONDAY, until=MONDAY + DAY, causes=True)
    assert (whole.numerator, whole.denominator, whole.value, whole.unit) == (6, 10, 0.6, "jobs")
    assert (whole.low, whole.high) == wilson(6, 10)
    assert whole.notes == ("1 jobs left out: cancelled", "1 jobs left out: preempted", "2 jobs undecided: running or waiting")
    assert {one.by[-1][1]: one.numerator for one in causes} == {
        "hardware": 1,
        "driver": 0,
        "platform": 0,
        "user": 1,
        "unknown": 2,
    }
    infra = job_success(jobs, since=MONDAY, until=MONDAY + DAY, infra=True)[0]
    assert (infra.numerator, infra.denominator) == (9, 10)
    assert "2 failures of unknown cause are not counted as infrastructure's; all of them counted: 0.7" in infra.notes
    every = job_success(
        jobs, since=MONDAY, until=MONDAY + DAY, counted=("completed", "failed", "timeout", "cancelled", "preempted")
    )[0]
    assert (every.numerator, every.denominator) == (6, 12)


def test_gpu_time_weighs_the_large_job_that_a_count_hides() -> None:
    jobs = frame("jobs", [*(job(n, gpus=1) for n in range(99)), job(99, "failed", "hardware", gpus=1024)])
    assert job_success(jobs, since=MONDAY, until=MONDAY + DAY)[0].value == 0.99
    heavy = job_success(jobs, since=MONDAY, until=MONDAY + DAY, weight="gpu-time")[0]
    assert (heavy.numerator, heavy.denominator, heavy.unit) == (99, 1123, "GPU-hours of jobs")
    # one job decides: nearly nothing is known, and the bounds say so
    assert heavy.low is not None
    assert heavy.high is not None
    assert heavy.high - heavy.low > 0.5
    blind = job_success(frame("jobs", [job(1, gpus=None)]), since=MONDAY, until=MONDAY + DAY, weight="gpu-time")[0]
    assert blind.value is None
    assert blind.notes == ("1 jobs left out: their number of GPUs was not told",)


def test_failures_of_one_user_are_less_evidence_than_those_of_many() -> None:
    many = frame("jobs", [job(n, "failed" if n % 4 == 0 else "completed", "user", user=f"u{n}") for n in range(80)])
    few = frame("jobs", [job(n, "failed" if n < 20 else "completed", "user", user=f"u{n // 20}") for n in range(80)])
    one, other = (job_success(jobs, since=MONDAY, until=MONDAY + DAY, clustered_by="user")[0] for jobs in (many, few))
    assert one.value == other.value == 0.75
    assert (one.high or 0) - (one.low or 0) < 0.25
    assert (other.high or 0) - (other.low or 0) > 0.6


@pytest.mark.parametrize("empty", [[], [job(1, "running", ended=None)], [job(1, ended=MONDAY - 1)]])
def test_without_an_ended_job_there_is_no_success_and_no_zero(empty: list[dict[str, Any]]) -> None:
    jobs = frame("jobs", empty)
    for found in (
        job_success(jobs, since=MONDAY, until=MONDAY + DAY),
        job_starts(jobs, since=MONDAY + DAY, until=MONDAY + 2 * DAY),
    ):
        assert [(one.value, one.low, one.high) for one in found] == [(None, None, None)]
    assert job_success(jobs, since=MONDAY, until=MONDAY + DAY, by=["team"]) == []
    assert figures_frame(job_success(jobs, since=MONDAY, until=MONDAY + DAY))["value"].isna().all()


def test_a_start_is_lost_only_where_the_source_tells_first_steps() -> None:
    first = {"first_step": MONDAY + 120}
    told = [job(n, source="run", **first) for n in range(9)]
    rows = [
        *told,
        job(20, "failed", "platform", source="run"),
        job(21, "running", ended=None, source="run"),
        job(22, "cancelled", source="run"),
        # a scheduler that knows nothing of steps: its silence about a failed job is no evidence
        job(30, source="slurm"),
        job(31, "failed", source="slurm"),
        # nor is that of a source that told the step of one completed job in three
        job(40, source="kubernetes", **first),
        job(41, source="kubernetes"),
        job(42, source="kubernetes"),
        job(43, "failed", source="kubernetes"),
        job(50, "pending", started=None, ended=None, source="run"),
    ]
    whole, *causes = job_starts(frame("jobs", rows), since=MONDAY, until=MONDAY + DAY, causes=True)
    assert (whole.numerator, whole.denominator) == (10, 11)
    assert {one.by[-1][1] for one in causes if one.numerator} == {"platform"}
    assert whole.notes == (
        "5 jobs left out: their source does not tell first steps",
        "1 jobs left out: running, no step yet",
        "1 jobs left out: cancelled or preempted before a step",
    )


def state(
    node: str, begin: float, end: float | None, name: str = "usable", cause: str | None = None, **more: Any
) -> dict[str, Any]:
    return {
        "node": node,
        "begin": MONDAY + begin,
        "end": None if end is None else MONDAY + end,
        "state": name,
        "cause": cause,
        "gpus": 8,
        **more,
    }


def test_availability_says_whether_planned_time_is_in() -> None:
    states = frame(
        "node_states",
        [
            state("n1", 0, 3600),
            state("n1", 3600, 7200, "down", "hardware"),
            state("n1", 7200, None),
            state("n2", 0, 7200, "maintenance"),
            state("n2", 7200, 10800),
            # a stretch that runs into the next one ends there; then nothing is told until 9000
            state("n3", 0, 9000),
            state("n3", 3600, 5400, "held", "user"),
            state("n3", 9000, 10800),
        ],
    )
    out = availability(states, since=MONDAY, until=MONDAY + 10800, causes=True)
    assert (out[0].numerator, out[0].denominator, out[0].unit) == (2 + 1 + 1.5, 3 + 1 + 2, "node-hours")
    assert out[0].notes == ("2 node-hours of planned maintenance left out",)
    assert {one.by[-1][1]: one.numerator for one in out[1:] if one.numerator} == {"hardware": 1, "user": 0.5}
    within = availability(states, since=MONDAY, until=MONDAY + 10800, planned="in")[0]
    assert (within.numerator, within.denominator) == (4.5, 8)
    assert "not usable" in within.definition
    assert within.method.endswith("effective nodes")
    gpus = availability(states, since=MONDAY, until=MONDAY + 10800, weight="gpus")[0]
    assert (gpus.numerator, gpus.denominator) == (36, 48)


def test_one_node_gives_a_share_and_no_bounds() -> None:
    one = availability(frame("node_states", [state("n1", 0, 10), state("n1", 10, 20, "down")]), since=MONDAY, until=MONDAY + 20)[
        0
    ]
    assert (one.value, one.low, one.high, one.method) == (0.5, None, None, "no bounds from fewer than two nodes")


def test_availability_is_cut_where_weeks_change() -> None:
    states = frame("node_states", [state("n1", 6 * DAY, 8 * DAY, "down", "driver"), state("n1", 8 * DAY, 16 * DAY)])
    found = by(availability(states, since=MONDAY, until=MONDAY + 21 * DAY, by=["week"]))
    assert {key[1]: (one.numerator, one.denominator) for key, one in found.items()} == {
        "2026-11-02": (0, 24),
        "2026-11-09": (144, 168),
        "2026-11-16": (48, 48),
    }


def test_an_unknown_dimension_is_refused_by_name() -> None:
    jobs = frame("jobs", [job(1)])
    with pytest.raises(ValueError, match="colour: no dimension"):
        job_success(jobs, since=MONDAY, until=MONDAY + DAY, by=["colour"])
    with pytest.raises(ValueError, match="team: no dimension"):
        availability(frame("node_states", []), since=MONDAY, until=MONDAY + DAY, by=["team"])


def test_sizes_of_jobs_fall_into_named_buckets() -> None:
    numbers = pd.Series([1, 2, 8, 9, 64, 65, 4096, 4097, None], dtype="Int64")
    assert list(size_of(numbers)) == ["1", "2-8", "2-8", "9-64", "9-64", "65-512", "513-4096", "4097+", NOT_TOLD]


STATES = ["completed", "failed", "timeout", "cancelled", "preempted", "running", "pending"]
ROW = st.tuples(
    st.sampled_from(STATES),
    st.sampled_from(["hardware", "driver", "platform", "user", "unknown", None]),
    st.sampled_from(["a", "b", None]),
    st.sampled_from([1, 8, 9, None]),
    st.integers(0, 3 * 7 * 86400),
    st.integers(1, 90000),
)


@settings(max_examples=25)
@given(st.lists(ROW, max_size=40), st.booleans(), st.sampled_from(["jobs", "gpu-time"]))
def test_job_success_is_what_a_loop_over_all_jobs_counts(rows: list[Any], infra: bool, weight: Any) -> None:
    made = [
        job(
            n,
            name,
            cause,
            team=team,
            gpus=gpus,
            started=MONDAY + at,
            ended=None if name in ("running", "pending") else MONDAY + at + took,
        )
        for n, (name, cause, team, gpus, at, took) in enumerate(rows)
    ]
    since, until = MONDAY + DAY, MONDAY + 15 * DAY
    wanted: dict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0, 0])
    causes: dict[tuple[str, str, str, str], float] = defaultdict(float)
    for row in made:
        if row["ended"] is None or not since <= row["ended"] < until or row["state"] not in ("completed", "failed", "timeout"):
            continue
        if weight == "gpu-time" and row["gpus"] is None:
            continue
        amount = 1.0 if weight == "jobs" else row["gpus"] * (row["ended"] - row["started"]) / 3600
        cause = row["cause"] or "unknown"
        good = row["state"] == "completed" or (infra and cause not in ("hardware", "driver", "platform"))
        week = datetime.fromtimestamp(MONDAY + (row["ended"] - MONDAY) // (7 * DAY) * 7 * DAY, UTC).date().isoformat()
        size = {1: "1", 8: "2-8", 9: "9-64", None: NOT_TOLD}[row["gpus"]]
        key = (week, row["team"] or NOT_TOLD, size)
        wanted[key][0] += amount * good
        wanted[key][1] += amount
        causes[*key, cause] += amount * (not good)
    found = job_success(
        frame("jobs", made), since=since, until=until, by=["week", "team", "size"], infra=infra, weight=weight, causes=True
    )
    wholes = {tuple(value for _, value in one.by): one for one in found if "lost" not in one.name}
    assert {key: (one.numerator, one.denominator) for key, one in wholes.items()} == {
        key: pytest.approx(tuple(pair)) for key, pair in wanted.items()
    }
    for one in found:
        if "lost" in one.name:
            assert one.numerator == pytest.approx(causes[tuple(value for _, value in one.by)])  # type: ignore[index]
        if one.low is not None and one.high is not None and one.value is not None:
            assert 0 <= one.low <= one.value + 1e-9 <= one.high + 2e-9 <= 1 + 3e-9


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2), st.integers(0, 50), st.integers(0, 20), st.sampled_from(["usable", "held", "down", "maintenance"])
        ),
        max_size=15,
    )
)
def test_availability_is_what_a_walk_over_every_second_counts(rows: list[tuple[int, int, int, str]]) -> None:
    unique = {(node, begin): (length, name) for node, begin, length, name in rows}
    seconds: dict[tuple[int, int], str] = {}
    for (node, begin), (length, name) in sorted(unique.items()):
        follow = min((other for owner, other in unique if owner == node and other > begin), default=99)
        for second in range(begin, min(begin + length, follow)):
            seconds[node, second] = name
    inside = [name for (_, second), name in seconds.items() if 5 <= second < 45 and name != "maintenance"]
    states = frame("node_states", [state(f"n{n}", b, b + length, name) for (n, b), (length, name) in unique.items()])
    found = availability(states, since=MONDAY + 5, until=MONDAY + 45)[0]
    if not inside:
        assert found.value is None
    else:
        assert found.numerator == pytest.approx(inside.count("usable") / 3600)
        assert found.denominator == pytest.approx(len(inside) / 3600)


def test_the_ledgers_weekly_counts_give_the_same_figures_as_its_rows(tmp_path: Any) -> None:
    dice = random.Random(8)
    rows = [
        job(
            n,
            dice.choices(STATES[:5], [60, 20, 2, 8, 10])[0],
            dice.choice(["hardware", "user", "platform", None]),
            ended=MONDAY + dice.random() * 28 * DAY,
            cluster=dice.choice(["", "b"]),
        )
        for n in range(400)
    ]
    for row in rows:
        if row["state"] == "completed":
            row["cause"] = None
    with Ledger.open(tmp_path / "fleet.sqlite") as ledger:
        ledger.put("jobs", rows)
        totals = ledger.totals(("week", "cluster", "cause", "state"), since=MONDAY, until=MONDAY + 28 * DAY)
        whole = ledger.frame("jobs")
    for infra in (False, True):
        window: dict[str, Any] = {
            "since": MONDAY,
            "until": MONDAY + 28 * DAY,
            "by": ["week", "cluster"],
            "infra": infra,
            "causes": True,
        }
        fast, slow = success_of_counts(totals, **window), job_success(whole, **window)
        assert [(a.name, a.by, a.numerator, a.denominator, a.low, a.high) for a in fast] == [
            (b.name, b.by, b.numerator, b.denominator, b.low, b.high) for b in slow
        ]
        assert "whole weeks only" in fast[0].notes


@pytest.mark.slow
def test_bounds_of_availability_hold_the_truth_about_as_often_as_they_say() -> None:
    """40 nodes, each down for a part of its own of the window; the truth is the mean over very many."""
    dice = np.random.default_rng(5)
    rows = [state(f"n{n}", part, part + 1, name) for n in range(40) for part, name in enumerate(("usable", "down"))]
    states = frame("node_states", rows)
    begin, end = micros(states["begin"]) // 1_000_000 * 1_000_000, micros(states["end"])
    truth, inside, rounds = 0.9, 0, 400
    for _ in range(rounds):
        up = np.round(dice.beta(9, 1, 40) * 1e9).astype("int64")
        begin[0::2], end[0::2] = round(MONDAY * 1e6), round(MONDAY * 1e6) + up
        begin[1::2], end[1::2] = end[0::2], round((MONDAY + 1000) * 1e6)
        played = states.assign(begin=pd.to_datetime(begin, unit="us", utc=True), end=pd.to_datetime(end, unit="us", utc=True))
        found = availability(played, since=MONDAY, until=MONDAY + 1000)[0]
        inside += found.low <= truth <= found.high  # type: ignore[operator]
    print(f"coverage {inside / rounds:.3f}")
    assert 0.93 <= inside / rounds <= 0.97
