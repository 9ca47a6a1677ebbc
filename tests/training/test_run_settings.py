"""`workbench run` heeds the file of settings: the ledger that it names is written, and a file that is wrong costs the job nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.fleet.ledger import Ledger

ROOT = Path(__file__).resolve().parents[2]
FAILS = "import sys; sys.exit(int(sys.argv[1]))"


def run(folder: Path, code: int, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a job that ends with a code, in a folder that may have a file of settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WORKBENCH_", "SLURM", "XDG_"))}
    (folder / "retry.toml").write_text('schema = "workbench.retry/1"\n[budget]\nunknown = 0\nnone = 0\nuser = 0\n')
    words = [sys.executable, "-m", "workbench", "run", "--run-dir", str(folder / "run"), "--policy", "retry.toml", "--"]
    return subprocess.run(
        [*words, sys.executable, "-c", FAILS, str(code)],
        cwd=folder,
        env={**kept, "HOME": str(folder), "PYTHONPATH": str(ROOT), "WORKBENCH_NODE_ENABLED": "false", **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def states(path: Path) -> list[str]:
    """Return how the attempts in a ledger ended."""
    with Ledger.open(path, "ro") as ledger:
        return [str(row["state"]) for row in ledger.rows("attempts")]


@pytest.mark.parametrize(("code", "state"), [(0, "completed"), (3, "failed")])
def test_the_ledger_of_the_settings_has_the_job_that_ended_well_and_the_one_that_failed(
    tmp_path: Path, code: int, state: str
) -> None:
    (tmp_path / "workbench.toml").write_text(f'[fleet]\nledger = "{tmp_path}/account.sqlite"\n')
    assert run(tmp_path, code).returncode == code
    assert states(tmp_path / "account.sqlite") == [state]


def test_the_environment_decides_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "workbench.toml").write_text(f'[fleet]\nledger = "{tmp_path}/account.sqlite"\n')
    assert run(tmp_path, 0, WORKBENCH_FLEET_LEDGER=str(tmp_path / "other.sqlite")).returncode == 0
    assert states(tmp_path / "other.sqlite") == ["completed"]
    assert not (tmp_path / "account.sqlite").exists()


def test_without_a_setting_no_ledger_is_made_where_the_default_lies(tmp_path: Path) -> None:
    (tmp_path / "workbench.toml").write_text('[prometheus]\nurl = "http://127.0.0.1:9"\n')
    done = run(tmp_path, 0)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / ".local").exists()


def test_a_wrong_file_of_settings_costs_the_job_nothing_and_is_told(tmp_path: Path) -> None:
    (tmp_path / "workbench.toml").write_text("[fleet]\nledgre = 1\n")
    done = run(tmp_path, 0)
    assert done.returncode == 0
    assert "nothing is written into the fleet's ledger: " in done.stderr
    assert "ledgre" in done.stderr


TORCHRUN = """#!/bin/sh
echo "starts with $CUDA_VISIBLE_DEVICES and $*"
[ "$WORKBENCH_ATTEMPT" = 1 ] || exit 0
echo "step 3/10 loss 1.5"
echo "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus."
exit 1
"""
SMI = """#!/bin/sh
echo "0, GPU-a, 00000000:1B:00.0"
echo "1, GPU-b, 00000000:3B:00.0"
"""


@pytest.mark.slow
@pytest.mark.parametrize(("least", "code"), [(1, 0), (2, 1)], ids=["one GPU is enough", "both are needed"])
def test_a_job_of_one_node_goes_on_without_the_gpu_that_is_to_blame(tmp_path: Path, least: int, code: int) -> None:
    """torchrun is a script here: what counts is what it is told."""
    for name, text in (("torchrun", TORCHRUN), ("nvidia-smi", SMI)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    policy = tmp_path / "gpus.toml"
    policy.write_text(f'schema = "workbench.retry/1"\n[gpus]\nmin = {least}\n[backoff]\nfirst = "0s"\ncap = "0s"\n')
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WORKBENCH_", "SLURM", "XDG_", "CUDA_"))}
    words = [sys.executable, "-m", "workbench", "run", "--run-dir", str(tmp_path / "run"), "--policy", str(policy), "--"]
    done = subprocess.run(
        [*words, "torchrun", "--nproc-per-node", "2", "train.py"],
        cwd=tmp_path,
        env={
            **kept,
            "HOME": str(tmp_path),
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "WORKBENCH_NODE_ENABLED": "false",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == code, done.stdout + done.stderr
    starts = [line for line in done.stdout.splitlines() if line.startswith("starts with")]
    first = "starts with  and --nproc-per-node 2 train.py"
    assert starts == ([first, "starts with GPU-a and --nproc-per-node 1 train.py"] if code == 0 else [first])
    assert ("1 of 2 GPUs of this node are used" if code == 0 else "Capacity is used up") in done.stderr
