"""Turn the rulings on a node's Xids into text: what was logged, which rule decided and why, and what other tools would do."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from workbench.catalog.xid_facts import xid_row
from workbench.health.xid_rulings import Ruling
from workbench.model import Event
from workbench.report.text import clean

__all__ = ["explained"]

# column of catalog/xid.csv → whose answer it is
_OTHERS = {
    "action_nvidia": "NVIDIA's catalog",
    "action_nvidia_investigatory": "NVIDIA, to find out",
    "action_nvsentinel": "NVSentinel",
    "action_gpud": "gpud",
    "action_gcm": "gcm",
    "action_aws": "AWS",
    "action_other": "others",
    "disagreement": "they disagree",
}


def _when(moment: float | None) -> str:
    return "at an unknown time" if moment is None else datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def explained(rulings: Sequence[Ruling], cleared: Sequence[Event], reach: str) -> str:
    """
    Return the explanation, worst ruling first.

    Parameters
    ----------
    rulings, cleared
        What `workbench.health.xid_rulings.rulings` returns.
    reach : str
        How far the log reaches, in words.
    """
    lines = [f"{len(rulings)} kinds of Xid count now, {len(cleared)} lines are history; {reach}"]
    for one in rulings:
        row, rule = xid_row(one.code), one.rule
        gpu = one.gpu
        where = "a GPU that is not named"
        if gpu is not None:
            where = " ".join(
                word for word in (f"GPU {gpu.index}" if gpu.index is not None else "GPU", gpu.pci or "", gpu.uuid or "") if word
            )
        instance = f", MIG instance {one.instance}" if one.instance else ""
        lines += [
            "",
            f"Xid {one.code} {row.get('mnemonic', '')} on {where}{instance}: {one.count} lines, the last {_when(one.last)}",
            f"  {row.get('summary') or 'no table knows this number'}",
            f"  decided   {rule.status}, action {rule.action}, class {one.cls or 'none'}",
            f"  why       {rule.why}",
            f"  rule      {rule.origin}: {rule.said}",
            f"  source    {rule.source or 'our own judgement'} ({rule.evidence}, {rule.date})",
        ]
        known = [f"remap {one.context.remap}", *sorted(one.context.environment)]
        known += [word for word in (one.context.architecture, one.context.driver and f"driver {one.context.driver}") if word]
        known += [f"{count} {what}" for what, count in one.context.counts.items() if count]
        lines.append(f"  known     {', '.join(known)}")
        lines += [f"  line      {event.text}" for event in one.events[-2:]]
        lines += [f"  {name:<20}{row[column]}" for column, name in _OTHERS.items() if row.get(column)]
    for event in cleared[-5:]:
        lines += ["", f"history: Xid {event.code} {_when(event.time)}: a boot, driver reload or reset came after it"]
    return "\n".join(clean(line) for line in lines) + "\n"
