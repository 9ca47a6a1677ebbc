"""Turn the inbox's folder into rows that every session reads without waiting: one thread a process looks, sessions only take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workbench.errors import WorkbenchError
from workbench.inbox.model import Entry
from workbench.serving.looking import Looking

__all__ = ["Board", "Rows"]

PERIOD = 2.0  # seconds: the folder's rows are held by time stamp, a look at 1,000 unchanged ones takes some 10 ms


@dataclass(frozen=True, slots=True)
class Rows:
    """What the inbox held at one moment: rows newest first, and what could not be read."""

    version: int = 0
    entries: tuple[Entry, ...] = ()
    time: float | None = None
    problems: tuple[str, ...] = ()
    error: str = ""
    hint: str = ""


class Board(Looking):
    """
    Looks at an inbox every `PERIOD` seconds.

    Parameters
    ----------
    inbox : Inbox
        An object of its own, used by this thread alone.
    clock : callable, optional
    """

    def __init__(self, inbox: Any, *, period: float = PERIOD, clock: Callable[[], float] = time.time) -> None:
        super().__init__("workbench-inbox", period)
        self._inbox, self._clock = inbox, clock
        self._rows = Rows()

    @property
    def rows(self) -> Rows:
        """The newest rows; never waits."""
        return self._rows

    def look(self) -> Rows:
        """Look once, in the calling thread; what cannot be read leaves the rows there were, and says so."""
        old = self._rows
        try:
            entries, error, hint = tuple(self._inbox.entries()), "", ""
            problems = tuple(getattr(self._inbox, "problems", ()))
        except (WorkbenchError, OSError) as trouble:
            entries, problems, error, hint = old.entries, old.problems, str(trouble), getattr(trouble, "hint", "")
        same = (entries, problems, error) == (old.entries, old.problems, old.error)
        seen = old.time if error else self._clock()
        self._rows = Rows(old.version if same and old.version else old.version + 1, entries, seen, problems, error, hint)
        return self._rows
