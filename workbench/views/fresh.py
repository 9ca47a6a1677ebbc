"""
Turn what comes later into changes of a page: a view with a `refresh()` follows its site, and what was read in a thread is told to its session.

Callbacks hold the view weakly: what a session has is freed when the session ends, whatever still ticks. While a browser draws a page nothing
may change in it. Panel (1.9.4) drops what changes between the pull of a document and the browser's word that it is drawn, as if the document
was yet to be pulled; and views of BokehJS (3.9.2) hear of changes only when their children are built.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable
from typing import Any

import panel as pn

__all__ = ["LEAST", "afterwards", "follow", "soon", "tell", "ticker", "when_drawn"]

_LOG = logging.getLogger(__name__)
SOON = 100  # ms: the browser has asked for its scripts by then
LEAST = 5.0  # seconds; oftener nobody sees more, and twenty sessions share one process


def ticker(view: Any, ended: Callable[[], None] = lambda: None) -> Callable[[], Any]:
    """Return the coroutine function that refreshes a view while there is one, and calls `ended` when there is none any more."""
    held = weakref.ref(view)

    async def tick() -> None:
        await asyncio.sleep(0)  # whoever waits for the loop goes first
        one = held()
        if one is None:
            ended()
            return
        try:
            one.refresh()
        except Exception:
            _LOG.exception("a page could not be brought up to date")  # the next snapshot is another chance

    return tick


def when_drawn(change: Callable[[], object]) -> None:
    """Change the page of the current session: at once, or as soon as the browser that draws it now has done so."""
    context = getattr(pn.state.curdoc, "session_context", None)
    pulled = getattr(getattr(context, "session", None), "connection_count", 0) > 0
    if pulled and not pn.state.loaded:
        pn.state.onload(change)
    else:
        change()


def tell(document: Any, change: Callable[[], object]) -> None:
    """
    Change a session's page, from any thread, when it can be changed; nothing is done when the session is over.

    Parameters
    ----------
    document : Document or None
        The session's; None outside of a server, where it is changed at once.
    change : callable
        Runs in the session. It should hold its view weakly.
    """
    if document is None:
        change()
    elif document.session_context is None or not document.session_context.destroyed:
        document.add_next_tick_callback(lambda: when_drawn(change))


def soon(change: Callable[[], object]) -> None:
    """
    Change the page of the current session after it was sent, while the browser loads its scripts, or as soon as it is drawn.

    What takes a while and is seen below the first words belongs here: it holds up no first byte, and comes with the page all the same.
    """
    document = pn.state.curdoc
    if document is None or document.session_context is None:
        change()
    else:
        document.add_timeout_callback(lambda: when_drawn(change), SOON)


def afterwards(draw: Callable[[], None], wait: int = 0) -> Callable[..., None]:
    """
    Draw after the browser shows what is drawn now, so that the light parts of an answer are seen before the heavy ones.

    Parameters
    ----------
    draw : callable
    wait : int
        Milliseconds; 0 is the next round of the server's loop. Without a server it is drawn at once.

    Returns
    -------
    callable
        Asks for it again; what was asked for and not yet drawn is drawn once. Of a page that no browser has drawn yet it is drawn when
        one has: what a page brings with it holds up its first sight, and what comes while it is drawn is lost.
    """
    waiting: list[bool] = []

    def now() -> None:
        waiting.clear()
        draw()

    def ask(*_: Any) -> None:
        document = pn.state.curdoc
        if document is None or document.session_context is None:
            draw()
        elif not waiting:
            waiting.append(True)
            if not pn.state.loaded:
                pn.state.onload(now)
            elif wait:
                document.add_timeout_callback(now, wait)
            else:
                document.add_next_tick_callback(now)

    return ask


def follow(view: Any, period: float = LEAST, *, least: float = LEAST) -> None:
    """
    Refresh a view every `period` seconds for as long as its session lives.

    Parameters
    ----------
    view : object
        Has `refresh()`, which takes what is there and waits for nothing.
    period : float
        Seconds, at least `least`. Outside of a served session nothing is followed: a notebook shows what there was.
    least : float
        Seconds; less than `LEAST` for a view whose refresh costs next to nothing when nothing is new.
    """
    document = pn.state.curdoc
    if document is None or document.session_context is None:
        return
    running: list[Any] = []
    over: list[bool] = []

    def end(*_: Any) -> None:
        over.append(True)
        while running:
            running.pop().stop()

    tick = ticker(view, end)

    def begin() -> None:
        if not over:
            running.append(pn.state.add_periodic_callback(tick, period=int(max(period, least) * 1000)))

    pn.state.onload(begin)  # not while the page is being drawn
    pn.state.on_session_destroyed(end)
