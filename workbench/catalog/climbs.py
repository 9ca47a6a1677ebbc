"""Turn what a fault asks for, and what was seen after it, into the heavier action that is left when the lighter one cannot help any more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from workbench.catalog import table
from workbench.model import Event

__all__ = ["Climb", "climbed"]


@dataclass(frozen=True, slots=True)
class Climb:
    """
    One row: an action, and what shows that it is too little.

    `fault` and `by` are beginnings of signatures, `fault` empty for any; `by` was seen from `from_s` to `to_s` seconds after the fault, on its
    GPU or on its node.
    """

    action: str
    fault: tuple[str, ...]
    by: tuple[str, ...]
    where: str
    from_s: float
    to_s: float
    to: str
    why: str

    def shows(self, fault: Event, other: Event) -> bool:
        """Whether one event after (or around) the fault is what this row speaks of."""
        if not other.signature.startswith(self.by) or (self.fault and not fault.signature.startswith(self.fault)):
            return False
        if fault.node is not None and other.node is not None and fault.node != other.node:
            return False
        if self.where == "gpu" and not (fault.gpu is not None and other.gpu is not None and fault.gpu.means(other.gpu)):
            return False
        if fault.data.get("boot", 0) != other.data.get("boot", 0) and fault.source == other.source:
            return False
        apart = _apart(fault, other)
        if apart is None:  # no clock: the order of one file tells, and an output of a tool shows what is now
            later = other.source != fault.source or other.order > fault.order
            return later if self.from_s >= 0.0 else not later
        return self.from_s <= apart <= self.to_s


def _apart(fault: Event, other: Event) -> float | None:
    if fault.time is not None and other.time is not None:
        return other.time - fault.time
    mine, theirs = fault.data.get("uptime"), other.data.get("uptime")
    return float(theirs) - float(mine) if mine is not None and theirs is not None else None


@lru_cache(maxsize=1)
def _climbs() -> tuple[Climb, ...]:
    return tuple(
        Climb(
            row["action"],
            tuple(filter(None, row["fault"].split("|"))),
            tuple(row["by"].split("|")),
            row["where"],
            float(row["from_s"]),
            float(row["to_s"]),
            row["to"],
            row["why"],
        )
        for row in table("climbs")
    )


def climbed(action: str, fault: Event, others: Iterable[Event]) -> Climb | None:
    """
    Return the first row of ``catalog/climbs.csv`` that says that an action is too little for a fault.

    Parameters
    ----------
    action : str
        What the fault by itself asks for.
    fault : Event
    others : iterable of Event
        What else was seen; events of other GPUs and nodes are passed over.

    Returns
    -------
    Climb or None
        Its `to` is the action that is left, its `why` the reason.
    """
    rows = [row for row in _climbs() if row.action == action]
    if not rows:
        return None
    return next((row for other in others if other is not fault for row in rows if row.shows(fault, other)), None)
