"""`workbench checkpoints`: what to restore, in words and as JSON, with an exit code that a script can trust."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from workbench.cli import main

DATA = Path(__file__).resolve().parent.parent / "data" / "checkpoints"


def test_the_newest_whole_one_is_named_with_what_was_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["checkpoints", str(DATA / "deepspeed/missing-rank"), "--settle", "0"])
    said = capsys.readouterr().out

    assert code == 0
    assert said.splitlines()[0].startswith(f"Restore {DATA}/deepspeed/missing-rank/global_step10")
    assert "passed over" in said
    assert "zero_pp_rank_1_mp_rank_00_optim_states.pt" in said


def test_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", str(DATA / "megatron/missing-rank"), "--settle", "0", "-o", "json"]) == 0
    said = json.loads(capsys.readouterr().out)

    assert said["schema"] == "workbench.checkpoints/1"
    assert said["newest"]["step"] == 100
    assert [(row["step"], row["state"]) for row in said["passed_over"]] == [(200, "torn")]
    assert {row["format"] for row in said["checkpoints"]} == {"megatron"}


@pytest.mark.parametrize(
    ("folder", "words", "code"),
    [
        ("dcp/whole", ["--world-size", "7"], 0),
        ("dcp/short-rank", [], 2),
        ("torch-zip/unwritten-middle", ["--deep"], 2),
        ("deepspeed/whole", ["--world-size", "8"], 2),
        ("dcp/not-there", [], 3),
    ],
)
def test_exit_codes(folder: str, words: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", str(DATA / folder), "--settle", "0", *words]) == code


def test_an_empty_folder_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", str(tmp_path)]) == 2
    assert "no checkpoint here" in capsys.readouterr().out


def test_the_site_says_what_outlives_the_pod(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(DATA / "torch-zip/whole", tmp_path / "scratch")
    monkeypatch.setenv("WORKBENCH_TRAINING_SCRATCH", str(tmp_path / "scratch"))

    assert main(["checkpoints", str(tmp_path), "--settle", "0"]) == 0
    assert "lost when the next attempt starts elsewhere" in capsys.readouterr().out
    assert main(["checkpoints", str(tmp_path), "--settle", "0", "--elsewhere"]) == 2


def test_names_of_files_cannot_write_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "step-1\x1b[31m\n.pt").write_bytes(b"")
    main(["checkpoints", str(tmp_path), "--settle", "0"])

    assert "\x1b" not in capsys.readouterr().out


def test_names_that_are_no_text_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open(os.fsencode(tmp_path) + b"/step-1\xff.pt", "wb"):
        pass

    assert main(["checkpoints", str(tmp_path), "--settle", "0"]) == 2
    capsys.readouterr()
    assert main(["checkpoints", str(tmp_path), "--settle", "0", "-o", "json"]) == 2
    assert json.loads(capsys.readouterr().out)["checkpoints"][0]["step"] == 1


def test_advice_needs_no_path(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "checkpoints",
        "--advise",
        "--save-seconds",
        "42",
        "--failures",
        "3",
        "--hours",
        "500",
        "--nodes",
        "64",
        "--present",
        "10800",
    ]

    assert main(words) == 0
    said = capsys.readouterr().out
    assert said.startswith("Save every 118 min of work")
    assert "GPU-hours a day" in said
    assert main([*words, "-o", "json"]) == 0
    advice = json.loads(capsys.readouterr().out)["advice"]
    assert advice["interval"] == pytest.approx(7070, abs=40)


@pytest.mark.parametrize(
    "words",
    [[], ["--advise"], ["--advise", "--save-seconds", "0", "--failures", "1", "--hours", "1"], ["x", "--world-size", "0"]],
)
def test_a_wrong_command_line_says_so(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", *words]) == 64
    assert capsys.readouterr().err.startswith("workbench: ")
