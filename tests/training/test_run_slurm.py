"""`workbench run` around a real srun, outside and inside an allocation: the node whose GPU broke is left out of the retry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.slurm_cluster import RealCluster, started

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]
BAD = "gpu-node-002"
# a rank of a node whose GPU has uncorrectable errors, in PyTorch's own words
RANK = f"""#!/bin/sh
echo "rank $SLURM_PROCID/$SLURM_NTASKS local_rank 0 on $SLURMD_NODENAME cuda:0"
echo "step 1/2 loss 1.0"
sleep 1
if [ "$SLURMD_NODENAME" = {BAD} ]; then
  echo "[rank$SLURM_PROCID]: Traceback (most recent call last):" >&2
  echo "[rank$SLURM_PROCID]:   File \\"/workspace/train.py\\", line 88, in step" >&2
  echo "[rank$SLURM_PROCID]:     loss.backward()" >&2
  echo "[rank$SLURM_PROCID]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered" >&2
  exit 1
fi
echo "step 2/2 loss 0.5"
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    """Three nodes."""
    with started(3) as made:
        yield made


@pytest.fixture
def words(cluster: RealCluster, tmp_path: Path) -> list[str]:
    """How `workbench run` is called there."""
    script = tmp_path / "rank.sh"
    script.write_text(RANK)
    script.chmod(0o755)
    (tmp_path / "retry.toml").write_text(
        'schema = "workbench.retry/1"\n[backoff]\nfirst = "0s"\n[wait]\nfirst = "0s"\ncap = "0s"\n'
    )
    own = [f"--run-dir={tmp_path / 'run'}", f"--policy={tmp_path / 'retry.toml'}"]
    return [
        sys.executable,
        "-m",
        "workbench",
        "run",
        *own,
        "--",
        "srun",
        "-l",
        "-N2",
        "-n2",
        "--ntasks-per-node=1",
        "--kill-on-bad-exit",
        str(script),
    ]


def environment(cluster: RealCluster) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WORKBENCH_", "SLURM"))}
    kept["WORKBENCH_NODE_ENABLED"] = "false"  # the kernel log of a machine that runs tests all day tells of other jobs
    return {**kept, **cluster.env, "PYTHONPATH": str(ROOT), "PATH": kept.get("PATH", "") + ":/usr/sbin:/usr/bin:/sbin:/bin"}


def check(folder: Path, err: str) -> None:
    """The second attempt ran on the other two nodes, and the ledger says why."""
    first, second = ((folder / f"attempt-{n}/logs/launcher.log").read_text() for n in (1, 2))
    assert f"on {BAD} " in first, err
    assert f"on {BAD} " not in second
    assert second.count("step 2/2") == 2
    decision = json.loads((folder / "decisions.jsonl").read_text().splitlines()[-1])
    assert (decision["action"], decision["exclude_nodes"], decision["cause"]) == ("restart", [BAD], "hardware")
    assert f"--exclude={BAD}" in json.loads((folder / "attempt-2.json").read_text())["command"]


def test_srun_that_makes_its_own_allocation(cluster: RealCluster, words: list[str], tmp_path: Path) -> None:
    done = subprocess.run(words, env=environment(cluster), cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr + (tmp_path / "run/attempt-1.verdict.json").read_text()[:2000]
    check(tmp_path / "run", done.stderr)
    assert "completed after 2 attempts" in done.stderr


def test_srun_inside_an_allocation_that_has_a_node_to_spare(cluster: RealCluster, words: list[str], tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    env = environment(cluster)
    exports = "\n".join(f"export {name}='{env[name]}'" for name in ("WORKBENCH_NODE_ENABLED", "PYTHONPATH", "PATH", "SLURM_CONF"))
    quoted = " ".join(f"'{word}'" for word in words)
    script.write_text(f"#!/bin/sh\n{exports}\n{quoted}\necho the run gave $?\n")
    out = tmp_path / "job.out"
    job = cluster.ask(
        "sbatch", "--parsable", "-N3", "--ntasks-per-node=1", "--no-requeue", f"--output={out}", str(script)
    ).strip()
    until = time.monotonic() + 200
    while not out.exists() or "the run gave" not in out.read_text():
        assert time.monotonic() < until, cluster.ask("scontrol", "show", "job", job) + (out.read_text() if out.exists() else "")
        time.sleep(0.5)
    said = out.read_text()
    assert "the run gave 0" in said, said
    check(tmp_path / "run", said)
