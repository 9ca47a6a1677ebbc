"""Ranks of jobs that run under a real slurmctld: on the fleet's GPUs where srun's step tells them, and on none where it does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.kubernetes_site import until
from tests.live.slurm_cluster import RealCluster, started
from workbench.config import load_config
from workbench.site.live import fetch

pytestmark = pytest.mark.live

WHOLE = ("--parsable", "--nodes=2", "--ntasks-per-node=8", "--gres=gpu:h100:8")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    with started(2) as made:
        until("both nodes", lambda: set(made.ask("sinfo", "-h", "-N", "-o", "%t").split()) == {"idle"}, seconds=180.0)
        made.ask(
            "srun", "--nodes=2", "true", seconds=240.0
        )  # both start processes: what is handed in before that may wait for long
        yield made


def told(cluster: RealCluster, folder: Path) -> dict[str, list[int | None]]:
    """Node → rank of each GPU, as the fleet has it now."""
    environ = {
        "HOME": str(folder), "WORKBENCH_NODE_ENABLED": "false", "WORKBENCH_KUBERNETES_ENABLED": "false", "WORKBENCH_DEADLINE": "60s",
        "WORKBENCH_SLURM_PREFIX": f"/usr/bin/env SLURM_CONF={cluster.env['SLURM_CONF']}",
        "WORKBENCH_REMEDIATION_JOURNAL": str(folder / "journal.jsonl"),
    }  # fmt: skip
    found: dict[str, list[int | None]] = {}
    for row in fetch(load_config(environ=environ)).gpus.sort_values(["node", "gpu_index"]).to_dict("records"):
        found.setdefault(row["node"], []).append(
            int(row["rank"]) if row["rank"] == row["rank"] and row["rank"] is not None else None
        )
    return found


@pytest.mark.parametrize("dist", ["block", "cyclic"])
def test_ranks_are_where_the_step_says(cluster: RealCluster, tmp_path: Path, dist: str) -> None:
    """The processes themselves write on which node each is; a cyclic step, in which rank 1 is on the second node, tells no rank."""
    script = f"srun --distribution={dist} sh -c 'echo $SLURM_PROCID $SLURMD_NODENAME >{tmp_path}/$SLURM_PROCID; exec sleep 300'"
    job = cluster.ask("sbatch", *WHOLE, f"--job-name={dist}", f"--output={tmp_path}/out", f"--wrap={script}").strip()
    try:
        until("the job", lambda: cluster.ask("squeue", "-h", "-o", "%t", "-j", job).strip() == "R", seconds=240.0)
        until(
            "all processes", lambda: len([one for one in tmp_path.glob("[0-9]*") if one.read_text().strip()]) == 16, seconds=120.0
        )
        real = {int(rank): node for rank, node in (one.read_text().split() for one in tmp_path.glob("[0-9]*"))}
        shown = told(cluster, tmp_path)
        assert set(shown) == set(cluster.names)
        if dist == "block":
            assert shown == {name: [rank for rank in range(16) if real[rank] == name] for name in cluster.names}
        else:
            assert {real[0], real[1]} == set(cluster.names)
            assert all(rank is None for ranks in shown.values() for rank in ranks)
    finally:
        cluster.end(job)
        until("the end of it", lambda: not cluster.ask("squeue", "-h", "-o", "%A").strip(), seconds=240.0)
