"""Turn a newer frame of the same GPUs into changes of a map that is shown already: data are replaced, no figure is made anew in the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.plots.gpu_map import GAP, gpu_map

if TYPE_CHECKING:
    import pandas as pd
    from bokeh.plotting import figure

__all__ = ["highlight_node", "update_gpu_map"]


def update_gpu_map(made: figure, gpus: pd.DataFrame, *, dark: bool = False, height: int | None = None) -> bool:
    """
    Let a map of `workbench.plots.gpu_map.gpu_map` show newer health of the same GPUs.

    Parameters
    ----------
    made : figure
        What is shown.
    gpus : DataFrame
        As for `gpu_map`.

    Returns
    -------
    bool
        False when these are other nodes or GPUs, which need a new figure; nothing is changed then.
    """
    from bokeh.models import CustomJSHover

    new = gpu_map(gpus, dark=dark, height=height)
    source, cells, fresh, now = _source(made), _cells(made), _source(new), _cells(new)
    if source is None or cells is None or fresh is None or now is None:
        return False
    if fresh.data["image"][0].shape != source.data["image"][0].shape:
        return False
    if any(not np.array_equal(now.data[name], cells.data[name]) for name in ("node", "gpu")):
        return False
    formatters = _formatters(made), _formatters(new)
    for key, theirs in formatters[1].items():
        mine = formatters[0].get(key)
        if isinstance(mine, CustomJSHover) and mine.args.get("names") != theirs.args.get("names"):
            return False
    for key, theirs in formatters[1].items():
        mine = formatters[0].get(key)
        if isinstance(mine, CustomJSHover) and mine.args.get("facts") != theirs.args.get("facts"):
            mine.args = {**theirs.args, "cells": cells}
    if not np.array_equal(fresh.data["image"][0], source.data["image"][0]):
        source.data = {**source.data, "image": fresh.data["image"], "who": fresh.data["who"]}
    labels = _labels(made), _labels(new)
    if len(labels[0]) == len(labels[1]):
        for item, other in zip(*labels, strict=True):
            if item.label != other.label:
                item.label = other.label
    return True


def highlight_node(made: figure, node: str | None, names: list[str], *, dark: bool = False) -> None:
    """
    Put a frame around a node on a map, or take it away.

    Parameters
    ----------
    node : str or None
    names : list of str
        The nodes of the map in its order.
    """
    from bokeh.models import ColumnDataSource, Quad

    from workbench.plots.theme import theme

    box = _box(made, node, names)
    data = (
        {"left": [box[0]], "right": [box[1]], "top": [box[2]], "bottom": [box[3]]}
        if box
        else {key: [] for key in ("left", "right", "top", "bottom")}
    )
    drawn = _named(made, "chosen")
    if drawn is not None:
        drawn.data_source.data = data
    elif box:
        glyph = Quad(
            left="left", right="right", top="top", bottom="bottom", fill_color=None, line_color=theme(dark).ink, line_width=2.5
        )
        made.add_glyph(ColumnDataSource(data), glyph, name="chosen")


def _box(made: figure, node: str | None, names: list[str]) -> tuple[float, float, float, float] | None:
    source, cells = _source(made), _cells(made)
    if node is None or node not in names or source is None or cells is None:
        return None
    image, who = source.data["image"][0], source.data["who"][0]
    hit = (np.asarray(cells.data["node"])[who] == names.index(node)) & (image != GAP)
    rows, columns = np.nonzero(hit)
    if not len(rows):
        return None  # a worse node stands in its column
    return float(columns.min()), float(columns.max() + 1), float(rows.min()), float(rows.max() + 1)


# `select` walks every value of every model, names of thousands of nodes among them: a quarter of a second; these look where things are


def _named(made: figure, name: str) -> Any:
    return next((one for one in made.renderers if one.name == name), None)


def _source(made: figure) -> Any:
    drawn = _named(made, "map")
    return None if drawn is None else drawn.data_source


def _cells(made: figure) -> Any:
    return next((one for one in made.tags if getattr(one, "name", "") == "cells"), None)


def _formatters(made: figure) -> dict[str, Any]:
    return next((dict(tool.formatters) for tool in made.tools if hasattr(tool, "formatters")), {})


def _labels(made: figure) -> list[Any]:
    return [
        item for place in (made.above, made.below, made.center) for one in place if hasattr(one, "items") for item in one.items
    ]
