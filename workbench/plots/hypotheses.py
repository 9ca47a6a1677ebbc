"""Turn a verdict, and the rows of an inbox, into small bar charts: hypotheses side by side, failures by hour and by cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.plots.base import dress, empty, figure_of, keys, plain, time_hover
from workbench.plots.theme import FONT, theme

if TYPE_CHECKING:
    import pandas as pd
    from bokeh.plotting import figure

__all__ = ["CAUSES", "cause_counts", "causes_over_time", "hypotheses"]

CAUSES: tuple[str, ...] = ("hardware", "driver", "platform", "user", "unknown", "none")
MOST = 8  # hypotheses: the rest is together below one percent in all shipped incidents


def hypotheses(verdict: Mapping[str, Any], *, dark: bool = False, title: str = "Hypotheses") -> figure:
    """
    Return the confidence of each hypothesis of a verdict as bars, the best at the top, in the colours of their causes.

    Parameters
    ----------
    verdict : Mapping
        A verdict as JSON has it (``workbench.verdict/1``).
    """
    rows = _hypotheses(verdict)
    if not rows:
        return empty(
            title,
            "Nothing failed, so there is nothing to explain."
            if verdict.get("class") == "none"
            else "The verdict has no hypotheses.",
            dark=dark,
        )
    import pandas as pd
    from bokeh.core.properties import value

    frame = pd.DataFrame(rows).iloc[::-1]  # bars are drawn from the bottom up
    colours = theme(dark)
    made = _bars(
        frame, x="class", y="confidence", color="cause", horizontal=True, title=title, dark=dark, height=80 + 26 * len(frame),
        colours=colours.causes, hover=["why"],
    )  # fmt: skip
    made.x_range.update(start=0, end=1.06)  # room for the last number
    made.text(
        x=frame["confidence"], y=frame["class"], text=[percent(share) for share in frame["confidence"]], x_offset=6, name="shares",
        text_baseline="middle",
        text_color=colours.ink, text_font=value(FONT), text_font_size="11px",
    )  # fmt: skip
    made.xaxis.axis_label = "confidence"
    made.xaxis.formatter = _percent()
    made.yaxis.axis_label = None
    made.ygrid.visible = False
    return made


def causes_over_time(
    entries: Iterable[Any] | pd.DataFrame, *, dark: bool = False, height: int = 160, title: str = "Failures by hour", hours: int = 48,
    until: float | None = None,
) -> figure:  # fmt: skip
    """
    Return how many incidents there were in each hour, stacked by cause.

    Parameters
    ----------
    entries : iterable of Entry, or DataFrame
        Rows of the inbox: ``time`` (when it failed; when it came in, ``seen``, where that is not known) and ``cause``.
    hours : int
        How far back, at most; hours are those of UTC.
    until : float, optional
        Seconds since the epoch of the last hour; default that of the last incident.
    """
    seconds, causes = _entries(entries)
    if not len(seconds):
        return empty(title, "No incident has come in yet.", dark=dark)
    import pandas as pd
    from bokeh.models import BasicTicker, ColumnDataSource, HoverTool, Range1d

    last = int((until if until is not None else seconds.max()) // 3600)
    hour = (seconds // 3600).astype("int64")
    span = max(min(hours, last - int(hour.min()) + 1), 12)
    begin = last - span + 1
    inside = (hour >= begin) & (hour <= last)
    if not inside.any():
        return empty(title, f"No incident in the last {hours} hours.", dark=dark)
    counts = pd.crosstab(hour[inside], causes[inside]).reindex(range(begin, last + 1), fill_value=0)
    there = [cause for cause in CAUSES if cause in counts]
    colours = theme(dark).causes
    span_seconds = (begin * 3600.0, (last + 1) * 3600.0)
    made = figure_of(
        title, dark=dark, height=height, span=span_seconds, y_label="incidents", tools=False,
        x_range=Range1d(start=span_seconds[0] * 1e3, end=span_seconds[1] * 1e3),
    )  # fmt: skip
    source = ColumnDataSource(
        {"x": counts.index * 3.6e6 + 1.8e6, **{cause: counts[cause].to_numpy() for cause in there}}, name="hours"
    )
    drawn = made.vbar_stack(
        there, x="x", width=3.2e6, source=source, fill_color=[colours[cause] for cause in there], line_color=None
    )
    made.add_tools(
        HoverTool(
            renderers=drawn, visible=False, tooltips=[("", "$name: @$name"), ("hour around", "@x{utc}"), ("local", "@x{local}")],
            formatters={"@x": time_hover()},
        )
    )  # fmt: skip
    made.xgrid.visible = False
    made.y_range.start = 0
    made.yaxis.ticker = BasicTicker(min_interval=1, desired_num_ticks=4, num_minor_ticks=0)
    keys(made, {cause: colours[cause] for cause in there})
    return made


def cause_counts(entries: Iterable[Any] | pd.DataFrame, *, dark: bool = False, title: str = "Incidents by cause") -> figure:
    """Return how many incidents each cause has, as bars in the order of CAUSES; the parameters are those of `causes_over_time`."""
    seconds, causes = _entries(entries)
    if not len(seconds):
        return empty(title, "No incident has come in yet.", dark=dark)
    import pandas as pd

    names, counts = np.unique(causes, return_counts=True)
    known = dict(zip(names, counts, strict=True))
    frame = pd.DataFrame([{"cause": cause, "incidents": int(known[cause])} for cause in CAUSES if cause in known]).iloc[::-1]
    made = _bars(
        frame, x="cause", y="incidents", color="cause", horizontal=True, title=title, dark=dark, height=70 + 26 * len(frame),
        colours=theme(dark).causes, hover=[],
    )  # fmt: skip
    made.yaxis.axis_label = None
    made.xaxis.ticker.update(min_interval=1)
    made.x_range.update(start=0)
    made.ygrid.visible = False
    return made


def _hypotheses(verdict: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return class, cause, confidence and why not of what was concluded and of what was not, by falling confidence."""
    said = (
        [{"class": verdict.get("class"), "confidence": verdict.get("confidence"), "why_not": "the verdict"}]
        if verdict.get("class") not in (None, "none")
        else []
    )
    rows: dict[str, dict[str, Any]] = {}
    for one in [*said, *(verdict.get("hypotheses") or ())]:
        name = plain(one.get("class"), 60)
        if name and name not in rows and one.get("confidence") is not None:
            cause = name.split("/")[0]
            rows[name] = {
                "class": name,
                "cause": cause if cause in CAUSES else "unknown",
                "confidence": float(one["confidence"]),
                "why": plain(one.get("why_not"), 160) or "–",
            }
    first, *others = list(rows.values()) or [{}]
    return ([first] if first else []) + sorted(others, key=lambda row: -row["confidence"])[: MOST - 1]


def _entries(entries: Iterable[Any] | pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the time (seconds since the epoch) and the cause of each incident; those without any time are left out."""
    import pandas as pd

    rows: Iterable[Any] = [] if isinstance(entries, pd.DataFrame) else entries
    frame = (
        entries
        if isinstance(entries, pd.DataFrame)
        else pd.DataFrame([dict(one) if isinstance(one, Mapping) else asdict(one) for one in rows])
    )
    if not len(frame):
        return np.array([]), np.array([], object)

    def seconds(name: str) -> Any:
        if name not in frame:
            return np.full(len(frame), np.nan)
        if isinstance(frame[name].dtype, pd.DatetimeTZDtype) or pd.api.types.is_datetime64_dtype(frame[name]):
            stamps = pd.to_datetime(frame[name], utc=True)
            return ((stamps - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(1, "s")).to_numpy("float64")
        return pd.to_numeric(frame[name]).to_numpy("float64", na_value=np.nan)

    failed, seen = seconds("time"), seconds("seen")
    when = np.where(np.isfinite(failed), failed, seen)
    causes = frame["cause"].astype(object).to_numpy() if "cause" in frame else np.full(len(frame), "unknown", object)
    causes = np.array([cause if cause in CAUSES else "unknown" for cause in causes], object)
    known = np.isfinite(when)
    return when[known], causes[known]


def percent(share: float) -> str:
    """Return a confidence as text that never rounds to certainty or to nothing."""
    return "< 1 %" if 0 < share < 0.005 else "> 99 %" if 0.995 < share < 1 else f"{share:.0%}".replace("%", " %")


def _percent() -> Any:
    from bokeh.models import NumeralTickFormatter

    return NumeralTickFormatter(format="0%")


def _bars(
    frame: pd.DataFrame, *, x: str, y: str, color: str, horizontal: bool, title: str, dark: bool, height: int,
    colours: Mapping[str, str], hover: list[str],
) -> figure:  # fmt: skip
    """Return bars by hvPlot as a Bokeh figure in our look, each in the colour of its word."""
    import holoviews as hv
    import hvplot.pandas  # noqa: F401  # gives frames their .hvplot

    there = list(dict.fromkeys(frame[color]))
    plot = frame.hvplot.barh if horizontal else frame.hvplot.bar
    bars = plot(
        x=x,
        y=y,
        c=color,
        cmap={word: colours[word] for word in there},
        hover_cols=[color, *hover],
        legend=False,
        title=title,
        colorbar=False,
    )
    made = hv.render(bars.opts(default_tools=[], active_tools=[], line_alpha=0), backend="bokeh")
    return _finish(made, dark, height)


def _finish(made: figure, dark: bool, height: int) -> figure:
    made.toolbar_location = None
    made.width, made.height, made.sizing_mode = None, height, "stretch_width"
    made.title.text_font = FONT
    dress(made, dark)
    return made
