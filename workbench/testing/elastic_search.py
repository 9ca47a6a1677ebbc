"""Turn the body of a search into the hits and aggregations that Elasticsearch would answer from some indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any

from workbench.testing.lucene import DATES, NUMBERS, WORDS, Index, Refusal, dated, named

__all__ = ["Doc", "search"]

_MISSING = {"asc": 9223372036854775807, "desc": -9223372036854775808}  # what stands in place of a number that is not there, last
_WINDOW = 10_000
_KEYS = frozenset({
    "query", "size", "from", "sort", "search_after", "slice", "fields", "_source", "docvalue_fields", "stored_fields", "track_total_hits",
    "aggs", "aggregations", "timeout", "seq_no_primary_term", "version", "pit", "track_scores", "terminate_after", "post_filter",
    "min_score",
})  # fmt: skip
_REFUSED = ("post_filter", "min_score", "terminate_after")


@dataclass(frozen=True, slots=True)
class Doc:
    """A document: its index, its place in it, and its place among all shards."""

    index: Index
    at: int
    place: int

    def values(self, name: str) -> list[Any]:
        """Return what it keeps of a field."""
        return [self.index.name] if name == "_index" else self.index.fields[self.at].get(name, [])


def search(indices: Sequence[Index], body: Mapping[str, Any], *, pit: bool = False) -> dict[str, Any]:
    """
    Return hits and aggregations of a search.

    Parameters
    ----------
    indices : sequence of Index
        Where it looks; each is one shard.
    body : mapping
        As it is sent to ``_search``.
    pit : bool
        It looks at a point in time: sorted hits get a tiebreaker.

    Raises
    ------
    Refusal
        For what the server refuses, and for what is not known here.
    """
    if unknown := set(body) - _KEYS:
        raise Refusal(f"Unknown key for a VALUE in [{min(unknown)}].")
    if refused := [key for key in _REFUSED if body.get(key) is not None]:
        raise Refusal(f"[{refused[0]}] is not known here")
    start, size = int(body.get("from", 0)), int(body.get("size", 10))
    if start + size > _WINDOW:
        raise Refusal(
            f"Result window is too large, from + size must be less than or equal to: [{_WINDOW}] but was [{start + size}].",
            "illegal_argument_exception",
        )
    docs = _found(indices, body)
    total = len(docs)
    order = _order(indices, body.get("sort"), pit)
    rows = _sorted(docs, order) if order else [(doc, []) for doc in docs]
    if (after := body.get("search_after")) is not None:
        if not order or len(after) != len(order):
            raise Refusal(f"search_after has {len(after)} value(s) but sort has {len(order)}.", "illegal_argument_exception")
        kept = [_kept_after(indices, key, value) for key, value in zip(order, after, strict=True)]
        rows = [row for row in rows if _compare(order, row[1], kept) > 0]
    rows = rows[start : start + size]
    track = body.get("track_total_hits", 10_000)
    hits: dict[str, Any] = {}
    if track is not False:
        most = total if track is True else int(track)
        hits["total"] = {"value": min(total, most), "relation": "eq" if total <= most else "gte"}
    scored = not order and bool(rows)
    hits |= {"max_score": 1.0 if scored else None, "hits": [_hit(doc, key, body, bool(order)) for doc, key in rows]}
    told: dict[str, Any] = {"took": 1, "timed_out": False, "_shards": shards(len(indices)), "hits": hits}
    if aggs := body.get("aggs") or body.get("aggregations"):
        from workbench.testing.elastic_aggs import aggregated

        told["aggregations"] = aggregated(indices, docs, aggs)
    return told


def shards(count: int) -> dict[str, int]:
    """Return what the server says of its shards when all of them answered."""
    return {"total": count, "successful": count, "skipped": 0, "failed": 0}


def _found(indices: Sequence[Index], body: Mapping[str, Any]) -> list[Doc]:
    query = body.get("query") or {"match_all": {}}
    docs = []
    for number, index in enumerate(indices):
        docs += [Doc(index, at, (number << 32) | at) for at in sorted(index.matching(query))]
    if part := body.get("slice"):
        if not 0 <= part["id"] < part["max"] or part["max"] < 2:
            raise Refusal("max must be greater than id, and than 1", "x_content_parse_exception")
        docs = [doc for doc in docs if (doc.at * 2654435761 >> 8) % part["max"] == part["id"]]
    return docs


# -- order ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Key:
    """One thing that hits are sorted by."""

    name: str
    order: str
    missing: Any
    nanos: bool
    value: Callable[[Doc], Any]


def _order(indices: Sequence[Index], sort: Any, pit: bool = False) -> list[Key]:
    if sort is None:
        return []
    keys = []
    for each in sort if isinstance(sort, list) else [sort]:
        (name, given), = (each.items() if isinstance(each, Mapping) else [(each, {})])  # fmt: skip
        given = {"order": given} if isinstance(given, str) else given
        if unknown := set(given) - {"order", "unmapped_type", "missing", "numeric_type", "format", "mode"}:
            raise Refusal(f"[field_sort] unknown field [{min(unknown)}]", "x_content_parse_exception")
        keys.append(_key(indices, str(name), given))
    if pit and keys and keys[-1].name != "_shard_doc":
        keys.append(_key(indices, "_shard_doc", {}))
    return keys


def _key(indices: Sequence[Index], name: str, given: Mapping[str, Any]) -> Key:
    order = str(given.get("order", "asc"))
    if order not in ("asc", "desc"):
        raise Refusal(f"Unknown SortOrder [{order}]", "illegal_argument_exception")
    if name in ("_shard_doc", "_doc"):
        return Key(name, order, 0, False, lambda doc: doc.place)
    kinds = {index.types[name] for index in indices if name in index.types}
    if name == "_index":
        kinds = {"keyword"}
    kind = next(iter(kinds), given.get("unmapped_type"))
    if kind is None and indices:
        raise Refusal(f"No mapping found for [{name}] in order to sort on", "query_shard_exception")
    if kind in WORDS:
        raise Refusal(_no_words(name), "illegal_argument_exception")
    word = given.get("missing", "_last")
    numeric = kind in NUMBERS or kind in DATES
    last = (word == "_last") == (order == "asc")
    missing = word if word not in ("_last", "_first") else _MISSING["asc" if last else "desc"] if numeric else None
    nanos = given.get("numeric_type") == "date_nanos"

    def value(doc: Doc) -> Any:
        values = doc.values(name)
        if not values:
            return missing
        found = min(values) if order == "asc" else max(values)
        return found * 1_000_000 if nanos and doc.index.types.get(name) == "date" else found

    return Key(name, order, missing, nanos, value)


def _no_words(name: str) -> str:
    return (
        f"Fielddata is disabled on [{name}] in [index]. Text fields are not optimised for operations that require per-document field data like"
        " aggregations and sorting, so these operations are disabled by default. Please use a keyword field instead."
    )


def _kept_after(indices: Sequence[Index], key: Key, value: Any) -> Any:
    if isinstance(value, str) and any(index.types.get(key.name) in DATES for index in indices):
        from workbench.testing.lucene import moment_of

        return moment_of(value, "date_nanos" if key.nanos else "date")
    return value


def _compare(order: Sequence[Key], one: Sequence[Any], two: Sequence[Any]) -> int:
    for key, a, b in zip(order, one, two, strict=True):
        if a == b:
            continue
        if a is None or b is None:  # what is missing comes last
            return 1 if a is None else -1
        return (1 if a > b else -1) * (1 if key.order == "asc" else -1)
    return 0


def _sorted(docs: Sequence[Doc], order: Sequence[Key]) -> list[tuple[Doc, list[Any]]]:
    rows: list[tuple[Doc, list[Any]]] = [(doc, [key.value(doc) for key in order]) for doc in docs]
    if all(key.order == order[0].order for key in order) and not any(None in values for _, values in rows):
        return sorted(rows, key=lambda row: row[1], reverse=order[0].order == "desc")

    def compared(one: tuple[Doc, list[Any]], two: tuple[Doc, list[Any]]) -> int:
        return _compare(order, one[1], two[1])

    return sorted(rows, key=cmp_to_key(compared))


# -- hits -----------------------------------------------------------------------------------------------------------------


def _hit(doc: Doc, key: Sequence[Any], body: Mapping[str, Any], ordered: bool) -> dict[str, Any]:
    none = body.get("stored_fields") == "_none_"
    hit: dict[str, Any] = {"_index": doc.index.name, "_id": doc.index.id_of(doc.at), "_score": None if ordered else 1.0}
    if none:
        del hit["_id"]
    if body.get("version"):
        hit["_version"] = 1
    if body.get("seq_no_primary_term"):
        hit |= {"_seq_no": doc.at, "_primary_term": 1}
    source = body.get("_source", True)
    if source is not False and not none:
        hit["_source"] = _part(doc.index.sources[doc.at], source)
    fields = _fields(doc, body.get("fields") or [], False) | _fields(doc, body.get("docvalue_fields") or [], True)
    if fields:
        hit["fields"] = fields
    if ordered:
        hit["sort"] = list(key)
    return hit


def _fields(doc: Doc, wanted: Sequence[Any], kept: bool) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    pattern: str
    for each in wanted:
        pattern, form = (str(each["field"]), str(each.get("format", ""))) if isinstance(each, Mapping) else (str(each), "")
        for name in ["_index"] if pattern == "_index" else named([pattern], doc.index.fields[doc.at]):
            kind = doc.index.types.get(name, "keyword")
            if kept and kind in WORDS:
                raise Refusal(_no_words(name), "illegal_argument_exception")
            found[name] = [dated(value, kind, form) if kind in DATES else value for value in doc.values(name)]
    return found


def _part(source: Mapping[str, Any], wanted: Any) -> Mapping[str, Any]:
    """Return the part of a source that is asked for."""
    if wanted is True:
        return source
    spec = wanted if isinstance(wanted, Mapping) else {"includes": [wanted] if isinstance(wanted, str) else wanted}
    includes, excludes = spec.get("includes", spec.get("include")), spec.get("excludes", spec.get("exclude")) or []

    def keep(item: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name, value in item.items():
            path = prefix + name
            if named(excludes, [path]):
                continue
            inside = not includes or any(
                path == each or path.startswith(each + ".") or named([each], [path]) for each in includes
            )
            if isinstance(value, Mapping):
                if part := (value if inside and not excludes else keep(value, path + ".")):
                    result[name] = part
            elif inside:
                result[name] = value
        return result

    return keep(source, "")
