"""Turn what an API server has of nodes, pods, disruption budgets, machines and boots into a fleet, whole or with what could not be seen."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from workbench.errors import SourceError
from workbench.parse.kubernetes_reasons import epoch
from workbench.remediation.executors.contract import Deadline, ExecutorError
from workbench.remediation.executors.kubernetes import machine
from workbench.remediation.executors.kubernetes.calls import CLAIMS, Calls
from workbench.remediation.executors.kubernetes.marks import labels_of
from workbench.remediation.executors.kubernetes.nodes import node_state
from workbench.remediation.executors.kubernetes.pods import Budgets, finished, gpus_of, of_jobs, selector_of, work_of
from workbench.remediation.model import FleetState, NodeState, Work
from workbench.sources.kubernetes.api import Listing
from workbench.sources.kubernetes.collect import ODD
from workbench.sources.kubernetes.errors import place

__all__ = ["Reader"]

_RUNNING = "status.phase!=Succeeded,status.phase!=Failed"
_BOOT = re.compile(r"boot id: (\S+)")
_SHOWN = 3


class Reader:
    """
    Reads a cluster for the executor; changes nothing.

    Parameters
    ----------
    calls : Calls
    clock : callable
        Returns the seconds since the epoch.
    """

    def __init__(self, calls: Calls, clock: Callable[[], float]) -> None:
        self.calls, self._clock = calls, clock

    def fleet(self, deadline: Deadline) -> FleetState:
        """
        Return all nodes and their work; what could not be seen makes it incomplete, and `problems` say what that is.

        Raises
        ------
        ExecutorError
            Not one node could be seen.
        """
        rows: dict[str, tuple[str, dict[str, Any]]] = {}  # by uid: a list that expired on the server comes twice
        odd: list[str] = []

        def keep(pod: dict[str, Any]) -> bool:
            try:
                node = (pod.get("spec") or {}).get("nodeName")
                if node and not finished(pod):
                    rows[str(pod["metadata"].get("uid"))] = str(node), _slim(pod)
            except ODD as error:
                odd.append(_odd("pod", pod, error))
            return False

        ask = self.calls.list
        parts: list[Callable[[], Listing]] = [
            lambda: ask("/api/v1/nodes", ("list", "", "nodes"), deadline),
            lambda: ask("/api/v1/pods", ("list", "", "pods"), deadline, keep, fieldSelector=f"spec.nodeName!=,{_RUNNING}"),
            lambda: self.budgets(deadline),
            lambda: self._claims(deadline),
            lambda: self._boots(deadline),
        ]
        self._open(deadline)
        with ThreadPoolExecutor(len(parts), thread_name_prefix="kubernetes") as pool:
            nodes, *others = [done.result() for done in [pool.submit(_tried, part) for part in parts]]
        if isinstance(nodes, ExecutorError):
            raise nodes
        problems = [
            str(one) if isinstance(one, ExecutorError) else f"not all came: {one.error}" for one in others[:2] if _lacks(one)
        ]
        if nodes.error is not None:
            problems.append(f"not all nodes came: {nodes.error}")
        whole = not problems
        problems += [
            str(one) if isinstance(one, ExecutorError) else f"not all came: {one.error}" for one in others[2:] if _lacks(one)
        ]
        budgets, claims, boots = (_items(one) for one in others[1:])
        covering = Budgets(budgets)
        runs: list[tuple[str, Work]] = []
        for node_name, pod in rows.values():
            try:
                runs.append((node_name, work_of(pod, covering)))
            except ODD as error:
                odd.append(_odd("pod", pod, error))
        work = of_jobs(runs)
        booted = _booted(boots)
        by_node = {str((one.get("status") or {}).get("nodeName")): str(one["metadata"].get("name")) for one in claims}
        states = {}
        for node in nodes.items:
            name = str(node["metadata"].get("name"))
            try:
                claim = machine.claim_of(node) or by_node.get(name, "")
                boot = str(((node.get("status") or {}).get("nodeInfo") or {}).get("bootID") or "")
                states[name] = node_state(node, work.get(name, ()), claim=claim, booted=booted.get((name, boot)))
            except ODD as error:
                odd.append(_odd("node", node, error))
        return FleetState(self._clock(), states, place(self.calls.api.host), whole and not odd, (*problems, *odd[:_SHOWN]))

    def node(self, name: str, deadline: Deadline) -> NodeState | None:
        """
        Return one node as it is now; None when there is none of that name.

        Raises
        ------
        ExecutorError
            It, its pods or their budgets cannot be seen.
        """
        node = self.calls.node(name, deadline)
        if node is None:
            return None
        boots = _tried(lambda: self._boots(deadline, name))
        boot = str(((node.get("status") or {}).get("nodeInfo") or {}).get("bootID") or "")
        return node_state(
            node, self.work(name, deadline), claim=self.claim(node, deadline), booted=_booted(_items(boots)).get((name, boot))
        )

    def _open(self, deadline: Deadline) -> None:
        try:
            self.calls.api.open(deadline)
        except SourceError as error:
            raise ExecutorError(str(error), hint=error.hint, sent=False) from error

    def budgets(self, deadline: Deadline) -> Listing:
        return self.calls.list("/apis/policy/v1/poddisruptionbudgets", ("list", "policy", "poddisruptionbudgets"), deadline)

    def _claims(self, deadline: Deadline, keep: Callable[[dict[str, Any]], bool] | None = None) -> Listing:
        try:
            return self.calls.list(CLAIMS, ("list", "karpenter.sh", "nodeclaims"), deadline, keep)
        except ExecutorError as error:
            if getattr(error.__cause__, "kind", "") == "absent":
                return Listing()  # no Karpenter here
            raise

    def _boots(self, deadline: Deadline, name: str = "") -> Listing:
        """Return the events by which kubelets tell of a boot; the API server keeps them for an hour."""
        selector = "reason=Rebooted,involvedObject.kind=Node" + (f",involvedObject.name={name}" if name else "")
        return self.calls.list("/api/v1/namespaces/default/events", ("list", "", "events"), deadline, fieldSelector=selector)

    def claim(self, node: Mapping[str, Any], deadline: Deadline) -> str:
        name = machine.claim_of(node)
        if name or "karpenter.sh/nodepool" not in labels_of(node):
            return name
        found = _whole(self._claims(deadline, keep=lambda claim: machine.fits(claim, node)), "NodeClaims")
        return str(found[0]["metadata"].get("name")) if found else ""

    def pods(self, name: str, deadline: Deadline) -> list[dict[str, Any]]:
        found = self.calls.list("/api/v1/pods", ("list", "", "pods"), deadline, fieldSelector=f"spec.nodeName={name},{_RUNNING}")
        return _whole(found, f"pods of {name}")

    def work(self, name: str, deadline: Deadline) -> tuple[Work, ...]:
        pods = self.pods(name, deadline)
        if not pods:
            return ()
        budgets = _whole(self.budgets(deadline), "disruption budgets")
        covering, totals, whole = Budgets(budgets), dict[tuple[str, str], int](), dict[str, int]()
        rows = [(name, work_of(pod, covering)) for pod in pods]
        for pod, (_, one) in zip(pods, rows, strict=True):
            key = (one.id.partition("/")[0], selector_of(pod) if one.gang and one.gpus else "")
            if key[1]:
                if key not in totals:
                    totals[key] = self._gpus(*key, deadline)
                whole[one.id] = totals[key]
        return tuple(replace(one, job_gpus=whole.get(one.id, one.job_gpus)) for one in of_jobs(rows)[name])

    def _gpus(self, space: str, selector: str, deadline: Deadline) -> int:
        """Return the GPUs of a whole job."""
        gpus: dict[str, int] = {}  # by uid: a list that expired on the server comes twice

        def keep(pod: dict[str, Any]) -> bool:
            if (pod.get("spec") or {}).get("nodeName") and not finished(pod):
                gpus[str(pod["metadata"].get("uid"))] = gpus_of(pod)
            return False

        path = f"/api/v1/namespaces/{quote(space, safe='')}/pods"
        found = self.calls.list(path, ("list", "", "pods"), deadline, keep, labelSelector=selector, fieldSelector=_RUNNING)
        _whole(found, f"pods of {selector}")
        return sum(gpus.values())


def _whole(found: Listing, what: str) -> list[dict[str, Any]]:
    """Return the objects of a list that is all; raises `ExecutorError` when it is not: what is missing may be what matters."""
    if found.error is not None:
        raise ExecutorError(f"not all {what} could be seen: {found.error}", hint=found.error.hint, sent=False)
    return found.items


def _tried(part: Callable[[], Listing]) -> Listing | ExecutorError:
    try:
        return part()
    except ExecutorError as error:
        return error


def _lacks(one: Listing | ExecutorError) -> bool:
    return isinstance(one, ExecutorError) or one.error is not None


def _items(one: Listing | ExecutorError) -> list[dict[str, Any]]:
    return [] if isinstance(one, ExecutorError) else one.items


def _odd(kind: str, item: Mapping[str, Any], error: Exception) -> str:
    """Say that an object is not what it should be: a part of the fleet that could not be seen."""
    return f"the API server sent the {kind} {(item.get('metadata') or {}).get('name')} in an unexpected shape: {type(error).__name__}: {error}"


def _booted(events: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """Return when nodes came up, by name and boot id, as kubelets said."""
    found: dict[tuple[str, str], float] = {}
    for event in events:
        said = _BOOT.search(str(event.get("message") or ""))
        when = epoch(event.get("firstTimestamp") or event.get("eventTime"))
        if said and when is not None:
            found[str((event.get("involvedObject") or {}).get("name")), said[1].rstrip(".")] = when
    return found


def _slim(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a pod work is made of: the rest of a large cluster's pods need not be held in memory."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    meta = {key: one for key, one in (pod.get("metadata") or {}).items() if key != "managedFields"}
    containers = [{"resources": one.get("resources")} for one in spec.get("containers") or []]
    return {
        "metadata": meta,
        "spec": {"containers": containers, "terminationGracePeriodSeconds": spec.get("terminationGracePeriodSeconds")},
        "status": {"phase": status.get("phase"), "startTime": status.get("startTime")},
    }
