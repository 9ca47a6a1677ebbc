"""
Turn a Kubernetes cluster into a part of the fleet: its GPU nodes, what checks and monitors show on them, and the jobs on them.

Reads nodes, pods and the events of nodes with the rights of ``sources/kubernetes/rbac.yaml``, and writes nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from workbench.catalog.findings import findings_table
from workbench.errors import SourceError
from workbench.health.conditions import FIT, NodeCondition, camel, is_stale
from workbench.model import Condition, Event
from workbench.parse.kubernetes import parse_objects
from workbench.parse.kubernetes_owners import owner_of
from workbench.parse.kubernetes_pods import pod_identity, ranks_of_pod
from workbench.parse.kubernetes_reasons import epoch, gpu_in
from workbench.remediation.conditions import of_node
from workbench.remediation.executors.kubernetes.nodes import node_state
from workbench.remediation.executors.kubernetes.pods import Budgets, finished, work_of
from workbench.remediation.executors.kubernetes.reading import slim
from workbench.site.parts import NodeSeen, Part
from workbench.sources.contract import Deadline
from workbench.sources.kubernetes.api import Api, Listing
from workbench.sources.kubernetes.collect import ODD, rule
from workbench.sources.kubernetes.errors import ApiError, place
from workbench.sources.kubernetes.jobs import Wanted, path_of
from workbench.sources.kubernetes.write import COMPONENT

__all__ = ["KubernetesFleet"]

_PLACED = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
_GPU = re.compile(r"^(?:nvidia\.com/(?:gpu|mig-\S+)|amd\.com/gpu)")
_EVENTS = 4  # pages of events of nodes: the newest trouble of a fleet is not in thousands of old ones
_FRESH = 1200.0  # seconds: a warning that lasts is told again every ten minutes


class KubernetesFleet:
    """
    One cluster; `read` gives its part, see `workbench.site.live`.

    Parameters
    ----------
    api : Api
    namespace : str, optional
        Where pods may be listed; default everywhere.
    page : int
        Objects a page of a list.
    """

    name = "kubernetes"

    def __init__(self, api: Api, namespace: str | None = None, *, page: int = 500) -> None:
        self._api, self._namespace, self._page = api, namespace, page

    def read(self, deadline: Deadline, watched: tuple[str, ...] = ()) -> Part:
        """
        Return what the cluster tells now; without pods or events it is partial and says so.

        Raises
        ------
        SourceError
            Not even the nodes could be listed.
        """
        del watched
        self._api.open(deadline)
        now = time.time()
        with ThreadPoolExecutor(3, thread_name_prefix="fleet-kubernetes") as pool:
            asked = [pool.submit(work, deadline) for work in (self._nodes, self._pods, self._events)]
            nodes, pods, events = (one.result() for one in asked)
        if isinstance(nodes, SourceError):
            raise nodes
        lacks = [(what, one) for what, one in (("nodes", nodes), ("pods", pods), ("events of nodes", events)) if _error(one)]
        seen: list[NodeSeen] = []
        findings: list[dict[str, Any]] = []
        odd: list[str] = []
        ours: list[dict[str, Any]] = []
        for item in nodes.items:
            try:
                if not _has_gpus(item):
                    continue
                one, found = _node(item, now)
            except ODD as error:
                odd.append(f"node {item['metadata'].get('name')}: {type(error).__name__}: {error}")
                continue
            ours.append(item)
            seen.append(one)
            findings += found
        names = {one.node for one in seen}
        parsed = parse_objects(ours, file="nodes")
        told = [one for one in _items(events) if str((one.get("involvedObject") or {}).get("name")) in names]
        findings += _warnings(told, now)
        work = list(_work((pod for pod in _items(pods)), names))
        detail = "; ".join(
            [f"{what} could not be read: {_error(one)}" for what, one in lacks]
            + ([f"{len(odd)} odd objects: {odd[0]}"] if odd else [])
        )
        hint = next((_hint(what, one, self._namespace) for what, one in lacks), "")
        query = {"kubectl": "kubectl get nodes -o json"}
        return Part(
            self.name,
            now,
            "partial" if detail else "ok" if seen else "missing",
            detail or ("" if seen else f"the cluster {place(self._api.host)} has no node with GPUs"),
            hint or ("" if seen else "is the device plugin running? `workbench doctor` tells"),
            nodes=tuple(seen),
            findings=tuple(findings),
            conditions=tuple(_conditions(parsed.conditions)),
            work=tuple(work),
            events=tuple(_events(parsed.events, told)),
            addresses=_addresses(ours),
            queries={
                "conditions": query,
                "nodes": query,
                "jobs": {"kubectl": f"kubectl get pods -A --field-selector '{_PLACED}' -o json"},
            },
        )

    def _nodes(self, deadline: Deadline) -> Listing | SourceError:
        return self._tried(lambda: self._api.list("/api/v1/nodes", deadline, page=self._page))

    def _pods(self, deadline: Deadline) -> Listing | SourceError:
        rows: list[dict[str, Any]] = []

        def keep(pod: dict[str, Any]) -> bool:
            rows.append(slim(pod) | {"numbers": _numbers(pod)})  # the rest of a large cluster's pods need not be held
            return False

        path = path_of("", "v1", "pods", self._namespace)
        found = self._tried(lambda: self._api.list(path, deadline, {"fieldSelector": _PLACED}, page=self._page, keep=keep))
        if isinstance(found, Listing):
            found.items = list({str(pod["metadata"].get("uid")): pod for pod in rows}.values())  # an expired list comes twice
        return found

    def _events(self, deadline: Deadline) -> Listing | SourceError:
        query = {"fieldSelector": "involvedObject.kind=Node,type=Warning"}
        path = path_of("", "v1", "events", "default")
        return self._tried(lambda: self._api.list(path, deadline, query, page=self._page, most_pages=_EVENTS))

    @staticmethod
    def _tried(ask: Callable[[], Listing]) -> Listing | SourceError:
        try:
            return ask()
        except SourceError as error:
            return error


def _error(one: Listing | SourceError) -> SourceError | None:
    return one if isinstance(one, SourceError) else one.error


def _items(one: Listing | SourceError) -> list[dict[str, Any]]:
    return [] if isinstance(one, SourceError) else one.items


def _hint(what: str, one: Listing | SourceError, namespace: str | None) -> str:
    error = _error(one)
    if isinstance(error, ApiError) and error.kind == "forbidden":
        resource = "events" if what.startswith("events") else what
        return rule(Wanted("list", "", resource, namespace if resource == "pods" else None))
    return error.hint if error is not None else ""


# -- nodes ----------------------------------------------------------------------------------------------------------------


def _has_gpus(item: Mapping[str, Any]) -> bool:
    """Tell whether a node has, had or should have GPUs: also one whose device plugin offers none now."""
    status, labels = item.get("status") or {}, (item.get("metadata") or {}).get("labels") or {}
    named = any(_GPU.match(str(key)) for kind in ("capacity", "allocatable") for key in status.get(kind) or {})
    labelled = any(str(key) in ("nvidia.com/gpu.present", "nvidia.com/gpu.count", "nvidia.com/gpu.product") for key in labels)
    return named or labelled or any(str(one.get("type")) == FIT for one in status.get("conditions") or [])


def _node(item: Mapping[str, Any], now: float) -> tuple[NodeSeen, list[dict[str, Any]]]:
    """Return a node and the findings that our checks show on it."""
    state, status = node_state(item), item.get("status") or {}
    raw = [NodeCondition.of(one) for one in status.get("conditions") or []]
    ready = next((one for one in raw if one.type == "Ready"), None)
    fit = next((one for one in raw if one.type == FIT), None)
    usable = [
        int(value) for key, value in (status.get("allocatable") or {}).items() if _GPU.match(str(key)) and str(value).isdigit()
    ]
    word = (
        "NotTold"
        if ready is None
        else "Ready"
        if ready.status == "True"
        else "Unknown"
        if ready.status == "Unknown"
        else "NotReady"
    )
    seen = NodeSeen(
        state.name,
        state.pool,
        state.zone,
        state.sku,
        gpus=state.gpus or None,
        usable=sum(usable) if usable else None,
        ready=None if ready is None else ready.status == "True",
        schedulable=state.schedulable,
        held_by=state.owner,
        reason=state.reason or (ready.message if ready is not None and ready.status != "True" else ""),
        state=word + ("" if state.schedulable else ",SchedulingDisabled"),
        since=state.restricted
        if state.restricted is not None
        else ready.transition
        if ready and ready.status != "True"
        else None,
    )
    if fit is not None:
        seen = replace(seen, checked=fit.heartbeat)
        if fit.status == "Unknown" and not is_stale(fit, now):
            seen = replace(seen, unchecked=fit.message or "its health check could not look")
        elif is_stale(fit, now):
            seen = replace(seen, unchecked=f"nobody has checked it for {(now - fit.heartbeat) / 60:.0f} min: its checker is gone")
        else:
            seen = replace(seen, fit=fit.status == "False")
    return seen, list(_findings(state, raw, now))


def _findings(state: Any, raw: list[NodeCondition], now: float) -> Iterator[dict[str, Any]]:
    """Yield a row for each kind of trouble that was looked for, well ones among them."""
    troubles, _ = of_node(state, now)
    bad = {(one.summary, one.since): one for one in troubles if one.severity == "critical"}
    for one in raw:
        if not one.type.startswith("Workbench") or one.type == FIT:
            continue
        gpu = gpu_in(one.message) if one.status == "True" else None
        row: dict[str, Any] = {
            "node": state.name,
            "gpu_index": gpu.index if gpu else None,
            "gpu_uuid": (gpu.uuid or gpu.pci) if gpu else None,
            "check": one.message.partition(": ")[0] if one.status == "True" else one.type,
            "code": "",
            "status": {"True": "critical", "False": "ok"}.get(one.status, "unknown"),
            "message": one.message,
            "action": "none",
            "time": one.heartbeat,
            "since": one.transition,
            "source": "workbench check",
        }
        if is_stale(one, now):
            row["status"], row["message"] = "unknown", f"(not renewed for {(now - one.heartbeat) / 60:.0f} min) {one.message}"
        elif trouble := bad.get((one.message, one.transition)):
            row |= {"code": trouble.code, "class": trouble.cls, "action": trouble.action}
        yield row


def _warnings(events: Iterable[Mapping[str, Any]], now: float) -> Iterator[dict[str, Any]]:
    """Yield the warnings that our checker told of in events: what does not make a node unfit."""
    known = {camel(code): row for code, row in findings_table().items()}
    for event in events:
        last = epoch(event.get("lastTimestamp"))
        if (event.get("source") or {}).get("component") != COMPONENT or last is None or now - last > _FRESH:
            continue
        message, row = str(event.get("message") or ""), known.get(str(event.get("reason") or ""))
        gpu = gpu_in(message)
        yield {
            "node": str((event.get("involvedObject") or {}).get("name")),
            "gpu_index": gpu.index if gpu else None,
            "gpu_uuid": (gpu.uuid or gpu.pci) if gpu else None,
            "check": message.partition(": ")[0],
            "code": row.code if row else str(event.get("reason") or ""),
            "status": "warning",
            "class": row.cls if row else "",
            "message": message,
            "action": row.action if row else "none",
            "time": last,
            "since": epoch(event.get("firstTimestamp")),
            "source": "workbench check",
        }


def _conditions(found: Iterable[Condition]) -> Iterator[Condition]:
    for one in found:
        one.file, one.line = "", None
        yield one


def _events(of_nodes: Iterable[Event], told: list[dict[str, Any]]) -> Iterator[Event]:
    """Yield what conditions turned bad and what kubelets and monitors said, without our own word on it."""
    others = [one for one in told if (one.get("source") or {}).get("component") != COMPONENT]
    for event in [*of_nodes, *parse_objects(others, file="events").events]:
        event.file, event.line = "", None
        if event.time is not None and not str(event.data.get("condition", "")).startswith("Workbench"):
            yield event


def _addresses(items: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    return {
        str(one["address"]): str(item["metadata"]["name"])
        for item in items
        for one in (item.get("status") or {}).get("addresses") or ()
        if isinstance(one, Mapping) and one.get("address")
    }


# -- jobs -----------------------------------------------------------------------------------------------------------------


def _numbers(pod: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ranks that run in a pod, in the order of their processes; an odd pod tells none."""
    try:
        return tuple(ranks_of_pod(pod))
    except ODD:
        return ()


def _work(pods: Iterable[dict[str, Any]], names: set[str]) -> Iterator[dict[str, Any]]:
    """Yield a row for each pod with GPUs on a node of the fleet."""
    none = Budgets(())
    for pod in pods:
        try:
            node = str((pod.get("spec") or {}).get("nodeName") or "")
            if node not in names or finished(pod):
                continue
            work = work_of(pod, none)
        except ODD:
            continue
        if not work.gpus or work.ignored:
            continue
        meta = pod["metadata"]
        yield {
            "node": node,
            "job": work.job,
            "namespace": meta.get("namespace"),
            "pod": meta.get("name"),
            **owner_of(meta),
            "state": str((pod.get("status") or {}).get("phase") or "").lower() or "running",
            "gpus": work.gpus,
            "ranks": work.ranks,
            "index": pod_identity(pod)["index"],
            "numbers": pod.get("numbers") or (),
            "start": work.since,
        }
