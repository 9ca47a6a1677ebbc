"""Heads that no rule knows are learned from the tracebacks behind them; parents' words about their children give ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from workbench.catalog import signatures
from workbench.model import Event, Line, Parsed
from workbench.parse.job import parse_job
from workbench.parse.learned import learned_context, split

BODY = (
    "step 1 loss 2.3",
    "Traceback (most recent call last):",
    '  File "/work/train.py", line 317, in train',
    "    trainer.train()",
    '  File "/opt/conda/lib/python3.11/site-packages/torch/serialization.py", line 604, in _save',
    "    zip_file.write_record(name, storage.data_ptr(), num_bytes)",
    "OSError: [Errno 28] No space left on device",
    "Task failed.",
)


def _parse(*lines: str) -> Parsed:
    return parse_job([Line(number, text, ()) for number, text in enumerate(lines, 1)], file="logs/job.log")


def _causes(parsed: Parsed) -> list[Event]:
    rows = signatures()
    return [event for event in parsed.events if (event.role or rows[event.signature].role) == "cause"]


WRAPPERS: dict[str, Callable[[int, str], str]] = {
    "metaflow": lambda n, x: f"2023-04-29 06:01:1{n}.977 [177/train/578 (pid 28936)] [09c561ee-a44c-4795-967c-7183a83b3160] {x}",
    "supervisord": lambda n, x: f"2023-04-29 06:01:1{n},123 DEBG 'trainer' stderr output: {x}",
    "airflow": lambda n, x: f"[2023-04-29T06:01:1{n}.123+0000] {{subprocess.py:93}} INFO - {x}",
    "flyte": lambda n, x: f"[a1b2c3d4e5-n0-0] {x}",
    "prefect": lambda n, x: f"06:01:1{n}.123 | INFO    | Flow run 'quick-otter' - {x}",
    "vertex": lambda n, x: f"ERROR\t2023-04-29 06:01:1{n} +0000\tworkerpool1-2\t{x}",
    "dask": lambda n, x: f"distributed.nanny - worker-3 - {x}",
    "determined": lambda n, x: f"[2023-04-29T06:01:1{n}.123456Z] e1c2a3b4 [rank=3] || {x}",
    "polyaxon": lambda n, x: f"2023-04-29 06:01:1{n} UTC -- master.1 -- {x}",
    "kail": lambda n, x: f"default/ddp-worker-3[pytorch]: {x}",
    "loki": lambda n, x: f'2023-04-29T06:01:1{n}Z {{container="pytorch", pod="ddp-worker-3"}}   {x}',
    "elapsed": lambda n, x: f"00:00:1{n} {x}",
    "csv": lambda n, x: f'2023-04-29T06:01:1{n}Z,ddp-worker-3,"' + x.replace('"', '""') + '"',
    "docker": lambda n, x: json.dumps({"log": x + "\n", "kubernetes": {"pod_name": "p"}, "time": f"2023-04-29T06:01:1{n}Z"}),
    "google": lambda n, x: json.dumps({"jsonPayload": {"message": x}, "timestamp": f"2023-04-29T06:01:1{n}Z"}),
    "journald": lambda n, x: json.dumps({"MESSAGE": x, "__REALTIME_TIMESTAMP": f"168274807{n}000000", "_HOSTNAME": "n3"}),
    "elastic": lambda n, x: json.dumps({"_source": {"@timestamp": f"2023-04-29T06:01:1{n}Z", "message": x}}),
    "fluentd": lambda n, x: f"2023-04-29 06:01:1{n} +0000 kubernetes.pod-3.log: " + json.dumps({"stream": "stderr", "log": x}),
    "nobody's": lambda n, x: f"<3@4123> t+{n}.2s :: {x}",
}


@pytest.mark.parametrize("name", sorted(WRAPPERS))
def test_exception_behind_an_unknown_head_keeps_its_stack(name: str) -> None:
    parsed = _parse(*(WRAPPERS[name](number, text) for number, text in enumerate(BODY)))
    (event,) = _causes(parsed)
    assert (event.signature, event.line, len(event.data["frames"])) == ("storage-enospc", 7, 2)


def test_learned_head_tells_time_process_and_rank() -> None:
    head = "2023-04-29 06:01:12.977 [177/train/578 (pid 28936)] host=n3 rank=5 >>> "
    (event,) = _causes(_parse(*(head + text for text in BODY)))
    assert (event.time, event.pid, event.rank, event.node) == (1682748072.977, 28936, 5, "n3")


def test_speakers_of_a_learned_head_are_kept_apart() -> None:
    lines = []
    for text, other in zip(BODY, ("step 1", BODY[1], BODY[2], BODY[3], "KeyError: 'labels'", "bye", "bye", "bye"), strict=True):
        lines += [f"default/worker-3[pytorch]: {text}", f"default/worker-4[pytorch]: {other}"]
    assert {event.signature: event.line for event in _causes(_parse(*lines))} == {"python-exception": 10, "storage-enospc": 13}


def test_sentence_in_front_of_a_traceback_is_no_head() -> None:
    lines = ["Exception in thread Thread-3: Traceback (most recent call last):", *BODY[2:7], "Thread-3: done", "Thread-4: done"]
    (event,) = _causes(_parse(*lines))
    assert len(event.data["frames"]) == 2


def test_signal_that_ended_a_spawned_process_gives_the_crash_its_rank() -> None:
    parsed = _parse(
        "terminate called after throwing an instance of 'c10::Error'",
        "  what():  CUDA error: an illegal memory access was encountered",
        *BODY[1:4],
        "torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal SIGABRT",
    )
    assert [(event.signature, event.rank) for event in _causes(parsed)] == [("cuda-illegal-memory-access", 2)]


def test_exception_that_a_parent_passes_on_follows_from_the_childs() -> None:
    parsed = _parse(
        *BODY[1:4],
        "torch.multiprocessing.spawn.ProcessRaisedException: ",
        "",
        "-- Process 3 terminated with the following error:",
        *BODY[1:4],
        "OverflowError: cannot serialize a bytes object larger than 4 GiB",
    )
    assert [(event.line, event.rank) for event in _causes(parsed)] == [(10, 3)]


def test_semaphore_that_found_no_room_is_no_full_disk() -> None:
    parsed = _parse(
        "Traceback (most recent call last):",
        '  File "/opt/conda/lib/python3.11/multiprocessing/synchronize.py", line 57, in __init__',
        "    sl = self._semlock = _multiprocessing.SemLock(",
        "OSError: [Errno 28] No space left on device",
    )
    assert [event.signature for event in _causes(parsed)] == ["storage-enospc-shm"]


def test_lost_daemon_of_a_batch_system_is_the_nodes() -> None:
    (event,) = _causes(
        _parse(
            "=>> PBS: job killed: node 3 (node-d) requested job terminate, 'EOF' (code 1099) - received SISTER_EOF attempting to"
        )
    )
    assert (event.signature, event.node) == ("batch-node-lost", "node-d")


def test_task_of_srun_tells_the_node_of_its_rank() -> None:
    parsed = _parse(
        "2024-04-24 05:13:31 - [rank=19] CRITICAL [root] Uncaught OSError: [Errno 116] Stale file handle",
        "2024-04-24 05:13:34 - srun: error: node-c: task 19: Exited with exit code 1",
    )
    assert [(event.signature, event.rank, event.node) for event in _causes(parsed)] == [("storage-estale", 19, "node-c")]


def test_launcher_whose_child_failed_was_not_stopped_by_anybody() -> None:
    parsed = _parse(
        "[2022-11-17 15:30:07,410] [INFO] [launch.py:318:sigkill_handler] Killing subprocess 12066",
        "[2022-11-17 15:30:07,410] [ERROR] [launch.py:324:sigkill_handler] ['python', '-u', 'a.py'] exits with return code = -11",
    )
    assert all((event.cls or signatures()[event.signature].cls) != "user/stopped" for event in parsed.events)


def test_allocation_that_the_program_recovers_from_is_no_failure() -> None:
    oom = "2021-02-08 03:40:41 | WARNING | fairseq.trainer | OOM: Ran out of memory with exception: CUDA out of memory. Tried to"
    again = "2021-02-08 03:40:41 | WARNING | fairseq.trainer | attempting to recover from OOM in forward/backward pass"
    step = "2021-02-08 03:41:12 | INFO | train_inner | epoch 004:   4200 / 5210 loss=5.188, num_updates=19799"
    assert not _causes(_parse(oom, again, step))
    assert _causes(_parse(step, oom, again))


@pytest.mark.parametrize(
    ("message", "cls"),
    [
        tuple(reversed(line.split("\t")))
        for line in (Path(__file__).parents[1] / "data/job/exceptions.tsv").read_text().splitlines()
    ],
)
def test_class_of_an_exception_by_its_words(message: str, cls: str) -> None:
    (event,) = _causes(_parse(*BODY[1:4], message))
    assert (event.cls or signatures()[event.signature].cls) == cls


def test_logger_that_goes_on_about_a_setting_says_little() -> None:
    parsed = _parse("2024-05-01 10:00:00 WARNING Error: Unknown model revision, using main")
    assert all((event.weight or 0) < 0.3 for event in _causes(parsed))


def test_the_name_of_a_file_that_grep_put_there_is_taken_off_once() -> None:
    nested = "rank-2.log:7:" + "a1.log:" * 5000 + "[rank3]: KeyError: 'x'"
    head = split(nested, *learned_context([nested]))
    assert head.rest.startswith("a1.log:")
    assert split("rank-2.log:7:[rank3]: KeyError: 'x'", *learned_context([])).rank == 3
