"""Turn inherited times of events into bounds: the next stamped line of the file says by when an unstamped one was written."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from workbench.model import Event, Line
from workbench.parse.prefix import context, split_prefix

__all__ = ["bound_times"]

_AHEAD = 400  # lines looked over for the next stamp; longer tracebacks are rare


def bound_times(events: Sequence[Event], lines: Sequence[Line]) -> None:
    """
    Set ``data["not_after"]`` (seconds, UTC) of the events that carry no stamp of their own.

    Parameters
    ----------
    events : sequence of Event
        Of one document; those with ``data["time_from"]`` inherited the time of an earlier line.
    lines : sequence of Line
        The document's lines, in order.
    """
    inherited = [event for event in events if event.data.get("time_from") and event.line is not None]
    if not inherited:
        return
    numbers = [line.no for line in lines]
    ctx = context(line.text for line in lines[:4000])
    for event in inherited:
        start = bisect_right(numbers, event.line or 0)
        for line in lines[start : start + _AHEAD]:
            time = split_prefix(line.text, ctx).time
            if time is not None:
                if event.time is None or time >= event.time:
                    event.data["not_after"] = time
                break
