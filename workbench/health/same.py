"""Turn two names of a GPU into whether they mean the same one."""

from __future__ import annotations

from workbench.model import Gpu

__all__ = ["same"]


def same(gpu: Gpu | None, other: Gpu | None) -> bool:
    """Whether two names mean the same GPU: by UUID or PCI address; by index only when one of them has nothing else."""
    return gpu is not None and other is not None and gpu.means(other)
