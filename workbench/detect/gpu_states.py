"""Turn DCGM's own health verdicts, NVLink traffic and power readings of zero into events at their onset."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from workbench.detect.grid import Grid
from workbench.detect.steps import fill_forward, median_rows, quantile, sustained
from workbench.model import CLASSES, Event
from workbench.parse.prom_labels import SampledSeries

__all__ = ["gpu_states"]

WARN, FAIL = 10.0, 20.0  # DCGM_EXP_GPU_HEALTH_STATUS: 0 pass, 10 warn, 20 fail (dcgm-exporter)
NO_TRAFFIC = 0.3  # of the own usual NVLink traffic, while the peers keep theirs
KEPT = 0.7
NO_POWER = 5.0  # W: a GPU at rest draws tens
# the first is a rate in MB/s although the default exporter file types it as a counter
TRAFFIC = ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "DCGM_FI_PROF_NVLINK_TX_BYTES")


def gpu_states(grid: Grid) -> Iterator[Event]:
    """Yield the events of health watches, NVLink traffic and power readings."""
    yield from _health(grid)
    yield from _traffic(grid)
    yield from _no_power(grid)


@lru_cache(maxsize=1)
def _classes() -> dict[str, str]:
    from workbench.catalog import table

    known = {}
    for row in table("dcgm_errors"):
        if row["class"] in CLASSES:
            known[row["code"]] = known[row["name"]] = row["class"]
    return known


def _health(grid: Grid) -> Iterator[Event]:
    """
    A DCGM health watch that turns to warn or fail inside the window, with the class of its error code.

    The exporter makes a series per watch and error code, so a failing series that first appears late is a change as well. A lone
    scrape has no window: what it says is of now.
    """
    for number, pieces in grid.fields.get("DCGM_EXP_GPU_HEALTH_STATUS", {}).items():
        for piece in pieces:
            bad = (piece.values >= WARN).nonzero()[0]
            if not len(bad):
                continue
            at = int(bad[0])
            change = at > 0 or float(piece.times[0]) > grid.start + 2 * grid.step
            event = grid.event("metric-dcgm-health", number, piece.field, 0)
            event.time, event.file = float(piece.times[at]), piece.file
            if isinstance(piece, SampledSeries):
                event.text, event.line = piece.quote(at)[:2000], piece.line_of(at)
            code = piece.labels.get("health_error_code", "")
            watch = piece.labels.get("health_watch", "")
            event.cls = _classes().get(code, "unknown")
            event.data |= {"watch": watch, "error": code, "after": float(piece.values[at]), "standing": not change}
            if (not change and not grid.lone) or piece.values[at] < FAIL or event.cls == "unknown":
                event.role, event.weight = "context", 0.2
            yield event


def _busy_rows(grid: Grid, numbers: list[int]) -> Any:
    import numpy as np

    util = fill_forward(grid.matrix("DCGM_FI_DEV_GPU_UTIL", numbers), 2)
    return np.where(np.isnan(util), True, util >= 50.0)


def _traffic(grid: Grid) -> Iterator[Event]:
    """NVLink traffic of one GPU that falls away under load while its peers in the same job keep theirs."""
    import numpy as np

    name = next((name for name in TRAFFIC if name in grid.fields), None)
    if name is None:
        return
    for numbers in grid.groups.values():
        if len(numbers) < 4:
            continue
        rate = fill_forward(grid.matrix(name, numbers), 1)
        busy = _busy_rows(grid, numbers)
        usual = quantile(np.where(busy, rate, np.nan), 0.5)
        share = np.where(usual[:, None] > 0, rate / usual[:, None], np.nan)
        peers = median_rows(np.where(busy, share, np.nan))
        low = sustained(busy & (share < NO_TRAFFIC) & (peers > KEPT)[None, :], 3)
        hits = np.flatnonzero(low.any(axis=1))
        for row in hits if len(hits) <= max(1, len(numbers) // 4) else ():
            column = int(low[row].argmax())
            event = grid.event("metric-nvlink-bandwidth-drop", numbers[row], name, column)
            event.data |= {
                "before": float(usual[row]),
                "after": float(rate[row, column]),
                "peers": round(float(peers[column]), 3),
            }
            yield event


def _no_power(grid: Grid) -> Iterator[Event]:
    """A power reading of zero: the board lost its supply or the driver lost the board."""
    import numpy as np

    table = grid.table("DCGM_FI_DEV_POWER_USAGE")
    if table is None:
        return
    had = np.fmax.accumulate(fill_forward(table.values), axis=1) > 4 * NO_POWER
    zero = sustained(had & (table.values < NO_POWER), 2)
    for row in np.flatnonzero(zero.any(axis=1)):
        column = int(zero[row].argmax())
        event = grid.event("metric-power-zero", table.rows[row], table.field, column)
        event.data |= {"after": float(table.values[row, column])}
        yield event
