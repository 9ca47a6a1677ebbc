"""Turn an action into the place where something about it is kept: a name of its own below a folder, and never outside of it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from workbench.remediation.executors.contract import ExecutorError

__all__ = ["place", "there"]

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def place(folder: Path, identity: str, suffix: str = "") -> Path:
    """
    Return ``folder/identity``.

    Raises
    ------
    ExecutorError
        The identity is no name of a file, or could lead elsewhere.
    """
    if not _ID.fullmatch(identity):
        raise ExecutorError(f"{identity!r} is no id that a file can be named by", sent=False)
    return folder / f"{identity}{suffix}"


def there(folder: Path, path: Path) -> bool:
    """
    Whether a path below a folder exists.

    Raises
    ------
    ExecutorError
        That cannot be told: the folder itself cannot be read (a file server is away), so nothing in it is missing for sure.
    """
    try:
        os.stat(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ExecutorError(f"{folder} cannot be read: {error.strerror or error}") from None
    else:
        return True
    if not folder.is_dir():
        raise ExecutorError(f"{folder} is not there (any more): what was kept in it cannot be told")
    return False
