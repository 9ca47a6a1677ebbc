"""Turn the table of RDMA port counters into rows by name: which of them mean something for a job, and from which rate on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from workbench.catalog import HERE, read_rows
from workbench.errors import CatalogError

__all__ = ["PortCounter", "port_counters"]


@dataclass(frozen=True, slots=True)
class PortCounter:
    """
    A counter of a port.

    `folder` says where the kernel keeps it (``port`` or ``device``), `code` which finding it is evidence for (empty for one that is only
    read), `per_hour` how many an hour are ordinary: more than that is a finding, with 0 any at all.
    """

    counter: str
    folder: str
    code: str
    per_hour: float | None
    meaning: str


@lru_cache(maxsize=1)
def port_counters() -> dict[str, PortCounter]:
    """
    Return all rows by counter.

    Raises
    ------
    CatalogError
        A row is wrong; names the line.
    """
    rows: dict[str, PortCounter] = {}
    for line, row in read_rows(HERE / "port_counters.csv"):
        try:
            limit = float(row["per_hour"]) if row.get("per_hour") else None
        except ValueError:
            raise CatalogError(f"port_counters.csv:{line}: {row['per_hour']!r} is no number", hint="correct the row") from None
        if row.get("folder") not in ("port", "device") or (limit is None) != (not row.get("code")):
            raise CatalogError(f"port_counters.csv:{line}: folder, code and per_hour do not fit", hint="correct the row")
        name = row["counter"]
        rows[name] = PortCounter(name, row["folder"], row.get("code", ""), limit, row.get("meaning", ""))
    return rows
