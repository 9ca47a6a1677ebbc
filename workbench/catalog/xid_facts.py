"""Turn one Xid, and the lines of the log that say more of it, into the words that the rules for Xids ask for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from workbench.catalog import signatures, table
from workbench.model import Event

__all__ = ["facts_of", "neighbours", "xid_row"]

_TOGETHER = 60.0  # seconds between the end of a link and the driver's word that its GPU is gone
# words of this module, in the order in which they are printed
_KEPT = ("caused_by", "action", "follow_up", "role", "engine", "contained", "reset", "fatal", "remediation", "unit", "link", "sm")


@lru_cache(maxsize=1)
def _rows() -> dict[int, dict[str, str]]:
    return {int(row["code"]): row for row in table("xid")}


def xid_row(code: int) -> dict[str, str]:
    """Return the row of the table of codes; empty for a number that it does not know."""
    return _rows().get(code, {})


def neighbours(events: Iterable[Event]) -> dict[tuple[str | None, str], list[Event]]:
    """
    Return by node and GPU the lines that say more of an Xid of that GPU.

    They are those of a GPU that did not come up again, of a link that vanished, and of a page that waits to be retired.
    """
    found: dict[tuple[str | None, str], list[Event]] = {}
    for event in events:
        if event.gpu is not None and (
            event.signature == "rm-init-failed"
            or event.data.get("surprise_down")
            or (event.code in (63, 64) and event.data.get("remediation"))
        ):
            found.setdefault((event.node, str(event.gpu.pci or event.gpu.uuid or event.gpu.index)), []).append(event)
    return found


def facts_of(event: Event, near: Sequence[Event] = (), others: Iterable[int] = ()) -> dict[str, str]:
    """
    Return what the rules of ``xid_rules.csv`` may ask of one Xid.

    Parameters
    ----------
    event : Event
        ``xid-N`` as `workbench.parse.xid` makes it.
    near : sequence of Event, optional
        What `neighbours` has for its node and GPU.
    others : iterable of int, optional
        Other codes on the GPU.

    Returns
    -------
    dict of str to str
        ``fatal``, ``action``, ``text``, ``with`` … of the line; ``restart`` = ``failed`` when the driver could not bring the GPU up
        afterwards; ``bus`` = ``surprise-down`` when the port above saw its link vanish; ``activates`` what puts a lost page away.
    """
    row = xid_row(event.code or 0)
    facts = {key.replace("_", "-"): _word(event.data[key]) for key in _KEPT if event.data.get(key) is not None}
    facts |= {
        "role": event.role or signatures()[event.signature].role,
        "text": event.text or str(event.data.get("detail") or ""),
        "with": "|".join(str(code) for code in others),
        "severity": row.get("severity", ""),
        "nvidia": row.get("action_nvidia", ""),
        "retired": "yes" if "unused" in row.get("affected_archs", "") else "no",
        "stands-for": "yes" if event.data.get("stands_for") else "no",
    }
    if event.data.get("reset") or event.data.get("drain_reset"):
        facts["reset"] = "yes"
    if event.data.get("bits"):
        facts["bits"] = "|".join(kind for kind, _ in event.data["bits"])
    return facts | _around(event, near)


def _around(event: Event, near: Sequence[Event]) -> dict[str, str]:
    facts = {}
    for one in near:
        if one.data.get("boot") != event.data.get("boot"):
            continue
        apart = event.time - one.time if one.time is not None and event.time is not None else 0.0
        if one.signature == "rm-init-failed" and (apart < 0.0 or (apart == 0.0 and one.order > event.order)):
            facts["restart"] = "failed"
        if one.data.get("surprise_down") and 0.0 <= apart <= _TOGETHER and (apart > 0.0 or one.order < event.order):
            facts["bus"] = "surprise-down"
        if one.code in (63, 64):
            facts["activates"] = str(one.data["remediation"])
    return facts


def _word(value: object) -> str:
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)
