"""Flight-recorder dumps: the pickle and the JSON form, old and new field names, empty and cut files."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from workbench.parse.flight_recorder import parse_dump, rank_of_file

_DATA = Path(__file__).parents[1] / "data" / "flight"


def _entry(number: int, **fields: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "frames": [
            {
                "name": "all_reduce",
                "filename": "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py",
                "line": 2806,
            },
            {"name": "step", "filename": "/workspace/engine.py", "line": 88},
        ],
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number + 1,
        "p2p_seq_id": 0,
        "op_id": number + 1,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_780_000_000_000_000_000 + number,
        "input_sizes": [[4, 8]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[4, 8]],
        "output_dtypes": ["BFloat16"],
        "state": "completed",
        "time_discovered_started_ns": 1_780_000_000_100_000_000,
        "time_discovered_completed_ns": 1_780_000_000_200_000_000,
        "retired": True,
        "timeout_ms": 600000,
        "is_p2p": False,
    }
    return row | fields


def _dump(**fields: Any) -> dict[str, Any]:
    whole: dict[str, Any] = {
        "version": "2.4",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
        "pg_status": {"0": {"last_enqueued_collective": 3, "last_started_collective": 3, "last_completed_collective": 2}},
        "entries": [_entry(0), _entry(1), _entry(2, state="started", retired=False, time_discovered_completed_ns=None)],
    }
    return whole | fields


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_both_forms_say_the_same(form: str) -> None:
    raw = pickle.dumps(_dump(), 2) if form == "pickle" else json.dumps(_dump()).encode()
    parsed = parse_dump(raw, file="flight/nccl_trace_rank_7")
    flight = parsed.facts["flight"]
    assert (flight["rank"], flight["version"], len(flight["entries"])) == (7, "2.4", 3)
    assert flight["pg_config"]["0"]["ranks"] == [0, 1, 2, 3]
    assert flight["pg_status"]["0"] == {"enqueued": 3, "started": 3, "completed": 2}
    last = flight["entries"][-1]
    assert (last.seq, last.op, last.numel, last.dtypes, last.state) == (3, "nccl:all_reduce", 32, "BFloat16", "started")
    assert last.pending
    assert not flight["entries"][0].pending
    assert last.frame == "step (engine.py:88)"
    assert last.created == pytest.approx(1_780_000_000.0)
    assert last.timeout == 600.0
    assert not parsed.problems
    assert not parsed.events


def test_version_1_names() -> None:
    row = {
        "record_id": 4,
        "pg_id": 1,
        "seq_id": 9,
        "profiling_name": "nccl:broadcast",
        "input_sizes": [[2]],
        "state": "scheduled",
    }
    parsed = parse_dump(pickle.dumps({"version": "1.5", "pg_config": {"1": [4, 5]}, "entries": [row]}, 2), file="x", rank=5)
    flight = parsed.facts["flight"]
    assert (flight["entries"][0].group, flight["entries"][0].seq) == ("1", 9)
    assert flight["pg_config"]["1"]["ranks"] == [4, 5]


def test_json_of_the_worker_server_writes_numbers_as_text() -> None:
    status = {"1": {"last_enqueued_collective": "47", "last_started_collective": "-1", "last_completed_collective": "46"}}
    parsed = parse_dump(json.dumps(_dump(pg_status=status)).encode(), file="rank-4.json")
    assert parsed.facts["flight"]["pg_status"]["1"]["enqueued"] == 47


@pytest.mark.parametrize("raw", [b"", b"\n\n", b"\0\0\0", pickle.dumps({"version": "2.4", "entries": []}, 2)])
def test_an_empty_dump_is_suspicion_of_its_rank(raw: bytes) -> None:
    parsed = parse_dump(raw, file="fr_trace_rank_12")
    assert [(e.signature, e.rank) for e in parsed.events] == [("fr-dump-empty", 12)]


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_cut_dump_keeps_its_whole_entries(form: str) -> None:
    whole = _dump(entries=[_entry(n) for n in range(40)])
    raw = pickle.dumps(whole, 2) if form == "pickle" else json.dumps(whole).encode()
    parsed = parse_dump(raw[: len(raw) * 9 // 10], file="fr_trace_rank_2")
    assert parsed.problems[0].status == "partial"
    assert "cut" in parsed.problems[0].message
    assert 20 < len(parsed.facts["flight"]["entries"]) <= 40
    assert parsed.facts["flight"]["pg_config"]["0"]["ranks"] == [0, 1, 2, 3]


def test_a_dump_with_a_class_is_refused_and_named() -> None:
    parsed = parse_dump(pickle.dumps({"entries": [Path("x")]}, 2), file="fr_trace_rank_1")
    assert "Path" in parsed.problems[0].message
    assert not parsed.facts["flight"]["entries"]


def test_absurd_values_are_not_errors() -> None:
    row = json.dumps(_entry(0, time_created_ns=10**400, collective_seq_id="9" * 500, timeout_ms=[], state=None, frames=3))
    deep = row.replace("[[4, 8]]", "[" * 900 + "]" * 900)
    flight = parse_dump(f'{{"entries": [{deep}]}}'.encode(), file="rank-1.json").facts["flight"]
    assert (flight["entries"][0].seq, flight["entries"][0].created) == (0, None)


def test_junk_is_a_problem() -> None:
    for raw in (b"hello", bytes(range(256)), b"[1, 2", b'{"entries": 3}', b'{"entries": [1, null]}', b"\x80\x02]."):
        parsed = parse_dump(raw, file="x")
        assert parsed.problems or parsed.events


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("fr_trace_rank_3", 3), ("flight/rank-4.json", 4), ("nccl_trace_rank_17.gz", 17),
        ("comm_lib_trace_rank_0", 0), ("nccl_trace_9", 9),
        ("dumps/rank_6/dump.pkl", 6), ("trace.json", None), ("rank-1-worker0.txt", 1),
    ],
)  # fmt: skip
def test_rank_of_file(name: str, rank: int | None) -> None:
    assert rank_of_file(name) == rank


def test_a_real_gloo_dump() -> None:
    """Written by torch 2.13 with the Gloo backend (ring cut to its first entries)."""
    flight = parse_dump((_DATA / "gloo_fr_trace_rank_2").read_bytes(), file="gloo_fr_trace_rank_2").facts["flight"]
    assert flight["rank"] == 2
    assert flight["version"] == "2.10"
    assert flight["entries"][0].op == "gloo:all_gather"
    assert flight["entries"][0].frame.endswith("(train.py:92)")
