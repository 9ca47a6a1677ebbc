"""
Turn what a page has below its first sight into pieces, each drawn when the browser asks for it: nothing stands between a click and its answer.

A browser asks when it has drawn the piece before and nobody presses a button or a key, so neither the server's thread nor the browser's is
ever further from a click than one piece. Bokeh (3.9) has no other word of when a browser has drawn what it was sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar

import panel as pn
import param
from panel.reactive import ReactiveHTML

from workbench.views.markup import css

__all__ = ["Unhurried"]

# `QUIET` ms after somebody pressed something the next piece is asked for: who clicks once often clicks again. A hidden page has no idle time
# worth the name, so it is asked for after `LATEST` ms all the same.
_RENDER = """
const QUIET = 800, LATEST = 1000
const idle = window.requestIdleCallback ?? (then => setTimeout(then, 50))
const left = () => state.pressed === undefined ? 0 : state.pressed + QUIET - performance.now()
state.press = () => { state.pressed = performance.now() }
for (const kind of ['pointerdown', 'keydown']) document.addEventListener(kind, state.press, true)
const ask = () => {
  if (state.over || data.asked >= data.wanted) return
  if (left() > 0) state.timer = setTimeout(ask, left())
  else data.asked = data.wanted
}
state.next = () => {
  box.style.display = data.wanted ? '' : 'none'
  clearTimeout(state.timer)
  if (data.wanted > data.asked) idle(ask, {timeout: LATEST})
}
box.querySelector('p').textContent = data.told
state.next()
"""
_REMOVE = """
state.over = true
clearTimeout(state.timer)
for (const kind of ['pointerdown', 'keydown']) document.removeEventListener(kind, state.press, true)
"""


class Unhurried(ReactiveHTML):
    """
    Draws pieces one by one, while a browser has nothing better to do; without a served session all at once.

    Parameters
    ----------
    told : str
        What stands in its place until all is drawn.
    """

    told = param.String(default="")
    wanted = param.Integer(default=0, doc="The number of the piece that the browser shall ask for; 0 when there is none.")
    asked = param.Integer(default=0, doc="The number of the piece that the browser asked for last.")

    _debounce: ClassVar[int] = 1
    _template: ClassVar[str] = '<div id="box" class="wb" role="status"><p class="soft"></p></div>'
    _scripts: ClassVar[dict[str, str]] = {"render": _RENDER, "wanted": "state.next()", "remove": _REMOVE}

    def __init__(self, told: str = "", **params: Any) -> None:
        params.setdefault("sizing_mode", "stretch_width")
        super().__init__(told=told, stylesheets=[css()], **params)
        self._pieces: deque[Iterator[object]] = deque()
        self._drawn = 0
        self.param.watch(self._heard, "asked")

    def add(self, pieces: Iterator[object]) -> None:
        """Draw these behind those that wait; each step of the iterator draws one. One that shall go on no more is closed by who gave it."""
        document = pn.state.curdoc
        if document is None or document.session_context is None:
            deque(pieces, 0)
            return
        self._pieces.append(pieces)
        if not self.wanted:
            self.wanted = self._drawn + 1

    def _heard(self, *_: Any) -> None:
        # what a browser sends is not trusted: whatever number it says, it gets the next piece
        try:
            while self._pieces:
                try:
                    next(self._pieces[0])
                    break
                except StopIteration:
                    self._pieces.popleft()
        finally:  # a piece that fails is told by the server's log, and those behind it are drawn all the same
            self._drawn += 1
            self.wanted = self._drawn + 1 if self._pieces else 0
