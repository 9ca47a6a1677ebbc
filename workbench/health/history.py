"""Turn what must outlive a run (which GPUs were here at the last boot) into small files that survive restart and power loss, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.durable import write_bytes

__all__ = ["FOLDER", "recall", "remember", "state_folder"]

FOLDER = "/var/lib/workbench"
_MOST = 1 << 20  # bytes; a state larger than this is none of ours


def state_folder(settings: Mapping[str, Any]) -> Path:
    """Return where state is kept: ``health.state``, else `FOLDER`."""
    return Path(str(settings.get("state") or FOLDER))


def _file(folder: Path, name: str) -> Path:
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,40}", name):
        raise ValueError(f"{name!r} is no name of a state")
    return folder / f"{name}.json"


def remember(name: str, value: Mapping[str, Any], *, folder: Path) -> None:
    """
    Keep a value under a name: written beside, forced to the disk, then renamed, so that a reader sees the old or the new one, whole.

    Parameters
    ----------
    name : str
        Lower-case letters, digits and dashes.
    value : mapping
        What JSON can hold.
    folder : Path
        Where; made when it is not there, readable for all, writable for us.

    Raises
    ------
    OSError
        It cannot be written.
    """
    target = _file(folder, name)
    folder.mkdir(parents=True, exist_ok=True)
    data = json.dumps({"schema": f"workbench.state.{name}/1", **value}, ensure_ascii=False, sort_keys=True).encode()
    write_bytes(target, data + b"\n", mode=0o644)


def recall(name: str, *, folder: Path) -> dict[str, Any] | None:
    """
    Return what was kept under a name; None when nothing was.

    Raises
    ------
    OSError
        It is there and cannot be read.
    ValueError
        It is no state of ours: damaged, too large, or of another schema.
    """
    try:
        with _file(folder, name).open("rb") as stream:
            data = stream.read(_MOST + 1)
    except FileNotFoundError:
        return None
    if len(data) > _MOST:
        raise ValueError(f"{_file(folder, name)} is larger than any state")
    value = json.loads(data)
    if not isinstance(value, dict) or value.get("schema") != f"workbench.state.{name}/1":
        raise ValueError(f"{_file(folder, name)} is not of the schema workbench.state.{name}/1")
    return value
