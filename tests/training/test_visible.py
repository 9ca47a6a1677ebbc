"""A job on one node goes on without the GPU that is to blame, where its owner says that it may: fewer visible GPUs and as many ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.jobs import after, failed, verdict
from workbench.errors import ConfigError
from workbench.sources.command import Ran, run
from workbench.training.policy import Policy, load_policy
from workbench.training.visible import fewer, gpus_seen

GPUS = (("GPU-a", "0000:1b:00.0"), ("GPU-b", "0000:3b:00.0"), ("GPU-c", "0000:5e:00.0"), ("GPU-d", "0000:86:00.0"))
SMI = "".join(f"{at}, {uuid}, 0000{pci.upper()}\\n" for at, (uuid, pci) in enumerate(GPUS))


def smi(argv: list[str], *, seconds: float) -> Ran:
    """Say what nvidia-smi says of four GPUs."""
    assert argv[0] == "nvidia-smi"
    return run(["printf", SMI], seconds=seconds)


def test_the_gpus_of_a_job_are_all_or_those_that_it_was_given() -> None:
    assert gpus_seen({}, runner=smi).gpus == GPUS
    assert gpus_seen({"CUDA_VISIBLE_DEVICES": "2,0"}, runner=smi).gpus == (GPUS[2], GPUS[0])
    assert gpus_seen({"CUDA_VISIBLE_DEVICES": "GPU-d,7,0"}, runner=smi).gpus == (GPUS[3],)
    assert "names none" in gpus_seen({"CUDA_VISIBLE_DEVICES": "-1"}, runner=smi).trouble
    gone = gpus_seen({}, runner=lambda argv, *, seconds: run(["/nonexistent/nvidia-smi"], seconds=seconds))
    assert gone.gpus == ()
    assert gone.trouble


@pytest.mark.parametrize(
    ("words", "then"),
    [
        ("torchrun --standalone --nproc-per-node 4 train.py --nproc-per-node 4", "torchrun --standalone --nproc-per-node 3 train.py --nproc-per-node 4"),
        ("torchrun --nproc_per_node=4 train.py", "torchrun --nproc_per_node=3 train.py"),
        ("torchrun --nproc-per-node=gpu train.py", "torchrun --nproc-per-node=gpu train.py"),
        ("torchrun --nproc-per-node=8 train.py", "torchrun --nproc-per-node=8 train.py"),
        ("accelerate launch --num_processes 4 train.py", "accelerate launch --num_processes 3 train.py"),
        ("python train.py", "python train.py"),
    ],
)  # fmt: skip
def test_there_are_as_many_ranks_as_gpus(words: str, then: str) -> None:
    """Where there was one for each."""
    command, variables, how = fewer(words.split(), GPUS, ("GPU-b",))
    assert " ".join(command) == then
    assert variables == {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-c,GPU-d"}
    assert how == "3 of 4 GPUs of this node are used"


def test_a_gpu_may_be_known_by_its_address_alone() -> None:
    assert fewer(["python"], GPUS, ("n1/0000:5e:00.0",))[1] == {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-d"}
    assert fewer(["python"], GPUS, ("GPU-of-another-node",)) == (["python"], {}, "")


def test_the_gpu_is_left_out_and_its_node_stays_while_enough_are_left() -> None:
    policy = Policy(nodes_have=1, gpus_have=4, gpus_min=3)
    said = verdict("hardware/gpu-memory", node="n1", uuid="GPU-b")

    first = after(said, policy=policy)
    assert (first.action, first.exclude_nodes, first.exclude_gpus) == ("restart", (), ("GPU-b",))
    assert "GPU-b is to blame" in first.reason
    second = after(
        verdict("hardware/gpu-memory", node="n1", uuid="GPU-c"), failed(1), failed(2, excluded=("GPU-b",)), policy=policy
    )
    assert (second.action, second.exclude_gpus) == ("stop", ("GPU-b",))
    assert "Capacity is used up" in second.reason


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (Policy(nodes_have=1), verdict("hardware/gpu-memory", node="n1", uuid="GPU-b")),
        (Policy(nodes_have=1, gpus_have=4, gpus_min=3), verdict("hardware/host", node="n1", at_fault="node")),
        (Policy(nodes_have=1, gpus_have=4, gpus_min=3), verdict("hardware/gpu-memory", node="n1")),
    ],
    ids=["its owner did not say so", "the node is to blame", "nobody knows which GPU"],
)
def test_else_the_node_is_left_out_as_ever(policy: Policy, said: dict[str, object]) -> None:
    decision = after(said, policy=policy)
    assert (decision.action, decision.exclude_gpus) == ("stop", ())
    assert "Capacity is used up" in decision.reason


def test_a_policy_that_wants_more_gpus_than_there_are_is_refused(tmp_path: Path) -> None:
    (tmp_path / "retry.toml").write_text('schema = "workbench.retry/1"\n[gpus]\nhave = 4\nmin = 6\n')
    with pytest.raises(ConfigError, match=r"gpus\.have = 4"):
        load_policy(tmp_path / "retry.toml")
