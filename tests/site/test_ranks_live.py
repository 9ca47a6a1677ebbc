"""Which rank runs on which GPU of a running fleet: told where one pod holds a whole node, and never guessed where two readings are possible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.site.small_site import exporter, fit, node, pod, small
from workbench.site.live import fetch
from workbench.site.model import Snapshot

STATIC = ["torchrun", "--nnodes=2", "--nproc-per-node=8", "--master-addr=llm-0", "train.py"]


def worker(
    number: int, where: str, *, command: list[str] | None = None, gpus: int = 8, index: int | None = None
) -> dict[str, Any]:
    """A pod of a job that is started by torchrun."""
    made = pod(f"llm-{number}", where, "llm", gpus=gpus)
    made["metadata"]["labels"]["training.kubeflow.org/replica-index"] = str(number if index is None else index)
    made["spec"]["containers"][0]["command"] = STATIC if command is None else command
    return made


def ranks(tmp_path: Path, pods: list[dict[str, Any]], shown: int = 8) -> dict[str, list[int | None]]:
    """Return node → the ranks on its GPUs, as a snapshot of that site tells them; gpu-2 shows so many of its eight."""
    objects = [node("gpu-1", fit()), node("gpu-2", fit()), *pods]
    metrics = [*exporter("gpu-1"), *exporter("gpu-2", range(shown))]
    with small(tmp_path, objects, metrics) as here:
        snapshot: Snapshot = fetch(here.config)
    found: dict[str, list[int | None]] = {}
    for row in snapshot.gpus.sort_values(["node", "gpu_index"]).to_dict("records"):
        found.setdefault(row["node"], []).append(None if row["rank"] is None or row["rank"] != row["rank"] else int(row["rank"]))
    return found


NOBODY = [None] * 8


def test_a_pod_that_holds_a_node_has_its_ranks_on_its_gpus_in_order(tmp_path: Path) -> None:
    assert ranks(tmp_path, [worker(0, "gpu-2"), worker(1, "gpu-1")]) == {"gpu-1": list(range(8, 16)), "gpu-2": list(range(8))}


@pytest.mark.parametrize(
    "pods",
    [
        [worker(0, "gpu-1", command=[*STATIC[:-1], "--rdzv-backend=c10d", "train.py"])],  # numbers nodes anew
        [worker(0, "gpu-1", command=["torchrun", "train.py"])],  # says nowhere how many processes
        [worker(0, "gpu-1", gpus=4, command=["torchrun", "--nproc-per-node=4", "train.py"])],  # which half of the node?
        [worker(0, "gpu-1"), worker(1, "gpu-2", index=0)],  # a master and a worker count both from 0
    ],
    ids=["rendezvous", "count not told", "half a node", "two of the same rank"],
)  # fmt: skip
def test_where_it_is_not_sure_no_rank_is_told(tmp_path: Path, pods: list[dict[str, Any]]) -> None:
    assert ranks(tmp_path, pods) == {"gpu-1": NOBODY, "gpu-2": NOBODY}


def test_on_a_node_that_lost_a_gpu_no_rank_is_told(tmp_path: Path) -> None:
    assert ranks(tmp_path, [worker(0, "gpu-1"), worker(1, "gpu-2")], shown=7) == {"gpu-1": list(range(8)), "gpu-2": NOBODY}
