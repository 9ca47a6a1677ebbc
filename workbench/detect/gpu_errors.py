"""Turn GPU error counters and states (Xid, ECC, row remapping, PCIe, NVLink, fabric) into events at their onset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from workbench.detect.grid import Grid, Table
from workbench.detect.steps import fill_forward, first_true, increases, last_true, outliers, quantile, sustained
from workbench.model import Event
from workbench.parse.prom_labels import SampledSeries

__all__ = ["gpu_errors"]

# Corrected errors are a trend, not a fault: a healthy GPU logs a few a day, and the driver itself reports a "high rate" (Xid 92)
# from hundreds; ten in a window of minutes that no peer has stands out.
SBE_FLOOR = 10
# DCGM's own PCIe replay check fails over 8 a minute (DCGM_FR_PCI_REPLAY_RATE, default of the health watch); a boot or a link
# retrain leaves a few, which then stand still for ever.
REPLAY_PER_MINUTE = 8.0
REPLAY_FLOOR = 16
# CRC and replay errors are retried by the link and invisible until they come in numbers; recoveries are retrainings and are few.
NVLINK_FLOOR = 10
NVLINK_RECOVERY_FLOOR = 1
BUSY_UTIL = 50.0  # percent: PCIe generation and width may drop at idle by design, so they count only under load

# Row remap recorded, high corrected rate: nothing failed yet (NVIDIA's catalog: IGNORE), and the gauge carries only the number.
HARMLESS = (63, 92)
LINK_XIDS = (74, *range(144, 151))  # NVLink up to generation 4, and 5

_NVLINK = (
    "CRC_FLIT_ERROR",
    "CRC_DATA_ERROR",
    "REPLAY_ERROR",
    "RECOVERY_ERROR",
    "LINK_RECOVERY_FAILED",
    "RX_SYMBOL_ERRORS",
    "RX_ERRORS",
    "LOCAL_LINK_INTEGRITY",
    "EFFECTIVE_ERRORS",
    "LINK_RECOVERY_EVENTS",
)


def gpu_errors(grid: Grid) -> Iterator[Event]:
    """Yield the events of every GPU error field in the grid."""
    xids = list(_xid(grid))
    yield from _xid_count(grid)
    for prefix, signature, floor in (
        ("DCGM_FI_DEV_ECC_DBE_", "metric-ecc-dbe-increase", 1.0),
        ("DCGM_FI_DEV_ECC_SBE_", "metric-ecc-sbe-rate", float(SBE_FLOOR)),
        ("DCGM_FI_DEV_RETIRED_DBE", "metric-retired-pages-increase", 1.0),
        ("DCGM_FI_DEV_RETIRED_SBE", "metric-retired-pages-increase", 1.0),
        ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "metric-row-remap-increase", 1.0),
    ):
        names = [name for name in grid.fields if name.startswith(prefix)]
        yield from _counters(grid, sorted(names, key=lambda name: (not name.endswith("VOL_TOTAL"), name)), signature, floor)
    yield from _flags(grid, "DCGM_FI_DEV_ROW_REMAP_FAILURE", "metric-row-remap-failure")
    yield from _flags(grid, "DCGM_FI_DEV_ROW_REMAP_PENDING", "metric-row-remap-pending")
    yield from _flags(grid, "DCGM_FI_DEV_RETIRED_PENDING", "metric-row-remap-pending")
    replay = "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"
    yield from _counters(grid, [replay], "metric-pcie-replay-growth", float(REPLAY_FLOOR), per_minute=REPLAY_PER_MINUTE)
    yield from _link(grid)
    links = sorted(
        (name for name in grid.fields if "NVLINK" in name and any(word in name for word in _NVLINK)),
        key=lambda name: not name.endswith("_TOTAL"),
    )
    growth = list(_counters(grid, links, "metric-nvlink-errors-growth", float(NVLINK_FLOOR)))
    _shared_links(xids, growth, grid.step)
    yield from xids
    yield from growth
    yield from _fabric(grid)


def _xid(grid: Grid) -> Iterator[Event]:
    """
    Read the last-value gauge as what it is: a change inside the window is an event; a value that stands all along is history.

    The change says that an Xid came since the last scrape; it hides repeats of the same code and all but the last of a burst.
    """
    import numpy as np

    table = grid.table("DCGM_FI_DEV_XID_ERRORS")
    if table is None:
        return
    filled = fill_forward(table.values)
    before = np.full_like(filled, np.nan)
    before[:, 1:] = filled[:, :-1]
    changed = np.isfinite(before) & (filled != before) & (filled > 0)
    for row, column in zip(*changed.nonzero(), strict=True):
        code = int(filled[row, column])
        event = grid.event("metric-xid-change", table.rows[row], table.field, int(column), code=code)
        event.data |= {"before": int(before[row, column]), "after": code}
        _like_kernel(event, code)
        yield event
    known = np.isfinite(filled)
    first = first_true(known)
    start = filled[np.arange(len(filled)), np.maximum(first, 0)]
    for row in np.flatnonzero((first >= 0) & (start > 0)):
        at = int(first[row])
        stands = bool((filled[row, at:] == start[row]).all())
        data = {"constant": stands, "samples": int(known[row].sum())}
        yield grid.event("metric-xid-standing", table.rows[row], table.field, at, code=int(start[row]), data=data)


def _shared_links(xids: list[Event], growth: list[Event], step: float) -> None:
    """
    Take the blame from link Xids that several GPUs of a node show in the same scrape, in place.

    A link has two ends and a switch behind it, so one fault raises the code on healthy GPUs too, milliseconds apart; the gauge is
    read every half a minute and cannot tell which came first. A GPU whose own link errors grew before keeps its role.
    """
    worn = {(event.node, event.gpu) for event in growth}
    link = [
        event for event in xids if event.signature == "metric-xid-change" and event.code in LINK_XIDS and event.time is not None
    ]
    for event in link:
        near = {
            other.gpu
            for other in link
            if other.node == event.node
            and other.time is not None
            and event.time is not None
            and abs(other.time - event.time) < step
        }
        if len(near) > 1:
            event.data["same_scrape_gpus"] = len(near)
            if (event.node, event.gpu) not in worn:
                event.role, event.weight = "context", 0.2


def _like_kernel(event: Event, code: int) -> None:
    """Give a changed Xid gauge the role and class of that Xid in the catalog, a little less sure than the kernel line itself."""
    from workbench.catalog import signatures

    row = signatures().get(f"xid-{code}")
    if code in HARMLESS:
        event.role, event.cls, event.weight = "context", row.cls if row else None, 0.2
    elif row is not None:
        event.role, event.cls, event.weight = row.role, row.cls, round(0.9 * row.weight, 3)


def _xid_count(grid: Grid) -> Iterator[Event]:
    """dcgm-exporter's own count of Xids in a sliding window, a series per code: a rise is an Xid, a fall the window moving on."""
    for number, pieces in grid.fields.get("DCGM_EXP_XID_ERRORS_COUNT", {}).items():
        for piece in pieces:
            code = int(piece.labels.get("xid") or 0)
            known = (piece.values > 0).nonzero()[0]
            if not code or not len(known):
                continue
            at = int(known[0])
            change = at > 0 or float(piece.times[0]) > grid.start + 2 * grid.step
            event = grid.event("metric-xid-change" if change else "metric-xid-count", number, piece.field, 0, code=code)
            event.time, event.file = float(piece.times[at]), piece.file
            if isinstance(piece, SampledSeries):
                event.text, event.line = piece.quote(at)[:2000], piece.line_of(at)
            event.data |= {"count": float(piece.values.max()), "window_ms": piece.labels.get("window_size_in_ms")}
            if change:
                _like_kernel(event, code)
            yield event


def _counters(grid: Grid, names: list[str], signature: str, floor: float, per_minute: float = 0.0) -> Iterator[Event]:
    """
    Yield one event per GPU where one of `names` grew by `floor` (and `per_minute`) inside the window, far more than with peers.

    A counter that is high but stands still is history and says nothing.
    """
    import numpy as np

    found: dict[int, Event] = {}
    for name in names:
        table = grid.table(name)
        if table is None:
            continue
        grown = increases(table.values)
        total = grown.sum(axis=1)
        least = NVLINK_RECOVERY_FLOOR if "RECOVERY" in name else floor
        hits = np.flatnonzero((total >= least) & outliers(total, 0.5 * least))
        for row in hits:
            number = table.rows[row]
            steps = np.flatnonzero(grown[row] > 0)
            minutes = max((steps[-1] - steps[0] + 1) * grid.step / 60.0, grid.step / 60.0)
            rate = float(total[row] / minutes)
            if rate < per_minute:
                continue
            column = int(steps[grown[row, steps] >= 0.05 * grown[row, steps].max()][0])
            if number in found and grid.time(number, column) >= (found[number].time or 0.0) - grid.step:
                found[number].data.setdefault("also", {})[name] = float(total[row])
                continue
            event = grid.event(signature, number, name, column)
            if number in found:  # another counter of the same kind that began earlier leads
                event.data["also"] = {
                    **found[number].data.get("also", {}),
                    found[number].data["field"]: found[number].data["growth"],
                }
            filled = fill_forward(table.values[row : row + 1])[0]
            event.data |= {
                "before": float(filled[column - 1]),
                "after": float(filled[np.isfinite(filled)][-1]),
                "growth": float(total[row]),
                "rate_per_minute": round(rate, 3),
                "peers": float(np.median(total)),
                "grown_rows": int((total > 0).sum()),
            }
            event.last = grid.time(number, int(steps[-1]))
            found[number] = event
    yield from found.values()


def _flags(grid: Grid, name: str, signature: str) -> Iterator[Event]:
    """
    Yield an event where a 0/1 state was set inside the window; one that was set all along is context.

    A lone scrape has no window: the state is as much of now as the one nvidia-smi prints, so it counts as its signature says.
    """
    import numpy as np

    table = grid.table(name)
    if table is None:
        return
    filled = fill_forward(table.values)
    first_set = first_true(filled > 0)
    clear = first_true(filled == 0)
    for row in np.flatnonzero(first_set >= 0):
        change = clear[row] >= 0 and clear[row] < first_set[row]
        event = grid.event(signature, table.rows[row], name, int(first_set[row]))
        event.data |= {"before": 0.0 if change else None, "after": float(filled[row, first_set[row]]), "standing": not change}
        if not change and not grid.lone:
            event.role, event.weight = "context", 0.1
        yield event


def _busy(grid: Grid, table: Table) -> Any:
    """Return where the GPUs of a table are under load; all true where utilisation is not known (no such field, MIG)."""
    import numpy as np

    util = fill_forward(grid.matrix("DCGM_FI_DEV_GPU_UTIL", table.rows), 3)
    return np.where(np.isnan(util), True, util >= BUSY_UTIL)


def _link(grid: Grid) -> Iterator[Event]:
    """PCIe width or generation that falls under load against what the link had before, or stands below its maximum and peers."""
    import numpy as np

    found: dict[int, Event] = {}
    for name, best in (
        ("DCGM_FI_DEV_PCIE_LINK_WIDTH", "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH"),
        ("DCGM_FI_DEV_PCIE_LINK_GEN", "DCGM_FI_DEV_PCIE_MAX_LINK_GEN"),
    ):
        table = grid.table(name)
        if table is None:
            continue
        loaded = np.where(_busy(grid, table), table.values, np.nan)
        high = np.fmax.accumulate(loaded, axis=1)
        fell = sustained((loaded < high) | np.isnan(loaded), 2) & (loaded < high)
        column = first_true(fell)
        typical = quantile(loaded, 0.5)
        seen = np.isfinite(typical)
        models = np.array([grid.entities[number].model for number in table.rows])
        limit = grid.matrix(best, table.rows)
        kinds = {model: typical[(models == model) & seen] for model in set(models)}
        middles = {model: float(np.median(peers)) if len(peers) else float("nan") for model, peers in kinds.items()}
        for row in np.flatnonzero(seen & ((column >= 0) | (typical < np.array([middles[model] for model in models])))):
            number = table.rows[row]
            peers, usual = kinds[models[row]], middles[models[row]]
            top = np.nanmax(limit[row]) if np.isfinite(limit[row]).any() else usual
            data: dict[str, float | None]
            if column[row] >= 0:
                after, before = float(loaded[row, column[row]]), float(high[row, column[row]])
                data = {"before": before, "after": after, "peers": usual, "standing": False}
                role, at = None, int(column[row])
            elif len(peers) >= 4 and typical[row] < usual and typical[row] < top and (peers >= usual).mean() > 0.8:
                data = {"before": None, "after": float(typical[row]), "peers": usual, "standing": True}
                role, at = "context", int(first_true(np.isfinite(loaded[row : row + 1]))[0])
            else:
                continue
            if number in found:
                found[number].data.setdefault("also", {})[name] = data["after"]
                continue
            event = grid.event("metric-pcie-link-degraded", number, name, at, data=data)
            event.role = role
            if role:
                event.weight = 0.3
            found[number] = event
    yield from found.values()


def _fabric(grid: Grid) -> Iterator[Event]:
    """
    Fabric state of the GPU: 3 is success, 0 not supported; anything else is a GPU that cannot use NVLink through the switches.

    A level is enough here, whatever its age: a GPU in such a state fails every CUDA initialisation (error 802) until repaired.
    """
    import numpy as np

    table = grid.table("DCGM_FI_DEV_FABRIC_MANAGER_STATUS")
    if table is not None:
        filled = fill_forward(table.values)
        bad = (filled > 0) & (filled != 3)
        for node, rows in _by_node(grid, table, bad).items():
            row = rows[0]
            column = int(first_true(bad[row : row + 1])[0])
            good_before = column > 0 and bool((filled[row, :column] == 3).any())
            event = grid.event("metric-fabric-not-ready", table.rows[row], table.field, column)
            recovered = int(last_true(bad[row : row + 1])[0]) < int(last_true(np.isfinite(table.values[row : row + 1]))[0])
            event.data |= {
                "after": float(filled[row, column]),
                "gpus": len(rows),
                "standing": not good_before,
                "recovered": recovered,
            }
            event.gpu = event.gpu if len(rows) == 1 else None
            event.node = node
            if recovered and not good_before:
                event.role, event.weight = "context", 0.2  # still starting at the beginning of the window, ready later
            yield event
    health = grid.table("DCGM_FI_DEV_FABRIC_HEALTH_MASK")
    if health is not None:
        filled = fill_forward(health.values)
        mask = np.where(np.isfinite(filled), filled, 0).astype(np.int64)
        bad = ((mask >> 8) & 15) >= 2  # incorrect configuration: 1 none
        for shift in (0, 2, 4, 6):  # 2-bit fields: 0 not supported, 1 fault, 2 no fault
            bad = bad | (((mask >> shift) & 3) == 1)
        for hit in np.flatnonzero(bad.any(axis=1)):
            at = int(bad[hit].argmax())
            event = grid.event("metric-fabric-unhealthy", health.rows[hit], health.field, at)
            event.data |= {"after": float(mask[hit, at]), "standing": at == 0 or not np.isfinite(filled[hit, :at]).any()}
            yield event


def _by_node(grid: Grid, table: Table, bad: Any) -> dict[str | None, list[int]]:
    nodes: dict[str | None, list[int]] = {}
    for row in bad.any(axis=1).nonzero()[0]:
        nodes.setdefault(grid.entities[table.rows[row]].node, []).append(int(row))
    return nodes
