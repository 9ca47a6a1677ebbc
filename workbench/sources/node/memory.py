"""Turn the host's memory into one reading: how much there is, and which errors its controllers counted."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.parse.proc_files import meminfo
from workbench.sources.contract import Deadline
from workbench.sources.node.world import Unread, Way, World, reader

__all__ = ["Dimm", "HostMemory"]

_EDAC = "/sys/devices/system/edac/mc"


@dataclass(frozen=True, slots=True)
class Dimm:
    """
    One memory module, or a controller that does not tell its modules apart.

    `name` is the controller and the module (``mc0/dimm3``), `label` what the board calls it, `corrected` and `uncorrected` its counts (None
    when not told), `days` since they began to count (None when not known).
    """

    name: str
    label: str
    corrected: int | None
    uncorrected: int | None
    days: float | None


@dataclass(frozen=True, slots=True)
class HostMemory:
    """
    Memory of the host.

    `total`, `corrupted` (taken out of use after an error) and `huge` (reserved as huge pages) are bytes; `dimms` is empty where the kernel
    watches no memory controller, and `why` says so.
    """

    total: int
    corrupted: int
    huge: int
    dimms: tuple[Dimm, ...]
    why: str = ""


def _number(world: World, name: str) -> int | None:
    try:
        text = world.text(name).strip()
    except Unread:
        return None
    return int(text) if text.isdigit() else None


def _memory(world: World, deadline: Deadline) -> HostMemory:
    told = meminfo(world.text("/proc/meminfo"))
    if "MemTotal" not in told:
        raise Unread("garbage", "/proc/meminfo does not tell MemTotal")
    huge = told.get("HugePages_Total", 0) * told.get("Hugepagesize", 0)
    dimms, why = _dimms(world)
    return HostMemory(told["MemTotal"], told.get("HardwareCorrupted", 0), huge, dimms, why)


def _dimms(world: World) -> tuple[tuple[Dimm, ...], str]:
    try:
        controllers = [name for name in world.names(_EDAC) if name.startswith("mc")]
    except Unread as error:
        return (
            (),
            "the kernel watches no memory controller (a virtual machine, or no EDAC driver)"
            if error.ending == "missing"
            else error.detail,
        )
    out = []
    for controller in controllers:
        base = f"{_EDAC}/{controller}"
        seconds = _number(world, f"{base}/seconds_since_reset")
        days = None if seconds is None else seconds / 86400
        modules = [name for name in world.names(base) if name.startswith(("dimm", "rank"))]
        counted = []
        for module in modules:
            place = f"{base}/{module}"
            try:
                label = world.text(f"{place}/dimm_label").strip()
            except Unread:
                label = ""
            counts = _number(world, f"{place}/dimm_ce_count"), _number(world, f"{place}/dimm_ue_count")
            counted.append(Dimm(f"{controller}/{module}", label, *counts, days))
        # errors that the controller could not lay at the door of one module
        name = "" if not counted else "/no module"
        corrected, uncorrected = ("ce_noinfo_count", "ue_noinfo_count") if counted else ("ce_count", "ue_count")
        whole = Dimm(
            f"{controller}{name}", "", _number(world, f"{base}/{corrected}"), _number(world, f"{base}/{uncorrected}"), days
        )
        out += [*counted, *([whole] if not counted or whole.corrected or whole.uncorrected else [])]
    return tuple(out), "" if out else "the kernel watches no memory controller"


reader("host-memory", "the host's memory and the errors it counted", seconds=5.0, ways=(Way("/proc/meminfo and EDAC", _memory),))
