"""
Turn objects into lines of a file that survive a crash, one JSON object a line, and such a file back into its objects.

Lines are appended and never changed; each is on the disk when the call that wrote it returns. The last field of a line, ``sum``, is the CRC-32
(eight hex digits) of the line's bytes before the comma in front of it, as in the journal of `workbench.remediation`. Reading needs no lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.durable import sync_folder
from workbench.errors import WorkbenchError

__all__ = ["Lines", "LinesBusy", "LinesError", "line_of", "object_of"]

_SUM = b',"sum":"'
_TAIL = len(_SUM) + len('xxxxxxxx"}')


class LinesError(WorkbenchError):
    """The file cannot be read or written; what was to be written is not for sure."""

    exit_code = 74


class LinesBusy(LinesError):
    """Another process writes the file."""

    exit_code = 75


def line_of(schema: str, value: Mapping[str, Any]) -> bytes:
    """Return an object as its line; ValueError when JSON cannot hold it."""
    try:
        body = json.dumps({"schema": schema, **value}, separators=(",", ":"), allow_nan=False).encode("ascii")[:-1]
    except TypeError as error:
        raise ValueError(str(error)) from None
    return body + _SUM + b'%08x"}\n' % zlib.crc32(body)


def object_of(schema: str, line: bytes) -> dict[str, Any] | None:
    """Return the object of a line without schema and sum; None when the line is damaged or of another schema."""
    body, tail = line[:-_TAIL], line[-_TAIL:]
    if tail != _SUM + b'%08x"}' % zlib.crc32(body):
        return None
    try:
        value = json.loads(body + b"}")
    except ValueError:
        return None
    return value if isinstance(value, dict) and value.pop("schema", None) == schema else None


class Lines:
    """
    A file of lines.

    Making one reads nothing. The first `append` (or `lock`) takes the exclusive lock of the file and cuts off a torn last line; `close` (or
    leaving a ``with``) gives the lock back.

    Parameters
    ----------
    path : Path
        Made by the first write.
    schema : str
        What each line says it is.

    Attributes
    ----------
    problems : list of str
        Lines that are damaged: something happened that nobody remembers.
    notices : list of str
        A torn last line, which says only that a write never ended.
    """

    def __init__(self, path: str | Path, schema: str) -> None:
        self.path = Path(path)
        self.schema = schema
        self.problems: list[str] = []
        self.notices: list[str] = []
        self._file: int | None = None
        self._size = 0

    def read(self) -> list[dict[str, Any]]:
        """
        Return every whole line's object in the order of writing.

        Raises
        ------
        LinesError
            The file is there and cannot be read.
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            data = b""
        except OSError as error:
            raise LinesError(f"{self.path} cannot be read: {error.strerror or error}") from error
        return self._parse(data)

    def append(self, value: Mapping[str, Any]) -> None:
        """
        Write an object; it is on the disk when this returns.

        Raises
        ------
        LinesBusy
            Another process writes the file.
        LinesError
            It is not written, or not for sure: the next write cuts off the piece.
        """
        try:
            line = line_of(self.schema, value)
        except ValueError as error:
            raise LinesError(f"{self.path}: this cannot be written as JSON: {error}") from error
        self.lock()
        assert self._file is not None
        try:
            rest = line
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        except OSError as error:
            # after a failed fsync nobody knows what is on the disk: let go of the file, the next write looks at it anew
            try:
                os.ftruncate(self._file, self._size)
            except OSError:
                pass
            self.close()
            raise LinesError(f"{self.path} cannot be written: {error.strerror or error}", hint="free the disk") from error
        self._size += len(line)

    def lock(self) -> None:
        """
        Take the exclusive lock of the file for this process and cut off a torn last line.

        Raises
        ------
        LinesBusy
            Another process holds it.
        LinesError
            The file cannot be opened or repaired.
        """
        if self._file is not None:
            return
        try:
            new = not self.path.exists()
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise LinesError(f"{self.path} cannot be written: {error.strerror or error}") from error
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                hint = "one `workbench run` writes a run's folder at a time: give this one a folder of its own"
                raise LinesBusy(f"another process writes {self.path}", hint=hint) from None
            data = _whole(file)
            end = data.rfind(b"\n") + 1
            torn = data[end:]
            if torn and object_of(self.schema, torn) is not None:  # only its line end is missing
                os.write(file, b"\n")
                end = len(data) + 1
            elif torn:
                os.ftruncate(file, end)
                self.notices.append(f"its last line was torn ({len(torn)} bytes): the write never ended, it is cut off")
            os.fsync(file)
            if new:
                sync_folder(self.path.parent)
        except OSError as error:
            os.close(file)
            raise LinesError(f"{self.path} cannot be written: {error.strerror or error}") from error
        except BaseException:
            os.close(file)
            raise
        self._file, self._size = file, end

    def close(self) -> None:
        """Give the lock back; writing again takes it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> Lines:
        self.lock()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _parse(self, data: bytes) -> list[dict[str, Any]]:
        self.problems = []
        end = data.rfind(b"\n") + 1
        found = []
        for number, line in enumerate(data[:end].split(b"\n")[:-1], 1):
            value = object_of(self.schema, line)
            if value is None:
                self.problems.append(f"line {number} of {self.path.name} is damaged")
            else:
                found.append(value)
        if end < len(data) and (value := object_of(self.schema, data[end:])) is not None:
            found.append(value)  # whole, only its line end is missing
        return found


def _whole(file: int) -> bytes:
    size = os.fstat(file).st_size
    data = os.pread(file, size, 0)
    while len(data) < size and (more := os.pread(file, size - len(data), len(data))):
        data += more
    return data
