"""
Turn the fleet's jobs and node states into objectives: availability, job-start success, job success, each by cause and group.

A job that runs or waits is undecided, and counted nowhere; how many there are is said. What nobody told is in no denominator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from workbench.fleet.figures import CAUSES, NEVER, NOT_TOLD, Figure, instant, micros, shares, size_of, week_names, week_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "COUNTED",
    "DIMENSIONS",
    "INFRA",
    "TELLS_STARTS",
    "Figure",
    "availability",
    "job_starts",
    "job_success",
    "units_of_jobs",
]

DIMENSIONS = ("week", "cluster", "team", "pool", "sku", "size")
# Philly and Helios report cancelled jobs apart from failures, RSC also the preempted ones: a person or a scheduler ended them, nothing failed
COUNTED = ("completed", "failed", "timeout")
INFRA = ("hardware", "driver", "platform")
# A completed job made steps. A source that tells the first step of fewer of its completed jobs than this does not tell it reliably, and its
# silence about a failed job is no evidence that no step was made. Ours: nine of ten leaves room for jobs that make no steps at all
TELLS_STARTS = 0.9
STARTED = "jobs with a first step / jobs given an allocation in the window"
_HOUR = 3_600_000_000


def availability(
    node_states: pd.DataFrame,
    *,
    since: Any,
    until: Any,
    by: Sequence[str] = (),
    planned: Literal["out", "in"] = "out",
    weight: Literal["nodes", "gpus"] = "nodes",
    causes: bool = False,
    level: float = 0.95,
) -> list[Figure]:
    """
    Return usable node-time over all node-time that was told.

    Parameters
    ----------
    node_states : pandas.DataFrame
        As in `workbench.fleet.tables`. A stretch without an end lasts until the node's next stretch or `until`; a stretch that runs into
        the next one ends there. Between stretches nothing is known of the node, and nothing counted.
    since, until : time
        Window; seconds since the epoch or anything that pandas takes for a time.
    by : sequence of str
        Of `DIMENSIONS`, without team and size: a node has none. Stretches are cut where weeks change.
    planned : {"out", "in"}
        Planned maintenance is out of the denominator, or in it as time in which the node was not usable.
    weight : {"nodes", "gpus"}
        Node-hours, or GPU-hours; nodes whose number of GPUs was not told are then left out, and the figure says how many.
    causes : bool
        Add what each cause took.
    level : float
        Confidence of the bounds.

    Returns
    -------
    list of Figure
        Nodes are the clusters of the bounds: hours of one node are not independent of each other, nodes are taken as such. Faults that
        take out many nodes at once (a switch, a bad image) make the truth less certain than the bounds.

    Raises
    ------
    ValueError
        If a dimension is none of a node.
    """
    known(by, ("week", "cluster", "pool", "sku"))
    start, stop = instant(since), instant(until)
    definition = f"{'GPU' if weight == 'gpus' else 'node'}-time in state usable / in any state; " + (
        "planned maintenance out of both" if planned == "out" else "planned maintenance counts as not usable"
    )
    frame = _stretches(node_states, start, stop)
    notes: tuple[str, ...] = ()
    if planned == "out":
        if left := int(frame.loc[frame["state"] == "maintenance", "all"].sum()):
            notes += (f"{left / _HOUR:.4g} node-hours of planned maintenance left out",)
        frame = frame[frame["state"] != "maintenance"]
    if "week" in by:
        frame = _cut_at_weeks(frame)
    if weight == "gpus":
        fit = frame["gpus"].notna()
        if missing := int(frame.loc[~fit, "_unit"].nunique()):
            notes += (f"{missing} nodes left out: their number of GPUs was not told",)
        frame = frame[fit]
        frame = frame.assign(all=frame["all"] * frame["gpus"].astype("int64"))
    frame = frame.assign(good=frame["all"].where(frame["state"] == "usable", 0))
    for name in set(by) - {"week"}:
        frame[name] = frame[name].astype("object").where(frame[name].notna() & (frame[name] != ""), NOT_TOLD)
    unit = "GPU-hours" if weight == "gpus" else "node-hours"
    base = Figure(
        "availability",
        None,
        None,
        0.0,
        unit,
        definition=definition,
        since=start / 1e6,
        until=stop / 1e6,
        notes=notes,
        level=level,
    )
    return shares(frame, base, by, scale=_HOUR, clusters="nodes", causes=causes)


def job_starts(
    jobs: pd.DataFrame,
    *,
    since: Any,
    until: Any,
    by: Sequence[str] = (),
    weight: Literal["jobs", "gpus"] = "jobs",
    causes: bool = False,
    level: float = 0.95,
) -> list[Figure]:
    """
    Return jobs of which a rank reached the first step, over jobs that were given an allocation in the window.

    Parameters
    ----------
    jobs : pandas.DataFrame
        As in `workbench.fleet.tables`.
    since, until : time
        Window in which the job was first given nodes.
    by : sequence of str
        Of `DIMENSIONS`.
    weight : {"jobs", "gpus"}
        One a job, or its GPUs.
    causes : bool
        Add what each cause took.
    level : float
        Confidence of the bounds.

    Returns
    -------
    list of Figure
        A job that has ended without a step failed to start; one that is still running without one is undecided. Jobs of a source that
        does not tell first steps reliably (`TELLS_STARTS`) are left out, and counted in the notes.

    Notes
    -----
    No paper gives the formula. Launch failures were 21.3 % of all failures of the L4 study, which counts them apart.
    """
    begin, stop = instant(since), instant(until)
    known(by, DIMENSIONS)
    counted, notes = decided_starts(_within(jobs, "started", begin, stop))
    units, more = units_of_jobs(counted, good=counted["first_step"].notna(), time="started", weight=weight, by=by)
    base = Figure(
        "job-start success",
        None,
        None,
        0.0,
        "jobs" if weight == "jobs" else "GPUs of jobs",
        definition=STARTED,
        since=begin / 1e6,
        until=stop / 1e6,
        notes=(*notes, *more),
        level=level,
    )
    return shares(units, base, by, counts=weight == "jobs", clusters="jobs", causes=causes)


def decided_starts(given: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Return those jobs of which it is known whether they reached a first step, and notes on the others."""
    given = given[micros(given["started"]) != NEVER]
    decided, notes = known_starts(given["first_step"].notna().to_numpy(dtype=bool), given["state"], given["source"])
    return given[decided], notes


def known_starts(told: Any, states: pd.Series[Any], sources: pd.Series[Any], number: Any = None) -> tuple[Any, tuple[str, ...]]:
    """
    Return of which jobs it is known whether they reached a first step, and notes on the others.

    Parameters
    ----------
    told : ndarray of bool
        Whether a first step is known.
    states, sources : pandas.Series
        How the jobs stand, and who told of them.
    number : ndarray of int, optional
        How many jobs each row stands for; default one.
    """
    import numpy as np

    number = np.ones(len(told), dtype=np.int64) if number is None else number
    done = (states == "completed").fillna(False).to_numpy(dtype=bool)
    over = states.isin(["completed", "failed", "timeout", "cancelled", "preempted"]).to_numpy(dtype=bool)
    named = sources.astype("object").fillna("").to_numpy()
    reliable = np.zeros(len(told), dtype=bool)
    for name in set(named):
        own = named == name
        finished = int(number[own & done].sum())
        if (own & told).any() and (not finished or int(number[own & done & told].sum()) / finished >= TELLS_STARTS):
            reliable |= own
    silent = ~told & ~reliable
    undecided = ~told & ~over & ~silent
    # a person or the scheduler took it away before it could: nothing failed
    taken = ~told & states.isin(["cancelled", "preempted"]).to_numpy(dtype=bool) & ~silent
    notes = left_out(
        (int(number[silent].sum()), "jobs left out: their source does not tell first steps"),
        (int(number[undecided].sum()), "jobs left out: running, no step yet"),
        (int(number[taken].sum()), "jobs left out: cancelled or preempted before a step"),
    )
    return ~silent & ~undecided & ~taken, notes


def job_success(
    jobs: pd.DataFrame,
    *,
    since: Any,
    until: Any,
    by: Sequence[str] = (),
    weight: Literal["jobs", "gpu-time"] = "jobs",
    infra: bool = False,
    counted: Sequence[str] = COUNTED,
    clustered_by: str = "",
    causes: bool = False,
    level: float = 0.95,
) -> list[Figure]:
    """
    Return completed jobs over jobs that ended in the window; with `infra`, jobs that no hardware, driver or platform ended.

    Parameters
    ----------
    jobs : pandas.DataFrame
        As in `workbench.fleet.tables`.
    since, until : time
        Window in which the job ended.
    by : sequence of str
        Of `DIMENSIONS`.
    weight : {"jobs", "gpu-time"}
        One a job, or its GPUs times the time from its first allocation to its end. Faults hit large jobs: RSC's infrastructure failures were
        0.2 % of its jobs and 18.7 % of their runtime.
    infra : bool
        A failure that a user caused is then no loss; one whose cause is unknown is none either, and the notes say what it would be otherwise.
    counted : sequence of str
        States in the denominator; the others are counted in the notes.
    clustered_by : str
        A column (``user``, ``team``) whose jobs are not independent of each other: bounds then rest on as many trials as their spread shows.
    causes : bool
        Add what each cause took.
    level : float
        Confidence of the bounds.

    Returns
    -------
    list of Figure

    Raises
    ------
    ValueError
        If a dimension is unknown.
    """
    begin, stop = instant(since), instant(until)
    known(by, DIMENSIONS)
    ended = _within(jobs, "ended", begin, stop)
    inside = ended[ended["state"].isin(list(counted))]
    outside = ended.loc[~ended["state"].isin(list(counted)), "state"].astype("object").fillna("no state told")
    notes = left_out(
        *((int(number), f"jobs left out: {state}") for state, number in sorted(outside.value_counts().items())),
        (_undecided(jobs, begin, stop), "jobs undecided: running or waiting"),
    )
    bad = inside["state"] != "completed"
    cause = one_of_causes(inside["cause"])
    if infra:
        unsure = int((bad & (cause == "unknown")).sum())
        if unsure:
            worst = 1 - float((bad & cause.isin([*INFRA, "unknown"])).sum()) / len(inside)
            notes += (
                f"{unsure} failures of unknown cause are not counted as infrastructure's; all of them counted: {worst:.4g}",
            )
        bad &= cause.isin(INFRA)
    units, more = units_of_jobs(inside, good=~bad, time="ended", weight=weight, by=by, cluster=clustered_by)
    definition = success_definition(infra, counted)
    name = "infrastructure job success" if infra else "job success"
    unit = "jobs" if weight == "jobs" else "GPU-hours of jobs"
    if weight == "gpu-time":
        definition += ", each by its GPUs × time from first allocation to end"
    base = Figure(
        name,
        None,
        None,
        0.0,
        unit,
        definition=definition,
        since=begin / 1e6,
        until=stop / 1e6,
        notes=(*notes, *more),
        level=level,
    )
    plain = weight == "jobs" and not clustered_by
    what = f"jobs in clusters of one {clustered_by}" if clustered_by else "jobs"
    return shares(units, base, by, scale=1.0 if weight == "jobs" else _HOUR, counts=plain, clusters=what, causes=causes)


def success_definition(infra: bool, counted: Sequence[str]) -> str:
    """Return in words what job success divides by what."""
    good = "jobs that no hardware, driver or platform failed" if infra else "completed jobs"
    return f"{good} / jobs that ended {', '.join(counted)}"


def units_of_jobs(
    jobs: pd.DataFrame, *, good: pd.Series[Any], time: str, weight: str = "jobs", by: Sequence[str] = (), cluster: str = ""
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """
    Return jobs as rows for `workbench.fleet.figures.shares`, and notes on what was left out for want of a weight.

    Parameters
    ----------
    jobs : pandas.DataFrame
        The jobs that count.
    good : pandas.Series of bool
        Which of them are good.
    time : str
        Column that puts a job in a week.
    weight : str
        ``jobs``, ``gpus`` or ``gpu-time``.
    by : sequence of str
        Dimensions to keep.
    cluster : str
        Column whose rows are not independent; default each job by itself.
    """
    import numpy as np
    import pandas as pd

    frame = jobs.assign(_good=good.astype(bool))
    notes: tuple[str, ...] = ()
    weights: Any
    if weight == "jobs":
        weights = np.ones(len(frame), dtype=np.int64)
    else:
        started, ended = micros(frame["started"]), micros(frame["ended"])
        # a job that ended without ever being given nodes took no GPU's time
        span = np.where((started == NEVER) | (ended == NEVER), 0, ended - started).clip(0)
        fit = frame["gpus"].notna().to_numpy(dtype=bool)
        if missing := int((~fit).sum()):
            notes = (f"{missing} jobs left out: their number of GPUs was not told",)
        frame, span = frame[fit], span[fit]
        number = frame["gpus"].astype("int64").to_numpy()
        weights = number if weight == "gpus" else number * span
    units = pd.DataFrame({"all": weights, "good": np.where(frame["_good"], weights, 0)}, index=frame.index)
    units["cause"] = one_of_causes(frame["cause"])
    units["_unit"] = frame[cluster].astype("object").fillna(NOT_TOLD) if cluster else np.arange(len(frame))
    for name in by:
        if name == "week":
            units[name] = week_names(week_of(micros(frame[time])))
        elif name == "size":
            units[name] = size_of(frame["gpus"])
        else:
            units[name] = frame[name].astype("object").where(frame[name].notna() & (frame[name] != ""), NOT_TOLD)
    return units, notes


def _stretches(states: pd.DataFrame, since: int, until: int) -> pd.DataFrame:
    """One row a stretch inside the window, ended where the node's next begins: begin and all (µs), _unit (the node), and what it says."""
    import numpy as np

    last = np.iinfo(np.int64).max
    frame = states.assign(begin=micros(states["begin"]), end=micros(states["end"]))
    frame["_unit"] = frame["cluster"].astype("object").fillna("") + "/" + frame["node"].astype("object").fillna("")
    frame = frame[frame["begin"] != NEVER].sort_values(["_unit", "begin"], kind="stable")
    begin, end, node = frame["begin"].to_numpy(), frame["end"].to_numpy(), frame["_unit"].to_numpy()
    following = np.full(len(frame), last)
    following[:-1] = np.where(node[1:] == node[:-1], begin[1:], last)
    end = np.minimum(np.where(end == NEVER, last, end), following)
    begin, end = np.maximum(begin, since), np.minimum(end, until)
    length = (end - begin).clip(0)
    found: pd.DataFrame = frame.assign(begin=begin, end=end, all=length, cause=one_of_causes(frame["cause"])).loc[length > 0]
    return found


def _cut_at_weeks(frame: pd.DataFrame) -> pd.DataFrame:
    """The same time, in pieces that lie in one week each."""
    import numpy as np

    begin, end = frame["begin"].to_numpy(), frame["end"].to_numpy()
    first, last = week_of(begin), week_of(end - 1)
    pieces = last - first + 1
    frame = frame.iloc[np.repeat(np.arange(len(frame)), pieces)]
    week = np.repeat(first, pieces) + np.arange(len(frame)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    monday = (week * 7 - 3) * 86_400_000_000
    begin, end = np.maximum(frame["begin"], monday), np.minimum(frame["end"], monday + 7 * 86_400_000_000)
    found: pd.DataFrame = frame.assign(begin=begin, end=end, all=end - begin, week=week_names(week))
    return found


def _within(jobs: pd.DataFrame, column: str, since: int, until: int) -> pd.DataFrame:
    moments = micros(jobs[column])
    found: pd.DataFrame = jobs[(moments >= since) & (moments < until) & (moments != NEVER)]
    return found


def _undecided(jobs: pd.DataFrame, since: int, until: int) -> int:
    """How many jobs the window knew and that had not ended when it did."""
    import numpy as np

    submitted, started, ended = (micros(jobs[name]) for name in ("submitted", "started", "ended"))
    known = np.where(submitted == NEVER, started, submitted)
    waiting = jobs["state"].isin(["pending", "running"]).to_numpy(dtype=bool)
    return int(((known != NEVER) & (known < until) & (((ended == NEVER) & waiting) | (ended >= until))).sum())


def one_of_causes(causes: pd.Series[Any]) -> pd.Series[Any]:
    """Return causes as `CAUSES` names them; what is none of them is unknown."""
    plain = causes.astype("object")
    return plain.where(plain.isin(CAUSES), "unknown")


def left_out(*counted: tuple[int, str]) -> tuple[str, ...]:
    """Return a note of each number of jobs that is not 0."""
    return tuple(f"{number} {text}" for number, text in counted if number)


def known(by: Sequence[str], allowed: Sequence[str]) -> None:
    """Refuse a dimension that an objective does not have."""
    if wrong := [name for name in by if name not in allowed]:
        raise ValueError(f"{', '.join(wrong)}: no dimension of this objective; it has {', '.join(allowed)}")


def node_seconds(states: pd.DataFrame, *, until: int, since: int = 0) -> dict[tuple[str, str], int]:
    """Return microseconds of node time by state and cause (no cause for usable time), between two moments in microseconds."""
    frame = _stretches(states, since, until)
    cause = frame["cause"].where(frame["state"] != "usable", "")
    sums = frame.groupby([frame["state"].astype("object"), cause])["all"].sum()
    found: dict[tuple[str, str], int] = {}
    for key, length in sums.items():
        state, one = cast("tuple[str, str]", key)
        found[str(state), str(one)] = int(length)
    return found
