"""Turn the node's processes into readings: what runs by name, and who waits in the kernel or is dead and not buried."""

from __future__ import annotations

import time
from dataclasses import dataclass

from workbench.parse.proc_files import ProcessRow, process
from workbench.sources.contract import Deadline
from workbench.sources.node.world import Unread, Way, World, reader

__all__ = ["Processes", "running"]

_APART = 1.0  # seconds between two looks: whoever waits for a disk now and then is not stuck


@dataclass(frozen=True, slots=True)
class Processes:
    """
    The processes of the node.

    `count` is how many there are, `blocked` those that were in uninterruptible sleep at both looks, `zombies` those that ended and were not
    waited for, `waits` where the blocked ones wait by process id (as far as it may be read), `load` the load averages, `cpus` how many
    processors there are (0 when not told).
    """

    count: int
    blocked: tuple[ProcessRow, ...]
    zombies: tuple[ProcessRow, ...]
    waits: dict[int, str]
    load: tuple[float, float, float] | None
    cpus: int


def running(world: World) -> dict[int, ProcessRow]:
    """
    Return the processes by id, read once for all who ask. A process that ends meanwhile is left out.

    Raises
    ------
    Unread
        There is no list of processes, or not one can be read.
    """
    rows: dict[int, ProcessRow] = world.once("processes", lambda: _look(world))
    return rows


def _look(world: World) -> dict[int, ProcessRow]:
    found = {}
    for name in world.names("/proc"):
        if not name.isdigit():
            continue
        try:
            row = process(world.text(f"/proc/{name}/stat", 4096))
        except Unread:
            continue
        if row is not None:
            found[row.pid] = row
    if not found:
        raise Unread("garbage", "/proc shows no process", "mount the host's /proc, or run in the host's process namespace")
    return found


def _processes(world: World, deadline: Deadline) -> Processes:
    first = running(world)
    blocked = {pid for pid, row in first.items() if row.state == "D"}
    if blocked:
        time.sleep(min(_APART, deadline.left()))
        again = _look(world)
        blocked = {pid for pid in blocked if pid in again and again[pid].state == "D" and again[pid].name == first[pid].name}
    waits = {}
    for pid in blocked:
        try:
            waits[pid] = world.text(f"/proc/{pid}/wchan", 200).strip()
        except Unread:
            continue
    zombies = tuple(row for row in first.values() if row.state == "Z")
    return Processes(len(first), tuple(first[pid] for pid in sorted(blocked)), zombies, waits, _load(world), _cpus(world))


def _load(world: World) -> tuple[float, float, float] | None:
    try:
        one, five, fifteen = (float(word) for word in world.text("/proc/loadavg").split()[:3])
    except (Unread, ValueError):
        return None
    return one, five, fifteen


def _cpus(world: World) -> int:
    try:
        lines = world.text("/proc/stat").splitlines()
    except Unread:
        return 0
    return sum(1 for line in lines if line.startswith("cpu") and line[3:4].isdigit())


reader(
    "host-processes",
    "processes that wait in the kernel, or are dead and not buried",
    seconds=6.0,
    ways=(Way("/proc", _processes),),
)
