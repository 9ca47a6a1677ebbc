"""A launcher that waits for a node that does not answer is no hang of the program, whatever its own stack says; ranks that stand still are one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from workbench.incident import load
from workbench.training.retry import certain

DATA = Path(__file__).parents[1] / "data/training"
CASES = ("cable_pulled_launcher_waits", "node_frozen_launcher_waits")


def test_ranks_that_had_failed_before_nothing_moved_are_no_hang() -> None:
    """A real run on two network namespaces: one loses its cable, both tell so; the supervisor sees no step for 20 s."""
    verdict = load(DATA / "cable_pulled_launcher_waits").triage()
    assert verdict.cls == "unknown", verdict
    assert verdict.retry == "same-nodes"


def test_a_node_of_which_nothing_was_heard_since_is_lost() -> None:
    """A real run on two network namespaces: all processes of one stand still; neither its ranks nor its agent say a word any more."""
    verdict = load(DATA / "node_frozen_launcher_waits").triage()
    assert (verdict.cls, verdict.node, verdict.at_fault, verdict.retry) == (
        "platform/node-lost", "node-b", "node", "exclude-node",
    ), verdict  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_same_silence_without_a_failure_before_it_is_a_hang(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    shutil.copytree(DATA / name, folder)
    log = folder / "logs/launcher.log"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if "step " in line or "connected to" in line))
    assert load(folder).triage().cls == "user/hang"


@pytest.mark.parametrize("run", ["bug_then_launcher_ends_the_others", "bug_then_launcher_ends_the_others_at_once"])
def test_agents_that_the_launcher_ends_after_a_bug_take_nothing_of_its_certainty(run: str) -> None:
    """Real runs: a rank raises on one node, eight seconds (or less than one) later the launcher sends SIGTERM to the agent of the other one."""
    verdict = load(DATA / run).triage()
    assert (verdict.cls, verdict.node, verdict.rank) == ("user/exception", "node-b", 2)
    assert certain(verdict), verdict.confidence
    assert all(one.cls != "platform/preemption" for one in verdict.hypotheses)
