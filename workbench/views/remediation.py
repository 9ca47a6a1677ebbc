"""Turn the queue of plans and the journal into a page: what waits, what it would take away, and a yes or no for who may say it."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
import panel as pn
import param

from workbench.errors import WorkbenchError
from workbench.views.fleet import fleet_css
from workbench.views.fleet_model import age
from workbench.views.fresh import tell
from workbench.views.markup import css, known, render
from workbench.views.permalink import choice, parse, query, read, text, write
from workbench.views.remediation_model import COLUMNS, SHOWS, counts, journal_frame, line, queue_frame, sheet, shown
from workbench.views.surface import Surface
from workbench.views.tables import Table, file_button, kept, to_csv, to_json

__all__ = ["RemediationView"]

_FIELDS = {"plan": text(128), "show": choice(*SHOWS), "node": text(253), "act": text(128), "tables": text(2000)}
_WIDTHS = {"time": 188, "node": 112, "verb": 118, "rung": 104, "status": 96, "by": 124}
_ASKS = ("approve", "reject", "undo")


@lru_cache(maxsize=1)
def _css() -> str:
    return (Path(__file__).parent / "templates" / "remediation.css").read_text("utf-8")


class RemediationView(pn.viewable.Viewer):
    """
    The queue of plans.

    Parameters
    ----------
    sheets : callable
        Returns what `workbench.serving.desk.Desk.sheet` is; never waits.
    decide : callable
        ``decide(verb, ids, digest, reason)`` with ``approve``, ``reject`` or ``undo`` returns the proposal, or raises a `WorkbenchError`. It
        may take a moment, and it alone judges whether the user may: what is shown here is no right.
    may : callable, optional
        Whether buttons are shown.
    role : str
        What the user is, for people.
    pool : Executor, optional
        In which `decide` runs; default: at once.
    root : str
        Where the queue is, for an empty page.
    keep : mapping, optional
        What links carry on of the address.
    clock : callable, optional

    Attributes
    ----------
    plan : str or None
        Id of the plan that is seen whole; None is the first.
    show : str
        A key of `SHOWS`.
    node : str or None
        The journal of nodes whose name holds this.
    act : str or None
        Id of the action that was chosen in the journal.
    """

    plan = param.String(default=None, allow_None=True)
    show = param.Selector(default="waiting", objects=list(SHOWS))
    node = param.String(default=None, allow_None=True)
    act = param.String(default=None, allow_None=True)
    tables = param.String(default="", doc="How the journal is sorted; see `workbench.views.tables.kept`.")
    refused = param.Dict(default={})

    def __init__(
        self,
        sheets: Callable[[], Any],
        decide: Callable[[str, list[str], str, str], Any],
        *,
        may: Callable[[], bool] = lambda: False,
        role: str = "",
        why_not: str = "",
        pool: Executor | None = None,
        root: str = "",
        keep: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self._sheets, self._decide, self._may, self._role, self._why_not = sheets, decide, may, role, why_not
        self._pool, self._root, self._keep, self._clock = pool, root, dict(keep or {}), clock
        self._asking, self._said, self._bad, self._busy = "", "", False, False
        self._version = -1
        self._table: Table | None = None
        own = [fleet_css(), _css()]
        self._top = pn.pane.HTML(sizing_mode="stretch_width", margin=0, stylesheets=[css(), *own])

        def part() -> Surface:
            return Surface(heard=self.heard, stylesheets=own, margin=0)

        self._tabs, self._list, self._form, self._sheet, self._one = part(), part(), part(), part(), part()
        export = pn.Row(
            file_button("CSV", "plans.csv", lambda: _bytes(to_csv(queue_frame(self._sheets().proposals)))),
            file_button("JSON", "plans.json", lambda: _bytes(to_json(queue_frame(self._sheets().proposals)))),
            margin=0,
            align="end",
        )
        bar = pn.Row(self._tabs, export, sizing_mode="stretch_width", margin=0)
        left = pn.Column(
            bar, self._list, margin=0, sizing_mode="stretch_width", styles={"flex": "1 1 400px", "min-width": "320px"}
        )
        right = pn.Column(
            self._form,
            self._sheet,
            margin=0,
            sizing_mode="stretch_width",
            styles={"flex": "1.35 1 520px", "min-width": "320px", "gap": "12px"},
        )
        self._both = pn.Row(
            left,
            right,
            sizing_mode="stretch_width",
            margin=0,
            styles={"gap": "14px", "flex-wrap": "wrap", "align-items": "flex-start"},
        )
        self._text = pn.widgets.TextInput(placeholder="Journal of node …", label="", width=220, margin=0)
        self._text.param.watch(lambda event: self.param.update(node=event.new.strip() or None), "value")
        self._head = pn.pane.HTML(_boxed("heading", text="Journal"), stylesheets=[css(), *own], margin=0, width=90)
        self._body = pn.Column(sizing_mode="stretch_width", margin=0)
        # a page gets the scripts of what is on it at first: without this a journal that was empty then could not be drawn later
        scripts = pn.widgets.Tabulator(pd.DataFrame({"-": []}), visible=False, width=0, height=0, margin=0)
        journal = pn.Column(
            pn.Row(self._head, self._text, margin=0, styles={"gap": "10px", "align-items": "center"}),
            self._one,
            self._body,
            scripts,
            sizing_mode="stretch_width",
            margin=0,
            styles={"gap": "8px"},
        )
        self._layout = pn.Column(self._top, self._both, journal, sizing_mode="stretch_width", margin=0, styles={"gap": "16px"})
        self.refresh()

    def __panel__(self) -> Any:
        return self._layout

    # the state, as a link holds it

    def state(self) -> dict[str, str]:
        """Return the address's query, without what is at its default."""
        values = {name: getattr(self, name) for name in _FIELDS}
        return write(_FIELDS, values, {"plan": None, "show": "waiting", "node": None, "act": None, "tables": ""})

    def set_state(self, state: Mapping[str, str]) -> None:
        """Show what an address asks for; what makes no sense is left out and told."""
        values, refused = read(_FIELDS, state)
        show = values.get("show") or ("all" if values.get("plan") else "waiting")
        named = {name: values.get(name) for name in ("plan", "node", "act")}
        self.param.update(**named, show=show, tables=values.get("tables") or "", refused=refused)

    # what people do

    def heard(self, asked: str) -> None:
        """Do what a part of the page asks for; what it asks is not trusted."""
        words = parse(asked)
        if "decide" in words:
            self._ask(words)
        elif "ask" in words:
            self._asking, self._said = (words["ask"] if words["ask"] in _ASKS else ""), ""
            self._draw_form()
        elif "plan" in words:
            self._asking, self._said = "", ""
            one = words["plan"][:128]
            there = [each.id for each in shown(self._sheets().proposals, self.show)]
            self.param.update(plan=one, show=self.show if one in there else "all")
        elif words.get("show") in SHOWS:
            self._asking, self._said = "", ""
            self.param.update(show=words["show"], plan=None)

    def _ask(self, words: Mapping[str, str]) -> None:
        if self._busy or words["decide"] not in _ASKS:
            return
        verb, reason = words["decide"], words.get("reason", "")
        if verb == "undo":
            ids = [words["action"]] if "action" in words else self._undoable(words.get("id", ""))
        else:
            ids = [words.get("id", "")]
        self._busy, self._said = True, ""
        self._draw_form()
        if self._pool is None:
            done: Future[Any] = Future()
            try:
                done.set_result(self._decide(verb, ids, words.get("digest", ""), reason))
            except Exception as error:
                done.set_exception(error)
            self._decided(verb, done)
            return
        document, here = pn.state.curdoc, weakref.ref(self)

        def arrived(done: Future[Any]) -> None:
            def change() -> None:
                if (view := here()) is not None:
                    view._decided(verb, done)

            tell(document, change)

        self._pool.submit(self._decide, verb, ids, words.get("digest", ""), reason).add_done_callback(arrived)

    def _undoable(self, id: str) -> list[str]:
        return [str(row["action"]) for row in self._sheets().acts if row["plan"] == id and row["undo"]]

    def _decided(self, verb: str, done: Future[Any]) -> None:
        self._busy = False
        error = done.exception()
        if error is not None:
            hint = getattr(error, "hint", "")
            known = isinstance(error, WorkbenchError)
            self._bad, self._said = (
                True,
                f"{error}{f' ({hint})' if hint else ''}" if known else f"This went wrong: {type(error).__name__}",
            )
        else:
            one = done.result()
            word = {"approve": "Approved", "reject": "Rejected", "undo": "The undo is proposed and waits for a yes"}[verb]
            self._bad, self._asking = False, ""
            self._said = f"{word}. It stands in the queue and in the journal."
            if verb == "undo":
                self.param.update(plan=one.id, show="waiting")
        self._version = -1
        self.refresh()

    # what is shown

    def refresh(self) -> None:
        """Take the newest sheet and draw what of it is new; waits for nothing."""
        now = self._sheets()
        with pn.io.hold():
            if now.version != self._version:
                self._version = now.version
                self._draw()
            else:
                self._draw_list()  # only how long they wait

    @param.depends("plan", "show", "refused", watch=True)
    def _turned(self) -> None:
        with pn.io.hold():
            self._draw()

    @param.depends("node", "act", watch=True)
    def _journal(self) -> None:
        with pn.io.hold():
            self._draw_journal()

    def _draw(self) -> None:
        now = self._sheets()
        self._top.object = _boxed(
            "top", counts=counts(now.proposals), may=self._may(), role=self._role, problems=now.problems, refused=self.refused
        )
        self._tabs.html = render("remediation.j2", "parts", shows=SHOWS, counts=counts(now.proposals), show=self.show)
        self._draw_list()
        one = self._chosen()
        if one is not None:
            self._sheet.html = render("remediation.j2", "sheet", one=sheet(one), link=self._keep)
        elif self.plan:
            self._sheet.html = render("remediation.j2", "not_there", id=self.plan)
        else:
            self._sheet.html = render("remediation.j2", "none_chosen") if shown(now.proposals, self.show) else ""
        self._draw_form()
        self._draw_journal()

    def _chosen(self) -> Any:
        proposals = self._sheets().proposals
        if self.plan:
            return next((one for one in proposals if one.id == self.plan), None)
        return next(iter(shown(proposals, self.show)), None)

    def _draw_list(self) -> None:
        one = self._chosen()
        rows = [line(each) for each in shown(self._sheets().proposals, self.show)]
        if not rows:
            self._list.html = render("remediation.j2", "empty", show=self.show, root=self._root)
            return
        link = {**self._keep, **({"show": self.show} if self.show != "waiting" else {})}
        self._list.html = render(
            "remediation.j2", "list", rows=rows, chosen=one.id if one else "", now=self._clock() // 60 * 60, ages=age, link=link
        )

    def _draw_form(self) -> None:
        one = self._chosen()
        self._form.visible = one is not None or bool(self._said)
        if one is None:
            self._form.html = render("incident.j2", "told", text=self._said) if self._said else ""
            return
        said = "" if one.state == "applied" and not self._bad else self._said  # what was promised has happened
        self._form.html = render(
            "remediation.j2", "form", one=line(one) | {"digest": one.digest}, asking=self._asking, may=self._may(), why_not=self._why_not,
            said=said, undoable=bool(self._undoable(one.id)), bad=self._bad, busy=self._busy,
        )  # fmt: skip

    def _draw_journal(self) -> None:
        now = self._sheets()
        if (self._text.value or "") != (self.node or ""):
            self._text.value = self.node or ""
        frame = journal_frame(now.acts, now.left_out, self.node or "")
        if self._table is None or not self._table.update(frame):
            table = Table(
                frame, columns=COLUMNS, name="journal", noun="row", page=15, widths=_WIDTHS, chosen=self._pick,
                empty="The journal has nothing on such a node." if self.node else "The journal is empty: nothing was done here yet.",
            )  # fmt: skip
            self._table = kept(self, "journal", table)
            self._body[:] = [self._table.__panel__()]
        row = next((one for one in now.acts if self.act and one["action"] == self.act), None)
        self._one.html = "" if row is None else render("remediation.j2", "act", row=row, may=self._may())
        self._one.visible = row is not None

    def _pick(self, row: int) -> None:
        assert self._table is not None
        frame = self._table.frame
        action, plan = (str(known(frame[name].iloc[row]) or "") for name in ("action", "plan"))
        if action:
            self.act = action
        elif plan:  # a word about a plan: the plan itself
            self.heard(query({"plan": plan}))


def _boxed(macro: str, **values: Any) -> str:
    if macro == "heading":
        return f'<div class="wb">{render("incident.j2", "heading", **values)}</div>'
    return f'<div class="wb">{render("remediation.j2", macro, **values)}</div>'


def _bytes(text: str) -> Any:
    import io

    return io.BytesIO(text.encode())
