"""Turn an incident's row of the inbox into the line of its page that says whose it is, and a choice of who may change that into a decision."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import panel as pn

from workbench.errors import WorkbenchError
from workbench.inbox.model import STATES
from workbench.views.fresh import tell
from workbench.views.markup import render
from workbench.views.permalink import parse
from workbench.views.surface import Surface

__all__ = ["MEANINGS", "StateBar"]

MEANINGS = {
    "new": "nobody has looked",
    "acknowledged": "somebody has it",
    "resolved": "mended",
    "closed": "nothing is left to do",
    "muted": "a known thing",
}
NOTE = 500  # characters of a reason


class StateBar(pn.viewable.Viewer):
    """
    The state of an incident in the inbox.

    Parameters
    ----------
    entry : callable
        Returns the row as it is now, None while it is not known: never waits.
    decide : callable
        Called with (state, reason, state that was seen); judges whether the user may, and may wait.
    may : callable, optional
        Whether the user may change it, now; what the page shows by it is no right.
    why_not : str
        Why he may not.
    pool : Executor, optional
        Where `decide` runs; without one in the session's thread.
    """

    def __init__(
        self,
        entry: Callable[[], Any],
        decide: Callable[[str, str, str], Any],
        *,
        may: Callable[[], bool] = lambda: False,
        why_not: str = "",
        pool: Executor | None = None,
    ) -> None:
        super().__init__()
        self._entry, self._decide, self._may, self._why_not, self._pool = entry, decide, may, why_not, pool
        self._said, self._bad, self._busy = "", False, False
        self._drawn: tuple[Any, ...] = ()
        self._own: Any = None  # the row as this session's last decision left it, until the process has seen it too
        self._surface = Surface(heard=self.heard, margin=(8, 0, 0, 0), visible=False)
        self.refresh()

    def __panel__(self) -> Any:
        return self._surface

    def refresh(self) -> None:
        """Draw the row when it is another than the one drawn; waits for nothing."""
        entry, may = self._newest(), self._may()
        now = (entry and (entry.state, entry.data.get("marked")), may, self._said, self._bad, self._busy)
        if now == self._drawn:
            return
        self._drawn = now
        self._surface.visible = entry is not None
        if entry is not None:
            self._surface.html = render(
                "incident.j2", "standing", state=entry.state, marked=entry.data.get("marked") or {}, meanings=MEANINGS, may=may,
                why_not=self._why_not, said=self._said, bad=self._bad, busy=self._busy, longest=NOTE,
            )  # fmt: skip

    def _newest(self) -> Any:
        entry, own = self._entry(), self._own
        if entry is None or own is None:
            return entry if own is None else own
        return max(own, entry, key=lambda one: (one.data.get("marked") or {}).get("time") or 0.0)

    def heard(self, asked: str) -> None:
        """Decide what the form sends; what it sends is not trusted."""
        words = parse(asked)
        state, seen = words.get("state", ""), words.get("seen", "")
        if self._busy or state not in STATES or seen not in STATES:
            return
        self._busy, self._said = True, ""
        self.refresh()
        ask = (state, words.get("note", "").strip()[:NOTE], seen)
        if self._pool is None:
            done: Future[Any] = Future()
            try:
                done.set_result(self._decide(*ask))
            except Exception as error:
                done.set_exception(error)
            self._decided(state, done)
            return
        document, here = pn.state.curdoc, weakref.ref(self)

        def arrived(done: Future[Any]) -> None:
            def change() -> None:
                if (bar := here()) is not None:
                    bar._decided(state, done)

            tell(document, change)

        self._pool.submit(self._decide, *ask).add_done_callback(arrived)

    def _decided(self, state: str, done: Future[Any]) -> None:
        error = done.exception()
        self._busy, self._bad = False, error is not None
        if error is None:
            self._own = done.result()
            self._said = f"The state is {state} now; it stands in the history."
        elif isinstance(error, WorkbenchError):
            hint = getattr(error, "hint", "")
            self._said = f"{error}{f' ({hint})' if hint else ''}"
        else:
            self._said = f"This went wrong: {type(error).__name__}"
        self.refresh()
