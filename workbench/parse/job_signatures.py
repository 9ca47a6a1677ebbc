"""Turn a job-log line into the catalog rows that match it, the most specific first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from workbench.catalog import Signature, Signatures, signatures
from workbench.parse.patterns import needles

__all__ = ["Matcher", "literal", "matcher", "rank_of", "specificity"]

_OWN = ("signatures_job", "signatures_slurm")  # what is written into the output of a job
_GRAM = 4
_ROLE = {"cause": 2, "symptom": 1, "context": 0, "counter": 0}


def _parse(pattern: str) -> Any:
    from re import _parser  # private, but the only exact reader of a pattern; unchanged since Python 3.11

    return _parser.parse(pattern)


def _weigh(tree: Any) -> float:
    """Least number of literal characters that a match of this tree needs; a class counts a third."""
    total = 0.0
    for name, value in tree:
        kind = str(name)
        if kind == "LITERAL":
            total += 1
        elif kind == "IN":
            total += 0.3
        elif kind == "BRANCH":
            total += min(_weigh(branch) for branch in value[1])
        elif kind == "SUBPATTERN":
            total += _weigh(value[-1])
        elif kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            total += min(int(value[0]), 3) * _weigh(value[2])
    return total


@lru_cache(maxsize=4096)
def specificity(pattern: str) -> float:
    """Return how much literal text a match of the pattern needs at least: the longer, the more it says."""
    try:
        return _weigh(_parse(pattern))
    except (re.error, RecursionError):
        return 0.0


@lru_cache(maxsize=4096)
def literal(pattern: str) -> tuple[str, ...]:
    """Return texts of which every match contains at least one (lower case), or () when none is sure."""
    return tuple(sorted({text.lower() for text in needles(pattern)}))


def rank_of(row: Signature) -> tuple[int, int, float, float]:
    """
    Return the sort key by which rows of one line compete; the highest wins.

    Lines known to be harmless win over everything but a sure fault of hardware or driver (a `UserWarning` may carry one);
    rows of the layer ``generic`` lose against any other; then causes before symptoms before context, then the longer literal.
    """
    hard = row.role == "cause" and row.weight >= 0.8 and row.cls.split("/")[0] in ("hardware", "driver")
    band = 3 if hard else 2 if row.layer == "noise" else 0 if row.layer == "generic" else 1
    return band, _ROLE.get(row.role, 0), specificity(row.pattern), row.weight


class Matcher:
    """Find the rows of the job tables that match a line, for callers that come without the scanner's hits."""

    def __init__(self, rows: Signatures | None = None) -> None:
        self.rows = signatures() if rows is None else rows
        self._own = [row for row in self.rows.values() if row.pattern and row.origin.startswith(_OWN)]
        self._compiled: dict[str, re.Pattern[str]] = {}
        # the first four characters of every gate word lead to the rows that it opens: one look-up per position of a line
        self._always: list[Signature] = []
        self._grams: dict[str, list[tuple[str, Signature]]] = {}
        for row in self._own:
            words = literal(row.pattern)
            if not words or min(map(len, words)) < _GRAM:
                self._always.append(row)
                continue
            for word in words:
                self._grams.setdefault(word[:_GRAM], []).append((word, row))

    def compiled(self, row: Signature) -> re.Pattern[str]:
        """Return the compiled pattern of a row."""
        found = self._compiled.get(row.id)
        if found is None:
            found = self._compiled[row.id] = re.compile(row.pattern)
        return found

    def search(self, text: str) -> list[str]:
        """Return the ids of all job rows that match a line."""
        low = text.lower()
        grams = self._grams
        maybe: dict[str, Signature] = {row.id: row for row in self._always}
        for gram in {low[at : at + _GRAM] for at in range(len(low) - _GRAM + 1)} & grams.keys():
            for word, row in grams[gram]:
                if row.id not in maybe and word in low:
                    maybe[row.id] = row
        return [name for name, row in maybe.items() if self.compiled(row).search(text) is not None]

    def order(self, ids: Iterable[str]) -> list[Signature]:
        """Return the rows of these ids, the one that says most first."""
        rows = [self.rows[name] for name in dict.fromkeys(ids)]
        own = [row for row in rows if row.origin.startswith((*_OWN, "("))]
        rest = [row for row in rows if row not in own]
        if not any(row.role == "cause" or row.layer == "noise" for row in own):
            own, rest = rows, []  # a node's own table knows the line better than a symptom of the job
        return sorted(own, key=rank_of, reverse=True) + sorted(rest, key=rank_of, reverse=True)

    def fields(self, row: Signature, text: str) -> dict[str, str]:
        """Return what the named groups of a row say about a line."""
        found = self.compiled(row).search(text) if row.pattern else None
        return {key: value for key, value in found.groupdict().items() if value is not None} if found else {}


@lru_cache(maxsize=1)
def _shared(rows: int) -> Matcher:
    return Matcher()


def matcher() -> Matcher:
    """Return the matcher of the catalog in use, built once: compiling its patterns takes longer than most files."""
    return _shared(id(signatures()))
