"""Turn the poller's snapshot into the page of one node: its GPUs, what checks and conditions say, its history, its last hour, its events."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

import pandas as pd
import panel as pn
import param

from workbench.plots.metrics import metric_panels, update_panels
from workbench.views.fleet import fleet_css, unwell
from workbench.views.fleet_model import age, rows_of
from workbench.views.markup import css, known, render, seconds
from workbench.views.permalink import parse, read, text, whole, write
from workbench.views.surface import Surface

__all__ = ["NodeView", "kernel_lines"]

FIELDS = {"node": text(253), "gpu": whole(0, 1023)}
PANELS = ("temperature", "power", "use", "memory", "clocks", "ecc", "nvlink", "pcie-errors", "xid")
COLUMNS = 3
_EVENTS = 60
_WELL = ("ok", "not-applicable")


def kernel_lines(
    held: Callable[[str], Any], ask: Callable[[str], object], *, most: int = 3
) -> Callable[[list[str], str], pd.DataFrame | None]:
    """
    Return what gives kernel events of a node out of the case files of its incidents; see `NodeView`.

    Parameters
    ----------
    held : callable
        Id → case file when it is in memory, else None; never waits.
    ask : callable
        Id → lets somebody bring it into memory; never waits. The next snapshot then shows it.
    most : int
        How many of a node's incidents, the newest first.
    """
    asked: set[str] = set()

    def lines(ids: list[str], node: str) -> pd.DataFrame | None:
        found = []
        for one in ids[:most]:
            case = held(one)
            if case is not None:
                events = case.events
                found.append(events[(events["node"] == node) & (events["source"] == "kernel")].tail(_EVENTS))
            elif one not in asked:
                asked.add(one)
                ask(one)
        return pd.concat(found) if found else None

    return lines


class NodeView(pn.viewable.Viewer):
    """
    One node.

    Parameters
    ----------
    poller : Poller or None
        Whose snapshots are shown.
    events_of : callable, optional
        Returns, for the ids of incidents, what their case files have of kernel events of a node, as rows of `workbench.frames.EVENTS`;
        must not wait.
    dark : bool
        The appearance of plots.
    keep : mapping, optional
        What links carry on of the address, such as the theme.
    clock : callable, optional
        Returns seconds since the epoch.
    later : bool
        Whether the plots of the last hour, some hundred models, wait for `show_hour`: a page is readable a second earlier without them.

    Attributes
    ----------
    node : str or None
        Its name.
    gpu : int or None
        The GPU that is looked at; None is all of them.
    """

    node = param.String(default=None, allow_None=True)
    gpu = param.Integer(default=None, allow_None=True, bounds=(0, None))

    def __init__(
        self,
        poller: Any,
        *,
        events_of: Callable[[list[str], str], pd.DataFrame | None] | None = None,
        dark: bool = False,
        keep: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
        later: bool = False,
    ) -> None:
        super().__init__()
        self._later = later
        self._poller, self.dark, self._keep, self._clock, self._events_of = poller, dark, dict(keep or {}), clock, events_of
        self._version, self._was_stale = -1, False
        self._figures: list[Any] = []
        self._looked: tuple[Any, ...] = ()
        sheets = [css(), fleet_css()]

        def part(look: str = "framed") -> Surface:
            return Surface(heard=self.heard, stylesheets=sheets[1:], look=look, margin=0)

        self._head, self._gpus = part(""), part()
        self._findings, self._conditions, self._history, self._events = part(), part(), part(), part()
        self._hour = pn.pane.HTML(sizing_mode="stretch_width", margin=0, stylesheets=sheets)
        self._plots = pn.GridBox(ncols=COLUMNS, sizing_mode="stretch_width", margin=0)
        card = {
            "border": "1px solid var(--line, #dce2ea)",
            "border-radius": "10px",
            "background": "var(--card, #fff)",
            "padding": "12px 16px 14px",
        }
        self._metrics = pn.Column(self._hour, self._plots, sizing_mode="stretch_width", margin=0, styles=card)
        wide = {"gap": "12px", "align-items": "start"}
        left = pn.Column(self._findings, self._history, sizing_mode="stretch_width", margin=0, styles={"gap": "12px"})
        right = pn.Column(self._conditions, self._events, sizing_mode="stretch_width", margin=0, styles={"gap": "12px"})
        self._rest = pn.Column(
            self._gpus, self._metrics, pn.Row(left, right, sizing_mode="stretch_width", margin=0, styles=wide),
            sizing_mode="stretch_width", margin=0, styles={"gap": "12px"},
        )  # fmt: skip
        self._layout = pn.Column(self._head, self._rest, sizing_mode="stretch_width", margin=0, styles={"gap": "12px"})

    def __panel__(self) -> Any:
        if self._version < 0:
            self.refresh()
        return self._layout

    def first(self) -> str:
        """Return HTML of what matters most, to be seen before any script has run: the node, why it is as it is, its GPUs."""
        if self._poller is None or not self.node or self._version >= 0:
            return ""
        self.refresh()
        return "".join(
            f'<style>{fleet_css()}</style><div class="wb {one.look}" style="margin-bottom:12px">{one.html}</div>'
            for one in (self._head, self._gpus)
            if one.html
        )

    # the state, as a link holds it

    def state(self) -> dict[str, str]:
        """Return the address's query."""
        return write(FIELDS, {"node": self.node, "gpu": self.gpu}, dict.fromkeys(FIELDS))

    def set_state(self, state: Mapping[str, str]) -> None:
        """Show the node that an address names; a GPU that makes no sense is left out."""
        values, _ = read(FIELDS, state)
        self.param.update(node=values.get("node"), gpu=values.get("gpu"))

    def heard(self, asked: str) -> None:
        """Look at a GPU of the node; asked for again, at all of them."""
        values, _ = read(FIELDS, parse(asked))
        if "gpu" in values:
            self.gpu = None if values["gpu"] == self.gpu else values["gpu"]

    # what is shown

    def refresh(self) -> None:
        """Take the newest snapshot and draw what of it is new; waits for nothing."""
        if self._poller is None:
            self._alone(render("fleet.j2", "no_fleet"))
            return
        if self.node:
            self._poller.watch(self.node)
        version, snapshot = self._poller.state
        stale = snapshot.stale(self._clock())
        if version != self._version or stale != self._was_stale:
            self._version, self._was_stale = version, stale
            self._draw()

    @param.depends("node", "gpu", watch=True)
    def _changed(self) -> None:
        if self._poller is not None:
            if self.node:
                self._poller.watch(self.node)
            if self._version >= 0:  # not before the page is there
                self._draw()

    def _alone(self, html: str) -> None:
        self._head.html = html
        self._rest.visible = False

    def ages(self, moment: Any) -> str:
        """Return how long ago a moment of a frame was."""
        at = seconds(moment)
        return "" if at is None else age(self._clock() - at)

    def _draw(self) -> None:
        snapshot = self._poller.snapshot
        found = snapshot.nodes[snapshot.nodes["node"] == self.node] if self.node else snapshot.nodes.head(0)
        if not len(found):
            names = [str(name) for name in snapshot.nodes["node"]]
            near = get_close_matches(self.node or "", names, 3, 0.6)
            self._alone(render("fleet.j2", "no_node", name=self.node, waiting=not names, near=near, keep=self._keep))
            return
        node = {str(key): known(value) for key, value in found.iloc[0].items()}
        stale = snapshot.stale(self._clock())
        suspect = rows_of(snapshot.suspects[snapshot.suspects["node"] == self.node].head(1))
        self._rest.visible = True
        self._head.html = render(
            "fleet.j2", "node_head", node=node, facts=self._facts(node), keep=self._keep, suspect=suspect[0] if suspect else None,
            demo=bool(snapshot.data.get("demo")), late=snapshot.time if stale else None, stale=stale, lost=unwell(snapshot),
            plan=f"workbench plan --node {shlex.quote(str(self.node))}",
        )  # fmt: skip
        self._draw_gpus(snapshot)
        self._draw_findings(snapshot, node)
        conditions = snapshot.conditions[snapshot.conditions["node"] == self.node]
        conditions = conditions.assign(order=conditions["bad"].astype("object").map({True: 0, False: 2}).fillna(1)).sort_values(
            ["order", "kind", "name"]
        )
        query = next(iter(snapshot.queries.get("conditions", {}).values()), "")
        rows = rows_of(conditions)
        well = [row for row in rows if row["bad"] is False]
        rest = [row for row in rows if row["bad"] is not False]
        self._conditions.html = render("fleet.j2", "node_conditions", rows=rest, well=well, ages=self.ages, query=query)
        self._history.html = render("fleet.j2", "node_history", rows=self._past(snapshot), keep=self._keep)
        self._events.html = render("fleet.j2", "node_events", rows=self._told(snapshot))
        self._draw_hour(snapshot)

    def _facts(self, node: Mapping[str, Any]) -> list[tuple[str, str, str]]:
        takes = {None: "not known", True: "yes", False: "no"}[node["schedulable"]]
        held = f", held by {node['held_by']}" if node["held_by"] else ""
        ready = "–" if node["gpus_ready"] is None else str(node["gpus_ready"])
        checked = self.ages(node["checked"])
        return [
            ("takes work", takes + held, ""),
            ("state", node["state"] or "not told", "the scheduler's own word"),
            ("job", node["job"] or "none", ""),
            ("GPUs ready", f"{ready} of {node['gpus']}", "what its scheduler can give away, of what it should have"),
            ("product", node["sku"] or "not told", ""),
            ("pool, zone", ", ".join(one for one in (node["pool"], node["zone"]) if one) or "not told", ""),
            ("checked", f"{checked} ago" if checked else "never, as far as known", ""),
            ("so for", self.ages(node["since"]) or "–", "since when it is as it is, as far as told"),
        ]

    def _draw_gpus(self, snapshot: Any) -> None:
        gpus = rows_of(snapshot.gpus[snapshot.gpus["node"] == self.node])
        names = {"temperature": "°C", "power": "W", "utilization": "use", "memory_used": "memory", "xid": "Xid"}
        queries = [
            (title, one["promql"]) for key, title in names.items() if (one := snapshot.queries.get(key)) and one.get("promql")
        ]
        self._gpus.html = render(
            "fleet.j2", "node_gpus", gpus=gpus, chosen=self.gpu, node=self.node, keep=self._keep, queries=queries
        )

    def _draw_findings(self, snapshot: Any, node: Mapping[str, Any]) -> None:
        rows = rows_of(snapshot.findings[snapshot.findings["node"] == self.node])
        bad = [row for row in rows if row["status"] not in _WELL]
        well = [row for row in rows if row["status"] in _WELL]
        self._findings.html = render("fleet.j2", "node_findings", bad=bad, well=well, ages=self.ages, checked=node["checked"])

    def _past(self, snapshot: Any) -> list[dict[str, Any]]:
        """Return incidents and actions of the node, newest first."""
        rows = [{**row, "kind": "action"} for row in rows_of(snapshot.actions[snapshot.actions["node"] == self.node])]
        if snapshot.incidents is not None:
            rows += [{**row, "kind": "incident"} for row in rows_of(snapshot.incidents[snapshot.incidents["node"] == self.node])]
        return sorted(rows, key=lambda row: -(seconds(row["time"]) or 0.0))[:_EVENTS]

    def _told(self, snapshot: Any) -> list[dict[str, Any]]:
        """Return events of the node, newest first: those of the snapshot, and of kernels in the case files of its incidents."""
        rows = rows_of(snapshot.events[snapshot.events["node"] == self.node]) if snapshot.events is not None else []
        if self._events_of is not None and snapshot.incidents is not None:
            ids = [str(one) for one in snapshot.incidents.loc[snapshot.incidents["node"] == self.node, "id"].dropna()]
            more = self._events_of(ids, str(self.node)) if ids else None
            rows += rows_of(more) if more is not None else []
        return sorted(rows, key=lambda row: -(seconds(row["time"]) or 0.0))[:_EVENTS]

    def show_hour(self) -> None:
        """Draw the last hour from now on."""
        self._later = False
        if self._version >= 0 and self._rest.visible:
            self._draw_hour(self._poller.snapshot)

    def _draw_hour(self, snapshot: Any) -> None:
        """Draw the last hour, when it is time for it: new data into the figures there are, other figures when another thing is looked at."""
        if self._later:
            return
        samples = snapshot.samples
        mine = samples[samples["node"].astype("object") == self.node] if len(samples) else samples
        title = f"The last hour{f' of GPU {self.gpu}' if self.gpu is not None else ', a line for each GPU'}"
        if not len(mine):
            self._figures, self._looked = [], ()
            self._plots[:] = []
            why = (
                "No sample of this node within the last hour"
                if self._version > 1
                else "The last hour of this node is being asked for"
            )
            self._hour.object = f'<div class="wb">{render("fleet.j2", "node_hour", title=title, why=why)}</div>'
            return
        self._hour.object = f'<div class="wb">{render("fleet.j2", "node_hour", title=title, why="")}</div>'
        looked = self.node, self.gpu is None
        if looked == self._looked and self._figures and update_panels(self._figures, mine, node=self.node, gpu=self.gpu):
            return
        made = metric_panels(mine, node=self.node, gpu=self.gpu, dark=self.dark, height=170, only=PANELS)
        self._figures, self._looked = made, looked
        self._plots[:] = [pn.pane.Bokeh(one, sizing_mode="stretch_width", margin=(0, 8, 8, 0)) for one in made]
