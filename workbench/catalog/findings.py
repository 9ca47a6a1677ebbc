"""Turn the table of findings into rows by code: what status a finding has, which class it speaks for, and what to do."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from workbench.catalog import HERE, read_rows
from workbench.errors import CatalogError
from workbench.model import CLASSES, REMEDIATIONS

__all__ = ["FindingRow", "finding_row", "findings_table"]

_STATUSES = ("not-applicable", "ok", "warning", "critical", "unknown")


@dataclass(frozen=True, slots=True)
class FindingRow:
    """
    A kind of finding.

    `check` is the check that gives it; `status`, `cls` and `action` what it means for the node; `meaning` says it in words; `origin` is file
    and line of the row that decided, the site's own or ours.
    """

    code: str
    check: str
    status: str
    cls: str
    action: str
    meaning: str
    source: str
    evidence: str
    date: str
    origin: str


@lru_cache(maxsize=8)
def findings_table(site: str | None = None) -> dict[str, FindingRow]:
    """
    Return all rows by code, the shipped ones overridden by the site's ``findings*.csv``.

    Raises
    ------
    CatalogError
        A row is wrong; names file and line.
    """
    rows: dict[str, FindingRow] = {}
    folders = [HERE] + [Path(folder) for folder in [site or os.environ.get("WORKBENCH_CATALOG")] if folder]
    for folder in folders:
        for file in sorted(folder.glob("findings*.csv")):
            for line, row in read_rows(file):
                code = row.get("code", "")
                for name, allowed in (("status", _STATUSES), ("class", (*CLASSES, "")), ("action", REMEDIATIONS)):
                    if row.get(name, "") not in allowed:
                        raise CatalogError(
                            f"{file.name}:{line}: {name} {row.get(name)!r} is none of {', '.join(word or '(empty)' for word in allowed)}",
                            hint=f"correct the row {code!r}",
                        )
                rows[code] = FindingRow(
                    code,
                    row.get("check", ""),
                    row["status"],
                    row["class"],
                    row["action"],
                    row.get("meaning", ""),
                    row.get("source", ""),
                    row.get("evidence", ""),
                    row.get("date", ""),
                    f"{file.name}:{line}",
                )
    return rows


def finding_row(code: str) -> FindingRow:
    """
    Return the row of a code; ``unread-time-out`` falls back on ``unread``, ``xid-79`` on ``xid``.

    Raises
    ------
    CatalogError
        There is none: a finding nobody can look up would tell nobody what to do.
    """
    rows = findings_table()
    if code in rows:
        return rows[code]
    family = re.sub(r"-[^-]+$", "", code)
    while family != code:
        if family in rows:
            return replace(rows[family], code=code)
        code, family = family, re.sub(r"-[^-]+$", "", family)
    raise CatalogError(f"no row for the finding {code!r}", hint="add it to findings.csv")
