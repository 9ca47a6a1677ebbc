"""The host's memory: all there, no errors; a virtual machine without counters is no unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.health.host_tree import Host, codes
from workbench.health import fitness

_MEMINFO = "MemTotal:       2113391716 kB\nMemFree:        1976160000 kB\nHardwareCorrupted:     {} kB\nHugePages_Total:       0\nHugepagesize:       2048 kB\n"
_GIB = 1 << 30


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    host.file("/proc/meminfo", _MEMINFO.format(0))
    return host


def add_dimm(host: Host, name: str, label: str, corrected: int, uncorrected: int) -> None:
    controller, module = name.split("/")
    base = f"/sys/devices/system/edac/mc/{controller}"
    host.files(base, {"mc_name": "Intel_10nm Socket#0 IMC#0", "seconds_since_reset": 2592000, "ce_count": corrected, "ue_count": uncorrected, "ce_noinfo_count": 0, "ue_noinfo_count": 0})  # fmt: skip
    host.files(f"{base}/{module}", {"dimm_label": label, "dimm_ce_count": corrected, "dimm_ue_count": uncorrected, "size": 65536})


def test_without_counters_only_the_size_is_told(host: Host) -> None:
    findings = host.run("host-memory")
    assert codes(findings) == {("", "ok"), ("EDAC", "not-applicable")}
    assert fitness(findings) == "ok"


def test_a_module_that_is_not_there_is_missed_and_a_reserved_page_is_not(host: Host) -> None:
    assert ("", "ok") in codes(host.run("host-memory", memory=2024 * _GIB))
    short = host.run("host-memory", memory=2080 * _GIB)
    assert ("", "memory-missing") in codes(short)
    assert fitness(short) == "critical"


def test_an_uncorrected_error_names_its_module(host: Host) -> None:
    add_dimm(host, "mc0/dimm0", "CPU_SrcID#0_MC#0_Chan#0_DIMM#0", 4, 0)
    add_dimm(host, "mc1/dimm0", "CPU_SrcID#0_MC#1_Chan#0_DIMM#0", 0, 1)
    (bad,) = [one for one in host.run("host-memory") if one.code]
    assert (bad.code, bad.part, bad.action) == ("edac-uncorrected", "mc1/dimm0", "replace-node")
    assert "CPU_SrcID#0_MC#1" in bad.summary


def test_corrected_errors_count_by_the_day(host: Host) -> None:
    add_dimm(host, "mc0/dimm0", "A1", 250, 0)  # in 30 days
    assert fitness(host.run("host-memory")) == "ok"
    add_dimm(host, "mc0/dimm0", "A1", 350, 0)
    assert ("mc0/dimm0", "edac-corrected") in codes(host.run("host-memory"))


def test_counters_that_cannot_be_read_are_unknown(host: Host) -> None:
    add_dimm(host, "mc0/dimm0", "A1", 0, 0)
    host.file("/sys/devices/system/edac/mc/mc0/dimm0/dimm_ue_count", "")
    assert fitness(host.run("host-memory")) == "unknown"


def test_pages_out_of_use_are_told(host: Host) -> None:
    host.file("/proc/meminfo", _MEMINFO.format(12))
    assert ("", "memory-retired") in codes(host.run("host-memory"))


@pytest.mark.parametrize("text", ["", "MemTotal", "\0\0\0"])
def test_half_a_file_is_no_memory(host: Host, text: str) -> None:
    host.file("/proc/meminfo", text)
    assert fitness(host.run("host-memory")) == "unknown"
