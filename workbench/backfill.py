"""Turn a place that holds many incidents into one verdict for each, on this machine or on a cluster, and go on where it was left."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from workbench.errors import SourceUnavailable
from workbench.sources.bundle import is_bundle
from workbench.workers import Pool, Workers, cores

__all__ = ["backfill", "incidents_in", "names_in"]

_AHEAD = 4  # incidents handed out for each that is done: enough to keep workers busy, few enough to stop soon


def incidents_in(roots: Iterable[str | Path]) -> list[str]:
    """
    Return the incidents in some folders: each folder and each archive directly in them, in order of their names.

    Raises
    ------
    SourceUnavailable
        A root is no folder, or holds none.
    """
    found: list[str] = []
    for root in map(Path, roots):
        if not root.is_dir():
            raise SourceUnavailable(
                f"{root}: no such folder", hint="give a folder that holds one folder or archive for each incident"
            )
        here = sorted(
            str(path) for path in root.iterdir() if not path.name.startswith(".") and (path.is_dir() or is_bundle(path.name))
        )
        if not here:
            raise SourceUnavailable(
                f"{root}: there are no incidents in it",
                hint="each incident is a folder or an archive (.tar.zst, .tar.gz, .zip) in it",
            )
        found += here
    return found


def names_in(verdicts: Path) -> set[str]:
    """Return the incidents that a file of verdicts (JSON Lines) already has; a torn last line does not count."""
    names: set[str] = set()
    if verdicts.exists():
        with verdicts.open(encoding="utf-8") as stream:
            for line in stream:
                try:
                    names.add(str(json.loads(line)["incident"]))
                except (ValueError, KeyError, TypeError):
                    continue
    return names


def backfill(
    incidents: Iterable[str], *, pool: Pool | None = None, done: Callable[[str], None] | None = None
) -> Iterator[dict[str, Any]]:
    """
    Yield the verdict on each incident as JSON, as soon as it is there, so not in their order.

    Parameters
    ----------
    incidents : iterable of str
        Paths, which all workers must be able to read.
    pool : Pool, optional
        A cluster; default: processes of this machine, one a core.
    done : callable, optional
        Called with each path that is done.
    """
    workers = pool or Workers(min(cores(), os.cpu_count() or 1, 16))
    ready: SimpleQueue[tuple[str, Any]] = SimpleQueue()
    rest = iter(incidents)
    running = 0

    def start() -> bool:
        path = next(rest, None)
        if path is None:
            return False
        answer = workers.triage(path)
        answer.add_done_callback(lambda future: ready.put((path, future)))
        return True

    try:
        size = getattr(workers, "size", cores())
        while running < _AHEAD * size and start():
            running += 1
        while running:
            path, future = ready.get()
            running -= 1
            if start():
                running += 1
            yield future.result()
            if done:
                done(path)
    finally:
        if pool is None:
            workers.close()
