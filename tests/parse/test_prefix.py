"""The head of a line gives rank, node, process, time and level, however launchers and loggers stack them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from workbench.parse.prefix import Context, context, split_prefix

YEAR = Context(year=2025)


def _at(*parts: int, micro: int = 0) -> float:
    return datetime(*parts, microsecond=micro, tzinfo=UTC).timestamp()  # type: ignore[misc, arg-type]


@pytest.mark.parametrize(
    ("text", "rank", "local", "node", "pid"),
    [
        ("[rank3]: KeyError: 'x'", 3, None, None, None),
        ("[default3]:  what():  CUDA error", None, 3, None, None),
        ("i.pretrain/0 [default2]:[rank2]:[E218 04:54:22.864467604 ProcessGroupNCCL.cpp:542] [Rank 2] text", 2, 2, None, None),
        ("[3]: text", 3, None, None, None),
        ("[1,3]<stdout>:node-a:29881:30401 [0] NCCL INFO init.cc:903 -> 5", 3, None, "node-a", 29881),
        ("[1,mpirank:4,algo-1]<stderr>:text", 4, None, "algo-1", None),
        ("2019-06-02T16:13:44.884Z: [1,12]<stdout>:node-a:815:864 [0] NCCL WARN x", 12, None, "node-a", 815),
        ("(RayWorkerWrapper pid=92000, ip=10.0.0.24) text", None, None, "10.0.0.24", 92000),
        ("(raylet) A worker died", None, None, None, None),
        ("(VllmWorker rank=2 pid=225) ERROR 09-25 23:10:17 [multiproc_executor.py:527] text", 2, None, None, 225),
        ("(Worker_TP0 pid=58200) INFO 02-26 09:09:49 [x.py:170] text", 0, 0, None, 58200),
        ("(EngineCore_DP0 pid=106770) ERROR 05-18 09:06:43 [core.py:718] text", None, None, None, 106770),
        ("\x1b[1;36m(APIServer pid=106700)\x1b[0;0m INFO 05-18 09:06:30 [api_server.py:1896] text", None, None, None, 106700),
        ("[36m(main_task pid=210500)[0m text", None, None, None, 210500),
        ("[RANK 1] text", 1, None, None, None),
        ("[rank: 0] Received SIGTERM", 0, None, None, None),
        ("2026-11-29 16:21:57,356 INFO [trainer] rank=2 host=node-a step=5 loss=6.3", 2, None, "node-a", None),
        ("2025-08-21 19:43:58,860 | INFO | trainer | rank 14 | step 9344/30000 | loss 2.3", 14, None, None, None),
        ("[2026-08-24 03:00:18 TP4] text", 4, 4, None, None),
        ("[2026-08-24 03:00:18 DP1 TP4] text", None, 4, None, None),
        ('{"timestamp":"2024-03-27T17:53:31Z","level":"ERROR","message":"Shard died","span":{"rank":1}}', 1, None, None, None),
        ("[pod/neo-worker-2/pytorch] [default2]:[rank18]: text", 18, 2, None, None),
        ("[1579244700.735971] [node-a:41109:0]  debug.c:1076 UCX  DEBUG x", None, None, "node-a", 41109),
        (" |   | 2024-05-01 10:00:00 master-0 >> text |", None, None, "master-0", None),
        ("Jan  5 12:01:02 node-b train[4123]: text", None, None, "node-b", 4123),
        ("node-b: Test CUDA failure common.cu:1030 'out of memory'", None, None, "node-b", None),
        (" .. node-b pid 3018: Test failure common.cu:937", None, None, "node-b", 3018),
        ("06:14:42 task 9 (rank 36) E0806 06:14:42.100000   901 x.cc:1140] text", 36, None, None, 901),
        ("[prterun-node-a-41@1,3]<stderr>:text", 3, None, None, None),
        ("[mpirank:3,algo-2] text", 3, None, "algo-2", None),
        ("01/02/2025 10:00:00 [INFO|DP=0|PP=1|TP=3|node-b]: text", None, None, "node-b", None),
        ("rank-3: text", 3, None, None, None),
        ("<rank 3> text", 3, None, None, None),
    ],
)
def test_speaker(text: str, rank: int | None, local: int | None, node: str | None, pid: int | None) -> None:
    head = split_prefix(text, YEAR)
    assert (head.rank, head.local_rank, head.node, head.pid) == (rank, local, node, pid)


@pytest.mark.parametrize(
    ("text", "time", "naive"),
    [
        ("[E218 04:54:22.864467 ProcessGroupNCCL.cpp:542] x", _at(2025, 2, 18, 4, 54, 22, micro=864467), True),
        ("E0612 01:14:57.061000 4242 torch/distributed/x.py:12] x", _at(2025, 6, 12, 1, 14, 57, micro=61000), True),
        ("[E1129 16:40:43.388780 socket.cpp:764] x", _at(2025, 11, 29, 16, 40, 43, micro=388780), True),
        ("2023-05-30 20:29:14,854 INFO x", _at(2023, 5, 30, 20, 29, 14, micro=854000), True),
        ("2024-03-06T17:50:22.335714Z  INFO x", _at(2024, 3, 6, 17, 50, 22, micro=335714), False),
        ("2024-03-06T17:50:22+02:00 x", _at(2024, 3, 6, 15, 50, 22), False),
        ("INFO 02-20 16:42:42 engine.py:12] x", _at(2025, 2, 20, 16, 42, 42), True),
        ("08/21 [01:46:27] WARNING x", _at(2025, 8, 21, 1, 46, 27), True),
        ("06/17/2025 18:00:51 - INFO - x", _at(2025, 6, 17, 18, 0, 51), True),
        ("[2023-07-21 13:00:27,879] [INFO] [launch.py:428:sigkill_handler] x", _at(2023, 7, 21, 13, 0, 27, micro=879000), True),
        ("submitit WARNING (2022-08-12 02:00:11,453) - x", _at(2022, 8, 12, 2, 0, 11, micro=453000), True),
        ("E0000 00:00:1737839600.620236 189900 cuda_dnn.cc:8310] x", 1737839600.620236, False),
        ("[1579244700.735971] [node-a:41109:0] x", 1579244700.735971, False),
        ("Thu Jan 22 01:35:46 2025", _at(2025, 1, 22, 1, 35, 46), True),
        ("[titan] 2026-11-29 16:53:32,737 - root - INFO - x", _at(2026, 11, 29, 16, 53, 32, micro=737000), True),
        (
            '{"log":"[rank3]: x\\n","stream":"stderr","time":"2024-05-01T10:00:00.5Z"}',
            _at(2024, 5, 1, 10, 0, 0, micro=500000),
            False,
        ),
        ("2024-05-01T10:00:00.5Z stderr F [rank1]: x", _at(2024, 5, 1, 10, 0, 0, micro=500000), False),
    ],
)
def test_time(text: str, time: float, naive: bool) -> None:
    head = split_prefix(text, YEAR)
    assert head.time == pytest.approx(time, abs=1e-5)
    assert head.naive is naive


def test_stamp_without_a_year_has_no_time_unless_the_file_tells_the_year() -> None:
    line = "[E218 04:54:22.864467604 ProcessGroupNCCL.cpp:542] x"
    assert split_prefix(line).time is None
    assert split_prefix(line).yearless
    assert context(["2024-02-18 04:50:00,000 INFO x", line]).year == 2024


def test_impossible_date_is_no_time_and_no_error() -> None:
    assert split_prefix("2024-02-31 04:50:00 x", YEAR).time is None
    assert split_prefix("E1345 01:14:57.061000 42 x.py:12] x", YEAR).time is None


def test_srun_numbers_are_ranks_only_when_the_whole_file_has_them() -> None:
    labelled = context(["0: start", "1: start", "0: step 1", "1: step 1", "srun: error: node-a: task 0: Killed"])
    assert labelled.srun
    assert split_prefix("1: KeyError: 'x'", labelled).rank == 1
    plain = context(["Epoch", "0: first", "loss 3", "done", "more"])
    assert not plain.srun
    assert split_prefix("0: first", plain).rank is None


def test_pdsh_names_are_nodes_only_when_the_whole_file_has_them() -> None:
    ctx = context(["node-1: start", "node-2: start", "node-1: step", "node-2: step"])
    head = split_prefix("node-1: node-1:2918:4483 [4] init.cc:263 NCCL WARN x", ctx)
    assert (head.node, head.pid, head.device) == ("node-1", 2918, 4)
    assert split_prefix("KeyError: 'x'", ctx).node is None


@pytest.mark.parametrize(
    "text", ["", " ", "[", "(", "\x00\x01", "[rank999999999999999999]: x", "(((((pid=1", "9" * 100_000, "[E218"]
)
def test_hostile_head_raises_nothing(text: str) -> None:
    assert split_prefix(text, YEAR).rest is not None


@pytest.mark.parametrize(
    "lines",
    [
        ["0: [rank3]: Traceback (most recent call last):", "1: [rank8]: RuntimeError: CUDA error", "1: main()"],
        ["0: [default3]:loading", "1: [default0]:loading", "1: [rank8]: RuntimeError: CUDA error", "1: x"],
        ["1: node-b:77:912 [4] NCCL INFO a", "1: node-b:78:915 [5] NCCL INFO b", "1: [rank8]: RuntimeError: CUDA error"],
    ],
)
def test_numbers_of_tasks_that_start_several_ranks_are_no_ranks(lines: list[str]) -> None:
    ctx = context(lines)
    assert ctx.tasks
    assert split_prefix("1: [rank8]: RuntimeError: CUDA error", ctx).rank == 8
    assert split_prefix("1: node-b:77:912 [4] NCCL WARN x", ctx).rank is None
    assert split_prefix("1:   main()", ctx).stream == split_prefix("1: more", ctx).stream != split_prefix("0: more", ctx).stream


def test_the_stamp_behind_a_task_number_and_the_rank_is_read() -> None:
    ctx = context(["10: [rank10]: Traceback", "11: [rank11]: Traceback", "10: step 2025-08-22 07:00:00"], 2025)
    assert not ctx.tasks
    for head in ("10: ", "[1,10]<stderr>:"):
        found = split_prefix(head + "[rank10]:[E822 07:42:11.960552288 ProcessGroupNCCL.cpp:1515] [PG 0 x", ctx)
        assert (found.rank, found.level) == (10, "ERROR")
        assert found.time == pytest.approx(datetime(2025, 8, 22, 7, 42, 11, 960552, tzinfo=UTC).timestamp(), abs=1e-3)
    assert split_prefix("10: plain words", ctx).rank == 10


def test_mpirun_numbers_count_tasks_where_ranks_say_otherwise() -> None:
    ctx = context(["[1,1]<stderr>:[rank8]: RuntimeError: x", "[1,0]<stdout>:hello"])
    assert split_prefix("[1,1]<stderr>:[rank8]: RuntimeError: x", ctx).rank == 8
    assert split_prefix("[1,1]<stdout>:hello", ctx).rank is None
    assert split_prefix("[1,1]<stdout>:hello", context(["[1,1]<stdout>:hello"])).rank == 1


def test_stern_puts_pod_and_container_in_front() -> None:
    lines = [f"llm-worker-{number % 2} pytorch 2025-08-22 07:42:1{number % 10},000 | INFO | step {number}" for number in range(9)]
    found = split_prefix("llm-worker-1 pytorch [rank8]: ValueError: no", context(lines))
    assert (found.pod, found.rank, found.rest.strip()) == ("llm-worker-1", 8, "ValueError: no")
    # prose with a hyphened word in front is not stern's
    assert split_prefix("pre-flight check [rank8]: x", context(["pre-flight check ok", "all-reduce test ok", "done"])).pod is None


def test_hosts_in_front_of_dated_lines_and_hosts_without_a_number_are_hosts() -> None:
    dated = [f"worker-{number}: 2025-05-02 10:40:0{number}.411: I x" for number in (0, 1, 2, 2)]
    assert split_prefix(dated[2], context(dated)).node == "worker-2"
    named = ["node-a: x", "node-b: y", "node-a: z"]
    assert split_prefix(named[1], context(named)).node == "node-b"
    ports = ["node-1:2918:4483 x", "node-1:2918:4483 y", "node-1:2918:4483 z"]
    assert split_prefix(ports[0], context(ports)).node is None


def test_name_of_a_python_logger_is_no_host() -> None:
    logger = "torch.distributed.elastic.multiprocessing.api"
    lines = [f"{logger}: [WARNING] Sending process {pid} closing signal SIGTERM" for pid in range(4)]
    assert logger not in context(lines).hosts
    assert context([line.replace(logger, "gpu-1.hpc") for line in lines]).hosts == {"gpu-1.hpc"}


def test_rank_in_brackets_behind_stamp_and_level_is_the_speakers() -> None:
    assert split_prefix("2025-06-12T09:11:41.000Z ERROR [rank3]: CUDA error", Context()).rank == 3
    assert split_prefix("2025-06-12T09:11:41.000Z ERROR lost [rankings]", Context()).rank is None
