"""
Turn the steps that each rank told (an `Activity`) into one picture: ranks × time, coloured by how far a rank is behind the median.

The bins of `LAGS` are unequal on purpose: a rank that stands still is thousands of steps behind, and must not hide one that is slow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.plots.base import empty, keys, note
from workbench.plots.pool import pool
from workbench.plots.rank_map import BORDER, HEIGHT, image_data, map_figure, mark_events, pixels, pooled_note
from workbench.plots.theme import theme

if TYPE_CHECKING:
    import pandas as pd
    from bokeh.plotting import figure

    from workbench.casefile.model import Activity

__all__ = ["LAGS", "lag_bins", "step_map", "step_map_data"]

# Steps behind the median from which a bin begins, and its word; what told no step is bin 0
LAGS: tuple[tuple[float, str], ...] = (
    (-np.inf, "in step"),  # or one behind: logs are not written all at the same moment
    (2.0, "2–4"),
    (5.0, "5–19"),
    (20.0, "20–99"),
    (100.0, "100–999"),
    (1000.0, "1,000 and more"),
)
WORDS: tuple[str, ...] = ("no step told", *(word for _, word in LAGS))


def lag_bins(activity: Activity) -> np.ndarray:
    """
    Return how far each rank is behind the median of all ranks at that time.

    Returns
    -------
    ndarray of uint8, shape (n, m)
        Index into `WORDS`: 0 told no step yet, 1 in step or ahead, then the bins of `LAGS`. Compute it once and give it to
        `step_map` and `step_map_data`: of 16,384 ranks it takes a tenth of a second.
    """
    if activity.steps is None:
        return np.zeros(activity.states.shape, "uint8")
    steps = activity.steps
    bins = np.zeros(steps.shape, "uint8")
    borders = np.array([border for border, _ in LAGS[1:]], "float32") - 0.5  # half a step: the median may lie between two
    for column in range(steps.shape[1]):
        told = np.ascontiguousarray(steps[:, column])
        known = ~np.isnan(told)
        if known.any():
            lag = np.float32(np.median(told[known])) - told
            bins[:, column] = np.where(known, np.searchsorted(borders, lag, "right") + 1, 0)
    return bins


def step_map(
    activity: Activity | None,
    ranks: pd.DataFrame | None = None,
    *,
    events: pd.DataFrame | None = None,
    dark: bool = False,
    height: int = HEIGHT,
    title: str = "Steps behind the median",
    bins: np.ndarray | None = None,
) -> figure:
    """
    Return the map of ranks × time, coloured by steps behind the median, as a Bokeh figure.

    Parameters
    ----------
    activity : Activity or None
        None, or one whose `steps` is None, gives a figure that says so.
    ranks : DataFrame, optional
        Columns of `workbench.casefile.model.RANKS`; names nodes and GPUs.
    events : DataFrame, optional
        `CaseFile.events`: those that are evidence are marked, as on the map of states.
    bins : ndarray, optional
        What `lag_bins` returned, to save its time.

    Returns
    -------
    figure
        With the same models by name as that of `workbench.plots.rank_map.rank_map` (``map``, ``tapped``).
    """
    if activity is None or activity.steps is None or not len(activity.ranks) or np.isnan(activity.steps).all():
        return empty(title, "No log line tells of a training step, so progress cannot be compared.", dark=dark)
    bins = lag_bins(activity) if bins is None else bins
    colours = theme(dark)
    made = map_figure(
        activity, ranks, step_map_data(activity, rows=pixels(height), bins=bins), title=title, dark=dark, height=height,
        palette=list(colours.lag), words=list(WORDS), told="behind",
    )  # fmt: skip
    there = [code for code in range(len(WORDS)) if bool((bins == code).any())]
    keys(made, {WORDS[code]: colours.lag[code] for code in reversed(there)})
    note(made, pooled_note(len(activity.ranks), pixels(height)), dark)
    if events is not None:
        mark_events(made, activity, ranks, events, dark)
    return made


def step_map_data(
    activity: Activity,
    rank_range: tuple[float, float] | None = None,
    time_range: tuple[float, float] | None = None,
    *,
    rows: int = HEIGHT - BORDER,
    columns: int = 600,
    bins: np.ndarray | None = None,
) -> dict[str, Any]:
    """Return the data of the image for a range; the parameters are those of `workbench.plots.rank_map.rank_map_data`, and `bins`."""
    bins = lag_bins(activity) if bins is None else bins
    return image_data(pool(bins, activity.edges, rows=rows, columns=columns, row_range=rank_range, time_range=time_range))
