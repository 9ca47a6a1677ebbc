"""
Turn the logs of a large job into the lines that matter, chosen by the server: candidates, what stands around them, begins and ends.

Of a terabyte only these lines travel, and of the many streams of which none is needed only when each ended and how long it was: what moves
grows with the number of streams, not with the length of their logs. The candidates are looked at here once more, with the expressions
themselves, before anything is asked for around them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workbench.catalog import signatures
from workbench.errors import SourceError
from workbench.sources.contract import SourceTimeout
from workbench.sources.elasticsearch.candidates import fetched, hits_of, msearch
from workbench.sources.elasticsearch.files import Entry, Stream
from workbench.sources.elasticsearch.job import Asked, Found, Key, all_of, any_of, entry_of, key_of, named, note_node
from workbench.sources.elasticsearch.pull import Row, row_of, shard_trouble
from workbench.sources.elasticsearch.query import Needles
from workbench.sources.files import scanner

__all__ = ["pushed"]

BEFORE, AFTER = 40, 20  # lines around a first failure
_AROUND = 48  # streams whose first failure is looked around
_BUCKETS = 10_000  # streams of one page of an aggregation: each page costs a look at all lines
_BEGIN, _END = 4, 12  # lines of the begin and the end of a chosen stream
_LEAST_EDGE, _MOST_EDGE = 6, 40  # lines of begin and end of each stream, where there are few streams
_FEW = 4000  # lines of a kind of question that may come in any case
_SHARE = 1000  # one line in so many may come for a question: with what surrounds its text it is three times as long
_MOST_CANDIDATES = 20_000


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
    for step in (push.census, push.edges, lambda: push.candidates(needles), push.around):
        try:
            step()
        except SourceTimeout:
            push.note("the time was over before all that was asked for had come")
            break
        except SourceError as error:
            if not push.streams:
                raise
            push.note(str(error))
    return push.named(), push.trouble, "; ".join(push.remarks)


class _Push:
    def __init__(self, asked: Asked, found: Found, most: int) -> None:
        self.asked, self.found, self.most = asked, found, most
        self.room = min(max(_FEW, found.total // _SHARE), most)
        self.streams: dict[Key, Stream] = {}
        self.nodes: dict[Key, set[str]] = {}
        self.trouble: list[str] = []
        self.remarks: list[str] = []
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

    def named(self) -> list[Stream]:
        """Return the streams with the names of their files; of one that is a rank and nothing else it is said which, and on what node."""
        streams = named(self.found, self.streams, self.nodes)
        if [self.found.meanings.get(name) for name in self.found.key] == ["rank"] and not self.found.kernel:
            for (rank,), stream in self.streams.items():
                where = self.nodes.get((rank,)) or set()
                if rank is not None and rank.isdigit() and len(where) == 1:
                    stream.rank, stream.node = int(rank), next(iter(where))
        return streams

    # -- how each stream begins and ends --------------------------------------------------------------------------------

    def _buckets(self, query: Mapping[str, Any], aggs: Mapping[str, Any], paths: str, node: str = "") -> Iterator[dict[str, Any]]:
        """Yield one bucket for each stream (and node of it), page by page."""
        names = {f"k{at}": name for at, name in enumerate(self.found.key)} | ({"n": node} if node else {})
        sources = [{label: {"terms": {"field": name, "missing_bucket": True}}} for label, name in names.items()]
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
                f"aggregations.streams.buckets.doc_count,aggregations.streams.buckets.{paths}",
            )
            self.note(shard_trouble(body["_shards"], bool(body.get("timed_out"))))
            page = (body.get("aggregations") or {}).get("streams") or {}
            yield from page.get("buckets") or ()
            after = page.get("after_key")
            if not after or len(page.get("buckets") or ()) < _BUCKETS:
                return

    def _key(self, bucket: Mapping[str, Any]) -> Key:
        return tuple(None if (value := bucket["key"].get(f"k{at}")) is None else str(value) for at in range(len(self.found.key)))

    def census(self) -> None:
        """Ask for each stream where it ran, how many lines it has and when the last one was written."""
        fields, key = self.asked.fields, self.found.key
        node = next((name for name in fields.named["node"] if self.found.has.get(name, 0) >= 0.01), "")
        end = {"z": {"max": {"field": fields.time}}}
        for bucket in self._buckets(self.found.query, end, "z.value", "" if node in key else node):
            where = self._key(bucket)
            stream = self.streams.setdefault(where, Stream("", joined=set()))
            stream.total += bucket["doc_count"]
            stream.end = max(stream.end, float((bucket.get("z") or {}).get("value") or 0) / 1000)
            if (name := bucket["key"].get("n")) is not None:
                self.nodes.setdefault(where, set()).add(str(name))

    def edges(self) -> None:
        """Fetch the first and last lines of each stream, or of the streams that stand out when they are many."""
        streams = len(self.streams)
        if streams * _LEAST_EDGE <= self.room:
            each = max(_LEAST_EDGE, min(_MOST_EDGE, self.room // max(streams, 1)))
            self._edges(list(self.streams), max(each // 3, 2), each - max(each // 3, 2))
            return
        chosen = self._outstanding(max(self.room // (_BEGIN + _END), 8))
        self.remarks.append(
            f"first and last lines of the {len(chosen)} streams that stand out, and of the others when each ended"
        )
        self._edges(chosen, _BEGIN, _END)

    def _outstanding(self, most: int) -> list[Key]:
        """Choose the streams that ended first or last, have fewest or most lines, and some ordinary ones to compare them with."""
        by_end = sorted(self.streams, key=lambda key: self.streams[key].end)
        by_size = sorted(self.streams, key=lambda key: self.streams[key].total)
        part = max(most // 8, 1)
        some = [
            *by_end[: 3 * part], *by_end[-part:], *by_size[:part], *by_size[-part:], *by_end[:: max(len(by_end) // (2 * part), 1)],
        ]  # fmt: skip
        return list(dict.fromkeys(some))[:most]

    def _edges(self, keys: Sequence[Key], first: int, last: int) -> None:
        aggs = {}
        for name, size, descending in (("first", first, False), ("last", last, True)):
            aggs[name] = {"top_hits": hits_of(self.asked, self.found, size, descending)}
        query: Mapping[str, Any] = self.found.query
        if len(keys) < len(self.streams):
            query = all_of(query, self._one_of(keys))
        hits = "*.hits.hits"
        for bucket in self._buckets(query, aggs, hits):
            key = self._key(bucket)
            for name in ("first", "last"):
                rows = [row_of(each) for each in ((bucket.get(name) or {}).get("hits") or {}).get("hits") or ()]
                self.take(rows[::-1] if name == "last" else rows, key=key, run=True)

    def _one_of(self, keys: Sequence[Key]) -> dict[str, Any]:
        if len(self.found.key) == 1 and all(value is not None for (value,) in keys):
            return {"terms": {self.found.key[0]: [value for (value,) in keys]}}
        return any_of([all_of(*self._same(key)) for key in keys])

    def _same(self, key: Key) -> list[dict[str, Any]]:
        return [
            {"term": {name: value}} if value is not None else {"bool": {"must_not": [{"exists": {"field": name}}]}}
            for name, value in zip(self.found.key, key, strict=True)
        ]

    # -- the lines that may match -----------------------------------------------------------------------------------------

    def candidates(self, needles: Needles) -> None:
        """Fetch the lines that may match a signature."""
        fields = self.asked.fields
        if not fields.searchable:
            self.note(f"the field {fields.message} cannot be searched: only begins and ends of the logs were fetched")
            return
        for got in fetched(self.asked, self.found, needles, min(self.room, _MOST_CANDIDATES)):
            for each in got.trouble:
                self.note(each)
            self.remarks += got.remarks
            self.matched(got.rows)

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
        bodies: list[dict[str, Any]] = []
        for key, (_, row) in chosen:
            bodies += [self._near(key, row, size, before) for size, before in ((BEFORE, True), (AFTER, False))]
        for number, (rows, trouble) in enumerate(msearch(self.asked, bodies)):
            self.note(trouble)
            self.take(rows[::-1] if number % 2 == 0 else rows, key=chosen[number // 2][0], run=True)

    def _near(self, key: Key, row: Row, size: int, before: bool) -> dict[str, Any]:
        fields = self.asked.fields
        stamp = (row.fields.get(fields.time) or [row.sort[0]])[0]
        moment = {"range": {fields.time: {"lte" if before else "gte": stamp}}}
        body = hits_of(self.asked, self.found, size, before, [fields.time, fields.message])
        return body | {"query": all_of(self.found.query, *self._same(key), moment)}


_ROLES = {"cause": 0, "symptom": 1}
