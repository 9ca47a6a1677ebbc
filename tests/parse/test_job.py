"""A job log becomes events with the right row, role, rank and time, placements, attempts and progress."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.catalog import signatures
from workbench.model import Event, Line, Parsed
from workbench.parse.job import parse_job
from workbench.parse.job_launcher import file_hints, nccl_bus
from workbench.parse.progress import step_of

DATA = Path(__file__).parents[1] / "data" / "job"


def _parse(text: str, file: str = "logs/job.log", **more: object) -> Parsed:
    lines = [Line(no, line) for no, line in enumerate(text.split("\n"), 1)]
    return parse_job(lines, file=file, year=2026, **more)  # type: ignore[arg-type]


def _role(event: Event) -> str:
    return event.role or signatures()[event.signature].role


def _causes(parsed: Parsed) -> list[Event]:
    return [event for event in parsed.events if _role(event) == "cause"]


@pytest.fixture(scope="module")
def elastic() -> Parsed:
    return _parse((DATA / "elastic_keyerror.log").read_text(encoding="utf-8"))


def test_the_only_cause_is_the_key_error_of_the_rank_that_the_summary_names(elastic: Parsed) -> None:
    (cause,) = _causes(elastic)
    assert cause.signature == "python-exception"
    assert cause.text == "KeyError: 'labels'"
    assert cause.rank == 2
    assert cause.node == "node-a"
    assert cause.data["in"] == "dataloader"
    assert cause.data["user_frame"] == "/workspace/data.py:71 __getitem__"
    assert cause.data["time_from"] == "previous"


def test_exception_after_which_the_rank_went_on_is_handled(elastic: Parsed) -> None:
    (handled,) = [event for event in elastic.events if event.data.get("handled")]
    assert handled.data["exception"] == "urllib.error.URLError"
    assert handled.rank == 1
    assert _role(handled) == "context"


def test_consequences_are_symptoms(elastic: Parsed) -> None:
    symptoms = {event.signature: event for event in elastic.events if _role(event) == "symptom"}
    assert symptoms["gloo-closed-by-peer"].rank == 0
    assert {"elastic-exit", "elastic-sending-signal", "elastic-child-failed", "elastic-failure"} <= symptoms.keys()
    assert symptoms["elastic-exit"].code == 1
    assert symptoms["elastic-exit"].rank == 2


def test_summary_block_keeps_what_became_of_the_worker(elastic: Parsed) -> None:
    blocks = {event.rank: event for event in elastic.events if event.signature == "elastic-failure"}
    assert blocks[0].data["signal"] == "SIGTERM"
    assert blocks[0].data["root"] is False
    assert blocks[2].data["root"] is True
    assert blocks[2].data["exception"] == "KeyError"
    assert (blocks[2].pid, blocks[2].node, blocks[2].code) == (102, "node-a", 1)


def test_facts_tell_progress_world_and_ranks(elastic: Parsed) -> None:
    assert elastic.facts["world_size"] == 4
    assert elastic.facts["ranks"][1]["last_step"] == 10
    assert elastic.facts["progress"][0][1:5] == (0, 5, 0.227, 6.3184)
    assert elastic.facts["finished"] is False
    assert {(one.rank, one.pid) for one in elastic.placements if one.pid} >= {(0, 100), (3, 103)}


def test_prefixed_hook_traceback_is_never_handled_even_when_progress_is_printed_later() -> None:
    parsed = _parse(
        "\n".join(
            [
                "[rank1]: Traceback (most recent call last):",
                '[rank1]:   File "/workspace/data.py", line 12, in open_shard',
                "[rank1]: OSError: [Errno 24] Too many open files: '/data/shard-00001.jsonl'",
                *(
                    f"2026-03-01 10:00:0{n},000 INFO [trainer] rank=1 host=node-a step={n} loss=6.1 step_ms=200"
                    for n in range(1, 6)
                ),
            ]
        )
    )
    (cause,) = _causes(parsed)
    assert cause.signature == "py-too-many-files"
    assert "handled" not in cause.data


def test_watchdog_line_gives_its_numbers() -> None:
    parsed = _parse(
        "[rank3]:[E218 04:54:22.864467604 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=120049, OpType=ALLREDUCE, NumelIn=8388608, NumelOut=8388608, Timeout(ms)=600000) ran for 600021 "
        "milliseconds before timing out."
    )
    (event,) = parsed.events
    assert event.signature == "c10d-watchdog-timeout"
    assert _role(event) == "symptom"
    assert event.rank == 3
    wanted = {"seq": 120049, "op": "ALLREDUCE", "numel_in": 8388608, "numel_out": 8388608, "timeout_ms": 600000, "ran_ms": 600021}
    assert event.data.items() >= wanted.items()


def test_queue_counters_of_a_work_line() -> None:
    parsed = _parse(
        "[rank0]:[E822 07:42:14.671521799 ProcessGroupNCCL.cpp:1664] [PG 0 (default_pg) Rank 0] "
        "Exception (either an error or timeout) detected by watchdog at work: 763028, "
        "last enqueued NCCL work: 763030, last completed NCCL work: 763027."
    )
    (event,) = parsed.events
    assert (event.data["seq"], event.data["last_enqueued"], event.data["last_completed"]) == (763028, 763030, 763027)


def test_cuda_error_in_a_watchdog_line_is_a_cause() -> None:
    parsed = _parse(
        "[rank2]:[E925 23:10:17.921506443 ProcessGroupNCCL.cpp:1896] [PG ID 2 PG GUID 3 Rank 2] "
        "Process group watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered"
    )
    (cause,) = _causes(parsed)
    assert (cause.signature, cause.rank) == ("cuda-ecc-uncorrectable", 2)


def test_nccl_lines_place_ranks_on_gpus() -> None:
    parsed = _parse(
        "node-a:2100:2500 [1] NCCL INFO comm 0x55 rank 9 nranks 16 cudaDev 1 nvmlDev 1 busId b8000 commId 0x1 - Init COMPLETE\n"
        "node-a:2100:2500 [1] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device"
    )
    (place,) = [one for one in parsed.placements if one.origin == "nccl-init"]
    assert (place.rank, place.node, place.pid) == (9, "node-a", 2100)
    assert place.gpu is not None
    assert place.gpu.pci == "0000:b8:00.0"
    (cause,) = _causes(parsed)
    assert cause.rank == 9


@pytest.mark.parametrize(
    ("text", "pci"), [("b8000", "0000:b8:00.0"), ("1000", "0000:01:00.0"), ("801000000", "8010:00:00.0"), ("zz", None)]
)
def test_nccl_bus(text: str, pci: str | None) -> None:
    assert nccl_bus(text) == pci


@pytest.mark.parametrize(
    ("file", "hints"),
    [
        ("logs/rank-3.stderr.log", (3, None, None)),
        ("logs/rank_003.log", (3, None, None)),
        ("logs/rank-2.attempt-1.log", (2, None, 1)),
        ("run/attempt_1/5/stderr.log", (None, 5, 1)),
        ("logs/frank-3.log", (None, None, None)),
        ("logs/worker-1.log", (None, None, None)),
    ],
)
def test_file_hints(file: str, hints: tuple[int | None, int | None, int | None]) -> None:
    assert file_hints(file) == hints


def test_rank_of_the_file_counts_when_the_line_names_none() -> None:
    parsed = _parse(
        "Traceback (most recent call last):\n  File \"/a.py\", line 1, in f\nKeyError: 'x'", file="logs/rank-7.stderr.log"
    )
    assert _causes(parsed)[0].rank == 7


def test_what_a_process_logged_last_before_it_ended_by_itself_is_its_reason() -> None:
    parsed = _parse(
        "[default5]:E0301 16:23:23.758723 11684 train.py:88] rank 5: /data/s.jsonl: generation 6, expected 7; giving up\n"
        "W0301 16:23:24.000000 11 torch/distributed/elastic/x/api.py:1] Sending process 11679 closing signal SIGTERM\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-03-01_16:23:24\n  host      : node-a\n"
        "  rank      : 5 (local_rank: 5)\n  exitcode  : 3 (pid: 11684)\n"
        "  error_file: <N/A>\n  traceback : To enable traceback see: x\n"
    )
    (cause,) = _causes(parsed)
    assert (cause.signature, cause.rank, cause.data["exit_code"]) == ("app-last-words", 5, 3)


def test_loss_that_is_no_number_is_a_cause() -> None:
    parsed = _parse("Batch 0, Loss: 0.5\nBatch 100, Loss: nan\nBatch 200, Loss: nan")
    (cause,) = _causes(parsed)
    assert (cause.signature, cause.line, cause.count) == ("loss-nan", 2, 2)


def test_native_crash_gets_its_rank_from_the_exit_code() -> None:
    parsed = _parse(
        "double free or corruption (out)\nRoot Cause (first observed failure):\n[0]:\n  time      : 2026-03-01_16:23:24\n"
        "  host      : node-a\n  rank      : 2 (local_rank: 2)\n  exitcode  : -6 (pid: 11684)\n  error_file: <N/A>\n"
        "  traceback : Signal 6 (SIGABRT) received by PID 11684\n"
    )
    (cause,) = _causes(parsed)
    assert (cause.signature, cause.rank, cause.data["rank_from"]) == ("native-heap-corruption", 2, "exit-code")


def test_restart_begins_an_attempt() -> None:
    start = "2026-03-01 10:00:00,100 INFO [trainer] rank=0 host=node-a initializing process group world=2 local_rank=0 pid=100"
    parsed = _parse(
        f"{start}\n2026-03-01 10:00:05,000 INFO [trainer] rank=0 host=node-a step=5 loss=6.3 step_ms=227\n"
        "I0301 10:01:00.000000 90 torch/distributed/elastic/agent/server/api.py:553]   restart_count=1\n"
        f"{start.replace('10:00:00', '10:01:01')}\n"
        "Traceback (most recent call last):\n  File \"/a.py\", line 1, in f\nKeyError: 'x'"
    )
    assert [one["attempt"] for one in parsed.facts["attempts"]] == [0, 1]
    assert _causes(parsed)[0].attempt == 1


def test_one_rank_that_left_out_a_step_is_a_cause_when_the_others_did_not() -> None:
    steps = "\n".join(
        f"2026-03-01 10:00:0{n},000 INFO [trainer] rank={rank} host=node-a step={n} loss=6.3 step_ms=227"
        for n in range(4)
        for rank in range(3)
    )
    skip = "2026-03-01 10:00:05,000 WARNING [trainer] rank=2 host=node-a step 26: batch has no valid token, skipped"
    assert [(event.signature, event.rank) for event in _causes(_parse(f"{steps}\n{skip}"))] == [("rank-skipped-step", 2)]
    everyone = "\n".join(skip.replace("rank=2", f"rank={rank}") for rank in range(3))
    assert _causes(_parse(f"{steps}\n{everyone}")) == []


def test_missing_rank_of_a_store_key() -> None:
    line = "DistStoreError: wait timeout after 15000ms, keys: /default_pg/0//cpu//0/6"
    ranks = "\n".join(f"[rank{rank}]: up" for rank in range(6))
    (event,) = [one for one in _parse(f"{ranks}\n{line}").events if one.signature == "store-wait-timeout"]
    assert (event.data["missing_rank"], event.cls) == (6, "user/config")
    ranks = "\n".join(f"[rank{rank}]: up" for rank in range(7))
    (event,) = [one for one in _parse(f"{ranks}\n{line}").events if one.signature == "store-wait-timeout"]
    assert event.cls == "user/hang"


def test_code_quoted_in_a_stack_raises_nothing() -> None:
    parsed = _parse(
        'Traceback (most recent call last):\n  File "/a.py", line 1, in f\n'
        '    raise RuntimeError("Distributed package doesn\'t have NCCL built in")\nValueError: other'
    )
    assert [event.text for event in _causes(parsed)] == ["ValueError: other"]


def test_line_of_carriage_returns_is_cut_to_the_part_that_says_it() -> None:
    bar = "\r".join(f"{n}it [00:{n:02d}, 450.5it/s]" for n in range(50))
    parsed = _parse(f"{bar}\rslurmstepd: error: *** JOB 17 ON node-a CANCELLED AT 2022-11-24T04:00:12 ***")
    (cause,) = _causes(parsed)
    assert cause.text.startswith("slurmstepd: error")
    assert cause.time == 1669262412.0


def test_launcher_names_the_process_that_died() -> None:
    (event,) = _parse("mpirun noticed that process rank 1 with PID 41233 on node node-b exited on signal 6 (Aborted).").events
    assert (event.signature, event.rank, event.pid, event.node) == ("exit-sigabrt", 1, 41233, "node-b")


def test_deepspeed_world_info_places_ranks_node_by_node() -> None:
    parsed = _parse("[INFO] [launch.py:145:main] WORLD INFO DICT: {'worker-0': [0, 1], 'worker-1': [0, 1]}")
    assert [(one.rank, one.node, one.local_rank) for one in parsed.placements][2:] == [(2, "worker-1", 0), (3, "worker-1", 1)]


def test_head_of_a_traceback_in_a_loggers_line_gives_the_speaker() -> None:
    parsed = _parse(
        "[2026-01-10 10:01:00 TP3] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/sgl/scheduler.py", line 1652, in run\n    loop()\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    )
    (cause,) = _causes(parsed)
    assert (cause.signature, cause.rank) == ("cuda-oom", 3)


def test_generic_exception_gives_way_to_the_specific_one_that_followed_it() -> None:
    parsed = _parse(
        'Traceback (most recent call last):\n  File "/a.py", line 1, in f\nValueError: http object is not initialized\n\n'
        "During handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "/a.py", line 2, in g\n'
        "socket.gaierror: [Errno -2] Name or service not known"
    )
    assert [event.signature for event in _causes(parsed)] == ["dns-failed"]


def test_watchdog_that_repeats_an_error_is_no_second_cause() -> None:
    error = "CUDA error: uncorrectable ECC error encountered"
    watchdog = f"[E ProcessGroupNCCL.cpp:916] [Rank 1] NCCL watchdog thread terminated with exception: {error}"
    parsed = _parse(f'Traceback (most recent call last):\n  File "/a.py", line 1, in f\nRuntimeError: {error}\n\n{watchdog}')
    assert [(event.line, event.rank, event.data["rank_from"]) for event in _causes(parsed)] == [(3, 1, "same-error")]
    assert [event.line for event in _causes(_parse(watchdog))] == [1]


def test_floods_are_counted() -> None:
    line = "node-a:1:2 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer node-b<1>"
    parsed = _parse("\n".join([line] * 5000))
    (event,) = parsed.events
    assert event.count == 5000


def test_lines_with_hits_of_the_scanner_are_used_as_they_are() -> None:
    lines = [Line(1, "RuntimeError: CUDA error: unknown error", ("cuda-error-other", "cuda-unknown-error", "no-such-row"))]
    parsed = parse_job(lines, file="x.log")
    assert parsed.events[0].signature == "cuda-unknown-error"
    assert parse_job([Line(1, "KeyError-free text")], file="x.log", scanned=True).events == []


@pytest.mark.parametrize(
    "text", ["\x00\xff" * 50, "[" * 3000, "Traceback (most recent call last):" * 200, "  exitcode  : x", "a" * 70_000, ""]
)
def test_hostile_lines_are_survived(text: str) -> None:
    parsed = _parse(f"{text}\nKeyError: 'x'\n{text}")
    assert any(event.signature == "python-exception" for event in parsed.events)


@pytest.mark.parametrize(
    ("text", "step", "seconds", "loss"),
    [
        ("step=5 loss=6.3184 tokens/s=563.1 step_ms=227", 5, 0.227, 6.3184),
        (" | INFO | trainer | rank 0 | step 9344/30000 | loss 2.3470 | lr 2.16e-04 | step 7.05s (data 0.03)", 9344, 7.05, 2.347),
        (
            " iteration       48/      50 | elapsed time per iteration (ms): 7138.7 | lm loss: 8.317189E-02 |",
            48,
            7.1387,
            0.08317189,
        ),
        ("  1%|  | 1/92 [00:13<20:56, 13.80s/it]  2%|▏ | 2/92 [00:30<22:06, 14.74s/it]", 2, 14.74, None),
        ("Epoch: [0][ 10/100] Time 0.3 Loss 1.2 (1.3)", 10, None, 1.2),
        ("[titan] step: 10  loss:  6.37310  grad_norm:  0.6216", 10, None, 6.3731),
        ("Training epoch 0, iteration 5/99 | reduced_train_loss: 11.03 | train_step_timing in s: 7.1", 5, 7.1, 11.03),
    ],
)
def test_progress(text: str, step: int, seconds: float | None, loss: float | None) -> None:
    found = step_of(text)
    assert found is not None
    assert (found.step, found.loss) == (step, loss)
    assert found.seconds == pytest.approx(seconds) if seconds else found.seconds is None


@pytest.mark.parametrize(
    "text", ["checkpoint saved to /ckpt/step_000020/model.pt", "failed to push metrics for step 10 to http", "loss of signal"]
)
def test_no_progress(text: str) -> None:
    assert step_of(text) is None
