"""
Turn a fleet's GPUs into one image by health, where each GPU has its cells as long as there are pixels for it.

A few nodes are rows with their names; thousands stand side by side as strips of their GPUs, in bands, in the order of the frame (sort
and filter it first). More GPUs than pixels are pooled: the worst is drawn, and a click opens it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.plots.base import empty, figure_of, keys, note, plain
from workbench.plots.theme import HEALTH, STATES, theme

if TYPE_CHECKING:
    import pandas as pd
    from bokeh.plotting import figure

__all__ = ["gpu_map", "gpu_map_data", "on_gpu", "placement_map"]

NAMED = 24  # nodes up to which each is a row with its name
WIDTH, HEIGHT, BORDER = 1000, 380, 92
GAP = 255  # in the image: no GPU, nothing drawn


def gpu_map(gpus: pd.DataFrame | None, *, dark: bool = False, height: int | None = None, title: str = "GPUs by health") -> figure:
    """
    Return the map of all GPUs as a Bokeh figure.

    Parameters
    ----------
    gpus : DataFrame or None
        Columns of `workbench.site.model.GPUS`; nodes stand in the order in which they come first. A health that is missing or no
        word of HEALTH is drawn as ``unknown``, never as ``ok``.
    dark : bool
        The appearance.
    height : int, optional
        Pixels; default by the number of nodes.

    Returns
    -------
    figure
        Its models by name: the renderer ``map``; ``tapped``, a `ColumnDataSource` with what was clicked last, in columns node, gpu
        (-1: the node tells no index) and state (read it with `on_gpu`).
    """
    if gpus is None or not len(gpus):
        return empty(title, "No GPU is known: no source told of one, or the filter leaves none.", dark=dark)
    return _grid(gpus, gpus["health"], HEALTH, theme(dark).health, "unknown", "why", dark, height, title, "GPUs")


def placement_map(
    ranks: pd.DataFrame | None, *, dark: bool = False, height: int | None = None, title: str = "Where it ran"
) -> figure:
    """
    Return where the ranks of one job ran, nodes × GPUs, coloured by how each rank ended (columns of `workbench.casefile.model.RANKS`).

    Of a rank whose GPU is not known, its place on the node (``local_rank``) stands for it; the models are those of `gpu_map`.
    """
    if ranks is None or not len(ranks) or ranks["node"].isna().all():
        return empty(title, "No source tells on which nodes the ranks ran.", dark=dark)
    placed = ranks[ranks["node"].notna()]
    frame = placed.assign(
        gpu_index=placed["gpu_index"].fillna(placed["local_rank"]) if "local_rank" in placed else placed["gpu_index"]
    )
    made = _grid(frame, frame["state"], STATES, theme(dark).states, "unknown", "rank", dark, height, title, "ranks")
    if len(placed) < len(ranks):
        note(made, f"{len(ranks) - len(placed):,} ranks without a known node are not drawn", dark)
    return made


def on_gpu(made: figure, callback: Callable[[str, int | None], None]) -> None:
    """Call ``callback(node, gpu)`` when a GPU is clicked; needs a live Python behind the page."""
    tapped = made.select_one({"name": "tapped"})
    if tapped is None:  # an empty figure
        return

    def told(_attr: str, _old: Any, new: Any) -> None:
        if len(new.get("node", ())):
            gpu = int(new["gpu"][0])
            callback(str(new["node"][0]), gpu if gpu >= 0 else None)

    tapped.on_change("data", told)


def gpu_map_data(codes: np.ndarray, nodes: np.ndarray, slots: np.ndarray, *, high: int, wide: int = WIDTH) -> dict[str, Any]:
    """
    Return the image of a fleet.

    Parameters
    ----------
    codes : ndarray of uint8
        Severity of each GPU.
    nodes, slots : ndarray of int
        Position of its node (0, 1 …) and its place on the node (0, 1 …).
    high, wide : int
        Pixels that there are.

    Returns
    -------
    dict
        ``image`` (uint8, 255 where there is nothing), ``who`` (row of the GPU drawn, in the order given), and ``bands``, ``strip``
        (rows of a band with its gap), ``pool`` (nodes to a column), ``named`` (nodes are rows).
    """
    count, most = int(nodes.max()) + 1, int(slots.max()) + 1
    if count <= NAMED:
        shape, bands, strip, share, named = (count, most), 1, count, 1, True
        row, column = nodes, slots
    else:
        strip = most + 1
        bands = max(min(round(float(np.sqrt(count * high / (wide * strip)))), high // strip), 1)
        columns = -(-count // bands)
        share = -(-columns // (wide // 2)) if columns > wide // 2 else 1  # a cell less than two pixels wide cannot be hit
        columns = -(-columns // share)
        bands = -(-count // (columns * share))
        shape, named = (bands * strip - 1, columns), False
        place = nodes // share
        row, column = place // columns * strip + slots, place % columns
    image = np.full(shape, GAP, "uint8")
    who = np.zeros(shape, "uint32")
    # The worst last, so that it stays where several share a cell
    order = np.argsort(codes, kind="stable")
    image[row[order], column[order]] = codes[order]
    who[row[order], column[order]] = order
    return {"image": image, "who": who, "bands": bands, "strip": strip, "pool": share, "named": named}


def _grid(
    frame: pd.DataFrame, health: pd.Series, words: tuple[str, ...], colours: Any, otherwise: str, more: str, dark: bool,
    height: int | None, title: str, things: str,
) -> figure:  # fmt: skip
    """Return the figure of GPUs (or ranks) as cells."""
    import pandas as pd
    from bokeh.models import ColumnDataSource, CustomJS, CustomJSHover, HoverTool, LinearColorMapper, Range1d

    codes = health.map({word: code for code, word in enumerate(words)}).fillna(words.index(otherwise)).to_numpy("uint8")
    nodes, names = pd.factorize(frame["node"].fillna("node not known"))
    index = pd.to_numeric(frame["gpu_index"]).fillna(-1).to_numpy("int64")
    # A GPU without an index takes the next free place of its node; so does a second one of the same index (it is a different GPU)
    order = pd.Series(np.where(index < 0, np.iinfo("int64").max, index)).groupby(nodes).rank(method="first").to_numpy("int64") - 1
    clash = pd.DataFrame({"node": nodes, "index": index}).duplicated().to_numpy() | (index < 0) | (index > 63)
    slots = np.where(pd.Series(clash).groupby(nodes).transform("any").to_numpy(), order, index)
    if height is None:
        height = BORDER + (max(len(names), 2) * 20 if len(names) <= NAMED else HEIGHT - BORDER)
    data = gpu_map_data(codes, nodes, slots, high=height - BORDER)
    image, who = data["image"], data["who"]
    rows, columns = image.shape
    made = figure_of(
        title, dark=dark, height=height, x_range=Range1d(start=0, end=columns, bounds=(0, columns)),
        y_range=Range1d(start=rows, end=0, bounds=(0, rows)),
    )  # fmt: skip
    made.grid.visible = False
    table = theme(dark)
    mapper = LinearColorMapper(palette=[colours[word] for word in words], low=-0.5, high=len(words) - 0.5, high_color=table.card)
    source = ColumnDataSource({"image": [image], "who": [who], "x": [0], "y": [0], "dw": [columns], "dh": [rows]}, name="image")
    drawn = made.image("image", x="x", y="y", dw="dw", dh="dh", source=source, color_mapper=mapper, name="map")
    # What hover tells of each; a sentence goes along only for what is not well, since thousands of equal ones say nothing
    told = frame[more].astype(object).where(frame[more].notna(), "") if more in frame else pd.Series([""] * len(frame))
    worth = codes >= words.index("unknown") if more == "why" else np.ones(len(frame), bool)
    facts = {str(row): plain(text, 90) for row, text in zip(np.flatnonzero(worth), told[worth], strict=True) if text != ""}
    cells = ColumnDataSource({"node": nodes.astype("int32"), "gpu": index.astype("int16")}, name="cells")
    # one text each: of lists and mappings Bokeh visits every element a dozen times for each page, a third of what a page of 2,000 nodes costs
    where = {
        "cells": cells,
        "names": "\n".join(plain(name, 60) for name in names),
        "words": list(words),
        "facts": json.dumps(facts),
    }
    made.add_tools(
        HoverTool(
            renderers=[drawn], visible=False, point_policy="follow_mouse",
            tooltips=[("node", "@who{node}"), ("GPU", "@who{gpu}"), ("is", "@image{word}"), (more, "@who{fact}")],
            formatters={
                "@who": CustomJSHover(
                    args=where,
                    code="const n=cells.data.node[value],g=cells.data.gpu[value];"
                    "return format==='node'?names.split('\\n')[n]:format==='gpu'?(g<0?'index not known':String(g)):"
                    "(JSON.parse(facts)[value]??'–')",
                ),
                "@image": CustomJSHover(args=where, code="return words[value]??'no GPU'"),
            },
        )
    )  # fmt: skip
    _separate(made, data, [plain(name, 60) for name in names], table.card, things)
    tapped = ColumnDataSource({name: [] for name in ("node", "gpu", "state")}, name="tapped")
    chosen = CustomJS(
        args={**where, "source": source, "tapped": tapped},
        code="""
        const {image, who, dw, dh} = source.data, i = Math.floor(cb_obj.y), j = Math.floor(cb_obj.x);
        if (!(i >= 0 && i < dh[0] && j >= 0 && j < dw[0])) return;
        const at = i * dw[0] + j, one = who[0][at];
        if (image[0][at] === 255) return;
        tapped.data = {node: [names.split('\\n')[cells.data.node[one]]], gpu: [cells.data.gpu[one]], state: [words[image[0][at]]]};""",
    )
    # two clicks within 0.3 s are one double click to Bokeh, wherever the second one is
    for kind in ("tap", "doubletap"):
        made.js_on_event(kind, chosen)
    made.tags = [tapped, cells]
    # of health all words, so that a newer frame changes numbers only and the legend does not jump
    counts = np.bincount(codes, minlength=len(words))
    keys(
        made,
        {
            f"{words[code]} {counts[code]:,}": colours[words[code]]
            for code in range(len(words) - 1, -1, -1)
            if counts[code] or words is HEALTH
        },
    )
    said = f"{len(frame):,} {things} on {len(names):,} nodes"
    if data["pool"] > 1:
        said += f", {data['pool']} nodes to a column: the worst of them is drawn, and a click opens that one"
    note(made, said, dark)
    return made


def _separate(made: figure, data: dict[str, Any], names: list[str], colour: str, things: str) -> None:
    """Put names at rows of few nodes, and thin lines between cells where these are large."""
    rows, columns = data["image"].shape
    made.xaxis.visible = data["named"]
    if data["named"]:
        made.yaxis.ticker = [row + 0.5 for row in range(rows)]
        made.yaxis.major_label_overrides = {row + 0.5: names[row] for row in range(rows)}
        made.xaxis.ticker = [column + 0.5 for column in range(columns)]
        made.xaxis.major_label_overrides = {column + 0.5: str(column) for column in range(columns)}
        made.xaxis.axis_label = "GPU"
        lines = [float(row) for row in range(1, rows)]
    else:
        made.yaxis.visible = False
        lines = []
    made.outline_line_color = None
    if lines:
        made.segment(x0=0, x1=columns, y0=lines, y1=lines, line_color=colour, line_width=2)
    if columns <= 240:
        made.segment(
            x0=list(range(1, columns)),
            x1=list(range(1, columns)),
            y0=0,
            y1=rows,
            line_color=colour,
            line_width=2 if columns <= 60 else 1,
        )
