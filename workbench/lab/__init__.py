"""Turn a name, a path or a running site into what a notebook shows: case files, snapshots, accounts, findings, and `df.fleet` on every frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.lab.accessor import FleetFrame
    from workbench.lab.accounts import account, account_view
    from workbench.lab.opening import case, facts, findings, fleet_of, snapshot, start, still

__all__ = ["FleetFrame", "account", "account_view", "case", "facts", "findings", "fleet_of", "snapshot", "start", "still"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from importlib import import_module

        places = {"FleetFrame": "accessor", "account": "accounts", "account_view": "accounts"}
        module = f"workbench.lab.{places.get(name, 'opening')}"
        return getattr(import_module(module), name)
    raise AttributeError(f"module 'workbench.lab' has no attribute {name!r}")
