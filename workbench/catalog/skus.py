"""Turn a product's name into what the catalog expects of it: memory, links, bus, which counters it has."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from workbench.catalog import HERE, read_rows
from workbench.errors import CatalogError

__all__ = ["Sku", "sku_of", "skus"]


@dataclass(frozen=True, slots=True)
class Sku:
    """
    What a product has when it is healthy.

    Memory in GiB as sold, `nvlinks` a count (0: none), `pcie_generation` and `pcie_width` the most it can do, `watts` the default power
    limit; None where there is no source. `ecc`, `row_remap`, `mig` and `fabric` (behind NVSwitches, with a fabric manager or IMEX) say
    whether it has them.
    """

    product: str
    pattern: str
    architecture: str
    memory_gib: float | None
    ecc: bool
    row_remap: bool
    nvlinks: int | None
    pcie_generation: int | None
    pcie_width: int | None
    mig: bool
    fabric: bool
    watts: float | None
    source: str
    evidence: str
    date: str
    origin: str


def _number(text: str) -> float | None:
    return float(text) if text else None


def _whole(text: str) -> int | None:
    return int(text) if text else None


@lru_cache(maxsize=8)
def skus(site: str | None = None) -> tuple[Sku, ...]:
    """
    Return all products, a site's ``skus*.csv`` before ours, so that it decides.

    Raises
    ------
    CatalogError
        A row is wrong; names file and line.
    """
    rows: list[Sku] = []
    folders = [Path(folder) for folder in [site or os.environ.get("WORKBENCH_CATALOG")] if folder] + [HERE]
    for folder in folders:
        for file in sorted(folder.glob("skus*.csv")):
            for line, row in read_rows(file):
                try:
                    re.compile(row["pattern"])
                    rows.append(
                        Sku(
                            row["product"],
                            row["pattern"],
                            row["architecture"],
                            _number(row["memory_gib"]),
                            row["ecc"] == "yes",
                            row["row_remap"] == "yes",
                            _whole(row["nvlinks"]),
                            _whole(row["pcie_generation"]),
                            _whole(row["pcie_width"]),
                            row["mig"] == "yes",
                            row["fabric"] == "yes",
                            _number(row["watts"]),
                            row["source"],
                            row["evidence"],
                            row["date"],
                            f"{file.name}:{line}",
                        )
                    )
                except (KeyError, ValueError, re.error) as error:
                    raise CatalogError(f"{file.name}:{line}: {error}", hint=f"correct the row {row.get('product')!r}") from None
    return tuple(rows)


def sku_of(name: str) -> Sku | None:
    """Return the first product whose pattern is found in a name as the driver spells it; None when the catalog does not know it."""
    return next((row for row in skus() if name and re.search(row.pattern, name)), None)
