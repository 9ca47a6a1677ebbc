"""An action is too little when the log goes on to show that it has failed: `check` and `triage` climb by the same table."""

from __future__ import annotations

from pathlib import Path

import pytest

import workbench
from workbench.catalog import signatures, table
from workbench.health.folder import check_folder
from workbench.model import REMEDIATIONS

GPU = "0000:3b:00"
TIMEOUT = f"[  300.100000] NVRM: Xid (PCI:{GPU}): 119, pid=1, name=x, Timeout after 6s of waiting for RPC response from GPU1 GSP!"
ECC = f"[  300.100000] NVRM: Xid (PCI:{GPU}): 48, pid=1, name=x, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer."
FAILED = "[  400.100000] NVRM: GPU {}.0: RmInitAdapter failed! (0x62:0x40:2393)"
FELL = "[  400.100000] NVRM: Xid (PCI:{}): 79, pid=1, GPU has fallen off the bus."
LOADED = "[   20.100000] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  595.71.05  Release Build"
BEAT = "[   {}.100000] NVRM: GPU6 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 812751949"
RAS = "[  300.100000] amdgpu 0000:e3:00.0: amdgpu: uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!"
RESET = "[  330.100000] amdgpu 0000:{}:00.0: amdgpu: GPU reset end with ret = -62"


def both(tmp_path: Path, *lines: str) -> tuple[str, str]:
    """What triage asks for, and the first finding of the same class."""
    (tmp_path / "kernel").mkdir(exist_ok=True)
    (tmp_path / "kernel" / "node-7.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    verdict = workbench.load(tmp_path).triage()
    bad = [one for one in check_folder(tmp_path) if one.status in ("critical", "warning") and one.cls == verdict.cls]
    return str(verdict.remediation), bad[0].action


@pytest.mark.parametrize(
    ("lines", "action"),
    [
        ((TIMEOUT,), "reset-gpu"),
        ((TIMEOUT, FAILED.format(GPU)), "reboot-node"),
        ((TIMEOUT, FAILED.format("0000:4c:00")), "reset-gpu"),  # of another GPU
        ((ECC,), "reset-gpu"),
        ((ECC, FAILED.format(GPU)), "reboot-node"),
        ((ECC, FELL.format(GPU)), "reboot-node"),
        ((BEAT.format(30),), "reset-gpu"),
        ((LOADED, BEAT.format(30)), "reboot-node"),
        ((LOADED, BEAT.format(900)), "reset-gpu"),  # it had come up
        ((RAS,), "reset-gpu"),
        ((RAS, RESET.format("e3")), "reboot-node"),
        ((RAS, RESET.format("a3")), "reset-gpu"),
    ],
)
def test_what_was_seen_afterwards_decides_whether_a_reset_is_enough(tmp_path: Path, lines: tuple[str, ...], action: str) -> None:
    assert both(tmp_path, *lines) == (action, action)


def test_a_gpu_that_came_up_before_the_fault_says_nothing_of_a_reset(tmp_path: Path) -> None:
    assert both(tmp_path, FAILED.format(GPU).replace("400.1", "100.1"), TIMEOUT)[0] != ""
    found = {one.code: one.action for one in check_folder(tmp_path)}
    assert found["xid-119"] == "reset-gpu"


def test_every_row_names_known_actions_and_signatures() -> None:
    for row in table("climbs"):
        assert {row["action"], row["to"]} <= set(REMEDIATIONS)
        assert all(row[name] for name in ("why", "source", "date"))
        for name in (*row["fault"].split("|"), *row["by"].split("|")):
            assert any(one.startswith(name) for one in signatures()), name


def test_missing_firmware_explains_a_gpu_that_does_not_come_up(tmp_path: Path) -> None:
    (tmp_path / "node-7.log").write_text(
        "[   23.100000] NVRM: RmFetchGspRmImages: No firmware image found\n"
        f"[   23.200000] NVRM: GPU {GPU}.0: RmInitAdapter failed! (0x61:0x56:1770)\n"
    )
    bad = {one.code: (one.cls, one.action) for one in check_folder(tmp_path) if one.status == "critical"}
    assert bad["rm-init-no-firmware"] == ("driver/missing", "fix-platform")
    assert not any(cls.startswith("hardware/") for cls, _ in bad.values())
    verdict = workbench.load(tmp_path).triage()
    assert (verdict.cls, verdict.remediation) == ("driver/missing", "fix-platform")
