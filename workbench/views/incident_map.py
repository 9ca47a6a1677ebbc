"""Turn what ranks did, or how far they came, into the incident's map: one colouring at a time, zoomed and marked as the link says."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import panel as pn

from workbench.views.markup import render
from workbench.views.surface import Surface

if TYPE_CHECKING:
    from workbench.casefile.model import Activity
    from workbench.views.incident import IncidentView

__all__ = ["COLOURS", "figure_pane", "map_of_ranks", "missing", "unseen"]

COLOURS = {"state": "State", "steps": "Steps behind the median"}
_FRAME = {
    "border": "1px solid var(--line, var(--jp-border-color2, #dce2ea))", "border-radius": "10px", "overflow": "hidden",
    "background": "var(--card, var(--jp-layout-color0, #fff))",
}  # fmt: skip


def missing(title: str, why: list[str], what: str = "") -> Surface:
    """Return a designed empty state: what is not there, why, and what to do."""
    return Surface(render("incident.j2", "missing", title=title, why=why, what=what), margin=0)


def unseen(view: IncidentView, *sources: str) -> list[str]:
    """Return what the coverage tells of sources: why something is missing, in the verdict's own words."""
    rows = [row for row in view.document["coverage"] if row["status"] != "ok" and (not sources or row["source"] in sources)]
    return [f"{row['source']}: {row['status']}" + (f", {row['detail']}" if row.get("detail") else "") for row in rows[:6]]


def figure_pane(made: Any) -> pn.viewable.Viewable:
    """Return a Bokeh figure, or HoloViews object, as a part of the page."""
    return pn.Column(pn.panel(made, sizing_mode="stretch_width", margin=0), sizing_mode="stretch_width", margin=0, styles=_FRAME)


def map_of_ranks(view: IncidentView) -> Any:
    """Return the map of ranks × time, with a choice of colours where logs tell of steps; it is drawn anew when another is chosen."""
    activity = view.case.activity
    if activity is None:
        return missing(
            "What ranks did over time is not known",
            unseen(view, "job") or ["No log of a rank has times."],
            "The table lists them all the same.",
        )
    choice = Surface(heard=view.heard, margin=(0, 0, 6, 0))
    box = pn.Column(sizing_mode="stretch_width", margin=0)
    watched: list[Any] = []
    bins: list[Any] = []  # a tenth of a second for 16,384 ranks, once
    able = told_steps(activity)

    def draw(*_: Any) -> None:
        choice.html = render("incident.j2", "colours", items=COLOURS, current=view.colour, able=able, base=view.base)
        while watched:
            view.param.unwatch(watched.pop())
        if view.colour == "steps" and able and not bins:
            from workbench.plots.step_map import lag_bins

            bins.append(lag_bins(activity))
        made, again = _figure(view, activity, bins[0] if bins and view.colour == "steps" else None)
        watched.extend([_zoom(view, made, activity, again), _mark_rank(view, made, activity)])
        box[:] = [figure_pane(made)]

    draw()
    view.param.watch(draw, "colour")
    return pn.Column(choice, box, sizing_mode="stretch_width", margin=0)


def told_steps(activity: Activity) -> bool:
    """Tell whether any rank told a step, so that progress can be compared."""
    import numpy as np

    return activity.steps is not None and not bool(np.isnan(activity.steps).all())


def _figure(view: IncidentView, activity: Activity, bins: Any) -> tuple[Any, Callable[..., dict[str, Any]]]:
    """Return the figure, and what pools its image anew for a range; `bins` are those of steps, None colours by state."""
    from workbench.plots.rank_map import follow_zoom, on_tap, rank_map, rank_map_data

    more: dict[str, Any] = {"events": view.case.events, "dark": view.dark}
    again: Callable[..., dict[str, Any]] = rank_map_data
    if bins is None:
        made = rank_map(activity, view.case.ranks, **more)
    else:
        from workbench.plots.step_map import step_map, step_map_data

        made, again = step_map(activity, view.case.ranks, bins=bins, **more), partial(step_map_data, bins=bins)
    on_tap(made, lambda rank, _second: view.go(rank=str(rank)))
    follow_zoom(made, activity, again)
    return made, again


def _mark_rank(view: IncidentView, made: Any, activity: Activity) -> Any:
    """Draw a line through the rank that is looked at; return what watches it."""
    from bokeh.models import Span

    line = Span(dimension="width", line_color="#5b6b86", line_width=1.5, line_dash=[6, 3], name="chosen", visible=False)
    made.add_layout(line)

    def place(*_: Any) -> None:
        at = None if view.rank is None else int(activity.ranks.searchsorted(view.rank))
        there = at is not None and at < len(activity.ranks) and int(activity.ranks[at]) == view.rank
        line.update(visible=there, location=(at or 0) + 0.5)

    place()
    return view.param.watch(place, "rank")


def _zoom(view: IncidentView, made: Any, activity: Activity, again: Callable[..., dict[str, Any]]) -> Any:
    """Let the map's axes be what the link says, and the link what the map is zoomed to; return what watches the link."""
    from bokeh.events import RangesUpdate

    whole_time = (float(activity.edges[0]), float(activity.edges[-1]))
    count = len(activity.ranks)

    def place(*_: Any) -> None:
        drawn = made.select_one({"name": "map"})
        begin, end = view.time_range or whole_time
        first, last = view.rank_range or (int(activity.ranks[0]), int(activity.ranks[-1]))
        low, high = (int(activity.ranks.searchsorted(first)), int(activity.ranks.searchsorted(last, "right")))
        if drawn is None or busy:
            return
        made.x_range.update(start=begin * 1e3, end=end * 1e3)
        made.y_range.update(start=high, end=low)
        drawn.data_source.data = again(activity, (low, high), (begin, end))

    busy: list[int] = []

    def zoomed(event: Any) -> None:
        begin, end = max(event.x0 / 1e3, whole_time[0]), min(event.x1 / 1e3, whole_time[1])
        low, high = sorted((event.y0, event.y1))
        low, high = max(0, int(low)), min(count, max(int(high + 0.999), int(low) + 1))
        busy.append(1)
        try:
            view.param.update(
                time_range=None if (begin, end) == whole_time or begin >= end else (round(begin, 3), round(end, 3)),
                rank_range=None
                if (low, high) == (0, count)
                else (int(activity.ranks[min(low, count - 1)]), int(activity.ranks[high - 1])),
            )
        finally:
            busy.clear()

    if view.time_range or view.rank_range:
        place()
    made.on_event(RangesUpdate, zoomed)
    return view.param.watch(place, ["time_range", "rank_range"])
