"""Output of gpustat, nvitop, rocm-smi and amd-smi is evidence like that of nvidia-smi, by `triage` and by `check --from`."""

from __future__ import annotations

from pathlib import Path

import pytest

import workbench
from workbench.health.folder import check_folder
from workbench.model import Gpu, Line, Parsed
from workbench.parse.smi import parse_smi
from workbench.sources.sniff import kind_of

DATA = Path(__file__).parents[1] / "data" / "monitors"


def read(name: str) -> Parsed:
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    return parse_smi([Line(no, line) for no, line in enumerate(lines, 1)], file=name)


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.iterdir()))
def test_each_is_recognised_by_what_it_says(name: str) -> None:
    assert kind_of("notes/kept.out", (DATA / name).read_bytes()) == "smi"


@pytest.mark.parametrize(
    ("name", "cls", "action", "node", "index"),
    [
        ("gpustat-lost.txt", "hardware/gpu-lost", "reboot-node", "gpu-node-3", 1),
        ("gpustat-full.txt", "hardware/gpu-lost", "reboot-node", "gpu-node-3", 1),
        ("gpustat-colour.txt", "hardware/gpu-lost", "reboot-node", "gpu-node-3", 1),
        ("gpustat-unknown-error.json", "hardware/gpu-lost", "reboot-node", "gpu-7", 1),
        ("nvitop-ecc.txt", "hardware/gpu-memory", "reset-gpu", None, 1),
        ("amd-smi-ecc.txt", "hardware/gpu-memory", "reset-gpu", None, 5),
        ("rocm-smi-no-driver.txt", "driver/missing", "fix-platform", None, None),
    ],
)
def test_a_fault_that_it_shows_is_found_by_triage_and_by_check(
    name: str, cls: str, action: str, node: str | None, index: int | None
) -> None:
    verdict = workbench.load(DATA / name).triage().to_dict()
    assert (verdict["class"], verdict["remediation"], verdict["culprit"]["node"]) == (cls, action, node)
    assert (verdict["culprit"]["gpu"] or {}).get("index") == index
    bad = [one for one in check_folder(DATA / name) if one.status in ("critical", "warning")]
    assert [(one.cls, one.action, one.node, one.gpu and one.gpu.index) for one in bad] == [(cls, action, node or "", index)]


def test_a_healthy_table_is_no_fault() -> None:
    assert workbench.load(DATA / "rocm-smi-healthy.txt").triage().cls in ("unknown", "none")
    assert not [one for one in check_folder(DATA / "rocm-smi-healthy.txt") if one.status in ("critical", "warning")]


def test_processes_and_states_of_the_gpus_are_kept() -> None:
    text, doc = read("gpustat-lost.txt"), read("gpustat-unknown-error.json")
    assert [(one.gpu, one.pid) for one in text.placements] == [(Gpu(index=0), 4021)]
    assert text.facts["driver"] == "455.32.00"
    assert text.facts["smi"]["2"] == {"node": "gpu-node-3", "celsius": 70, "utilization": 100, "memory_mib": 4335, "memory_total_mib": 11178}  # fmt: skip
    assert text.facts["smi"]["1"]["celsius"] is None  # not told is not zero
    assert [(one.gpu and one.gpu.index, one.pid) for one in doc.placements] == [(0, 77)]
    assert read("nvitop-ecc.txt").facts["smi"]["0000:18:00.0"]["celsius"] == 36


@pytest.mark.parametrize("cut", range(0, 700, 37))
def test_half_an_output_raises_nothing(cut: int) -> None:
    for path in DATA.iterdir():
        lines = path.read_text(encoding="utf-8")[:cut].splitlines()
        parsed = parse_smi([Line(no, line) for no, line in enumerate(lines, 1)], file="x")
        assert not any("could not be read" in problem.message for problem in parsed.problems)
