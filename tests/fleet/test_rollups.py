"""The weekly counts equal a count of everything, whatever was written, corrected and deleted, and in whichever order."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.fleet import rollups
from workbench.fleet.ledger import Ledger
from workbench.fleet.tables import JOB_STATES

MONDAY = 1_779_667_200.0  # 2026-05-25T00:00Z
WEEK = 7 * 86400.0

rows = st.fixed_dictionaries(
    {
        "cluster": st.sampled_from(["", "b"]),
        "job": st.sampled_from(["1", "2", "3", "4"]),
        "state": st.sampled_from([None, *JOB_STATES]),
        "cause": st.sampled_from([None, "", "hardware", "user", "unknown"]),
        "started": st.none() | st.floats(MONDAY - WEEK, MONDAY + WEEK),
        "first_step": st.none() | st.just(MONDAY),
        "ended": st.none() | st.floats(MONDAY - WEEK, MONDAY + WEEK) | st.sampled_from([MONDAY, MONDAY - 1e-6, MONDAY + WEEK]),
        "gpus": st.none() | st.integers(0, 20000),
        "source": st.sampled_from([None, "slurm", "folder:x", "run"]),
        "recorded": st.integers(1, 5).map(float),
    }
)
steps = st.lists(
    st.one_of(
        rows,
        st.lists(rows, min_size=50, max_size=60),
        st.tuples(st.sampled_from(["", "b"]), st.sampled_from(["1", "2", "3", "4"])),
    ),
    max_size=15,
)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    with Ledger.open(tmp_path_factory.mktemp("rollups") / "a.sqlite") as one:
        one._connection.execute("PRAGMA synchronous = OFF")
        yield one


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(steps)
def test_the_counts_equal_a_count_of_everything_after_any_writes(ledger: Ledger, taken: list[Any]) -> None:
    with ledger.batch():
        for table in ("jobs", "attempts"):
            ledger._connection.execute(f"DELETE FROM {table}")
    for step in taken:
        if isinstance(step, tuple):
            ledger.delete("jobs", [dict(zip(("cluster", "job"), step, strict=True))])
            continue
        told = step if isinstance(step, list) else [step]
        ledger.put("jobs", told)
        ledger.put("attempts", [{**row, "attempt": 1} for row in told])
    assert ledger.check() == []
    starts = ledger.totals(("week", "source", "told"), of="starts")
    assert {(row["week"], row["source"], row["told"]): row["count"] for row in starts} == _starts_by_hand(ledger.rows("jobs"))
    assert _by_hand(ledger.rows("jobs")) == {
        (row["week"], row["cluster"], row["cause"], row["state"]): (row["count"], row["gpu_ms"])
        for row in ledger.totals(rollups.KEYS)
    }


def _starts_by_hand(told: list[dict[str, Any]]) -> dict[tuple[Any, ...], int]:
    given = [row for row in told if row["started"] is not None]
    return dict(Counter((_monday(row["started"]), row["source"] or None, row["first_step"] is not None) for row in given))


def _monday(moment: float) -> float:
    return pd.Timestamp(moment, unit="s").to_period("W-SUN").start_time.timestamp()


def _by_hand(told: list[dict[str, Any]]) -> dict[tuple[Any, ...], tuple[int, int]]:
    counts: Counter[tuple[Any, ...]] = Counter()
    held: Counter[tuple[Any, ...]] = Counter()
    for row in told:
        week = None if row["ended"] is None else _monday(row["ended"])
        key = (week, row["cluster"], row["cause"], row["state"])
        counts[key] += 1
        if None not in (row["started"], row["ended"], row["gpus"]):
            product = row["gpus"] * (row["ended"] - row["started"]) * 1000
            held[key] += max(0, int(product + 0.5) if product >= 0 else 0)
    return {key: (number, held[key]) for key, number in counts.items()}


def test_another_program_that_deletes_a_row_by_hand_changes_the_counts_as_well(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "a.sqlite") as ledger:
        ledger.put("jobs", [{"job": str(one), "state": "failed", "ended": MONDAY} for one in range(100)])
        raw = sqlite3.connect(tmp_path / "a.sqlite")
        raw.execute("DELETE FROM jobs WHERE job < '5'")
        raw.execute("UPDATE jobs SET state = 'completed' WHERE job = '7'")
        raw.execute("INSERT INTO jobs (cluster, job, state, recorded) VALUES ('', 'new', 'running', 1)")
        raw.commit()
        raw.close()
        assert ledger.check() == []
        assert {row["state"] for row in ledger.totals(("state",))} == {"failed", "completed", "running"}


def test_a_count_that_differs_is_found(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "a.sqlite") as ledger:
        ledger.put("jobs", [{"job": "1", "state": "failed", "ended": MONDAY}])
        ledger._connection.execute("UPDATE jobs_weekly SET count = 2")
        assert ledger.check() == ["jobs_weekly"]


def test_the_order_in_which_records_come_does_not_change_the_counts(tmp_path: Path) -> None:
    rng = random.Random(3)
    told = [
        {"job": str(one % 40), "state": rng.choice(JOB_STATES), "cause": rng.choice([None, "user", "driver"]), "started": MONDAY, "gpus": rng.randrange(64),
         "ended": MONDAY + rng.random() * 3 * WEEK, "source": "slurm", "recorded": float(at)}
        for at, one in enumerate(rng.choices(range(400), k=400))
    ]  # fmt: skip
    seen = []
    for turn in range(5):
        with Ledger.open(tmp_path / f"{turn}.sqlite") as ledger:
            for at in range(0, len(told), 70 if turn % 2 else 7):
                ledger.put("jobs", told[at : at + (70 if turn % 2 else 7)])
            seen.append((ledger.totals(rollups.KEYS), ledger.rows("jobs")))
        rng.shuffle(told)
    assert all(one == seen[0] for one in seen)


def test_weeks_begin_on_monday_and_what_has_not_ended_is_in_none(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "a.sqlite") as ledger:
        ends = [MONDAY - 1, MONDAY, MONDAY + WEEK - 1, MONDAY + WEEK]
        ledger.put(
            "jobs", [{"job": str(end), "state": "completed", "started": end - 3600, "ended": end, "gpus": 2} for end in ends]
        )
        ledger.put(
            "jobs", [{"job": "r", "state": "running", "started": MONDAY}, {"job": "x", "state": "failed", "ended": MONDAY + 1}]
        )
        frame = ledger.counts(("week", "state"))
        some = ledger.totals(("state",), since=MONDAY, until=MONDAY + WEEK)
        assert [(row["state"], row["count"], row["ended"]) for row in some] == [("completed", 2, 2), ("failed", 1, 0)]
        assert [row["count"] for row in ledger.totals((), since=MONDAY + 1)] == [1]  # that week began before
        assert [(row["week"], row["count"]) for row in ledger.totals(("week",), state="running")] == [(None, 1)]
    assert frame["week"].isna().sum() == 1
    assert frame["gpu_hours"].sum() == 8
    assert str(frame["week"].dtype) == "datetime64[us, UTC]"


def test_nothing_counted_is_no_figure_rather_than_zero_hours(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "a.sqlite") as ledger:
        assert ledger.totals(("cause",)) == []
        assert ledger.counts(("week", "cause")).empty
        with pytest.raises(ValueError, match="none of"):
            ledger.counts(("user",))
        with pytest.raises(ValueError, match="none of"):
            ledger.totals(("week",), of="users")
