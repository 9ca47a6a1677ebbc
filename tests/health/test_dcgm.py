"""DCGM's health watches: what they found is taken over, and a host engine that does not answer is no health."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.health.gpu_node import UUIDS, Node, one
from workbench.health import Finding, checks, fitness
from workbench.parse.dcgm_results import overall_health

DATA = Path(__file__).resolve().parent.parent / "data" / "dcgmi"
HEALTHY_BOX = (
    "+---------------------------+----------------------------------------------------------+\n"
    "| Health Monitor Report                                                                |\n"
    "+===========================+==========================================================+\n"
    "| Overall Health            | Healthy                                                  |\n"
    "+---------------------------+----------------------------------------------------------+\n"
)
HEALTHY_JSON = '{"body": {"Overall Health": {"value": "Healthy"}}, "header": ["Health Monitor Report"]}\n'


def dcgmi(node: Node, json: str, box: str = "", code: int = 0) -> None:
    """A dcgmi that answers `health` with JSON when it is asked for it, else with a box."""
    node.file("bin/health.json", json)
    node.file("bin/health.box", box)
    script = f'for word; do test "$word" = -j && {{ /bin/cat {node.tools}/health.json; exit {code}; }}; done\n/bin/cat {node.tools}/health.box\nexit {code}'
    node.file("bin/dcgmi", f"#!/bin/sh\n{script}\n").chmod(0o755)


def statuses(findings: list[Finding]) -> list[str]:
    return [each.status for each in findings]


def test_a_healthy_answer_in_both_forms(node: Node) -> None:
    for json, box in ((HEALTHY_JSON, ""), ("", HEALTHY_BOX)):
        dcgmi(node, json, box)
        assert statuses(node.check("dcgm")) == ["ok"]


def test_a_warning_is_a_warning_on_the_gpu_that_it_names(node: Node) -> None:
    dcgmi(node, (DATA / "health.json").read_text())
    found = one(node.check("dcgm"), "dcgm-health-warning")
    assert found.gpu is not None
    assert found.gpu.uuid == UUIDS[3]
    assert found.cls == "hardware/pcie"
    assert "71 PCIe replays" in found.summary


def test_failures_are_critical_and_links_of_a_card_without_bridge_are_a_note(node: Node) -> None:
    dcgmi(node, "not json", (DATA / "health-memory-and-links.txt").read_text())
    findings = node.check("dcgm")
    memory = one(findings, "dcgmi-health-memory")
    assert (memory.status, memory.cls, memory.action) == ("critical", "hardware/gpu-memory", "drain")
    assert memory.gpu is not None
    assert memory.gpu.index == 1
    links = [each for each in findings if each.code == "dcgmi-health-nvlink"]
    assert [each.gpu.index for each in links if each.gpu] == [4]
    (note,) = [each for each in findings if each.part == "note"]
    assert note.status == "not-applicable"
    assert note.gpu is not None
    assert note.gpu.index == 5
    assert "ok" not in statuses(findings)


def test_a_failed_driver_watch_is_not_lost(node: Node) -> None:
    dcgmi(
        node,
        '{"body": {"GPU": {"children": {"2": {"children": {"Errors": {"children": {"Driver": {"children": {"The driver of GPU 2 does not answer": {"value": ""}}, '
        '"value": "Failure"}}}}, "value": "Failure"}}}, "Overall Health": {"value": "Failure"}}, "header": ["Health Monitor Report"]}',
    )
    assert one(node.check("dcgm"), "dcgmi-health-driver").action == "reboot-node"


def test_a_failure_without_a_reason_is_still_one(node: Node) -> None:
    dcgmi(node, '{"body": {"Overall Health": {"value": "Failure"}}}')
    assert one(node.check("dcgm"), "dcgmi-health").status == "critical"
    dcgmi(node, '{"body": {"Overall Health": {"value": "Internal error"}}}')
    assert statuses(node.check("dcgm")) == ["unknown"]


def test_without_dcgm_nothing_is_asked_unless_the_site_counts_on_it(node: Node) -> None:
    assert statuses(node.check("dcgm")) == ["not-applicable"]
    node.settings["dcgm"] = True
    findings = node.check("dcgm")
    assert statuses(findings) == ["unknown"]
    assert fitness(findings) == "unknown"


@pytest.mark.parametrize(
    "script",
    [
        "echo 'Error: unable to establish a connection to the specified host: localhost'; exit 1",
        "echo 'Error: Health watches not enabled. Please enable watches.'; exit 1",
        "echo 'Error: Health watches not enabled. Please enable watches.'",
        "exit 0",
        "exit 1",
        "echo garbage",
        f"printf '%s' '{HEALTHY_JSON[:30]}'",
        "kill -9 $$",
        "while :; do /bin/echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done",
    ],
)
def test_a_dcgm_that_does_not_answer_is_unknown(node: Node, script: str) -> None:
    node.file("bin/dcgmi", f"#!/bin/sh\n{script}\n").chmod(0o755)
    findings = node.check("dcgm")
    assert statuses(findings) == ["unknown"]
    if "not enabled" in script:
        assert "dcgmi health -g 0 -s a" in findings[0].hint
    else:
        assert "judge by NVML what it watches" in findings[0].hint


def test_it_may_be_asked_while_a_job_runs(node: Node) -> None:
    assert "running" in checks()["dcgm"].contexts
    dcgmi(node, HEALTHY_JSON)
    assert statuses(node.check("dcgm", context="running")) == ["ok"]


def test_the_overall_health_in_all_forms() -> None:
    assert (
        overall_health(HEALTHY_BOX) == overall_health(HEALTHY_JSON) == overall_health("| Overall Health: Healthy |") == "Healthy"
    )
    assert overall_health("{}") == overall_health("") == overall_health('{"body": []}') == ""
