"""The fleet's week says the same as the words of `workbench fleet`, compares with the week before, and shows texts of the ledger as texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from workbench.cli import main
from workbench.fleet.ledger import Ledger
from workbench.report.weekly import html, last_week, markdown, week_of, weekly
from workbench.simulation import Spec, simulate


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledger of a small simulated fleet: two whole weeks and a half."""
    path = tmp_path_factory.mktemp("ledger") / "fleet.sqlite"
    spec = Spec.read().with_(nodes__count=32, days=17, faults__per_1000_node_days=60, policy__phases_from=1)
    with Ledger.open(path) as ledger, ledger.batch():
        simulate(spec, ledger.put)
    return path


def told_of(book: Path, week: str) -> dict[str, Any]:
    with Ledger.open(book, "ro") as ledger:
        return weekly(ledger, week_of(week))


def test_a_week_is_named_by_itself_or_by_any_of_its_days() -> None:
    assert week_of("2026-W03") == week_of("2026-01-12") == week_of("2026-01-18") == 1768176000.0
    with pytest.raises(ValueError, match="no week"):
        week_of("soon")


def test_the_last_whole_week_with_jobs_is_taken(book: Path) -> None:
    """Not the one that is under way."""
    with Ledger.open(book, "ro") as ledger:
        assert last_week(ledger, week_of("2026-W04") + 3 * 86400) == week_of("2026-W03")
        assert last_week(ledger, 2e9) == week_of("2026-W04")


def test_a_week_that_is_not_over_ends_now_and_says_so(book: Path) -> None:
    """A job that runs has not run in the days to come; and a team of a day's work has a report."""
    monday = week_of("2026-W03")
    with Ledger.open(book, "ro") as ledger:
        first = min(row["week"] for row in ledger.totals(("week",)) if row["week"] is not None)
        assert last_week(ledger, first + 86400) == first
        told = weekly(ledger, monday, now=monday + 2 * 86400)
        whole = weekly(ledger, monday, now=monday + 9 * 86400)
    assert (told["over"], whole["over"]) == (False, True)
    assert told["until"] == "2026-01-14T00:00:00Z"
    assert "2026-01-12 to 2026-01-14 (UTC), not over yet" in markdown(told)
    assert 0 < told["goodput"]["of_hours"] <= 32 * 8 * 48 < whole["goodput"]["of_hours"]


def test_figures_have_numerator_denominator_and_the_week_before(book: Path) -> None:
    """Job success by brute force over the jobs that ended in the week."""
    told = told_of(book, "2026-W03")
    success = next(row for row in told["objectives"] if row["name"] == "job success")
    with Ledger.open(book, "ro") as ledger:
        jobs = ledger.frame("jobs")
    seconds = jobs["ended"].astype("int64") / 1e6

    def ended(begin: float) -> Any:
        return jobs[
            jobs["ended"].notna()
            & (seconds >= begin)
            & (seconds < begin + 7 * 86400)
            & jobs["state"].isin(["completed", "failed"])
        ]

    this, before = ended(week_of("2026-W03")), ended(week_of("2026-W02"))
    assert (success["numerator"], success["denominator"]) == (int(this["state"].eq("completed").sum()), len(this))
    assert success["week_before"] == pytest.approx(before["state"].eq("completed").mean())


def test_the_first_week_has_none_before_it(book: Path) -> None:
    """Absent, not zero."""
    told = told_of(book, "2026-W02")

    assert next(row for row in told["objectives"] if row["name"] == "job success")["week_before"] is None
    assert "points on the week before" not in markdown(told)


def test_parts_of_the_time_add_up(book: Path) -> None:
    told = told_of(book, "2026-W03")["goodput"]

    assert sum(row["microseconds"] for row in told["parts"]) == round(told["of_hours"] * 3.6e9)
    assert sum(float(share) for share in told["percents"].values()) == pytest.approx(100)


def test_a_week_without_anything_says_so(book: Path) -> None:
    text = markdown(told_of(book, "2020-W05"))

    assert "no data" in text
    assert "No attempt failed." in text
    assert "0.00 %" not in text


def test_texts_of_the_ledger_stay_texts(tmp_path: Path) -> None:
    """A team's name with HTML and Markdown in it."""
    bad = "<script>alert(1)</script> | [x](javascript:1) `code`"
    base = week_of("2026-W03") + 3600
    job = {
        "cluster": "",
        "job": "1",
        "team": bad,
        "gpus": 8,
        "submitted": base,
        "started": base,
        "ended": base + 7200,
        "state": "failed",
    }
    attempt = {
        "cluster": "",
        "job": "1",
        "attempt": 1,
        "gpus": 8,
        "started": base,
        "ended": base + 7200,
        "state": "failed",
        "cls": bad,
    }
    with Ledger.open(tmp_path / "l.sqlite") as ledger:
        ledger.put("jobs", [job | {"cause": "user", "cls": "user/exception"}])
        ledger.put("attempts", [attempt | {"cause": "user"}])
        told = weekly(ledger, week_of("2026-W03"))

    page = html(told)
    assert "<script" not in page
    assert "javascript:" not in page.replace("javascript:1) ", "") or 'href="javascript' not in page
    assert "&lt;script&gt;" in page


def test_the_page_asks_for_nothing(book: Path) -> None:
    page = html(told_of(book, "2026-W03"))

    assert "default-src 'none'" in page
    assert "http://" not in page
    assert "<h2>Objectives</h2>" in page


class TestCommand:
    def test_it_writes_markdown_json_and_a_page(self, book: Path, capsys: pytest.CaptureFixture[str]) -> None:
        outputs = {}
        for kind in ("md", "json", "html"):
            assert main(["report", "weekly", "--week", "2026-W03", "--ledger", str(book), "-o", kind]) in (0, 3)
            outputs[kind] = capsys.readouterr().out

        told = json.loads(outputs["json"])
        assert told["schema"] == "workbench.weekly/1"
        assert outputs["md"] == markdown(told)
        assert outputs["html"].startswith("<!doctype html>")

    def test_a_week_that_is_none_is_said(self, book: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["report", "weekly", "--week", "yesterday", "--ledger", str(book)]) == 64
        assert "is no week" in capsys.readouterr().err

    def test_an_empty_ledger_is_said(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        Ledger.open(tmp_path / "l.sqlite").close()
        assert main(["report", "weekly", "--ledger", str(tmp_path / "l.sqlite")]) == 3
        assert "no week with jobs" in capsys.readouterr().err
