"""Turn what SQLite and the disk say about a ledger into errors that carry the way out."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from workbench.errors import WorkbenchError

__all__ = ["BadRow", "LedgerBusy", "LedgerCorrupt", "LedgerError", "translated"]


class LedgerError(WorkbenchError):
    """A ledger cannot be read or written; what was to be written is not."""

    exit_code = 69


class LedgerBusy(LedgerError):
    """Another process writes for longer than we wait; nothing was written."""

    exit_code = 75


class LedgerCorrupt(LedgerError):
    """The file is damaged."""

    exit_code = 65


class BadRow(LedgerError):
    """A row is not what its table wants; nothing of its `put` was written."""

    exit_code = 65

    def __init__(self, message: str, *, row: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.row = row


def corrupt(path: Path, said: object) -> LedgerCorrupt:
    """Return the error of a damaged file, with what can be done."""
    return LedgerCorrupt(
        f"the ledger {path} is damaged: {said}",
        hint=f"keep it aside (mv {path} {path}.damaged, with its -wal and -shm), save what is left with"
        f" `sqlite3 {path}.damaged .recover | sqlite3 {path}`, or put a copy back ({path}.v*), and run the same"
        " `workbench fleet ingest` again: what is told twice counts once",
    )


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise what SQLite raises as errors of ours."""
    try:
        yield
    except sqlite3.OperationalError as error:
        said = str(error)
        if "locked" in said or "busy" in said:
            raise LedgerBusy(
                f"another process has been writing {path} for too long",
                hint="try again; `fuser` or `lsof` on the file tells who it is",
            ) from error
        if "disk I/O" in said or "full" in said:
            raise LedgerError(f"{path} cannot be written: {said}", hint="look at space and health of its disk") from error
        if "readonly" in said:
            raise LedgerError(f"{path} may not be written", hint="check its rights and those of its folder") from error
        if "unable to open" in said:
            raise LedgerError(f"{path} cannot be opened: {said}", hint="check its rights and those of its folder") from error
        if "no such table" in said or "no such column" in said:
            raise LedgerError(
                f"{path} is of an older workbench: {said}", hint="open it once for writing: workbench fleet ingest"
            ) from error
        raise LedgerError(f"{path}: {said}") from error
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError):
        raise
    except sqlite3.DatabaseError as error:  # NOTADB, CORRUPT
        raise corrupt(path, error) from error
