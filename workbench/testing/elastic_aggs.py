"""Turn the documents that a search found into its aggregations: buckets, extremes and top hits, as Elasticsearch answers them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workbench.testing.elastic_search import Doc, Key, _hit, _no_words, _order, _sorted
from workbench.testing.lucene import DATES, WORDS, Index, Refusal, dated

__all__ = ["aggregated"]

_MOST = 65_536  # buckets; search.max_buckets


def aggregated(indices: Sequence[Index], docs: Sequence[Doc], aggs: Mapping[str, Any]) -> dict[str, Any]:
    """Return each aggregation of some documents by its name; raises `Refusal` for what is not known."""
    found = {}
    for name, each in aggs.items():
        inner = each.get("aggs") or each.get("aggregations") or {}
        kinds = [key for key in each if key not in ("aggs", "aggregations", "meta")]
        if len(kinds) != 1:
            raise Refusal(f"Found two aggregation type definitions in [{name}]: {kinds}")
        kind, body = kinds[0], each[kinds[0]]
        if kind in _SINGLE:
            if inner:
                raise Refusal(
                    f"Aggregator [{name}] of type [{kind}] cannot accept sub-aggregations",
                    "illegal_argument_exception",
                    whole=True,
                )
            found[name] = _SINGLE[kind](indices, docs, body)
        elif kind in _BUCKETS:
            found[name] = _BUCKETS[kind](indices, docs, body, inner)
        else:
            raise Refusal(f"Unknown aggregation type [{kind}]")
    return found


def _kind(indices: Sequence[Index], name: str) -> str:
    kinds = {index.types[name] for index in indices if name in index.types}
    if kinds & WORDS:
        raise Refusal(_no_words(name), "illegal_argument_exception")
    return next(iter(kinds), "keyword")


def _only(body: Mapping[str, Any], kind: str, known: Sequence[str]) -> None:
    if unknown := set(body) - set(known):
        raise Refusal(f"[{kind}] unknown field [{min(unknown)}]", "x_content_parse_exception")


# -- one value ------------------------------------------------------------------------------------------------------------


def _extreme(
    pick: Callable[..., Any], word: str
) -> Callable[[Sequence[Index], Sequence[Doc], Mapping[str, Any]], dict[str, Any]]:
    def work(indices: Sequence[Index], docs: Sequence[Doc], body: Mapping[str, Any]) -> dict[str, Any]:
        _only(body, word, ("field", "format"))
        kind = _kind(indices, body["field"])
        values = [value for doc in docs for value in doc.values(body["field"])]
        if not values:
            return {"value": None}
        value = pick(values)
        if kind not in DATES:
            return {"value": float(value)}
        millis = value / 1e6 if kind == "date_nanos" else value
        return {"value": float(millis), "value_as_string": dated(value, kind, str(body.get("format", "")))}

    return work


def _count(indices: Sequence[Index], docs: Sequence[Doc], body: Mapping[str, Any]) -> dict[str, Any]:
    _only(body, "value_count", ("field",))
    _kind(indices, body["field"])
    return {"value": sum(len(doc.values(body["field"])) for doc in docs)}


def _cardinality(indices: Sequence[Index], docs: Sequence[Doc], body: Mapping[str, Any]) -> dict[str, Any]:
    _only(body, "cardinality", ("field", "precision_threshold", "execution_hint"))
    _kind(indices, body["field"])
    return {"value": len({value for doc in docs for value in doc.values(body["field"])})}


def _top_hits(indices: Sequence[Index], docs: Sequence[Doc], body: Mapping[str, Any]) -> dict[str, Any]:
    known = (
        "size",
        "from",
        "sort",
        "_source",
        "fields",
        "docvalue_fields",
        "stored_fields",
        "seq_no_primary_term",
        "version",
        "track_scores",
    )
    _only(body, "top_hits", known)
    start, size = int(body.get("from", 0)), int(body.get("size", 3))
    if size + start > 100:
        raise Refusal(
            "Top hits result window is too large, the top hits aggregator's from + size must be less than or equal to: [100]"
            f" but was [{size + start}].",
            "illegal_argument_exception",
        )
    order: list[Key] = _order(indices, body.get("sort"))
    rows = (_sorted(docs, order) if order else [(doc, []) for doc in docs])[start : start + size]
    hits = [_hit(doc, key, body, bool(order)) for doc, key in rows]
    return {
        "hits": {
            "total": {"value": len(docs), "relation": "eq"},
            "max_score": None if order or not hits else 1.0,
            "hits": hits,
        }
    }


def _top_metrics(indices: Sequence[Index], docs: Sequence[Doc], body: Mapping[str, Any]) -> dict[str, Any]:
    _only(body, "top_metrics", ("metrics", "sort", "size"))
    order = _order(indices, body["sort"])
    metrics = body["metrics"] if isinstance(body["metrics"], list) else [body["metrics"]]
    top = []
    for doc, key in _sorted(docs, order)[: int(body.get("size", 1))]:
        told: dict[str, Any] = {}
        for each in metrics:
            kind, values = _kind(indices, each["field"]), doc.values(each["field"])
            told[each["field"]] = None if not values else dated(values[0], kind) if kind in DATES else values[0]
        kinds = [_kind(indices, part.name) for part in order]
        sort = [dated(value, kind) if kind in DATES else value for kind, value in zip(kinds, key, strict=True)]
        top.append({"sort": sort, "metrics": told})
    return {"top": top}


_SINGLE: dict[str, Callable[[Sequence[Index], Sequence[Doc], Any], dict[str, Any]]] = {
    "min": _extreme(min, "min"),
    "max": _extreme(max, "max"),
    "sum": _extreme(sum, "sum"),
    "value_count": _count,
    "cardinality": _cardinality,
    "top_hits": _top_hits,
    "top_metrics": _top_metrics,
}


# -- buckets --------------------------------------------------------------------------------------------------------------


def _bucket(indices: Sequence[Index], docs: Sequence[Doc], inner: Mapping[str, Any]) -> dict[str, Any]:
    return {"doc_count": len(docs), **(aggregated(indices, docs, inner) if inner else {})}


def _matching(indices: Sequence[Index], docs: Sequence[Doc], query: Mapping[str, Any]) -> list[Doc]:
    every = {id(index): index.matching(query) for index in indices}
    return [doc for doc in docs if doc.at in every[id(doc.index)]]


def _filter(indices: Sequence[Index], docs: Sequence[Doc], body: Any, inner: Mapping[str, Any]) -> dict[str, Any]:
    return _bucket(indices, _matching(indices, docs, body), inner)


def _filters(indices: Sequence[Index], docs: Sequence[Doc], body: Any, inner: Mapping[str, Any]) -> dict[str, Any]:
    _only(body, "filters", ("filters",))
    if isinstance(body["filters"], list):
        return {"buckets": [_bucket(indices, _matching(indices, docs, query), inner) for query in body["filters"]]}
    return {
        "buckets": {name: _bucket(indices, _matching(indices, docs, query), inner) for name, query in body["filters"].items()}
    }


def _shown(value: Any, kind: str) -> Any:
    """Return a value as buckets have it: nanoseconds are milliseconds there."""
    return value // 1_000_000 if kind == "date_nanos" else value


def _terms(indices: Sequence[Index], docs: Sequence[Doc], body: Any, inner: Mapping[str, Any]) -> dict[str, Any]:
    _only(
        body,
        "terms",
        ("field", "size", "order", "missing", "shard_size", "execution_hint", "collect_mode", "include", "min_doc_count"),
    )
    if body.get("include") is not None or body.get("min_doc_count", 1) != 1:
        raise Refusal("[terms] include and min_doc_count are not known here")
    name = body["field"]
    kind = _kind(indices, name)
    groups: dict[Any, list[Doc]] = {}
    for doc in docs:
        for value in dict.fromkeys(
            [_shown(each, kind) for each in doc.values(name)] or ([body["missing"]] if "missing" in body else [])
        ):
            groups.setdefault(value, []).append(doc)
    (by, way), = (body.get("order") or {"_count": "desc"}).items()  # fmt: skip
    if by not in ("_count", "_key"):
        raise Refusal(f"[terms] an order by [{by}] is not known here")
    keys = sorted(groups)
    keys = (
        sorted(keys, key=lambda key: len(groups[key]), reverse=way == "desc")
        if by == "_count"
        else keys[:: -1 if way == "desc" else 1]
    )
    size = int(body.get("size", 10))
    if size > _MOST:
        raise Refusal(
            f"Trying to create too many buckets. Must be less than or equal to: [{_MOST}]", "too_many_buckets_exception"
        )
    buckets = []
    for key in keys[:size]:
        told: dict[str, Any] = {"key": key}
        if kind in DATES:
            told["key_as_string"] = dated(key, "date")
        buckets.append(told | _bucket(indices, groups[key], inner))
    rest = sum(len(groups[key]) for key in keys[size:])
    return {"doc_count_error_upper_bound": 0, "sum_other_doc_count": rest, "buckets": buckets}


def _composite(indices: Sequence[Index], docs: Sequence[Doc], body: Any, inner: Mapping[str, Any]) -> dict[str, Any]:
    _only(body, "composite", ("sources", "size", "after"))
    sources: list[tuple[str, Mapping[str, Any]]] = []
    for each in body["sources"]:
        (name, given), = each.items()  # fmt: skip
        if set(given) != {"terms"}:
            raise Refusal(f"[composite] a source of the kind {sorted(given)} is not known here")
        _only(given["terms"], "composite", ("field", "missing_bucket", "order", "missing_order"))
        sources.append((name, given["terms"]))
    signs = [-1 if given.get("order") == "desc" else 1 for _, given in sources]
    for _, given in sources:
        _kind(indices, given["field"])
    groups: dict[tuple[Any, ...], list[Doc]] = {}
    for doc in docs:
        keys: list[tuple[Any, ...]] = [()]
        for _, given in sources:
            values = list(dict.fromkeys(doc.values(given["field"]))) or ([None] if given.get("missing_bucket") else [])
            keys = [(*key, value) for key in keys for value in values]
        for key in keys:
            groups.setdefault(key, []).append(doc)

    def rank(key: tuple[Any, ...]) -> list[_Ranked]:
        return [_Ranked(value, sign) for value, sign in zip(key, signs, strict=True)]

    ordered = sorted(groups, key=rank)
    if (after := body.get("after")) is not None:
        if set(after) != {name for name, _ in sources}:
            raise Refusal("[after] has not the keys of the sources", "illegal_argument_exception")
        last = rank(tuple(after[name] for name, _ in sources))
        ordered = [key for key in ordered if rank(key) > last]
    buckets = [
        {"key": {name: value for (name, _), value in zip(sources, key, strict=True)}, **_bucket(indices, groups[key], inner)}
        for key in ordered[: int(body.get("size", 10))]
    ]
    return ({"after_key": buckets[-1]["key"]} if buckets else {}) | {"buckets": buckets}


class _Ranked:
    """A value in an order of its own: what is missing comes first, or last when the order is turned round."""

    __slots__ = ("sign", "value")

    def __init__(self, value: Any, sign: int) -> None:
        self.value, self.sign = value, sign

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Ranked) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __lt__(self, other: _Ranked) -> bool:
        if self.value is None or other.value is None:
            return (self.value is None and other.value is not None) == (self.sign > 0) and self.value != other.value
        return bool((self.value < other.value) if self.sign > 0 else (self.value > other.value))


_BUCKETS: dict[str, Callable[[Sequence[Index], Sequence[Doc], Any, Mapping[str, Any]], dict[str, Any]]] = {
    "filter": _filter,
    "filters": _filters,
    "terms": _terms,
    "composite": _composite,
}
