"""Kubernetes events and nodes: what happened, what a node suffers from and since when."""

from __future__ import annotations

import re
from typing import Any

import pytest

from workbench.catalog import signatures, table
from workbench.model import CLASSES, Event, Parsed
from workbench.parse.kubernetes import epoch, parse_objects
from workbench.parse.kubernetes_reasons import RULES, bad, classify, gpu_in, parse_quantity
from workbench.parse.kubernetes_text import age

WHEN = "2026-03-01T10:00:00Z"


def objects(*items: Any) -> Parsed:
    return parse_objects(items, file="x.json")


def role(event: Event) -> str:
    return event.role or signatures()[event.signature].role


def cls(event: Event) -> str:
    return event.cls or signatures()[event.signature].cls


def event(reason: str, message: str, *, kind: str = "Pod", name: str = "train-worker-1", **more: Any) -> dict[str, Any]:
    made = {
        "kind": "Event",
        "type": "Warning",
        "reason": reason,
        "message": message,
        "involvedObject": {"kind": kind, "name": name, "namespace": "ml"},
        "source": {"component": "kubelet", "host": "gpu-07"},
        "firstTimestamp": WHEN,
        "metadata": {"uid": f"uid-{reason}"},
    }
    return {**made, **more}


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


# ---- events


@pytest.mark.parametrize(
    ("reason", "message", "signature", "expected_role", "expected_class"),
    [
        (
            "Evicted",
            "The node was low on resource: ephemeral-storage. Threshold quantity: 1, available: 0.",
            "k8s-evicted-disk",
            "cause",
            "platform/storage",
        ),
        (
            "Evicted",
            "The node was low on resource: memory. Threshold quantity: 1, available: 0.",
            "k8s-evicted-memory",
            "cause",
            "platform/preemption",
        ),
        (
            "Evicted",
            "The node was low on resource: memory. Container a was using 900Gi, request is 800Gi, has larger use.",
            "k8s-evicted-memory",
            "cause",
            "user/host-oom",
        ),
        (
            "Evicted",
            "Pod ephemeral local storage usage exceeds the total limit of containers 10Gi.",
            "k8s-evicted-limit",
            "cause",
            "user/config",
        ),
        ("Preempted", "Preempted by pod 5c7f on node gpu-07", "k8s-preempted", "cause", "platform/preemption"),
        ("NodeShutdown", "Shutdown manager detected shutdown event", "k8s-node-shutdown", "cause", "platform/preemption"),
        ("ScaleDown", "deleting pod for node scale down", "k8s-scale-down", "cause", "platform/preemption"),
        (
            "SpotInterrupted",
            "Spot interruption warning was triggered",
            "k8s-impending-termination",
            "cause",
            "platform/preemption",
        ),
        (
            "TaintManagerEviction",
            "Marking for deletion Pod ml/train-worker-1",
            "k8s-taint-eviction",
            "cause",
            "platform/node-lost",
        ),
        (
            "TaintManagerEviction",
            "Cancelling deletion of Pod ml/train-worker-1",
            "k8s-taint-eviction-cancelled",
            "context",
            "platform/node-lost",
        ),
        (
            "FailedScheduling",
            "0/8 nodes are available: 8 Insufficient nvidia.com/gpu.",
            "k8s-failed-scheduling",
            "cause",
            "platform/scheduler",
        ),
        (
            "FailedScheduling",
            "0/8 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
            "k8s-failed-scheduling",
            "context",
            "platform/scheduler",
        ),
        ("Unschedulable", "pod group is not ready, 3 Pending, 4 minAvailable", "k8s-gang-waiting", "cause", "platform/scheduler"),
        (
            "UnexpectedAdmissionError",
            "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu",
            "k8s-admission-error",
            "cause",
            "platform/scheduler",
        ),
        (
            "UnexpectedAdmissionError",
            "error creating nvml.Device 3: nvml: GPU is lost",
            "k8s-device-plugin-gpu-lost",
            "cause",
            "hardware/gpu-lost",
        ),
        ("Failed", 'Failed to pull image "r/x:1": toomanyrequests: slow down', "k8s-image-pull", "cause", "platform/image"),
        ("Failed", "layer failed size validation: 1 != 2: failed precondition", "k8s-image-size", "cause", "platform/image"),
        ("Failed", 'Error: secret "hub" not found', "k8s-container-config", "cause", "platform/config"),
        (
            "Failed",
            'Error: exec: "pyhton": executable file not found in $PATH: unknown',
            "k8s-container-command",
            "cause",
            "user/config",
        ),
        (
            "Failed",
            "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch: unknown",
            "k8s-gpu-injection",
            "cause",
            "driver/version-mismatch",
        ),
        ("FailedMount", 'MountVolume.SetUp failed for volume "data"', "k8s-mount", "cause", "platform/storage"),
        ("FailedCreatePodSandBox", "plugin type=calico failed", "k8s-sandbox", "cause", "platform/network"),
        ("SystemOOM", "System OOM encountered, victim process: python, pid: 4", "k8s-system-oom", "cause", "user/host-oom"),
        (
            "SystemOOM",
            "System OOM encountered, victim process: fluent-bit, pid: 4",
            "k8s-system-oom",
            "context",
            "platform/preemption",
        ),
        (
            "OOMKilling",
            "Memory cgroup out of memory: Killed process 7 (telegraf) total-vm:1kB",
            "k8s-npd-oom",
            "context",
            "user/host-oom",
        ),
        ("BackOff", "Back-off restarting failed container", "k8s-crash-loop", "symptom", "unknown"),
        ("Killing", "Stopping container pytorch", "k8s-killing", "symptom", "unknown"),
        (
            "FreeDiskSpaceFailed",
            "Failed to garbage collect required amount of images.",
            "k8s-free-disk-space-failed",
            "cause",
            "platform/storage",
        ),
        (
            "Ext4Error",
            "EXT4-fs error (device nvme1n1): reading directory lblock 0",
            "k8s-npd-ext4-error",
            "cause",
            "platform/storage",
        ),
        ("DeadlineExceeded", "Job was active longer than specified deadline", "k8s-deadline", "cause", "platform/preemption"),
    ],
)
def test_events(reason: str, message: str, signature: str, expected_role: str, expected_class: str) -> None:
    found = only(objects(event(reason, message)), signature)
    assert (role(found), cls(found)) == (expected_role, expected_class)
    assert message in found.text
    assert (found.node, found.data["pod"], found.time) == ("gpu-07", "train-worker-1", epoch(WHEN))


@pytest.mark.parametrize("reason", ["Pulled", "Started", "Created", "SuccessfulCreate"])
def test_routine_is_no_event(reason: str) -> None:
    assert objects(event(reason, "all is well", type="Normal")).events == []


def test_the_pods_of_a_lost_node_do_not_accuse_it_again() -> None:
    assert role(only(objects(event("NodeNotReady", "Node is not ready")), "k8s-node-not-ready")) == "symptom"
    first = event("NodeNotReady", "Node gpu-07 status is now: NodeNotReady", kind="Node", name="gpu-07")
    assert role(only(objects(first), "k8s-node-not-ready")) == "cause"


def test_a_warning_nobody_knows_is_context() -> None:
    assert role(only(objects(event("Flabbergasted", "who knows")), "k8s-warning")) == "context"


def test_repeats_keep_first_last_and_count() -> None:
    found = only(
        objects(event("Evicted", "The node was low on resource: memory.", count=7, lastTimestamp="2026-03-01T11:00:00Z")),
        "k8s-evicted-memory",
    )
    assert (found.count, (found.last or 0) - (found.time or 0)) == (7, 3600)


def test_new_event_api_and_its_node() -> None:
    new = event(
        "Preempted", "x", source=None, firstTimestamp=None, eventTime="2026-03-01T10:00:00.123456Z", reportingInstance="gpu-08"
    )
    new["reportingComponent"] = "kubelet"
    found = only(objects(new), "k8s-preempted")
    assert (found.node, found.time) == ("gpu-08", epoch("2026-03-01T10:00:00.123456Z"))


def test_the_pod_tells_the_node_of_its_events() -> None:
    said = event("Scheduled", "Successfully assigned ml/train-worker-1 to gpu-33", type="Normal")
    found = only(
        objects(said, event("Preempted", "Preempted by a pod", source={"component": "default-scheduler"})), "k8s-preempted"
    )
    assert found.node == "gpu-33"


def test_xid_in_a_monitor_event_is_that_xid_on_that_gpu() -> None:
    message = (
        "ErrorCode:95 PCI:0000:9d:00 GPU_UUID:GPU-a8dd4b53-6a76-0560-36b6-dcf7c20b405e NVRM: Xid (PCI:0000:9d:00): 95, pid=7, "
        "name=python, Uncontained Recommended Action=COMPONENT_RESET;"
    )
    found = only(objects(event("SysLogsXIDError", message, kind="Node", name="gpu-07")), "xid-95")
    assert (found.code, found.role, found.gpu and found.gpu.pci) == (95, None, "0000:9d:00.0")
    assert found.gpu
    assert found.gpu.uuid == "GPU-a8dd4b53-6a76-0560-36b6-dcf7c20b405e"


def test_a_finding_without_action_accuses_nobody() -> None:
    harmless = event("GpuInforomWatch", "ErrorCode:DCGM_FR_UNKNOWN GPU:3 Recommended Action=NONE;", kind="Node", name="gpu-07")
    assert role(only(objects(harmless), "k8s-gpu-health")) == "context"
    real = event(
        "GpuNvlinkWatch",
        "ErrorCode:DCGM_FR_NVLINK_ERROR_CRITICAL GPU:2 Recommended Action=COMPONENT_RESET;",
        kind="Node",
        name="gpu-07",
    )
    found = only(objects(real), "k8s-gpu-health")
    assert (role(found), cls(found), found.gpu and found.gpu.index) == ("cause", "hardware/nvlink", 2)


# ---- nodes


def test_conditions_of_both_polarities() -> None:
    parsed = objects(
        node(
            condition("Ready", "True", "KubeletReady"),
            condition("GpuPcie", "True", "GpuPcieHasIssues", "replay rate"),
            condition("AcceleratedHardwareReady", "False", "FabricManagerNotRunning", "nvidia-fabricmanager is not running"),
            condition("KernelReady", "True", "KernelIsReady"),
            condition("NTPProblem", "False", "NTPIsUp"),
        )
    )
    assert {one.name: one.bad for one in parsed.conditions if one.kind == "condition"} == {
        "Ready": False,
        "GpuPcie": True,
        "AcceleratedHardwareReady": True,
        "KernelReady": False,
        "NTPProblem": False,
    }
    assert [(one.signature, cls(one)) for one in parsed.events] == [
        ("k8s-condition", "hardware/pcie"),
        ("k8s-condition", "driver/fabric-manager"),
    ]
    assert all(one.time == epoch(WHEN) for one in parsed.events)


def test_an_old_condition_keeps_its_age() -> None:
    parsed = objects(node(condition("GpuPcie", "True", "GpuPcieHasIssues", "slow link", since="2026-02-01T00:00:00Z")))
    assert parsed.conditions[0].since == parsed.events[0].time == epoch("2026-02-01T00:00:00Z")


@pytest.mark.parametrize(("status", "weight"), [("Unknown", 0.85), ("False", 0.6)])
def test_a_silent_kubelet_weighs_more_than_an_unwell_one(status: str, weight: float) -> None:
    found = only(
        objects(node(condition("Ready", status, "NodeStatusUnknown", "Kubelet stopped posting node status."))),
        "k8s-node-not-ready",
    )
    assert (found.weight, found.node) == (weight, "gpu-07")
    assert "Kubelet stopped posting node status." in found.text


def test_taints_and_cordon() -> None:
    item = node(
        unschedulable=True,
        taints=[
            {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": WHEN},
            {"key": "cloud.google.com/impending-node-termination", "effect": "NoSchedule", "timeAdded": WHEN},
            {"key": "dedicated", "value": "vision", "effect": "NoSchedule"},
        ],
    )
    item["metadata"]["annotations"] = {"ops.internal/cordon-by": "oncall", "ops.internal/cordon-reason": "rack move"}
    parsed = objects(item)
    assert role(only(parsed, "k8s-taint")) == "context"
    assert "cordon-by=oncall cordon-reason=rack move" in only(parsed, "k8s-taint").text
    assert cls(only(parsed, "k8s-impending-termination")) == "platform/preemption"
    assert parsed.facts["nodes"]["gpu-07"]["cordon"] == {"cordon-by": "oncall", "cordon-reason": "rack move"}
    assert len([one for one in parsed.conditions if one.kind == "taint"]) == 3


def test_missing_gpus() -> None:
    item = node()
    assert objects(item).events == []
    item["status"]["allocatable"]["nvidia.com/gpu"] = "7"
    assert only(objects(item), "k8s-gpu-allocatable-low").data["capacity"] == 8
    del item["status"]["allocatable"]["nvidia.com/gpu"]
    assert only(objects(item), "k8s-gpu-allocatable-none").data["allocatable"] == 0


# ---- words and rows


def test_words() -> None:
    assert parse_quantity("256Gi") == 256 * 2**30
    assert parse_quantity("500m") == 0.5
    assert parse_quantity("lots") is None
    assert age("11d") == 950_400
    assert age("now") is None
    assert epoch("2026-03-01T10:00:00.123456789Z") == epoch("2026-03-01T10:00:00.123456Z")
    assert epoch(None) is None
    assert epoch("yesterday at some time") is None
    assert gpu_in("no GPU named") is None


def test_polarity_of_all_known_conditions() -> None:
    for row in table("conditions"):
        if row["kind"] == "node condition" and row["polarity"].split()[0] in ("True", "False"):
            wrong = row["polarity"].split()[0]
            assert bad(row["name"], wrong) is True, row["name"]
            assert bad(row["name"], "False" if wrong == "True" else "True") is False, row["name"]
    assert bad("SiteCheck", "True") is None
    assert bad("SiteCheck", "True", "SiteCheckIsNotHealthy") is True


def test_each_condition_row_is_usable() -> None:
    for row in table("conditions"):
        assert row["class"] in ("", *CLASSES), row["name"]
        if row["signature"]:
            assert row["signature"] in signatures()
            assert 0 <= float(row["weight"]) <= 1


@pytest.mark.parametrize("row", [row for row in table("signatures_kubernetes") if row["pattern"]], ids=lambda row: row["id"])
def test_each_pattern_matches_its_example(row: dict[str, str]) -> None:
    assert re.search(row["pattern"], row["example"])
    assert not re.search(row["pattern"], "[rank0]: step 100 loss 2.31 lr 1e-4 | exitcode: 1 (pid: 77) error_file: <N/A>")


def test_each_meaning_has_a_row() -> None:
    for _, _, signature in RULES:
        assert signature in signatures(), signature
    assert classify("", "") is not None


def test_objects_that_do_not_name_their_kind_are_told_by_their_shape() -> None:
    # `kubectl get --raw /api/v1/pods` and dumps of clients leave the kind out inside a list
    items: list[dict[str, Any]] = [
        {
            "metadata": {"name": "llm-worker-1", "namespace": "nlp"},
            "spec": {"nodeName": "node-b", "containers": [{"name": "pytorch"}]},
            "status": {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
        },
        {
            "metadata": {"name": "node-b"},
            "spec": {},
            "status": {"nodeInfo": {}, "conditions": [{"type": "Ready", "status": "Unknown"}]},
        },
        {
            "involvedObject": {"kind": "Node", "name": "node-b"},
            "reason": "NodeNotReady",
            "message": "Node node-b status is now: NodeNotReady",
            "lastTimestamp": "2025-07-12T17:32:00Z",
        },
        {"metadata": {"name": "settings"}, "data": {"a": "b"}},
    ]
    found = {event.signature for event in parse_objects([{"kind": "List", "items": items}], file="all.json").events}
    assert {"k8s-evicted-memory", "k8s-node-not-ready"} <= found
    assert parse_objects(items, file="all.json").facts["pods"].keys() == {"llm-worker-1"}
