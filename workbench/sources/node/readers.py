"""Turn the modules that read this node into one table of readings by name."""

from __future__ import annotations

from workbench.sources.node import (
    clock,
    disks,
    gpus,
    host,
    kernel_events,
    kernel_state,
    limits,
    memory,
    network,
    processes,
    services,
)
from workbench.sources.node.world import READERS, Reader

__all__ = ["all_readers"]

_MODULES = (
    clock,
    disks,
    gpus,
    host,
    kernel_events,
    kernel_state,
    limits,
    memory,
    network,
    processes,
    services,
)  # importing them registers what they read


def all_readers() -> dict[str, Reader]:
    """Return every reading that a check can need, by name."""
    assert _MODULES
    return dict(READERS)
