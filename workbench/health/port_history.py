"""Turn two looks at the network ports into how long each was down altogether and how fast its error counters grow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.parse.rdma_ports import RdmaPort

__all__ = ["NAME", "WINDOW", "Growth", "down_spans", "growth", "next_state"]

NAME = "ports"  # of the state, see `workbench.health.history`
WINDOW = 86400.0  # seconds: a day of down times is kept
_BASE = 3600.0  # seconds after which the counters to compare with are taken anew: often enough to see a rate, seldom enough to see it grow
_LEAST = 600.0  # seconds that two looks must lie apart for a rate to mean something
_MOST = 500  # down times kept of a port: more would be a port that does nothing else

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Growth:
    """By how much a counter grew, and within how many seconds."""

    value: int
    seconds: float

    @property
    def an_hour(self) -> float:
        """Its rate; what was counted in less than an hour is taken for that of an hour."""
        return self.value / max(self.seconds / 3600, 1.0)


def _kept(before: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    ports = before.get("ports") if before else None
    kept = ports.get(name) if isinstance(ports, Mapping) else None
    return kept if isinstance(kept, Mapping) else {}


def down_spans(before: Mapping[str, Any] | None, port: RdmaPort, *, now: float) -> list[Span]:
    """
    Return when a port was down, as (begin, end) in seconds since the epoch, within the last day.

    Parameters
    ----------
    before : mapping or None
        What `next_state` gave at an earlier look.
    port : RdmaPort
        As it is now. One that is down was so from the first look that saw it down until now; one that is up until the last that did.
    now : float
        Seconds since the epoch.
    """
    kept = _kept(before, port.name)
    rows = [row for row in kept.get("down") or () if isinstance(row, (list, tuple)) and len(row) == 2]
    # one that is up again came back at some time after the last look that saw it down: only what was seen counts
    last = kept.get("down_seen") if port.active else now
    rows += [(kept.get("down_since"), last)] if kept.get("down_since") is not None else []
    told = [(row[0], row[1]) for row in rows if isinstance(row[0], (int, float)) and isinstance(row[1], (int, float))]
    spans = [(max(float(begin), now - WINDOW), float(end)) for begin, end in told if end > max(begin, now - WINDOW)]
    return spans[-_MOST:]


def growth(
    before: Mapping[str, Any] | None, port: RdmaPort, counter: str, *, boot_id: str, uptime: float | None, now: float
) -> Growth | None:
    """
    Return how a counter grew since the look that is kept, else since boot; None when neither can be told.

    A counter that shrank was set back, and one of another boot began anew: then only its value since boot counts.
    """
    value = port.counters.get(counter)
    if value is None:
        return None
    base = _kept(before, port.name).get("base")
    if isinstance(base, Mapping) and before and before.get("boot_id") == boot_id and boot_id:
        earlier, at = (base.get("counters") or {}).get(counter), base.get("time")
        if isinstance(earlier, int) and isinstance(at, (int, float)) and earlier <= value and now - at >= _LEAST:
            return Growth(value - earlier, now - at)
    return Growth(value, uptime) if uptime is not None else None


def next_state(before: Mapping[str, Any] | None, ports: Iterable[RdmaPort], *, boot_id: str, now: float) -> dict[str, Any]:
    """
    Return what `workbench.health.history.remember` keeps until the next look.

    A reboot takes ports down that are not at fault: what began before it is forgotten.
    """
    same = bool(before) and before is not None and before.get("boot_id") == boot_id
    rows: dict[str, Any] = {}
    for port in ports:
        kept = _kept(before, port.name) if same else {}
        spans = [list(span) for span in down_spans(before, port, now=now)] if same else []
        row: dict[str, Any] = {"state": port.state}
        if port.state and not port.active:
            row["down_since"], row["down_seen"] = kept.get("down_since", now), now
            spans = [span for span in spans if span[1] < now]  # what goes on is no span yet
        row["down"] = spans
        base = kept.get("base")
        fresh = isinstance(base, Mapping) and isinstance(base.get("time"), (int, float)) and now - base["time"] < _BASE
        row["base"] = base if fresh else {"time": now, "counters": dict(port.counters)}
        rows[port.name] = row
    return {"boot_id": boot_id, "time": now, "ports": rows}
