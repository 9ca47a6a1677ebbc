"""
Real PyTorch jobs (torchrun, gloo, four ranks) under `workbench run`: each is broken once in its own way, the decision is right, and where the job
goes on its final loss is that of an undisturbed run to the last bit.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.servers import free_port
from workbench.training.lineage import marked

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TORCHRUN = str(ROOT / "tests/services/torch/torchrun")
TRAIN = str(ROOT / "tests/training/train_tiny.py")
POLICY = 'schema = "workbench.retry/1"\n[backoff]\nfirst = "0s"\ncap = "0s"\n[wait]\nfirst = "0s"\ncap = "0s"\n'
LONG = 280.0  # seconds: two attempts of a job whose import of torch alone takes ten on a busy machine


class Job:
    """One run of the training script under `workbench run`, in a folder of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.run = folder / "run"
        (folder / "checkpoints").mkdir()
        (folder / "retry.toml").write_text(POLICY)
        self.options = [
            f"--policy={folder / 'retry.toml'}",
            f"--run-dir={self.run}",
            f"--checkpoints={folder / 'checkpoints'}",
            *options,
        ]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WORKBENCH_", "SLURM", "FAULT"))}
        # the kernel log of a machine that runs tests all day tells of other jobs that were killed
        self.env = {
            **kept,
            "PYTHONPATH": str(ROOT),
            "WORKBENCH_NODE_ENABLED": "false",
            "SMALL_DISK": str(folder / "small"),
            "OMP_NUM_THREADS": "1",
        }
        self.process: subprocess.Popen[str] | None = None
        self.err = ""

    def start(self, *arguments: str, launcher: tuple[str, ...] = (TORCHRUN, "--standalone", "--nproc-per-node", "4")) -> None:
        words = [
            sys.executable,
            "-m",
            "workbench",
            "run",
            *self.options,
            "--",
            *launcher,
            TRAIN,
            "--folder",
            str(self.folder),
            *arguments,
        ]
        self.process = subprocess.Popen(
            words, cwd=ROOT, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def end(self) -> int:
        assert self.process is not None
        _, self.err = self.process.communicate(timeout=LONG)
        return self.process.returncode

    def done(self, *arguments: str, launcher: tuple[str, ...] = (TORCHRUN, "--standalone", "--nproc-per-node", "4")) -> int:
        self.start(*arguments, launcher=launcher)
        return self.end()

    def log(self, attempt: int) -> str:
        return (self.run / f"attempt-{attempt}/logs/launcher.log").read_text(errors="replace")

    @property
    def loss(self) -> str:
        """The final loss of the last attempt, as a hexadecimal number."""
        last = max(int(path.name.split("-")[1]) for path in self.run.glob("attempt-*") if path.is_dir())
        found = re.findall(r"final loss (\S+)", self.log(last))
        assert found, self.log(last)[-3000:]
        return str(found[-1])

    @property
    def decisions(self) -> list[dict[str, Any]]:
        path = self.run / "decisions.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def actions(self) -> list[str]:
        return [one["action"] for one in self.decisions if one["action"] != "wait"]

    def about(self, attempt: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run / f"attempt-{attempt}.json").read_text())
        return found

    def told(self) -> str:
        """All that helps to understand a test that failed."""
        verdicts = [path.read_text()[:1500] for path in sorted(self.run.glob("*.verdict.json"))]
        return "\n".join([self.err, json.dumps(self.decisions, indent=1), *verdicts, self.log(1)[-3000:]])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for one job; whatever the job left is ended."""
    yield tmp_path
    for pid in marked(f"WORKBENCH_RUN={(tmp_path / 'run').resolve()}"):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The final loss of a job that nothing happens to."""
    job = Job(tmp_path_factory.mktemp("undisturbed"))
    assert job.done() == 0, job.told()
    assert "workbench run:" not in job.err
    return job.loss


def went_on(job: Job, code: int, undisturbed: str, begun: int) -> None:
    """Check that one restart led to the same end."""
    assert code == 0, job.told()
    assert job.actions() == ["restart"], job.told()
    assert f"resumed at step {begun} " in job.log(2), job.told()
    assert job.loss == undisturbed
    assert marked(f"WORKBENCH_RUN={job.run.resolve()}") == set()


def test_a_rank_that_is_killed(folder: Path, undisturbed: str) -> None:
    job = Job(folder)
    went_on(job, job.done("--fault", "kill@2"), undisturbed, 8)
    assert "rank 2" in job.err
    assert "which SIGKILL ended" in job.err
    assert "TRACE_BUFFER_SIZE is deprecated" not in job.log(1)


@pytest.mark.parametrize("kind", ["hang@1", "hang-outside@3"], ids=["inside a collective", "outside"])
def test_a_hang(folder: Path, undisturbed: str, kind: str) -> None:
    job = Job(folder, "--max-hang=8s", "--grace=3s")
    went_on(job, job.done("--fault", kind, "--timeout", "600"), undisturbed, 8)
    assert job.about(1)["why"] == "hang"
    verdict = json.loads((job.run / "attempt-1.verdict.json").read_text())
    assert "hang" in verdict["class"], job.told()
    stacks = {path.name for path in (job.run / "attempt-1/stacks").glob("rank-*.txt")}
    assert {f"rank-{rank}.txt" for rank in range(4)} <= stacks, job.told()


def test_a_node_that_is_silent(folder: Path, undisturbed: str) -> None:
    job = Job(folder, "--grace=3s", "--max-hang=12s")
    launcher = (str(ROOT / "tests/training/two_nodes.sh"), TORCHRUN, str(free_port()))
    went_on(job, job.done("--fault", "node@3", "--timeout", "8", launcher=launcher), undisturbed, 8)


def test_a_disk_that_is_full_while_it_saves(folder: Path, undisturbed: str) -> None:
    small = folder / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=True)
    try:
        job = Job(folder)
        went_on(job, job.done("--fault", "disk-full"), undisturbed, 8)
        assert "No space left on device" in job.log(1) or "enforce fail" in job.log(1)
    finally:
        subprocess.run(["umount", "-l", str(small)], check=False)


def test_a_newest_checkpoint_that_is_torn(folder: Path, undisturbed: str) -> None:
    job = Job(folder)
    went_on(job, job.done("--fault", "torn"), undisturbed, 8)
    assert "step-000012.pt is passed over: " in job.err


def test_a_preemption(folder: Path, undisturbed: str) -> None:
    job = Job(folder)
    job.start("--pause", "0.4")
    until = time.monotonic() + LONG
    while not (folder / "checkpoints/step-000008.pt").exists():
        assert time.monotonic() < until
        time.sleep(0.1)
    assert job.process is not None
    job.process.terminate()
    assert job.end() != 0
    assert job.actions() == []
    assert "preempted after 1 attempt" in job.err
    assert job.about(1)["state"] == "preempted"
    assert job.done() == 0, job.told()
    assert "resumed at step" in job.log(2)
    assert job.loss == undisturbed
    assert job.actions() == []


@pytest.mark.parametrize(("kind", "cls"), [("bug@2", "user/exception"), ("host-oom@1", "user/host-oom")])
def test_a_fault_of_the_user_ends_it(folder: Path, kind: str, cls: str) -> None:
    job = Job(folder)
    assert job.done("--fault", kind) == 1, job.told()
    (decision,) = job.decisions
    assert (decision["action"], decision["cls"], decision["who"]) == ("stop", cls, "user"), job.told()
    assert not (job.run / "attempt-2").exists()
