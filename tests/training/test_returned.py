"""Who gave a node back to work, and when: the fleet's ledger and the journal of remediation; whoever cannot be asked gives nothing back."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from workbench.fleet.ledger import Ledger
from workbench.training.returned import returned

NONE = Path("/nonexistent/journal.jsonl")


def states(path: Path, *rows: tuple[str, str, float]) -> Path:
    with Ledger.open(path) as ledger:
        ledger.put(
            "node_states",
            [{"cluster": "", "node": node, "state": state, "begin": begin, "source": "test"} for node, state, begin in rows],
        )
    return path


def journal(path: Path, *rows: tuple[str, str, float, str]) -> Path:
    """Write intent and outcome of actions (node, verb, end, status) as the remediation does."""
    lines = []
    for number, (node, verb, end, status) in enumerate(rows):
        for kind, when in (("intent", end - 5), ("outcome", end)):
            row = {
                "schema": "workbench.journal/1",
                "kind": kind,
                "time": when,
                "node": node,
                "verb": verb,
                "action": f"a{number}",
            }
            body = json.dumps(row | ({"status": status} if kind == "outcome" else {}), separators=(",", ":"))
            start = body[:-1]
            lines.append(f'{start},"sum":"{zlib.crc32(start.encode()):08x}"}}')
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_last_state_of_a_node_counts(tmp_path: Path) -> None:
    path = states(
        tmp_path / "f.sqlite", ("n1", "down", 100.0), ("n1", "usable", 200.0), ("n2", "usable", 100.0), ("n2", "held", 300.0)
    )
    assert returned(("n1", "n2", "n3"), path, NONE) == ({"n1": 200.0}, [])


def test_what_the_remediation_gave_back_is_back_until_it_takes_it_again(tmp_path: Path) -> None:
    path = journal(
        tmp_path / "journal.jsonl",
        ("n1", "cordon", 100.0, "done"),
        ("n1", "uncordon", 500.0, "done"),
        ("n2", "uncordon", 500.0, "failed"),
        ("n3", "uncordon", 500.0, "done"),
        ("n3", "cordon", 600.0, "done"),
    )
    assert returned(("n1", "n2", "n3"), None, path) == ({"n1": 500.0}, [])


def test_the_later_of_both_is_taken(tmp_path: Path) -> None:
    ledger = states(tmp_path / "f.sqlite", ("n1", "usable", 200.0))
    log = journal(tmp_path / "journal.jsonl", ("n1", "uncordon", 500.0, "done"))
    assert returned(("n1",), ledger, log)[0] == {"n1": 500.0}


@pytest.mark.parametrize("broken", ["ledger", "journal"])
def test_whoever_cannot_be_asked_gives_nothing_back_and_is_named(tmp_path: Path, broken: str) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()  # a folder is no file
    found, (trouble,) = returned(("n1",), bad if broken == "ledger" else None, bad if broken == "journal" else NONE)
    assert found == {}
    assert broken in trouble
    assert "they stay out" in trouble


def test_nobody_is_asked_when_nothing_is_left_out(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    assert returned((), bad, bad) == ({}, [])
