"""Turn the modules that read this node into one table of readings by name."""

from __future__ import annotations

from importlib import import_module

from workbench.sources.node.world import READERS, Reader

__all__ = ["all_readers"]

# importing them registers what they read
_MODULES = (
    "bandwidth",
    "clock",
    "containers",
    "dcgm",
    "disks",
    "fabric_services",
    "gpu_files",
    "gpu_lists",
    "gpus",
    "host",
    "host_processes",
    "kept",
    "kernel_events",
    "kernel_state",
    "limits",
    "machine",
    "matmul",
    "memory",
    "network",
    "pci_access",
    "services",
)


def all_readers() -> dict[str, Reader]:
    """Return every reading that a check can need, by name."""
    for name in _MODULES:
        import_module(f"workbench.sources.node.{name}")
    return dict(READERS)
