"""Turn the node's disks into one reading: what the kernel says of each, and its SMART where smartctl may ask."""

from __future__ import annotations

import re
from dataclasses import dataclass

from workbench.parse.smart import Smart, parse_smart
from workbench.sources.contract import Deadline
from workbench.sources.node.world import Unread, Way, World, reader, tool

__all__ = ["Array", "Disk", "Disks"]

_BLOCK = "/sys/block"
_SECONDS = 20.0
# disks of hypervisors, of the network and of memory: their health is not told here
_MADE_UP = re.compile(r"(?:loop|ram|zram|dm-|md|sr|fd|nbd|rbd|drbd|zd)")
_VIRTUAL = re.compile(r"(?:vd|xvd|mmcblk|pmem)")


@dataclass(frozen=True, slots=True)
class Disk:
    """
    One disk: its name, model, what the kernel thinks of it (``live``, ``running``; empty when not told), its SMART, and why there is none.

    `virtual` is a disk of a hypervisor, which has no SMART.
    """

    name: str
    model: str
    state: str
    virtual: bool
    smart: Smart | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Array:
    """A software RAID: its name, state, and how many of its disks are missing (None when not told)."""

    name: str
    state: str
    degraded: int | None


@dataclass(frozen=True, slots=True)
class Disks:
    """The disks and arrays of the node."""

    disks: tuple[Disk, ...]
    arrays: tuple[Array, ...]


def _text(world: World, name: str) -> str:
    try:
        return world.text(name).strip()
    except Unread:
        return ""


def _seen(world: World) -> Disks:
    names = world.names(_BLOCK)
    disks = []
    for name in names:
        if _MADE_UP.match(name):
            continue
        # the controller of nvme0n1 (or of nvme0c0n1 with multipath) tells for all of its namespaces
        controller = re.match(r"nvme\d+", name)
        states = (f"{_BLOCK}/{name}/device/state", *([f"/sys/class/nvme/{controller[0]}/state"] if controller else []))
        state = next((text for text in (_text(world, path) for path in states) if text), "")
        model = _text(world, f"{_BLOCK}/{name}/device/model")
        made_up = bool(_VIRTUAL.match(name)) or bool(
            re.search(r"QEMU|VBOX|Virtual disk|Elastic Block Store|PersistentDisk|Msft", model)
        )
        disks.append(Disk(name, model, state, made_up))
    arrays = []
    for name in names:
        if level := _text(world, f"{_BLOCK}/{name}/md/level"):
            missing = _text(world, f"{_BLOCK}/{name}/md/degraded")
            state = _text(world, f"{_BLOCK}/{name}/md/array_state")
            arrays.append(Array(f"{name} ({level})", state, int(missing) if missing.isdigit() else None))
    if not disks:
        raise Unread("absent", "the kernel lists no disk")
    return Disks(tuple(disks), tuple(arrays))


def _smart(world: World, deadline: Deadline) -> Disks:
    seen = _seen(world)
    if all(disk.virtual for disk in seen.disks):
        raise Unread("missing", "no disk here has SMART")
    asked = []
    for disk in seen.disks:
        if disk.virtual:
            asked.append(disk)
            continue
        # every exit code is an answer: its bits say what the disk said (smartctl(8)); one disk that hangs must not cost the others
        try:
            argv = ("smartctl", "-H", "-A", "-j", f"/dev/{disk.name}")
            ran = tool(world, argv, deadline, codes=range(256), limit=1 << 20, seconds=5.0)
        except Unread as error:
            if error.ending in ("missing", "not-executable"):
                raise
            asked.append(Disk(disk.name, disk.model, disk.state, False, None, error.detail))
            continue
        smart = parse_smart(ran.text)
        why = (
            f"{ran.asked} printed no whole answer"
            if smart is None
            else ""
            if smart.told
            else smart.said or "the disk tells nothing"
        )
        asked.append(Disk(disk.name, disk.model, disk.state, False, smart if smart and smart.told else None, why))
    if not any(disk.smart for disk in asked):
        why = next(disk.why for disk in asked if not disk.virtual)
        raise Unread("exit", f"smartctl: {why}", "run as root")
    return Disks(tuple(asked), seen.arrays)


def _kernel(world: World, deadline: Deadline) -> Disks:
    return _seen(world)


reader(
    "disks",
    "the node's disks and what they say of themselves",
    seconds=_SECONDS,
    ways=(
        Way("smartctl", _smart),
        Way("/sys/block", _kernel, ("SMART: the disk's own verdict, its wear, its errors",)),
    ),
)
