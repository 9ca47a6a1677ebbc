"""Turn looks at the memory of each GPU into how often it lost a row or a page lately: one is repaired, a second one later is a trend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.parse.gpu_state import GpuState

__all__ = ["KEYS", "NAME", "WINDOW", "Growth", "count", "growth", "next_state"]

NAME = "rows"  # of the state, see `workbench.health.history`
WINDOW = 30 * 86400.0  # seconds in which what was lost is counted together
# seconds between two counts that are two events: one event may cost several rows within minutes
_APART = 3600.0
_MOST = 100  # counts kept of a GPU: it is replaced long before
KEYS = {
    "rows": ("remapped_rows.correctable", "remapped_rows.uncorrectable"),
    "pages": ("retired_pages.single_bit", "retired_pages.double_bit"),
}


@dataclass(frozen=True, slots=True)
class Growth:
    """How many `rows` or `pages` (`what`) were lost, at how many `times`, since when (seconds since the epoch)."""

    what: str
    lost: int
    times: int
    since: float


def count(state: GpuState) -> tuple[str, int] | None:
    """Return what a GPU takes out of use (``rows`` or ``pages``) and how many it has taken in its life; None when it tells neither."""
    for what, keys in KEYS.items():
        values = [value for key in keys if (value := state.number(key)) is not None]
        if values:
            return what, int(sum(values))
    return None


def _kept(before: Mapping[str, Any] | None, state: GpuState) -> list[tuple[float, int]]:
    """The counts of a GPU as they changed, oldest first; a lower one than before it is of another board under the same name."""
    gpus = (before or {}).get("gpus")
    rows = gpus.get(state.gpu.uuid) if isinstance(gpus, Mapping) else None
    out: list[tuple[float, int]] = []
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, list) and len(row) == 2 and all(type(one) in (int, float) for one in row):
            out = [(float(row[0]), int(row[1]))] if out and row[1] < out[-1][1] else [*out, (float(row[0]), int(row[1]))]
    return out


def _with(rows: list[tuple[float, int]], value: int, now: float) -> list[tuple[float, int]]:
    if rows and value < rows[-1][1]:
        return [(now, value)]
    if not rows or value > rows[-1][1]:
        rows = [*rows, (now, value)]
    # of what is older than the window the last is where the window begins
    begin = max((at for at, (time, _) in enumerate(rows) if time < now - WINDOW), default=0)
    return rows[begin:][-_MOST:]


def growth(before: Mapping[str, Any] | None, state: GpuState, *, now: float) -> Growth | None:
    """
    Return what a GPU lost within `WINDOW`; None when nobody knows how it was before, or it lost nothing.

    Parameters
    ----------
    before : mapping or None
        What `next_state` gave at an earlier look.
    state : GpuState
        As it is now.
    now : float
        Seconds since the epoch.
    """
    counted, kept = count(state), _kept(before, state)
    if counted is None or not kept:
        return None
    rows = _with(kept, counted[1], now)
    events: list[float] = []
    for time, _ in rows[1:]:
        if not events or time - events[-1] >= _APART:
            events.append(time)
    lost = rows[-1][1] - rows[0][1]
    return Growth(counted[0], lost, len(events), events[0]) if lost else None


def next_state(before: Mapping[str, Any] | None, states: Sequence[GpuState], *, now: float) -> dict[str, Any]:
    """Return what `workbench.health.history.remember` keeps until the next look; GPUs that do not answer keep what is known of them."""
    gpus = (before or {}).get("gpus")
    out = dict(gpus) if isinstance(gpus, Mapping) else {}
    for state in states:
        counted = count(state)
        if state.gpu.uuid and counted is not None:
            out[state.gpu.uuid] = [list(row) for row in _with(_kept(before, state), counted[1], now)]
    # what was taken out of the node is forgotten with the window
    return {"gpus": {name: rows for name, rows in out.items() if _fresh(name, rows, states, now)}}


def _fresh(name: str, rows: object, states: Sequence[GpuState], now: float) -> bool:
    here = {state.gpu.uuid for state in states}
    last = rows[-1][0] if isinstance(rows, list) and rows and isinstance(rows[-1], list) and len(rows[-1]) == 2 else 0.0
    return name in here or (isinstance(last, (int, float)) and now - last < WINDOW)
