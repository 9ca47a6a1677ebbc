"""The Slurm executor against real slurmctld and slurmd: the suite of all executors, and what only a real cluster shows."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from tests.live.slurm_cluster import RealCluster, started
from tests.remediation.conformance import Acts, RespectsOthers, TakesBack, begun, soon
from tests.remediation.dry_conformance import DryActs, DryRespectsOthers, DryTakesBack
from tests.remediation.slurm_rungs import Rungs
from tests.remediation.slurm_world import SlurmWorld
from workbench.remediation.executors.contract import Deadline, ExecutorError
from workbench.remediation.executors.slurm import Slurm
from workbench.remediation.executors.slurm_node import flags_of
from workbench.remediation.model import OWNER, Action, NodeState

pytestmark = pytest.mark.live

NODES = 8


# Debian 12's release is asked where it is, others in root folders: see tests/live/test_slurm_live.py
SUITES = ["", *os.environ.get("WORKBENCH_SLURM_SUITES", "").split()]


@pytest.fixture(scope="module", params=SUITES, ids=lambda suite: suite or "host")
def cluster(request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    with started(NODES, request.param) as made:
        yield made


@pytest.fixture
def world(cluster: RealCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmWorld:
    return SlurmWorld(cluster, monkeypatch, cluster.env)


class TestSlurm(Acts, TakesBack, RespectsOthers):
    """The suite of all executors."""

    VERBS = ("cordon", "drain", "uncordon", "reboot", "exclude", "restart-task")
    UNDONE = ("cordon", "drain", "exclude")


class TestSlurmDry(DryActs, DryTakesBack, DryRespectsOthers):
    """The same questions to a dry run of it."""

    VERBS = TestSlurm.VERBS
    UNDONE = TestSlurm.UNDONE


def seen(world: SlurmWorld, node: str) -> NodeState:
    """Return a node that is there."""
    state = world.executor.node(node, soon())
    assert state is not None
    return state


def hook(cluster: RealCluster, name: str, body: str) -> None:
    """Replace what slurmd runs around jobs."""
    fresh = cluster.root / "hooks" / f".{name}"
    fresh.write_text(f"#!/bin/sh\n{body}\n")
    fresh.chmod(0o755)
    fresh.rename(cluster.root / "hooks" / name)


def test_drained_is_when_jobs_steps_and_epilogs_have_ended(world: SlurmWorld, cluster: RealCluster) -> None:
    """DRAIN alone is not drained (nebius/soperator#1279): while the epilog runs the node is not to be touched."""
    hook(cluster, "epilog", f"[ -e {cluster.root}/slow ] && sleep 4; exit 0")
    (cluster.root / "slow").touch()
    action = world.action("drain")
    step = world.executor.begin(action, soon())
    assert (step.status, "work still runs" in step.detail) == ("pending", True)
    assert "DRAIN" in flags_of(world.record(action.node))
    cluster.empty(action.node)
    world.until("the epilog", lambda: "COMPLETING" in flags_of(world.record(action.node)))
    assert world.executor.look(action, soon()).status == "pending"
    (cluster.root / "slow").unlink()
    world.until("drained", lambda: world.executor.look(action, soon()).status == "done")
    assert flags_of(world.record(action.node)) == {"IDLE", "DRAIN"}


def test_a_drain_by_a_prolog_that_failed_is_not_ours(world: SlurmWorld, cluster: RealCluster) -> None:
    node = world.clean()
    hook(cluster, "prolog", f'[ "$SLURMD_NODENAME" = {node} ] && exit 1; exit 0')
    cluster.submit(node)
    world.until("the drain", lambda: "DRAIN" in flags_of(world.record(node)))
    hook(cluster, "prolog", "exit 0")
    cluster.empty(node)
    world.until("the end", lambda: world.quiet(node))
    state = seen(world, node)
    assert (state.foreign, state.reason) == (True, "Prolog error")
    assert world.executor.begin(Action("a1", "cordon", "cordon", node), soon()).status == "changed"


def test_a_node_that_dies_and_returns(world: SlurmWorld, cluster: RealCluster) -> None:
    """Down is nobody's decision; under our drain it stays ours; and an undo lets slurmctld take it back as it would have without us."""
    action, uncordon, plain = world.action("cordon"), world.action("uncordon"), world.clean()
    before = world.executor.begin(action, soon()).before
    for node in (action.node, uncordon.node, plain):
        cluster.machine(node, "kill")
    world.until("down", lambda: all("DOWN" in flags_of(world.record(node)) for node in (action.node, uncordon.node, plain)))
    states = [world.executor.node(node, soon()) for node in (action.node, plain)]
    assert [(one.owner, one.ready, one.schedulable) for one in states if one] == [(OWNER, False, False), ("", False, False)]
    reboot = Action("r1", "reboot", "reboot-node", action.node, expects={"owner": OWNER})
    assert world.executor.begin(reboot, soon()).status == "failed"
    assert world.executor.begin(uncordon, soon()).status == "blocked"
    assert world.executor.undo(action, before, soon()).status == "done"
    assert "DOWN" in flags_of(world.record(action.node)), "an undo woke a node that is down"
    for node in (action.node, uncordon.node, plain):
        cluster.machine(node, "start")
    # not the plain one: 24.11 takes back no node that ever had another reason, since that stays and its own is put behind it
    world.until("back", lambda: flags_of(world.record(action.node)) == {"IDLE"})
    world.until("the agent", lambda: "NOT_RESPONDING" not in flags_of(world.record(uncordon.node)))
    assert "DRAIN" in flags_of(world.record(uncordon.node))
    assert world.executor.begin(uncordon, soon()).status == "done"
    world.until("back", lambda: flags_of(world.record(uncordon.node)) == {"IDLE"})


def test_an_account_without_the_right_is_told_which_it_needs(world: SlurmWorld, cluster: RealCluster) -> None:
    nobody = Slurm(("setpriv", "--reuid=65534", "--clear-groups"), env=cluster.env)
    assert nobody.fleet(soon()).complete
    for verb in ("cordon", "reboot"):
        with pytest.raises(ExecutorError, match=r"(?i)denied|invalid user") as error:
            nobody.begin(world.action(verb), soon())
        assert not error.value.sent
        assert "operator" in error.value.hint


@pytest.mark.parametrize("how", ["hangs", "is down"])
def test_a_controller_that_does_not_answer_is_no_empty_fleet(world: SlurmWorld, cluster: RealCluster, how: str) -> None:
    action, begun_at = world.action("cordon"), time.monotonic()
    if how == "is down":
        cluster.daemon("stop")
    try:
        with cluster.hanging() if how == "hangs" else Nothing():
            begun_at = time.monotonic()
            with pytest.raises(ExecutorError):
                world.executor.fleet(Deadline(3))
            with pytest.raises(ExecutorError):
                world.executor.node(action.node, Deadline(3))
            with pytest.raises(ExecutorError):
                world.executor.begin(action, Deadline(3))
            took = time.monotonic() - begun_at
    finally:
        if how == "is down":
            cluster.daemon("start")
    assert took < 60
    world.until("the answer", lambda: world.quiet(action.node))
    assert world.executor.look(action, soon()).status == "absent"
    assert begun(world, action).status == "done"


class Nothing:
    """A context in which nothing is different."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def test_a_jobs_name_cannot_make_other_jobs(world: SlurmWorld, cluster: RealCluster) -> None:
    node = world.clean()
    job = cluster.submit(node, "a|b\n999|root|R|2026-01-01T00:00:00|1|gpu-node-003|gres:gpu:8|forged\n\x1b[31m")
    quiet = cluster.submit(node, "two", gres="", body="sleep 300")
    world.until("the jobs", lambda: len(seen(world, node).work) == 2)
    fleet = world.executor.fleet(soon())
    assert {work.uid for one in fleet.nodes.values() for work in one.work} == {job, quiet}
    first = next(one for one in fleet.nodes[node].work if one.uid == job)
    assert (first.gpus, first.job_gpus, first.id.isprintable()) == (2, 2, True)
    assert first.since == pytest.approx(time.time(), abs=600)


def test_gpus_of_a_whole_job_are_counted_where_they_are(world: SlurmWorld, cluster: RealCluster) -> None:
    node = world.clean()
    job = cluster.ask("sbatch", "--parsable", f"--nodelist={node}", "--gpus=6", "--output=/dev/null", "--wrap=sleep 300").strip()
    world.until("the job", lambda: seen(world, node).work)
    state = seen(world, node)
    assert [(one.uid, one.gpus) for one in state.work] == [(job, 6)]
    assert (state.gpus, state.sku) == (8, "h100")


def test_a_maintenance_reservation_is_somebody_elses(world: SlurmWorld, cluster: RealCluster) -> None:
    node = world.clean()
    cluster.ask(
        "scontrol",
        "create",
        "reservation",
        "reservationname=m1",
        "starttime=now",
        "duration=60",
        "flags=maint",
        "users=root",
        f"nodes={node}",
    )
    try:
        world.until("maintenance", lambda: seen(world, node).owner)
        state = seen(world, node)
        assert (state.owner, state.schedulable) == ("a maintenance reservation", False)
    finally:
        cluster.ask("scontrol", "delete", "reservation=m1")


class TestRungs(Rungs):
    """Plans, applied and undone."""
