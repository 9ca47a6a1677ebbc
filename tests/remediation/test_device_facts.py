"""A report for the provider names the GPU as a thing and says what the diagnostic said, whoever told it: findings, an earlier run, a verdict."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.remediation.fleets import NOW, fleet, node
from workbench.health.devices import with_devices
from workbench.health.finding import Finding
from workbench.model import Gpu
from workbench.parse.gpu_state import GpuState, NodeGpus
from workbench.remediation.model import Trouble
from workbench.remediation.planner import make_plan
from workbench.remediation.troubles import Report, of_findings, of_verdict, read_document, together
from workbench.report.findings import FORMATS
from workbench.report.plan import ticket
from workbench.sources.node.world import Reading

GPU = Gpu(3, "GPU-3", "0000:3b:00.0")
BAD = Finding(
    "row-remap",
    "critical",
    "rows could not be remapped",
    "row-remap-failed",
    "gpu-001",
    GPU,
    cls="hardware/gpu-memory",
    action="replace-node",
)
DIAG = (
    Finding("dcgm-diag", "ok", "pcie passed", "", "gpu-001", None, "pcie"),
    Finding("dcgm-diag", "critical", "memory of dcgmi diag -r 3 failed: 8 errors", "dcgm-diag-isolate", "gpu-001", GPU, "memory"),
    Finding("dcgm-diag", "critical", "memory failed there", "dcgm-diag-isolate", "gpu-001", Gpu(4, "GPU-4"), "memory"),
    Finding("dcgm-diag", "not-applicable", "DCGM skipped pulse", "", "gpu-001", None, "pulse"),
)


def gpus(**facts: Any) -> Reading:
    states = (GpuState(GPU, facts), GpuState(Gpu(4, "GPU-4", "0000:4c:00.0"), {"serial": "1650000000004", "name": "H100"}))
    return Reading("gpus", "ok", NodeGpus(states))


def kept(*rows: dict[str, Any]) -> Reading:
    return Reading("kept-gpus", "ok", {"boot_id": "b", "gpus": list(rows)})


def reported(findings: list[Finding]) -> str:
    """Return the report of the plan that these findings lead to, by way of the JSON that `workbench check` prints."""
    text = FORMATS["json"](findings, verbose=False, about={"time": "2026-05-28T20:25:40.000Z", "boot": "boot-1"})
    report = read_document(json.loads(text))
    assert isinstance(report, Report)
    troubles, _ = of_findings(replace(report, time=NOW - 60))
    metal = node(environment="metal")
    plan = make_plan(troubles, fleet(metal), verbs=("cordon", "collect", "ticket"))
    action = next(one for one in plan.actions if one.verb == "ticket")
    return ticket(action)


def test_a_finding_says_which_thing_its_gpu_is() -> None:
    readings = {"gpus": gpus(serial="1650000000003", vbios="96.00.74.00.1C", name="NVIDIA H100")}

    bad, fine = with_devices([BAD, replace(BAD, status="ok")], readings)

    assert bad.device == {"serial": "1650000000003", "vbios": "96.00.74.00.1C", "product": "NVIDIA H100"}
    assert fine.device == {}
    assert bad.to_dict()["device"] == bad.device
    assert "device" not in fine.to_dict()


@pytest.mark.parametrize("nothing", ["0", "N/A", "", None, "00000"])
def test_a_gpu_that_is_lost_is_what_an_earlier_run_kept_by_its_uuid_and_never_by_its_place(nothing: Any) -> None:
    same = {"uuid": "GPU-3", "pci": "0000:3b:00.0", "serial": "1650000000003", "name": "NVIDIA H100"}
    other = {**same, "uuid": "GPU-9", "serial": "1650000000009"}

    assert with_devices([BAD], {"gpus": gpus(serial=nothing), "kept-gpus": kept(same)})[0].device["serial"] == "1650000000003"
    assert with_devices([BAD], {"gpus": gpus(serial=nothing), "kept-gpus": kept(other)})[0].device == {}
    assert with_devices([BAD], {"kept-gpus": Reading("kept-gpus", "absent")})[0].device == {}
    assert with_devices([BAD], {})[0].device == {}


def test_the_report_has_serial_vbios_and_what_the_diagnostic_said_of_this_gpu_without_any_bundle() -> None:
    readings = {"gpus": gpus(serial="1650000000003", vbios="96.00.74.00.1C", name="NVIDIA H100")}

    text = reported(with_devices([BAD, *DIAG], readings))

    assert "| GPU serial | 1650000000003 |" in text
    assert "| GPU VBIOS | 96.00.74.00.1C |" in text
    assert "| Product | NVIDIA H100 |" in text
    said = text.partition("## What the diagnostic said")[2].partition("##")[0]
    assert "critical: GPU 3: memory of dcgmi diag -r 3 failed: 8 errors" in said
    assert "ok: pcie: pcie passed" in said
    assert "failed there" not in text
    assert "skipped" not in text


def test_what_nobody_told_is_not_known_with_where_it_can_be_read() -> None:
    text = reported([BAD])

    assert "| GPU serial | not known: `nvidia-smi -q -i INDEX`, line Serial Number |" in text
    assert "| GPU VBIOS | not known" in text
    assert "diagnostic said" not in text


def test_what_another_finding_of_the_same_run_says_in_words_counts_too() -> None:
    swapped = Finding("gpu-inventory", "warning", "another GPU", "gpu-swapped", "gpu-001", GPU, "serial 1650000000003")
    flashed = Finding("versions", "warning", "VBIOS 96.00.74.00.1C, its peers have 96.00.99.00.01", "", "gpu-001", GPU)
    others = Finding("gpu-inventory", "warning", "another GPU", "gpu-swapped", "gpu-001", Gpu(5, "GPU-5"), "serial 1650000000005")

    text = reported([BAD, others, swapped, flashed])

    assert "| GPU serial | 1650000000003 |" in text
    assert "| GPU VBIOS | 96.00.74.00.1C |" in text


def verdict(*evidence: dict[str, Any]) -> dict[str, Any]:
    line = {
        "role": "cause",
        "signature": "xid-95",
        "time": "2026-05-28T20:25:40.000Z",
        "source": "kernel",
        "file": "k",
        "line": 1,
    }
    lines = [{**line, "node": "gpu-001", "gpu": GPU.as_dict(), "text": "NVRM: Xid 95"}, *evidence]
    return {
        "schema": "workbench.verdict/1",
        "class": "hardware/gpu-memory",
        "confidence": 0.97,
        "summary": "memory",
        "culprit": {"node": "gpu-001", "gpu": GPU.as_dict(), "at_fault": "gpu"},
        "time": "2026-05-28T20:25:40.000Z",
        "remediation": "replace-node",
        "retry": "exclude-node",
        "evidence": lines,
    }


def row(text: str, *, signature: str = "smi-row-remap", **more: Any) -> dict[str, Any]:
    return {"role": "context", "signature": signature, "time": None, "source": "smi", "node": "gpu-001", "text": text} | more


def test_a_verdict_tells_what_its_evidence_on_this_gpu_says() -> None:
    found = of_verdict(
        verdict(
            row("Serial Number : 1650000000003", gpu=GPU.as_dict()),
            row("VBIOS Version : 96.00.74.00.1C", gpu=GPU.as_dict()),
            row("Serial Number : 1650000000009", gpu=Gpu(4, "GPU-4").as_dict()),
            row("memory: Fail", signature="dcgmi-memory", gpu=GPU.as_dict()),
            row("memory: Fail", signature="dcgmi-memory", gpu=Gpu(4, "GPU-4").as_dict()),
            row("diagnostic: Fail", signature="dcgmi-diagnostic", node="gpu-002"),
        )
    )

    assert found is not None
    assert found.facts == {
        "serial": "1650000000003",
        "vbios": "96.00.74.00.1C",
        "diagnostics": [{"time": None, "text": "memory: Fail"}],
    }


def test_two_sources_of_one_fault_tell_the_report_together() -> None:
    one = of_verdict(verdict(row("memory: Fail", signature="dcgmi-memory", gpu=GPU.as_dict())))
    assert one is not None
    (other,), _ = of_findings(Report("gpu-001", (replace(BAD, device={"serial": "1650000000003"}),), NOW))

    (found,) = together([one, other])

    assert found.facts["serial"] == "1650000000003"
    assert [line["text"] for line in found.facts["diagnostics"]] == ["memory: Fail"]
    assert json.loads(json.dumps(found.to_dict()))["facts"]["serial"] == "1650000000003"
    assert Trouble("n", "c", "x", "none").facts == {}
