"""Turn a Slurm cluster, the shipped fake or a real one, into a world behind the Slurm executor for the conformance suite."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from workbench.parse.slurm_scontrol import show_records
from workbench.parse.slurm_words import local_epoch, split_reason
from workbench.remediation.executors import slurm as executor_module
from workbench.remediation.executors.expects import same_boot
from workbench.remediation.executors.slurm import Slurm
from workbench.remediation.executors.slurm_node import flags_of
from workbench.remediation.model import OWNER, Action
from workbench.sources.command import Ran
from workbench.testing.slurm import Slurm as Fake
from workbench.testing.slurm_commands import answer, changing

__all__ = ["FakeCluster", "SlurmWorld"]

PATIENCE = 60.0  # seconds; a slow machine must not fail a test
_DEAD = b"slurm_load_node error: Unable to contact slurm controller (connect failure)\n"
_LOST = b"slurm_update error: Zero Bytes were transmitted or received\n"


class FakeCluster:
    """The shipped commands, called in this process: a thousand calls of a new interpreter would take minutes."""

    pace = 20.0  # how much faster than real time things happen

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.names, self.fake = tuple(names), Fake(nodes=names)
        self.file = self.fake.install(folder) / ".state.json"
        self.shell = f'PATH="{folder}:$PATH"'  # what a script needs to find the commands
        self._jobs = itertools.count(100)

    def run(self, argv: Sequence[str], **_: Any) -> Ran:
        code, out, err = answer(self.file, argv[0], list(argv[1:]))
        return Ran(tuple(argv), "exit" if code else "ok", code=code, out=out.encode(), err=err.encode())

    def submit(self, node: str, name: str = "train", gres: str = "gres:gpu:h100:2", *, requeue: bool = False) -> str:
        return self._handed_in({"state": "R", "nodes": [node], "name": name, "gres": gres, "used": 2, "requeue": int(requeue)})

    def waiting(self, name: str, user: str = "alice") -> str:
        """Hand in a job that waits for longer than any test."""
        return self._handed_in({"state": "PD", "nodes": [], "name": name, "gres": "N/A", "user": user})

    def _handed_in(self, row: Mapping[str, Any]) -> str:
        job = str(next(self._jobs))
        with changing(self.file) as state:
            state.setdefault("queue", []).append({"id": job, "user": "alice", "start": "2026-11-30T05:00:00", **row})
        return job

    def end(self, job: str) -> None:
        """Let a job be over; slurmctld remembers it for some minutes."""
        with changing(self.file) as state:
            for one in state["queue"]:
                if one["id"] == job:
                    one |= {"state": "CA", "nodes": []}

    def empty(self, node: str) -> None:
        """End whatever a test has left there."""
        with changing(self.file) as state:
            state["queue"] = [one for one in state.get("queue", []) if node not in one["nodes"]]

    def boots(self, node: str) -> None:
        self.edit(node, r"BootTime=\S+", "BootTime=2026-11-30T06:00:00")

    def edit(self, node: str, pattern: str, words: str) -> None:
        """Change a node's record."""
        with changing(self.file) as state:
            state["nodes"][node] = re.sub(pattern, words, state["nodes"][node], count=1)

    def dies(self, node: str) -> None:
        """Slurmd does not answer for longer than SlurmdTimeout: as slurmctld shows it then."""
        with changing(self.file) as state:
            record = re.sub(r"State=\w+", "State=DOWN", state["nodes"][node], count=1)
            record = re.sub(r"(State=\S+)", r"\1+NOT_RESPONDING", record, count=1)
            if "Reason=" not in record:
                record = record.rstrip("\n") + "\n   Reason=Not responding [root@2026-11-30T06:00:00]\n"
            state["nodes"][node] = record

    def returns(self, node: str) -> None:
        """Slurmd is back: with ReturnToService=1 only a node whose reason is slurmctld's own comes up."""
        with changing(self.file) as state:
            record = state["nodes"][node].replace("+NOT_RESPONDING", "")
            if "Reason=Not responding [" in record and "DRAIN" not in record:
                record = re.sub(r"(?m)^ +Reason=.*\n", "", record.replace("State=DOWN", "State=IDLE"))
            state["nodes"][node] = record


class SlurmWorld:
    """A cluster whose answers can get lost; nodes are used in turn and cleaned before."""

    def __init__(self, cluster: Any, monkeypatch: pytest.MonkeyPatch, env: Mapping[str, str] | None = None) -> None:
        self.cluster, self._env = cluster, env
        self.mode = ""
        self._writes, self._ids = 0, itertools.count(1)
        self._names = getattr(cluster, "turn", None) or itertools.cycle(cluster.names)
        cluster.turn = self._names  # on to the next nodes in the next test
        self._left: dict[str, list[str]] = cluster.__dict__.setdefault("left", {})
        self._jobs: dict[str, str] = {}
        monkeypatch.setattr(executor_module, "run", self._run)
        self.executor = self.again()

    def again(self) -> Slurm:
        return Slurm(env=self._env)

    def _run(self, argv: Sequence[str], **more: Any) -> Ran:
        change = argv[1:2] in (("update",), ("reboot",), ("requeue",))
        if self.mode == "dead":
            return Ran(tuple(argv), "exit", code=1, err=_DEAD)
        if change:
            self._writes += 1
        ran: Ran = self.cluster.run(argv, **more)
        return Ran(tuple(argv), "exit", code=1, err=_LOST) if change and self.mode == "deaf" else ran

    def admin(self, *argv: str) -> str:
        """Let somebody else give a command."""
        self._writes += argv[1] in ("update", "reboot", "requeue")
        ran = self.cluster.run(argv, seconds=30.0, env=self._env)
        assert ran.ok, ran.sentence
        return str(ran.text)

    def record(self, node: str) -> dict[str, str]:
        ran = self.cluster.run(("scontrol", "-d", "show", "node", node), seconds=30.0, env=self._env)
        return show_records(ran.text)[0]

    def quiet(self, node: str) -> bool:
        """Whether nothing is about to change: it answers, has told its boot, and runs nothing."""
        record = self.record(node)
        flags = flags_of(record)
        busy = flags & {"NOT_RESPONDING", "COMPLETING", "MIXED", "ALLOCATED"} or "REBOOT" in " ".join(flags)
        return not busy and record["BootTime"] not in ("None", "Unknown")

    def until(self, what: str, holds: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < end, f"{what} did not come"
            time.sleep(0.1)

    def clean(self) -> str:
        """Return the next node, as if nobody had touched it."""
        node = next(self._names)
        for job in self._left.pop(node, ()):  # what was requeued would come back
            self.cluster.end(job)
        self.cluster.empty(node)
        self.until(f"the end of what {node} does", lambda: self.quiet(node))
        if flags_of(self.record(node)) & {"DRAIN", "DOWN", "FAIL"}:
            self.cluster.run(("scontrol", "update", f"nodename={node}", "state=resume"), seconds=30.0, env=self._env)
            self.until(f"{node} in service", lambda: self.quiet(node))
        return node

    def submit(self, node: str) -> str:
        """Hand in a job that Slurm may requeue and whose name no other has, and wait until it runs."""
        job: str = self.cluster.submit(node, f"llm-{time.time_ns():x}", requeue=True)
        self._left.setdefault(node, []).append(job)
        self.until("the job", lambda: self.job(job)["JobState"] == "RUNNING")
        return job

    def action(self, verb: str) -> Action:
        node, number = self.clean(), next(self._ids)
        identity = f"{verb}-{node[-3:]}-{number}-{time.time_ns():x}"
        expects: dict[str, Any] = {"booted": local_epoch(self.record(node)["BootTime"]), "owner": "", "schedulable": True}
        args: dict[str, Any] = {"reason": "[node] xid-79: GPU 3 has fallen off the bus", "expires": time.time() + 3600}
        if verb in ("uncordon", "reboot"):
            self.admin("scontrol", "update", f"nodename={node}", "state=drain", f"reason=gpu-workbench:op-{identity}: before")
            expects = {"owner": OWNER, "booted": expects["booted"]} if verb == "reboot" else {"owner": OWNER}
            args = {"op": f"op-{identity}"} if verb == "uncordon" else {"reason": "[node] xid-79: reboot"}
        if verb == "exclude":
            self._jobs[identity] = self.cluster.waiting(f"llm-{number}-{time.time_ns():x}")
            args |= {"job": self._jobs[identity], "node": node}
            return Action(identity, verb, "exclude-node", node, self._jobs[identity], args=args, expects=expects, undo="exclude")
        if verb == "restart-task":
            job = self._jobs[identity] = self.submit(node)
            expects["work"] = [job]
            return Action(identity, verb, "restart-task", node, f"{job} (train, alice)", args=args, expects=expects)
        if verb == "drain":
            self._jobs[identity] = self.cluster.submit(node)
            self.until("the job", lambda: flags_of(self.record(node)) & {"MIXED", "ALLOCATED"})
            expects["work"] = [self._jobs[identity]]
        return Action(identity, verb, "evacuate", node, args=args, expects=expects)

    def writes(self) -> int:
        return self._writes

    def job(self, number: str) -> dict[str, str]:
        """Return a job as slurmctld has it."""
        ran = self.cluster.run(("scontrol", "show", "job", number), seconds=30.0, env=self._env)
        return next(one for one in show_records(ran.text) if one["JobId"] == number)

    def shape(self, action: Action) -> Any:
        if action.verb in ("exclude", "restart-task"):
            return self._job_shape(action)
        self.until(
            "its boot", lambda: self.record(action.node)["BootTime"] not in ("None", "Unknown")
        )  # not for a moment after undrain
        record = self.record(action.node)
        state = "+".join(sorted(flags_of(record) - {"NOT_RESPONDING", "MIXED", "IDLE", "ALLOCATED", "COMPLETING"}))
        # a reason counts while something is restricted: from 24.11 on it stays, and nobody can take it away
        reason = split_reason(record.get("Reason"))[0] if state else ""
        booted = local_epoch(record["BootTime"])
        assert booted is not None
        return state, reason, round(booted / 60)

    def _job_shape(self, action: Action) -> Any:
        record = self.job(action.args.get("job") or action.expects["work"][0])
        comment = record.get("AdminComment", "")
        return record["ExcNodeList"], "" if comment == "(null)" else comment, record["Restarts"]

    def settle(self, action: Action) -> None:
        if action.verb == "exclude":
            return  # the job waits on
        if action.verb == "restart-task" and action.id in self._jobs:
            number = self._jobs[action.id]
            self.until("the end of the attempt", lambda: self.job(number)["JobState"] in ("PENDING", "CANCELLED"))
        if job := self._jobs.pop(action.id, ""):
            self.cluster.end(job)
        self.until("quiet", lambda: self.quiet(action.node))

    def foreign(self, action: Action) -> None:
        self.admin("scontrol", "update", f"nodename={action.node}", "state=drain", "reason=bob: dimm 3 is swapped")

    def differ(self, action: Action) -> None:
        if action.verb == "restart-task":  # the attempt that was meant is over
            self.cluster.end(self._jobs[action.id])
            self.until("its end", lambda: self.job(self._jobs[action.id])["JobState"] == "CANCELLED")
            return
        if action.verb == "uncordon":  # another action of ours holds it by now
            self.admin("scontrol", "update", f"nodename={action.node}", "state=drain", "reason=gpu-workbench:other: later")
            return
        self.cluster.boots(action.node)
        self.until("the other boot", lambda: self._other_boot(action))

    def _other_boot(self, action: Action) -> bool:
        booted = local_epoch(self.record(action.node)["BootTime"])
        return booted is not None and not same_boot(booted, action.expects["booted"])

    def meddle(self, action: Action) -> None:
        if action.verb == "exclude":
            self.admin("scontrol", "update", f"jobid={action.args['job']}", "admincomment=bob: mine")
            return
        self.admin("scontrol", "update", f"nodename={action.node}", "reason=bob: I look at it")

    @contextmanager
    def answer_lost(self) -> Iterator[None]:
        self.mode = "deaf"
        try:
            yield
        finally:
            self.mode = ""

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        self.mode = "dead"
        try:
            yield
        finally:
            self.mode = ""
