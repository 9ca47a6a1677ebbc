"""Turn the loader's progress calls into one line on stderr, when a person watches and the scan takes long."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType

from workbench.report.text import clean, shorten

__all__ = ["Progress"]

SHOW_AFTER = 1.0  # seconds: a bar that flashes by helps nobody
EVERY = 0.1  # seconds between redraws


class Progress:
    """
    A callable `progress(done, total, label)` in bytes; draws nothing unless stderr is a terminal.

    Parameters
    ----------
    enabled : bool
        False silences it altogether.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        self._on = enabled and sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._start = time.monotonic()
        self._next = self._start + SHOW_AFTER
        self._drawn = False

    def __call__(self, done: float, total: float | None = None, label: str = "") -> None:
        """Report that `done` of `total` bytes are read, now in the file `label`."""
        if not self._on or (now := time.monotonic()) < self._next:
            return
        self._next = now + EVERY
        rate = done / max(now - self._start, 1e-3)
        line = f"{done / 1e9:6.2f} GB  {rate / 1e6:5.0f} MB/s"
        if total:
            share = min(done / total, 1.0)
            bar = "█" * round(share * 24)
            left = (total - done) / rate if rate else 0.0
            line = f"{bar:<24} {share:4.0%}  {line}  {left:3.0f} s left"
        # control sequences: carriage return, then erase to the end of the line
        self._write(f"\r{line}  {shorten(clean(label), 40)}\x1b[K")
        self._drawn = True

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):
            self._on = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._drawn:
            self._write("\r\x1b[K")
