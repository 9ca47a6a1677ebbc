"""
Turn what a job prints into a file that has every byte of it, and pass the same bytes on.

A full disk does not cost the job anything, and, while it does not last, not a byte either.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["Record", "Sink"]

KEEP = 8 << 20  # bytes that wait in memory for a disk that is full
_AGAIN = 0.5  # seconds until a write that failed is tried again
_PIPE_BUF = 4096  # a pipe that poll calls writable takes this many bytes without waiting (pipe(7))


class Record:
    """
    The file of a job's output: bytes in the order in which they came.

    Attributes
    ----------
    path : Path
    size : int
        Bytes that came.
    lost : int
        Bytes that could not be kept, since the disk was full for longer than memory lasts; they are missing before the last `KEEP` of that time.
    trouble : str
        What the operating system said last when it did not take them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = self.lost = 0
        self.trouble = ""
        self._waiting = bytearray()
        self._next = 0.0
        self._file = -1
        self._open()

    def _open(self) -> None:
        try:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self.trouble = error.strerror or str(error)

    def write(self, data: bytes) -> None:
        """Keep bytes; never raises."""
        self.size += len(data)
        if not self._waiting:
            data = data[self._put(data) :]
            if not data:
                return
            self._next = time.monotonic() + _AGAIN
        self._waiting += data
        if len(self._waiting) > KEEP:
            self.lost += len(self._waiting) - KEEP
            del self._waiting[: len(self._waiting) - KEEP]
        self.flush()

    def flush(self, *, force: bool = False) -> None:
        """Try again what the disk did not take."""
        if self._waiting and (force or time.monotonic() >= self._next):
            if self._file < 0:
                self._open()
            del self._waiting[: self._put(bytes(self._waiting))]
            self._next = time.monotonic() + _AGAIN

    def _put(self, data: bytes) -> int:
        """Return how many bytes of them the disk took."""
        done = 0
        while done < len(data):
            if self._file < 0:
                return done
            try:
                done += os.write(self._file, memoryview(data)[done:] if done else data)
            except InterruptedError:
                continue
            except OSError as error:  # no space, over quota, larger than allowed, file server gone
                self.trouble = error.strerror or str(error)
                return done
        return done

    def turn(self, path: Path) -> None:
        """Keep what comes from now on in another file: the job is being ended by us, and what it says of that is no sign of what failed."""
        self.flush(force=True)
        if self._waiting:  # the disk is full: one file has to do
            return
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self.path = path
        self._open()

    def close(self) -> None:
        """End it; what still waits goes to a file of the temporary folder, which `trouble` then names."""
        self.flush(force=True)
        if self._waiting:
            kept, name = _elsewhere(self._waiting)
            self.lost += len(self._waiting) - kept
            if kept:
                part = "" if kept == len(self._waiting) else f"{kept} of "
                self.trouble += f"; {part}the last {len(self._waiting)} bytes are in {name}"
            self._waiting.clear()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _elsewhere(data: bytearray) -> tuple[int, str]:
    """Keep bytes in a file of the temporary folder; return how many it took, which may be none, and its name."""
    import tempfile

    kept, name = 0, ""
    try:
        number, name = tempfile.mkstemp(prefix="workbench-run-", suffix=".log")
    except OSError:
        return 0, ""
    try:
        with memoryview(data) as view:
            while kept < len(data):
                kept += os.write(number, view[kept:])
    except OSError:
        pass  # what it took is told, and so is the rest
    finally:
        os.close(number)
    if not kept:
        os.unlink(name)
    return kept, name


class Sink:
    """
    A stream of ours that bytes are passed on to, without ever waiting for it: what it does not take now stays in `waiting`.

    While something waits the job is not read either, so a slow reader slows the job as it would without us. A reader that went away costs the
    job nothing: what it prints is on disk.
    """

    def __init__(self, file: int) -> None:
        import stat

        self.file = file
        self.waiting = bytearray()
        self.gone = False
        try:
            mode = os.fstat(file).st_mode
            self._direct = stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and not os.isatty(file))
        except OSError:
            self.gone, self._direct = True, True

    def write(self, data: bytes) -> None:
        """Take bytes to be passed on."""
        if self.gone:
            return
        if self._direct and not self.waiting:
            try:
                done = os.write(self.file, data)
            except (BlockingIOError, InterruptedError):
                done = 0
            except OSError:
                self.gone = True
                return
            if done == len(data):
                return
            data = data[done:]
        self.waiting += data
        if self._direct:
            self.push(len(self.waiting))

    def push(self, most: int = _PIPE_BUF) -> None:
        """Pass on what the stream takes; called when it is ready."""
        while self.waiting and not self.gone:
            try:
                done = os.write(self.file, self.waiting[:most])
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # nobody reads any more, or the terminal is gone
                self.gone = True
                self.waiting.clear()
                return
            del self.waiting[:done]
            if not self._direct:
                return

    @property
    def direct(self) -> bool:
        """Whether it takes everything at once: a file, or /dev/null."""
        return self._direct
