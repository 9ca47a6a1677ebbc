"""Turn answers full of documents into pages whose fields are read as columns, and pages into streams of lines in order."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import repeat
from operator import attrgetter
from typing import Any

from workbench.collector import no_collector
from workbench.sources.elasticsearch.files import Entry, Stream
from workbench.sources.elasticsearch.job import Asked, Found, Key, named
from workbench.sources.elasticsearch.server import BadAnswer

__all__ = ["Page", "Whole", "from_documents", "from_fields", "from_typed", "resolved", "stamp_of", "text_of"]


@dataclass
class Page:
    """
    The lines of one answer.

    `sorts` says where the server keeps each line (of a typed page only the last counts, unless it orders them); `missing` names what a
    document did not say, with its index. A column is a list as long as the page: texts (or numbers, for a field that is one), None where a
    line has no value; the time is a text, of a typed page a datetime.
    """

    shards: Mapping[str, Any]
    timed_out: bool
    pit_id: str
    sorts: list[int]
    columns: dict[str, list[Any]] = field(default_factory=dict)
    missing: set[tuple[str, str]] = field(default_factory=set)
    hits: Sequence[Any] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)

    def column(self, name: str) -> list[Any]:
        """Return the values of a field."""
        if name in self.attributes:
            return list(map(attrgetter(self.attributes[name]), self.hits))
        return self.columns.get(name) or [None] * len(self.sorts)


@dataclass
class Whole:
    """What came of a query: its pages, and in sentences why they may not be all."""

    pages: list[Page] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    lines: int = 0

    def note(self, sentence: str) -> None:
        """Add a trouble once."""
        if sentence and sentence not in self.trouble:
            self.trouble.append(sentence)

    def add(self, page: Page) -> None:
        """Add a page."""
        self.pages.append(page)
        self.lines += len(page.sorts)

    def streams(self, asked: Asked, found: Found) -> list[Stream]:
        """Return the lines by stream, those of each in order, with the name that each one's file shall have."""
        fields = asked.fields
        lines: defaultdict[tuple[Any, ...], list[Entry]] = defaultdict(list)
        nodes: defaultdict[tuple[Any, ...], set[str | None]] = defaultdict(set)
        untimed = 0
        with no_collector():
            for page in self.pages:
                times, stamps = _moments(page.column(fields.time))
                untimed += times.count(_NEVER)
                offsets = page.column(fields.offset) if fields.offset else repeat(0.0)
                if fields.offset and None in page.columns.get(fields.offset, ()):
                    offsets = [_NEVER if each is None else each for each in page.column(fields.offset)]
                entries = map(Entry, times, zip(offsets, page.sorts, strict=False), _texts(page.column(fields.message)), stamps)
                keys = list(zip(*(page.column(name) for name in found.key), strict=True)) or [()] * len(page.sorts)
                for key, entry in zip(keys, entries, strict=True):
                    lines[key].append(entry)
                for key, node in set(zip(keys, _first(page, fields.named["node"][:2]), strict=True)):
                    nodes[key].add(node)
            streams: dict[Key, Stream] = {}
            where: dict[Key, set[str]] = {}
            for raw, some in lines.items():
                key = tuple(map(text_of, raw))
                streams.setdefault(key, Stream("")).entries.extend(some)
                where.setdefault(key, set()).update(text for node in nodes[raw] if (text := text_of(node)))
            newest = max((each.time for some in lines.values() for each in some if each.time != _NEVER), default=0.0)
            for stream in streams.values():
                stream.entries.sort(key=_in_order)
                if untimed:
                    for each in stream.entries:
                        each.time = newest if each.time == _NEVER else each.time
        if untimed:
            self.note(f"{untimed:,} lines without a time stand at the end of their logs")
        return named(found, streams, where)


_NEVER = float("inf")
_in_order = attrgetter("time", "order")


def _texts(column: list[Any]) -> Sequence[str]:
    return ["" if each is None else each for each in column] if None in column else column


def _first(page: Page, names: Sequence[str]) -> list[Any]:
    """Return for each line the first of some fields that it has."""
    columns = [page.column(name) for name in names]
    if not columns:
        return [None] * len(page.sorts)
    if len(columns) == 1 or None not in columns[0]:
        return columns[0]
    return [two if one is None else one for one, two in zip(*columns, strict=True)]


def _moments(column: list[Any]) -> tuple[list[float], Any]:
    """Return seconds, and the server's spelling where it is at hand."""
    if column and isinstance(column[0], datetime):
        return [each.timestamp() for each in column], repeat("")
    parse = datetime.fromisoformat
    return [_NEVER if each is None else parse(each).timestamp() for each in column], [each or "" for each in column]


# -- one document ---------------------------------------------------------------------------------------------------------


def resolved(document: Any, name: str) -> tuple[tuple[str, ...], Any]:
    """Return the keys under which a document has a field, and its value; `a.b.c` may be written in objects, with dots, or both."""
    if not isinstance(document, dict):
        return (), None
    if document.get(name) is not None:
        return (name,), document[name]
    parts = name.split(".")
    for at in range(1, len(parts)):
        head = ".".join(parts[:at])
        if head in document:
            path, value = resolved(document[head], ".".join(parts[at:]))
            if value is not None:
                return (head, *path), value
    return (), None


def text_of(value: Any) -> str | None:
    """Return a value as the server would write it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(str(each) for each in value if each is not None) if value else None
    return str(value).lower() if isinstance(value, bool) else str(value)


def stamp_of(value: Any) -> str | None:
    """Return a time as the server writes it in its answers, or None when it takes its mapping to read it."""
    if isinstance(value, list):
        value = value[0] if len(value) == 1 else None
    if isinstance(value, str) and len(value) > 18:
        try:
            parsed = datetime.fromisoformat(value)
        except ValueError:
            return None
        return value if parsed.tzinfo is not None else f"{value}Z"
    return None


# -- one answer -----------------------------------------------------------------------------------------------------------

# the end of an answer: `,"sort":[4294967296]}]}}`
_LAST_SORT = re.compile(rb'"sort":\s*\[\s*(\d+)\s*\]\s*\}\s*\]\s*\}\s*\}\s*$')


def from_typed(data: bytes, decode: Callable[[bytes], Any], attributes: Mapping[str, str], *, sorted_by: bool) -> Page:
    """
    Return the page of an answer whose documents all have the fields under the expected keys.

    Raises
    ------
    ValueError
        They do not, or where the last one stands cannot be told.
    """
    body = decode(data)
    hits = body.hits.hits
    if sorted_by:
        sorts = [hit.sort[0] for hit in hits]
    else:
        sorts = [0] * len(hits)
        if hits:
            last = _LAST_SORT.search(data, max(len(data) - 100, 0))
            if last is None:
                raise ValueError("where the last document stands is not told at the end")
            sorts[-1] = int(last[1])
    return Page(body.shards, body.timed_out, body.pit_id, sorts, hits=hits, attributes=attributes)


def from_documents(body: Any, asked: Asked, paths: Mapping[str, Sequence[str]]) -> Page:
    """Return the page of a decoded answer: at once when each document has the fields under the expected keys, else looked at one by one."""
    hits = body["hits"].get("hits") or []
    fields = asked.fields
    page = Page(body["_shards"], bool(body.get("timed_out")), str(body.get("pit_id") or ""), [hit["sort"][0] for hit in hits])
    documents = [hit.get("_source") or {} for hit in hits]
    if all(_quick(page, documents, name, path, asked) for name, path in paths.items()):
        return page
    page.columns = {}
    for name, path in paths.items():
        column = page.columns[name] = []
        plain = name.removesuffix(".keyword")
        for hit, document in zip(hits, documents, strict=True):
            value: Any = document
            for key in path:
                value = value.get(key) if isinstance(value, dict) else None
            if value is None:
                value = resolved(document, plain)[1]
            if name == fields.time:
                value = stamp_of(value)
            elif name != fields.offset:
                value = text_of(value)
            elif not isinstance(value, (int, float)):
                value = None
            if value is None:
                page.missing.add((hit.get("_index", ""), name))
            column.append(value)
    return page


def _quick(page: Page, documents: list[Any], name: str, path: Sequence[str], asked: Asked) -> bool:
    """Fill a column when every document has the field under the expected keys."""
    column = documents
    try:
        for key in path:
            column = [each[key] for each in column]
    except (KeyError, TypeError):
        return False
    kinds = set(map(type, column))
    if name == asked.fields.time:
        if not kinds <= {str} or not all(len(stamp) >= 20 and stamp[10] == "T" and stamp[-1] == "Z" for stamp in column):
            return False
    elif name == asked.fields.offset:
        if not kinds <= {int, float}:
            return False
    elif not kinds <= {str} and (name == asked.fields.message or kinds != {int}):
        return False
    page.columns[name] = column
    return True


def from_fields(body: Any, asked: Asked, names: Sequence[str]) -> Page:
    """Return the page of a decoded answer in which the server chose the fields."""
    fields = asked.fields
    if not isinstance(body.get("_shards"), dict):
        raise BadAnswer("the answer to a search has no word of its shards", hint="is it the log server that answers there?")
    hits = (body.get("hits") or {}).get("hits") or []
    page = Page(body["_shards"], bool(body.get("timed_out")), str(body.get("pit_id") or ""), [hit["sort"][0] for hit in hits])
    for name in names:
        plain = name.removesuffix(".keyword")
        values = [(hit.get("fields") or {}).get(name) or (hit.get("fields") or {}).get(plain) for hit in hits]
        if name == fields.message:
            page.columns[name] = [text_of(value) for value in values]
        elif name == fields.offset:
            page.columns[name] = [value[0] if value else None for value in values]
        else:
            page.columns[name] = [str(value[0]) if value else None for value in values]
    return page
