"""Turn a path into the checkpoints below it: each folder is asked for the layouts that are known, what they leave is judged file by file."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from workbench.training.checkpoints import layouts
from workbench.training.checkpoints.durable import durable, mounts
from workbench.training.checkpoints.files import Entry, TooMany, listing
from workbench.training.checkpoints.order import sort
from workbench.training.checkpoints.record import Checkpoint, Found, Part, Scan
from workbench.training.checkpoints.single import entry_of, judge_file, temporary, unreadable
from workbench.training.checkpoints.steps import step_of_name

__all__ = ["inspect"]

_DEEPEST = 6  # folders within folders
_MOST = 20_000  # checkpoints; and files looked into that belong to no layout


def inspect(
    path: str | Path,
    *,
    world_size: int | None = None,
    deep: bool = False,
    settle: float = 60.0,
    now: float | None = None,
    keeps: Iterable[str] = (),
    loses: Iterable[str] = (),
    mountinfo: str | None = None,
) -> list[Checkpoint]:
    """
    Find and judge the checkpoints at a path.

    Parameters
    ----------
    path : str or Path
        A checkpoint, a folder of them, or a folder of folders.
    world_size : int, optional
        Ranks of the next attempt: what can only be restored by another number is ``wrong-world-size``.
    deep : bool
        Read all bytes and compare the checksums that there are (`torch.save` writes one a record).
    settle : float
        What is not whole and changed less than so many seconds ago is ``in-progress``, not ``torn``. Zero when the job is known to be dead.
    now : float, optional
        The time, seconds since the epoch.
    keeps, loses : iterable of str
        Folders that outlive the pod and the node, and that do not, as the site says.
    mountinfo : str, optional
        Text of ``/proc/self/mountinfo``; default: this process's.

    Returns
    -------
    list of Checkpoint
        From new to old. A path that is not there, may not be read or is a file of nothing known gives a list with an ``unreadable`` one,
        a folder without checkpoints an empty one. Never raises because of what lies there.
    """
    place = os.path.abspath(path)
    scan = Scan(world_size=world_size, deep=deep)
    found = _look(place, scan)
    at = time.time() if now is None else now
    rows = mounts(mountinfo)
    said = (tuple(keeps), tuple(loses))
    return sort(_record(one, rows, said, settle, at) for one in found)


def _record(found: Found, rows: object, said: tuple[tuple[str, ...], tuple[str, ...]], settle: float, now: float) -> Checkpoint:
    part, name = found.part, os.path.basename(found.path)
    if part.step is None:
        part.step = step_of_name(name)
        part.step_from = "name" if part.step is not None else ""
    state, why = part.state, part.why
    if temporary(name) and state == "complete":
        state, why = "partly-renamed", f"whole, but still under a temporary name: {why}"
    elif temporary(name) and state == "torn":
        why = f"left under a temporary name: {why}"
    if state in ("torn", "partly-renamed") and part.saved and now - part.saved < settle:
        state, why = "in-progress", f"changed {max(0, round(now - part.saved))} s ago, may still be written: {why}"
    why = ". ".join([why, *part.notes])
    lies = durable(os.path.realpath(found.path), rows, keeps=said[0], loses=said[1])  # type: ignore[arg-type]
    return Checkpoint(
        found.path, part.step, part.format, state, part.world_size, part.bytes, part.saved, why, lies, part.step_from, part.looked
    )


def _look(place: str, scan: Scan) -> list[Found]:
    entry = entry_of(place)
    if entry.trouble:
        return [Found(place, Part("unknown", "unreadable", entry.trouble, looked=False))]
    if not entry.folder:
        part = judge_file(entry, deep=scan.deep, certain=True)
        return [Found(place, part or Part("unknown", "unreadable", "its content is of no format that is known here"))]
    out: list[Found] = []
    seen: set[tuple[int, int]] = set()
    todo: list[tuple[Entry, int]] = [(entry, 0)]
    while todo:
        folder, depth = todo.pop()
        if folder.identity in seen:
            continue
        seen.add(folder.identity)
        try:
            files = listing(folder.path)
        except (OSError, TooMany) as error:
            out.append(Found(folder.path, unreadable(error)))
            continue
        got, used = layouts.recognise(folder, files, scan)
        out += got
        rest = {name: one for name, one in files.items() if name not in used}
        out += _loose(rest, scan, seen)
        if depth < _DEEPEST:
            todo += [(one, depth + 1) for one in rest.values() if one.folder]
        if len(out) > _MOST:
            out.append(
                Found(
                    place, Part("unknown", "unreadable", f"more than {_MOST} checkpoints: name a folder with fewer", looked=False)
                )
            )
            break
    return out


def _loose(files: Mapping[str, Entry], scan: Scan, seen: set[tuple[int, int]]) -> list[Found]:
    """Judge files that belong to no layout, each by itself; of several names of one file (links) the first counts."""
    out = []
    for entry in files.values():
        if entry.folder or (entry.identity in seen and not entry.trouble):
            continue
        if not entry.trouble:
            seen.add(entry.identity)
        part = judge_file(entry, deep=scan.deep)
        if part is not None:
            out.append(Found(entry.path, part))
    return out
