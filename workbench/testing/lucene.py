"""
Turn documents into an index that answers the queries of Elasticsearch's query language which the workbench asks.

A text is cut into words as the standard analyzer does. A query that is not known is refused, as the server refuses it.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

__all__ = ["DATES", "NUMBERS", "WORDS", "Index", "Refusal", "dated", "flat", "moment_of", "tokens"]

WORDS = frozenset({"text", "match_only_text"})
DATES = frozenset({"date", "date_nanos"})
NUMBERS = frozenset({"long", "integer", "short", "byte", "double", "float"})
_EXACT = frozenset({"keyword", "wildcard", "constant_keyword", "ip", "boolean"})
# letters joined by . : ' and digits joined by . , ; are one word for Unicode's word breaks, and _ joins whatever it stands between
_WORD = re.compile(r"\w+(?:(?:(?<=[^\W\d_])[.:'’·․](?=[^\W\d_])|(?<=\d)[.,;'’․](?=\d))\w+)*")
Ordinals = frozenset[int]
_OF_A_SHARD = ("query_shard_exception", "illegal_argument_exception", "too_many_buckets_exception", "parse_exception")


class Refusal(Exception):
    """
    What the server answers instead: HTTP status, its word for the error, and a sentence.

    `whole`: the request cannot be read; otherwise a shard refused it, which the server says in other words.
    """

    def __init__(self, reason: str, kind: str = "parsing_exception", status: int = 400, *, whole: bool | None = None) -> None:
        super().__init__(reason)
        self.reason, self.kind, self.status = reason, kind, status
        self.whole = kind not in _OF_A_SHARD if whole is None else whole


@lru_cache(maxsize=200_000)
def tokens(text: str) -> tuple[str, ...]:
    """Return the words of a text as the standard analyzer makes them."""
    return tuple(word for word in _WORD.findall(text.lower()) if word.strip("_"))


def flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of each field of a document."""
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value


def moment_of(value: Any, kind: str = "date") -> int:
    """Return a date as the index keeps it: milliseconds, of ``date_nanos`` nanoseconds."""
    scale = 1_000_000 if kind == "date_nanos" else 1
    if isinstance(value, bool) or value is None:
        raise Refusal(f"failed to parse date field [{value}]", "parse_exception")
    if isinstance(value, (int, float)):
        return int(value) * scale
    text = str(value)
    if re.fullmatch(r"-?\d{5,}", text):
        return int(text) * scale
    found = re.fullmatch(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d)?)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?)?", text)
    if not found:
        raise Refusal(
            f"failed to parse date field [{text}] with format [strict_date_optional_time||epoch_millis]", "parse_exception"
        )
    whole = datetime.fromisoformat(f"{found[1]}T{found[2] or '00:00'}{(found[4] or 'Z').replace('Z', '+00:00')}")
    nanos = int((found[3] or "0").ljust(9, "0"))
    seconds = int(whole.timestamp())
    return seconds * 1_000_000_000 + nanos if kind == "date_nanos" else seconds * 1000 + nanos // 1_000_000


def dated(value: int, kind: str, form: str = "") -> str:
    """Return a kept date in a format of the server's: ``epoch_millis``, or ISO in UTC with milliseconds (or all nanoseconds)."""
    nanos = value if kind == "date_nanos" else value * 1_000_000
    if form == "epoch_millis":
        return str(nanos // 1_000_000)
    if form not in ("", "strict_date_optional_time", "strict_date_optional_time_nanos", "date_optional_time"):
        raise Refusal(f"Invalid format: [{form}]", "illegal_argument_exception")
    seconds, rest = divmod(nanos, 1_000_000_000)
    fraction = f"{rest:09d}"
    while len(fraction) > 3 and fraction.endswith("0"):
        fraction = fraction[:-1]
    if not form.endswith("nanos"):
        fraction = fraction[:3]
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{fraction}Z"


class Index:
    """
    Documents and their fields.

    Parameters
    ----------
    name : str
        e.g. ``filebeat-2025.08.05``.
    mapping : mapping of str
        Field (dotted) → type; what a document has beside them is ``keyword``, ``long`` or ``double``, by its value.
    documents : iterable of mapping
        As they would be sent to the server.
    """

    def __init__(self, name: str, mapping: Mapping[str, str], documents: Iterable[Mapping[str, Any]] = ()) -> None:
        self.name = name
        self.types = dict(mapping)
        self.sources: list[Mapping[str, Any]] = []
        self.fields: list[dict[str, list[Any]]] = []
        self._postings: dict[str, dict[Any, list[int]]] = {}
        self.add(documents)

    def add(self, documents: Iterable[Mapping[str, Any]]) -> None:
        """Add documents."""
        for document in documents:
            fields: dict[str, list[Any]] = {}
            for name, value in flat(document):
                values = value if isinstance(value, list) else [value]
                kind = self.types.setdefault(name, _type_of(values[0] if values else ""))
                fields[name] = [self.kept(kind, each) for each in values]
            self.sources.append(document)
            self.fields.append(fields)
        self._postings.clear()

    @staticmethod
    def kept(kind: str, value: Any) -> Any:
        """Return a value as a field of a type keeps it."""
        if kind in DATES:
            return moment_of(value, kind)
        if kind in NUMBERS:
            return float(value) if kind in ("double", "float") else int(value)
        return str(value)

    def values(self, name: str) -> dict[Any, list[int]]:
        """Return value (of a text: word) → documents that have it, each once."""
        found = self._postings.get(name)
        if found is None:
            found = self._postings[name] = {}
            words = self.types.get(name) in WORDS
            for at, fields in enumerate(self.fields):
                mine = [self.name] if name == "_index" else fields.get(name, ())
                for each in dict.fromkeys(word for value in mine for word in (tokens(value) if words else (value,))):
                    found.setdefault(each, []).append(at)
        return found

    @property
    def all(self) -> Ordinals:
        """All documents."""
        return frozenset(range(len(self.fields)))

    # -- queries ----------------------------------------------------------------------------------------------------------

    def matching(self, query: Mapping[str, Any]) -> Ordinals:
        """Return the documents that match a query; raises `Refusal`."""
        if len(query) != 1:
            raise Refusal(f"[{next(iter(query), '')}] malformed query, expected [END_OBJECT] but found [FIELD_NAME]")
        (kind, body), = query.items()  # fmt: skip
        work: Callable[[Any], Ordinals] | None = getattr(self, f"_{kind}", None) if kind in _QUERIES else None
        if work is None:
            raise Refusal(f"unknown query [{kind}]")
        return work(body)

    def _match_all(self, body: Any) -> Ordinals:
        return self.all

    def _match_none(self, body: Any) -> Ordinals:
        return frozenset()

    def _bool(self, body: Mapping[str, Any]) -> Ordinals:
        if unknown := set(body) - {"filter", "must", "should", "must_not", "minimum_should_match", "boost"}:
            raise Refusal(f"[bool] query does not support [{min(unknown)}]")
        found = self.all
        needed = [each for key in ("filter", "must") for each in _many(body.get(key))]
        for each in needed:
            found &= self.matching(each)
        if should := _many(body.get("should")):
            least = int(body.get("minimum_should_match", 0 if needed else 1))
            if least == 1:
                found &= frozenset().union(*(self.matching(each) for each in should))
            elif least > 1:
                every = [self.matching(each) for each in should]
                found = frozenset(at for at in found if sum(at in one for one in every) >= least)
            else:
                for each in should:
                    self.matching(each)  # only scores, but what is not known is refused all the same
        for each in _many(body.get("must_not")):
            found -= self.matching(each)
        return found

    def _constant_score(self, body: Mapping[str, Any]) -> Ordinals:
        return self.matching(body["filter"])

    def _ids(self, body: Mapping[str, Any]) -> Ordinals:
        wanted = set(map(str, body["values"]))
        return frozenset(at for at in range(len(self.fields)) if self.id_of(at) in wanted)

    def id_of(self, at: int) -> str:
        """Return the _id of a document."""
        return f"{self.name}-{at:08d}"

    def _exists(self, body: Mapping[str, Any]) -> Ordinals:
        name = body["field"]
        return frozenset(
            at for at, fields in enumerate(self.fields) if fields.get(name) or any(each.startswith(name + ".") for each in fields)
        )

    def _exactly(self, name: str, value: Any, *, caseless: bool = False, lenient: bool = False) -> Ordinals:
        kind = self.types.get(name, "_index" if name == "_index" else "")
        if not kind:
            return frozenset()
        if kind in DATES or kind in NUMBERS:
            try:
                value = self.kept(kind, value)
            except (ValueError, Refusal):
                if lenient:
                    return frozenset()
                raise Refusal(f'failed to create query: For input string: "{value}"', "query_shard_exception") from None
        else:
            value = str(value).lower() if isinstance(value, bool) else str(value)
        postings = self.values(name)
        if caseless:
            return frozenset(at for key, ats in postings.items() if str(key).lower() == str(value).lower() for at in ats)
        return frozenset(postings.get(value, ()))

    def _term(self, body: Mapping[str, Any]) -> Ordinals:
        name, given = _field(body, "term", ("value", "case_insensitive", "boost"), "value")
        return self._exactly(name, given["value"], caseless=bool(given.get("case_insensitive")))

    def _terms(self, body: Mapping[str, Any]) -> Ordinals:
        names = [name for name in body if name != "boost"]
        if len(names) != 1 or not isinstance(body[names[0]], Sequence) or isinstance(body[names[0]], str):
            raise Refusal("[terms] query requires a field with an array of values")
        if len(body[names[0]]) > 65536:
            raise Refusal(
                f"The number of terms [{len(body[names[0]])}] used in the Terms Query request has exceeded the allowed maximum of [65536]",
                "illegal_argument_exception",
            )
        return frozenset().union(*(self._exactly(names[0], value) for value in body[names[0]]))

    def _match(self, body: Mapping[str, Any]) -> Ordinals:
        name, given = _field(body, "match", ("query", "lenient", "operator", "boost"), "query")
        if self.types.get(name) not in WORDS:
            return self._exactly(name, given["query"], lenient=bool(given.get("lenient")))
        words = [frozenset(self.values(name).get(word, ())) for word in tokens(str(given["query"]))]
        if not words:
            return frozenset()
        every = str(given.get("operator", "or")).lower() == "and"
        return frozenset.intersection(*words) if every else frozenset().union(*words)

    def _match_phrase(self, body: Mapping[str, Any]) -> Ordinals:
        name, given = _field(body, "match_phrase", ("query", "slop", "boost", "analyzer"), "query")
        if given.get("slop") or given.get("analyzer"):
            raise Refusal("[match_phrase] slop and analyzer are not known here")
        if self.types.get(name) not in WORDS:
            return self._exactly(name, given["query"])
        wanted = tokens(str(given["query"]))
        postings = self.values(name)
        lists = [postings.get(word) for word in wanted]
        if not wanted or not all(lists):
            return frozenset()
        found = frozenset.intersection(*(frozenset(ats or ()) for ats in lists))
        if len(wanted) == 1:
            return found
        size = len(wanted)

        def has(at: int) -> bool:
            for value in self.fields[at][name]:
                mine = tokens(value)
                if any(mine[start : start + size] == wanted for start in range(len(mine) - size + 1)):
                    return True
            return False

        return frozenset(at for at in found if has(at))

    def _prefix(self, body: Mapping[str, Any]) -> Ordinals:
        name, given = _field(body, "prefix", ("value", "case_insensitive", "rewrite", "boost"), "value")
        flags = re.IGNORECASE if given.get("case_insensitive") else 0
        return self._like(name, re.compile(re.escape(str(given["value"])) + ".*", flags | re.DOTALL))

    def _wildcard(self, body: Mapping[str, Any]) -> Ordinals:
        name, given = _field(body, "wildcard", ("value", "wildcard", "case_insensitive", "rewrite", "boost"), "value")
        text = str(given.get("value", given.get("wildcard", "")))
        parts = re.findall(r"\\.|[*?]|[^\\*?]+|\\$", text, re.DOTALL)
        pattern = "".join({"*": ".*", "?": "."}.get(part) or re.escape(part[1:] if part[0] == "\\" else part) for part in parts)
        return self._like(name, re.compile(pattern, (re.IGNORECASE if given.get("case_insensitive") else 0) | re.DOTALL))

    def _regexp(self, body: Mapping[str, Any]) -> Ordinals:
        known = ("value", "flags", "case_insensitive", "max_determinized_states", "rewrite", "boost")
        name, given = _field(body, "regexp", known, "value")
        text = str(given["value"])
        if len(text) > 1000:
            raise Refusal(
                f"failed to create query: The length of regex [{len(text)}] used in the Regexp Query request has exceeded the allowed maximum of"
                " [1000]. This maximum can be set by changing the [index.max_regex_length] index level setting.",
                "query_shard_exception",
            )
        flags = re.IGNORECASE if given.get("case_insensitive") else 0
        return self._like(name, _lucene(text, str(given.get("flags", "ALL")), flags | re.DOTALL))

    def _like(self, name: str, pattern: re.Pattern[str]) -> Ordinals:
        kind = self.types.get(name)
        if kind is None and name != "_index":
            return frozenset()
        if kind in NUMBERS or kind in DATES:
            raise Refusal(
                f"Can only use wildcard, prefix and regexp queries on keyword, text and wildcard fields - not on [{name}]"
                f" which is of type [{kind}]",
                "query_shard_exception",
            )
        return frozenset(at for value, ats in self.values(name).items() if pattern.fullmatch(value) for at in ats)

    def _range(self, body: Mapping[str, Any]) -> Ordinals:
        name, given = _field(body, "range", ("gte", "gt", "lte", "lt", "format", "boost", "time_zone", "relation"), "")
        if given.get("time_zone") or given.get("relation"):
            raise Refusal("[range] time_zone and relation are not known here")
        kind = self.types.get(name)
        if kind is None:
            return frozenset()
        limits = [
            (word, self._limit(kind, word, given[word], str(given.get("format", ""))))
            for word in ("gte", "gt", "lte", "lt")
            if word in given
        ]

        def inside(value: Any) -> bool:
            return all(
                {"gte": value >= limit, "gt": value > limit, "lte": value <= limit, "lt": value < limit}[word]
                for word, limit in limits
            )

        return frozenset(at for value, ats in self.values(name).items() if inside(value) for at in ats)

    def _limit(self, kind: str, word: str, value: Any, form: str) -> Any:
        if kind not in DATES:
            try:
                return float(value) if kind in NUMBERS else str(value)
            except ValueError:
                raise Refusal(f'failed to create query: For input string: "{value}"', "query_shard_exception") from None
        if form not in ("", "epoch_millis", "strict_date_optional_time", "strict_date_optional_time_nanos"):
            raise Refusal(f"Invalid format: [{form}]", "illegal_argument_exception")
        limit = moment_of(value, kind)
        # a limit without its fraction stands for all of its millisecond (date_nanos)
        return (
            limit + 999_999
            if kind == "date_nanos" and word in ("lte", "gt") and limit % 1_000_000 == 0 and form == "epoch_millis"
            else limit
        )


_QUERIES = frozenset({
    "match_all", "match_none", "bool", "constant_score", "ids", "exists", "term", "terms", "match", "match_phrase", "prefix", "wildcard",
    "regexp", "range",
})  # fmt: skip


def _many(value: Any) -> list[Mapping[str, Any]]:
    return [] if value is None else list(value) if isinstance(value, list) else [value]


def _field(body: Any, query: str, known: tuple[str, ...], short: str) -> tuple[str, Mapping[str, Any]]:
    """Return the field of a query and what is said of it; the short form has the value alone."""
    if not isinstance(body, Mapping) or len(body) != 1:
        raise Refusal(f"[{query}] query malformed, no or several fields")
    (name, given), = body.items()  # fmt: skip
    if not isinstance(given, Mapping):
        if not short:
            raise Refusal(f"[{query}] query malformed, no start_object after query name")
        return name, {short: given}
    if unknown := set(given) - set(known):
        raise Refusal(f"[{query}] query does not support [{min(unknown)}]")
    if short and short not in given and query != "wildcard":
        raise Refusal(f"No text specified for text query: [{query}] needs [{short}]", "illegal_argument_exception")
    return name, given


@lru_cache(maxsize=1000)
def _lucene(text: str, flags: str, options: int) -> re.Pattern[str]:
    """Return the Python expression of one of Lucene's, in which ^ and $ are letters; its optional operators are refused."""
    pattern, at, inside = "", 0, False
    while at < len(text):
        char = text[at]
        if char == "\\" and at + 1 < len(text):
            at += 1
            pattern += "\\" + text[at] if text[at] in "dDsSwW" else re.escape(text[at])
        elif inside or char not in '^$@#&<>~"':
            inside = char == "[" or (inside and char != "]")
            pattern += char
        elif char in "^$" or flags == "NONE":
            pattern += "\\" + char
        else:
            raise Refusal(f"the operator {char} of regular expressions is not known here", "illegal_argument_exception")
        at += 1
    try:
        return re.compile(pattern, options)
    except re.error as error:
        raise Refusal(f"invalid regular expression: {error}", "illegal_argument_exception") from None


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "long" if isinstance(value, int) else "double" if isinstance(value, float) else "keyword"


def named(patterns: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the names that are among some, or fit one of their patterns."""
    wanted = list(patterns)
    plain = {each for each in wanted if "*" not in each}
    wild = [each for each in wanted if "*" in each]
    return [name for name in names if name in plain or any(fnmatch.fnmatchcase(name, each) for each in wild)]
