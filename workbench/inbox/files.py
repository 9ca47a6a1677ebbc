"""Turn a value into a file that a reader sees whole or not at all, a change into a line that stays, and a lock file into turns."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workbench.durable import write_bytes
from workbench.errors import WorkbenchError

__all__ = [
    "InboxBusy",
    "InboxError",
    "append_line",
    "length_of",
    "lines_from",
    "locked",
    "next_name",
    "remove",
    "size_of_tree",
    "write_json",
]


class InboxError(WorkbenchError):
    """The inbox cannot be read or written, or has no such entry."""

    exit_code = 69


class InboxBusy(InboxError):
    """Another process holds the inbox for longer than anybody should."""


@contextlib.contextmanager
def locked(path: Path, seconds: float = 30.0) -> Iterator[None]:
    """
    Hold the exclusive lock of a file; whoever dies gives it back.

    Raises
    ------
    InboxBusy
        Another process has it for so long.
    InboxError
        The file cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise InboxError(f"the inbox {path.parent} cannot be written: {error.strerror or error}") from error
    try:
        end = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise InboxBusy(
                        f"another process holds {path} since more than {seconds:.0f} s", hint=f"see who: fuser -v {path}"
                    ) from None
                time.sleep(0.005)
            except OSError as error:  # a file system without locks
                raise InboxError(
                    f"{path} cannot be locked: {error.strerror or error}", hint="put the inbox on a local disk"
                ) from error
        yield
    finally:
        os.close(number)


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees all of it or what was there before, also after a power loss."""
    write_bytes(path, json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii"))


def append_line(path: Path, value: Mapping[str, Any]) -> int:
    """Append one JSON object as a line, on the disk when this returns; return the size of the file. Who calls holds the lock."""
    data = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode() + b"\n"
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        size = os.fstat(number).st_size
        if size and os.pread(number, 1, size - 1) != b"\n":  # torn by a crash: a line of its own, which readers skip
            data = b"\n" + data
        while data:
            data = data[os.write(number, data) :]
        os.fsync(number)
        return os.fstat(number).st_size
    finally:
        os.close(number)


def lines_from(path: Path, start: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Return the objects of a file of lines from a byte on, and how many lines are damaged; a file that is not there has none."""
    try:
        with path.open("rb") as stream:
            stream.seek(start)
            data = stream.read()
    except FileNotFoundError:
        return [], 0
    found, damaged = [], 0
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            damaged += 1
            continue
        if isinstance(value, dict):
            found.append(value)
        else:
            damaged += 1
    return found, damaged


def length_of(path: str | Path) -> int:
    """Return the bytes of a file, 0 when there is none."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def size_of_tree(path: Path) -> int:
    """Return the bytes of a file or of all files below a folder; links are not followed."""
    try:
        if not path.is_dir() or path.is_symlink():
            return path.lstat().st_size
        return sum(size_of_tree(Path(entry.path)) for entry in os.scandir(path))
    except OSError:  # it goes away while we count
        return 0


def remove(path: Path) -> None:
    """Remove a file or folder: first out of sight in one step, then from the disk; a link is removed, not what it leads to."""
    beside = path.with_name(f".gone-{path.name}-{secrets.token_hex(4)}")
    with contextlib.suppress(FileNotFoundError):
        os.replace(path, beside)
        if beside.is_dir() and not beside.is_symlink():
            shutil.rmtree(beside, ignore_errors=True)
        else:
            beside.unlink()


def next_name(folder: Path, kind: str) -> str:
    """Return the name of a folder that is not there yet: readers of the one before are not disturbed."""
    numbers = [int(found[1]) for one in folder.iterdir() if (found := re.fullmatch(rf"{kind}-(\d+)(?:\..*)?", one.name))]
    return f"{kind}-{max(numbers, default=0) + 1}"
