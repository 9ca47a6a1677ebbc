"""The fleet in memory keeps what every executor promises, and is a fleet: time passes, machines boot, work leaves and comes again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.remediation.conformance import Acts, RespectsOthers, TakesBack
from tests.remediation.dry_conformance import DryActs, DryRespectsOthers, DryTakesBack
from workbench import testing
from workbench.remediation.executors.contract import Deadline, ExecutorError, Lock
from workbench.remediation.model import OWNER, VERBS, Action
from workbench.testing.fleet import Fleet
from workbench.testing.fleet_executor import FAULTS, FleetExecutor, FleetLock


class FleetWorld:
    """A fleet and the suite's hands."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.executor = self.again()
        self._count = itertools.count()

    def again(self) -> FleetExecutor:
        return FleetExecutor(self.fleet, verbs=frozenset(VERBS) - {"page"})

    def action(self, verb: str) -> Action:
        name = f"n{next(self._count)}"
        machine = self.fleet.add(name)
        if verb not in ("reset-gpu", "validate"):
            self.fleet.run(name, "ns/w", grace=5.0, controlled=False)
        undo = "uncordon" if verb in ("cordon", "drain", "taint", "label") else ""
        expects = {"uid": machine.uid, "boot": machine.boot, "owner": ""}
        target = "ns/w" if verb == "restart-task" else name
        return Action(f"a-{name}", verb, "cordon", name, target, expects=expects, args={"reason": "r"}, undo=undo)

    def writes(self) -> int:
        return len(self.fleet.effects)

    def shape(self, action: Action) -> Any:
        machine = self.fleet.nodes[action.node]
        names = ("uid", "boot", "schedulable", "owner", "op", "reason", "restricted", "expires", "ready")
        return {name: getattr(machine, name) for name in names} | {"marks": dict(machine.marks)}

    def settle(self, action: Action) -> None:
        self.fleet.sleep(1000.0)

    def foreign(self, action: Action) -> None:
        self.fleet.hand(action.node, "cordon", "alice")

    def differ(self, action: Action) -> None:
        self.fleet.nodes[action.node].uid = "another"
        self.fleet.changed(self.fleet.nodes[action.node])

    def meddle(self, action: Action) -> None:
        machine = self.fleet.nodes[action.node]
        machine.marks = dict.fromkeys(machine.marks, "theirs")
        self.fleet.hand(action.node, "take", "alice")

    @contextmanager
    def _fault(self, kind: str) -> Iterator[None]:
        self.fleet.fault = lambda call: kind
        try:
            yield
        finally:
            self.fleet.fault = None

    def answer_lost(self) -> Any:
        return self._fault("lost")

    def unreachable(self) -> Any:
        return self._fault("refused")


@pytest.fixture
def world() -> FleetWorld:
    return FleetWorld()


class TestFleet(Acts, TakesBack, RespectsOthers):
    """The suite of all executors."""

    VERBS = ("cordon", "drain", "taint", "label", "evict", "restart-task", "reset-gpu", "reboot", "replace", "validate")
    UNDONE = ("cordon", "drain", "taint", "label")


class TestFleetDry(DryActs, DryTakesBack, DryRespectsOthers):
    """The same questions to a dry run of it."""

    VERBS = TestFleet.VERBS
    UNDONE = TestFleet.UNDONE


def soon(fleet: Fleet) -> Deadline:
    return Deadline(30.0, fleet.steady)


@pytest.mark.parametrize("kind", [one for one in FAULTS if not one.startswith("crash")])
def test_a_fault_says_truly_whether_something_may_have_been_sent(kind: str, world: FleetWorld) -> None:
    action = world.action("cordon")
    with world._fault(kind), pytest.raises(ExecutorError) as raised:
        world.executor.begin(action, soon(world.fleet))
    world.fleet.sleep(60)

    happened = bool(world.writes())
    assert raised.value.sent or not happened
    assert happened == (kind in ("late", "lost"))


def test_time_passes_in_order_and_only_forward() -> None:
    fleet, seen = Fleet(), list[float]()
    for seconds in (30.0, 10.0, 20.0):
        fleet.later(seconds, lambda: seen.append(fleet.now))
    fleet.jump(-5000.0)
    fleet.sleep(25.0)

    assert seen == [10.0, 20.0]
    assert fleet.steady() == 25.0
    assert fleet.clock() == fleet.start + 25.0 - 5000.0


def test_work_that_left_runs_elsewhere_as_something_new_and_its_budget_counts_it_meanwhile(world: FleetWorld) -> None:
    fleet = world.fleet
    fleet.budgets["pdb"] = 1
    one, two = fleet.add("one"), fleet.add("two")
    work = fleet.run("one", "ns/p", budgets=("pdb",), job="j", grace=5.0)
    one.schedulable = False
    step = world.executor.begin(Action("e", "evict", "evacuate", "one"), soon(fleet))

    assert (step.status, fleet.budgets["pdb"]) == ("pending", 0)
    fleet.sleep(60.0)
    assert (one.work, fleet.budgets["pdb"]) == ({}, 1)
    (again,) = two.work.values()
    assert (again.job, again.uid != work.uid) == ("j", True)


def test_a_lock_is_one_controller_s_until_it_lets_it_expire() -> None:
    fleet = Fleet()
    first, second = FleetLock(fleet, "first", 60.0), FleetLock(fleet, "second", 60.0)
    held: Lock = first
    assert held.acquire(soon(fleet))
    assert not second.acquire(soon(fleet))
    for _ in range(10):
        fleet.sleep(40.0)
        assert first.held(), "asking renews it"
    fleet.sleep(61.0)

    assert not first.held()
    assert second.acquire(soon(fleet))
    assert int(second.token) > int(first.token)
    assert not first.held()
    second.release()
    assert first.acquire(soon(fleet))


def test_the_fleet_comes_with_the_package() -> None:
    fleet = testing.Fleet()
    fleet.add("n0")
    assert testing.FleetExecutor(fleet).node("n0", soon(fleet)) is not None
    assert OWNER not in {one.owner for one in fleet.nodes.values()}
