"""Several executors are one: the scheduler's eyes, and for each verb the first that can do it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.remediation.conformance import Acts, RespectsOthers, TakesBack, soon
from tests.remediation.dry_conformance import DryActs, DryRespectsOthers, DryTakesBack
from tests.remediation.memory import Memory, MemoryWorld
from workbench.remediation.executors.combined import Combined
from workbench.remediation.executors.command import Command, Commands
from workbench.remediation.executors.contract import Deadline, ExecutorError
from workbench.remediation.executors.dry_run import DryRun
from workbench.remediation.executors.ticket import Tickets
from workbench.remediation.model import Action, Step


class CombinedWorld(MemoryWorld):
    """A scheduler in memory behind a combination."""

    folder = Path("/dev/null/nowhere")  # nothing of the suite writes a report, and nothing can be written there

    def again(self) -> Any:
        return Combined(Memory(self), Tickets(self.folder, lambda action: ""))


class TestCombined(Acts, TakesBack, RespectsOthers):
    """What the scheduler's executor promises, a combination promises too."""

    VERBS = ("cordon", "evict")
    UNDONE = ("cordon",)

    @pytest.fixture
    def world(self) -> CombinedWorld:
        return CombinedWorld()


class TestCombinedDry(DryActs, DryTakesBack, DryRespectsOthers):
    """The same questions to a dry run of it."""

    VERBS = TestCombined.VERBS
    UNDONE = TestCombined.UNDONE

    @pytest.fixture
    def world(self) -> CombinedWorld:
        return CombinedWorld()


def commands(tmp_path: Path, *verbs: str) -> Commands:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho run >> {tmp_path}/log\n")
    program.chmod(0o755)
    return Commands({verb: Command((str(program),)) for verb in verbs}, tmp_path / "commands")


def test_the_scheduler_comes_first_unless_the_policy_prefers_commands(tmp_path: Path) -> None:
    world = MemoryWorld()
    site = commands(tmp_path, "cordon", "reset-gpu")
    first = Combined(world.executor, site)
    assert first.of(world.action("cordon")) is world.executor
    assert first.of(world.action("reset-gpu")) is site
    preferred = Combined(world.executor, prefer=(site,))
    assert preferred.of(world.action("cordon")) is site
    assert preferred.of(world.action("evict")) is world.executor


def test_its_name_and_verbs_are_those_of_who_can_do_something(tmp_path: Path) -> None:
    world = MemoryWorld()
    made = Combined(world.executor, commands(tmp_path), Tickets(tmp_path, lambda action: ""))
    assert made.name == "memory+ticket"
    assert made.verbs == {"cordon", "evict", "ticket", "page"}


def test_what_nobody_can_do_is_refused_before_anything(tmp_path: Path) -> None:
    world = MemoryWorld()
    made = Combined(world.executor, commands(tmp_path))
    action = world.action("reboot")
    for call in (made.begin, made.look):
        with pytest.raises(ExecutorError) as error:
            call(action, soon())
        assert not error.value.sent
    assert world.writes() == 0


class Rehearsing(Memory):
    """An executor whose server can check."""

    def rehearse(self, action: Action, deadline: Deadline) -> Step:
        return Step("blocked", "the server says no")


def test_a_dry_run_asks_the_server_of_the_one_that_would_do_it(tmp_path: Path) -> None:
    world = MemoryWorld()
    made = DryRun(Combined(Rehearsing(world), commands(tmp_path, "reset-gpu")))
    assert made.begin(world.action("cordon"), soon()) == Step("blocked", "the server says no")
    step = made.begin(world.action("reset-gpu"), soon())
    assert (step.status, "only what it expects was compared" in step.detail) == ("done", True)
    assert world.writes() == 0
    assert not (tmp_path / "log").exists()
    assert not list((tmp_path / "commands").iterdir())
