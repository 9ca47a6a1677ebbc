"""Stack dumps and process lists: what each process waited in, and the line that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.model import Event, Line
from workbench.parse.process_list import storage_wait
from workbench.parse.stacks import parse_stacks

_DATA = Path(__file__).parents[1] / "data" / "stacks"


def _read(name: str, file: str | None = None) -> list[Event]:
    text = (_DATA / name).read_text()
    return parse_stacks([Line(n, t) for n, t in enumerate(text.split("\n"), 1)], file=file or name).events


def _pyspy(*frames: str, state: str = "idle", file: str = "rank-0.txt") -> list[Event]:
    head = ["Process 10: python train.py", "Python v3.11.7 (/usr/bin/python3.11)", "", f'Thread 10 ({state}): "MainThread"']
    return parse_stacks([Line(n, t) for n, t in enumerate([*head, *(f"    {f}" for f in frames)], 1)], file=file).events


def test_py_spy_lock_with_a_second_thread() -> None:
    (event,) = _read("pyspy_rank_lock.txt", "stacks/rank-10.txt")
    assert (event.signature, event.rank, event.local_rank, event.pid) == ("stack-lock-wait", 10, 2, 4711)
    assert event.text == "    next_shard (/workspace/stream.py:58)"
    assert event.line == 7
    assert event.data["other_threads"] == ["reader: fill (/workspace/stream.py:77)"]


def test_faulthandler_of_two_ranks_woven_together() -> None:
    zero, one = sorted(_read("faulthandler_ranks.txt"), key=lambda e: e.rank or 0)
    assert (zero.signature, zero.rank, zero.data["frame"]) == (
        "stack-in-collective", 0, '[rank0]:   File "/workspace/pretrain.py", line 177 in step',
    )  # fmt: skip
    assert (one.signature, one.rank, one.line) == ("stack-user-wait", 1, 7)


def test_faulthandler_crash_is_about_the_current_thread() -> None:
    (event,) = _read("faulthandler_crash.txt", "rank-2.txt")
    assert (event.signature, event.data["fatal"]) == ("stack-fatal-error", "Segmentation fault")
    assert event.text == '  File "/workspace/decode.py", line 44 in decode_frame'


def test_gdb_waits_for_the_gpu() -> None:
    (event,) = _read("gdb_nccl.txt", "rank-1.txt")
    assert (event.signature, event.data["via"]) == ("stack-cuda-sync", "cuStreamSynchronize")


def test_kernel_stack_waits_for_storage() -> None:
    (event,) = _read("proc_stack_lustre.txt", "rank-3.txt")
    assert (event.signature, event.line) == ("stack-storage-wait", 1)


@pytest.mark.parametrize(
    ("frames", "signature"),
    [
        (("_engine_run_backward (torch/autograd/graph.py:979)", "train (train.py:9)"), "stack-in-collective"),
        (("barrier (torch/distributed/distributed_c10d.py:4159)", "save (ckpt.py:9)"), "stack-in-collective"),
        (("ncclAllReduce (libnccl.so.2)", "f (train.py:9)"), "stack-in-collective"),
        (("synchronize (torch/cuda/__init__.py:792)", "train (train.py:9)"), "stack-cuda-sync"),
        (
            ("select (selectors.py:415)", "_try_get_data (torch/utils/data/dataloader.py:1291)", "train (train.py:9)"),
            "stack-dataloader-wait",
        ),
        (
            ("_save (torch/serialization.py:900)", "save (torch/serialization.py:628)", "save_checkpoint (t.py:9)"),
            "stack-storage-wait",
        ),
        (("_write_checkpoint (ckpt.py:29)", "train (train.py:9)"), "stack-storage-wait"),
        (("join (threading.py:1096)", "close (logger.py:9)"), "stack-lock-wait"),
        (("step (train.py:9)", "<module> (train.py:20)"), "stack-user-wait"),
    ],
)
def test_what_decides(frames: tuple[str, ...], signature: str) -> None:
    (event,) = _pyspy(*frames)
    assert event.signature == signature


def test_a_rank_that_computes_is_not_waiting() -> None:
    (event,) = _pyspy("tokenize (data.py:9)", "<module> (train.py:20)", state="active+gil")
    assert event.signature == "stack-user-code"


def test_loader_processes() -> None:
    idle = (
        "poll (multiprocessing/connection.py:257)",
        "get (multiprocessing/queues.py:113)",
        "_worker_loop (torch/utils/data/_utils/worker.py:334)",
    )
    assert not _pyspy(*idle, "train (train.py:9)", file="rank-1-worker0.txt")
    (event,) = _pyspy("read (data.py:5)", "_worker_loop (torch/utils/data/_utils/worker.py:374)", file="rank-1-worker3.txt")
    assert (event.rank, event.data["worker"], event.signature) == (1, 3, "stack-user-wait")


def test_process_list() -> None:
    by_pid = {e.pid: e for e in _read("ps-gpu-node-7.txt")}
    assert {pid: e.signature for pid, e in by_pid.items()} == {5133: "stack-storage-wait", 5135: "ps-stopped", 5136: "ps-dstate"}
    assert by_pid[5135].node == "gpu-node-7"
    assert by_pid[5135].local_rank == 2
    assert by_pid[5135].text.startswith("train       5135")
    assert by_pid[5136].cls == "driver/hang"


def test_wait_channels() -> None:
    lines = [Line(1, "/proc/71/wchan:request_wait_answer"), Line(2, "/proc/72/wchan:futex_wait_queue")]
    (event,) = parse_stacks(lines, file="wchan.txt").events
    assert (event.signature, event.pid) == ("stack-storage-wait", 71)
    assert not storage_wait("futex_wait_queue")
    assert not storage_wait("do_signal_stop")


def test_nothing_to_read() -> None:
    for text in ("", "hello", "Process 3: x", 'Thread 3 (idle): "MainThread"'):
        assert not parse_stacks([Line(1, text)], file="x").events


def test_dumps_of_several_ranks_behind_srun_numbers() -> None:
    # a model name in brackets at the end of a step line is no frame
    text = (
        " 3: 2025-06-20 06:33:14,386 | INFO | trainer | rank 3/16 local_rank 3 on node-a cuda:3 (NVIDIA H100 80GB HBM3)\n"
        "11: 2025-06-20 06:33:14,386 | INFO | trainer | rank 11/16 local_rank 3 on node-b cuda:3 (NVIDIA H100 80GB HBM3)\n"
        " 3: Thread 0x00007f5a (most recent call first):\n"
        "11: Thread 0x00007f11 (most recent call first):\n"
        ' 3:   File "/opt/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2501 in all_reduce\n'
        '11:   File "/opt/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1133 in _try_get_data\n'
        ' 3:   File "/work/train.py", line 88 in main\n'
        '11:   File "/work/train.py", line 61 in main\n'
    )
    lines = [Line(number, line) for number, line in enumerate(text.splitlines(), start=1)]
    found = {event.rank: event for event in parse_stacks(lines, file="slurm-7.out").events}
    assert found.keys() == {3, 11}
    assert found[3].signature == "stack-in-collective"
    assert found[11].line == 6
    assert "dataloader.py" in found[11].text


def test_words_in_brackets_behind_a_stamp_are_no_frame() -> None:
    text = (
        "2025-06-08T22:51:14.052000000Z Exception raised from run at ProcessGroup.cpp:7 (most recent call first):\n"
        "2025-06-08T22:51:14.052000000Z /bin/bash: warning: setlocale: LC_ALL: cannot change locale (en_US.UTF-8)\n"
    )
    assert not parse_stacks([Line(n, line) for n, line in enumerate(text.splitlines(), start=1)], file="w-0.log").events


def test_the_torn_end_of_a_dump_in_a_job_log_says_nothing_of_what_a_rank_waits_for() -> None:
    torn = [
        '  File "/opt/env/lib/python3.12/multiprocessing/queues.py", line 103 in get',
        '  File "/opt/env/lib/python3.12/multiprocessing/spawn.py", line 122 in spawn_main',
        '  File "<string>", line 1 in <module>',
        "Exception raised from c10_cuda_check at CUDAException.cpp:43 (most recent call first):",
    ]
    lines = [Line(no, text) for no, text in enumerate(torn, 1)]
    assert parse_stacks(lines, file="logs/rank0.log", headed=True).events == []
    assert len(parse_stacks(lines, file="stacks/rank0.txt").events) == 1


def test_threads_behind_a_rank_prefix_are_told_apart() -> None:
    dump = [
        "[rank0]: Thread 0x00007f1a1b7fe640 (most recent call first):",
        '[rank0]:   File "/usr/lib/python3.10/queue.py", line 171 in get',
        '[rank0]:   File "/opt/env/lib/python3.10/site-packages/tensorboard/summary/writer/event_file_writer.py", line 269 in run',
        "[rank0]: Thread 0x00007f1a9d0c1740 (most recent call first):",
        '[rank0]:   File "/opt/env/lib/python3.10/site-packages/torch/distributed/distributed_c10d.py", line 2806 in all_reduce',
        '[rank0]:   File "/code/train.py", line 251 in main',
    ]
    lines = [Line(no, text) for no, text in enumerate(dump, 1)]
    (event,) = parse_stacks(lines, file="logs/job.log", headed=True).events
    assert (event.signature, event.rank) == ("stack-in-collective", 0)
