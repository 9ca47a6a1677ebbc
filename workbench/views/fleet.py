"""Turn the poller's snapshot into the fleet's page: the map of all GPUs, counts that filter, tables, and the way to each node."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import panel as pn
import param

from workbench.plots.gpu_map import gpu_map, on_gpu
from workbench.plots.gpu_update import highlight_node, update_gpu_map
from workbench.plots.theme import HEALTH
from workbench.site.suspects import NOTE
from workbench.views.fleet_model import CAUSES, TABS, Picture, Wish, age, picture, rows_of
from workbench.views.markup import css, render, seconds
from workbench.views.permalink import choice, parse, read, text, whole, write
from workbench.views.surface import Surface
from workbench.views.tables import Table, kept

__all__ = ["FleetView", "fleet_css", "unwell"]

HIGH, SIDE = 470, 380  # pixels: of the map, and of what stands beside it
FIRST = 7  # suspects beside the map
_FIELDS = {"tab": choice(*TABS), "node": text(253), "gpu": whole(0, 1023), "tables": text(2000)}
_START = {"tab": "nodes", "node": None, "gpu": None, "tables": ""}
_COLUMNS: Mapping[str, Mapping[str, str]] = {
    "nodes": {
        "node": "node", "health": "health", "why": "why", "cause": "cause", "pool": "pool", "ready": "GPUs ready", "job": "job",
        "held_by": "held by", "state": "state", "checked": "checked",
    },
    "findings": {
        "node": "node", "gpu_index": "GPU", "status": "status", "message": "what", "check": "check", "class": "class", "action": "calls for",
        "since": "since", "source": "told by",
    },
    "conditions": {
        "node": "node", "name": "name", "status": "is", "kind": "kind", "reason": "reason", "message": "what it says", "since": "since",
    },
    "jobs": {
        "job": "job", "team": "team", "user": "user", "namespace": "namespace", "state": "state", "nodes": "nodes", "gpus": "GPUs",
        "ill": "nodes not well", "start": "started",
    },
    "suspects": {"node": "node", "gpu_index": "GPU", "score": "score", "why": "why", "incidents": "incidents", "last": "last"},
    "actions": {"time": "time", "node": "node", "verb": "action", "rung": "rung", "status": "ended", "detail": "detail", "by": "by"},
}  # fmt: skip
# one column has no width and takes what is left: one that can be short, so that what is wrong stays readable on a small screen
_WIDTHS = {
    "nodes": {
        "node": 124, "health": 98, "why": 320, "cause": 88, "pool": 108, "ready": 118, "job": 140, "held_by": 124, "checked": 160,
    },
    "findings": {"node": 124, "gpu_index": 70, "status": 98, "message": 430, "check": 118, "class": 190, "action": 112, "since": 160},
    "conditions": {"node": 124, "name": 240, "status": 110, "kind": 90, "message": 470, "since": 160},
    "jobs": {"nodes": 80, "gpus": 80, "ill": 122, "start": 160, "state": 110},
    "suspects": {"node": 160, "gpu_index": 70, "score": 80, "incidents": 100, "last": 160},
    "actions": {"time": 160, "node": 124, "status": 96, "verb": 120, "rung": 120, "by": 140},
}  # fmt: skip
_EMPTY = {
    "nodes": "No node matches.",
    "findings": "No finding speaks against these nodes. Where nobody checks, there is none either: see the nodes that are unknown.",
    "conditions": "No condition is bad, and no node is tainted.",
    "jobs": "No job holds a GPU here, or no scheduler told.",
    "suspects": "No node is suspect: none was blamed within a month, and no finding speaks against one.",
    "actions": "The journal has no action on these nodes.",
}


@lru_cache(maxsize=1)
def fleet_css() -> str:
    """Return the style sheet of the pages of fleet and node."""
    return (Path(__file__).parent / "templates" / "fleet.css").read_text("utf-8")


def unwell(snapshot: Any) -> list[Any]:
    """Return the sources that a page must speak of."""
    return [one for one in snapshot.heard if one.status in ("partial", "failed", "stale")]


class FleetView(pn.viewable.Viewer):
    """
    The fleet.

    Parameters
    ----------
    poller : Poller or None
        Whose snapshots are shown; None when there is no fleet.
    dark : bool
        The appearance of the map.
    keep : mapping, optional
        What links carry on of the address, such as the theme.
    clock : callable, optional
        Returns seconds since the epoch.

    Attributes
    ----------
    wish : Wish
        Which nodes are shown.
    tab : str
        The table that is seen, a key of `TABS`.
    node, gpu : str or None, int or None
        What was chosen on the map or in a table.
    tables : str
        How tables are sorted; see `workbench.views.tables.kept`.
    """

    wish = param.ClassSelector(class_=Wish, default=Wish())
    tab = param.Selector(default="nodes", objects=list(TABS))
    node = param.String(default=None, allow_None=True)
    gpu = param.Integer(default=None, allow_None=True, bounds=(0, None))
    tables = param.String(default="")
    refused = param.Dict(default={}, doc="What the address asks for that makes no sense: name → why.")

    def __init__(
        self,
        poller: Any,
        *,
        dark: bool = False,
        keep: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self._poller, self.dark, self._keep, self._clock = poller, dark, dict(keep or {}), clock
        self._version = -1
        self._setting = False
        self._figure: Any = None
        self._painted = (0, 0)
        self._tables: dict[str, Table] = {}
        self._was_stale = False
        sheets = [css(), fleet_css()]
        self._top = pn.pane.HTML(sizing_mode="stretch_width", margin=0, stylesheets=sheets)
        self._chips = pn.pane.HTML(sizing_mode="stretch_width", margin=0, stylesheets=sheets)
        self._nav = pn.pane.HTML(sizing_mode="stretch_width", margin=0, stylesheets=sheets)
        self._side = Surface(
            heard=self.heard,
            stylesheets=[fleet_css()],
            width=SIDE,
            sizing_mode="fixed",
            height=HIGH,
            margin=0,
            styles={"overflow-y": "auto"},
        )
        self._map = pn.Column(
            sizing_mode="stretch_width",
            margin=0,
            styles={
                "border": "1px solid var(--line, #dce2ea)",
                "border-radius": "10px",
                "overflow": "hidden",
                "background": "var(--card, #fff)",
            },
        )
        self._body = pn.Column(sizing_mode="stretch_width", margin=0)
        self._text = pn.widgets.TextInput(placeholder="Search node, job, UUID, words …", label="", width=260, margin=0)
        self._pool = pn.widgets.Select(options=["any pool"], label="", width=190, margin=0)
        self._sku = pn.widgets.Select(options=["any product"], label="", width=240, margin=0)
        self._text.param.watch(lambda event: self._set(q=event.new.strip() or None), "value")
        self._pool.param.watch(lambda event: self._set(pool=event.new or None), "value")
        self._sku.param.watch(lambda event: self._set(sku=event.new or None), "value")
        filters = pn.Row(self._text, self._pool, self._sku, margin=0, styles={"gap": "8px", "flex-wrap": "wrap"})
        self._bar = pn.Column(self._chips, filters, sizing_mode="stretch_width", margin=0, styles={"gap": "10px"})
        self._row = pn.Row(self._map, self._side, sizing_mode="stretch_width", margin=0, styles={"gap": "12px"})
        self._parts = [self._bar, self._row, self._nav, self._body]
        # empty until there is something to show; then all of it comes at once, since a page takes models that come in pieces, while it is
        # being changed in other ways, not always in the right order (seen with Panel 1.9.4)
        self._stage = pn.Column(sizing_mode="stretch_width", margin=0, styles={"gap": "12px"})
        self._layout = pn.Column(self._top, self._stage, sizing_mode="stretch_width", margin=0, styles={"gap": "12px"})

    def __panel__(self) -> Any:
        if self._version < 0:  # not before the address was read: what it does not want need not be drawn
            self.refresh()
        return self._layout

    def first(self) -> str:
        """Return HTML of what matters most, to be seen before any script has run: counts, who answered, suspects."""
        if self._poller is None or not len(self._poller.snapshot.nodes):
            return ""
        seen = self.picture
        side = f'<div class="wb">{self._first(seen)}</div>'
        return f"<style>{fleet_css()}</style>" + self._above(seen) + self._chip_rows(seen) + side

    # the state, as a link holds it

    def state(self) -> dict[str, str]:
        """Return the address's query, without what is at its default."""
        return {**self.wish.write(), **write(_FIELDS, {name: getattr(self, name) for name in _FIELDS}, _START)}

    def set_state(self, state: Mapping[str, str]) -> None:
        """Show what an address asks for; what makes no sense is left out and told."""
        wish, refused = Wish.read(state)
        values, more = read(_FIELDS, state)
        changes = {**_START, **{name: value for name, value in values.items() if name not in ("tab", "tables") or value}}
        self.param.update(wish=wish, refused={**refused, **more}, **changes)

    # what people do

    def _set(self, **changes: Any) -> None:
        if not self._setting:
            self.param.update(wish=self.wish.but(**changes), refused={})

    def heard(self, asked: str) -> None:
        """Do what the part beside the map asks for."""
        words = parse(asked)
        if "close" in words:
            self.param.update(node=None, gpu=None)
        elif "node" in words or "gpu" in words:
            values, _ = read(_FIELDS, words)
            self.choose(values.get("node") or self.node, values.get("gpu"))

    def choose(self, node: str | None, gpu: int | None = None) -> None:
        """Look at a node, and at one of its GPUs."""
        self.param.update(node=node, gpu=gpu)

    # what is shown

    @property
    def picture(self) -> Picture:
        """What the newest snapshot holds of what is wanted."""
        return picture(self._poller.snapshot, self.wish)

    def refresh(self) -> None:
        """Take the newest snapshot and draw what of it is new; waits for nothing, and is cheap when nothing is new."""
        if self._poller is None:
            self._only("no_fleet")
            return
        version, snapshot = self._poller.state
        stale = snapshot.stale(self._clock())
        if version != self._version or stale != self._was_stale:
            self._version, self._was_stale = version, stale
            self._draw()

    @param.depends("wish", "refused", watch=True)
    def _wished(self) -> None:
        if self._poller is not None and self._version >= 0:
            self._draw()

    @param.depends("tab", watch=True)
    def _turned(self) -> None:
        if self._poller is not None and self._version >= 0:
            self._tabs(self.picture)

    @param.depends("tables", watch=True)
    def _arranged(self) -> None:
        if self._poller is not None and self._version >= 0:
            self._tabs(self.picture)  # its links hold it

    @param.depends("node", "gpu", watch=True)
    def _chosen(self) -> None:
        if self._poller is not None and self._version >= 0:
            self._beside(self.picture)
            self._frame(self.picture)
            self._tabs(self.picture)  # its links hold what was chosen

    def _only(self, macro: str, **values: Any) -> None:
        """Show a sentence in place of everything."""
        self._top.object = boxed(macro, **values)
        if len(self._stage):
            self._stage[:] = []

    def _draw(self) -> None:
        snapshot = self._poller.snapshot
        if not len(snapshot.nodes):
            waiting = self._version == 0
            self._only("none_there", waiting=waiting, heard=snapshot.heard)
            return
        seen = self.picture
        self._top.object = self._above(seen)
        self._chips.object = self._chip_rows(seen)
        self._offer(seen)
        self._paint(seen)
        self._beside(seen)
        self._tabs(seen)
        if not len(self._stage):
            self._stage[:] = self._parts

    def _above(self, seen: Picture) -> str:
        snapshot = seen.snapshot
        stale = snapshot.stale(self._clock())
        return boxed(
            "top", name=snapshot.name, demo=bool(snapshot.data.get("demo")), numbers=seen.numbers, heard=snapshot.heard,
            lost=unwell(snapshot), stale=stale, late=snapshot.time if stale else None, filtered=self.wish.any,
        ) + boxed("notice", refused=self.refused)  # fmt: skip

    def _chip_rows(self, seen: Picture) -> str:
        words = [word for word in reversed(HEALTH) if word != "absent"]
        base = {**self._keep, **self._beyond()}
        return boxed("chips", wish=self.wish, healths=seen.healths, words=words, causes=seen.causes, kinds=CAUSES, base=base)

    def _first(self, seen: Picture) -> str:
        return render("fleet.j2", "first", suspects=rows_of(seen.suspects.head(FIRST)), note=NOTE, keep=self._keep)

    def _beyond(self) -> dict[str, str]:
        """Return what of the address a filter leaves as it is."""
        return {key: value for key, value in self.state().items() if key in _FIELDS}

    def _offer(self, seen: Picture) -> None:
        """Let the selects offer what there is, with how many nodes each would leave."""
        self._setting = True
        try:
            for widget, name, every in ((self._pool, "pool", "any pool"), (self._sku, "sku", "any product")):
                value = getattr(self.wish, name)
                options = {every: "", **{f"{one}  ({count:,})": one for one, count in seen.offered(name)}}
                if value and value not in options.values():
                    options[f"{value}  (0)"] = value
                if widget.options != options:
                    widget.options = options
                widget.value = value or ""
            if (self._text.value or "") != (self.wish.q or ""):
                self._text.value = self.wish.q or ""
        finally:
            self._setting = False

    def _paint(self, seen: Picture) -> None:
        """Draw the map: new data into the figure there is, or another figure when these are other GPUs."""
        if not len(seen.nodes):
            self._figure = None
            self._map[:] = [
                pn.pane.HTML(
                    boxed("none_match", base=self._keep, state={}),
                    stylesheets=[css(), fleet_css()],
                    sizing_mode="stretch_width",
                    margin=16,
                )
            ]
            return
        now = seen.places, seen.looks
        same = self._figure is not None and now[0] == self._painted[0]
        if same and now[1] != self._painted[1]:
            same = update_gpu_map(self._figure, seen.gpus, dark=self.dark, height=HIGH - 2)
        self._painted = now
        if not same:
            self._figure = gpu_map(seen.gpus, dark=self.dark, height=HIGH - 2, title="GPUs by health")
            on_gpu(self._figure, self.choose)
            self._map[:] = [pn.pane.Bokeh(self._figure, sizing_mode="stretch_width", margin=0)]
        self._frame(seen)

    def _frame(self, seen: Picture) -> None:
        if self._figure is not None:
            highlight_node(self._figure, self.node, seen.names, dark=self.dark)

    def _beside(self, seen: Picture) -> None:
        """Show the node that was chosen, or else whom to look at first."""
        node = seen.node(self.node) if self.node else None
        if node is None:
            self._side.html = self._first(seen)
            return
        mine = rows_of(seen.snapshot.suspects[seen.snapshot.suspects["node"] == self.node].head(1))
        self._side.html = render(
            "fleet.j2", "peek", node=node, gpus=seen.gpus_of(self.node), chosen=self.gpu, keep=self._keep,
            ages=lambda moment: age(self._clock() - (seconds(moment) or 0.0)), suspect=mine[0] if mine else None,
        )  # fmt: skip

    def _tabs(self, seen: Picture) -> None:
        items = [(key, title, len(seen.table(key))) for key, title in TABS.items()]
        state = {key: value for key, value in self.state().items() if key != "tab"}
        self._nav.object = boxed("tabs", items=items, current=self.tab, state=state, base=self._keep)
        frame, columns = seen.table(self.tab), _COLUMNS[self.tab]
        shown, table = seen.shown(self.tab, columns), self._tables.get(self.tab)
        if table is None or (table.frame is not frame and not table.update(frame, shown)):
            made = Table(
                frame,
                columns=columns,
                shown=shown,
                name=f"fleet-{self.tab}",
                empty=_EMPTY[self.tab],
                chosen=self._pick(self.tab),
                page=20,
                widths=_WIDTHS[self.tab],
                noun={"nodes": "node", "jobs": "job"}.get(self.tab, "row"),
            )
            table = self._tables[self.tab] = kept(self, self.tab, made)
        if len(self._body) != 1 or self._body[0] is not table.__panel__():
            self._body[:] = [table.__panel__()]

    def _pick(self, tab: str) -> Callable[[int], None]:
        def chosen(row: int) -> None:
            frame = self._tables[tab].frame
            line = {name: frame[name].iloc[row] for name in ("node", "gpu_index", "job") if name in frame}
            if "node" in line:
                gpu = line.get("gpu_index")
                self.choose(str(line["node"]), int(gpu) if gpu is not None and gpu == gpu and str(gpu) != "<NA>" else None)
            elif "job" in line:
                self._set(q=str(line["job"]))

        return chosen


def boxed(macro: str, **values: Any) -> str:
    """Return what a macro of the fleet's template makes, in the box that its style sheet wants."""
    return f'<div class="wb">{render("fleet.j2", macro, **values)}</div>'
