"""Turn a command that trains into a job that survives: run it, watch it, and start it again when that is right, or say who must fix what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.training.progress import progress
    from workbench.training.supervise import supervise

__all__ = ["progress", "supervise"]

_WHERE = {"progress": "workbench.training.progress", "supervise": "workbench.training.supervise"}


def __getattr__(name: str) -> Any:
    # a training program imports this package for one call: nothing is loaded before it is asked for
    if name in _WHERE:
        from importlib import import_module

        module = import_module(_WHERE[name])
        return getattr(module, name, module)
    raise AttributeError(f"module 'workbench.training' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
