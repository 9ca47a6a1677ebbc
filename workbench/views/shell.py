"""
Turn a view into a whole page: name, navigation, clock, freshness, theme, and the view's state as the page's address.

The page is one light Jinja template; its stylesheet and script are written into it, so that it works wherever Panel serves it, without
any request to elsewhere.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

import panel as pn
from panel.template import Template

from workbench import __version__
from workbench.plots.theme import switch_script
from workbench.views import permalink
from workbench.views.design import WorkbenchDesign
from workbench.views.fresh import follow
from workbench.views.later import Later

__all__ = ["NONCE", "PAGES", "Shell", "is_dark", "kept", "offer", "query"]

# The server writes a fresh nonce of this length over it in each answer; unguessable, so that no text of a log can claim it.
NONCE = secrets.token_urlsafe(24)

PAGES = {"": "Inbox", "fleet": "Fleet", "account": "Account", "remediation": "Remediation"}

_HERE = Path(__file__).parent
_SHELL_KEYS = ("theme",)  # of the address: the shell's own
_STAYS = {*_SHELL_KEYS, "id", "path"}  # which page it is, not how it is seen


def offer(addresses: Collection[str]) -> None:
    """Let the navigation of this process name only pages that there are (``"/"``, ``"/fleet"`` …)."""
    for path in [path for path in PAGES if "/" + path not in addresses]:
        del PAGES[path]


def query() -> dict[str, str]:
    """Return the query of the page's address; all values are text."""
    request = getattr(getattr(pn.state.curdoc, "session_context", None), "request", None)
    arguments = getattr(request, "arguments", None) or {}
    return {name: values[-1].decode("utf-8", "replace") for name, values in arguments.items() if values}


def kept() -> dict[str, str]:
    """Return what links to other pages carry on of the address: what is the shell's, not the view's."""
    return {name: value for name, value in query().items() if name in _SHELL_KEYS}


def is_dark() -> bool:
    """Tell whether this page is shown dark: as the address says, else as the browser remembers."""
    said = query().get("theme", "")
    if said in ("dark", "light"):
        return said == "dark"
    # the page's script resolves "auto" and writes it there
    return bool((pn.state.cookies or {}).get("workbench-theme") == "dark")


@lru_cache(maxsize=8)
def _static(name: str) -> str:
    return (_HERE / "static" / name).read_text(encoding="utf-8")


class _Page(Template):  # type: ignore[misc, unused-ignore]
    def __repr__(self) -> str:
        return "page"  # Panel shows it nowhere, and makes it of all that is inside each time something is added


class Shell:
    """
    A page.

    Parameters
    ----------
    view : object
        What is shown: a Panel viewable, or a Viewer; with `state` and `set_state` its state is the address. Of a `Later` it is that of
        the view inside, once it is there.
    here : str
        The page's path, a key of `PAGES` for those in the navigation.
    title : str
        What the browser's tab says.
    note : str
        One line beside the freshness, such as that this is a demonstration.
    user : str
        Who is logged in, with the role; empty without login.
    first : str
        HTML (escaped already) that is seen before any script has run, until the view is drawn.
    every : float, optional
        Seconds after which the view's `refresh()` is called again and again; it must not wait for anything.
    """

    def __init__(
        self,
        view: Any,
        *,
        here: str,
        title: str,
        note: str = "",
        user: str = "",
        first: str = "",
        every: float | None = None,
    ) -> None:
        self.view, self.title, self._every = view, title, every
        # the browser tells by it which theme it shows, for plots that are drawn later
        self._dark = pn.widgets.Checkbox(value=is_dark(), label="", visible=False)
        self._template = _Page(_static("shell.html.j2"), design=WorkbenchDesign, location=True)
        variables = {
            "nonce": NONCE,
            "css": _static("shell.css") + (_card_css() if first else ""),
            "head_js": _static("head.js"),
            "js": switch_script() + "\n" + _static("shell.js"),
            "pages": PAGES,
            "here": here,
            "note": note,
            "user": user,
            "first": first,
            "version": __version__,
            "dark": self._dark.value,
            "heading": title,
        }
        for name, value in variables.items():
            self._template.add_variable(name, value)
        self._template.add_panel("main", pn.panel(view, sizing_mode="stretch_width"), ["main"])
        self._template.add_panel("dark", self._dark, ["hidden"])

    def servable(self) -> Shell:
        """Make it the page of this session."""
        document = pn.state.curdoc
        # one look at all models at the end instead of one after each change: a third of what a page costs
        with document.models.freeze() if document is not None else nullcontext():
            self._template.servable(title=f"{self.title} · GPU Reliability Workbench")
        if pn.state.curdoc is None or pn.state.curdoc.session_context is None:
            return self
        self._with_view(self._ready)
        self._dark.param.watch(lambda event: self._with_view(lambda view: _darken(view, event.new)), "value")
        if self._every:
            follow(self, self._every, least=1.0)
        return self

    def _with_view(self, then: Callable[[Any], object]) -> None:
        """Do something with the view, or with that inside a `Later` as soon as it is there."""
        if not isinstance(self.view, Later):
            then(self.view)
        elif self.view.inner is not None:
            then(self.view.inner)
        else:
            self.view.param.watch(lambda event: then(event.new), "inner")

    def _ready(self, view: Any) -> None:
        if hasattr(view, "set_state"):
            _follow(view)
        _darken(view, self._dark.value)

    def refresh(self) -> None:
        """Bring the view up to date, when it is there."""
        view = self.view.inner if isinstance(self.view, Later) else self.view
        if view is not None:
            view.refresh()


def _darken(view: Any, dark: bool) -> None:
    """Tell a view for which theme it draws from now on; what is drawn already the browser has changed itself."""
    if hasattr(view, "dark") and view.dark != dark:
        view.dark = dark


def _card_css() -> str:
    from workbench.views.markup import css

    return "\n" + css()


def _follow(view: Any) -> None:
    """Let the view become what the address says, and the address what the view is."""
    location = pn.state.location
    given = _seen(query())
    if given:
        view.set_state(given)
    if location is None:
        return
    # a name that was once in the state and is not any more must leave the address; others (id, path, theme) stay. Whatever the page was
    # opened with is in the state too: who goes on from a link keeps what it named
    told, known = [view.state()], {*view.state(), *given}

    def address(*_: Any) -> None:
        now = view.state()
        if now == told[0]:
            return
        known.update(now)
        others = {key: value for key, value in permalink.parse(location.search).items() if key not in known}
        told[0] = now
        location.search = permalink.query(others | now)

    def arrived(event: Any) -> None:
        found = _seen(permalink.parse(event.new))
        if found == told[0]:
            return
        told[0] = found
        view.set_state(found)
        told[0] = view.state()
        known.update(told[0])

    location.param.watch(arrived, "search")
    view.param.watch(address, [name for name in view.param if name != "name"])


def _seen(state: Mapping[str, str]) -> dict[str, str]:
    """Return the part of an address that says how the page's subject is seen."""
    return {key: value for key, value in state.items() if key not in _STAYS}
