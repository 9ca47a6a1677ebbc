"""What Slurm prints of jobs becomes numbers, names and allocations, and their output files become logs, whatever stands in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as settings_of
from hypothesis import strategies as st

from workbench.sources.contract import Deadline, Folder
from workbench.sources.slurm.jobs import FIELDS, Allocation, chosen, from_json, from_scontrol, from_table, is_number, parts
from workbench.sources.slurm.logs import collect_logs, directives, expanded, log_paths, submitted

# ---- names, numbers, torn rows


@pytest.mark.parametrize("job", ["4711", "4711_3", "4711+1", "4711.batch", "4711_3.0", "4711_[3-5]"])
def test_numbers(job: str) -> None:
    assert is_number(job)
    assert parts(job)[1] == "4711"


@pytest.mark.parametrize("job", ["llm-70b", "4711a", "", "47 11", "4711.x", "1" * 11])
def test_names(job: str) -> None:
    assert not is_number(job)


def test_torn_rows_and_other_texts_are_left_out() -> None:
    fields = ("JobID", "JobName")
    assert [row.id for row in from_table("1\x1fa\n2\nsacct: error\n3.batch\x1fbatch\nx\x1fy\n4_[1-3]\x1fb", fields)] == [
        "1",
        "4_[1-3]",
    ]
    assert from_json(None) == from_json({"jobs": "no"}) == from_json({"jobs": [None, {}, {"job_id": "x"}]}) == []
    assert from_scontrol("slurm_load_jobs error: Invalid job id specified") == []


def test_scontrol_of_a_running_job_has_no_end_yet() -> None:
    text = "JobId=7 JobName=my job UserId=alice(1000) GroupId=x JobState=RUNNING StartTime=2026-11-30T01:00:00 EndTime=2026-12-01T01:00:00 NodeList=n[1-2] StdOut=/scratch/a b.out Power="
    (row,) = from_scontrol(text)

    assert (row.name, row.uid, row.end, row.nodes, row.stdout) == ("my job", 1000, None, ("n1", "n2"), "/scratch/a b.out")


def test_a_job_outside_the_window_is_not_taken() -> None:
    old = Allocation("1", "1", "1", "a", "FAILED", submit=10, start=10, end=20)
    new = Allocation("2", "2", "2", "a", "RUNNING", submit=100, start=100)

    assert chosen([old, new], "a", 50, 200)[0] == [new]
    assert chosen([old, new], "a", 0, 50)[0] == [old]
    assert chosen([old], "1", 50, 200)[0] == []
    assert chosen([old, new], "a", 0, 200) == ([new], [old])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["set", "number", "infinite", "job_id", "task_id", "current", "start", "end", "job_offset"]), inner, max_size=4),
    max_leaves=6,
)  # fmt: skip


@settings_of(max_examples=200, deadline=None)
@given(jobs=st.lists(st.dictionaries(st.sampled_from(["job_id", "array", "het", "time", "state", "nodes", "name", "user_id"]), JSON, max_size=6) | JSON, max_size=3))  # fmt: skip
def test_hostile_json_raises_nothing(jobs: list[object]) -> None:
    chosen(from_json({"jobs": jobs}), "1", 0, 4e9)
    chosen(from_json({"jobs": jobs}), "a", 0, 4e9)


@settings_of(max_examples=200, deadline=None)
@given(text=st.text(alphabet="JobId=Name 12[]_+-\x1f\n|State:T(", max_size=200))
def test_hostile_text_raises_nothing(text: str) -> None:
    from_scontrol("JobId=1 " + text)
    chosen(from_table(text, FIELDS), text, 0, 4e9)
    submitted(text)
    directives("#SBATCH " + text)


# ---- output files


def test_patterns_are_expanded() -> None:
    row = Allocation("12_3", "14", "12", "llm", "FAILED", ("gpu7.cluster", "gpu8"), user="alice")

    assert expanded("/s/%x-%A_%a-%j-%4a-%u-%N-%%", row) == "/s/llm-12_3-14-0003-alice-gpu7-%"
    assert expanded("log-%c", row) is None
    assert expanded("\\%j", row) == "%j"


def test_output_options_of_command_line_and_script() -> None:
    assert submitted("sbatch -o a.out --error=b.err run.sh -o other") == ("a.out", "b.err")
    assert submitted("sbatch --output a.out -eb.err run.sh") == ("a.out", "b.err")
    assert submitted("sbatch 'unclosed") == ("", "")
    assert directives("#!/bin/bash\n#SBATCH -o x-%j.out # where\n#SBATCH --error=x.err\n") == ("x-%j.out", "x.err")
    row = Allocation("5", "5", "5", "a", "FAILED", workdir="/w", submit_line="sbatch -o logs/%j.out -e logs/%j.err x.sh")
    assert log_paths(row)[0] == ["/w/logs/5.out", "/w/logs/5.err"]


def job(path: Path, **fields: object) -> Allocation:
    return Allocation("5", "5", "5", "llm", "FAILED", start=1.0, stdout=str(path), uid=os.getuid(), **fields)  # type: ignore[arg-type]


def test_a_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "train.out"
    log.write_text("Traceback (most recent call last):\n")
    (answer,) = collect_logs([job(log)], Folder(tmp_path / "out"), Deadline(10))

    assert (answer.status, answer.file, answer.rows) == ("ok", "logs/5-train.out", 1)
    assert (tmp_path / "out" / answer.file).read_text() == log.read_text()


def test_of_a_large_log_begin_and_end_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.sources.slurm.logs.HEAD", 100)
    monkeypatch.setattr("workbench.sources.slurm.logs.TAIL", 100)
    log = tmp_path / "slurm-5.out"
    log.write_text("begin\n" + "x" * 5000 + "\nend\n")
    (answer,) = collect_logs([job(log)], Folder(tmp_path / "out"), Deadline(10))
    text = (tmp_path / "out" / "logs" / "slurm-5.out").read_text()

    assert answer.status == "partial"
    assert "4,811 bytes in its middle" in answer.detail
    assert text.startswith("begin\n")
    assert text.endswith("\nend\n")
    assert "[workbench: 4811 bytes" in text


def test_only_regular_files_of_the_jobs_own_user_are_read(tmp_path: Path) -> None:
    """The path is the user's choice: an operator's rights must not carry it further."""
    secret = tmp_path / "secret"
    secret.write_text("root:x:0:0\n")
    link = tmp_path / "link.out"
    link.symlink_to(secret)
    other = Allocation("5", "5", "5", "llm", "FAILED", start=1.0, stdout=str(link), uid=os.getuid() + 1)
    fifo = tmp_path / "fifo.out"
    os.mkfifo(fifo)
    folder = Folder(tmp_path / "out")

    (answer,) = collect_logs([other], folder, Deadline(5))
    assert (answer.status, answer.file) == ("failed", "")
    assert "belongs to uid" in answer.detail
    for path in (fifo, Path("/dev/zero"), tmp_path):
        (answer,) = collect_logs([job(path)], folder, Deadline(5))
        assert answer.status == "failed", path
    assert not (tmp_path / "out").exists()


def test_missing_empty_and_unnamed_logs_are_said(tmp_path: Path) -> None:
    empty = tmp_path / "empty.out"
    empty.touch()
    answers = collect_logs(
        [job(tmp_path / "no.out"), job(empty), Allocation("9", "9", "9", "x", "FAILED")],
        Folder(tmp_path / "out"),
        Deadline(5),
        away="login-1",
    )

    assert [answer.status for answer in answers] == ["missing"] * 3
    assert any("login-1" in answer.hint for answer in answers)


def test_names_of_logs_stay_in_the_folder(tmp_path: Path) -> None:
    log = tmp_path / "..sh;rm -rf.out"
    log.write_text("x\n")
    (answer,) = collect_logs([job(log)], Folder(tmp_path / "out"), Deadline(5))

    assert answer.file == "logs/5-sh_rm_-rf.out"
