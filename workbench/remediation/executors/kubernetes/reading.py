"""Turn what an API server has of nodes, pods, disruption budgets, machines and boots into a fleet, whole or with what could not be seen."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from workbench.errors import SourceError
from workbench.parse.kubernetes_reasons import epoch
from workbench.remediation.executors.contract import Deadline, ExecutorError
from workbench.remediation.executors.kubernetes.calls import CLAIMS, Calls
from workbench.remediation.executors.kubernetes.karpenter import claim_from
from workbench.remediation.executors.kubernetes.machine import Machines
from workbench.remediation.executors.kubernetes.marks import labels_of
from workbench.remediation.executors.kubernetes.nodes import node_state
from workbench.remediation.executors.kubernetes.pods import Budgets, finished, gpus_of, of_jobs, selector_of, work_of
from workbench.remediation.model import FleetState, NodeState, Work
from workbench.sources.kubernetes.api import Listing
from workbench.sources.kubernetes.collect import ODD
from workbench.sources.kubernetes.errors import place

__all__ = ["BUDGETS", "EVENTS", "NODES", "PLACED", "PODS", "REBOOTED", "Reader", "slim"]

NODES, PODS, BUDGETS, EVENTS = (
    "/api/v1/nodes",
    "/api/v1/pods",
    "/apis/policy/v1/poddisruptionbudgets",
    "/api/v1/namespaces/default/events",
)
RUNNING = "status.phase!=Succeeded,status.phase!=Failed"
PLACED = f"spec.nodeName!=,{RUNNING}"
REBOOTED = "reason=Rebooted,involvedObject.kind=Node"
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
    machines : Machines
    """

    def __init__(self, calls: Calls, clock: Callable[[], float], machines: Machines) -> None:
        self.calls, self._clock, self._machines = calls, clock, machines

    def fleet(self, deadline: Deadline) -> FleetState:
        """
        Return all nodes and their work; what could not be seen makes it incomplete, and `problems` say what that is.

        Raises
        ------
        ExecutorError
            Not one node could be seen.
        """
        rows: dict[str, dict[str, Any]] = {}  # by uid: a list that expired on the server comes twice

        def keep(pod: dict[str, Any]) -> bool:
            rows[str(pod["metadata"].get("uid"))] = slim(pod)
            return False

        ask = self.calls.list
        parts: list[Callable[[], Listing]] = [
            lambda: ask(NODES, ("list", "", "nodes"), deadline),
            lambda: ask(PODS, ("list", "", "pods"), deadline, keep, fieldSelector=PLACED),
            lambda: self.budgets(deadline),
            lambda: self._claims(deadline),
            lambda: self._boots(deadline),
        ]
        self._open(deadline)
        with ThreadPoolExecutor(len(parts), thread_name_prefix="kubernetes") as pool:
            nodes, *others = [done.result() for done in [pool.submit(_tried, part) for part in parts]]
        if isinstance(nodes, ExecutorError):
            raise nodes
        lacks = [_lack(one) for one in (nodes, *others)]
        budgets, claims, boots = (_items(one) for one in others[1:])
        return self.assembled(nodes.items, list(rows.values()), budgets, claims, boots, lacks[:3], lacks[3:])

    def assembled(
        self,
        nodes: Iterable[dict[str, Any]],
        pods: Iterable[dict[str, Any]],
        budgets: Iterable[dict[str, Any]],
        claims: Iterable[dict[str, Any]],
        boots: Iterable[dict[str, Any]],
        lacks: Iterable[str] = (),
        told: Iterable[str] = (),
    ) -> FleetState:
        """
        Return the fleet that objects are; one of an odd shape is a part that could not be seen.

        Parameters
        ----------
        nodes, pods, budgets, claims, boots : iterables of dict
            Objects as the server has them; of pods what `slim` leaves is enough.
        lacks, told : iterables of str
            What could not be seen: without the former the fleet is not whole, of the latter only told. Empty ones say nothing.
        """
        odd: list[str] = []
        covering = Budgets(budgets)
        runs: list[tuple[str, Work]] = []
        for pod in pods:
            try:
                where = (pod.get("spec") or {}).get("nodeName")
                if where and not finished(pod):
                    runs.append((str(where), self.work_of(pod, covering)))
            except ODD as error:
                odd.append(_odd("pod", pod, error))
        work, booted = of_jobs(runs), _booted(boots)
        by_node = {str((one.get("status") or {}).get("nodeName")): str(one["metadata"].get("name")) for one in claims}
        states: dict[str, NodeState] = {}
        strange: set[str] = set()
        for node in nodes:
            name = str(node["metadata"].get("name"))
            try:
                claim = self._machines.claim_of(node, strange) or by_node.get(name, "")
                boot = str(((node.get("status") or {}).get("nodeInfo") or {}).get("bootID") or "")
                state = self.node_state(node, claim, booted.get((name, boot)))
                states[name] = replace(state, work=work.get(name, ()))
            except ODD as error:
                odd.append(_odd("node", node, error))
        missing = [one for one in lacks if one] + odd[:_SHOWN]
        problems = (*missing, *(one for one in told if one), *sorted(strange)[:_SHOWN])
        return FleetState(self._clock(), states, place(self.calls.api.host), not missing, problems)

    def work_of(self, pod: dict[str, Any], covering: Budgets) -> Work:
        """Return a pod as work."""
        return work_of(pod, covering)

    def node_state(self, node: dict[str, Any], claim: str, booted: float | None) -> NodeState:
        """Return a node without its work."""
        return node_state(node, claim=claim, booted=booted)

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
        return self.calls.list(BUDGETS, ("list", "policy", "poddisruptionbudgets"), deadline)

    def _claims(self, deadline: Deadline, keep: Callable[[dict[str, Any]], bool] | None = None) -> Listing:
        try:
            return self.calls.list(CLAIMS, ("list", "karpenter.sh", "nodeclaims"), deadline, keep)
        except ExecutorError as error:
            if getattr(error.__cause__, "kind", "") == "absent":
                return Listing()  # no Karpenter here
            raise

    def _boots(self, deadline: Deadline, name: str = "") -> Listing:
        """Return the events by which kubelets tell of a boot; the API server keeps them for an hour."""
        selector = REBOOTED + (f",involvedObject.name={name}" if name else "")
        return self.calls.list(EVENTS, ("list", "", "events"), deadline, fieldSelector=selector)

    def claim(self, node: Mapping[str, Any], deadline: Deadline) -> str:
        name = self._machines.claim_of(node)
        if name or "karpenter.sh/nodepool" not in labels_of(node):
            return name
        found = _whole(self._claims(deadline, keep=lambda claim: claim_from(claim).fits(node)), "NodeClaims")
        return str(found[0]["metadata"].get("name")) if found else ""

    def pods(self, name: str, deadline: Deadline) -> list[dict[str, Any]]:
        found = self.calls.list(PODS, ("list", "", "pods"), deadline, fieldSelector=f"spec.nodeName={name},{RUNNING}")
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
        found = self.calls.list(path, ("list", "", "pods"), deadline, keep, labelSelector=selector, fieldSelector=RUNNING)
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


def _lack(one: Listing | ExecutorError) -> str:
    """Return why a list is not all; empty when it is."""
    return str(one) if isinstance(one, ExecutorError) else "" if one.error is None else f"not all came: {one.error}"


def _items(one: Listing | ExecutorError) -> list[dict[str, Any]]:
    return [] if isinstance(one, ExecutorError) else one.items


def _odd(kind: str, item: Mapping[str, Any], error: Exception) -> str:
    """Say that an object is not what it should be: a part of the fleet that could not be seen."""
    return f"the API server sent the {kind} {(item.get('metadata') or {}).get('name')} in an unexpected shape: {type(error).__name__}: {error}"


def _booted(events: Iterable[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """Return when nodes came up, by name and boot id, as kubelets said."""
    found: dict[tuple[str, str], float] = {}
    for event in events:
        said = _BOOT.search(str(event.get("message") or ""))
        when = epoch(event.get("firstTimestamp") or event.get("eventTime"))
        if said and when is not None:
            found[str((event.get("involvedObject") or {}).get("name")), said[1].rstrip(".")] = when
    return found


def slim(pod: dict[str, Any]) -> dict[str, Any]:
    """Return what of a pod work is made of: the rest of a large cluster's pods need not be held in memory. An odd one stays as it is."""
    try:
        spec, status = pod.get("spec") or {}, pod.get("status") or {}
        meta = {key: one for key, one in pod["metadata"].items() if key != "managedFields"}
        kept = {key: spec.get(key) for key in ("nodeName", "terminationGracePeriodSeconds")}
        kept["containers"] = [{"resources": one.get("resources")} for one in spec.get("containers") or []]
        return {"metadata": meta, "spec": kept, "status": {key: status.get(key) for key in ("phase", "startTime")}}
    except ODD:
        return pod
