"""dcgmi diag: each subtest says what it found, and what was not tested is never ok."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.health.gpu_node import UUIDS, Node, one
from workbench.health import Finding, checks, fitness
from workbench.health.registry import Check, disturbs
from workbench.parse.dcgm_results import subtests
from workbench.sources.node.dcgm import LEVELS
from workbench.sources.node.world import READERS

DATA = Path(__file__).resolve().parent.parent / "data" / "dcgmi"


def result(gpu: int, status: str, *warnings: tuple[int, str], info: str = "") -> dict[str, object]:
    told: dict[str, object] = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": gpu, "status": status}
    if warnings:
        told["warnings"] = [{"error_category": 1, "error_id": id, "error_severity": 1, "warning": text} for id, text in warnings]
    if info:
        told["info"] = [info]
    return told


def document(**tests: list[dict[str, object]]) -> str:
    """JSON of DCGM 4, tests by name."""
    groups = [{"category": "Hardware", "tests": [{"name": name, "results": results} for name, results in tests.items()]}]
    return json.dumps({"DCGM Diagnostic": {"test_categories": groups}, "metadata": {"version": "4.2.3"}})


def dcgmi(node: Node, out: str, code: int = 0) -> Path:
    """A dcgmi whose `diag` prints a text; what it was asked is kept."""
    node.file("bin/diag.out", out)
    asked = node.root / "asked"
    script = f'test "$1" = diag || {{ echo 4.2.3; exit 0; }}\necho "$@" >> {asked}\n/bin/cat {node.tools}/diag.out\nexit {code}'
    node.file("bin/dcgmi", f"#!/bin/sh\n{script}\n").chmod(0o755)
    return asked


def by_part(findings: list[Finding]) -> set[tuple[str, str]]:
    return {(each.part, each.code or each.status) for each in findings}


def test_a_remap_failure_that_dcgm_files_under_software_is_its_gpus(node: Node) -> None:
    asked = dcgmi(node, (DATA / "diag-4.json").read_text(), code=226)
    findings = node.check("dcgm-diag", context="idle")
    found = one(findings, "dcgm-diag-reset")
    assert found.gpu is not None
    assert found.gpu.uuid == UUIDS[5]
    # DCGM asks for a reset; a remapping that failed has no spare row left, as NVML's own flag says in `gpu-memory`
    assert (found.status, found.action, found.cls) == ("critical", "replace-node", "hardware/gpu-memory")
    assert "DCGM_FR_ROW_REMAP_FAILURE (RESET)" in found.evidence
    assert [each.status for each in findings if each.part == "software"] == ["critical", "ok"]
    assert asked.read_text().split() == ["diag", "-r", "1", "-j"]


def test_dcgm_3_lists_gpus_in_one_result(node: Node) -> None:
    dcgmi(node, (DATA / "diag-3.json").read_text(), code=1)
    findings = node.check("dcgm-diag", context="idle")
    (bad,) = [each for each in findings if each.status == "critical"]
    assert bad.gpu is not None
    assert (bad.gpu.index, bad.cls) == (2, "hardware/thermal-power")
    (good,) = [each for each in findings if each.status == "ok"]
    assert "GPU 0, GPU 1" in good.summary


def test_the_severity_of_dcgms_error_decides(node: Node) -> None:
    dcgmi(
        node,
        document(
            software=[result(0, "Fail", (29, "Persistence mode for GPU 0 is disabled."))],
            pcie=[result(1, "Fail", (3, "Detected 90 PCIe replays per minute for GPU 1"))],
        ),
        code=226,
    )
    findings = node.check("dcgm-diag", context="idle")
    config = one(findings, "dcgm-diag-config")
    assert (config.status, config.action) == ("warning", "fix-platform")
    assert one(findings, "dcgm-diag-isolate").cls == "hardware/pcie"


def test_skipped_and_not_run_are_said_and_never_ok(node: Node) -> None:
    dcgmi(
        node,
        document(
            memory=[result(0, "Pass"), result(1, "Skip", info="Skipping: MIG is on")],
            targeted_power=[result(0, "Skip"), result(1, "Skip")],
            nvbandwidth=[result(0, "Not Run")],
            pulse_test=[],
            context_create=[result(0, "Strange")],
        ),
    )
    findings = node.check("dcgm-diag", context="idle")
    assert by_part(findings) == {
        ("memory", "ok"),
        ("memory", "not-applicable"),
        ("targeted_power", "not-applicable"),
        ("nvbandwidth", "unread"),
        ("pulse_test", "unread"),
        ("context_create", "unread"),
    }
    (skipped,) = [each for each in findings if each.part == "memory" and each.status == "not-applicable"]
    assert "MIG is on" in skipped.summary


def test_a_run_in_which_everything_was_skipped_shows_nothing(node: Node) -> None:
    node.settings["diag"] = 2
    dcgmi(node, document(memory=[result(0, "Skip")]))
    findings = node.check("dcgm-diag", context="idle")
    assert fitness(findings) == "unknown"


def test_a_failure_of_something_else_than_a_gpu_counts(node: Node) -> None:
    bad = {"entity_group": "CPU", "entity_id": 1, "status": "Fail", "warnings": [{"error_id": 0, "warning": "CPU 1 failed"}]}
    dcgmi(node, document(cpu_eud=[bad]))
    assert "critical" in {each.status for each in node.check("dcgm-diag", context="idle")}


def test_the_level_is_the_sites_and_must_be_one(node: Node) -> None:
    asked = dcgmi(node, document(memory=[result(0, "Pass")]))
    node.settings["diag"] = 3
    assert [each.status for each in node.check("dcgm-diag", context="idle")] == ["ok"]
    assert "-r 3" in asked.read_text()
    for wrong in (0, 5, "long"):
        node.settings["diag"] = wrong
        (found,) = node.check("dcgm-diag", context="idle")
        assert found.status == "unknown"
        assert "1 to 4" in found.summary
    assert sorted(LEVELS.values()) == list(LEVELS.values())


@pytest.mark.parametrize(
    "out",
    [
        "",
        "garbage",
        "Error: unable to establish a connection to the specified host: localhost",
        "Error: Unable to complete diagnostic for group 0. Return: (-30) The NVVS is already running",
        (DATA / "diag-4.json").read_text()[:400],
        '{"DCGM Diagnostic": {"test_categories": []}}',
        '{"DCGM Diagnostic": {"runtime_error": "Couldn\'t parse output from nvvs"}}',
        "[]",
        '{"DCGM Diagnostic": 3}',
    ],
)
def test_no_whole_answer_is_unknown(node: Node, out: str) -> None:
    dcgmi(node, out, code=1)
    findings = node.check("dcgm-diag", context="idle")
    assert [each.status for each in findings] == ["unknown"]


def test_one_that_hangs_is_killed_in_time(node: Node) -> None:
    node.file("bin/dcgmi", '#!/bin/sh\ntest "$1" = diag || exit 0\nsleep 600 & wait\n').chmod(0o755)
    (node.tools / "sleep").symlink_to("/bin/sleep")
    from workbench.health import run
    from workbench.sources.node.world import World

    world = World("gpu-7", node.root, {"PATH": str(node.tools), "LD_LIBRARY_PATH": node.library, "FAKE_NVML": ""})
    begun = time.monotonic()
    (found,) = run("idle", world=world, only=["dcgm-diag"], seconds=6.0)
    assert found.status == "unknown"
    assert time.monotonic() - begun < 60


def test_nobody_is_disturbed(node: Node) -> None:
    asked = dcgmi(node, document(memory=[result(0, "Pass")]))
    (busy,) = node.check("dcgm-diag", context="idle", env={"FAKE_NVML": "busy=2"})
    assert busy.status == "unknown"
    assert "somebody computes" in busy.summary
    (running,) = node.check("dcgm-diag", context="running")
    assert running.status == "unknown"
    assert "while a job runs" in running.summary
    assert not asked.exists()


def test_no_check_that_uses_the_gpus_is_run_while_a_job_runs_or_long_before_one() -> None:
    active = {name for name, reader in READERS.items() if reader.active}
    assert {"dcgm-diag", "nvbandwidth", "nccl-tests", "matmul"} <= active
    for each in checks().values():
        assert disturbs(each) == ""
        if active & {*each.needs, *each.wants}:
            assert each.contexts == ("idle",)
    for contexts in (("running",), ("allocation",)):
        assert disturbs(Check("x", "x", lambda seen: (), ("nvbandwidth",), contexts=contexts))


def test_a_level_1_answer_of_dcgm_2_has_summaries_only() -> None:
    told = subtests(
        '{"DCGM Diagnostic": {"test_categories": [{"category": "d", "tests": [{"name": "software", "test_summary": {"status": "Skip"}}]}]}}'
    )
    assert told is not None
    assert [(each.test, each.status) for each in told.subtests] == [("software", "skip")]
