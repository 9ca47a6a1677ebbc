"""
Turn the logs of a large job into the lines that matter, chosen by the server: candidates, what stands around them, begins and ends.

Of a terabyte only these lines travel. The candidates are looked at here once more, with the expressions themselves, before anything is asked
for around them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from workbench.catalog import signatures
from workbench.errors import SourceError
from workbench.sources.contract import SourceTimeout
from workbench.sources.elasticsearch.files import Entry, Stream
from workbench.sources.elasticsearch.job import Asked, Found, Key, all_of, any_of, entry_of, key_of, named, note_node
from workbench.sources.elasticsearch.pull import Row, page_rows, pull, row_of, shard_trouble, sort_of
from workbench.sources.elasticsearch.query import Needles, clauses
from workbench.sources.elasticsearch.server import BadAnswer
from workbench.sources.files import scanner

__all__ = ["pushed"]

BEFORE, AFTER = 40, 20  # lines around a first failure
_AROUND = 48  # streams whose first failure is looked around
_EDGE_LINES = 120_000  # lines of begins and ends in all
_BUCKETS = 250  # streams of one page of an aggregation
_AT_ONCE = 3  # queries that run at the same time
_LARGE = 1000  # streams
_EARLIEST = 5000
_FLOOD = 8  # candidate lines of one stream that are kept, first and last, when there are too many in all


def pushed(asked: Asked, found: Found, needles: Needles, *, most: int) -> tuple[list[Stream], list[str], str]:
    """
    Return the streams of a job with the lines that matter, what was wrong on the way, and what was chosen of too many.

    Parameters
    ----------
    asked, found : Asked, Found
        Whom to ask, and for which lines.
    needles : Needles
        What every match of a signature holds.
    most : int
        Lines that are fetched at most.
    """
    push = _Push(asked, found, most)
    # begins and ends first: when the time runs out they tell more than half of the candidates do
    for step in (push.edges, lambda: push.candidates(needles), push.around):
        try:
            step()
        except SourceTimeout:
            push.note("the time was over before all that was asked for had come")
            break
        except SourceError as error:
            if not push.streams:
                raise
            push.note(str(error))
    return named(found, push.streams, push.nodes), push.trouble, push.remark


class _Push:
    def __init__(self, asked: Asked, found: Found, most: int) -> None:
        self.asked, self.found, self.most = asked, found, most
        self.streams: dict[Key, Stream] = {}
        self.nodes: dict[Key, set[str]] = {}
        self.trouble: list[str] = []
        self.remark = ""
        self.failures: list[tuple[float, Key, Row]] = []

    def note(self, sentence: str) -> None:
        if sentence and sentence not in self.trouble:
            self.trouble.append(sentence)

    def take(self, rows: Sequence[Row], *, key: Key | None = None, run: bool = False) -> None:
        """Add rows to their streams; with `run` they are one after the other, with nothing missing between them."""
        by: dict[Key, list[Entry]] = {}
        for row in rows:
            where = key if key is not None else key_of(row, self.found)
            by.setdefault(where, []).append(entry_of(self.asked, row))
            note_node(self.asked, row, self.nodes.setdefault(where, set()))
        for where, entries in by.items():
            stream = self.streams.setdefault(where, Stream(""))
            if run:
                stream.add_run(entries)
            else:
                stream.joined = stream.joined or set()
                stream.entries += entries

    # -- how each stream begins and ends --------------------------------------------------------------------------------

    def _hits(self, size: int, descending: bool) -> dict[str, Any]:
        fields = self.asked.fields
        wanted = self.asked.wanted(self.found)
        return {
            "top_hits": {
                "size": size, "sort": sort_of(fields, descending=descending), "_source": False, "seq_no_primary_term": True,
                "fields": [{"field": each, "format": _NANOS} if each == fields.time else each for each in wanted],
            }
        }  # fmt: skip

    def _buckets(self, query: Mapping[str, Any], aggs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield one bucket for each stream, page by page."""
        sources = [{f"k{at}": {"terms": {"field": name, "missing_bucket": True}}} for at, name in enumerate(self.found.key)]
        if not sources:
            body = self.asked.search({"size": 0, "query": query, "track_total_hits": True, "aggs": aggs})
            self.note(shard_trouble(body["_shards"], bool(body.get("timed_out"))))
            yield {"key": {}, "doc_count": int(body["hits"]["total"]["value"]), **(body.get("aggregations") or {})}
            return
        after = None
        while True:
            composite: dict[str, Any] = {"size": _BUCKETS, "sources": sources} | ({"after": after} if after else {})
            body = self.asked.search(
                {
                    "size": 0,
                    "query": query,
                    "track_total_hits": False,
                    "aggs": {"streams": {"composite": composite, "aggs": aggs}},
                },
                paths="timed_out,_shards,aggregations.streams.after_key,aggregations.streams.buckets.key,"
                "aggregations.streams.buckets.doc_count,aggregations.streams.buckets.*.hits.hits",
            )
            self.note(shard_trouble(body["_shards"], bool(body.get("timed_out"))))
            page = (body.get("aggregations") or {}).get("streams") or {}
            yield from page.get("buckets") or ()
            after = page.get("after_key")
            if not after or len(page.get("buckets") or ()) < _BUCKETS:
                return

    def _key(self, bucket: Mapping[str, Any]) -> Key:
        return tuple(None if (value := bucket["key"].get(f"k{at}")) is None else str(value) for at in range(len(self.found.key)))

    def edges(self) -> None:
        """First and last lines of each stream, and how many it has."""
        streams = self.asked.streams(self.found)
        each = max(6, min(40, _EDGE_LINES // max(streams, 1)))
        first = max(each // 3, 2)
        aggs = {"first": self._hits(first, False), "last": self._hits(each - first, True)}
        for bucket in self._buckets(self.found.query, aggs):
            key = self._key(bucket)
            for name in ("first", "last"):
                rows = _rows(bucket.get(name))
                self.take(rows[::-1] if name == "last" else rows, key=key, run=True)
            self.streams[key].total = bucket["doc_count"]

    # -- the lines that may match -----------------------------------------------------------------------------------------

    def candidates(self, needles: Needles) -> None:
        """Fetch the lines that may match a signature; of too many the first and last of each stream."""
        fields = self.asked.fields
        if not fields.searchable:
            self.note(f"the field {fields.message} cannot be searched: only begins and ends of the logs were fetched")
            return
        queries = clauses(needles, fields.message, words=fields.words)
        room = max(self.most - sum(len(stream.entries) for stream in self.streams.values()), 1000)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            jobs = [pool.submit(self._fetched, query, room // len(queries)) for query in queries]
            errors = []
            for job in jobs:
                try:
                    self.matched(job.result())
                except SourceError as error:
                    errors.append(error)
        if errors:
            raise errors[0]

    def _fetched(self, query: dict[str, Any], room: int) -> list[Row]:
        """Return the lines of one of the queries; of too many the first and last of each stream."""
        asked, narrowed = self.asked, all_of(self.found.query, query)
        large = len(self.streams) >= _LARGE
        try:
            # The ranks of a very large job all say the same when it ends, and how each ends has come already: the first to say it count.
            got = pull(
                asked.server, asked.index, narrowed, asked.fields, asked.wanted(self.found), asked.deadline,
                most=min(room, _EARLIEST) if large else room, slices=1, ids=True, packed=True,
            )  # fmt: skip
        except BadAnswer as error:
            halves = _halves(query)
            if not halves or not any(word in f"{error} {error.reason}" for word in ("clause", "too_many", "too complex")):
                raise
            return [row for half in halves for row in self._fetched(half, room // 2)]
        if large and got.cut_at is not None:
            self.remark = f"of the lines that look like failures the first {_EARLIEST:,} of each kind"
            return got.rows
        if got.cut_at is None:
            for each in got.trouble:
                self.note(each)
            return got.rows
        self.note(f"more than {room:,} lines look like failures: of each stream the first and last {_FLOOD} were fetched")
        aggs = {"first": self._hits(_FLOOD, False), "last": self._hits(_FLOOD, True)}
        return [row for bucket in self._buckets(narrowed, aggs) for name in ("first", "last") for row in _rows(bucket.get(name))]

    def matched(self, rows: Sequence[Row]) -> None:
        """Keep the lines that do match a signature, and note the first failure of each stream."""
        if not rows:
            return
        name = self.asked.fields.message
        texts = [" ".join(str(part) for part in row.fields.get(name) or ()).replace("\n", " ").replace("\r", " ") for row in rows]
        lines, _ = scanner().lines("\n".join(texts).encode("utf-8", "replace"))
        known = signatures()
        if len(lines) != len(rows):  # a control character that ends a line: keep all of them
            self.take(rows)
            return
        kept = [(row, line.hits) for row, line in zip(rows, lines, strict=True) if line.hits]
        self.take([row for row, _ in kept])
        first: dict[Key, tuple[tuple[int, Any], Row]] = {}
        for row, hits in kept:
            role = min((_ROLES.get(known[each].role, 3) for each in hits if known[each].layer != "noise"), default=3)
            if role > 1:
                continue
            key = key_of(row, self.found)
            mine = (role, row.sort[0])
            if key not in first or mine < first[key][0]:
                first[key] = (mine, row)
        self.failures += [(mine[1], key, row) for key, (mine, row) in first.items()]

    # -- what stands around the first failures ------------------------------------------------------------------------------

    def around(self) -> None:
        """Fetch the lines before and after the first failures."""
        best: dict[Key, tuple[float, Row]] = {}
        for moment, key, row in sorted(self.failures, key=lambda each: each[0]):
            best.setdefault(key, (moment, row))
        chosen = sorted(best.items(), key=lambda item: item[1][0])[:_AROUND]
        if not chosen:
            return
        bodies: list[dict[str, Any]] = []
        for key, (_, row) in chosen:
            bodies += [self._near(key, row, size, before) for size, before in ((BEFORE, True), (AFTER, False))]
        for at in range(0, len(bodies), 32):
            part = bodies[at : at + 32]
            header = {"index": self.asked.index, "ignore_unavailable": True, "allow_no_indices": True}
            lines = [each for body in part for each in (header, body)]
            reply = self.asked.server.ask(
                "POST", "/_msearch", self.asked.deadline, body=lines, params={"max_concurrent_searches": "4"}, packed=True
            )
            for number, answer in enumerate(reply.body.get("responses") or (), at):
                if "error" in answer:
                    self.note(f"around a failure: {(answer['error'] or {}).get('reason', 'no answer')}")
                    continue
                rows, shards, timed_out, _ = page_rows(answer)
                self.note(shard_trouble(shards, timed_out))
                self.take(rows[::-1] if number % 2 == 0 else rows, key=chosen[number // 2][0], run=True)

    def _near(self, key: Key, row: Row, size: int, before: bool) -> dict[str, Any]:
        fields = self.asked.fields
        same = [
            {"term": {name: value}} if value is not None else {"bool": {"must_not": [{"exists": {"field": name}}]}}
            for name, value in zip(self.found.key, key, strict=True)
        ]
        moment = row.sort[0]
        body: dict[str, Any] = {
            "size": size, "track_total_hits": False, "_source": False, "seq_no_primary_term": True, "sort": sort_of(fields, descending=before),
            "query": all_of(self.found.query, *same),
            "fields": [
                {"field": each, "format": _NANOS} if each == fields.time else each for each in self.asked.wanted(self.found)
            ],
            "timeout": f"{max(int(self.asked.deadline.left() * 900), 1)}ms",
        }  # fmt: skip
        stamp = (row.fields.get(fields.time) or [moment])[0]
        body["query"]["bool"]["filter"].append({"range": {fields.time: {"lte" if before else "gte": stamp}}})
        return body


_NANOS = "strict_date_optional_time_nanos"
_ROLES = {"cause": 0, "symptom": 1}


def _rows(aggregation: Mapping[str, Any] | None) -> list[Row]:
    hits = ((aggregation or {}).get("hits") or {}).get("hits") or []
    return [row_of(each) for each in hits]


def _halves(query: Mapping[str, Any]) -> list[dict[str, Any]]:
    should = (query.get("bool") or {}).get("should") or []
    middle = len(should) // 2
    return [any_of(should[:middle]), any_of(should[middle:])] if middle else []
