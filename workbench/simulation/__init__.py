"""
Turn a description of a fleet into its history in virtual time: jobs, faults, retries, repairs; its account, and the truth apart.

>>> from workbench.simulation import Spec, simulate
>>> simulate(Spec.read(), days=2).jobs  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.simulation.engine import Result, simulate
    from workbench.simulation.spec import Spec

__all__ = ["Result", "Spec", "simulate"]

_WHERE = {"Result": "engine", "Spec": "spec", "simulate": "engine"}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        from importlib import import_module

        return getattr(import_module(f"workbench.simulation.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'workbench.simulation' has no attribute {name!r}")
