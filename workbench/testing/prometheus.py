"""Turn series of samples into a Prometheus: the calls of its HTTP API that the workbench asks, for tests without a server."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from workbench.testing.evidence import Evidence
from workbench.testing.faults import Reply, Request
from workbench.testing.promql import Row, Series, evaluate, selected
from workbench.testing.promql_tree import NAME, Node, PromqlError, parse

__all__ = ["Prometheus", "asked"]

_POINTS = 11_000  # of one series in one answer, as the server has it
_BLOCK = 7200.0  # seconds of samples that the server keeps together: names are told for whole blocks
_STATUS = {"bad_data": 400, "execution": 422, "not_found": 404}


def asked(request: Request) -> list[tuple[str, str]]:
    """Return the parameters of a request, from its address and from the body of a form."""
    form = request.body.decode("utf-8", "replace") if "json" not in request.headers.get("content-type", "") else ""
    return parse_qsl(urlsplit(request.path).query, keep_blank_values=True) + parse_qsl(form, keep_blank_values=True)


class Prometheus:
    """
    A Prometheus that holds some series; to be served by `workbench.testing.FaultServer`.

    Parameters
    ----------
    source : path, Evidence or sequence of Series
        An incident folder, or the series themselves.
    version : str
        What it says it is; the semantics are those of 2.42.

    Attributes
    ----------
    build : dict
        What it says of itself.
    more : dict
        Put beside the data of every answer, e.g. ``{"warnings": […]}``.

    Examples
    --------
    >>> with FaultServer(Prometheus("incident/")) as server:  # doctest: +SKIP
    ...     requests.get(server.url + "/api/v1/query", {"query": "up", "time": "1754424937"})
    """

    def __init__(self, source: str | Path | Evidence | Sequence[Series], *, version: str = "2.42.0") -> None:
        self._series = Evidence.of(source).series if isinstance(source, (str, Path, Evidence)) else list(source)
        self.build: dict[str, str] = {
            "version": version, "revision": "fake", "branch": "HEAD", "buildUser": "workbench", "buildDate": "20230201-00:00:00",
            "goVersion": "go1.19.5",
        }  # fmt: skip
        self.more: dict[str, Any] = {}

    def series(self) -> Sequence[Series]:
        """Return what it holds."""
        return self._series

    def __call__(self, request: Request) -> Reply:
        """Answer one request."""
        path = urlsplit(request.path).path
        calls: dict[str, Callable[[list[tuple[str, str]]], Any]] = {
            "/api/v1/query": self._query,
            "/api/v1/query_range": self._query_range,
            "/api/v1/labels": self._labels,
            "/api/v1/series": self._found,
            "/api/v1/metadata": lambda params: {},  # an incident folder has no TYPE lines
            "/api/v1/status/buildinfo": lambda params: self.build,
        }
        values = re.fullmatch(r"/api/v1/label/([^/]+)/values", path)
        work = calls.get(path)
        if values:
            label = unquote(values[1])
            work = lambda params: self._values(label, params)  # noqa: E731
        if path in ("/-/ready", "/-/healthy"):
            return Reply(b"Prometheus Server is Ready.\n", headers={"Content-Type": "text/plain; charset=utf-8"})
        if work is None:
            return Reply(b"404 page not found\n", 404, {"Content-Type": "text/plain; charset=utf-8"})
        if request.method not in ("GET", "POST"):
            return Reply(
                b"Method Not Allowed\n", 405, {"Content-Type": "text/plain; charset=utf-8", "Allow": "GET, OPTIONS, POST"}
            )
        try:
            return self.reply(work(asked(request)))
        except PromqlError as error:
            body = {"status": "error", "errorType": error.kind, "error": str(error)}
            return Reply(json.dumps(body, separators=(",", ":")).encode(), _STATUS[error.kind])

    def reply(self, data: Any) -> Reply:
        """Return data as the server writes it; bytes are JSON already."""
        text = data if isinstance(data, bytes) else json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()
        more = json.dumps(self.more, separators=(",", ":")).encode()[1:-1]
        return Reply(b'{"status":"success","data":' + text + (b"," + more if more else b"") + b"}")

    # -- queries ----------------------------------------------------------------------------------------------------------

    def _query(self, params: list[tuple[str, str]]) -> bytes:
        given = dict(params)
        at = _moment(given, "time", time.time())
        told = evaluate(self.series(), _parsed(given.get("query", "")), at)
        if isinstance(told, (float, str)):
            kind = "scalar" if isinstance(told, float) else "string"
            text = _number(told) if isinstance(told, float) else told
            return f'{{"resultType":"{kind}","result":[{_stamp(at)},{json.dumps(text)}]}}'.encode()
        if (told and isinstance(told[0], Series)) or _is_matrix(given.get("query", "")):
            return matrix([one for one in told if isinstance(one, Series)])
        rows = [f'{{"metric":{_metric(labels)},"value":[{_stamp(at)},"{_number(value)}"]}}' for labels, value in _rows(told)]
        return f'{{"resultType":"vector","result":[{",".join(rows)}]}}'.encode()

    def _query_range(self, params: list[tuple[str, str]]) -> bytes:
        given = dict(params)
        for name in ("start", "end", "step"):
            if name not in given:
                raise PromqlError(
                    f'invalid parameter "{name}": cannot parse "" to a valid {"duration" if name == "step" else "timestamp"}'
                )
        start, end, step = _moment(given, "start", 0.0), _moment(given, "end", 0.0), _step(given["step"])
        if end < start:
            raise PromqlError('invalid parameter "end": end timestamp must not be before start time')
        if step <= 0:
            raise PromqlError(
                'invalid parameter "step": zero or negative query resolution step widths are not accepted. Try a positive integer'
            )
        if (end - start) / step > _POINTS:
            raise PromqlError(
                "exceeded maximum resolution of 11,000 points per timeseries. Try decreasing the query resolution (?step=XX)"
            )
        node = _parsed(given.get("query", ""))
        if node.kind in ("range", "subquery", "string"):
            raise PromqlError(
                'invalid parameter "query": invalid expression type "range vector" for range query, must be Scalar or instant Vector'
            )
        found: dict[tuple[tuple[str, str], ...], Series] = {}
        series = self.series()
        for number in range(math.floor((end - start) / step + 1e-9) + 1):
            at = round(start + number * step, 3)
            told = evaluate(series, node, at)
            for labels, value in [({}, told)] if isinstance(told, float) else _rows(told):
                one = found.setdefault(tuple(sorted(labels.items())), Series(labels))
                one.times.append(at)
                one.values.append(value)
        return matrix(list(found.values()))

    # -- names ------------------------------------------------------------------------------------------------------------

    def _matching(self, params: list[tuple[str, str]], *, must: bool = False) -> list[Series]:
        given = dict(params)
        wanted = [value for name, value in params if name == "match[]"]
        if must and not wanted:
            raise PromqlError("no match[] parameter provided")
        since, until = _moment(given, "start", -math.inf), _moment(given, "end", math.inf)
        if until < since:
            raise PromqlError("end timestamp must not be before start timestamp")
        if math.isfinite(since):
            since = since // _BLOCK * _BLOCK
        if math.isfinite(until):
            until = (until // _BLOCK + 1) * _BLOCK - 0.001
        series = self.series()
        if wanted:
            named = {id(one): one for text in wanted for one in selected(series, text)}
            series = list(named.values())
        return [one for one in series if one.times and one.times[0] <= until and one.window(since, until)[0]]

    def _labels(self, params: list[tuple[str, str]]) -> list[str]:
        return sorted({name for one in self._matching(params) for name in one.labels})

    def _values(self, label: str, params: list[tuple[str, str]]) -> list[str]:
        if not re.fullmatch(r"[a-zA-Z_]\w*", label):
            raise PromqlError(f"invalid label name: {label!r}")
        return sorted({one.labels[label] for one in self._matching(params) if label in one.labels})

    def _found(self, params: list[tuple[str, str]]) -> list[dict[str, str]]:
        return sorted(
            (dict(sorted(one.labels.items())) for one in self._matching(params, must=True)), key=lambda one: sorted(one.items())
        )


# -- words of the API -----------------------------------------------------------------------------------------------------


def _parsed(text: str) -> Node:
    try:
        return parse(text)
    except PromqlError as error:
        raise PromqlError(f'invalid parameter "query": {error}', error.kind) from None


def _is_matrix(text: str) -> bool:
    return parse(text).kind in ("range", "subquery")


def _rows(told: Any) -> Iterable[Row]:
    return told if isinstance(told, list) else ()


def _moment(given: dict[str, str], name: str, default: float) -> float:
    text = given.get(name, "")
    if not text:
        return default
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise PromqlError(f'invalid parameter "{name}": cannot parse "{text}" to a valid timestamp') from None


def _step(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        found = re.fullmatch(r"(\d+)(ms|[smhdwy])", text)
        if not found:
            raise PromqlError(f'invalid parameter "step": cannot parse "{text}" to a valid duration') from None
        return int(found[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800, "y": 31536000}[found[2]]


def _stamp(moment: float) -> str:
    whole = f"{moment:.3f}"
    return whole.removesuffix(".000")


def _number(value: float) -> str:
    """Return a value as Go writes it: without an exponent where it can be read so."""
    if value != value:
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value == 0:
        return "0"
    if abs(value) >= 1e21 or abs(value) < 1e-6:
        return re.sub(r"e([+-])(\d)$", r"e\g<1>0\2", repr(value).removesuffix(".0"))
    return str(int(value)) if value == int(value) else format(Decimal(repr(value)), "f")


def _metric(labels: dict[str, str]) -> str:
    return json.dumps(dict(sorted(labels.items())), separators=(",", ":"), ensure_ascii=False)


def matrix(series: Sequence[Series]) -> bytes:
    """Return series as the result of a range."""
    rows = []
    for one in sorted(series, key=lambda one: (one.labels.get(NAME, ""), sorted(one.labels.items()))):
        values = ",".join(f'[{_stamp(at)},"{_number(value)}"]' for at, value in zip(one.times, one.values, strict=True))
        rows.append(f'{{"metric":{_metric(one.labels)},"values":[{values}]}}')
    return f'{{"resultType":"matrix","result":[{",".join(rows)}]}}'.encode()
