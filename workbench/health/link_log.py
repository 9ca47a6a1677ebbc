"""Turn what the kernel logged of one PCIe link into what is wrong with it: errors by their number and rate, a link that lost lanes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from workbench.catalog.findings import finding_row
from workbench.model import Event

__all__ = ["link_troubles"]

# Corrected errors within a day on one link that make it worth a look: the link layer repaired them all. Our own measure.
_CORRECTED = 1000
_DAY = 86400.0
# A link that replays at this pace is marginal whatever the day's sum is: DCGM's health watch warns above 8 replays a minute
# (DCGM_LIMIT_MAX_PCIREPLAY_RATE in dcgm_structs.h), and each of the kernel's lines stands for one replay or more. Over some minutes: a
# burst that ends is weather.
_A_MINUTE, _MINUTES = 8.0, 5.0
_SOME = 3  # corrected errors that are no coincidence when the same link has lost lanes
_WIDTHS = re.compile(r"\bx(\d{1,2})\b")


def link_troubles(
    by_kind: Mapping[str, Sequence[Event]], now: float, *, width_known: bool = False, silent: bool = False
) -> Iterator[tuple[str, str, Sequence[Event]]]:
    """
    Give code, summary and events of what the log says against one link.

    Parameters
    ----------
    by_kind : mapping
        Signature → the events on the way to one GPU.
    now : float
        Seconds since the epoch.
    width_known : bool, optional
        The GPU itself told its width, which is newer than the log's line of it.
    silent : bool, optional
        The GPU does not answer: then a burst on its way is no weather.
    """
    corrected = [event for event in by_kind.get("aer-corrected", ()) if event.time is None or now - event.time <= _DAY]
    count = sum(int(event.data.get("errors") or event.count) for event in corrected)
    for kind, events in by_kind.items():
        times = sum(event.count for event in events)
        often = f" ({times} times since boot)" if times > 1 else ""
        if kind == "aer-corrected":
            if count >= _CORRECTED:
                yield kind, f"{count} corrected errors within a day on the way to this GPU", corrected
            elif max((_pace(event) for event in corrected), default=0.0) > _A_MINUTE:
                yield kind, f"{count} corrected errors, many a minute, on the way to this GPU", corrected
            elif silent and any(event.data.get("storm") for event in corrected):
                yield kind, f"{count} corrected errors within moments on the way to this GPU, which does not answer", corrected
        elif kind != "pcie-width-limited":
            yield kind, finding_row(kind).meaning + often, events
        elif not width_known and (lost := _lanes(events[-1])):
            said = f"x{lost[0]} where it can be x{lost[1]}"
            if count >= _SOME:
                more = f"{said}, and {count} corrected errors on the same link"
                yield "pcie-lanes-lost", f"a GPU's link was trained with fewer lanes: {more}", [*events[-1:], *corrected[-2:]]
            else:
                yield kind, f"{finding_row(kind).meaning}: {said}", events


def _pace(event: Event) -> float:
    """Errors a minute, over five minutes at least."""
    span = (event.last - event.time) if event.last is not None and event.time is not None else 0.0
    for first, last in (("uptime", "last_uptime"), ("elapsed", "last_elapsed")):
        if not span and first in event.data and last in event.data:
            span = float(event.data[last]) - float(event.data[first])
    return int(event.data.get("errors") or event.count) / max(span / 60.0, _MINUTES)


def _lanes(event: Event) -> tuple[int, int] | None:
    """Lanes and lanes that there could be; None when only the speed is lower, as of a new card in an older machine."""
    found = [int(number) for number in _WIDTHS.findall(event.text)]
    return (found[0], found[-1]) if len(found) >= 2 and found[0] < found[-1] else None
