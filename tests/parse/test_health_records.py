"""Records of health monitors and node controllers name the node and the GPU, and weigh what they found."""

from __future__ import annotations

import json

import pytest

from workbench.parse.health_records import is_record, record_event
from workbench.parse.kubernetes import Locator, parse_objects

SENTINEL = {
    "time": "2026-03-06T09:34:56.504042516Z",
    "msg": "Handling event for ruleset",
    "event": {
        "HealthEvent": {
            "agent": "gpu-health-monitor",
            "checkName": "GpuXidError",
            "isFatal": True,
            "message": "GPU has fallen off the bus (XID 79). Node requires reboot.",
            "errorCode": ["DCGM_FR_GPU_FALLEN_OFF_BUS"],
            "entitiesImpacted": [
                {"entityType": "GPU", "entityValue": "3"},
                {"entityType": "PCI", "entityValue": "0002:00:00.0"},
                {"entityType": "GPU_UUID", "entityValue": "GPU-3d7408b2-d525-643f-5bfc-000000000001"},
            ],
            "generatedTimestamp": {"seconds": 1772789696, "nanos": 500000000},
            "nodeName": "gpu-node-7",
        }
    },
}


def test_a_health_event_names_node_gpu_and_time() -> None:
    event = record_event(SENTINEL)
    assert event is not None
    assert event.signature == "xid-79"
    assert event.node == "gpu-node-7"
    assert event.gpu is not None
    assert (event.gpu.index, event.gpu.pci) == (3, "0002:00:00.0")
    assert event.gpu.uuid == "GPU-3d7408b2-d525-643f-5bfc-000000000001"
    assert event.time == 1772789696.5


def test_a_finding_that_is_over_or_harmless_is_no_cause() -> None:
    finding = SENTINEL["event"]["HealthEvent"]  # type: ignore[index]
    assert record_event({**finding, "isHealthy": True}) is None
    quiet = record_event({**finding, "isFatal": False})
    assert quiet is not None
    assert quiet.role == "context"


def test_spelling_of_keys_does_not_matter() -> None:
    """BSON dumps are lower case, HMA writes ``details: `` with a colon."""
    stored = {
        "healthevent": {
            "checkname": "GpuMemWatch",
            "isfatal": True,
            "message": "x",
            "errorcode": ["DCGM_FR_ROW_REMAP_FAILURE"],
            "nodename": "gpu-1",
            "entitiesimpacted": [{"entitytype": "GPU", "entityvalue": "0"}],
        }
    }
    event = record_event(stored)
    assert event is not None
    assert event.cls == "hardware/gpu-memory"
    assert event.node == "gpu-1"
    hma = {"msg": "NPD caught event: %v", "details: ": {"severity": "warn", "reason": "XidHardwareFailure",
           "message": "NVRM: Xid (PCI:0000:b9:00): 74, pid=1, NVLink: fatal error detected on link 6"}}  # fmt: skip
    event = record_event(hma)
    assert event is not None
    assert event.signature == "xid-74"
    assert event.gpu is not None
    assert event.gpu.pci == "0000:b9:00.0"


@pytest.mark.parametrize(
    ("record", "signature", "node"),
    [
        (
            {"time": "2024-11-21T07:12:57.512Z", "message": "initiating delete from interruption message",
             "messageKind": "SpotInterruptionKind", "Node": {"name": "node-a"}},
            "k8s-impending-termination",
            "node-a",
        ),
        (
            {"time": "2024-01-29T08:47:30Z", "message": "initiating delete from interruption message",
             "messageKind": "spot_interrupted", "nodeclaim": "pool-4w54b", "node": "ip-10-0-0-1.internal"},
            "k8s-impending-termination",
            "ip-10-0-0-1.internal",
        ),
        ({"message": "disrupting node(s)", "command": "Underutilized/x: delete", "decision": "delete"}, "k8s-scale-down", None),
    ],
)  # fmt: skip
def test_controllers_that_take_nodes_away(record: dict[str, object], signature: str, node: str | None) -> None:
    assert is_record(record)
    event = record_event(record)
    assert event is not None
    assert (event.signature, event.node) == (signature, node)


def test_nvlink5_code_without_the_kernels_word_is_no_cause() -> None:
    event = record_event(
        {
            "checkName": "DcgmDiagnosticMemory",
            "isFatal": True,
            "message": "Detected XID 145 for GPU 0",
            "errorCode": ["DCGM_FR_XID_ERROR"],
        }
    )
    assert event is not None
    assert event.signature == "xid-145"
    assert event.role == "context"


def test_lines_of_a_stored_log_are_found() -> None:
    raw = "\n".join(json.dumps(row) for row in ({"msg": "started", "time": "2026-03-06T09:00:00Z"}, SENTINEL))
    parsed = parse_objects([json.loads(row) for row in raw.splitlines()], file="q.jsonl", lines=Locator(raw))
    assert [(event.signature, event.line) for event in parsed.events] == [("xid-79", 2)]


def test_component_of_gpud_gives_the_class() -> None:
    state = {"health": "Unhealthy", "reason": "nvlink inactive on GPU-7266bf77-cb00-bbcf-dec7-14edeb72aa01 (2 of 18 links)"}
    event = record_event({"component": "accelerator-nvidia-nvlink", "states": [state]})
    assert event is not None
    assert (event.signature, event.cls, event.gpu.uuid if event.gpu else None) == (
        "k8s-gpu-health",
        "hardware/nvlink",
        "GPU-7266bf77-cb00-bbcf-dec7-14edeb72aa01",
    )
    assert record_event({"component": "accelerator-nvidia-nvlink", "states": [{**state, "health": "Healthy"}]}) is None
