"""The Kubernetes executor keeps its promises on a small fake of the API server; tests/live holds it to the real one by the same suite."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes")

from tests.remediation.conformance import Acts, RespectsOthers, TakesBack, refused
from tests.remediation.dry_conformance import DryActs, DryRespectsOthers, DryTakesBack
from tests.remediation.fake_apiserver import FakeApiServer, FakeWorld
from workbench.remediation.executors.contract import Deadline, ExecutorError
from workbench.remediation.executors.dry_run import DryRun
from workbench.remediation.executors.kubernetes.lease import LeaseLock
from workbench.remediation.model import Action
from workbench.sources.kubernetes.api import Api
from workbench.testing.faults import FaultServer

ALL = ("cordon", "drain", "uncordon", "taint", "label", "exclude", "evict", "restart-task", "replace")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FakeWorld]:
    """An API server with what a test puts there."""
    api = FakeApiServer()
    with FaultServer(api.answer) as server:
        yield FakeWorld(api, server, tmp_path)


class TestNodes(Acts, TakesBack, RespectsOthers):
    """What changes a node and can be taken back."""

    VERBS = UNDONE = ("cordon", "drain", "uncordon", "taint", "label", "exclude")


class TestFinal(Acts, RespectsOthers):
    """What cannot be taken back."""

    VERBS = ("evict", "restart-task", "replace")


class TestNodesDry(DryActs, DryTakesBack, DryRespectsOthers):
    """The same questions to a dry run of it."""

    VERBS = UNDONE = TestNodes.VERBS


class TestFinalDry(DryActs, DryRespectsOthers):
    """The same questions to a dry run of it."""

    VERBS = TestFinal.VERBS


def soon() -> Deadline:
    return Deadline(20)


def budget(world: FakeWorld, name: str, allowed: int, **labels: str) -> None:
    """Make a disruption budget."""
    spec, status = {"selector": {"matchLabels": labels}}, {"disruptionsAllowed": allowed, "observedGeneration": 1}
    world.api.put("budgets", {"metadata": {"name": name, "namespace": "train", "generation": 1}, "spec": spec, "status": status})


def test_a_dry_run_changes_nothing_and_every_verb_is_checked_by_the_server(world: FakeWorld) -> None:
    actions = [world.action(verb) for verb in ALL]
    made, shapes = world.writes(), [world.shape(one) for one in actions]
    dry = DryRun(world.executor)

    for action in actions:
        step = dry.begin(action, soon())
        assert (step.status, "dry run" in step.detail) == ("done", True), (action.verb, step)
    assert world.writes() == made
    assert [world.shape(one) for one in actions] == shapes
    sent = [one for one in world.server.requests if one.method != "GET" and "dryRun" in one.path]
    assert len(sent) >= len(ALL)


def test_a_dry_run_of_an_executor_without_a_server_that_checks_compares_what_is_expected(world: FakeWorld) -> None:
    """It says that nobody else checked."""

    class Plain:
        name, verbs = "plain", frozenset({"cordon"})
        fleet, node, look = world.executor.fleet, world.executor.node, world.executor.look

        def begin(self, action: Action, deadline: Deadline) -> Any:
            raise AssertionError("a dry run begins nothing")

        undo = begin

    action = world.action("cordon")
    dry = DryRun(Plain())  # type: ignore[arg-type]
    assert "only what it expects was compared" in dry.begin(action, soon()).detail
    world.foreign(action)
    assert dry.begin(action, soon()).status == "changed"


def test_a_held_pod_is_asked_again_and_the_others_go(world: FakeWorld) -> None:
    """Blocked names the budget; each further begin asks those that are left, once."""
    evict = world.action("evict")
    held = f"{evict.node}-0"
    world.api.objects["pods"][held]["metadata"]["labels"] = {"gang": "a"}
    budget(world, "gang-a", 0, gang="a")

    step = world.executor.begin(evict, soon())
    assert step.status == "blocked"
    assert "gang-a needs 3 and has 3" in step.detail
    assert set(world.api.objects["pods"]) == {held}
    look = world.again().look(evict, soon())
    assert (look.status, look.detail) == ("blocked", f"train/{held}: held by train/gang-a")

    budget(world, "gang-a", 1, gang="a")
    assert world.again().look(evict, soon()).status == "blocked", "nobody asked it again yet"
    assert world.again().begin(evict, soon()).status in ("pending", "done")
    assert world.again().look(evict, soon()).status == "done"


def test_a_pod_past_its_grace_is_told_and_not_forced(world: FakeWorld) -> None:
    """Without its kubelet's word a pod stays; the step says for how long, and nothing is deleted."""
    world.api.leaves = False
    evict = world.action("evict")
    assert world.executor.begin(evict, soon()).status == "pending"
    made = world.writes()
    step = world.again().begin(evict, soon())
    assert step.status == "pending"
    assert "past its grace: its kubelet does not say that it ended" in step.detail
    assert "nothing is deleted by force" in step.detail
    assert world.writes() == made


def test_a_task_without_a_controller_is_not_restarted(world: FakeWorld) -> None:
    """Nothing would start it again."""
    action = world.action("restart-task")
    world.api.objects["pods"][f"{action.node}-0"]["metadata"]["ownerReferences"] = []
    step = world.executor.begin(action, soon())
    assert (step.status, "nothing would start" in step.detail) == ("changed", True)
    with pytest.raises(ExecutorError, match=r"args\.uid") as error:
        world.executor.begin(replace(action, args={}), soon())
    assert not error.value.sent


def test_a_task_is_known_by_the_uids_of_what_may_be_lost(world: FakeWorld) -> None:
    """As plans have them; a successor of the same name is not the task, and names alone are not enough."""
    action = world.action("restart-task")
    pods, name = world.api.objects["pods"], f"{action.node}-0"
    planned = replace(action, args={}, expects={**action.expects, "work": [pods[name]["metadata"]["uid"]]})
    assert world.executor.look(planned, soon()).status == "absent"
    assert world.executor.begin(planned, soon()).status == "pending"
    world.pod(action.node, name)
    assert world.again().begin(planned, soon()).status == "done"
    assert "deletionTimestamp" not in pods[name]["metadata"]
    with pytest.raises(ExecutorError, match="another pod of the same name"):
        world.executor.begin(replace(planned, expects={"work": [action.target]}), soon())


def test_an_uncordon_lifts_the_restriction_that_it_names(world: FakeWorld) -> None:
    """One that came since stays."""
    lift = world.action("uncordon")
    other = replace(lift, expects={"uid": lift.expects["uid"]}, args={"op": "another"})
    assert world.executor.begin(other, soon()).status == "changed"
    assert world.executor.begin(replace(other, args={"op": lift.expects["op"]}), soon()).status == "done"


def test_an_eviction_takes_uids_as_well_as_names(world: FakeWorld) -> None:
    """As plans have them."""
    evict = world.action("evict")
    uids = [one["metadata"]["uid"] for one in world.api.objects["pods"].values()]
    assert world.executor.begin(replace(evict, expects={**evict.expects, "work": uids}), soon()).status in ("pending", "done")
    assert not world.api.objects["pods"]


def test_what_cannot_be_checked_does_not_fit(world: FakeWorld) -> None:
    """An expectation that no field of the state answers is not passed over."""
    action = world.action("cordon")
    step = world.executor.begin(replace(action, expects={**action.expects, "moon": "full"}), soon())
    assert step.status == "changed"
    assert "'moon'" in step.detail


def test_work_that_came_since_the_plan_stops_an_eviction_and_a_cordon_that_counts_on_it(world: FakeWorld) -> None:
    """Nobody agreed to lose it."""
    evict = world.action("evict")
    world.pod(evict.node, "newcomer")
    step = world.executor.begin(evict, soon())
    assert step.status == "changed"
    assert "train/newcomer runs there by now" in step.detail
    assert len(world.api.objects["pods"]) == 3


def test_a_label_or_taint_that_is_there_already_is_not_taken_over(world: FakeWorld) -> None:
    """It is somebody's; ours would be lost in an undo, or theirs."""
    for verb, patch in (
        ("label", {"metadata": {"labels": {"gpu-workbench/suspect": "theirs"}}}),
        ("taint", {"spec": {"taints": [{"key": "gpu-workbench/unfit", "value": "theirs", "effect": "NoSchedule"}]}}),
    ):
        action = world.action(verb)
        world.change(action.node, patch)
        step = world.executor.begin(action, soon())
        assert (step.status, "not by us" in step.detail) == ("changed", True)


def test_a_malformed_taint_fails_before_anything_is_sent(world: FakeWorld) -> None:
    action = world.action("taint")
    step = world.executor.begin(replace(action, args={"taint": "a=b:Sometimes"}), soon())
    assert step.status == "failed"
    assert "no taint" in step.detail
    assert world.shape(action)[4] == []


def test_uncordon_keeps_what_is_not_a_restriction_and_another_restriction_keeps_its_owner(world: FakeWorld) -> None:
    """An exclusion outlives an uncordon; a taint outlives the undo of the cordon beside it."""
    taint, name = world.action("taint"), ""
    name = taint.node
    world.executor.begin(taint, soon())
    cordon = Action("cordon-2", "cordon", "cordon", name, expects={"owner": "gpu-reliability-workbench"})
    exclude = Action("exclude-2", "exclude", "exclude-node", name, args={"job": "j"})
    for one in (cordon, exclude):
        assert world.executor.begin(one, soon()).status == "done"
    assert world.executor.undo(cordon, {}, soon()).status == "done"
    node = world.executor.node(name, soon())
    assert node is not None
    assert (node.ours, node.op, node.schedulable) == (True, taint.id, False)

    lift = Action("lift-2", "uncordon", "cordon", name)
    assert world.executor.begin(lift, soon()).status == "done"
    node = world.executor.node(name, soon())
    assert node is not None
    assert (node.owner, node.schedulable) == ("", True)
    assert world.executor.look(exclude, soon()).status == "done"


def test_a_drain_after_a_cordon_keeps_the_cordons_reason_and_expiry(world: FakeWorld) -> None:
    """As plans do it; undone one after the other nothing is left."""
    cordon = world.action("cordon")
    cordon = replace(cordon, args={"reason": "xid-79", "expires": 4e9})
    shape = world.shape(cordon)
    world.executor.begin(cordon, soon())
    world.pod(cordon.node, "worker")
    drain = Action("drain-2", "drain", "evacuate", cordon.node, why="leave", expects={"owner": "gpu-reliability-workbench"})
    step = world.executor.begin(drain, soon())
    assert (step.status, "train/worker" in step.detail) == ("pending", True)
    node = world.executor.node(cordon.node, soon())
    assert node is not None
    assert (node.op, node.reason, node.expires) == (cordon.id, "xid-79", 4e9)
    del world.api.objects["pods"]["worker"]
    assert world.again().look(drain, soon()).status == "done"
    for one in (drain, cordon):
        assert world.executor.undo(one, {}, soon()).status == "done"
    assert world.shape(cordon) == shape


def test_an_event_that_cannot_be_written_undoes_nothing(world: FakeWorld) -> None:
    """The step tells of it."""
    action = world.action("cordon")
    world.server.when = lambda request: "/events" in request.path and request.method == "POST"
    world.server.fault = "403"
    step = world.executor.begin(action, soon())
    assert step.status == "done"
    assert "no event tells of it" in step.detail


@pytest.mark.parametrize("lost", ["/api/v1/pods", "/apis/policy"])
def test_a_fleet_of_which_a_part_cannot_be_seen_is_incomplete(world: FakeWorld, lost: str) -> None:
    """It has the nodes, and says what lacks; the node alone is refused."""
    action = world.action("evict")
    world.server.when = lambda request: request.path.startswith(lost)
    world.server.fault = "403"
    fleet = world.executor.fleet(soon())
    assert not fleet.complete
    assert len(fleet.problems) == 1
    assert action.node in fleet.nodes
    error = refused(lambda: world.executor.node(action.node, soon()))
    assert error is not None
    assert "workbench config rbac --remediation" in error.hint


def test_an_object_of_an_odd_shape_makes_the_fleet_incomplete(world: FakeWorld) -> None:
    """It is named, and the others are seen."""
    action = world.action("evict")
    world.node("odd")["status"]["conditions"] = [["Ready"]]
    world.pod(action.node, "odd-pod")["spec"]["containers"] = ["c"]
    fleet = world.executor.fleet(soon())
    assert not fleet.complete
    assert sorted(fleet.nodes) == [action.node]
    assert "odd" in " ".join(fleet.problems)
    assert "odd-pod" in " ".join(fleet.problems)


def test_a_node_that_never_stands_still_is_left_alone(world: FakeWorld) -> None:
    """Each try meets another version; in the end it is said, and nothing was sent for sure."""
    action = world.action("cordon")
    real = world.api.answer

    def restless(request: Any) -> Any:
        if request.method == "PATCH":
            world.change(action.node, {"metadata": {"labels": {"n": str(world.server)}}})
        return real(request)

    world.server.upstream = restless
    error = refused(lambda: world.executor.begin(action, soon()))
    assert error is not None
    assert not error.sent
    assert "faster" in str(error)


# ---- the lease


class Hands:
    """A clock that moves when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def lock(world: FakeWorld, clock: Hands, who: str) -> LeaseLock:
    return LeaseLock(Api(str(world.kubeconfig)), identity=who, seconds=30, clock=clock)


def test_an_abandoned_lease_is_taken_over_after_its_time_by_the_takers_own_clock(world: FakeWorld) -> None:
    """And the first knows before that that it has lost it, without asking anybody."""
    mine, theirs = Hands(), Hands()
    first, second = lock(world, mine, "a"), lock(world, theirs, "b")
    assert first.acquire(soon())
    assert not second.acquire(soon())
    theirs.now += 35.9
    assert not second.acquire(soon()), "its time and a fifth of it is not over"
    mine.now += 24.1
    world.server.fault = "refused"
    assert not first.held()
    world.server.fault = None
    theirs.now += 0.2
    assert second.acquire(soon())
    assert second.token > first.token


def test_a_lease_is_renewed_after_half_its_time_and_outlives_a_server_that_is_away(world: FakeWorld) -> None:
    """Until the margin; and it is not asked at each question."""
    clock = Hands()
    first = lock(world, clock, "a")
    assert first.acquire(soon())
    sent = len(world.server.requests)
    clock.now += 14
    assert first.held()
    assert len(world.server.requests) == sent
    clock.now += 2
    assert first.held()
    assert len(world.server.requests) > sent
    world.server.fault = "503"
    clock.now += 16
    sent = len(world.server.requests)
    assert first.held()
    assert first.held()
    assert len(world.server.requests) - sent <= 4, "a server that is away is not asked at each question"
    clock.now += 9
    assert not first.held()


def test_a_lost_answer_to_taking_the_lease_is_no_two_holders(world: FakeWorld) -> None:
    """The server has our name; asked again we find it ours, another does not get it."""
    clock = Hands()
    first, second = lock(world, clock, "a"), lock(world, clock, "b")
    with world.answer_lost():
        error = refused(lambda: first.acquire(soon()))
    assert error is not None
    assert error.sent
    assert not first.held()
    assert not second.acquire(soon())
    assert first.acquire(soon())
    assert first.held()


def test_a_lease_that_another_took_is_known_at_the_next_renewal(world: FakeWorld) -> None:
    """Whatever our clock says."""
    clock = Hands()
    first = lock(world, clock, "a")
    assert first.acquire(soon())
    world.api.objects["leases"]["gpu-workbench-controller"]["spec"]["holderIdentity"] = "b"
    clock.now += 16
    assert not first.held()


def test_tokens_grow_also_as_text(world: FakeWorld) -> None:
    """Ten holders after another: 9 comes before 10."""
    clock, tokens = Hands(), []
    for at in range(12):
        one = lock(world, clock, f"holder-{at}")
        assert one.acquire(soon())
        tokens.append(one.token)
        one.release()
    assert tokens == sorted(set(tokens))


def test_of_many_takers_one_has_it(world: FakeWorld) -> None:
    clock = Hands()
    locks = [lock(world, clock, f"holder-{at}") for at in range(6)]
    threads = [threading.Thread(target=one.acquire, args=(soon(),)) for one in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(one.held() for one in locks) == 1
