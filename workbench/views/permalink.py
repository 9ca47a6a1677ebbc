"""
Turn what a view shows into the query of its URL and back: strings in, strings out, whatever the link says.

A link is written by a colleague, by an older version or by somebody hostile. What it says is taken one value at a time: a value that
cannot be understood is left out and told, never an error, never a guess. Defaults are left out of a link; times are absolute.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode

from workbench.report.text import iso

__all__ = ["Field", "choice", "moments", "parse", "query", "ranks", "read", "text", "whole", "write"]

LONGEST = 16_384  # characters of a query that are read; proxies cut at 8 to 24 thousand
MANY = 64  # keys
LAST_RANK = 2**31 - 1
_CONTROLS = re.compile("[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Field:
    """
    How one value of a view becomes text and text becomes a value.

    Attributes
    ----------
    parse : callable
        Text → value; raises ValueError for what it does not understand.
    write : callable
        Value → text. None is written as an empty text, which `read` takes for None.
    """

    parse: Callable[[str], Any]
    write: Callable[[Any], str] = str


def whole(low: int = 0, high: int = LAST_RANK) -> Field:
    """Return the field of a whole number between `low` and `high`."""

    def take(value: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,10}", value) or not low <= int(value) <= high:
            raise ValueError(f"a whole number from {low} to {high} is meant")
        return int(value)

    return Field(take)


def text(limit: int = 512) -> Field:
    """Return the field of a text of at most `limit` characters; control characters and lone surrogates have no place in a URL."""

    def tame(value: object) -> str:
        return _CONTROLS.sub(" ", str(value)).encode("utf-8", "replace").decode()[:limit]

    return Field(tame, tame)


def choice(*words: str) -> Field:
    """Return the field of one of some words."""

    def take(value: str) -> str:
        if value not in words:
            raise ValueError(f"one of {', '.join(words)} is meant")
        return value

    return Field(take)


def ranks(high: int = LAST_RANK) -> Field:
    """Return the field of a range of ranks, both ends included: ``0-255``."""

    def take(value: str) -> tuple[int, int]:
        found = re.fullmatch(r"([0-9]{1,10})-([0-9]{1,10})", value)
        if not found or not int(found[1]) <= int(found[2]) <= high:
            raise ValueError("a range of ranks is meant, such as 0-255")
        return int(found[1]), int(found[2])

    return Field(take, lambda pair: f"{int(pair[0])}-{int(pair[1])}")


def moments() -> Field:
    """Return the field of a span of time, epoch seconds inside, ``2026-05-04T11:02:03.120Z/2026-05-04T11:05:00.000Z`` in the link."""

    def take(value: str) -> tuple[float, float]:
        start, slash, end = value.partition("/")
        pair = (_seconds(start), _seconds(end))
        if not slash or not pair[0] < pair[1]:
            raise ValueError("a span of time is meant, START/END in ISO 8601")
        return pair

    return Field(take, lambda pair: f"{iso(float(pair[0])) or ''}/{iso(float(pair[1])) or ''}")


def _seconds(stamp: str) -> float:
    if len(stamp) > 40:
        raise ValueError("too long for a time")
    moment = datetime.fromisoformat(stamp)
    seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if seconds < 0 or iso(seconds) is None:
        raise ValueError("not a time that evidence can have")
    return seconds


def write(fields: Mapping[str, Field], values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> dict[str, str]:
    """
    Return the state of a view as texts; what is at its default is left out, what has no default is always there.

    Parameters
    ----------
    fields : mapping
        Name → how it is written.
    values, defaults : mapping
        Name → value now, value at the start.
    """
    defaults = defaults or {}
    state: dict[str, str] = {}
    for name, field in fields.items():
        value = values.get(name)
        written = "" if value is None else field.write(value)
        if name not in defaults or written != ("" if defaults[name] is None else field.write(defaults[name])):
            state[name] = written
    return state


def read(fields: Mapping[str, Field], state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """
    Return (values, refused): what a link says, and name → why for what it says that makes no sense.

    Names that are no fields are passed over: other parts of the page have their own. An empty text is None.
    """
    values: dict[str, Any] = {}
    refused: dict[str, str] = {}
    for name, field in fields.items():
        if name not in state:
            continue
        given = state[name]
        if not isinstance(given, str) or len(given) > LONGEST:
            refused[name] = "not a text that a link can hold"
        elif given == "":
            values[name] = None
        else:
            try:
                values[name] = field.parse(given)
            except (ValueError, OverflowError) as error:
                refused[name] = str(error)
    return values, refused


def query(state: Mapping[str, str]) -> str:
    """
    Return a state as a query, with its question mark; empty for an empty state.

    >>> query({"rank": "20", "query": "a&b"})
    '?rank=20&query=a%26b'
    """
    tame = text(LONGEST).write
    return "?" + urlencode({tame(name): tame(value) for name, value in state.items()}) if state else ""


def parse(search: str | bytes | None) -> dict[str, str]:
    """
    Return the query of a URL as a state: the first value of each name; too long, broken or empty gives what can be read.

    >>> parse("?rank=20&query=a%26b&rank=21")
    {'rank': '20', 'query': 'a&b'}
    """
    if isinstance(search, bytes):
        search = search.decode("utf-8", "replace")
    state: dict[str, str] = {}
    for name, value in parse_qsl((search or "").lstrip("?")[:LONGEST], keep_blank_values=True)[:MANY]:
        state.setdefault(name, value)
    return state
