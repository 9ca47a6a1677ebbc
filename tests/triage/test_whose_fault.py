"""Whose fault is it: another process on the node, a machine named by its address, a rank on other devices than its number says, a worker's error file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import workbench

STEPS = "\n".join(
    f"2025-07-17 16:{second // 60:02d}:{second % 60:02d},000 INFO trainer rank 0 step {second} loss 2.1"
    for second in range(10, 900, 10)
)
UP = "\n".join(f"2025-07-17T16:{minute:02d}:30+00:00 gpu-a kernel: audit: type=1400 pid={minute}" for minute in range(16))
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


def folder(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text.rstrip("\n") + "\n")
    return root


def verdict(root: Path, files: dict[str, str]) -> Any:
    return workbench.load(str(folder(root, files))).triage()


def placed(rank: int, device: int, words: str = "", node: str = "gpu-a", size: int = 4) -> str:
    return f"2025-07-17 16:00:00,{rank:03d} INFO trainer rank {rank}/{size} local_rank {device} on {node} cuda:{device}{words}"


def timeout(rank: int, moment: str) -> str:
    return (
        f"[rank{rank}]:[E717 {moment} ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=811, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
    )


def xid(text: str, at: str = "16:14:50", node: str = "gpu-a") -> str:
    return f"2025-07-17T{at}+00:00 {node} kernel: NVRM: Xid (PCI:0000:{text}"


@pytest.mark.parametrize(
    "words", [" CUDA_VISIBLE_DEVICES=2,3,0,1", " pci 0000:{bus}:00.0", ' visible CUDA_VISIBLE_DEVICES="2,3,0,1"']
)
def test_a_rank_runs_on_the_device_that_its_line_names(tmp_path: Path, words: str) -> None:
    """A process numbers what it sees: rank 3's cuda:3 is the node's second GPU, here by order or by address."""
    gpus = {0: "19", 1: "4e", 2: "9a", 3: "cb"}
    series = "\n".join(
        f'DCGM_FI_DEV_GPU_TEMP{{gpu="{index}",UUID="GPU-0000000{index}-0000-4000-8000-000000000000",pci_bus_id="00000000:{bus.upper()}:00.0",Hostname="gpu-a"}} 50 1752768000000'
        for index, bus in gpus.items()
    )
    lines = [placed(rank, rank, words.format(bus=gpus[(rank + 2) % 4])) for rank in range(4)]
    said = verdict(
        tmp_path,
        {
            "logs/job.log": "\n".join([*lines, STEPS, "[rank3]: Traceback (most recent call last):", f"[rank3]: {ECC}"]),
            "kernel/gpu-a.log": UP
            + "\n"
            + xid("4e:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE)"),
            "metrics/gpu-a.prom": "# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n" + series,
        },
    )
    assert (said.cls, said.rank) == ("hardware/gpu-memory", 3)
    assert said.gpu is not None
    assert said.gpu.index == 1


def test_of_equal_errors_without_a_stamp_the_one_that_an_agent_saw_first(tmp_path: Path) -> None:
    """Each rank's log ends with its traceback, hours after the last stamp; only the agents say when each rank ended."""
    files: dict[str, str] = {"logs/rank-0.log": placed(0, 0) + "\n" + STEPS.replace("16:", "18:")}
    for rank, node in ((1, "gpu-a"), (2, "gpu-b"), (3, "gpu-b")):
        files[f"logs/rank-{rank}.log"] = "\n".join(
            [
                placed(rank, rank % 2, node=node, size=16),
                f"[rank{rank}]: Traceback (most recent call last):",
                f"[rank{rank}]: OSError: [Errno 122] Disk quota exceeded: '/scratch/ckpt/__{rank}_0.distcp'",
            ]
        )
    for node, rank, second in (("gpu-a", 1, 9), ("gpu-b", 2, 5)):
        files[f"logs/torchrun-{node}.log"] = "\n".join(
            [
                "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
                "=" * 60,
                "train.py FAILED",
                "-" * 60,
                "Root Cause (first observed failure):",
                "[0]:",
                f"  time      : 2025-07-17_18:15:0{second}",
                f"  host      : {node}",
                f"  rank      : {rank} (local_rank: {rank % 2})",
                "  exitcode  : 1 (pid: 4242)",
                "  error_file: <N/A>",
                "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
                "=" * 60,
            ]
        )
    said = verdict(tmp_path, files)
    assert (said.cls, said.rank, said.node) == ("platform/storage", 2, "gpu-b")


def test_a_quiet_rank_of_a_shared_log_failed_where_its_lines_stand(tmp_path: Path) -> None:
    """Rank 2 of four MIG instances says nothing for a quarter of an hour; its unstamped traceback is not from the job's begin."""
    lines = [f"[{rank}]:2025-07-17 16:00:0{rank},000 | INFO | trainer | rank {rank}/4 device cuda:0" for rank in range(4)]
    steps = "\n".join("[0]:" + line for line in STEPS.splitlines())
    said = verdict(
        tmp_path,
        {
            "logs/job.log": "\n".join([*lines, steps, "[2]:Traceback (most recent call last):", f"[2]:{ECC}"]),
            "kernel/gpu-a.log": UP
            + "\n"
            + xid("61:00 GPU-I:05): 94, pid=2686198, name=python, Contained: SM (0x1). RST: No, D-RST: No"),
        },
    )
    assert (said.cls, said.node, said.rank) == ("hardware/gpu-memory", "gpu-a", 2)


@pytest.mark.parametrize("told", [True, False])
def test_a_worker_that_its_launcher_names_by_address_is_of_the_job(tmp_path: Path, told: bool) -> None:
    """Ray puts the node's address in front of each line; Kubernetes says whose it is, or the rank itself where it runs."""
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "gpu-a"},
        "status": {
            "addresses": [{"type": "InternalIP", "address": "10.1.2.3"}, {"type": "Hostname", "address": "gpu-a"}] if told else []
        },
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "grpo-worker-0", "labels": {"training.kubeflow.org/job-name": "grpo"}},
        "spec": {"nodeName": "gpu-a", "containers": [{"name": "trainer"}]},
        "status": {"phase": "Failed"} | ({"hostIP": "10.1.2.3"} if told else {}),
    }
    ray = "(RayTrainWorker pid=77, ip=10.1.2.3) "
    lines = [
        placed(0, 0),
        *STEPS.splitlines(),
        "[rank0]: Traceback (most recent call last):",
        "[rank0]: KeyError: 'reward_model'",
    ]
    said = verdict(
        tmp_path,
        {
            "nodes.json": json.dumps({"apiVersion": "v1", "kind": "List", "items": [node]}),
            "pods.json": json.dumps({"apiVersion": "v1", "kind": "List", "items": [pod]}),
            "logs/grpo-worker-0.log": "\n".join(ray + line for line in lines),
            "kernel/gpu-a.log": UP,
        },
    )
    assert (said.cls, said.node, said.rank) == ("user/exception", "gpu-a", 0)


@pytest.mark.parametrize("met", [False, True])
def test_a_trap_of_a_process_that_no_rank_met(tmp_path: Path, met: bool) -> None:
    """Both ranks of the node speak after it: of a time-out alone, or of the memory access too."""
    own = ["[rank1]: RuntimeError: CUDA error: an illegal memory access was encountered"] if met else []
    ends = [timeout(0, "16:25:01.100"), timeout(1, "16:25:01.200"), *own]
    said = verdict(
        tmp_path,
        {
            "logs/job.log": "\n".join([placed(0, 0), placed(1, 1), STEPS, *ends]),
            "kernel/gpu-a.log": UP + "\n" + xid("4e:00): 31, pid=90121, name=ollama, Ch 00000012, intr 00000000. MMU Fault"),
        },
    )
    assert (said.cls == "user/illegal-memory-access") == met


def test_a_condition_weighs_no_more_than_the_line_that_it_shows(tmp_path: Path) -> None:
    """The kernel's line is 40 s after a job that ended well; the monitor's condition of it is no failure either."""
    condition = {
        "type": "SysLogsXIDError",
        "status": "True",
        "reason": "SysLogsXIDErrorIsNotHealthy",
        "message": "ErrorCode:94 PCI:0000:4e:00 Recommended Action=NONE;",
        "lastTransitionTime": "2025-07-17T16:16:05Z",
    }
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-a"}, "status": {"conditions": [condition]}}
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": "2025-07-17T15:59:00Z", "finishedAt": "2025-07-17T16:15:20Z"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "llm-worker-0", "labels": {"training.kubeflow.org/job-name": "llm"}},
        "spec": {"nodeName": "gpu-a", "containers": [{"name": "trainer"}]},
        "status": {"phase": "Succeeded", "containerStatuses": [{"name": "trainer", "state": {"terminated": ended}}]},
    }
    said = verdict(
        tmp_path,
        {
            "nodes.json": json.dumps({"apiVersion": "v1", "kind": "List", "items": [node]}),
            "pods.json": json.dumps({"apiVersion": "v1", "kind": "List", "items": [pod]}),
            "logs/llm-worker-0.log": "\n".join(
                [placed(0, 0, " pci 0000:4e:00.0"), STEPS, "2025-07-17 16:15:10,000 INFO trainer training finished"]
            ),
            "kernel/gpu-a.log": UP + "\n" + xid("4e:00): 94, pid=99120, name=sglang, Contained: SM (0x1)", at="16:15:58"),
        },
    )
    assert said.cls == "none"


def test_what_a_worker_wrote_into_its_error_file_alone(tmp_path: Path) -> None:
    """The log says `see error file`; the others time out, and the rank is told beside the message."""
    error = {
        "message": {
            "message": "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 4181: invalid start byte",
            "extraInfo": {
                "py_callstack": 'Traceback (most recent call last):\n  File "/workspace/reader.py", line 88, in __next__\n'
                "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 4181: invalid start byte\n",
                "timestamp": "1752768905",
            },
        },
        "rank": 1,
        "local_rank": 1,
        "host": "gpu-a",
    }
    said = verdict(
        tmp_path,
        {
            "logs/torchelastic_1/attempt_0/1/error.json": json.dumps(error, indent=1),
            "logs/job.log": "\n".join(
                [placed(0, 0), placed(1, 1), STEPS, "Exiting worker: see error file", timeout(0, "16:25:01.100")]
            ),
        },
    )
    assert (said.cls, said.rank, said.node) == ("user/exception", 1, "gpu-a")
    first = said.evidence.iloc[0]
    assert first["text"].startswith("UnicodeDecodeError")
    assert first["file"].endswith("error.json")


def test_an_assertion_that_finds_nan_is_the_training_s_not_the_gpu_s(tmp_path: Path) -> None:
    assertion = (
        "../aten/src/ATen/native/cuda/TensorCompare.cu:112: _assert_async_cuda_kernel: block: [0,0,0], thread: [0,0,0] Assertion "
        "`probability tensor contains either `inf`, `nan` or element < 0` failed."
    )
    said = verdict(
        tmp_path,
        {
            "logs/job.log": "\n".join(
                [
                    placed(0, 0),
                    STEPS,
                    assertion,
                    "[rank0]: Traceback (most recent call last):",
                    "[rank0]: RuntimeError: CUDA error: device-side assert triggered",
                ]
            ),
            "kernel/gpu-a.log": UP
            + "\n"
            + xid("19:00): 13, pid=77, name=python, Graphics Exception: ESR 0x505730=0x1000e", at="16:15:01"),
        },
    )
    assert said.cls == "user/numerics"


@pytest.mark.parametrize("after", [True, False])
def test_a_loss_that_the_program_warns_of_counts_when_no_number_follows(tmp_path: Path, after: bool) -> None:
    warned = "2025-07-17 16:15:00,000 WARNING trainer rank 0 step 900 | gnorm nan (skipped) | loss nan"
    then = ["2025-07-17 16:15:10,000 INFO trainer rank 0 step 910 | gnorm 0.3 | loss 2.1"] if after else []
    said = verdict(tmp_path, {"logs/job.log": "\n".join([placed(0, 0), STEPS, warned, *then, "Killed"])})
    assert ("loss-nan" in set(said.evidence[said.evidence["role"] == "cause"]["signature"])) != after


def test_a_rank_that_waits_in_the_debugger_is_what_the_others_wait_for(tmp_path: Path) -> None:
    """A hung task of the node's disks, minutes later, is not what it happened to."""
    ranks = [placed(rank, rank) for rank in range(4)]
    said = verdict(
        tmp_path,
        {
            "logs/rank-0.log": "\n".join([ranks[0], STEPS, timeout(0, "16:25:01.100")]),
            "logs/rank-1.log": "\n".join([ranks[1], timeout(1, "16:25:01.200")]),
            "logs/rank-2.log": "\n".join([ranks[2], timeout(2, "16:25:01.300")]),
            "logs/rank-3.log": "\n".join(
                [ranks[3], "> /workspace/loss.py(88)forward()", "-> scores = scores.masked_fill(mask, 0)", "(Pdb) "]
            ),
            "kernel/gpu-a.log": UP
            + "\n2025-07-17T16:19:25+00:00 gpu-a kernel: INFO: task jbd2/md0-8:1212 blocked for more than 120 seconds.",
        },
    )
    assert (said.cls, said.rank) == ("user/hang", 3)


def test_the_lost_node_of_an_accounting_without_names_is_the_one_that_the_controller_names(tmp_path: Path) -> None:
    said = verdict(
        tmp_path,
        {
            "sacct.txt": "JobID|JobName|User|Partition|State|ExitCode|DerivedExitCode|Start|End|Elapsed|NNodes|NodeList\n"
            "4711|llm|u1|gpu|NODE_FAIL|1:0|0:0|2025-07-17T16:00:00|2025-07-17T16:15:26|00:15:26|2|gpu-[a-b]",
            "logs/slurmctld.log": "[2025-07-17T16:16:05.020] error: Nodes gpu-b not responding\n"
            "[2025-07-17T16:19:20.014] error: Nodes gpu-b not responding, setting DOWN\n"
            "[2025-07-17T16:19:20.014] Killing JobId=4711 on failed node gpu-b",
            "logs/rank-0.log": placed(0, 0) + "\n" + STEPS,
        },
    )
    assert (said.cls, said.node) == ("platform/node-lost", "gpu-b")
    assert "gpu-b" in said.evidence.iloc[0]["text"]


def test_the_first_of_the_ranks_that_ran_into_a_disk_of_their_node(tmp_path: Path) -> None:
    eio = [
        f"2025-07-17 16:15:{second},000 ERROR trainer rank {rank} OSError: [Errno 5] Input/output error: '/cache/shard-{rank}'"
        for second, rank in ((31, 2), (34, 1))
    ]
    said = verdict(
        tmp_path,
        {
            "logs/job.log": "\n".join(
                [placed(0, 0, node="gpu-b"), placed(1, 0), placed(2, 1), placed(3, 1, node="gpu-b"), STEPS, *eio]
            ),
            "kernel/gpu-a.log": UP
            + "\n2025-07-17T16:15:02+00:00 gpu-a kernel: nvme nvme1: controller is down; will reset: CSTS=0xffffffff, "
            "PCI_STATUS=0xffff\n2025-07-17T16:15:30+00:00 gpu-a kernel: nvme nvme1: Disabling device after reset failure: -19",
        },
    )
    assert (said.cls, said.node, said.rank) == ("hardware/host", "gpu-a", 2)


def test_a_gpu_that_calculates_wrongly_explains_nan_on_every_node(tmp_path: Path) -> None:
    table = """Successfully ran diagnostic for group.
+---------------------------+------------------------------------------------+
| Diagnostic                | Result                                         |
+===========================+================================================+
|-----  Hardware  ----------+------------------------------------------------|
| GPU Memory                | Pass - All                                     |
| Diagnostic                | Fail - GPU: 1                                  |
| Targeted Stress           | Pass - All                                     |
+---------------------------+------------------------------------------------+"""
    nan = [f"[rank{rank}]: FloatingPointError: non-finite gradient at step 900" for rank in range(4)]
    said = verdict(
        tmp_path,
        {
            "logs/job.log": "\n".join(
                [*(placed(rank, rank % 2, node="gpu-a" if rank < 2 else "gpu-b") for rank in range(4)), STEPS, *nan]
            ),
            "kernel/gpu-a.log": UP,
            "smi/gpu-a-dcgmi-diag.txt": table,
        },
    )
    assert (said.cause, said.node, said.rank) == ("hardware", "gpu-a", 1)


def agent(node: str, rank: int, local: int, second: int) -> str:
    return "\n".join(
        [
            "Root Cause (first observed failure):",
            "[0]:",
            f"  time      : 2025-07-17_16:25:{second:02d}",
            f"  host      : {node}",
            f"  rank      : {rank} (local_rank: {local})",
            "  exitcode  : -6 (pid: 4242)",
            "  error_file: <N/A>",
            "  traceback : Signal 6 (SIGABRT) received by PID 4242",
            "=" * 60,
        ]
    )


def test_a_rank_that_never_spoke_is_where_its_block_is(tmp_path: Path) -> None:
    """Rank 2 of 16 wrote nothing; two agents' words tell the blocks, so that the GPU that hangs is its."""
    files = {f"logs/rank-{rank:03d}.log": timeout(rank, "16:25:01.100") for rank in range(16) if rank != 2}
    files |= {
        "logs/torchrun-gpu-a.log": agent("gpu-a", 5, 5, 3),
        "logs/torchrun-gpu-b.log": agent("gpu-b", 8, 0, 4),
        "kernel/gpu-a.log": UP
        + "\n"
        + xid(
            "52:00): 119, pid=2074298, name=python, Timeout after 45s of waiting for RPC response from GPU2 GSP! Expected function 76"
        ),
        "metrics/gpu-a.prom": "# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n"
        + "\n".join(
            f'DCGM_FI_DEV_GPU_TEMP{{gpu="{index}",UUID="GPU-0000000{index}-0000-4000-8000-000000000000",pci_bus_id="00000000:{bus}:00.0",Hostname="gpu-a"}} 50 1752768000000'
            for index, bus in enumerate(("19", "3B", "52", "5D", "9A", "AB", "BA", "CB"))
        ),
    }
    said = verdict(tmp_path, files)
    assert (said.cls, said.node, said.rank) == ("driver/hang", "gpu-a", 2)


def test_a_file_is_named_after_its_node_and_what_it_holds(tmp_path: Path) -> None:
    """The event log of the board, kept as `NODE-sel-elist.txt`, is of that node: its power supplies are why it was lost."""
    said = verdict(
        tmp_path,
        {
            "sacct.txt": "JobID|JobName|User|Partition|State|ExitCode|DerivedExitCode|Start|End|Elapsed|NNodes|NodeList\n"
            "4711|llm|u1|gpu|NODE_FAIL|1:0|0:0|2025-07-17T16:00:00|2025-07-17T16:15:26|00:15:26|2|gpu-[a-b]",
            "logs/slurmctld.log": "[2025-07-17T16:17:05.020] error: Nodes gpu-b not responding, setting DOWN",
            "logs/rank-0.log": placed(0, 0) + "\n" + STEPS,
            "bmc/gpu-b-sel-elist.txt": "  73 | 07/17/25 | 16:14:01 UTC | Power Supply PSU3 Status | Failure detected () | Asserted\n"
            "  75 | 07/17/25 | 16:15:05 UTC | Power Supply PSU5 Status | Failure detected () | Asserted\n"
            "  77 | 07/17/25 | 16:15:06 UTC | Power Unit Pwr Unit Status | Power off/down | Asserted",
        },
    )
    assert (said.cls, said.node) == ("hardware/thermal-power", "gpu-b")


def test_a_result_that_does_not_come_again_is_the_gpu_s(tmp_path: Path) -> None:
    """Megatron without names in its lines; what comes after the first proof on the same GPU is not the model's either."""
    rerun = "1: ERROR:megatron.core.rerun_state_machine:"
    said = verdict(
        tmp_path,
        {
            "logs/gpu-a.log": "\n".join(
                [
                    *("0: " + line for line in STEPS.splitlines()),
                    "1: [2025-07-17 16:00:00] INFO: rank 1 device cuda:1 GPU-129f520e-b61d-5843-ce33-886b0c1dfe4c pci 0000:d1:00.0 host gpu-a",
                    rerun
                    + "Unexpected result nan on rank 1 at iteration #764 invocation #3 (message='found NaN in local forward loss calculation')",
                    rerun + "Possible transient error!",
                    rerun + "Unexpected result 8.23e+11 on rank 1 at iteration #766 invocation #1 (message='spiky loss')",
                    rerun + "Need to rerun on a different GPU to verify correctness",
                ]
            ),
        },
    )
    assert (said.cls, said.node, said.rank) == ("hardware/sdc", "gpu-a", 1)
    assert said.gpu is not None
    assert said.gpu.pci == "0000:d1:00.0"


def test_an_exception_without_a_rank_is_of_the_one_that_was_waited_for(tmp_path: Path) -> None:
    """pdsh says the node alone; of all ranks there, one reports no time-out."""
    head = "2025-07-17 16:14:55,000 INFO trainer gpu-b"
    ends = [f"gpu-{'a' if rank < 2 else 'b'}: " + timeout(rank, f"16:45:0{rank}.100") for rank in (0, 1, 2)]
    raised = ["Traceback (most recent call last):", '  File "/workspace/finetune.py", line 290, in <module>', "KeyError: 'image'"]
    said = verdict(
        tmp_path,
        {
            "logs/job.log": "\n".join(
                [
                    *(
                        f"gpu-{'a' if rank < 2 else 'b'}: " + placed(rank, rank % 2, node=f"gpu-{'a' if rank < 2 else 'b'}")
                        for rank in range(4)
                    ),
                    *("gpu-a: " + line for line in STEPS.splitlines()),
                    f"gpu-b: {head}",
                    *(f"gpu-b: {line}" for line in raised),
                    *ends,
                ]
            ),
        },
    )
    assert (said.cls, said.node, said.rank) == ("user/exception", "gpu-b", 3)


@pytest.mark.parametrize(("theirs", "own", "held"), [("66.13", "4.71 GiB", True), ("12.40", "64.00 GiB", False)])
def test_memory_that_another_process_holds_is_not_the_job_s(tmp_path: Path, theirs: str, own: str, held: bool) -> None:
    oom = (
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.06 GiB. GPU 1 has a total capacity of 79.10 GiB of which "
        f"2.25 GiB is free. Process 1877214 has {theirs} GiB memory in use. Including non-PyTorch memory, this process has {own} memory in use."
    )
    said = verdict(
        tmp_path, {"logs/job.log": "\n".join([placed(0, 0), placed(1, 1), "[rank1]: Traceback (most recent call last):", oom])}
    )
    assert (said.cls, said.rank) == ("platform/scheduler" if held else "user/gpu-oom", 1)
