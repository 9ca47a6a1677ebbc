"""What `workbench fleet` counts from weekly counts is what its rows say, figure by figure; where it is not, rows are asked."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from workbench.cli import exits, main
from workbench.fleet.counted import BY_START, starts_of_counts
from workbench.fleet.ledger import Ledger
from workbench.fleet.objectives import job_starts, job_success
from workbench.simulation.demo import demo_ledger

WEEK = 7 * 86400.0
NOW = 1_777_900_000.0
MONDAY = ((NOW // 86400 + 3) // 7 * 7 - 3) * 86400.0


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = demo_ledger(tmp_path_factory.mktemp("counts") / "fleet.sqlite", NOW)
    with Ledger.open(path) as ledger:
        ledger.put(
            "jobs",
            [
                {
                    "cluster": "b",
                    "job": "x",
                    "started": NOW - 2 * WEEK,
                    "ended": NOW - 2 * WEEK + 60,
                    "state": "failed",
                    "cause": "driver",
                }
            ],
        )
    return str(path)


def _asked(file: str, capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    code = main(["fleet", "objectives", "--ledger", file, "-o", "json", *words])
    assert code == exits.OK
    told: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return told


def _plain(rows: list[dict[str, Any]], by: tuple[str, ...]) -> list[tuple[Any, ...]]:
    names = ("name", *by, "value", "low", "high", "numerator", "denominator", "unit")
    return sorted((tuple(str(row.get(name)) for name in names) for row in rows), key=str)


@pytest.mark.parametrize("by", [(), ("week",), ("cluster",), ("week", "cluster")])
@pytest.mark.parametrize("causes", [True, False])
def test_figures_by_cause_and_week_from_counts_are_those_of_the_rows(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, by: tuple[str, ...], causes: bool
) -> None:
    since, until = MONDAY - 6 * WEEK, MONDAY - WEEK
    read: list[str] = []
    frame = Ledger.frame

    def noted(self: Ledger, table: str, since: float | None = None, until: float | None = None, **where: Any) -> Any:
        found = frame(self, table, since, until, **where)
        read.extend([table] * len(found))
        return found

    monkeypatch.setattr(Ledger, "frame", noted)
    days = [_day(since), _day(until)]
    words = ["--only", "job-start job-success infra-job-success", "--since", days[0], "--until", days[1], "--by", " ".join(by)]
    told = _asked(file, capsys, *words, *([] if causes else ["--no-causes"]))
    assert "jobs" not in read  # not one row of them
    with Ledger.open(file, "ro") as ledger:
        jobs = frame(ledger, "jobs", since, until)
    window: dict[str, Any] = {"since": since, "until": until, "by": by, "causes": causes}
    figures = [*job_starts(jobs, **window), *(one for infra in (False, True) for one in job_success(jobs, infra=infra, **window))]
    assert any(one.name == "job-start success" and one.value is not None for one in figures)
    assert len(told) > (2 if not by else 4)
    assert _plain(told, by) == _plain([{**one.row(), **dict(one.by)} for one in figures], by)


def test_starts_from_counts_leave_out_what_rows_leave_out(tmp_path: Path) -> None:
    """A source that tells no steps, jobs that run or were taken away before one, a source that tells steps of too few; in notes as well."""
    rng = random.Random(5)
    states = ("running", "pending", "completed", "completed", "failed", "timeout", "cancelled", "preempted")
    told = []
    for number in range(600):
        source = rng.choice(("run", "slurm", "folder:a", None))
        state, began = rng.choice(states), MONDAY - rng.random() * 4 * WEEK
        steps = source == "run" and (state == "completed" or rng.random() < 0.6)
        told.append(
            {"cluster": rng.choice(("", "b")), "job": str(number), "state": state, "cause": rng.choice((None, "user", "hardware")), "source": source,
             "started": None if state == "pending" else began, "ended": began + 60 if state not in ("running", "pending") else None,
             "first_step": began + 30 if steps or (source == "folder:a" and rng.random() < 0.5) else None, "recorded": began}
        )  # fmt: skip
    since, until = MONDAY - 4 * WEEK, MONDAY
    with Ledger.open(tmp_path / "a.sqlite") as ledger:
        ledger.put("jobs", told)
        jobs, totals = ledger.frame("jobs", since, until), ledger.totals(BY_START, of="starts", since=since, until=until)
    with Ledger.open(tmp_path / "a.sqlite") as ledger:
        ledger._connection.execute("DROP TABLE starts_weekly")  # as an older workbench left it
    with Ledger.open(tmp_path / "a.sqlite", "ro") as ledger:
        assert ledger.totals(BY_START, of="starts", since=since, until=until) == totals
    for by in ((), ("week",), ("cluster",)):
        rows = job_starts(jobs, since=since, until=until, by=by, causes=True)
        counts = starts_of_counts(totals, since=since, until=until, by=by, causes=True)
        assert _plain([{**one.row(), **dict(one.by)} for one in counts], by) == _plain(
            [{**one.row(), **dict(one.by)} for one in rows], by
        )
        assert all(one.notes == (*other.notes, "whole weeks only") for one, other in zip(counts, rows, strict=True))
    assert sum("left out" in note for note in rows[0].notes) == 3
    assert starts_of_counts([], since=since, until=until)[0].value is None


def test_a_window_of_no_whole_weeks_is_counted_from_rows(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    since, until = MONDAY - 6 * WEEK + 86400, MONDAY - WEEK
    told = _asked(file, capsys, "--only", "job-success", "--since", _day(since), "--until", _day(until), "--no-causes")
    whole = _asked(file, capsys, "--only", "job-success", "--since", _day(since - 86400), "--until", _day(until), "--no-causes")
    with Ledger.open(file, "ro") as ledger:
        (one,) = job_success(ledger.frame("jobs", since, until), since=since, until=until)
    assert told[0]["denominator"] == one.denominator < whole[0]["denominator"]


def test_by_week_begins_with_a_whole_week(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = _asked(file, capsys, "--only", "job-success", "--by", "week", "--until", _day(MONDAY), "--no-causes")
    with Ledger.open(file, "ro") as ledger:
        first = told[0]["week"]
        begin = min(row["week"] for row in ledger.totals(("week",)) if row["week"] is not None and _day(row["week"]) == first)
        assert told[0]["denominator"] == sum(
            row["count"]
            for row in ledger.totals(("week", "state"), since=begin, until=begin + WEEK)
            if row["state"] in ("completed", "failed", "timeout")
        )


def test_an_objective_that_there_is_not_is_refused(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "objectives", "--ledger", file, "--only", "uptime"]) == exits.USAGE
    assert "it knows availability, job-start" in capsys.readouterr().err


def _day(moment: float) -> str:
    import datetime as dt

    return dt.datetime.fromtimestamp(moment, dt.UTC).date().isoformat()
