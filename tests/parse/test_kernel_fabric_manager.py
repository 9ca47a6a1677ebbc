"""The Fabric Manager's own log joins the kernel's SXid events and says why the fabric is not up."""

from __future__ import annotations

import datetime as dt

from workbench.model import Line, Parsed
from workbench.parse.fabric_manager import parse_fabric_manager


def log(text: str, **options: object) -> Parsed:
    lines = [Line(number, line) for number, line in enumerate(text.splitlines(), start=1)]
    return parse_fabric_manager(lines, file="fabricmanager.log", node="gpu-1", **options)  # type: ignore[arg-type]


def test_a_switch_error_is_the_kernels_sxid() -> None:
    """Same signature as the kernel line, with switch and port, so that the two join."""
    parsed = log(
        "[Mar 02 2026 15:10:01] [INFO] [tid 12] multicast group 0 is freed.\n"
        "[Mar 02 2026 15:10:02] [ERROR] [tid 12] detected NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci "
        "bus id 00000000:86:00.0 physical id 3 port 61\n"
        "[Mar 02 2026 15:10:03] [ERROR] [tid 12] detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus "
        "id 00000000:86:00.0 physical id 3 port 7\n"
    )
    stalled, fatal = parsed.events
    assert (stalled.signature, stalled.data["switch_pci"], stalled.data["link"], stalled.line) == (
        "sxid-12028",
        "0000:86:00.0",
        61,
        2,
    )
    assert stalled.time == dt.datetime(2026, 3, 2, 15, 10, 2, tzinfo=dt.UTC).timestamp()
    assert (fatal.code, fatal.role) == (20034, "cause")
    assert parsed.facts["naive_local"] is True


def test_reasons_for_not_starting_are_told_apart() -> None:
    """Versions that do not fit and a driver without switches are different repairs."""
    parsed = log(
        "Mar  2 06:05:54 gpu-1 nv-fabricmanager[4177]: fabric manager NVIDIA GPU driver interface version 550.54.15 "
        "don't match with driver version 550.90.07. Please update with matching NVIDIA driver package.\n"
        "Mar  2 06:05:55 gpu-1 nv-fabricmanager[4177]: request to query NVSwitch device information from NVSwitch "
        "driver failed with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]\n",
        reference=dt.datetime(2026, 3, 3, tzinfo=dt.UTC).timestamp(),
    )
    mismatch, start = parsed.events
    assert (mismatch.signature, mismatch.data["fm"], mismatch.data["driver"]) == ("fm-version-mismatch", "550.54.15", "550.90.07")
    assert (start.signature, start.node) == ("fabric-manager-nothing-to-do", "gpu-1")
    assert start.time is not None
