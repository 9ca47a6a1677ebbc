"""The shipped health program, prolog and drain timer under a real slurmctld and slurmd: an unfit node is drained, and says why."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.live.kubernetes_site import until
from tests.live.test_slurm_live import free_port
from workbench.cli.config import SHIPPED

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]
SERVICE = ROOT / "tests/services/slurm"
NODE = "gpu-node-001"
Run = Callable[..., str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Run]]:
    """One node whose hooks are ours, and what runs a command in the cluster; a node without GPUs is fit at first."""
    work = tmp_path_factory.mktemp("slurm")
    hooks = work / "hooks"
    (work / "bin").mkdir()
    hooks.mkdir()
    script = work / "workbench-node"
    package, name = SHIPPED["slurm"]
    script.write_text((ROOT / package.replace(".", "/") / name).read_text(encoding="utf-8"), encoding="utf-8")
    script.chmod(0o755)
    # the kernel's ring buffer of a machine that runs tests all day does not reach back to its boot, which makes these two unknown
    more = 'WORKBENCH_HEALTH_OPTIONAL="xid driver-log"'
    tell = f'export PYTHONPATH="{ROOT}" WORKBENCH_HEALTH_STATE="{work}/state-of-checks" {more}\n. "{work}/expected"\n'
    (work / "bin/workbench").write_text(f'#!/bin/sh\n{tell}exec "{sys.executable}" -m workbench "$@"\n')
    (work / "bin/workbench").chmod(0o755)
    (work / "expected").write_text("export WORKBENCH_HEALTH_GPUS=0\n")
    for hook in ("health", "prolog", "epilog", "drain"):
        (work / f"workbench-{hook}").symlink_to(script)
        # slurmd gives no settings to a hook: the two places are told here
        text = f'#!/bin/sh\nexport WORKBENCH_RUN="{work}/run" WORKBENCH_PATH="{work}/bin"\n'
        (hooks / hook).write_text(f'{text}date +%s >> "{work}/{hook}.ran"\nexec "{work}/workbench-{hook}"\n')
        (hooks / hook).chmod(0o755)
    port = free_port(1, 2, 101)
    started = subprocess.run(
        [str(SERVICE / "start"), "--nodes", "1", "--no-accounting", "--dir", str(work), "--port", str(port)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert started.returncode == 0, started.stdout + started.stderr
    env = {**os.environ, "SLURM_CONF": str(work / "slurm.conf")}

    def run(*words: str, **more: str) -> str:
        return subprocess.run(words, env=env | more, capture_output=True, text=True, timeout=60, check=True).stdout

    try:
        yield work, run
    finally:
        subprocess.run([str(SERVICE / "stop"), "--dir", str(work)], capture_output=True, timeout=120)


def state(run: Run) -> str:
    """Return the node's state by slurmctld's word."""
    return run("sinfo", "-h", "-N", "-n", NODE, "-o", "%T").split()[0]


def test_a_fit_node_runs_its_job(site: tuple[Path, Run]) -> None:
    work, run = site
    assert "hello" in run("srun", "-N1", "-t", "1", "echo", "hello")
    assert (work / "prolog.ran").exists()
    until("the end of the job", lambda: (work / "run/epilog").exists() and state(run) == "idle", 60)
    assert not (work / "run/unfit").exists()


def test_the_health_program_leaves_its_reason_and_the_timer_drains_with_it(site: tuple[Path, Run]) -> None:
    work, run = site
    (work / "expected").write_text("export WORKBENCH_HEALTH_GPUS=8\n")
    until("slurmd's next health check", lambda: (work / "run/unfit").exists(), 60)
    assert state(run) == "idle"  # Slurm makes nothing of what a health program finds
    run(str(work / "hooks/drain"), SLURMD_NODENAME=NODE)
    assert state(run) == "drained"
    assert "workbench check: gpu-node-001 NOT FIT" in run("scontrol", "show", "node", NODE)


def test_a_prolog_on_an_unfit_node_drains_it_and_keeps_the_job(site: tuple[Path, Run]) -> None:
    work, run = site
    (work / "expected").write_text("export WORKBENCH_HEALTH_GPUS=8\n")
    run("scontrol", "update", f"nodename={NODE}", "state=resume")
    (work / "job.sh").write_text("#!/bin/sh\necho ran > ran\n")
    run("sbatch", "-D", str(work), str(work / "job.sh"))
    until("the drain", lambda: "drain" in state(run), 60)
    assert "Prolog error" in run("scontrol", "show", "node", NODE)
    until("the job in the queue again", lambda: run("squeue", "-h", "-o", "%T").strip() == "PENDING", 60)
    assert not (work / "ran").exists()
    assert "NOT FIT" in (work / "run/unfit").read_text()
