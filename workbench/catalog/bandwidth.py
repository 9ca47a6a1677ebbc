"""Turn a product and a test of bandwidth into the GB/s that healthy ones are known to reach."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from workbench.catalog import HERE, read_rows
from workbench.errors import CatalogError

__all__ = ["usual_bandwidth"]


@lru_cache(maxsize=8)
def _rows(site: str | None) -> dict[tuple[str, str], float]:
    out: dict[tuple[str, str], float] = {}
    for folder in [HERE] + [Path(each) for each in [site] if each]:
        for file in sorted(folder.glob("bandwidth*.csv")):
            for line, row in read_rows(file):
                try:
                    usual = float(row["usual"])
                    if not 0 < usual < 1e6:
                        raise ValueError(f"usual {usual} cannot be")
                    out[row["product"], row["test"]] = usual
                except (KeyError, ValueError) as error:
                    raise CatalogError(f"{file.name}:{line}: {error}", hint=f"correct the row {row.get('product')!r}") from None
    return out


def usual_bandwidth(product: str, test: str) -> float | None:
    """
    Return what a healthy product (`Sku.product`) reaches in a test of `nvbandwidth` or nccl-tests, in GB/s; None when nobody has told.

    A site's own ``bandwidth*.csv`` in the folder of ``WORKBENCH_CATALOG`` overrides ours: measured on its own good nodes, it says more.

    Raises
    ------
    CatalogError
        A row is wrong; names file and line.
    """
    return _rows(os.environ.get("WORKBENCH_CATALOG")).get((product, test))
