"""Turn metric series into events with the time at which something began, seen against the entity's own past and its peers."""

from __future__ import annotations

import warnings
from copy import copy
from math import isnan

from workbench.detect.activity import activity_events
from workbench.detect.exporters import exporter_events, hide_frozen
from workbench.detect.gpu_errors import gpu_errors
from workbench.detect.gpu_states import gpu_states
from workbench.detect.grid import Grid, build_grid
from workbench.detect.hosts import host_events
from workbench.detect.throttling import throttling
from workbench.model import Event, Series
from workbench.parse.prom_labels import resolve_nodes

__all__ = ["detect_metrics"]

AFTER_END = 60.0  # seconds: a scrape interval of slack after the job let go of its GPUs


def detect_metrics(series: list[Series]) -> list[Event]:
    """
    Return what changed in the metrics, ordered by time.

    A level alone is no event when it can be history (a counter, the last-value Xid gauge): only growth inside the window is.
    What changes on nearly all GPUs of a job at once is one event with role `symptom`: the job ended or waits.

    Parameters
    ----------
    series : list of Series
        Of any number of exporters and nodes; series that know their node only by address are named from the others first.

    Returns
    -------
    list of Event
        `source` is ``metrics``; `text` quotes the sample at the onset, `file` and `line` say where it stands; `data` has field,
        group (the job by its labels), in_job (None when no label says) and what the signature needs (before, after, growth,
        peers, ratio …). `role`, `cls` and `weight` are set only where the numbers decide otherwise than the catalog row.
    """
    rows = [row for row in series if len(row.times)]
    resolve_nodes(rows)
    grid = build_grid(rows)
    if grid is None:
        return _undated(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # all-NaN slices: a field that a GPU does not have
        events = hide_frozen(grid)
        events += exporter_events(grid)
        events += gpu_errors(grid)
        events += gpu_states(grid)
        events += throttling(grid)
        events += activity_events(grid)
        events += host_events(grid)
    _after_end(grid, events)
    events += _undated([row for row in rows if isnan(row.times[0])])
    events.sort(key=lambda event: (event.time if event.time is not None else 0.0, event.signature, event.node or ""))
    for order, event in enumerate(events):
        event.order = order
    return events


def _undated(rows: list[Series]) -> list[Event]:
    """
    Return the states that scrapes without a time show; `time` is None.

    What an exporter's page shows when somebody fetches it by hand carries no stamp. Nothing grows in it, but a state in it is as
    much of now as one that nvidia-smi prints.
    """
    import numpy as np

    copies = []
    for row in rows:
        one = copy(row)
        one.times = np.zeros_like(row.values)
        copies.append(one)
    grid = build_grid(copies)
    if grid is None:
        return []
    events = [*gpu_errors(grid), *gpu_states(grid)]
    for event in events:
        event.time = None
    return events


def _after_end(grid: Grid, events: list[Event]) -> None:
    """What begins after the job let go of its GPUs cannot have ended it: context, with how long after."""
    ends: dict[str, float] = {}
    nodes: dict[str | None, float] = {}
    for entity in grid.entities:
        if entity.held and entity.group:
            ends[entity.group] = max(ends.get(entity.group, 0.0), entity.held[1])
            nodes[entity.node] = max(nodes.get(entity.node, 0.0), entity.held[1])
    for event in events:
        end = nodes.get(event.node) or ends.get(event.data.get("group") or "")
        if end is None or event.time is None or event.time <= end + AFTER_END or event.signature.startswith("metric-xid"):
            continue
        event.data["after_end"] = round(event.time - end, 1)
        if event.role != "symptom":
            event.role, event.weight = "context", 0.05
