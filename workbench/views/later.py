"""Turn work that takes time into a part of a page that says so, and shows the result when it is there, without holding up anybody."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import panel as pn
import param

from workbench.errors import WorkbenchError
from workbench.views.fresh import tell
from workbench.views.markup import css, render

__all__ = ["Later", "sentence", "sorry"]


_LOG = logging.getLogger(__name__)


def sentence(title: str, text: str, hint: str = "", *, kind: str = "empty") -> Any:
    """Return a designed empty, waiting or error state: what is missing, and what to do about it; all text is escaped."""
    box = render("told.j2", "told", title=title, text=text, hint=hint, kind=kind)
    return pn.pane.HTML(box, sizing_mode="stretch_width", margin=0, stylesheets=[css()])


class Later(pn.viewable.Viewer):
    """
    Shows `show(load())`, with `load` run in a thread.

    Parameters
    ----------
    load : callable
        Blocking; a `WorkbenchError` becomes a sentence with its hint.
    show : callable
        Result → view; runs in the session.
    pool : Executor
    held : callable, optional
        Returns the result when it is there without waiting, else None: the page is then whole at once.
    wait : str
        What is said meanwhile.

    Attributes
    ----------
    inner : object or None
        What `show` returned.
    """

    inner = param.Parameter(default=None)

    def __init__(
        self,
        load: Callable[[], Any],
        show: Callable[[Any], Any],
        *,
        pool: Executor,
        held: Callable[[], Any] = lambda: None,
        wait: str = "Reading the evidence …",
    ) -> None:
        super().__init__()
        self._show = show
        self._column = pn.Column(sizing_mode="stretch_width", margin=0)
        try:
            there = held()
        except WorkbenchError as error:
            self._column[:] = [sorry(error)]
            return
        if there is not None:
            self._shown(there)
            return
        self._column[:] = [sentence("", wait, kind="wait")]
        document = pn.state.curdoc
        # a page that is gone must not be held by work that still runs for it
        here = weakref.ref(self)

        def arrived(done: Future[Any]) -> None:
            def change() -> None:
                if (view := here()) is not None:
                    view._arrived(done)

            tell(document, change)

        pool.submit(load).add_done_callback(arrived)

    def _arrived(self, done: Future[Any]) -> None:
        error = done.exception()
        if isinstance(error, WorkbenchError):
            self._column[:] = [sorry(error)]
        elif error is not None:
            _LOG.error("a page could not be made", exc_info=error)
            said = f"{type(error).__name__}: {error}"
            self._column[:] = [
                sentence("This went wrong", said, "It is a defect of the workbench: the server's log has more.", kind="error")
            ]
        else:
            self._shown(done.result())

    def _shown(self, result: Any) -> None:
        inner = self._show(result)
        self._column[:] = [inner]
        self.inner = inner

    def __panel__(self) -> Any:
        return self._column


def sorry(error: WorkbenchError) -> Any:
    """Return the state of a page whose subject is not there, or may not be seen."""
    return sentence("There is nothing to show", str(error), error.hint, kind="error")
