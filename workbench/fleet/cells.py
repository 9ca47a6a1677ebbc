"""Turn values as people and frames have them into what SQLite keeps of a column, and columns of SQLite into typed frames."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any

from workbench.fleet.tables import JOB_STATES, NODE_STATES, Column, Table
from workbench.fleet.trouble import BadRow

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["binder", "careful", "frame_of", "plain"]

_DTYPES = {"text": "string", "time": "datetime64[us, UTC]", "count": "Int64", "number": "Float64", "words": "object"}


def binder(table: Table, now: float) -> Callable[[Mapping[str, Any], int], tuple[Any, ...]]:
    """
    Return what makes a row a tuple in the order of the table's columns, as fast as it can be done; values are not looked at.

    Parameters
    ----------
    table : Table
    now : float
        `recorded` of rows that do not tell it, seconds since the epoch.
    """
    names = tuple(one.name for one in table.columns)
    known = frozenset(names)
    blanks = {one.name: "" for one in table.columns if one.kind == "text" and one.name in table.key} | {"recorded": now}
    fixed = tuple((names.index(name), blank) for name, blank in blanks.items())
    # who writes no cause may write it as an empty text
    empty = tuple(at for at, one in enumerate(table.columns) if one.name in ("cause", "cls"))
    words = tuple(at for at, one in enumerate(table.columns) if one.kind == "words")

    def bind(row: Mapping[str, Any], number: int) -> tuple[Any, ...]:
        if not known.issuperset(row):
            strange = ", ".join(sorted(str(name)[:40] for name in set(row) - known))
            raise BadRow(f"row {number} of {table.name}: there is no column {strange}", row=number)
        cells: list[Any] = list(map(row.get, names))
        for at, blank in fixed:
            if cells[at] is None:
                cells[at] = blank
        for at in empty:
            if cells[at].__class__ is str and not cells[at]:  # a truth of pandas.NA would be none
                cells[at] = None
        for at in words:
            if type(cells[at]) is list or type(cells[at]) is tuple:
                cells[at] = _listed(cells[at])
        return tuple(cells)

    return bind


def _listed(some: Sequence[Any]) -> str:
    """The JSON of a list of texts, as `json.dumps` writes it at a fifth of the price: each call of that makes an encoder."""
    try:
        return f"[{','.join(map(encode_basestring_ascii, some))}]" if some else "[]"
    except TypeError:  # one is no text
        return json.dumps(list(some), separators=(",", ":"))


def careful(table: Table, cells: Sequence[Any], number: int) -> tuple[Any, ...]:
    """
    Make each value of a row what its column wants.

    Raises
    ------
    BadRow
        One cannot be made so.
    """
    done = []
    for column, value in zip(table.columns, cells, strict=True):
        try:
            cell = plain(column, value)
        except (ValueError, TypeError, OverflowError) as error:
            raise BadRow(
                f"row {number} of {table.name}: {column.name} is no {column.kind}: {str(value)[:60]!r} ({error})", row=number
            ) from None
        if column.name == "state" and cell not in (None, *(NODE_STATES if table.name == "node_states" else JOB_STATES)):
            raise BadRow(f"row {number} of {table.name}: state is none that there is: {str(cell)[:60]!r}", row=number)
        if cell is None and column.name in table.key:
            if column.kind != "text":
                raise BadRow(f"row {number} of {table.name}: {column.name} is missing, and it is part of the key", row=number)
            cell = ""
        done.append(cell)
    return tuple(done)


def plain(column: Column, value: Any) -> Any:
    """Return one value as the ledger keeps it; missing ones of any kind (None, NaN, NaT, pandas.NA) are None."""
    if value is None or _missing(value):
        return None
    if column.kind == "words":
        if isinstance(value, str):
            value = json.loads(value)
        if not isinstance(value, list | tuple | set | frozenset) and not hasattr(value, "tolist"):
            raise ValueError("it is no list")
        return json.dumps(
            [_text(one) for one in (sorted(value) if isinstance(value, set | frozenset) else value)], separators=(",", ":")
        )
    if column.kind == "text":
        return _text(value)
    if column.kind == "time":
        return _moment(value)
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, str | bytes):
        raise ValueError("it is a text")
    number = float(value)
    if not math.isfinite(number):
        return None
    if column.kind == "number":
        return number
    if number != int(number) or abs(number) >= 2**63:
        raise ValueError("it is no whole number")
    return int(value)


def _missing(value: Any) -> bool:
    kind = type(value).__name__
    return (
        kind in ("NAType", "NaTType")
        or (isinstance(value, float) and math.isnan(value))
        or (kind == "datetime64" and str(value) == "NaT")
    )


def _text(value: Any) -> str:
    if isinstance(value, list | tuple | dict | set):
        raise ValueError("it is no text")
    # half a surrogate pair of a broken log is no character that a file can hold
    return str(value).encode("utf-8", "replace").decode("utf-8")


def _moment(value: Any) -> float:
    if isinstance(value, datetime):  # also a pandas.Timestamp
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if type(value).__name__ == "datetime64":
        return float(value.astype("datetime64[us]").astype("int64")) / 1e6
    if isinstance(value, str):
        told = datetime.fromisoformat(value[:64])
        return (told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, date | bool):
        raise ValueError("it is no moment")
    number = float(value)
    if not 0 <= number <= 1e11:
        raise ValueError("it is not in seconds since the epoch")
    return number


def frame_of(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]]) -> pd.DataFrame:
    """
    Return rows of the ledger as a frame.

    Parameters
    ----------
    columns : sequence of (name, kind)
        As in `workbench.fleet.tables.Column`.
    rows : sequence of tuple
        In that order.
    """
    import numpy as np
    import pandas as pd

    found: dict[str, Any] = {}
    whole = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    for (name, kind), cells in zip(columns, whole, strict=True):
        dtype: Any = _DTYPES[kind]
        if kind == "words":
            found[name] = pd.Series([_words(cell) for cell in cells], dtype=dtype)
        elif kind == "text":
            found[name] = pd.Series(
                [str(cell, "utf-8", "replace") if type(cell) is bytes else cell for cell in cells], dtype=dtype
            )
        else:
            numbers = np.array(cells, dtype="float64") if cells else np.empty(0)  # None becomes NaN
            missing = np.isnan(numbers)
            if kind == "time":
                stamps = np.where(missing, 0, np.round(numbers * 1e6)).astype("int64").astype("datetime64[us]")
                stamps[missing] = np.datetime64("NaT", "us")
                found[name] = pd.Series(stamps).dt.tz_localize("UTC").astype(dtype)
            elif kind == "count":
                whole_numbers = np.array([0 if cell is None else cell for cell in cells], dtype="int64")
                found[name] = pd.Series(pd.arrays.IntegerArray(whole_numbers, missing))
            else:
                found[name] = pd.Series(pd.arrays.FloatingArray(np.where(missing, 0.0, numbers), missing))
    return pd.DataFrame(found, columns=[name for name, _ in columns])


def _words(cell: Any) -> Any:
    import pandas as pd

    if cell is None:
        return pd.NA
    try:
        told = json.loads(cell)
    except ValueError:
        return pd.NA
    return [str(one) for one in told] if isinstance(told, list) else pd.NA
