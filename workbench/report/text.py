"""Turn values of a verdict into short, safe text: cleaned log lines, folded rank lists, times in UTC, durations."""

from __future__ import annotations

import math
import re
import time as _time
from collections.abc import Iterable

__all__ = ["clean", "clock", "duration", "fold", "iso", "percent", "plural", "shorten"]

# C0 and C1 controls, line and paragraph separators, bidirectional overrides, zero-width and tag characters, lone surrogates:
# whatever makes a terminal or a page show something else than what is in the log
_HOSTILE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_LAST_SECOND = 253402300799.0  # 9999-12-31T23:59:59Z: past it, no ISO year


def _visible(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code == 9:
        return " "
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def clean(text: str) -> str:
    r"""
    Return `text` with every character that could drive a terminal or reorder a line written out visibly.

    >>> clean("loss\x1b[31m nan\n")
    'loss\\x1b[31m nan\\x0a'
    """
    return _HOSTILE.sub(_visible, text)


def shorten(text: str, width: int) -> str:
    """Return at most `width` characters of `text`, with an ellipsis in the middle, since both ends of a log line matter."""
    if len(text) <= width:
        return text
    head = (width - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def iso(seconds: float | None) -> str | None:
    """
    Return epoch seconds as ISO 8601 in UTC with milliseconds, or None when there is no such time.

    >>> iso(1777892523.12)
    '2026-05-04T11:02:03.120Z'
    """
    if seconds is None or not math.isfinite(seconds) or not 0 <= seconds <= _LAST_SECOND:
        return None
    whole, millis = divmod(math.floor(seconds * 1000 + 0.5), 1000)
    return _time.strftime("%Y-%m-%dT%H:%M:%S", _time.gmtime(whole)) + f".{millis:03d}Z"


def clock(stamp: str | None) -> str:
    """
    Return an ISO time for people.

    >>> clock("2026-05-04T11:02:03.120Z")
    '2026-05-04 11:02:03.120 UTC'
    """
    return stamp.replace("T", " ").replace("Z", " UTC") if stamp else "time not known"


def duration(seconds: float) -> str:
    """
    Return a duration for people.

    >>> duration(0.25), duration(75), duration(7500)
    ('250 ms', '1 min 15 s', '2 h 5 min')
    """
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24 or (hours < 48 and hours % 24):
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} d {hours % 24} h" if hours % 24 else f"{hours // 24} d"


def fold(numbers: Iterable[int]) -> str:
    """
    Return numbers as ranges.

    >>> fold([3, 0, 1, 2, 7, 9, 10])
    '0-3,7,9-10'
    """
    ordered = sorted(set(numbers))
    parts: list[str] = []
    start = 0
    for place, number in enumerate(ordered):
        if place + 1 == len(ordered) or ordered[place + 1] != number + 1:
            first = ordered[start]
            parts.append(f"{first}" if first == number else f"{first}-{number}")
            start = place + 1
    return ",".join(parts)


def percent(share: float | None) -> str:
    """Return a share as a percentage, never rounded up to certainty."""
    if share is None:
        return "–"
    return f"{min(share * 100, 99.9) if share < 1 else 100:.3g} %"


def plural(count: int, noun: str) -> str:
    """
    Return a count with its noun.

    >>> plural(1, "rank"), plural(4, "node")
    ('1 rank', '4 nodes')
    """
    return f"{count:,} {noun}" + ("" if count == 1 else "es" if noun.endswith(("s", "x")) else "s")
