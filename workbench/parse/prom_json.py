"""Turn the JSON of Prometheus's query and query_range (matrix, vector, scalar, errors, lists of answers) into series."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from workbench.model import Parsed, Problem
from workbench.parse.prom_labels import (
    SampledSeries,
    canonical,
    conditions_of,
    entity_of,
    mask_blanks,
    placements_of,
    resolve_nodes,
    to_seconds,
)

__all__ = ["looks_like_query", "parse_query_range"]

_NAME = re.compile(r"[A-Za-z_:][\w:]*")


def looks_like_query(data: Any) -> bool:
    """Tell whether parsed JSON is a Prometheus answer, a list of them, or the bare result of one."""
    if isinstance(data, list):
        return bool(data) and all(looks_like_query(item) for item in data[:3])
    if not isinstance(data, dict):
        return False
    if "metric" in data:
        return bool({"values", "value", "histogram", "histograms"} & data.keys())
    if "resultType" in data and "result" in data:
        return True
    return data.get("status") in ("success", "error") and ("errorType" in data or looks_like_query(data.get("data")))


def parse_query_range(data: Any, *, file: str) -> Parsed:
    """
    Parse an answer of ``/api/v1/query`` or ``/api/v1/query_range``.

    Parameters
    ----------
    data : Any
        The parsed JSON: one answer, a list of answers, a mapping of query to answer, or a bare result list.
    file : str
        Name used in series and problems; its stem names the metric when the answer does not (a PromQL function drops the name).

    Returns
    -------
    Parsed
        As `parse_exposition` returns, without lines: times in epoch seconds, values with NaN for blanks.
    """
    parsed = Parsed()
    samples = 0
    for item in _results(data, file, parsed.problems):
        samples += _series(item, file, parsed)
    if not parsed.series and not parsed.problems:
        parsed.problems.append(
            Problem(
                file,
                "the query returned no series",
                "check the metric name, the labels and the time range",
                None,
                "metrics",
                "missing",
            )
        )
    resolve_nodes(parsed.series)
    parsed.placements += placements_of(parsed.series)
    parsed.conditions += conditions_of(parsed.series)
    spans = [(float(row.times[0]), float(row.times[-1])) for row in parsed.series if len(row.times)]
    parsed.facts |= {
        "nodes": sorted({row.node for row in parsed.series if row.node}),
        "samples": samples,
        "start": min((first for first, _ in spans), default=None),
        "end": max((last for _, last in spans), default=None),
    }
    return parsed


def _results(data: Any, file: str, problems: list[Problem], depth: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the result rows of every answer in a document; an error body and a warning become problems."""
    if depth > 6:
        return
    if isinstance(data, list):
        for item in data:
            yield from _results(item, file, problems, depth + 1)
        return
    if not isinstance(data, dict):
        return
    if "metric" in data and isinstance(data["metric"], dict):
        yield data
        return
    hint = "the answer may be incomplete"
    problems += [
        Problem(file, f"Prometheus warned: {str(note)[:300]}", hint, None, "metrics", "partial")
        for note in data.get("warnings") or ()
    ]
    if data.get("status") == "error":
        text = f"Prometheus refused the query: {data.get('errorType', 'error')}: {str(data.get('error', ''))[:300]}"
        hint = (
            "shorten the range or enlarge the step"
            if "11,000" in text or "exceeded maximum resolution" in text
            else "correct the query and ask again"
        )
        problems.append(Problem(file, text, hint, None, "metrics", "failed"))
        return
    if data.get("resultType") in ("scalar", "string") and isinstance(data.get("result"), list):
        yield {"metric": {}, "value": data["result"]}
        return
    for key in ("data", "result", "results") if {"data", "result", "results"} & data.keys() else data.keys():
        if isinstance(data.get(key), (dict, list)):
            yield from _results(data[key], file, problems, depth + 1)


def _series(item: dict[str, Any], file: str, parsed: Parsed) -> int:
    import numpy as np

    labels = {str(key): str(value) for key, value in item["metric"].items()}
    stem = file.replace("\\", "/").rsplit("/", 1)[-1].split(".")[0]
    name = labels.pop("__name__", "") or (stem if _NAME.fullmatch(stem) else "value")
    rows = item.get("values")
    if rows is None:
        rows = [item["value"]] if item.get("value") is not None else None
    if rows is None:
        if "histograms" in item or "histogram" in item:
            _once(
                parsed,
                Problem(
                    file,
                    f"{name} is a native histogram, which is not read",
                    "query a quantile or the _sum and _count of it",
                    None,
                    "metrics",
                    "partial",
                ),
            )
        return 0
    try:
        table = np.array([(float(stamp), float(value)) for stamp, value in rows], dtype=float).reshape(-1, 2)
    except (TypeError, ValueError):
        good = [pair for row in rows if (pair := _pair(row)) is not None] if isinstance(rows, list) else []
        _once(
            parsed,
            Problem(
                file,
                f"{name} has samples that are no [time, value] pair",
                "the other samples were used",
                None,
                "metrics",
                "partial",
            ),
        )
        table = np.array(good, dtype=float).reshape(-1, 2)
    if not len(table):
        return 0
    field, scale = canonical(name)
    entity = entity_of(labels)
    times, values = to_seconds(table[:, 0]), np.ascontiguousarray(table[:, 1])
    if len(times) > 1 and (times[1:] < times[:-1]).any():
        order = np.argsort(times, kind="stable")
        times, values = times[order], values[order]
    blanks = mask_blanks(field, values)
    if scale != 1.0:
        values = values * scale
    raw = ",".join(f'{key}="{_escape(value)}"' for key, value in labels.items())
    parsed.series.append(
        SampledSeries(
            field,
            times,
            values,
            entity.node,
            entity.gpu,
            entity.device,
            entity.mig,
            entity.pod,
            entity.namespace,
            labels,
            file,
            None,
            blanks,
            name,
            raw,
            None,
            scale,
            entity.weak,
            b"10000000 1.000",
        )
    )
    return len(times)


def _once(parsed: Parsed, problem: Problem) -> None:
    if all(problem.message != known.message for known in parsed.problems) and len(parsed.problems) < 20:
        parsed.problems.append(problem)


def _pair(row: Any) -> tuple[float, float] | None:
    try:
        return float(row[0]), float(row[1])
    except (TypeError, ValueError, IndexError, KeyError):
        return None


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
