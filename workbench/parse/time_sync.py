"""Turn what chronyc, ntpq and timedatectl print into whether the clock is held and by how much it is off."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["ClockState", "from_chronyc", "from_ntpq", "from_timedatectl"]


@dataclass(frozen=True, slots=True)
class ClockState:
    """
    State of the clock.

    `held` is whether something keeps it right (None when not told), `offset` the seconds that it is ahead of its reference (None when not
    told), `by` the reference, `error` the most that it may be off, as far as the daemon can tell.
    """

    held: bool | None
    offset: float | None = None
    by: str = ""
    error: float | None = None


def from_chronyc(text: str) -> ClockState | None:
    """Return what ``chronyc -n tracking`` says; None for what is no whole answer."""
    told = dict(re.findall(r"^([A-Z][\w ()]*?)\s*: (.*?)\s*$", text, re.M))
    leap, offset = told.get("Leap status"), re.match(r"([\d.]+) seconds (fast|slow) of NTP time", told.get("System time", ""))
    if leap is None or offset is None:
        return None
    delay, spread = (re.match(r"[\d.]+", told.get(name, "")) for name in ("Root delay", "Root dispersion"))
    error = float(delay[0]) / 2 + float(spread[0]) if delay and spread else None
    ahead = float(offset[1]) * (1 if offset[2] == "fast" else -1)
    held = leap != "Not synchronised"
    return ClockState(held, ahead if held else None, told.get("Reference ID", "") if held else "", error if held else None)


def from_ntpq(text: str) -> ClockState | None:
    """Return what ``ntpq -c rv`` says: ``leap_none, sync_ntp, … offset=0.064``, in milliseconds; None for what is no whole answer."""
    told = dict(re.findall(r"(?:^|[,\s])(\w+)=\"?([^,\"\n]*)", text))
    held = "leap_alarm" not in text and "sync_unspec" not in text
    try:
        # ntpd's offset is what is to be added to the clock: the other way round
        offset = -float(told["offset"]) / 1000
        error = float(told["rootdisp"]) / 1000 + float(told.get("rootdelay", 0)) / 2000 if "rootdisp" in told else None
    except (KeyError, ValueError):
        return None
    if "leap_" not in text:
        return None
    return ClockState(held, offset if held else None, told.get("refid", "") if held else "", error if held else None)


def from_timedatectl(text: str) -> ClockState | None:
    """Return what ``timedatectl show`` says; it tells no offset. None for what is no whole answer."""
    found = re.search(r"^NTPSynchronized=(yes|no)\s*$", text, re.M)
    return ClockState(found[1] == "yes") if found else None
