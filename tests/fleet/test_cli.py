"""`workbench fleet` as a small team uses it: take in, look, export; what cannot be used is said, and an 80-column terminal is enough."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from workbench.cli import COMMANDS, main
from workbench.cli.fleet import WORDS
from workbench.fleet.ledger import Ledger

T = 1_780_000_000.0
DATA = Path(__file__).resolve().parents[1] / "data"
HOSTILE = "evil\x1b[31m|<b>"


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORKBENCH_FLEET_LEDGER", str(tmp_path / "fleet.sqlite"))


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.sqlite"
    with Ledger.open(path) as ledger:
        for number in range(40):
            bad = number % 4 == 0
            cause, cls = [("hardware", "hardware/gpu-lost"), ("user", "user/exception"), (None, None)][number % 3]
            row = {"job": str(number), "gpus": 64, "started": T, "ended": T + 3600 + number, "source": "slurm", "recorded": T,
                   "state": "failed" if bad else "completed", "cause": cause if bad else None, "cls": cls if bad else None}  # fmt: skip
            ledger.put("jobs", [{**row, "user": "ada", "team": "vision" if number % 2 else HOSTILE, "submitted": T - 60}])
            node = {"node": f"gpu-node-{number:03d}", "at_fault": "gpu"} if bad and cause == "hardware" else {}
            ledger.put("attempts", [{**row, "attempt": 1, **node}])
            if node:
                ledger.put(
                    "signals", [{"node": node["node"], "kind": "job-failure", "time": T, "job": str(number), "weight": 1.0}]
                )
        ledger.put("jobs", [{"job": "r", "state": "running", "started": T}])
    return path


def _main(*words: str) -> int:
    return main(["fleet", *words])


def test_fleet_is_a_command_and_each_word_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert "fleet" in COMMANDS
    assert _main("--help") == 0
    shown = capsys.readouterr().out
    for word in WORDS:
        assert word in shown
        assert _main(word, "--help") == 0


def test_without_a_ledger_it_says_how_to_get_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert _main() == 69
    said = capsys.readouterr().err
    assert "there is no ledger" in said
    assert "workbench fleet ingest" in said


def test_the_summary_fits_eighty_columns_and_has_of_how_many_beside_each_figure(
    filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _main() == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "of all: 40 jobs that ended; besides 1 running" in shown
    assert "2,560.0 GPU-hours" in shown or "2,57" in shown or "2,56" in shown
    lines = {line.split("  ")[1].strip(): line.split() for line in shown.splitlines() if line.startswith("  ")}
    assert lines["completed"][1:4] == ["30", "75.0", "%"]
    assert lines["failed: hardware"][2:5] == ["4", "10.0", "%"]
    assert "gpu-node-000" in shown
    assert "hardware/gpu-lost" in shown


def test_the_summary_as_json_csv_and_markdown_says_the_same(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _main("-o", "json")
    document = json.loads(capsys.readouterr().out)
    ends = {(row["state"], row["cause"]): (row["jobs"], row["of"]) for row in document["ends"]}
    assert ends == {
        ("completed", None): (30, 40),
        ("failed", "hardware"): (4, 40),
        ("failed", "user"): (3, 40),
        ("failed", "unknown"): (3, 40),
    }
    assert document["of_gpu_hours"] == pytest.approx(64 * sum(3600 + number for number in range(40)) / 3600)
    _main("summary", "-o", "csv")
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {"part": "ends", "name": "failed/hardware"}.items() <= next(
        row for row in rows if row["name"] == "failed/hardware"
    ).items()
    _main("--output", "md")
    assert "| completed | 30 | 75.0 % |" in capsys.readouterr().out


def test_a_window_counts_whole_weeks_and_says_when_nothing_is_in_it(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _main("--since", "2026-05-27")
    assert "40 jobs that ended" in capsys.readouterr().out
    _main("--since", "2026-06-10", "-o", "json")
    document = json.loads(capsys.readouterr().out)
    assert (document["jobs"]["ended"], document["weeks"], document["of_gpu_hours"], document["incidents"]) == (0, None, None, [])
    _main("--until", "2026-05-01")
    assert "nothing ended in this time" in capsys.readouterr().out


def test_options_before_the_word_and_after_it_are_the_same(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.sqlite"
    with Ledger.open(other) as ledger:
        ledger.put("jobs", [{"job": "only", "state": "completed", "ended": T}])
    for words in (["--ledger", str(other), "-o", "json", "jobs"], ["jobs", "--ledger", str(other), "-o", "json"]):
        assert _main(*words) == 0
        assert [row["job"] for row in json.loads(capsys.readouterr().out)] == ["only"]


def test_jobs_and_incidents_are_listed_latest_first_and_say_when_there_are_more(
    filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _main("jobs", "--state", "failed", "--limit", "2")
    shown = capsys.readouterr().out
    assert [line.split()[2] for line in shown.splitlines()[1:3]] == ["36", "32"]
    assert "--limit 0" in shown
    assert "\x1b" not in shown
    _main("jobs", "--team", "vision", "--limit", "0", "-o", "json")
    assert len(json.loads(capsys.readouterr().out)) == 20
    _main("incidents", "--cause", "hardware")
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == 5
    assert "gpu-node-036" in shown.splitlines()[1]
    _main("incidents", "--node", "nobody")
    assert "nothing of the kind" in capsys.readouterr().out


@pytest.mark.parametrize("output", ["table", "md", "csv", "json"])
def test_hostile_names_drive_no_terminal_and_break_no_table(
    filled: Path, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    _main("jobs", "--limit", "0", "-o", output)
    shown = capsys.readouterr().out
    if output == "csv":
        assert {row["team"] for row in csv.DictReader(io.StringIO(shown))} == {"vision", HOSTILE, ""}
        return
    assert "\x1b" not in shown
    if output == "md":
        assert "\\|" in shown


def test_files_are_taken_in_once_however_often_and_bad_ones_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = str(DATA / "slurm_live" / "24.11" / "sacct.txt")
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    assert _main("ingest", good) == 0
    first = capsys.readouterr().out
    assert "8 new or changed of 8 told" in first
    assert _main("ingest", good, str(bad), str(tmp_path / "nowhere"), "-o", "json") == 3
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert (document["changed"]["jobs"], document["told"]["jobs"], document["problems"]) == (0, 8, 2)
    assert "bad.json" in said.err
    assert "nowhere" in said.err


def test_standard_input_and_the_cluster_of_the_settings_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORKBENCH_FLEET_CLUSTER", "alpha")
    text = (DATA / "slurm_live" / "24.11" / "sacct.txt").read_bytes()
    monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": io.BytesIO(text)}))
    assert _main("ingest", "-") == 0
    with Ledger.open(tmp_path / "fleet.sqlite", "ro") as ledger:
        assert {row["cluster"] for row in ledger.rows("jobs")} == {"alpha"}
    capsys.readouterr()
    _main("--cluster", "beta", "-o", "json")
    assert json.loads(capsys.readouterr().out)["jobs"]["ended"] == 0


def test_a_folder_of_evidence_is_triaged_on_its_way_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import tarfile

    from workbench.shipped import example_path

    with tarfile.open(example_path("gpu-memory")) as archive:
        archive.extractall(tmp_path / "evidence", filter="data")
    below = list((tmp_path / "evidence").iterdir())
    folder = below[0] if len(below) == 1 else tmp_path / "evidence"
    assert _main("ingest", str(folder)) == 0
    with Ledger.open(tmp_path / "fleet.sqlite", "ro") as ledger:
        (attempt,) = ledger.rows("attempts")
        (blame,) = ledger.rows("signals", kind="job-failure")
    assert attempt["cls"] == "hardware/gpu-memory"
    assert (blame["node"], blame["weight"]) == (attempt["node"], 1.0)
    assert _main("ingest", str(folder), "--no-triage") == 3
    assert "no verdict" in capsys.readouterr().err


def test_nothing_to_take_in_is_a_wrong_command_line() -> None:
    assert _main("ingest") == 64


def test_export_writes_a_file_a_table(filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _main("export", str(tmp_path / "out"), "--format", "csv", "--table", "jobs") == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out' / 'jobs.csv'}\n"
    rows: list[dict[str, Any]] = list(csv.DictReader(io.StringIO((tmp_path / "out" / "jobs.csv").read_text())))
    assert len(rows) == 41
