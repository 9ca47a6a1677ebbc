"""Turn a word a person met (`xid:79`, a signature, a DCGM field, a class) into what the catalog knows of it, and from where."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from workbench.errors import ParseError

__all__ = ["Card", "KINDS", "explain", "known"]

# prefix → table, key column, a second column that names the same row, what the prefix means
KINDS: dict[str, tuple[str, str, str, str]] = {
    "xid": ("xid", "code", "mnemonic", "an error code of the NVIDIA driver, in the kernel log"),
    "sxid": ("sxid", "code", "mnemonic", "an error code of an NVSwitch, in the kernel log"),
    "dcgm": ("dcgm_fields", "prometheus_name", "field_id", "a field of DCGM and its exporter, by name or number"),
    "dcgm-error": ("dcgm_errors", "code", "name", "an error of a DCGM health check or diagnostic"),
    "nvml": ("nvml_returns", "code", "name", "a return code of NVML"),
    "condition": ("conditions", "name", "", "a condition, taint or state of a node or pod"),
    "class": ("classes", "class", "", "a failure class of the verdict"),
}


@dataclass(frozen=True, slots=True)
class Card:
    """What one row of one table says: `title`, `facts` (label → text, empty ones left out) and the row's `origin`."""

    kind: str
    title: str
    origin: str
    facts: dict[str, str]


def explain(term: str) -> list[Card]:
    """
    Return every card about `term`.

    Parameters
    ----------
    term : str
        A signature id, or PREFIX:KEY with a prefix of `KINDS`; a bare class name works as well.

    Raises
    ------
    ParseError
        Nothing is known of it; the hint names the nearest words.
    """
    prefix, colon, key = term.strip().partition(":")
    prefix = prefix.lower()
    cards: list[Card] = []
    if colon and prefix in KINDS:
        cards += _rows(prefix, key.strip())
        if prefix in ("xid", "sxid"):
            cards += _signature(f"{prefix}-{key.strip()}")
            cards += _nvlink5(key.strip()) if prefix == "xid" else []
        if prefix == "class":
            cards += _of_class(key.strip())
    elif not colon:
        cards += _signature(term.strip())
        family, _, number = term.strip().rpartition("-")
        if family in ("xid", "sxid") and number.isdigit():
            cards += _rows(family, number)
        if not cards:
            for kind in KINDS:
                cards += _rows(kind, term.strip()) if not term.strip().isdigit() else []
    if cards:
        return cards
    words = sorted(set(known()))
    near = (
        difflib.get_close_matches(term.lower(), words, n=4, cutoff=0.6)
        or [word for word in words if key and key.lower() in word.lower()][:4]
    )
    hint = (
        f"did you mean {', '.join(near)}?"
        if near
        else f"write a signature id, or one of {', '.join(f'{kind}:…' for kind in KINDS)}"
    )
    raise ParseError(f"the catalog knows nothing of {term!r}", hint=hint)


def known() -> Iterator[str]:
    """Give every word that `explain` knows."""
    from workbench.catalog import signatures

    yield from signatures()
    for kind, (table, column, second, _) in KINDS.items():
        for row in _table(table):
            for name in (column, second):
                if name and row.get(name):
                    yield f"{kind}:{row[name]}"


def _table(name: str) -> Iterable[dict[str, str]]:
    from workbench.catalog import table
    from workbench.errors import CatalogError

    try:
        return table(name)
    except CatalogError:
        return ()


def _rows(kind: str, key: str) -> list[Card]:
    if not key:
        return []
    table, column, second, _ = KINDS[kind]
    wanted = {key.lower()}
    if kind == "dcgm":
        wanted |= {
            other.lower()
            for row in _table("dcgm_field_aliases")
            for other in (row["old_name"], row["current_name_dcgm_4_6"])
            if key.lower() in (row["old_name"].lower(), row["current_name_dcgm_4_6"].lower())
        }
    cards = []
    for row in _table(table):
        if row.get(column, "").lower() in wanted or (second and row.get(second, "").lower() in wanted):
            name = f"{kind} {row[column]}" + (f" {row[second]}" if second and row.get(second) else "")
            cards.append(Card(kind, name, f"catalog/{table}.csv:{row[column]}", _facts(row, (column, second))))
    return cards


def _nvlink5(code: str) -> list[Card]:
    rows = [row for row in _table("xid_nvlink5_decode") if row.get("xid") == code]
    if not rows:
        return []
    units = sorted({row["unit"] for row in rows})
    facts = {
        "unit": ", ".join(units),
        "rows": f"{len(rows)} sub-codes; the unit, its sub-code and the error status in the line decide the action",
    }
    return [Card("xid", f"xid {code} on NVLink 5", "catalog/xid_nvlink5_decode.csv", facts)]


def _signature(name: str) -> list[Card]:
    from workbench.catalog import signatures

    rows = signatures()
    if name not in rows:
        return []
    row = rows[name]
    plain: dict[str, Any] = {field.name: getattr(row, field.name) for field in fields(row)}
    plain["class"] = plain.pop("cls")
    order = (
        "meaning",
        "role",
        "class",
        "weight",
        "at_fault",
        "scope",
        "layer",
        "retry",
        "remediation",
        "pattern",
        "example",
        "source",
        "evidence",
        "date",
    )
    return [Card("signature", name, f"catalog/{row.origin}", _facts({key: str(plain[key]) for key in order}, ()))]


def _of_class(cls: str) -> list[Card]:
    from workbench.catalog import signatures
    from workbench.model import CLASSES

    if cls not in CLASSES:
        return []
    rows = sorted((row for row in signatures().values() if row.cls == cls and row.role == "cause"), key=lambda row: -row.weight)
    facts = {"belongs here": CLASSES[cls]}
    if rows:
        facts["told by"] = ", ".join(f"{row.id} ({row.weight:g})" for row in rows[:40]) + (
            f" and {len(rows) - 40} more" if len(rows) > 40 else ""
        )
    return [Card("class", cls, "model.CLASSES and catalog/signatures_*.csv", facts)]


def _facts(row: dict[str, str], leave: Iterable[str]) -> dict[str, str]:
    return {label.replace("_", " "): text for label, text in row.items() if text and label not in leave}
