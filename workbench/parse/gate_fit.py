"""
Turn the texts of the first stage into ones that Hyperscan's first look tells apart from ordinary logs.

Hyperscan puts hundreds of texts into eight groups and looks at pairs of bytes, two bytes on each time: where each pair fits some text
of a group, though never the same one, it looks a second time, which costs as much as some forty bytes. Which words of ordinary logs
meet with that depends on all texts together: so the texts are tried on ordinary logs and those that let most through are exchanged.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set

__all__ = ["Try", "fitted", "groups"]

# How Hyperscan (src/fdr of 5.4, also Vectorscan's) groups texts of at most eight bytes for a table of 13 bits: neighbours in the order
# of length and reversed text, so that the sum of count ** 1.05 / length ** 3 is least. A pair is all of its first byte and five bits of
# its second. Another version may do otherwise; the texts then find the same, a little slower.
GROUPS = 8
SEEN = 8
_LOW = 31
_PACKS = 512
_ROUNDS = 3
_EXTRA = 3.0  # passes in the sample of ordinary logs that one text more is worth
_WORST = 250  # texts that are tried for an exchange in one round
_Need = frozenset[frozenset[bytes]]
_Choice = Sequence[_Need]  # one of these is enough, if of each of its texts one piece is chosen


def _order(text: bytes) -> tuple[int, bytes]:
    text = text[-SEEN:]
    return len(text), text[::-1].upper()


def groups(texts: Iterable[bytes]) -> list[list[bytes]]:
    """Return the texts, cut to what is looked at, as they share a group."""
    ordered = sorted({text[-SEEN:].lower() for text in texts}, key=_order)
    size = len(ordered) // (_PACKS - len({len(text) for text in ordered})) + 1
    begins: list[int] = []
    for at, text in enumerate(ordered):
        if not begins or len(text) != len(ordered[begins[-1]]) or at - begins[-1] >= size:
            begins.append(at)
    total, last = len(ordered), len(begins)
    begins.append(total)
    power = [float(count) ** 1.05 for count in range(total + 1)]
    weight = [len(ordered[at]) ** -3.0 for at in begins[:-1]]
    best = [power[total - begins[at]] * weight[at] for at in range(last)] + [0.0]
    ways: list[list[int]] = []
    for _ in range(1, GROUPS):
        least, way = list(best), [last] * (last + 1)
        for at in range(last):
            begin, each = begins[at], weight[at]
            for to in range(at + 1, last):
                own = power[begins[to] - begin] * each
                if own > least[at]:
                    break
                if own + best[to] < least[at]:
                    least[at], way[at] = own + best[to], to
        best = least
        ways.append(way)
    result, at = [], 0
    for way in [*reversed(ways), [last] * (last + 1)]:
        if at < last:
            to = way[at]
            result.append(ordered[begins[at] : begins[to]])
            at = to
    return result


def _pairs(text: bytes) -> list[int | None]:
    """Return what a text says of the pair that begins so many bytes before its end; None: nothing, any pair will do."""
    size = len(text)
    told: list[int | None] = [text[-1]]
    for back in range(1, SEEN):
        second = text[size - back] & _LOW if back <= size else None
        first = text[size - 1 - back] if back < size else None
        told.append(
            None if second is None else back << 16 | second << 8 | (first if first is not None else 0) | (first is None) << 20
        )
    return told


class Try:
    """Ordinary logs, and which places of them the first look at some texts lets through."""

    def __init__(self, logs: Sequence[bytes]) -> None:
        seen: Counter[tuple[tuple[int, int, int], ...]] = Counter()
        for log in logs:
            log = log.lower()
            for end in range(SEEN, len(log) - 1):
                for odd in (0, 1):
                    seen[tuple(_told(log, end, back) for back in range(odd, SEEN, 2))] += 1
        self.places = list(seen)
        self.often = [count / len(logs) for count in seen.values()]
        self.where: dict[int, list[int]] = {}  # the places where a pair is that a text may tell
        for place, told in enumerate(self.places):
            for _, *ways in told:
                for way in set(ways):
                    self.where.setdefault(way, []).append(place)
        self.texts: list[list[bytes]] = []
        self.pairs: list[dict[int, int]] = []  # of each group: how many of its texts tell a pair
        self.open: list[set[int]] = []  # places that are let through
        self.starts: list[tuple[int, bytes]] = []
        self.costs: list[dict[bytes, float]] = []

    def take(self, texts: Iterable[bytes]) -> None:
        """Try these texts."""
        self.texts = groups(texts)
        self.starts = [_order(group[0]) for group in self.texts]
        self.pairs = [dict(Counter(pair for text in group for pair in set(_keys(text)))) for group in self.texts]
        self.costs = [{} for _ in self.texts]
        self.open = []
        for group, pairs in enumerate(self.pairs):
            slots = Counter(place for pair in pairs for place in self.where.get(pair, ()))
            free = sum(pair < 0 for pair in pairs)  # pairs of which a short text tells nothing
            enough = SEEN // 2 - free
            self.open.append({place for place, count in slots.items() if count >= enough and self._fits(group, place)})

    def passes(self) -> float:
        """Return how many places are let through."""
        return sum(self.often[place] for places in self.open for place in places)

    def group(self, text: bytes) -> int:
        """Return in which group a text is, or would be."""
        return max(bisect_right(self.starts, _order(text)) - 1, 0)

    def _fits(self, group: int, place: int, more: Set[int] = frozenset()) -> bool:
        pairs = self.pairs[group]
        for any_, way, other in self.places[place]:
            if way in pairs or other in pairs or any_ in pairs:
                continue
            if way in more or other in more or any_ in more:
                continue
            return False
        return True

    def gain(self, text: bytes) -> float:
        """Return how many places fewer are let through without a text."""
        group = self.group(text)
        pairs = self.pairs[group]
        alone = [pair for pair in set(_keys(text)) if pair >= 0 and pairs.get(pair) == 1]
        places = {place for pair in alone for place in self.where.get(pair, ())} & self.open[group]
        for pair in alone:
            del pairs[pair]
        lost = sum(self.often[place] for place in places if not self._fits(group, place))
        pairs.update(dict.fromkeys(alone, 1))
        return lost

    def cost(self, text: bytes) -> float:
        """Return how many places more are let through with a text more."""
        group = self.group(text)
        known = self.costs[group].get(text)
        if known is None:
            more = {pair for pair in _keys(text) if pair not in self.pairs[group]}
            places = {place for pair in more for place in self.where.get(pair, ())} - self.open[group]
            known = self.costs[group][text] = sum(self.often[place] for place in places if self._fits(group, place, more))
        return known

    def change(self, text: bytes, by: int) -> None:
        """Put a text into its group (1) or take it away (-1); the groups stay as they are until `take`."""
        group = self.group(text)
        pairs, open_ = self.pairs[group], self.open[group]
        touched: set[int] = set()
        for pair in set(_keys(text)):
            count = max(pairs.get(pair, 0) + by, 0)  # 0 before: of two texts with equal ends one was taken away
            if count == max(by, 0):
                touched.update(self.where.get(pair, ()))
            if count:
                pairs[pair] = count
            else:
                pairs.pop(pair, None)
        if touched:
            self.costs[group].clear()
        for place in touched:
            if self._fits(group, place):
                open_.add(place)
            else:
                open_.discard(place)


def _told(log: bytes, end: int, back: int) -> tuple[int, int, int]:
    """Return what texts may tell of the pair that begins so many bytes before `end`: nothing, all of it, or its second byte."""
    first = log[end - back]
    if not back:
        return -1, first, first
    second = back << 16 | (log[end - back + 1] & _LOW) << 8
    return -1 - back, second | first, second | 1 << 20


def _keys(text: bytes) -> list[int]:
    return [-1 - back if pair is None else pair for back, pair in enumerate(_pairs(text[-SEEN:].lower()))]


def fitted(chosen: Set[bytes], choices: Sequence[_Choice], fixed: bytes, logs: Sequence[bytes], shortest: int) -> set[bytes]:
    """
    Return texts that meet all choices as the chosen ones do and let less of ordinary logs through.

    Parameters
    ----------
    chosen : set of bytes
        Texts in small letters that meet all choices.
    choices : sequence
        What is to be met: of each choice one need, of each text of it one piece.
    fixed : bytes
        A text that is there in any case.
    logs : sequence of bytes
        Ordinary logs, alike but for their numbers.
    shortest : int
        Bytes that a text has which replaces another.
    """
    users: dict[bytes, set[int]] = {}
    for number, needs in enumerate(choices):
        for piece in {piece for need in needs for text in need for piece in text}:
            users.setdefault(piece, set()).add(number)

    def met(number: int, texts: Set[bytes]) -> bool:
        return any(all(not texts.isdisjoint(text) for text in need) for need in choices[number])

    trial = Try(logs)
    texts = set(chosen)
    trial.take({*texts, fixed})
    best, least = set(texts), trial.passes() + _EXTRA * len(texts)
    for _ in range(_ROUNDS):
        gains = {text: trial.gain(text) for text in texts}
        worst = sorted(texts, key=lambda text: (-gains[text], text))
        for text in worst:
            if all(met(number, texts - {text}) for number in users[text]):
                texts.discard(text)
                trial.change(text, -1)
        before = frozenset(texts)
        for text in worst[:_WORST]:
            gain = trial.gain(text) if text in texts else 0.0
            if gain > _EXTRA:
                _exchange(trial, texts, text, gain + _EXTRA, [choices[each] for each in users[text]], shortest)
        trial.take({*texts, fixed})
        passes = trial.passes() + _EXTRA * len(texts)
        if passes < least:
            best, least = set(texts), passes
        if texts == before:
            break
    return best


def _exchange(trial: Try, texts: set[bytes], text: bytes, most: float, choices: Sequence[_Choice], shortest: int) -> None:
    """Replace a text by others that cost less than `most`, if there are such."""
    texts.discard(text)
    trial.change(text, -1)
    added: list[bytes] = []

    def price(piece: bytes) -> float:
        return trial.cost(piece) + _EXTRA

    cost = 0.0
    for needs in sorted(choices, key=len):
        options = [_cheapest(need, texts, text, price, shortest) for need in needs]
        paid, pieces = min(options, key=lambda option: (option[0], option[1]))
        cost += paid
        if cost >= most:
            break
        for piece in pieces:
            texts.add(piece)
            trial.change(piece, 1)
            added.append(piece)
    if cost >= most:
        for piece in added:
            texts.discard(piece)
            trial.change(piece, -1)
        texts.add(text)
        trial.change(text, 1)


def _cheapest(
    need: _Need, texts: Set[bytes], without: bytes, price: Callable[[bytes], float], shortest: int
) -> tuple[float, list[bytes]]:
    paid, pieces = 0.0, list[bytes]()
    for text in sorted(need, key=min):
        if not texts.isdisjoint(text) or not text.isdisjoint(pieces):
            continue
        cost, piece = min(((price(each), each) for each in text if each != without and len(each) >= shortest), default=(1e9, b""))
        paid += cost
        pieces.append(piece)
    return paid, pieces
