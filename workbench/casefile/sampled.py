"""Turn lines that were sampled from all over a large log into moments: who wrote then, and which step it told."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

from workbench.parse.prefix import context, split_prefix
from workbench.parse.progress import step_of

__all__ = ["divided", "points_of"]

Point = tuple[float, int, int]  # seconds since the epoch; rank, -1 when nobody's; step, -1 when none is told
# the commonest stamp; `split_prefix` knows all, and takes ten times as long
_ISO = re.compile(rb"(\d{4})-(\d\d)-(\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_STEP = (b"step", b"iter", b"Step", b"Iter", b"poch")


def points_of(samples: Sequence[tuple[int, bytes]], owner: int) -> list[Point]:
    """
    Return what sampled lines tell, in order of the log.

    Parameters
    ----------
    samples : sequence of (offset, begin of a line)
        See `workbench.parse.scan.ScanResult`.
    owner : int
        Rank that wrote the whole log; -1 when each line must tell.
    """
    if not samples:
        return []
    if owner >= 0 and (quick := _quick(samples, owner)) is not None:
        return quick
    texts = [raw.decode("utf-8", "replace") for _, raw in samples]
    whole = context(texts)
    points = []
    for text in texts:
        head = split_prefix(text, whole)
        if head.time is not None:
            rank = owner if owner >= 0 else head.rank if head.rank is not None else -1
            points.append((head.time, rank, _step(head.rest)))
    return points


def _quick(samples: Sequence[tuple[int, bytes]], owner: int) -> list[Point] | None:
    """Read stamps of the commonest form: the first of them is read in full, which tells the zone of all."""
    points: list[Point] = []
    ahead: float | None = None
    for _, raw in samples:
        found = _ISO.search(raw, 0, 80)
        if found is None:
            continue  # a line of a stack, say
        year, month, day, hour, minute, second, part = found.groups()
        moment = _day(int(year), int(month), int(day)) + int(hour) * 3600 + int(minute) * 60 + int(second)
        moment += float(b"0." + part) if part else 0.0
        text = raw.decode("utf-8", "replace")
        if ahead is None:
            exact = split_prefix(text).time
            if exact is None:
                return None
            ahead = exact - moment
        points.append((moment + ahead, owner, _step(text[found.end() :]) if any(word in raw for word in _STEP) else -1))
    return points or None


@lru_cache(maxsize=256)
def _day(year: int, month: int, day: int) -> float:
    from datetime import UTC, datetime

    try:
        return datetime(year, month, day, tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0


def _step(text: str) -> int:
    told = step_of(text)
    return told.step if told is not None and told.step is not None and 0 <= told.step < 1 << 53 else -1


def divided(holes: Iterable[tuple[float, float, int]], points: Sequence[Point]) -> list[tuple[float, float, int]]:
    """Divide stretches of unseen lines where samples lie in them: between two samples are about as many lines as between any others."""
    made: list[tuple[float, float, int]] = []
    moments = [time for time, _, _ in points]
    for begin, end, lines in holes:
        edges = [begin]
        for moment in moments:
            if edges[-1] < moment < end:
                edges.append(moment)
        edges.append(end)
        # the samples themselves are counted where they lie
        each, rest = divmod(max(lines - (len(edges) - 2), 0), len(edges) - 1)
        made += [(start, stop, each + (number < rest)) for number, (start, stop) in enumerate(pairwise(edges))]
    return made
