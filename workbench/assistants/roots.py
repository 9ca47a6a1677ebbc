"""Turn a path that an assistant names into one that it may read: below one of the roots that a person gave, links followed first."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from workbench.errors import SourceUnavailable

__all__ = ["Roots"]


class Roots:
    """
    The folders below which an assistant may read.

    Parameters
    ----------
    folders : iterable of str or Path

    Raises
    ------
    SourceUnavailable
        One of them is no folder.
    """

    def __init__(self, folders: Iterable[str | Path]) -> None:
        self.folders: list[Path] = []
        for folder in folders:
            place = Path(folder).expanduser()
            if not place.is_dir():
                raise SourceUnavailable(f"--root {folder}: there is no such folder", hint="give folders that hold incidents")
            self.folders.append(place.resolve())

    def find(self, path: str) -> Path:
        """
        Return the real path.

        Raises
        ------
        SourceUnavailable
            There is nothing of that name below a root. It says no more, so that nobody can ask what lies elsewhere.
        """
        refused = SourceUnavailable(f"nothing of this name is below a root: {path[:200]!r}", hint="see list_evidence")
        if not path or "\x00" in path or len(path) > 4096:
            raise refused
        asked = Path(path)
        for root in self.folders:
            try:
                # of an absolute path `/` keeps only the path itself
                place = (root / asked).resolve(strict=True)
            except (OSError, RuntimeError):
                continue
            if place == root or root in place.parents:
                return place
        raise refused

    def listed(self, most: int) -> list[str]:
        """Return what lies directly below the roots and may be an incident: folders and files, hidden ones left out."""
        found: list[str] = []
        for root in self.folders:
            try:
                names = sorted(one.name + ("/" if one.is_dir() else "") for one in root.iterdir() if not one.name.startswith("."))
            except OSError:
                continue
            found += [str(root / name) if len(self.folders) > 1 else name for name in names]
        return found[:most]
