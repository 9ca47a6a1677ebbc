"""
Real PyTorch jobs (torchrun, gloo, four ranks) under `workbench run` in which a rank becomes slow: it is named while the job runs, and never
ended for it; what hits ranks in turn, or all of them, names nobody.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.training.test_run_torch import Job

pytestmark = pytest.mark.slow


def stragglers(job: Job, attempt: int = 1) -> dict[str, Any]:
    """Return what the looks at an attempt found."""
    found: dict[str, Any] = json.loads((job.run / f"attempt-{attempt}/stragglers.json").read_text())
    return found


def test_a_rank_that_becomes_slow_is_named_while_the_job_goes_on(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert job.done("--slow", "2@80", "--steps", "420", "--every", "60", "--pause", "0") == 0, job.told()
    (one,) = job.about(1)["stragglers"]
    assert (one["kind"], one["ranks"], one["confirmed"], one["until_step"]) == ("rank", [2], True, None)
    assert abs(one["since_step"] - 80) <= 5, one
    assert 1.5 < one["low"] <= one["factor"] <= 3.3, (
        one
    )  # three times its own work, and the call and its wait are in the time, too
    (line,) = [line for line in job.err.splitlines() if "straggler" in line]
    assert line.startswith("workbench run: straggler: rank 2 on node ")
    assert line.endswith("nothing is ended for it")
    assert not (job.run / "attempt-2").exists()  # it went on to its end


@pytest.mark.parametrize("how", ["turns@80", "all@80"])
def test_what_the_work_itself_makes_slow_names_nobody(tmp_path: Path, how: str) -> None:
    job = Job(tmp_path)
    assert job.done("--slow", how, "--steps", "260", "--every", "60", "--pause", "0") == 0, job.told()
    assert stragglers(job)["looks"] >= 1
    assert stragglers(job)["told"] == job.about(1)["stragglers"] == [], stragglers(job)
    assert "straggler" not in job.err


def test_the_slow_rank_is_in_the_verdict_of_a_job_that_failed_later(tmp_path: Path) -> None:
    """What the user's own code did is the cause all the same: that a rank was slow is told beside it."""
    job = Job(tmp_path)
    assert job.done("--slow", "1@60", "--steps", "400", "--every", "200", "--pause", "0", "--fault", "bug@3", "--at", "180") == 1
    (decision,) = job.decisions
    assert (decision["action"], decision["cls"]) == ("stop", "user/exception"), job.told()
    verdict = json.loads((job.run / "attempt-1.verdict.json").read_text())
    (slow,) = verdict["degraded"]
    assert (slow["rank"], slow["gpu"]) == (1, None)
    assert slow["slowdown"] > 1.5
    assert slow["since"].startswith("20")
    assert "run-straggler" in {one["signature"] for one in verdict["evidence"] if one["role"] == "context"}
    assert verdict["culprit"]["rank"] == 3
