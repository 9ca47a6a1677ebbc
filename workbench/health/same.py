"""Turn two names of a GPU into whether they mean the same one."""

from __future__ import annotations

from workbench.model import Gpu

__all__ = ["same"]


def same(gpu: Gpu | None, other: Gpu | None) -> bool:
    """Whether two names mean the same GPU: by UUID or PCI address; by index only when one of them has nothing else."""
    if gpu is None or other is None:
        return False
    if gpu.uuid and other.uuid:
        return gpu.uuid == other.uuid
    if gpu.pci and other.pci:
        return gpu.pci.rsplit(".", 1)[0] == other.pci.rsplit(".", 1)[0]
    return gpu.index is not None and gpu.index == other.index
