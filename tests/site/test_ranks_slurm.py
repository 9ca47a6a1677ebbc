"""Which rank runs on which GPU of a running Slurm cluster: told by a step that counts in blocks over whole nodes, and never guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.site.small_site import exporter, small
from workbench.site.live import fetch
from workbench.testing import Slurm

NOBODY = [None] * 8
BLOCK = {"tasks": 16, "dist": "Block"}


def ranks(tmp_path: Path, *jobs: dict[str, Any]) -> dict[str, list[int | None]]:
    """Return node → the ranks on its GPUs, as a snapshot of a cluster tells them on which these jobs run."""
    slurm = Slurm(nodes=["g1", "g2"])
    common = {
        "user": "carol",
        "state": "R",
        "start": "2026-03-01T09:00:00",
        "nodes": ["g1", "g2"],
        "gres": "gres/gpu:8",
        "name": "llm",
    }
    slurm.state["queue"] = [{**common, "id": str(4711 + number), **job} for number, job in enumerate(jobs)]
    with small(tmp_path, (), [*exporter("g1"), *exporter("g2")], slurm) as here:
        snapshot = fetch(here.config)
    assert len(snapshot.jobs) == len(jobs)
    found: dict[str, list[int | None]] = {}
    for row in snapshot.gpus.sort_values(["node", "gpu_index"]).to_dict("records"):
        found.setdefault(row["node"], []).append(None if row["rank"] is None or row["rank"] != row["rank"] else int(row["rank"]))
    return found


def test_a_step_over_whole_nodes_has_its_ranks_on_their_gpus_in_order(tmp_path: Path) -> None:
    assert ranks(tmp_path, {"steps": [BLOCK]}) == {"g1": list(range(8)), "g2": list(range(8, 16))}


@pytest.mark.parametrize(
    "job",
    [
        {"steps": []},  # a script without srun
        {"steps": [{"tasks": 16, "dist": "Cyclic"}]},
        {"steps": [{"tasks": 15, "dist": "Block"}]},  # which node has seven?
        {"steps": [{"tasks": 2, "dist": "Block"}]},  # a launcher a node, whose processes number themselves
        {"steps": [BLOCK, BLOCK]},
        {"steps": [{"tasks": 8, "dist": "Block"}], "gres": "gres/gpu:4"},  # which half of the node?
    ],
    ids=["no step", "cyclic", "uneven", "launcher", "two steps", "half a node"],
)
def test_where_it_is_not_sure_no_rank_is_told(tmp_path: Path, job: dict[str, Any]) -> None:
    assert ranks(tmp_path, job) == {"g1": NOBODY, "g2": NOBODY}


def test_a_small_step_beside_it_takes_no_ranks_away(tmp_path: Path) -> None:
    """Somebody who looks with `srun --overlap nvidia-smi` is one task."""
    assert ranks(tmp_path, {"steps": [BLOCK, {"tasks": 1, "dist": "Block", "nodes": ["g1"]}]})["g2"] == list(range(8, 16))


def test_two_jobs_on_a_node_leave_its_ranks_open(tmp_path: Path) -> None:
    halves = {"gres": "gres/gpu:4", "steps": [{"tasks": 4, "dist": "Block"}]}
    assert ranks(tmp_path, {**halves, "nodes": ["g1"]}, {**halves, "nodes": ["g1"]})["g1"] == NOBODY
