"""Turn something that is looked at again and again into what every session takes without waiting: one thread a process looks."""

from __future__ import annotations

import logging
import threading
import time
from typing import Self

__all__ = ["Looking"]

_LOG = logging.getLogger(__name__)


class Looking:
    """
    Looks in a thread of its own; who derives from it says in `look` what is seen, and keeps it where sessions take it.

    Parameters
    ----------
    name : str
        Of the thread.
    period : float
        Seconds between two looks.
    rest : float, optional
        At least this many times as long as a look took is waited until the next.
    """

    def __init__(self, name: str, period: float, *, rest: float = 0.0) -> None:
        self._thread_name, self.period, self._rest = name, period, rest
        self._over, self._wake = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def look(self) -> object:
        """Look once, in the calling thread."""
        raise NotImplementedError

    def start(self) -> Self:
        """Look once, now, and from then on in a thread; returns itself."""
        self.look()
        self._thread = threading.Thread(target=self._run, name=self._thread_name, daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(5)

    def refresh(self) -> None:
        """Look now; never waits."""
        self._wake.set()

    def _turn(self) -> None:
        """What is done each time; a look, and whatever goes with it."""
        self.look()

    def _run(self) -> None:
        took = 0.0
        while not self._over.is_set():
            self._wake.wait(max(self.period, self._rest * took))
            self._wake.clear()
            if self._over.is_set():
                return
            began = time.monotonic()
            try:
                self._turn()
            except Exception:  # a thread that died would show an old page for ever
                _LOG.exception("%s: a look failed", self._thread_name)
            took = time.monotonic() - began
