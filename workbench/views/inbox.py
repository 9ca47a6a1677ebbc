"""Turn the inbox's rows into a page: newest first, filters that are the address, counts by cause, and a way to each incident."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import panel as pn
import param

from workbench.views.inbox_filter import ALL, CAUSES, PAGE, SPANS, Wanted, since_of
from workbench.views.markup import css, render, stamp

__all__ = ["InboxView"]

_STATES = {"any state": ALL, "open": "open", **{word: word for word in ("new", "acknowledged", "resolved", "closed", "muted")}}
_ANY_TEAM, _ANY_CLASS, _ANY_TIME = "any team", "any class", "any time"


@lru_cache(maxsize=1)
def _css() -> str:
    return (Path(__file__).parent / "templates" / "inbox.css").read_text("utf-8")


def _boxed(template: str, macro: str, **values: Any) -> str:
    return f'<div class="wb">{render(template, macro, **values)}</div>'


class InboxView(pn.viewable.Viewer):
    """
    The inbox.

    Parameters
    ----------
    rows : callable
        Returns what `workbench.serving.board.Board.rows` is: never waits.
    filling : callable, optional
        Returns a sentence while rows are still being made.
    folder : str
        The inbox's folder, for what an empty page tells.
    keep : mapping, optional
        What links to other pages carry on of the address, such as the theme.
    currency : str
        Put before a cost.
    """

    wanted = param.ClassSelector(class_=Wanted, default=Wanted(), doc="What is shown; its text form is the address.")
    refused = param.Dict(default={}, doc="What the address asks for that makes no sense: name → why.")

    def __init__(
        self,
        rows: Callable[[], Any],
        *,
        filling: Callable[[], str] = lambda: "",
        folder: str = "",
        keep: Mapping[str, str] | None = None,
        currency: str = "",
    ) -> None:
        super().__init__()
        self._rows, self._filling, self._folder = rows, filling, folder
        self._keep, self._currency = dict(keep or {}), currency
        self._drawn: Any = None
        self._setting = False
        text = pn.widgets.TextInput(placeholder="Search job, node, class, words …", label="", width=270, margin=0)
        state = pn.widgets.Select(options=_STATES, label="", width=130, margin=0)
        kind = pn.widgets.Select(options=[_ANY_CLASS], label="", width=190, margin=0)
        team = pn.widgets.Select(options=[_ANY_TEAM], label="", width=140, margin=0)
        span = pn.widgets.Select(options=[_ANY_TIME, *SPANS], label="", width=200, margin=0)
        for widget, said in ((text, "search"), (state, "state"), (kind, "class"), (team, "team"), (span, "time")):
            widget.description = None
            widget.tags = [said]
        self._text, self._state, self._class, self._team, self._span = text, state, kind, team, span
        text.param.watch(lambda event: self._set(text=event.new.strip() or None), "value_input")
        state.param.watch(lambda event: self._set(state=event.new), "value")
        kind.param.watch(lambda event: self._set(cls=None if event.new == _ANY_CLASS else event.new), "value")
        team.param.watch(lambda event: self._set(team=None if event.new == _ANY_TEAM else event.new), "value")
        span.param.watch(self._spanned, "value")
        # links to other states of this page are followed by the shell's script without a new page (`data-state`)
        sheets = [css(), _css()]
        self._chips = pn.pane.HTML(sizing_mode="stretch_width", margin=0, stylesheets=sheets)
        self._table = pn.pane.HTML(sizing_mode="stretch_width", margin=0, stylesheets=sheets)
        self._filters = pn.Row(
            text, state, kind, team, span, sizing_mode="stretch_width", styles={"gap": "8px", "flex-wrap": "wrap"}
        )
        self._layout = pn.Column(self._chips, self._filters, self._table, sizing_mode="stretch_width", styles={"gap": "12px"})
        self.refresh()

    def __panel__(self) -> Any:
        return self._layout

    def state(self) -> dict[str, str]:
        """Return the address's query, without what is at its default."""
        wanted: Wanted = self.wanted
        return wanted.write()

    def set_state(self, state: Mapping[str, str]) -> None:
        """Show what an address asks for; what makes no sense is left out and told."""
        wanted, refused = Wanted.read(state)
        self.param.update(wanted=wanted, refused=refused)

    def refresh(self) -> None:
        """Take the newest rows and draw them when something is new: cheap when nothing is."""
        rows, filling = self._rows(), self._filling()
        drawn = (rows.version, rows.error, filling if not rows.entries else "", self.wanted, tuple(self.refused))
        if drawn == self._drawn:
            return
        self._drawn = drawn
        wanted, entries = self.wanted, rows.entries
        counts = wanted.counts(entries, "cause")
        with pn.io.hold():
            self._offer(entries)
            self._chips.object = _boxed(
                "inbox.j2", "chips", wanted=wanted, counts=counts, total=counts.total(), causes=CAUSES, base=self._keep
            )
            self._table.object = self._body(rows, filling)
            self._filters.visible = self._chips.visible = bool(entries)

    def _body(self, rows: Any, filling: str) -> str:
        wanted, base = self.wanted, self._keep
        if rows.error and not rows.entries:
            return _boxed("inbox.j2", "broken", error=rows.error, hint=rows.hint)
        if not rows.entries and not rows.problems:
            return _boxed("inbox.j2", "empty", folder=self._folder, filling=filling)
        found = wanted.of(rows.entries)
        if not found and rows.entries:
            return _boxed("inbox.j2", "none_match", wanted=wanted, total=len(rows.entries), base=base)
        pages = max(1, -(-len(found) // PAGE))
        first = PAGE * (min(wanted.page, pages) - 1)
        return _boxed(
            "inbox.j2",
            "rows",
            entries=found[first : first + PAGE],
            wanted=wanted if wanted.page <= pages else wanted.with_(page=pages),
            base=base,
            keep=self._keep,
            found=len(found),
            first=first,
            pages=pages,
            refused=self.refused,
            problems=[*rows.problems, *([rows.error] if rows.error else [])],
            currency=self._currency,
        )

    def _offer(self, entries: Any) -> None:
        """Let the selects offer what there is, with how many each would show; none of it changes what is wanted."""
        wanted = self.wanted
        self._setting = True
        try:
            for widget, every, name, value in (
                (self._class, _ANY_CLASS, "cls", wanted.cls),
                (self._team, _ANY_TEAM, "team", wanted.team),
            ):
                counts = wanted.counts(entries, name)
                words = sorted(word for word in {*(str(getattr(one, name) or "") for one in entries), value or ""} if word)
                widget.options = {every: every, **{f"{word}  ({counts[word]})": word for word in words}}
                widget.value = value or every
            self._state.value = wanted.state
            if (self._text.value_input or "").strip() != (wanted.text or ""):
                self._text.value = wanted.text or ""
                self._text.value_input = wanted.text or ""
            given = _ANY_TIME
            if wanted.since is not None or wanted.until is not None:
                given = " ".join(
                    f"{word} {stamp(moment)[:16]} UTC"
                    for word, moment in (("since", wanted.since), ("until", wanted.until))
                    if moment
                )
            self._span.options = [*([given] if given != _ANY_TIME else []), _ANY_TIME, *SPANS]
            self._span.value = given
        finally:
            self._setting = False

    def _set(self, **changes: Any) -> None:
        if not self._setting:
            self.param.update(wanted=self.wanted.with_(**changes), refused={})

    def _spanned(self, event: Any) -> None:
        if event.new in SPANS:
            self._set(since=since_of(event.new), until=None)
        elif event.new == _ANY_TIME:
            self._set(since=None, until=None)

    @param.depends("wanted", "refused", watch=True)
    def _changed(self) -> None:
        self.refresh()
