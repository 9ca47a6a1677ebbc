"""Turn the logs of a case file into a window of lines around one of them: escaped, numbered, with the evidence marked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import panel as pn
import param

from workbench.casefile.model import LogWindow
from workbench.views.markup import plain, render
from workbench.views.permalink import parse
from workbench.views.surface import Surface

if TYPE_CHECKING:
    from workbench.casefile.model import CaseFile, LogLine

__all__ = ["LogPane"]

BEFORE, AFTER = 40, 80  # lines at first
STEP = 200  # lines that one click adds
MOST = 2_000  # lines in the browser at once; more is another window
WIDTH = 2_000  # characters of a line that are shown at first
WIDEST = 2_000_000  # characters of one line
MORE = 64_000  # characters that one click adds: a browser lays out so many in a blink, a megabyte not


class LogPane(pn.viewable.Viewer):
    """
    A window of one log.

    Parameters
    ----------
    case : CaseFile
        Whose logs; nothing else is read.
    file, line
        What is looked at (line numbers from 1).
    needle : str
        Text to mark.
    chosen : callable
        Called with (file, line) when somebody chooses another line.

    Attributes
    ----------
    window : LogWindow
        What is shown.
    """

    file = param.String(default=None, allow_None=True)
    line = param.Integer(default=None, allow_None=True, bounds=(1, None))
    needle = param.String(default="")
    html = param.String(default="", constant=True)
    height = param.Integer(default=420, bounds=(120, None))

    def __init__(self, case: CaseFile, *, chosen: Callable[[str, int], None] | None = None, **params: Any) -> None:
        self.case, self._chosen = case, chosen
        self._marks = _marks(case.verdict)
        self._total = _totals(case)
        self._grown = (BEFORE, AFTER)
        self._wide: dict[int, int] = {}
        self.window = LogWindow("")
        super().__init__(**params)
        self._surface: Surface | None = None
        self._read()
        self.param.watch(self._moved, ["file", "line"])
        self.param.watch(self._draw, ["needle"])

    def __panel__(self) -> Surface:
        if self._surface is None:
            self._surface = Surface(self.html, heard=self._heard, styles={"--log-height": f"{self.height}px"})
        return self._surface

    def _moved(self, *events: Any) -> None:
        inside = {line.no for line in self.window.lines}
        # a line that is already on the screen is marked where it stands: the text does not jump under the reader's eyes
        if self.window.file != (self.file or "") or self.line not in inside:
            self._grown, self._wide = (BEFORE, AFTER), {}
            self._read()
        else:
            self._draw()

    def _read(self, line: int | None = None) -> None:
        if not self.file:
            self.window = LogWindow("", problem="")
        elif self._total and self.file not in self._total:
            self.window = LogWindow(self.file, problem="This file is not among the documents of this incident.")
        else:
            at = line or self.line or 1
            self.window = self.case.logs.window(self.file, at, before=self._grown[0], after=self._grown[1])
            if not self.window.lines and not self.window.problem:
                self.window = LogWindow(self.file, problem=f"There is no line {at:,} in this file.")
        self._draw()

    def _draw(self, *_: Any) -> None:
        marks = self._marks.get(self.file or "", {})
        rows = [self._row(line) for line in self.window.lines]
        here = self.line or 0
        order = self._places()
        state = SimpleNamespace(
            roles=marks,
            before=any(place < (self.file or "", here) for place in order) if order else False,
            after=any(place > (self.file or "", here) for place in order) if order else False,
        )
        if len(order) > 1:
            state.before = state.after = True  # the evidence is a ring: from the last the next is the first
        window = SimpleNamespace(
            file=self.window.file, lines=rows, before=self.window.before, after=self.window.after, problem=self.window.problem
        )
        html = render("log.j2", "lines", window=window, here=self.line, marks=state, needle=self.needle, wide=self._wide,
                      scope=self.case.id, total=self._total.get(self.file or ""))  # fmt: skip
        with param.edit_constant(self):
            self.html = html
        if self._surface is not None:
            self._surface.html = html

    def _row(self, line: LogLine) -> SimpleNamespace:
        """Return what is shown of a line: its begin, and how much more there is; when asked for more, it is read anew at that length."""
        shown = self._wide.get(line.no, WIDTH)
        if line.cut and shown > len(line.text):
            again = self.case.logs.window(self.window.file, line.no, before=0, after=0, width=shown)
            line = next((one for one in again.lines if one.no == line.no), line)
        text = plain(line.text)
        left = len(text) - shown
        more = (
            f"{left:,} more characters: show"
            if left > 0 and not line.cut
            else "the line goes on: show more"
            if left > 0 or line.cut
            else ""
        )
        if shown >= WIDEST:
            more = ""
            text = text[:shown] + " … (the rest is in the file)" if left > 0 or line.cut else text
        return SimpleNamespace(no=line.no, text=text if not more else text[:shown], signature=line.signature, more=more)

    def _places(self) -> list[tuple[str, int]]:
        return [
            (str(event["file"]), int(event["line"]))
            for event in self.case.verdict.get("evidence") or []
            if event.get("file") and event.get("line")
        ]

    def jump(self, by: int) -> None:
        """Go to the evidence before (-1) or after (1) the line that is looked at, in the order of the verdict."""
        order = list(dict.fromkeys(self._places()))
        if not order:
            return
        here = (self.file or "", self.line or 0)
        at = order.index(here) + by if here in order else (0 if by > 0 else -1)
        self._choose(*order[at % len(order)])

    def grow(self, way: str) -> None:
        """Show more lines before (``earlier``) or after (``later``) those shown; far away, the window moves instead of growing."""
        if not self.window.lines:
            return
        before, after = self._grown
        if before + after + STEP <= MOST:
            self._grown = (before + STEP, after) if way == "earlier" else (before, after + STEP)
            self._read()
        else:
            edge = self.window.lines[0].no if way == "earlier" else self.window.lines[-1].no
            self._grown = (STEP, BEFORE) if way == "earlier" else (BEFORE, STEP)
            self._read(max(1, edge))

    def more(self, no: int) -> None:
        """Show more characters of a long line."""
        self._wide[no] = min(self._wide.get(no, WIDTH) + MORE, WIDEST)
        self._draw()

    def _choose(self, file: str, line: int) -> None:
        if self._chosen is not None:
            self._chosen(file, line)
        else:
            self.param.update(file=file, line=line)

    def _heard(self, asked: str) -> None:
        words = parse(asked)
        if (way := words.get("log")) in ("earlier", "later"):
            self.grow(way)
        elif words.get("jump") in ("-1", "1"):
            self.jump(int(words["jump"]))
        elif words.get("more", "").isdecimal() and len(words["more"]) < 12:
            self.more(int(words["more"]))
        elif words.get("file") and words.get("line", "").isdecimal() and 0 < len(words["line"]) < 12:
            self._choose(words["file"], max(1, int(words["line"])))


def _marks(verdict: Mapping[str, Any]) -> dict[str, dict[int, str]]:
    """Return file → line → role of what the verdict names."""
    marks: dict[str, dict[int, str]] = {}
    for event in [*(verdict.get("counter_evidence") or []), *reversed(verdict.get("evidence") or [])]:
        if event.get("file") and event.get("line"):
            marks.setdefault(str(event["file"]), {})[int(event["line"])] = str(event.get("role") or "context")
    return marks


def _totals(case: CaseFile) -> dict[str, int | None]:
    """Return the documents of a case and how many lines each has, as far as known."""
    documents = case.documents
    if not len(documents) or "name" not in documents:
        return {}
    # a job of 16,384 ranks has as many documents, and somebody waits: looked at a column at a time
    names, known = documents["name"].astype(str), documents["lines"].notna() if "lines" in documents else None
    lines = [None] * len(names) if known is None else documents["lines"].astype(object).where(known, None)
    return dict(zip(names, lines, strict=True))
