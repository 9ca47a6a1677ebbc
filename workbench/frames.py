"""
Turn records into pandas frames: the column contracts (name → dtype, unit) that all parts share.

All times are tz-aware UTC (``datetime64[us, UTC]``); missing is `pandas.NA` or NaT, never an invented zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from workbench.catalog import signatures
from workbench.model import Condition, Event, Placement, Series, Victim

__all__ = [
    "CONDITIONS",
    "EVENTS",
    "METRICS",
    "PLACEMENT",
    "VICTIMS",
    "check_frame",
    "conditions_frame",
    "empty_frame",
    "events_frame",
    "metrics_frame",
    "placement_frame",
    "whole_text",
    "victims_frame",
]

UTC = "datetime64[us, UTC]"
EVENTS: dict[str, str] = {
    "time": UTC,
    "last": UTC,
    "count": "Int64",
    "source": "string",
    "signature": "string",
    "role": "string",
    "class": "string",
    "weight": "Float64",
    "node": "string",
    "rank": "Int64",
    "gpu_index": "Int64",
    "gpu_uuid": "string",
    "pci": "string",
    "pid": "Int64",
    "code": "Int64",
    "attempt": "Int64",
    "file": "string",
    "line": "Int64",
    "text": "string",
}
METRICS: dict[str, str] = {
    "time": UTC,
    "field": "category",
    "value": "float64",  # NaN where the exporter gave a blank sentinel
    "node": "category",
    "gpu_index": "Int64",
    "gpu_uuid": "category",
    "pci": "category",
    "device": "category",
    "mig": "category",
    "pod": "category",
    "namespace": "category",
    "file": "category",
}
CONDITIONS: dict[str, str] = {
    "node": "string",
    "kind": "string",
    "name": "string",
    "status": "string",
    "bad": "boolean",
    "since": UTC,
    "reason": "string",
    "message": "string",
    "source": "string",
    "file": "string",
    "line": "Int64",
}
PLACEMENT: dict[str, str] = {
    "rank": "Int64",
    "local_rank": "Int64",
    "node": "string",
    "gpu_index": "Int64",
    "gpu_uuid": "string",
    "pci": "string",
    "pid": "Int64",
    "pod": "string",
    "attempt": "Int64",
    "time": UTC,
    "origin": "string",
    "file": "string",
    "line": "Int64",
}


VICTIMS: dict[str, str] = {"rank": "Int64", "node": "string", "since": UTC, "by": "string"}


def empty_frame(contract: Mapping[str, str]) -> pd.DataFrame:
    """Return a frame with a contract's columns and no rows."""
    return pd.DataFrame({name: pd.Series(dtype=dtype) for name, dtype in contract.items()})


def check_frame(frame: pd.DataFrame, contract: Mapping[str, str]) -> None:
    """
    Raise when a frame does not fulfil a contract.

    Raises
    ------
    ValueError
        A column is missing or has another dtype; names it.
    """
    for name, dtype in contract.items():
        if name not in frame.columns:
            raise ValueError(f"column {name!r} is missing; there are {', '.join(map(str, frame.columns))}")
        have = str(frame[name].dtype)
        if have != dtype and not (dtype == "category" and isinstance(frame[name].dtype, pd.CategoricalDtype)):
            raise ValueError(f"column {name!r} is {have}, not {dtype}")


def _frame(rows: list[dict[str, Any]], contract: Mapping[str, str]) -> pd.DataFrame:
    if not rows:
        return empty_frame(contract)
    try:
        frame = pd.DataFrame.from_records(rows, columns=list(contract))
    except UnicodeEncodeError:  # pandas keeps text in Arrow's UTF-8, where it can
        frame = pd.DataFrame.from_records(
            [{key: whole_text(value) for key, value in row.items()} for row in rows], columns=list(contract)
        )
    for name, dtype in contract.items():
        if dtype == UTC:
            frame[name] = pd.to_datetime(pd.to_numeric(frame[name]), unit="s", utc=True, errors="coerce").dt.as_unit("us")
        else:
            frame[name] = frame[name].astype(dtype)  # type: ignore[call-overload]
    return frame


def whole_text(value: Any) -> Any:
    """Return a text with its torn code points, which JSON may hold as escapes, replaced; anything else as it is."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def events_frame(records: Iterable[Event], *, ordered: bool = True) -> pd.DataFrame:
    """
    Return events as a frame, ordered by time, then reading order (events without a time last), or as they come.

    Returns
    -------
    DataFrame
        Columns of `EVENTS`.
    """
    known = signatures()
    rows = []
    for event in sorted(records, key=lambda e: (e.time is None, e.time or 0.0, e.order)) if ordered else records:
        row = known[event.signature]
        gpu = event.gpu
        rows.append(
            {
                "time": event.time,
                "last": event.last if event.last is not None else event.time,
                "count": event.count,
                "source": event.source,
                "signature": event.signature,
                "role": event.role or row.role,
                "class": event.cls or row.cls,
                "weight": event.weight if event.weight is not None else row.weight,
                "node": event.node,
                "rank": event.rank,
                "gpu_index": gpu.index if gpu else None,
                "gpu_uuid": gpu.uuid if gpu else None,
                "pci": gpu.pci if gpu else None,
                "pid": event.pid,
                "code": event.code,
                "attempt": event.attempt,
                "file": event.file,
                "line": event.line,
                "text": event.text,
            }
        )
    return _frame(rows, EVENTS)


def metrics_frame(series: Iterable[Series]) -> pd.DataFrame:
    """
    Return metric series as one long frame.

    Returns
    -------
    DataFrame
        Columns of `METRICS`; one row a sample, in the order of the series.
    """
    import numpy as np

    kept = [one for one in series if len(one.times)]
    if not kept:
        return empty_frame(METRICS)
    lengths = [len(one.times) for one in kept]
    frame = pd.DataFrame(
        {
            "time": pd.to_datetime(np.concatenate([one.times for one in kept]), unit="s", utc=True).as_unit("us"),
            "value": np.concatenate([one.values for one in kept]).astype("float64"),
        }
    )
    columns: dict[str, list[Any]] = {
        "field": [one.field for one in kept],
        "node": [one.node for one in kept],
        "gpu_index": [one.gpu.index if one.gpu else None for one in kept],
        "gpu_uuid": [one.gpu.uuid if one.gpu else None for one in kept],
        "pci": [one.gpu.pci if one.gpu else None for one in kept],
        "device": [one.device for one in kept],
        "mig": [one.mig for one in kept],
        "pod": [one.pod for one in kept],
        "namespace": [one.namespace for one in kept],
        "file": [one.file for one in kept],
    }
    for name, values in columns.items():
        if METRICS[name] == "category":
            codes, uniques = pd.factorize(pd.Series(values, dtype="object"))
            frame[name] = pd.Categorical.from_codes(np.repeat(codes, lengths), categories=pd.Index(list(uniques), dtype="object"))
        else:
            frame[name] = pd.array(
                np.repeat(np.array([pd.NA if v is None else v for v in values], dtype="object"), lengths), dtype="Int64"
            )
    return frame[list(METRICS)]


def conditions_frame(records: Iterable[Condition]) -> pd.DataFrame:
    """Return conditions, taints and states as a frame with the columns of `CONDITIONS`."""
    return _frame([{name: getattr(record, name) for name in CONDITIONS} for record in records], CONDITIONS)


def placement_frame(records: Iterable[Placement]) -> pd.DataFrame:
    """Return placements as a frame with the columns of `PLACEMENT`."""
    rows = []
    for record in records:
        row = {name: getattr(record, name, None) for name in PLACEMENT}
        gpu = record.gpu
        row.update(
            gpu_index=gpu.index if gpu else None,
            gpu_uuid=gpu.uuid if gpu else None,
            pci=gpu.pci if gpu else None,
        )
        rows.append(row)
    return _frame(rows, PLACEMENT)


def victims_frame(records: Iterable[Victim]) -> pd.DataFrame:
    """Return victims as a frame with the columns of `VICTIMS`."""
    return _frame([{name: getattr(record, name) for name in VICTIMS} for record in records], VICTIMS)
