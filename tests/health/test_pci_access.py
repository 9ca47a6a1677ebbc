"""PCIe access control: a switch that sends peers through the processor is told, a root port and a virtual machine's are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.health.host_tree import Host, codes
from workbench.parse.pci_config import PciPort, parse_config


def config(kind: int, control: int | None) -> bytes:
    """A configuration space with the PCI Express capability at 0x40 and Access Control Services behind another one."""
    space = bytearray(4096)
    space[0:2] = b"\x4c\x11"
    space[0x06], space[0x34] = 0x10, 0x40
    space[0x40:0x44] = bytes((0x10, 0x00, kind << 4 | 2, 0x01))
    space[0x100:0x104] = (0x0001 | 1 << 16 | 0x200 << 20).to_bytes(4, "little")  # AER, next 0x200
    if control is not None:
        space[0x200:0x204] = (0x000D | 1 << 16).to_bytes(4, "little")
        space[0x204:0x208] = bytes((0x5F, 0x00, control, 0x00))
    return bytes(space)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    host.file("/proc/cpuinfo", "flags\t\t: fpu vme de\n")
    return host


def add(host: Host, *, switch: int | None, root: int | None = 0x1D) -> None:
    """A GPU below a port of a switch below a root port."""
    real = host.path("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:04.0/0000:17:00.0")
    real.mkdir(parents=True)
    (real / "vendor").write_text("0x10de\n")
    (real / "class").write_text("0x030200\n")
    (real.parents[2] / "config").write_bytes(config(4, root))
    (real.parents[1] / "config").write_bytes(config(5, None))
    (real.parents[0] / "config").write_bytes(config(6, switch))
    for folder in (real, *real.parents[:3]):
        host.path(f"/sys/bus/pci/devices/{folder.name}").symlink_to(folder)


def test_a_switch_that_redirects_is_told(host: Host) -> None:
    add(host, switch=0x1D)
    (only,) = host.run("pci-access")
    assert (only.code, only.status) == ("acs-redirects", "warning")
    assert only.evidence == ("0000:02:04.0: ACSCtl ReqRedir or CmpltRedir",)


def test_one_that_does_not_and_a_root_port_that_does(host: Host) -> None:
    add(host, switch=0x01)
    assert codes(host.run("pci-access")) == {("", "ok")}


def test_a_virtual_machine_has_no_say(host: Host) -> None:
    add(host, switch=0x1D)
    host.file("/proc/cpuinfo", "flags\t\t: fpu hypervisor\n")
    assert codes(host.run("pci-access")) == {("", "not-applicable")}


def test_who_is_not_shown_the_whole_space_does_not_know(host: Host) -> None:
    add(host, switch=0x1D)
    place = host.path("/sys/bus/pci/devices/0000:02:04.0").resolve() / "config"
    place.write_bytes(place.read_bytes()[:64])
    assert codes(host.run("pci-access")) == {("", "unread-not-executable")}


def test_no_gpu_no_question(host: Host) -> None:
    assert codes(host.run("pci-access")) == {("", "not-applicable")}


def test_nonsense_ends() -> None:
    loop = bytearray(config(6, None))
    loop[0x41] = 0x40
    loop[0x100:0x104] = (0x0001 | 1 << 16 | 0x100 << 20).to_bytes(4, "little")
    told = parse_config(bytes(loop))
    assert told is not None
    assert told.redirects is None
    assert parse_config(b"\xff" * 4096) is None
    assert parse_config(bytes(64)) is None
    assert parse_config(config(6, 0x1D)[:256]) is None
    assert parse_config(bytes(256)) == PciPort("", None)
