"""A launcher that waits for a node that does not answer is no hang of the program, whatever its own stack says; ranks that stand still are one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from workbench.incident import load
from workbench.training.retry import certain

DATA = Path(__file__).parents[1] / "data/training"
CASES = ("cable_pulled_launcher_waits", "node_frozen_launcher_waits")


@pytest.mark.parametrize("name", CASES)
def test_ranks_that_had_failed_before_nothing_moved_are_no_hang(name: str) -> None:
    """Real runs on two network namespaces: one loses its cable, the other one is frozen; the supervisor sees no step for 20 s."""
    verdict = load(DATA / name).triage()
    assert verdict.cls == "unknown", verdict
    assert verdict.retry == "same-nodes"


@pytest.mark.parametrize("name", CASES)
def test_the_same_silence_without_a_failure_before_it_is_a_hang(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    shutil.copytree(DATA / name, folder)
    log = folder / "logs/launcher.log"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if "step " in line or "connected to" in line))
    assert load(folder).triage().cls == "user/hang"


def test_agents_that_the_launcher_ends_after_a_bug_take_nothing_of_its_certainty() -> None:
    """A real run: a rank raises on one node, eight seconds later the launcher sends SIGTERM to the agent of the other one."""
    verdict = load(DATA / "bug_then_launcher_ends_the_others").triage()
    assert (verdict.cls, verdict.node, verdict.rank) == ("user/exception", "node-b", 2)
    assert certain(verdict), verdict.confidence
    assert all(one.cls != "platform/preemption" for one in verdict.hypotheses)
