"""What `workbench fleet` counts from weekly counts is what its rows say, figure by figure; where it is not, rows are asked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from workbench.cli import exits, main
from workbench.fleet.ledger import Ledger
from workbench.fleet.objectives import job_success
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
    words = ["--only", "job-success infra-job-success", "--since", days[0], "--until", days[1], "--by", " ".join(by)]
    told = _asked(file, capsys, *words, *([] if causes else ["--no-causes"]))
    assert "jobs" not in read  # not one row of them
    with Ledger.open(file, "ro") as ledger:
        jobs = frame(ledger, "jobs", since, until)
    rows = [
        {**one.row(), **dict(one.by)}
        for infra in (False, True)
        for one in job_success(jobs, infra=infra, since=since, until=until, by=by, causes=causes)
    ]
    assert len(told) > (1 if not by else 3)
    assert _plain(told, by) == _plain(rows, by)


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
