"""Turn a simulated failure into the Kubernetes objects that a cluster shows of it: nodes, the job's pods, how they end, events."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from workbench.catalog import table
from workbench.simulation.evidence import Failure

__all__ = ["JOB", "MARK", "SIMULATED", "ends", "node", "node_status", "pod", "pod_names", "running"]

MARK = "workbench-game-day/target"  # on the namespace: its cluster's owner lets game days write here
SIMULATED = "workbench-game-day/simulated"  # on every object that a game day made; nothing else is ever changed or deleted
JOB = "training.kubeflow.org/job-name"
_INDEX = "training.kubeflow.org/replica-index"


def stamp(time: float) -> str:
    """Return a time as Kubernetes writes it."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def node(name: str, *, sku: str, pool: str) -> dict[str, Any]:
    """Return a node that no scheduler puts anything on: it has a taint, and no address at which a kubelet would answer."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                SIMULATED: "true",
                "kubernetes.io/hostname": name,
                "node-pool": pool,
                "nvidia.com/gpu.present": "true",
                "nvidia.com/gpu.product": sku.replace(" ", "-"),
            },
        },
        "spec": {"taints": [{"key": SIMULATED, "value": "true", "effect": "NoSchedule"}]},
    }


def node_status(time: float, since: float, *, gpus: int, ready: bool = True) -> dict[str, Any]:
    """Return a node's status: its size and condition at a moment."""
    condition = {
        "type": "Ready", "status": "True" if ready else "Unknown", "reason": "KubeletReady" if ready else "NodeStatusUnknown",
        "message": "kubelet is posting ready status" if ready else "Kubelet stopped posting node status.",
        "lastHeartbeatTime": stamp(time), "lastTransitionTime": stamp(since),
    }  # fmt: skip
    size = {"cpu": "208", "memory": "1800Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    return {"status": {"capacity": size, "allocatable": size, "conditions": [condition]}}


def pod_names(failure: Failure) -> list[str]:
    """Return the names of the job's pods, one a node."""
    return [f"{failure.job}-worker-{index}" for index in range(len(failure.nodes))]


def pod(failure: Failure, index: int) -> dict[str, Any]:
    """Return the job's pod on one of its nodes, bound to it; no image of it can be pulled, and no kubelet is there to try."""
    gpus = min(failure.per_node, failure.gpus - index * failure.per_node)
    container = {
        "name": "pytorch", "image": "game-day.invalid/none", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
    }  # fmt: skip
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_names(failure)[index],
            "labels": {JOB: failure.job, _INDEX: str(index), SIMULATED: "true"},
        },
        "spec": {
            "nodeName": failure.nodes[index],
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
        },
    }


def running(since: float) -> dict[str, Any]:
    """Return the status of a pod that runs."""
    state = {"name": "pytorch", "image": "game-day.invalid/none", "imageID": "", "ready": True, "restartCount": 0}
    return {
        "status": {
            "phase": "Running", "startTime": stamp(since),
            "containerStatuses": [{**state, "state": {"running": {"startedAt": stamp(since)}}}],
        }
    }  # fmt: skip


def ends(failure: Failure, begin: float) -> Iterator[tuple[float, int, dict[str, Any]]]:
    """
    Yield (seconds after the fault, index of the pod, its status) in order of the nodes; the pod of a node that fell silent shows no end.

    How the culprit's pod ends when not with exit code 1 is the layer ``pod`` of ``catalog/simulated_evidence.csv``; so does every pod of a
    job that the scheduler took away.
    """
    said = next(
        (row["text"] for row in table("simulated_evidence") if row["class"] == failure.cls and row["layer"] == "pod"), "1 Error"
    )
    word, _, reason = said.partition(" ")
    taken = reason.startswith("Preemption")
    for index, name in enumerate(failure.nodes):
        culprit = name == failure.node
        if culprit and failure.told_by == "silence":
            continue
        after = 2.0 if taken else 606.0 if failure.told_by == "hang" else 3.0 if culprit else 6.0
        code, why = (int(word), "Error" if taken else reason) if taken or culprit else (1, "Error")
        over = {"exitCode": code, "reason": why, "startedAt": stamp(begin), "finishedAt": stamp(failure.time + after)}
        state = {"name": "pytorch", "image": "game-day.invalid/none", "imageID": "", "ready": False, "restartCount": 0}
        status: dict[str, Any] = {
            "phase": "Failed", "startTime": stamp(begin), "containerStatuses": [{**state, "state": {"terminated": over}}],
        }  # fmt: skip
        if taken:
            condition = {
                "type": "DisruptionTarget", "status": "True", "reason": reason, "lastTransitionTime": stamp(failure.time),
                "message": "default-scheduler: preempting to accommodate a higher priority pod",
            }  # fmt: skip
            status["conditions"] = [condition]
        yield after, index, {"status": status}


def not_ready(name: str, time: float) -> dict[str, Any]:
    """Return the event by which the node controller tells of a silent node."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{name}.", "namespace": "default", "labels": {SIMULATED: "true"}},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": name, "uid": name},
        "type": "Normal",
        "reason": "NodeNotReady",
        "message": f"Node {name} status is now: NodeNotReady",
        "firstTimestamp": stamp(time),
        "lastTimestamp": stamp(time),
        "count": 1,
        "source": {"component": "node-controller"},
    }
