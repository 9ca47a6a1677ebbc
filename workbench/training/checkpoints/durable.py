"""Turn a path and the mounts of this machine into: outlives the pod or node, does not, or not known."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from workbench.catalog import table
from workbench.parse.proc_files import MountRow, mountinfo

__all__ = ["durable", "mounts"]


def mounts(text: str | None = None) -> tuple[MountRow, ...]:
    """Return the mounts of a text of ``/proc/self/mountinfo``, default: those of this process; none where it cannot be read."""
    if text is None:
        try:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
                text = file.read()
        except OSError:
            return ()
    return mountinfo(text)


def durable(path: str, rows: Sequence[MountRow], *, keeps: Iterable[str] = (), loses: Iterable[str] = ()) -> bool | None:
    """
    Tell whether what lies at a path outlives the pod or node.

    Parameters
    ----------
    path : str
        Without links (`os.path.realpath`).
    rows : sequence of MountRow
    keeps, loses : iterable of str
        Folders of which the site says so (settings `training.durable`, `training.scratch`); the longest that holds the path decides, and comes
        before what the mount tells.

    Returns
    -------
    bool or None
        None: a local disk, or a kind that the catalog (``file_systems.csv``) does not know.
    """
    said = [(len(_clean(place)), True) for place in keeps if _holds(place, path)]
    said += [(len(_clean(place)), False) for place in loses if _holds(place, path)]
    if said:
        return max(said)[1]
    mount = None
    for row in rows:  # of several at one place the last is what is seen
        if _holds(row.place, path) and (mount is None or len(_clean(row.place)) >= len(_clean(mount.place))):
            mount = row
    if mount is None:
        return None
    for fact in table("file_systems"):
        if fact["of"] == "root" and re.search(fact["match"], mount.root):
            return _word(fact["outlives"])
    for fact in table("file_systems"):
        if fact["of"] == "kind" and re.fullmatch(fact["match"], mount.kind):
            return _word(fact["outlives"])
    return None


def _word(text: str) -> bool | None:
    return {"yes": True, "no": False}.get(text)


def _clean(place: str) -> str:
    return os.path.normpath(place)


def _holds(place: str, path: str) -> bool:
    place = _clean(place)
    return place == "/" or path == place or path.startswith(place + "/")
