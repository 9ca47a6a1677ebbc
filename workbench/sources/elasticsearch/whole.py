"""
Turn a query into all of its lines, read in the order in which the server keeps them; they are put in order here.

That order (``_shard_doc``) is the only one that costs the server nothing, and a document as it was sent costs it less than a choice of its
fields. What a document does not say in the way that a sample of them did is asked for once more, by field: a mapping may know what the
document does not (an alias, a constant), and only the server knows the mapping.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from workbench.collector import no_collector
from workbench.errors import SourceError
from workbench.sources.contract import Deadline, SourceTimeout
from workbench.sources.elasticsearch import typed
from workbench.sources.elasticsearch.fields import Fields
from workbench.sources.elasticsearch.job import Asked, Found
from workbench.sources.elasticsearch.pages import (
    Page,
    Whole,
    from_documents,
    from_fields,
    from_typed,
    resolved,
    stamp_of,
    text_of,
)
from workbench.sources.elasticsearch.pull import KEEP, NANOS, point_in_time, shard_trouble

__all__ = ["PAGE", "whole"]

# Parts that are read at the same time: each mostly waits for the server, so their number has nothing to do with our processors. Measured with
# Elasticsearch 9.4 and 256 ranks on 2 cores that both shared: 258 thousand lines in 1.9 s with 1, 1.7 s with 2, 1.4 s with 4 (the client's own
# loop: 7.4 s; the server alone, nothing decoded: 1.1 s).
SLICES = 4
PAGE = 10_000  # lines of one answer; a server gives no more unless told otherwise
_SAMPLE = 24  # documents whose shape is looked at
_FAT = 4096  # bytes of a document above which its fields are chosen by the server: more to do for it, less to move
_MANY = 20_000  # lines above which several slices are worth their requests
_PATHS = "timed_out,_shards,pit_id,hits.hits.sort,hits.hits.fields"


class _Reading:
    def __init__(self, asked: Asked, found: Found, deadline: Deadline, most: int, page: int) -> None:
        self.asked, self.found, self.deadline, self.most, self.page = asked, found, deadline, most, page
        fields = asked.fields
        names = [*asked.wanted(found), *([fields.offset] if fields.offset else [])]
        # a field that no line has cannot be missed
        self.names = [name for name in names if found.has.get(name, 1) or name in (fields.time, fields.message)]
        self.whole = Whole()
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
            self.decoder = typed.documents(self.paths, numbers, self.asked.fields.time, sort=not self.asked.fields.offset)
        except (AttributeError, TypeError):  # one field within another
            self.decoder = None

    def _same(self, name: str, value: Any, told: Sequence[Any]) -> bool:
        if name != self.asked.fields.time:
            return text_of(value) == text_of(list(told))
        parse = datetime.fromisoformat
        stamp = stamp_of(value)
        return stamp is not None and abs((parse(stamp) - parse(str(told[0]))).total_seconds()) < 1e-3

    # pages

    def decode(self, data: bytes) -> Page:
        """Return a page of documents; raise when it is none."""
        if self.decoder is not None:
            decoder, attributes = self.decoder
            try:
                return from_typed(data, decoder.decode, attributes, sorted_by=not self.asked.fields.offset)
            except ValueError:  # a document of another shape
                pass
        return from_documents(typed.plain(data), self.asked, self.paths)

    def read(self, name: str, after: int | None, part: Mapping[str, Any], by_field: bool) -> Page:
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
        if isinstance(reply, Page):
            return reply
        return from_fields(reply, self.asked, self.names)

    def slice(self, first: str, part: Mapping[str, Any]) -> None:
        """Read one slice to its end."""
        name, after = first, None
        try:
            while not self.full:
                page = self.read(name, after, part, self.by_field)
                if not self.by_field and page.missing - self.absent:
                    other = self.read(page.pit_id or name, after, part, True)
                    with self.lock:
                        known = {each for _, each in page.missing if _more(other.column(each), page.column(each))}
                        if known:  # the mapping knows what the document does not say
                            self.by_field = True
                        self.absent |= page.missing
                    page = other if known else page
                name = page.pit_id or name
                with self.lock:
                    whole = self.whole
                    whole.note(shard_trouble(page.shards, page.timed_out))
                    whole.add(page)
                    self.full = whole.lines >= self.most
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
    if reading.errors and not got.lines:
        raise reading.errors[0]
    for error in reading.errors[:1]:
        over = isinstance(error, SourceTimeout)
        got.note("the time was over before all lines had come" if over else f"paging stopped: {error}")
    return got
