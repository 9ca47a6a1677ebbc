"""Turn a path with evidence into its case file: triaged once, then opened from a cache for as long as the evidence is the same."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from pathlib import Path

from workbench.casefile.model import CaseFile
from workbench.errors import SourceUnavailable, WorkbenchError

__all__ = ["cache_folder", "open_path"]

_KEPT = 64  # cases in the cache
_KEPT_BYTES = 2 << 30
_RACE = 2.0  # seconds; evidence that changed so short ago may change again without its times or sizes showing it


def open_path(path: str | os.PathLike[str], *, cache: str | os.PathLike[str] | None = None, fresh: bool = False) -> CaseFile:
    """
    Return the case file of a folder, file or archive.

    Parameters
    ----------
    path : path
        Evidence of one incident, or a folder that `workbench.casefile.store.save` wrote.
    cache : path, optional
        Folder that keeps cases; default ``$XDG_CACHE_HOME/workbench/cases``. What is in it is used only while names, sizes and times of
        all files of the evidence, the catalog and this package are what they were.
    fresh : bool
        Triage again, whatever the cache holds.

    Returns
    -------
    CaseFile

    Raises
    ------
    SourceUnavailable
        There is no such path.
    """
    from workbench.casefile.build import case_file
    from workbench.casefile.store import open_case, save
    from workbench.incident import load

    place = os.fspath(path)
    if not os.path.exists(place):
        raise SourceUnavailable(f"{place}: no such file or folder", hint="give a folder of evidence, a log file or an archive")
    if os.path.isfile(os.path.join(place, "case.json")) and os.path.isfile(os.path.join(place, "frames.zip")):
        return open_case(place)
    root = Path(cache) if cache is not None else cache_folder()
    key, newest = _key(place)
    kept = root / key
    if not fresh and (kept / "case.json").is_file():
        try:
            case = open_case(kept)
            os.utime(kept)
            return case
        except WorkbenchError:
            pass  # damaged: it is made again
        except OSError:
            return case
    began = time.time()
    case = case_file(load(place), source=place)
    again, _ = _key(place)
    if again == key and began - newest > _RACE:
        try:
            save(case, kept)
            _prune(root)
        except (OSError, WorkbenchError):
            pass  # a full or read-only disk costs the next opening its time, nothing else
    return case


def cache_folder() -> Path:
    """Return where cases are kept: ``$XDG_CACHE_HOME/workbench/cases``, by default ``~/.cache/workbench/cases``."""
    from workbench.parse.engines import cache_folder as base

    return base() / "cases"


def _key(place: str) -> tuple[str, float]:
    """Return what names the evidence as it is now, and when it changed last (seconds since the epoch)."""
    from workbench.sources.files import Limits
    from workbench.sources.walk import find

    digest = hashlib.sha256()

    def add(*words: object) -> None:
        for word in words:
            digest.update(str(word).encode("utf-8", "surrogatepass") + b"\0")

    from workbench.casefile.store import FORMAT

    add(FORMAT, os.path.abspath(place), place)
    for folder in (Path(__file__).parent.parent, os.environ.get("WORKBENCH_CATALOG")):
        add(*_fingerprint(Path(folder)) if folder else ())
    newest = 0.0
    found, problems = find([place], Limits().files)
    add(*[(problem.file, problem.message) for problem in problems])
    for each in found:
        try:
            state = os.stat(each.path)
        except OSError:
            add(each.name, "gone")
            continue
        newest = max(newest, state.st_mtime)
        add(each.name, state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino)
    return digest.hexdigest()[:32], newest


def _fingerprint(folder: Path) -> list[object]:
    """What tells one state of a folder of code or tables from another."""
    rows: list[object] = []
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            if name.endswith((".py", ".csv", ".toml")):
                state = os.stat(os.path.join(parent, name))
                rows.append((name, state.st_size, state.st_mtime_ns))
    return rows


def _prune(root: Path) -> None:
    """Let the cases go that were not opened for longest."""
    cases = []
    for entry in os.scandir(root):
        if entry.is_dir() and not entry.name.startswith("."):
            size = sum(each.stat().st_size for each in os.scandir(entry.path) if each.is_file())
            cases.append((entry.stat().st_mtime, size, entry.path))
    cases.sort(reverse=True)
    room = _KEPT_BYTES
    for number, (_, size, path) in enumerate(cases):
        room -= size
        if number and (number >= _KEPT or room < 0):
            shutil.rmtree(path, ignore_errors=True)
