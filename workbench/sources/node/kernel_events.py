"""Turn this node's kernel log into one reading: the events since the last boot, from the best place that can be read."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.model import Event, Line
from workbench.parse.kernel import parse_kernel
from workbench.sources.contract import Deadline
from workbench.sources.node.kernel import places
from workbench.sources.node.world import Unread, Way, World, reader

__all__ = ["KernelLog"]

_SPAN = 7 * 86400.0  # a week: Xids that recur are worth more than one


@dataclass(frozen=True, slots=True)
class KernelLog:
    """
    Events of the kernel log.

    `place` is where it was read, `reach` the time of the oldest line there and `boot` that of the last boot (seconds since the epoch,
    None when not known), `problems` what could not be read.
    """

    events: tuple[Event, ...]
    place: str
    reach: float | None
    boot: float | None
    problems: tuple[str, ...] = ()


def booted(world: World) -> float | None:
    """Return when the node booted, in seconds since the epoch; None when the kernel does not tell."""
    try:
        for line in world.text("/proc/stat").splitlines():
            if line.startswith("btime "):
                return float(line.split()[1])
    except (Unread, ValueError, IndexError):
        pass
    return None


def _kernel(world: World, deadline: Deadline) -> KernelLog:
    now = world.clock()
    said = []
    for reading in places(now - _SPAN, now + 60, deadline):
        if not reading.usable:
            said.append(f"{reading.place}: {reading.detail}")
            continue
        lines = [Line(at, raw.decode("utf-8", "replace")) for at, raw in enumerate(reading.lines, 1)]
        parsed = parse_kernel(lines, file=reading.place, node=world.node, reference=now)
        problems = tuple(problem.message for problem in parsed.problems)
        partly = () if reading.status == "ok" else (reading.detail,)
        return KernelLog(tuple(parsed.events), reading.place, reading.reach, booted(world), (*partly, *problems))
    raise Unread(
        "not-executable", "; ".join(said) or "no place holds a kernel log", "run as root, or add the user to systemd-journal"
    )


reader("kernel", "events of the kernel log", seconds=15.0, ways=(Way("kernel log", _kernel),))
