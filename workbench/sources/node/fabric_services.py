"""Turn this node's NVLink fabric software into one reading: NVSwitches that the kernel lists, Fabric Manager, IMEX, and how they run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from workbench.parse.ids import pci
from workbench.sources.contract import Deadline
from workbench.sources.node.world import Unread, Way, World, lines_of, reader, tool

__all__ = ["FabricServices", "Service"]

_UNITS = ("nvidia-fabricmanager.service", "nvidia-imex.service")
_PROGRAMS = {"nv-fabricmanager": _UNITS[0], "nvidia-imex": _UNITS[1]}
_BRIDGE = "0x0680"  # PCI class "other bridge": what an NVSwitch is


@dataclass(frozen=True, slots=True)
class Service:
    """
    One service.

    `state` is systemd's ActiveState (``active``, ``failed``, ``inactive`` …), ``running`` when only the process was found, ``absent`` when
    there is no such unit or process; `enabled` whether it is to start at boot, None when not told; `said` SubState and Result.
    """

    unit: str
    state: str
    enabled: bool | None = None
    said: str = ""

    @property
    def runs(self) -> bool:
        """Whether it runs."""
        return self.state in ("active", "running", "reloading")


@dataclass(frozen=True, slots=True)
class FabricServices:
    """`switches` are the PCI addresses of NVSwitches, None when the bus could not be read; `services` by the unit's name."""

    switches: tuple[str, ...] | None
    services: Mapping[str, Service]

    @property
    def manager(self) -> Service:
        """The Fabric Manager."""
        return self.services[_UNITS[0]]

    @property
    def imex(self) -> Service:
        """The memory export service between nodes of one NVLink domain."""
        return self.services[_UNITS[1]]


def _switches(world: World) -> tuple[str, ...] | None:
    root = "/sys/bus/pci/devices"
    try:
        addresses = world.names(root)
    except Unread:
        return None
    found = []
    for address in addresses:
        try:
            if world.text(f"{root}/{address}/vendor").strip() != "0x10de":
                continue
            if world.text(f"{root}/{address}/class").strip().startswith(_BRIDGE):
                found.append(pci(address) or address)
        except Unread:  # it went away meanwhile
            continue
    return tuple(found)


def _systemd(world: World, deadline: Deadline) -> FabricServices:
    asked = "Id,LoadState,ActiveState,SubState,Result,UnitFileState"
    ran = tool(world, ("systemctl", "show", "--property", asked, *_UNITS), deadline, seconds=5.0)
    blocks: dict[str, dict[str, str]] = {}
    for block in re.split(r"\n\s*\n", "\n".join(lines_of(ran.text))):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if values.get("Id"):
            blocks[values["Id"]] = values
    if any(unit not in blocks or not blocks[unit].get("ActiveState") for unit in _UNITS):
        raise Unread("garbage", f"{ran.asked} did not tell the state of {' and '.join(_UNITS)}", "run it by hand")
    services = {}
    for unit in _UNITS:
        values = blocks[unit]
        missing = values.get("LoadState") in ("not-found", "masked")
        enabled = values.get("UnitFileState", "")
        services[unit] = Service(
            unit,
            "absent" if missing and values["ActiveState"] == "inactive" else values["ActiveState"],
            None if not enabled else enabled.startswith("enabled"),
            f"{values.get('SubState', '')} {values.get('Result', '')}".strip(),
        )
    return FabricServices(_switches(world), services)


def _processes(world: World, deadline: Deadline) -> FabricServices:
    seen = set()
    numbers = [name for name in world.names("/proc") if name.isdigit()]
    if not numbers:
        raise Unread("missing", "/proc lists no process")
    for name in numbers:
        try:
            # the kernel keeps 15 letters of a name
            seen.add(world.text(f"/proc/{name}/comm", 64).strip())
        except Unread:
            continue
    services = {unit: Service(unit, "running" if program[:15] in seen else "absent") for program, unit in _PROGRAMS.items()}
    return FabricServices(_switches(world), services)


reader(
    "fabric-services",
    "NVSwitches, Fabric Manager and IMEX",
    seconds=8.0,
    ways=(
        Way("systemctl", _systemd),
        Way("/proc", _processes, ("whether a service that does not run should run, and why it ended",)),
    ),
)
