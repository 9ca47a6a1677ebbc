"""What a launcher's list of failures tells of who began: by signal, by status, by absence, and by stacks that are apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.incident import load
from workbench.model import Verdict
from workbench.triage.verdict import judge

AGENT = "torch/distributed/elastic/multiprocessing/api.py"
STEP = "step 10 loss 0.5290"
NAMES = {-9: "SIGKILL", -15: "SIGTERM", -24: "SIGXCPU", -25: "SIGXFSZ", -8: "SIGFPE"}


def verdict(folder: Path, files: dict[str, str]) -> Verdict:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return judge(load(str(folder)))


def log(size: int, ends: dict[int, int], words: list[str], told: tuple[int, ...] = (), base: int = 0) -> str:
    """Return the output of one agent: its ranks meet, say `words`, and those in `ends` (by local rank) are listed with their exit codes."""
    lines = [
        f"[./gloo/transport/tcp/context.cc:243] INFO Rank {rank} is connected to {size - 1}. Expected number of connected peers is: {size - 1}"
        for rank in range(size)
    ]
    lines += [f"2026-12-01 04:00:01,100 INFO train: {STEP}", *words]
    lines += [f"W1201 04:00:04.020000 100 {AGENT}:1028] Sending process {200 + rank} closing signal SIGTERM" for rank in told]
    first, *others = sorted(ends, key=lambda rank: rank in told)
    lines.append(
        f"E1201 04:00:04.380000 100 {AGENT}:1002] failed (exitcode: {ends[first]}) local_rank: {first} (pid: {200 + first}) of binary: /usr/bin/python3"
    )
    lines += [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "=" * 55,
        "train.py FAILED",
        "-" * 55,
        "Failures:",
    ]
    for number, rank in enumerate([*others, first], 1):
        code = ends[rank]
        if rank == first:
            lines += ["-" * 55, "Root Cause (first observed failure):"]
        signal = f" ({NAMES[code]})" if code < 0 else ""
        lines += [
            f"[{number % len(ends)}]:", "  time      : 2026-12-01_04:00:04", "  host      : localhost", f"  rank      : {base + rank} (local_rank: {rank})",
            f"  exitcode  : {code} (pid: {200 + rank}) {signal}", "  error_file: <N/A>", "  traceback : To enable traceback see: https://pytorch.org/docs",
        ]  # fmt: skip
    return "\n".join([*lines, "=" * 55])


def stack(rank: int, collective: str, line: int, says: str) -> list[str]:
    return [
        f"[rank{rank}]: Traceback (most recent call last):",
        f'[rank{rank}]:   File "/srv/job/train.py", line {line}, in main',
        f"[rank{rank}]:     dist.{collective}(flat)",
        f'[rank{rank}]:   File "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py", line 3913, in {collective}',
        f"[rank{rank}]:     work.wait()",
        f"[rank{rank}]: RuntimeError: {says}",
    ]


CLOSED = "[./gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:2772"
LATE = "[./gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 12000ms for recv operation to complete"


def lost(*ranks: int) -> list[str]:
    return [line for rank in ranks for line in stack(rank, "all_reduce", 78, CLOSED)]


def test_who_is_not_on_the_list_left_with_status_0(tmp_path: Path) -> None:
    words = ["2026-12-01 04:00:02,478 INFO train: rank 1: target reached, stopping", *lost(2, 0)]
    found = verdict(tmp_path, {"job.log": log(3, {2: 1, 0: -15}, words, told=(0,))})
    assert (found.cls, found.rank, found.retry) == ("user/collective-mismatch", 1, "fix-first")
    assert "target reached" in found.evidence_records[0].text


def test_who_was_told_to_end_and_ended_well_has_not_left(tmp_path: Path) -> None:
    found = verdict(tmp_path, {"job.log": log(3, {2: 1}, lost(2), told=(0, 1))})
    assert found.cls == "unknown"


def test_who_died_by_a_signal_explains_the_lost_connections(tmp_path: Path) -> None:
    found = verdict(tmp_path, {"job.log": log(3, {2: -9, 0: -15}, lost(0), told=(0,))})
    assert (found.cls, found.rank) == ("unknown", 2)


@pytest.mark.parametrize(
    ("code", "cls"), [(-24, "platform/config"), (-25, "platform/config"), (-8, "user/exception"), (-9, "unknown")]
)
def test_a_signal_means_what_it_means(tmp_path: Path, code: int, cls: str) -> None:
    found = verdict(tmp_path, {"job.log": log(2, {0: code, 1: -15}, lost(1), told=(1,))})
    assert (found.cls, found.rank) == (cls, 0)


def test_a_rank_that_the_agent_ended_is_not_where_it_began(tmp_path: Path) -> None:
    found = verdict(tmp_path, {"job.log": log(2, {1: 1, 0: -15}, [], told=(0,))})
    assert (found.cls, found.rank) == ("unknown", 1)


def test_a_rank_that_somebody_else_ended_is(tmp_path: Path) -> None:
    found = verdict(tmp_path, {"job.log": log(3, {1: -15, 0: 1, 2: -15}, lost(0), told=(2,))})
    assert found.rank == 1


def test_a_program_that_exits_by_itself_is_to_blame(tmp_path: Path) -> None:
    words = ["2026-12-01 04:00:02,478 INFO train: rank 1 of 3 is ready", *lost(0, 2)]
    found = verdict(tmp_path, {"job.log": log(3, {1: 3, 0: -15, 2: -15}, words, told=(0, 2))})
    assert (found.cls, found.rank) == ("user/exception", 1)
    assert any("exitcode: 3" in event.text for event in found.evidence_records[:3] if event.role == "cause")


def test_ranks_that_all_wait_but_in_different_collectives_left_their_order(tmp_path: Path) -> None:
    words = [*stack(0, "all_reduce", 78, CLOSED), *stack(2, "all_reduce", 78, LATE), *stack(1, "barrier", 125, LATE)]
    found = verdict(tmp_path, {"job.log": log(3, {0: 1, 1: 1, 2: -15}, words, told=(1, 2))})
    assert (found.cls, found.rank) == ("user/collective-mismatch", 1)


def test_the_one_that_all_others_waited_for_stood_still(tmp_path: Path) -> None:
    words = [*stack(0, "all_reduce", 78, LATE), *stack(2, "all_reduce", 78, CLOSED)]
    found = verdict(tmp_path, {"job.log": log(3, {0: 1, 1: -15, 2: -15}, words, told=(1, 2))})
    assert (found.cls, found.rank) == ("user/hang", 1)


def test_localhost_is_the_node_that_wrote_the_file(tmp_path: Path) -> None:
    missing = [
        "Traceback (most recent call last):",
        '  File "train.py", line 62, in <module>',
        "ModuleNotFoundError: No module named 'tokfast'",
    ]
    late = [
        "Traceback (most recent call last):",
        '  File "train.py", line 64, in <module>',
        "torch.distributed.DistStoreError: wait timeout after 60000ms, keys: /default_pg/0//cpu//0/2",
    ]
    found = verdict(
        tmp_path,
        {
            "logs/node-a.log": log(2, {1: 1, 0: -15}, late, told=(0,))
            .replace("04:00:0", "04:01:0")
            .replace(STEP, "tokfast 0.4.1"),
            "logs/node-b.log": log(2, {0: 1, 1: -15}, missing, told=(1,), base=2).replace(STEP, "ready"),
        },
    )
    assert (found.cls, found.node) == ("user/config", "node-b")


START = "torchrun --nnodes=2 --nproc-per-node=2 --master-addr=10.0.0.1 --node-rank={rank} --master-port={port} train.py"
WAIT = "torch.distributed.DistStoreError: Timed out after 21 seconds waiting for clients. 1/2 clients joined."


@pytest.mark.parametrize(("port", "cls", "node"), [(29614, "user/config", "node-b"), (29641, "platform/node-lost", None)])
def test_nodes_that_were_told_different_ports_never_meet(tmp_path: Path, port: int, cls: str, node: str | None) -> None:
    launch = f"node-a$ {START.format(rank=0, port=29641)}\nnode-b$ {START.format(rank=1, port=port)}"
    found = verdict(tmp_path, {"launch.txt": launch, "logs/node-a.log": "Traceback (most recent call last):\n" + WAIT})
    assert found.cls == cls
    assert found.node == node or cls == "platform/node-lost"


def test_steps_show_that_the_ranks_met_all_the_same(tmp_path: Path) -> None:
    launch = f"node-a$ {START.format(rank=0, port=29641)}\nnode-b$ {START.format(rank=1, port=29614)}"
    steps = "\n".join(f"2026-12-01 04:00:0{n},100 INFO step {n}0/90 loss 0.{n}" for n in range(1, 10))
    assert verdict(tmp_path, {"launch.txt": launch, "logs/node-a.log": steps}).cls == "none"


def test_a_start_that_the_agent_is_quiet_about_is_a_start(tmp_path: Path) -> None:
    mesh = "[./gloo/transport/tcp/context.cc:243] INFO Rank {} is connected to 1. Expected number of connected peers is: 1"
    lines = [
        *(mesh.format(rank) for rank in (0, 1)), "2026-12-01 04:00:01,100 INFO step 10/20 loss 0.5290",
        "[rank1]: Traceback (most recent call last):", '[rank1]:   File "train.py", line 9, in main', "[rank1]: RuntimeError: no graph of step 10 here",
        f"E1201 04:00:24.380000 100 {AGENT}:1002] failed (exitcode: 1) local_rank: 1 (pid: 201) of binary: /usr/bin/python3",
        *(mesh.format(rank) for rank in (0, 1)), "2026-12-01 04:00:31,100 INFO step 10/20 loss 0.5290",
        "2026-12-01 04:00:32,100 INFO step 20/20 loss 0.4290", "2026-12-01 04:00:33,100 INFO Training finished",
    ]  # fmt: skip
    found = verdict(tmp_path, {"job.log": "\n".join(lines)})
    assert (found.cls, found.rank, found.attempt) == ("user/exception", 1, 0)


def test_the_echo_of_an_interrupt_is_no_second_cause(tmp_path: Path) -> None:
    lines = [
        "W1201 04:02:35.395000 28072 torch/distributed/elastic/agent/server/api.py:753] Received 2 death signal, shutting down workers",
        *(f"[rank{rank}]: {text}" for rank in (0, 1) for text in ("Traceback (most recent call last):", '  File "train.py", line 85, in main', "KeyboardInterrupt")),
    ]  # fmt: skip
    found = verdict(tmp_path, {"job.log": "\n".join(lines)})
    assert found.cls == "user/stopped"
    assert not any(event.role == "cause" and "KeyboardInterrupt" in event.text for event in found.evidence_records)


def test_a_number_that_a_program_calls_a_rank_did_not_leave_early(tmp_path: Path) -> None:
    """A logger that prints the process's id as its rank; the barrier's own words name who did not come."""
    words = [
        *(f"[default{rank}]:2026-12-01 05:16:34,900 [rank {30017 + rank}] step 10 loss 0.2007" for rank in (0, 1)),
        "[default1]:2026-12-01 05:16:44,940 [rank 30018] waiting for /work/cache/tokens.bin.lock to be released",
        "[default0]:[rank0]:[E1201 05:16:44.568080877 ProcessGroupGloo.cpp:2948] [Rank 0]: Rank 1 failed to pass monitoredBarrier in 10000 ms",
        "[default0]:[rank0]: RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 10000 ms",
        "[default2]:[rank2]: RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.",
        "[default2]:[rank2]: [./gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:43190",
    ]  # fmt: skip
    found = verdict(tmp_path, {"job.log": log(3, {2: 1, 0: -15, 1: -15}, words, told=(0, 1))})
    assert (found.cls, found.rank) == ("user/hang", 1)


def test_a_rank_that_another_file_tells_of_was_started(tmp_path: Path) -> None:
    """The first node's log alone looks as if the script expects a larger world; the second node's says what became of its ranks."""
    waits = [
        f"[default{rank}]:torch.distributed.DistStoreError: wait timeout after 20000ms, keys: /default_pg/0//cpu//0/2"
        for rank in (0, 1)
    ]
    missing = "FileNotFoundError: [Errno 2] No such file or directory: '/opt/app/conf/pretrain.yaml'"
    stack = [line for rank in (1, 0) for line in (f"[default{rank}]:Traceback (most recent call last):", f'[default{rank}]:  File "train.py", line 2, in load', f"[default{rank}]:{missing}")]  # fmt: skip
    files = {
        "logs/node-a.log": log(2, {0: 1, 1: -15}, waits, told=(1,)).replace(STEP, "ready"),
        "logs/node-b.log": log(2, {1: 1, 0: -15}, stack, told=(0,), base=2).replace(STEP, "ready"),
    }
    found = verdict(tmp_path, files)
    assert (found.cls, found.node) == ("user/config", "node-b")
    assert missing in found.evidence_records[0].text
