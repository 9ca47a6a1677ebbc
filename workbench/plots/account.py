"""
Turn the fleet's account into figures: where time went, objectives by week, failures by cause, lemons, what an assumption is worth, a game day.

Every figure says what its numbers are a part of; what nobody told is said in words and drawn nowhere. Game days are in
`workbench.plots.score_card`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.fleet.figures import CAUSES
from workbench.fleet.goodput import DENOMINATORS, MEANINGS
from workbench.plots.base import empty, figure_of, keys, note, plain
from workbench.plots.theme import FONT, theme

if TYPE_CHECKING:
    import pandas as pd
    from bokeh.plotting import figure

    from workbench.fleet.figures import Figure
    from workbench.fleet.goodput import Waterfall
    from workbench.fleet.lemons import Lemons

__all__ = ["failures_by_week", "lemons", "objective_weeks", "tornado", "waterfall"]

WEEK = 7 * 86_400_000.0  # milliseconds
NAMED = 12  # lemons whose names are written beside their marks
BARS = 14  # assumptions of a tornado; the rest moves the figure least, and is in the table


def waterfall(one: Waterfall | None, *, dark: bool = False, title: str = "Where time went") -> figure:
    """
    Return where time went: all of it at the top, each part taken off below it, what was productive at the bottom.

    Parameters
    ----------
    one : Waterfall or None
        From `workbench.fleet.goodput.waterfall`; its parts add up to 100 % exactly, also as printed.
    dark : bool
        The appearance.
    """
    if one is None or not one.total:
        return empty(title, "No attempt held a GPU in this window, or nobody told of one.", dark=dark)
    from bokeh.core.properties import value
    from bokeh.models import ColumnDataSource, HoverTool, NumeralTickFormatter
    from bokeh.transform import factor_cmap

    colours = theme(dark)
    percents = one.percents(2)
    lost = [kind for kind, part in one.parts.items() if part and kind != "step"]
    kinds = ["all", *lost, *(["step"] if one.parts.get("step") else [])]
    words = {"all": "all", "step": "productive", "unknown": "not told"}
    rows: dict[str, list[Any]] = {name: [] for name in ("y", "left", "right", "look", "share", "amount", "what", "of")}
    top = one.total
    for kind in kinds:
        part = one.total if kind == "all" else one.parts[kind]
        right = one.total if kind == "all" else top
        if kind != "all":
            top -= part
        rows["y"].append(words.get(kind, kind))
        rows["left"].append((right - part) / one.total)
        rows["right"].append(right / one.total)
        rows["look"].append(
            kind if kind in ("all", "unknown") else "productive" if kind == "step" else "lost",
        )
        rows["share"].append("100" if kind == "all" else "< 0.01" if part and percents[kind] == "0.00" else percents[kind])
        rows["amount"].append(f"{part / 3.6e9:,.1f} {one.unit}")
        rows["what"].append(DENOMINATORS[one.denominator] if kind == "all" else MEANINGS[kind])
        rows["of"].append(f"{one.total / 3.6e9:,.1f} {one.unit} of {one.jobs:,} jobs")
    made = figure_of(
        title, dark=dark, height=96 + 25 * len(kinds), tools=False, x_range=(0, 1.24), y_range=list(reversed(rows["y"]))
    )
    source = ColumnDataSource(
        {**rows, "text": [f"{share} %   {amount}" for share, amount in zip(rows["share"], rows["amount"], strict=True)]},
        name="waterfall",
    )
    looks = {"all": colours.band, "productive": colours.series[2], "lost": colours.series[3], "unknown": colours.soft}
    drawn = made.hbar(
        y="y", left="left", right="right", height=0.72, source=source, line_color=None, name="parts",
        fill_color=factor_cmap("look", list(looks.values()), list(looks)),
    )  # fmt: skip
    made.text(
        x="right", y="y", text="text", source=source, x_offset=8, text_baseline="middle", text_color=colours.ink,
        text_font=value(FONT), text_font_size="11px", name="shares",
    )  # fmt: skip
    made.add_tools(
        HoverTool(
            renderers=[drawn],
            visible=False,
            tooltips=[("", "@y: @what"), ("share", "@share %"), ("time", "@amount"), ("of", "@of")],
        )
    )
    made.xaxis.ticker = [0, 0.2, 0.4, 0.6, 0.8, 1]
    made.xaxis.formatter = NumeralTickFormatter(format="0%")
    made.xaxis.axis_label = f"share of {one.total / 3.6e9:,.0f} {one.unit}: {DENOMINATORS[one.denominator]}"
    made.ygrid.visible = False
    gone = [kind for kind, part in one.parts.items() if not part]
    note(made, "; ".join([*one.notes, *([f"no time in {', '.join(gone)}"] if gone else [])]), dark)
    return made


def objective_weeks(
    figures: Sequence[Figure],
    *,
    target: float | None = None,
    unfinished: float | None = None,
    dark: bool = False,
    height: int = 210,
    title: str = "",
) -> figure:
    """
    Return one objective by week: its value, its bounds, the target that it shall keep.

    Parameters
    ----------
    figures : sequence of Figure
        Of one name, by ``week``. A week without a figure, or without a denominator, is a gap.
    target : float, optional
        The share that shall be good.
    unfinished : float, optional
        When the week begins that still runs, seconds since the epoch: its mark is hollow.
    """
    known = [one for one in figures if one.value is not None]
    title = title or (figures[0].name if figures else "objective")
    if not known:
        return empty(title, "No week of this window has a denominator: nothing that counts was told.", dark=dark, height=height)
    from bokeh.models import ColumnDataSource, HoverTool, NumeralTickFormatter, Range1d, Span

    colours = theme(dark)
    rows = sorted(known, key=lambda one: dict(one.by)["week"])
    begin = np.array([np.datetime64(dict(one.by)["week"]) for one in rows]).astype("datetime64[ms]").astype("float64")
    values = np.array([float(one.value or 0.0) for one in rows])
    low = np.array([np.nan if one.low is None else one.low for one in rows])
    high = np.array([np.nan if one.high is None else one.high for one in rows])
    first, last = begin.min(), begin.max() + WEEK
    running = begin == (unfinished * 1e3 if unfinished is not None else -1.0)
    # the bounds of a week that has just begun are wide, and would press all others together
    floor = float(np.nanmin([*values, *low[~running], *([target] if target is not None else [])]))
    bottom = max(0.0, 1 - max(0.004, (1 - floor) * 1.15))
    made = figure_of(
        title, dark=dark, height=height, span=(first / 1e3, last / 1e3), tools=False,
        x_range=Range1d(start=first - 0.2 * WEEK, end=last + 0.2 * WEEK), y_range=Range1d(start=bottom, end=1 + (1 - bottom) * 0.06),
    )  # fmt: skip
    middle = begin + WEEK / 2
    source = ColumnDataSource(
        {
            "x": middle, "y": values, "low": low, "high": high, "week": [str(dict(one.by)["week"]) for one in rows],
            "shown": [_percent(one.value) for one in rows],
            "of": [f"{one.numerator:,.6g} of {one.denominator:,.6g} {one.unit}" for one in rows],
            "bounds": [
                "none: " + one.method if one.low is None or one.high is None else f"{_percent(one.low)} to {_percent(one.high)}" for one in rows
            ],
            "method": [plain(one.method) for one in rows], "fill": np.where(running, 0.0, 1.0),
        },
        name="weeks",
    )  # fmt: skip
    colour = colours.series[0]
    # a gap of a week is one of the line, too
    gaps = np.flatnonzero(np.diff(begin) > 1.5 * WEEK) + 1
    made.line(
        x=np.insert(middle, gaps, np.nan), y=np.insert(values, gaps, np.nan), line_color=colour, line_width=1.6, line_alpha=0.7
    )
    made.segment(
        x0="x", x1="x", y0="low", y1="high", source=source, line_color=colour, line_width=2, line_alpha=0.5, name="bounds"
    )
    for end in ("low", "high"):
        made.scatter(x="x", y=end, source=source, marker="dash", size=8, line_color=colour, line_alpha=0.6)
    made.scatter(x="x", y="y", source=source, size=8, fill_color=colours.card, line_color=colour, line_width=1.5)
    drawn = made.scatter(
        x="x",
        y="y",
        source=source,
        size=8,
        fill_color=colour,
        fill_alpha="fill",
        line_color=colour,
        line_width=1.5,
        name="values",
    )
    if target is not None:
        made.add_layout(
            Span(location=target, dimension="width", line_color=colours.roles["cause"], line_dash=[5, 4], line_width=1.4, name="target")
        )  # fmt: skip
    made.add_tools(
        HoverTool(
            renderers=[drawn], visible=False, mode="vline",
            tooltips=[
                ("", "@shown"), ("week of", "@week (UTC)"), ("of", "@of"), (f"{100 * rows[0].level:.0f} % bounds", "@bounds"),
                ("bounds by", "@method"),
            ],
        )
    )  # fmt: skip
    _week_ticks(made, np.arange(first, last, WEEK))
    made.yaxis.formatter = NumeralTickFormatter(format="0.0%" if bottom > 0.95 else "0%")
    made.yaxis.ticker.update(desired_num_ticks=4, num_minor_ticks=0)
    made.xgrid.visible = False
    told = [f"target {100 * target:.4g} %, dashed"] if target is not None else ["no target"]
    if running.any():
        told.append("the hollow week still runs")
    if missing := round((last - first) / WEEK) - len(rows):
        told.append(f"{missing} weeks without a denominator")
    note(made, "; ".join(told), dark)
    return made


def failures_by_week(
    rows: Iterable[Mapping[str, Any]], *, dark: bool = False, height: int = 240, title: str = "Attempts that failed, by cause"
) -> figure:
    """
    Return the attempts that failed in each week, stacked by cause.

    Parameters
    ----------
    rows : iterable of mapping
        ``week`` (begin, seconds since the epoch), ``cause``, ``attempts``, ``of`` (attempts of the week that ended).
    """
    rows = list(rows)
    ended = {float(row["week"]): int(row["of"]) for row in rows}
    if not sum(ended.values()):
        return empty(title, "No attempt ended in this window, or nobody told of one.", dark=dark)
    whole, failed = sum(ended.values()), sum(int(row["attempts"]) for row in rows)
    if not failed:
        return empty(title, f"None of {whole:,} attempts that ended failed.", dark=dark)
    from bokeh.models import BasicTicker, ColumnDataSource, HoverTool, Range1d

    weeks = sorted(ended)
    counts = {cause: {float(row["week"]): int(row["attempts"]) for row in rows if row["cause"] == cause} for cause in CAUSES}
    there = [cause for cause in CAUSES if sum(counts[cause].values())]
    colours = theme(dark)
    span = (weeks[0], weeks[-1] + WEEK / 1e3)
    made = figure_of(
        title, dark=dark, height=height, span=span, y_label="attempts", tools=False,
        x_range=Range1d(start=span[0] * 1e3 - 0.1 * WEEK, end=span[1] * 1e3 + 0.1 * WEEK),
    )  # fmt: skip
    source = ColumnDataSource(
        {
            "x": [week * 1e3 + WEEK / 2 for week in weeks],
            "week": [str(np.datetime64(int(week), "s"))[:10] for week in weeks],
            "of": [
                f"{sum(counts[cause].get(week, 0) for cause in there):,} failed of {ended[week]:,} that ended" for week in weeks
            ],
            **{cause: [counts[cause].get(week, 0) for week in weeks] for cause in there},
        },
        name="weeks",
    )
    drawn = made.vbar_stack(
        there, x="x", width=0.82 * WEEK, source=source, fill_color=[colours.causes[cause] for cause in there], line_color=colours.card,
        line_width=1,
    )  # fmt: skip
    made.add_tools(
        HoverTool(renderers=drawn, visible=False, tooltips=[("", "$name: @$name"), ("week of", "@week (UTC)"), ("", "@of")])
    )
    _week_ticks(made, np.array(weeks) * 1e3)
    made.xgrid.visible = False
    made.y_range.start = 0
    made.yaxis.ticker = BasicTicker(min_interval=1, desired_num_ticks=4, num_minor_ticks=0)
    keys(made, {cause: colours.causes[cause] for cause in there})
    silent = sum(1 for week in weeks if not ended[week])
    note(
        made,
        f"{failed:,} failed of {whole:,} attempts that ended" + (f"; in {silent} weeks none ended" if silent else ""),
        dark,
    )
    return made


def lemons(
    found: Lemons | None, *, kind: str = "node", dark: bool = False, height: int = 320, title: str = "Blames against hours"
) -> figure:
    """
    Return what speaks against each node or GPU over its hours in jobs, with what a healthy one has, and the listed ones by name.

    Parameters
    ----------
    found : Lemons or None
        From `workbench.fleet.lemons.lemons`.
    kind : str
        ``node`` or ``gpu``.
    """
    units = None if found is None else found.units[found.units["kind"] == kind]
    if found is None or units is None or not len(units):
        why = found.problems[0] if found is not None and found.problems else "Nobody told which nodes jobs ran on."
        return empty(title, plain(why, 160), dark=dark)
    from bokeh.core.properties import value
    from bokeh.models import ColumnDataSource, HoverTool

    colours = theme(dark)
    units = units.sort_values("listed", kind="stable")
    judged = bool(units["chance"].notna().any())
    listed = units["listed"].to_numpy(bool)
    word = "GPU" if kind == "gpu" else "node"
    made = figure_of(title, dark=dark, height=height, y_label="blames (shares add up)", tools=True)
    made.xaxis.axis_label = "hours in jobs"
    data: dict[str, Any] = {
        "hours": units["hours"].to_numpy(float),
        "blames": units["blames"].to_numpy(float),
        "unit": [plain(name, 60) for name in units["unit"]],
        "node": [plain(name, 60) for name in units["node"]],
        "expected": ["not judged" if np.isnan(one) else f"{one:.2f}" for one in units["expected"].to_numpy(float)],
        "chance": ["not judged" if np.isnan(one) else _chance(one) for one in units["chance"].to_numpy(float)],
        "why": [plain(text, 200) for text in units["why"]],
    }
    drawn = []
    for mine, look in ((~listed, "others"), (listed, "listed")):
        source = ColumnDataSource(
            {name: [one for one, this in zip(column, mine, strict=True) if this] for name, column in data.items()}, name=look
        )
        mark = {"marker": "diamond", "size": 13, "fill_color": colours.roles["cause"], "fill_alpha": 1.0}
        calm = {"marker": "circle", "size": 7, "fill_color": colours.band, "fill_alpha": 0.55}
        drawn.append(
            made.scatter(x="hours", y="blames", source=source, line_color=colours.card, **(mark if look == "listed" else calm))
        )
    named = units[listed].sort_values("blames", ascending=False).head(NAMED)
    # a name that would lie on the one before goes to the other side
    most, worst = float(units["hours"].max()), float(units["blames"].max())
    sides = _sides(named["hours"].to_numpy(float), named["blames"].to_numpy(float), most, worst)
    for side in (True, False):
        some = named[np.array(sides, bool) == side]
        made.text(
            x=some["hours"].to_numpy(float), y=some["blames"].to_numpy(float), text=[plain(name, 40) for name in some["unit"]],
            x_offset=9 if side else -9, text_align="left" if side else "right", text_baseline="middle", text_color=colours.ink,
            text_font=value(FONT), text_font_size="11px", name="names" if side else "names left",
        )  # fmt: skip
    rates = {name: fit.usual for name, fit in found.fits.items() if name == kind or name.startswith(f"{kind} ")}
    for number, (name, usual) in enumerate(sorted(rates.items())):
        line = made.line(
            x=[0, most], y=[0, usual * most], line_color=colours.series[number % len(colours.series)], line_width=1.6, line_dash=[6, 4],
            name=f"expected {plain(name, 60)}",
        )  # fmt: skip
        rates[name] = line
    made.add_tools(
        HoverTool(
            renderers=drawn, visible=False,
            tooltips=[
                ("", "@unit"), ("on", "@node"), ("blames", "@blames{0.00} in @hours{0,0} hours"), ("a healthy one has", "@expected"),
                ("chance that it is a lemon", "@chance"), ("why", "@why"),
            ],
        )
    )  # fmt: skip
    made.x_range.update(start=0, end=most * 1.12)
    made.y_range.update(start=-0.03 * float(units["blames"].max() or 1), end=max(1.0, float(units["blames"].max())) * 1.1)
    entries: dict[str, Any] = {f"listed {word}s": drawn[1], f"other {word}s": drawn[0]}
    entries |= {
        f"a healthy {word}" + (f" ({plain(name.partition(' ')[2], 40)})" if len(rates) > 1 and " " in name else ""): line
        for name, line in sorted(rates.items())
    }
    keys(made, {name: one for name, one in entries.items() if not (one is drawn[1] and not listed.any())})
    count = int(listed.sum())
    told = f"{count} of {len(units):,} {word}s are listed, at most {100 * found.rate:.0f} % of them wrongly" if judged else ""
    note(made, told or f"None of {len(units):,} {word}s is judged: " + "; ".join(map(plain, found.problems)), dark)
    return made


def tornado(
    frame: pd.DataFrame | None,
    *,
    currency: str = "",
    fleet: str = "",
    dark: bool = False,
    title: str = "What this tool saves, and what each assumption is worth",
) -> figure:
    """
    Return how a figure moves when one assumption after the other goes to the ends of its range, the widest swing at the top.

    Parameters
    ----------
    frame : DataFrame or None
        From `workbench.fleet.cost.tornado`.
    currency : str
        Of the figure.
    fleet : str
        What it was counted for, in words.
    """
    if frame is None or not len(frame):
        return empty(title, "Nobody told how many nodes and GPUs there are, or what a GPU-hour of theirs costs.", dark=dark)
    from bokeh.core.properties import value
    from bokeh.models import ColumnDataSource, HoverTool, NumeralTickFormatter, Span
    from bokeh.transform import factor_cmap

    colours = theme(dark)
    rows = frame[frame["swing"] > 0].head(BARS)
    if not len(rows):
        return empty(title, "No assumption moves this figure.", dark=dark)
    base = float(rows["base"].iloc[0])
    names = [plain(name, 40).replace("_", " ") for name in rows["name"]]
    ends = ["its low end", "its high end"]
    parts: dict[str, list[Any]] = {
        name: [] for name in ("y", "left", "right", "end", "at", "value", "unit", "what", "source", "flips")
    }
    for name, row in zip(names, rows.to_dict("records"), strict=True):
        for end, at, assumed in ((ends[0], row["at_low"], row["low"]), (ends[1], row["at_high"], row["high"])):
            parts["y"].append(name)
            parts["left"].append(min(base, at))
            parts["right"].append(max(base, at))
            parts["end"].append(end)
            parts["at"].append(f"{at:,.0f} {currency} a month, {base:,.0f} as assumed")
            parts["value"].append(f"{assumed:g} instead of {row['value']:g} {plain(row['unit'], 40)}")
            parts["unit"].append(plain(row["unit"], 40))
            parts["what"].append(plain(row["meaning"], 160))
            parts["source"].append(plain(row["source"], 120))
            parts["flips"].append("yes: it then costs more than it saves" if (at < 0) != (base < 0) else "no")
    made = figure_of(title, dark=dark, height=96 + 24 * len(rows), tools=False, y_range=list(reversed(names)))
    source = ColumnDataSource(parts, name="swings")
    drawn = made.hbar(
        y="y", left="left", right="right", height=0.7, source=source, line_color=None, name="bars",
        fill_color=factor_cmap("end", [colours.series[0], colours.series[3]], ends),
    )  # fmt: skip
    reach = (min([0.0, *parts["left"]]), max([0.0, *parts["right"]]))
    for side in ("at_low", "at_high"):
        at = rows[side].to_numpy(float)
        left = at < base
        for mine, anchor, offset in ((left, "right", -5), (~left, "left", 5)):
            if mine.any():
                made.text(
                    x=at[mine], y=[name for name, this in zip(names, mine, strict=True) if this],
                    text=[f"{one:g}" for one in rows["low" if side == "at_low" else "high"].to_numpy(float)[mine]], x_offset=offset,
                    text_align=anchor, text_baseline="middle", text_color=colours.soft, text_font=value(FONT), text_font_size="10px",
                )  # fmt: skip
    made.add_layout(Span(location=base, dimension="height", line_color=colours.ink, line_width=1.2, name="base"))
    if reach[0] < 0:
        made.add_layout(
            Span(
                location=0,
                dimension="height",
                line_color=colours.roles["cause"],
                line_dash=[4, 4],
                line_width=1.2,
                name="nothing",
            )
        )
    room = (reach[1] - reach[0]) * 0.08 or 1.0
    made.x_range.update(start=reach[0] - room, end=reach[1] + room)
    made.add_tools(
        HoverTool(
            renderers=[drawn], visible=False,
            tooltips=[
                ("", "@y: @what"), ("at @end", "@value"), ("saved", "@at"), ("sign changes", "@flips"), ("source", "@source"),
            ],
        )
    )  # fmt: skip
    made.xaxis.formatter = NumeralTickFormatter(format="0.[0]a")
    made.xaxis.axis_label = f"saved a month{f' ({plain(currency, 12)})' if currency else ''}"
    made.ygrid.visible = False
    keys(made, {ends[0]: colours.series[0], ends[1]: colours.series[3]})
    flips = int(rows["flips"].sum())
    left_out = int((frame["swing"] > 0).sum()) - len(rows)
    told = [
        f"{base:,.0f} {currency} a month as assumed{f', for {plain(fleet)}' if fleet else ''}",
        f"{flips} assumptions could turn its sign" if flips else "no single one turns its sign",
    ]
    note(made, "; ".join([*told, *([f"{left_out} that move it less are in the table"] if left_out else [])]), dark)
    return made


def _week_ticks(made: figure, begins: Any) -> None:
    """Let a time axis name weeks by their Mondays, below the middle of each; where they are many, some of them."""
    from bokeh.models import FixedTicker

    every = max(1, -(-len(begins) // 9))
    some = [float(begin) for begin in begins[::every]]
    made.xaxis.ticker = FixedTicker(ticks=[begin + WEEK / 2 for begin in some])
    days = [np.datetime64(int(begin), "ms").astype("datetime64[D]").astype(object) for begin in some]
    made.xaxis.major_label_overrides = {begin + WEEK / 2: f"{day:%d %b}" for begin, day in zip(some, days, strict=True)}
    made.xaxis.axis_label = f"week of (UTC), from {days[0]:%Y-%m-%d}" if days else "week of (UTC)"


def _sides(x: Any, y: Any, width: float, height: float) -> list[bool]:
    """Return for each text, from the top down, whether it stands to the right of its mark."""
    right: list[bool] = []
    for at in range(len(x)):
        near = [
            one for one in range(at) if abs(y[one] - y[at]) < 0.06 * height and abs(x[one] - x[at]) < 0.16 * width and right[one]
        ]
        right.append(not near)
    return right


def _percent(share: float | None) -> str:
    """Return a share that is rounded neither to all nor to nothing."""
    if share is None:
        return "–"
    text = f"{100 * share:.2f} %"
    return "> 99.99 %" if share < 1 and text == "100.00 %" else "< 0.01 %" if share > 0 and text == "0.00 %" else text


def _chance(share: float) -> str:
    return "> 99.9 %" if share > 0.999 else "< 0.1 %" if share < 0.001 else f"{100 * share:.1f} %"
