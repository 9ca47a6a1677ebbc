"""
Turn a window into the range queries that a server takes, and their answers into one: PromQL text, steps, chunks, merged bytes.

Pure: nothing here reaches a server. Answers stay the bytes that the server sent; series of several chunks are joined without decoding
a number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor
from typing import Any, NamedTuple

from workbench.sources.prometheus.http import QueryError, refused, shown

__all__ = [
    "MOST_POINTS",
    "Chunk",
    "Grid",
    "Matrix",
    "any_of",
    "choose_step",
    "chunks",
    "duration",
    "equals",
    "join",
    "literal",
    "quote",
    "renamed",
    "selector",
    "shortened",
    "split_matrix",
    "vector",
    "warnings_of",
    "without_markers",
]

MOST_POINTS = (
    10_000  # for each series in one answer; Prometheus refuses more than 11,000 (prometheus#2253), VictoriaMetrics 30,000
)
# steps that people read off an axis and that divide an hour or a day
STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)

# -- PromQL text ----------------------------------------------------------------------------------------------------------


def quote(text: str) -> str:
    r"""
    Return text as a PromQL string in double quotes, whatever is in it.

    Examples
    --------
    >>> quote('a"b\\')
    '"a\\"b\\\\"'
    """
    clean = text.encode("utf-8", "replace").decode("utf-8")  # a torn surrogate has no UTF-8
    return '"' + "".join(_escaped(char) for char in clean) + '"'


def _escaped(char: str) -> str:
    if char in '\\"':
        return "\\" + char
    if char == "\n":
        return "\\n"
    # control characters and line separators would be taken by proxies and logs for what they are
    return f"\\u{ord(char):04x}" if ord(char) < 32 or char in "\x7f\u2028\u2029" else char


def literal(text: str) -> str:
    """Return a regular expression (RE2) that matches exactly this text."""
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", text)


def equals(label: str, value: str) -> str:
    """Return the matcher of one value."""
    return f"{label}={quote(value)}"


def any_of(label: str, values: Iterable[str]) -> str:
    """Return the matcher of any of some values; the server looks up plain alternatives instead of running the expression."""
    known = sorted(set(values))
    if len(known) == 1:
        return equals(label, known[0])
    return f"{label}=~{quote('|'.join(literal(value) for value in known))}"


_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_SOME = re.compile(r'(?<==~)"((?:[^"\\]|\\.)*)"')
# a character as it stands in a PromQL string that holds an expression: escaped for the expression, for the string, or itself
_CHAR = re.compile(r"\\\\(?:\\\\|[.+*?()|\[\]{}^$])|\\u[0-9a-f]{4}|\\.|[^\\]", re.DOTALL)


def shortened(query: str) -> str:
    """
    Return a query in which the alternatives of a matcher share what they have in common: a fraction of the text, the same answer.

    Used where a server takes no longer text. Only expressions as `any_of` writes them are touched.

    Examples
    --------
    >>> shortened('up{node=~"gpu-001|gpu-002|gpu-011"}')
    'up{node=~"gpu-0(0[12]|11)"}'
    """

    def shorter(found: re.Match[str]) -> str:
        chars = _CHAR.findall(found[1])
        if not {*".+*?()[]{}^$"}.isdisjoint(chars):  # not only alternatives: somebody else's expression
            return found[0]
        tree: dict[str, Any] = {}
        at = tree
        for char in [*chars, "|"]:
            if char == "|":
                at[""] = {}
                at = tree
            else:
                at = at.setdefault(char, {})
        text = f'"{_alternatives(tree)}"'
        return text if len(text) < len(found[0]) else found[0]

    return _SOME.sub(shorter, query)


def _alternatives(tree: dict[str, Any]) -> str:
    """Return the expression of a tree of characters in which an empty one ends a value."""
    text = ""
    while len(tree) == 1:
        ((char, tree),) = tree.items()
        text += char
        if not char:
            return text
    ways: dict[str, list[str]] = {}  # how it goes on -> the characters after which it goes on so
    for char, below in sorted(tree.items()):
        ways.setdefault(_alternatives(below) if char else "", []).append(char)
    found = []
    for rest, chars in ways.items():
        one = chars[0] if len(chars) == 1 else f"[{''.join(chars)}]" if all(map(str.isalnum, chars)) else f"({'|'.join(chars)})"
        found.append(one + rest)
    return text + (found[0] if len(found) == 1 else f"({'|'.join(found)})")


def renamed(query: str, names: Mapping[str, str]) -> str:
    """Return a query with functions called by other names; what stands in strings is left alone."""
    parts, at = [], 0
    for text in (*_STRING.finditer(query), None):
        end = text.start() if text else len(query)
        parts.append(re.sub(r"\b([a-z_]+)(?=\()", lambda found: names.get(found[1], found[1]), query[at:end]))
        parts.append(text[0] if text else "")
        at = text.end() if text else end
    return "".join(parts)


_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


def selector(name: str, matchers: Sequence[str] = ()) -> str:
    """Return a selector; a name in UTF-8 (Prometheus 3) is written as a matcher."""
    if _NAME.fullmatch(name):
        return f"{name}{{{','.join(matchers)}}}" if matchers else name
    return "{" + ",".join([equals("__name__", name), *matchers]) + "}"


def duration(seconds: float) -> str:
    """Return a PromQL duration: whole seconds where it is whole, else milliseconds."""
    return f"{seconds:.0f}s" if seconds == int(seconds) else f"{ceil(seconds * 1000)}ms"


# -- windows --------------------------------------------------------------------------------------------------------------


class Chunk(NamedTuple):
    """One range query: first and last point, both of which it answers for."""

    start: float
    end: float


def choose_step(since: float, until: float, points: int = 1200, least: float = 1.0) -> float:
    """
    Return the step for a window: readable, at most `points` points, not finer than `least` (the scrape interval).

    Examples
    --------
    >>> choose_step(0, 3600, 120)
    30.0
    """
    span = max(until - since, 0.0)
    need = max(span / max(points, 1), least)
    for step in STEPS:
        if step >= need:
            return float(step)
    return float(ceil(need / 86400) * 86400)


def chunks(since: float, until: float, step: float, most: int = MOST_POINTS) -> list[Chunk]:
    """
    Return the range queries that cover a window: every multiple of `step` in it once, at most `most` in one query.

    Both ends of a range query are answered for, so the next begins one step after the last. Aligned to the step, so that the same
    window asked again hits the server's cache, and chunks of different fields line up.
    """
    if step <= 0 or most < 1:
        raise ValueError("a step and a number of points must be positive")
    first, last = ceil(since / step - 1e-9), floor(until / step + 1e-9)
    last = max(last, first) if until >= since else first - 1
    if first * step > until:
        first = last = floor(until / step + 1e-9)
    return [Chunk(at * step, min(at + most - 1, last) * step) for at in range(first, last + 1, most)]


class Grid(NamedTuple):
    """The points of a range query: the first, how far apart, how many; seconds."""

    start: float
    step: float
    points: int


# -- answers --------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Matrix:
    """
    An answer of range vectors: for each series its labels and its samples as the server wrote them.

    Attributes
    ----------
    series : dict of bytes to bytes
        Inside of the label object → inside of the list of samples: ``[t,"v"],[t,"v"]``.
    histograms : int
        Series that are native histograms; they have no samples here.
    notes : list of str
        The server's warnings and infos, and its word that the answer is partial.
    grid : Grid, optional
        The only moments at which a sample can stand, when they are known: those of a range query.
    """

    series: dict[bytes, bytes] = field(default_factory=dict)
    histograms: int = 0
    notes: list[str] = field(default_factory=list)
    warned: bool = False
    grid: Grid | None = None

    def labels(self) -> Iterator[tuple[dict[str, str], bytes]]:
        """Yield labels and samples of each series."""
        for labels, samples in self.series.items():
            yield json.loads(b"{" + labels + b"}"), samples

    def body(self) -> Iterator[bytes]:
        """Yield the answer as the API writes it, in blocks."""
        block, size = [b'{"status":"success","data":{"resultType":"matrix","result":['], 0
        comma = b""
        for labels, samples in self.series.items():
            block += (comma, _METRIC, labels, _VALUES, samples, b"]}")
            comma = b","
            size += len(samples)
            if size > _BLOCK:
                yield b"".join(block)
                block, size = [], 0
        if self.notes and self.warned:
            block.append(b"]}," + json.dumps({"warnings": self.notes}).encode()[1:-1] + b"}\n")
        else:
            block.append(b"]}}\n")
        yield b"".join(block)


_BLOCK = 1 << 20
_METRIC, _VALUES = b'{"metric":{', b'},"values":['


def split_matrix(body: bytes, query: str = "") -> Matrix:
    """
    Return the series of an answer of ``query_range`` (or of ``query`` with a range selector) without decoding its samples.

    Parameters
    ----------
    body : bytes
        As the server sent it. An unusual layout (spaces, other order) is parsed the slow way.

    Raises
    ------
    QueryError
        The answer is an error, is cut, or is no matrix.
    """
    # inside a JSON string every quote is escaped, so these byte sequences are structure wherever they stand
    parts = body.split(_METRIC)
    head = parts[0]
    if len(parts) == 1 or not head.endswith(b'"result":['):
        return _parsed(body, query)
    tail = parts[-1]
    end = tail.find(b"]]", tail.find(_VALUES))
    parts[-1] = tail[: end + 3] + b","  # with the brace that closes the series, so that it looks like the others
    matrix = Matrix()
    for part in parts[1:]:
        at = part.find(_VALUES)
        start = at + len(_VALUES)
        # a colon after the values would be another member, such as the native histograms of a series that has both
        if at < 0 or part[start : start + 1] != b"[" or not part.endswith(b"]]},") or part.find(b":", start) >= 0:
            return _parsed(body, query)
        labels, samples = part[:at], part[start:-3]
        known = matrix.series.get(labels)
        matrix.series[labels] = samples if known is None else known + b"," + samples
    try:
        envelope = json.loads(head + tail[end + 3 :])
    except ValueError:
        return _parsed(body, query)
    _envelope(envelope, matrix, query)
    return matrix


def _envelope(data: Any, matrix: Matrix, query: str) -> Any:
    """Check an answer and note what the server says beside the data; return the data."""
    if not isinstance(data, dict):
        raise QueryError("the answer is no object", query=query)
    if data.get("status") == "error":
        raise refused(data, query, 200)
    inner = data.get("data")
    if not isinstance(inner, dict) or "resultType" not in inner:
        raise QueryError(f"the answer has no result: {shown(json.dumps(data), 120)}", query=query)
    warnings = warnings_of(data)
    matrix.warned = bool(warnings)
    matrix.notes += [*warnings, *(shown(str(note)) for note in data.get("infos") or ())]
    return inner


def warnings_of(data: Mapping[str, Any]) -> list[str]:
    """Return what a server says of an answer that is not all it should be; its infos are not of that kind."""
    notes = data.get("warnings")
    found = [shown(str(note)) for note in notes] if isinstance(notes, list) else [shown(str(notes))] if notes else []
    if data.get("isPartial") is True:  # VictoriaMetrics in a cluster
        found.append("the answer is partial: some storage nodes did not answer")
    return found


def _parsed(body: bytes, query: str) -> Matrix:
    try:
        data = json.loads(body)
    except ValueError:
        raise QueryError(
            f"the answer ({len(body)} bytes) is no JSON, or was cut: …{shown(body[-60:])}", query=query, status=200
        ) from None
    matrix = Matrix()
    inner = _envelope(data, matrix, query)
    if inner["resultType"] != "matrix":
        raise QueryError(f"the answer is a {shown(str(inner['resultType']))}, no range", query=query)
    for item in inner.get("result") or ():
        labels = json.dumps(item.get("metric") or {}, separators=(",", ":"), ensure_ascii=False).encode()[1:-1]
        if "histograms" in item:
            matrix.histograms += 1
        if item.get("values"):
            matrix.series[labels] = json.dumps(item["values"], separators=(",", ":")).encode()[1:-1]
    return matrix


def join(parts: Sequence[Matrix]) -> Matrix:
    """
    Return chunks of one query, in order of time, as one answer: a sample that ends one chunk and begins the next is there once.

    A series keeps its place by its first appearance; one that ends or begins between chunks is kept.
    """
    if len(parts) == 1:
        return parts[0]
    pieces: dict[bytes, list[bytes]] = {}
    whole = Matrix()
    for part in parts:
        whole.histograms = max(whole.histograms, part.histograms)
        whole.warned |= part.warned
        whole.notes += [note for note in part.notes if note not in whole.notes]
        for labels, samples in part.series.items():
            known = pieces.setdefault(labels, [])
            if known:
                first, _, rest = samples.partition(b"],[")
                # range selectors are closed on the left before Prometheus 3
                if known[-1].rpartition(b"],[")[2].strip(b"[]") == first.strip(b"[]"):
                    if not rest:
                        continue
                    samples = b"[" + rest
            known.append(samples)
    whole.series = {labels: b",".join(known) for labels, known in pieces.items()}
    return whole


_MARKER = re.compile(rb'\[[-+.\de]+,"NaN"\],?')


def without_markers(matrix: Matrix) -> Matrix:
    """
    Return raw samples without NaN; a series that has nothing else is left out.

    VictoriaMetrics drops a NaN that an exporter tells and keeps the marker that a series ended, and gives that as a NaN beside the
    samples: one interval after the last one.
    """
    if any(b'"NaN"' in samples for samples in matrix.series.values()):
        left = {labels: _MARKER.sub(b"", samples).rstrip(b",") for labels, samples in matrix.series.items()}
        matrix.series = {labels: samples for labels, samples in left.items() if samples}
    return matrix


def vector(data: Mapping[str, Any], query: str = "") -> tuple[list[tuple[dict[str, str], float]], list[str]]:
    """Return (labels, value) of each row of an instant answer, and the server's warnings (not its infos)."""
    matrix = Matrix()
    inner = _envelope(data, matrix, query)
    result = inner.get("result") or []
    if inner["resultType"] in ("scalar", "string"):
        return [({}, float(result[1]))], matrix.notes if matrix.warned else []
    try:
        rows = [(dict(item.get("metric") or {}), float(item["value"][1])) for item in result if "value" in item]
    except (TypeError, ValueError, KeyError, IndexError, AttributeError):
        raise QueryError("the answer has rows that are no samples", query=query) from None
    return rows, matrix.notes if matrix.warned else []
