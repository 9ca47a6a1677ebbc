"""What supervisors of one job's nodes know of each other by a folder that they share: who lives, who says that the job hangs, all stacks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workbench import load
from workbench.training.together import Together

Maker = Callable[[str], Together]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Maker]:
    """Give supervisors of a node that beat quickly."""
    made: list[Together] = []

    def make(name: str) -> Together:
        made.append(Together(tmp_path / "shared", name, beat=0.05, silent=1.5))
        made[-1].begin(1)
        return made[-1]

    yield make
    for one in made:
        one.close(0)


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def states(one: Together) -> dict[str, str]:
    return {row["node"]: row["state"] for row in one.settled()["supervisors"]}


def test_who_lives_who_is_done_and_who_fell_silent(node: Maker) -> None:
    a, b, c, d = (node(f"node-{name}") for name in "abcd")
    b._stop.set()  # it stands still: no last word
    c.close(3)
    assert states(a) == {"node-a": "alive", "node-b": "silent", "node-c": "ended", "node-d": "alive"}
    assert states(d)["node-a"] == "alive"


def test_what_an_earlier_attempt_left_behind_is_no_sign(node: Maker, tmp_path: Path) -> None:
    a = node("node-a")
    old = tmp_path / "shared" / "node-z.json"
    old.write_text(json.dumps({"node": "node-z", "count": 4, "state": "running"}))
    import os

    os.utime(old, (1e9, 1e9))
    (tmp_path / "shared" / "torn.json").write_text('{"node": "no')
    assert states(a) == {"node-a": "alive"}


def test_a_hang_that_one_tells_reaches_all_and_their_stacks_come_back(node: Maker, tmp_path: Path) -> None:
    a, b = node("node-a"), node("node-b")
    a.declare("no progress for 8 s")
    until(lambda: b.hang)
    assert b.hang is not None
    assert (b.hang["node"], b.hang["reason"]) == ("node-a", "no progress for 8 s")
    assert a.hang is None
    for one, rank in ((a, 0), (b, 1)):
        mine = tmp_path / one.node / "stacks"
        mine.mkdir(parents=True)
        (mine / f"rank-{rank}.txt").write_text(f"of {rank}")
        one.give(mine)
    for one, rank in ((a, 1), (b, 0)):
        assert one.take(tmp_path / one.node / "stacks", time.monotonic() + 20) == 1
        assert (tmp_path / one.node / "stacks" / f"rank-{rank}.txt").read_text() == f"of {rank}"
    # the next attempt knows nothing of it
    b.begin(2)
    c = node("node-c")
    time.sleep(0.3)
    assert b.hang is None
    assert c.hang is None


def test_nobody_waits_for_the_stacks_of_a_node_that_fell_silent(node: Maker, tmp_path: Path) -> None:
    a, b = node("node-a"), node("node-b")
    b._stop.set()
    a.declare("it hangs")
    a.give(tmp_path)
    began = time.monotonic()
    assert a.take(tmp_path / "stacks", time.monotonic() + 60) == 0
    assert time.monotonic() - began < 20


def test_a_node_without_steps_follows_one_that_tells_some(node: Maker) -> None:
    a, b, c = node("node-a"), node("node-b"), node("node-c")
    a.step = 7
    until(lambda: b.heard == c.heard == 7)
    a.step = 8
    until(lambda: b.heard == 8)
    assert a.heard is None


def test_a_folder_that_cannot_be_written_costs_nothing_and_is_said(tmp_path: Path) -> None:
    (tmp_path / "shared").write_text("a file")
    one = Together(tmp_path / "shared", "node-a", beat=0.05, silent=0.5)
    one.begin(1)
    one.declare("it hangs")
    one.give(tmp_path)
    found = one.settled()
    assert found["supervisors"][0]["state"] == "failed"
    assert "shared" in found["trouble"]
    one.close(0)


def incident(folder: Path, rows: list[tuple[str, str]], trouble: str = "") -> Path:
    """A job whose ranks waited in vain for a peer, and what was known of the supervisors."""
    (folder / "logs").mkdir(parents=True)
    (folder / "launch").mkdir()
    lines = [f"2026-12-01 04:23:{at:02d},000 step {at}/90 loss 1.0" for at in range(10, 20)]
    (folder / "logs/launcher.log").write_text("\n".join(lines) + "\n")
    (folder / "launch/command.txt").write_text(
        "node-b$ torchrun --nnodes 2 --nproc-per-node 2 train.py\n"
    )  # of the one node that tells
    (folder / "logs/workbench.log").write_text(
        "2026-12-01T04:24:30Z workbench run: hang: no progress for 70 s after step 19; the limit is 60 s\n"
    )
    shown = [{"node": node, "state": state, "last": "2026-12-01T04:23:19.500Z", "step": None} for node, state in rows]
    (folder / "launch/supervisors.json").write_text(json.dumps({"supervisors": shown, "waited": 30.0, "trouble": trouble}))
    return folder


def test_a_node_whose_supervisor_fell_silent_while_others_live_is_lost(tmp_path: Path) -> None:
    verdict = load(incident(tmp_path, [("node-b", "alive"), ("node-a", "silent")])).triage()
    assert (verdict.cls, verdict.node, verdict.at_fault, verdict.retry) == (
        "platform/node-lost",
        "node-a",
        "node",
        "exclude-node",
    )
    assert "node-a" in verdict.summary


@pytest.mark.parametrize(
    ("rows", "trouble"),
    [
        ([("node-b", "alive"), ("node-a", "alive")], ""),
        ([("node-b", "failed"), ("node-a", "silent")], "the folder: stale file handle"),
        ([("node-b", "alive"), *((f"node-{name}", "silent") for name in "acd")], ""),
    ],
    ids=["all live", "it is deaf itself", "most are silent at once"],
)
def test_no_node_is_lost_by_silence_that_has_another_reason(tmp_path: Path, rows: list[tuple[str, str]], trouble: str) -> None:
    assert load(incident(tmp_path, rows, trouble)).triage().cls != "platform/node-lost"
