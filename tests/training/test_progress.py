"""Calls from a training loop, and what the supervisor reads of them."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.training.hangs import Progress, ProgressFile, read_line


@pytest.fixture
def told(tmp_path, monkeypatch):
    module = importlib.reload(importlib.import_module("workbench.training.progress"))
    monkeypatch.setenv("WORKBENCH_PROGRESS", str(tmp_path / "progress"))
    for name in module.RANKS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(module, "_GAP", 0.0)
    return module


def test_a_call_works_by_either_import_and_is_read_back_with_rank_samples_and_phase(told, tmp_path, monkeypatch):
    import workbench.training
    from workbench.training import progress

    monkeypatch.setenv("RANK", "3")
    progress(5, samples=512)
    workbench.training.progress(6, rank=1)
    told.progress(6, phase="save")
    found = ProgressFile(tmp_path / "progress").read()
    assert [(p.step, p.rank, p.samples, p.phase) for p in found] == [(5, 3, 512, None), (6, 1, None, None), (6, 3, None, "save")]
    assert all(p.time is not None and p.time > 1.7e9 for p in found)


def test_a_rank_may_tell_its_own_seconds_and_tells_its_node(told, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURMD_NODENAME", "gpu-017")
    told.progress(5, rank=1, seconds=0.25)
    told.progress(6, rank=1)
    told.progress(7, rank=1, seconds=float("nan"))
    found = ProgressFile(tmp_path / "progress").read()
    assert [(p.step, p.seconds, p.node) for p in found] == [(5, 0.25, "gpu-017"), (6, None, "gpu-017"), (7, None, "gpu-017")]
    assert read_line("5 0 1764516371.1 - - - -") == Progress(5, 1764516371.1, 0)
    assert read_line("5 0 1764516371.1 - - x node") is None


def test_nothing_that_goes_wrong_reaches_the_loop(told, tmp_path, monkeypatch):
    told.progress("no number")
    told.progress(float("nan"))
    told.progress(5, rank="x")
    monkeypatch.setenv("WORKBENCH_PROGRESS", str(tmp_path / "no" / "folder"))
    told.progress(6)
    monkeypatch.setenv("WORKBENCH_PROGRESS", "/dev/full")  # a disk without room
    told.progress(7)
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setenv("WORKBENCH_PROGRESS", str(tmp_path / "pipe"))  # a pipe that nobody reads: it must not wait
    told.progress(8)
    assert ProgressFile(tmp_path / "progress").read() == []


def test_a_full_pipe_loses_lines_rather_than_time(told, tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    monkeypatch.setenv("WORKBENCH_PROGRESS", str(tmp_path / "pipe"))
    for step in range(5000):
        told.progress(step)
    text = os.read(reader, 1 << 20).decode()
    os.close(reader)
    assert 0 < text.count("\n") < 5000
    assert all(read_line(line) for line in text.splitlines())


def test_fast_steps_do_not_fill_a_disk(told, tmp_path, monkeypatch):
    monkeypatch.setattr(told, "_GAP", 3600.0)
    for step in range(1000):
        told.progress(step)
    told.progress(1000, phase="end")
    assert [p.step for p in ProgressFile(tmp_path / "progress").read()] == [0, 1000]


def test_ranks_that_share_a_file_do_not_mix_their_lines(tmp_path):
    code = (
        "import workbench.training.progress as p, sys\np._GAP = 0\n"
        "for step in range(2000): p.progress(step, rank=int(sys.argv[1]), samples=10**12)"
    )
    env = os.environ | {"WORKBENCH_PROGRESS": str(tmp_path / "progress"), "PYTHONPATH": str(Path(__file__).parents[2])}
    ranks = [subprocess.Popen([sys.executable, "-c", code, str(rank)], env=env) for rank in range(4)]
    assert [rank.wait() for rank in ranks] == [0] * 4
    found = ProgressFile(tmp_path / "progress").read()
    assert sorted((p.rank, p.step) for p in found) == [(rank, step) for rank in range(4) for step in range(2000)]


def test_the_call_imports_nothing_heavy():
    code = (
        "import sys; from workbench.training import progress; progress(1)\n"
        "print([m for m in ('numpy', 'pandas', 'dataclasses', 'subprocess', 'workbench.model') if m in sys.modules])"
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    out = subprocess.run([sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_the_reader_waits_for_the_rest_of_a_line_and_begins_anew_when_the_file_is_replaced(tmp_path):
    path = tmp_path / "progress"
    reader = ProgressFile(path)
    assert reader.read() == []  # not there yet
    path.write_text("1 0 1764516371.1 - -\n2 0 17645")
    assert [p.step for p in reader.read()] == [1]
    with path.open("a") as file:
        file.write("16372.1 - -\nrubbish\n3 - 1764516373.1 - nonsense\n4 - 1764516374.5 7 eval\n")
    assert reader.read() == [Progress(2, 1764516372.1, 0), Progress(4, 1764516374.5, None, 7, "eval")]
    path.write_text("9 0 1764516380.0 - -\n")
    assert [p.step for p in reader.read()] == [9]


def test_what_cannot_be_read_is_said(tmp_path):
    reader = ProgressFile(tmp_path)  # a folder
    assert reader.read() == []
    assert "irectory" in reader.problem
