"""A fleet in virtual time obeys closed forms where there are some, keeps its books, and tells nobody the truth but who asks for it."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import pytest

from workbench.fleet.tables import JOB_STATES, NODE_STATES, PHASES, TABLES
from workbench.simulation import Result, Spec, simulate

QUIET: dict[str, Any] = {
    "faults__per_1000_node_days": 0, "faults__lemons": 0, "faults__storage_per_day": 0, "faults__leaf_per_day": 0, "jobs__user_fails": 0,
    "jobs__cancelled": 0, "jobs__preempted": 0,
}  # fmt: skip
SMALL: dict[str, Any] = {"nodes__count": 64, "days": 14, "policy__phases_from": 1}
# one job that takes the whole of 64 nodes for years: what is left is the arithmetic of failures and checkpoints
ONE_LARGE: dict[str, Any] = QUIET | {
    "nodes__count": 80, "days": 250, "jobs__utilisation": 0.8, "jobs__mix": [[512, 1.0, 24.0 * 60, 0.0]], "faults__spread": 0,
    "policy__named": 1.0, "policy__check": 1.0, "policy__back_off": "0s", "policy__diagnose": "0s",
}  # fmt: skip


def ran(**changes: Any) -> tuple[Result, dict[str, list[dict[str, Any]]]]:
    """The result and all rows of a fleet."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    result = simulate(Spec.read().with_(**changes), lambda table, more: rows[table].extend(more))
    return result, rows


def test_without_faults_and_mistakes_every_job_completes() -> None:
    """And loses nothing; all that is not step is start, init and checkpoints."""
    result, rows = ran(**QUIET, **SMALL)

    assert result.jobs["started"] > 1000
    assert set(result.jobs) <= {"started", "completed", "running", "pending"}
    assert not result.causes
    assert not result.truth.faults
    assert {"lost", "detect", "diagnose", "recover", "restore", "slow"}.isdisjoint(
        name for name, seconds in result.seconds.items() if seconds
    )
    assert all(row["attempt"] == 1 for row in rows["attempts"])


def test_the_same_seed_is_the_same_history() -> None:
    """Row by row; another seed is another one."""
    first, again, other = ran(**SMALL, seed=3), ran(**SMALL, seed=3), ran(**SMALL, seed=4)

    assert first == again
    assert first[1]["jobs"] != other[1]["jobs"]


def test_rows_are_those_of_the_ledger() -> None:
    """Names, states and kinds of the tables, keys given, and each key once."""
    _, rows = ran(**SMALL, faults__per_1000_node_days=60)

    assert set(rows) == {"jobs", "attempts", "phases", "node_states", "gpus", "signals", "findings", "actions"}
    for name, found in rows.items():
        table = TABLES[name]
        known = {column.name for column in table.columns}
        assert all(set(row) <= known for row in found), name
        keys = [tuple(row.get(part) for part in table.key) for row in found]
        assert len(set(keys)) == len(keys), name
    assert {row["state"] for row in rows["jobs"]} <= set(JOB_STATES)
    assert {row["state"] for row in rows["node_states"]} <= set(NODE_STATES)
    assert {row["kind"] for row in rows["phases"]} <= set(PHASES)


def test_phases_cover_each_attempt_from_the_end_of_the_one_before() -> None:
    """Without gap or overlap, to the microsecond."""
    _, rows = ran(**SMALL, faults__per_1000_node_days=60)
    of: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in rows["phases"]:
        of[row["job"], row["attempt"]].append(row)
    ended = [row for row in rows["attempts"] if row["state"] != "running"]
    submitted = {row["job"]: row["submitted"] for row in rows["jobs"]}
    end_of = {(row["job"], row["attempt"]): row["ended"] for row in ended}

    assert len(of) == len(ended)
    for row in ended:
        stretches = sorted(of[row["job"], row["attempt"]], key=lambda one: one["begin"])
        begin = end_of.get((row["job"], row["attempt"] - 1), submitted[row["job"]])
        assert stretches[0]["begin"] == pytest.approx(begin, abs=1e-5)
        assert stretches[-1]["end"] == pytest.approx(row["ended"], abs=1e-5)
        assert all(one["end"] == pytest.approx(two["begin"], abs=1e-5) for one, two in itertools.pairwise(stretches))


def test_no_gpu_is_given_twice() -> None:
    """At no time do the attempts on a node hold more than it has, nor does a node that is down hold any that began later."""
    _, rows = ran(**SMALL, faults__per_1000_node_days=200)
    changes: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for row in rows["attempts"]:
        share = row["gpus"] if len(row["node_names"]) == 1 else 8
        for node in row["node_names"]:
            changes[node].append((row["started"], share))
            changes[node].append((row.get("ended") or 1e18, -share))
    for node, steps in changes.items():
        held = 0
        for _, step in sorted(steps):
            held += step
            assert 0 <= held <= 8, node
    down = [(row["node"], row["begin"], row["end"] or 1e18) for row in rows["node_states"] if row["state"] == "down"]
    assert down
    for node, begin, end in down:
        starts = [row["started"] for row in rows["attempts"] if node in row["node_names"]]
        assert not [start for start in starts if begin < start < end], node


def test_states_of_a_node_follow_each_other_without_gap() -> None:
    _, rows = ran(**SMALL, faults__per_1000_node_days=200)
    of: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows["node_states"]:
        of[row["node"]].append(row)

    assert len(of) == 64
    for states in of.values():
        assert all(one["end"] == two["begin"] for one, two in itertools.pairwise(states))
        assert states[-1]["end"] is None


def test_one_large_job_reaches_the_share_that_the_formula_says() -> None:
    """
    E[ETTR] = (1 - N r (u0 + dt/2)) / (1 + w/dt), https://arxiv.org/abs/2410.21680; u0 is detection, start, init and restore.

    All faults kill and are mended at once, so that N r is the rate of restarts. 64 nodes at 20 per 1,000 node-days for 60 days: 77 restarts expected.
    """
    interval, save = 3600.0, 120.0
    result, _ = ran(
        **ONE_LARGE
        | {"faults__per_1000_node_days": 20, "policy__interval": interval, "policy__save": save, "policy__repair_begins": 0}
    )

    restarts = result.restarts
    held = result.held / 512
    rate = restarts / held
    spec = Spec.read()
    assert restarts > 60
    detection = result.seconds["detect"] / 512 / restarts
    overhead = detection + spec["jobs.start"] + spec["jobs.init"] + spec["jobs.restore"]
    expected = (1 - rate * (overhead + interval / 2)) / (1 + save / interval)
    assert result.goodput == pytest.approx(expected, abs=0.02)


def test_more_checkpoints_lose_less_and_cost_more() -> None:
    """The same jobs and faults: only the policy differs."""
    often, seldom = (
        ran(**ONE_LARGE | {"faults__per_1000_node_days": 20, "policy__interval": value})[0] for value in ("10m", "6h")
    )

    assert often.seconds["lost"] < seldom.seconds["lost"] / 5
    assert often.seconds["save"] > seldom.seconds["save"] * 10


def test_a_bad_node_that_is_not_mended_fails_jobs_again() -> None:
    """Repair and the check at allocation are worth what they save."""
    faulty = SMALL | {"faults__per_1000_node_days": 60, "jobs__user_fails": 0}
    kept, mended = ran(**faulty, policy__repair=False, policy__check=0)[0], ran(**faulty)[0]

    assert kept.causes["hardware"] > 2 * mended.causes["hardware"]
    assert kept.repairs == 0


def test_a_certain_fault_of_the_user_is_confirmed_once_and_ends_the_job() -> None:
    """As the budget says; without a budget it runs once."""
    always = (
        QUIET | SMALL | {"nodes__count": 16, "days": 7, "jobs__user_fails": 1.0, "jobs__user_certain": 1.0, "policy__named": 1.0}
    )
    once, never = ran(**always)[1], ran(**always, policy__user=0)[1]

    assert max(row["attempt"] for row in once["attempts"]) == 2
    assert max(row["attempt"] for row in never["attempts"]) == 1


def test_a_preemption_is_no_failure() -> None:
    """The job goes on from its checkpoint and completes."""
    result, rows = ran(**QUIET | SMALL | {"jobs__preempted": 1.0})

    assert not result.causes
    assert result.jobs["failed"] == 0
    assert {row["state"] for row in rows["attempts"]} <= {"preempted", "completed", "running"}


def test_the_storm_guard_bounds_the_restarts_of_an_hour() -> None:
    """An outage that kills every job starts them all at once, or as many as the guard lets."""
    outage = (
        QUIET
        | SMALL
        | {"faults__storage_per_day": 0.2, "faults__storage_reach": 1.0, "policy__named": 0.0, "jobs__mix": [[1, 1.0, 6.0, 0.5]]}
    )
    free, guarded = ran(**outage)[0], ran(**outage, policy__storm=20)[0]

    assert free.busiest_hour > 100
    assert guarded.busiest_hour <= 20
    assert guarded.jobs["completed"] > 0


def test_spares_stand_in_for_nodes_that_are_away_for_long() -> None:
    """A machine that is replaced comes back as the spare."""
    away = SMALL | {"faults__per_1000_node_days": 100, "nodes__spares": 4}
    _, rows = ran(**away)

    first = {row["node"] for row in rows["node_states"] if row["state"] == "held" and row["begin"] == Spec.read()["begin"]}
    assert len(first) == 4
    assert {row["node"] for row in rows["node_states"] if row["state"] == "usable"} & first


def test_lemons_are_in_the_truth_only_and_fail_more() -> None:
    result, rows = ran(
        nodes__count=256, days=90, jobs__user_fails=0, jobs__utilisation=0.1, faults__lemons=0.05, faults__lemon_factor=30
    )
    count: dict[str, int] = defaultdict(int)
    for one in result.truth.faults:
        if isinstance(one["node"], str):
            count[one["node"]] += 1
    lemons = sum(count[node] for node in result.truth.lemons) / len(result.truth.lemons)
    rest = sum(many for node, many in count.items() if node not in result.truth.lemons) / (256 - len(result.truth.lemons))

    assert len(result.truth.lemons) == 13
    assert lemons > 8 * rest
    assert "lemon" not in str(rows)


def test_what_is_not_named_is_called_unknown() -> None:
    """And nobody is blamed for it."""
    _, rows = ran(**SMALL, faults__per_1000_node_days=60, policy__named=0)

    failed = [row for row in rows["attempts"] if row["state"] == "failed"]
    assert failed
    assert {row["cause"] for row in failed} == {"unknown"}
    assert {row["node"] for row in failed} == {None}
    assert not [row for row in rows["signals"] if row["kind"] in ("job-failure", "excluded")]
