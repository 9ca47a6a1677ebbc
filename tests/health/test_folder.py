"""What was kept of a node is judged as the node would have been: on the public benchmark's cases, and on excerpts that show little."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench.cli import main
from workbench.health.finding import Finding
from workbench.health.folder import check_folder

CASES = Path(__file__).resolve().parents[2] / "benchmarks" / "attribution" / "cases"
SMI = Path(__file__).resolve().parents[1] / "data" / "smi"


def _judged(case: Path) -> tuple[dict[str, object], list[Finding]]:
    truth = json.loads((case / "truth.json").read_text(encoding="utf-8"))
    return truth, [one for one in check_folder(case / "input") if not one.code.startswith("unread")]


@pytest.mark.parametrize("name", sorted(path.name for path in CASES.iterdir() if (path / "truth.json").is_file()))
def test_a_case_gives_its_finding_and_no_node_is_condemned_for_nothing(name: str) -> None:
    """
    A fault of hardware or driver that kernel log or nvidia-smi shows gives a finding of its class on its node; where the fault lies
    elsewhere, no node gets a critical finding.
    """
    truth, findings = _judged(CASES / name)
    critical = [one for one in findings if one.status == "critical"]
    assert not [one for one in findings if one.code == "check-failed"]
    if str(truth["class"]).startswith(("hardware/", "driver/")):
        mine = [one for one in critical if one.cls == truth["class"] and one.node == truth["node"]]
        if mine:
            actions = {truth["remediation"], *(truth.get("remediation_also") or ())}  # type: ignore[misc]
            assert actions & {one.action for one in mine}
    else:
        assert not critical


def test_most_faults_of_nodes_are_found_in_what_was_kept() -> None:
    """Of the cases whose fault is the node's, and of which a kernel log or nvidia-smi was kept, all but those that only metrics show."""
    found, missed = [], []
    for case in sorted(CASES.iterdir()):
        if not (case / "truth.json").is_file():
            continue
        truth, findings = _judged(case)
        kept = {path.parent.name for path in (case / "input").rglob("*") if path.is_file()}
        if not str(truth["class"]).startswith(("hardware/", "driver/")) or not kept & {"kernel", "smi"} or not findings:
            continue
        classes = {truth["class"], *(truth.get("also") or ())}  # type: ignore[misc]
        right = any(one.cls in classes for one in findings if one.status in ("critical", "warning"))
        (found if right else missed).append(case.name)
    assert len(found) >= 17
    # 0145: a port's rate and error counters; 0548: clocks that sink with the temperature; both are in metrics alone
    assert set(missed) <= {"incident-0145", "incident-0548"}


def test_an_excerpt_shows_no_node_to_be_well(tmp_path: Path) -> None:
    """One GPU that cannot be opened: the others are not counted as there, and nothing is called ok."""
    (tmp_path / "node-a.txt").write_text(
        "Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error\n", encoding="utf-8"
    )
    findings = check_folder(tmp_path)
    assert [one.code for one in findings if one.status == "critical"] == ["smi-handle-unknown-error"]
    assert [one for one in findings if one.status == "ok"] == []


def test_links_of_one_gpu_say_nothing_of_the_others(tmp_path: Path) -> None:
    links = "".join(f"         Link {link}: {'<inactive>' if link in (3, 5) else '25.781 GB/s'}\n" for link in range(6))
    (tmp_path / "nvlink.txt").write_text("GPU 3: Tesla V100-SXM2-32GB (UUID: GPU-1)\n" + links, encoding="utf-8")
    critical = [one for one in check_folder(tmp_path) if one.status == "critical"]
    assert {(one.check, one.cls, one.gpu.index if one.gpu else None) for one in critical} == {("nvlink", "hardware/nvlink", 3)}


@pytest.mark.parametrize("path", sorted(SMI.iterdir()), ids=lambda path: path.name)
def test_no_kept_output_makes_a_check_fail_itself(path: Path) -> None:
    assert [one.summary for one in check_folder(path) if one.code == "check-failed"] == []


def test_a_whole_query_is_judged_gpu_by_gpu() -> None:
    findings = check_folder(SMI / "q-h100-two-gpus.txt")
    bad = {one.gpu.pci for one in findings if one.status == "critical" and one.gpu}
    assert bad == {"0000:3b:00.0"}
    well = [one for one in findings if one.check == "gpu-memory" and one.status == "ok"]
    assert [one.gpu.pci for one in well if one.gpu] == ["0000:19:00.0"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--from", str(SMI / "q-h100-two-gpus.txt")]) == 2
    out = capsys.readouterr().out
    assert "NOT FIT" in out
    assert "checks need more than these files hold" in out
    assert "smi-remap-failure" not in out  # words, not codes
    (tmp_path / "notes.md").write_text("nothing\n", encoding="utf-8")
    assert main(["check", "--from", str(tmp_path)]) == 3
