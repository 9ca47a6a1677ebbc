"""
Turn the knowledge tables beside this file into validated rows: signatures, Xid and SXid codes, DCGM fields, node conditions.

A site's own rows override ours: every CSV in the folder named by ``WORKBENCH_CATALOG`` (or passed as `site`) is read after the
shipped tables, row by row, and a verdict names the file that decided.
"""

from __future__ import annotations

import csv
import os
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from workbench.errors import CatalogError
from workbench.model import CLASSES, REMEDIATIONS, RETRIES, ROLES

__all__ = ["HERE", "Signature", "Signatures", "read_rows", "scan_patterns", "signatures", "table"]

HERE = Path(__file__).parent
_SCOPES = ("gpu", "node", "rank", "job", "platform", "link", "")
_AT_FAULT = ("gpu", "node", "rank", "job", "platform", "")


@dataclass(frozen=True, slots=True)
class Signature:
    """
    A known kind of event.

    `pattern` is a regular expression both `re` and Hyperscan compile, or empty when a parser finds the event by structure;
    `weight` (0..1) says how surely one such observation alone means `cls`.
    """

    id: str
    pattern: str
    layer: str
    role: str
    cls: str
    weight: float
    scope: str = ""
    at_fault: str = ""
    retry: str = ""
    remediation: str = ""
    meaning: str = ""
    example: str = ""
    source: str = ""
    evidence: str = ""
    date: str = ""
    origin: str = ""  # file:line of the row


class Signatures(dict[str, Signature]):
    """Signature id → row; unknown ids give a neutral `context` row, so that a site's own parser cannot break triage."""

    def __missing__(self, key: str) -> Signature:
        family = re.sub(r"-\d+$", "", key)
        if family != key and family in self:
            return replace(self[family], id=key)
        return Signature(key, "", "", "context", "unknown", 0.0, origin="(not in the catalog)")


def _row(row: dict[str, str], file: Path, line: int) -> Signature:
    def fail(what: str) -> CatalogError:
        return CatalogError(
            f"{file.name}:{line}: {what}", hint=f"correct the row {row.get('id')!r}; see docs/reference/catalog.md"
        )

    try:
        weight = float(row.get("weight") or 0.0)
    except ValueError:
        raise fail(f"weight {row.get('weight')!r} is no number") from None
    if not row.get("id"):
        raise fail("the row has no id")
    if row.get("role") not in ROLES:
        raise fail(f"role {row.get('role')!r} is none of {', '.join(ROLES)}")
    if row.get("class") not in CLASSES:
        raise fail(f"class {row.get('class')!r} is none of the classes of workbench.model.CLASSES")
    if not 0.0 <= weight <= 1.0:
        raise fail(f"weight {weight} is not between 0 and 1")
    for name, allowed in (
        ("scope", _SCOPES),
        ("at_fault", _AT_FAULT),
        ("retry", (*RETRIES, "")),
        ("remediation", (*REMEDIATIONS, "")),
    ):
        if (row.get(name) or "") not in allowed:
            raise fail(f"{name} {row.get(name)!r} is none of {', '.join(word or '(empty)' for word in allowed)}")
    pattern = row.get("pattern") or ""
    return Signature(
        id=row["id"],
        pattern=pattern,
        layer=row.get("layer") or "",
        role=row["role"],
        cls=row["class"],
        weight=weight,
        scope=row.get("scope") or "",
        at_fault=row.get("at_fault") or "",
        retry=row.get("retry") or "",
        remediation=row.get("remediation") or "",
        meaning=row.get("meaning") or "",
        example=row.get("example") or "",
        source=row.get("source") or "",
        evidence=row.get("evidence") or "",
        date=row.get("date") or "",
        origin=f"{file.name}:{line}",
    )


def read_rows(file: Path) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of a table with their line numbers; raises `CatalogError` when it cannot be read."""
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream)
            return [(reader.line_num, {key: value or "" for key, value in row.items() if key}) for row in reader]
    except OSError as error:
        raise CatalogError(f"{file}: {error.strerror}", hint="check that the file exists and may be read") from error


@lru_cache(maxsize=8)
def signatures(site: str | None = None) -> Signatures:
    """
    Return all signatures by id, the shipped ones overridden by a site's.

    Parameters
    ----------
    site : str, optional
        Folder with a site's own ``signatures*.csv``; default ``$WORKBENCH_CATALOG``.

    Raises
    ------
    CatalogError
        A row is wrong; names file and line.
    """
    rows = Signatures()
    folders = [HERE] + [Path(folder) for folder in [site or os.environ.get("WORKBENCH_CATALOG")] if folder]
    for folder in folders:
        for file in sorted(folder.glob("signatures*.csv")):
            for line, row in read_rows(file):
                rows[row.get("id", "")] = _row(row, file, line)
    return rows


@lru_cache(maxsize=32)
def table(name: str) -> tuple[dict[str, str], ...]:
    """Return the rows of a shipped CSV table, e.g. ``table("xid")``, as dictionaries of text."""
    return tuple(row for _, row in read_rows(HERE / f"{name}.csv"))


@lru_cache(maxsize=8)
def scan_patterns(site: str | None = None) -> tuple[tuple[str, str], ...]:
    """Return (signature id, regular expression) of every signature that the log scanner looks for."""
    return tuple((row.id, row.pattern) for row in signatures(site).values() if row.pattern)
