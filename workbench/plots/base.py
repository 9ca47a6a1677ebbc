"""Turn a title, an appearance and a span of time into an empty Bokeh figure that all plots of this package begin with."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.plots.theme import FONT, ROLE_MARKERS, look, theme

if TYPE_CHECKING:
    import pandas as pd
    from bokeh.models import CustomJSHover
    from bokeh.plotting import figure

__all__ = [
    "dress",
    "empty",
    "evidence_glyphs",
    "figure_of",
    "keys",
    "mark",
    "milliseconds",
    "note",
    "plain",
    "span_label",
    "time_hover",
]

HEIGHT = 320

# Whatever moves the cursor, hides or reorders text; hover text is short anyway, the whole line is in the log view
_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]+"
)

_TEX = re.compile(r"\$\$|\\[\[\]()]")

# A time in milliseconds: {utc}, or {local}, the time where the reader sits
_TIME = (
    "const d=new Date(value);if(isNaN(d))return'';if(format!=='local')return d.toISOString().slice(0,19).replace('T',' ')+' UTC';"
    "return d.toLocaleString([],{month:'short',day:'numeric',hour:'2-digit',minute:'2-digit',second:'2-digit',timeZoneName:'short'})"
)


def plain(text: object, width: int = 120) -> str:
    """
    Return hostile text as one short line without control characters.

    Markup in it stays text, since Bokeh escapes what hover tells. The delimiters of TeX are pulled apart: Bokeh would take what is
    between them for a formula, and ask a server of others for the program that draws it.
    """
    line = _TEX.sub(lambda match: " ".join(match.group()), _CONTROL.sub(" ", "" if text is None else str(text)).strip())
    return line if len(line) <= width else line[: width * 2 // 3] + " … " + line[-width // 3 :]


def milliseconds(times: pd.Series | Iterable[Any]) -> np.ndarray:
    """Return tz-aware times as naive UTC milliseconds since the epoch (float64, NaN for NaT), which is what a browser counts in."""
    import pandas as pd

    stamps = pd.to_datetime(pd.Series(times), utc=True).dt.tz_localize(None)
    counts = stamps.to_numpy(dtype="datetime64[us]")
    result = counts.astype("int64").astype("float64") / 1e3
    result[np.isnat(counts)] = np.nan
    return result


def span_label(begin: float, end: float) -> str:
    """Return the label of a time axis: UTC, with the day or days (seconds since the epoch)."""
    if not (np.isfinite(begin) and np.isfinite(end)):
        return "time (UTC)"
    days = [str(np.datetime64(int(np.clip(one, -6e10, 2.5e11)), "s"))[:10] for one in (begin, end)]
    return f"time (UTC), {days[0]}" if days[0] == days[1] else f"time (UTC), {days[0]} to {days[1]}"


def time_hover() -> CustomJSHover:
    """Return the formatter of times in hover: ``{utc}``, and ``{local}`` for the reader's own time."""
    from bokeh.models import CustomJSHover

    return CustomJSHover(code=_TIME)


def figure_of(
    title: str,
    *,
    dark: bool,
    height: int = HEIGHT,
    span: tuple[float, float] | None = None,
    y_label: str = "",
    tools: bool = True,
    **more: Any,
) -> figure:
    """
    Return an empty figure with title and look.

    Parameters
    ----------
    title : str
        What it shows.
    height : int
        Pixels in all; it takes the width that it is given.
    span : tuple of float, optional
        Seconds since the epoch; makes x a time axis labelled UTC.
    tools : bool
        Whether one can zoom and pan; the buttons are seen while the pointer is over the figure.
    more
        Given to `bokeh.plotting.figure`.
    """
    from bokeh.models import BoxZoomTool, DatetimeTickFormatter, PanTool, ResetTool, WheelZoomTool
    from bokeh.plotting import figure

    if span is not None:
        more.setdefault("x_axis_type", "datetime")
    made = figure(
        title=title, height=height, sizing_mode="stretch_width", tools="", toolbar_location="above" if tools else None, **more
    )
    if tools:
        zoom = BoxZoomTool()
        made.add_tools(zoom, PanTool(), WheelZoomTool(), ResetTool())
        made.toolbar.active_drag = zoom
        made.toolbar.logo = None
        made.toolbar.autohide = True
    if span is not None:
        made.xaxis.axis_label = span_label(*span)
        made.xaxis.formatter = DatetimeTickFormatter(
            microseconds="%H:%M:%S.%f", milliseconds="%H:%M:%S.%3N", seconds="%H:%M:%S", minsec="%H:%M:%S", minutes="%H:%M",
            hourmin="%H:%M", hours="%H:%M", days="%d %b", months="%b %Y",
        )  # fmt: skip
    if y_label:
        made.yaxis.axis_label = y_label
    dress(made, dark)
    return made


def dress(made: figure, dark: bool) -> None:
    """Give a figure and everything on it the look of an appearance."""
    for name, setting in look(dark, "Plot").items():
        setattr(made, name, setting)
    for kind, models in (("Axis", made.axis), ("Grid", made.grid), ("Title", [made.title]), ("Legend", made.legend)):
        for name, setting in look(dark, kind).items():
            for model in models:
                setattr(model, name, setting)


def note(made: figure, text: str, dark: bool) -> None:
    """Write one quiet sentence under the title: what was pooled, left out or not told."""
    from bokeh.models import Title

    if not text:
        return
    made.add_layout(
        Title(text=text, text_color=theme(dark).soft, text_font=FONT, text_font_size="11px", text_font_style="normal", name="note", standoff=6),
        "above",
    )  # fmt: skip
    # What is added last stands on top: the title again above the note
    made.above.sort(key=lambda one: one.name == "note")


def empty(title: str, why: str, *, dark: bool = False, height: int = 160) -> figure:
    """Return a figure that says in words why there is nothing to see."""
    from bokeh.core.properties import value

    made = figure_of(title, dark=dark, height=height, tools=False, x_range=(0, 1), y_range=(0, 1))
    made.axis.visible = False
    made.grid.visible = False
    colours = theme(dark)
    made.text(
        x=[0.5], y=[0.5], text=[why], text_color=colours.soft, text_font=value(FONT), text_font_size="13px", text_align="center",
        text_baseline="middle", name="why",
    )  # fmt: skip
    return made


def keys(made: figure, entries: Mapping[str, Any], *, marker: str | Mapping[str, str] = "square", narrow: bool = False) -> None:
    """
    Put a legend on a figure, under the title.

    Parameters
    ----------
    entries : Mapping
        Word → colour, or what is drawn in it (a renderer, or a renderer of several and the number of one of them), in the order shown.
    marker : str or Mapping
        The shape of all colours, or of each word.
    narrow : bool
        Whether the figure is so small that its words stand close together.
    """
    from bokeh.models import ColumnDataSource, Legend, LegendItem
    from bokeh.transform import factor_cmap, factor_mark

    if not entries:
        return
    # One renderer draws all colours: a page is painted sooner with fewer models
    words = [word for word, drawn in entries.items() if isinstance(drawn, str)]
    shapes = [marker if isinstance(marker, str) else marker[word] for word in words]
    nowhere = ColumnDataSource({"x": [np.nan] * len(words), "y": [np.nan] * len(words), "word": words})
    swatches = None
    if words:
        swatches = made.scatter(
            "x", "y", source=nowhere, size=11, marker=factor_mark("word", shapes, words), line_color=None, name="keys",
            fill_color=factor_cmap("word", [entries[word] for word in words], words),
        )  # fmt: skip
    items = [
        LegendItem(label=word, renderers=[swatches], index=words.index(word))
        if isinstance(drawn, str)
        else LegendItem(label=word, renderers=[drawn[0]], index=drawn[1])
        if isinstance(drawn, tuple)
        else LegendItem(label=word, renderers=[drawn])
        for word, drawn in entries.items()
    ]
    legend = Legend(items=items, orientation="horizontal", location="left", click_policy="none")
    for name, setting in look(_is_dark(made), "Legend").items():
        setattr(legend, name, setting)
    if narrow:
        legend.update(spacing=7, glyph_width=14, label_standoff=3, padding=0)
    made.add_layout(legend, "above")


def _is_dark(made: figure) -> bool:
    return bool(made.background_fill_color == theme(True).card)


def mark(made: figure, second: float, dark: bool, label: str = "") -> None:
    """Draw the line of an event across a figure, at a time in seconds since the epoch."""
    from bokeh.models import Label, Span

    colour = theme(dark).roles["cause"]
    made.add_layout(
        Span(location=second * 1e3, dimension="height", line_color=colour, line_dash=[3, 4], line_width=1.5, name="event")
    )
    if label:
        made.add_layout(
            Label(
                x=second * 1e3,
                y=4,
                y_units="screen",
                x_offset=4,
                text=label,
                text_color=colour,
                text_font=FONT,
                text_font_size="11px",
                background_fill_color=theme(dark).card,
                background_fill_alpha=0.8,
            )
        )


def evidence_glyphs(
    made: figure,
    source: Any,
    dark: bool,
    *,
    size: float | str = 11,
    near: tuple[float, float] = (0.0, 0.0),
    turn: float = math.inf,
) -> Any:
    """
    Draw markers of evidence, and their numbers beside them.

    Parameters
    ----------
    source : ColumnDataSource
        Columns x, y, role and number (text, empty where it is no evidence).
    near : tuple of float
        Distances in x and y within which numbers would lie on one another, and share one text.
    turn : float
        From this x on numbers stand to the left of their marker: to the right the edge would cut them.

    Returns
    -------
    GlyphRenderer
        The markers.
    """
    from bokeh.core.properties import value
    from bokeh.models import ColumnDataSource
    from bokeh.transform import factor_cmap, factor_mark

    colours = theme(dark)
    words = list(ROLE_MARKERS)
    drawn = made.scatter(
        x="x", y="y", source=source, size=size, marker=factor_mark("role", [ROLE_MARKERS[word] for word in words], words),
        fill_color=factor_cmap("role", [colours.roles[word] for word in words], words, nan_color=colours.roles["context"]),
        line_color=colours.card, line_width=1.2, name="evidence",
    )  # fmt: skip
    made.text(
        x="x", y="y", text="number", source=ColumnDataSource(_numbers(source.data, *near, turn), name="numbers"), text_color=colours.ink,
        text_font=value(FONT), text_font_size="10px", text_baseline="middle", text_align="align", x_offset="offset",
        background_fill_color=colours.card,
        background_fill_alpha=0.8, border_radius=3, padding=1, level="overlay",
    )  # fmt: skip
    return drawn


def _numbers(data: Mapping[str, Any], near_x: float, near_y: float, turn: float) -> dict[str, list[Any]]:
    """Return where which numbers are written: those that would lie on one another in one text, at the place of the last."""
    groups: list[tuple[float, float, list[int]]] = []
    for x, y, number in sorted(zip(data["x"], data["y"], data["number"], strict=True)):
        if not number:
            continue
        for at in range(len(groups) - 1, max(len(groups) - 6, -1), -1):
            if abs(groups[at][0] - x) <= near_x and abs(groups[at][1] - y) <= near_y:
                groups[at] = (x, y, [*groups[at][2], int(number)])
                break
        else:
            groups.append((x, y, [int(number)]))
    texts = []
    for _, _, numbers in groups:
        numbers.sort()
        texts.append(", ".join(map(str, numbers[:4])) + (f" +{len(numbers) - 4}" if len(numbers) > 4 else ""))
    left = [x >= turn for x, _, _ in groups]
    return {
        "x": [x for x, _, _ in groups], "y": [y for _, y, _ in groups], "number": texts,
        "align": ["right" if one else "left" for one in left], "offset": [-9 if one else 9 for one in left],
    }  # fmt: skip
