"""Turn the table of services that a GPU node may have into rows by unit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from workbench.catalog import HERE, read_rows

__all__ = ["NodeUnit", "node_units"]


@dataclass(frozen=True, slots=True)
class NodeUnit:
    """
    A service.

    `process` is the name that the kernel shows of it (at most 15 letters), `meaning` what it is for. Fabric Manager and IMEX are not here: the
    check of the fabric knows whether the GPUs need them.
    """

    unit: str
    process: str
    meaning: str


@lru_cache(maxsize=1)
def node_units() -> dict[str, NodeUnit]:
    """Return all rows by unit, without ``.service``."""
    rows = (row for _, row in read_rows(HERE / "node_units.csv"))
    return {row["unit"]: NodeUnit(row["unit"], row.get("process", ""), row.get("meaning", "")) for row in rows}
