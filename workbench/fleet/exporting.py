"""Turn the tables of a ledger into files that other tools read: Parquet, CSV or JSON lines, one a table, the same bytes for the same account."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.durable import write_bytes
from workbench.errors import WorkbenchError
from workbench.fleet.tables import TABLES

if TYPE_CHECKING:
    from workbench.fleet.ledger import Ledger

__all__ = ["FORMATS", "ExportError", "cell", "export"]

FORMATS = ("parquet", "csv", "jsonl")


class ExportError(WorkbenchError):
    """An export cannot be written."""

    exit_code = 69


def export(
    ledger: Ledger,
    folder: Path,
    *,
    format: str = "",
    tables: Sequence[str] = (),
    since: float | None = None,
    until: float | None = None,
    cluster: str | None = None,
) -> list[Path]:
    """
    Write one file a table.

    Parameters
    ----------
    ledger : Ledger
    folder : Path
        Made when it is not there; files of the same names are replaced, each in one step.
    format : str
        One of `FORMATS`; default ``parquet`` where pyarrow is installed, else ``csv``.
    tables : sequence of str
        Default: all.
    since, until : float, optional
        Seconds since the epoch: only what has something in [since, until).
    cluster : str, optional
        Of this cluster only.

    Returns
    -------
    list of Path
        What was written.

    Raises
    ------
    ExportError
        Parquet is asked for and pyarrow is not installed, or the folder cannot be written.
    """
    wanted = format or ("parquet" if _arrow() is not None else "csv")
    if wanted not in FORMATS:
        raise ValueError(f"{wanted!r} is none of {', '.join(FORMATS)}")
    if wanted == "parquet" and _arrow() is None:
        raise ExportError("pyarrow is not installed", hint="pip install pyarrow, or export --format csv")
    where: dict[str, Any] = {"cluster": cluster} if cluster is not None else {}
    make: Callable[[str, list[dict[str, Any]]], bytes]
    make = {"parquet": _parquet, "csv": _csv, "jsonl": _jsonl}[wanted]
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in tables or TABLES:
            path = folder / f"{name}.{wanted}"
            write_bytes(path, make(name, ledger.rows(name, since, until, **where)))
            written.append(path)
    except OSError as error:
        raise ExportError(f"{folder} cannot be written: {error.strerror or error}", hint="name another folder") from error
    return written


def _arrow() -> Any:
    try:
        import pyarrow.parquet  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        return None
    return pyarrow


def _parquet(table: str, rows: list[dict[str, Any]]) -> bytes:
    arrow = _arrow()
    kinds = {
        "text": arrow.string(),
        "time": arrow.timestamp("us", tz="UTC"),
        "count": arrow.int64(),
        "number": arrow.float64(),
        "words": arrow.list_(arrow.string()),
    }
    columns = TABLES[table].columns
    cells = {}
    for column in columns:
        values = [row[column.name] for row in rows]
        if column.kind == "time":
            values = [None if value is None else round(value * 1e6) for value in values]
            cells[column.name] = arrow.array(values, arrow.int64()).cast(kinds["time"])
        else:
            cells[column.name] = arrow.array(values, kinds[column.kind])
    sink = io.BytesIO()
    arrow.parquet.write_table(arrow.table(cells), sink, compression="zstd")
    return sink.getvalue()


def _plain(table: str, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    times = [one.name for one in TABLES[table].columns if one.kind == "time"]
    for row in rows:
        for name in times:
            if row[name] is not None:
                stamp = datetime.fromtimestamp(round(row[name] * 1e6) / 1e6, UTC)
                row[name] = stamp.isoformat(timespec="microseconds" if stamp.microsecond else "seconds").replace("+00:00", "Z")
        yield row


def _jsonl(table: str, rows: list[dict[str, Any]]) -> bytes:
    lines = [json.dumps(row, ensure_ascii=True, allow_nan=False) for row in _plain(table, rows)]
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def _csv(table: str, rows: list[dict[str, Any]]) -> bytes:
    """A list is written as JSON; what nobody told is empty. A text that a spreadsheet would take for a formula gets a quote in front."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [one.name for one in TABLES[table].columns]
    writer.writerow(names)
    for row in _plain(table, rows):
        writer.writerow([cell(row[name]) for name in names])
    return out.getvalue().encode("utf-8")


def cell(value: Any) -> Any:
    """Return a value as a cell of CSV has it."""
    if value is None:
        return ""
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=True)
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"  # https://owasp.org/www-community/attacks/CSV_Injection
    return value
