"""A game day's target that keeps what is written, with the time at which it was."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workbench.simulation.metrics import Sample


class Recording:
    """Has what `Feed` and `play_live` use of `Target`; with `broken` the log server refuses all."""

    namespace = "game-day"
    has_logs = has_metrics = True

    def __init__(self, *, broken: bool = False) -> None:
        self.broken = broken
        self.lines: list[tuple[float, Mapping[str, Any]]] = []
        self.samples: list[tuple[float, Sample]] = []
        self.objects: list[tuple[float, str, Mapping[str, Any]]] = []
        self.done: list[str] = []

    def pods_path(self, name: str = "") -> str:
        return "/pods" + (f"/{name}" if name else "")

    def make(self, path: str, item: Mapping[str, Any]) -> None:
        self.objects.append((time.time(), path, item))

    def status(self, path: str, change: Mapping[str, Any]) -> None:
        self.objects.append((time.time(), path, change))

    def index_lines(self, rows: Sequence[Mapping[str, Any]]) -> None:
        if self.broken:
            from workbench.errors import SourceError

            raise SourceError("the disk is full")
        self.lines += [(time.time(), row) for row in rows]

    def write_samples(self, rows: Iterable[Sample]) -> None:
        self.samples += [(time.time(), one) for one in rows]
