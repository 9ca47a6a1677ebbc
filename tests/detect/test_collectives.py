"""Comparing ranks: who is absent, behind, different or silent, and when the evidence does not say."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from workbench.detect.collectives import analyse_flight, analyse_stacks, analyse_watchdogs
from workbench.model import Event
from workbench.parse.flight_recorder import parse_dump

_Op = tuple[str, int] | tuple[str, int, str]


def _dump(
    rank: int, ops: list[_Op], *, group: str = "0", desc: str = "default_pg", world: int = 4, backend: str = "nccl",
    done: int | None = None,
    rest: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """A dump of one group; operations from `done` on are still open."""
    done = len(ops) if done is None else done
    entries = [
        {
            "record_id": n, "pg_id": 0, "process_group": (group, desc), "collective_seq_id": n + 1, "p2p_seq_id": 0,
            "profiling_name": f"{backend}:{op[0]}", "input_sizes": [[op[1]]], "input_dtypes": ["Float"], "is_p2p": False,
            "state": op[2] if len(op) > 2 else "completed" if n < done else "started", "retired": n < done,
            "time_created_ns": 1_780_000_000_000_000_000 + n * 1_000_000_000,
            "frames": [{"name": "step", "filename": "/workspace/train.py", "line": 40 + n}],
        }
        for n, op in enumerate(ops)
    ]  # fmt: skip
    whole = {
        "version": "2.4", "entries": entries + (rest or []),
        "pg_config": {group: {"name": group, "desc": desc, "ranks": str(list(range(world)))}},
    }  # fmt: skip
    flight: dict[str, Any] = parse_dump(pickle.dumps(whole, 2), file=f"fr_trace_rank_{rank}").facts["flight"]
    return flight


_SAME: list[_Op] = [("all_reduce", 8)] * 5


def _named(events: list[Event]) -> list[tuple[str, int | None]]:
    return [(e.signature, e.rank) for e in events]


@pytest.mark.parametrize(("op", "differs"), [(("broadcast", 8), True), (("all_reduce", 9), True), (("all_reduce", 8), False)])
def test_one_rank_differs(op: _Op, differs: bool) -> None:
    dumps = [_dump(r, [*_SAME, ("all_reduce", 8)], done=5) for r in range(3)] + [_dump(3, [*_SAME, op], done=5)]
    events = analyse_flight(dumps, 4)
    if not differs:
        assert _named(events) == [("fr-all-consistent", None)]
        return
    assert _named(events) == [("fr-collective-mismatch", 3)]
    assert events[0].data["seq"] == 6
    assert events[0].data["peers"] == [0, 1, 2]
    assert events[0].data["frame"] == "step (train.py:45)"
    assert events[0].time == pytest.approx(1_780_000_005.0)


def test_the_first_difference_counts_not_the_loudest() -> None:
    """A rank that skipped one collective differs ever after, in all that follows."""
    ops: list[_Op] = [("all_reduce", n) for n in range(1, 9)]
    dumps = [_dump(r, ops) for r in (0, 1, 3)] + [_dump(2, ops[:3] + ops[4:])]
    (event,) = analyse_flight(dumps)
    assert (event.signature, event.rank, event.data["seq"]) == ("fr-collective-mismatch", 2, 4)


def test_two_ranks_are_a_tie() -> None:
    (event,) = analyse_flight([_dump(0, [("all_reduce", 1)], world=2), _dump(1, [("broadcast", 1)], world=2)])
    assert (event.signature, event.rank, event.data["tie"], event.data["candidates"]) == (
        "fr-collective-mismatch",
        None,
        True,
        [0, 1],
    )


def test_uneven_operations_may_differ_in_size() -> None:
    dumps = [_dump(r, [("all_to_all", r + 1), ("gather", r)], world=3) for r in range(3)]
    assert _named(analyse_flight(dumps)) == [("fr-all-consistent", None)]


def test_a_rank_behind() -> None:
    dumps = [_dump(r, _SAME, done=4) for r in range(3)] + [_dump(3, _SAME[:4], done=4)]
    (event,) = analyse_flight(dumps)
    assert (event.signature, event.rank, event.role) == ("fr-rank-behind", 3, None)
    assert (event.data["seq"], event.data["lead"], event.data["peers"]) == (5, 1, [0, 1, 2])
    assert event.time == pytest.approx(1_780_000_004.0)


def test_a_cpu_that_runs_ahead_is_not_a_rank_behind() -> None:
    """All stand in collective 4; that one has enqueued two more says nothing."""
    dumps = [_dump(0, _SAME + _SAME[:1], done=3)] + [_dump(r, _SAME[:4], done=3) for r in (1, 2, 3)]
    assert _named(analyse_flight(dumps)) == [("fr-all-consistent", None)]


def test_gloo_keeps_no_state_so_the_newest_counts() -> None:
    plain: list[_Op] = [("all_reduce", 8, "scheduled")] * 5
    dumps = [_dump(r, plain, backend="gloo") for r in range(3)] + [_dump(3, plain[:3], backend="gloo")]
    assert _named(analyse_flight(dumps)) == [("fr-rank-behind", 3)]


def _entry(n: int, group: str, seq: int, index: int, open_: bool = False) -> dict[str, Any]:
    return {
        "record_id": n, "pg_id": index, "process_group": (group, group), "collective_seq_id": seq,
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[4]], "state": "started" if open_ else "completed", "retired": not open_,
        "time_created_ns": 1_780_000_100_000_000_000 + n,
    }  # fmt: skip


def _grouped(rank: int, rows: list[tuple[str, int, bool]]) -> dict[str, Any]:
    whole = {"version": "2.4", "entries": [_entry(n, g, s, 1, o) for n, (g, s, o) in enumerate(rows)]}
    flight: dict[str, Any] = parse_dump(pickle.dumps(whole, 2), file=f"fr_trace_rank_{rank}").facts["flight"]
    return flight


def test_who_is_behind_because_it_waits_is_a_symptom() -> None:
    """Rank 1 never entered tp0; rank 0 waits for it there, so it never enters dp0, where rank 2 waits."""
    dumps = [
        _grouped(0, [("tp0", 1, False), ("dp0", 1, False), ("tp0", 2, True)]),
        _grouped(1, [("tp0", 1, False), ("dp1", 1, False)]),
        _grouped(2, [("tp1", 1, False), ("dp0", 1, False), ("tp1", 2, False), ("dp0", 2, True)]),
    ]
    root, victim = analyse_flight(dumps)
    assert (root.signature, root.rank, root.role) == ("fr-rank-behind", 1, None)
    assert (victim.rank, victim.role, victim.data["waits_for"]) == (0, "symptom", [1])


def test_two_groups_in_different_order_are_a_deadlock_without_one_culprit() -> None:
    dumps = [
        _grouped(0, [("a", 1, False), ("b", 1, False), ("a", 2, True)]),
        _grouped(1, [("a", 1, False), ("b", 1, False), ("b", 2, True)]),
    ]
    first = analyse_flight(dumps)[0]
    assert (first.signature, first.rank, first.data["candidates"]) == ("fr-collective-mismatch", None, [0, 1])


def test_pipeline_that_waits_for_a_send() -> None:
    def row(op: str, open_: bool) -> dict[str, Any]:
        return _entry(9, "pp", 0, 2, open_) | {"profiling_name": f"nccl:{op}", "is_p2p": True, "p2p_seq_id": 1}

    waits = _dump(1, _SAME, world=2, group="pp", desc="pp", rest=[row("recv 1<-0", True)])
    idle = _dump(0, _SAME, world=2, group="pp", desc="pp")
    assert ("fr-rank-behind", 0) in _named(analyse_flight([waits, idle]))
    sent = _dump(0, _SAME, world=2, group="pp", desc="pp", rest=[row("send 0->1", True)])
    assert _named(analyse_flight([waits, sent])) == [("fr-all-consistent", None)]


def test_an_absent_dump_is_suspicion() -> None:
    events = analyse_flight([_dump(r, _SAME, done=4) for r in (0, 1, 3)])
    assert _named(events) == [("fr-rank-absent", 2), ("fr-all-consistent", None)]
    assert events[0].weight == 0.5
    assert events[1].role == "context"


def test_absent_dumps_weigh_little_beside_a_rank_behind() -> None:
    events = analyse_flight([_dump(0, _SAME, done=4), _dump(1, _SAME[:3], done=3)], 4)
    assert _named(events) == [("fr-rank-behind", 1), ("fr-rank-absent", 2), ("fr-rank-absent", 3)]
    assert {e.role for e in events[1:]} == {"context"}


def test_world_size_of_the_launcher_counts() -> None:
    assert ("fr-rank-absent", 4) in _named(analyse_flight([_dump(r, _SAME) for r in range(4)], 5))


def test_a_gpu_that_never_began() -> None:
    ops: list[_Op] = [*_SAME, ("all_reduce", 8, "scheduled")]
    dumps = [_dump(r, [*_SAME, ("all_reduce", 8)], done=5) for r in range(3)] + [_dump(3, ops, done=5)]
    assert _named(analyse_flight(dumps)) == [("fr-rank-not-started", 3), ("fr-all-consistent", None)]


def test_a_full_ring_does_not_invent_a_difference() -> None:
    """The oldest entry of a full ring may be half of a coalesced pair."""
    whole, cut = _dump(0, _SAME, world=2), _dump(1, _SAME, world=2)
    whole["entries"] = [whole["entries"][0]._replace(seq=2), *whole["entries"][1:]]  # two operations under number 2
    cut["entries"] = cut["entries"][1:]
    assert _named(analyse_flight([whole, cut])) == [("fr-all-consistent", None)]


def test_no_dumps() -> None:
    assert analyse_flight([]) == []
    assert analyse_flight([{"rank": 0, "entries": []}], 4) == []


# Watchdogs ------------------------------------------------------------------------------------------------------------


def _timeout(rank: int, op: str = "ALLREDUCE", numel: int = 64, seq: int = 41, **data: Any) -> Event:
    text = (
        f"[rank{rank}]:[E504 11:02:03.5 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran for 600029 milliseconds"
    )
    return Event("c10d-watchdog-timeout", "job", text=text, rank=rank, line=100 + rank, file="job.log", data=data)


def _status(rank: int, enqueued: int, group: str = "PG ID 0 PG GUID 0(default_pg)") -> Event:
    text = f"[{group} Rank {rank}] Timeout at NCCL work: 41, last enqueued NCCL work: {enqueued}, last completed NCCL work: 40."
    return Event("c10d-collective-exception", "job", text=text, rank=rank)


def test_watchdog_mismatch() -> None:
    (event,) = analyse_watchdogs([*(_timeout(r) for r in (0, 1, 3)), _timeout(2, "BROADCAST")])
    assert (event.signature, event.rank, event.line, event.data["seq"]) == ("watchdog-mismatch", 2, 102, 41)
    assert event.data["did"] == "BROADCAST"
    (event,) = analyse_watchdogs([*(_timeout(r) for r in (0, 1, 3)), _timeout(2, numel=65)])
    assert event.rank == 2
    (event,) = analyse_watchdogs([_timeout(0), _timeout(1, "BROADCAST")])
    assert (event.rank, event.data["tie"]) == (None, True)


def test_watchdogs_of_different_groups_are_not_compared() -> None:
    reports = [
        _timeout(0, pg="tp_0"),
        _timeout(1, pg="tp_0"),
        _timeout(2, "BROADCAST", pg="tp_1"),
        _timeout(3, "BROADCAST", pg="tp_1"),
    ]
    assert analyse_watchdogs(reports) == []


def test_watchdog_behind() -> None:
    events = analyse_watchdogs([*(_status(r, 43) for r in range(3)), _status(3, 40)])
    assert [(e.signature, e.rank, e.data["lead"]) for e in events] == [("watchdog-rank-behind", 3, 3)]
    assert (
        analyse_watchdogs([*(_status(r, 43) for r in range(3)), _status(3, 42)]) == []
    )  # all had enqueued what they timed out in


def test_watchdog_silent() -> None:
    other = Event("progress", "job", rank=2, node="gpu-b")
    (event,) = analyse_watchdogs([*(_timeout(r) for r in (0, 1, 3)), other])
    assert (event.signature, event.rank, event.node, event.weight) == ("watchdog-silent-rank", 2, "gpu-b", 0.5)
    (event,) = analyse_watchdogs([_timeout(r) for r in (0, 1, 2)], world_size=4)
    assert (event.rank, event.weight) == (3, 0.3)
    assert analyse_watchdogs([_timeout(0)], world_size=4) == []  # one report of many ranks: the logs are missing, not the ranks
    assert analyse_watchdogs([_timeout(r) for r in range(8)], world_size=64) == []


@pytest.mark.parametrize(
    "text",
    [
        "  - [3] finished collective #41, but didn't join collective #42 (count from 1)",
        "  - To our best knowledge, ranks [3] are the lagging ranks that caused this timeout. They never joined any collectives",
    ],
)
def test_desync_report(text: str) -> None:
    events = analyse_watchdogs([*(_timeout(r) for r in range(3)), Event("c10d-desync-report", "job", text=text, rank=0, line=7)])
    assert (events[0].signature, events[0].rank, events[0].line) == ("watchdog-rank-behind", 3, 7)


# Stacks ---------------------------------------------------------------------------------------------------------------


def _stack(rank: int, signature: str, text: str = "f (train.py:1)", **data: Any) -> Event:
    return Event(signature, "stacks", text=text, rank=rank, line=5, file=f"rank-{rank}.txt", data={"frame": text, **data})


def test_odd_one_out() -> None:
    events = [
        _stack(0, "stack-in-collective"),
        _stack(1, "stack-in-collective"),
        _stack(2, "stack-lock-wait", "lookup (data.py:46)"),
    ]
    (event,) = analyse_stacks(events)
    assert (event.rank, event.text, event.line, event.weight) == (2, "lookup (data.py:46)", 5, 0.9)
    assert event.data["in_collective"] == [0, 1]


def test_the_loader_process_is_what_its_rank_waits_for() -> None:
    worker = _stack(1, "stack-user-wait", "__getitem__ (data.py:67)", worker=0)
    (event,) = analyse_stacks([_stack(0, "stack-in-collective"), _stack(1, "stack-dataloader-wait"), worker])
    assert (event.rank, event.text, event.data["kind"]) == (1, "__getitem__ (data.py:67)", "stack-user-wait")


def test_storage_decides_the_class() -> None:
    (event,) = analyse_stacks([_stack(0, "stack-storage-wait"), _stack(1, "stack-in-collective")])
    assert event.cls == "platform/storage"


@pytest.mark.parametrize("kinds", [["stack-in-collective"] * 3, ["stack-lock-wait"], ["stack-dataloader-wait"] * 2, []])
def test_nobody_is_odd(kinds: list[str]) -> None:
    assert analyse_stacks([_stack(n, kind) for n, kind in enumerate(kinds)]) == []
