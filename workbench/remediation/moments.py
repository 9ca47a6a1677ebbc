"""
Turn the times of a journal's entries into how long ago each was, also when somebody has set the clock in between.

Within one boot of one machine a clock that nobody can set (``CLOCK_BOOTTIME``, which all its processes share and which goes on in sleep) tells
the distance of two entries exactly. Across boots and machines only the wall clock is left: it is believed forwards, and a step backwards counts
as no time at all, since entries are written in their order. So a clock that is set forward makes nothing that we did an hour old, and caps per
hour, cool-downs and numbers of tries hold; the price is that one that was set right forward *between* two boots is believed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

__all__ = ["Moment", "Moments", "Steady", "steady", "this_machine"]

TOLERANCE = 5.0  # seconds by which wall and steady clock may part: NTP slews 0.5 ms a second at most, which no cap notices


@dataclass(frozen=True, slots=True)
class Moment:
    """
    When something was: by the wall clock, and by a clock that only grows.

    Attributes
    ----------
    wall : float
        Seconds since the epoch.
    steady : float or None
        Seconds of the clock `base`; None when there was none.
    base : str
        What that clock is of: only moments of the same are compared by it.
    """

    wall: float
    steady: float | None = None
    base: str = ""

    def until(self, later: Moment) -> float:
        """Return the seconds from this moment to a later one, never below 0."""
        if self.steady is not None and later.steady is not None and self.base == later.base:
            return max(0.0, later.steady - self.steady)
        return max(0.0, later.wall - self.wall)


Steady = Callable[[], tuple[float, str]]  # seconds, and of which clock


def steady() -> float:
    """Return seconds that only grow and that nobody can set, also while the machine sleeps: of a lease that matters."""
    try:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    except (AttributeError, OSError):
        return time.monotonic()


def this_machine() -> tuple[float, str]:
    """Return seconds of the clock that all processes of this boot share, and the boot's id; without one, the process's own clock."""
    try:
        return time.clock_gettime(time.CLOCK_BOOTTIME), _boot()
    except (AttributeError, OSError):
        return time.monotonic(), _OURS


_OURS = f"process {os.getpid()} {uuid4().hex[:8]}"


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


class Moments:
    """The moments of a journal's entries, in the order of writing."""

    def __init__(self) -> None:
        self._last: Moment | None = None
        self._spent = 0.0  # seconds from the first entry to the last
        self._at: list[float] = []  # of each entry, seconds since the first
        self._parts: list[tuple[int, float]] = []  # from which entry on wall and sum differ by how much

    def add(self, moment: Moment) -> None:
        """Note the next entry."""
        if self._last is not None:
            self._spent += self._last.until(moment)
        self._last = moment
        self._at.append(self._spent)
        apart = moment.wall - self._spent
        if not self._parts or abs(self._parts[-1][1] - apart) > TOLERANCE:
            self._parts.append((len(self._at) - 1, apart))

    def shifts(self, now: Moment) -> Iterator[tuple[int, int, float]]:
        """Yield (first entry, one after the last, seconds to add to its time to have it by the clock of now) where the clock was set since."""
        if self._last is None:
            return
        apart = now.wall - (self._spent + self._last.until(now))
        ends = [*(first for first, _ in self._parts[1:]), len(self._at)]
        for (first, was), end in zip(self._parts, ends, strict=True):
            if abs(apart - was) > TOLERANCE:
                yield first, end, apart - was

    def age(self, index: int, now: Moment) -> float:
        """Return how many seconds ago the entry of this index was written."""
        if self._last is None:
            return 0.0
        return self._spent + self._last.until(now) - self._at[index]
