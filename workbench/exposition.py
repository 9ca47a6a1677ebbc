"""Turn what a process counts of itself into Prometheus's text format."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["exposition"]


def exposition(prefix: str, rows: Iterable[tuple[str, str, str, float | int | None]]) -> str:
    """
    Return the page of a process's own metrics.

    Parameters
    ----------
    prefix : str
        Begin of each name, such as ``workbench_watch_``.
    rows : iterable of tuple
        Name, type (``counter``, ``gauge``), labels in their braces or empty, value; what is not known (None) is not there, and no zero.
    """
    lines: list[str] = []
    told: set[str] = set()
    for name, kind, labels, value in rows:
        if value is None:
            continue
        if name not in told:
            lines.append(f"# TYPE {prefix}{name} {kind}")
            told.add(name)
        lines.append(f"{prefix}{name}{labels} {value:g}" if isinstance(value, float) else f"{prefix}{name}{labels} {value}")
    return "\n".join(lines) + "\n"
