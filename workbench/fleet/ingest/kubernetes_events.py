"""Turn Kubernetes events into turns of nodes' lives, signs against nodes and GPUs, and the reasons why pods ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from workbench.catalog import signatures
from workbench.fleet.ingest.told import Told
from workbench.model import Event
from workbench.parse.kubernetes import parse_objects
from workbench.parse.kubernetes_reasons import event_span

__all__ = ["SOURCE", "of_events"]

# Events are told for an hour only and their times are rounded, so what an object itself says of the same thing counts more
SOURCE = "kubernetes:events"
# reason of an event on a node → the state that begins; of controllers and the kubelet:
# https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/events/event.go and
# https://github.com/kubernetes/kubernetes/blob/master/pkg/controller/nodelifecycle/node_lifecycle_controller.go (2026-11-30)
_TURNS = {
    "NodeNotReady": "down",
    "NodeReady": "usable",
    "NodeNotSchedulable": "held",
    "NodeSchedulable": "usable",
}
# signatures of events that by themselves say why a pod ended: the class is the catalog's
_ENDS = (
    "k8s-deadline",
    "k8s-evicted",
    "k8s-evicted-api",
    "k8s-evicted-disk",
    "k8s-evicted-limit",
    "k8s-evicted-memory",
    "k8s-node-shutdown",
    "k8s-oom-killed",
    "k8s-pod-gc",
    "k8s-preempted",
    "k8s-taint-eviction",
)
_NODE_LOST = ("k8s-taint-eviction", "k8s-pod-gc")


def of_events(
    events: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]], *, file: str, recorded: float, cluster: str = ""
) -> tuple[Told, dict[str, str]]:
    """
    Return what events tell, and of each pod (``namespace/name``) the class of what ended it, where an event says so.

    Parameters
    ----------
    events, pods : iterable of mapping
        Objects; pods tell on which node they were.
    file : str
    recorded : float
        When it was told, seconds since the epoch.
    cluster : str
    """
    told, ends = Told(), dict[str, str]()
    events = list(events)
    if not events:
        return told, ends
    stubs = [
        {
            "kind": "Pod",
            "metadata": {"name": one["metadata"]["name"], "namespace": one["metadata"].get("namespace")},
            "spec": {"nodeName": (one.get("spec") or {}).get("nodeName")},
            "status": {},
        }
        for one in pods
        if (one.get("spec") or {}).get("nodeName")
    ]
    parsed = parse_objects([*stubs, *events], file=file)
    told.problems += parsed.problems
    common = {"cluster": cluster, "source": SOURCE, "recorded": recorded}
    for one in events:
        _turn(one, told, common)
    for event in parsed.events:
        row = signatures().get(event.signature)
        cls = str(event.cls or (row.cls if row is not None else "") or "")
        role = event.role or (row.role if row is not None else "")
        pod = f"{event.data.get('namespace') or 'default'}/{event.data['pod']}" if event.data.get("pod") else ""
        if pod and event.signature in _ENDS and "/" in cls:
            ends.setdefault(pod, "platform/node-lost" if event.signature in _NODE_LOST else cls)
        if event.node and event.time is not None and role == "cause":
            _sign(event, cls, told, common)
    return told, ends


def _turn(item: Mapping[str, Any], told: Told, common: Mapping[str, Any]) -> None:
    """A node that is said to be (not) ready or (un)schedulable begins another stretch of its life; twice, when it was said again."""
    about = _mapping(item.get("involvedObject") or item.get("regarding"))
    state = _TURNS.get(str(item.get("reason") or ""))
    if state is None or about.get("kind") != "Node" or not about.get("name"):
        return
    message = str(item.get("message") or item.get("note") or "")
    for moment in dict.fromkeys(one for one in event_span(item) if one is not None):
        told.add(
            "node_states",
            **common,
            node=str(about["name"]),
            begin=moment,
            end=None,
            state=state,
            cause=None if state == "usable" else "unknown",
            cls=None,
            reason=None if state == "usable" else f"{item.get('reason')}: {message}"[:400],
        )
        if state == "down":
            told.out_of_service(
                str(common["cluster"]),
                str(about["name"]),
                moment,
                cls=None,
                detail=message or str(item.get("reason")),
                source=SOURCE,
                recorded=common["recorded"],
            )


def _sign(event: Event, cls: str, told: Told, common: Mapping[str, Any]) -> None:
    """An Xid or what a monitor found on a GPU is a sign; it is told again with a later last time, and its first time names it."""
    kind = event.signature.partition("-")[0]
    if kind not in ("xid", "sxid"):
        if not cls.startswith(("hardware/", "driver/")):
            return
        kind = "finding"
    told.add(
        "signals",
        **common,
        node=event.node,
        gpu_uuid=event.gpu.uuid or "" if event.gpu is not None else "",
        kind=kind,
        time=event.time,
        cls=cls or None,
        code=str(event.code) if event.code is not None else str(event.data.get("reason") or event.signature),
        weight=1.0,
        detail=event.text[:400],
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
