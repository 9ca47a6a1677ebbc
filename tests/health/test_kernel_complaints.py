"""The kernel's complaints of the host: hardware errors since boot, stalls of a day, and the taint that outlives the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.health.host_tree import Host, codes
from workbench.health import fitness

_MCE = "mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 7: be00000000800400"
_AER = "pcieport 0000:00:01.0: AER: Uncorrectable (Fatal) error message received from {}"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    host.file("/proc/sys/kernel/tainted", "4097\n")  # NVIDIA's driver
    return host


def test_a_quiet_log_is_ok(host: Host) -> None:
    findings = host.run("kernel")
    assert codes(findings) == {("", "ok")}
    assert "since boot" in findings[0].summary


def test_a_machine_check_of_last_week_still_counts_and_a_stall_does_not(host: Host) -> None:
    host.kernel_log(
        f"2027-01-05T07:00:00.000000+00:00 n1 kernel: [1.0] {_MCE}",
        "2027-01-05T07:00:01.000000+00:00 n1 kernel: [2.0] watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:123]",
    )
    findings = host.run("kernel")
    assert codes(findings) == {("", "mce-fatal")}
    assert (findings[0].status, findings[0].action) == ("critical", "replace-node")


def test_stalls_of_today_are_counted_together(host: Host) -> None:
    host.kernel_log(*["INFO: task python:4242 blocked for more than 120 seconds."] * 2)
    findings = host.run("kernel")
    assert codes(findings) == {("", "host-hung-task")}
    assert fitness(findings) == "warning"


def test_errors_of_gpus_are_another_checks(host: Host) -> None:
    host.files("/sys/bus/pci/devices/0000:17:00.0", {"vendor": "0x10de", "class": "0x030200"})
    host.kernel_log(_AER.format("0000:17:00.0"))
    assert codes(host.run("kernel")) == {("", "ok")}
    host.kernel_log(_AER.format("0000:5e:00.0"))
    assert codes(host.run("kernel")) == {("", "host-aer-uncorrected-fatal")}


def test_the_taint_tells_what_the_log_forgot(host: Host) -> None:
    host.file("/proc/sys/kernel/tainted", str(1 << 7 | 1 << 12) + "\n")
    findings = host.run("kernel")
    assert codes(findings) == {("taint", "kernel-died")}
    assert "an oops or BUG" in findings[0].evidence[0]
    host.file("/proc/sys/kernel/tainted", str(1 << 4 | 1 << 5) + "\n")
    assert codes(host.run("kernel")) == {("taint", "kernel-machine-check"), ("taint", "kernel-bad-page")}
    host.file("/proc/sys/kernel/tainted", str(1 << 9 | 1 << 14) + "\n")  # a warning and a soft lockup that passed
    assert codes(host.run("kernel")) == {("", "ok")}


def test_an_error_that_the_system_survived_is_no_fatal_one(host: Host) -> None:
    for severity, code in (("recoverable", "ghes-recoverable"), ("fatal", "ghes-fatal")):
        host.kernel_log(
            "{1}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 1",
            f"{{1}}[Hardware Error]: event severity: {severity}",
        )
        assert codes(host.run("kernel")) == {("", code)}
