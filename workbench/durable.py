"""Turn bytes into a file that a reader sees whole or as it was before, also after a power loss."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path
from typing import Any

__all__ = ["sync_folder", "write_bytes", "write_whole"]


def write_bytes(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """
    Write a file beside its name, then put it there; both are on the disk when this returns.

    Parameters
    ----------
    path : Path
        Its folder is there.
    data : bytes
    mode : int, optional
        Rights of the file; default as the process's mask has them.

    Raises
    ------
    OSError
        It could not be written; what was there before is untouched.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("wb") as stream:
            stream.write(data)
            stream.flush()
            if mode is not None:
                os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    sync_folder(path.parent)


def write_whole(path: Path, value: Any) -> None:
    """Write a value as JSON, as `write_bytes` does."""
    write_bytes(path, json.dumps(value, ensure_ascii=False, sort_keys=True).encode())


def sync_folder(folder: Path) -> None:
    """Let what was made or renamed in a folder outlive a power loss."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
