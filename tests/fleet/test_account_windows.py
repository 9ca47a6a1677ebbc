"""Windows of the account: whole weeks, relative or by their dates; answers agree with counts made by hand, and with each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from workbench.fleet import account
from workbench.fleet.account import Account, span_of, span_written
from workbench.fleet.ledger import Ledger

WEEK = 7 * 86400.0
MONDAY = 1_777_852_800.0  # 2026-05-04
NOW = MONDAY + 2 * 86400.0


def attempt(job: str, ended: float, state: str = "completed", **more: Any) -> dict[str, Any]:
    return {
        "cluster": "", "job": job, "attempt": 1, "started": ended - 3600, "ended": ended, "state": state, "gpus": 8, "source": "test",
        "recorded": NOW, "node_names": ["n1"], **more,
    }  # fmt: skip


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Three weeks: two failures of hardware in one, one of the user in another, none in the last."""
    rows = [
        attempt("a", MONDAY - 2 * WEEK + 7200, "failed", cause="hardware", cls="hardware/gpu-lost"),
        attempt("b", MONDAY - 2 * WEEK + 9000, "failed", cause="hardware", cls="hardware/gpu-lost"),
        attempt("c", MONDAY - WEEK + 9000, "timeout"),
        attempt("d", MONDAY + 7200, cluster="second"),
        attempt("e", MONDAY - WEEK + 9000),
    ]
    jobs = [
        {name: value for name, value in row.items() if name not in ("attempt", "node_names")} | {"submitted": row["started"], "team": "x"}
        for row in rows
    ]  # fmt: skip
    with Ledger.open(tmp_path / "fleet.sqlite") as ledger:
        ledger.put("attempts", rows)
        ledger.put("jobs", jobs)
        yield ledger


class TestWindow:
    @pytest.mark.parametrize(
        ("text", "since", "until"),
        [
            ("1w", MONDAY, NOW),
            ("8w", MONDAY - 7 * WEEK, NOW),
            ("2026-04-20/2026-05-04", MONDAY - 2 * WEEK, MONDAY),
            ("2026-04-22/2026-04-29", MONDAY - 2 * WEEK, MONDAY),
            ("2026-05-04/2026-05-11", MONDAY, MONDAY + WEEK),
        ],
    )
    def test_a_window_is_of_whole_weeks(self, text: str, since: float, until: float) -> None:
        assert span_of(text, NOW) == (since, until)

    def test_a_window_that_ends_on_monday_night_has_no_week_more(self) -> None:
        assert span_of("1w", MONDAY) == (MONDAY - WEEK, MONDAY)

    def test_a_ledger_that_ended_long_ago_is_shown_where_it_ended(self) -> None:
        assert span_of("4w", NOW, last=MONDAY - 40 * WEEK) == (MONDAY - 43 * WEEK, MONDAY - 39 * WEEK)
        assert span_of("4w", NOW, last=MONDAY - 2 * WEEK) == (MONDAY - 3 * WEEK, NOW)

    @pytest.mark.parametrize(
        "text", ["", "w", "0w", "8", "yesterday", "2026-05-04", "2026-05-11/2026-05-04", "2026-13-01/2026-14-01", "-1w"]
    )
    def test_what_is_no_window_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match=r".+"):
            span_of(text, NOW)

    def test_a_window_is_read_as_it_is_written(self) -> None:
        assert span_written(MONDAY - WEEK, NOW) == "2026-04-27/2026-05-11"
        assert span_of(span_written(MONDAY - 3 * WEEK, MONDAY - WEEK), NOW) == (MONDAY - 3 * WEEK, MONDAY - WEEK)


class TestAnswers:
    def test_failures_are_counted_by_week_and_cause_of_all_that_ended(self, ledger: Ledger) -> None:
        read = Account.read(ledger, "3w", now=NOW)
        told = {(row["week"], row["cause"]): (row["attempts"], row["of"]) for row in read.failures_by_week}

        assert len(told) == 15
        assert told[MONDAY - 2 * WEEK, "hardware"] == (2, 2)
        assert sum(of for (_, cause), (_, of) in told.items() if cause == "user") == 5
        assert sum(count for count, _ in told.values()) == 3
        assert told[MONDAY, "hardware"] == (0, 1)

    def test_only_attempts_that_ended_in_the_window_are_listed(self, ledger: Ledger) -> None:
        read = Account.read(ledger, "2026-04-20/2026-04-27", now=NOW)

        assert list(read.failed["job"]) == ["b", "a"]
        assert len(read.costs) == 2

    def test_one_cluster_is_told_apart_and_all_are_named(self, ledger: Ledger) -> None:
        read = Account.read(ledger, "3w", cluster="second", now=NOW)

        assert read.clusters == ("", "second")
        assert list(read.frames["jobs"]["job"]) == ["d"]
        assert sum(row["count"] for row in read.counts) == 1

    def test_weeks_of_which_nothing_is_told_are_empty_and_not_zero(self, ledger: Ledger) -> None:
        read = Account.read(ledger, "2026-01-05/2026-01-12", now=NOW)

        assert read.empty
        assert all(figure.value is None for figure in read.whole)
        assert (read.first, read.last) == (MONDAY - 2 * WEEK, MONDAY)

    def test_parts_of_time_are_all_of_it(self, ledger: Ledger) -> None:
        (fall,) = Account.read(ledger, "3w", now=NOW).falls()

        assert fall.total == 5 * 8 * 3_600_000_000
        assert sum(fall.parts.values()) == fall.total

    def test_without_nodes_nobody_says_what_the_tool_saves(self, ledger: Ledger) -> None:
        assert Account.read(ledger, "3w", now=NOW).pays is None

    def test_too_many_attempts_leave_the_weekly_counts(self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same success and starts of jobs, and no row was read."""
        whole = {one.name: one.value for one in Account.read(ledger, "3w", now=NOW).whole}
        monkeypatch.setattr(account, "MOST", 3)
        read = Account.read(ledger, "3w", now=NOW)

        assert read.many == 5
        assert not len(read.frames["attempts"])
        counted = {one.name: one.value for one in read.whole}
        assert counted["job success"] == whole["job success"] == 2 / 5
        assert counted["job-start success"] == whole["job-start success"]
        assert read.judged == read.since
        assert sum(row["attempts"] for row in read.failures_by_week) == 3
