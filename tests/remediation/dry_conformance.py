"""
Turn one way to change a cluster into the answer whether a dry run of it keeps its promise: the same suite, question by question, and no change.

For each question of `tests.remediation.conformance` there is one here of the same name (`test_conformance` sees to that). A dry run answers as
the executor behind it would, reads what that reads, and plans the same; the world afterwards is the one before. It is used beside the other::

    class TestSlurmDry(DryActs, DryTakesBack, DryRespectsOthers):
        VERBS = ("cordon", "drain")
        UNDONE = ("cordon", "drain")
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.remediation.conformance import HAPPENS, World, _Verbs, begun, down, refused, soon
from workbench.remediation.executors.contract import Deadline, Executor, ExecutorError
from workbench.remediation.executors.dry_run import DryRun
from workbench.remediation.model import VERBS, Action

__all__ = ["DryActs", "DryRespectsOthers", "DryTakesBack", "made", "questions_of", "untouched"]


@contextmanager
def untouched(world: World, action: Action) -> Iterator[None]:
    """Whatever is done within it, the world is the same afterwards, and nothing of the action has happened."""
    shape, count = world.shape(action), world.writes()
    yield
    assert world.writes() == count, "a dry run changed something"
    assert world.shape(action) == shape, "a dry run changed something"


def made(world: World, action: Action) -> dict[str, Any]:
    """Really make a change, and return what the journal has of what was there before."""
    before = dict(world.executor.begin(action, soon()).before)
    world.settle(action)
    return before


class _Dry(_Verbs):
    DRY: Callable[[Executor], Executor] = (
        DryRun  # what makes an executor a dry run: the proof of this suite puts something else here
    )

    def dry(self, world: World) -> Executor:
        """Return a dry run of the world's executor, as another process would make it."""
        return type(self).DRY(world.again())


class DryActs(_Dry):
    """Beginning and looking, without a change."""

    def test_it_says_what_it_can_do(self, world: World, verb: str) -> None:
        """The same verbs as the executor behind it, under a name that says what it is."""
        dry = self.dry(world)
        assert dry.name == f"dry-run of {world.executor.name}"
        assert dry.verbs == world.executor.verbs
        assert verb in dry.verbs

    def test_before_it_nothing_has_happened(self, world: World, verb: str) -> None:
        """A look is the executor's own."""
        action = world.action(verb)
        with untouched(world, action):
            assert self.dry(world).look(action, soon()).status == "absent"

    def test_after_it_everyone_sees_it(self, world: World, verb: str) -> None:
        """Everyone sees that nothing has happened; what it said would happen does when it is done, and then a dry run says so."""
        action = world.action(verb)
        with untouched(world, action):
            step = self.dry(world).begin(action, soon())
            assert (step.status, VERBS[verb] in step.detail) == ("done", True), step
            assert step.detail.startswith("dry run: it would ")
            assert world.executor.look(action, soon()).status == "absent"
            assert world.again().look(action, soon()).status == "absent"
        begun(world, action)
        count = world.writes()  # what it was about may be gone by now, and has no shape
        assert self.dry(world).begin(action, soon()).status in HAPPENS
        assert self.dry(world).look(action, soon()).status == "done"
        assert world.writes() == count, "a dry run changed something"

    def test_begun_twice_is_one_change(self, world: World, verb: str) -> None:
        """Here it is none, and the second time it is no other thing than the first."""
        action = world.action(verb)
        with untouched(world, action):
            for dry in (self.dry(world), self.dry(world)):
                for _ in range(2):
                    step = dry.begin(action, soon())
                    assert step.status == "done", step

    def test_it_asks_the_fence_right_before_it_changes_something(self, world: World, verb: str) -> None:
        """It changes nothing, so it may answer who holds no lock; where it does not, nothing was sent."""
        action = world.action(verb)
        with untouched(world, action):
            error = refused(lambda: self.dry(world).begin(action, down()))
            assert error is None or not error.sent

    def test_a_changed_world_is_left_alone(self, world: World, verb: str) -> None:
        """And it is told as the executor would tell it."""
        action = world.action(verb)
        world.differ(action)
        with untouched(world, action):
            step = self.dry(world).begin(action, soon())
            assert step.status == world.executor.begin(action, soon()).status == "changed", step
            assert step.detail

    def test_a_lost_answer_is_found_by_looking(self, world: World, verb: str) -> None:
        """Nothing has happened, whatever was heard of it."""
        action = world.action(verb)
        with untouched(world, action), world.answer_lost():
            refused(lambda: self.dry(world).begin(action, soon()))
        assert world.again().look(action, soon()).status == "absent"
        begun(world, action)

    def test_what_did_not_arrive_has_not_happened(self, world: World, verb: str) -> None:
        """A dry run that nobody answered says no word about what would be."""
        action = world.action(verb)
        with untouched(world, action):
            dry = self.dry(world)
            with world.unreachable(), pytest.raises(ExecutorError):
                dry.begin(action, Deadline(2))
            assert dry.look(action, soon()).status == "absent"
            assert dry.begin(action, soon()).status == "done"

    def test_what_cannot_be_seen_is_not_missing(self, world: World, verb: str) -> None:
        """As the executor says it."""
        action = world.action(verb)
        dry = self.dry(world)
        with world.unreachable():
            with pytest.raises(ExecutorError):
                dry.node(action.node, Deadline(2))
            try:
                seen = dry.fleet(Deadline(2))
            except ExecutorError:
                pass
            else:
                assert not seen.complete
                assert seen.problems

    def test_reading_changes_nothing(self, world: World, verb: str) -> None:
        """Plans are made of what is read, so a dry run reads the same; after a step it shows what would be."""
        action = world.action(verb)
        with untouched(world, action):
            dry = self.dry(world)
            assert dry.fleet(soon()).nodes == world.executor.fleet(soon()).nodes
            assert dry.node(action.node, soon()) == world.executor.node(action.node, soon())
            assert dry.node("no-such-node", soon()) is None
            dry.begin(action, soon())
            if verb in ("cordon", "drain", "taint"):
                would = dry.node(action.node, soon())
                assert would is not None
                assert (would.ours, would.op) == (True, action.id)
                assert dry.fleet(soon()).nodes[action.node].ours

    def test_a_verb_of_others_is_refused(self, world: World, verb: str) -> None:
        """In the same way."""
        action = replace(world.action(verb), verb=min(set(VERBS) - world.executor.verbs))
        error = refused(lambda: self.dry(world).begin(action, soon()))
        assert error is not None
        assert not error.sent


class DryTakesBack(_Dry):
    """Undoing, without a change."""

    def test_undo_brings_back_what_was(self, world: World, undone: str) -> None:
        """It says that it would, and what was done stands."""
        action = world.action(undone)
        before = made(world, action)
        with untouched(world, action):
            step = self.dry(world).undo(action, before, soon())
            assert (step.status, step.detail.startswith("dry run")) == ("done", True), step
            assert world.again().look(action, soon()).status == "done"

    def test_undo_asks_the_fence_as_well(self, world: World, undone: str) -> None:
        """Nothing is taken back, and nothing was sent."""
        action = world.action(undone)
        before = made(world, action)
        with untouched(world, action):
            error = refused(lambda: self.dry(world).undo(action, before, down()))
            assert error is None or not error.sent

    def test_undo_after_a_crash_needs_the_journal_only(self, world: World, undone: str) -> None:
        """Another process says the same, and the real undo still works after it."""
        action = world.action(undone)
        before = json.loads(json.dumps(made(world, action)))
        with untouched(world, action):
            assert self.dry(world).undo(action, before, soon()).status == "done"
        assert world.again().undo(action, before, soon()).status in ("done", "pending")

    def test_undo_of_what_never_happened_changes_nothing(self, world: World, undone: str) -> None:
        """And it says that there is nothing."""
        action = world.action(undone)
        with untouched(world, action):
            step = self.dry(world).undo(action, {}, soon())
            assert step.status in ("done", "absent")
            assert "would be undone" not in step.detail

    def test_what_somebody_changed_since_stays(self, world: World, undone: str) -> None:
        """A dry run does not promise to take back what the executor would leave."""
        action = world.action(undone)
        before = made(world, action)
        world.meddle(action)
        with untouched(world, action):
            step = self.dry(world).undo(action, before, soon())
            assert step.status in ("changed", "absent", "failed"), step
            assert "would be undone" not in step.detail
            assert world.again().undo(action, before, soon()).status == "changed"

    def test_an_undo_of_which_the_answer_is_lost_is_done_once(self, world: World, undone: str) -> None:
        """Here none is done, and it can be done afterwards."""
        action = world.action(undone)
        before = made(world, action)
        with untouched(world, action), world.answer_lost():
            refused(lambda: self.dry(world).undo(action, before, soon()))
        assert world.again().undo(action, before, soon()).status in ("done", "pending")


class DryRespectsOthers(_Dry):
    """What another did is not promised to be touched."""

    def test_what_another_restricted_is_seen_and_left_alone(self, world: World, verb: str) -> None:
        """As the executor tells it."""
        action = world.action(verb)
        world.foreign(action)
        with untouched(world, action):
            dry = self.dry(world)
            node = dry.node(action.node, soon())
            assert node is not None
            assert node.foreign
            step = dry.begin(action, soon())
            assert step.status == world.executor.begin(action, soon()).status == "changed", step
            assert step.detail


def questions_of(*suites: type[Any]) -> set[str]:
    """Return the names of what suites ask."""
    return {name for suite in suites for name in dir(suite) if name.startswith("test_")}
