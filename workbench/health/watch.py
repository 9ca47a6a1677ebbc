"""Turn a check that is run again and again into what publishers show: spread over time, retried when refused, taken back at the end."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread

from workbench.catalog.findings import finding_row
from workbench.errors import SourceError
from workbench.health.finding import Finding
from workbench.health.publish import Publisher

__all__ = ["Watch"]

_FIRST = 5.0  # seconds before a refused write is tried again; twice as many each time
_LAST = 300.0  # and at most so many: a heartbeat
# Part of the interval by which looks are moved: 2,000 nodes that were switched on together must not write together
_SPREAD = 0.1
_START = 30.0  # seconds over which the first looks are spread, when the interval is not shorter


@dataclass
class _Try:
    """When a publisher is asked again, and how long it waits after that."""

    at: float
    wait: float


class Watch:
    """
    A loop: look, publish, wait.

    Parameters
    ----------
    look : callable
        Returns the findings; runs in a thread, one at a time.
    publishers : iterable of Publisher
        Asked one after the other. One that fails is asked again after 5 s, then after twice as long each time, up to five minutes, with what
        was found last.
    seconds : float
        Between two looks, give or take a tenth.
    say : callable
        Takes (what went wrong, the way out).
    shown : callable, optional
        Takes the findings of each look.
    clock : callable, optional
        Seconds since the epoch.
    chance : callable, optional
        Numbers from 0 to 1; for tests.
    """

    def __init__(
        self,
        look: Callable[[], Sequence[Finding]],
        publishers: Iterable[Publisher],
        *,
        seconds: float,
        say: Callable[[str, str], None],
        shown: Callable[[Sequence[Finding]], None] = lambda findings: None,
        clock: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._look, self._publishers, self._seconds = look, list(publishers), seconds
        self._say, self._shown, self._clock, self._chance = say, shown, clock, chance
        self._inbox: SimpleQueue[Sequence[Finding] | BaseException | None] = SimpleQueue()
        self._tries: dict[str, _Try] = {}
        self._latest: tuple[Sequence[Finding], float] | None = None

    def stop(self) -> None:
        """End the loop; may be called from a signal handler or another thread."""
        self._inbox.put(None)

    def run(self) -> None:
        """Loop until `stop`, then let every publisher take back what it showed."""
        due = time.monotonic() + self._chance() * min(self._seconds, _START)
        looking = False
        while True:
            moments = [one.at for one in self._tries.values()] + ([] if looking else [due])
            wait = min(moments, default=time.monotonic() + 3600.0) - time.monotonic()
            try:
                message = self._inbox.get(timeout=max(wait, 0.0)) if wait > 0 else self._inbox.get_nowait()
            except Empty:
                pass
            else:
                if message is None:
                    break
                looking = False
                self._found(message)
            now = time.monotonic()
            if not looking and now >= due:
                due = now + self._seconds * (1 + _SPREAD * (2 * self._chance() - 1))
                looking = True
                Thread(target=self._work, name="look", daemon=True).start()
            for publisher in self._publishers:
                waiting = self._tries.get(publisher.name)
                if waiting is not None and now >= waiting.at:
                    self._publish(publisher)
        for publisher in self._publishers:
            try:
                publisher.stop(self._clock())
            except SourceError as error:
                self._say(f"{publisher.name}: what it shows could not be taken back: {error}", error.hint)

    def _work(self) -> None:
        try:
            self._inbox.put(self._look())
        except BaseException as error:
            self._inbox.put(error)

    def _found(self, message: Sequence[Finding] | BaseException) -> None:
        if isinstance(message, BaseException):
            said = f"the checks themselves failed: {type(message).__name__}: {message}"[:400]
            self._say(said, "run `workbench check --context running` on the node")
            row = finding_row("check-failed")
            message = [Finding("checks", "unknown", said, "check-failed", cls=row.cls, action=row.action)]
        self._latest = (message, self._clock())
        self._shown(message)
        for publisher in self._publishers:
            if publisher.name not in self._tries:  # one that waits gets the latest when its time has come
                self._publish(publisher)

    def _publish(self, publisher: Publisher) -> None:
        if self._latest is None:
            return
        try:
            publisher.publish(*self._latest)
        except SourceError as error:
            before = self._tries.get(publisher.name)
            wait = min(2 * before.wait, _LAST) if before else _FIRST
            after = wait * (1 + self._chance() / 2)
            self._tries[publisher.name] = _Try(time.monotonic() + after, wait)
            self._say(f"{publisher.name}: {error}; tried again in {after:.0f} s", error.hint)
        else:
            self._tries.pop(publisher.name, None)
