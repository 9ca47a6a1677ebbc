"""Text of kubectl, kubelet and device plugin: the same events as from the objects."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.model import Event, Line, Parsed
from workbench.parse.kubernetes import epoch
from workbench.parse.kubernetes_text import parse_describe

DATA = Path(__file__).parent.parent / "data" / "kubernetes"
WHEN = "2026-03-01T10:00:00Z"


def lines(text: str) -> list[Line]:
    return [Line(number, part) for number, part in enumerate(text.split("\n"), 1)]


def text_of(name: str) -> Parsed:
    return parse_describe(lines((DATA / name).read_text()), file=name)


def only(parsed: Parsed, signature: str) -> Event:
    found = [one for one in parsed.events if one.signature == signature]
    assert len(found) == 1, [one.signature for one in parsed.events]
    return found[0]


# ---- text


def test_describe_node() -> None:
    parsed = text_of("describe-node-disk.txt")
    low = only(parsed, "k8s-gpu-allocatable-low")
    assert (low.text, low.line, low.node) == ("nvidia.com/gpu:  7", 18, "gpu-07")
    pressure = [one for one in parsed.events if one.signature == "k8s-node-disk-pressure"]
    assert [(one.node, one.line) for one in pressure] == [("gpu-07", 25), ("gpu-07", 11)]
    assert pressure[1].time == epoch(WHEN)
    failed = only(parsed, "k8s-free-disk-space-failed")
    assert (failed.count, failed.data["age"], failed.data["age_first"]) == (31, 192, 9 * 86_400)
    assert {one.name for one in parsed.conditions if one.bad and one.kind == "condition"} == {"DiskPressure"}
    assert "team" in {one.name for one in parsed.conditions if one.kind == "taint"}


def test_describe_pod() -> None:
    parsed = text_of("describe-pod-oom.txt")
    found = only(parsed, "k8s-oom-killed")
    assert (found.code, found.rank, found.node, found.time) == (137, 3, "gpu-09", epoch("2026-03-01T09:30:00Z"))
    assert only(parsed, "k8s-crash-loop").data["pod"] == "train-worker-3"
    assert [(one.rank, one.local_rank, one.node) for one in parsed.placements] == [(3, 0, "gpu-09")]


def test_tables() -> None:
    found = {(one.signature, one.node, one.line) for one in text_of("get-mixed.txt").events}
    assert found == {
        ("k8s-oom-killed", "gpu-02", 3),
        ("k8s-image-backoff", "gpu-03", 4),
        ("k8s-node-not-ready", "gpu-04", 8),
        ("k8s-node-unschedulable", "gpu-04", 8),
        ("k8s-failed-scheduling", None, 11),
        ("k8s-node-not-ready", "gpu-04", 12),
        ("k8s-started", None, 13),
    }


@pytest.mark.parametrize(
    ("row", "signature", "where"),
    [
        ("worker-1   ml   Evicted   node-a   Pod The node had condition: [DiskPressure]. ", "k8s-evicted-disk", "node-a"),
        (
            "worker-1\t\tEvicted\t\tThe node was low on resource: ephemeral-storage. Threshold quantity: 30Gi.",
            "k8s-evicted-disk",
            None,
        ),
        (
            "Allocate failed due to GetPreferredAllocation rpc failed: error creating nvml.Device 3: nvml: GPU is lost",
            "k8s-device-plugin-gpu-lost",
            None,
        ),
        (
            'Mar  1 10:00:04 node-a kubelet[22]: I0301 1 m.go:7] "Eviction manager: pod is evicted successfully" pod="ml/job-a"',
            "k8s-evicted-kubelet",
            "node-a",
        ),
        (
            "XidCriticalEvent: Xid=48 on Device=GPU-8f2c1a6e-0d1b-4c55-9a57-2b7c1d1e0f11; marking device as unhealthy.",
            "xid-48",
            None,
        ),
    ],
)
def test_plain_lines(row: str, signature: str, where: str | None) -> None:
    (found,) = parse_describe(lines("some text\n" + row), file="x").events
    assert (found.signature, found.node, found.line) == (signature, where, 2)
    assert found.text == row.strip()


def test_ordinary_text_has_no_events() -> None:
    assert parse_describe(lines("step 1 loss 2.0\nlr=1e-4 done\n\nName: x\n"), file="x").events == []


def test_long_lines_cost_no_time() -> None:
    for row in ("a" + " " * 60_000 + "b: c", "x: " + "y " * 30_000, "Warning  Evicted  " * 3000):
        parse_describe(lines(row), file="x")


def test_events_of_a_pod_that_was_assigned_go_on_after_a_message_of_several_lines() -> None:
    parsed = parse_describe(
        lines(
            "Events:\n"
            "  Type     Reason       Age    From               Message\n"
            "  ----     ------       ----   ----               -------\n"
            "  Normal   Scheduled    4m44s  default-scheduler  Successfully assigned ns-a/api-0 to node-a\n"
            '  Warning  FailedMount  102s   kubelet            MountVolume.SetUp failed for volume "nfs" : mount failed: exit status 32\n'
            "Mounting command: mount\n"
            "Output: mount.nfs: Connection timed out\n"
            "  Warning  FailedMount  27s (x2 over 2m41s)  kubelet  Unable to attach or mount volumes: unmounted volumes=[nfs]\n"
        ),
        file="d",
    )
    assert [(event.signature, event.node, event.line) for event in parsed.events] == [
        ("k8s-started", "node-a", 4),
        ("k8s-mount", "node-a", 5),
        ("k8s-mount", "node-a", 8),
    ]


def test_a_component_is_no_node() -> None:
    text = "Warning  FailedCreatePodSandBox  76s (x4 over 79s)   kubelet            Failed to create pod sandbox: LoadConf(): VF pci addr is required"
    (event,) = parse_describe(lines(text), file="d").events
    assert (event.signature, event.node) == ("k8s-sandbox-config", None)
