"""Objects of Kubernetes become jobs, their starts and stretches of nodes' lives; a cause is only what a reason says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from workbench.fleet.ingest.paths import of_bytes
from workbench.fleet.ingest.told import take_in
from workbench.fleet.ledger import Ledger

T = 1_780_000_000.0


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    with Ledger.open(tmp_path / "fleet.sqlite") as one:
        yield one


def _pod(
    name: str,
    made: int,
    phase: str,
    end: int | None = None,
    node: str = "n1",
    reason: str = "",
    code: int = 1,
    index: str = "0",
    **status: Any,
) -> dict[str, Any]:
    stamp = lambda second: f"2026-05-04T10:{second // 60:02d}:{second % 60:02d}Z"  # noqa: E731
    ended = {"terminated": {"exitCode": code, "finishedAt": stamp(end), "reason": reason}} if end is not None else {"running": {}}
    return {
        "kind": "Pod", "metadata": {"name": name, "namespace": "ml", "creationTimestamp": stamp(made), "labels": {"batch.kubernetes.io/job-name": "train", "batch.kubernetes.io/job-completion-index": index}},
        "spec": {"nodeName": node, "containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}]},
        "status": {"phase": phase, "startTime": stamp(made + 5), "containerStatuses": [{"state": ended}], **status},
    }  # fmt: skip


def test_pods_of_a_job_are_its_starts_and_only_what_a_reason_says_is_a_cause(ledger: Ledger) -> None:
    lost = {
        "conditions": [
            {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "DeletionByTaintManager",
                "lastTransitionTime": "2026-05-04T10:05:00Z",
            }
        ]
    }
    items = [
        {"kind": "Job", "metadata": {"name": "train", "namespace": "ml", "creationTimestamp": "2026-05-04T09:59:00Z", "labels": {"team": "vision"}},
         "status": {"startTime": "2026-05-04T10:00:00Z", "completionTime": "2026-05-04T10:20:00Z", "conditions": [{"type": "Complete", "status": "True"}]}},
        _pod("train-0-a", 0, "Failed", 300, "n1", **lost), _pod("train-1-a", 0, "Failed", 301, "n2", index="1"),
        _pod("train-0-b", 310, "Failed", 600, "n3"), _pod("train-1-b", 310, "Failed", 601, "n2", index="1"),
        _pod("train-0-c", 610, "Succeeded", 1200, "n3", code=0), _pod("train-1-c", 610, "Succeeded", 1200, "n2", code=0, index="1"),
        {"kind": "Pod", "metadata": {}}, 7,
    ]  # fmt: skip
    told = of_bytes(json.dumps({"kind": "List", "items": items}).encode(), file="k8s.json", recorded=T)
    take_in(ledger, told)
    rows = [
        (one["attempt"], one["state"], one["cls"], one["cause"], one["gpus"], one["node_names"])
        for one in ledger.rows("attempts")
    ]
    assert rows == [
        (1, "failed", "platform/node-lost", "platform", 16, ["n1", "n2"]),
        (2, "failed", None, "unknown", 16, ["n2", "n3"]),
        (3, "completed", None, None, 16, ["n2", "n3"]),
    ]
    (job,) = ledger.rows("jobs")
    assert (job["job"], job["team"], job["state"], job["cause"]) == ("ml/train", "vision", "completed", None)
    assert [(one["node"], one["weight"]) for one in ledger.rows("signals")] == [("n1", 1.0)]
    assert len(told.problems) == 1


def test_a_node_that_is_not_ready_is_down_and_a_cordoned_one_is_held(ledger: Ledger) -> None:
    def node(name: str, ready: str, **spec: Any) -> dict[str, Any]:
        condition = {"type": "Ready", "status": ready, "reason": "x", "lastTransitionTime": "2026-05-04T10:05:00Z"}
        return {"kind": "Node", "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": "H100"}}, "spec": spec,
                "status": {"conditions": [condition], "capacity": {"nvidia.com/gpu": "8"}}}  # fmt: skip

    items = [node("a", "True"), node("b", "Unknown"), node("c", "True", unschedulable=True)]
    take_in(ledger, of_bytes(json.dumps({"items": items}).encode(), file="nodes.json", recorded=T))
    rows = {one["node"]: (one["state"], one["cause"], one["gpus"], one["sku"]) for one in ledger.rows("node_states")}
    assert rows == {"a": ("usable", None, 8, "H100"), "b": ("down", rows["b"][1], 8, "H100"), "c": ("held", "unknown", 8, "H100")}
    assert rows["b"][1] in ("platform", "unknown")
    assert [(one["kind"], one["node"]) for one in ledger.rows("signals")] == [("out-of-service", "b")]


def _event(reason: str, kind: str, name: str, first: str, message: str = "", last: str = "", **more: Any) -> dict[str, Any]:
    return {
        "kind": "Event", "metadata": {"name": f"{name}.{reason}.{first}", "namespace": "ml" if kind == "Pod" else "default"},
        "involvedObject": {"kind": kind, "name": name, "namespace": "ml" if kind == "Pod" else ""}, "reason": reason, "message": message,
        "type": "Warning", "firstTimestamp": f"2026-05-04T{first}Z", "lastTimestamp": f"2026-05-04T{last or first}Z", **more,
    }  # fmt: skip


def _taken(ledger: Ledger, *items: dict[str, Any], recorded: float = T) -> dict[str, int]:
    return take_in(ledger, of_bytes(json.dumps({"kind": "List", "items": items}).encode(), file="k8s.json", recorded=recorded))


def test_events_tell_the_turns_of_a_nodes_life_that_its_present_conditions_have_forgotten(ledger: Ledger) -> None:
    turns = [
        _event("NodeNotReady", "Node", "n1", "09:00:00", "Node n1 status is now: NodeNotReady"),
        _event("NodeReady", "Node", "n1", "09:40:00", type="Normal"),
        _event("NodeNotSchedulable", "Node", "n1", "11:00:00", type="Normal"),
        _event("NodeSchedulable", "Node", "n1", "11:30:00", type="Normal"),
    ]
    assert _taken(ledger, *turns) == {"node_states": 4, "signals": 1}
    rows = [(one["state"], (one["end"] or one["begin"]) - one["begin"]) for one in ledger.rows("node_states")]
    assert rows == [("down", 2400.0), ("usable", 4800.0), ("held", 1800.0), ("usable", 0.0)]
    assert [(one["kind"], one["node"]) for one in ledger.rows("signals")] == [("out-of-service", "n1")]
    assert not any(_taken(ledger, *turns).values())


@pytest.mark.parametrize("first", ["event", "condition", "both"])
def test_an_event_and_the_condition_that_it_was_about_are_one_stretch_and_one_sign(ledger: Ledger, first: str) -> None:
    condition = {
        "type": "Ready",
        "status": "Unknown",
        "reason": "NodeStatusUnknown",
        "lastTransitionTime": "2026-05-04T10:05:00Z",
    }
    node = {"kind": "Node", "metadata": {"name": "n1"}, "spec": {}, "status": {"conditions": [condition]}}
    event = _event("NodeNotReady", "Node", "n1", "10:05:04", "Node n1 status is now: NodeNotReady")
    told = {"event": [[event], [node]], "condition": [[node], [event]], "both": [[event, node]]}[first]
    for items in told * 2:
        changed = _taken(ledger, *items)
    assert not any(changed.values())
    (stretch,) = ledger.rows("node_states")
    (sign,) = ledger.rows("signals")
    assert (stretch["state"], stretch["source"], sign["kind"], sign["time"]) == (
        "down",
        "kubernetes",
        "out-of-service",
        stretch["begin"],
    )


def test_an_event_says_why_a_pod_ended_where_the_pod_itself_does_not(ledger: Ledger) -> None:
    pods = [_pod("train-0-a", 0, "Failed", 300, "n1"), _pod("train-1-a", 0, "Failed", 302, "n2", index="1")]
    silent = [
        _event("FailedScheduling", "Pod", "train-0-a", "10:00:00", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
    ]
    _taken(ledger, *pods, *silent)
    assert [(one["cls"], one["cause"]) for one in ledger.rows("attempts")] == [(None, "unknown")]
    told = [_event("TaintManagerEviction", "Pod", "train-0-a", "10:04:59", "Marking for deletion Pod ml/train-0-a")]
    _taken(ledger, *pods, *told, recorded=T + 60)
    (attempt,) = ledger.rows("attempts")
    assert (attempt["cls"], attempt["node"], attempt["at_fault"]) == ("platform/node-lost", "n1", "node")


def test_an_xid_in_an_event_is_a_sign_against_its_gpu_and_the_same_when_it_was_seen_again(ledger: Ledger) -> None:
    uuid = "GPU-1a2b3c40-9f3e-4c00-8d71-5e0fa9b2c000"
    text = f"XidCriticalError: Xid=79 on Device={uuid}; marking device as unhealthy."
    event = _event("GpuUnhealthy", "Node", "n1", "10:05:04", text, count=1)
    assert _taken(ledger, event) == {"signals": 1}
    assert _taken(ledger, {**event, "count": 9, "lastTimestamp": "2026-05-04T10:45:00Z"}) == {"signals": 0}
    (sign,) = ledger.rows("signals")
    assert (sign["kind"], sign["code"], sign["node"], sign["gpu_uuid"]) == ("xid", "79", "n1", uuid)


def test_lists_of_the_api_itself_whose_items_have_no_kind_are_read(ledger: Ledger) -> None:
    bare = {key: value for key, value in _event("NodeNotReady", "Node", "n1", "09:00:00").items() if key != "kind"}
    told = of_bytes(json.dumps({"kind": "EventList", "apiVersion": "v1", "items": [bare]}).encode(), file="e.json", recorded=T)
    take_in(ledger, told)
    assert (told.problems, [one["state"] for one in ledger.rows("node_states")]) == ([], ["down"])
