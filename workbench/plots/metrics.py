"""
Turn metric samples into small multiples around an event: one figure a question (temperature, power, ECC …), one x range for all.

Which field belongs to which panel, its unit and its kind stand in ``catalog/metric_panels.csv``. A gap in the samples is a gap in the
line; what the other GPUs did at the same time is a band behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.catalog import table
from workbench.plots.base import empty, figure_of, keys, mark, milliseconds, note, plain, span_label, time_hover
from workbench.plots.theme import theme

if TYPE_CHECKING:
    import pandas as pd
    from bokeh.plotting import figure

__all__ = ["each_panel", "metric_panels", "panels", "peers_band", "update_panels", "with_gaps"]

GAP = 2.5  # of the usual distance between samples: past it a scrape was missed, and the line breaks (one late scrape does not)
POINTS = 1200  # of a line; more than there are pixels are pooled to the extremes of each piece
PEERS = 3  # fewer tell nothing of what is usual
MARGIN = 1800.0  # seconds before and after the event
_DASHES = ("solid", "5 3", "2 2")  # colours alone do not tell lines apart for everybody


@lru_cache(maxsize=1)
def panels() -> tuple[tuple[str, tuple[dict[str, str], ...]], ...]:
    """Return the panels in order, each with the rows of ``catalog/metric_panels.csv`` that belong to it."""
    return tuple((name, tuple(rows)) for name, rows in groupby(table("metric_panels"), key=lambda row: row["panel"]))


def metric_panels(
    metrics: pd.DataFrame | None,
    *,
    node: str | None,
    gpu: int | str | None = None,
    around: float | datetime | None = None,
    dark: bool = False,
    height: int = 176,
    margin: float = MARGIN,
    only: tuple[str, ...] | None = None,
) -> list[figure]:
    """
    Return small multiples of what a GPU (or all GPUs of a node) measured, one figure each, which zoom together.

    Parameters
    ----------
    metrics : DataFrame or None
        Columns of `workbench.frames.METRICS`; other GPUs in it make the band of peers.
    node : str or None
        The node.
    gpu : int or str, optional
        Index, UUID or PCI address of a GPU; default each GPU of the node gets a line.
    around : float or datetime, optional
        The time of the event (seconds since the epoch, or tz-aware): it gets a line, and the figures begin `margin` before it.
    dark : bool
        The appearance.
    margin : float
        Seconds shown before and after `around` at the start; there may be more to pan to.
    only : tuple of str, optional
        Names of panels (``temperature``, ``power``, ``clocks``, ``use``, ``memory``, ``ecc``, ``nvlink``, ``nvlink-errors``,
        ``pcie``, ``pcie-errors``, ``xid``) instead of all.

    Returns
    -------
    list of figure
        Those panels whose fields anybody in `metrics` measured, each named ``panel-NAME``; one figure that says why when there is
        none. All lines of a panel are one renderer, since a browser pays for each: its source is named ``lines`` and has a row a
        line, with columns xs (milliseconds since the epoch), ys, field, gpu (what hover says), colour and dash (its place among them).
    """
    return list(each_panel(metrics, node=node, gpu=gpu, around=around, dark=dark, height=height, margin=margin, only=only))


def each_panel(
    metrics: pd.DataFrame | None, *, node: str | None, gpu: int | str | None = None, around: float | datetime | None = None,
    dark: bool = False, height: int = 176, margin: float = MARGIN, only: tuple[str, ...] | None = None,
) -> Iterator[figure]:  # fmt: skip
    """Yield the figures of `metric_panels` as they are made: each takes long enough that who waits for something else would notice."""
    asked = _Asked(metrics, node, gpu, around, margin)
    if asked.why:
        yield empty("Metrics", asked.why, dark=dark)
        return
    known = {
        name: tuple(row for row in rows if row["field"] in asked.known) for name, rows in panels() if only is None or name in only
    }
    there = [name for name, rows in known.items() if rows]
    missing = [name for name, rows in known.items() if not rows]
    if not there:
        yield empty("Metrics", f"None of the fields that {asked.who} measured belongs to a panel.", dark=dark)
        return
    shared = _Shared(asked, dark)
    for name in there:
        made = _draw(asked.panel(known[name]), name, known[name], asked, dark, height, shared)
        if missing and name == there[-1]:
            note(made, "not measured anywhere: " + ", ".join(missing), dark)
        yield made


def update_panels(
    made: list[figure], metrics: pd.DataFrame | None, *, node: str | None, gpu: int | str | None = None,
    around: float | datetime | None = None, margin: float = MARGIN,
) -> bool:  # fmt: skip
    """
    Show another GPU (or another time) in figures that `metric_panels` made of the same metrics, in place.

    Several times quicker than new figures, since only data go to the page.

    Returns
    -------
    bool
        False when the figures do not fit (other fields, another number of lines, no such GPU): nothing was changed; make new ones.
    """
    asked = _Asked(metrics, node, gpu, around, margin)
    if asked.why:
        return False
    by_name = dict(panels())
    news = []
    for one in made:
        rows = tuple(row for row in by_name.get(str(one.name).removeprefix("panel-"), ()) if row["field"] in asked.known)
        lines, band = asked.panel(rows) if rows else ([], {})
        sources = {renderer.data_source.name: renderer.data_source for renderer in one.renderers}
        spans = [placed for placed in one.center if placed.name == "event"]
        if (
            not rows
            or "lines" not in sources
            or list(sources["lines"].data["field"]) != [line.field for line in lines]
            or bool(spans) != (asked.at is not None)
        ):
            return False
        news.append((one, sources, _drawn(lines, _stepped(rows)), band, spans))
    for one, sources, (drawn, alone), band, spans in news:
        sources["lines"].data, sources["alone"].data = drawn, alone
        if band and "peers" in sources:
            sources["peers"].data = band
        for span in spans:
            span.location = (asked.at or 0.0) * 1e3
        one.xaxis.axis_label = span_label(*asked.span)
    if made:
        made[0].x_range.update(start=asked.span[0] * 1e3, end=asked.span[1] * 1e3)
    return True


@dataclass(frozen=True, slots=True)
class _Line:
    """One line: its field, its place among the colours, what hover calls it, its points."""

    field: str
    label: str
    number: int
    gpu: str
    x: np.ndarray
    y: np.ndarray


class _Asked:
    """What is shown of metrics: whose samples, of which time, coded once for all panels."""

    def __init__(
        self,
        metrics: pd.DataFrame | None,
        node: str | None,
        gpu: int | str | None,
        around: float | datetime | None,
        margin: float,
    ) -> None:
        self.who = f"{plain(node, 60) or 'the node'}" + (f" GPU {plain(gpu, 60)}" if gpu is not None else "")
        self.why = ""
        self.at = around.timestamp() if isinstance(around, datetime) else around
        self.each = gpu is None
        self.known: dict[Any, int] = {}
        if metrics is None or not len(metrics):
            self.why = "No metrics came with this incident: connect Prometheus, or add an export of it."
            return
        self.mine = _of(metrics, node, gpu)
        if not self.mine.any():
            self.why = f"No metric names {self.who}. Others have some: see where it ran."
            return
        self.metrics = metrics
        self.times = milliseconds(metrics["time"])
        self.values = metrics["value"].to_numpy(dtype="float64")
        self.span = _span(self.times[self.mine] / 1e3, self.at, margin)
        self.codes, words = _codes(metrics["field"])
        self.known = {words[code]: int(code) for code in np.unique(self.codes) if code >= 0}
        self.entities = _entities(metrics)

    def panel(self, rows: tuple[dict[str, str], ...]) -> tuple[list[_Line], dict[str, np.ndarray]]:
        """Return the lines of a panel, and the band of the peers of its first field (none for counters: nearly all stand at zero)."""
        lines = []
        # Of a whole node one field is enough: eight lines each of three would tell nothing
        for number, row in enumerate(rows[:1] if self.each else rows):
            chosen = np.flatnonzero((self.codes == self.known[row["field"]]) & self.mine)
            for one in np.unique(self.entities[chosen]):
                part = chosen[self.entities[chosen] == one]
                x, y = _line(self.times[part], self.values[part] * float(row["scale"]), row["kind"] == "counter")
                told = _which(self.metrics["gpu_index"].iloc[part[0]], self.metrics["device"].iloc[part[0]])
                words = told if self.each else f"{told} {row['label']}".strip()
                lines.append(_Line(row["field"], row["label"], number, words, x, y))
        first = rows[0]
        others = np.flatnonzero((self.codes == self.known[first["field"]]) & ~self.mine)
        if first["kind"] == "counter" or not len(others):
            return lines, {}
        return lines, peers_band(self.times[others], self.values[others] * float(first["scale"]), self.entities[others])


def with_gaps(times: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """
    Return a series with a NaN in each gap, so that no line is drawn over it.

    A gap is more than `GAP` times the median distance of samples. Times rise; NaN values (blank sentinels) stay and break too.
    """
    if len(times) < 3:
        return times, values
    distances = np.diff(times)
    gaps = np.flatnonzero(distances > GAP * np.median(distances))
    return np.insert(times, gaps + 1, (times[gaps] + times[gaps + 1]) / 2), np.insert(values, gaps + 1, np.nan)


def peers_band(times: np.ndarray, values: np.ndarray, series: np.ndarray) -> dict[str, np.ndarray]:
    """
    Return what the peers did, in pieces of time: columns left, right, low (10 %), middle (median), high (90 %).

    Parameters
    ----------
    times, values, series : ndarray
        Samples of all peers in milliseconds, and which series each belongs to. Empty when there are fewer than `PEERS` series.
    """
    good = np.isfinite(values) & np.isfinite(times)
    times, values, series = times[good], values[good], series[good]
    order = np.lexsort((times, series))
    same = np.diff(series[order]) == 0
    if len(times) < PEERS or int((~same).sum()) + 1 < PEERS:
        return {name: np.array([]) for name in ("left", "right", "low", "middle", "high")}
    steps = np.diff(times[order])[same]
    steps = steps[steps > 0]
    begin = float(times.min())
    width = max(float(np.median(steps)), float(np.ptp(times)) / POINTS, 1.0) if len(steps) else 60_000.0
    piece = ((times - begin) // width).astype("int64")
    order = np.lexsort((values, piece))
    pieces, first, count = np.unique(piece[order], return_index=True, return_counts=True)
    ranked = values[order]

    def share(part: float) -> np.ndarray:
        at = first + (count - 1) * part
        low = np.floor(at).astype("int64")
        high = np.minimum(low + 1, first + count - 1)
        return np.asarray(ranked[low] + (ranked[high] - ranked[low]) * (at - low))

    left = begin + pieces * width
    return {"left": left, "right": left + width, "low": share(0.1), "middle": share(0.5), "high": share(0.9)}


def _codes(column: pd.Series) -> tuple[np.ndarray, list[Any]]:
    """Return a column as small numbers (-1 missing) and the words that they stand for: compared once a word, not once a sample."""
    import pandas as pd

    if isinstance(column.dtype, pd.CategoricalDtype):
        return column.cat.codes.to_numpy("int64"), list(column.cat.categories)
    codes, words = pd.factorize(column)
    return np.asarray(codes, "int64"), list(words)


def _is(column: pd.Series, word: Any) -> np.ndarray:
    codes, words = _codes(column)
    return codes == words.index(word) if word in words else np.zeros(len(codes), bool)


def _of(metrics: pd.DataFrame, node: str | None, gpu: int | str | None) -> np.ndarray:
    """Return which samples are those of a node, and of a GPU by index, UUID or PCI address."""
    mine = _is(metrics["node"], node) if node is not None else np.ones(len(metrics), bool)
    if gpu is None:
        of_gpus = mine & metrics["gpu_index"].notna().to_numpy()
        return of_gpus if of_gpus.any() else mine
    if isinstance(gpu, str) and not gpu.isdigit():
        return np.asarray(mine & (_is(metrics["gpu_uuid"], gpu) | _is(metrics["pci"], gpu)))
    return np.asarray(mine & (metrics["gpu_index"].fillna(-1).to_numpy("int64") == int(gpu)))


def _span(seconds: np.ndarray, at: float | None, margin: float) -> tuple[float, float]:
    seconds = seconds[np.isfinite(seconds)]
    if at is not None:
        return at - margin, at + margin
    begin, end = (float(seconds.min()), float(seconds.max())) if len(seconds) else (0.0, 1.0)
    room = max((end - begin) * 0.02, 1.0)
    return begin - room, end + room


def _entities(metrics: pd.DataFrame) -> np.ndarray:
    """Return a number for the entity of each sample: node, GPU, device and MIG instance."""
    number = metrics["gpu_index"].fillna(-1).to_numpy("int64") + 1
    for name in ("node", "gpu_uuid", "device", "mig"):
        codes, words = _codes(metrics[name])
        number = number * (len(words) + 1) + codes + 1
    return number


def _line(times: np.ndarray, values: np.ndarray, counter: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the points of one line: in order, growth for a counter, extremes where there are more than pixels, breaks at gaps."""
    order = np.argsort(times, kind="stable")
    times, values = times[order], values[order]
    if counter:
        known = np.isfinite(values)
        growth = np.diff(values[known], prepend=values[known][:1])
        values = values.copy()
        values[known] = np.cumsum(np.maximum(growth, 0.0))  # a fall is a restart of the counter, not growth
    times, values = with_gaps(times, values)
    if len(times) <= POINTS:
        return times, values
    kept = []
    for part in np.array_split(np.arange(len(times)), POINTS // 3):
        inside = values[part]
        if np.isfinite(inside).any():
            kept += [part[np.nanargmin(inside)], part[np.nanargmax(inside)]]
        kept += [int(part[one]) for one in np.flatnonzero(np.isnan(inside))[:1]]
    chosen = np.unique(kept)
    return times[chosen], values[chosen]


class _Shared:
    """What all panels have in common, made once: the range of time and its axis' ticks, the colours of lines, how hover tells a time."""

    def __init__(self, asked: _Asked, dark: bool) -> None:
        from bokeh.models import CategoricalColorMapper, Range1d

        colours = theme(dark).series
        self.x_range = Range1d(start=asked.span[0] * 1e3, end=asked.span[1] * 1e3)
        self.colour = {
            "field": "colour",
            "transform": CategoricalColorMapper(factors=[str(number) for number in range(len(colours))], palette=list(colours)),
        }
        self.time = time_hover()
        self._axis: tuple[Any, Any] | None = None

    def ticks(self, made: figure) -> None:
        """Let a figure's axis of time have the ticks of the first one's: fifteen models that need be there once."""
        if self._axis is None:
            self._axis = made.xaxis[0].ticker, made.xaxis[0].formatter
        made.xaxis.ticker, made.xaxis.formatter = self._axis
        made.xgrid.ticker = self._axis[0]


def _stepped(rows: tuple[dict[str, str], ...]) -> bool:
    """Return whether a panel's values hold until the next one: what was counted, and codes."""
    return rows[0]["kind"] == "counter" or rows[0]["panel"] == "xid"


def _steps(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the corners of a line whose values hold until the next one; a gap stays a gap."""
    held = np.where(np.isfinite(y[1:]), y[:-1], np.nan)
    return np.repeat(x, 2)[1:], np.stack([y, np.append(held, np.nan)], 1).ravel()[:-1]


def _drawn(lines: list[_Line], stepped: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns of all lines of a panel, and those of the samples that no line shows."""
    points = [_steps(line.x, line.y) if stepped else (line.x, line.y) for line in lines]
    count = len(theme().series)
    alone = [(line, at) for line in lines for at in _alone(line.y)]
    return {
        "xs": [x for x, _ in points],
        "ys": [y for _, y in points],
        "field": [line.field for line in lines],
        "gpu": [line.gpu for line in lines],
        "colour": [str(line.number % count) for line in lines],
        "dash": [_DASHES[line.number % len(_DASHES)] for line in lines],
    }, {
        "x": np.array([line.x[at] for line, at in alone], "float64"),
        "y": np.array([line.y[at] for line, at in alone], "float64"),
        "colour": [str(line.number % count) for line, _ in alone],
    }


def _draw(
    shown: tuple[list[_Line], dict[str, np.ndarray]], name: str, rows: tuple[dict[str, str], ...], asked: _Asked, dark: bool,
    height: int, shared: _Shared,
) -> figure:  # fmt: skip
    """Return the figure of one panel."""
    from bokeh.models import ColumnDataSource, DataRange1d, HoverTool, MultiLine, Quad, Range1d, Scatter

    colours = theme(dark)
    lines, band = shown
    first = rows[0]
    made = figure_of(
        first["title"], dark=dark, height=height, span=asked.span, y_label=first["unit"], name=f"panel-{name}", min_border_left=70,
        x_range=shared.x_range, y_range=Range1d(start=0, end=105) if first["unit"] == "%" else DataRange1d(range_padding=0.12),
    )  # fmt: skip
    made.xgrid.visible = False
    shared.ticks(made)
    made.yaxis.ticker.desired_num_ticks = 4
    made.yaxis.ticker.num_minor_ticks = 0
    if first["unit"] == "%":
        made.yaxis.ticker = [0, 50, 100]
    made.xaxis.axis_label_standoff = 0
    legend: dict[str, Any] = {}
    if band:
        peers = made.add_glyph(
            ColumnDataSource(band, name="peers"),
            Quad(left="left", right="right", bottom="low", top="high", fill_color=colours.band, fill_alpha=0.28, line_color=None),
        )
        if len(band["left"]):
            legend["peers 10–90 %"] = peers
    data, alone = _drawn(lines, _stepped(rows))
    style = {"line_color": shared.colour, "line_width": 1.6, "line_alpha": 0.65 if asked.each else 1.0, "line_dash": "dash"}
    drawn = made.add_glyph(ColumnDataSource(data, name="lines"), MultiLine(xs="xs", ys="ys", **style))
    dots = Scatter(x="x", y="y", size=4, fill_color=shared.colour, line_color=None)
    made.add_glyph(ColumnDataSource(alone, name="alone"), dots)
    for number, line in enumerate(lines):
        if not asked.each:
            legend.setdefault(line.label, (drawn, number))
    if not any(np.isfinite(line.y).any() for line in lines):
        note(made, "nothing measured here", dark)
    made.add_tools(
        HoverTool(
            renderers=[drawn], visible=False, mode="vline", line_policy="nearest", attachment="right",
            tooltips=[("", "@gpu"), (first["unit"], "$snap_y{0,0.[00]}"), ("time", "$snap_x{utc}"), ("local", "$snap_x{local}")],
            formatters={"$snap_x": shared.time},
        )
    )  # fmt: skip
    if len(legend) > 1:
        keys(made, legend, narrow=True)
    if asked.at is not None:
        mark(made, asked.at, dark)
    return made


def _alone(values: np.ndarray) -> np.ndarray:
    """Return the samples between two gaps, which no line shows since there is none to either side."""
    there = np.concatenate([[False], np.isfinite(values), [False]])
    return np.flatnonzero(there[1:-1] & ~there[:-2] & ~there[2:])


def _which(gpu: Any, device: Any) -> str:
    import pandas as pd

    if not pd.isna(gpu):
        return f"GPU {int(gpu)}"
    return plain(device, 40) if isinstance(device, str) else ""
