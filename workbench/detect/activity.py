"""Turn utilisation, power and memory of a job's GPUs into events: who waits, who stopped first, who is slow, who is full."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from workbench.detect.grid import Grid
from workbench.detect.steps import MAD_TO_SIGMA, fill_forward, first_true, last_true, median_rows, quantile, sustained
from workbench.model import Event

__all__ = ["activity_events"]

UTIL, POWER, USED, FREE = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"

BUSY, IDLE = 90.0, 20.0  # percent of utilisation; a GPU that waits inside a collective kernel shows 100
SPIN_POWER = 0.55  # of the own power under load: a spinning collective kernel draws a third of it, work over two thirds
ALL = 0.6  # of the job's GPUs: what more of them do at once is the job's state, not one GPU's
FB_FULL = 0.97  # of the frame buffer
FB_RISE = 0.03  # of it: over the GPU's own level before
STRAGGLE = 0.12  # relative power against the peers' over many scrapes
STRAGGLE_SCRAPES = 6


@dataclass(slots=True)
class _Job:
    """The matrices of one job's GPUs, and what is usual for each of them under load."""

    name: str
    numbers: list[int]
    util: Any
    power: Any
    load: Any  # W, per GPU
    end: int  # last column in which the job still holds its GPUs
    stop: int  # column in which most GPUs went idle for good, `columns` when they did not


def activity_events(grid: Grid) -> Iterator[Event]:
    """Yield the events of every job's GPUs."""
    yield from _framebuffer(grid)
    for name, numbers in grid.groups.items():
        if grid.labelled and not name:
            continue  # GPUs outside every job have no peers to be compared with
        job = _job(grid, name, numbers)
        if job is not None:
            yield from _states(grid, job)
            yield from _ends(grid, job)
            yield from _stragglers(grid, job)


def _job(grid: Grid, name: str, numbers: list[int]) -> _Job | None:
    import numpy as np

    util = fill_forward(grid.matrix(UTIL, numbers), 1)
    power = fill_forward(grid.matrix(POWER, numbers), 1)
    if not np.isfinite(util).any():
        # no utilisation field: power alone tells load from idle
        top = np.nanmax(power, axis=1, keepdims=True) if np.isfinite(power).any() else power
        util = np.where(power > 0.4 * top, 100.0, np.where(np.isfinite(power), 0.0, np.nan))
    held = [grid.entities[number].held for number in numbers]
    end = max(
        (grid.column_of(number, span[1]) for number, span in zip(numbers, held, strict=True) if span), default=grid.columns - 1
    )
    if len(numbers) < 2 or not np.isfinite(util).any():
        return None
    working = util >= 50.0
    load = quantile(np.where(working, power, np.nan), 0.75)
    middle = median_rows(util)
    busy = np.nan_to_num(middle, nan=0.0) >= 50.0
    stop = int(busy.nonzero()[0][-1]) + 1 if busy.any() else grid.columns
    return _Job(name, numbers, util, power, load, min(end, grid.columns - 1), stop)


# NVIDIA H100 80GB HBM3 | NVIDIA A100-SXM4-40GB | NVIDIA GB200 (no size in the name)
_SIZE = re.compile(r"(\d+) ?GB")


def _framebuffer(grid: Grid) -> Iterator[Event]:
    """
    Memory of one GPU that climbs to the limit while it works: a hint at a GPU out-of-memory.

    A pool that is full all along is how serving engines and caching allocators work, and says nothing.
    """
    import numpy as np

    table = grid.table(USED)
    if table is None:
        return
    numbers, used = table.rows, table.values
    total = used + grid.matrix(FREE, numbers)
    reserved = np.nan_to_num(grid.matrix("DCGM_FI_DEV_FB_RESERVED", numbers), nan=0.0)
    size = np.full(len(numbers), np.nan)
    rows = np.isfinite(total).any(axis=1)
    size[rows] = np.nanmax(total[rows], axis=1)
    whole = grid.matrix("DCGM_FI_DEV_FB_TOTAL", numbers)
    rows = np.isfinite(whole).any(axis=1)
    size[rows] = np.nanmax((whole - reserved)[rows], axis=1)
    for row, number in enumerate(numbers):
        entity = grid.entities[number]
        known = used[row][np.isfinite(used[row])]
        if entity.mig or not len(known):
            continue
        if np.isnan(size[row]) and (found := _SIZE.search(entity.model)):
            size[row] = float(found[1]) * 1024  # MiB; the usable part is up to 2 % less or, on HBM cards, a little more
        peak = float(known.max())
        full = size[row] > 0.0 and peak >= FB_FULL * size[row]
        if not full:
            continue
        usual = float(np.median(known[known > 0.05 * peak]))
        if peak - usual < FB_RISE * size[row]:
            continue
        above = used[row] > usual + 0.2 * (peak - usual)
        at = int(np.nanargmax(used[row]))
        start = at
        while start > 0 and (above[start - 1] or np.isnan(used[row, start - 1])):
            start -= 1
        event = grid.event("metric-fb-full", number, USED, at)
        event.data |= {
            "before": usual,
            "after": peak,
            "size": float(size[row]),
            "ratio": round(peak / float(size[row]), 3),
            "rises_since": grid.time(number, start),
        }
        yield event


def _states(grid: Grid, job: _Job) -> Iterator[Event]:
    """
    All GPUs at 100 % utilisation with a third of their power wait inside a collective; those that do not are who they wait for.

    Yields one symptom for the job and, when few GPUs differ, one event each for those that went idle or still compute.
    """
    import numpy as np

    job_rows = len(job.numbers)
    relative = job.power / job.load[:, None]
    spin = (job.util >= BUSY) & (relative < SPIN_POWER)
    present = np.isfinite(job.util)
    share = spin.sum(axis=0) / max(1, job_rows)
    waiting = (share >= ALL)[None, :]
    columns = sustained(waiting, 2)[0] | np.r_[False, sustained(waiting, 2)[0][:-1]]
    if not columns.any():
        return
    begin = int(columns.argmax())
    spell = np.flatnonzero(waiting[0])
    spell = spell[spell >= begin]
    spell = spell[: int(np.argmax(np.diff(spell) > 2)) + 1] if (np.diff(spell) > 2).any() else spell
    row = int(spin[:, begin].argmax())
    memory = grid.matrix("DCGM_FI_DEV_MEM_COPY_UTIL", job.numbers)
    usual_memory = float(np.nanmedian(memory[:, spell])) if np.isfinite(memory[:, spell]).any() else float("nan")
    usual_power = float(np.nanmedian(relative[:, spell]))
    seen = present[:, spell]
    enough = (seen.sum(axis=1) >= 2) & (seen.mean(axis=1) >= 0.5)
    idle_share = (seen & (job.util[:, spell] < IDLE)).sum(axis=1) / np.maximum(seen.sum(axis=1), 1)
    copies = quantile(np.where(seen, memory[:, spell], np.nan), 0.5)
    draws = quantile(np.where(seen, relative[:, spell], np.nan), 0.5)
    works = (draws > usual_power + 0.25) | ((copies > usual_memory + 15) if usual_memory < 10 else False)
    odd_idle = np.flatnonzero(enough & (idle_share >= 0.7)).tolist()
    odd_busy = np.flatnonzero(enough & (idle_share < 0.7) & works).tolist()
    event = grid.event("metric-spinning", job.numbers[row], UTIL, begin, count=int(spin[:, begin].sum()))
    event.node = event.gpu = None
    event.last = grid.time(job.numbers[row], int(spell[-1]))
    event.data |= {
        "gpus": job_rows,
        "spinning": int(spin[:, spell].any(axis=1).sum()),
        "idle": len(odd_idle),
        "busy": len(odd_busy),
        "scrapes": len(spell),
        "seconds": float((spell[-1] - spell[0] + 1) * grid.step),
    }
    yield event
    for signature, rows in (("metric-idle-while-peers-spin", odd_idle), ("metric-busy-while-peers-spin", odd_busy)):
        nodes = {grid.entities[job.numbers[at]].node for at in rows}
        if not rows or (len(rows) > max(1, 0.25 * job_rows) and len(nodes) > 1):
            continue
        for order, at in enumerate(rows[:16]):
            number = job.numbers[at]
            if signature == "metric-idle-while-peers-spin":
                idle = (job.util[at] < IDLE) & (np.arange(grid.columns) <= spell[-1])
                column = int(last_true((~idle & present[at])[None, : int(spell[-1]) + 1])[0]) + 1
            else:
                column = begin
            event = grid.event(signature, number, UTIL, min(column, int(spell[-1])))
            event.data |= {
                "peers": event.data.get("peers", 100.0),
                "rows": len(rows),
                "nodes": len(nodes),
                "spin_since": grid.time(number, begin),
                "order": order,
                "power": float(np.nanmedian(job.power[at, spell])),
                "load": float(job.load[at]),
            }
            yield event


def _ends(grid: Grid, job: _Job) -> Iterator[Event]:
    """The end of the run as the GPUs show it, who went idle before the others, and GPUs that were held but never worked."""
    import numpy as np

    job_rows = len(job.numbers)
    worked = np.nan_to_num(job.util, nan=0.0).max(axis=1) >= 50.0
    held = [(span[0], at) for at, number in enumerate(job.numbers) if (span := grid.entities[number].held)]
    if held and not worked.any():
        since, at = min(held)
        event = grid.event("metric-never-busy", job.numbers[at], UTIL, grid.column_of(job.numbers[at], since))
        event.node = event.gpu = None
        event.data |= {"gpus": job_rows, "nodes": len({grid.entities[number].node for number in job.numbers})}
        yield event
    if held:
        yield from _left_first(grid, job)
    if job.stop >= grid.columns or not worked.any():
        return
    tail = (job.util < 50.0)[:, job.stop : job.stop + 3]
    if not tail.any():
        return
    # each GPU's own stop: the column after the last in which it worked
    stops = np.where(worked, last_true(np.nan_to_num(job.util, nan=0.0) >= 50.0) + 1, job.stop)
    row = int(np.argmin(np.abs(stops - job.stop)))
    if job.stop < int(np.isfinite(job.util).any(axis=0).nonzero()[0][-1]):
        event = grid.event(
            "metric-activity-end", job.numbers[row], UTIL, job.stop, count=int((np.abs(stops - job.stop) <= 2).sum())
        )
        event.node = event.gpu = None
        event.data |= {"gpus": job_rows, "same_minute": int((np.abs(stops - job.stop) * grid.step <= 60.0).sum())}
        yield event
    finite = np.isfinite(job.util)
    early = [
        at
        for at in range(job_rows)
        if worked[at]
        and stops[at] <= job.stop - 2
        and finite[at, stops[at] : job.stop].sum() >= 2
        and (job.util[at, stops[at] : job.stop] < 50).any()
    ]
    if not early or len(early) > max(1, 0.25 * job_rows):
        return
    first = min(int(stops[at]) for at in early)
    for at in sorted(early, key=lambda at: int(stops[at]))[:16]:
        event = grid.event("metric-stopped-first", job.numbers[at], UTIL, int(stops[at]))
        event.data |= {
            "seconds_before_peers": float((job.stop - stops[at]) * grid.step),
            "rows": len(early),
            "first": bool(stops[at] == first),
        }
        yield event


def _left_first(grid: Grid, job: _Job) -> Iterator[Event]:
    """A node whose GPUs lost the job's label well before those of the other nodes: its pod or step ended first."""
    import numpy as np

    ends: dict[str | None, tuple[float, int]] = {}
    for at, number in enumerate(job.numbers):
        entity = grid.entities[number]
        # the exporter must go on without the label; else it is the exporter that ended
        goes_on = entity.held and np.isfinite(job.util[at, grid.column_of(number, entity.held[1]) + 1 :][:2]).any()
        if entity.held and goes_on and number not in grid.hidden:
            known = ends.get(entity.node)
            if known is None or entity.held[1] > known[0]:
                ends[entity.node] = (entity.held[1], number)
    if len(ends) < 3:
        return
    usual = float(np.median([end for end, _ in ends.values()]))
    early = [(end, number, node) for node, (end, number) in ends.items() if usual - end >= 2 * grid.step]
    if len(early) > max(1, len(ends) // 4):
        return
    for end, number, _ in early:
        event = grid.event("metric-pod-ended-first", number, UTIL, grid.column_of(number, end))
        event.gpu = None
        event.data |= {"seconds_before_peers": usual - end, "nodes": len(ends)}
        yield event


def _stragglers(grid: Grid, job: _Job) -> Iterator[Event]:
    """
    A GPU (or all of a node) that works otherwise than its peers for long: it draws less than all others, or, once steps got
    longer, more than they, since it computes while they wait for it.
    """
    import numpy as np

    if len(job.numbers) < 4:
        return
    working = (job.util >= 50.0) & (np.arange(grid.columns) < job.stop)[None, :]
    relative = job.power / job.load[:, None]
    usable = working & (relative > 0)
    level = median_rows(np.where(usable, job.power, np.nan))
    ratio = np.where(usable, job.power / level[None, :], np.nan)
    columns = np.flatnonzero(usable.sum(axis=0) >= 0.5 * len(job.numbers))
    if len(columns) < STRAGGLE_SCRAPES:
        return
    nodes: dict[str | None, list[int]] = {}
    for at, number in enumerate(job.numbers):
        nodes.setdefault(grid.entities[number].node, []).append(at)
    units: list[tuple[str, list[int]]] = [("node", rows) for rows in nodes.values() if len(rows) > 1 and len(nodes) > 2]
    units += [("gpu", [at]) for at in range(len(job.numbers))]
    blocks = np.stack([ratio[rows[0], columns] if len(rows) == 1 else median_rows(ratio[rows][:, columns]) for _, rows in units])
    done: set[int] = set()
    for kind in ("node", "gpu"):
        chosen = [at for at, unit in enumerate(units) if unit[0] == kind]
        if not chosen:
            continue
        part = blocks[chosen]
        early = part[:, : max(3, len(columns) // 4)]
        base = quantile(early, 0.5)
        base = np.where(np.isfinite(base), base, 1.0)
        late = _rolling(part, STRAGGLE_SCRAPES)
        away = late - np.clip(base, 0.8, 1.25)[:, None]
        noise = MAD_TO_SIGMA * float(np.nanmedian(np.abs(part - median_rows(part)[None, :])))
        threshold = max(STRAGGLE, 4 * noise)
        moved = np.abs(away) > threshold
        constant = (np.abs(base - 1) > max(0.15, 5 * noise)) & ~moved.any(axis=1)
        hits = np.flatnonzero(moved.any(axis=1) | constant)
        if len(hits) > max(1, 0.25 * len(chosen)):
            continue
        for hit in hits:
            rows = units[chosen[hit]][1]
            if done & set(rows):
                continue
            done |= set(rows)
            at = int(first_true(moved[hit : hit + 1])[0]) if moved[hit].any() else 0
            # the window looks ahead: go on to the first scrape that is itself away
            itself = np.abs(part[hit, at:] - base[hit]) > threshold / 2
            at += int(itself.argmax()) if moved[hit].any() and itself.any() else 0
            number = job.numbers[rows[0]]
            event = grid.event("metric-straggler", number, POWER, int(columns[max(at, 0)]))
            value = float(np.nanmedian(late[hit, at:])) if np.isfinite(late[hit, at:]).any() else float("nan")
            event.data |= {
                "unit": kind,
                "before": round(float(base[hit]), 3),
                "ratio": round(value, 3),
                "scrapes": len(columns) - at,
                "direction": "less" if value < (1.0 if constant[hit] else base[hit]) else "more",
                "standing": bool(constant[hit]),
            }
            if kind == "node":
                event.gpu = None
            yield event


def _rolling(matrix: Any, length: int) -> Any:
    """Return the median of each column and the `length - 1` after it."""
    import numpy as np

    if matrix.shape[1] <= length:
        return np.repeat(np.nanmedian(matrix, axis=1, keepdims=True), matrix.shape[1], axis=1)
    windows = np.lib.stride_tricks.sliding_window_view(matrix, length, axis=1)
    middle = np.median(windows, axis=2)
    return np.concatenate([middle, np.repeat(middle[:, -1:], length - 1, axis=1)], axis=1)
