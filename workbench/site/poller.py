"""
Turn a function that asks a whole site into one snapshot that any number of sessions read without waiting.

One thread a process asks; sessions only take what is there. A poll that fails or hangs leaves the last snapshot in place, marked stale,
and is tried again later and later; nothing that happens in a source reaches a session as an exception or as a wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from workbench.errors import WorkbenchError
from workbench.site.frames import no_snapshot
from workbench.site.model import Heard, Snapshot

__all__ = ["Poller", "shared"]

_LOG = logging.getLogger(__name__)
SLOWEST = 300.0  # seconds: a site that is back is seen within five minutes, however long it was away
WATCHED = 600.0  # seconds for which a node is looked at closely after somebody asked for it last


class Poller:
    """
    Asks again and again in a thread of its own.

    Parameters
    ----------
    fetch : callable
        Returns a `Snapshot`; may take its time and may raise. When it has a method ``watch(nodes)``, it is told which nodes people
        look at.
    period : float
        Seconds between two polls; the first is at once.
    name : str
        What the site is called until a snapshot tells.
    limit : float, optional
        Seconds after which a poll counts as hung; default three periods, a minute at least.
    clock, steady : callable, optional
        Seconds since the epoch, and seconds that only grow.

    Attributes
    ----------
    snapshot : Snapshot
        The newest; before the first answer one without nodes that says so.
    version : int
        Grows with each new snapshot: a session that has seen it has nothing to do.
    failures : int
        Polls that failed since the last that did not.
    """

    def __init__(
        self,
        fetch: Callable[[], Snapshot],
        period: float = 30.0,
        *,
        name: str = "",
        limit: float | None = None,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        if not period > 0:
            raise ValueError("a period is a number of seconds above 0")
        self.period, self.limit = period, max(3 * period, 60.0) if limit is None else limit
        self._fetch, self._clock, self._steady = fetch, clock, steady
        first = (Heard("poller", "missing", None, "nobody has been asked yet", "wait a moment"),)
        self._state: tuple[int, Snapshot] = (0, no_snapshot(name, clock(), period=period, heard=first))
        self.failures = 0
        self.seconds: float | None = None  # that the last poll took
        self._changed = threading.Condition()
        self._wake = threading.Event()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._hung: threading.Thread | None = None
        self._watched: dict[str, float] = {}

    # what sessions use

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot; never waits."""
        return self._state[1]

    @property
    def version(self) -> int:
        """How many snapshots there were; never waits."""
        return self._state[0]

    @property
    def state(self) -> tuple[int, Snapshot]:
        """Version and snapshot that belong together."""
        return self._state

    def watch(self, node: str) -> None:
        """Say that somebody looks at a node: for a while its samples and events are part of the snapshot; never waits."""
        new = node not in self._watched
        self._watched[node] = self._steady()
        if new and hasattr(self._fetch, "watch"):
            self._wake.set()

    def refresh(self) -> None:
        """Ask now instead of at the end of the period; never waits."""
        self._wake.set()

    def wait(self, version: int, seconds: float) -> bool:
        """Wait until the version is higher; for tests and commands, never for a session."""
        with self._changed:
            return self._changed.wait_for(lambda: self._state[0] > version, seconds)

    # the thread

    def start(self) -> Poller:
        """Begin, once; returns itself."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="workbench-poller", daemon=True)
            self._thread.start()
        return self

    def stop(self, seconds: float = 5.0) -> None:
        """End the thread; one that is in the middle of a poll is waited for so long, and left behind then."""
        self._over.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(seconds)
            self._thread = None

    def __enter__(self) -> Poller:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        due = self._steady()
        while not self._over.is_set():
            self._wake.clear()
            self.poll()
            # from when it was due, not from when it ended: a slow poll must not make the next one later
            wait = min(self.period * 2 ** min(self.failures, 8), max(SLOWEST, self.period))
            due = max(due + wait, self._steady()) if not self.failures else self._steady() + wait
            if self._wake.wait(max(due - self._steady(), 0.0)):
                due = self._steady()

    def poll(self) -> bool:
        """Ask once, in the calling thread, and return whether there is a new answer; a poll that hangs is given up after `limit`."""
        began = self._steady()
        try:
            if self._hung is not None and self._hung.is_alive():
                raise TimeoutError("the poll before has not come back")  # never more than one of them
            snapshot = self._asked()
        except Exception as error:
            self.failures += 1
            self.seconds = self._steady() - began
            self._keep(_stale(self.snapshot, error, self._clock()))
            if not isinstance(error, WorkbenchError | TimeoutError):
                _LOG.exception("a poll of the site failed")
            return False
        self.failures = 0
        self.seconds = self._steady() - began
        self._keep(snapshot)
        return True

    def _asked(self) -> Snapshot:
        end = self._steady() - WATCHED
        self._watched = {node: seen for node, seen in list(self._watched.items()) if seen >= end}
        tell: Callable[[Iterable[str]], Any] | None = getattr(self._fetch, "watch", None)
        if tell is not None:
            tell(tuple(self._watched))
        done: list[Snapshot | BaseException] = []

        def ask() -> None:
            try:
                done.append(self._fetch())
            except BaseException as error:
                done.append(error)

        thread = threading.Thread(target=ask, name="workbench-poll", daemon=True)
        thread.start()
        thread.join(self.limit)
        if not done:
            self._hung = thread
            raise TimeoutError(f"no answer within {self.limit:.0f} s")
        if isinstance(done[0], BaseException):
            raise done[0]
        return done[0]

    def _keep(self, snapshot: Snapshot) -> None:
        with self._changed:
            self._state = self._state[0] + 1, snapshot
            self._changed.notify_all()


def _stale(last: Snapshot, error: Exception, now: float) -> Snapshot:
    """Return the last snapshot with every source marked stale, and why; its time stays what it was."""
    hint = getattr(error, "hint", "") or "the last answers are shown; it is tried again"
    old = tuple(
        replace(one, status="stale") if one.status in ("ok", "partial") else one for one in last.heard if one.source != "poller"
    )
    said = f"{error}" if isinstance(error, WorkbenchError | TimeoutError) else f"{type(error).__name__}: {error}"
    return replace(last, heard=(*old, Heard("poller", "failed", now, f"the site could not be asked: {said}", hint)))


_SHARED: dict[str, Poller] = {}
_LOCK = threading.Lock()


def shared(name: str, make: Callable[[], Poller]) -> Poller:
    """Return the one poller of this name in this process, made and started when it is first asked for."""
    with _LOCK:
        if name not in _SHARED:
            _SHARED[name] = make().start()
        return _SHARED[name]
