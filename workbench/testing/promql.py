"""
Turn a PromQL query into what Prometheus would answer from a list of series.

Semantics are those of Prometheus 2: a range is closed on both sides, a sample counts for five minutes.
"""

from __future__ import annotations

import itertools
import math
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.testing.promql_tree import NAME, SETS, Node, PromqlError, parse

__all__ = ["Row", "Series", "evaluate", "selected"]

LOOKBACK = 300.0  # seconds; --query.lookback-delta's default
Row = tuple[dict[str, str], float]
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq, "!=": operator.ne, ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_AGGREGATIONS: dict[str, Callable[[list[float]], float]] = {
    "sum": math.fsum,
    "min": lambda values: min((value for value in values if value == value), default=math.nan),
    "max": lambda values: max((value for value in values if value == value), default=math.nan),
    "avg": lambda values: math.fsum(values) / len(values),
    "count": lambda values: float(len(values)),
    "group": lambda values: 1.0,
}
_OVER_TIME: dict[str, Callable[[list[float]], float]] = {
    "count_over_time": lambda values: float(len(values)),
    "last_over_time": lambda values: values[-1],
    "present_over_time": lambda values: 1.0,
    "sum_over_time": math.fsum,
    "avg_over_time": lambda values: math.fsum(values) / len(values),
    "max_over_time": _AGGREGATIONS["max"],
    "min_over_time": _AGGREGATIONS["min"],
    "changes": lambda values: float(sum(a != b and not (a != a and b != b) for a, b in itertools.pairwise(values))),
    "resets": lambda values: float(sum(b < a for a, b in itertools.pairwise(values))),
}
_PLAIN: dict[str, Callable[[float], float]] = {"abs": abs, "ceil": math.ceil, "floor": math.floor}


@dataclass(slots=True)
class Series:
    """Samples of one series in the order of their times (seconds); the name is the label ``__name__``."""

    labels: dict[str, str]
    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def window(self, since: float, until: float) -> tuple[list[float], list[float]]:
        """Return times and values in a window, both ends included."""
        # times are milliseconds on the server: a microsecond is rounding
        first, last = bisect_left(self.times, since - 1e-6), bisect_right(self.times, until + 1e-6)
        return self.times[first:last], self.values[first:last]


def selected(series: Sequence[Series], text: str) -> list[Series]:
    """Return the series that a selector such as ``{__name__=~"DCGM_.+"}`` names."""
    node = parse(text)
    if node.kind != "selector":
        raise PromqlError(f'invalid parameter "match[]": parse error: {text!r} is no selector')
    return _matching(series, node)


def _matching(series: Sequence[Series], node: Node) -> list[Series]:
    return [one for one in series if all(each.fits(one.labels) for each in node.matchers)]


def evaluate(series: Sequence[Series], node: Node, at: float) -> float | str | list[Row] | list[Series]:
    """
    Return a query's answer at a moment: a number, a text, rows of (labels, value), or series of samples for a range.

    Raises
    ------
    PromqlError
        Of the kind ``execution`` for what only shows in the data.
    """
    told: float | str | list[Row] | list[Series] = _at(series, node, at)
    return told


def _at(series: Sequence[Series], node: Node, at: float) -> Any:
    if node.kind == "number":
        return node.number
    if node.kind == "string":
        return node.word
    if node.kind == "selector":
        return [(dict(one.labels), value) for one, _, value in _instant(series, node, at)]
    if node.kind == "range":
        return _ranged(series, node, at)
    if node.kind == "subquery":
        return _subquery(series, node, at)
    if node.kind == "aggregate":
        return _aggregated(series, node, at)
    if node.kind == "call":
        return _called(series, node, at)
    return _combined(node, _at(series, node.parts[0], at), _at(series, node.parts[1], at))


def _instant(series: Sequence[Series], node: Node, at: float) -> list[tuple[Series, float, float]]:
    found = []
    for one in _matching(series, node):
        last = bisect_right(one.times, at + 1e-6) - 1
        if last >= 0 and one.times[last] > at - LOOKBACK:
            found.append((one, one.times[last], one.values[last]))
    return found


def _ranged(series: Sequence[Series], node: Node, at: float) -> list[Series]:
    found = [Series(one.labels, *one.window(at - node.number, at)) for one in _matching(series, node.parts[0])]
    return [one for one in found if one.times]


def _subquery(series: Sequence[Series], node: Node, at: float) -> list[Series]:
    rows: dict[tuple[tuple[str, str], ...], Series] = {}
    first = math.ceil((at - node.number) / node.step - 1e-9)
    for number in range(first, math.floor(at / node.step + 1e-9) + 1):
        moment = number * node.step
        told = _at(series, node.parts[0], moment)
        for labels, value in [({}, told)] if isinstance(told, float) else told:
            one = rows.setdefault(tuple(sorted(labels.items())), Series(labels))
            one.times.append(moment)
            one.values.append(value)
    return list(rows.values())


def _called(series: Sequence[Series], node: Node, at: float) -> Any:
    inner = node.parts[0]
    if node.word == "timestamp" and inner.kind == "selector":
        return _unique([(_nameless(one.labels), moment) for one, moment, _ in _instant(series, inner, at)])
    told = _at(series, inner, at)
    if node.word in _OVER_TIME:
        work = _OVER_TIME[node.word]
        keep = node.word == "last_over_time"
        return _unique([(dict(one.labels) if keep else _nameless(one.labels), work(one.values)) for one in told])
    if node.word.startswith("absent"):
        matchers = (inner.parts[0] if inner.parts else inner).matchers
        labels = {each.label: each.value for each in matchers if each.op == "=" and each.label != NAME}
        return [] if told else [(labels, 1.0)]
    if node.word == "vector":
        return [({}, told)]
    if node.word == "scalar":
        return told[0][1] if len(told) == 1 else math.nan
    if node.word == "timestamp":
        return _unique([(_nameless(labels), at) for labels, _ in told])
    return _unique([(_nameless(labels), float(_PLAIN[node.word](value))) for labels, value in told])


def _nameless(labels: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in labels.items() if key != NAME}


def _unique(rows: list[Row]) -> list[Row]:
    if len({tuple(sorted(labels.items())) for labels, _ in rows}) < len(rows):
        raise PromqlError("vector cannot contain metrics with the same labelset", "execution")
    return rows


def _group(labels: Mapping[str, str], names: tuple[str, ...] | None, without: bool) -> tuple[tuple[str, str], ...]:
    if without:
        return tuple(sorted((key, value) for key, value in labels.items() if key != NAME and key not in (names or ())))
    return tuple(sorted((key, labels[key]) for key in names or () if labels.get(key)))


def _aggregated(series: Sequence[Series], node: Node, at: float) -> list[Row]:
    told = _at(series, node.parts[-1], at)
    if not isinstance(told, list):
        raise PromqlError(f"parse error: expected type instant vector in aggregation expression, got scalar ({node.word})")
    groups: dict[tuple[tuple[str, str], ...], list[Row]] = {}
    for labels, value in told:
        groups.setdefault(_group(labels, node.labels, node.without), []).append((labels, value))
    if node.word in ("topk", "bottomk"):
        many, sign = int(_at(series, node.parts[0], at)), -1 if node.word == "topk" else 1
        # NaN comes last both ways
        key = lambda row: (row[1] != row[1], sign * row[1])  # noqa: E731
        return [row for rows in groups.values() for row in sorted(rows, key=key)[: max(many, 0)]]
    if node.word == "quantile":
        at_rank = float(_at(series, node.parts[0], at))
        return [(dict(key), _quantile(at_rank, [value for _, value in rows])) for key, rows in groups.items()]
    work = _AGGREGATIONS[node.word]
    return [(dict(key), float(work([value for _, value in rows]))) for key, rows in groups.items()]


def _quantile(rank: float, values: list[float]) -> float:
    if rank < 0 or rank > 1:
        return -math.inf if rank < 0 else math.inf
    ordered = sorted(values, key=lambda value: (value == value, value))  # NaN counts as the smallest
    place = rank * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] * (1 - (place - low)) + ordered[high] * (place - low)


def _calculated(word: str, a: float, b: float) -> float:
    if word in "+-*":
        return {"+": a + b, "-": a - b, "*": a * b}[word]
    if b == 0:
        return math.nan if word == "%" or a == 0 or a != a else math.copysign(math.inf, a)
    return math.fmod(a, b) if word == "%" else a / b


def _combined(node: Node, left: Any, right: Any) -> Any:
    word = node.word
    if word in SETS:
        return _sets(node, left, right)
    compare = _COMPARE.get(word)
    if isinstance(left, float) and isinstance(right, float):
        if compare:
            raise PromqlError("parse error: comparisons between scalars must use BOOL modifier")
        return _calculated(word, left, right)
    if isinstance(left, list) and isinstance(right, list):
        return _matched(node, left, right)
    rows = []
    for labels, value in left if isinstance(left, list) else right:
        a, b = (value, right) if isinstance(left, list) else (left, value)
        if compare is None:
            rows.append((_nameless(labels), _calculated(word, a, b)))
        elif compare(a, b):
            rows.append((labels, value))
    return rows


def _matched(node: Node, left: list[Row], right: list[Row]) -> list[Row]:
    others: dict[tuple[tuple[str, str], ...], float] = {}
    for labels, value in right:
        key = _group(labels, node.labels, node.without)
        if key in others:
            raise PromqlError("found duplicate series for the match group on the right hand-side of the operation", "execution")
        others[key] = value
    rows: list[Row] = []
    seen: set[tuple[tuple[str, str], ...]] = set()
    for labels, value in left:
        key = _group(labels, node.labels, node.without)
        if key not in others:
            continue
        if key in seen:
            raise PromqlError(
                "multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)", "execution"
            )
        seen.add(key)
        if compare := _COMPARE.get(node.word):
            if compare(value, others[key]):
                rows.append((labels, value))
        else:
            rows.append((_nameless(labels), _calculated(node.word, value, others[key])))
    return rows


def _sets(node: Node, left: Any, right: Any) -> list[Row]:
    if not (isinstance(left, list) and isinstance(right, list)):
        raise PromqlError(f"parse error: set operator {node.word!r} not allowed in binary scalar expression")
    there = {_group(labels, node.labels, node.without) for labels, _ in right}
    if node.word == "or":
        mine = {_group(labels, node.labels, node.without) for labels, _ in left}
        return left + [row for row in right if _group(row[0], node.labels, node.without) not in mine]
    return [row for row in left if (_group(row[0], node.labels, node.without) in there) == (node.word == "and")]
