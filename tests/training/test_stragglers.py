"""Who became slow: against brute force, and against simulated jobs whose truth is known."""

import numpy as np
import pytest

from workbench.training import stragglers
from workbench.training.stragglers import find_stragglers


def job(seed, ranks=32, steps=160, noise=0.04, ratio=1.0, bad=(), at=80, until=None, same=0.0):
    """Times of a healthy job whose steps and ranks differ, with single wild steps, and a truth put into it."""
    rng = np.random.default_rng(seed)
    errors = rng.standard_normal((ranks, steps)) * noise
    for step in range(1, steps):
        errors[:, step] += same * errors[:, step - 1]
    x = np.exp(0.2 * rng.standard_normal(steps) + 0.1 * rng.standard_normal((ranks, 1)) + errors)
    x *= np.where(rng.random(x.shape) < 0.01, 1 + rng.pareto(2, x.shape), 1)
    for rank in bad:
        x[rank, at:until] *= ratio
    return x


def test_the_median_of_the_others_is_that_of_brute_force():
    rng = np.random.default_rng(1)
    for count in (3, 4, 7, 8):
        logs = rng.integers(0, 4, (count, 50)) + 0.0  # many ties
        logs[rng.random(logs.shape) < 0.15] = np.nan
        found, _ = stragglers._against_others(logs, np.zeros(count, dtype=int))
        for row in range(count):
            for column in range(50):
                known = logs[:, column][~np.isnan(logs[:, column])]
                others = np.delete(logs[:, column], row)
                here = logs[row, column] - np.nanmedian(others) if len(known) >= 3 and not np.isnan(logs[row, column]) else np.nan
                assert found[row, column] == pytest.approx(here, nan_ok=True)


def test_the_scan_and_its_bound_are_those_of_brute_force():
    rows = np.random.default_rng(2).standard_normal((5, 40)).astype(np.float32)
    rows -= rows.mean(axis=1, keepdims=True)

    def brute(row):
        return max(
            ((row[at:].mean() - row[:at].mean()) * np.sqrt(at * (len(row) - at) / len(row)), at) for at in range(1, len(row))
        )

    size, at = stragglers._scan(rows)
    assert [(pytest.approx(s, abs=1e-4), a) for s, a in map(brute, rows)] == list(zip(size.tolist(), at.tolist(), strict=True))
    orders = stragglers._orders(40, 7, np.random.default_rng(3))
    assert all(sorted(order) == list(range(40)) for order in orders.tolist())
    found = stragglers._reordered(rows, orders)
    assert found == pytest.approx(np.array([[brute(row[order])[0] for row in rows] for order in orders]), abs=1e-4)
    # 199 orders at 5 %: the tenth largest may be reached by one in twenty
    assert stragglers._bound(np.arange(199.0), 0.05) == 189.0
    assert stragglers._bound(np.arange(9.0), 0.05) == float("inf")  # too few to tell


@pytest.mark.parametrize("same", [0.0, 0.5])
def test_a_job_in_which_nothing_changed_raises_an_alarm_in_one_of_twenty_at_most(same):
    alarms = sum(bool(find_stragglers(job(seed, same=same), minimum=1.0, seed=seed).found) for seed in range(40))
    assert alarms <= 5  # P(more | 5 %) < 2 %; the seeds are fixed


@pytest.mark.parametrize(("ratio", "at"), [(1.1, 80), (1.2, 140), (1.6, 152)])
def test_the_slow_rank_is_found_with_its_step_and_its_factor(ratio, at):
    found = right = 0
    for seed in range(12):
        out = find_stragglers(job(seed, ratio=ratio, bad=(17,), at=at), seed=seed, steps=range(1000, 1160), ranks=range(100, 132))
        hits = [one for one in out.found if one.ranks == (117,)]
        assert len(out.found) - len(hits) <= 1
        if hits and abs(hits[0].since_step - 1000 - at) <= 3:
            found += 1
            right += hits[0].low <= ratio <= hits[0].high
            assert hits[0].confidence >= 0.95
    assert found >= 11
    assert right >= 8


def test_a_slow_rank_is_told_soon():
    x = job(3, ratio=1.3, bad=(5,), at=100)
    delay = next(end - 100 for end in range(101, 160) if any(one.ranks == (5,) for one in find_stragglers(x[:, :end]).found))
    assert delay <= 12


def test_all_ranks_of_a_node_are_one_slow_node_and_one_rank_of_it_is_a_rank():
    nodes = [f"node-{rank // 8}" for rank in range(32)]
    (one,) = find_stragglers(job(4, ratio=1.15, bad=range(8, 16)), nodes=nodes).found
    assert (one.kind, one.node, one.ranks) == ("node", "node-1", tuple(range(8, 16)))
    (one,) = find_stragglers(job(5, ratio=1.5, bad=(9,)), nodes=nodes).found
    assert (one.kind, one.node, one.ranks) == ("rank", "node-1", (9,))


def test_what_hits_all_ranks_is_the_job_and_not_a_straggler():
    (one,) = find_stragglers(job(6, ratio=1.6, bad=range(32)), moments=range(160)).found
    assert one.kind == "job"
    assert abs(one.since_step - 80) <= 3
    assert one.since_time == one.since_step
    assert one.low <= 1.6 <= one.high


def test_a_bad_rank_does_not_hide_another_that_is_less_bad():
    out = find_stragglers(job(7, ratio=3.0, bad=(3,)) * job(8, noise=0.0, ratio=1.12, bad=(20,), at=60))
    assert {one.ranks for one in out.found} == {(3,), (20,)}


def test_stages_that_always_have_more_work_are_no_stragglers_but_a_slow_peer_of_the_same_stage_is():
    x = job(9, noise=0.02)
    x /= np.median(x, axis=1, keepdims=True)
    x[16:] *= 1.5  # the second pipeline stage
    assert find_stragglers(x).found == ()
    x[4] *= 1.2  # from the first step on: a power cap, say
    assert find_stragglers(x).found == ()  # without peers of the same work it cannot be told from more work
    (one,) = find_stragglers(x, groups=["first"] * 16 + ["second"] * 16).found
    assert (one.ranks, one.standing, one.since_step) == ((4,), True, 0)
    assert one.low <= 1.2 <= one.high


def test_of_synchronous_steps_the_straggler_is_who_waits_least():
    compute = job(10, ratio=1.4, bad=(6,))
    together = np.broadcast_to(compute.max(axis=0) + 0.1, compute.shape)
    out = find_stragglers(together * (1 + 1e-5 * np.random.default_rng(0).standard_normal(compute.shape)))
    assert not [one for one in out.found if one.kind != "job"]
    assert "wait for each other" in out.why
    (one,) = [one for one in find_stragglers(together, waits=together - compute).found if one.kind == "rank"]
    assert one.ranks == (6,)


def test_a_rank_that_recovered_is_told_with_the_step_of_it():
    (one,) = find_stragglers(job(11, ratio=1.8, bad=(2,), at=60, until=110)).found
    assert one.ranks == (2,)
    assert abs(one.since_step - 60) <= 3
    assert abs(one.until_step - 110) <= 3


def test_what_cannot_be_told_is_said():
    assert "too few" in find_stragglers(np.ones((8, 10))).why
    assert "fewer than 3" in find_stragglers(job(1, ranks=2)).why
    assert "fewer than 3" in find_stragglers(job(1, ranks=8), groups=[0, 0, 1, 1, 2, 2, 3, 3]).why
    assert "too few steps are known" in find_stragglers(np.where(np.arange(40) < 8, 1.0, np.nan) * np.ones((8, 1))).why
    x = job(2)
    x[5, 10:] = np.nan
    x[:, 30] = np.nan
    out = find_stragglers(x)
    assert "1 of 32 ranks could not be compared" in out.why
    many = find_stragglers(job(12, ratio=1.5, bad=range(12)))
    assert not [one for one in many.found if one.kind != "job"]
    assert many.found or "dealt out anew" in many.why


@pytest.mark.slow
def test_a_large_job_takes_seconds():
    import time

    x = job(13, ranks=16384, steps=240, ratio=1.1, bad=(1234,), at=120)
    began = time.process_time()
    out = find_stragglers(x, nodes=[f"n{rank // 8}" for rank in range(16384)])
    assert [one.ranks for one in out.found] == [(1234,)]
    assert time.process_time() - began < 120  # some seconds on a machine of its own
