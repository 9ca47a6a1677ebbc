"""Turn the fleet's account into Prometheus's text format: counters of ended jobs, starts and node time, from which rules make objectives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.exposition import exposition
from workbench.fleet.figures import CAUSES, instant
from workbench.fleet.objectives import decided_starts, node_seconds
from workbench.fleet.tables import JOB_STATES, NODE_STATES

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PREFIX", "fleet_metrics"]

PREFIX = "workbench_fleet_"
_OVER = tuple(state for state in JOB_STATES if state not in ("pending", "running"))


def fleet_metrics(jobs: pd.DataFrame, node_states: pd.DataFrame, *, now: Any) -> str:
    """
    Return the metrics ``workbench_fleet_…``, for node-exporter's textfile collector or a page.

    Every combination of state and cause is there from the beginning, as 0 if none was seen: a counter that appears with its first failure
    would hide that failure from ``increase``. A record that is corrected later can make a counter go down, which Prometheus takes as a restart.

    Parameters
    ----------
    jobs, node_states : pandas.DataFrame
        As in `workbench.fleet.tables`, from the beginning of the account: counters never lose what they counted.
    now : time
        Seconds since the epoch or anything that pandas takes for a time.

    Returns
    -------
    str
        ``jobs_ended_total{state,cause}``, ``job_starts_total{outcome}``, ``node_seconds_total{state,cause}``, ``jobs_open``.
    """
    state = jobs["state"].astype("object")
    cause = jobs["cause"].astype("object").where(jobs["cause"].isin(list(CAUSES)), "unknown")
    ended = jobs["ended"].notna()
    rows: list[tuple[str, str, str, float | int | None]] = []
    for name in _OVER:
        mine = ended & (state == name)
        parts = {"": mine} if name == "completed" else {one: mine & (cause == one) for one in CAUSES}
        rows += [
            ("jobs_ended_total", "counter", f'{{state="{name}",cause="{one}"}}', int(part.sum())) for one, part in parts.items()
        ]
    given, _ = decided_starts(jobs)
    reached = int(given["first_step"].notna().sum())
    rows.append(("job_starts_total", "counter", '{outcome="reached"}', reached))
    rows.append(("job_starts_total", "counter", '{outcome="not-reached"}', len(given) - reached))
    rows.append(("jobs_open", "gauge", "", int((~ended & state.isin(["pending", "running"])).sum())))
    seconds = node_seconds(node_states, until=instant(now))
    for name in NODE_STATES:
        # whole seconds: floats are printed with six digits, too few for a year of node-seconds
        rows += [
            ("node_seconds_total", "counter", f'{{state="{name}",cause="{one}"}}', round(seconds.get((name, one), 0) / 1e6))
            for one in (("",) if name == "usable" else CAUSES)
        ]
    return exposition(PREFIX, rows)
