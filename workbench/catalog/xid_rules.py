"""Turn the rules for Xids into the first that fits a code and what is known around it: a site's own before ours."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from workbench.catalog import HERE, read_rows
from workbench.errors import CatalogError
from workbench.model import CLASSES, REMEDIATIONS

__all__ = ["XidContext", "XidRule", "rule_for", "xid_rules"]

_STATUSES = ("ok", "warning", "critical", "unknown")
_ENVIRONMENTS = ("", "vm", "bare-metal", "mig", "no-mig")
_REMAPS = ("", "failed", "pending", "none", "unknown")
_REPEATS = re.compile(r"(processes|times|boots|places)\s*>=\s*(\d+)")
_DRIVER = re.compile(r"(<=|>=|<|>|=)\s*([\d.]+)")


@dataclass(frozen=True, slots=True)
class XidContext:
    """
    What is known around one Xid.

    Attributes
    ----------
    code : int
        The Xid.
    environment : collection of str
        ``vm`` or ``bare-metal``, ``mig`` or ``no-mig``; empty when not known.
    architecture : str
        Product and architecture as the table of products has them: ``H100 SXM Hopper``; empty when not known.
    driver : str
        Version, empty when not known.
    remap : str
        ``failed``, ``pending``, ``none`` or ``unknown``.
    counts : mapping
        ``processes``: how many had it within a day on this GPU while no other GPU of the node had it; ``times``: incidents more than
        ten minutes apart within a day; ``boots``: boots of the log in which it occurred; ``places``: processes that faulted at one and
        the same unit of the chip.
    facts : mapping
        What the line and the log say: ``fatal``, ``action``, ``role``, ``with`` (other codes on the GPU), ``text`` …
    """

    code: int
    environment: Collection[str] = ()
    architecture: str = ""
    driver: str = ""
    remap: str = "unknown"
    counts: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class XidRule:
    """
    One row: when it applies, and then what the Xid means for the node.

    `codes` is None for any code. `terms` are ``(key, operator, text)``: ``=`` any of the texts between bars, ``~`` a regular expression.
    An empty `cls` is that of the code's own row.
    """

    codes: frozenset[int] | None
    environment: str
    architecture: str
    driver: tuple[tuple[str, tuple[int, ...]], ...]
    remap: str
    repeats: tuple[str, int] | None
    terms: tuple[tuple[str, str, str], ...]
    status: str
    cls: str
    action: str
    why: str
    source: str
    evidence: str
    date: str
    origin: str
    said: str

    def fits(self, context: XidContext) -> bool:
        """Whether every condition of the row holds; what is not known fulfils none."""
        if self.codes is not None and context.code not in self.codes:
            return False
        if self.environment and self.environment not in context.environment:
            return False
        if self.architecture and not (context.architecture and re.search(self.architecture, context.architecture)):
            return False
        if self.driver and not (context.driver and all(_compared(context.driver, *bound) for bound in self.driver)):
            return False
        if self.remap and self.remap != context.remap:
            return False
        if self.repeats and context.counts.get(self.repeats[0], 0) < self.repeats[1]:
            return False
        return all(_holds(context.facts.get(key, ""), operator, text) for key, operator, text in self.terms)


def _holds(value: str, operator: str, text: str) -> bool:
    if operator == "~":
        return re.search(text, value) is not None
    wanted = {word.strip().lower() for word in text.split("|")}
    return any(word.strip().lower() in wanted for word in value.split("|"))


def _compared(version: str, operator: str, bound: tuple[int, ...]) -> bool:
    mine = _version(version)
    mine += (0,) * (len(bound) - len(mine))
    short = mine[: len(bound)]  # "<575" is about branches: 575.57 is none of them
    return {
        "<": short < bound,
        "<=": short <= bound,
        ">": short > bound,
        ">=": short >= bound,
        "=": short == bound,
    }[operator]


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:4])


def _codes(text: str) -> frozenset[int] | None:
    if text.strip() == "*":
        return None
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _terms(text: str) -> tuple[tuple[str, str, str], ...]:
    terms = []
    for part in filter(None, (word.strip() for word in text.split(";"))):
        found = re.fullmatch(r"([\w-]+)\s*([=~])\s*(.+)", part)
        if not found:
            raise ValueError(f"content {part!r} is neither key=value nor key~pattern")
        if found[2] == "~":
            re.compile(found[3])
        terms.append((found[1], found[2], found[3]))
    return tuple(terms)


def _rule(row: Mapping[str, str], origin: str) -> XidRule:
    for name, allowed in (
        ("status", _STATUSES),
        ("class", (*CLASSES, "")),
        ("action", REMEDIATIONS),
        ("environment", _ENVIRONMENTS),
        ("remap", _REMAPS),
    ):
        if row.get(name, "") not in allowed:
            raise ValueError(f"{name} {row.get(name)!r} is none of {', '.join(word or '(empty)' for word in allowed)}")
    repeats = _REPEATS.fullmatch(row.get("repeats", "").strip())
    if row.get("repeats", "").strip() and not repeats:
        raise ValueError(f"repeats {row['repeats']!r} is not like processes>=2, times>=2, boots>=2 or places>=2")
    bounds = row.get("driver", "").strip()
    driver = tuple((found[1], _version(found[2])) for found in _DRIVER.finditer(bounds))
    if bounds and re.sub(r"[;,\s]", "", _DRIVER.sub("", bounds)):
        raise ValueError(f"driver {bounds!r} is not like >=570;<575")
    re.compile(row.get("architecture", ""))
    named = ("environment", "architecture", "driver", "remap", "repeats", "content")
    said = [f"{name} {row[name]}" for name in named if row.get(name)]
    return XidRule(
        _codes(row["code"]),
        row.get("environment", ""),
        row.get("architecture", ""),
        driver,
        row.get("remap", ""),
        (repeats[1], int(repeats[2])) if repeats else None,
        _terms(row.get("content", "")),
        row["status"],
        row["class"],
        row["action"],
        row.get("why", ""),
        row.get("source", ""),
        row.get("evidence", ""),
        row.get("date", ""),
        origin,
        f"code {row['code']}" + "".join(f", {part}" for part in said),
    )


@lru_cache(maxsize=8)
def xid_rules(site: str | None = None) -> tuple[XidRule, ...]:
    """
    Return all rules in the order in which they are tried: a site's ``xid_rules*.csv`` before ours.

    Parameters
    ----------
    site : str, optional
        Folder with a site's own tables; default ``$WORKBENCH_CATALOG``.

    Raises
    ------
    CatalogError
        A row is wrong; names file and line.
    """
    rules = []
    folders = [Path(folder) for folder in [site or os.environ.get("WORKBENCH_CATALOG")] if folder] + [HERE]
    for folder in folders:
        for file in sorted(folder.glob("xid_rules*.csv")):
            for line, row in read_rows(file):
                try:
                    rules.append(_rule(row, f"{file.name}:{line}"))
                except (KeyError, ValueError, re.error) as error:
                    what = f"there is no column {error}" if isinstance(error, KeyError) else str(error)
                    raise CatalogError(
                        f"{file.name}:{line}: {what}", hint=f"correct the rule for code {row.get('code')!r}"
                    ) from None
    return tuple(rules)


def rule_for(context: XidContext) -> XidRule:
    """
    Return the first rule that fits.

    Raises
    ------
    CatalogError
        None does: the shipped table ends with a rule for any code.
    """
    for rule in xid_rules():
        if rule.fits(context):
            return rule
    raise CatalogError(f"no rule for Xid {context.code}", hint="end the table with a rule for code *")
