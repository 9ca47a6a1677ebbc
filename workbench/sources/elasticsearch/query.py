"""
Turn signatures into one query that a log server can run: for each the texts of which every match must contain one.

The server finds words, not expressions: a signature becomes phrases of whole words where its field is analysed, and wildcards where it
is not. The query lets through more than the signatures match and, where the field can be searched as it should, never less.
"""

from __future__ import annotations

import re
import re._constants as sre  # type: ignore[import-not-found, unused-ignore]
import re._parser as sre_parser  # type: ignore[import-not-found, unused-ignore]
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from workbench.parse.gate import gate
from workbench.parse.ordinary import ORDINARY
from workbench.parse.patterns import REPEATS, Unsupported, arms, members

__all__ = ["Kind", "Needles", "chunks", "clauses", "job_needles", "kernel_needles", "kinds", "needles", "pieces_queries"]

SPACE = "\ue000"  # some white space: one blank to a phrase, anything to a wildcard
_MOST = 24  # spellings of one text
_SHORTEST = 3  # letters of a part of a word that is looked for by itself
_WORD = re.compile(r"\w+")
# What joins two words into one for Unicode's word breaks (`a.b`, `a:b`, `it's`, `1,5`): an edge there may lie inside a word.
_JOINS = ".:',;_’·․"
_SAFE = re.compile(rf"[^\w{re.escape(_JOINS)}]")
# A name (`nccl_ib`, `KeyError`, `mlx5`) is often joined to another by a dot or a colon; a word of a sentence is not.
_NAME = re.compile(r"[_\d]|[a-z][A-Z]|[A-Z]{2}[a-z]")
_REGEXP = 900  # characters of one regexp query; a server takes 1000 unless told otherwise
_GOOD = 13.0  # what a requirement is worth that needs no second one beside it
_SURE = 12.0  # what a phrase is worth for which no word at an edge has to be taken for whole
_MANY = 5
_WEAK = 5.0  # worth below which a signature would let ordinary lines through


@dataclass(frozen=True, order=True)
class Needle:
    """One thing that is looked for: a run of whole words, else a piece that may lie inside a word; and the run as it stands."""

    phrase: str
    part: str
    text: str


Need = frozenset[Needle]  # one of these


@dataclass(frozen=True)
class Needles:
    """
    What to ask a server for.

    `needs` holds conjunctions: a line is a candidate when for one of them it holds a needle of each member. `weak` holds more of them, of
    words that ordinary lines may have as well, each with the signatures that it stands for: worth asking for only where they are few.
    `left_out` are signatures with a spelling that has no word at all to ask for. `pieces` are the short texts of the scanner's first stage,
    for fields that keep the line as it is: few enough for a server that must try each on every line.
    """

    needs: tuple[frozenset[Need], ...] = ()
    weak: tuple[tuple[frozenset[Need], tuple[str, ...]], ...] = ()
    left_out: tuple[str, ...] = ()
    pieces: tuple[str, ...] = ()


def _spelled(op: Any, av: Any) -> list[str] | None:
    """Return all texts that a part of a pattern can match, when they are few; classes in lower case."""
    if op is sre.LITERAL:
        return [chr(av)]
    if op is sre.IN:
        if [each for each in av if each != (sre.CATEGORY, sre.CATEGORY_SPACE)] == []:
            return [SPACE]
        try:
            choice = members(av)
        except Unsupported:
            return None
        found = {chr(byte).lower() for byte in choice} if max(choice, default=128) < 128 else set()
        return sorted(found) if 0 < len(found) <= 4 else None
    if op is sre.SUBPATTERN:
        return _product(av[3])
    if op is sre.BRANCH:
        every = [_product(arm) for arm in av[1]]
        joined = [text for texts in every for text in texts or ()]
        return joined if all(every) and len(joined) <= _MOST else None
    if op in REPEATS:
        inner = _product(av[2])
        if (inner == [SPACE] and av[0] >= 1) or (inner == [" "] and av[0] >= 1):
            return [SPACE]
        if av[:2] == (0, 1):
            return None if inner is None else ["", *inner]
        if inner is not None and av[0] == av[1] and av[0] <= 4 and len(inner) == 1:
            return [inner[0] * av[0]]
        return None
    if op is sre.AT and av in (sre.AT_BOUNDARY, sre.AT_NON_BOUNDARY):
        return [""]
    return None


def _product(nodes: Any) -> list[str] | None:
    texts = [""]
    for op, av in nodes:
        more = _spelled(op, av)
        if more is None or len(texts) * len(more) > _MOST:
            return None
        texts = list(dict.fromkeys(text + end for text in texts for end in more))
    return texts


def _required(nodes: Any) -> list[frozenset[str]]:
    """Return sets of texts; of each set every match contains one."""
    found: list[frozenset[str]] = []
    runs = [""]

    def close() -> None:
        if all(run.strip() for run in runs):
            found.append(frozenset(runs))

    for op, av in nodes:
        texts = _spelled(op, av)
        if texts is not None and len(runs) * len(texts) <= _MOST:
            runs = list(dict.fromkeys(run + text for run in runs for text in texts))
            continue
        close()
        runs = [""]
        if texts is not None:
            runs = texts
            continue
        if op is sre.SUBPATTERN:
            found += _required(av[3])
        elif op is sre.BRANCH:
            every = [max(_required(arm), key=_worth, default=frozenset[str]()) for arm in av[1]]
            if all(every):
                found.append(frozenset().union(*every))
        elif op in REPEATS and av[0] > 0:
            found += _required(av[2])
        elif op is sre.ATOMIC_GROUP:
            found += _required(av)
    close()
    return found


@lru_cache(maxsize=1)
def _ordinary() -> str:
    return " ".join(re.sub(r"\d", "0", ORDINARY.lower()).split())


@lru_cache(maxsize=1)
def _vocabulary() -> frozenset[str]:
    """Return the words that the catalog's sample lines hold: a text that begins with one begins where a word does."""
    from workbench.catalog import signatures

    samples = " ".join(f"{row.example} {row.meaning}" for row in signatures().values())
    return frozenset(_WORD.findall(f"{samples} {ORDINARY}".lower()))


@lru_cache(maxsize=1)
def _everywhere() -> frozenset[str]:
    """Return the words that many layers use (`error`, `failed`, `server`): alone they tell little."""
    from workbench.catalog import signatures

    layers: dict[str, set[str]] = {}
    for row in signatures().values():
        for word in _WORD.findall(f"{row.example} {row.meaning}".lower()):
            layers.setdefault(word, set()).add(row.layer)
    return frozenset(word for word, used in layers.items() if len(used) >= _MANY)


@lru_cache(maxsize=20_000)
def _common(text: str) -> int:
    """Return how often a text stands in ordinary logs."""
    return _ordinary().count(re.sub(r"\d", "0", text.replace(SPACE, " ").lower()))


def _phrase(run: str, strict: bool) -> str:
    """
    Return the whole words of a text whose edges may lie inside a word; empty when there are none.

    Unless `strict`, a word of a sentence at an edge counts as whole. One that begins with a capital does not at the left edge, since it may
    be the end of a name (`ValueError`).
    """
    cuts = [found.start() for found in _SAFE.finditer(run)]
    begin, end = (cuts[0], cuts[-1] + 1) if cuts else (len(run), 0)
    words = _WORD.findall(run)
    if words and not strict:
        first, last = words[0], words[-1]
        if run.startswith(first) and first.islower() and first in _vocabulary() and not _NAME.search(first):
            begin = 0
        if run.endswith(last) and last.lower() in _vocabulary() and not _NAME.search(last):
            end = len(run)
    return run[begin:end].replace(SPACE, " ").strip() if begin < end else ""


def _part(run: str) -> str:
    """Return the longest piece of a text that lies within one word, whatever the words are."""
    words = _WORD.findall(run.replace(SPACE, " ").lower())
    return max(words, key=lambda word: (not _common(word), len(word)), default="") if run.isascii() else ""


@lru_cache(maxsize=20_000)
def _needle(run: str) -> tuple[float, Needle]:
    """Return what a text is worth and how to ask for it."""
    ways = [(-1e9, "", "")]
    for strict in (True, False):
        words = _WORD.findall(phrase := _phrase(run, strict))
        if words and ways[-1][0] < _SURE:
            letters = sum(len(word) * (0.5 if word.lower() in _everywhere() else 1.0) for word in words)
            ways.append((letters + 3.0 * len(words) - 3.0 - 40.0 * _common(" ".join(words)), phrase, ""))
    part = _part(run)
    if len(part) >= _SHORTEST:
        # a piece of a word costs the server more than whole words do
        letters = len(part) * (0.5 if part in _everywhere() and part in run else 1.0)
        ways.append((letters + 2.0 + 2.0 * bool(_NAME.search(part)) - 40.0 * _common(part), "", part))
    worth, phrase, part = (
        max(ways) if ways[-1][0] < _SURE or not ways[1:] else max(ways, key=lambda way: (way[0] >= _SURE, bool(way[1]), way[0]))
    )
    return worth, Needle(phrase, part, run.strip(SPACE + " "))


def _worth(runs: frozenset[str]) -> float:
    return min((_needle(run)[0] for run in runs), default=-1e9)


@lru_cache(maxsize=8)
def needles(patterns: Sequence[tuple[str, str]]) -> Needles:
    """
    Return what to ask a server for so that no match of the signatures is missed.

    Parameters
    ----------
    patterns : tuple of (id, regular expression)
        Signatures; hashable, since the result is kept.
    """
    needs: set[frozenset[Need]] = set()
    weak: dict[frozenset[Need], dict[str, None]] = {}
    left_out: dict[str, None] = {}
    for name, pattern in patterns:
        try:
            every = arms(sre_parser.parse(pattern))
        except (re.error, RecursionError, OverflowError):
            left_out[name] = None
            continue
        for arm in every:
            if need := _conjunction(arm):
                needs.add(need)
            elif need := _weak(arm):
                weak.setdefault(need, {})[name] = None
            else:
                left_out[name] = None
    kept = sorted(weak.items(), key=lambda item: _order(item[0]))
    return Needles(
        tuple(sorted(_fewest(needs), key=_order)),
        tuple((need, tuple(names)) for need, names in kept),
        tuple(left_out),
        _pieces(patterns),
    )


def _pieces(patterns: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    usable = []
    for _, pattern in patterns:
        try:
            sre_parser.parse(pattern)
        except (re.error, RecursionError, OverflowError):
            continue
        usable.append(pattern)
    pieces = set()
    for expression, caseless in gate(usable):
        if caseless and _ESCAPED.fullmatch(expression):
            piece = bytes.fromhex(expression.replace(b"\\x", b"").decode()).decode("utf-8", "replace")
            if piece.rstrip("\r\n").isprintable() and not piece.endswith("\r"):
                pieces.add(piece)
    return tuple(sorted(pieces))


_ESCAPED = re.compile(rb"(?:\\x[0-9a-f]{2})+")


def _order(need: frozenset[Need]) -> list[list[str]]:
    return sorted(sorted(each.text for each in one) for one in need)


def _conjunction(arm: Any) -> frozenset[Need]:
    """Return the fewest requirements of an alternative that together are rare; empty when all of them are not."""
    taken: list[frozenset[str]] = []
    total = 0.0
    for runs in sorted(_required(arm), key=lambda runs: (0.4 * len(runs) - min(_worth(runs), _GOOD), sorted(runs))):
        worth = _worth(runs)
        if total >= _GOOD or worth <= 0 or len(taken) == 3:
            break
        taken.append(runs)
        total += worth
    return frozenset(frozenset(_needle(run)[1] for run in runs) for runs in taken) if total >= _WEAK else frozenset()


def _weak(arm: Any) -> frozenset[Need]:
    """Return all that an alternative requires of words, however common each is: the words that its spellings share, else one of them."""
    found: set[Need] = set()
    for runs in _required(arm):
        inner = [set(_WORD.findall(_phrase(run, True))) for run in runs]
        whole = set.intersection(*inner)
        words = set.intersection(
            *({word for word in _WORD.findall(run.replace(SPACE, " ").lower()) if word.isascii()} for run in runs)
        )
        found |= {frozenset({Needle(word, "", word)}) for word in whole}
        found |= {
            frozenset({Needle("", word, word)}) for word in words - {each.lower() for each in whole} if len(word) >= _SHORTEST
        }
        if not words and len(runs) <= _MOST:
            either = frozenset(_needle(run)[1] for run in runs)
            if all(each.phrase or each.part for each in either):
                found.add(either)
    return frozenset(found)


def _fewest(needs: Iterable[frozenset[Need]]) -> set[frozenset[Need]]:
    """Leave out what requires all that another one does, and more."""
    kept: list[frozenset[Need]] = []
    single: dict[Needle, None] = {}
    for need in sorted(
        needs, key=lambda need: (len(need), sum(map(len, need)), sum(len(each.text) for one in need for each in one))
    ):
        if any(all(any(_holds(each, other) for other in single) for each in one) for one in need):
            continue
        kept.append(need)
        if len(need) == 1:
            single |= dict.fromkeys(next(iter(need)))
    return set(kept)


def _holds(long: Needle, short: Needle) -> bool:
    """Tell whether every line that holds the one holds the other, for a field of either kind."""
    if short.text.lower() not in long.text.lower():
        return False
    if short.part:
        return short.part in (long.part or long.phrase).lower()
    return bool(long.phrase) and f" {short.phrase} ".lower() in f" {long.phrase} ".lower()


_KERNEL = ("kernel", "fabric-manager")
_TELLING = ("progress", "generic", "torchelastic", "launcher", "slurm", "torch", "nccl", *_KERNEL)


def _chosen(kernel: bool, site: str | None) -> tuple[tuple[str, str], ...]:
    from workbench.catalog import signatures

    return tuple(
        (row.id, row.pattern)
        for row in signatures(site).values()
        if row.pattern
        and row.layer != "noise"
        and (row.role != "context" or row.layer in _TELLING)
        and (row.layer in _KERNEL or not kernel)
    )


def job_needles(site: str | None = None) -> Needles:
    """Return what to ask job logs for: the signatures of the catalog but those of known noise."""
    return needles(_chosen(False, site))


def kernel_needles(site: str | None = None) -> Needles:
    """Return what to ask kernel logs for."""
    return needles(_chosen(True, site))


@dataclass(frozen=True)
class Kind:
    """
    Lines of one kind: the query for them, what a person may call it, and its weight in clauses.

    `parts` are finer kinds that together are this one; `weak` names the signatures whose words ordinary lines may have as well.
    """

    query: dict[str, Any]
    text: str
    size: int = 1
    weak: tuple[str, ...] = ()
    parts: tuple[Kind, ...] = ()


def pieces_queries(found: Needles, name: str) -> list[dict[str, Any]]:
    """Return queries of which a candidate line matches at least one, for a field that holds the line as it is (`keyword`, `wildcard`)."""
    inner = [_literal(piece) for piece in found.pieces if not piece.endswith("\n")]
    last = [_literal(piece[:-1]) for piece in found.pieces if piece.endswith("\n")]
    values = [f".*({each}).*" for each in _joined(inner)] + [f".*({each})" for each in _joined(last)]
    # one expression of many texts is tried at once; so many wildcards one after the other took a hundred times as long
    return [{"regexp": {name: {"value": value, "case_insensitive": True, "flags": "NONE"}}} for value in values]


def kinds(found: Needles, name: str) -> list[Kind]:
    """
    Return the kinds of lines of which a candidate is at least one, for a field that is analysed into words.

    Parameters
    ----------
    found : Needles
        What to look for.
    name : str
        Field with the message.
    """
    result: list[Kind] = []
    alone: set[str] = set()  # pieces of words that are enough by themselves go into a few expressions
    for need in found.needs:
        parts = {each.part for one in need for each in one if not each.phrase}
        if len(need) == 1 and len(parts) == sum(map(len, need)):
            alone |= parts
        else:
            result.append(_kind(need, name))
    for joined in _joined(alone):
        single = tuple(Kind({"wildcard": {name: {"value": f"*{part}*"}}}, part) for part in joined.split("|"))
        result.append(Kind({"regexp": {name: {"value": f".*({joined}).*"}}}, single[0].text, parts=single))
    return result + [_kind(need, name, names) for need, names in found.weak]


def _kind(need: frozenset[Need], name: str, weak: tuple[str, ...] = ()) -> Kind:
    # whole words first: where no line has them the server does not look for pieces of words, which costs it a hundred times as much
    ordered = sorted((sorted(one) for one in need), key=lambda one: (not all(each.phrase for each in one), one))
    terms = [_any([_term(each, name) for each in one]) for one in ordered]
    query = terms[0] if len(terms) == 1 else {"bool": {"filter": terms}}
    text = " … ".join(one[0].text.replace(SPACE, " ") for one in ordered)
    return Kind(query, text, sum(map(len, need)), weak)


def chunks(every: Iterable[Kind], most: int = 700) -> list[list[Kind]]:
    """Return kinds in parts of at most so many clauses; a server counts them and refuses too many, depending on its memory."""
    result: list[list[Kind]] = []
    size = most
    for kind in every:
        if size + kind.size > most:
            result.append([])
            size = 0
        result[-1].append(kind)
        size += kind.size
    return result


def clauses(found: Needles, name: str, *, words: bool, most: int = 700) -> list[dict[str, Any]]:
    """Return queries of which a candidate line matches at least one; `words` says that the field is analysed into words."""
    if not words:
        return pieces_queries(found, name)
    return [_any([kind.query for kind in chunk]) for chunk in chunks(kinds(found, name), most)]


def _any(terms: list[dict[str, Any]]) -> dict[str, Any]:
    return terms[0] if len(terms) == 1 else {"bool": {"should": terms, "minimum_should_match": 1}}


def _literal(text: str) -> str:
    return re.sub(r"([^\w\s])", r"\\\1", text)


def _term(needle: Needle, name: str) -> dict[str, Any]:
    if needle.phrase:
        return {"match_phrase": {name: needle.phrase}}
    # the words of an analysed field are in lower case; to ignore case once more costs the server five times as much
    return {"wildcard": {name: {"value": f"*{needle.part}*"}}}


def _joined(parts: Iterable[str]) -> list[str]:
    joined: list[str] = []
    for part in sorted(parts):
        if joined and len(joined[-1]) + len(part) < _REGEXP:
            joined[-1] += "|" + part
        else:
            joined.append(part)
    return joined
