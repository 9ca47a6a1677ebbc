"""Turn rows of plain values into a table for a terminal, Markdown, CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from workbench.report.text import clean, shorten

__all__ = ["hours", "job_name", "records", "share", "table", "when", "written"]

Columns = Sequence[tuple[str, str, int]]  # (key, title, widest); a negative width is that of numbers, to the right


def when(seconds: float | None) -> str:
    """Return a moment in minutes (UTC); a dash when it is not known."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds)) if seconds is not None else "–"


def hours(value: float | None) -> str:
    """Return GPU-hours."""
    return "–" if value is None else f"{value:,.1f}"


def job_name(job: str) -> str:
    """Return a job as a table shows it: of a run without a scheduler it is its folder, of which the last name says most."""
    return job.rstrip("/").rpartition("/")[2]


def records(frame: Any) -> list[dict[str, Any]]:
    """Return a frame's rows as plain values: what nobody told, and what is no finite number, is None; times are ISO 8601 in UTC."""
    import math

    import pandas as pd

    def plain(value: Any) -> Any:
        if isinstance(value, pd.Timestamp):
            return value.isoformat()
        if hasattr(value, "item"):
            value = value.item()
        missing = value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and not math.isfinite(value))
        return None if missing else value

    return [{name: plain(value) for name, value in row.items()} for row in frame.astype("object").to_dict("records")]


def share(part: float, whole: float) -> str:
    """Return a share in percent; a dash where there is nothing to have a share of."""
    return f"{100 * part / whole:.1f} %" if whole else "–"


def table(columns: Columns, rows: Sequence[Mapping[str, Any]], *, indent: str = "") -> str:
    """Return rows under their titles, each column as wide as it must be."""
    cells = [[shorten(clean(_text(row.get(key))), abs(most)) for key, _, most in columns] for row in rows]
    head = [title for _, title, _ in columns]
    sizes = [max(len(row[at]) for row in (head, *cells)) for at in range(len(columns))]
    lines = []
    for row in (head, *cells):
        parts = [
            cell.rjust(size) if most < 0 else cell.ljust(size)
            for cell, size, (_, _, most) in zip(row, sizes, columns, strict=True)
        ]
        lines.append((indent + "  ".join(parts)).rstrip())
    return "\n".join(lines) + "\n"


def written(
    columns: Columns, rows: Sequence[Mapping[str, Any]], output: str, *, raw: Sequence[Mapping[str, Any]] | None = None
) -> str:
    """
    Return rows in the form that was asked for.

    Parameters
    ----------
    columns : sequence
    rows : sequence of mapping
        As people read them.
    output : str
        ``table``, ``md``, ``csv`` or ``json``.
    raw : sequence of mapping, optional
        The same with numbers as they are, for ``csv`` and ``json``.
    """
    plain = rows if raw is None else raw
    if output == "json":
        return json.dumps(list(plain), indent=2, ensure_ascii=True, allow_nan=False) + "\n"
    if output == "csv":
        from workbench.fleet.exporting import cell

        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        names = list(plain[0]) if plain else [key for key, _, _ in columns]
        writer.writerow(names)
        for row in plain:
            writer.writerow([cell(row.get(name)) for name in names])
        return out.getvalue()
    if output == "md":
        lines = ["| " + " | ".join(title for _, title, _ in columns) + " |"]
        lines.append("|" + "|".join(" ---: " if most < 0 else " --- " for _, _, most in columns) + "|")
        for row in rows:
            cells = [
                clean(_text(row.get(key))).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ") for key, _, _ in columns
            ]
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"
    return table(columns, rows)


def _text(value: Any) -> str:
    if value is None or value == "":
        return "–"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
