"""A controller that stands still between what it decided and its request changes nothing once another may act, on a fake API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes")

from tests.remediation.fake_apiserver import FakeApiServer, FakeWorld
from workbench.remediation import engine
from workbench.remediation.executors.contract import Deadline
from workbench.remediation.executors.kubernetes.lease import LeaseLock
from workbench.remediation.journal import Journal
from workbench.remediation.model import Action, Plan
from workbench.sources.kubernetes.api import Api
from workbench.testing.faults import FaultServer


class Still(Journal):
    """A journal after whose next intent the whole machine is paused: what happens meanwhile is given, and no clock of it moves."""

    meanwhile: Callable[[], object] | None = None

    def intent(self, *args: Any, **more: Any) -> Any:
        entry = super().intent(*args, **more)
        if self.meanwhile is not None:
            self.meanwhile()
        return entry


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeWorld]:
    api = FakeApiServer()
    with FaultServer(api.answer) as server:
        yield FakeWorld(api, server, tmp_path)


@pytest.fixture
def lock(world: FakeWorld) -> LeaseLock:
    """The lease, held, by a clock that stands."""
    lock = LeaseLock(Api(str(world.kubeconfig)), identity="a", clock=lambda: 1000.0)
    assert lock.acquire(Deadline(20))
    return lock


def taken_over(world: FakeWorld) -> None:
    """Let another controller have the lease."""
    spec = world.api.objects["leases"]["gpu-workbench-controller"]["spec"]
    spec |= {"holderIdentity": "b", "leaseTransitions": spec["leaseTransitions"] + 1}


class Time:
    """Time that passes only while somebody waits."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def common(self) -> dict[str, Any]:
        return {"clock": lambda: self.now, "steady": lambda: self.now, "sleep": self.pass_by}

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


def apply(world: FakeWorld, action: Action, journal: Journal, **more: Any) -> engine.Outcome:
    time = Time()
    plan = Plan(time.now, time.now + 600, (action,), id="plan-1")
    return engine.apply(plan, world.executor, journal, approved=True, **time.common(), **more)[0]


@pytest.mark.parametrize("verb", ["cordon", "taint", "exclude", "evict", "replace", "restart-task"])
def test_who_lost_the_lease_while_it_stood_still_sends_nothing(verb: str, world: FakeWorld, lock: LeaseLock) -> None:
    action = world.action(verb)
    shape, made = world.shape(action), world.writes()
    journal = Still(None)
    journal.meanwhile = lambda: taken_over(world)

    outcome = apply(world, action, journal, lock=lock)

    assert (outcome.status, outcome.guard) == ("open", "lock")
    assert (world.shape(action), world.writes()) == (shape, made)
    assert not lock.held(), "it knows from now on, and asks nobody"
    settled = engine.resume(journal, world.executor, **Time().common())
    assert [(one.status, one.detail.partition(":")[0]) for one in settled] == [("refused", "it was never begun")]


@pytest.mark.parametrize("verb", ["cordon", "evict"])
def test_who_lost_the_lease_at_his_last_try_has_not_failed_and_climbs_no_rung(
    verb: str, world: FakeWorld, lock: LeaseLock
) -> None:
    action, journal = world.action(verb), Still(None)
    journal.meanwhile = lambda: taken_over(world)

    outcome = apply(world, action, journal, lock=lock, tries=1)

    assert (outcome.status, outcome.guard) == ("refused", "lock")
    assert journal.status_of(action.id) == "refused"


def test_who_had_the_lease_back_as_another_holder_is_not_who_was_asked(world: FakeWorld, lock: LeaseLock) -> None:
    """Two processes with one name, or one that died and came back: the number of the holder tells them apart."""
    spec = world.api.objects["leases"]["gpu-workbench-controller"]["spec"]
    spec["leaseTransitions"] += 2

    assert not lock.confirm(Deadline(20))


def test_a_lease_that_cannot_be_read_lets_nothing_through(world: FakeWorld, lock: LeaseLock) -> None:
    action, made = world.action("cordon"), world.writes()
    world.server.when = lambda request: "/leases/" in request.path
    world.server.fault = "503"

    outcome = apply(world, action, Journal(None), lock=lock, tries=2)

    assert outcome.status == "failed"
    assert "cannot be told" in outcome.detail
    assert world.writes() == made


def test_an_eviction_that_lost_the_lease_half_way_asks_no_further_pod_and_stays_open(world: FakeWorld, lock: LeaseLock) -> None:
    action = world.action("evict")
    evict, asked = world.executor.calls.evict, list[str]()

    def then_taken_over(id: str, *args: Any, **more: Any) -> bool:
        asked.append(id)
        gone = evict(id, *args, **more)
        taken_over(world)
        return gone

    world.executor.calls.evict = then_taken_over  # type: ignore[method-assign]
    journal = Journal(None)
    outcome = apply(world, action, journal, lock=lock)

    assert (outcome.status, outcome.guard) == ("open", "lock")
    assert len(world.api.objects["pods"]) == 1, "the first pod had been asked by then"
    assert [entry.action for entry in journal.open()] == [action.id]


def test_a_kill_switch_thrown_half_way_through_an_eviction_stops_it_there(world: FakeWorld, tmp_path: Path) -> None:
    action, stop = world.action("evict"), tmp_path / "stop"
    evict = world.executor.calls.evict

    def then_stopped(*args: Any, **more: Any) -> bool:
        gone = evict(*args, **more)
        stop.write_text("hands off")
        return gone

    world.executor.calls.evict = then_stopped  # type: ignore[method-assign]
    outcome = apply(world, action, Journal(None), kill=stop)

    assert (outcome.status, outcome.guard) == ("open", "kill-switch")
    assert len(world.api.objects["pods"]) == 1


def test_a_patch_that_was_decided_before_another_controller_s_change_is_refused_by_the_server(
    world: FakeWorld, lock: LeaseLock
) -> None:
    """Standing still after the last question, with the request in hand: it names the version that it was decided on, which is gone."""
    action = world.action("cordon")
    theirs = Action("theirs", "cordon", "cordon", action.node, expects=dict(action.expects), args={"reason": "theirs"})
    send, late = world.executor.calls.api.send, [1]

    def stands_still(method: str, *args: Any, **more: Any) -> Any:
        if method == "PATCH" and late.pop() if late else False:
            assert world.again().begin(theirs, Deadline(20)).status == "done"
        return send(method, *args, **more)

    world.executor.calls.api.send = stands_still  # type: ignore[method-assign]
    outcome = apply(world, action, Journal(None), lock=lock)

    assert (outcome.status, outcome.guard) == ("refused", "world")
    notes = world.api.objects["nodes"][action.node]["metadata"]["annotations"]
    assert (notes["gpu-workbench/op"], notes["gpu-workbench/reason"]) == ("theirs", "theirs")
