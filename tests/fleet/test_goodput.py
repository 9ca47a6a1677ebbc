"""The waterfall: it sums exactly, whatever was told; derived times, overlaps, gaps, lost steps."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fleet.account_frames import frame
from tests.fleet.account_times import TWO, T, account, at, jobs, seconds
from workbench.fleet import ettr
from workbench.fleet.goodput import MEANINGS, Waterfall, goodput, spread, waterfall
from workbench.fleet.tables import PHASES
from workbench.fleet.timeline import KINDS, PRIORITY, segments


def test_without_phases_the_times_of_attempts_say_what_they_can() -> None:
    cut = account({"submitted": 0, "started": 10, "ended": 200}, TWO)
    assert seconds(cut) == {"queue": 20, "init": 20, "step": 120, "lost": 20, "detect": 5, "diagnose": 5, "recover": 10}
    assert seconds(cut, denominator="scheduled") == {**seconds(cut), "queue": 10}
    assert seconds(cut, denominator="allocated") == {"init": 20, "step": 120, "lost": 20}
    (weighted,) = waterfall(cut, weight="gpus", denominator="allocated")
    assert weighted.total == 8 * 160 * 1_000_000
    assert weighted.unit == "GPU-hours"


def test_what_was_told_of_an_attempt_is_taken_instead() -> None:
    phases = [(1, "start", 10, 14), (1, "init", 14, 18), (1, "restore", 15, 17), (1, "step", 18, 90), (1, "save", 50, 53), (1, "data", 51, 60), (1, "slow", 70, 71), (1, "detect", 85, 95)]  # fmt: skip
    cut = account(
        {"submitted": 0, "started": 10, "ended": 100},
        [{"attempt": 1, "queued": 0, "started": 10, "ended": 100, "state": "completed"}],
        phases,
    )
    # restore is narrower than init, of a write and a wait at once the write counts, and a hang looks like a long step; 95 to 100 the nodes were
    # held and nobody told what for
    found = seconds(cut)
    assert found.pop("unknown") == 5
    assert found.pop("queue") == 10  # told of the attempt itself
    assert found == {"start": 4, "init": 2, "restore": 2, "save": 3, "data": 7, "slow": 1, "detect": 10, "step": 56}
    one = goodput(waterfall(cut)[0])
    assert (one.value, one.low, one.high) == (0.56, 0.56, 0.61)
    assert one.method == "from all unknown time wasted to all of it productive"


def test_a_job_of_which_only_its_times_are_known_has_unknown_time_and_no_goodput_of_zero_for_sure() -> None:
    one = goodput(waterfall(segments(jobs(at({"submitted": 0, "started": 10, "ended": 100})), until=T + 100))[0])
    assert (one.value, one.low, one.high) == (0, 0, 0.9)
    none = goodput(waterfall(segments(jobs(), until=T))[0])
    assert (none.value, none.low, none.high) == (None, None, None)
    # a beginning that nobody told
    assert segments(jobs({"ended": T + 5}), until=T + 10).empty


def test_a_running_job_is_counted_up_to_now() -> None:
    cut = segments(jobs(at({"submitted": 0, "started": 10, "first_step": 20, "state": "running"})), until=T + 50)
    assert seconds(cut) == {"queue": 10, "init": 10, "step": 30}
    over = segments(jobs(at({"submitted": 0, "started": 10, "first_step": 20, "ended": 40})), until=T + 50)
    assert seconds(over) == {"queue": 10, "init": 10, "step": 20}


def test_steps_that_a_later_attempt_made_again_are_lost_also_beyond_one_attempt() -> None:
    rows = [
        {"attempt": 1, "started": 0, "first_step": 0, "ended": 100, "state": "failed", "step_first": 1, "step_last": 100},
        {"attempt": 2, "started": 100, "first_step": 100, "ended": 150, "state": "failed", "step_first": 91, "step_last": 140},
        # the newest checkpoints were torn: it begins before the second attempt did
        {"attempt": 3, "started": 150, "first_step": 150, "ended": 300, "state": "completed", "step_first": 51, "step_last": 200},
    ]
    cut = account({"submitted": 0, "started": 0, "ended": 300}, rows)
    lost = cut[cut["kind"] == "lost"]
    assert [
        (a, (b - T * 10**6) / 1e6, (e - T * 10**6) / 1e6)
        for a, b, e in zip(lost["attempt"], lost["begin"], lost["end"], strict=True)
    ] == [(1, 50, 100), (2, 100, 150)]
    assert seconds(cut) == {"step": 200, "lost": 100}


@pytest.mark.parametrize(
    ("state", "lost"), [("failed", 40), ("preempted", 40), ("timeout", 40), ("completed", 0), ("running", 0)]
)
def test_what_the_last_attempt_did_not_save_is_lost_unless_it_completed_or_runs(state: str, lost: float) -> None:
    row = {
        "attempt": 1,
        "started": 0,
        "first_step": 0,
        "ended": 100,
        "state": state,
        "step_first": 1,
        "step_last": 100,
        "step_saved": 60,
    }
    cut = account({"submitted": 0, "started": 0, "ended": 100, "state": state}, [row])
    assert seconds(cut).get("lost", 0) == lost


def test_lost_steps_that_were_told_are_not_counted_twice() -> None:
    phases = [(1, "step", 20, 70), (1, "lost", 70, 100)]
    cut = account({"submitted": 0, "started": 10, "ended": 200}, TWO, phases)
    assert seconds(cut)["lost"] == 30


def test_lost_time_passes_over_what_was_no_step() -> None:
    rows = [{**TWO[0], "detected": None, "diagnosed": None}, TWO[1]]
    cut = account({"submitted": 0, "started": 10, "ended": 200}, rows, [(1, "step", 20, 100), (1, "save", 85, 90)])
    # 75 s of steps, a quarter of them lost: 18.75 s back from the end, 5 s of writing not among them
    assert seconds(cut)["lost"] == 18.75
    assert seconds(cut)["save"] == 5
    assert cut.loc[cut["kind"] == "lost", "begin"].min() == T * 10**6 + 76_250_000


def test_the_dimension_of_an_attempt_is_the_time_from_its_waiting_to_the_next_ones() -> None:
    cut = account({"submitted": 0, "started": 10, "ended": 200}, TWO)
    parts = {dict(one.by)["attempt"]: one.total / 1e6 for one in waterfall(cut, by=["attempt"])}
    assert parts == {"1": 120, "2": 80}
    # one that stood in the queue while the one before it ran has not taken its time
    early = account({"submitted": 0, "started": 10, "ended": 200}, [TWO[0], {**TWO[1], "queued": 50}])
    assert {dict(one.by)["attempt"]: one.total / 1e6 for one in waterfall(early, by=["attempt"])} == {"1": 100, "2": 100}


def test_a_weight_that_nobody_told_leaves_the_job_out_and_says_so() -> None:
    cut = segments(frame("jobs", [at({"job": "1", "state": "completed", "submitted": 0, "ended": 10}), at({"job": "2", "state": "completed", "submitted": 0, "ended": 10, "gpus": 4})]), until=T + 10)  # fmt: skip
    (one,) = waterfall(cut, weight="gpus")
    assert one.total == 40_000_000
    assert one.notes == ("1 jobs left out: their number of GPUs was not told",)
    assert one.jobs == 1


def test_wrong_words_are_refused_by_name() -> None:
    cut = segments(jobs(), until=T)
    with pytest.raises(ValueError, match="the denominator is one of elapsed, scheduled, allocated"):
        waterfall(cut, denominator="wall")
    with pytest.raises(ValueError, match="colour: no dimension"):
        waterfall(cut, by=["colour"])
    with pytest.raises(ValueError, match="team: the jobs are needed"):
        waterfall(cut, by=["team"])


def test_every_kind_has_a_place_and_a_meaning() -> None:
    assert set(KINDS) == set(PRIORITY) == set(MEANINGS) == {*PHASES, "unknown"}
    assert {kind for kinds in ettr.TERMS.values() for kind in kinds} | {"step"} == set(KINDS)


def test_printed_percents_add_up_to_one_hundred() -> None:
    one = Waterfall({"step": 1, "lost": 1, "queue": 1})
    assert one.percents() == {"step": "33.3", "lost": "33.4", "queue": "33.3"}
    dice = random.Random(3)
    for _ in range(300):
        parts = {kind: dice.choice([0, 1, dice.randrange(10**15)]) for kind in KINDS}
        parts["step"] += 1
        for digits in (0, 1, 3):
            assert sum(map(Fraction, Waterfall(parts).percents(digits).values())) == 100
    assert set(Waterfall(dict.fromkeys(KINDS, 0)).percents().values()) == {""}


def test_stretches_of_a_kind_have_a_spread_and_none_where_nothing_was_told() -> None:
    found = spread(account({"submitted": 0, "started": 10, "ended": 200}, TWO), ["queue", "save"])
    assert found["queue"] == {"stretches": 2, "mean": 10, "median": 10, "p90": 10, "longest": 10}
    assert found["save"] == {"stretches": 0, "mean": None, "median": None, "p90": None, "longest": None}


# ---- whatever is told

MICRO = st.integers(0, 60_000_000)
PHASE = st.tuples(st.integers(1, 3), st.sampled_from(PHASES), MICRO, MICRO)
ATTEMPT = st.fixed_dictionaries(
    {
        name: st.one_of(st.none(), MICRO)
        for name in ("queued", "started", "first_step", "ended", "detected", "diagnosed")
    }
    | {name: st.one_of(st.none(), st.integers(0, 50)) for name in ("step_first", "step_last", "step_saved")}
    | {"state": st.sampled_from(["failed", "completed", "running", "preempted", None]), "gpus": st.one_of(st.none(), st.integers(1, 9))}
)  # fmt: skip


def told(rows: list[tuple[dict[str, Any], list[dict[str, Any]], list[Any]]]) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Jobs as frames, with their times in microseconds after T put in exactly."""

    def made(table: str, records: list[dict[str, Any]]) -> pd.DataFrame:
        names = {"submitted", "queued", "started", "first_step", "ended", "detected", "diagnosed", "begin", "end"}
        plain = frame(table, [{key: value for key, value in row.items() if key not in names} for row in records])
        for name in names & set(plain):
            cells = [row.get(name) for row in records]
            moments = pd.Series([None if cell is None else T * 10**6 + cell for cell in cells], dtype="Int64")
            plain[name] = pd.to_datetime(moments, unit="us", utc=True).astype("datetime64[us, UTC]")
        return plain

    jobs_, attempts, phases = [], [], []
    for number, (job, starts, spans) in enumerate(rows):
        jobs_.append({"job": str(number), **job})
        attempts += [{"job": str(number), "attempt": n, **row} for n, row in enumerate(starts, 1)]
        # two of a kind and beginning are one row
        unique = {(n, kind, min(a, b)): max(a, b) for n, kind, a, b in spans}
        phases += [
            {"job": str(number), "attempt": n, "kind": kind, "begin": begin, "end": end}
            for (n, kind, begin), end in unique.items()
        ]
    return made("jobs", jobs_), made("attempts", attempts), made("phases", phases)


JOB = st.fixed_dictionaries(
    {"submitted": st.one_of(st.none(), MICRO), "ended": st.one_of(st.none(), MICRO), "state": st.sampled_from(["failed", "completed", "running"]), "gpus": st.one_of(st.none(), st.integers(1, 9))}
)  # fmt: skip
ROWS = st.lists(st.tuples(JOB, st.lists(ATTEMPT, max_size=3), st.lists(PHASE, max_size=8)), min_size=1, max_size=3)
UNTIL = T + 60


@settings(max_examples=20)
@given(ROWS)
def test_whatever_is_told_each_jobs_time_is_covered_once_and_the_waterfall_sums_exactly(rows: Any) -> None:
    cut = segments(*told(rows), until=UNTIL)
    total = 0
    for _, part in cut.groupby("job"):
        assert (part["end"] > part["begin"]).all()
        assert part["begin"].tolist()[1:] == part["end"].tolist()[:-1]  # neither gap nor overlap
        total += part["end"].iloc[-1] - part["begin"].iloc[0]
    (whole,) = waterfall(cut)
    assert sum(whole.parts.values()) == whole.total == total
    if total:
        assert sum(whole.share(kind) or 0 for kind in KINDS) == 1
        assert sum(map(Fraction, whole.percents().values())) == 100
    for by in (["job"], ["job", "attempt"], ["week"]):
        pieces = Counter()  # type: ignore[var-annotated]
        for one in waterfall(cut, by=by):
            pieces.update(one.parts)
        assert +pieces == +Counter(whole.parts)


@settings(max_examples=10)
@given(ROWS, st.lists(MICRO, max_size=3))
def test_a_window_cut_into_pieces_holds_the_same(rows: Any, edges: list[int]) -> None:
    cut = segments(*told(rows), until=UNTIL)
    for weight in ("time", "gpus"):
        (whole,) = waterfall(cut, weight=weight)
        summed = Counter()  # type: ignore[var-annotated]
        bounds = [pd.Timestamp(T * 10**6 + edge, unit="us", tz="UTC") for edge in sorted({0, 60_000_000, *edges})]
        for since, until in pairwise(bounds):
            summed.update(waterfall(cut, since=since, until=until, weight=weight)[0].parts)
        assert +summed == +Counter(whole.parts)


@settings(max_examples=10)
@given(ROWS, st.randoms(use_true_random=False))
def test_phases_told_in_pieces_or_in_another_order_say_the_same(rows: Any, dice: random.Random) -> None:
    pieces = []
    for job, starts, spans in rows:
        split = []
        for number, kind, a, b in spans:
            low, high = min(a, b), max(a, b)
            middle = dice.randint(low, high)
            split += (
                [(number, kind, middle, high), (number, kind, low, middle)]
                if low < middle < high
                else [(number, kind, low, high)]
            )
        dice.shuffle(split)
        pieces.append((job, starts, split))
    # of two that begin together the longer stands in both ways of telling, so that pieces must not replace each other
    for (_, _, spans), (_, _, split) in zip(rows, pieces, strict=True):
        if len({(n, kind, min(a, b)) for n, kind, a, b in spans}) < len(spans) or len({row[:3] for row in split}) < len(split):
            return
    one, other = segments(*told(rows), until=UNTIL), segments(*told(pieces), until=UNTIL)
    assert one.equals(other)


def test_a_walk_over_every_second_gives_the_same_waterfall() -> None:
    dice = random.Random(11)
    all_jobs, attempts, phases, wanted = [], [], [], {}
    for number in range(60):
        end = dice.randint(10, 60)
        start = dice.randint(0, end)
        spans = [(dice.choice(PHASES), *sorted((dice.randint(0, 60), dice.randint(0, 60)))) for _ in range(dice.randint(0, 8))]
        spans = list({row[:2]: row for row in spans}.values())
        job = {"job": str(number), "state": "completed"}
        all_jobs.append(at({**job, "submitted": 0, "ended": end}))
        attempts.append(at({**job, "attempt": 1, "queued": 0, "started": start, "ended": end}))
        phases += [at({"job": str(number), "attempt": 1, "kind": kind, "begin": low, "end": high}) for kind, low, high in spans]
        found: Counter[str] = Counter()
        for second in range(end):
            kinds = {kind for kind, low, high in spans if low <= second < high} | {
                "idle",
                "unknown" if second >= start else "queue",
            }
            found[min(kinds, key=PRIORITY.index)] += 1
        wanted[str(number)] = dict(found)
    cut = segments(frame("jobs", all_jobs), frame("attempts", attempts), frame("phases", phases), until=T + 60)
    assert {
        dict(one.by)["job"]: {kind: part / 1e6 for kind, part in one.parts.items() if part} for one in waterfall(cut, by=["job"])
    } == wanted
