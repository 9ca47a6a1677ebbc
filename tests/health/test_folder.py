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
    capsys.readouterr()
    assert main(["check", "--from", str(tmp_path / "not-there")]) == 3
    assert "not-there: no such file or folder" in capsys.readouterr().err


def test_several_nodes_are_one_exposition_and_several_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for node, line in (
        ("node-a", "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."),
        ("node-b", "NVRM: loading NVIDIA UNIX"),
    ):
        (tmp_path / f"{node}.dmesg").write_text(f"[ 1000.000001] {line}\n", encoding="utf-8")
    assert main(["check", "--from", str(tmp_path), "-o", "prom"]) == 2
    page = capsys.readouterr().out
    assert page.count("# TYPE workbench_finding gauge") == page.count("# TYPE workbench_node_fit gauge") == 1
    assert {'workbench_node_fit{node="node-a"} 0', 'workbench_node_fit{node="node-b"} 0'} <= set(page.splitlines())
    assert main(["check", "--from", str(tmp_path)]) == 2
    heads = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert [line.split()[0] for line in heads] == ["node-a", "node-b:"]
    assert heads[0].endswith(
        ": GPU 0000:3b:00.0: Xid 79: the GPU does not answer on PCIe: only a reboot (better: a power cycle) can bring it back"
    )


def test_what_a_file_does_not_tell_is_one_line_and_no_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--from", str(SMI.parent / "monitors" / "gpustat-lost.txt")]) == 2
    out = capsys.readouterr().out
    assert "????" not in out
    assert "gpu-node-3 NOT FIT (1 critical" in out
    assert "checks need more than these files hold" in out


_SLOW = "nvidia 0000:4c:00.0: 63.012 Gb/s available PCIe bandwidth, limited by {} link at 0000:49:04.0 (capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)"  # fmt: skip
_REPLAY = "pcieport 0000:49:04.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)"


def _kernel(tmp_path: Path, *lines: str) -> list[Finding]:
    folder = tmp_path / "kernel"
    folder.mkdir(exist_ok=True)
    text = "".join(f"[{1000.0 + 20 * at:12.6f}] {line}\n" for at, line in enumerate(lines))
    (folder / "node-a.log").write_text(text, encoding="utf-8")
    return [one for one in check_folder(tmp_path) if one.status in ("critical", "warning")]


def test_lanes_that_a_link_lost_are_a_fault_when_it_also_corrects_errors(tmp_path: Path) -> None:
    """A card in a narrow slot is built so, and one whose link is only slower than it could be sits in an older machine."""
    (found,) = _kernel(tmp_path, _REPLAY, _REPLAY, _REPLAY, _SLOW.format("16.0 GT/s PCIe x4"))
    assert (found.code, found.status, found.action) == ("pcie-lanes-lost", "critical", "drain")
    assert found.gpu is not None
    assert found.gpu.pci == "0000:4c:00.0"
    (found,) = _kernel(tmp_path, _SLOW.format("16.0 GT/s PCIe x4"))
    assert (found.status, found.action) == ("warning", "none")
    assert _kernel(tmp_path, _SLOW.format("16.0 GT/s PCIe x16")) == []


def test_a_burst_on_a_port_counts_when_the_only_gpu_does_not_answer(tmp_path: Path) -> None:
    folder = tmp_path / "kernel"
    folder.mkdir()
    burst = "pcieport 0000:00:03.0: AER: Corrected error received: 0000:00:03.0"
    (folder / "node-a.log").write_text("".join(f"[  +0.000{at}16] {burst}\n" for at in range(4)), encoding="utf-8")
    assert [one for one in check_folder(tmp_path) if one.status in ("critical", "warning")] == []
    (tmp_path / "smi").mkdir()
    (tmp_path / "smi" / "node-a.txt").write_text(
        "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error\n", encoding="utf-8"
    )
    found = {one.code: one for one in check_folder(tmp_path) if one.status in ("critical", "warning")}
    assert set(found) == {"smi-handle-unknown-error", "aer-corrected"}
    assert found["aer-corrected"].gpu is not None
    assert found["aer-corrected"].gpu.pci == "0000:03:00.0"


def test_a_fabric_managers_silence_says_nothing_of_the_switches(tmp_path: Path) -> None:
    line = "[Feb 27 2025 15:10:02] [INFO] [tid 1272{}] multicast group {} is allocated.\n"
    log = tmp_path / "fabricmanager.log"
    log.write_text("".join(line.format(at, at) for at in range(9)), encoding="utf-8")
    assert {one.status for one in check_folder(tmp_path) if one.check == "sxid"} <= {"unknown"}
    with log.open("a", encoding="utf-8") as stream:
        stream.write("[Feb 27 2025 15:10:02] [ERROR] [tid 12727] detected NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 61\n")  # fmt: skip
    (found,) = (one for one in check_folder(tmp_path) if one.status in ("critical", "warning"))
    assert (found.code, found.action, found.part) == ("sxid-stops-traffic", "reboot-node", "NVSwitch 0000:86:00.0 link 61")


def test_a_boards_event_log_tells_of_the_machine_of_this_month(tmp_path: Path) -> None:
    """Nobody clears it when a part was replaced: what it kept of last year says nothing of today."""
    log = tmp_path / "bmc" / "node-a.txt"
    log.parent.mkdir()
    old = "   1 | 02/03/2024 | 08:00:01 | Power Supply #0xc4 | Power Supply AC lost | Asserted\n"
    new = "   2 | 10/21/2025 | 09:59:58 | Memory #0xd1 | Uncorrectable ECC | Asserted\n"
    corrected = "   3 | 10/21/2025 | 09:41:13 | Memory #0xd1 | Correctable ECC | Asserted\n"
    log.write_text(old + new + corrected, encoding="utf-8")
    (found,) = (one for one in check_folder(tmp_path) if one.status in ("critical", "warning"))
    assert (found.code, found.node, found.cls, found.action) == (
        "bmc-memory-uncorrected",
        "node-a",
        "hardware/host",
        "replace-node",
    )
    log.write_text(old + corrected, encoding="utf-8")
    assert [one for one in check_folder(tmp_path) if one.status in ("critical", "warning")] == []


def test_a_whole_query_shows_that_the_driver_answered() -> None:
    """How many GPUs there should be is not told by what was printed of those that are there."""
    found = [one for one in check_folder(SMI / "q-h100-two-gpus.txt") if one.check == "driver"]
    assert [one.status for one in found] == ["ok"]


def test_what_happened_in_the_middle_of_a_long_log_is_told_as_of_a_short_one(tmp_path: Path) -> None:
    """Reports of several lines (a link that vanished, a task that hangs in the driver) keep the lines that explain them."""
    told = [
        "pcieport 0000:97:01.0: bridge window [mem 0xa0000000-0xafffffff]",
        "pcieport 0000:97:01.0: AER: Uncorrected (Fatal) error received: 0000:97:01.0",
        "pcieport 0000:97:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)",
        "pcieport 0000:97:01.0:   device [8086:352a] error status/mask=00000020/00100000",
        "pcieport 0000:97:01.0:    [ 5] SDES                   (First)",
        "NVRM: Xid (PCI:0000:98:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "INFO: task python:48211 blocked for more than 120 seconds.",
        "      Tainted: P           OE     5.15.0-91-generic #101-Ubuntu",
        "task:python          state:D stack:    0 pid:48211 ppid:     1 flags:0x00004006",
        "Call Trace:",
        " __schedule+0x24e/0x590",
        " rm_ioctl+0x5a/0xb0 [nvidia]",
    ]

    def judged(before: int, after: int) -> set[tuple[str, str, str]]:
        text, noise = [], "audit: type=1400 audit(1710234836.118:{}): apparmor=STATUS operation=profile_replace"
        for at, line in enumerate([*[noise] * before, *told, *[noise] * after]):
            text.append(f"[{1000.0 + 0.01 * at:13.6f}] {line.format(at) if line is noise else line}")
        folder = tmp_path / "kernel"
        folder.mkdir(exist_ok=True)
        (folder / "node-a.log").write_text("\n".join(text) + "\n", encoding="utf-8")
        return {(one.code, one.cls, one.action) for one in check_folder(tmp_path) if one.status in ("critical", "warning")}

    short = judged(3, 3)
    assert ("xid-79", "hardware/gpu-lost", "drain") in short
    assert ("hung-task", "driver/hang", "reboot-node") in short
    assert judged(9_000, 9_000) == short  # read whole, and only the telling lines parsed
    assert judged(30_000, 30_000) == short  # larger than what is read whole
