"""
Turn what happened to nodes lately (incidents, findings, repairs that did not hold) into an order in which a person should look at them.

This is no statistic: it does not ask whether a node fails more often than chance would have it. It says who was blamed, for what, how
often and how long ago, so the score is read together with its reason, and nothing acts on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workbench.site.frames import frame
from workbench.site.model import SUSPECTS

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["NOTE", "suspects"]

NOTE = "an order to look in, made of recent incidents, findings and repairs; it does not test against chance"
WINDOW = 30 * 86400.0  # seconds in which something still counts
HALF = 7 * 86400.0  # seconds after which it counts half
# How much one occurrence adds to what is not yet suspected (1 - score). Chosen by us, so that one blamed incident of today outweighs a
# warning, and three weigh as much as is ever certain; recorded 2026-12, to be replaced by the fleet's own rates.
WEIGHTS: Mapping[str, float] = {"blamed": 0.45, "there": 0.12, "critical": 0.35, "warning": 0.12, "again": 0.15}
_LEAST = 0.05  # below it a node is as good as any
MOST = 64


def suspects(
    incidents: pd.DataFrame | None, findings: pd.DataFrame, actions: pd.DataFrame, now: float, *, most: int = MOST
) -> pd.DataFrame:
    """
    Return the nodes and GPUs that a person should look at, the most suspicious first.

    Parameters
    ----------
    incidents : DataFrame or None
        Columns of `workbench.site.model.INCIDENTS`. Those that blame the node or GPU count in full; that an incident merely happened
        there counts little; what was the user's or the platform's own doing does not count at all.
    findings : DataFrame
        Columns of `FINDINGS`: what is wrong now.
    actions : DataFrame
        Columns of `ACTIONS`: a node that is repaired again within the window did not stay repaired.
    now : float
        Seconds since the epoch.
    most : int
        Rows at most.

    Returns
    -------
    DataFrame
        Columns of `SUSPECTS`.
    """
    seen: dict[tuple[str, int | None], dict[str, Any]] = {}

    def add(node: str, gpu: int | None, kind: str, when: float, words: str) -> None:
        age = max(0.0, now - when)
        if age > WINDOW:
            return
        one = seen.setdefault((node, gpu), {"rest": 1.0, "counts": {}, "incidents": 0, "last": 0.0})
        one["rest"] *= 1 - WEIGHTS[kind] * 0.5 ** (age / HALF)
        one["counts"][words] = one["counts"].get(words, 0) + 1
        one["incidents"] += kind in ("blamed", "there")
        one["last"] = max(one["last"], when)

    for row in _rows(incidents):
        if row["node"] is None or row["time"] is None or row["cause"] in ("user", "platform", "none"):
            continue
        blamed = row["at_fault"] in ("node", "gpu")
        gpu = row["gpu_index"] if row["at_fault"] == "gpu" else None
        add(
            row["node"],
            gpu,
            "blamed" if blamed else "there",
            row["time"],
            "blamed for an incident" if blamed else "had an incident",
        )
    for row in _rows(findings):
        if row["node"] is None or row["status"] not in ("critical", "warning"):
            continue
        when = row["time"] if row["time"] is not None else now
        add(row["node"], row["gpu_index"], row["status"], when, f"{row['status']} finding {row['code'] or row['check']}")
    repaired: dict[str, list[float]] = {}
    for row in _rows(actions):
        if (
            row["node"]
            and row["time"] is not None
            and row["status"] == "done"
            and row["verb"] in ("reboot", "reset-gpu", "replace")
        ):
            repaired.setdefault(row["node"], []).append(row["time"])
    for node, times in repaired.items():
        for when in sorted(times)[1:]:  # the first repair is none that did not hold
            add(node, None, "again", when, "repaired again")
    rows = [
        {
            "node": node,
            "gpu_index": gpu,
            "score": round(1 - one["rest"], 3),
            "why": ", ".join(f"{count} × {words}" if count > 1 else words for words, count in one["counts"].items()),
            "incidents": one["incidents"],
            "last": one["last"],
        }
        for (node, gpu), one in seen.items()
        if 1 - one["rest"] >= _LEAST
    ]
    rows.sort(key=lambda row: (-row["score"], row["node"], -1 if row["gpu_index"] is None else row["gpu_index"]))
    return frame(rows[:most], SUSPECTS)


def _rows(table: pd.DataFrame | None) -> list[dict[str, Any]]:
    """Return a frame's rows as plain values: times as seconds, what is missing as None."""
    import pandas as pd

    if table is None or not len(table):
        return []
    plain = table.astype("object").where(table.notna(), None).to_dict("records")
    return [
        {str(key): value.timestamp() if isinstance(value, pd.Timestamp) else value for key, value in row.items()} for row in plain
    ]
