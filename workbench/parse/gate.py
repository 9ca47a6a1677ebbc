"""
Turn signatures into a small, fast first stage: short rare texts, of which every match of a signature contains at least one.

A scanner of hundreds of expressions spends its time on what ordinary lines have in common with them. Six rare bytes of each are
found several times faster, hardly ever occur in ordinary logs, and only the lines that hold one are then put to the expressions.
"""

from __future__ import annotations

import math
import re._constants as sre  # type: ignore[import-not-found, unused-ignore]
import re._parser as sre_parser  # type: ignore[import-not-found, unused-ignore]
from collections import Counter
from functools import lru_cache
from typing import Any

from workbench.parse.ordinary import ORDINARY
from workbench.parse.patterns import REPEATS, arms, emit, escaped

__all__ = ["gate"]

WIDTH = 6  # bytes of a text; eight and more measured slower, since more texts then differ
# How rare a text must be to stand alone: the logarithm of the product of its letter triples' frequencies in ordinary logs. A word of
# four letters whose triples are all unknown there has -21, one of six letters with common triples about -24.
RARE = -15.0
_Need = tuple[float, frozenset[tuple[bytes, bool]]]


def gate(pattern: str) -> list[tuple[bytes, bool]]:
    """
    Return expressions (and whether each ignores letter case) of which one matches in every line that the pattern matches.

    They are plain texts where the pattern requires a rare one, else the expression itself.
    """
    tree = sre_parser.parse(pattern)
    caseless = bool(tree.state.flags & 2)
    found: set[tuple[bytes, bool]] = set()
    for arm in arms(tree):
        need = _need(arm, caseless)
        if need is not None and need[0] < RARE:
            found |= {(escaped(text), ignore) for text, ignore in need[1]}
        else:
            found.add((emit(arm), caseless))
    return sorted(found)


@lru_cache(maxsize=1)
def _ordinary() -> bytes:
    return ORDINARY.lower().encode()


@lru_cache(maxsize=1)
def _triples() -> tuple[Counter[bytes], int]:
    text = _ordinary()
    counts = Counter(text[at : at + 3] for at in range(len(text) - 2))
    return counts, sum(counts.values())


def _score(text: bytes) -> float:
    counts, total = _triples()
    low = text.lower()
    return sum(math.log((counts[low[at : at + 3]] + 0.2) / total) for at in range(len(low) - 2))


def _best(run: str, caseless: bool) -> list[_Need]:
    raw = run.encode("utf-8", "surrogatepass")
    if len(raw) < 4 or (caseless and not raw.isascii()):
        return []
    windows = {raw[at : at + WIDTH] for at in range(max(1, len(raw) - WIDTH + 1))}
    ordinary = _ordinary()
    rare = [window for window in windows if window.lower() not in ordinary]
    return [min((_score(window), frozenset([(window, caseless)])) for window in rare)] if rare else []


def _need(nodes: Any, caseless: bool) -> _Need | None:
    candidates: list[_Need] = []
    run = ""
    for op, av in nodes:
        if op is sre.LITERAL:
            run += chr(av)
            continue
        if op is sre.SUBPATTERN and not (av[1] or av[2]) and all(each is sre.LITERAL for each, _ in av[3]):
            run += "".join(chr(value) for _, value in av[3])
            continue
        candidates += _best(run, caseless)
        run = ""
        inner: _Need | None = None
        if op is sre.SUBPATTERN:
            inner = _need(av[3], caseless or bool(av[1] & 2))
        elif op is sre.BRANCH:
            parts = [_need(arm, caseless) for arm in av[1]]
            known = [part for part in parts if part is not None]
            if len(known) == len(parts):
                every = frozenset(text for part in known for text in part[1])
                inner = (max(part[0] for part in known) + math.log(len(known)), every)
        elif op in REPEATS and av[0] > 0:
            inner = _need(av[2], caseless)
        elif op is sre.ATOMIC_GROUP:
            inner = _need(av, caseless)
        if inner is not None:
            candidates.append(inner)
    candidates += _best(run, caseless)
    return min(candidates, key=lambda need: need[0]) if candidates else None
