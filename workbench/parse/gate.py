"""
Turn signatures into a small, fast first stage: short rare texts, of which every match of a signature contains at least one.

A scanner of hundreds of expressions spends its time on what ordinary lines have in common with them. A few rare bytes of each are
found several times faster, hardly ever occur in ordinary logs, and only the lines that hold one are then put to the expressions.
Signatures share texts ("error:" stands in many): the fewer different ones there are, the faster they are found.
"""

from __future__ import annotations

import heapq
import math
import re
import re._constants as sre  # type: ignore[import-not-found, unused-ignore]
import re._parser as sre_parser  # type: ignore[import-not-found, unused-ignore]
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from workbench.parse.gate_fit import fitted
from workbench.parse.ordinary import ORDINARY
from workbench.parse.patterns import REPEATS, WORD, Unsupported, arms, emit, escaped, members

__all__ = ["gate"]

WIDTH = 6  # bytes of a text that do
# Hyperscan looks at the last eight bytes of a text and puts what passes to a second look, on which half of its time goes: each byte
# more lets less through, but longer texts are shared by fewer signatures, and each text more lets more through.
WIDEST = 8
LESS = 1.3  # how much worse a text is for each byte less
SCALE = 100.0  # how much better a rare text is: with the score left to ties only, one catalog in two measured slower by a fifth
# Texts of one length below six take one of the eight tables of the first look for themselves: those of five are cut to four.
CUT = 4
# How rare a text must be to stand alone: the logarithm of the product of its letter triples' frequencies in ordinary logs. A word of
# four letters whose triples are all unknown there has -21, one of six letters with common triples about -24.
RARE = -9.0
SHORTEST = 3
SHORT = 4.0  # how much worse a text is for each byte less: fifty texts of three to five bytes cost as much as hundreds of six
# Hyperscan looks at every second position if no text is shorter than three bytes and one is that short. With longer texts only it
# takes longer strides, which lets more false positives through and measured slower by half; so one that no log holds is added.
PACE = b"\x01\x02\x03"


@dataclass(frozen=True)
class _How:
    """How far to go for a text that is rare."""

    most: int  # alternatives of one text
    choice: int  # members of a class that are spelled out
    edges: bool = False  # spell out what may stand at a word's or a line's end or be repeated
    common: bool = False  # take what ordinary logs hold, if seldom


_NARROW = _How(24, 4)
_WIDE = _How(400, 32, edges=True)
_COMMON = _How(96, 4, edges=True, common=True)
MANY = 250  # texts from which on Hyperscan groups them as `gate_fit` has it
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_OTHER_DIGITS = bytes.maketrans(b"0123456789", b"7418529630")
_SELDOM = 3  # times in the sample of ordinary logs
_NO_WORD = [bytes([byte]) for byte in range(256) if byte not in WORD]
_Text = frozenset[bytes]  # its rare pieces: any one of them will do
_Need = frozenset[_Text]  # the texts of which every match contains one


def gate(patterns: Sequence[str]) -> list[tuple[bytes, bool]]:
    """
    Return expressions (and whether each ignores letter case) of which one matches in every line that any of the patterns matches.

    They are plain texts where a pattern requires a rare one, else a part of the pattern itself; one of those halves the speed of all.
    A text may end with the line end, so a last line that has none is to be taken as if it held one.
    """
    found: set[tuple[bytes, bool]] = set()
    choices: list[list[_Need]] = []
    for pattern in patterns:
        tree = sre_parser.parse(pattern)
        caseless = bool(tree.state.flags & 2)
        for arm in arms(tree):
            needs = next((needs for how in (_NARROW, _WIDE, _COMMON) if (needs := _needs(arm, caseless, how))), None)
            if needs:
                choices.append(needs)
            else:
                found.add((emit(arm), caseless))
    if choices:
        texts = _cover(choices)
        if len(texts) > MANY:
            texts = fitted(texts, choices, PACE, _samples(), WIDTH)
        found |= {(escaped(text), True) for text in (*texts, PACE)}
    return sorted(found)


def _samples() -> list[bytes]:
    """Return ordinary logs twice, with other numbers: of digits, too, the first look tells only some apart."""
    return [_ordinary(), _ordinary().translate(_OTHER_DIGITS)]


def _cover(choices: Iterable[list[_Need]]) -> set[bytes]:
    """Return few pieces that hold one of each text of one need of each choice: the longest and most shared first, of those the rarest."""
    choices = list(choices)
    shared: Counter[bytes] = Counter()
    for needs in choices:
        shared.update({piece for need in needs for text in need for piece in text})

    def cost(need: _Need) -> float:
        return sum(min(_weight(piece) / shared[piece] for piece in text) for text in need)

    left = {text for needs in choices for text in min(needs, key=cost)}
    holders: dict[bytes, set[_Text]] = {}
    for text in left:
        for piece in text:
            holders.setdefault(piece, set()).add(text)
    queue = [(_weight(piece) / len(texts), _score(piece), piece, len(texts)) for piece, texts in holders.items()]
    heapq.heapify(queue)
    chosen: set[bytes] = set()
    while left:
        _, score, piece, count = heapq.heappop(queue)
        open_ = len(holders[piece] & left)
        if open_ == count:
            chosen.add(piece)
            left -= holders[piece]
        elif open_:
            heapq.heappush(queue, (_weight(piece) / open_, score, piece, open_))
    return chosen


@cache
def _weight(piece: bytes) -> float:
    return float(LESS ** (WIDEST - min(len(piece), WIDEST)) * math.exp(_score(piece) / SCALE))


@lru_cache(maxsize=1)
def _ordinary() -> bytes:
    return ORDINARY.lower().encode()


@lru_cache(maxsize=1)
def _triples() -> tuple[Counter[bytes], int]:
    text = _ordinary_digits()
    counts = Counter(text[at : at + 3] for at in range(len(text) - 2))
    return counts, sum(counts.values())


@lru_cache(maxsize=1)
def _ordinary_digits() -> bytes:
    return _one_digit(_ordinary())


def _one_digit(text: bytes) -> bytes:
    # one number is as frequent as another: " 429" is a step, a port and a rank
    return text.translate(_DIGITS)


@cache
def _score(text: bytes) -> float:
    """Return how rare a text is in ordinary logs (the lower, the rarer); 0 when they contain it."""
    text = _one_digit(text)
    if text in _ordinary_digits():
        return 0.0
    counts, total = _triples()
    return sum(math.log((counts.get(text[at : at + 3], 0) + 0.2) / total) for at in range(len(text) - 2))


@cache
def _pieces(run: bytes, common: bool) -> _Text:
    """Return the rare pieces of a text (or, if those will do, the ones that are seldom)."""
    low = run.lower()
    if common:
        return frozenset(each for each in _windows(low, 2 * WIDTH) if len(each) > SHORTEST and _ordinary().count(each) <= _SELDOM)
    if len(low) < WIDTH:
        whole = _rare({low})
        return (whole and _rare(_windows(low, CUT))) or whole
    return _rare(_windows(low, WIDTH)) and _rare({each for width in range(WIDTH, WIDEST + 1) for each in _windows(low, width)})


def _windows(text: bytes, width: int) -> set[bytes]:
    return {text[at : at + width] for at in range(max(1, len(text) - width + 1))}


def _rare(texts: Iterable[bytes]) -> _Text:
    rare = frozenset(each for each in texts if len(each) >= SHORTEST and _score(each) < RARE)
    # Hyperscan tells texts apart by their last bytes; blanks, digits and punctuation are everywhere in a log
    return frozenset(each for each in rare if each[-1:].isalpha()) or rare


def _need(runs: list[bytes], how: _How) -> list[_Need]:
    if how.edges and not how.common:  # so many texts are to share what they end with
        runs = _shortened(run[1 - WIDTH :] if _pieces(run[1 - WIDTH :], False) else run for run in runs)
    texts = {_pieces(run, how.common) for run in runs}
    return [frozenset(texts)] if all(texts) else []


def _texts(op: Any, av: Any, caseless: bool, how: _How) -> list[bytes] | None:
    """Return all texts that a part of a pattern can match, when they are few."""
    if op is sre.LITERAL:
        return None if caseless and av > 127 else [chr(av).encode("utf-8", "surrogatepass")]
    if op is sre.IN:
        try:
            choice = members(av)
        except Unsupported:
            return None
        return [bytes([byte]) for byte in sorted(choice)] if len(choice) <= how.choice else None
    if op is sre.SUBPATTERN and not (av[1] or av[2]):
        return _product(av[3], caseless, how)
    if op is sre.SUBPATTERN and av[1] == re.IGNORECASE:
        return _product(av[3], True, how)
    if op is sre.BRANCH:
        every = [_product(arm, caseless, how) for arm in av[1]]
        joined = [text for texts in every for text in texts or ()]
        return joined if all(every) and len(joined) <= how.most else None
    if op in REPEATS and av[:2] == (0, 1):
        inner = _product(av[2], caseless, how)
        return None if inner is None else [b"", *inner]
    if op is sre.AT:
        ends = how.edges and av in (sre.AT_END, sre.AT_END_STRING)
        return [b"\n", b"\r"] if ends else [b""]
    return None


def _product(nodes: Any, caseless: bool, how: _How) -> list[bytes] | None:
    texts = [b""]
    for op, av in nodes:
        more = _texts(op, av, caseless, how)
        if more is None or len(texts) * len(more) > how.most:
            return None
        texts = [text + end for text in texts for end in more]
    return texts


def _shortened(runs: Iterable[bytes]) -> list[bytes]:
    """Leave out what ends with another of the texts: that one is found wherever it is."""
    kept: list[bytes] = []
    for run in sorted(set(runs), key=len):
        if not run.endswith(tuple(kept)):
            kept.append(run)
    return kept


def _edge(runs: list[bytes]) -> list[bytes]:
    """Return the texts, those that are not rare by themselves with what can follow a word."""
    weak = [run for run in runs if not _pieces(run, False)]
    ends = {run[-SHORTEST:] for run in weak}
    if not all(end.isalpha() for end in ends) or len(ends) > 2:
        return runs
    return [run for run in runs if run not in weak] + [end + after for end in sorted(ends) for after in _NO_WORD]


def _effort(need: Set[_Text]) -> float:
    return sum(SHORT ** (WIDTH - min(WIDTH, max(map(len, text)))) for text in need)


def _needs(nodes: Any, caseless: bool, how: _How) -> list[_Need]:
    """Return what every match of a part of a pattern contains: any one of the results is enough to look for."""
    found: list[_Need] = []
    runs = [b""]
    for op, av in nodes:
        if how.edges:
            runs = _shortened(runs)
            if op is sre.AT and av is sre.AT_BOUNDARY:
                runs = _edge(runs)
                continue
            few = _product(av[2], caseless, how) if op in REPEATS and av[0] == 0 and av[1] != 1 else None
            if few is not None and len(few) <= 4:
                runs += [run + each for run in runs for each in few] + [one + two for one in few for two in few]
                continue
        texts = _texts(op, av, caseless, how)
        if texts is not None and len(runs) * len(texts) <= how.most:
            runs = [run + text for run in runs for text in texts]
            continue
        if texts is not None:
            found += _need(runs, how)
            runs = texts
            continue
        inner: list[_Need] = []
        if op is sre.SUBPATTERN:
            inner = _needs(av[3], caseless or bool(av[1] & 2), how)
        elif op is sre.BRANCH:
            parts = [_needs(arm, caseless, how) for arm in av[1]]
            if all(parts):
                every: set[_Text] = set()
                for part in parts:
                    every |= min(part, key=_effort)
                inner = [frozenset(every)]
        elif op in REPEATS and av[0] > 0:
            repeated = _product(av[2], caseless, how)
            if repeated is not None and len(repeated) == 1 and av[0] <= WIDTH:
                runs = [run + repeated[0] * av[0] for run in runs]
            else:
                inner = _needs(av[2], caseless, how)
        elif op is sre.ATOMIC_GROUP:
            inner = _needs(av, caseless, how)
        found += _need(runs, how) + inner
        runs = [b""]
    return found + _need(runs, how)
