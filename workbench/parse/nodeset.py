"""Turn Slurm host lists such as ``gpu[001-004,7]-ib0,login1`` into node names, and node names back into host lists."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["LIMIT", "expand", "fold"]

# Slurm itself refuses lists above MAX_RANGE = 64 Ki hosts (src/common/hostlist.c); a log line must not make more of them either.
LIMIT = 65_536

_RANGE = re.compile(r"(\d+)(?:-(\d+))?$")
# node-[a-h]: no form of Slurm's own, but people write lists of lettered hosts so
_LETTERS = re.compile(r"([a-z])-([a-z])$|([A-Z])-([A-Z])$|([A-Za-z])$")
_TAIL_NUMBER = re.compile(r"(.*?)(\d+)(\D*)$", re.DOTALL)
_NOTHING = {"", "(null)", "n/a", "none", "none assigned", "unknown"}  # what Slurm prints where there is no node


def expand(text: str | None, *, limit: int = LIMIT) -> list[str]:
    """
    Return the node names of a host list, in order, duplicates kept once.

    Parameters
    ----------
    text : str or None
        A host list; brackets may stand anywhere, several times and nested, e.g. ``r[1-2]n[01-16]``.
    limit : int
        Most names to return; a longer list is cut there.

    Returns
    -------
    list of str
        Names with their zero padding. A malformed bracket is kept as written, since a name that looks odd is better than none.
    """
    if not text or text.strip().lower() in _NOTHING:
        return []
    names: dict[str, None] = {}
    for part in _split(text.strip()):
        for name in _expand_one(part, limit - len(names)):
            names.setdefault(name)
        if len(names) >= limit:
            break
    return list(names)


def _split(text: str) -> list[str]:
    """Split at commas and blanks outside brackets: ``a[1,3],b`` gives ``a[1,3]`` and ``b``."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        if letter == "[":
            depth += 1
        elif letter == "]":
            depth = max(0, depth - 1)
        elif depth == 0 and letter in ", \t\n;":
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    return [part for part in parts if part]


def _closing(text: str, opening: int) -> int:
    depth = 0
    for at in range(opening, len(text)):
        depth += (text[at] == "[") - (text[at] == "]")
        if depth == 0:
            return at
    return -1


def _expand_one(part: str, limit: int) -> list[str]:
    # one bracket after the other, left to right, so that depth of recursion never depends on the input
    heads = [""]
    rest = part
    while limit > 0:
        opening = rest.find("[")
        closing = _closing(rest, opening) if opening >= 0 else -1
        if closing < 0:
            return [head + rest for head in heads][:limit]
        choices = _choices(rest[opening + 1 : closing], limit)
        if choices is None:  # no host list after all, e.g. [::1]
            literal = rest[: closing + 1]
            heads = [head + literal for head in heads]
        else:
            before = rest[:opening]
            heads = [head + before + choice for head in heads for choice in choices[: max(1, limit // len(heads) + 1)]][:limit]
        rest = rest[closing + 1 :]
    return []


def _choices(inside: str, limit: int) -> list[str] | None:
    found: list[str] = []
    for item in _split(inside):
        span = _RANGE.match(item)
        if span:
            low, high = int(span[1]), int(span[2] or span[1])
            if high < low:
                return None
            width = len(span[1])
            found += [str(number).rjust(width, "0") for number in range(low, min(high, low + limit) + 1)]
        elif (letters := _LETTERS.match(item)) and "-" in inside:
            first, last = letters[1] or letters[3] or letters[5], letters[2] or letters[4] or letters[5]
            if last < first:
                return None
            found += [chr(code) for code in range(ord(first), ord(last) + 1)]
        elif "[" in item and item.count("[") == item.count("]") and item.count("[") <= 4:
            found += _expand_one(item, limit)
        else:
            return None
        if len(found) >= limit:
            break
    return found or None


def fold(names: Iterable[str]) -> str:
    """
    Return the shortest usual host list of some node names: ``gpu001 gpu002 gpu007`` becomes ``gpu[001-002,007]``.

    Only the last number of a name is folded, as `scontrol show hostlist` does; the order of first appearance of each
    family of names is kept, numbers are sorted, duplicates go.
    """
    families: dict[tuple[str, str, int], set[int]] = {}
    order: list[tuple[str, str, int] | str] = []
    for name in dict.fromkeys(names):
        found = _TAIL_NUMBER.match(name)
        # 18 digits: longer ones are no counters; brackets would be read as ranges again
        if not found or len(found[2]) > 18 or "[" in name or "]" in name:
            order.append(name)
            continue
        head, digits, tail = found.groups()
        # numbers without leading zero of any length fold together (9-10); padded ones only with their width
        width = len(digits) if digits[0] == "0" and len(digits) > 1 else 0
        if not width and (head, tail, len(digits)) in families:
            width = len(digits)  # 010 after 001: the same padded family
        key = (head, tail, width)
        if key not in families:
            families[key] = set()
            order.append(key)
        families[key].add(int(digits))
    parts = []
    for entry in order:
        if isinstance(entry, str):
            parts.append(entry)
            continue
        head, tail, width = entry
        spans = _spans(sorted(families[entry]))
        written = [_written(low, high, width) for low, high in spans]
        single = len(spans) == 1 and spans[0][0] == spans[0][1]
        parts.append(f"{head}{written[0]}{tail}" if single else f"{head}[{','.join(written)}]{tail}")
    return ",".join(parts)


def _spans(numbers: list[int]) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return spans


def _written(low: int, high: int, width: int) -> str:
    first = str(low).rjust(width, "0")
    return first if low == high else f"{first}-{str(high).rjust(width, '0')}"
