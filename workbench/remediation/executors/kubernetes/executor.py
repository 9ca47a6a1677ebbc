"""
Turn a Kubernetes cluster into the fleet that plans are made of, and each action of a plan into one conditional change of it.

What it may do is the manifest ``rbac-remediation.yaml``. Everything it changes bears the action's id, so what was begun is known after a crash.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.errors import SourceError
from workbench.remediation.executors.contract import Deadline, ExecutorError
from workbench.remediation.executors.expects import misfit
from workbench.remediation.executors.kubernetes import leave, restrict
from workbench.remediation.executors.kubernetes.calls import Calls, Conflict
from workbench.remediation.executors.kubernetes.cluster_api import ClusterApi
from workbench.remediation.executors.kubernetes.karpenter import Karpenter
from workbench.remediation.executors.kubernetes.machine import Machines
from workbench.remediation.executors.kubernetes.nodes import node_state
from workbench.remediation.executors.kubernetes.pods import Budgets
from workbench.remediation.executors.kubernetes.reading import Reader
from workbench.remediation.executors.kubernetes.watching import Watching
from workbench.remediation.executors.replacers import plugged
from workbench.remediation.model import Action, FleetState, NodeState, Step
from workbench.sources.kubernetes.api import Api

__all__ = ["Kubernetes"]

_TRIES = 8  # of a conditional change that others' changes get in the way of: a node that changes faster than this is in no state to judge
_SAY = 3.0  # seconds that telling of an action in an event may take: the action is done without it
_REASONS = {
    "cordon": "WorkbenchCordoned",
    "drain": "WorkbenchDraining",
    "uncordon": "WorkbenchUncordoned",
    "taint": "WorkbenchTainted",
    "label": "WorkbenchLabelled",
    "exclude": "WorkbenchExcluded",
    "evict": "WorkbenchEvicting",
    "restart-task": "WorkbenchRestartsTask",
    "replace": "WorkbenchReplaces",
}


class Kubernetes:
    """
    Changes nodes, pods and machines of one cluster; see `workbench.remediation.executors.contract.Executor`.

    Parameters
    ----------
    kubeconfig : str or Path, optional
        As in `workbench.sources.kubernetes.source.Kubernetes`.
    context : str, optional
    machines : str or Path, optional
        Kubeconfig of Cluster API's management cluster, where its Machines are; default: the same cluster.
    page : int
        Objects a page of a list.
    events : bool
        Whether each change is told in an event of its node.
    clock : callable, optional
        Returns the seconds since the epoch.
    """

    name = "kubernetes"
    verbs = frozenset(_REASONS)

    def __init__(
        self,
        kubeconfig: str | Path | None = None,
        context: str | None = None,
        *,
        machines: str | Path | None = None,
        page: int = 500,
        events: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.calls = Calls(Api(str(kubeconfig) if kubeconfig else None, context, clock), page)
        management = Calls(Api(str(machines), None, clock), page) if machines else self.calls
        self._machines = Machines(plugged(self.calls, (Karpenter(self.calls), ClusterApi(management))))
        self._reader = Reader(self.calls, clock, self._machines)
        self._events, self._clock = events, clock

    # ---- reading

    def fleet(self, deadline: Deadline) -> FleetState:
        """Return all nodes and their work; see `Reader.fleet`."""
        return self._reader.fleet(deadline)

    def node(self, name: str, deadline: Deadline) -> NodeState | None:
        """Return one node as it is now, or None; see `Reader.node`."""
        return self._reader.node(name, deadline)

    def watch(self) -> None:
        """Keep the fleet up to date by watches from now on, for who reads it again and again; `wait` then tells of news."""
        if not isinstance(self._reader, Watching):
            self._reader = Watching(self.calls, self._clock, self._machines)

    def wait(self, seconds: float) -> bool:
        """Wait at most so long; True as soon as a node shows something new. Without watches nothing is ever new."""
        if isinstance(self._reader, Watching):
            return self._reader.wait(seconds)
        time.sleep(seconds)
        return False

    def unwatched(self) -> list[str]:
        """Return why the fleet is listed and not watched, by kind; empty when watches have it."""
        return self._reader.lacks() if isinstance(self._reader, Watching) else ["nothing is watched"]

    def close(self) -> None:
        """End the watches."""
        if isinstance(self._reader, Watching):
            self._reader.close()

    # ---- acting

    def begin(self, action: Action, deadline: Deadline) -> Step:
        """Make the change if it has not been made; see `Executor.begin`. While it is `blocked`, a further call asks again."""
        return self._begin(action, deadline, dry=False)

    def rehearse(self, action: Action, deadline: Deadline) -> Step:
        """Return what `begin` would; the API server checks everything and writes nothing (``dryRun=All``)."""
        return self._begin(action, deadline, dry=True)

    def _begin(self, action: Action, deadline: Deadline, *, dry: bool) -> Step:
        self._can(action)
        for _ in range(_TRIES):
            try:
                step = self._attempt(action, deadline, dry=dry)
            except Conflict:
                continue  # it changed between the read and the write: all is judged anew
            return step
        raise ExecutorError(f"{action.node} changes faster than it can be changed", sent=False, again=5.0)

    def _attempt(self, action: Action, deadline: Deadline, *, dry: bool) -> Step:
        node = self.calls.node(action.node, deadline)
        if action.verb == "evict":
            return self._evict(action, node, deadline, dry=dry)
        if action.verb == "replace":
            return self._replace(action, node, deadline, dry=dry)
        if action.verb == "restart-task":
            leave.checked(action)
            if (far := leave.restarted(action, self.calls, self._clock(), deadline)).status != "absent":
                return far
            if why := self._misfit(action, node, deadline):
                return Step("changed", why)
            return self._said(action, leave.restart(action, self.calls, deadline, dry=dry), deadline, dry=dry)
        if node is not None and action.verb != "uncordon":
            step = restrict.seen(action, node)
            if step.status != "absent":
                return self._drained(action, step, deadline)
        if node is not None and restrict.lifts(action, node):
            return Step("done", "it was lifted")
        if why := self._misfit(action, node, deadline):
            return Step("changed", why)
        assert node is not None
        now = self._clock()
        patch = restrict.lifted(action, node, now) if action.verb == "uncordon" else restrict.made(action, node, now)
        if isinstance(patch, Step):
            return patch
        self.calls.patch_node(action.node, patch[0], deadline, dry=dry)
        step = self._said(action, Step("done", "", patch[1]), deadline, dry=dry)
        return step if dry else self._drained(action, step, deadline)

    def _evict(self, action: Action, node: dict[str, Any] | None, deadline: Deadline, *, dry: bool) -> Step:
        pods = leave.marked(action, node)
        if pods is None:
            if why := self._misfit(action, node, deadline, work=True):
                return Step("changed", why)
            assert node is not None
            pods = leave.meant(action, node_state(node, self._reader.work(action.node, deadline)))
            if not pods:
                return Step("done", "nothing runs there that could be lost", {"pods": {}})
            self.calls.patch_node(action.node, leave.noted(action, node, pods, self._clock()), deadline, dry=dry)
            self._said(action, Step("pending"), deadline, dry=dry)
        step = leave.ask(self.calls, pods, self._reader.pods(action.node, deadline), deadline, dry=dry)
        if step.status == "done":  # nobody was left to be asked: are they gone, or do they end?
            step = leave.left(pods, self._reader.pods(action.node, deadline), Budgets(()), self._clock())
        return replace(step, before={"pods": pods})

    def _replace(self, action: Action, node: dict[str, Any] | None, deadline: Deadline, *, dry: bool) -> Step:
        machines = self._machines
        meant = machines.marked(action, node)
        far = machines.far(action, node, deadline)
        if far.status != "absent":
            return far
        if meant is None:
            if why := self._misfit(action, node, deadline):
                return Step("changed", why)
            assert node is not None
            found = machines.find(action, node, deadline)
            if isinstance(found, Step):
                return found
            meant = found[0]
            self.calls.patch_node(action.node, machines.noted(action, node, meant, self._clock()), deadline, dry=dry)
        return self._said(action, machines.give_back(action, meant, deadline, dry=dry), deadline, dry=dry)

    def _misfit(self, action: Action, node: Mapping[str, Any] | None, deadline: Deadline, *, work: bool = False) -> str:
        if node is None:
            return misfit(action.expects, None)
        expects = dict(action.expects)
        if action.verb == "uncordon" and action.args.get("op"):
            expects["op"] = action.args["op"]  # whose restriction is lifted: one that came since stays
        runs = self._reader.work(action.node, deadline) if work or "work" in action.expects else ()
        claim = self._reader.claim(node, deadline) if "claim" in action.expects else ""
        return misfit(expects, node_state(node, runs, claim=claim))

    def _drained(self, action: Action, step: Step, deadline: Deadline) -> Step:
        """Return a drain as pending while something runs that would be lost."""
        if action.verb != "drain" or step.status != "done":
            return step
        runs = [one.id for one in self._reader.work(action.node, deadline) if not one.ignored]
        if not runs:
            return step
        return replace(step, status="pending", detail=f"{len(runs)} pods still run: {', '.join(runs[:3])}", again=30.0)

    def look(self, action: Action, deadline: Deadline) -> Step:
        """Tell how far an action is; changes nothing."""
        self._can(action)
        if action.verb == "restart-task":
            leave.checked(action)
            return leave.restarted(action, self.calls, self._clock(), deadline)
        node = self.calls.node(action.node, deadline)
        if action.verb == "replace":
            return self._machines.far(action, node, deadline)
        if node is None or action.expects.get("uid") not in (None, node["metadata"].get("uid")):
            return Step("changed", "the node is gone" if node is None else "another machine has its name")
        if action.verb == "evict":
            pods = leave.marked(action, node)
            budgets = Budgets(self._reader.budgets(deadline).items) if pods else Budgets(())
            return leave.left(pods, self._reader.pods(action.node, deadline) if pods else [], budgets, self._clock())
        if action.verb == "uncordon":
            return restrict.is_lifted(action, node)
        return self._drained(action, restrict.seen(action, node), deadline)

    def undo(self, action: Action, before: Mapping[str, Any], deadline: Deadline) -> Step:
        """Take back what the action changed on the node, if it still is as the action made it."""
        return self._undo(action, before, deadline, dry=False)

    def rehearse_undo(self, action: Action, before: Mapping[str, Any], deadline: Deadline) -> Step:
        """Return what `undo` would; the API server checks the patch and writes nothing (``dryRun=All``)."""
        return self._undo(action, before, deadline, dry=True)

    def _undo(self, action: Action, before: Mapping[str, Any], deadline: Deadline, *, dry: bool) -> Step:
        self._can(action)
        if action.verb in ("evict", "restart-task", "replace"):
            return Step("failed", f"{action.verb} cannot be taken back")
        for _ in range(_TRIES):
            node = self.calls.node(action.node, deadline)
            if node is None or action.expects.get("uid") not in (None, node["metadata"].get("uid")):
                return Step("done", "the node is gone, and what was changed with it")
            patch = restrict.restored(action, node, before) if action.verb == "uncordon" else restrict.taken_back(action, node)
            if isinstance(patch, Step):
                return patch
            try:
                self.calls.patch_node(action.node, patch[0], deadline, dry=dry)
            except Conflict:
                continue
            return self._said(action, Step("done"), deadline, dry=dry, undone=True)
        raise ExecutorError(f"{action.node} changes faster than it can be changed", sent=False, again=5.0)

    def _can(self, action: Action) -> None:
        if action.verb not in self.verbs:
            raise ExecutorError(
                f"Kubernetes cannot do {action.verb!r}", hint=f"it can {', '.join(sorted(self.verbs))}", sent=False
            )

    def _said(self, action: Action, step: Step, deadline: Deadline, *, dry: bool, undone: bool = False) -> Step:
        """Tell of a change in an event; that nobody took it is told in the step and undoes nothing."""
        if dry or not self._events or step.status not in ("done", "pending"):
            return step
        word, key = ("WorkbenchUndid", "undo") if undone else (_REASONS[action.verb], "did")
        text = f"{action.verb} ({action.rung}), action {action.id}: {action.args.get('reason') or action.why}"
        try:
            self.calls.event(action.node, f"{key}/{action.id}", word, text, self._clock(), Deadline(deadline.left(_SAY)))
        except (ExecutorError, SourceError) as error:
            return replace(step, detail=f"{step.detail}{'; ' if step.detail else ''}no event tells of it: {error}")
        return step
