"""Turn what a job inherits (limits and control group of the daemon that starts it, shared memory, NUMA balancing) into one reading."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from workbench.parse.proc_files import UNLIMITED, limits
from workbench.sources.contract import Deadline
from workbench.sources.node.host import mount_table
from workbench.sources.node.host_processes import running
from workbench.sources.node.world import Unread, Way, World, reader, tool

__all__ = ["STARTERS", "ControlGroup", "JobLimits", "SharedMemory"]

# whose limits a job inherits: Slurm's daemon starts the job itself; a runtime starts containers, Kubernetes' and others
STARTERS = ("slurmd", "containerd", "crio", "dockerd")


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """``/dev/shm``: bytes altogether and free; whether it is a mount of its own."""

    size: int
    free: int
    mounted: bool


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """
    What a control group and those above it allow: the tightest of each.

    `memory` in bytes, `tasks` how many processes and threads (`workbench.parse.proc_files.UNLIMITED` for no limit, None when no group tells),
    `used` how many tasks the group of that limit has; `unread` why a limit that is there was not read, empty when all were.
    """

    memory: float | None = None
    tasks: float | None = None
    used: int | None = None
    unread: str = ""


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
    group : ControlGroup
        Of the starter, with all above it.
    total : float or None
        Bytes of the node's memory.
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
    group: ControlGroup
    total: float | None
    nodes: int
    balancing: bool | None


def _limits(world: World, deadline: Deadline) -> JobLimits:
    starter, pid = "this process", "self"
    try:
        by_name = {row.name: row.pid for row in sorted(running(world).values(), key=lambda row: -row.pid)}
    except Unread:
        by_name = {}
    for name in STARTERS:
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
        _group(world, pid),
        _total(world),
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


def _group(world: World, pid: str) -> ControlGroup:
    """Version 2 has one tree for all; version 1 has one for memory and one for tasks, beside it or alone."""
    try:
        text = world.text(f"/proc/{pid}/cgroup")
    except Unread as error:
        return ControlGroup(unread="" if error.ending == "missing" else error.detail)
    rows = re.findall(r"^\d+:([^:\n]*):(/\S*)$", text, re.M)
    if not rows or any(".." in place.split("/") for _, place in rows):
        return ControlGroup(unread=f"/proc/{pid}/cgroup names no control group")
    memory, tasks, used, unread = None, None, None, ""
    for names, place in rows:
        for controller, limit in (("memory", "memory.limit_in_bytes"), ("pids", "pids.max")):
            if names and controller not in names.split(","):
                continue
            base, file = ("", f"{controller}.max") if not names else (f"/{controller}", limit)
            for folder in _upwards(f"/sys/fs/cgroup{base}", place):
                value, why = _limit(world, f"{folder}/{file}")
                unread = unread or why
                if value is None:
                    continue
                if controller == "memory":
                    memory = value if memory is None else min(memory, value)
                elif tasks is None or value < tasks:
                    tasks, used = value, _number(world, f"{folder}/pids.current")
    return ControlGroup(memory, tasks, used, unread)


def _upwards(root: str, place: str) -> Iterator[str]:
    """The folder of a group and of those above it, without the root: it has no limits."""
    place = place.rstrip("/")
    while place:
        yield root + place
        place = place.rsplit("/", 1)[0]


# what version 1 says for "no limit" is a number that no machine has
_NO_LIMIT = 1 << 60


def _limit(world: World, file: str) -> tuple[float | None, str]:
    """A limit of a control group; None where the controller is not switched on for it."""
    try:
        text = world.text(file, 100).strip()
    except Unread as error:
        return None, "" if error.ending == "missing" else error.detail
    if text == "max" or (text.isdigit() and int(text) >= _NO_LIMIT):
        return UNLIMITED, ""
    return (float(text), "") if text.isdigit() else (None, f"{file} holds no limit")


def _number(world: World, file: str) -> int | None:
    try:
        text = world.text(file, 100).strip()
    except Unread:
        return None
    return int(text) if text.isdigit() else None


def _total(world: World) -> float | None:
    try:
        found = re.search(r"^MemTotal:\s+(\d+) kB", world.text("/proc/meminfo"), re.M)
    except Unread:
        return None
    return float(found[1]) * 1024 if found else None


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
