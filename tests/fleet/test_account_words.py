"""workbench fleet objectives and goodput as a person types them: every form of output, targets from a file, rules, events of another library."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from workbench.cli import main
from workbench.fleet.ledger import Ledger

T = 1_777_000_000.0
WINDOW = ["--since", "2026-04-20", "--until", "2026-05-20"]  # T is 2026-04-24T03:06:40Z
HOSTILE = "x\x1b[2J | `rm` =cmd()"


@pytest.fixture
def ledger(tmp_path: Path) -> list[str]:
    """A ledger of four jobs (one with a restart and told phases) and two nodes; returns the option that names it."""
    path = tmp_path / "fleet.sqlite"
    job = {"submitted": T, "started": T + 60, "first_step": T + 100, "nodes": 2, "gpus": 16, "source": "run"}
    with Ledger.open(path) as account:
        account.put(
            "jobs",
            [
                {**job, "job": "1", "state": "completed", "ended": T + 4000, "team": "a", "pool": "h"},
                {
                    **job,
                    "job": "2",
                    "state": "failed",
                    "cause": "hardware",
                    "cls": "hardware/gpu-memory",
                    "ended": T + 2000,
                    "team": HOSTILE,
                },
                {**job, "job": "3", "state": "failed", "cause": "user", "ended": T + 1000, "team": "a", "gpus": 8, "nodes": 1},
                {**job, "job": "4", "state": "running", "team": "a"},
            ],
        )
        account.put(
            "attempts",
            [
                {"job": "1", "attempt": 1, "queued": T, "started": T + 60, "first_step": T + 100, "ended": T + 1000, "detected": T + 1030, "diagnosed": T + 1060, "state": "failed", "cause": "hardware", "step_first": 1, "step_last": 90, "gpus": 16},
                {"job": "1", "attempt": 2, "queued": T + 1100, "started": T + 1160, "first_step": T + 1200, "ended": T + 4000, "state": "completed", "step_first": 61, "step_last": 300, "gpus": 16},
            ],
        )  # fmt: skip
        account.put(
            "phases",
            [
                {"job": "1", "attempt": 2, "kind": "init", "begin": T + 1160, "end": T + 1200},
                {"job": "1", "attempt": 2, "kind": "step", "begin": T + 1200, "end": T + 4000},
                {"job": "1", "attempt": 2, "kind": "save", "begin": T + 2000, "end": T + 2020},
            ],
        )
        account.put(
            "node_states",
            [
                {"node": "n1", "begin": T, "state": "usable", "gpus": 8},
                {"node": "n2", "begin": T, "end": T + 3600, "state": "down", "cause": "hardware", "gpus": 8},
                {"node": "n2", "begin": T + 3600, "state": "usable", "gpus": 8},
            ],
        )
        account.put("actions", [{"node": "n2", "rung": "reset-gpu", "begin": T + 600, "end": T + 900, "outcome": "done"}])
    return ["--ledger", str(path)]


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["fleet", *words]) == code
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "word",
    [
        ["objectives"],
        ["objectives", "--by", "team"],
        ["objectives", "--weight", "gpus"],
        ["goodput", "--project", "1024,16384"],
        ["goodput", "--by", "team,job"],
    ],
)
def test_every_form_of_output_holds_together(ledger: list[str], capsys: pytest.CaptureFixture[str], word: list[str]) -> None:
    text = said(capsys, *word, *ledger, *WINDOW)
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text
    marked = said(capsys, *word, *ledger, *WINDOW, "-o", "md")
    assert "| ---" in marked
    assert "\x1b" not in marked
    told = json.loads(said(capsys, *word, *ledger, *WINDOW, "-o", "json"))
    assert told
    rows = list(csv.DictReader(io.StringIO(said(capsys, *word, *ledger, *WINDOW, "-o", "csv"))))
    assert rows
    assert all(None not in row and None not in row.values() for row in rows)


def test_objectives_say_numerator_denominator_bounds_and_what_is_left_of_the_budget(
    ledger: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {row["name"]: row for row in json.loads(said(capsys, "objectives", *ledger, *WINDOW, "-o", "json"))}
    job = rows["job success"]
    assert (job["numerator"], job["denominator"], job["target"]) == (1, 3, None)
    assert job["notes"] == ["1 jobs undecided: running or waiting"]
    infra = rows["infrastructure job success"]
    assert (infra["numerator"], infra["denominator"], infra["target"]) == (2, 3, 0.95)
    assert infra["budget_share_left"] == pytest.approx((0.15 - 1) / 0.15)
    assert rows["job success: lost to user"]["numerator"] == 1
    assert 0 < infra["low"] < infra["value"] < infra["high"] < 1
    page = said(capsys, "objectives", *ledger, *WINDOW)
    assert "2 of 3" in page
    assert "-567 %" in page


def test_targets_come_from_an_openslo_file_and_what_is_foreign_in_it_is_told(
    ledger: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "slo.yaml"
    file.write_text(said(capsys, "objectives", "--openslo").replace("target: 0.95", "target: 0.5"))
    rows = {
        row["name"]: row for row in json.loads(said(capsys, "objectives", "--slo", str(file), *ledger, *WINDOW, "-o", "json"))
    }
    assert rows["infrastructure job success"]["budget_share_left"] == pytest.approx(1 / 3)
    file.write_text(file.read_text() + "  owner: somebody\n")
    assert main(["fleet", "objectives", "--slo", str(file), *ledger, *WINDOW]) == 3
    assert "spec.owner is not of openslo/v1; kept" in capsys.readouterr().err
    file.write_text("a: [")
    assert main(["fleet", "objectives", "--slo", str(file), *ledger]) == 65
    assert main(["fleet", "objectives", "--slo", str(tmp_path / "none"), *ledger]) == 64


def test_rules_and_metrics_are_written_for_prometheus(ledger: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    rules = yaml.safe_load(said(capsys, "objectives", "--rules", "--match", 'cluster="a"'))
    assert [group["name"] for group in rules["groups"]] == [
        "workbench-fleet-availability",
        "workbench-fleet-job-start",
        "workbench-fleet-infra-job-success",
    ]
    assert all(
        'cluster="a"' in one["expr"] for group in rules["groups"] for one in group["rules"] if "ratio" in one.get("record", "")
    )
    page = said(capsys, "objectives", "--metrics", *ledger)
    assert 'workbench_fleet_jobs_ended_total{state="failed",cause="hardware"} 1' in page


def test_goodput_says_its_denominator_and_adds_up(ledger: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    page = said(capsys, "goodput", "--job", "1", *ledger, *WINDOW)
    window, denominator, *_ = page.splitlines()
    assert window.endswith("(UTC)")
    assert denominator == "Denominator: time of jobs from submission to end, waiting included; in GPU-hours."
    told = json.loads(said(capsys, "goodput", "--job", "1", *ledger, *WINDOW, "-o", "json"))
    parts = {row["kind"]: row["microseconds"] / 16e6 for row in told["waterfall"] if row["microseconds"]}
    assert parts == {
        "queue": 120,
        "init": 80,
        "lost": 300,
        "step": 600 + 2780,
        "save": 20,
        "detect": 30,
        "diagnose": 30,
        "recover": 40,
    }
    assert {row["total_microseconds"] for row in told["waterfall"]} == {4000 * 16_000_000}
    terms = told["ettr"]["terms"]
    assert sum(row["measured"] for row in terms) == pytest.approx(1 - told["ettr"]["measured"])
    assert {row["name"]: row["measured"] for row in terms}["first wait"] == pytest.approx(60 / 4000)
    assert "allocated" not in page
    assert "nodes were held" not in page
    assert (
        said(capsys, "goodput", *ledger, *WINDOW, "--of", "allocated")
        .splitlines()[1]
        .startswith("Denominator: time in which attempts held their nodes")
    )


def test_an_empty_ledger_has_no_figures_and_no_zeros(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Ledger.open(tmp_path / "empty.sqlite").close()
    for word in ("objectives", "goodput"):
        told: Any = json.loads(said(capsys, word, "--ledger", str(tmp_path / "empty.sqlite"), "-o", "json"))
        figures = told if word == "objectives" else [row for row in told["figures"] if row["denominator"] != 0]
        assert {row["value"] for row in figures} <= {None}
        assert "0.0 %" not in said(capsys, word, "--ledger", str(tmp_path / "empty.sqlite"))
    assert main(["fleet", "goodput", "--ledger", str(tmp_path / "none.sqlite")]) == 69


def test_events_of_another_library_need_no_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events: list[Any] = [{"job_name": "run", "job_start_time": T}]
    events += [{"job_name": "run", "step_count": n, "step_start_time": T + 5 + 3 * n} for n in range(5)]
    events.append({"job_name": "run", "job_end_time": T + 20})
    file = tmp_path / "events.jsonl"
    file.write_text("".join(json.dumps(event) + "\n" for event in events))
    told = json.loads(said(capsys, "goodput", "--events", str(file), "--weight", "time", "-o", "json"))
    assert {row["kind"]: row["share"] for row in told["waterfall"] if row["microseconds"]} == {"step": 0.75, "unknown": 0.25}
    file.write_text(file.read_text() + "no json\n")
    assert main(["fleet", "goodput", "--events", str(file)]) == 3


@pytest.mark.parametrize(
    "words",
    [
        ["objectives", "--by", "colour"],
        ["goodput", "--by", "colour"],
        ["goodput", "--project", "many"],
        ["goodput", "--interval", "soon"],
    ],
)
def test_wrong_words_are_told_and_cost_64(ledger: list[str], capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main(["fleet", *words, *ledger]) == 64
    assert words[-1] in capsys.readouterr().err


def test_jobs_without_gpus_are_weighed_by_their_hours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run on a laptop lost something, too."""
    path = tmp_path / "fleet.sqlite"
    common = {"job": "/home/a/runs/7", "source": "run"}
    with Ledger.open(path) as account:
        account.put("jobs", [{**common, "submitted": T, "started": T, "ended": T + 3600, "state": "completed"}])
        account.put("attempts", [{**common, "attempt": 1, "started": T, "ended": T + 3600, "state": "completed"}])
        account.put(
            "phases",
            [{**common, "attempt": 1, "kind": kind, "begin": T + begin, "end": T + end} for kind, begin, end in (("start", 0, 900), ("step", 900, 3600))],
        )  # fmt: skip
    assert main(["fleet", "goodput", *WINDOW, "--ledger", str(path)]) == 0
    out = capsys.readouterr().out
    assert "in job-hours" in out
    assert "75.0 %" in out
    assert main(["fleet", "goodput", *WINDOW, "--ledger", str(path), "--weight", "gpus"]) == 0
    assert "their number of GPUs was not told" in capsys.readouterr().out
