"""Turn sheets of an account into its page: headline, what each tab draws and tells, and the window, groups and cluster as the address."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from functools import lru_cache
from pathlib import Path
from typing import Any

import panel as pn
import param

from workbench.errors import WorkbenchError
from workbench.fleet.account import NoLedger, span_written
from workbench.fleet.goodput import DENOMINATORS
from workbench.plots import account as plots
from workbench.plots.score_card import score_card
from workbench.views.account_model import GROUPS, SPANS, TABS, Part, Sheet, Wish
from workbench.views.fleet import fleet_css
from workbench.views.fresh import tell
from workbench.views.markup import css, render
from workbench.views.permalink import parse, query, read, text, write
from workbench.views.surface import Surface
from workbench.views.tables import Table, kept

__all__ = ["AccountView"]

_LOG = logging.getLogger(__name__)
WEEK = 7 * 86400.0
EVERY = "every cluster"
_CARD = {
    "border": "1px solid var(--line, #dce2ea)",
    "border-radius": "10px",
    "overflow": "hidden",
    "background": "var(--card, #fff)",
}


@lru_cache(maxsize=1)
def _css() -> str:
    return (Path(__file__).parent / "templates" / "account.css").read_text("utf-8")


_TABLES = {"tables": text(2000)}
_PAGE = 15  # rows of a table before it is turned
_FILTERED = frozenset(
    {"job", "team", "node", "cls", "cause", "unit", "kind", "who"}
)  # columns with a field that filters a long table


class AccountView(pn.viewable.Viewer):
    """
    The fleet's account.

    Parameters
    ----------
    load : callable
        `Wish` → `Sheet`; blocking, runs in `pool`. A `NoLedger` becomes a page that says how to get one, another `WorkbenchError` a sentence.
    held : callable, optional
        The same without waiting: None when it is not there.
    version : callable, optional
        Grows with each change of the ledger; never waits.
    pool : Executor, optional
        Default: `load` runs at once, as in a notebook.
    simulated : bool
        Whether the account is invented, which the page then says.
    where : str
        Where the ledger is, for people.
    dark : bool
        The appearance of figures.
    keep : mapping, optional
        What links carry on of the address, such as the theme.

    Attributes
    ----------
    wish : Wish
        What is shown.
    """

    wish: Wish = param.ClassSelector(class_=Wish, default=Wish())
    tables = param.String(default="", doc="How tables are sorted and filtered; see `workbench.views.tables.kept`.")
    refused = param.Dict(default={}, doc="What the address asks for that makes no sense: name → why.")

    def __init__(
        self,
        load: Callable[[Wish], Sheet],
        *,
        held: Callable[[Wish], Sheet | None] = lambda wish: None,
        version: Callable[[], int] = lambda: 0,
        pool: Executor | None = None,
        simulated: bool = False,
        where: str = "",
        dark: bool = False,
        keep: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self._load, self._held, self._look, self._pool = load, held, version, pool
        self._simulated, self._where, self.dark, self._keep, self._clock = simulated, where, dark, dict(keep or {}), clock
        self._sheet: Sheet | None = None
        self._asked: tuple[Wish, int] | None = None  # what is being read, or was last
        self._busy, self._setting = False, False
        self._trouble: tuple[str, str] = ("", "")
        self._tables: dict[str, Table] = {}
        own = [fleet_css(), _css()]

        def part() -> Surface:
            return Surface(heard=self.heard, stylesheets=own, margin=0)

        self._top, self._chips, self._tiles, self._nav, self._notes = part(), part(), part(), part(), part()
        self._cluster = pn.widgets.Select(options=[EVERY], label="", width=220, margin=0, visible=False)
        self._cluster.param.watch(self._clustered, "value")
        bar = pn.Column(self._chips, self._cluster, sizing_mode="stretch_width", margin=0, styles={"gap": "8px"})
        self._body = pn.Column(sizing_mode="stretch_width", margin=0, styles={"gap": "12px"})
        self._parts = [bar, self._tiles, self._nav, self._notes, self._body]
        self._stage = pn.Column(sizing_mode="stretch_width", margin=0, styles={"gap": "14px"})
        self._layout = pn.Column(self._top, self._stage, sizing_mode="stretch_width", margin=0, styles={"gap": "12px"})

    def __panel__(self) -> Any:
        if self._asked is None:  # not before the address was read
            self._ask()
        return self._layout

    # the state, as a link holds it

    def state(self) -> dict[str, str]:
        """Return the address's query, without what is at its default."""
        return {**self.wish.write(), **write(_TABLES, {"tables": self.tables}, {"tables": ""})}

    def set_state(self, state: Mapping[str, str]) -> None:
        """Show what an address asks for; what makes no sense is left out and told."""
        wish, refused = Wish.read(state)
        arranged, more = read(_TABLES, state)
        self.param.update(wish=wish, tables=arranged.get("tables") or "", refused={**refused, **more})

    # what people do

    def heard(self, asked: str) -> None:
        """Do what a part of the page asks for; what it asks is not trusted."""
        words = parse(asked)
        wish, refused = Wish.read({**self.wish.write(), **words})
        if not refused:
            self.param.update(wish=wish, refused={})

    def _clustered(self, event: Any) -> None:
        if not self._setting:
            self.param.update(wish=self.wish.but(cluster=None if event.new == EVERY else event.new), refused={})

    # what is read

    def refresh(self) -> None:
        """Read again when the ledger has changed; waits for nothing."""
        if self._asked is not None and not self._busy and self._asked[1] != self._look():
            self._ask()

    @param.depends("wish", "refused", watch=True)
    def _wished(self) -> None:
        if self._asked is None:
            return
        if self._asked[0] == self.wish and not self._busy:
            self._show_top()
        else:
            self._ask()

    def _ask(self) -> None:
        wish, version = self.wish, self._look()
        self._asked = (wish, version)
        try:
            there = self._held(wish)
        except WorkbenchError:
            there = None
        if there is not None:
            self._arrived(wish, there, None)
            return
        if self._pool is None:
            try:
                self._arrived(wish, self._load(wish), None)
            except Exception as error:
                self._arrived(wish, None, error)
            return
        self._busy = True
        self._show_top()
        if self._sheet is None:
            words = "Simulating a small fleet …" if self._simulated else "Reading the ledger …"
            self._stage[:] = [Surface(render("account.j2", "waiting", words=words), margin=0)]
        document, here = pn.state.curdoc, weakref.ref(self)

        def done(future: Future[Sheet]) -> None:
            def change() -> None:
                if (view := here()) is not None:
                    error = future.exception()
                    view._arrived(wish, None if error else future.result(), error)

            tell(document, change)

        self._pool.submit(self._load, wish).add_done_callback(done)

    def _arrived(self, wish: Wish, sheet: Sheet | None, error: BaseException | None) -> None:
        if wish != self.wish:  # somebody has asked for something else meanwhile, which comes, too
            return
        self._busy = False
        with pn.io.hold():
            if error is not None:
                self._failed(error)
                return
            self._trouble, self._sheet = ("", ""), sheet
            try:
                self._draw()
            except Exception as trouble:  # a page that waits for ever would be worse than one that says so
                self._sheet = None
                self._failed(trouble)

    def _failed(self, error: BaseException) -> None:
        known = isinstance(error, (WorkbenchError, ValueError))
        if not known:
            _LOG.error("an account could not be read", exc_info=error)
        said = str(error) if known else f"{type(error).__name__}: {error}"
        hint = str(getattr(error, "hint", "")) if known else "It is a defect of the workbench: the server's log has more."
        if isinstance(error, NoLedger):
            self._sheet = None
            days = self._link("", False, tab="gameday")
            self._only("no_ledger", where=self._where, trouble=said, hint=hint, days=days)
        elif self._sheet is not None and self._sheet.wish == self.wish:
            self._trouble = (said, hint)
            self._show_top()
        else:
            self._sheet = None
            self._only("sorry", trouble=said, hint=hint)

    # what is shown

    def _only(self, macro: str, **values: Any) -> None:
        self._show_top()
        self._stage[:] = [
            Surface(render("account.j2", macro, **values), heard=self.heard, stylesheets=[fleet_css(), _css()], margin=0)
        ]

    def _show_top(self) -> None:
        seen = self._sheet
        self._top.html = render(
            "account.j2",
            "top",
            wish=self.wish,
            since=None if seen is None else seen.since,
            until=None if seen is None else seen.until,
            simulated=self._simulated,
            where=self._where,
            busy=self._busy,
            refused=self.refused,
            trouble=self._trouble[0],
            hint=self._trouble[1],
        )

    def _link(self, words: str, on: bool, **changes: Any) -> dict[str, Any]:
        """Return a link to another wish: by its address for who opens it elsewhere, by what changes for this page."""
        asked = {name: "" if value is None else str(value) for name, value in changes.items()}
        return {
            "words": words,
            "on": on,
            "asked": query(asked).lstrip("?"),
            "address": query({**self._keep, **self.wish.but(**changes).write()}),
        }

    def _draw(self) -> None:
        seen = self._sheet
        assert seen is not None
        self._show_top()
        self._offer(seen)
        self._chips.html = render("account.j2", "chips", rows=self._rows(seen))
        alone = seen.empty and seen.wish.tab == "gameday"  # played, whatever the ledger tells
        if seen.empty and not alone:
            first, last = seen.weeks
            every = self._link("", False)
            if first is not None and last is not None:
                every = self._link("", False, window=span_written(first, last + WEEK), cluster=None)
            days = self._link("", False, tab="gameday")
            words = {"first": first, "last": last, "cluster": self.wish.cluster, "all": every, "days": days}
            self._tiles.html = self._nav.html = ""
            self._notes.html = render("account.j2", "nothing", **words)
            self._body[:] = []
        else:
            self._tiles.html = render("account.j2", "tiles", rows=seen.tiles)
            items = [self._link(title, key == self.wish.tab, tab=key) for key, title in TABS.items()]
            self._nav.html = render("account.j2", "tabs", items=items)
            self._notes.html = render("account.j2", "notes", rows=seen.notes)
            self._body[:] = [*self._figures(seen), *(item for part in seen.tables for item in self._table(part))]
        self._tiles.visible, self._nav.visible = not seen.empty, not seen.empty or alone
        self._notes.visible = bool(seen.notes) or (seen.empty and not alone)
        if list(self._stage) != self._parts:
            self._stage[:] = self._parts

    def _rows(self, seen: Sheet) -> list[dict[str, Any]]:
        wish = self.wish
        length = round((seen.until - seen.since) / WEEK + 0.49) * WEEK
        spans = [self._link(title, key == wish.window, window=key) for key, title in SPANS.items()]
        earlier = span_written(seen.since - length, seen.since)
        spans.insert(0, self._link("← earlier", False, window=earlier))
        if seen.since + length < seen.now:
            later = span_written(seen.since + length, min(seen.since + 2 * length, seen.now))
            spans.append(self._link("later →", False, window=later))
        rows = [{"title": "Window", "chips": spans}]
        if wish.tab in ("objectives", "time"):
            rows.append(
                {"title": "By", "chips": [self._link(title, key == wish.by, by=key or None) for key, title in GROUPS.items()]}
            )
        if wish.tab == "gameday" and len(seen.drawn.get("days", ())) > 1:
            days = [
                self._link(f"{name}, {played[:10]}", name == seen.drawn.get("day"), day=name)
                for name, played in seen.drawn["days"]
            ]
            rows.append({"title": "Game day", "chips": days})
        if wish.tab == "time":
            rows.append({"title": "Share of time", "chips": [self._link(key, key == wish.of, of=key) for key in DENOMINATORS]})
        return rows

    def _offer(self, seen: Sheet) -> None:
        self._setting = True
        try:
            names = {EVERY: EVERY, **{one or "(no name)": one for one in seen.clusters}}
            if self.wish.cluster is not None and self.wish.cluster not in names.values():
                names[f"{self.wish.cluster} (tells nothing)"] = self.wish.cluster
            if self._cluster.options != names:
                self._cluster.options = names
            self._cluster.value = EVERY if self.wish.cluster is None else self.wish.cluster
            self._cluster.visible = len(names) > 2
        finally:
            self._setting = False

    def _figures(self, seen: Sheet) -> list[Any]:
        drawn, dark = seen.drawn, self.dark
        if seen.wish.tab == "objectives":
            made = []
            for name, figures in drawn.get("weekly", {}).items():
                target = drawn.get("targets", {}).get(name)
                unfinished = _running(seen)
                made.append(plots.objective_weeks(figures, target=target, unfinished=unfinished, dark=dark, title=name))
            return [
                pn.GridBox(*(_card(one) for one in made), ncols=2, sizing_mode="stretch_width", margin=0, styles={"gap": "12px"})
            ]
        if seen.wish.tab == "time":
            return [_card(plots.waterfall(drawn["fall"], dark=dark))]
        if seen.wish.tab == "failures":
            return [_card(plots.failures_by_week(drawn["weeks"], dark=dark))]
        if seen.wish.tab == "lemons":
            found = drawn["lemons"]
            both = [_card(plots.lemons(found, kind="node", dark=dark, title="Nodes: blames against hours"))]
            if found is not None and (found.units["kind"] == "gpu").any():
                both.append(_card(plots.lemons(found, kind="gpu", dark=dark, title="GPUs: blames against hours")))
            words = render("account.j2", "exclude", names=drawn.get("exclude", ""), wish=seen.wish)
            box = Surface(words, stylesheets=[fleet_css(), _css()], margin=0)
            return [
                pn.GridBox(*both, ncols=len(both), sizing_mode="stretch_width", margin=0, styles={"gap": "12px"}),
                *([box] if found is not None else []),
            ]
        if seen.wish.tab == "gameday":
            title = drawn.get("title", "Game day")
            return [_card(score_card(drawn["card"], dark=dark, title=title))]
        return [_card(plots.tornado(drawn["tornado"], currency=drawn["currency"], fleet=drawn.get("fleet", ""), dark=dark))]

    def _table(self, part: Part) -> list[Any]:
        head = pn.pane.HTML(
            f'<div class="wb">{render("account.j2", "heading", title=part.title, note=part.note)}</div>',
            sizing_mode="stretch_width",
            margin=0,
            stylesheets=[css(), fleet_css(), _css()],
        )
        key = f"{part.name} {self.wish.by}"
        table = self._tables.get(key)
        if table is None or not table.update(part.frame, part.shown):
            made = Table(
                part.frame,
                columns=part.columns,
                shown=part.shown,
                name=f"account-{part.name}",
                empty=part.empty,
                page=_PAGE,
                widths=part.widths,
                noun=part.noun,
                filters=tuple(name for name in part.columns if name in _FILTERED) if len(part.frame) > _PAGE else (),
            )
            table = self._tables[key] = kept(self, part.name, made)
        return [head, table.__panel__()]


def _running(seen: Sheet) -> float | None:
    """Return when the week begins that was not over when the account was read; None when all were."""
    last = seen.since + int((seen.until - 1.0 - seen.since) // WEEK) * WEEK
    return last if last + WEEK > seen.now else None


def _card(figure: Any) -> Any:
    return pn.Column(
        pn.pane.Bokeh(figure, sizing_mode="stretch_width", margin=0), sizing_mode="stretch_width", margin=0, styles=_CARD
    )
