"""Turn a document's name into its bytes, piece by piece, with the line that each piece begins at: plain, compressed or in an archive."""

from __future__ import annotations

import os
import tempfile
import weakref
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol

from isal import isal_zlib

from workbench.model import Problem
from workbench.sources.archive import Budget, opened
from workbench.sources.files import Limits, Utf16
from workbench.sources.walk import Found, find

__all__ = ["PIECE", "Gone", "Marks", "Source", "Text"]

PIECE = 1 << 20  # bytes between two entries of an index
_WHOLE = 4 << 20  # an unpacked document up to this size is kept in memory
_LEVEL = 0  # of packing what was unpacked: fast; log text shrinks to an eighth all the same


class Gone(Exception):
    """A document of the case is not there any more, or cannot be read; says why."""


@dataclass(frozen=True, slots=True)
class Marks:
    """An index of a file as it was: places at which a line begins, rising, from 0 on, and how many lines are before each."""

    size: int
    mtime: float
    offsets: Sequence[int]
    lines: Sequence[int]


class Text(Protocol):
    """The text of one document, in pieces that begin at any byte."""

    def size(self) -> int:
        """Bytes in all."""

    def piece(self, number: int) -> bytes:
        """The bytes of a piece; empty past the end."""

    def first_line(self, number: int) -> int:
        """The number of line ends before a piece."""

    def piece_of(self, line: int) -> int:
        """The piece in which a line (1-based) begins, or the last one when there are fewer lines."""


@dataclass(slots=True)
class _Plain:
    """A file on disk, whose index grows as far as it is asked for."""

    path: str
    identity: tuple[int, int, int]
    starts: list[int] = field(default_factory=lambda: [0])  # line ends before each piece
    done: bool = False

    def size(self) -> int:
        return self.identity[0]

    def piece(self, number: int) -> bytes:
        with open(self.path, "rb", buffering=0) as stream:
            return os.pread(stream.fileno(), PIECE, number * PIECE)

    def _grow(self, stream: BinaryIO) -> None:
        block = os.pread(stream.fileno(), PIECE, (len(self.starts) - 1) * PIECE)
        if len(block) < PIECE:
            self.done = True
        if block:
            self.starts.append(self.starts[-1] + _line_ends(block))

    def first_line(self, number: int) -> int:
        with open(self.path, "rb", buffering=0) as stream:
            while len(self.starts) <= number and not self.done:
                self._grow(stream)
        return self.starts[min(number, len(self.starts) - 1)]

    def piece_of(self, line: int) -> int:
        with open(self.path, "rb", buffering=0) as stream:
            while self.starts[-1] < line - 1 and not self.done:
                self._grow(stream)
        return _last_before(self.starts, line, self.done)


@dataclass(slots=True)
class _Marked:
    """A file on disk whose index is known: nothing before the place asked for is read."""

    path: str
    length: int
    marks: Marks

    def size(self) -> int:
        return self.length

    def piece(self, number: int) -> bytes:
        offsets = self.marks.offsets
        if number >= len(offsets):
            return b""
        end = offsets[number + 1] if number + 1 < len(offsets) else self.length
        with open(self.path, "rb", buffering=0) as stream:
            return os.pread(stream.fileno(), end - offsets[number], offsets[number])

    def first_line(self, number: int) -> int:
        return self.marks.lines[min(number, len(self.marks.lines) - 1)]

    def piece_of(self, line: int) -> int:
        return max(bisect_right(self.marks.lines, line - 1) - 1, 0)


def _line_ends(block: bytes) -> int:
    import numpy as np

    return int(np.count_nonzero(np.frombuffer(block, np.uint8) == 10))  # bytes.count is three times as slow on short lines


def _last_before(starts: list[int], line: int, done: bool) -> int:
    # line N begins behind line end N-1: in the last piece with fewer than N-1 line ends before it
    at = max(bisect_right(starts, line - 2) - 1, 0) if line > 1 else 0
    return min(at, len(starts) - 2) if done and len(starts) > 1 else at


class _Kept:
    """What came out of an archive or a compressed file: small in memory, large packed anew in pieces, so that any of them opens at once."""

    def __init__(self, stream: Any) -> None:
        self._whole = b""
        self._file: BinaryIO | None = None
        self._places: list[tuple[int, int]] = []
        self.starts = [0]
        self._size = 0
        self.failed = ""
        block = self._read(stream)
        if len(block) < PIECE:
            self._add(block)
            return
        pieces = [block]
        while len(pieces) * PIECE < _WHOLE and len(pieces[-1]) == PIECE:
            pieces.append(self._read(stream))
        if len(pieces[-1]) < PIECE:
            for piece in pieces:
                self._add(piece)
            return
        self._file = tempfile.TemporaryFile(prefix="workbench-")  # noqa: SIM115 - lives as long as this
        weakref.finalize(self, self._file.close)
        for piece in pieces:
            self._pack(piece)
        while len(block := self._read(stream)) == PIECE:
            self._pack(block)
        if block:
            self._pack(block)
        self._file.flush()

    def _read(self, stream: Any) -> bytes:
        block = bytearray(PIECE)
        view = memoryview(block)
        filled = 0
        while filled < PIECE:
            try:
                got = stream.readinto(view[filled:])
            except Exception as error:  # zlib, zstd, tar and zip have their own; what came before is shown
                self.failed = str(error) or type(error).__name__
                break
            if not got:
                break
            filled += got
        return bytes(view[:filled])

    def _add(self, block: bytes) -> None:
        if block:
            self._whole += block
            self._size += len(block)
            self.starts.append(self.starts[-1] + _line_ends(block))

    def _pack(self, block: bytes) -> None:
        assert self._file is not None
        packed = isal_zlib.compress(block, _LEVEL)
        self._places.append((self._file.tell(), len(packed)))
        self._file.write(packed)
        self._size += len(block)
        self.starts.append(self.starts[-1] + _line_ends(block))

    def size(self) -> int:
        return self._size

    def piece(self, number: int) -> bytes:
        if self._file is None:
            return self._whole[number * PIECE : (number + 1) * PIECE]
        if number >= len(self._places):
            return b""
        at, length = self._places[number]
        return bytes(isal_zlib.decompress(os.pread(self._file.fileno(), length, at)))

    def first_line(self, number: int) -> int:
        return self.starts[min(number, len(self.starts) - 1)]

    def piece_of(self, line: int) -> int:
        return _last_before(self.starts, line, True)


class Source:
    """
    The evidence that a case came from.

    Parameters
    ----------
    path : str
        Folder, file or archive.
    marks : Mapping, optional
        Document → index of its lines, as triage met them; used while the file is the same.
    """

    def __init__(self, path: str, marks: Mapping[str, Marks] | None = None) -> None:
        self.path = path
        self._marks = dict(marks or {})
        self._files: dict[str, Found] | None = None
        self._texts: dict[str, tuple[tuple[int, int, int], Text]] = {}

    def text(self, name: str) -> Text:
        """
        Return the text of a document.

        Raises
        ------
        Gone
            It cannot be read; says why.
        """
        found = self._found(name)
        try:
            state = os.stat(found.path)
        except OSError as error:
            raise Gone(f"{found.path} cannot be read: {error.strerror or error}") from None
        identity = (state.st_size, state.st_mtime_ns, state.st_ino)
        known = self._texts.get(name)
        if known is not None and known[0] == identity:
            return known[1]
        text = self._open(name, found, identity)
        self._texts.pop(name, None)
        if len(self._texts) >= _OPEN:
            self._texts.pop(next(iter(self._texts)))
        self._texts[name] = (identity, text)
        return text

    def _found(self, name: str) -> Found:
        outer = name.split("!", 1)[0]
        path = os.path.join(self.path, *outer.split("/"))
        if os.path.isdir(self.path) and os.path.isfile(path) and _below(path, self.path):
            return Found(outer, path, 0, None)  # a folder of hundred thousand files need not be walked for one
        if not os.path.exists(self.path):
            raise Gone(f"the evidence is not at {self.path} any more; put it back there, or open the case from where it is now")
        if self._files is None:
            self._files = {each.name: each for each in find([self.path], Limits().files)[0]}
        found = self._files.get(outer)
        if found is None or found.path == "-":
            raise Gone(f"{outer} is not in {self.path} any more")
        return found

    def _open(self, name: str, found: Found, identity: tuple[int, int, int]) -> Text:
        try:
            with open(found.path, "rb", buffering=0) as raw:
                budget = Budget()
                for each in opened(found.name, raw, budget, size=identity[0], mtime=None):
                    if isinstance(each, Problem):
                        if each.file == name:
                            raise Gone(f"{each.file}: {each.message}")
                        continue
                    if each.name != name:
                        continue
                    head = each.stream.peek(2)
                    if head in (b"\xff\xfe", b"\xfe\xff"):
                        return _Kept(Utf16(each.stream))
                    return _Kept(each.stream) if each.packed else self._plain(name, found.path, identity)
        except OSError as error:
            raise Gone(f"{found.path} cannot be read: {error.strerror or error}") from None
        raise Gone(f"{name} is not in {self.path} any more")

    def _plain(self, name: str, path: str, identity: tuple[int, int, int]) -> Text:
        marks = self._marks.get(name)
        same = marks is not None and marks.size == identity[0] and abs(identity[1] / 1e9 - marks.mtime) < 1e-6
        return _Marked(path, identity[0], marks) if same and marks is not None else _Plain(path, identity)


_OPEN = 8  # documents whose text or index is kept


def _below(path: str, root: str) -> bool:
    real, real_root = os.path.realpath(path), os.path.realpath(root)
    return os.path.commonpath([real, real_root]) == real_root
