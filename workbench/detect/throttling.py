"""Turn clocks, heat and clock-event reasons into events: a GPU that throttles, a server whose power supply brakes its GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from workbench.detect.grid import Grid
from workbench.detect.steps import fill_forward, quantile, sustained
from workbench.model import Event

__all__ = ["throttling"]

UTIL, CLOCK, REASONS = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"
TEMP, HBM = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_MEMORY_TEMP"
CLOCK_DROP = 0.85  # of the own usual clock; boost wanders by some percent under a power cap
CLOCK_STOP = 0.6  # below this a throttled GPU holds up the whole job, not just slows it
HOT_CORE, HOT_HBM = 85.0, 95.0  # C: slowdown starts at 85 to 93, the HBM limit is 95 to 105; used only with lowered clocks
WARM_RISE = 10.0  # C over the own usual temperature
# clock event reasons (nvml.h): hardware slowdown, software and hardware thermal, power brake; 0x4, the power cap, is normal
HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x8, 0x20, 0x40, 0x80


def throttling(grid: Grid) -> Iterator[Event]:
    """Yield the events of lowered clocks and of the power brake."""
    yield from _throttling(grid)
    yield from _brake(grid)


def _throttling(grid: Grid) -> Iterator[Event]:
    """
    Clocks below the GPU's own usual under load, with heat (or the driver's own word for it) as the reason.

    Heat at full clocks is no fault. A lowered clock without heat, power brake or violation time is reported apart.
    """
    import numpy as np

    table = grid.table(CLOCK)
    if table is None:
        return
    numbers = table.rows
    clock = table.values
    util = fill_forward(grid.matrix(UTIL, numbers), 2)
    under = np.where(np.isnan(util), True, util >= 50.0) & np.isfinite(clock)
    loaded = np.where(under, clock, np.nan)
    usual = quantile(loaded, 0.8)
    peers = np.full(len(numbers), np.nan)
    models = np.array([grid.entities[number].model for number in numbers])
    for model in set(models):
        same = models == model
        if np.isfinite(usual[same]).any():
            peers[same] = np.nanmedian(usual[same])
    # a GPU throttled for the whole window has no past of its own to be compared with
    usual = np.fmax(usual, np.where(usual < CLOCK_DROP * peers, peers, usual))
    low = sustained((loaded < CLOCK_DROP * usual[:, None]) | ~under, 2) & (loaded < CLOCK_DROP * usual[:, None])
    core, memory = grid.matrix(TEMP, numbers), grid.matrix(HBM, numbers)
    limit = grid.matrix("DCGM_FI_DEV_SLOWDOWN_TEMP", numbers)
    reasons = np.nan_to_num(fill_forward(grid.matrix(REASONS, numbers), 2), nan=0.0).astype(np.int64)
    violation = fill_forward(grid.matrix("DCGM_FI_DEV_THERMAL_VIOLATION", numbers))
    growing = np.zeros(low.shape, dtype=bool)
    growing[:, 1:] = violation[:, 1:] - violation[:, :-1] > 0
    told = sustained(under & (growing | ((reasons & (HW_THERMAL | SW_THERMAL)) > 0)), 3)
    drops: dict[str | None, list[Event]] = {}
    for row in np.flatnonzero(low.any(axis=1) | told.any(axis=1)):
        window = np.flatnonzero(low[row])
        if len(window) < 2:  # a single lowered reading is boost at work, or the edge of a pause
            window = np.flatnonzero(told[row])
        if len(window) < 2:
            continue
        column = int(window[0])
        deep = float(np.nanmin(loaded[row, window]))
        hot = core[row, window]
        before = core[row, :column][np.isfinite(core[row, :column])]
        top = float(np.nanmax(hot)) if np.isfinite(hot).any() else float("nan")
        hbm = float(np.nanmax(memory[row, window])) if np.isfinite(memory[row, window]).any() else float("nan")
        slow = float(np.nanmax(limit[row])) if np.isfinite(limit[row]).any() else HOT_CORE
        bits = int(np.bitwise_or.reduce(reasons[row, window]))
        grew = (
            float(violation[row, window[-1]] - violation[row, max(column - 1, 0)])
            if np.isfinite(violation[row, window[-1]])
            else 0.0
        )
        heat = top >= min(slow, HOT_CORE + 2) or hbm >= HOT_HBM or bool(bits & (HW_THERMAL | SW_THERMAL)) or grew > 1e6
        rising = len(before) > 0 and top - float(np.median(before)) >= WARM_RISE and top >= HOT_CORE - 5
        # a clock that usually reads 0 or less was not measured: no drop can be told
        ratio = deep / float(usual[row]) if usual[row] > 0.0 else 1.0
        braked = "metric-power-brake" if bits & (POWER_BRAKE | HW_SLOWDOWN) else "metric-clock-drop"
        signature = "metric-thermal" if heat or rising else braked
        number = numbers[row]
        if signature == "metric-power-brake" or (signature == "metric-clock-drop" and len(window) < 4):
            continue  # the brake is reported with its node
        event = grid.event(signature, number, CLOCK, column)
        event.data |= {
            "before": float(usual[row]),
            "after": deep,
            "ratio": round(ratio, 3),
            "temperature": top,
            "memory_temperature": hbm,
            "reasons": bits,
            "violation_growth": grew,
            "scrapes": len(window),
            "slowed_rows": int(low.any(axis=1).sum()),
        }
        event.last = grid.time(number, int(window[-1]))
        outside = grid.labelled and grid.entities[number].group is None
        if outside or ratio > CLOCK_STOP or len(window) < 3:
            event.role, event.weight = "context", 0.3 if not outside and signature == "metric-thermal" else 0.1
        if signature == "metric-clock-drop":
            drops.setdefault(event.node, []).append(event)
        else:
            yield event
    sizes = Counter(grid.entities[number].node for number in numbers)
    for node, events in drops.items():
        yield from _together(grid, events, sizes[node])


def _together(grid: Grid, events: list[Event], gpus: int) -> Iterator[Event]:
    """GPUs of one node that all slow down at once without heat: power, not a GPU; a drop of one alone stays what it is."""
    deep = [event for event in events if event.data["ratio"] <= CLOCK_STOP and event.time is not None]
    first = min((event.time for event in deep if event.time is not None), default=0.0)
    near = [event for event in deep if event.time is not None and event.time - first <= 2 * grid.step]
    if len(near) < max(2, gpus // 2) or near[0].data["in_job"] is False or REASONS in grid.fields:
        yield from events  # where the driver tells its reasons, they decide
        return
    lead = near[0]
    lead.signature, lead.gpu, lead.weight, lead.role = "metric-power-brake", None, 0.4, "cause"
    lead.data["gpus"] = len(near)
    yield lead


def _brake(grid: Grid) -> Iterator[Event]:
    """The power-brake signal (0x80) or hardware slowdown without heat: the server's power supply asks for less."""
    import numpy as np

    table = grid.table(REASONS)
    if table is None:
        return
    bits = np.nan_to_num(fill_forward(table.values, 2), nan=0.0).astype(np.int64)
    heat = (bits & (HW_THERMAL | SW_THERMAL)) > 0
    core = fill_forward(grid.matrix(TEMP, table.rows), 2)
    # hardware slowdown without heat comes from outside as well
    braked = sustained(((bits & POWER_BRAKE) > 0) | (((bits & HW_SLOWDOWN) > 0) & ~heat & ~(core >= HOT_CORE - 5)), 2)
    nodes: dict[str | None, list[int]] = {}
    at: int
    for row in np.flatnonzero(braked.any(axis=1)):
        nodes.setdefault(grid.entities[table.rows[row]].node, []).append(int(row))
    for rows in nodes.values():
        columns = [int(braked[row].argmax()) for row in rows]
        at = rows[columns.index(min(columns))]
        event = grid.event("metric-power-brake", table.rows[at], REASONS, min(columns))
        event.data |= {"gpus": len(rows), "reasons": int(np.bitwise_or.reduce(bits[at])), "standing": min(columns) == 0}
        if len(rows) > 1:
            event.gpu = None
        if (grid.labelled and event.data["group"] is None) or min(columns) == 0:
            event.role, event.weight = "context", 0.2
        yield event
