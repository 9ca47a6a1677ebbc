"""Kubernetes pods: which rank ran where, what ended it; and documents that are odd or broken."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from workbench.catalog import signatures
from workbench.model import Event, Parsed
from workbench.parse.kubernetes import Locator, epoch, locate, parse_objects

WHEN = "2026-03-01T10:00:00Z"


def objects(*items: Any) -> Parsed:
    return parse_objects(items, file="x.json")


def role(event: Event) -> str:
    return event.role or signatures()[event.signature].role


def cls(event: Event) -> str:
    return event.cls or signatures()[event.signature].cls


def pod(**status: Any) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {
            "name": "train-worker-1",
            "namespace": "ml",
            "uid": "pod-uid-1",
            "labels": {"training.kubeflow.org/job-name": "train", "training.kubeflow.org/replica-index": "1"},
            "ownerReferences": [{"kind": "PyTorchJob", "name": "train"}],
        },
        "spec": {
            "nodeName": "gpu-07",
            "containers": [
                {
                    "name": "pytorch",
                    "command": ["torchrun"],
                    "args": ["--nnodes=2", "--nproc-per-node=8", "train.py"],
                    "env": [
                        {"name": "RANK", "value": "1"},
                        {"name": "PET_NODE_RANK", "value": "1"},
                        {"name": "TOKEN", "valueFrom": {}},
                    ],
                    "resources": {"limits": {"memory": "1800Gi", "nvidia.com/gpu": "8"}},
                    "volumeMounts": [{"mountPath": "/dev/shm", "name": "shm"}],
                }
            ],
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "4Gi"}}],
        },
        "status": {"phase": "Failed", "startTime": "2026-03-01T08:00:00Z", **status},
    }


def node(*conditions: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "kind": "Node",
        "metadata": {"name": "gpu-07", "uid": "node-uid-1"},
        "spec": spec,
        "status": {"conditions": list(conditions), "capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "8"}},
    }


def condition(kind: str, status: str, reason: str = "", message: str = "", since: str = WHEN) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}


def only(parsed: Parsed, signature: str) -> Event:
    found = [one for one in parsed.events if one.signature == signature]
    assert len(found) == 1, [one.signature for one in parsed.events]
    return found[0]


# ---- pods


def ended(code: int, reason: str = "Error", **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "name": "pytorch",
            "restartCount": 0,
            "state": {"terminated": {"exitCode": code, "reason": reason, "finishedAt": WHEN, **more}},
        }
    ]


def test_ranks_of_a_pod() -> None:
    placed = objects(pod()).placements
    assert [(one.rank, one.local_rank, one.node) for one in placed] == [(8 + at, at, "gpu-07") for at in range(8)]
    assert {one.origin for one in placed} == {"pod-env"}
    assert all(one.gpu is None for one in placed)  # an index is no identity


def test_ranks_with_gpus_from_an_annotation() -> None:
    item = pod()
    uuids = [f"GPU-00000000-0000-0000-0000-00000000000{at}" for at in range(8)]
    item["metadata"]["annotations"] = {"k8s.amazonaws.com/gpu-uuids": ",".join(uuids)}
    assert [one.gpu and one.gpu.uuid for one in objects(item).placements] == uuids


def test_one_process_pod_rank_and_rendezvous_by_c10d() -> None:
    item = pod()
    item["spec"]["containers"][0]["env"] = [{"name": "RANK", "value": "5"}, {"name": "LOCAL_RANK", "value": "0"}]
    assert [(one.rank, one.local_rank) for one in objects(item).placements] == [(5, 0)]
    item = pod()
    item["spec"]["containers"][0]["args"].append("--rdzv-backend=c10d")
    assert {one.origin for one in objects(item).placements} == {"pod-env-elastic"}


def test_index_label_and_attempt_of_a_jobset() -> None:
    item = pod()
    item["metadata"]["labels"] = {
        "batch.kubernetes.io/job-completion-index": "2",
        "jobset.sigs.k8s.io/jobset-name": "train",
        "jobset.sigs.k8s.io/restart-attempt": "1",
    }
    item["spec"]["containers"][0]["env"] = []
    placed = objects(item).placements
    assert (placed[0].rank, placed[0].attempt) == (16, 2)


def test_a_pod_that_does_not_say_its_processes_has_no_ranks() -> None:
    item = pod()
    item["spec"]["containers"][0]["args"] = ["train.py"]
    assert [(one.rank, one.node) for one in objects(item).placements] == [(None, "gpu-07")]


@pytest.mark.parametrize(
    ("code", "reason", "signature", "signal"),
    [
        (137, "OOMKilled", "k8s-oom-killed", 9),
        (1, "Error", "k8s-exit", None),
        (143, "Error", "k8s-exit", 15),
        (127, "Error", "k8s-exit-command", None),
        (128, "StartError", "k8s-container-start", None),
    ],
)
def test_ends_of_containers(code: int, reason: str, signature: str, signal: int | None) -> None:
    found = only(objects(pod(containerStatuses=ended(code, reason))), signature)
    assert (found.code, found.data["signal"], found.time, found.node) == (code, signal, epoch(WHEN), "gpu-07")
    assert found.data["ranks"] == [8, 15]


def test_exit_0_is_no_event_and_the_job_succeeded() -> None:
    parsed = objects(pod(phase="Succeeded", containerStatuses=ended(0, "Completed")))
    assert [one.signature for one in parsed.events] == ["k8s-shm-limit"]
    assert (parsed.jobs[0].state, parsed.jobs[0].exit_code) == ("Succeeded", 0)


def test_last_state_and_restarts() -> None:
    status = {
        "name": "pytorch",
        "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}},
    }
    status["lastState"] = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": WHEN}}
    parsed = objects(pod(phase="Running", containerStatuses=[status]))
    assert (only(parsed, "k8s-oom-killed").data["restarts"], only(parsed, "k8s-oom-killed").data["current"]) == (3, False)
    assert role(only(parsed, "k8s-crash-loop")) == "symptom"


@pytest.mark.parametrize(
    ("reason", "message", "signature", "expected"),
    [
        (
            "PreemptionByScheduler",
            "default-scheduler: preempting to accommodate a higher priority pod",
            "k8s-preempted",
            "platform/preemption",
        ),
        ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint", "k8s-taint-eviction", "platform/node-lost"),
        ("EvictionByEvictionAPI", "Eviction API: evicting", "k8s-evicted-api", "platform/preemption"),
        ("DeletionByPodGC", "PodGC: node no longer exists", "k8s-pod-gc", "platform/node-lost"),
        ("TerminationByKubelet", "The node was low on resource: ephemeral-storage.", "k8s-evicted-disk", "platform/storage"),
        (
            "TerminationByKubelet",
            "Pod was terminated in response to imminent node shutdown.",
            "k8s-node-shutdown",
            "platform/preemption",
        ),
    ],
)
def test_disruption_target(reason: str, message: str, signature: str, expected: str) -> None:
    parsed = objects(pod(conditions=[condition("DisruptionTarget", "True", reason, message)]))
    found = only(parsed, signature)
    assert (cls(found), found.time, found.node) == (expected, epoch(WHEN), "gpu-07")
    assert [one for one in parsed.conditions if one.kind == "pod" and one.bad]


def test_pending_pods() -> None:
    item = pod(
        phase="Pending",
        conditions=[
            condition("PodScheduled", "False", "Unschedulable", "0/42 nodes are available: 42 Insufficient nvidia.com/gpu.")
        ],
    )
    del item["spec"]["nodeName"]
    found = only(objects(item), "k8s-failed-scheduling")
    assert (found.node, role(found)) == (None, "cause")
    gated = pod(
        phase="Pending",
        conditions=[
            condition("PodScheduled", "False", "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates")
        ],
    )
    assert [one.signature for one in objects(gated).events] == ["k8s-shm-limit"]
    waits = [
        {
            "name": "pytorch",
            "state": {
                "waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x": ErrImagePull: i/o timeout'}
            },
        }
    ]
    assert only(objects(pod(phase="Pending", containerStatuses=waits)), "k8s-image-pull").node == "gpu-07"


def test_shm() -> None:
    assert only(objects(pod()), "k8s-shm-limit").data["size"] == 4 * 2**30
    item = pod()
    item["spec"]["containers"][0]["volumeMounts"] = []
    assert only(objects(item), "k8s-shm-limit").data["size"] == 64 * 2**20
    item = pod()
    del item["spec"]["volumes"][0]["emptyDir"]["sizeLimit"]
    assert only(objects(item), "k8s-shm-limit").data["size"] is None


def test_a_daemon_is_not_the_job() -> None:
    item = pod(phase="Failed", reason="Evicted", message="The node was low on resource: memory.")
    item["metadata"]["labels"] = {}
    item["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": "log-forwarder"}]
    item["spec"]["containers"][0]["resources"] = {}
    parsed = objects(item)
    assert role(only(parsed, "k8s-evicted-memory")) == "context"
    assert parsed.placements == []
    assert parsed.jobs == []


def test_the_job_of_the_pods() -> None:
    first, second = pod(containerStatuses=ended(1)), pod(containerStatuses=ended(143))
    second["metadata"]["name"], second["spec"]["nodeName"] = "train-worker-0", "gpu-08"
    job = objects({"kind": "List", "items": [first, second]}).jobs[0]
    assert (job.name, job.state, job.nodes, job.exit_code, job.end) == ("train", "Failed", ["gpu-07", "gpu-08"], 1, epoch(WHEN))


def test_a_job_object() -> None:
    item = {
        "kind": "Job",
        "metadata": {"name": "train", "uid": "u", "namespace": "ml"},
        "spec": {"activeDeadlineSeconds": 600},
        "status": {
            "startTime": "2026-03-01T09:50:00Z",
            "conditions": [condition("Failed", "True", "DeadlineExceeded", "Job was active longer than specified deadline")],
        },
    }
    parsed = objects(item)
    assert (parsed.jobs[0].state, parsed.jobs[0].time_limit, parsed.jobs[0].end) == ("Failed", 600, epoch(WHEN))
    assert only(parsed, "k8s-deadline").time == epoch(WHEN)


# ---- lines, lists, junk


def test_lines_point_into_the_document() -> None:
    one, two = (
        node(condition("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped.")),
        node(condition("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped.")),
    )
    two["metadata"] = {"name": "gpu-08", "uid": "node-uid-2"}
    raw = json.dumps({"kind": "List", "items": [one, two]}, indent=1)
    parsed = parse_objects([json.loads(raw)], file="nodes.json", lines=Locator(raw))
    rows = raw.split("\n")
    numbers = [one.line for one in parsed.events]
    assert numbers[0] != numbers[1]
    assert all("Kubelet stopped." in rows[(number or 0) - 1] for number in numbers)
    assert locate('a\n"m": "x \\"y\\""\n', 'x "y"') == 2
    assert locate("a", "b") is None


def test_items_of_a_pod_list_need_no_kind() -> None:
    item = pod(containerStatuses=ended(1))
    del item["kind"]
    assert only(objects({"kind": "PodList", "items": [item]}), "k8s-exit").code == 1


def test_broken_objects_cost_only_themselves() -> None:
    good = {"kind": "Event", "type": "Warning", "reason": "Preempted", "message": "Preempted by a pod", "involvedObject": {}}
    broken: list[Any] = [
        None,
        7,
        {"kind": "Pod"},
        {"kind": "Node", "metadata": None},
        {"kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": 5}},
    ]
    parsed = parse_objects([*broken, good], file="x.json")
    assert [one.signature for one in parsed.events] == ["k8s-preempted"]
    assert len(parsed.problems) == 3
    assert all(one.file == "x.json" and one.hint for one in parsed.problems)


@pytest.mark.parametrize("path", ["metadata", "spec", "status"])
def test_each_part_may_be_missing_or_odd(path: str) -> None:
    odd: list[Any] = [None, [], "x", 3, {}]
    for value in odd:
        for base in (pod(containerStatuses=ended(1)), node(condition("Ready", "Unknown"))):
            item = copy.deepcopy(base)
            item[path] = value
            objects(item)
