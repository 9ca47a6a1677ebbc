"""Turn this node's kernel log into one reading: the events since the last boot, from the best place that can be read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.model import Event, Line
from workbench.parse.kernel import parse_kernel
from workbench.sources.contract import Deadline
from workbench.sources.node.kernel import Reading, places
from workbench.sources.node.world import Unread, Way, World, reader

__all__ = ["KernelLog"]

_SPAN = 7 * 86400.0  # a week at least: Xids that recur are worth more than one
_LONGEST = 60 * 86400.0  # what happened since the last boot counts, but nobody wants to read the log of a year every minute
_SINCE_BOOT = re.compile(rb"(?:<\d+>)?\[ *\d+\.\d+\] ")  # an old dmesg: seconds since boot, no date
_OLDEST_FIRST = ("journal", "dmesg")  # programs that print the newest last: what is cut off is what just happened
_WORDS = {"files": "syslog"}  # what a place is called in a sentence
_EARLY = 300.0  # seconds after boot within which a log's first line means that it has all of this boot: syslog starts late, clocks step

# A firewall or a USB device that logs every second makes a million lines a month, and a check has a second of CPU a minute.
_WHOLE = 10_000
_TELLING = re.compile(
    rb"NVRM|Xid|nvidia|nvswitch|fabric|\bGPU|Linux version|AER|pcieport|PCIe|EDAC|mce:|\[Hardware Error\]|Memory failure|I/O error|"
    rb"nvme|blocked for more than|lockup|remount|panic|oom|mlx5|efa|link"
)


@dataclass(frozen=True, slots=True)
class KernelLog:
    """
    Events of the kernel log.

    `place` is where it was read, `reach` the time of the oldest line there and `boot` that of the last boot (seconds since the epoch,
    None when not known), `problems` what could not be read, `facts` those of `workbench.parse.kernel.parse_kernel`.
    """

    events: tuple[Event, ...]
    place: str
    reach: float | None
    boot: float | None
    problems: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether it holds everything since the last boot."""
        return self.reach is not None and self.boot is not None and self.reach <= self.boot + _EARLY


def booted(world: World) -> float | None:
    """Return when the node booted, in seconds since the epoch; None when the kernel does not tell."""
    try:
        for line in world.text("/proc/stat").splitlines():
            if line.startswith("btime "):
                return float(line.split()[1])
    except (Unread, ValueError, IndexError):
        pass
    return None


def _telling(lines: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    """Of a long log give the last lines whole, and of what is older what speaks of GPUs, the bus, memory, disks and boots."""
    whole = len(lines) - _WHOLE
    for at, raw in enumerate(lines, 1):
        if at > whole or _TELLING.search(raw):
            yield at, raw


def _kernel(world: World, deadline: Deadline) -> KernelLog:
    now, boot = world.clock(), booted(world)
    since = min(now - _SPAN, max(boot or 0.0, now - _LONGEST))
    said = []
    best: Reading | None = None
    for reading in places(since, now + 60, deadline, root=str(world.root), env=world.env or None):
        if not reading.usable:
            said.append(f"{reading.place}: {reading.detail}")
            continue
        if reading.status == "partial" and reading.place in _OLDEST_FIRST:
            said.append(f"{reading.place}: {reading.detail}")
            continue
        if reading.reach is None and not any(_SINCE_BOOT.match(line) for line in reading.lines):
            # an empty file, another program's text: nothing in it is no sign that nothing happened
            said.append(f"{reading.place}: {len(reading.lines):,} lines, none of them stamped as a kernel's are")
            continue
        if best is None or (reading.reach is not None and (best.reach is None or reading.reach < best.reach)):
            best = reading
        if best.status == "ok" and (best.reach is not None and best.reach <= max(since, (boot or 0.0) + _EARLY)):
            break
    if best is None:
        raise Unread(
            "not-executable", "; ".join(said) or "no place holds a kernel log", "run as root, or add the user to systemd-journal"
        )
    lines = [Line(at, raw.decode("utf-8", "replace")) for at, raw in _telling(best.lines)]
    parsed = parse_kernel(lines, file=best.place, node=world.node, reference=now)
    problems = tuple(problem.message for problem in parsed.problems)
    partly = () if best.status == "ok" else (best.detail,)
    # what was not read cannot be vouched for: a log of which only a part is kept in the window reaches no further than the window
    reach = best.reach if best.reach is None else max(best.reach, since)
    return KernelLog(tuple(parsed.events), _WORDS.get(best.place, best.place), reach, boot, (*partly, *problems), parsed.facts)


reader("kernel", "events of the kernel log", seconds=15.0, ways=(Way("kernel log", _kernel),))
