"""
Turn one way to change a cluster into the answer whether it keeps what `executors.contract.Executor` promises: one suite for all executors.

A backend's test gives a `World` by a fixture named ``world`` and inherits what applies to it::

    class TestSlurm(Acts, TakesBack, RespectsOthers):
        VERBS = ("cordon", "drain")
        UNDONE = ("cordon", "drain")

Each test runs once a verb. `Acts` holds for all executors; `TakesBack` for verbs with an undo; `RespectsOthers` where somebody else can
restrict the same thing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

import pytest

from workbench.remediation.executors.contract import Deadline, Executor, ExecutorError, Fenced
from workbench.remediation.model import VERBS, Action, Step

__all__ = ["Acts", "RespectsOthers", "TakesBack", "World"]

HAPPENS = ("done", "pending", "blocked")  # what a change that was begun can be, until the world has settled
SECONDS = 30.0


class World(Protocol):
    """What the suite must be able to do to, and to know of, the world behind an executor."""

    executor: Executor

    def again(self) -> Executor:
        """Return an executor as another process would have it after a crash: with no memory."""

    def action(self, verb: str) -> Action:
        """Return an action that is possible now, on something that nobody has touched; each call is for something else."""

    def writes(self) -> int:
        """Return how many changes the world has seen so far, by whomever; a dry run is none."""

    def shape(self, action: Action) -> Any:
        """Return all that an undo of the action must bring back, comparable with ``==``."""

    def settle(self, action: Action) -> None:
        """Let the world end what was begun: pods end, steps end, a command returns."""

    def foreign(self, action: Action) -> None:
        """Let somebody else restrict what the action is about."""

    def differ(self, action: Action) -> None:
        """Make the world another than the action expects: a new machine of the same name, another boot."""

    def meddle(self, action: Action) -> None:
        """Let somebody change what the action made, so that it is not the action's any more."""

    def answer_lost(self) -> AbstractContextManager[Any]:
        """Within it, changes arrive and are made, and their answers do not come back."""

    def unreachable(self) -> AbstractContextManager[Any]:
        """Within it, nothing arrives and nothing is answered."""


def soon() -> Deadline:
    """Return the deadline of one call."""
    return Deadline(SECONDS)


def down() -> Fenced:
    """Return the deadline of a call whose controller is not the one that may act any more, and does not know it yet."""
    return Fenced(SECONDS, time.monotonic, lambda _: "another has the lock")


def refused(ask: Callable[[], object]) -> ExecutorError | None:
    """Return the error that a question ends with; None when it has an answer."""
    try:
        ask()
    except ExecutorError as error:
        return error
    return None


def begun(world: World, action: Action) -> Step:
    """Begin an action, let the world settle, and return how far it is then."""
    step = world.executor.begin(action, soon())
    assert step.status in HAPPENS, step
    world.settle(action)
    step = world.executor.look(action, soon())
    assert step.status == "done", step
    return step


class _Verbs:
    VERBS: tuple[str, ...] = ()
    UNDONE: tuple[str, ...] = ()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One test a verb."""
        for name, verbs in (("verb", self.VERBS), ("undone", self.UNDONE)):
            if name in metafunc.fixturenames:
                assert verbs, f"{type(self).__name__} says no {name.upper()}"
                metafunc.parametrize(name, verbs)


class Acts(_Verbs):
    """Beginning and looking."""

    def test_it_says_what_it_can_do(self, world: World, verb: str) -> None:
        """Name and verbs are told, and the verbs are words of the model."""
        assert world.executor.name
        assert verb in world.executor.verbs
        assert world.executor.verbs <= set(VERBS)

    def test_before_it_nothing_has_happened(self, world: World, verb: str) -> None:
        """A look at what was only intended says so, and changes nothing."""
        action, before = world.action(verb), world.writes()

        assert world.executor.look(action, soon()).status == "absent"
        assert world.again().look(action, soon()).status == "absent"
        assert world.writes() == before, "looking changed something"

    def test_after_it_everyone_sees_it(self, world: World, verb: str) -> None:
        """Also who was not there when it was begun."""
        action = world.action(verb)
        begun(world, action)

        assert world.again().look(action, soon()).status == "done"

    def test_begun_twice_is_one_change(self, world: World, verb: str) -> None:
        """By the same process and by one that knows nothing of the first time; before and after the world settled."""
        action = world.action(verb)
        first = world.executor.begin(action, soon())
        made = world.writes()
        for executor in (world.executor, world.again()):
            assert executor.begin(action, soon()).status in HAPPENS
        if first.status != "blocked":
            assert world.writes() == made, "the second begin changed something"
        world.settle(action)
        settled = world.writes()

        for executor in (world.executor, world.again()):
            assert executor.begin(action, soon()).status == "done"
        assert world.writes() == settled, "a begin after the end changed something"

    def test_it_asks_the_fence_right_before_it_changes_something(self, world: World, verb: str) -> None:
        """A controller that stood still since it was asked to, and lost its lock meanwhile, sends nothing."""
        action = world.action(verb)
        made = world.writes()

        error = refused(lambda: world.executor.begin(action, down()))

        assert error is not None
        assert "another has the lock" in str(error)
        assert not error.sent
        assert world.writes() == made
        assert world.again().look(action, soon()).status == "absent"
        begun(world, action)

    def test_a_changed_world_is_left_alone(self, world: World, verb: str) -> None:
        """What the action expects is checked in the moment of the change."""
        action = world.action(verb)
        world.differ(action)
        shape, made = world.shape(action), world.writes()

        step = world.executor.begin(action, soon())

        assert step.status == "changed", step
        assert step.detail
        assert world.shape(action) == shape
        assert world.writes() == made

    def test_a_lost_answer_is_found_by_looking(self, world: World, verb: str) -> None:
        """The change was made once, whatever was heard of it."""
        action = world.action(verb)
        with world.answer_lost():
            lost = refused(lambda: world.executor.begin(action, soon()))
        assert lost is None or lost.sent, "it may have arrived, so nobody may say that it was not sent"
        made = world.writes()
        step = world.again().look(action, soon())
        assert step.status in (*HAPPENS, "absent"), step
        if step.status == "absent":  # only a preparation of it came through: then it can be begun
            world.again().begin(action, soon())
        else:
            assert world.again().begin(action, soon()).status in HAPPENS
            if step.status != "blocked":
                assert world.writes() == made, "it was made a second time"
        world.settle(action)
        assert world.again().look(action, soon()).status == "done"

    def test_what_did_not_arrive_has_not_happened(self, world: World, verb: str) -> None:
        """Nobody says so while nobody can know; afterwards a look does, and it can be begun."""
        action, made = world.action(verb), world.writes()
        with world.unreachable():
            with pytest.raises(ExecutorError):
                world.executor.begin(action, Deadline(2))
            try:
                assert world.executor.look(action, Deadline(2)).status == "unknown"
            except ExecutorError:
                pass
        assert world.writes() == made
        assert world.executor.look(action, soon()).status == "absent"
        begun(world, action)

    def test_what_cannot_be_seen_is_not_missing(self, world: World, verb: str) -> None:
        """A fleet that does not answer is no empty fleet, and a node that cannot be asked for is not gone."""
        action = world.action(verb)
        with world.unreachable():
            with pytest.raises(ExecutorError):
                world.executor.node(action.node, Deadline(2))
            try:
                seen = world.executor.fleet(Deadline(2))
            except ExecutorError:
                pass
            else:
                assert not seen.complete
                assert seen.problems

    def test_reading_changes_nothing(self, world: World, verb: str) -> None:
        """The fleet has the node, the node is the same as in the fleet, and a name that nobody has is None."""
        action, made = world.action(verb), world.writes()
        fleet = world.executor.fleet(soon())
        node = world.executor.node(action.node, soon())

        assert fleet.complete, fleet.problems
        assert node is not None
        assert fleet.nodes[action.node].uid == node.uid
        assert fleet.nodes[action.node].owner == node.owner
        assert world.executor.node("no-such-node", soon()) is None
        assert world.writes() == made

    def test_a_verb_of_others_is_refused(self, world: World, verb: str) -> None:
        """What it cannot do it says before anything is sent."""
        other = min(set(VERBS) - world.executor.verbs)
        action, made = replace(world.action(verb), verb=other), world.writes()

        with pytest.raises(ExecutorError) as error:
            world.executor.begin(action, soon())
        assert not error.value.sent
        assert world.writes() == made


class TakesBack(_Verbs):
    """Undoing."""

    def test_undo_brings_back_what_was(self, world: World, undone: str) -> None:
        """Exactly, and by what the first step told of it; a second undo changes nothing."""
        action = world.action(undone)
        shape = world.shape(action)
        before = world.executor.begin(action, soon()).before
        world.settle(action)
        assert world.shape(action) != shape, "it changed nothing that could be undone"

        assert world.executor.undo(action, before, soon()).status in ("done", "pending")
        world.settle(action)
        assert world.shape(action) == shape
        made = world.writes()
        assert world.executor.undo(action, before, soon()).status in ("done", "absent")
        assert world.writes() == made
        assert world.executor.look(action, soon()).status == "absent"

    def test_undo_asks_the_fence_as_well(self, world: World, undone: str) -> None:
        """Who may not act any more takes nothing back either."""
        action = world.action(undone)
        before = begun(world, action).before
        shape, made = world.shape(action), world.writes()

        error = refused(lambda: world.executor.undo(action, before, down()))

        assert error is not None
        assert not error.sent
        assert (world.shape(action), world.writes()) == (shape, made)

    def test_undo_after_a_crash_needs_the_journal_only(self, world: World, undone: str) -> None:
        """Another process takes it back with what the journal has: the action, and `before` as JSON."""
        action = world.action(undone)
        shape = world.shape(action)
        before = world.executor.begin(action, soon()).before
        world.settle(action)

        assert world.again().undo(action, json.loads(json.dumps(dict(before))), soon()).status in ("done", "pending")
        world.settle(action)
        assert world.shape(action) == shape

    def test_undo_of_what_never_happened_changes_nothing(self, world: World, undone: str) -> None:
        """An intent without an outcome may be undone blindly."""
        action, made = world.action(undone), world.writes()

        assert world.executor.undo(action, {}, soon()).status in ("done", "absent")
        assert world.writes() == made

    def test_what_somebody_changed_since_stays(self, world: World, undone: str) -> None:
        """It is not the action's any more, and the step says so."""
        action = world.action(undone)
        before = world.executor.begin(action, soon()).before
        world.settle(action)
        world.meddle(action)
        shape, made = world.shape(action), world.writes()

        step = world.executor.undo(action, before, soon())

        assert step.status == "changed", step
        assert step.detail
        assert world.shape(action) == shape
        assert world.writes() == made

    def test_an_undo_of_which_the_answer_is_lost_is_done_once(self, world: World, undone: str) -> None:
        """The second undo finds it undone."""
        action = world.action(undone)
        shape = world.shape(action)
        before = world.executor.begin(action, soon()).before
        world.settle(action)
        with world.answer_lost():
            lost = refused(lambda: world.executor.undo(action, before, soon()))
        assert lost is None or lost.sent
        assert world.again().undo(action, before, soon()).status in ("done", "absent")
        assert world.shape(action) == shape


class RespectsOthers(_Verbs):
    """What another did is not touched."""

    def test_what_another_restricted_is_seen_and_left_alone(self, world: World, verb: str) -> None:
        """The state names somebody else as the owner, and nothing is changed."""
        action = world.action(verb)
        world.foreign(action)
        shape, made = world.shape(action), world.writes()
        node = world.executor.node(action.node, soon())
        assert node is not None
        assert node.foreign, node

        step = world.executor.begin(action, soon())

        assert step.status == "changed", step
        assert step.detail
        assert world.shape(action) == shape
        assert world.writes() == made
