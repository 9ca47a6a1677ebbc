"""
Turn the ledger's weekly counts into objectives: what `workbench.fleet.objectives` says of rows, as fast for ten million jobs as for ten.

Only whole weeks are counted, and of what the counts keep only week and cluster make groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.fleet.figures import NOT_TOLD, Figure, shares, week_names, week_of
from workbench.fleet.objectives import (
    COUNTED,
    INFRA,
    STARTED,
    known,
    known_starts,
    left_out,
    one_of_causes,
    success_definition,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["BY_CAUSE", "BY_START", "starts_of_counts", "success_of_counts"]

# by what `Ledger.totals` counts for each
BY_CAUSE = ("week", "cluster", "cause", "state")
BY_START = (*BY_CAUSE, "source", "told")
_WHOLE = "whole weeks only"


def success_of_counts(
    totals: Iterable[Mapping[str, Any]],
    *,
    since: float,
    until: float,
    by: Sequence[str] = (),
    infra: bool = False,
    counted: Sequence[str] = COUNTED,
    causes: bool = False,
    level: float = 0.95,
) -> list[Figure]:
    """
    Return what `job_success` returns, from the ledger's weekly counts of ends.

    Parameters
    ----------
    totals : iterable of mapping
        ``Ledger.totals(BY_CAUSE, since=…, until=…)``.
    since, until : float
        Window of those weeks, seconds since the epoch.
    by : sequence of str
        ``week`` and ``cluster``.
    infra, counted, causes, level
        As in `job_success`.

    Returns
    -------
    list of Figure
    """
    import pandas as pd

    known(by, ("week", "cluster"))
    rows = [dict(row) for row in totals if row.get("week") is not None]
    left: dict[str, int] = {}
    for row in rows:
        if row["state"] not in counted:
            name = row["state"] or "no state told"
            left[name] = left.get(name, 0) + int(row["count"])
    rows = [row for row in rows if row["state"] in counted]
    notes = (*left_out(*((number, f"jobs left out: {state}") for state, number in sorted(left.items()))), _WHOLE)
    frame = pd.DataFrame(rows, columns=[*BY_CAUSE, "count"])
    frame["cause"] = one_of_causes(frame["cause"])
    frame["all"] = frame["count"].astype("int64")
    good = frame["state"] == "completed"
    if infra:
        good |= ~frame["cause"].isin(INFRA)
        if unsure := int(frame.loc[(frame["state"] != "completed") & (frame["cause"] == "unknown"), "all"].sum()):
            notes += (f"{unsure} failures of unknown cause are not counted as infrastructure's",)
    frame["good"] = frame["all"].where(good, 0)
    name = "infrastructure job success" if infra else "job success"
    return _shares(frame, name, success_definition(infra, counted), notes, since, until, by, causes, level)


def starts_of_counts(
    totals: Iterable[Mapping[str, Any]],
    *,
    since: float,
    until: float,
    by: Sequence[str] = (),
    causes: bool = False,
    level: float = 0.95,
) -> list[Figure]:
    """
    Return what `job_starts` returns, from the ledger's weekly counts of starts.

    Parameters
    ----------
    totals : iterable of mapping
        ``Ledger.totals(BY_START, of="starts", since=…, until=…)``.
    since, until : float
        Window of those weeks, seconds since the epoch.
    by : sequence of str
        ``week`` and ``cluster``.
    causes, level
        As in `job_starts`.

    Returns
    -------
    list of Figure
    """
    import numpy as np
    import pandas as pd

    known(by, ("week", "cluster"))
    rows = [dict(row) for row in totals if row.get("week") is not None]
    frame = pd.DataFrame(rows, columns=[*BY_START, "count"])
    told = frame["told"].astype("int64").to_numpy() != 0
    number = frame["count"].astype("int64").to_numpy()
    decided, notes = known_starts(told, frame["state"], frame["source"], number)
    frame["cause"] = one_of_causes(frame["cause"])
    frame["all"], frame["good"] = number, np.where(told, number, 0)
    return _shares(frame[decided], "job-start success", STARTED, (*notes, _WHOLE), since, until, by, causes, level)


def _shares(
    frame: pd.DataFrame, name: str, definition: str, notes: tuple[str, ...], since: float, until: float, by: Sequence[str],
    causes: bool, level: float,
) -> list[Figure]:  # fmt: skip
    """Make figures of counts: `all`, `good`, cause, and week and cluster as totals tell them."""
    week = week_names(week_of((frame["week"].to_numpy(dtype=float) * 1e6).astype("int64")))
    frame = frame.assign(_unit=0, week=week, cluster=frame["cluster"].where(frame["cluster"] != "", NOT_TOLD))
    base = Figure(
        name, None, None, 0.0, "jobs", definition=definition, since=since, until=until, notes=notes, level=level
    )  # fmt: skip
    return shares(frame, base, by, counts=True, causes=causes)
