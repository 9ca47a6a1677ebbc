"""Turn a simulated failure into writes to a game day's servers, each at its moment, in real time or faster."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.drill import objects
from workbench.drill.documents import documents
from workbench.drill.target import Target
from workbench.simulation.evidence import Failure
from workbench.simulation.metrics import BEFORE, samples

__all__ = ["LEAD", "Clock", "Feed"]

LEAD = 30.0  # simulated seconds of a healthy job, fed at their own moments before the fault
_TAIL = 20.0  # simulated seconds after the last thing that happens
_PACE = 0.5  # seconds between two writes
_HEARTBEAT = 10.0  # seconds; a node controller waits four times as long (--node-monitor-grace-period)
_SILENT = 40.0  # seconds after which a node that is silent is said to be; the same


@dataclass(frozen=True, slots=True)
class Clock:
    """
    Says when, on the wall's clock, a simulated moment is fed.

    The stamps of evidence are never in the future: a feed that is `speed` times as fast as time begins in the past and comes to the present
    with its last moment. At speed 1 both are the same.

    Attributes
    ----------
    began : float
        Seconds since the epoch at which the feed begins.
    begin, end : float
        The simulated moments of its begin and end.
    speed : float
    """

    began: float
    begin: float
    end: float
    speed: float

    @classmethod
    def of(cls, told: float, began: float, speed: float) -> tuple[Clock, float]:
        """Return the clock of a failure that goes on for `told` seconds after the fault, and the moment of the fault: a whole second."""
        after = told + _TAIL
        end = began + (LEAD + after) / speed
        fault = float(int(end - after))
        return cls(began, fault - LEAD, fault + after, speed), fault

    def wall(self, moment: float) -> float:
        """Return the time at which a moment is fed."""
        return self.began + max(0.0, moment - self.begin) / self.speed

    def now(self, wall: float) -> float:
        """Return the moment that is fed at a time."""
        return self.begin + (wall - self.began) * self.speed


@dataclass(slots=True)
class Feed:
    """
    One failure on its way into the servers.

    Attributes
    ----------
    failure : Failure
        Its time is that of `clock`.
    folder : Path
        Its evidence as files.
    sign : float or None
        Simulated seconds from the fault until the first pod was shown to have failed.
    first_sign : float or None
        When (wall) that was written.
    lag : float
        Seconds by which that was late: servers take their time.
    metrics : bool
        Whether they are fed.
    error : Exception or None
        What ended it.
    """

    target: Target
    failure: Failure
    folder: Path
    clock: Clock
    metrics: bool = True
    sign: float | None = None
    first_sign: float | None = None
    lag: float = 0.0
    error: Exception | None = None
    counts: dict[str, int] = field(default_factory=lambda: {"lines": 0, "samples": 0, "objects": 0})
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="game-day-feed", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether all of it is fed, or it ended with `error`."""
        return self._thread is not None and not self._thread.is_alive()

    def stop(self) -> None:
        """End early."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(60)

    def _run(self) -> None:
        try:
            self._feed()
        except Exception as error:  # told by whoever plays: a thread has nobody to raise to
            self.error = error

    def _feed(self) -> None:
        failure, target = self.failure, self.target
        begin = failure.time - BEFORE
        pods = objects.pod_names(failure)
        for index, name in enumerate(pods):
            target.make(target.pods_path(), objects.pod(failure, index))
            target.status(target.pods_path(name), objects.running(begin))
        lines, values, writes = self._timeline(begin, pods)
        beat = 0.0
        while True:
            moment = self.clock.now(time.time())
            rows = [row for _, row in _due(lines, moment)]
            if rows:
                target.index_lines(rows)
                self.counts["lines"] += len(rows)
            if found := [row for _, row in _due(values, moment)]:
                target.write_samples(found)
                self.counts["samples"] += len(found)
            for when, (path, body, sign) in _due(writes, moment):
                if path.endswith("/events"):
                    target.make(path, body)
                else:
                    target.status(path, body)
                self.counts["objects"] += 1
                if sign and self.first_sign is None:
                    self.first_sign, self.sign = time.time(), when - failure.time
                    self.lag = max(0.0, self.first_sign - self.clock.wall(when))
            if time.time() - beat > _HEARTBEAT:
                beat = time.time()
                self._beat(moment)
            if not (lines or values or writes) or self._stop.wait(_PACE):
                return

    def _timeline(self, begin: float, pods: list[str]) -> tuple[list[Any], list[Any], list[Any]]:
        """What is to be written, the latest first: lines, samples, and statuses of pods and nodes."""
        failure, target = self.failure, self.target
        lines: list[Any] = []
        if target.has_logs:
            lines = list(documents(self.folder, dict(zip(failure.nodes, pods, strict=True)), target.namespace))
        values: list[Any] = []
        if target.has_metrics and self.metrics:
            values = [(one.time, one) for one in samples(failure, pods=pods, namespace=target.namespace)]
        writes: list[Any] = [
            (failure.time + after, (target.pods_path(pods[index]), status, True))
            for after, index, status in objects.ends(failure, begin)
        ]
        if failure.told_by == "silence" and failure.node is not None:
            when = failure.time + _SILENT
            status = objects.node_status(failure.time, when, gpus=failure.per_node, ready=False)
            writes.append((when, (f"/api/v1/nodes/{failure.node}", status, False)))
            writes.append((when, ("/api/v1/namespaces/default/events", objects.not_ready(failure.node, when), False)))
        for some in (lines, values, writes):
            some.sort(key=lambda row: row[0], reverse=True)
        return lines, values, writes

    def _beat(self, moment: float) -> None:
        """Let the job's nodes say that they are there, but the one that fell silent."""
        for name in self.failure.nodes:
            if self.failure.told_by == "silence" and name == self.failure.node and moment >= self.failure.time:
                continue
            now = time.time()
            self.target.status(f"/api/v1/nodes/{name}", objects.node_status(now, now - 86400, gpus=self.failure.per_node))


def _due(rows: list[Any], moment: float) -> list[Any]:
    """Take what is due off the end of a list whose earliest is last."""
    found = []
    while rows and rows[-1][0] <= moment:
        found.append(rows.pop())
    return found
