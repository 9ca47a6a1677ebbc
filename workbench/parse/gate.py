"""
Turn signatures into a small, fast first stage: short rare texts, of which every match of a signature contains at least one.

A scanner of hundreds of expressions spends its time on what ordinary lines have in common with them. A few rare bytes of each are
found several times faster, hardly ever occur in ordinary logs, and only the lines that hold one are then put to the expressions.
Signatures share texts ("error:" stands in many): the fewer different ones there are, the faster they are found.
"""

from __future__ import annotations

import heapq
import math
import re._constants as sre  # type: ignore[import-not-found, unused-ignore]
import re._parser as sre_parser  # type: ignore[import-not-found, unused-ignore]
from collections import Counter
from collections.abc import Iterable, Sequence
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
# Hyperscan looks at every second position if no text is shorter than three bytes and one is that short. With longer texts only it
# takes longer strides, which lets more false positives through and measured slower by half; so one that no log holds is added.
PACE = b"\x01\x02\x03"
_Text = frozenset[bytes]  # its rare pieces: any one of them will do
_Need = frozenset[_Text]  # the texts of which every match contains one


def gate(patterns: Sequence[str]) -> list[tuple[bytes, bool]]:
    """
    Return expressions (and whether each ignores letter case) of which one matches in every line that any of the patterns matches.

    They are plain texts where a pattern requires a rare one, else a part of the pattern itself.
    """
    found: set[tuple[bytes, bool]] = set()
    choices: list[list[_Need]] = []
    for pattern in patterns:
        tree = sre_parser.parse(pattern)
        caseless = bool(tree.state.flags & 2)
        for arm in arms(tree):
            needs = _needs(arm, caseless)
            if needs:
                choices.append(needs)
            else:
                found.add((emit(arm), caseless))
    if choices:
        found |= {(escaped(text), True) for text in (*_cover(choices), PACE)}
    return sorted(found)


def _cover(choices: Iterable[list[_Need]]) -> set[bytes]:
    """Return few pieces that hold one of each text of one need of each choice: the most shared first, of those the rarest."""
    choices = list(choices)
    shared: Counter[bytes] = Counter()
    for needs in choices:
        shared.update({piece for need in needs for text in need for piece in text})

    def cost(need: _Need) -> float:
        return sum(1 / max(shared[piece] for piece in text) for text in need)

    left = {text for needs in choices for text in min(needs, key=cost)}
    holders: dict[bytes, set[_Text]] = {}
    for text in left:
        for piece in text:
            holders.setdefault(piece, set()).add(text)
    queue = [(-len(texts), _score(piece), piece) for piece, texts in holders.items()]
    heapq.heapify(queue)
    chosen: set[bytes] = set()
    while left:
        count, score, piece = heapq.heappop(queue)
        open_ = len(holders[piece] & left)
        if open_ == -count:
            chosen.add(piece)
            left -= holders[piece]
        elif open_:
            heapq.heappush(queue, (-open_, score, piece))
    return chosen


@lru_cache(maxsize=1)
def _ordinary() -> bytes:
    return ORDINARY.lower().encode()


@lru_cache(maxsize=1)
def _triples() -> tuple[Counter[bytes], int]:
    text = _ordinary()
    counts = Counter(text[at : at + 3] for at in range(len(text) - 2))
    return counts, sum(counts.values())


@cache
def _score(text: bytes) -> float:
    """Return how rare a text is in ordinary logs (the lower, the rarer); 0 when they contain it."""
    if text in _ordinary():
        return 0.0
    counts, total = _triples()
    return sum(math.log((counts.get(text[at : at + 3], 0) + 0.2) / total) for at in range(len(text) - 2))


def _need(runs: list[str], caseless: bool) -> list[_Need]:
    """Return the rare pieces of each of some alternatives, if each has one."""
    texts = set()
    for run in runs:
        raw = run.encode("utf-8", "surrogatepass")
        if len(raw) < SHORTEST or (caseless and not raw.isascii()):
            return []
        low = raw.lower()
        windows = {low[at : at + WIDTH] for at in range(max(1, len(low) - WIDTH + 1))}
        rare = frozenset(window for window in windows if _score(window) < RARE)
        if not rare:
            return []
        texts.add(rare)
    return [frozenset(texts)]


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


def _needs(nodes: Any, caseless: bool) -> list[_Need]:
    """Return what every match of a part of a pattern contains: any one of the results is enough to look for."""
    found: list[_Need] = []
    runs = [""]
    for op, av in nodes:
        texts = _texts(op, av)
        if texts is not None and len(runs) * len(texts) <= MOST:
            runs = [run + text for run in runs for text in texts]
            continue
        if texts is not None:
            found += _need(runs, caseless)
            runs = texts
            continue
        inner: list[_Need] = []
        if op is sre.SUBPATTERN:
            inner = _needs(av[3], caseless or bool(av[1] & 2))
        elif op is sre.BRANCH:
            parts = [_needs(arm, caseless) for arm in av[1]]
            if all(parts):
                inner = [frozenset().union(*(min(part, key=len) for part in parts))]
        elif op in REPEATS and av[0] > 0:
            repeated = _product(av[2])
            if repeated is not None and len(repeated) == 1 and av[0] <= WIDTH:
                runs = [run + repeated[0] * av[0] for run in runs]
            else:
                inner = _needs(av[2], caseless)
        elif op is sre.ATOMIC_GROUP:
            inner = _needs(av, caseless)
        found += _need(runs, caseless) + inner
        runs = [""]
    return found + _need(runs, caseless)
