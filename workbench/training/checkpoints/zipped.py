"""
Turn a file of `torch.save` (a ZIP archive, since PyTorch 1.6) into a part: whole or torn, with format and step.

Only the central directory, some local headers, `data.pkl` and (when asked) the checksums are read. The layout is that of
caffe2/serialize/inline_container.cc: records are stored, not compressed; `NAME/data.pkl` is the pickle, `NAME/data/KEY` the numbers of
one storage.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from itertools import pairwise

from workbench.errors import ParseError
from workbench.training.checkpoints.files import Source, Window
from workbench.training.checkpoints.pickled import Name, Pickled, Storage, read_pickle
from workbench.training.checkpoints.record import Part
from workbench.training.checkpoints.steps import facts_of_value, number_of, step_of_value

__all__ = ["begins", "judge_zip", "remarks", "step_of_archive"]

_MOST_DIRECTORY = 64 << 20  # bytes of central directory; 100 a record
_MOST_RECORDS = 500_000
_LOOKED_AT = (
    64  # local headers read when not all are asked for: the first, the last and some between; of a file of many only four
)
_END, _END64, _LOCATOR, _CENTRAL, _LOCAL = b"PK\5\6", b"PK\6\6", b"PK\6\7", b"PK\1\2", b"PK\3\4"


class Broken(Exception):
    """The archive is not whole; the text says where."""


@dataclass(frozen=True, slots=True)
class Record:
    """One file within the archive."""

    name: str
    offset: int  # of its local header
    size: int
    stored: int  # bytes in the archive
    method: int
    checksum: int


def begins(head: bytes) -> bool:
    """Tell whether these are the first bytes of an archive of `torch.save` (it begins with a record, and its name with a folder)."""
    return head[:4] == _LOCAL[: len(head[:4])] and len(head) >= 4


def directory(source: Source) -> list[Record]:
    """
    Return the records of an archive in the order they lie in.

    Raises
    ------
    Broken
        The central directory is missing, cut, or does not fit the file; or a record lies outside of it or over another.
    """
    # torch.save writes no comment after the end record, so that the last pages hold it and mostly the whole directory
    reach = min(source.size, 1 << 14)
    tail = source.read(source.size - reach, reach)
    if tail[-22:-18] != _END:
        reach = min(source.size, 22 + 0xFFFF)
        tail = source.read(source.size - reach, reach)
    at = tail.rfind(_END)
    while at >= 0 and (len(tail) < at + 22 or at + 22 + struct.unpack_from("<H", tail, at + 20)[0] != len(tail)):
        at = tail.rfind(_END, 0, at)
    if at < 0:
        raise Broken(f"the archive's directory is missing: the file ends after {source.size} bytes, before it was written whole")
    end = source.size - reach + at
    count, size, offset = struct.unpack_from("<HII", tail, at + 10)
    directory_end = end

    def read(at: int, length: int) -> bytes:
        begin = at - (source.size - reach)
        return tail[begin : begin + length] if begin >= 0 and length >= 0 else source.read(at, length)

    locator = read(end - 20, 20) if end >= 20 else b""
    if locator[:4] == _LOCATOR:
        (directory_end,) = struct.unpack_from("<Q", locator, 8)
        long = read(directory_end, 56)
        if len(long) < 56 or long[:4] != _END64:
            raise Broken("the archive's directory does not fit the file: its 64-bit end record is missing")
        count, size, offset = struct.unpack_from("<QQQ", long, 32)
    if offset + size != directory_end:
        raise Broken("the archive's directory does not fit the file: bytes are missing or too many")
    if size > _MOST_DIRECTORY or count > _MOST_RECORDS:
        raise ParseError(f"the archive has {count} records, more than are looked at")
    return _records(read(offset, size), count, offset)


def _records(raw: bytes, count: int, limit: int) -> list[Record]:
    records: list[Record] = []
    at = 0
    for _ in range(count):
        if raw[at : at + 4] != _CENTRAL or at + 46 > len(raw):
            raise Broken(f"the archive's directory is damaged at record {len(records)} of {count}")
        method, checksum, stored, size, name_size, extra_size, comment_size, offset = struct.unpack_from(
            "<10xH4xIIIHHH8xI", raw, at
        )
        name = raw[at + 46 : at + 46 + name_size]
        extra = raw[at + 46 + name_size : at + 46 + name_size + extra_size]
        wide = [("size", size), ("stored", stored), ("offset", offset)]
        size, stored, offset = _widened(extra, [value for _, value in wide])
        records.append(Record(name.decode("utf-8", "replace"), offset, size, stored, method, checksum))
        at += 46 + name_size + extra_size + comment_size
    if at != len(raw):
        raise Broken("the archive's directory is damaged: it is longer than its records")
    records.sort(key=lambda record: record.offset)
    ends = [*(record.offset for record in records[1:]), limit]
    for record, end in zip(records, ends, strict=True):
        if record.offset + 30 + len(record.name.encode()) + record.stored > end:
            raise Broken(f"record {record.name[:200]} is longer than the room it has in the file")
    return records


def _widened(extra: bytes, values: list[int]) -> list[int]:
    """Replace sizes and offset that need 64 bits by those of the extra field 0x0001 (APPNOTE 4.5.3)."""
    at = 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            numbers = [struct.unpack_from("<Q", extra, at + 4 + 8 * n)[0] for n in range(min(size, len(extra) - at - 4) // 8)]
            out = []
            for value in values:
                if value == 0xFFFFFFFF and not numbers:
                    raise Broken("the archive's directory is damaged: a 64-bit size is missing")
                out.append(numbers.pop(0) if value == 0xFFFFFFFF else value)
            return out
        at += 4 + size
    return values


def judge_zip(source: Source, *, deep: bool = False, bare: bool = False) -> Part | None:
    """
    Judge an archive of `torch.save`.

    Parameters
    ----------
    source : Source
        The file, or the part of one.
    deep : bool
        Read all of it and compare every record's checksum.
    bare : bool
        It stands within a larger format: no step is looked for.

    Returns
    -------
    Part or None
        None: an archive of something else.
    """
    part = Part("torch-zip", "complete", "", bytes=source.size)
    try:
        records = directory(source)
    except Broken as broken:
        name = _first_name(source)
        if name is not None and not _ours(name):
            return None
        part.state, part.why = "torn", str(broken)
        return part
    except ParseError as large:
        part.state, part.why = "unreadable", str(large)
        return part
    named = {record.name: record for record in records}
    pickle = next((record for record in records if record.name.count("/") == 1 and record.name.endswith("/data.pkl")), None)
    if pickle is None:
        return None
    root = pickle.name.removesuffix("data.pkl")
    try:
        read = _read(source, records, pickle, looked=len(records) if deep else 4 if bare else _LOOKED_AT)
        _tensors(read.storages, named, root)
        if deep:
            _checksums(source, records, part)
    except Broken as broken:
        part.state, part.why = "torn", str(broken)
        return part
    except ParseError as refused:
        part.state, part.why = "unreadable", f"data.pkl: {refused}"
        return part
    bad = remarks(read, part)
    if bad:
        part.state, part.why = "unreadable", bad
        return part
    if isinstance(read.value, dict) and "pytorch-lightning_version" in read.value:
        part.format = "lightning"
    part.facts = facts_of_value(read.value)
    part.why = f"{len(records)} records, {len(read.storages)} tensors' numbers as long as their sizes say" + (
        "; checksums are right" if deep and not part.notes else ""
    )
    if not bare:

        def scalar(storage: Storage, offset: int, count: int) -> bytes:
            record = named.get(f"{root}data/{storage.key}")
            return _content(source, record).read(offset, count) if record else b""

        found = step_of_value(read.value, scalar)
        if found:
            part.step, part.step_from = found
    return part


def step_of_archive(source: Source) -> int | None:
    """Return the step that a small archive holds: a number, a tensor of one, or a dictionary with it; None when it does not, or is broken."""
    try:
        records = directory(source)
        pickle = next((record for record in records if record.name.endswith("/data.pkl")), None)
        if pickle is None:
            return None
        read = _read(source, records, pickle, looked=4)
        named = {record.name: record for record in records}
        root = pickle.name.removesuffix("data.pkl")

        def scalar(storage: Storage, offset: int, count: int) -> bytes:
            record = named.get(f"{root}data/{storage.key}")
            return _content(source, record).read(offset, count) if record else b""

        number = number_of(read.value, scalar)
        found = step_of_value(read.value, scalar) if number is None else None
        return found[0] if found else number
    except (Broken, ParseError):
        return None


def remarks(read: Pickled, part: Part) -> str:
    """Return why a pickle must not be loaded, or an empty text; what must be known for loading it becomes a note of the part."""
    dangerous = sorted(str(name) for name in read.names if name.dangerous)
    if dangerous:
        return f"loading it would call {', '.join(dangerous[:3])}, which no checkpoint needs: do not load it"
    own = sorted(str(name) for name in read.names if _own(name))
    if own:
        part.notes.append(
            f"holds objects of {', '.join(own[:3])}{' …' if len(own) > 3 else ''}: torch.load wants weights_only=False or add_safe_globals"
        )
    return ""


def _own(name: Name) -> bool:
    # what torch.load(weights_only=True) takes: torch/_weights_only_unpickler.py, _get_allowed_globals (2.14); all else is refused by it
    return name.module.split(".")[0] not in ("torch", "collections", "builtins", "__builtin__", "_codecs")


def _ours(name: str) -> bool:
    top, slash, rest = name.partition("/")
    return bool(top and slash) and (
        rest in ("data.pkl", "version", "byteorder", ".format_version", ".storage_alignment") or rest.startswith("data/")
    )


def _first_name(source: Source) -> str | None:
    """Return the name of the first record by its local header; None when the file ends within it."""
    head = source.read(0, 30)
    if len(head) < 30 or head[:4] != _LOCAL:
        return None
    (size,) = struct.unpack_from("<H", head, 26)
    name = source.read(30, size)
    return name.decode("utf-8", "replace") if len(name) == size else None


def _content(source: Source, record: Record) -> Window:
    head = source.read(record.offset, 30)
    if head[:4] != _LOCAL or len(head) < 30:
        raise Broken(f"record {record.name[:200]} was not written: where it should begin there is something else")
    name_size, extra_size = struct.unpack_from("<HH", head, 26)
    return Window(source, record.offset + 30 + name_size + extra_size, record.stored)


def _read(source: Source, records: list[Record], pickle: Record, *, looked: int) -> Pickled:
    packed = next((record for record in records if record.method or record.size != record.stored), None)
    if packed is not None:
        raise ParseError(f"record {packed.name[:200]} is compressed, which torch.save never does")
    step = max(1, len(records) // looked)
    for record in {*records[::step], records[-1]}:
        _content(source, record)
    for before, after in pairwise(records):  # the room was checked without the extra field, which only the local header has
        if before is pickle and _content(source, before).start + before.stored > after.offset:
            raise Broken("data.pkl is longer than the room it has in the file")
    window = _content(source, pickle)
    try:
        return read_pickle(window, whole=True)
    except ParseError as bad:
        if zlib.crc32(window.read(0, pickle.size)) != pickle.checksum and pickle.checksum:
            raise Broken("data.pkl is not what was written: its checksum differs") from bad
        raise


def _tensors(storages: dict[str, Storage], named: dict[str, Record], root: str) -> None:
    for key, storage in storages.items():
        record = named.get(f"{root}data/{key}")
        need = storage.bytes
        if record is None:
            if need == 0:
                continue
            raise Broken(f"the numbers of tensor data/{key} are not in the archive")
        if need is not None and record.size < need:
            raise Broken(f"tensor data/{key} needs {need} bytes and has {record.size}")


def _checksums(source: Source, records: list[Record], part: Part) -> None:
    if records and not any(record.checksum for record in records if record.size):
        # torch.serialization.set_crc32_options(False) writes zeros
        part.notes.append("saved without checksums (set_crc32_options(False)): what is in the records could not be checked")
        return
    for record in records:
        window, total, at = _content(source, record), 0, 0
        while at < record.size:
            piece = window.read(at, min(1 << 22, record.size - at))
            if not piece:
                raise Broken(f"record {record.name[:200]} ends early")
            total, at = zlib.crc32(piece, total), at + len(piece)
        if total != record.checksum:
            raise Broken(f"record {record.name[:200]} is not what was written: its checksum differs")
