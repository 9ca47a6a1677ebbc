"""
Turn the events of a case file into a timeline in lanes, from the thing blamed outwards: markers for evidence, bars for what lasted.

Thousands of events that are no evidence are pooled to one mark for each lane, role and piece of time; evidence is never pooled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.plots.base import empty, evidence_glyphs, figure_of, keys, mark, milliseconds, note, plain, time_hover
from workbench.plots.theme import ROLE_MARKERS, theme

if TYPE_CHECKING:
    import pandas as pd
    from bokeh.plotting import figure

__all__ = ["LANES", "on_tap", "timeline", "timeline_data"]

# The same words as `workbench.casefile.model.LANES`, which stands above this package (a test holds them together)
LANES: tuple[str, ...] = ("culprit", "node", "victims", "platform", "other")
SINGLE = 600  # events up to which each has its own mark
PIECES = 240  # of time, when they are pooled
COLUMNS = ("x", "x2", "y", "role", "number", "what", "text", "where", "count", "file", "line", "evidence", "lane", "size", "event")  # fmt: skip


def timeline(
    events: pd.DataFrame | None,
    *,
    dark: bool = False,
    height: int = 260,
    title: str = "Timeline",
    around: tuple[float, float] | None = None,
    zero: float | None = None,
) -> figure:
    """
    Return the timeline of an incident as a Bokeh figure.

    Parameters
    ----------
    events : DataFrame or None
        `CaseFile.events`: columns of `workbench.frames.EVENTS`, ``lane`` and ``evidence``. Events without a time are not drawn; the
        figure says how many.
    dark : bool
        The appearance.
    around : tuple of float, optional
        From and to at the start, in seconds since the epoch; default: the evidence with a margin.
    zero : float, optional
        The time of the first failure, in seconds since the epoch, which gets a line; default: the first evidence with role cause.

    Returns
    -------
    figure
        Its source ``events`` has the columns of `COLUMNS` (x in milliseconds since the epoch); see `on_tap`.
    """
    from bokeh.models import ColumnDataSource, HoverTool, Range1d, TapTool

    if events is None or not len(events):
        return empty(title, "No source told of an event. See what was asked and what answered, under coverage.", dark=dark)
    data, untimed = timeline_data(events)
    if not len(data["x"]):
        return empty(title, f"{untimed:,} events are known, but none of them with a time.", dark=dark)
    colours = theme(dark)
    begin, end = around or _around(data)
    lanes = [lane for lane in LANES if lane in set(data["lane"])]
    place = {lane: len(lanes) - 1 - number for number, lane in enumerate(lanes)}
    data["y"] = np.array([place[lane] for lane in data["lane"]], "float64") + data.pop("shift")
    made = figure_of(
        title, dark=dark, height=height, span=(begin, end),
        x_range=Range1d(start=begin * 1e3, end=end * 1e3), y_range=Range1d(start=-0.5, end=len(lanes) - 0.5),
    )  # fmt: skip
    for lane in lanes[1::2]:
        _stripe(made, place[lane], colours.page)
    made.yaxis.ticker = list(range(len(lanes)))
    made.yaxis.major_label_overrides = {place[lane]: lane for lane in lanes}
    made.ygrid.visible = False
    if "culprit" in place:
        _stripe(made, place["culprit"], colours.roles["cause"], alpha=0.08)
    if zero is None:
        causes = data["x"][(data["role"] == "cause") & (data["evidence"] >= 0)]
        zero = float(causes.min()) / 1e3 if len(causes) else None
    if zero is not None:
        mark(made, zero, dark, "first failure")
    source = ColumnDataSource(data, name="events")
    lasting = data["x2"] > data["x"]
    if lasting.any():
        from bokeh.models import BooleanFilter, CDSView
        from bokeh.transform import factor_cmap

        words = list(ROLE_MARKERS)
        made.hbar(
            y="y", left="x", right="x2", height=0.22, source=source, view=CDSView(filter=BooleanFilter(list(lasting))),
            fill_color=factor_cmap("role", [colours.roles[word] for word in words], words), fill_alpha=0.35, line_color=None, name="lasting",
        )  # fmt: skip
    drawn = evidence_glyphs(made, source, dark, size="size", near=((end - begin) * 1e3 * 0.018, 0.1))
    made.add_tools(
        HoverTool(
            renderers=[drawn], visible=False,
            tooltips=[
                ("", "@what"), ("role", "@role"), ("where", "@where"), ("time", "@x{utc}"), ("local", "@x{local}"), ("times", "@count{0,0}"),
                ("line", "@text"),
            ],
            formatters={"@x": time_hover()},
        ),
        TapTool(renderers=[drawn], visible=False),
    )  # fmt: skip
    drawn.nonselection_glyph = None
    there = set(data["role"])
    keys(made, {word: colours.roles[word] for word in ROLE_MARKERS if word in there}, marker=ROLE_MARKERS)
    note(made, _told(data, untimed, len(events), events.attrs.get("left_out")), dark)
    return made


def on_tap(made: figure, callback: Callable[[int], None]) -> None:
    """
    Call ``callback(event)`` with the place of an event in the frame when its mark is clicked; needs a live Python behind the page.

    Of marks that lie on one another it is the evidence, else the one on top; a pooled mark speaks of the first event in it.
    """
    source = made.select_one({"name": "events"})
    if source is None:  # an empty figure
        return

    def told(_attr: str, _old: Any, chosen: list[int]) -> None:
        if not chosen:
            return
        at = max(chosen, key=lambda one: (source.data["evidence"][one] >= 0, one))
        source.selected.indices = []  # so that the same mark may be clicked again
        callback(int(source.data["event"][at]))

    source.selected.on_change("indices", told)


def timeline_data(events: pd.DataFrame) -> tuple[dict[str, Any], int]:
    """Return what is drawn of events, in columns (``shift`` is the place within the lane), and how many have no time."""
    at = milliseconds(events["time"])
    timed = np.isfinite(at)
    frame = events[timed]
    evidence = frame["evidence"].fillna(-1).to_numpy("int64") if "evidence" in frame else np.full(len(frame), -1)
    role = frame["role"].fillna("context").to_numpy(object)
    role[~np.isin(role, list(ROLE_MARKERS))] = "context"
    lane = frame["lane"].fillna("other").to_numpy(object) if "lane" in frame else np.full(len(frame), "other", object)
    lane[~np.isin(lane, LANES)] = "other"
    x = at[timed]
    until = milliseconds(frame["last"])
    until = np.where(np.isfinite(until), np.maximum(until, x), x)
    count = frame["count"].fillna(1).to_numpy("int64")
    group = np.arange(len(frame))
    loose = evidence < 0
    if loose.sum() > SINGLE:
        # One mark for all loose events of a lane and role in a piece of time: the first of them speaks for it
        span = max(float(x.max() - x.min()), 1.0)
        piece = np.minimum(((x - x.min()) / span * PIECES).astype("int64"), PIECES - 1)
        key = (
            piece * 64
            + np.array([LANES.index(one) for one in lane]) * 8
            + np.array([list(ROLE_MARKERS).index(one) for one in role])
        )
        group = np.where(loose, key, -1 - np.arange(len(frame)))
    order = np.argsort(x, kind="stable")
    _, first, inverse = np.unique(group[order], return_index=True, return_inverse=True)
    total = np.bincount(inverse, weights=count[order]).astype("int64")
    members = np.bincount(inverse)
    last = np.zeros(len(first))
    np.maximum.at(last, inverse, until[order])
    chosen = order[first]
    single = members == 1
    shown = frame.iloc[chosen]
    data: dict[str, Any] = {
        "x": x[chosen],
        # a pooled mark stands for a piece of time, not for something that lasted
        "x2": np.where(single, last, x[chosen]),
        "role": role[chosen],
        "lane": lane[chosen],
        "number": np.array([str(one + 1) if one >= 0 else "" for one in evidence[chosen]], object),
        "evidence": evidence[chosen],
        "what": np.array(
            [
                plain(name, 60) if alone else f"{plain(name, 60)} and {more - 1:,} more"
                for name, alone, more in zip(shown["signature"].fillna(""), single, members, strict=True)
            ],
            object,
        ),
        "text": np.array([plain(text) for text in shown["text"].fillna("")], object),
        "where": np.array(_where(shown), object),
        "count": total,
        "file": np.array([plain(name, 200) for name in shown["file"].fillna("")], object),
        "line": shown["line"].fillna(-1).to_numpy("int64"),
        "size": np.where(evidence[chosen] >= 0, 13.0, np.clip(5.0 + 2.0 * np.log10(np.maximum(total, 1)), 5.0, 13.0)),
        "event": np.flatnonzero(timed)[chosen],
        "shift": np.where(evidence[chosen] >= 0, 0.1, -0.2),
    }
    # evidence is drawn last, so that nothing lies over it, and the cause over what else was seen at its moment
    over = (data["evidence"] >= 0).astype("int64") * (1 + (data["role"] == "cause"))
    late = np.argsort(over, kind="stable")
    return {name: column[late] for name, column in data.items()}, int((~timed).sum())


def _where(frame: pd.DataFrame) -> list[str]:
    places = []
    numbers = (frame[name].astype("Int64").fillna(-1).to_numpy("int64") for name in ("gpu_index", "rank"))
    for node, gpu, rank in zip(frame["node"], *numbers, strict=True):
        words = [plain(node, 60)] if isinstance(node, str) and node else []
        words += [f"GPU {gpu}"] if gpu >= 0 else []
        words += [f"rank {rank}"] if rank >= 0 else []
        places.append(" ".join(words) or "not told")
    return places


def _around(data: dict[str, Any]) -> tuple[float, float]:
    """Return from and to in seconds: the evidence (or everything, when there is none) with a margin."""
    shown = data["evidence"] >= 0
    if not shown.any():
        shown = np.ones(len(data["x"]), bool)
    begin, end = float(data["x"][shown].min()) / 1e3, float(data["x2"][shown].max()) / 1e3
    margin = max((end - begin) * 0.08, 5.0)
    return begin - margin, end + margin


def _stripe(made: figure, row: int, colour: str, alpha: float = 0.6) -> None:
    from bokeh.models import BoxAnnotation

    made.add_layout(
        BoxAnnotation(bottom=row - 0.5, top=row + 0.5, fill_color=colour, fill_alpha=alpha, line_color=None, level="image")
    )


def _told(data: dict[str, Any], untimed: int, known: int, left_out: Any) -> str:
    words = [f"{known:,} events"]
    if len(data["x"]) < known - untimed:
        words.append("close ones share a mark, evidence has its own")
    if untimed:
        words.append(f"{untimed:,} without a time are not drawn")
    if left_out:
        words.append(f"{left_out:,} that matter less are not in this case file" if isinstance(left_out, int) else str(left_out))
    return "; ".join(words)
