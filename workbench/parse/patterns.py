"""Turn a Python regular expression into one that a block scanner can run over many lines at once, and tell how specific it is."""

from __future__ import annotations

import re

# The parser of `re` itself: the only way to rewrite a pattern exactly instead of by guessing at its text. Present since 3.11.
import re._constants as sre  # type: ignore[import-not-found, unused-ignore]
import re._parser as sre_parser  # type: ignore[import-not-found, unused-ignore]
from typing import Any

__all__ = ["REPEATS", "WORD", "Unsupported", "arms", "emit", "escaped", "for_blocks", "needles", "members"]

_SPACE = frozenset(b" \t\f\v")
_DIGIT = frozenset(b"0123456789")
WORD = frozenset(b"0123456789_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_HIGH = frozenset(range(128, 256))
_ALL = frozenset(range(256)) - {10, 13}  # a carriage return ends a segment, as a line feed ends a line
_CATEGORIES = {
    sre.CATEGORY_SPACE: _SPACE,
    sre.CATEGORY_NOT_SPACE: _ALL - _SPACE,
    sre.CATEGORY_DIGIT: _DIGIT,
    sre.CATEGORY_NOT_DIGIT: _ALL - _DIGIT,
    sre.CATEGORY_WORD: WORD | _HIGH,  # letters outside ASCII are word characters to `re`
    sre.CATEGORY_NOT_WORD: _ALL - WORD,
}
REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT)
_Nodes = list[tuple[Any, Any]]


class Unsupported(ValueError):
    """The pattern uses something that no automaton can do (look-around, backreference) or matches the empty text."""


def for_blocks(pattern: str) -> tuple[bytes, bool]:
    """
    Return the pattern as bytes for a multi-line block scan, and whether letter case is ignored.

    A line that `re.search` finds the pattern in is a line in which the result ends a match, and no match reaches over a line
    end. What does not decide whether a line matches (captures, a trailing ``.*``) is dropped, since a scanner that reports every
    end of a match would report each byte of it. A carriage return counts as a line edge for ``^`` and ``$``.

    Raises
    ------
    Unsupported
        The pattern is no regular language, is malformed, or matches an empty line.
    """
    try:
        tree = sre_parser.parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise Unsupported(str(error)) from None
    nodes = _trim_end(_trim_start(_listed(tree)))
    if not nodes or tree.getwidth()[0] == 0:
        raise Unsupported("it matches an empty line")
    return _emit(nodes).encode("latin-1"), bool(tree.state.flags & re.IGNORECASE)


def needles(pattern: str) -> tuple[str, ...]:
    """
    Return texts of which every match of the pattern contains at least one, as long as they can be told; none when a match need contain none.

    The length of the shortest is how specific the pattern is.
    """
    try:
        return _needles(_listed(sre_parser.parse(pattern)))
    except (re.error, RecursionError, OverflowError):
        return ()


def arms(tree: Any) -> list[_Nodes]:
    """Return the alternatives of a parsed pattern, each trimmed of what does not decide whether a line matches."""
    nodes = _trim_end(_trim_start(_flat(_listed(tree))))
    if len(nodes) == 1 and nodes[0][0] is sre.BRANCH:
        return [arm for each in nodes[0][1][1] for arm in arms(each)]
    return [nodes]


def emit(nodes: _Nodes) -> bytes:
    """Return parsed nodes as an expression for a block scan."""
    return _emit(nodes).encode("latin-1")


def escaped(text: bytes) -> bytes:
    """Return the expression that matches exactly these bytes."""
    return b"".join(b"\\x%02x" % byte for byte in text)


def _flat(nodes: _Nodes) -> _Nodes:
    flat: _Nodes = []
    for op, av in nodes:
        if op is sre.SUBPATTERN and not (av[1] or av[2]):
            flat += _flat(_listed(av[3]))
        else:
            flat.append((op, av))
    return flat


def _listed(tree: Any) -> _Nodes:
    return [(op, av) for op, av in tree]


def _trim_start(nodes: _Nodes) -> _Nodes:
    while nodes:
        op, av = nodes[0]
        if op in REPEATS and av[0] == 0:
            nodes = nodes[1:]
        elif op is sre.AT and av in (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING) and len(nodes) > 1 and _any_run(nodes[1]):
            nodes = nodes[2:]
        else:
            break
    return nodes


def _any_run(node: tuple[Any, Any]) -> bool:
    op, av = node
    return op in REPEATS and av[0] == 0 and av[1] is sre.MAXREPEAT and _listed(av[2]) == [(sre.ANY, None)]


def _trim_end(nodes: _Nodes) -> _Nodes:
    nodes = list(nodes)
    while nodes:
        op, av = nodes[-1]
        if op in REPEATS and av[0] == 0:
            nodes.pop()
        elif op in REPEATS:
            low, _, inner = av
            if low == 1:
                nodes[-1:] = _trim_end(_listed(inner))
            else:
                nodes[-1] = (op, (low, low, inner))
            break
        elif op is sre.SUBPATTERN:
            group, add, remove, inner = av
            kept = _trim_end(_listed(inner))
            if kept:
                nodes[-1] = (op, (group, add, remove, kept))
                break
            nodes.pop()
        elif op is sre.BRANCH:
            arms = [_trim_end(_listed(arm)) for arm in av[1]]
            if all(arms):
                nodes[-1] = (op, (None, arms))
                break
            nodes.pop()
        elif op is sre.AT and av in (sre.AT_END, sre.AT_END_STRING) and len(nodes) > 1 and _any_run(nodes[-2]):
            nodes.pop()
        else:
            break
    return nodes


def _emit(nodes: Any) -> str:
    return "".join(_one(op, av) for op, av in nodes)


def _one(op: Any, av: Any) -> str:
    if op is sre.LITERAL:
        if av in (10, 13):
            raise Unsupported("it matches a line end")
        return _text(chr(av))
    if op is sre.NOT_LITERAL:
        return _class(_ALL - {av})
    if op is sre.ANY:
        return r"[^\n\r]"
    if op is sre.IN:
        return _class(members(av))
    if op is sre.BRANCH:
        return "(?:" + "|".join(_emit(arm) for arm in av[1]) + ")"
    if op is sre.SUBPATTERN:
        _, add, _, inner = av
        return ("(?i:" if add & re.IGNORECASE else "(?:") + _emit(inner) + ")"
    if op in REPEATS:
        low, high, inner = av
        top = "" if high is sre.MAXREPEAT else str(high)
        return f"(?:{_emit(inner)})" + {(0, ""): "*", (1, ""): "+", (0, "1"): "?"}.get((low, top), f"{{{low},{top}}}")
    if op is sre.ATOMIC_GROUP:
        return "(?:" + _emit(av) + ")"
    if op is sre.AT:
        if av in (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING):
            return r"(?:^|\r)"
        if av in (sre.AT_END, sre.AT_END_STRING):
            return r"(?:$|\r)"
        if av is sre.AT_BOUNDARY:
            return r"\b"
        if av is sre.AT_NON_BOUNDARY:
            return r"\B"
    raise Unsupported(f"it uses {str(op).lower().replace('_', ' ')}")


def _text(char: str) -> str:
    raw = char.encode("utf-8", "surrogatepass")
    escaped = "".join(chr(byte) if chr(byte).isalnum() and byte < 128 else f"\\x{byte:02x}" for byte in raw)
    return escaped if len(raw) == 1 else f"(?:{escaped})"


def members(items: Any) -> frozenset[int]:
    """Return the bytes that a class of characters matches in a block scan."""
    negate = False
    found: set[int] = set()
    for op, av in items:
        if op is sre.NEGATE:
            negate = True
        elif op is sre.LITERAL:
            found |= {av} if av < 128 else set(_HIGH) if not negate else set()
        elif op is sre.RANGE:
            found |= set(range(av[0], min(av[1], 127) + 1)) | (set(_HIGH) if av[1] > 127 and not negate else set())
        else:
            found |= _CATEGORIES[av]
    return frozenset(_ALL - found if negate else found - {10, 13})


def _class(members: frozenset[int]) -> str:
    if not members:
        raise Unsupported("it matches only a line end")
    spans: list[list[int]] = []
    for byte in sorted(members):
        if spans and spans[-1][1] == byte - 1:
            spans[-1][1] = byte
        else:
            spans.append([byte, byte])
    return "[" + "".join(f"\\x{low:02x}" if low == high else f"\\x{low:02x}-\\x{high:02x}" for low, high in spans) + "]"


def _needles(nodes: Any) -> tuple[str, ...]:
    best: tuple[str, ...] = ()
    run = ""
    for op, av in nodes:
        if op is sre.LITERAL:
            run += chr(av)
            continue
        inner: tuple[str, ...] = ()
        if op is sre.SUBPATTERN:
            if all(each is sre.LITERAL for each, _ in av[3]):
                run += "".join(chr(value) for _, value in av[3])
                continue
            inner = _needles(av[3])
        elif op is sre.BRANCH:
            each_arm = [_needles(arm) for arm in av[1]]
            inner = tuple(dict.fromkeys(text for arm in each_arm for text in arm)) if all(each_arm) else ()
        elif op in REPEATS and av[0] > 0:
            inner = _needles(av[2])
        elif op is sre.AT:
            continue
        best = max(best, (run,) if run else (), inner, key=_surest)
        run = ""
    return max(best, (run,) if run else (), key=_surest)


def _surest(texts: tuple[str, ...]) -> int:
    return min(map(len, texts), default=0)
