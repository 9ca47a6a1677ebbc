"""
Turn the scattered evidence of a failed GPU job into one verdict: what failed first, where, why, and what to do.

>>> import workbench
>>> incident = workbench.load_example("nvlink-switch")  # doctest: +SKIP
>>> incident.triage().cls  # doctest: +SKIP
'hardware/nvlink'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.incident import Incident, load
    from workbench.model import Event, Gpu, Verdict
    from workbench.shipped import examples, load_example

__version__ = "0.1.0"
__all__ = ["Event", "Gpu", "Incident", "Verdict", "__version__", "examples", "load", "load_example"]

_WHERE = {
    "Event": "workbench.model",
    "Gpu": "workbench.model",
    "Incident": "workbench.incident",
    "Verdict": "workbench.model",
    "examples": "workbench.shipped",
    "load": "workbench.incident",
    "load_example": "workbench.shipped",
}


def __getattr__(name: str) -> Any:
    # pandas alone costs 0.3 s to import, so nothing is loaded before it is asked for
    if name in _WHERE:
        from importlib import import_module

        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'workbench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
