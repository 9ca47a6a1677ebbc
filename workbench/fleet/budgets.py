"""
Turn an objective and what happened into its error budget: allowed, spent, left, and how fast it burns in several windows at once.

Windows and factors are those of the Site Reliability Workbook (Google, 2018, chapter 5, "Multiwindow, Multi-Burn-Rate Alerts") for 30 days, as
Sloth ships them (google-30d.yaml): a burn is told when it is seen over a long window, and over a short one, so that it is still going on.
A fleet has few events: two failed jobs of two are a burn of any size. So a burn counts only with at least `LEAST` bad events in the long window,
and if even the lower bound of their share burns the budget (the same chapter, "Low-Traffic Services and Error Budget Alerting").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workbench.fleet.figures import instant
from workbench.fleet.intervals import exact

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

__all__ = [
    "DEFAULTS",
    "LEAST",
    "WINDOWS",
    "Budget",
    "Burn",
    "Objective",
    "Window",
    "budget",
    "burns",
    "burns_of_fleet",
    "burns_of_nodes",
    "events_of_jobs",
]

# bad events in the long window below which no burn is told. Ours: with fewer, one broken node or one user's typo is all that can be seen
LEAST = 3


@dataclass(frozen=True, slots=True)
class Window:
    """One pair of windows: seconds, the factor above which both must burn, and who is told (``page`` or ``ticket``)."""

    long: float
    short: float
    factor: float
    severity: str
    long_name: str
    short_name: str


WINDOWS = (
    Window(3600, 300, 14.4, "page", "1h", "5m"),
    Window(21600, 1800, 6, "page", "6h", "30m"),
    Window(86400, 7200, 3, "ticket", "1d", "2h"),
    Window(259200, 21600, 1, "ticket", "3d", "6h"),
)


@dataclass(frozen=True, slots=True)
class Objective:
    """
    What share shall be good over a window.

    Attributes
    ----------
    name : str
        Its own name, such as ``job-success``.
    indicator : str
        What is counted: ``availability``, ``job-start``, ``job-success``, ``infra-job-success``; empty for one that is not ours (then it
        is kept, and cannot be computed here).
    target : float
        0 <= target < 1.
    days : float
        Length of the rolling window.
    description : str
    document : mapping
        The OpenSLO document that it came from, whole; empty if from none.
    position : int
        Which of the document's objectives it is.
    """

    name: str
    indicator: str
    target: float
    days: float = 30.0
    description: str = ""
    document: dict[str, Any] = field(default_factory=dict)
    position: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.target < 1:
            raise ValueError(f"{self.name}: a target is at least 0 and below 1, not {self.target}")
        if self.days <= 0:
            raise ValueError(f"{self.name}: a window has days")

    @property
    def allowed(self) -> float:
        """The share that may be bad."""
        return 1 - self.target


# where to begin; ours, from no study. A fleet's own history says what it can keep: RSC completed 60 % of its jobs (arXiv 2410.21680)
DEFAULTS = (
    Objective("availability", "availability", 0.97, description="Node-time usable, planned maintenance left out"),
    Objective("job-start", "job-start", 0.95, description="Jobs given an allocation that made a first step"),
    Objective(
        "infra-job-success", "infra-job-success", 0.95, description="Ended jobs that no hardware, driver or platform failed"
    ),
)


@dataclass(frozen=True, slots=True)
class Budget:
    """
    An error budget.

    Attributes
    ----------
    objective : Objective
    total, bad : float
        Events (or hours) in the window, and the bad ones.
    allowed, left : float or None
        Bad ones that the target allows, and those that are left (negative when overspent); None without events.
    share_left : float or None
        Of `allowed`; 1 when nothing is spent, below 0 when overspent.
    unit : str
    """

    objective: Objective
    total: float
    bad: float
    allowed: float | None
    left: float | None
    share_left: float | None
    unit: str = "events"


@dataclass(frozen=True, slots=True)
class Burn:
    """
    How fast a budget burns in one pair of windows.

    Attributes
    ----------
    window : Window
    long, short : float or None
        Burn rates: 1 spends the budget exactly over the objective's window. None without events.
    bad, total : float
        In the long window.
    state : str
        ``burning`` (tell `window.severity`); ``few``: above the factor, but too few events to know; ``quiet``; ``never``: the target allows so
        much that even all bad is below the factor; ``no data``.
    why : str
        In a sentence.
    """

    window: Window
    long: float | None
    short: float | None
    bad: float
    total: float
    state: str
    why: str


def budget(objective: Objective, total: float, good: float, unit: str = "events") -> Budget:
    """
    Return the error budget of a window.

    Parameters
    ----------
    objective : Objective
    total, good : float
        All events (or hours) of the window, and the good ones.
    unit : str
    """
    bad = total - good
    if total <= 0:
        return Budget(objective, 0.0, 0.0, None, None, None, unit)
    allowed = total * objective.allowed
    return Budget(objective, total, bad, allowed, allowed - bad, (allowed - bad) / allowed, unit)


def burns(
    events: pd.DataFrame,
    objective: Objective,
    *,
    now: Any,
    windows: Sequence[Window] = WINDOWS,
    least: int = LEAST,
    level: float = 0.95,
) -> list[Burn]:
    """
    Return how fast the budget burns.

    Parameters
    ----------
    events : pandas.DataFrame
        `time` (whole microseconds since the epoch), `good` (bool) and optionally `weight` (default 1).
    objective : Objective
    now : time
        End of all windows; what happens at `now` is in none.
    windows : sequence of Window
    least : int
        Bad events needed in the long window.
    level : float
        Confidence of the lower bound.

    Returns
    -------
    list of Burn
        One a window.
    """
    import numpy as np

    end = instant(now)
    time = events["time"].to_numpy(dtype=np.int64)
    good = events["good"].to_numpy(dtype=bool)
    weight = events["weight"].to_numpy(dtype=float) if "weight" in events else np.ones(len(events))

    def share(seconds: float) -> tuple[float | None, float, float, int, int]:
        inside: np.ndarray[Any, np.dtype[np.bool_]] = (time >= end - round(seconds * 1e6)) & (time < end)
        total, bad = float(weight[inside].sum()), float(weight[inside & ~good].sum())
        return (bad / total if total else None), bad, total, int((inside & ~good).sum()), int(inside.sum())

    found = []
    for window in windows:
        long, bad, total, bad_events, all_events = share(window.long)
        short = share(window.short)[0]
        fast, slow = (None if one is None else one / objective.allowed for one in (long, short))
        state, why = _judged(objective, window, (fast, slow), bad_events, all_events, least, level)
        found.append(Burn(window, fast, slow, bad, total, state, why))
    return found


def _judged(
    objective: Objective,
    window: Window,
    rates: tuple[float | None, float | None],
    bad: int,
    total: int,
    least: int,
    level: float,
) -> tuple[str, str]:
    if early := _early(objective, window, rates):
        return early
    said = f"{bad} of {total} in {window.long_name}: {rates[0]:.3g} times what the target allows"
    if bad < least:
        return "few", f"{said}; fewer than {least} bad ones can be one node or one typo"
    low = exact(bad, total, level).low
    if low <= objective.allowed:
        return "few", f"{said}; but {low:.1%} bad, the lower bound, is within the {objective.allowed:.1%} allowed"
    return "burning", said


def _early(objective: Objective, window: Window, rates: tuple[float | None, float | None]) -> tuple[str, str] | None:
    """Return state and why where the rates alone say it; None when both are above the factor."""
    if window.factor * objective.allowed >= 1:
        return "never", f"all bad is a burn of {1 / objective.allowed:.3g}, which is not above {window.factor:g}"
    long, short = rates
    if long is None:
        return "no data", f"nothing happened in {window.long_name}"
    if long <= window.factor or (short is not None and short <= window.factor):
        return "quiet", f"{window.long_name} burns at {long:.3g}" + (
            "" if short is None else f", {window.short_name} at {short:.3g}"
        )
    if short is None:
        return "quiet", f"{window.long_name} burns at {long:.3g}, and nothing happened in the last {window.short_name}"
    return None


def _unusable(node_states: pd.DataFrame, since: float, until: float) -> int:
    """Return how many nodes were down or held at some moment of a window."""
    from workbench.fleet.figures import NEVER, micros

    begin, end = micros(node_states["begin"]), micros(node_states["end"])
    inside = (begin < round(until * 1e6)) & ((end == NEVER) | (end > round(since * 1e6)))
    bad = node_states[inside & node_states["state"].isin(["down", "held"]).to_numpy(dtype=bool)]
    return len(bad[["cluster", "node"]].drop_duplicates())


def burns_of_nodes(
    node_states: pd.DataFrame,
    objective: Objective,
    *,
    now: Any,
    windows: Sequence[Window] = WINDOWS,
    least: int = LEAST,
) -> list[Burn]:
    """
    Return how fast the budget of availability burns: by node-time, whose bounds are those of `workbench.fleet.objectives.availability`.

    Parameters
    ----------
    node_states : pandas.DataFrame
        As in `workbench.fleet.tables`.
    objective : Objective
    now : time
        End of all windows.
    windows : sequence of Window
    least : int
        Nodes that must have been down or held in the long window.
    """
    from workbench.fleet.objectives import availability

    end = instant(now) / 1e6
    found = []
    for window in windows:
        long, short = (availability(node_states, since=end - seconds, until=end)[0] for seconds in (window.long, window.short))
        fast, slow = (None if one.value is None else (1 - one.value) / objective.allowed for one in (long, short))
        whole, good = long.denominator or 0.0, long.numerator or 0.0
        state, why = _early(objective, window, (fast, slow)) or ("burning", "")
        if state == "burning":
            why = f"{whole - good:,.4g} of {whole:,.4g} node-hours in {window.long_name}: {fast:.3g} times what the target allows"
            broken = _unusable(node_states, end - window.long, end)
            if broken < least:
                state, why = "few", f"{why}; fewer than {least} nodes, and one broken node is no trouble of the fleet"
            elif long.high is None:
                state, why = "few", f"{why}; of too few nodes to know"
            elif 1 - long.high <= objective.allowed:
                state, why = (
                    "few",
                    f"{why}; but {1 - long.high:.1%} bad, the lower bound, is within the {objective.allowed:.1%} allowed",
                )
        found.append(Burn(window, fast, slow, whole - good, whole, state, why))
    return found


def burns_of_fleet(
    objectives: Sequence[Objective], jobs: pd.DataFrame, node_states: pd.DataFrame, *, now: Any
) -> list[tuple[Objective, Burn]]:
    """Return the burns of all objectives that are ours, in their order: those of jobs by what ended or started, availability by node-time."""
    found = []
    for one in objectives:
        if one.indicator == "availability":
            found += [(one, burn) for burn in burns_of_nodes(node_states, one, now=now)]
        elif one.indicator:
            found += [(one, burn) for burn in burns(events_of_jobs(jobs, one.indicator), one, now=now)]
    return found


def events_of_jobs(jobs: pd.DataFrame, indicator: str) -> pd.DataFrame:
    """
    Return jobs as events: `time` (µs) and `good`, as the objective of that name counts them.

    Parameters
    ----------
    jobs : pandas.DataFrame
        As in `workbench.fleet.tables`.
    indicator : str
        ``job-success`` or ``infra-job-success`` (at the job's end), ``job-start`` (at its first allocation).

    Raises
    ------
    ValueError
        For another indicator.
    """
    import pandas as pd

    from workbench.fleet.figures import NEVER, micros
    from workbench.fleet.objectives import COUNTED, INFRA, decided_starts

    if indicator == "job-start":
        counted, _ = decided_starts(jobs)
        return pd.DataFrame({"time": micros(counted["started"]), "good": counted["first_step"].notna().to_numpy(dtype=bool)})
    if indicator not in ("job-success", "infra-job-success"):
        raise ValueError(f"{indicator}: jobs are events of job-success, infra-job-success and job-start")
    ended = micros(jobs["ended"])
    counted = jobs[jobs["state"].isin(list(COUNTED)) & (ended != NEVER)]
    good = counted["state"] == "completed"
    if indicator == "infra-job-success":
        good |= ~counted["cause"].astype("object").isin(INFRA)
    return pd.DataFrame({"time": micros(counted["ended"]), "good": good.to_numpy(dtype=bool)})
