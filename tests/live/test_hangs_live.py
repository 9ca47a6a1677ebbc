"""A real PyTorch job under a real torchrun hangs in a lock of one rank: it is seen, its stacks name the rank and the function, and it is ended."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

import workbench
from workbench.training.flight import collect_flight, flight_environment
from workbench.training.hangs import Watch
from workbench.training.processes import end_in_order
from workbench.training.stacks import collect_stacks, grouped, stacks_environment

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / "tests/services/torch/python"

pytestmark = pytest.mark.live


def test_the_rank_that_hangs_outside_a_collective_is_named(tmp_path: Path) -> None:
    run, dumps = tmp_path / "run", tmp_path / "dumps"
    for folder in (run / "flight", run / "logs", dumps):
        folder.mkdir(parents=True)
    env = os.environ | {"WORKBENCH_PROGRESS": str(tmp_path / "progress")}
    env |= stacks_environment(env, dumps) | flight_environment(env, run / "flight")
    job_file = ROOT / "tests/data/training/torch_job_that_hangs.py"
    launch = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", job_file, ROOT]
    with (run / "logs/launcher.log").open("w") as log:
        job = subprocess.Popen(launch, env=env, stdout=log, stderr=log, start_new_session=True)
    watch = Watch(floor=10, warm_up=10, start_limit=400, progress=tmp_path / "progress")
    try:
        while (hang := watch.tick(time.monotonic())) is None:
            assert job.poll() is None, (run / "logs/launcher.log").read_text()
            time.sleep(0.1)
        assert hang.last_step == 14
        found = collect_stacks(job.pid, run / "stacks", dumps=dumps, deadline=60)
        said = grouped(found)
        assert said[0].startswith("ranks 0, 2-3, in a collective: all_reduce (")
        assert said[1].startswith("rank 1, ")
        assert "tokenize (" in said[1]
        _, problems = collect_flight(run / "flight", deadline=3)
        assert "only the NCCL backend makes one" in problems[-1]
    finally:
        assert end_in_order(job.pid, grace=10)[0] == "SIGTERM to ranks: 4 processes"
        job.wait(30)
    verdict = workbench.load(run).triage()
    assert (verdict.cls, verdict.rank) == ("user/hang", 1)
