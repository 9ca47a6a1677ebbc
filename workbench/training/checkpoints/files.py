"""Turn paths into bounded reads: a few bytes of regular files, and lists of folders, whatever lies there."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Entry", "FileSource", "NotAFile", "Source", "TooMany", "Window", "listing", "opened", "trouble"]

MAX_ENTRIES = 200_000  # of one folder; a checkpoint of 16,384 ranks has some 33,000 files


class NotAFile(Exception):
    """What lies there is no regular file (a socket, a pipe, a device): reading it could last for ever."""


class TooMany(Exception):
    """A folder has more entries than are looked at."""


class Source(Protocol):
    """Bytes that can be read at an offset."""

    @property
    def size(self) -> int:
        """How many bytes there are."""
        ...

    def read(self, offset: int, count: int) -> bytes:
        """Return up to `count` bytes from `offset`; fewer at the end."""
        ...


@dataclass(frozen=True, slots=True)
class FileSource:
    """An open file."""

    fd: int
    size: int
    modified: float

    def read(self, offset: int, count: int) -> bytes:
        """Return up to `count` bytes from `offset`."""
        out = b""
        while count > 0 and 0 <= offset < self.size:
            piece = os.pread(self.fd, min(count, 1 << 24), offset)
            if not piece:
                break
            out = out + piece if out else piece
            offset, count = offset + len(piece), count - len(piece)
        return out


@dataclass(frozen=True, slots=True)
class Window:
    """A part of another source, as if it were a file of its own."""

    source: Source
    start: int
    size: int

    def read(self, offset: int, count: int) -> bytes:
        """Return up to `count` bytes from `offset` of the part."""
        return self.source.read(self.start + offset, max(0, min(count, self.size - offset)))


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a folder, and what it leads to; `trouble` when that cannot be told."""

    name: str
    path: str
    folder: bool
    size: int
    modified: float
    identity: tuple[int, int]
    trouble: str = ""


@contextlib.contextmanager
def opened(path: str) -> Iterator[FileSource]:
    """
    Open a regular file for reading.

    Raises
    ------
    OSError
        It is not there or may not be read.
    NotAFile
        It is a pipe, a socket or a device.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # not blocking: a pipe without a writer would wait for ever
    try:
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode):
            raise NotAFile(f"{os.path.basename(path)} is no regular file")
        yield FileSource(fd, seen.st_size, seen.st_mtime)
    finally:
        os.close(fd)


def listing(folder: str, *, most: int = MAX_ENTRIES) -> dict[str, Entry]:
    """
    Return what lies in a folder, by name in order; links are followed, a broken or circular one is an entry with its trouble.

    Raises
    ------
    OSError
        The folder cannot be read.
    TooMany
        It has more than `most` entries.
    """
    out: dict[str, Entry] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if len(out) >= most:
                raise TooMany(f"{folder} has more than {most} entries")
            try:
                seen = entry.stat()
                is_folder = stat.S_ISDIR(seen.st_mode)
                bad = "" if is_folder or stat.S_ISREG(seen.st_mode) else "no regular file"
                row = Entry(entry.name, entry.path, is_folder, seen.st_size, seen.st_mtime, (seen.st_dev, seen.st_ino), bad)
            except OSError as error:
                row = Entry(entry.name, entry.path, False, 0, 0.0, (0, 0), trouble(error))
            out[entry.name] = row
    return dict(sorted(out.items()))


def trouble(error: Exception) -> str:
    """Say an error of the system in a few words, without the path."""
    if isinstance(error, OSError):
        words = {
            errno.EACCES: "no right to read it",
            errno.EPERM: "no right to read it",
            errno.ELOOP: "its links lead in a circle",
            errno.ENOENT: "it is not there (a link that leads nowhere, or removed meanwhile)",
            errno.EIO: "the disk does not give it (I/O error)",
            errno.ESTALE: "the file server does not know it any more (stale handle)",
        }
        return words.get(error.errno or 0, error.strerror or type(error).__name__)
    return str(error) or type(error).__name__
