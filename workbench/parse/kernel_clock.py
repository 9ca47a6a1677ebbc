"""Turn the stamps of a whole kernel log into wall times, boots and what is known of the clock behind them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from workbench.parse.kernel_stamps import Stamp

__all__ = ["Clock", "resolve"]

# rtc_cmos 00:01: setting system clock to 2025-06-07T15:34:29 UTC (1749310469)
_RTC = re.compile(r"setting system clock to \d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d UTC \((\d{9,10})\)")
# audit: type=1400 audit(1744070778.703:19931): apparmor="DENIED"
_AUDIT = re.compile(r"\baudit\((\d{10}(?:\.\d+)?):\d+\)")
# mce: [Hardware Error]: PROCESSOR 0:806f8 TIME 1752636816 SOCKET 1 APIC d0
_MCE_TIME = re.compile(r"PROCESSOR \S+ TIME (\d{10})\b")
# NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023
_BUILD_YEAR = re.compile(r"\bNVRM: loading NVIDIA.* ((?:19|20)\d\d)\s*$")
_BOOT = re.compile(r"Linux version \d+\.\d+")
# -- Boot 4f5c0c1d2e3f4a5b8c9d0e1f2a3b4c5d -- | -- Reboot --
_MARKER = re.compile(r"-- (?:Boot [0-9a-f]{32}|Reboot) --")
_DAY = 86400.0
_BACK = 30.0  # seconds; processors print out of order by milliseconds, only a restart goes further back
_ZONE_STEP = 900.0  # time zones differ by quarter hours
_ZONE_SLACK = 300.0  # seconds that a date printed by a tool may be off: batching at boot, drift of dmesg -T
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(slots=True)
class Clock:
    """Per line: wall time (None where it cannot be told), boot number and how the time was found; per log: facts."""

    times: list[float | None]
    boots: list[int]
    how: list[str]  # "" as printed | derived | year | relative
    elapsed: list[float | None]  # seconds since the first line, where there is no wall time
    starts: list[tuple[float | None, int]]  # per boot: time and position of its first line
    facts: dict[str, Any] = field(default_factory=dict)


def _anchor(text: str) -> tuple[float, str] | None:
    """Return the epoch that a message itself carries, and from where."""
    if "audit(" in text and (found := _AUDIT.search(text)):
        return float(found[1]), "audit"
    if "system clock" in text and (found := _RTC.search(text)):
        return float(found[1]), "rtc"
    if " TIME " in text and (found := _MCE_TIME.search(text)):
        return float(found[1]), "mce"
    return None


def _in_year(year: int, month: int, day: int, second: float) -> float | None:
    try:
        return datetime(year, month, day, tzinfo=UTC).timestamp() + second
    except ValueError:
        return None


def _nearest_year(yearless: tuple[int, int, float], moment: float) -> int:
    about = datetime.fromtimestamp(moment, UTC).year
    gaps = [
        (abs(time - moment), year) for year in (about - 1, about, about + 1) if (time := _in_year(year, *yearless)) is not None
    ]
    return min(gaps)[1] if gaps else about


def _boots(stamps: Sequence[Stamp]) -> list[int]:
    number, last, since = 0, None, 0
    boots = []
    for stamp in stamps:
        new = False
        if stamp.uptime is not None:
            new = last is not None and stamp.uptime < last - _BACK
            last = stamp.uptime
        if _BOOT.match(stamp.text) or (stamp.text.startswith("-- ") and _MARKER.match(stamp.text)):
            new = new or since > 5 or (number == 0 and since > 0)
        if new:
            number, since = number + 1, 0
            last = stamp.uptime
        boots.append(number)
        since += 1
    return boots


def _years(stamps: Sequence[Stamp], anchors: dict[int, tuple[float, str]], reference: float | None) -> tuple[dict[int, int], str]:
    """Return the year of each line whose stamp has none, and what it was told from."""
    wraps: dict[int, int] = {}
    turn, before = 0, None
    for at, stamp in enumerate(stamps):
        if stamp.yearless is None:
            continue
        position = stamp.yearless[0] * 31 + stamp.yearless[1]
        if before is not None and before - position > 186:
            turn += 1
        elif before is not None and position - before > 186 and turn:
            turn -= 1
        before = position
        wraps[at] = turn
    if not wraps:
        return {}, ""
    votes: Counter[int] = Counter()
    for at, (moment, _) in anchors.items():
        if at in wraps:
            year = _nearest_year(stamps[at].yearless or (1, 1, 0.0), moment)
            votes[year - wraps[at]] += 1
    how = "anchor"
    if not votes:
        full = [at for at, stamp in enumerate(stamps) if stamp.time is not None]
        if full:
            for at in (min(wraps), max(wraps)):
                near = min(full, key=lambda other: abs(other - at))
                votes[_nearest_year(stamps[at].yearless or (1, 1, 0.0), stamps[near].time or 0.0) - wraps[at]] += 1
            how = "neighbour"
    if not votes and reference is not None:
        at = max(wraps)
        votes[_nearest_year(stamps[at].yearless or (1, 1, 0.0), reference) - wraps[at]] += 1
        how = "reference"
    if not votes:
        build = [int(found[1]) for stamp in stamps if (found := _BUILD_YEAR.search(stamp.text))]
        first = stamps[min(wraps)]
        weekday = first.weekday.lower()[:3]
        if build:
            for year in range(max(build), max(build) + 7):  # weekdays repeat within seven years
                time = _in_year(year, *(first.yearless or (1, 1, 0.0)))
                if time is None:
                    continue
                if weekday not in _WEEKDAYS or _WEEKDAYS[datetime.fromtimestamp(time, UTC).weekday()] == weekday:
                    votes[year] += 1
                    break
            how = "driver-build"
    if not votes:
        return {}, "unknown"
    base = votes.most_common(1)[0][0]
    return {at: base + turn for at, turn in wraps.items()}, how


def _zone(stamps: Sequence[Stamp], times: list[float | None], anchors: dict[int, tuple[float, str]]) -> float | None:
    """Return by how many seconds dates without a zone are ahead of UTC, if messages with an epoch in them tell."""
    for kinds in (("audit",), ("rtc", "mce")):
        votes: Counter[float] = Counter()
        for at, (moment, kind) in anchors.items():
            time = times[at]
            local = stamps[at].naive or stamps[at].yearless is not None
            if kind not in kinds or time is None or not local:
                continue
            offset = round((time - moment) / _ZONE_STEP) * _ZONE_STEP
            if abs(offset) <= 14 * 3600 and abs(time - moment - offset) <= _ZONE_SLACK:
                votes[offset] += 1
        if votes:
            return votes.most_common(1)[0][0]
    return None


def resolve(stamps: Sequence[Stamp], reference: float | None = None) -> Clock:
    """
    Return wall time and boot of every line.

    Parameters
    ----------
    stamps : sequence of Stamp
        The lines of one log in reading order.
    reference : float, optional
        A moment near the log (seconds since the epoch) that settles the year where stamps have none.

    Returns
    -------
    Clock
        Dates without a zone are UTC unless messages that carry an epoch (audit, real-time clock) show the offset; uptimes become
        wall time where some line of the same boot has both.
    """
    size = len(stamps)
    times: list[float | None] = [stamp.time for stamp in stamps]
    how = [""] * size
    elapsed: list[float | None] = [None] * size
    anchors = {at: found for at, stamp in enumerate(stamps) if (found := _anchor(stamp.text))}
    boots = _boots(stamps)
    facts: dict[str, Any] = {}
    years, told = _years(stamps, anchors, reference)
    if told:
        facts["year_from"] = told
    for at, year in years.items():
        times[at], how[at] = _in_year(year, *(stamps[at].yearless or (1, 1, 0.0))), "year"
    local = any(stamp.yearless is not None or stamp.naive for stamp in stamps)
    if local:
        offset = _zone(stamps, times, anchors)
        if offset is not None:
            facts["tz_offset"] = offset
            for at, stamp in enumerate(stamps):
                time = times[at]
                if time is not None and (stamp.naive or stamp.yearless is not None):
                    times[at] = time - offset
        else:
            facts["naive_local"] = True
    _from_uptime(stamps, times, how, boots, anchors, facts)
    _relative(stamps, times, how, elapsed)
    starts: list[tuple[float | None, int]] = []
    for at, boot in enumerate(boots):
        if boot == len(starts):
            starts.append((times[at], at))
        elif starts and starts[boot][0] is None and times[at] is not None:
            starts[boot] = (times[at], starts[boot][1])
    return Clock(times, boots, how, elapsed, starts, facts)


def _from_uptime(
    stamps: Sequence[Stamp],
    times: list[float | None],
    how: list[str],
    boots: list[int],
    anchors: dict[int, tuple[float, str]],
    facts: dict[str, Any],
) -> None:
    known: dict[int, list[tuple[float, float]]] = {}
    for at, stamp in enumerate(stamps):
        if stamp.uptime is None:
            continue
        time = times[at]
        if time is None and at in anchors:
            time = anchors[at][0]
            facts["time_from"] = anchors[at][1]
        if time is not None:
            known.setdefault(boots[at], []).append((stamp.uptime, time))
    position: dict[int, int] = {}
    for at, stamp in enumerate(stamps):
        pairs = known.get(boots[at])
        if times[at] is not None or stamp.uptime is None or not pairs:
            continue
        # The nearest anchor before the line, since the boot clock drifts against the wall clock; both run forward in file order.
        place = position.get(boots[at], 0)
        while place + 1 < len(pairs) and pairs[place + 1][0] <= stamp.uptime:
            place += 1
        position[boots[at]] = place
        uptime, time = pairs[place]
        times[at], how[at] = time + stamp.uptime - uptime, "derived"


def _relative(stamps: Sequence[Stamp], times: list[float | None], how: list[str], elapsed: list[float | None]) -> None:
    base: float | None = None
    total = 0.0
    first_of_year: float | None = None
    for at, stamp in enumerate(stamps):
        if stamp.delta is not None:
            total += stamp.delta
            if base is not None and times[at] is None:
                base += stamp.delta
                times[at], how[at] = base, "relative"
            elapsed[at] = total
        elif times[at] is not None:
            base = times[at]
        elif stamp.yearless is not None:
            second = (stamp.yearless[0] * 31 + stamp.yearless[1]) * _DAY + stamp.yearless[2]
            first_of_year = second if first_of_year is None else first_of_year
            elapsed[at] = second - first_of_year
        elif stamp.continued and at:
            times[at], how[at] = times[at - 1], how[at - 1]
