"""
Turn what each rank did over time (an `Activity`) into one picture: ranks × time, coloured by the most severe state in each pixel.

    figure = rank_map(case.activity, case.ranks, events=case.events, dark=True)
    on_tap(figure, lambda rank, second: …)            # served or in a notebook: which rank was clicked
    follow_zoom(figure, case.activity)                # served: pooled anew for what is zoomed to

The y axis counts rows of the activity; with ranks 0, 1, 2 … these are the ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.plots.base import empty, evidence_glyphs, figure_of, keys, milliseconds, note, plain, time_hover
from workbench.plots.pool import Pool, pool
from workbench.plots.theme import ROLE_MARKERS, STATES, theme

if TYPE_CHECKING:
    import pandas as pd
    from bokeh.plotting import figure

    from workbench.casefile.model import Activity

__all__ = ["follow_zoom", "on_tap", "rank_at", "rank_map", "rank_map_data"]

HEIGHT = 420
BORDER = 124  # pixels of a figure's height that title, note, legend and axis take (117 in Chromium); tests/browser/test_plots.py measures it
NAMED_NODES = 24  # more names than these run into each other
MOST_MARKERS = 400


def rank_map(
    activity: Activity | None,
    ranks: pd.DataFrame | None = None,
    *,
    events: pd.DataFrame | None = None,
    dark: bool = False,
    height: int = HEIGHT,
    title: str = "What each rank did",
) -> figure:
    """
    Return the map of ranks × time as a Bokeh figure.

    Parameters
    ----------
    activity : Activity or None
        None, or one without ranks, gives a figure that says so.
    ranks : DataFrame, optional
        Columns of `workbench.casefile.model.RANKS`; names nodes and GPUs on hover and at the y axis.
    events : DataFrame, optional
        `CaseFile.events`: those that are evidence are marked, at their rank, or at the middle of their node's ranks.
    dark : bool
        The appearance; `workbench.plots.theme.switch` changes it later.
    height : int
        Pixels; ranks are pooled to the rows of pixels that this leaves.

    Returns
    -------
    figure
        Its models by name (``figure.select_one({"name": …})``): the image renderer ``map``, whose source is replaced by what
        `rank_map_data` returns; ``tapped``, a `ColumnDataSource` that holds what was clicked last, in columns rank, row, time
        (seconds since the epoch), node, gpu and state (read it with `on_tap`).
    """
    if activity is None or not len(activity.ranks) or len(activity.edges) < 2:
        return empty(title, "No rank of this job is known: no log, placement or scheduler record names one.", dark=dark)
    colours = theme(dark)
    data = rank_map_data(activity, rows=pixels(height))
    there = [word for code, word in enumerate(STATES) if bool((activity.states == code).any())]
    made = map_figure(
        activity, ranks, data, title=title, dark=dark, height=height,
        palette=[colours.states[word] for word in STATES], words=list(STATES),
    )  # fmt: skip
    keys(made, {word: colours.states[word] for word in reversed(there)})
    note(made, pooled_note(len(activity.ranks), pixels(height)), dark)
    if events is not None:
        mark_events(made, activity, ranks, events, dark)
    return made


def rank_map_data(
    activity: Activity,
    rank_range: tuple[float, float] | None = None,
    time_range: tuple[float, float] | None = None,
    *,
    rows: int = HEIGHT - BORDER,
    columns: int = 600,
) -> dict[str, Any]:
    """
    Return the data of the image for a range of ranks and of time, to be given to the source of the renderer ``map``.

    Parameters
    ----------
    activity : Activity
        What `rank_map` was given.
    rank_range : tuple of float, optional
        From and to on the y axis (rows of the activity), in any order; default all.
    time_range : tuple of float, optional
        Seconds since the epoch (the x axis counts milliseconds: divide by 1,000); default all.
    rows, columns : int
        The most pools: no more rows than the figure has pixels.

    Returns
    -------
    dict
        ``image`` (uint8, index into STATES), ``who`` (the row that was most severe), ``x``, ``y``, ``dw``, ``dh``.
    """
    return image_data(
        pool(activity.states, activity.edges, rows=rows, columns=columns, row_range=rank_range, time_range=time_range)
    )


def image_data(pooled: Pool) -> dict[str, Any]:
    """Return a pool as the data of an image: times in milliseconds."""
    return {
        "image": [pooled.values],
        "who": [pooled.who],
        "x": [pooled.left * 1e3],
        "y": [float(pooled.row)],
        "dw": [(pooled.right - pooled.left) * 1e3],
        "dh": [float(pooled.bottom - pooled.row)],
    }


def rank_at(activity: Activity, y: float, second: float, *, rows: int = HEIGHT - BORDER) -> int | None:
    """
    Return the rank that a click means: the most severe one in the pixel of the whole map, None outside of it.

    Parameters
    ----------
    y, second : float
        Place on the y axis, and time in seconds since the epoch.
    """
    inside = 0 <= y < len(activity.ranks) and activity.edges[0] <= second <= activity.edges[-1]
    if not inside:
        return None
    step = -(-len(activity.ranks) // rows)
    first = int(y) // step * step
    column = int(np.clip(np.searchsorted(activity.edges, second, "right") - 1, 0, activity.states.shape[1] - 1))
    return int(activity.ranks[first + int(activity.states[first : first + step, column].argmax())])


def on_tap(made: figure, callback: Callable[[int, float], None]) -> None:
    """Call ``callback(rank, second)`` when a rank is clicked; needs a live Python behind the page."""
    tapped = made.select_one({"name": "tapped"})
    if tapped is None:  # an empty figure
        return

    def told(_attr: str, _old: Any, new: Any) -> None:
        if len(new.get("rank", ())):
            callback(int(new["rank"][0]), float(new["time"][0]))

    tapped.on_change("data", told)


def follow_zoom(made: figure, activity: Activity, data: Callable[..., dict[str, Any]] | None = None) -> None:
    """
    Pool anew whenever the page zooms or pans, so that a zoomed map shows single ranks; needs a live Python behind the page.

    Parameters
    ----------
    made : figure
        What `rank_map` or `workbench.plots.step_map.step_map` returned.
    data : callable, optional
        The function of that map, `rank_map_data` (the default) or a partial of `step_map_data` with its `bins`.
    """
    from bokeh.events import RangesUpdate

    drawn = made.select_one({"name": "map"})
    if drawn is None:
        return
    rows, again = pixels(made.height), data or rank_map_data

    def zoomed(event: Any) -> None:
        drawn.data_source.data = again(activity, (event.y0, event.y1), (event.x0 / 1e3, event.x1 / 1e3), rows=rows)

    made.on_event(RangesUpdate, zoomed)


def pixels(height: int | None) -> int:
    """Return how many rows of pixels a map of that height has for ranks."""
    return max((height or HEIGHT) - BORDER, 50)


def pooled_note(count: int, rows: int) -> str:
    """Return the sentence under the title: how many ranks share a row of pixels."""
    step = -(-count // rows)
    if step == 1:
        return f"{count:,} ranks" if count > 1 else "one rank"
    return (
        f"{count:,} ranks, {step} to a row of pixels: the most severe is drawn, and a click opens that one; zoom in to see each"
    )


def _nodes(activity: Activity, ranks: pd.DataFrame | None) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return the names of nodes, and for each row the position of its node in them and its GPU index (-1 not known)."""
    count = len(activity.ranks)
    if ranks is None or not len(ranks):
        return [], np.full(count, -1, "int32"), np.full(count, -1, "int16")
    import pandas as pd

    known = ranks.dropna(subset=["rank"]).drop_duplicates("rank", keep="last").set_index("rank").reindex(activity.ranks)
    codes, names = pd.factorize(known["node"])
    gpus = pd.to_numeric(known["gpu_index"]).fillna(-1).to_numpy(dtype="int16")
    return [plain(name, 60) for name in names], codes.astype("int32"), gpus


def map_figure(
    activity: Activity,
    ranks: pd.DataFrame | None,
    data: dict[str, Any],
    *,
    title: str,
    dark: bool,
    height: int,
    palette: list[str],
    words: list[str],
    told: str = "state",
) -> figure:
    """Return the figure of an image of ranks × time, with hover, click and y ticks; `words` say what each value of it means."""
    from bokeh.models import ColumnDataSource, CustomJS, CustomJSHover, HoverTool, LinearColorMapper

    count = len(activity.ranks)
    begin, end = float(activity.edges[0]), float(activity.edges[-1])
    made = figure_of(
        title, dark=dark, height=height, span=(begin, end), y_label="rank",
        x_range=_range(begin * 1e3, end * 1e3), y_range=_range(count, 0),
    )  # fmt: skip
    made.grid.visible = False
    names, codes, gpus = _nodes(activity, ranks)
    rows = ColumnDataSource({"rank": activity.ranks.astype("int32"), "node": codes, "gpu": gpus}, name="rows")
    source = ColumnDataSource(data, name="image")
    mapper = LinearColorMapper(palette=palette, low=-0.5, high=len(palette) - 0.5)
    drawn = made.image("image", x="x", y="y", dw="dw", dh="dh", source=source, color_mapper=mapper, name="map")
    # a source and no list: Bokeh looks for models in each element of a list, of two thousand nodes longer than all else takes
    nodes = ColumnDataSource({"name": np.array(names, dtype=object)}, name="nodes")
    where = {"rows": rows, "nodes": nodes, "words": words}
    hover = HoverTool(
        renderers=[drawn],
        visible=False,
        point_policy="follow_mouse",
        tooltips=[
            ("rank", "@who{rank}"), (told, "@image{word}"), ("where", "@who{where}"), ("time", "$x{utc}"), ("local", "$x{local}"),
        ],
        formatters={
            "@who": CustomJSHover(
                args=where,
                code="if(format==='rank')return String(rows.data.rank[value]);const n=rows.data.node[value],g=rows.data.gpu[value];"
                "return (n<0?'node not known':nodes.data.name[n])+(g<0?'':' GPU '+g)",
            ),
            "@image": CustomJSHover(args=where, code="return words[value]??''"),
            "$x": time_hover(),
        },
    )  # fmt: skip
    made.add_tools(hover)
    tapped = ColumnDataSource({name: [] for name in ("rank", "row", "time", "node", "gpu", "state")}, name="tapped")
    chosen = CustomJS(
        args={**where, "source": source, "tapped": tapped},
        code="""
        const {x, y, dw, dh, image, who} = source.data, [high, wide] = who[0].shape ?? [who[0].length, who[0][0].length];
        const i = Math.floor((cb_obj.y - y[0]) / dh[0] * high), j = Math.floor((cb_obj.x - x[0]) / dw[0] * wide);
        if (!(i >= 0 && i < high && j >= 0 && j < wide)) return;
        const row = who[0][i * wide + j], node = rows.data.node[row];
        tapped.data = {rank: [rows.data.rank[row]], row: [row], time: [cb_obj.x / 1e3], node: [node < 0 ? '' : nodes.data.name[node]],
                       gpu: [rows.data.gpu[row]], state: [words[image[0][i * wide + j]]]};""",
    )
    # two clicks within 0.3 s are one double click to Bokeh, wherever the second one is
    for kind in ("tap", "doubletap"):
        made.js_on_event(kind, chosen)
    made.tags = [tapped, rows, nodes]  # kept with the figure, and found by name
    _ticks(made, activity, names, codes, rows)
    return made


def _range(start: float, end: float) -> Any:
    from bokeh.models import Range1d

    return Range1d(start=start, end=end, bounds=(min(start, end), max(start, end)))


def _ticks(made: figure, activity: Activity, names: list[str], codes: np.ndarray, rows: Any) -> None:
    """Name nodes at the y axis where there is room for each, else count ranks in powers of two."""
    from bokeh.models import AdaptiveTicker, CustomJSTickFormatter, FixedTicker

    count = len(activity.ranks)
    changes = np.flatnonzero(np.diff(codes)) + 1
    blocks = np.concatenate([[0], changes, [count]])
    if names and len(blocks) - 1 <= NAMED_NODES and len(blocks) - 1 >= len(names):
        middles = (blocks[:-1] + blocks[1:]) / 2
        made.yaxis.ticker = FixedTicker(ticks=[float(one) for one in middles])
        made.yaxis.major_label_overrides = {
            float(at): names[codes[row]] if codes[row] >= 0 else "?" for at, row in zip(middles, blocks[:-1], strict=True)
        }
        made.yaxis.axis_label = "node"
        return
    made.yaxis.ticker = AdaptiveTicker(base=2, mantissas=[1], min_interval=1, num_minor_ticks=0, desired_num_ticks=8)
    regular = bool((activity.ranks == np.arange(count)).all())
    made.yaxis.formatter = CustomJSTickFormatter(
        args={"rows": rows, "regular": regular},
        code="return Number.isInteger(tick)?(regular?tick:rows.data.rank[tick]??'').toLocaleString('en'):''",
    )


def mark_events(made: figure, activity: Activity, ranks: pd.DataFrame | None, events: pd.DataFrame, dark: bool) -> None:
    """Draw a marker for each event that is evidence and has a time and a place."""
    from bokeh.models import ColumnDataSource, HoverTool

    wanted = events[events["evidence"].notna() & events["time"].notna()].sort_values("evidence").head(MOST_MARKERS)
    names, codes, _ = _nodes(activity, ranks)
    asked = {plain(node, 60) for node in wanted["node"].dropna()}
    place = {name: float(np.flatnonzero(codes == code).mean()) for code, name in enumerate(names) if name in asked}
    columns: dict[str, list[Any]] = {name: [] for name in ("x", "y", "role", "number", "what", "text")}
    for x, (_, event) in zip(milliseconds(wanted["time"]), wanted.iterrows(), strict=True):
        row: float | None = None
        if _known(event["rank"]):
            at = int(np.searchsorted(activity.ranks, int(event["rank"])))
            row = at if at < len(activity.ranks) and activity.ranks[at] == int(event["rank"]) else None
        if row is None and _known(event["node"]):
            row = place.get(plain(event["node"], 60))
        if row is None:
            continue
        columns["x"].append(x)
        columns["y"].append(row + 0.5)
        columns["role"].append(event["role"] if event["role"] in ROLE_MARKERS else "context")
        columns["number"].append(str(int(event["evidence"]) + 1))
        columns["what"].append(plain(event["signature"], 60))
        columns["text"].append(plain(event["text"]))
    if columns["x"]:
        long = float(np.ptp(activity.edges)) * 1e3
        drawn = evidence_glyphs(
            made, ColumnDataSource(columns, name="events"), dark,
            near=(long * 0.025, len(activity.ranks) * 0.05), turn=float(activity.edges[0]) * 1e3 + long * 0.9,
        )  # fmt: skip
        made.add_tools(
            HoverTool(
                renderers=[drawn], visible=False, tooltips=[("evidence", "@number, @role"), ("what", "@what"), ("line", "@text")]
            )
        )


def _known(value: Any) -> bool:
    import pandas as pd

    return not pd.isna(value)
