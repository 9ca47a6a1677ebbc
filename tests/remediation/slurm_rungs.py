"""Turn a Slurm cluster and the engine into the answer whether whole plans end as they should: for the fake and for a real cluster."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.remediation.conformance import soon
from tests.remediation.slurm_world import SlurmWorld
from workbench.parse.nodeset import expand
from workbench.remediation.engine import apply, undo
from workbench.remediation.executors.bundles import Bundles, Kept
from workbench.remediation.executors.combined import Combined
from workbench.remediation.executors.command import Command, Commands
from workbench.remediation.executors.contract import Deadline
from workbench.remediation.executors.slurm_node import flags_of
from workbench.remediation.journal import Journal
from workbench.remediation.model import Action, Evidence, Plan, Trouble
from workbench.remediation.planner import make_plan
from workbench.remediation.policy import Limits, Policy
from workbench.remediation.recheck import Recheck

__all__ = ["Rungs"]

BOOT = "5e1c7c0e-3a55-4d0c-9f57-2d1f0a1b9c11"  # as a check tells it: the kernel's id, of which Slurm knows nothing
# what other tests have left drained on the same cluster is no reason to stop here
LIMITS = Limits(99, 100.0, 99, 100.0, hour_count=99, keep_percent=1.0, boot_grace=0.0)


def trouble(world: SlurmWorld, node: str, action: str, **also: Any) -> Trouble:
    """A fault that a check saw just now in the boot that runs."""
    now = time.time()
    line = Evidence("e1", "kernel", "NVRM: Xid (PCI:0000:5d:00): 79, GPU has fallen off the bus.", now)
    more = {"cause": "hardware", "summary": "GPU 3 has fallen off the bus", "seen": now, "since": now, "boot": BOOT}
    return Trouble(node, "xid-79", "hardware/gpu-lost", action, evidence=(line,), **{**more, **also})  # type: ignore[arg-type]


def site(world: SlurmWorld, tmp_path: Path) -> Combined:
    """Slurm, a check under load that notes how the node is while it runs, and a place for evidence."""
    program = tmp_path / "validate"
    program.write_text(f'#!/bin/sh\n{world.cluster.shell}\nscontrol show node "$1" >> {tmp_path}/checked\n')
    program.chmod(0o755)

    def keep(action: Action, path: Path, deadline: Deadline) -> Kept:
        path.write_text(str(world.record(action.node)))
        return Kept(str(path), 1)

    slurm = world.executor
    commands = Commands({"validate": Command((str(program), "{node}"))}, tmp_path / "commands", node=slurm.node)
    return Combined(slurm, commands, Bundles(tmp_path / "evidence", keep, node=slurm.node))


def planned(world: SlurmWorld, executor: Combined, node: str, action: str, journal: Journal, **also: Any) -> Plan:
    fleet = executor.fleet(soon())
    return make_plan(
        [trouble(world, node, action, **also)], fleet, past=journal.entries(), policy=Policy(limits=LIMITS), verbs=executor.verbs
    )


def check(plan: Plan, executor: Combined) -> Recheck:
    return Recheck(plan, executor, Policy(limits=LIMITS), clock=time.time, steady=time.monotonic)


def paced(world: SlurmWorld) -> dict[str, Any]:
    """Return clocks of the engine: what the fake does at once is not waited for as long as a real machine."""
    return {
        "clock": time.time,
        "steady": lambda: time.monotonic() * world.cluster.pace,
        "sleep": lambda seconds: time.sleep(seconds / world.cluster.pace),
    }


class Rungs:
    """Each test is a plan from its troubles to its end."""

    def test_a_node_is_drained_kept_rebooted_checked_and_given_back(self, world: SlurmWorld, tmp_path: Path) -> None:
        node = world.clean()
        executor, journal = site(world, tmp_path), Journal(tmp_path / "journal.jsonl")
        boot = world.record(node)["BootTime"]
        plan = planned(world, executor, node, "reboot-node", journal)
        assert [one.verb for one in plan.actions] == ["cordon", "collect", "drain", "reboot", "validate", "uncordon"], (
            plan.refused
        )

        outcomes = apply(plan, executor, journal, check=check(plan, executor), approved=True, **paced(world))

        assert [(one.action.verb, one.status) for one in outcomes] == [(one.verb, "done") for one in plan.actions], outcomes
        checked = (tmp_path / "checked").read_text()
        assert "State=IDLE+DRAIN " in checked
        assert f"Reason=gpu-workbench:{plan.actions[0].id} until " in checked
        assert f"BootTime={boot} " not in checked
        assert [file.suffix for file in sorted((tmp_path / "evidence").iterdir())] == [".json", ".zst"]
        world.until("the node", lambda: world.quiet(node))
        record = world.record(node)
        assert (record["State"], record["BootTime"] != boot) == ("IDLE", True)
        made = world.writes()
        assert {one.status for one in apply(plan, executor, journal, approved=True, **paced(world))} == {"done"}
        assert world.writes() == made, "the same plan did something a second time"

    def test_a_cordon_is_undone_and_what_an_admin_has_taken_over_is_not(self, world: SlurmWorld, tmp_path: Path) -> None:
        executor, journal = site(world, tmp_path), Journal(tmp_path / "journal.jsonl")
        plans = []
        for node in (world.clean(), world.clean()):
            plan = planned(world, executor, node, "fix-platform", journal)
            (cordon,) = plan.actions
            assert [
                one.status for one in apply(plan, executor, journal, check=check(plan, executor), approved=True, **paced(world))
            ] == ["done"]
            state = executor.node(cordon.node, soon())
            assert state is not None
            assert (state.op, state.schedulable) == (cordon.id, False)
            assert state.expires == pytest.approx(time.time() + 86400, abs=600)
            plans.append(plan)
        world.meddle(plans[1].actions[0])

        outcomes = [undo(plan, executor, journal, **paced(world))[0] for plan in plans]

        assert [one.status for one in outcomes] == ["undone", "refused"]
        world.settle(plans[0].actions[0])
        assert world.record(plans[0].actions[0].node)["State"] == "IDLE"
        assert world.record(plans[1].actions[0].node)["Reason"].startswith("bob: I look at it")

    def test_work_that_came_since_the_plan_is_not_rebooted_away(self, world: SlurmWorld, tmp_path: Path) -> None:
        """The reboot was planned for an idle node; somebody forces a job onto it: the drain waits, and the plan stops at its deadline."""
        node = world.clean()
        executor, journal = site(world, tmp_path), Journal(tmp_path / "journal.jsonl")
        plan = planned(world, executor, node, "reboot-node", journal)
        world.cluster.submit(node)
        world.until("the job", lambda: flags_of(world.record(node)) & {"MIXED", "ALLOCATED"})
        short = replace(plan, actions=tuple(replace(one, deadline=3.0) for one in plan.actions))

        outcomes = {one.action.verb: one.status for one in apply(short, executor, journal, approved=True, **paced(world))}

        assert outcomes["cordon"] == "done"
        assert outcomes["drain"] in ("refused", "expired")
        assert outcomes["reboot"] == "refused"
        assert " reboot " not in world.record(node)["Reason"].split(": ")[0]

    def test_the_failed_task_is_requeued_and_nothing_else_is_done(self, world: SlurmWorld, tmp_path: Path) -> None:
        node = world.clean()
        job = world.submit(node)
        executor, journal = site(world, tmp_path), Journal(tmp_path / "journal.jsonl")
        plan = planned(world, executor, node, "restart-task", journal, job=job, confidence=0.6)
        (restart,) = plan.actions
        assert (restart.verb, restart.target.split()[0], restart.blast.jobs) == ("restart-task", job, (job,))

        outcomes = apply(plan, executor, journal, check=check(plan, executor), approved=True, **paced(world))

        assert [one.status for one in outcomes] == ["done"], outcomes
        record = world.job(job)
        assert (record["JobState"], record["Restarts"]) == ("PENDING", "1")
        assert record["AdminComment"].startswith(f"gpu-workbench:{restart.id} restart 0: ")
        assert flags_of(world.record(node)) & {"IDLE"}
        assert [one.status for one in undo(plan, executor, journal, **paced(world))] == ["refused"]

    def test_the_next_attempt_leaves_out_the_node_until_that_is_undone(self, world: SlurmWorld, tmp_path: Path) -> None:
        """The job waits, as one does that was requeued; others may use the node; what its user left out already stays left out."""
        node, other = world.clean(), world.clean()
        job = world.submit(node)
        world.admin("scontrol", "requeue", job)
        world.until("that it waits", lambda: world.job(job)["JobState"] == "PENDING")
        world.admin("scontrol", "update", f"jobid={job}", f"excnodelist={other}", "admincomment=bob: ask me")
        executor, journal = site(world, tmp_path), Journal(tmp_path / "journal.jsonl")
        plan = planned(world, executor, node, "fix-platform", journal, job=job, retry="exclude-node", confidence=0.55)
        (exclude,) = plan.actions
        assert (exclude.verb, exclude.target) == ("exclude", job)

        outcomes = apply(plan, executor, journal, check=check(plan, executor), approved=True, **paced(world))

        assert [one.status for one in outcomes] == ["done"], outcomes
        record = world.job(job)
        assert expand(record["ExcNodeList"]) == sorted((node, other))
        assert record["AdminComment"] == f"bob: ask me; gpu-workbench:{exclude.id} exclude {node}"
        assert flags_of(world.record(node)) == {"IDLE"}
        assert [one.status for one in undo(plan, executor, journal, **paced(world))] == ["undone"]
        record = world.job(job)
        assert (record["ExcNodeList"], record["AdminComment"]) == (other, "bob: ask me")

    def test_a_job_that_runs_is_told_when_it_waits(self, world: SlurmWorld, tmp_path: Path) -> None:
        """slurmctld takes a list of nodes only for what waits: until then the step says so, and which option does it by hand."""
        node = world.clean()
        job = world.submit(node)
        action = Action(f"wait-{node}-{job}", "exclude", "exclude-node", node, job, args={"job": job})
        step = world.executor.begin(action, soon())
        assert (step.status, f"--exclude={node}" in step.detail) == ("blocked", True)
        assert world.executor.look(action, soon()).status == "absent"
        world.admin("scontrol", "requeue", job)
        world.until("that it waits", lambda: world.job(job)["JobState"] == "PENDING")
        assert world.executor.begin(action, soon()).status == "done"
        assert world.job(job)["ExcNodeList"] == node
