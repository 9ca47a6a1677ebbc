"""
Turn the incidents that ship with the package into `Incident` objects, so that documents and notebooks run offline.

They are simulated by us: real formats, invented machines; each has its truth in `benchmarks/attribution`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from workbench.errors import SourceUnavailable

if TYPE_CHECKING:
    from workbench.incident import Incident

__all__ = ["example_path", "examples", "load_example"]

_SHIPPED = Path(__file__).parent
_ABOUT = {
    "nvlink-switch": "Kubernetes, 4 nodes, 32 ranks: an NVSwitch fails and takes the NVLinks of a whole node with it",
    "gpu-memory": "Kubernetes, an uncorrectable memory error on one GPU; every other rank only loses its peer",
    "hang-data-loader": "one rank never enters a collective; stacks and metrics tell which",
    "preempted": "Slurm preempts and requeues a healthy job",
    "checkpoint-disk-full": "rank 0 runs out of space while it writes a checkpoint",
    "succeeded": "a job that ended well among frightening log lines",
}


def examples() -> Mapping[str, str]:
    """Return the shipped incidents: name → what happened, in one line."""
    return MappingProxyType(_ABOUT)


def example_path(name: str) -> Path:
    """
    Return the archive of a shipped incident.

    Raises
    ------
    SourceUnavailable
        There is no such example; the message lists those there are.
    """
    path = _SHIPPED / f"{name}.tar.gz"
    if name not in _ABOUT or not path.exists():
        raise SourceUnavailable(f"no shipped incident {name!r}", hint=f"there are: {', '.join(_ABOUT)}")
    return path


def load_example(name: str) -> Incident:
    """Load a shipped incident by its name, e.g. ``load_example("nvlink-switch")``."""
    from workbench.incident import load

    incident = load(example_path(name))
    incident.name = f"example {name}"
    return incident
