"""Turn named texts into an incident folder and its verdict, for the tests of triage."""

from __future__ import annotations

from pathlib import Path

import workbench
from workbench.incident import IncidentVerdict

__all__ = ["verdict_of"]


def verdict_of(root: Path, files: dict[str, str]) -> IncidentVerdict:
    """Return what is said of a folder with these files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return workbench.load(root).triage()
