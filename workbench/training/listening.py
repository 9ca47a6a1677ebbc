"""
Turn the signals that reach us into bytes of a pipe, so that one loop reads them in its own time, and say how a command ended.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from types import TracebackType
from typing import Any

__all__ = ["FORWARDED", "STOPPING", "Exit", "Signals"]

FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGTSTP", "SIGWINCH")
STOPPING = {int(signal.SIGTERM): "terminate", int(signal.SIGINT): "interrupt", int(signal.SIGHUP): "interrupt"}


class Exit:
    """
    How the command ended.

    Attributes
    ----------
    code : int or None
        What it ended with, when no signal did; 127 and 126 when it could not be started, as shells have it.
    signal : int or None
        The signal that ended it.
    started, ended : float
        Seconds since the epoch.
    why : str
        ``exit``; ``interrupt`` and ``terminate`` when we were told to stop; or what `Child.watch`'s tick said (``hang``).
    warnings : tuple of str
        Signals that were passed on, in their order.
    asked, killed : int
        Processes that were told to end once the command itself had ended, and processes that had to be killed.
    stuck : tuple of int
        Processes that nothing ended: they hang in the kernel.
    trouble : str
        Why it could not be started.
    """

    __slots__ = ("asked", "code", "ended", "killed", "signal", "started", "stuck", "trouble", "warnings", "why")

    def __init__(self, started: float) -> None:
        self.code: int | None = None
        self.signal: int | None = None
        self.started = self.ended = started
        self.why = "exit"
        self.warnings: tuple[str, ...] = ()
        self.asked = self.killed = 0
        self.stuck: tuple[int, ...] = ()
        self.trouble = ""

    @property
    def status(self) -> int:
        """What a shell would tell: the code, or 128 and the signal."""
        return 128 + self.signal if self.signal else self.code or 0


class Signals:
    """
    The signals of `FORWARDED` and SIGCHLD, through a pipe while this is open. What was ignored (nohup) stays ignored, for us and for the job.

    Outside of the main thread signals are the caller's: nothing is changed, and `deaf` is true.
    """

    def __init__(self) -> None:
        self.file, self._sink = os.pipe()
        for number in (self.file, self._sink):
            os.set_blocking(number, False)
            os.set_inheritable(number, False)
        self._before: dict[int, Any] = {}
        self._wakeup = -1
        self.deaf = False

    def __enter__(self) -> Signals:
        try:
            self._wakeup = signal.set_wakeup_fd(self._sink, warn_on_full_buffer=False)
        except ValueError:
            self.deaf = True
            return self
        for name in (*FORWARDED, "SIGCHLD"):
            number = getattr(signal, name)
            kept = signal.getsignal(number)
            if kept is not signal.SIG_IGN or name == "SIGCHLD":
                self._before[number] = kept
                signal.signal(number, _nothing)
        # the terminal is taken back from the background
        self._before[signal.SIGTTOU] = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self.deaf:
            for number, kept in self._before.items():
                signal.signal(number, signal.SIG_DFL if kept is None else kept)
            signal.set_wakeup_fd(self._wakeup)
        os.close(self.file)
        os.close(self._sink)

    def take(self) -> bytes:
        """Return the numbers of the signals that came."""
        with contextlib.suppress(BlockingIOError, InterruptedError):
            return os.read(self.file, 512)
        return b""

    def stop_asked(self, seconds: float = 0.0) -> str:
        """Wait while no job runs; returns early, with ``terminate`` or ``interrupt``, when somebody wants us to end."""
        until, poll = time.monotonic() + seconds, select.poll()
        poll.register(self.file, select.POLLIN)
        while True:
            left = until - time.monotonic()
            poll.poll(max(0.0, left) * 1000)
            for number in self.take():
                if number in STOPPING:
                    return STOPPING[number]
            if left <= 0:
                return ""


def _nothing(_number: int, _frame: object) -> None:
    """Let a signal do no more than wake the loop."""
