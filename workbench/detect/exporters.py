"""Turn the presence of samples into events: a GPU, an exporter or a node that vanishes, freezes, restarts or never spoke."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from workbench.detect.grid import Grid
from workbench.detect.steps import first_true, last_true
from workbench.model import Event

__all__ = ["exporter_events", "hide_frozen"]

# Every exporter of GPU metrics has at least one of these for every GPU at every scrape, MIG or not.
PRESENCE = (
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_SM_CLOCK",
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_XID_ERRORS",
)
# Values that never stand still on a GPU under load: power is read in milliwatts.
RESTLESS = (
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "DCGM_FI_PROF_DRAM_ACTIVE",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "DCGM_FI_DEV_SM_CLOCK",
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_MEM_COPY_UTIL",
)
FROZEN_SCRAPES = 4  # equal values of every GPU and field in so many scrapes do not happen by chance
MISSED = 2  # scrapes: one is lost now and then (time-out of a scrape)


def _presence(grid: Grid) -> tuple[list[int], Any]:
    """Return the GPUs and where each has any sample."""
    import numpy as np

    numbers = [number for numbers in grid.groups.values() for number in numbers]
    present = np.zeros((len(numbers), grid.columns), dtype=bool)
    for name in PRESENCE:
        if name in grid.fields:
            present |= np.isfinite(grid.matrix(name, numbers))
    # MIG instances stand for their GPU
    known = {grid.entities[number].gpu: at for at, number in enumerate(numbers)}
    for number, entity in enumerate(grid.entities):
        if entity.mig and entity.gpu in known:
            for name in ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_XID_ERRORS"):
                table = grid.table(name)
                if table and number in table.at:
                    present[known[entity.gpu]] |= np.isfinite(table.values[table.at[number]])
    return numbers, present


def _nodes(grid: Grid, numbers: list[int]) -> dict[str | None, list[int]]:
    nodes: dict[str | None, list[int]] = {}
    for at, number in enumerate(numbers):
        nodes.setdefault(grid.entities[number].node, []).append(at)
    return nodes


def hide_frozen(grid: Grid) -> list[Event]:
    """
    Return an event for each exporter that serves the same values over and over while others move, and hide its stale samples.

    Must run before the detectors, which would compare their live rows with stale ones.
    """
    import numpy as np

    numbers, present = _presence(grid)
    events: list[Event] = []
    if len(numbers) < 2:
        return events
    same: Any = np.ones(present.shape, dtype=bool)
    witnesses = np.zeros(len(numbers), dtype=int)
    for name in RESTLESS:
        if name not in grid.fields:
            continue
        values = grid.matrix(name, numbers)
        equal = np.ones(values.shape, dtype=bool)
        equal[:, 1:] = (values[:, 1:] == values[:, :-1]) | np.isnan(values[:, 1:]) | np.isnan(values[:, :-1])
        moved = ~equal
        witnesses += moved.any(axis=1)
        same &= equal
    nodes = _nodes(grid, numbers)
    runs: dict[str | None, int] = {}
    for node, rows in nodes.items():
        steady = same[rows].all(axis=0)
        alive = present[rows].any(axis=0)
        if alive.sum() < FROZEN_SCRAPES + 1 or not witnesses[rows].any():
            continue
        end = int(alive.nonzero()[0][-1])
        moving = (~steady[: end + 1]).nonzero()[0]
        begin = int(moving[-1]) + 1 if len(moving) else 0
        if int(alive[begin : end + 1].sum()) >= FROZEN_SCRAPES:
            runs[node] = begin
    if len(runs) >= max(1, len(nodes)):
        return events  # nothing moves anywhere: an idle fleet or a coarse source, no stale exporter
    for node, begin in runs.items():
        rows = nodes[node]
        name = next(name for name in RESTLESS if name in grid.fields)
        event = grid.event("metric-exporter-frozen", numbers[rows[0]], name, begin)
        event.gpu, event.data = None, {"gpus": len(rows), "scrapes": int(present[rows, begin:].any(axis=0).sum()), "field": name}
        events.append(event)
        for row in rows:
            grid.hidden[numbers[row]] = begin
    if grid.hidden:
        grid.cache.clear()
    return events


def exporter_events(grid: Grid) -> Iterator[Event]:
    """Yield events on GPUs, exporters and nodes that went missing, came back, were renumbered or never answered."""
    numbers, present = _presence(grid)
    nodes = _nodes(grid, numbers)
    if numbers:
        yield from _vanished(grid, numbers, present, nodes)
        yield from _count(grid, numbers, present, nodes)
    yield from _down(grid, set(nodes))
    yield from _renumbered(grid)


def _host_alive(grid: Grid, node: str | None) -> tuple[int, int, int]:
    """Return the last column in which node-exporter spoke for a node, the last for any node (-1: never), and its interval."""
    import numpy as np

    mine = last = -1
    interval = 1
    for name in ("node_boot_time_seconds", "node_load1", "node_memory_MemAvailable_bytes"):
        table = grid.table(name)
        if table is None:
            continue
        ends = last_true(np.isfinite(table.values))
        last = max(last, int(ends.max()))
        gaps = np.diff(np.flatnonzero(np.isfinite(table.values[int(ends.argmax())])))
        interval = max(interval, int(np.median(gaps)) if len(gaps) else 1)
        mine = max(
            [mine] + [int(end) for number, end in zip(table.rows, ends, strict=True) if grid.entities[number].node == node]
        )
    return mine, last, interval


def _vanished(grid: Grid, numbers: list[int], present: Any, nodes: dict[str | None, list[int]]) -> Iterator[Event]:
    ends = last_true(present)
    name = next((name for name in PRESENCE if name in grid.fields), PRESENCE[0])
    node_end = {node: int(ends[rows].max()) for node, rows in nodes.items()}
    frozen = {grid.entities[number].node for number in grid.hidden}
    final = int(ends.max())
    gone = [node for node, end in node_end.items() if end >= 0 and end < final - MISSED and node not in frozen]
    for node, rows in nodes.items():
        alive = present[rows].any(axis=0)
        if not alive.any() or node in frozen:
            continue
        begin, end = int(alive.argmax()), node_end[node]
        for row in rows:
            if 0 <= ends[row] <= end - MISSED and alive[ends[row] + 1 : end + 1].sum() >= MISSED:
                column = int(ends[row])
                yield _missing(
                    grid, "metric-gpu-vanished", numbers[row], name, column, {"siblings": int((ends[rows] == end).sum())}
                )
        yield from _gaps(grid, numbers[rows[0]], node, alive, begin, end, name, len(rows))
        if node in gone:
            host, hosts, interval = _host_alive(grid, node)
            whole = host >= 0 and host <= hosts - MISSED * interval and host <= end + MISSED * interval
            data = {
                "gpus": len(rows),
                "node_exporter": "gone too" if whole else "goes on" if host >= 0 else "not collected",
                "nodes_gone": len(gone),
            }
            event = _missing(grid, "metric-node-gone" if whole else "metric-exporter-gone", numbers[rows[0]], name, end, data)
            event.gpu = None
            if len(gone) > max(1, len(nodes) // 2):
                event.role, event.weight = "context", 0.1  # most of them end at once: the collection ended
            yield event


def _missing(grid: Grid, signature: str, number: int, name: str, column: int, data: dict[str, Any]) -> Event:
    """Return an event at the first scrape without the entity, quoting its last sample."""
    event = grid.event(signature, number, name, column, data=data)
    event.data["last_seen"] = event.time
    event.time = (event.time if event.time is not None else grid.time(number, column)) + grid.step
    return event


def _gaps(grid: Grid, number: int, node: str | None, alive: Any, begin: int, end: int, name: str, gpus: int) -> Iterator[Event]:
    silent = (~alive[begin : end + 1]).nonzero()[0] + begin
    runs: list[list[int]] = []
    for column in silent.tolist():
        if runs and column == runs[-1][-1] + 1:
            runs[-1].append(column)
        else:
            runs.append([column])
    for run in runs:
        if len(run) >= MISSED:
            data = {"seconds": len(run) * grid.step, "gpus": gpus, "back": grid.time(number, run[-1] + 1)}
            event = _missing(grid, "metric-exporter-gap", number, name, run[0] - 1, data)
            event.gpu = None
            yield event


def _count(grid: Grid, numbers: list[int], present: Any, nodes: dict[str | None, list[int]]) -> Iterator[Event]:
    """A node that shows fewer GPUs than nearly all others from the start."""
    sizes = {node: sum(bool(present[row].any()) for row in rows) for node, rows in nodes.items()}
    if len(sizes) < 3:
        return
    usual, many = Counter(sizes.values()).most_common(1)[0]
    if many < 0.7 * len(sizes):
        return
    for node, size in sizes.items():
        if 0 < size < usual:
            row = nodes[node][0]
            name = next((name for name in PRESENCE if name in grid.fields), PRESENCE[0])
            event = grid.event("metric-gpu-count-low", numbers[row], name, int(first_true(present[row : row + 1])[0]))
            event.gpu, event.data = None, {"gpus": size, "peers": usual, "field": name}
            yield event


def _down(grid: Grid, seen: set[str | None]) -> Iterator[Event]:
    """A GPU exporter that its Prometheus could not scrape at any time, on a node that is up: no driver, or no exporter."""
    import numpy as np

    table = grid.table("up")
    if table is None:
        return
    filled = np.where(np.isfinite(table.values), table.values, np.nan)
    ever = np.nan_to_num(filled, nan=0.0).max(axis=1) > 0
    others = {grid.entities[number].node for row, number in enumerate(table.rows) if ever[row]}
    for row, number in enumerate(table.rows):
        job = table.pieces[row][0].labels.get("job", "")
        node = grid.entities[number].node
        gpu = (
            "dcgm" in job or "nvidia" in job or "gpu" in job or table.pieces[row][0].labels.get("instance", "").endswith(":9400")
        )
        if gpu and not ever[row] and node not in seen:
            event = grid.event("metric-exporter-down", number, "up", int(np.isfinite(filled[row]).argmax()))
            event.data |= {"job": job, "node_up": node in others, "standing": True}
            yield event


def _renumbered(grid: Grid) -> Iterator[Event]:
    """The same UUID under another index: after a GPU is lost the indices behind it move, so an index names another GPU."""
    done: set[str | None] = set()
    for number, entity in enumerate(grid.entities):
        if entity.gpu is None or not entity.gpu.uuid or entity.node in done:
            continue
        table = grid.table("DCGM_FI_DEV_GPU_TEMP") or grid.table("DCGM_FI_DEV_POWER_USAGE")
        if table is None or number not in table.at:
            continue
        pieces = sorted(table.pieces[table.at[number]], key=lambda piece: float(piece.times[0]))
        for before, after in pairwise(pieces):
            if before.gpu and after.gpu and before.gpu.index != after.gpu.index:
                event = grid.event("metric-gpu-renumbered", number, table.field, grid.column_of(number, float(after.times[0])))
                event.data |= {"before": before.gpu.index, "after": after.gpu.index}
                done.add(entity.node)
                yield event
                break
