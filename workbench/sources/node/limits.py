"""Turn what a job inherits (limits of the daemon that starts it, shared memory, NUMA balancing) into one reading."""

from __future__ import annotations

import re
from dataclasses import dataclass

from workbench.parse.proc_files import UNLIMITED, limits
from workbench.sources.contract import Deadline
from workbench.sources.node.host import mount_table
from workbench.sources.node.host_processes import running
from workbench.sources.node.world import Unread, Way, World, reader, tool

__all__ = ["JobLimits", "SharedMemory"]

# whose limits a job inherits: Slurm's daemon starts the job itself; a runtime starts containers, Kubernetes' and others
_STARTERS = ("slurmd", "containerd", "crio", "dockerd")


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """``/dev/shm``: bytes altogether and free; whether it is a mount of its own."""

    size: int
    free: int
    mounted: bool


@dataclass(frozen=True, slots=True)
class JobLimits:
    """
    What jobs inherit on this node.

    Attributes
    ----------
    starter : str
        Whose limits these are: ``slurmd``, ``containerd``, or ``this process`` where none of them runs.
    memlock, files, core : float or None
        Bytes of locked memory, open files, bytes of a core file (soft limits); `workbench.parse.proc_files.UNLIMITED` for no limit, None when
        not told.
    shm : SharedMemory or None
        None when it was not told.
    cgroup : float or None
        Bytes of memory that the starter's control group may use, with all above it.
    nodes : int
        How many NUMA nodes have memory.
    balancing : bool or None
        Whether the kernel moves memory between them by itself.
    """

    starter: str
    memlock: float | None
    files: float | None
    core: float | None
    shm: SharedMemory | None
    cgroup: float | None
    nodes: int
    balancing: bool | None


def _limits(world: World, deadline: Deadline) -> JobLimits:
    starter, pid = "this process", "self"
    try:
        by_name = {row.name: row.pid for row in sorted(running(world).values(), key=lambda row: -row.pid)}
    except Unread:
        by_name = {}
    for name in _STARTERS:
        if name in by_name:
            starter, pid = name, str(by_name[name])
            break
    told = limits(world.text(f"/proc/{pid}/limits"))
    if "Max locked memory" not in told:
        raise Unread("garbage", f"/proc/{pid}/limits does not tell the limit of locked memory")
    soft = {name: values[0] for name, values in told.items()}
    return JobLimits(
        starter,
        soft.get("Max locked memory"),
        soft.get("Max open files"),
        soft.get("Max core file size"),
        _shared_memory(world, deadline),
        _cgroup(world, pid),
        _nodes(world),
        _balancing(world),
    )


def _shared_memory(world: World, deadline: Deadline) -> SharedMemory | None:
    try:
        ran = tool(world, ("stat", "-f", "-c", "%S %b %a", str(world.path("/dev/shm"))), deadline, seconds=3.0)
        mounted = any(row.place == "/dev/shm" for row in mount_table(world))
    except Unread:
        return None
    found = re.fullmatch(r"(\d+) (\d+) (\d+)\s*", ran.text)
    if not found:
        return None
    block, blocks, free = (int(number) for number in found.groups())
    return SharedMemory(block * blocks, block * free, mounted)


def _cgroup(world: World, pid: str) -> float | None:
    """The least memory.max of a process's control group (version 2) and those above it."""
    try:
        found = re.search(r"^0::(/\S*)$", world.text(f"/proc/{pid}/cgroup"), re.M)
    except Unread:
        return None
    if not found or ".." in found[1]:
        return None
    least, place = None, found[1].rstrip("/")
    while place:
        try:
            text = world.text(f"/sys/fs/cgroup{place}/memory.max").strip()
        except Unread:
            text = ""
        value = UNLIMITED if text == "max" else float(text) if text.isdigit() else None
        if value is not None:
            least = value if least is None else min(least, value)
        place = place.rsplit("/", 1)[0]
    return least


def _nodes(world: World) -> int:
    try:
        text = world.text("/sys/devices/system/node/has_memory").strip()
    except Unread:
        return 1
    # 0-1,4
    spans = [part.split("-") for part in text.split(",") if re.fullmatch(r"\d+(-\d+)?", part)]
    return max(sum(int(span[-1]) - int(span[0]) + 1 for span in spans), 1)


def _balancing(world: World) -> bool | None:
    try:
        text = world.text("/proc/sys/kernel/numa_balancing").strip()
    except Unread:
        return None
    return text != "0" if text.isdigit() else None


reader("limits", "limits that a job inherits, and shared memory", seconds=6.0, ways=(Way("/proc", _limits),))
