"""Turn an incident and its verdict into a case file: everything a page, a notebook or a postmortem shows of it, small and quick to open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.casefile.build import case_file
    from workbench.casefile.model import CaseFile
    from workbench.casefile.opening import open_path

__all__ = ["CaseFile", "case_file", "open_path"]

_WHERE = {
    "CaseFile": "workbench.casefile.model",
    "case_file": "workbench.casefile.build",
    "open_path": "workbench.casefile.opening",
}


def __getattr__(name: str) -> Any:
    if name in _WHERE:  # numpy and pandas are loaded when a case is, not before
        from importlib import import_module

        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'workbench.casefile' has no attribute {name!r}")
