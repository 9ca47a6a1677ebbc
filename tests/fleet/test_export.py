"""Exports hold every row with its types, are the same bytes for the same account, and a spreadsheet runs nothing of them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pandas as pd
import pytest

from workbench.fleet import exporting
from workbench.fleet.exporting import export
from workbench.fleet.ledger import Ledger
from workbench.fleet.tables import TABLES

T = 1_780_000_000.0


@pytest.fixture
def ledger(tmp_path: Path):
    with Ledger.open(tmp_path / "fleet.sqlite") as one:
        one.put(
            "jobs",
            [
                {
                    "job": str(n),
                    "name": "=cmd|' /C calc'!A0",
                    "gpus": 8,
                    "started": T,
                    "ended": T + n + 0.25,
                    "state": "failed",
                    "recorded": T,
                }
                for n in range(3)
            ],
        )
        one.put("attempts", [{"job": "1", "attempt": 1, "node_names": ["a", 'b"c'], "confidence": 0.5, "recorded": T}])
        yield one


def test_parquet_comes_back_as_the_frame_that_the_ledger_gives(ledger: Ledger, tmp_path: Path) -> None:
    paths = export(ledger, tmp_path / "out")
    assert [path.name for path in paths] == [f"{name}.parquet" for name in TABLES]
    jobs = pd.read_parquet(tmp_path / "out" / "jobs.parquet")
    assert str(jobs["ended"].dtype).startswith("datetime64")
    assert list(jobs["ended"]) == list(ledger.frame("jobs")["ended"])
    assert list(jobs["cause"]) == ["unknown"] * 3
    attempts = pd.read_parquet(tmp_path / "out" / "attempts.parquet")
    assert list(attempts["node_names"][0]) == ["a", 'b"c']
    assert attempts["rank"].isna().all()


def test_csv_and_json_lines_hold_the_same_and_no_cell_begins_a_formula(ledger: Ledger, tmp_path: Path) -> None:
    export(ledger, tmp_path, format="csv", tables=["jobs", "attempts"])
    export(ledger, tmp_path, format="jsonl", tables=["jobs", "attempts"])
    with (tmp_path / "jobs.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    lines = [json.loads(line) for line in (tmp_path / "jobs.jsonl").read_text().splitlines()]
    assert [row["ended"] for row in rows] == [line["ended"] for line in lines]
    assert rows[0]["ended"].endswith("Z")
    assert pd.Timestamp(rows[1]["ended"]).timestamp() == T + 1.25
    assert rows[0]["name"].startswith("'=")
    assert lines[0]["name"].startswith("=")
    assert (rows[0]["team"], lines[0]["team"]) == ("", None)
    assert not (tmp_path / "gpus.csv").exists()


@pytest.mark.parametrize("format", exporting.FORMATS)
def test_the_same_account_is_the_same_bytes_however_it_was_told(ledger: Ledger, tmp_path: Path, format: str) -> None:
    first = [path.read_bytes() for path in export(ledger, tmp_path / "a", format=format)]
    ledger.put("jobs", list(reversed(ledger.rows("jobs"))))
    with Ledger.open(tmp_path / "other.sqlite") as other:
        for name in TABLES:
            for row in reversed(ledger.rows(name)):
                other.put(name, [row])
        assert [path.read_bytes() for path in export(other, tmp_path / "b", format=format)] == first


def test_without_pyarrow_csv_is_written_and_parquet_is_refused_with_the_way_out(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "_arrow", lambda: None)
    assert {path.suffix for path in export(ledger, tmp_path / "out")} == {".csv"}
    with pytest.raises(exporting.ExportError, match="pyarrow") as raised:
        export(ledger, tmp_path / "out", format="parquet")
    assert "csv" in raised.value.hint


def test_a_window_and_a_cluster_choose_what_is_written(ledger: Ledger, tmp_path: Path) -> None:
    export(ledger, tmp_path, format="csv", tables=["jobs"], since=T + 2)
    assert len((tmp_path / "jobs.csv").read_text().splitlines()) == 2
    export(ledger, tmp_path, format="csv", tables=["jobs"], cluster="b")
    assert len((tmp_path / "jobs.csv").read_text().splitlines()) == 1
