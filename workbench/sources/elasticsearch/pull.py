"""
Turn a query into its lines: paged at one point in time, by several slices at once, with everything that went wrong said.

A point in time keeps what a roll-over or a merge would take away while we page; it costs the server memory and open files, so it is closed
whatever happens.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Protocol

from workbench.collector import no_collector
from workbench.errors import SourceError
from workbench.sources.contract import Deadline, SourceTimeout
from workbench.sources.elasticsearch import typed
from workbench.sources.elasticsearch.fields import Fields
from workbench.sources.elasticsearch.server import BadAnswer, Server

__all__ = ["KEEP", "NANOS", "PAGE", "Pull", "Row", "page_rows", "point_in_time", "pull", "row_of", "shard_trouble", "sort_of"]

SLICES = 4
PAGE = 5000
KEEP = "1m"
NANOS = "strict_date_optional_time_nanos"
_CLOSING = 2.0  # seconds for the closing of a point in time after the deadline
_PATHS = "timed_out,_shards,pit_id,hits.total,hits.hits.sort,hits.hits.fields"


class Row(Protocol):
    """One line: what it is sorted by, its fields (name → values), and, when asked for, its index, id and sequence number."""

    sort: list[Any]
    fields: dict[str, list[Any]]
    index: str
    id: str
    seq: int


@dataclass(slots=True)
class _Row:
    sort: list[Any]
    fields: dict[str, list[Any]]
    index: str = ""
    id: str = ""
    seq: int = -1


def row_of(hit: Mapping[str, Any]) -> Row:
    """Return a row of a hit that was decoded as plain data."""
    return _Row(hit.get("sort") or [], hit.get("fields") or {}, hit.get("_index", ""), hit.get("_id", ""), hit.get("_seq_no", -1))


@dataclass
class Pull:
    """
    What came of a query.

    `trouble` lists, in sentences, why it may not be all; `cut_at` is the time (as sorted by) after which lines were left out.
    """

    rows: list[Row] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    cut_at: Any = None

    def note(self, sentence: str) -> None:
        """Add a trouble once."""
        if sentence and sentence not in self.trouble:
            self.trouble.append(sentence)


def sort_of(fields: Fields, *, descending: bool = False, tie: bool = False) -> list[dict[str, Any]]:
    """Return the sort: time, then the place in the file where it is known, then (only at a point in time) the place in the shard."""
    order = "desc" if descending else "asc"
    kind = {"numeric_type": "date_nanos"} if fields.nanos else {}
    sort: list[dict[str, Any]] = [{fields.time: {"order": order, "unmapped_type": "date", **kind}}]
    if fields.offset:
        sort.append({fields.offset: {"order": order, "unmapped_type": "long", "missing": "_last"}})
    if tie:
        sort.append({"_shard_doc": order})
    return sort


def page_rows(body: Any) -> tuple[list[Row], dict[str, Any], bool, str]:
    """Return (rows, what the server says of its shards, whether it timed out, new id of the point in time) of one answer."""
    if isinstance(body, dict):
        hits = (body.get("hits") or {}).get("hits") or []
        rows = [row_of(each) for each in hits]
        if not isinstance(body.get("_shards"), dict):
            raise BadAnswer("the answer to a search has no word of its shards", hint="is it the log server that answers there?")
        return rows, body["_shards"], bool(body.get("timed_out")), str(body.get("pit_id") or "")
    return body.hits.hits, body.shards, body.timed_out, body.pit_id


def shard_trouble(shards: Mapping[str, Any], timed_out: bool = False) -> str:
    """Return a sentence when not all shards answered, else an empty text."""
    failed, total = int(shards.get("failed") or 0), int(shards.get("total") or 0)
    said = ""
    if failed:
        reasons: dict[str, None] = {}
        for each in shards.get("failures") or ():
            reason = each.get("reason") or {} if isinstance(each, dict) else {}
            deep = reason.get("caused_by") or {}
            reasons[f"{each.get('index', '')}: {deep.get('reason') or reason.get('reason') or reason.get('type')}"[:200]] = None
        said = f"{failed} of {total} shards did not answer" + (f" ({'; '.join(list(reasons)[:2])})" if reasons else "")
    if timed_out:
        said += ("; " if said else "") + "the server stopped searching at its own time-out"
    return said


@contextmanager
def point_in_time(server: Server, index: str, deadline: Deadline) -> Iterator[str]:
    """Open a point in time, and close it again whatever happens, also when the deadline is over."""
    path = f"/{index}/_search/point_in_time" if server.opensearch else f"/{index}/_pit"
    params = {"keep_alive": KEEP, "ignore_unavailable": "true"}
    partial = {} if server.opensearch else {"allow_partial_search_results": "true"}
    try:
        reply = server.ask("POST", path, deadline, params=params | partial).body
    except BadAnswer as error:
        if error.status != 400 or not partial:
            raise
        reply = server.ask("POST", path, deadline, params=params).body  # servers before 8.16 do not know the word
    name = str(reply.get("pit_id" if server.opensearch else "id") or "")
    if not name:
        raise BadAnswer("the server opened no point in time", hint="is it the log server that answers there?")
    try:
        yield name
    finally:
        body: dict[str, Any] = {"pit_id": [name]} if server.opensearch else {"id": name}
        try:
            server.ask(
                "DELETE", "/_search/point_in_time" if server.opensearch else "/_pit", Deadline(_CLOSING), body=body, most=_CLOSING
            )
        except SourceError:
            pass  # a server that does not answer any more lets it go by itself after `KEEP`


def pull(
    server: Server,
    index: str,
    query: Mapping[str, Any],
    fields: Fields,
    wanted: Sequence[str],
    deadline: Deadline,
    *,
    most: int,
    slices: int = SLICES,
    page: int = PAGE,
    ids: bool = False,
    packed: bool = False,
) -> Pull:
    """
    Return the lines of a query in the order of their time, at most about `most` of them.

    Parameters
    ----------
    server, index, query
        Whom, where and what to ask.
    fields : Fields
        What the fields mean.
    wanted : sequence of str
        Fields of each line.
    deadline : Deadline
        What came until then is kept.
    most : int
        Lines after which no more is asked for; the rest is left out from one moment on.
    slices, page : int
        Parts that are read at the same time, and lines of one answer.
    ids : bool
        The rows carry index, id and sequence number.
    packed : bool
        The lines travel compressed.

    Raises
    ------
    SourceError
        Nothing came at all.
    """
    result = Pull()
    lock = threading.Lock()
    errors: list[SourceError] = []
    ends: list[Any] = []  # last time that a slice reached which did not come to its end
    counted = [0]

    with no_collector(), point_in_time(server, index, deadline) as first:

        def one(number: int) -> None:
            name, after = first, None
            body: dict[str, Any] = {
                "size": min(page, most), "query": query, "sort": sort_of(fields, tie=True), "track_total_hits": False,
                "_source": False, "fields": [{"field": each, "format": NANOS} if each == fields.time else each for each in wanted],
            }  # fmt: skip
            if slices > 1:
                body["slice"] = {"id": number, "max": slices}
            if ids:
                body["seq_no_primary_term"] = True
            params = {"filter_path": _PATHS + (",hits.hits._id,hits.hits._index,hits.hits._seq_no" if ids else "")}
            params["allow_partial_search_results"] = "true"
            last: Any = None
            try:
                while True:
                    body["pit"] = {"id": name, "keep_alive": KEEP}
                    if after is not None:
                        body["search_after"] = after
                    left = deadline.left()
                    body["timeout"] = f"{max(int(left * 900), 1)}ms"
                    reply = server.ask("POST", "/_search", deadline, body=body, params=params, decode=typed.rows, packed=packed)
                    rows, shards, timed_out, renamed = page_rows(reply.body)
                    name = renamed or name
                    with lock:
                        result.note(shard_trouble(shards, timed_out))
                        result.rows += rows
                        counted[0] += len(rows)
                        full = counted[0] >= most
                    if timed_out or len(rows) < body["size"]:
                        return
                    after = last = rows[-1].sort
                    if full:
                        with lock:
                            ends.append(last[0])
                        return
            except SourceError as error:
                with lock:
                    errors.append(error)
                    ends.append(last[0] if last else None)

        threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(slices)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()  # each request ends by itself with the deadline
    if errors and not result.rows:
        raise errors[0]
    for error in errors[:1]:
        over = isinstance(error, SourceTimeout)
        result.note("the time was over before all lines had come" if over else f"paging stopped: {error}")
    if ends:
        # A slice that stopped early leaves holes among the lines of the others: keep what is whole up to one moment.
        known = [each for each in ends if each is not None]
        if len(known) == len(ends) and not errors:
            result.cut_at = min(known)
            result.rows = [row for row in result.rows if row.sort[0] <= result.cut_at]
            result.note(f"more than {most:,} lines: those after the first {len(result.rows):,} were left out")
    try:
        result.rows.sort(key=attrgetter("sort"))
    except TypeError:  # a line without an offset
        result.rows.sort(key=lambda row: [(value is None, value) for value in row.sort])
    return result
