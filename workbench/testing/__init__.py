"""
Turn an incident folder into a site to test against: servers on loopback that hold it, or sources that answer without any.

>>> import workbench.testing
>>> with workbench.testing.site("incident/") as here:  # doctest: +SKIP
...     subprocess.run(["workbench", "triage", *here.words], env=os.environ | here.environ)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.testing.elasticsearch import Elasticsearch
    from workbench.testing.faults import FAULTS, FaultServer, Reply, Request
    from workbench.testing.fleet import Crash, Fleet
    from workbench.testing.fleet_executor import FleetExecutor, FleetLock
    from workbench.testing.folder import FOLDERS, FolderSource, sources_from
    from workbench.testing.kubernetes import Kubernetes
    from workbench.testing.prometheus import Prometheus
    from workbench.testing.served import Site, site
    from workbench.testing.slurm import Slurm

__all__ = [
    "FAULTS", "FOLDERS", "Crash", "Elasticsearch", "FaultServer", "Fleet", "FleetExecutor", "FleetLock", "FolderSource", "Kubernetes",
    "Prometheus", "Reply", "Request", "Site", "Slurm", "site", "sources_from",
]  # fmt: skip

_WHERE = {
    "faults": ("FAULTS", "FaultServer", "Reply", "Request"),
    "fleet": ("Crash", "Fleet"),
    "fleet_executor": ("FleetExecutor", "FleetLock"),
    "folder": ("FOLDERS", "FolderSource", "sources_from"),
    "elasticsearch": ("Elasticsearch",),
    "kubernetes": ("Kubernetes",),
    "prometheus": ("Prometheus",),
    "served": ("Site", "site"),
    "slurm": ("Slurm",),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for module, names in _WHERE.items():
        if name in names:
            return getattr(import_module(f"workbench.testing.{module}"), name)
    raise AttributeError(f"module 'workbench.testing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
