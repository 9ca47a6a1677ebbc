"""What Slurm says of jobs that ended becomes signs of failures; jobs that ended well, run, or were cancelled are none."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from workbench.inbox.sightings import Seen, assign
from workbench.inbox.slurm import SlurmJobs
from workbench.sources.contract import Deadline
from workbench.sources.slurm.source import Slurm
from workbench.testing import Slurm as Fake

NOW = 1_800_000_000.0


def stamp(ago: float) -> str:
    """Return a time before NOW as sacct writes it, in UTC."""
    return datetime.fromtimestamp(NOW - ago, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def row(
    job: str, state: str, *, name: str = "", ago: float | None = 60, began: float = 4000, submit: float = 5000, **more: str
) -> dict[str, str]:
    """Return a row of sacct."""
    return {
        "JobID": job, "JobIDRaw": job.split("_")[0].split("+")[0], "JobName": name or f"job{job}", "State": state, "Submit": stamp(submit), "Start": stamp(began),
        "End": "Unknown" if ago is None else stamp(ago), "NodeList": "gpu-[1-2]", "User": "ann", "UID": "1000", "Partition": "gpu", "ExitCode": "1:0", **more,
    }  # fmt: skip


def look(folder: Path, *rows: dict[str, str], since: float = NOW - 3600, accounting: bool = True, **state: object) -> Seen:
    """Look at a cluster with these rows."""
    fake = Fake()
    fake.state |= {"accounts": list(rows), "accounting": accounting, **state}
    installed = fake.install(folder / "bin")
    return SlurmJobs(Slurm((str(installed / "slurm"),))).look(since, NOW, Deadline(30))


def test_each_way_of_failing_is_a_sign_and_each_way_of_ending_well_is_none(tmp_path: Path) -> None:
    bad = ("FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED")
    good = ("COMPLETED", "CANCELLED by 1000", "CANCELLED")
    rows = [row(str(100 + at), state) for at, state in enumerate((*bad, *good))]
    seen = look(tmp_path, *rows, row("200", "RUNNING", ago=None), row("201", "PENDING", ago=None))

    assert seen.problems == []
    assert sorted(sign.key for sign in seen.sightings) == [f"slurm/{100 + at}" for at in range(len(bad))]
    first = min(seen.sightings, key=lambda sign: sign.key)
    assert (first.job, first.job_id, first.user, first.nodes, first.time, first.begin) == (
        "job100",
        "100",
        "ann",
        ("gpu-1", "gpu-2"),
        NOW - 60,
        NOW - 4000,
    )
    assert seen.position == NOW


def test_what_ended_before_the_window_is_left_aside(tmp_path: Path) -> None:
    assert look(tmp_path, row("1", "FAILED", ago=5000), since=NOW - 600).sightings == []
    assert len(look(tmp_path, row("1", "FAILED", ago=1200), since=NOW - 600).sightings) == 1, (
        "slurmdbd may have learned of it late"
    )


def test_the_starts_of_a_requeued_job_are_told_apart(tmp_path: Path) -> None:
    rows = [
        row("7", "NODE_FAIL", ago=600, began=3000, submit=4000),
        row("7", "PREEMPTED", ago=300, began=500, submit=600),
        row("7", "FAILED", ago=60, began=200, submit=300),
    ]
    seen = look(tmp_path, *rows)

    assert [(sign.attempt, sign.time) for sign in seen.sightings] == [(1, NOW - 600), (2, NOW - 300), (3, NOW - 60)]
    assert len(assign(seen.sightings, [], NOW)) == 3


def test_tasks_of_an_array_that_fail_together_are_one_failure(tmp_path: Path) -> None:
    rows = [row(f"9_{at}", "FAILED", name="sweep", ago=60 - at, JobIDRaw=str(9 + at)) for at in range(5)]
    ((_, failure),) = assign(look(tmp_path, *rows).sightings, [], NOW)

    assert (failure.job, failure.job_id, len(failure.items)) == ("sweep", "9_0", 5)


def test_the_same_look_again_gives_the_same_signs(tmp_path: Path) -> None:
    rows = [row("1", "FAILED"), row("2", "TIMEOUT")]

    assert {sign.item for sign in look(tmp_path, *rows).sightings} == {sign.item for sign in look(tmp_path, *rows).sightings}


@pytest.mark.parametrize("state", [{"accounting": False, "up": False}])
def test_a_cluster_that_does_not_answer_is_a_problem_and_does_not_move_the_window(tmp_path: Path, state: dict[str, bool]) -> None:
    seen = look(tmp_path, row("1", "FAILED"), **state)  # type: ignore[arg-type]

    assert seen.problems
    assert seen.problems[0].startswith("slurm: ")
    assert seen.position is None


def test_commands_that_are_not_there_are_a_problem(tmp_path: Path) -> None:
    seen = SlurmJobs(Slurm((str(tmp_path / "nothing"),))).look(NOW - 60, NOW, Deadline(10))

    assert seen.problems
    assert not seen.sightings
