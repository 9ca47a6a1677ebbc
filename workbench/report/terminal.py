"""
Turn a verdict (its JSON form) into lines for a terminal: the answer first, then what to do, then why.

Everything that came from a log passes `clean` and is never read as markup.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from workbench.report import view
from workbench.report.text import clean, plural, shorten

__all__ = ["render"]

Span = tuple[str, str]  # style name, text
Row = list[Span]
# style names → SGR parameters; the eight base colours follow a person's own theme
_SGR = {
    "head": "1",
    "dim": "2",
    "hardware": "1;31",
    "driver": "1;35",
    "platform": "1;36",
    "user": "1;33",
    "unknown": "1;34",
    "none": "1;32",
    "cause": "31",
    "symptom": "33",
    "context": "2",
    "counter": "32",
    "ok": "32",
    "partial": "33",
    "missing": "33",
    "stale": "33",
    "failed": "31",
}
SHOWN_EVIDENCE = 8
SHOWN_OTHERS = 4


def render(document: Mapping[str, Any], *, color: bool = False, width: int = 100, detail: int = 1) -> str:
    """
    Return the verdict as text that ends with a newline.

    Parameters
    ----------
    document : mapping
        A verdict as `workbench.report.verdict_json.to_json` gives it.
    color : bool
        Use ANSI colours.
    width : int
        Columns to wrap at; log lines are shortened to it, never wrapped.
    detail : int
        0: the answer and what to do; 1: with evidence; 2: with all of it.
    """
    rows = _answer(document, width)
    rows += _todo(document, width)
    if detail:
        rows += _evidence(document, width, None if detail > 1 else SHOWN_EVIDENCE)
        rows += _degraded(document)
        rows += _victims(document, width)
        rows += _against(document, width)
        rows += _others(document, width, None if detail > 1 else SHOWN_OTHERS)
        rows += _coverage(document, width)
        rows += _clocks(document, width)
    return "".join(_line(row, color) for row in rows)


def _line(row: Row, color: bool) -> str:
    parts = []
    for style, text in row:
        safe = clean(text)
        parts.append(f"\x1b[{_SGR[style]}m{safe}\x1b[0m" if color and safe and style in _SGR else safe)
    return "".join(parts).rstrip() + "\n"


def _wrapped(text: str, width: int, *, indent: str = "", hanging: str | None = None, style: str = "") -> list[Row]:
    lines = textwrap.wrap(
        clean(text),
        width,
        initial_indent=indent,
        subsequent_indent=indent if hanging is None else hanging,
        break_on_hyphens=False,
    )
    return [[(style, line)] for line in lines]


def _heading(title: str, note: str = "") -> list[Row]:
    return [[], [("head", title), ("dim", f"  {note}" if note else "")]]


def _answer(document: Mapping[str, Any], width: int) -> list[Row]:
    cause = str(document["cause"])
    rows: list[Row] = []
    if document.get("incident"):
        rows.append([("dim", shorten(clean(str(document["incident"])), width))])
    meaning = view.meaning(document["class"])
    sure = view.confidence(document)
    first: Row = [(cause, str(document["class"])), ("", f"  {meaning}" if meaning else "")]
    rows.append(first + ([("dim", "  confidence "), ("head", sure)] if sure else []))
    for label, value in (("where", view.where(document)), ("when", view.when(document)), ("at fault", view.at_fault(document))):
        if value:
            rows.append([("dim", f"{label:<9}"), ("", value)])
    rows += [[], *_wrapped(str(document["summary"]), width, style="head")]
    return rows


def _todo(document: Mapping[str, Any], width: int) -> list[Row]:
    steps = view.todo(document)
    if not steps:
        return []
    rows = _heading("What to do")
    for number, step in enumerate(steps, 1):
        rows += _wrapped(step, width, indent=f"{number:>3}. ", hanging="     ")
    return rows


def _evidence(document: Mapping[str, Any], width: int, limit: int | None) -> list[Row]:
    events = document["evidence"]
    if not events:
        return []
    rows = _heading("Evidence", f"{plural(len(events), 'event')}, the weightiest first")
    if limit is None:
        for event in events:
            rows += _event(event, width, document.get("time"))
        return rows
    kinds = view.grouped(events)
    for event, more in kinds[:limit]:
        rows += _event(event, width, document.get("time"), more)
    if len(kinds) > limit:
        left = sum(more + 1 for _, more in kinds[limit:])
        rows.append([("dim", f"  … {left} more of {plural(len(kinds) - limit, 'other kind')}: --verbose, --output json")])
    return rows


def _event(event: Mapping[str, Any], width: int, head: str | None, more: int = 0) -> list[Row]:
    role = str(event.get("role") or "context")
    times = f" ×{event['count']:,}" if event.get("count", 1) > 1 else ""
    place = "  ".join(part for part in (view.stamp(event, head), view.location(event), view.entity(event)) if part)
    tail = f"  {place}" + (f"  and {more:,} more" if more else "")
    rows: list[Row] = [[(role, f"  {role:<8}"), ("", f"{event['signature']}{times}"), ("dim", tail)]]
    # the line that is blamed is worth reading whole; of the others the start and the end do
    room = max(20, width - 10)
    text = shorten(clean(str(event.get("text") or "")).strip(), room * 3 - 20 if role == "cause" else room)
    return rows + [[("", "          " + line)] for line in textwrap.wrap(text, room, break_on_hyphens=False)]


def _degraded(document: Mapping[str, Any]) -> list[Row]:
    if not document["degraded"]:
        return []
    return _heading("Slow") + [[("", "  " + view.degraded(row))] for row in document["degraded"]]


def _victims(document: Mapping[str, Any], width: int) -> list[Row]:
    groups = view.victims(document)
    if not groups:
        return []
    rows = _heading("Only victims", f"{len(document['victims']):,} in all")
    for group in groups:
        rows += _wrapped(group, width, indent="  ", hanging="    ")
    return rows


def _against(document: Mapping[str, Any], width: int) -> list[Row]:
    events = document["counter_evidence"]
    ties = document.get("ties") or []
    if not events and not ties:
        return []
    rows = _heading("What speaks against it")
    for event in events[:SHOWN_EVIDENCE]:
        rows += _event(event, width, document.get("time"))
    for tie in dict.fromkeys(ties):
        rows += _wrapped(f"not ordered by time: {tie}", width, indent="  ", hanging="    ")
    return rows


def _others(document: Mapping[str, Any], width: int, limit: int | None) -> list[Row]:
    others = view.others(document)
    if not others:
        return []
    rows = _heading("Other explanations")
    for other in others[:limit]:
        rows += _wrapped(view.other(other), width, indent="  ", hanging="    ")
    return rows


def _coverage(document: Mapping[str, Any], width: int) -> list[Row]:
    rows: list[Row] = []
    for status, text in view.unseen(document):
        lines = _wrapped(text, width - 10, hanging="  ")
        rows += [
            [(status if number == 0 else "", f"  {status if number == 0 else '':<8}"), *line] for number, line in enumerate(lines)
        ]
    read = [str(row["source"]) for row in document["coverage"] if row["status"] == "ok"]
    if not rows and not read:
        return []
    note = f"read whole: {', '.join(read)}" if read else ""
    return _heading("What could not be seen", note) + (rows or [[("dim", "  nothing that was asked for")]])


def _clocks(document: Mapping[str, Any], width: int) -> list[Row]:
    skews = view.skews(document)
    rows = _wrapped(f"Clocks corrected: {skews}", width, style="dim") if skews else []
    decided = document.get("decided_by") or []
    if decided:
        rows += _wrapped(f"Decided by {', '.join(map(str, decided))}", width, style="dim")
    return [[], *rows] if rows else []
