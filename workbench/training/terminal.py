"""
Turn our terminal into the job's: a pseudo terminal of the same size whose bytes go both ways untouched, or the foreground of ours.

Where standard output is a terminal the job gets a pseudo terminal, so that it colours, draws bars and buffers as it would without us. What
is kept on disk is what the job wrote: the carriage returns that a terminal adds to line ends are taken out again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
from collections.abc import Iterator
from typing import Any

__all__ = ["Terminal", "same_file"]

_SIZE = struct.calcsize("HHHH")


def same_file(one: int, other: int) -> bool:
    """Tell whether two of our streams are one file, so that the job's may be one, too, and keep their order."""
    try:
        a, b = os.fstat(one), os.fstat(other)
    except OSError:
        return False
    return (a.st_dev, a.st_ino, a.st_rdev) == (b.st_dev, b.st_ino, b.st_rdev)


def _is(number: int) -> bool:
    try:
        return os.isatty(number)
    except OSError:
        return False


class Terminal:
    """
    What stands between the job and our terminal.

    Attributes
    ----------
    pty : bool
        The job has a pseudo terminal.
    reads : bool
        Our standard input is a terminal.
    master : int
        Our end of the pseudo terminal; -1 when there is none.
    """

    def __init__(self, *, pty: bool, reads: bool) -> None:
        self.pty, self.reads = pty, reads
        self.master = self._slave = -1
        self._before: list[Any] | None = None
        self._typed = bytearray()
        self._carriage = False
        self._owned = False

    @classmethod
    def wanted(cls) -> Terminal:
        """Return what our streams call for."""
        return cls(pty=_is(1), reads=_is(0))

    @property
    def interactive(self) -> bool:
        """Whether a shell above us stops and continues us by keys."""
        return self.reads and (self.pty or self._owned)

    @property
    def default(self) -> tuple[int, ...]:
        """Signals that must be as a shell has them for what it starts."""
        return (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU) if self.reads or self.pty else ()

    def open(self) -> str:
        """Make the pseudo terminal, set as ours is, and return the name of the job's end."""
        import termios

        self.master, self._slave = os.openpty()
        with contextlib.suppress(termios.error, OSError):
            termios.tcsetattr(self._slave, termios.TCSANOW, termios.tcgetattr(1))
        self.resize()
        return os.ttyname(self._slave)

    def give(self, pid: int) -> None:
        """Give the terminal to the job, which has begun."""
        if self._slave >= 0:
            os.close(self._slave)
            self._slave = -1
        self.enter(pid)

    def enter(self, pid: int) -> None:
        """Take keys as they are typed, or put the job into the foreground."""
        if not self.reads:
            return
        import termios

        with contextlib.suppress(termios.error, OSError):
            if self.pty:
                if os.tcgetpgrp(0) != os.getpgrp():  # in the background: the terminal is somebody else's now
                    return
                self._before = self._before or termios.tcgetattr(0)
                raw = termios.tcgetattr(0)
                raw[0] &= ~(
                    termios.BRKINT | termios.ICRNL | termios.INPCK | termios.ISTRIP | termios.IXON | termios.INLCR | termios.IGNCR
                )
                raw[1] &= ~termios.OPOST
                raw[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN | termios.ISIG)
                raw[6][termios.VMIN], raw[6][termios.VTIME] = 1, 0
                termios.tcsetattr(0, termios.TCSADRAIN, raw)
                self.resize()
            elif os.tcgetpgrp(0) == os.getpgrp():
                os.tcsetpgrp(0, pid)
                self._owned = True

    def leave(self) -> None:
        """Give the terminal back as it was."""
        import termios

        with contextlib.suppress(termios.error, OSError):
            if self._before is not None:
                termios.tcsetattr(0, termios.TCSADRAIN, self._before)
            elif self._owned:
                os.tcsetpgrp(0, os.getpgrp())

    def close(self) -> None:
        """Give it back for good."""
        if self._before is not None or self._owned:
            self.leave()
            self._before, self._owned = None, False
        for number in (self.master, self._slave):
            if number >= 0:
                with contextlib.suppress(OSError):
                    os.close(number)
        self.master = self._slave = -1

    def resize(self) -> None:
        """Let the job's terminal have the size of ours; the kernel tells the job."""
        import fcntl
        import termios

        with contextlib.suppress(OSError):
            size = fcntl.ioctl(1, termios.TIOCGWINSZ, b"\0" * _SIZE)
            fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)

    def read(self) -> bytes | None:
        """Return what was typed and keep it for the job; None when the terminal is gone."""
        try:
            typed = os.read(0, 4096)
        except InterruptedError:
            return b""
        except OSError:
            return None
        self._typed += typed
        return typed or None

    @property
    def full(self) -> bool:
        """Whether keys wait for the job."""
        return bool(self._typed)

    def feed(self) -> None:
        """Hand on what was typed, without waiting for a job that does not read."""
        if self._typed and self.master >= 0:
            import select

            poll = select.poll()
            poll.register(self.master, select.POLLOUT)
            if any(event & select.POLLOUT for _, event in poll.poll(0)):
                with contextlib.suppress(OSError):
                    del self._typed[: os.write(self.master, self._typed[:1024])]

    def control(self, typed: bytes) -> Iterator[str]:
        """Return which of the keys the job's terminal turns into a signal: ``interrupt``, ``suspend``."""
        if b"\x03" not in typed and b"\x1a" not in typed:
            return
        import termios

        try:
            flags = termios.tcgetattr(self.master)
        except (termios.error, OSError):
            return
        if not flags[3] & termios.ISIG:
            return
        keys = {flags[6][termios.VINTR]: "interrupt", flags[6][termios.VSUSP]: "suspend"}
        for key in typed:
            if (word := keys.get(bytes([key]))) is not None:
                yield word

    def foreground(self) -> int:
        """Return the process group that has the job's terminal."""
        try:
            return os.tcgetpgrp(self.master)
        except OSError:
            return 0

    def plain(self, data: bytes, *, end: bool = False) -> bytes:
        """Return what the job wrote, from what its terminal made of it: each line end has one carriage return less."""
        if self._carriage:
            data = b"\r" + data
            self._carriage = False
        if b"\r" not in data:
            return data
        import termios

        try:
            flags = termios.tcgetattr(self.master)
            added = bool(flags[1] & termios.OPOST and flags[1] & termios.ONLCR)
        except (termios.error, OSError):
            added = True
        if not added:
            return data
        if data.endswith(b"\r") and not end:
            self._carriage = True
            data = data[:-1]
        return data.replace(b"\r\n", b"\n")
