"""Lemons: who fails more often than chance, and who only had bad luck, few jobs or bad company."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.fleet.lemon_fleets import FLEETS, scores, simulated
from tests.fleet.lemon_truth import (
    HELD_OUT,
    POISSON,
    SALT,
    benjamini_hochberg,
    compare,
    fleet,
    knower,
    longest,
    poisson_tails,
    score,
    spread_tails,
)
from workbench.fleet.blames import signal_weights
from workbench.fleet.excess import excess, selected
from workbench.fleet.lemons import lemons
from workbench.fleet.tables import TABLES
from workbench.parse.nodeset import fold

KINDS = {"text": "string", "count": "Int64", "number": "Float64", "words": "object"}
BEGIN = pd.Timestamp("2026-03-01", tz="UTC")


def table(name: str, rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Return rows as a frame of the ledger's contract."""
    out = pd.DataFrame(rows, columns=[column.name for column in TABLES[name].columns])
    for column in TABLES[name].columns:
        if column.kind == "time":
            out[column.name] = pd.to_datetime(out[column.name], utc=True).astype("datetime64[us, UTC]")
        else:
            out[column.name] = out[column.name].astype(KINDS[column.kind])
    return out


def at(hours: float) -> pd.Timestamp:
    """Return a moment."""
    return BEGIN + pd.Timedelta(hours=hours)


def history(failures: list[dict[str, Any]], *, nodes: int = 40, days: int = 60) -> pd.DataFrame:
    """Return attempts: every node ran one-node jobs all the time, a day each; and the failures, in jobs of their own."""
    rows = [
        {
            "job": f"{node}-{day}",
            "attempt": 1,
            "state": "completed",
            "started": at(24 * day),
            "ended": at(24 * day + 24),
            "node_names": [f"n{node:03}"],
        }
        for node in range(nodes)
        for day in range(days)
    ]
    return table("attempts", rows + failures)


def failure(job: str, hour: float, names: list[str], **more: Any) -> dict[str, Any]:
    """Return an attempt that failed after a minute."""
    row = {
        "job": job,
        "attempt": 1,
        "state": "failed",
        "cause": "hardware",
        "started": at(hour - 0.02),
        "ended": at(hour),
        "node_names": names,
    }
    return row | more


def judge(
    attempts: pd.DataFrame,
    signals: list[dict[str, Any]] | None = None,
    gpus: list[dict[str, Any]] | None = None,
    states: list[dict[str, Any]] | None = None,
) -> Any:
    """Return the judgement of small tables."""
    return lemons(table("signals", signals or []), attempts, table("node_states", states or []), table("gpus", gpus or []))


def test_overdispersed_fleets_keep_the_false_discovery_rate_that_was_asked_for() -> None:
    """Mean over designs and seeds at most 5 %, where the exact test of each node lists several times as many healthy ones."""
    designs = [(300, 2.0, 0.015, 8.0, 30.0), (600, 1.0, 0.015, 8.0, 30.0), (600, 4.0, 0.03, 5.0, 15.0)]

    told = [compare(5, design) for design in designs]

    assert np.mean([one["ours"][0] for one in told]) <= 0.05
    assert np.mean([one["test"][0.05][0] for one in told]) > 0.15
    assert all(one["ours"][1] >= 0.2 * one["lemons"] for one in told)


def test_more_true_lemons_are_found_than_by_the_exact_test_where_that_test_is_valid() -> None:
    """On a Poisson fleet both keep the rate, and Benjamini and Hochberg's procedure loses by the counts being discrete."""
    told = compare(8, (1000, POISSON, 0.03, 5.0, 15.0))

    assert told["ours"][0] <= 0.05
    assert told["test"][0.05][0] <= 0.05
    assert told["ours"][1] > told["test"][0.05][1]


def test_more_true_lemons_are_found_than_by_an_exact_test_that_allows_for_the_spread() -> None:
    """With the fleet's own mean and spread the test keeps the rate, and the lemons in both hide the lemons."""
    told = compare(6, (600, 2.0, 0.02, 6.0, 25.0))

    assert told["spread"][0] <= 0.05
    assert told["ours"][0] <= 0.05
    assert told["ours"][1] > 1.2 * told["spread"][1]


def test_nearly_all_are_found_that_can_be_found_at_the_rate_asked_for() -> None:
    """Against who knows every parameter of the fleet: what is lost by estimating them is less than a tenth."""
    told = [compare(4, design, first=SALT) for design in HELD_OUT if design[0] == 1000]

    best, ours = (sum(one[name][1] for one in told) for name in ("best", "ours"))
    assert np.mean([one["best"][0] for one in told]) <= 0.05
    assert np.mean([one["ours"][0] for one in told]) <= 0.05
    assert best >= ours >= 0.9 * best
    # what the exact test lists beyond that it lists at the price of the rate
    assert sum(one["test"][0.05][1] for one in told) > best
    assert np.mean([one["test"][0.05][0] for one in told]) > 0.08


def test_a_fleet_without_lemons_has_none_listed() -> None:
    """Widely spread healthy rates are no lemons."""
    listed = 0
    for seed in range(20):
        counts, days, _ = fleet(seed, 500, 2.0, 0.0, 1.0, 1.0)
        listed += int(selected(excess(counts, days).lemon, 0.05).any())

    assert listed <= 1


def test_judgement_depends_on_nothing_but_the_data() -> None:
    """Twice the same, and in any order."""
    counts, days, _ = fleet(3, 400, 2.0, 0.02, 8.0, 30.0)
    order = np.random.default_rng(1).permutation(len(counts))

    first, second = excess(counts, days), excess(counts[order], days[order])

    np.testing.assert_allclose(first.lemon[order], second.lemon, atol=1e-9)


def test_shrunk_rates_are_those_of_the_closed_form() -> None:
    """For a gamma prior of known shape a unit's rate is (a + y) / (a/m + e)."""
    random = np.random.default_rng(5)
    exposure = np.full(4000, 10.0)
    counts = random.poisson(random.gamma(2.0, 0.05 / 2.0, 4000) * exposure)

    fit = excess(counts, exposure)

    assert fit.share == 0.0
    assert 1.4 < fit.shape < 2.8
    expected = (fit.shape + counts) / (fit.shape / fit.usual + exposure)
    np.testing.assert_allclose(fit.rate, expected, rtol=0.05)


def test_the_exact_test_used_for_comparison_is_exact() -> None:
    """Tails of Poisson against the sum of the mass function."""
    for count, mean in ((1, 0.3), (4, 2.0), (9, 0.5), (3, 40.0)):
        mass = sum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(count))
        assert poisson_tails(np.array([count]), np.array([mean]))[0] == pytest.approx(1.0 - mass, abs=1e-12)
    counts = np.array([0, 4, 0, 8] * 50)
    mean, shape = 3.0, 1.0 / ((((counts - 3.0) ** 2) - 3.0).sum() / (9.0 * 200))
    tail = spread_tails(counts, np.ones(200))[3]
    draws = np.random.default_rng(1).negative_binomial(shape, shape / (shape + mean), 400_000)
    assert tail == pytest.approx((draws >= 8).mean(), abs=3e-3)
    assert benjamini_hochberg(np.array([0.001, 0.02, 0.03, 0.9]), 0.05).tolist() == [True, True, True, False]
    assert longest(np.array([0.5, 0.99, 0.93, 0.97]), 0.05).tolist() == [False, True, True, True]
    # one node, one factor: Bayes by hand
    chance = knower(np.array([3.0]), np.array([90.0]), 1, POISSON, 0.02, 10.0, 10.0, 0.25)[0]
    odds = 0.02 / 0.98 * 10.0**3 * math.exp(-0.25 * 9.0)
    assert chance == pytest.approx(odds / (1 + odds))
    assert score(np.array([True, True]), np.array([True, False])) == (0.5, 1)


def test_bad_input_is_refused() -> None:
    """Time at risk of zero is no time at risk."""
    with pytest.raises(ValueError, match="exposure"):
        excess([1.0], [0.0])
    with pytest.raises(ValueError, match="length"):
        excess([1.0, 2.0], [1.0])


def test_a_node_that_fails_job_after_job_is_listed_with_its_reasons() -> None:
    """It is named in the list for --exclude; the others are not."""
    attempts = history(
        [failure(f"f{number}", 24 * 5 * number + 5, ["n007"], node="n007") for number in range(9)]
        + [failure("g", 50, ["n011"], node="n011")]
    )
    signals = [
        {"node": "n007", "kind": "xid", "code": "79", "time": at(24 * 5 * number + 5), "cls": "hardware/gpu-lost"}
        for number in range(4)
    ]

    found = judge(attempts, signals)

    assert found.exclude == "n007"
    row = found.units.iloc[0]
    assert row["listed"]
    assert "9 job failures blamed on it" in row["why"]
    assert "79 ×4" in row["why"]
    assert row["blames"] == pytest.approx(9.0)  # Xid and failure of the same hour are one blame


def test_a_node_with_two_jobs_is_no_lemon() -> None:
    """Both failed; in so few hours that says little."""
    attempts = history(
        [
            failure("a", 30, ["new1"], node="new1"),
            failure("b", 60, ["new1"], node="new1"),
            failure("c", 700, ["n001"], node="n001"),
        ]
    )

    found = judge(attempts)

    assert not found.units["listed"].any()
    assert found.exclude == ""


def test_the_failure_of_a_wide_job_weighs_one_in_all() -> None:
    """Without a culprit each of its nodes gets a share; with one, the others get nothing."""
    names = [f"n{node:03}" for node in range(20)]

    shared = judge(history([failure("wide", 100, names)]))
    blamed = judge(history([failure("wide", 100, names, node="n004")]))

    assert shared.units["blames"].sum() == pytest.approx(1.0)
    assert shared.units["blames"].max() == pytest.approx(0.05)
    assert blamed.units.set_index("unit")["blames"].to_dict()["n004"] == 1.0
    assert blamed.units["blames"].sum() == pytest.approx(1.0)


def test_evidence_on_one_node_takes_the_blame_from_the_others_of_the_job() -> None:
    """An Xid that came with the job: the shares of the rest are dropped, and the job's weight is not doubled."""
    names = [f"n{node:03}" for node in range(20)]
    signals = [{"node": "n004", "kind": "xid", "code": "79", "time": at(99.9), "job": "wide", "cls": "hardware/gpu-lost"}]

    found = judge(history([failure("wide", 100, names)]), signals)

    assert found.units.set_index("unit")["blames"].to_dict()["n004"] == pytest.approx(0.5)
    assert found.units["blames"].sum() == pytest.approx(0.5)


def test_a_failure_of_unknown_cause_weighs_as_much_as_those_of_known_cause_say() -> None:
    """Where users fail often most unknown failures are theirs; without known ones the catalog's weight holds, and it is never exceeded."""

    def weighs(users: int, machines: int) -> float:
        known = [failure(f"u{one}", 3 * one + 1, ["n001"], node=None, cause="user", cls="user/exception") for one in range(users)]
        known += [failure(f"m{one}", 30 * one + 2, ["n002"], node="n002") for one in range(machines)]
        found = judge(history([*known, failure("x", 1000, ["n030"], cause="unknown", cls="unknown")]))
        return float(found.units.set_index("unit")["blames"].to_dict()["n030"])

    assert weighs(0, 0) == pytest.approx(signal_weights()["unknown-failure"][0])
    assert weighs(400, 0) == pytest.approx(0.25 * 20 / 420)
    assert weighs(300, 10) == pytest.approx((10 + 5) / 330)
    assert weighs(0, 30) == pytest.approx(0.25)


def test_what_takes_many_nodes_at_once_is_one_blame_of_all() -> None:
    """A switch or a rack's power: nodes without a job in common, within seconds; two nodes may be chance, and each is blamed."""
    rack = [{"node": f"n{node:03}", "state": "down", "begin": at(100 + node / 400), "end": at(104)} for node in range(10, 20)]
    pair = [{"node": f"n{node:03}", "state": "down", "begin": at(500), "end": at(504)} for node in (30, 31)]

    found = judge(history([]), states=rack + pair).units.set_index("unit")["blames"]

    assert [found.to_dict()[f"n{node:03}"] for node in range(10, 20)] == pytest.approx([0.1] * 10)
    assert found.to_dict()["n030"] == found.to_dict()["n031"] == 1.0
    assert found.sum() == pytest.approx(3.0)


def test_a_stretch_without_a_cause_is_what_the_signal_of_its_begin_says() -> None:
    """The platform's is nobody's blame; hardware's is one; one that no signal tells of counts, and so does one that names its cause."""
    states = [{"node": f"n00{node}", "state": "down", "begin": at(100 * node), "end": at(100 * node + 2)} for node in (1, 2, 3)]
    states += [{"node": "n004", "state": "down", "begin": at(400), "end": at(402), "cause": "hardware"}]
    signals = [
        {"node": f"n00{node}", "kind": "out-of-service", "time": at(100 * node), "cls": cls}
        for node, cls in ((1, "platform/network"), (2, "hardware/host"), (4, "platform/network"))
    ]

    found = judge(history([]), signals, states=states).units.set_index("unit")["blames"].to_dict()

    assert [found[f"n00{node}"] for node in (1, 2, 3, 4)] == [0.0, 1.0, 1.0, 1.0]


def test_lemons_of_a_simulated_fleet_are_found_in_its_ledger() -> None:
    """From faults, jobs, users' failures of unknown cause and verdicts of a whole simulation; who is a lemon is in its truth only."""
    found, truth = simulated(1, *FLEETS[0])
    nodes = found.units[found.units["kind"] == "node"]

    assert scores(found, truth)["ours"] == (0.0, len(truth))
    assert len(truth) == 8
    assert found.exclude == fold(sorted(truth))
    # users' failures of unknown cause are many, and are not what a usual node is blamed for
    assert nodes.loc[~nodes["unit"].isin(list(truth)), "blames"].mean() < 0.6


def test_what_users_and_the_platform_did_is_no_blame() -> None:
    """User exceptions, preemptions, Xids of programs, planned maintenance."""
    rows = [
        failure(f"u{number}", 20 * number + 10, ["n003"], node="n003", cause="user", cls="user/exception") for number in range(20)
    ]
    signals = [
        {"node": "n003", "kind": "xid", "code": code, "time": at(30 * number + 1)}
        for number, code in enumerate(("13", "31", "43", "45", "13"))
    ]
    signals += [{"node": "n003", "kind": "job-failure", "cls": "platform/preemption", "time": at(900)}]
    states = [{"node": "n003", "state": "maintenance", "begin": at(1000), "end": at(1010)}]

    found = judge(history(rows), signals, states=states)

    assert found.units["blames"].sum() == 0.0
    assert found.exclude == ""


def test_a_gpu_is_followed_by_its_serial_from_node_to_node() -> None:
    """It failed on two nodes: the GPU is the lemon and excludes where it is now; the node it left is not blamed."""
    gpus = [
        {"gpu_uuid": f"GPU-{node}", "serial": f"S{node}", "node": f"n{node:03}", "begin": at(0)}
        for node in range(40)
        if node != 5
    ]
    gpus += [
        {"gpu_uuid": "GPU-5", "serial": "S5", "node": "n005", "begin": at(0), "end": at(720)},
        {"gpu_uuid": "GPU-5", "serial": "S5", "node": "n021", "begin": at(720)},
    ]
    signals = [
        {
            "node": "n005" if hour < 720 else "n021",
            "gpu_uuid": "GPU-5",
            "kind": "ticket",
            "time": at(hour),
            "cls": "hardware/gpu-memory",
        }
        for hour in range(40, 1400, 130)
    ]

    found = judge(history([failure("x", 300, ["n030"], node="n030")]), signals, gpus)
    units = found.units.set_index("unit")

    assert units.loc["S5", "listed"]
    assert units.loc["S5", "node"] == "n021"
    assert "on 2 nodes in turn" in units.loc["S5", "why"]
    assert units.loc["n005", "blames"] == 0.0
    assert found.exclude == "n021"


def test_what_has_no_hours_is_said_to_be_unjudged() -> None:
    """Fail closed: a node that no table gives hours is not cleared."""
    found = judge(history([]), [{"node": "ghost", "kind": "ticket", "time": at(5)}])
    few = judge(history([], nodes=3))
    nothing = judge(table("attempts", []))

    assert any("ghost" in problem for problem in found.problems)
    assert any("too few" in problem for problem in few.problems)
    assert few.units["chance"].isna().all()
    assert nothing.units.empty


def test_two_clusters_may_have_a_node_of_the_same_name() -> None:
    """They are counted apart."""
    rows = history([]).assign(cluster=pd.array(["a", "b"] * 1200, dtype="string"))

    assert set(judge(rows).units["unit"]) >= {"a/n000", "b/n000"}


def test_no_sign_weighs_more_than_one() -> None:
    """Above 1 the counts' variance would exceed what the fit takes it to be."""
    assert {"job-failure", "excluded", "xid", "ticket", "out-of-service"} <= set(signal_weights())
    assert all(0.0 < weight <= 1.0 for weight, _ in signal_weights().values())


def test_few_certain_lemons_do_not_pay_for_one_that_is_as_likely_healthy() -> None:
    """The mean rate would allow it; how weak the weakest lemons are is what few of them do not tell."""
    few, many = np.array([0.999] * 8 + [0.7] + [0.01] * 100), np.array([0.999] * 30 + [0.7] + [0.01] * 100)
    assert selected(few, 0.05).sum() == 8
    assert selected(many, 0.05).sum() == 31
    assert selected(few, 0.1).sum() == 9
    assert selected(np.where(few == 0.7, 0.85, few), 0.05).sum() == 9
