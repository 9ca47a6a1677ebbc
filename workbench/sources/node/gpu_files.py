"""Turn what the kernel and the driver's files tell of the GPUs into readings: device files, the way over PCIe, versions, who holds them."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field

from workbench.parse.ids import pci
from workbench.sources.contract import Deadline
from workbench.sources.node.gpus import on_bus
from workbench.sources.node.world import Unread, Way, World, reader, tool

__all__ = ["DeviceFiles", "Holder", "Holders", "Versions"]

_GPU_FILE = re.compile(r"nvidia(\d{1,3})$")
_UVM = "/dev/nvidia-uvm"
_TWICE = 1.0  # seconds between two looks at a process: who waits for a disk is in state D for a moment, too
_MOST = 200_000  # processes


# ---- device files


@dataclass(frozen=True, slots=True)
class DeviceFiles:
    """`minors` of ``/dev/nvidiaN``; whether ``/dev/nvidiactl`` and ``/dev/nvidia-uvm`` are there."""

    minors: tuple[int, ...]
    control: bool
    uvm: bool


def _device_files(world: World, deadline: Deadline) -> DeviceFiles:
    names = world.names("/dev")
    minors = sorted(int(found[1]) for name in names if (found := _GPU_FILE.match(name)))
    return DeviceFiles(tuple(minors), "nvidiactl" in names, "nvidia-uvm" in names)


reader("device-files", "the GPUs' files in /dev", seconds=5.0, ways=(Way("/dev", _device_files),))


# ---- PCIe


def _pcie_paths(world: World, deadline: Deadline) -> dict[str, tuple[str, ...]]:
    """Each GPU's address → the ports above it, nearest last: an error of the link is logged by either end."""
    found = {}
    for one in on_bus(world):
        real = world.path(f"/sys/bus/pci/devices/{one['pci']}").resolve()
        above = [address for part in real.parts[:-1] if (address := pci(part)) and re.fullmatch(r"[0-9a-fA-F:.]+", part)]
        found[one["pci"]] = tuple(above)
    return found


reader("pcie-paths", "the PCIe ports above each GPU", seconds=5.0, ways=(Way("/sys/bus/pci", _pcie_paths),))


# ---- versions


@dataclass(frozen=True, slots=True)
class Versions:
    """
    What the driver's own files say.

    `module` is the version of the module that is loaded, `installed` that of the module on disk for the running kernel (empty when not
    told), `firmware` and `vbios` by PCI address, `unread` the GPUs whose file did not answer.
    """

    module: str
    installed: str = ""
    firmware: dict[str, str] = field(default_factory=dict)
    vbios: dict[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()


def _versions(world: World, deadline: Deadline) -> Versions:
    try:
        module = world.text("/sys/module/nvidia/version").strip()
    except Unread:
        ran = tool(world, ("cat", str(world.path("/proc/driver/nvidia/version"))), deadline, seconds=3.0)
        found = re.search(r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)", ran.text)
        module = found[1] if found else ""
    if not module:
        raise Unread("garbage", "/proc/driver/nvidia/version tells no version")
    try:
        ran = tool(world, ("modinfo", "-F", "version", "nvidia"), deadline, seconds=3.0)
        installed = ran.text.strip().splitlines()[0]
    except Unread:  # a driver container, or no modinfo: nobody knows
        installed = ""
    firmware: dict[str, str] = {}
    vbios: dict[str, str] = {}
    unread: list[str] = []
    folder = "/proc/driver/nvidia/gpus"
    try:
        listed = world.names(folder)
    except Unread:
        listed = []
    for name in listed:
        # a wedged driver holds whoever reads its files: so a process of its own reads
        try:
            ran = tool(world, ("cat", str(world.path(f"{folder}/{name}/information"))), deadline, seconds=3.0)
        except Unread as error:
            unread.append(f"{name}: {error.detail}")
            continue
        told = dict(re.findall(r"^([A-Za-z ]+?):\s*(\S.*?)\s*$", ran.text, re.M))
        address = pci(name) or name
        if (value := told.get("GPU Firmware", "N/A")) != "N/A":
            firmware[address] = value
        if "?" not in (value := told.get("Video BIOS", "?")):
            vbios[address] = value
    return Versions(module, installed if re.fullmatch(r"[\d.]+", installed) else "", firmware, vbios, tuple(unread))


reader("driver-files", "versions that the driver's own files tell", seconds=12.0, ways=(Way("/proc/driver/nvidia", _versions),))


# ---- who holds the GPUs


@dataclass(frozen=True, slots=True)
class Holder:
    """
    A process that has files of GPUs open.

    `state` is the worst of its threads as /proc prints it (``D`` only when it was so twice, a second apart), `minors` the GPUs,
    `computes` whether it has unified memory open, too, which only CUDA does; `waits` the kernel's function in which it sleeps.
    """

    pid: int
    name: str
    state: str
    minors: tuple[int, ...]
    computes: bool
    waits: str = ""


@dataclass(frozen=True, slots=True)
class Holders:
    """`found` are the processes; `hidden` how many processes would not show their files; `looked` how many were looked at."""

    found: tuple[Holder, ...]
    hidden: int
    looked: int
    states: dict[int, str] = field(default_factory=dict)


def _stat(world: World, pid: int, thread: int | None = None) -> tuple[str, str, str]:
    """Name, state and start time; /proc/PID/stat takes no lock that a stuck process holds, as cmdline and environ do."""
    path = f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat"
    text = world.text(path, 4096)
    name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
    return name, rest[0], rest[19]


def _files(world: World, folder: str) -> set[str]:
    found = set()
    for name in world.names(folder):
        try:
            target = os.readlink(world.path(f"{folder}/{name}"))
        except OSError:
            continue
        if target.startswith("/dev/nvidia"):
            found.add(target)
    return found


def _threads(world: World, pid: int) -> list[int]:
    try:
        return [int(name) for name in world.names(f"/proc/{pid}/task") if name.isdigit()]
    except Unread:
        return []


def _holders(world: World, deadline: Deadline) -> Holders:
    pids = [int(name) for name in world.names("/proc") if name.isdigit()][:_MOST]
    if not pids:
        raise Unread("missing", "/proc lists no process")
    found: list[Holder] = []
    hidden = gone = 0
    states: dict[int, str] = {}
    stuck: dict[int, tuple[int | None, str]] = {}
    for pid in pids:
        if deadline.over:
            raise Unread("time-out", f"looked at {len(states)} of {len(pids)} processes when the time was over")
        try:
            name, state, started = _stat(world, pid)
        except Unread as error:  # mostly it ended meanwhile
            hidden += error.ending != "missing"
            gone += error.ending == "missing"
            continue
        except (ValueError, IndexError):
            hidden += 1
            continue
        states[pid] = state
        try:
            files = _files(world, f"/proc/{pid}/fd")
        except Unread:
            hidden += world.path(f"/proc/{pid}/stat").exists()
            files = set()
        threads = _threads(world, pid) if state in "ZX" or files else []
        thread: int | None = None
        for number in threads:
            try:
                _, mine, at = _stat(world, pid, number)
                # a leader that ended is a zombie while other threads live on, and these have the files
                files |= _files(world, f"/proc/{pid}/task/{number}/fd") if state in "ZX" else set()
            except (Unread, ValueError, IndexError):
                continue
            if mine == "D":
                thread, state, started = number, "D", at
        if not files:
            continue
        if state == "D":
            stuck[pid] = (thread, started)
        minors = sorted({int(match[1]) for file in files if (match := _GPU_FILE.search(file))})
        found.append(Holder(pid, name, state, tuple(minors), _UVM in files))
    if gone > len(pids) / 2:  # some end while one looks; not most
        raise Unread("garbage", f"/proc lists {len(pids)} processes and shows {len(states)}", "is /proc that of the host?")
    if stuck:
        time.sleep(min(_TWICE, deadline.left() / 2))
    settled = []
    for one in found:
        if one.pid in stuck:
            one = _again(world, one, *stuck[one.pid])
        settled.append(one)
    return Holders(tuple(settled), hidden, len(states), states)


def _again(world: World, one: Holder, thread: int | None, started: str) -> Holder:
    try:
        _, state, at = _stat(world, one.pid, thread)
    except (Unread, ValueError, IndexError):
        state, at = "X", started
    try:
        place = f"/proc/{one.pid}" if thread is None else f"/proc/{one.pid}/task/{thread}"
        waits = world.text(f"{place}/wchan", 256).strip("\0\n ")
    except Unread:
        waits = ""
    return Holder(one.pid, one.name, "D" if state == "D" and at == started else "S", one.minors, one.computes, waits)


reader(
    "gpu-holders",
    "processes that have the GPUs' files open",
    seconds=12.0,
    ways=(Way("/proc", _holders, ("processes of other PID namespaces, when this runs in a container without hostPID",)),),
)
