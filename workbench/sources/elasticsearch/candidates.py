"""
Turn the kinds of lines that may match a signature into the lines themselves: all of a rare kind, the first and last of a flood.

First each kind is counted, on the server. So a flood of one kind cannot hide another, and what is left out is known by name and number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from workbench.sources.elasticsearch.job import Asked, Found, all_of, any_of
from workbench.sources.elasticsearch.pull import NANOS, Row, page_rows, pull, shard_trouble, sort_of
from workbench.sources.elasticsearch.query import Kind, Needles, chunks, kinds, pieces_queries
from workbench.sources.elasticsearch.server import BadAnswer

__all__ = ["Candidates", "fetched", "hits_of", "msearch"]

_AT_ONCE = 3  # queries that run at the same time
_LEAST = 64  # lines of a kind that are fetched in any case
_LAST = 5  # one in so many lines of a flood is one of its last
_TOGETHER = 32  # searches of one request


@dataclass
class Candidates:
    """Lines that may match, why they may not be all, and what was left out knowingly."""

    rows: list[Row] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def note(self, sentence: str) -> None:
        """Add a trouble once."""
        if sentence and sentence not in self.trouble:
            self.trouble.append(sentence)


def fetched(asked: Asked, found: Found, needles: Needles, room: int) -> Iterator[Candidates]:
    """
    Yield the lines that may match a signature, about `room` of them.

    Parameters
    ----------
    asked, found : Asked, Found
        Whom to ask, and for which lines.
    needles : Needles
        What every match of a signature holds.
    room : int
        Lines that may come.
    """
    fields = asked.fields
    if not fields.words:
        yield from _kept_whole(asked, found, pieces_queries(needles, fields.message), room)
        return
    result = Candidates()
    if needles.left_out:
        result.remarks.append(f"no text to ask for: {_some(needles.left_out)} in part")
    counted: list[tuple[Kind, int]] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for part in pool.map(lambda chunk: _counted(asked, found, chunk, result), chunks(kinds(needles, fields.message))):
            counted += part
    present = [(kind, count) for kind, count in counted if count]
    most = _fair([count for _, count in present], room)
    split = [part for kind, count in present if count > most for part in kind.parts]
    if split:
        present = [(kind, count) for kind, count in present if count <= most or not kind.parts]
        present += [(kind, count) for kind, count in _counted(asked, found, split, result) if count]
        most = _fair([count for _, count in present], room)
    rare = [kind for kind, count in present if count <= most]
    flood = [(kind, count) for kind, count in present if count > most and not kind.weak]
    if flood:
        lines = sum(count for _, count in flood)
        names = "; ".join(f"{kind.text[:60]!r} {count:,} times" for kind, count in sorted(flood, key=lambda each: -each[1])[:3])
        result.remarks.append(
            f"of {len(flood)} kinds of lines that stand more than {most:,} times ({lines:,} lines: {names}"
            f"{' …' if len(flood) > 3 else ''}) the first and last"
        )
    if weak := {name: None for kind, count in present if kind.weak and count > most for name in kind.weak}:
        result.remarks.append(f"not asked for in full, since ordinary lines have the same words: {_some(list(weak))}")
    for chunk in chunks(rare):
        total = sum(count for kind, count in present if kind in chunk)
        got = pull(
            asked.server, asked.index, all_of(found.query, any_of([kind.query for kind in chunk])), fields, asked.wanted(found),
            asked.deadline, most=2 * total + 1000, slices=1, ids=True, packed=True,
        )  # fmt: skip
        for each in got.trouble:
            result.note(each)
        result.rows += got.rows
    yield result
    if flood:
        yield _first_and_last(asked, found, flood, most)


def _some(names: Sequence[str]) -> str:
    return f"{len(names)} signatures ({', '.join(names[:6])}{' …' if len(names) > 6 else ''})"


def _fair(counts: Sequence[int], room: int) -> int:
    """Return how many lines of each kind fit, when the small kinds come whole."""
    left, most = room, room
    for at, count in enumerate(sorted(counts)):
        most = left // (len(counts) - at)
        if count > most:
            break
        left -= count
    else:
        most = max(counts, default=room)
    return max(most, _LEAST)


def _counted(asked: Asked, found: Found, some: Sequence[Kind], result: Candidates) -> list[tuple[Kind, int]]:
    """Return how many lines of each kind there are; halves are asked for when all are too many for the server."""
    aggs = {"kinds": {"filters": {"filters": [kind.query for kind in some]}}}
    body = {"size": 0, "track_total_hits": False, "query": found.query, "aggs": aggs}
    try:
        told = asked.search(body, paths="timed_out,_shards,aggregations.kinds.buckets.doc_count")
    except BadAnswer as error:
        if len(some) < 2 or not too_many(error):
            raise
        middle = len(some) // 2
        return [*_counted(asked, found, some[:middle], result), *_counted(asked, found, some[middle:], result)]
    result.note(shard_trouble(told["_shards"], bool(told.get("timed_out"))))
    buckets = ((told.get("aggregations") or {}).get("kinds") or {}).get("buckets") or []
    if len(buckets) != len(some):
        raise BadAnswer("the server counted something else than it was asked to")
    return [(kind, int(bucket["doc_count"])) for kind, bucket in zip(some, buckets, strict=True)]


def too_many(error: BadAnswer) -> bool:
    """Tell whether a server refused a query because of its size."""
    return any(word in f"{error} {error.reason}" for word in ("clause", "too_many", "too complex"))


def _first_and_last(asked: Asked, found: Found, flood: Sequence[tuple[Kind, int]], most: int) -> Candidates:
    result = Candidates()
    last = max(most // _LAST, 1)
    bodies = []
    for kind, _ in flood:
        for size, descending in ((most - last, False), (last, True)):
            body = hits_of(asked, found, size, descending)
            bodies.append(body | {"query": all_of(found.query, kind.query)})
    for rows, trouble in msearch(asked, bodies):
        result.note(trouble)
        result.rows += rows
    return result


def hits_of(asked: Asked, found: Found, size: int, descending: bool, wanted: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the part of a search that asks for lines by time, with what tells one line from another."""
    fields = asked.fields
    return {
        "size": size, "sort": sort_of(fields, descending=descending), "_source": False, "seq_no_primary_term": True,
        "fields": [
            {"field": each, "format": NANOS} if each == fields.time else each for each in (wanted or asked.wanted(found))
        ],
    }  # fmt: skip


def msearch(asked: Asked, bodies: Sequence[Mapping[str, Any]]) -> Iterator[tuple[list[Row], str]]:
    """Yield the rows of each of many searches, and what was wrong with them."""
    header = {"index": asked.index, "ignore_unavailable": True, "allow_no_indices": True}
    places = ",".join(f"responses.hits.hits.{name}" for name in ("_id", "_index", "_seq_no", "sort", "fields"))
    params = {"max_concurrent_searches": "4", "filter_path": f"responses.error,responses.timed_out,responses._shards,{places}"}
    for at in range(0, len(bodies), _TOGETHER):
        timeout = f"{max(int(asked.deadline.left() * 900), 1)}ms"
        lines = [
            each
            for body in bodies[at : at + _TOGETHER]
            for each in (header, {**body, "track_total_hits": False, "timeout": timeout})
        ]
        reply = asked.server.ask("POST", "/_msearch", asked.deadline, body=lines, params=params, packed=True).body
        responses = reply.get("responses") or ()
        if len(responses) != len(lines) // 2:
            raise BadAnswer("the server answered some of several searches only")
        for answer in responses:
            if "error" in answer:
                yield [], f"a search was refused: {(answer['error'] or {}).get('reason', 'no answer')}"
                continue
            rows, shards, timed_out, _ = page_rows(answer)
            yield rows, shard_trouble(shards, timed_out)


def _kept_whole(asked: Asked, found: Found, queries: Sequence[dict[str, Any]], room: int) -> Iterator[Candidates]:
    """Yield the candidates of a field that keeps lines as they are; they cannot be counted by kind, so the first in time must do."""
    for query in queries:
        result = Candidates()
        most = max(room // len(queries), _LEAST)
        got = pull(
            asked.server, asked.index, all_of(found.query, query), asked.fields, asked.wanted(found), asked.deadline,
            most=most, slices=1, ids=True, packed=True,
        )  # fmt: skip
        result.rows = got.rows
        for each in got.trouble:
            result.note(each)
        if got.cut_at is not None:
            # which of them matter is not known: the last ones tell how it ended
            body = hits_of(asked, found, max(most // _LAST, 1), True) | {"query": all_of(found.query, query)}
            for rows, trouble in msearch(asked, [body]):
                result.note(trouble)
                result.rows += rows
        yield result
