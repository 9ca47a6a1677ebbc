"""Turn what is known of a job into the query for its log lines, and its lines into streams: one a rank, container, file or node."""

from __future__ import annotations

import posixpath
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.parse.job_launcher import file_hints
from workbench.sources.contract import Deadline, Scope
from workbench.sources.elasticsearch.fields import Fields
from workbench.sources.elasticsearch.files import Entry, Stream, file_name
from workbench.sources.elasticsearch.pull import Row, shard_trouble
from workbench.sources.elasticsearch.server import BadAnswer, Server
from workbench.sources.elasticsearch.ways import Way, all_of, any_of, on_nodes, ways_of
from workbench.sources.http_words import server_time

__all__ = ["Asked", "Found", "Key", "all_of", "any_of", "entry_of", "find", "streams_of", "terms_of"]

Key = tuple[str | None, ...]
_MOST_TERMS = 20_000


@dataclass
class Asked:
    """A server, an index and the meaning of its fields, with the time there is."""

    server: Server
    index: str
    fields: Fields
    deadline: Deadline
    offset: float = 0.0  # seconds that the server's clock is before ours, where it says

    def search(self, body: Mapping[str, Any], *, paths: str = "") -> Any:
        """Return the answer to one search; what not all shards answered is in its ``_shards``."""
        left = self.deadline.left()
        params = {"ignore_unavailable": "true", "allow_no_indices": "true", "allow_partial_search_results": "true"}
        if paths:
            params["filter_path"] = paths
        whole = {"timeout": f"{max(int(left * 900), 1)}ms", **body}
        reply = self.server.ask("POST", f"/{self.index}/_search", self.deadline, body=whole, params=params, packed=True)
        if "date" in reply.headers:
            self._clock(reply.headers["date"])
        if isinstance(reply.body, dict) and "_shards" not in reply.body:
            raise BadAnswer("the answer to a search has no word of its shards", hint="is it the log server that answers there?")
        return reply.body

    def _clock(self, date: str) -> None:
        there = server_time(date)
        if there is not None:
            self.offset = there - time.time()

    def window(self, since: float, until: float) -> dict[str, Any]:
        """Return the query for a window of time."""
        return {
            "range": {self.fields.time: {"gte": int(since * 1000), "lte": int(until * 1000 + 0.999), "format": "epoch_millis"}}
        }

    def count(self, query: Mapping[str, Any]) -> tuple[int, list[str]]:
        """Return how many lines match, and what was wrong with the answer."""
        body = self.search({"size": 0, "track_total_hits": True, "query": query}, paths="timed_out,_shards,hits.total")
        trouble = shard_trouble(body["_shards"], bool(body.get("timed_out")))
        return int(body["hits"]["total"]["value"]), [trouble] if trouble else []

    def _kernel_line(self) -> list[dict[str, Any]]:
        return [{"match": {name: {"query": value, "lenient": True}}} for name, value in self.fields.kernel]

    def kernel(self, scope: Scope, since: float) -> dict[str, Any]:
        """Return the query for the kernel lines of the job's nodes; a name with a domain and one without are the same node."""
        nodes = on_nodes(self.fields, scope.nodes)
        return all_of(self.window(since, scope.until), nodes, any_of(self._kernel_line()))

    def any_kernel(self, scope: Scope) -> dict[str, Any]:
        """Return the query for any kernel line at all."""
        return all_of(self.window(scope.since - 86400, scope.until), any_of(self._kernel_line()))

    def job(self, scope: Scope) -> dict[str, Way]:
        """Return how the job's lines can be found, surest first: name of the way → `Way`."""
        named = self.fields.named
        none = self._kernel_line()
        common = [self.window(scope.since, scope.until)]
        for meaning, value in (("namespace", scope.namespace), ("attempt", scope.attempt)):
            for name in named[meaning][:1] if value is not None else ():
                same = {"match": {name: {"query": str(value), "lenient": True}}}
                common.append(any_of([same, {"bool": {"must_not": [{"exists": {"field": name}}]}}]))
        return ways_of(self.fields, scope, common, none)

    def streams(self, found: Found) -> int:
        """Return about how many streams the lines have."""
        if not found.key:
            return 1
        aggs = {f"n{at}": {"cardinality": {"field": name}} for at, name in enumerate(found.key)}
        body = self.search({"size": 0, "query": found.query, "aggs": aggs}, paths="_shards,aggregations")
        return max((int(each["value"]) for each in (body.get("aggregations") or {}).values()), default=1)

    def wanted(self, found: Found) -> list[str]:
        """Return the fields that each line must bring."""
        names = [self.fields.time, self.fields.message, *found.key, *self.fields.named["node"][:2]]
        return list(dict.fromkeys(name for name in names if name))


@dataclass
class Found:
    """
    The lines of a job: the query for them, how many there are, which fields tell its streams apart, and where they came from.

    `how` is the way they were found: ``job``, ``pod``, ``file``, ``name``, ``user`` or ``node``; `words` says it to a person, and `sure`
    whether lines that are found so can be only the job's.
    """

    query: dict[str, Any]
    total: int
    how: str = ""
    words: str = ""
    sure: bool = True
    key: tuple[str, ...] = ()
    first: float = 0.0
    last: float = 0.0
    nodes: dict[str, int] = field(default_factory=dict)
    indices: dict[str, int] = field(default_factory=dict)
    trouble: list[str] = field(default_factory=list)
    kernel: bool = False
    meanings: dict[str, str] = field(default_factory=dict)  # field → what it means
    has: dict[str, float] = field(default_factory=dict)  # field → part of the lines that have it

    def rolled(self, asked: Asked) -> list[str]:
        """Ask once more where the lines are: an index that was not there before was not read."""
        body = asked.search({"size": 0, "query": self.query, "aggs": _INDICES}, paths="_shards,aggregations")
        now = {each["key"]: each["doc_count"] for each in (body.get("aggregations") or {}).get("indices", {}).get("buckets", ())}
        said = []
        if new := sorted(set(now) - set(self.indices)):
            said.append(
                f"the index rolled over while it was read: {sum(now[each] for each in new):,} lines of {', '.join(new[:3])} may be missing"
            )
        if gone := sorted(set(self.indices) - set(now)):
            said.append(f"{', '.join(gone[:3])} went away while it was read")
        return said


_INDICES: dict[str, Any] = {"indices": {"terms": {"field": "_index", "size": 1000}}}


def find(asked: Asked, scope: Scope) -> Found:
    """Return the lines of a job by the surest way that finds any."""
    ways = asked.job(scope)
    none = Found(all_of(asked.window(scope.since, scope.until)), 0)
    if not ways:
        return none
    parts = {
        f"{name}/{at}": part for name, way in ways.items() for at, part in enumerate(way.parts.values()) if len(way.parts) > 1
    }
    body = asked.search(
        {
            "size": 0,
            "track_total_hits": False,
            "query": asked.window(scope.since, scope.until),
            "aggs": {"ways": {"filters": {"filters": {**{name: way.query for name, way in ways.items()}, **parts}}}},
        }
    )
    if trouble := shard_trouble(body["_shards"], bool(body.get("timed_out"))):
        none.trouble.append(trouble)
    buckets = (body.get("aggregations") or {}).get("ways", {}).get("buckets", {})
    how = next((name for name in ways if buckets.get(name, {}).get("doc_count")), None)
    if how is None:
        return none
    way, counts = ways[how], {name: int(bucket.get("doc_count") or 0) for name, bucket in buckets.items()}
    told = [(words, counts.get(f"{how}/{at}", 0)) for at, words in enumerate(way.parts)]
    told = [(words, many) for words, many in told if many]
    words = ", ".join(f"{many:,} {words}" for words, many in told) if len(told) > 1 else told[0][0] if told else way.words
    return _looked(asked, Found(way.query, counts[how], how, words, way.sure, trouble=none.trouble))


def _looked(asked: Asked, found: Found) -> Found:
    """Ask what the lines have: first and last time, indices, nodes, and which fields can tell streams apart."""
    named = asked.fields.named
    meanings = ("pod", "container", "rank", "file", "node")
    candidates = {name: meaning for meaning in meanings for name in named[meaning][:6]}
    aggs: dict[str, Any] = (
        {
            "first": {"min": {"field": asked.fields.time}},
            "last": {"max": {"field": asked.fields.time}},
            "has": {"filters": {"filters": {name: {"exists": {"field": name}} for name in candidates}}},
            **_INDICES,
        }
        if candidates
        else {"first": {"min": {"field": asked.fields.time}}, "last": {"max": {"field": asked.fields.time}}, **_INDICES}
    )
    body = asked.search({"size": 0, "track_total_hits": True, "query": found.query, "aggs": aggs})
    if (trouble := shard_trouble(body["_shards"], bool(body.get("timed_out")))) and trouble not in found.trouble:
        found.trouble.append(trouble)
    told = body.get("aggregations") or {}
    found.total = int(body["hits"]["total"]["value"])
    found.first, found.last = (float((told.get(name) or {}).get("value") or 0) / 1000 for name in ("first", "last"))
    found.indices = {each["key"]: each["doc_count"] for each in told.get("indices", {}).get("buckets", ())}
    has = {name: bucket["doc_count"] / max(found.total, 1) for name, bucket in told.get("has", {}).get("buckets", {}).items()}

    def best(meaning: str, least: float) -> list[str]:
        names = [name for name in named[meaning] if has.get(name, 0) >= least]
        return sorted(names, key=lambda name: -has[name])[:1]

    pod, rank = best("pod", 0.5), best("rank", 0.5)
    key = [*pod, *(best("container", 0.5) if pod else []), *rank]
    if not key:
        path = best("file", 0.5)
        key = [*path, *best("node", 0.5)]
    found.key = tuple(key)
    found.meanings = candidates
    found.has = has
    node = best("node", 0.01)
    if node:
        found.nodes = terms_of(asked, found, ("node",), names={"node": node})["node"]
    return found


def terms_of(
    asked: Asked, found: Found, meanings: Sequence[str], names: Mapping[str, Sequence[str]] | None = None
) -> dict[str, dict[str, int]]:
    """Return for each meaning the values that the lines have, with how many lines each."""
    names = names or asked.fields.named
    aggs = {
        f"{meaning}:{name}": {"terms": {"field": name, "size": _MOST_TERMS}}
        for meaning in meanings
        for name in list(names[meaning])[:3]
    }
    result: dict[str, dict[str, int]] = {meaning: {} for meaning in meanings}
    if not aggs:
        return result
    body = asked.search({"size": 0, "query": found.query, "aggs": aggs}, paths="_shards,aggregations")
    for label, each in (body.get("aggregations") or {}).items():
        meaning = label.partition(":")[0]
        if not result[meaning]:  # the best field that has any
            result[meaning] = {str(bucket.get("key_as_string", bucket["key"])): bucket["doc_count"] for bucket in each["buckets"]}
    return result


# -- lines to streams ---------------------------------------------------------------------------------------------------


def _value(row: Row, name: str) -> str | None:
    values = row.fields.get(name) or row.fields.get(name.removesuffix(".keyword"))
    return None if not values else str(values[0])


def key_of(row: Row, found: Found) -> Key:
    """Return the key of the stream that a line belongs to."""
    return tuple(_value(row, name) for name in found.key)


def entry_of(asked: Asked, row: Row) -> Entry:
    """Return a line as an entry of a stream."""
    fields = asked.fields
    moment = float(row.sort[0] or 0) / (1e9 if fields.nanos else 1e3)
    rest = [float(each) if isinstance(each, (int, float)) else float("inf") for each in row.sort[1:]]
    offset = rest[0] if fields.offset and rest else 0.0
    tie = rest[-1] if len(rest) > bool(fields.offset) else float(row.seq)
    message = "\n".join(str(each) for each in row.fields.get(fields.message) or ())
    stamp = row.fields.get(fields.time) or [""]
    return Entry(moment, (offset, tie), message, str(stamp[0]), (row.index, row.id) if row.id else None)


def streams_of(asked: Asked, found: Found, rows: Iterable[Row]) -> list[Stream]:
    """Return the lines of a job by stream, each with the name that its file shall have."""
    streams: dict[Key, Stream] = {}
    nodes: dict[Key, set[str]] = {}
    for row in rows:
        key = key_of(row, found)
        stream = streams.get(key)
        if stream is None:
            stream = streams[key] = Stream("")
        stream.entries.append(entry_of(asked, row))
        note_node(asked, row, nodes.setdefault(key, set()))
    return named(found, streams, nodes)


def note_node(asked: Asked, row: Row, nodes: set[str]) -> None:
    """Note the node that a line came from."""
    for name in asked.fields.named["node"][:2]:
        if node := _value(row, name):
            nodes.add(node)
            return


def named(found: Found, streams: Mapping[Key, Stream], nodes: Mapping[Key, set[str]]) -> list[Stream]:
    """Give each stream the name of its file: its pod, rank, log file or node, with the folder of its node where one process wrote it."""
    taken: dict[str, Key] = {}
    containers: dict[str | None, set[str | None]] = {}
    at = {found.meanings.get(name, "node"): place for place, name in enumerate(found.key)}
    for key in streams:
        if "container" in at:
            containers.setdefault(key[at["pod"]], set()).add(key[at["container"]])
    for key, stream in sorted(streams.items(), key=lambda item: [(each is None, _natural(each or "")) for each in item[0]]):
        told = {meaning: key[place] for meaning, place in at.items() if key[place] is not None}
        if found.kernel:
            stream.name = file_name(told.get("node") or "unknown")
            continue
        parts = [told["pod"]] if "pod" in told else []
        if "container" in told and len(containers[key[at["pod"]]]) > 1:
            parts.append(str(told["container"]))
        if "rank" in told:
            parts.append(f"rank-{told['rank']}")
        if "file" in told:
            parts.append(re.sub(r"\.(?:log|txt|out|err)$", "", posixpath.basename(str(told["file"]))))
        if not parts:
            parts = [told.get("node") or "job"]
        name = file_name(".".join(str(each) for each in parts))
        # A line that one process wrote happened on its node; what a launcher or an agent wrote may speak of any.
        alone = "rank" in told or file_hints(name)[0] is not None
        where = nodes.get(key) or set()
        if alone and "pod" not in told and len(where) == 1:
            name = f"nodes/{file_name(next(iter(where)))}/{name}"
        number = 1
        while taken.setdefault(name if number == 1 else f"{name}.{number}", key) != key:
            number += 1
        stream.name = name if number == 1 else f"{name}.{number}"
    return [stream for _, stream in sorted(((each.name, each) for each in streams.values()), key=lambda pair: _natural(pair[0]))]


def _natural(text: str) -> list[tuple[bool, int, str]]:
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.findall(r"\d+|\D+", text)]
