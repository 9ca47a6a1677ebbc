"""Turn a path into an open SQLite file, or say why it must not be used: none of ours, newer, damaged, on a disk that cannot lock."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from pathlib import Path
from urllib.parse import quote

from workbench.fleet import schema
from workbench.fleet.trouble import LedgerError, corrupt, translated
from workbench.model import Problem

__all__ = ["backup", "filesystem", "integrity", "network_problem", "opened", "refused"]

# file systems of one machine, on which WAL's shared memory works. Whatever is not among them is warned about: across machines it does not
# (https://sqlite.org/wal.html, "all processes using a database must be on the same host computer"; 2026-11-30)
_LOCAL = frozenset(
    (
        "ext2",
        "ext3",
        "ext4",
        "xfs",
        "btrfs",
        "zfs",
        "f2fs",
        "jfs",
        "reiserfs",
        "bcachefs",
        "tmpfs",
        "ramfs",
        "rootfs",
        "overlay",
        "aufs",
    )
)
_MOUNTS = Path("/proc/self/mountinfo")


def opened(path: Path, mode: str, busy: float) -> sqlite3.Connection:
    """Return a connection; with ``rw`` the folder and the file are made."""
    if mode == "ro":
        if not path.is_file():
            raise LedgerError(
                f"there is no ledger {path}", hint="workbench fleet ingest PATH makes one, or name it with --ledger"
            )
        with translated(path):
            return _reading(path, busy)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LedgerError(
            f"{path.parent} cannot be made: {error.strerror or error}", hint="name another with --ledger"
        ) from error
    if path.is_dir():
        raise LedgerError(f"{path} is a folder", hint="give the path of a file")
    connection = None
    try:
        with translated(path):
            connection = _connect(f"file:{quote(str(path))}?mode=rwc", busy)
            _foreign(connection, path)  # before anything is changed in it
            _wal(connection, busy)
            connection.execute("PRAGMA synchronous = FULL")  # what `put` has taken in survives a power loss
            connection.execute("PRAGMA temp_store = MEMORY")
            connection.execute("PRAGMA cache_size = -65536")  # KiB
            return connection
    except BaseException:
        if connection is not None:
            connection.close()
        raise


def _connect(address: str, busy: float) -> sqlite3.Connection:
    return sqlite3.connect(address, uri=True, timeout=busy, isolation_level=None, check_same_thread=False, cached_statements=256)


def _reading(path: Path, busy: float) -> sqlite3.Connection:
    """A folder that may not be written has no room for WAL's shared memory: a file that nobody writes can be read all the same."""
    address = f"file:{quote(str(path))}?mode=ro"
    connection = _connect(address, busy)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        connection.close()
        wal = Path(f"{path}-wal")
        if "locked" in str(error) or os.access(path.parent, os.W_OK) or (wal.exists() and wal.stat().st_size):
            raise
        connection = _connect(f"{address}&immutable=1", busy)
    except BaseException:  # damaged
        connection.close()
        raise
    connection.execute("PRAGMA query_only = ON")
    return connection


def _wal(connection: sqlite3.Connection, busy: float) -> None:
    """Turn WAL on: the one statement that does not wait by itself while another process does the same."""
    until = time.monotonic() + busy
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.02)


def _foreign(connection: sqlite3.Connection, path: Path) -> None:
    (mark,) = connection.execute("PRAGMA application_id").fetchone()
    if mark == schema.APPLICATION:
        return
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if mark or tables:
        raise LedgerError(f"{path} is an SQLite file of another program", hint="name another file with --ledger")


def refused(connection: sqlite3.Connection, path: Path, *, readonly: bool) -> int:
    """
    Return the version of a file's schema; 0 when it is empty.

    Raises
    ------
    LedgerError
        It is of a newer workbench; or, for reading, it is empty or another program's.
    """
    _foreign(connection, path)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > schema.VERSION:
        raise LedgerError(
            f"{path} was written by a newer workbench (its schema is {version}, this one knows {schema.VERSION})",
            hint="use that version of the workbench; nothing was changed",
        )
    if readonly and version == 0:
        raise LedgerError(f"{path} is no ledger yet", hint="workbench fleet ingest PATH fills it")
    return int(version)


def backup(path: Path, version: int) -> Path:
    """Copy a ledger as it is beside itself, before its schema is changed; return the copy's path."""
    copy = path.with_name(f"{path.name}.v{version}.{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
    half = copy.with_name(f".{copy.name}")
    source = _connect(f"file:{quote(str(path))}?mode=ro", 30.0)
    try:
        target = sqlite3.connect(half)
        try:
            source.backup(target)
        finally:
            target.close()
        os.replace(half, copy)
    except (sqlite3.Error, OSError) as error:
        with contextlib.suppress(OSError):
            half.unlink()
        raise LedgerError(
            f"{path} must be brought up to date and no copy of it could be made: {error}",
            hint=f"make room beside it; a copy needs {path.stat().st_size >> 20} MiB",
        ) from error
    finally:
        source.close()
    return copy


def integrity(connection: sqlite3.Connection, path: Path) -> None:
    """
    Read the whole file.

    Raises
    ------
    LedgerCorrupt
        It is damaged.
    """
    said = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(5)")]
    if said != ["ok"]:
        raise corrupt(path, "; ".join(said)[:400])


def network_problem(path: Path) -> Problem | None:
    """Return a warning when a path lies on a file system that several machines may share, or on one that nobody here knows."""
    kind = filesystem(path)
    if kind in _LOCAL:
        return None
    what = f"lies on {kind}" if kind else "lies on a file system that cannot be told"
    return Problem(
        str(path),
        f"the ledger {what}: when processes of several machines use it at once it can be damaged",
        "keep it on a local disk (fleet.ledger), and let others read an export of it",
        source="ledger",
        status="partial",
    )


def filesystem(path: Path, mounts: Path = _MOUNTS) -> str:
    """Return the type of the file system that a path lies on, as the kernel calls it; empty when it cannot be told."""
    try:
        whole = os.path.realpath(path)
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in lines:
        left, _, right = line.partition(" - ")
        words, rest = left.split(), right.split()
        if len(words) < 5 or not rest:
            continue
        point = words[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        inside = whole == point or whole.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # of several on one point the last is on top
            best, kind = point, rest[0]
    return kind
