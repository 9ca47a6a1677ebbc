"""
Turn all lines of a query into columns: read in the order in which the server keeps them, and put in order here.

That order (``_shard_doc``) is the only one that costs the server nothing, and a document as it was sent costs it less than a choice of its
fields. What a document does not say in the way that a sample of them did is asked for once more, by field: a mapping may know what the
document does not (an alias, a constant), and only the server knows the mapping.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from workbench.collector import no_collector
from workbench.errors import SourceError
from workbench.sources.contract import Deadline, SourceTimeout
from workbench.sources.elasticsearch import typed
from workbench.sources.elasticsearch.fields import Fields
from workbench.sources.elasticsearch.files import Entry, Stream
from workbench.sources.elasticsearch.job import Asked, Found, Key, named
from workbench.sources.elasticsearch.pull import KEEP, NANOS, point_in_time, shard_trouble
from workbench.sources.elasticsearch.server import BadAnswer

__all__ = ["PAGE", "Whole", "resolved", "whole"]

SLICES = 2
PAGE = 10_000  # lines of one answer; a server gives no more unless told otherwise
_SAMPLE = 24  # documents whose shape is looked at
_FAT = 4096  # bytes of a document above which its fields are chosen by the server: more to do for it, less to move
_MANY = 20_000  # lines above which several slices are worth their requests
_PATHS = "timed_out,_shards,pit_id,hits.hits.sort,hits.hits.fields"


@dataclass
class _Page:
    """The lines of one answer, field by field; `missing` names what a document did not say, with its index."""

    shards: Mapping[str, Any]
    timed_out: bool
    pit_id: str
    sorts: list[int]
    columns: dict[str, list[Any]]
    missing: set[tuple[str, str]] = field(default_factory=set)


@dataclass
class Whole:
    """
    What came of a query.

    Attributes
    ----------
    columns : dict of str to list
        Field → its value in each line: texts, numbers for the offset, None where a line has none.
    ties : list of int
        Where the server keeps each line: orders lines of one time that have no offset.
    trouble : list of str
        Why it may not be all.
    """

    columns: dict[str, list[Any]] = field(default_factory=dict)
    ties: list[int] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)

    def note(self, sentence: str) -> None:
        """Add a trouble once."""
        if sentence and sentence not in self.trouble:
            self.trouble.append(sentence)

    def streams(self, asked: Asked, found: Found) -> list[Stream]:
        """Return the lines by stream, those of each in order, with the name that each one's file shall have."""
        fields = asked.fields
        nodes = [self.columns[name] for name in asked.fields.named["node"][:2] if name in self.columns]
        keys = [self.columns.get(name) or [None] * len(self.ties) for name in found.key]
        offsets = self.columns.get(fields.offset) if fields.offset else None
        stamps = self.columns.get(fields.time, [])
        by: dict[Key, list[int]] = {}
        with no_collector():
            if len(keys) == 1:  # almost always
                for at, one in enumerate(keys[0]):
                    (by.get((one,)) or by.setdefault((one,), [])).append(at)
            else:
                for at, key in enumerate(zip(*keys, strict=True) if keys else [()] * len(self.ties)):
                    by.setdefault(key, []).append(at)
            streams: dict[Key, Stream] = {}
            where: dict[Key, set[str]] = {}
            texts, ties, seconds = self.columns[fields.message], self.ties, _seconds(stamps)
            for key, places in by.items():
                entries = [
                    Entry(seconds[at], (_number(offsets[at]) if offsets else 0.0, float(ties[at])), texts[at] or "", stamps[at])
                    for at in places
                ]
                entries.sort(key=_in_order)
                streams[key] = Stream("", entries)
                where[key] = _nodes(nodes, places)
        return named(found, streams, where)


_in_order = attrgetter("time", "order")


def _nodes(columns: Sequence[Sequence[Any]], places: Sequence[int]) -> set[str]:
    seen: set[Any] = set()
    for column in columns:
        seen |= {column[at] for at in places}
        seen.discard(None)
        if seen:
            break
    return seen


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else float("inf")


def _seconds(stamps: Sequence[str]) -> list[float]:
    parse = datetime.fromisoformat
    return [parse(stamp).timestamp() for stamp in stamps]


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


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(str(each) for each in value if each is not None) if value else None
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _stamp(value: Any) -> str | None:
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


# -- the pull -------------------------------------------------------------------------------------------------------------


class _Reading:
    def __init__(self, asked: Asked, found: Found, deadline: Deadline, most: int, page: int) -> None:
        self.asked, self.found, self.deadline, self.most, self.page = asked, found, deadline, most, page
        fields = asked.fields
        names = [*asked.wanted(found), *([fields.offset] if fields.offset else [])]
        # a field that no line has cannot be missed
        self.names = [name for name in names if found.has.get(name, 1) or name in (fields.time, fields.message)]
        self.whole = Whole({name: [] for name in self.names})
        self.lock = threading.Lock()
        self.by_field = True
        self.absent: set[tuple[str, str]] = set()  # (index, field) that the server has no value for either
        self.errors: list[SourceError] = []
        self.full = False
        self.paths: dict[str, tuple[str, ...]] = {}
        self.decoder: tuple[Any, dict[str, str]] | None = None

    # what the documents look like

    def look(self) -> None:
        """Look at a few documents: where each field stands in them, and whether that is what the server says of it."""
        body: dict[str, Any] = {"size": _SAMPLE, "query": self.found.query, "track_total_hits": False, "_source": True}
        body["fields"] = _fields(self.names, self.asked.fields)
        hits = (self.asked.search(body).get("hits") or {}).get("hits") or []
        documents = [hit.get("_source") for hit in hits]
        if not hits or not all(isinstance(each, dict) for each in documents):
            return
        if sum(len(str(each)) for each in documents) > _FAT * len(hits):
            return
        numbers: list[str] = []
        for name in self.names:
            seen: Counter[tuple[str, ...]] = Counter()
            kinds = set()
            for hit, document in zip(hits, documents, strict=True):
                told = (hit.get("fields") or {}).get(name)
                path, value = resolved(document, name.removesuffix(".keyword"))
                if (value is None) != (not told) or (told and not self._same(name, value, told)):
                    return
                if value is not None:
                    seen[path] += 1
                    kinds.add(type(value))
            self.paths[name] = seen.most_common(1)[0][0] if seen else tuple(name.removesuffix(".keyword").split("."))
            if kinds == {int}:
                numbers.append(name)
        self.by_field = False
        try:
            self.decoder = typed.documents(self.paths, numbers)
        except (AttributeError, TypeError):  # one field within another
            self.decoder = None

    def _same(self, name: str, value: Any, told: Sequence[Any]) -> bool:
        if name != self.asked.fields.time:
            return _text(value) == _text(list(told))
        stamp = _stamp(value)
        return stamp is not None and abs(_seconds([stamp])[0] - _seconds([str(told[0])])[0]) < 1e-3

    # pages

    def decode(self, data: bytes) -> _Page:
        """Return the columns of a page of documents; raise when it is none."""
        if self.decoder is not None:
            try:
                return self._typed(data)
            except Exception:  # a document of another shape: looked at one by one
                pass
        return self._one_by_one(typed.plain(data))

    def _typed(self, data: bytes) -> _Page:
        decoder, attributes = self.decoder or (None, {})
        body = decoder.decode(data)  # type: ignore[union-attr]
        hits = body.hits.hits
        columns: dict[str, list[Any]] = {}
        for name in self.names:
            column = list(map(attrgetter(attributes[name]), hits))
            if None in column:
                raise ValueError(name)
            columns[name] = (
                column if name == self.asked.fields.offset or not hits or type(column[0]) is str else list(map(str, column))
            )
        if any(stamp[-1] != "Z" or len(stamp) < 20 for stamp in columns[self.asked.fields.time]):
            raise ValueError("time")
        return _Page(body.shards, body.timed_out, body.pit_id, [hit.sort[0] for hit in hits], columns)

    def _one_by_one(self, body: Any) -> _Page:
        hits = body["hits"].get("hits") or []
        fields = self.asked.fields
        page = _Page(body["_shards"], bool(body.get("timed_out")), str(body.get("pit_id") or ""), [], {})
        page.sorts = [hit["sort"][0] for hit in hits]
        if self.decoder is None and self._quick(page, [hit["_source"] for hit in hits]):
            return page
        for name in self.names:
            column = page.columns[name] = []
            path, plain = self.paths[name], name.removesuffix(".keyword")
            for hit in hits:
                document = hit.get("_source") or {}
                value: Any = document
                for key in path:
                    value = value.get(key) if isinstance(value, dict) else None
                if value is None:
                    value = resolved(document, plain)[1]
                if name == fields.time:
                    value = _stamp(value)
                elif name != fields.offset:
                    value = _text(value)
                elif not isinstance(value, (int, float)):
                    value = None
                if value is None:
                    page.missing.add((hit.get("_index", ""), name))
                column.append(value)
        return page

    def _quick(self, page: _Page, documents: list[Any]) -> bool:
        """Fill the columns when every document has the shape of the sample."""
        for name in self.names:
            column = documents
            try:
                for key in self.paths[name]:
                    column = [each[key] for each in column]
            except (KeyError, TypeError):
                return False
            kinds = set(map(type, column))
            if name == self.asked.fields.time:
                if kinds != {str} or any(stamp[-1:] != "Z" or len(stamp) < 20 for stamp in column):
                    return False
            elif name == self.asked.fields.offset:
                if not kinds <= {int, float}:
                    return False
            elif kinds == {int}:
                column = list(map(str, column))
            elif not kinds <= {str}:
                return False
            page.columns[name] = column
        return True

    def _by_field(self, body: Any) -> _Page:
        hits = (body.get("hits") or {}).get("hits") or []
        fields = self.asked.fields
        if not isinstance(body.get("_shards"), dict):
            raise BadAnswer("the answer to a search has no word of its shards", hint="is it the log server that answers there?")
        page = _Page(
            body["_shards"], bool(body.get("timed_out")), str(body.get("pit_id") or ""), [hit["sort"][0] for hit in hits], {}
        )
        for name in self.names:
            plain = name.removesuffix(".keyword")
            values = [(hit.get("fields") or {}).get(name) or (hit.get("fields") or {}).get(plain) for hit in hits]
            if name == fields.offset:
                page.columns[name] = [value[0] if value else None for value in values]
            elif name in (fields.message,):
                page.columns[name] = [_text(value) for value in values]
            else:
                page.columns[name] = [str(value[0]) if value else None for value in values]
        return page

    def read(self, name: str, after: int | None, part: Mapping[str, Any], by_field: bool) -> _Page:
        """Ask for one page."""
        body: dict[str, Any] = {
            "size": self.page, "query": self.found.query, "sort": [{"_shard_doc": "asc"}], "track_total_hits": False,
            "pit": {"id": name, "keep_alive": KEEP}, "timeout": f"{max(int(self.deadline.left() * 900), 1)}ms", **part,
            "_source": not by_field,
        }  # fmt: skip
        if after is not None:
            body["search_after"] = [after]
        params = {"allow_partial_search_results": "true"}
        if by_field:
            body["fields"] = _fields(self.names, self.asked.fields)
            params["filter_path"] = _PATHS
        server = self.asked.server
        reply = server.ask(
            "POST", "/_search", self.deadline, body=body, params=params, decode=None if by_field else self.decode
        ).body
        if isinstance(reply, _Page):
            return reply
        return self._by_field(reply)

    def slice(self, first: str, part: Mapping[str, Any]) -> None:
        """Read one slice to its end."""
        name, after = first, None
        try:
            while not self.full:
                page = self.read(name, after, part, self.by_field)
                if not self.by_field and page.missing - self.absent:
                    other = self.read(page.pit_id or name, after, part, True)
                    with self.lock:
                        known = {each for _, each in page.missing if _more(other.columns[each], page.columns[each])}
                        if known:  # the mapping knows what the document does not say
                            self.by_field = True
                        self.absent |= page.missing
                    page = other if known else page
                name = page.pit_id or name
                with self.lock:
                    whole = self.whole
                    whole.note(shard_trouble(page.shards, page.timed_out))
                    whole.ties += page.sorts
                    for each, column in page.columns.items():
                        whole.columns[each] += column
                    self.full = len(whole.ties) >= self.most
                if page.timed_out or len(page.sorts) < self.page:
                    return
                after = page.sorts[-1]
            with self.lock:
                self.whole.note(f"more than {self.most:,} lines: the rest was left out")
        except SourceError as error:
            with self.lock:
                self.errors.append(error)


def _more(told: Sequence[Any], said: Sequence[Any]) -> bool:
    return len(told) != len(said) or any(one is not None and other is None for one, other in zip(told, said, strict=True))


def _fields(names: Sequence[str], fields: Fields) -> list[Any]:
    return [{"field": each, "format": NANOS} if each == fields.time else each for each in names]


def whole(asked: Asked, found: Found, deadline: Deadline, *, most: int, slices: int = 0, page: int = PAGE) -> Whole:
    """
    Return all lines of a query.

    Parameters
    ----------
    asked, found : Asked, Found
        Whom to ask, and for which lines.
    deadline : Deadline
        What came until then is kept.
    most : int
        Lines after which no more is asked for.
    slices, page : int
        Parts that are read at the same time (0: as many as are worth it), and lines of one answer.

    Raises
    ------
    SourceError
        Nothing came at all.
    """
    reading = _Reading(asked, found, deadline, most, page)
    reading.look()
    slices = slices or (SLICES if found.total > _MANY else 1)
    with no_collector(), point_in_time(asked.server, asked.index, deadline) as first:
        parts: list[dict[str, Any]] = (
            [{"slice": {"id": number, "max": slices}} for number in range(slices)] if slices > 1 else [{}]
        )
        threads = [threading.Thread(target=reading.slice, args=(first, part), daemon=True) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()  # each request ends by itself with the deadline
    got = reading.whole
    if reading.errors and not got.ties:
        raise reading.errors[0]
    for error in reading.errors[:1]:
        over = isinstance(error, SourceTimeout)
        got.note("the time was over before all lines had come" if over else f"paging stopped: {error}")
    stamps = got.columns[asked.fields.time]
    if None in stamps:
        got.note(f"{stamps.count(None):,} lines without a time stand at the end")
        last = max((each for each in stamps if each is not None), default=datetime.now(UTC).isoformat())
        got.columns[asked.fields.time] = [each or last for each in stamps]
    return got
