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
from functools import cache, lru_cache
from typing import Any

from workbench.parse.ordinary import ORDINARY
from workbench.parse.patterns import REPEATS, arms, emit, escaped

__all__ = ["gate"]

WIDTH = 6  # bytes of a text; eight and more measured slower, since more texts then differ
# How rare a text must be to stand alone: the logarithm of the product of its letter triples' frequencies in ordinary logs. A word of
# four letters whose triples are all unknown there has -21, one of six letters with common triples about -24.
RARE = -9.0
SHORTEST = 3
MOST = 24  # alternatives of one text
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


@cache
def _score(text: bytes) -> float | None:
    """Return how rare a text is in ordinary logs (the lower, the rarer), or None when they contain it."""
    low = text.lower()
    if low in _ordinary():
        return None
    counts, total = _triples()
    return sum(math.log((counts.get(low[at : at + 3], 0) + 0.2) / total) for at in range(len(low) - 2))


def _best(runs: list[str], caseless: bool) -> list[_Need]:
    """Return the rarest text of each of some alternatives, if each has one."""
    chosen: set[tuple[bytes, bool]] = set()
    worst = -math.inf
    for run in runs:
        raw = run.encode("utf-8", "surrogatepass")
        if len(raw) < SHORTEST or (caseless and not raw.isascii()):
            return []
        windows = {raw[at : at + WIDTH] for at in range(max(1, len(raw) - WIDTH + 1))}
        rare = [(score, window) for window in windows if (score := _score(window)) is not None]
        if not rare:
            return []
        score, window = min(rare)
        worst = max(worst, score)
        chosen.add((window, caseless))
    return [(worst, frozenset(chosen))]


def _texts(op: Any, av: Any) -> list[str] | None:
    """Return all texts that a part of a pattern can match, when they are few."""
    if op is sre.LITERAL:
        return [chr(av)]
    if op is sre.IN and len(av) <= 4 and all(each is sre.LITERAL for each, _ in av):
        return [chr(value) for _, value in av]
    if op is sre.SUBPATTERN and not (av[1] or av[2]):
        return _product(av[3])
    if op is sre.BRANCH:
        every = [_product(arm) for arm in av[1]]
        joined = [text for texts in every for text in texts or ()]
        return joined if all(every) and len(joined) <= MOST else None
    return None


def _product(nodes: Any) -> list[str] | None:
    texts = [""]
    for op, av in nodes:
        more = _texts(op, av)
        if more is None or len(texts) * len(more) > MOST:
            return None
        texts = [text + end for text in texts for end in more]
    return texts


def _need(nodes: Any, caseless: bool) -> _Need | None:
    candidates: list[_Need] = []
    runs = [""]
    for op, av in nodes:
        texts = _texts(op, av)
        if texts is not None and len(runs) * len(texts) <= MOST:
            runs = [run + text for run in runs for text in texts]
            continue
        if texts is not None:
            candidates += _best(runs, caseless)
            runs = texts
            continue
        inner: _Need | None = None
        if op is sre.SUBPATTERN:
            inner = _need(av[3], caseless or bool(av[1] & 2))
        elif op is sre.BRANCH:
            parts = [_need(arm, caseless) for arm in av[1]]
            known = [part for part in parts if part is not None]
            if len(known) == len(parts):
                inner = (max(part[0] for part in known), frozenset(text for part in known for text in part[1]))
        elif op in REPEATS and av[0] > 0:
            repeated = _product(av[2])
            if repeated is not None and len(repeated) == 1 and av[0] <= WIDTH:
                runs = [run + repeated[0] * av[0] for run in runs]
            else:
                inner = _need(av[2], caseless)
        elif op is sre.ATOMIC_GROUP:
            inner = _need(av, caseless)
        candidates += _best(runs, caseless)
        runs = [""]
        if inner is not None:
            candidates.append(inner)
    candidates += _best(runs, caseless)
    return min(candidates, key=lambda need: need[0]) if candidates else None
