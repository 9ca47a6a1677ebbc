"""Turn node-exporter series (InfiniBand and network ports, memory, disk, clocks, boot time) into events at their onset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from workbench.detect.grid import Grid, Table
from workbench.detect.steps import fill_forward, first_true, increases, outliers, sustained
from workbench.model import Event

__all__ = ["host_events"]

# A port's error counters: a healthy port has none for days; single ones come from cable handling and retraining at boot.
PORT_ERROR_FLOOR = 5
RATE_DROP = 0.9  # of the port's own best rate; link speeds differ by a factor of two or more
SAME_MINUTE = 90.0  # seconds: two scrape intervals of node-exporter; what falls within it may be one event
MEMORY_LOW = 0.03  # of the total: the kernel's reclaim thrashes below a few percent
DISK_LOW = 0.01
CLOCK_OFFSET = 1.0  # seconds; NTP keeps milliseconds
DROP_RATE = 100.0  # packets a minute; a few drops are normal under load

_PORT_ERRORS = (
    "node_infiniband_symbol_error_total",
    "node_infiniband_link_error_recovery_total",
    "node_infiniband_port_errors_received_total",
    "node_infiniband_port_receive_errors_total",
    "node_infiniband_port_rcv_errors_total",
    "node_infiniband_local_link_integrity_errors_total",
    "node_infiniband_port_receive_remote_physical_errors_total",
    "node_network_receive_errs_total",
    "node_network_transmit_errs_total",
    "node_network_receive_frame_total",
)


def host_events(grid: Grid) -> Iterator[Event]:
    """Yield the events of every host field in the grid."""
    yield from _rate(grid)
    yield from _state(grid)
    yield from _downed(grid)
    yield from _port_errors(grid)
    yield from _drops(grid)
    yield from _memory(grid)
    yield from _disk(grid)
    yield from _growth(grid, "node_vmstat_oom_kill", "metric-oom-kill")
    yield from _growth(grid, "node_edac_correctable_errors_total", "metric-edac-corrected")
    yield from _growth(grid, "node_edac_uncorrectable_errors_total", "metric-edac-uncorrected")
    yield from _boot(grid)
    yield from _clock(grid)


def _rate(grid: Grid) -> Iterator[Event]:
    """A port whose rate falls against its own past, or stands below that of all ports of its kind."""
    import numpy as np

    for name in ("node_infiniband_rate_bytes_per_second", "node_network_speed_bytes"):
        table = grid.table(name)
        if table is None:
            continue
        values = np.where(table.values > 0, table.values, np.nan)  # 0 and -1: down, or unknown
        filled = fill_forward(values)
        best = np.fmax.accumulate(filled, axis=1)
        low = sustained(filled < RATE_DROP * best, 2)
        column = first_true(low)
        for row in np.flatnonzero(column >= 0):
            at = int(column[row])
            event = grid.event("metric-port-rate-drop", table.rows[row], name, at)
            before, after = float(best[row, at]), float(filled[row, at])
            event.data |= {
                "before": before,
                "after": after,
                "ratio": round(after / before, 3),
                "same_minute_nodes": _company(grid, table, column, at),
            }
            yield event


def _state(grid: Grid) -> Iterator[Event]:
    """A port whose state leaves active (4) or whose physical state leaves LinkUp (5)."""
    import numpy as np

    for name, good in (
        ("node_infiniband_state_id", 4),
        ("node_infiniband_physical_state_id", 5),
        ("node_network_up", 1),
        ("node_network_carrier", 1),
    ):
        table = grid.table(name)
        if table is None:
            continue
        filled = fill_forward(table.values)
        was = np.logical_or.accumulate(filled == good, axis=1)
        bad = was & np.isfinite(filled) & (filled != good)
        column = first_true(bad)
        for row in np.flatnonzero(column >= 0):
            at = int(column[row])
            seconds = float(bad[row].sum() * grid.step)
            event = grid.event("metric-port-down", table.rows[row], name, at)
            event.data |= {
                "before": good,
                "after": float(filled[row, at]),
                "seconds": seconds,
                "same_minute_nodes": _company(grid, table, column, at),
            }
            _common(event)
            yield event


def _downed(grid: Grid) -> Iterator[Event]:
    """The port's own count of link failures (or carrier losses) grew: a flap; how long it lasted is for the kernel log to say."""
    import numpy as np

    for name in ("node_infiniband_link_downed_total", "node_network_carrier_down_changes_total"):
        table = grid.table(name)
        if table is None:
            continue
        grown = increases(table.values)
        column = first_true(grown > 0)
        for row in np.flatnonzero(column >= 0):
            times = np.flatnonzero(grown[row] > 0)
            for at in times[:10]:
                number = table.rows[row]
                event = grid.event("metric-link-downed", number, name, int(at), count=int(grown[row, at]))
                event.data |= {
                    "growth": float(grown[row].sum()),
                    "times": len(times),
                    "same_minute_nodes": _company(
                        grid, table, np.where((grown[:, max(0, at - 1) : at + 2] > 0).any(axis=1), at, -1), int(at)
                    ),
                }
                if event.data["growth"] >= 3:
                    event.role, event.weight = "cause", 0.5  # a port that flaps again and again
                _common(event)
                yield event


def _company(grid: Grid, table: Table, column: Any, at: int) -> int:
    """Return on how many nodes the same kind of thing began within a minute: on many it is the fabric, not the port."""
    near = (column >= 0) & (abs(column - at) * grid.step <= SAME_MINUTE)
    return len({grid.entities[table.rows[row]].node for row in near.nonzero()[0]})


def _common(event: Event) -> None:
    if event.data["same_minute_nodes"] >= 3:  # ports of three nodes at once: their switch
        event.cls, event.role = "platform/network", "symptom"


def _port_errors(grid: Grid) -> Iterator[Event]:
    """Error counters of a port that grow while those of all other ports stand still: one event per port, with all that grew."""
    import numpy as np

    found: dict[int, Event] = {}
    for name in _PORT_ERRORS:
        table = grid.table(name)
        if table is None:
            continue
        grown = increases(table.values)
        total = grown.sum(axis=1)
        for row in np.flatnonzero((total >= PORT_ERROR_FLOOR) & outliers(total, PORT_ERROR_FLOOR - 1)):
            number, steps = table.rows[row], np.flatnonzero(grown[row] > 0)
            if (
                number in found
                and found[number].time is not None
                and grid.time(number, int(steps[0])) >= (found[number].time or 0) - grid.step
            ):
                found[number].data["also"][name] = float(total[row])
                continue
            event = grid.event("metric-port-errors-growth", number, name, int(steps[0]))
            event.data |= {
                "growth": float(total[row]),
                "peers": float(np.median(total)),
                "grown_ports": int((total > 0).sum()),
                "also": {
                    **(
                        found[number].data["also"] | {found[number].data["field"]: found[number].data["growth"]}
                        if number in found
                        else {}
                    )
                },
            }
            event.last = grid.time(number, int(steps[-1]))
            found[number] = event
    yield from found.values()


def _drops(grid: Grid) -> Iterator[Event]:
    import numpy as np

    for name in ("node_network_receive_drop_total", "node_network_transmit_drop_total"):
        table = grid.table(name)
        if table is None:
            continue
        grown = increases(table.values)
        total = grown.sum(axis=1)
        minutes = max(grid.columns * grid.step / 60.0, 1.0)
        for row in np.flatnonzero((total / minutes > DROP_RATE) & outliers(total, DROP_RATE)):
            event = grid.event("metric-network-drops", table.rows[row], name, int(first_true(grown[row : row + 1] > 0)[0]))
            event.data |= {"growth": float(total[row]), "peers": float(np.median(total))}
            yield event


def _memory(grid: Grid) -> Iterator[Event]:
    """Available host memory near zero; without a total, against the most that this node ever had available."""
    import numpy as np

    table = grid.table("node_memory_MemAvailable_bytes")
    if table is None:
        return
    filled = fill_forward(table.values, 3)
    total = grid.matrix("node_memory_MemTotal_bytes", table.rows)
    for row in range(len(filled)):
        known = filled[row][np.isfinite(filled[row])]
        if not len(known):
            continue
        limit = float(np.nanmax(total[row])) if np.isfinite(total[row]).any() else float(known.max())
        low = filled[row] < MEMORY_LOW * limit
        if limit <= 0 or not low.any():
            continue
        at = int(low.argmax())
        event = grid.event("metric-host-memory-exhausted", table.rows[row], table.field, at)
        falling = filled[row, : at + 1]
        start = int(np.nanargmax(falling)) if np.isfinite(falling).any() else 0
        event.data |= {
            "before": float(known[0]),
            "after": float(filled[row, at]),
            "total": limit,
            "falls_since": grid.time(table.rows[row], start),
        }
        yield event


def _disk(grid: Grid) -> Iterator[Event]:
    """A file system that fills up inside the window; one that was full all along is context."""
    import numpy as np

    table = grid.table("node_filesystem_avail_bytes") or grid.table("node_filesystem_free_bytes")
    if table is None:
        return
    filled = fill_forward(table.values)
    size = grid.matrix("node_filesystem_size_bytes", table.rows)
    for row in range(len(filled)):
        known = filled[row][np.isfinite(filled[row])]
        if not len(known):
            continue
        limit = float(np.nanmax(size[row])) if np.isfinite(size[row]).any() else float(known.max())
        low = filled[row] < DISK_LOW * limit
        if limit <= 0 or not low.any():
            continue
        at = int(low.argmax())
        event = grid.event("metric-filesystem-full", table.rows[row], table.field, at)
        mount = grid.entities[table.rows[row]].device or ""
        standing = bool(known[0] < DISK_LOW * limit)
        event.data |= {
            "before": float(known[0]),
            "after": float(filled[row, at]),
            "size": limit,
            "mountpoint": mount,
            "standing": standing,
        }
        if mount == "/dev/shm":
            event.cls = "platform/config"
        if standing:
            event.weight = 0.1
        yield event


def _growth(grid: Grid, name: str, signature: str) -> Iterator[Event]:
    import numpy as np

    table = grid.table(name)
    if table is None:
        return
    grown = increases(table.values)
    total = grown.sum(axis=1)
    for row in np.flatnonzero(total > 0):
        steps = np.flatnonzero(grown[row] > 0)
        event = grid.event(signature, table.rows[row], name, int(steps[0]))
        event.data |= {"growth": float(total[row]), "times": len(steps), "grown_rows": int((total > 0).sum())}
        event.last = grid.time(table.rows[row], int(steps[-1]))
        yield event


def _boot(grid: Grid) -> Iterator[Event]:
    """The node's boot time moved: it went down and came back between two samples."""
    import numpy as np

    table = grid.table("node_boot_time_seconds")
    if table is None:
        return
    filled = fill_forward(table.values)
    moved = np.zeros(filled.shape, dtype=bool)
    moved[:, 1:] = filled[:, 1:] - filled[:, :-1] > 30.0  # the kernel's estimate wanders by a second
    for row in np.flatnonzero(moved.any(axis=1)):
        at = int(moved[row].argmax())
        event = grid.event("metric-reboot", table.rows[row], table.field, at)
        event.data |= {"before": float(filled[row, at - 1]), "after": float(filled[row, at]), "boot": float(filled[row, at])}
        yield event


def _clock(grid: Grid) -> Iterator[Event]:
    import numpy as np

    table = grid.table("node_timex_offset_seconds")
    if table is None:
        return
    filled = fill_forward(table.values)
    far = np.abs(filled) > CLOCK_OFFSET
    for row in np.flatnonzero(far.any(axis=1)):
        at = int(far[row].argmax())
        event = grid.event("metric-clock-offset", table.rows[row], table.field, at)
        event.data |= {"after": float(filled[row, at]), "offset": float(np.nanmedian(filled[row]))}
        yield event
