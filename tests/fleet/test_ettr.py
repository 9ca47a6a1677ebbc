"""ETTR as it was and as the formula expects it: the paper's words, terms that add up, played jobs; times to detect and diagnose."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fleet.account_frames import frame
from tests.fleet.account_times import TWO, T, account, at, jobs, seconds
from workbench.fleet.ettr import Parameters, compare, expected, measured_parameters, response_times
from workbench.fleet.timeline import segments


def test_ettr_by_formula_is_the_papers() -> None:
    # 1 - N r (u0 + dt/2) over 1 + w/dt, by hand: 10 nodes, one failure per node and 100 days, 600 s to restart, hourly checkpoints of 36 s
    value, terms, notes = expected(Parameters(10, 0.01, 600, 3600, 36))
    assert value == pytest.approx((1 - 0.1 / 86400 * (600 + 1800)) / 1.01)
    assert 1 - value == pytest.approx(sum(terms.values()))
    assert terms["saving"] == pytest.approx(36 / 3636)
    assert notes == ()
    assert "losses as small" in expected(Parameters(2048, 0.0065, 600, 3600, 36))[2][0]
    assert "does not hold" in expected(Parameters(200_000, 0.0065, 600, 3600, 36))[2][0]


@given(st.floats(1, 1e4), st.floats(0, 0.1), st.floats(0, 1e4), st.floats(1, 1e5), st.floats(0, 1e4), st.floats(0, 1e4))
def test_the_terms_of_the_formula_add_up_to_what_it_loses(
    nodes: float, rate: float, overhead: float, interval: float, save: float, queue: float
) -> None:
    value, terms, _ = expected(Parameters(nodes, rate, overhead, interval, save, queue))
    assert 1 - value == pytest.approx(sum(terms.values()), rel=1e-9, abs=1e-9)


def test_the_difference_of_ettr_and_formula_is_explained_term_by_term() -> None:
    phases = [(1, "step", 20, 100), (1, "save", 50, 54), (2, "step", 140, 200), (2, "save", 170, 172)]
    cut = account({"submitted": 0, "started": 10, "ended": 200}, TWO, phases)
    attempts = frame("attempts", [at({"job": "1", **row}) for row in TWO])
    parameters, notes = measured_parameters(cut, jobs(at({"submitted": 0, "ended": 200})), attempts)
    assert parameters is not None
    assert (parameters.nodes, parameters.interval, parameters.save) == (1, 67, 3)  # 134 s of steps and lost ones, 2 saves of 6 s
    assert parameters.rate == pytest.approx(1 / (160 / 86400))
    one = compare(cut, parameters, notes=notes)
    assert one.measured == pytest.approx(seconds(cut)["step"] / 200)
    assert 1 - one.measured == pytest.approx(sum(lost for _, lost, _ in one.terms))
    assert one.difference == pytest.approx(sum(lost - wanted for _, lost, wanted in one.terms))
    named = {name: (lost, wanted) for name, lost, wanted in one.terms}
    assert named["detection"][1] == named["recovery"][1] == 0  # the formula has no word for them
    assert any("rate from these jobs: 1 failures" in note for note in one.notes)


def test_without_told_checkpoints_there_is_no_formula_and_it_says_why() -> None:
    cut = account({"submitted": 0, "started": 10, "ended": 200}, TWO)
    parameters, notes = measured_parameters(
        cut, jobs(at({"submitted": 0, "ended": 200})), frame("attempts", [at({"job": "1", **row}) for row in TWO])
    )
    assert parameters is None
    assert notes == ("no checkpoint's write was told: phases of kind save are needed",)
    one = compare(cut, None, notes=notes)
    assert (one.measured, one.expected, one.difference) == (0.6, None, None)


@pytest.mark.slow
def test_ettr_of_many_played_jobs_comes_near_the_formula_when_losses_are_small() -> None:
    """Jobs in which only what the formula knows happens: failures at random, hourly checkpoints, a fixed time to come back."""
    dice = random.Random(4)
    rate, overhead, interval, save = 1 / 90_000, 300.0, 3600.0, 60.0
    attempts, phases, made = [], [], []
    for number in range(60):
        now, step, count = 0.0, 0, 1
        while step < 20 * 3600:
            began, first, moment, saved = now, now + overhead, now + overhead, step
            dies = first + dice.expovariate(rate)
            spans = []
            while moment < dies and step < 20 * 3600:
                spans.append(("step", moment, min(moment + interval, dies)))
                moment += interval
                if moment < dies:
                    step += 3600
                    if step < 20 * 3600:
                        spans.append(("save", moment, min(moment + save, dies)))
                        moment += save
                        saved = step if moment < dies else saved
            over = step >= 20 * 3600
            now = moment if over else dies
            last = saved + int(sum(e - b for kind, b, e in spans if kind == "step"))
            attempts.append(at({"job": str(number), "attempt": count, "queued": began, "started": began, "first_step": first, "ended": now, "state": "completed" if over else "failed", "step_first": (attempts[-1]["_saved"] if count > 1 else 0) + 1, "step_last": last, "_saved": saved}))  # fmt: skip
            attempts[-1]["step_last"] = attempts[-1]["step_first"] + int(sum(e - b for kind, b, e in spans if kind == "step")) - 1
            phases += [at({"job": str(number), "attempt": count, "kind": kind, "begin": b, "end": e}) for kind, b, e in spans]
            phases.append(at({"job": str(number), "attempt": count, "kind": "init", "begin": began, "end": first}))
            step, count = (step if over else saved), count + 1
        made.append(
            at({"job": str(number), "state": "completed", "submitted": 0, "started": 0, "ended": now, "nodes": 1, "gpus": 8})
        )
    all_jobs = frame("jobs", made)
    cut = segments(all_jobs, frame("attempts", attempts), frame("phases", phases), until=T + 10**8)
    one = compare(cut, Parameters(1, rate * 86400, overhead, interval, save))
    assert one.measured == pytest.approx(one.expected, abs=0.01)
    named = {name: (lost, wanted) for name, lost, wanted in one.terms}
    for name in ("saving", "lost steps"):
        assert named[name][0] == pytest.approx(named[name][1], abs=0.006)


def test_times_to_detect_and_diagnose_count_what_nobody_told_apart() -> None:
    rows = [
        {"attempt": 1, "ended": 100, "detected": 130, "diagnosed": 190, "state": "failed"},
        {"attempt": 2, "ended": 200, "detected": 150, "state": "failed"},  # a hang that was seen before it ended
        {"attempt": 3, "ended": 300, "state": "failed"},
        {"attempt": 4, "ended": 400, "detected": 500, "state": "completed"},
        {"attempt": 5, "ended": 9000, "detected": 9500, "state": "failed"},
    ]
    detect, diagnose = response_times(frame("attempts", [at({"job": "1", **row}) for row in rows]), since=T, until=T + 1000)
    assert (detect.value, detect.numerator, detect.denominator) == (15, 30, 2)
    assert detect.notes[-1] == "1 failures left out: nobody told when"
    assert (diagnose.value, diagnose.denominator) == (60, 1)
    none = response_times(frame("attempts", []), since=T, until=T + 1000)[0]
    assert none.value is None
