"""Turn compressed files and archives into streams of their members, with sizes, counts, ratios and paths checked."""

from __future__ import annotations

import io
import os
import re
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

from workbench.model import Problem

__all__ = ["Budget", "Member", "NotReadable", "Stream", "members", "opened"]

_SPOOL = 16 << 20
_MAGIC = (
    (b"\x1f\x8b", "gz"),
    (b"\x28\xb5\x2f\xfd", "zst"),
    (b"\xfd7zXZ\0", "xz"),
    (b"BZh", "bz2"),
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"Rar!\x1a\x07", "rar"),
    (b"\x04\x22\x4d\x18", "lz4"),
)
_COMPRESSED = ("gz", "zst", "xz", "bz2")


class NotReadable(Exception):
    """A file or member cannot be used; carries the way out."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass
class Budget:
    """
    What unpacking one file may use: each file has its own, so that a bomb costs only itself.

    Attributes
    ----------
    expanded : int
        Uncompressed bytes in all.
    members : int
        Files in archives.
    ratio : int
        Uncompressed to compressed bytes; only looked at from `ratio_from` bytes on: a log of one repeated line is legitimate.
    depth : int
        Archives inside archives.
    """

    expanded: int = 64 << 30
    members: int = 200_000
    ratio: int = 400
    ratio_from: int = 1 << 30
    depth: int = 3
    used: int = 0
    seen: int = 0


@dataclass
class Member:
    """A file, plain or from an archive, ready to be read once from its begin."""

    name: str
    stream: Stream
    size: int | None = None  # uncompressed bytes where known
    mtime: float | None = None
    path: str | None = None  # set when it is a plain uncompressed file on disk
    packed: bool = False
    notes: list[str] = field(default_factory=list)


class Stream(io.RawIOBase):
    """A readable stream that lets its begin be looked at, counts what it hands out against a budget, and says how it failed."""

    def __init__(
        self, readinto: Callable[[memoryview], int | None], budget: Budget | None = None, packed: Callable[[], int] | None = None
    ) -> None:
        self._readinto = readinto
        self._peeked = b""
        self._budget = budget
        self._packed = packed
        self.count = 0
        self.failed: Exception | None = None

    def readable(self) -> bool:
        return True

    def peek(self, size: int) -> bytes:
        """Return up to `size` bytes from the begin without taking them; `failed` tells why there are fewer, if not the end."""
        if len(self._peeked) < size and self.failed is None:
            pieces, have = [self._peeked], len(self._peeked)
            block = bytearray(min(size - have, 256 << 10))
            while have < size and self.failed is None:
                got = self._try(memoryview(block)[: size - have])
                if not got:
                    break
                pieces.append(bytes(memoryview(block)[:got]))
                have += got
            self._peeked = b"".join(pieces)
        return self._peeked if len(self._peeked) <= size else self._peeked[:size]

    def _try(self, view: memoryview) -> int:
        try:
            return self._take(view)
        except Exception as error:  # zlib, zstd, tar and zip have their own; shown to whoever reads on
            self.failed = error
            return 0

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        if self._peeked:
            got = min(len(view), len(self._peeked))
            view[:got] = self._peeked[:got]
            self._peeked = self._peeked[got:]
            return got
        if self.failed is not None:
            raise self.failed
        got = self._try(view)
        if self.failed is not None:
            raise self.failed
        return got

    def _take(self, view: memoryview) -> int:
        got = self._readinto(view) or 0
        self.count += got
        if self._budget is not None and got:
            budget = self._budget
            budget.used += got
            if budget.used > budget.expanded:
                raise NotReadable(
                    f"the archives expand to more than {budget.expanded >> 20} MiB",
                    "unpack what matters by hand and give that folder",
                )
            if self._packed is not None and self.count > budget.ratio_from and self.count > budget.ratio * max(self._packed(), 1):
                raise NotReadable(
                    f"it expands more than {budget.ratio} times; reading stopped as for a decompression bomb",
                    "unpack it by hand if you trust it, and give the unpacked file",
                )
        return got


def kind_by_magic(head: bytes) -> str:
    """Return gz, zst, xz, bz2, zip, tar, 7z, rar, lz4 or nothing."""
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    return "tar" if head[257:262] == b"ustar" else ""


def opened(
    name: str, stream: BinaryIO, budget: Budget, *, size: int | None = None, mtime: float | None = None
) -> Iterator[Member | Problem]:
    """Yield what a file holds: itself, uncompressed, or the members of the archive that it is; members must be read in turn."""
    yield from members(Member(name, Stream(cast(Any, stream).readinto), size, mtime), budget, 0)


def members(member: Member, budget: Budget, depth: int) -> Iterator[Member | Problem]:
    """Yield a member as it is when it is no archive, else what is in it, with each archive's name before a ``!``."""
    name = member.name
    try:
        kind = kind_by_magic(member.stream.peek(512))
        if not kind and member.stream.failed is not None and not member.stream.peek(1):
            raise member.stream.failed
        if not kind:
            yield member
            return
        if depth >= budget.depth and kind not in _COMPRESSED:
            raise NotReadable(
                f"archives are nested more than {budget.depth} deep", "unpack the inner archive and give its folder"
            )
        if kind in _COMPRESSED:
            inner = Member(_stripped(name), _decompressed(kind, member, budget), None, member.mtime, packed=True)
            if kind_by_magic(inner.stream.peek(512)) == "tar":
                inner.name = name
                yield from _tar(inner, budget, depth)
            elif kind_by_magic(inner.stream.peek(512)):
                yield from members(inner, budget, depth + 1)
            else:
                inner.name = name
                yield inner
        elif kind == "tar":
            yield from _tar(member, budget, depth)
        elif kind == "zip":
            yield from _zip(member, budget, depth)
        else:
            raise NotReadable(f"{kind} files are not read", f"unpack it and give the folder ({kind})")
    except NotReadable as error:
        yield Problem(name, str(error), error.hint)
    except Exception as error:  # each library has its own exceptions for broken data
        yield Problem(
            name,
            f"it is damaged or cut off: {_said(error)}",
            "copy it again from where it came; the rest of the evidence is used",
            status="partial",
        )


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _stripped(name: str) -> str:
    return re.sub(r"\.(?:gz|zst|xz|bz2|tgz)$", "", name)


def _decompressed(kind: str, member: Member, budget: Budget) -> Stream:
    source = member.stream
    raw: Any = source
    reader: Any
    if kind == "gz":
        from isal import igzip, igzip_threaded

        gzip: Any = igzip
        threaded: Any = igzip_threaded
        # a thread of its own pays only from about a megabyte on
        small = member.size is not None and member.size < 1 << 20
        reader = gzip.IGzipFile(fileobj=raw) if small else threaded.open(raw, "rb", threads=1)
    elif kind == "zst":
        reader = _Zstd(source)
    elif kind == "xz":
        import lzma

        reader = lzma.LZMAFile(raw)  # noqa: SIM115 - lives as long as the stream
    else:
        import bz2

        reader = bz2.BZ2File(raw)
    return Stream(reader.readinto, budget, lambda: source.count)


_PIECE = 1 << 20  # what one call may unpack: a frame of a few bytes can hold gigabytes


class _Zstd:
    """Reads zstd frames one after the other, a bounded piece at a time, and notices a missing end."""

    def __init__(self, source: Stream) -> None:
        try:
            from compression import zstd  # the standard library has it from Python 3.14
        except ImportError:
            from backports import zstd

        library: Any = zstd
        self._options = {library.DecompressionParameter.window_log_max: 30}
        self._library = library
        self._source = source
        self._frame: Any = self._new()
        self._fresh = True
        self._ready = memoryview(b"")
        self._rest = b""  # read, not yet handed to the frame
        self._input = bytearray(128 << 10)

    def _new(self) -> Any:
        return self._library.ZstdDecompressor(options=self._options)

    def readinto(self, view: memoryview) -> int:
        while not self._ready:
            data = self._rest
            self._rest = b""
            if not data and (self._fresh or self._frame.needs_input):
                got = self._source.readinto(self._input)
                if not got:
                    if not self._fresh:
                        self._fresh = True
                        raise EOFError("the compressed stream ends in the middle of a frame")
                    return 0
                data = bytes(memoryview(self._input)[:got])
            self._ready = memoryview(self._frame.decompress(data, _PIECE))
            self._fresh = False
            if self._frame.eof:
                self._rest = self._frame.unused_data
                self._frame = self._new()
                self._fresh = True
        size = min(len(view), len(self._ready))
        view[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size


def _escapes(name: str) -> bool:
    return name.startswith(("/", "\\")) or re.match(r"[A-Za-z]:[\\/]", name) is not None or ".." in re.split(r"[\\/]", name)


def _count(budget: Budget) -> None:
    budget.seen += 1
    if budget.seen > budget.members:
        raise NotReadable(
            f"the archives hold more than {budget.members} files", "unpack what matters by hand and give that folder"
        )


def _tar(member: Member, budget: Budget, depth: int) -> Iterator[Member | Problem]:
    skipped = 0
    with tarfile.open(fileobj=io.BufferedReader(member.stream, 1 << 20), mode="r|", ignore_zeros=False) as archive:
        for entry in archive:
            _count(budget)
            if entry.isdir():
                continue
            name = f"{member.name}!{entry.name.removeprefix('./')}"
            if _escapes(entry.name):
                yield Problem(
                    name, "its path leads out of the archive; it is not used", "make the archive again from inside the folder"
                )
                continue
            if not entry.isreg():
                skipped += 1
                continue
            reader = archive.extractfile(entry)
            if reader is None:
                continue
            stream = Stream(cast(Any, reader).readinto, None if member.packed else budget)
            yield from members(Member(name, stream, entry.size, float(entry.mtime), packed=True), budget, depth + 1)
    if skipped:
        yield Problem(
            member.name,
            f"{skipped} links or devices in the archive are not followed",
            "put the files themselves into it",
            status="partial",
        )


def _zip(member: Member, budget: Budget, depth: int) -> Iterator[Member | Problem]:
    with tempfile.SpooledTemporaryFile(max_size=_SPOOL) as spool:
        block = bytearray(1 << 20)
        while got := member.stream.readinto(block):
            spool.write(memoryview(block)[:got])
        with zipfile.ZipFile(cast(Any, spool)) as archive:
            entries = archive.infolist()
            if any(entry.filename.endswith(("/data.pkl", "/.format_version")) for entry in entries):
                raise NotReadable("it is a saved model or tensor file, no evidence", "leave it out")
            for entry in entries:
                _count(budget)
                name = f"{member.name}!{entry.filename}"
                if entry.is_dir():
                    continue
                if _escapes(entry.filename):
                    yield Problem(
                        name, "its path leads out of the archive; it is not used", "make the archive again from inside the folder"
                    )
                    continue
                if entry.flag_bits & 1:
                    yield Problem(name, "it is encrypted", "unpack it with its password and give the folder")
                    continue
                try:
                    with archive.open(entry) as reader:
                        stream = Stream(cast(Any, reader).readinto, budget, lambda entry=entry: entry.compress_size)  # type: ignore[misc]
                        yield from members(Member(name, stream, entry.file_size, None, packed=True), budget, depth + 1)
                except (zipfile.BadZipFile, zlib.error, NotImplementedError, OSError, EOFError) as error:
                    yield Problem(name, f"it is damaged: {_said(error)}", "copy the archive again", status="partial")


def regular(path: str) -> os.stat_result:
    """Return what the system knows of a regular file that can be read, or raise NotReadable with the way out."""
    import stat

    try:
        state = os.stat(path)
    except OSError as error:
        raise NotReadable(f"it cannot be read: {error.strerror or error}", "check the path and its permissions") from None
    if not stat.S_ISREG(state.st_mode):
        raise NotReadable("it is a pipe, socket or device, no file", "save its output to a file and give that")
    return state
