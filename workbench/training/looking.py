"""
Turn the wish to know who is slow into looks of a process beside the job, seldom and at the lowest priority, and what they find into words.

It lives in the supervisor, which must cost the job nothing: nothing heavy is imported here, and no look begins unless ranks tell their steps.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.training.hangs import Progress

__all__ = ["Looks"]

FEWEST = 40  # steps before a first look, and between two
PAUSE = 15.0  # seconds between two looks at least …
SHARE = 50.0  # … and so many times what the last one took of a processor: 2 % of one core at the lowest priority
RANKS = 3  # of fewer it cannot be told who is slow
LONGEST = 600.0  # seconds after which a look is given up


class Looks:
    """
    The looks at one attempt.

    Parameters
    ----------
    folder : Path
        The attempt's.
    say : callable
        Told who is slow.
    """

    def __init__(self, folder: Path, say: Callable[[str], object]) -> None:
        self.folder, self._say = folder, say
        self.pid = 0  # of the look that is going on
        self.found: dict[str, Any] | None = None
        self._ranks: set[int] = set()
        self._front: float | None = None
        self._steps = 0  # since the last look
        self._begun, self._next = 0.0, 0.0
        self._said: set[tuple[Any, ...]] = set()

    def note(self, told: Progress) -> None:
        """Take what a rank told."""
        if told.rank is not None:
            self._ranks.add(told.rank)
            if self._front is None or told.step > self._front:
                self._front = told.step
                self._steps += 1

    @property
    def worth(self) -> bool:
        """Whether enough was told since the last look."""
        return self._steps >= FEWEST and len(self._ranks) >= RANKS

    def tick(self, now: float) -> None:
        """Begin a look when it is time, and take what one has found."""
        if self.pid:
            if self._ended():
                self.read()
                took = (self.found or {}).get("cpu")
                self._next = now + max(PAUSE, SHARE * (took if isinstance(took, float) else now - self._begun))
            elif now - self._begun > LONGEST:
                self.stop()
                self._next = now + SHARE * LONGEST
        elif self.worth and now >= self._next:
            self._steps, self._begun = 0, now
            self._start()

    def _start(self) -> None:
        package = str(Path(__file__).resolve().parents[2])
        env = {"PATH": os.defpath, "PYTHONPATH": package, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        nothing = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
        words = [sys.executable, "-m", "workbench.training.pace", str(self.folder)]
        try:
            self.pid = os.posix_spawn(sys.executable, words, env, file_actions=nothing, setsid=True)
        except OSError:  # no memory for one more process: it is tried again after as many steps
            self.pid = 0

    def _ended(self) -> bool:
        try:
            ended = os.waitpid(self.pid, os.WNOHANG)[0] != 0
        except ChildProcessError:  # whoever reaps all children took it
            ended = True
        if ended:
            self.pid = 0
        return ended

    def stop(self) -> None:
        """End the look that is going on; its job is over."""
        if not self.pid:
            return
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ChildProcessError, ProcessLookupError):
            pass
        self.pid = 0

    def read(self) -> None:
        """Take what the last look wrote, and tell what is new in it."""
        try:
            found = json.loads((self.folder / "stragglers.json").read_bytes())
        except (OSError, ValueError):
            return
        if isinstance(found, dict) and isinstance(found.get("told"), list):
            self.tell(found)

    def tell(self, found: dict[str, Any]) -> None:
        """Say who is slow, once, and write it where triage reads it; `found` is what `workbench.training.pace.judged` returned."""
        self.found = found
        for one in found["told"]:
            key = (*one["ranks"], one["since_step"], one["until_step"])
            if key in self._said:
                continue
            self._said.add(key)
            from workbench.training.pace import sentence

            text = sentence(one)
            self._say(f"{text}; nothing is ended for it")
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            try:
                with (self.folder / "logs" / "workbench.log").open("a", encoding="utf-8") as stream:
                    stream.write(f"{stamp} workbench run: {text}\n")
            except OSError:  # the disk is full: it was said, and costs the job nothing
                pass
