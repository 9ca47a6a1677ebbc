"""A node that falls silent while all others tell that a peer is gone was lost; a node that says anything, or had nobody beside it to tell, was not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from workbench.incident import load
from workbench.model import Verdict

DATA = Path(__file__).parents[1] / "data/training"
LOST, FROZEN = DATA / "node_killed_with_its_agent", DATA / "node_frozen_launcher_waits"
LOG = "logs/launcher.log"


def changed(tmp_path: Path, folder: Path, *more: str, before: str = "", without: str = "") -> Verdict:
    """The verdict on a folder whose log has lines more (in front of the first that has a text) or fewer."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    lines = [line for line in (copy / LOG).read_text().splitlines() if not without or without not in line]
    at = next((at for at, line in enumerate(lines) if before and before in line), len(lines))
    (copy / LOG).write_text("\n".join([*lines[:at], *more, *lines[at:]]) + "\n")
    return load(copy).triage()


def test_a_node_that_was_killed_with_its_agent_is_lost() -> None:
    """A real run on two network namespaces; the launcher then ends the other agent, which is no preemption."""
    verdict = load(LOST).triage()
    assert (verdict.cls, verdict.node, verdict.rank, verdict.at_fault, verdict.retry) == (
        "platform/node-lost", "node-b", None, "node", "exclude-node",
    )  # fmt: skip
    assert verdict.confidence >= 0.7
    assert "node-b" in verdict.summary
    assert "silent" in verdict.summary


@pytest.mark.parametrize(
    "line",
    [
        "node-b: W1201 00:08:33.005000 25999 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal, shutting down workers",
        "node-b: E1201 00:08:33.768000 25999 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 27) of binary: /usr/bin/python3",
        "node-b: [rank2]: RuntimeError: [./gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.77.0.1]:26809",
        "node-b: some library says good-bye",
    ],
    ids=["its agent was told to end", "its agent reports a death", "its rank lost a peer, too", "anything"],
)
def test_a_node_that_still_spoke_is_not_lost(tmp_path: Path, line: str) -> None:
    verdict = changed(tmp_path, LOST, line)
    assert verdict.cls != "platform/node-lost", verdict
    assert verdict.at_fault != "node"


def test_a_node_whose_output_nobody_collected_is_not_lost(tmp_path: Path) -> None:
    """Its peers complain, and that is all that is known."""
    verdict = changed(tmp_path, LOST, without="node-b: ")
    assert (verdict.at_fault, verdict.node in (None, "node-a")) != ("node", False), verdict
    assert verdict.cls != "platform/node-lost"


@pytest.mark.parametrize(
    ("hour", "cls"), [("00", "platform/node-lost"), ("22", "")], ids=["up to the failure", "of two hours before"]
)
def test_a_log_of_its_own_must_reach_up_to_the_failure(tmp_path: Path, hour: str, cls: str) -> None:
    """One that was copied earlier is silent for another reason."""
    lines = (LOST / LOG).read_text().splitlines()
    (tmp_path / "logs").mkdir()
    shutil.copytree(LOST / "launch", tmp_path / "launch")  # it tells the year of glog's stamps
    for node in ("node-a", "node-b"):
        mine = [line.removeprefix(f"{node}: ") for line in lines if line.startswith(f"{node}: ")]
        text = "\n".join(mine) + "\n"
        (tmp_path / f"logs/{node}.log").write_text(
            text.replace("W1201 00:", "W1130 22:") if node == "node-b" and hour == "22" else text
        )
    verdict = load(tmp_path).triage()
    assert (verdict.cls == "platform/node-lost") == bool(cls), verdict
    if cls:
        assert verdict.node == "node-b"


def test_a_bug_on_another_node_is_the_cause_however_silent_a_node_is(tmp_path: Path) -> None:
    bug = (
        "node-a: [rank0]: Traceback (most recent call last):",
        'node-a: [rank0]:   File "/srv/job/train.py", line 12, in <module>',
        "node-a: [rank0]:     main()",
        "node-a: [rank0]: KeyError: 'labels'",
    )
    assert changed(tmp_path, LOST, *bug, before="Traceback").cls == "user/exception"


def test_a_node_that_answers_when_it_is_told_to_end_is_not_lost(tmp_path: Path) -> None:
    """Of a frozen node nothing comes then, either."""
    copy = tmp_path / "frozen"
    shutil.copytree(FROZEN, copy)
    (copy / "launch").mkdir()
    (copy / "launch/answers.json").write_text(json.dumps({"asked_to_end": True, "answered": [], "answered_ranks": []}))
    assert (load(copy).triage().cls, load(copy).triage().node) == ("platform/node-lost", "node-b")
    (copy / "launch/answers.json").write_text(json.dumps({"asked_to_end": True, "answered": ["node-b"], "answered_ranks": []}))
    assert load(copy).triage().cls != "platform/node-lost"


def test_peers_that_waited_in_vain_need_to_have_waited(tmp_path: Path) -> None:
    """Without the end of the run nobody knows how long the node had to say something."""
    copy = tmp_path / "frozen"
    shutil.copytree(FROZEN, copy)
    (copy / "logs/workbench.log").unlink()
    assert load(copy).triage().cls == "unknown"
