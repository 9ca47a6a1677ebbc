"""Launcher side files: command lines, exit records, environments."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.model import Line
from workbench.parse.launch import parse_launch


def _facts(text: str) -> dict[str, Any]:
    return parse_launch([Line(n, t) for n, t in enumerate(text.split("\n"), 1)], file="launch.txt").facts


@pytest.mark.parametrize(
    ("command", "world", "nnodes", "nproc"),
    [
        ("node-a$ torchrun --standalone --nproc_per_node=4 --max-restarts=0 train.py", 4, 1, 4),
        ("torchrun --nnodes 2:4 --nproc-per-node 8 train.py", 32, 4, 8),
        ("python3 -m torch.distributed.launch --nproc_per_node=8 train.py", 8, None, 8),
        (
            "srun -N4 -n4 --ntasks-per-node=1 torchrun --nnodes=4 --nproc_per_node 8 --rdzv_id=$SLURM_JOB_ID train.py --n 3",
            32,
            4,
            8,
        ),
        ("srun -l --nodes 2 --ntasks-per-node 8 python train.py -n 99", 16, 2, 8),
        ("mpirun -np 16 -H a:8,b:8 -x NCCL_DEBUG=INFO python train.py", 16, 2, 8),
        ("deepspeed --num_gpus 8 --num_nodes 2 --hostfile hosts train.py", 16, 2, 8),
        ("accelerate launch --num_processes 16 --num_machines 2 train.py", 16, 2, None),
        ("timeout -v -k 15 22 env A=1 torchrun --standalone --nproc_per_node=4 \\\n  t.py", 4, 1, 4),
        ("torchrun --standalone --nproc_per_node=gpu train.py", None, 1, None),
    ],
)
def test_sizes(command: str, world: int | None, nnodes: int | None, nproc: int | None) -> None:
    facts = _facts(command)
    assert (facts.get("world_size"), facts.get("nnodes"), facts.get("nproc")) == (world, nnodes, nproc)


def test_nodes_come_from_the_prompts() -> None:
    facts = _facts(
        "\n".join(f"user@{n}:~$ torchrun --nnodes=2 --nproc_per_node=2 --rdzv_id=job-7 t.py" for n in ("node-a", "node-b"))
    )
    assert (facts["nodes"], facts["world_size"], facts["rdzv_id"]) == (["node-a", "node-b"], 4, "job-7")


def test_exit_record_of_agents() -> None:
    agents = [
        {"node": "node-a", "exit_status": 1, "ended": "2026-05-04T11:02:09Z"},
        {"node": "node-b", "exit_status": 137, "signal": "SIGKILL", "ended": "2026-05-04T11:02:03Z"},
    ]
    parsed = parse_launch({"agents": agents}, file="exit.json")
    (job,) = parsed.jobs
    assert (job.exit_code, job.signal, job.state, job.nodes) == (137, 9, "FAILED", ["node-a", "node-b"])
    assert [(e.signature, e.node, e.code) for e in parsed.events] == [
        ("launch-agent-exit", "node-a", 1), ("launch-agent-signal", "node-b", 137),
    ]  # fmt: skip
    assert parsed.events[1].time == 1_777_892_523.0


@pytest.mark.parametrize(
    ("record", "signature", "signal"),
    [
        ({"exit_code": 0}, "launch-exit-zero", None),
        ({"returncode": -15}, "launch-agent-signal", 15),
        ({"exit_status": 124}, "launch-timeout-124", None),
        ({"exitcode": 139}, "launch-agent-signal", 11),
        ({"exit_code": 255}, "launch-agent-exit", None),
    ],
)
def test_exit_forms(record: dict[str, Any], signature: str, signal: int | None) -> None:
    (event,) = parse_launch(record, file="exit.json").events
    assert (event.signature, event.data["signal"]) == (signature, signal)


def test_an_environment_gives_placement_and_keeps_no_secret() -> None:
    kept = "RANK=3\nLOCAL_RANK=1\nWORLD_SIZE=8\nHOSTNAME=gpu-7\nexport NCCL_DEBUG=INFO\n"
    text = kept + "AWS_SECRET_ACCESS_KEY=abc\nWANDB_API_KEY=def\nSLURM_JWT=x"
    parsed = parse_launch([Line(n, t) for n, t in enumerate(text.split("\n"), 1)], file="env.txt")
    (placement,) = parsed.placements
    assert (placement.rank, placement.node, placement.local_rank) == (3, "gpu-7", 1)
    assert set(parsed.facts["env"]) == {"RANK", "LOCAL_RANK", "WORLD_SIZE", "HOSTNAME", "NCCL_DEBUG"}


def test_prose_and_junk_are_a_problem_not_an_error() -> None:
    for source in ([Line(1, "we ran it twice and it's broken")], [], {}, {"agents": [3, {"node": "a"}]}, [{"x": 1}]):
        assert parse_launch(source, file="x").problems
