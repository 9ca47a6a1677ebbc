"""Disks: their own verdict where it can be had, the kernel's where not, and no alarm for want of smartctl."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.health.host_tree import Host, codes
from workbench.health import fitness
from workbench.parse.smart import parse_smart


def smart(**log: int) -> str:
    """What smartctl 7.4 prints of an NVMe disk."""
    values = {
        "critical_warning": 0,
        "temperature": 38,
        "available_spare": 100,
        "available_spare_threshold": 10,
        "percentage_used": 3,
        "media_errors": 0,
    }
    passed = not log.get("critical_warning")
    return json.dumps(
        {
            "json_format_version": [1, 0],
            "smartctl": {
                "version": [7, 4],
                "argv": ["smartctl", "-H", "-A", "-j", "/dev/nvme0n1"],
                "exit_status": 0 if passed else 8,
            },
            "device": {"name": "/dev/nvme0n1", "type": "nvme", "protocol": "NVMe"},
            "smart_status": {"passed": passed, "nvme": {"value": log.get("critical_warning", 0)}},
            "nvme_smart_health_information_log": {**values, **log},
        }
    )


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    host.files("/sys/block/nvme0n1/device", {"model": "SAMSUNG MZ7L33T8HBNA", "state": "live"})
    host.path("/sys/block/loop0").mkdir()
    return host


def test_without_smartctl_the_kernel_is_believed_unless_the_site_wants_more(host: Host) -> None:
    (only,) = host.run("disks")
    assert (only.status, only.path) == ("ok", "/sys/block")
    assert "SMART" in only.blind[0]
    wanted = host.run("disks", smart=True)
    assert fitness(wanted) == "unknown"
    assert "smartctl" in wanted[0].summary


def test_a_healthy_disk_says_so(host: Host) -> None:
    host.tool("smartctl", smart(media_errors=2))
    (only,) = host.run("disks", smart=True)
    assert (only.status, only.path, only.evidence) == ("ok", "smartctl", ("2 media errors in its life",))


@pytest.mark.parametrize(
    ("log", "code"),
    [
        ({"critical_warning": 1}, "disk-failing"),
        ({"critical_warning": 8, "media_errors": 99}, "disk-failing"),
        ({"critical_warning": 2}, "disk-hot"),
        ({"percentage_used": 104}, "disk-worn"),
    ],
)
def test_what_an_nvme_disk_warns_of(host: Host, log: dict[str, int], code: str) -> None:
    host.tool("smartctl", smart(**log), code=8 if "critical_warning" in log else 0)
    assert codes(host.run("disks")) == {("nvme0n1", code)}


@pytest.mark.parametrize(
    ("script"), ["exit 1", "exit 0", "echo '{'", "echo '[]'", "sleep 60", 'echo \'{"smartctl": {"exit_status": 2}}\'']
)
def test_a_broken_smartctl_is_never_a_healthy_disk(host: Host, script: str) -> None:
    host.tool("smartctl", script=script)
    assert fitness(host.run("disks", smart=True)) == "unknown"
    (only,) = host.run("disks")
    assert only.path == "/sys/block"


def test_a_disk_that_the_kernel_gave_up(host: Host) -> None:
    host.tool("smartctl", smart())
    host.file("/sys/block/nvme0n1/device/state", "dead\n")
    assert codes(host.run("disks")) == {("nvme0n1", "disk-dead")}


def test_disks_of_a_hypervisor_have_nothing_to_say(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.path("/sys/block/vda").mkdir(parents=True)
    assert codes(host.run("disks", smart=True)) == {("vda", "not-applicable")}


def test_errors_of_a_day_and_a_degraded_array(host: Host) -> None:
    host.files("/sys/block/md0/md", {"level": "raid1", "degraded": 1, "array_state": "clean"})
    host.kernel_log(
        "2027-01-10T07:30:00.000000+00:00 n1 kernel: [1.0] I/O error, dev nvme1n1, sector 7 op 0x0:(READ)",
        "I/O error, dev loop0, sector 7 op 0x0:(READ)",
        "I/O error, dev nvme0n1, sector 7 op 0x0:(READ)",
    )
    assert {one for one in codes(host.run("disks")) if one[1] != "ok"} == {
        ("md0 (raid1)", "raid-degraded"),
        ("nvme0n1", "disk-errors"),
    }


def test_other_disks_count_their_sectors() -> None:
    text = json.dumps(
        {
            "smartctl": {"exit_status": 0},
            "smart_status": {"passed": True},
            "ata_smart_attributes": {
                "table": [
                    {"id": 5, "name": "Reallocated_Sector_Ct", "when_failed": "", "raw": {"value": 8}},
                    {"id": 197, "name": "Current_Pending_Sector", "when_failed": "", "raw": {"value": 16}},
                    {"id": 1, "name": "Raw_Read_Error_Rate", "when_failed": "now", "raw": {"value": 1}},
                ]
            },
        }
    )
    told = parse_smart(text)
    assert told is not None
    assert (told.passed, told.pending, told.reallocated, told.warnings) == (
        True,
        16,
        8,
        ("Raw_Read_Error_Rate is below its threshold",),
    )
    assert parse_smart(text[:-20]) is None
