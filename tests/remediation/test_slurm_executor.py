"""The Slurm executor keeps its promises on the shipped fake of Slurm; tests/live/test_remediation_slurm_live.py has the same on a real one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.remediation.conformance import Acts, RespectsOthers, TakesBack, begun, soon
from tests.remediation.dry_conformance import DryActs, DryRespectsOthers, DryTakesBack
from tests.remediation.slurm_rungs import Rungs
from tests.remediation.slurm_world import FakeCluster, SlurmWorld
from workbench.remediation.executors.contract import ExecutorError
from workbench.remediation.executors.slurm import Slurm
from workbench.remediation.executors.slurm_node import CHECK, flags_of
from workbench.remediation.model import OWNER, Action, NodeState
from workbench.sources.command import Ran
from workbench.testing.slurm_commands import changing


@pytest.fixture
def cluster(tmp_path: Path) -> FakeCluster:
    return FakeCluster(tmp_path / "slurm", [f"gpu-node-{number:03d}" for number in range(1, 7)])


@pytest.fixture
def world(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmWorld:
    return SlurmWorld(cluster, monkeypatch)


class TestSlurm(Acts, TakesBack, RespectsOthers):
    """The suite of all executors."""

    VERBS = ("cordon", "drain", "uncordon", "reboot", "exclude", "restart-task")
    UNDONE = ("cordon", "drain", "exclude")


class TestSlurmDry(DryActs, DryTakesBack, DryRespectsOthers):
    """The same questions to a dry run of it."""

    VERBS = TestSlurm.VERBS
    UNDONE = TestSlurm.UNDONE


class TestRungs(Rungs):
    """Plans, applied and undone."""


NODE = "gpu-node-001"


def drained(world: SlurmWorld, reason: str, state: str = "drain") -> NodeState:
    world.admin("scontrol", "update", f"nodename={NODE}", f"state={state}", f"reason={reason}")
    node = world.executor.node(NODE, soon())
    assert node is not None
    return node


# ---- whose restriction it is


@pytest.mark.parametrize(
    ("reason", "owner", "op"),
    [
        ("gpu-workbench:a1", OWNER, "a1"),
        ("gpu-workbench:a1: [node] xid-79", OWNER, "a1"),
        ("gpu-workbench:a1 until 2026-12-01T10:30Z: why", OWNER, "a1"),
        ("gpu-workbench:a1 until 2026-12-01T10:30Z reboot b2 of 1796000000: why : reboot issued", OWNER, "a1"),
        ("workbench check: gpu-7 NOT FIT: GPU 3 is lost", CHECK, ""),
        ("gpu-workbench: gpu-7 NOT FIT: GPU 3 is lost", CHECK, ""),  # as the hooks wrote it at first
        ("gpu-workbench:a1 I take it, bob", "somebody as root", ""),
        ("bob: see gpu-workbench:a1", "somebody as root", ""),
        ("GPU-workbench:a1: x", "somebody as root", ""),
        ("gpu-workbench:../x: y", "somebody as root", ""),
        ("NHC: check_nv failed", "somebody as root", ""),
        ("Kill task failed", "somebody as root", ""),
    ],
)
def test_a_drain_is_whose_its_reason_says(world: SlurmWorld, reason: str, owner: str, op: str) -> None:
    node = drained(world, reason)
    assert (node.owner, node.op, node.schedulable, node.ready, node.reason) == (owner, op, False, True, reason)


def test_an_admin_is_named_by_his_account(world: SlurmWorld, cluster: FakeCluster) -> None:
    drained(world, "dimm 3")
    cluster.edit(NODE, r"\[root@", "[bob@")
    node = world.executor.node(NODE, soon())
    assert node is not None
    assert (node.owner, node.foreign) == ("bob", True)


@pytest.mark.parametrize(
    ("state", "reason", "owner", "ready"),
    [
        ("DOWN*", "Not responding", "", False),
        ("DOWN+NOT_RESPONDING", "Not responding", "", False),
        ("DOWN", "Node unexpectedly rebooted", "", False),
        ("DOWN+DRAIN", "Not responding", "somebody as root", False),
        ("DOWN", "bob swaps a dimm", "somebody as root", False),
        ("IDLE+FAIL", "bob", "somebody as root", True),
        ("IDLE+MAINTENANCE+RESERVED", "", "a maintenance reservation", True),
        ("IDLE+CLOUD+POWERED_DOWN", "", "power saving", True),
        ("IDLE~", "", "power saving", True),
        ("IDLE+PLANNED", "", "", True),
        ("IDLE+RESERVED", "", "", True),
        ("MIXED+COMPLETING", "", "", True),
    ],
)
def test_what_slurmctld_does_by_itself_is_nobodys_decision(
    world: SlurmWorld, cluster: FakeCluster, state: str, reason: str, owner: str, ready: bool
) -> None:
    cluster.edit(NODE, r"State=\S+", f"State={state}")
    if reason:
        cluster.edit(NODE, r"\s*$", f"\n   Reason={reason} [root@2026-11-30T05:00:00]\n")
    node = world.executor.node(NODE, soon())
    assert node is not None
    assert (node.owner, node.ready) == (owner, ready)


def test_a_drain_of_our_health_hook_is_left_alone_unless_the_policy_adopts_it(world: SlurmWorld) -> None:
    text = "workbench check: gpu-node-001 NOT FIT: GPU 3 is lost"
    drained(world, text)
    action = Action("a7", "cordon", "cordon", NODE, args={"reason": "[node] gpu-lost"}, expects={"owner": ""})
    assert world.executor.begin(action, soon()).status == "changed"
    adopting = Slurm(adopt=("workbench check",))
    node = adopting.node(NODE, soon())
    assert node is not None
    assert (node.owner, node.schedulable, node.reason) == ("", False, text)
    step = adopting.begin(action, soon())
    assert step.status == "done", step
    assert world.record(NODE)["Reason"].startswith("gpu-workbench:a7: ")
    # also from what the engine keeps, and by whoever has only that
    for before in (step.before, {"schedulable": False, "reason": text, "owner": ""}):
        adopting.begin(action, soon())
        assert world.executor.undo(action, before, soon()).status == "done"
        assert world.record(NODE)["Reason"].startswith(text)
        assert "DRAIN" in world.record(NODE)["State"]
    # what may be adopted is still no node that takes work
    assert adopting.begin(Action("u1", "uncordon", "cordon", NODE, expects={"owner": OWNER}), soon()).status == "changed"
    drained(world, "bob: dimm 3")
    assert adopting.begin(action, soon()).status == "changed"


# ---- nodes that are down


def test_an_undo_never_wakes_a_node_that_is_down_and_lets_it_come_back_by_itself(world: SlurmWorld, cluster: FakeCluster) -> None:
    action = replace(world.action("cordon"), id="a1")
    node = action.node
    before = world.executor.begin(action, soon()).before
    cluster.dies(node)
    assert world.executor.undo(action, before, soon()).status == "done"
    world.until("its boot", lambda: world.record(node)["BootTime"] != "None")
    assert flags_of(world.record(node)) == {"DOWN", "NOT_RESPONDING"}
    assert world.record(node)["Reason"].startswith("Not responding ")
    cluster.returns(node)
    assert world.record(node)["State"] == "IDLE"


def test_our_reason_on_a_node_that_somebody_undrained_is_no_cordon(world: SlurmWorld, cluster: FakeCluster) -> None:
    """Slurm leaves the reason of a node that is down; it is drained no more."""
    action = world.action("cordon")
    before = world.executor.begin(action, soon()).before
    cluster.dies(action.node)
    world.admin("scontrol", "update", f"nodename={action.node}", "state=undrain")
    assert world.record(action.node)["Reason"].startswith("gpu-workbench:")
    assert world.executor.look(action, soon()).status == "absent"
    assert world.executor.undo(action, before, soon()).status == "absent"


def test_a_node_that_is_down_is_not_given_back_and_one_that_is_back_is(world: SlurmWorld, cluster: FakeCluster) -> None:
    action = world.action("uncordon")
    cluster.dies(action.node)
    assert world.executor.begin(action, soon()).status == "blocked"
    assert "DRAIN" in world.record(action.node)["State"]
    cluster.returns(action.node)  # with our reason on it slurmctld leaves it down
    assert world.record(action.node)["State"] == "DOWN+DRAIN"
    assert world.executor.begin(action, soon()).status == "done"
    world.settle(action)
    assert world.record(action.node)["State"] == "IDLE"


def test_a_node_that_does_not_answer_can_be_cordoned_and_not_rebooted_by_slurm(world: SlurmWorld, cluster: FakeCluster) -> None:
    action = world.action("cordon")
    cluster.dies(action.node)
    state = world.executor.node(action.node, soon())
    assert state is not None
    step = world.executor.begin(replace(action, expects={"owner": "", "schedulable": False}), soon())
    assert step.status == "done", step
    reboot = Action("r1", "reboot", "reboot-node", action.node, expects={"owner": OWNER, "booted": state.booted})
    step = world.executor.begin(reboot, soon())
    assert (step.status, "command of the site" in step.detail) == ("failed", True)
    assert "reboot r1" not in world.record(action.node)["Reason"]
    assert (
        world.executor.undo(action, {"state": "DOWN*", "reason": "Not responding [root@2026-11-30T05:00:00]"}, soon()).status
        == "done"
    )
    assert world.record(action.node)["Reason"].startswith("Not responding ")


def test_a_reboot_keeps_whose_and_until_when_and_is_over_with_another_boot(world: SlurmWorld) -> None:
    cordon = world.action("cordon")
    world.executor.begin(cordon, soon())
    before = world.executor.node(cordon.node, soon())
    assert before is not None
    assert before.expires == pytest.approx(cordon.args["expires"], abs=60)
    reboot = Action("r1", "reboot", "reboot-node", cordon.node, expects={"owner": OWNER})
    assert begun(world, reboot).status == "done"
    after = world.executor.node(cordon.node, soon())
    assert after is not None
    assert (after.owner, after.op, after.expires) == (OWNER, cordon.id, before.expires)
    assert after.booted is not None
    assert before.booted is not None
    assert after.booted > before.booted + 60
    assert world.executor.look(replace(reboot, id="r2"), soon()).status == "absent"


def test_a_node_that_takes_work_is_never_rebooted(world: SlurmWorld) -> None:
    """Slurm gives it work at once when it is back, before anybody has looked at it."""
    node = world.clean()
    step = world.executor.begin(Action("r1", "reboot", "reboot-node", node), soon())
    assert step.status == "changed"
    assert world.writes() == 0


def test_a_reboot_that_timed_out_has_failed(world: SlurmWorld, cluster: FakeCluster) -> None:
    drained(world, "gpu-workbench:a1 reboot r1 of 1700000000: x : reboot issued : reboot timed out")
    cluster.edit(NODE, "State=IDLE", "State=DOWN")
    assert world.executor.look(Action("r1", "reboot", "reboot-node", NODE), soon()).status == "failed"


def test_a_boot_time_that_is_a_second_off_is_the_same_boot(world: SlurmWorld, cluster: FakeCluster) -> None:
    """Slurm tells it anew whenever it asks slurmd: neither is the reboot over by that, nor does the plan not fit any more."""
    cordon = world.action("cordon")
    node = cordon.node
    cluster.edit(node, r"BootTime=\S+", "BootTime=2023-11-14T22:13:22")
    assert world.executor.begin(cordon, soon()).status == "done"
    reboot = Action("r1", "reboot", "reboot-node", node, expects={"owner": OWNER})
    world.executor.begin(reboot, soon())
    with changing(cluster.file) as state:  # an admin takes it back: scontrol cancel_reboot
        state["reboots"].clear()
        state["nodes"][node] = state["nodes"][node].replace("+REBOOT_REQUESTED", "")
    for boot in ("2023-11-14T22:13:20", "2023-11-14T22:13:24", "2023-11-14T22:00:00"):
        cluster.edit(node, r"BootTime=\S+", f"BootTime={boot}")
        assert world.executor.look(reboot, soon()).status == "pending", boot
    cluster.edit(node, r"BootTime=\S+", "BootTime=2023-11-14T22:33:20")
    assert world.executor.look(reboot, soon()).status == "done"
    assert (
        world.executor.begin(replace(cordon, id="c2", expects={"booted": cordon.expects["booted"]}), soon()).status == "changed"
    )


def test_a_reason_that_stays_behind_restricts_nothing(world: SlurmWorld, cluster: FakeCluster) -> None:
    """From 24.11 on undrain and resume leave the reason, and nothing takes it away."""
    action = world.action("cordon")
    node = action.node
    for state in ("IDLE", "MIXED", "DOWN+NOT_RESPONDING"):
        cluster.edit(node, r"(?m)^ +Reason=.*\n", "")
        cluster.edit(node, r"\s*$", f"\n   Reason=gpu-workbench:{action.id}: old [root@2026-11-30T05:00:00]\n")
        cluster.edit(node, r"State=\S+", f"State={state}")
        found = world.executor.node(node, soon())
        assert found is not None
        assert (found.owner, found.op, found.expires) == ("", "", None)
        assert world.executor.look(action, soon()).status == "absent"
        assert world.executor.undo(action, {}, soon()).status == "absent"


# ---- work


def test_a_jobs_name_cannot_make_other_jobs(world: SlurmWorld, cluster: FakeCluster) -> None:
    name = "a|b\n999|root|R|2026-01-01T00:00:00|1|gpu-node-003|gres:gpu:8|forged\n\x1b[31m"
    job = cluster.submit(NODE, name)
    fleet = world.executor.fleet(soon())
    assert fleet.complete
    ((work,), *others) = [one.work for one in fleet.nodes.values()]
    assert not any(others)
    assert (work.uid, work.gpus, work.job_gpus, work.since) == (job, 2, 2, 1796014800.0)
    assert work.id.isprintable()
    assert work.id.startswith(f"{job} (a|b?999")


def test_gpus_of_a_job_that_squeue_does_not_tell_are_those_the_node_has_in_use(world: SlurmWorld, cluster: FakeCluster) -> None:
    cluster.submit(NODE, gres="N/A")
    node = world.executor.node(NODE, soon())
    assert node is not None
    assert [one.gpus for one in node.work] == [2]
    cluster.submit(NODE, gres="N/A")  # two of them: nobody knows which has what
    node = world.executor.node(NODE, soon())
    assert node is not None
    assert [one.gpus for one in node.work] == [0, 0]


@pytest.mark.parametrize(
    ("gres", "gpus", "sku"),
    [
        ("gpu:h100:8(S:0-1)", 8, "h100"),
        ("gpu:h100:4(S:0,2),gpu:a100:2,shard:64,mps:800", 6, "h100,a100"),
        ("gpu:1g.10gb:7", 7, "1g.10gb"),
        ("gpu:8", 8, ""),
        ("gpu", 1, ""),
        ("(null)", 0, ""),
        ("craynetwork:4", 0, ""),
        ("nvgpu:4", 0, ""),
    ],
)
def test_gpus_are_counted_whatever_else_there_is(world: SlurmWorld, cluster: FakeCluster, gres: str, gpus: int, sku: str) -> None:
    cluster.edit(NODE, r"Gres=\S+", f"Gres={gres}")
    node = world.executor.node(NODE, soon())
    assert node is not None
    assert (node.gpus, node.sku) == (gpus, sku)


@pytest.mark.parametrize("state", ["R", "CF", "CG", "S"])
def test_drained_is_only_what_has_no_job_in_any_state(world: SlurmWorld, cluster: FakeCluster, state: str) -> None:
    action = world.action("drain")
    with changing(cluster.file) as memory:
        memory["queue"][0]["state"] = state
    node = world.executor.node(action.node, soon())
    assert node is not None
    assert [one.uid for one in node.work] == action.expects["work"]
    assert world.executor.begin(action, soon()).status == "pending"
    assert world.executor.look(action, soon()).status == "pending"
    world.settle(action)
    assert world.executor.look(action, soon()).status == "done"


def test_a_drain_over_our_own_cordon_only_waits_and_takes_nothing_back(world: SlurmWorld) -> None:
    cordon = world.action("cordon")
    world.executor.begin(cordon, soon())
    drain = Action("d1", "drain", "evacuate", cordon.node, expects={"owner": OWNER})
    made = world.writes()
    assert world.executor.begin(drain, soon()).status == "done"
    assert world.executor.undo(drain, {}, soon()).status == "absent"
    assert world.writes() == made


def test_an_instance_id_is_the_machines_identity(world: SlurmWorld, cluster: FakeCluster) -> None:
    """As Slurm 24.11 and later print it."""
    cluster.edit(NODE, r"\s*$", "\n   InstanceId=i-0abc InstanceType=p5.48xlarge\n")
    action = Action("a1", "cordon", "cordon", NODE, expects={"uid": "i-0abc"})
    assert world.executor.begin(replace(action, expects={"uid": "i-0old"}), soon()).status == "changed"
    step = world.executor.begin(action, soon())
    assert step.status == "done", step


# ---- what is asked for, and what is not answered


@pytest.mark.parametrize(
    "name", ["gpu-node-[001-002]", "gpu-node-001,gpu-node-002", "ALL", "", "-h", "--help", "gpu-node-001\n", "nobody"]
)
def test_what_is_not_one_node_is_none(world: SlurmWorld, name: str) -> None:
    assert world.executor.node(name, soon()) is None
    assert world.executor.begin(Action("a1", "cordon", "cordon", name), soon()).status == "changed"
    assert world.writes() == 0


def test_an_account_without_the_right_is_told_which_it_needs(world: SlurmWorld, cluster: FakeCluster) -> None:
    cordon, reboot = world.action("cordon"), world.action("reboot")
    with changing(cluster.file) as state:
        state["user"] = "alice"
    for action in (cordon, reboot):
        with pytest.raises(ExecutorError) as error:
            world.executor.begin(action, soon())
        assert not error.value.sent
        assert "operator" in error.value.hint


def test_without_the_list_of_jobs_the_fleet_is_not_whole_and_nothing_is_begun(
    world: SlurmWorld, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    action, run = world.action("cordon"), cluster.run
    monkeypatch.setattr(
        cluster, "run", lambda argv, **more: Ran(tuple(argv), "time-out") if argv[0] == "squeue" else run(argv, **more)
    )
    fleet = world.executor.fleet(soon())
    assert len(fleet.nodes) == 6
    assert not fleet.complete
    assert fleet.problems
    with pytest.raises(ExecutorError):
        world.executor.begin(action, soon())
    assert "DRAIN" not in world.record(action.node)["State"]


@pytest.mark.parametrize("text", ["", "No nodes in the system\n", "garbage\n"])
def test_an_answer_without_nodes_is_no_empty_fleet(
    world: SlurmWorld, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(cluster, "run", lambda argv, **_: Ran(tuple(argv), "ok", code=0, out=text.encode()))
    assert not world.executor.fleet(soon()).complete
    with pytest.raises(ExecutorError):
        world.executor.node(NODE, soon())


@pytest.mark.parametrize(
    ("ran", "sent"),
    [
        (Ran(("scontrol",), "time-out"), True),
        (Ran(("scontrol",), "signal", signal=9), True),
        (Ran(("ssh",), "unreachable", code=255), True),  # ssh says the same when it broke off in the middle
        (Ran(("scontrol",), "exit", code=1, err=b"slurm_update error: Zero Bytes were transmitted or received\n"), True),
        (
            Ran(("scontrol",), "exit", code=1, err=b"slurm_update error: Unable to contact slurm controller (receive failure)\n"),
            True,
        ),
        (Ran(("scontrol",), "exit", code=1, err=b"slurm_update error: Socket timed out on send/recv operation\n"), True),
        (
            Ran(("scontrol",), "exit", code=1, err=b"slurm_update error: Unable to contact slurm controller (connect failure)\n"),
            False,
        ),
        (Ran(("scontrol",), "exit", code=1, err=b"slurm_update error: Invalid user id\n"), False),
        (Ran(("scontrol",), "exit", code=1, err=b"slurm_update error: Access/permission denied\n"), False),
        (Ran(("scontrol",), "missing", about="scontrol"), False),
    ],
)
def test_only_what_was_surely_not_heard_counts_as_not_sent(
    world: SlurmWorld, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, ran: Ran, sent: bool
) -> None:
    action, run = world.action("cordon"), cluster.run
    monkeypatch.setattr(cluster, "run", lambda argv, **more: ran if argv[1] == "update" else run(argv, **more))
    with pytest.raises(ExecutorError) as error:
        world.executor.begin(action, soon())
    assert error.value.sent == sent


def test_a_reason_is_one_line_of_plain_words(world: SlurmWorld) -> None:
    action = replace(
        world.action("cordon"),
        args={"reason": "until 2099-01-01T00:00Z reboot x: 'a' \"b\" = [root@2020-01-01T00:00:00]\n\x1b$(id)" * 9},
    )
    assert begun(world, action).status == "done"
    node = world.executor.node(action.node, soon())
    assert node is not None
    assert (node.op, node.expires) == (action.id, None)
    assert node.restricted == pytest.approx(time.time(), abs=120)
    assert len(node.reason) <= 240
    assert not set(node.reason) & set("'\"=@\n\x1b$")
    with pytest.raises(ExecutorError):
        world.executor.begin(replace(action, id="a b", node=world.clean(), expects={}), soon())


def test_somebody_who_drains_at_the_same_moment_is_told(
    world: SlurmWorld, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    action, run = world.action("cordon"), cluster.run

    def raced(argv: Sequence[str], **more: object) -> Ran:
        ran = run(argv, **more)
        if argv[1] == "update":
            run(("scontrol", "update", f"nodename={action.node}", "state=drain", "reason=bob: dimm"))
        return ran

    monkeypatch.setattr(cluster, "run", raced)
    step = world.executor.begin(action, soon())
    assert (step.status, "bob: dimm" in step.detail) == ("changed", True)


def test_two_thousand_nodes_are_read_in_one_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured: benchmarks say how long it takes; here it is three commands, whatever the size."""
    cluster = FakeCluster(tmp_path / "slurm", [f"gpu-{number:04d}" for number in range(2000)])
    world, asked = SlurmWorld(cluster, monkeypatch), []
    run = cluster.run
    monkeypatch.setattr(cluster, "run", lambda argv, **more: (asked.append(argv[0]), run(argv, **more))[1])
    with changing(cluster.file) as state:
        names = [f"gpu-{number:04d}" for number in range(1000)]
        row = {"id": "7", "user": "alice", "state": "R", "start": "2026-11-30T05:00:00", "nodes": names, "name": "llm"}
        state["queue"] = [{**row, "gres": "gres:gpu:h100:8", "used": 8}]
    fleet = world.executor.fleet(soon())
    assert (len(fleet.nodes), sum(bool(one.work) for one in fleet.nodes.values())) == (2000, 1000)
    assert asked == ["scontrol", "squeue", "squeue"]
    assert fleet.nodes["gpu-0001"].work[0].job_gpus == 8000


# ---- jobs


def exclusion(job: str, node: str = NODE, id: str = "a1") -> Action:
    return Action(id, "exclude", "exclude-node", node, job, args={"job": job})


def test_only_attempts_of_the_same_user_leave_out_the_node(world: SlurmWorld, cluster: FakeCluster) -> None:
    """A chain of jobs handed in under one name is one job's attempts; another user's job of that name is not."""
    first, second, others = cluster.waiting("llm"), cluster.waiting("llm"), cluster.waiting("llm", user="bob")
    step = world.executor.begin(exclusion(first), soon())
    assert (step.status, set(step.before["jobs"])) == ("done", {first, second})
    assert [world.job(one)["ExcNodeList"] for one in (first, second, others)] == [NODE, NODE, "(null)"]


def test_a_name_that_two_users_have_is_nobodys(world: SlurmWorld, cluster: FakeCluster) -> None:
    cluster.waiting("llm"), cluster.waiting("llm", user="bob")
    made = world.writes()
    step = world.executor.begin(exclusion("llm"), soon())
    assert (step.status, world.writes()) == ("failed", made)
    assert "alice, bob" in step.detail


def test_a_name_cannot_make_other_jobs_attempts(world: SlurmWorld, cluster: FakeCluster) -> None:
    """What looks like another user's row of squeue, or like another record of scontrol, stands within one name."""
    mine, theirs = cluster.waiting("llm"), cluster.waiting("other", user="bob")
    cluster.waiting(f"x\n<0>9|{theirs}|{theirs}|PENDING|alice|llm", user="eve")
    assert world.executor.begin(exclusion(mine), soon()).status == "done"
    assert world.job(theirs)["ExcNodeList"] == "(null)"


def test_two_exclusions_of_one_job_are_undone_each_for_itself(world: SlurmWorld, cluster: FakeCluster) -> None:
    job = cluster.waiting("llm")
    one, two = exclusion(job), exclusion(job, "gpu-node-002", "a2")
    kept = [world.executor.begin(each, soon()).before for each in (one, two)]
    assert world.job(job)["ExcNodeList"] == "gpu-node-[001-002]"
    assert world.executor.undo(one, kept[0], soon()).status == "done"
    record = world.job(job)
    assert (record["ExcNodeList"], record["AdminComment"]) == ("gpu-node-002", "gpu-workbench:a2 exclude gpu-node-002")
    assert [world.executor.look(each, soon()).status for each in (one, two)] == ["absent", "done"]


def test_an_exclusion_that_its_user_took_back_is_told(world: SlurmWorld, cluster: FakeCluster) -> None:
    job = cluster.waiting("llm")
    kept = world.executor.begin(exclusion(job), soon()).before
    world.admin("scontrol", "update", f"jobid={job}", "excnodelist=")
    made = world.writes()
    assert world.executor.look(exclusion(job), soon()).status == "changed"
    assert world.executor.undo(exclusion(job), kept, soon()).status == "changed"
    assert world.writes() == made


def test_a_job_that_nobody_remembers_cannot_leave_out_a_node(world: SlurmWorld) -> None:
    step = world.executor.begin(exclusion("4711"), soon())
    assert (step.status, f"--exclude={NODE}" in step.detail) == ("failed", True)


def test_a_job_leaves_out_a_node_that_somebody_else_drained(world: SlurmWorld, cluster: FakeCluster) -> None:
    """It is the job's affair: the node stays as bob left it."""
    drained(world, "bob: dimm 3")
    before, job = world.record(NODE), cluster.waiting("llm")
    assert world.executor.begin(exclusion(job), soon()).status == "done"
    assert world.record(NODE) == before


def test_only_what_slurm_starts_again_is_restarted(world: SlurmWorld, cluster: FakeCluster) -> None:
    """A job handed in with --no-requeue would be lost: the fleet says so to the plan, and the step refuses."""
    once, again = cluster.submit(NODE), cluster.submit("gpu-node-002", requeue=True)
    fleet = world.executor.fleet(soon())
    assert {one.uid: one.controlled for node in fleet.nodes.values() for one in node.work} == {once: False, again: True}
    made = world.writes()
    action = Action("a1", "restart-task", "restart-task", NODE, f"{once} (train, alice)", expects={"work": [once]})
    step = world.executor.begin(action, soon())
    assert (step.status, world.writes()) == ("changed", made)
    assert world.job(once)["JobState"] == "RUNNING"


def test_a_restart_is_not_told_of_another_attempt(world: SlurmWorld, cluster: FakeCluster) -> None:
    """A crash between the note and the requeue leaves the job as it is: the next begin requeues it, once."""
    job = cluster.submit(NODE, requeue=True)
    action = Action("a1", "restart-task", "restart-task", NODE, f"{job} (train, alice)", why="ECC; halt", expects={"work": [job]})
    world.admin("scontrol", "update", f"jobid={job}", "admincomment=gpu-workbench:a1 restart 0: ECC_ halt")
    assert world.executor.look(action, soon()).status == "absent"
    assert world.executor.begin(action, soon()).status == "pending"
    record = world.job(job)
    assert (record["Restarts"], record["AdminComment"]) == ("1", "gpu-workbench:a1 restart 0: ECC_ halt")
    assert world.executor.look(action, soon()).status == "done"


@pytest.mark.parametrize("verb", ["cordon", "drain", "uncordon", "reboot"])
def test_what_somebody_writes_while_the_jobs_are_asked_for_is_seen_and_left(
    verb: str, world: SlurmWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """slurmctld has no conditional change: the node is read once more right before it."""
    action, work = world.action(verb), Slurm._work

    def slow(self: Slurm, *given: Any, **more: Any) -> Any:
        found = work(self, *given, **more)
        world.admin("scontrol", "update", f"nodename={action.node}", "state=drain", "reason=bob: dimm 3")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Slurm, "_work", slow)
        step = world.executor.begin(action, soon())

    assert step.status == "changed", step
    assert "bob: dimm 3" in step.detail
    node = world.again().node(action.node, soon())
    assert node is not None
    assert node.foreign
    assert node.reason == "bob: dimm 3"
