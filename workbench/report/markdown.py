"""Turn a verdict (its JSON form) into Markdown for a ticket or a pull request; log text is quoted so that no renderer runs it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from workbench.report import view
from workbench.report.text import clean, shorten

__all__ = ["code", "quoted", "render"]

# what Markdown or inline HTML gives a meaning; a backslash takes it away
# (CommonMark 2.4); an underscore inside a word has none (6.2), nor an exclamation mark before a bracket that has lost its own
_MARKUP = re.compile(r"([\\`*{}\[\]<>#+|~&$@]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
SHOWN_EVIDENCE = 12


def render(document: Mapping[str, Any]) -> str:
    """
    Return the verdict as Markdown.

    Parameters
    ----------
    document : mapping
        A verdict as `workbench.report.verdict_json.to_json` gives it.
    """
    sure = view.confidence(document)
    lines = [f"# {quoted(document['class'])}" + (f" ({sure})" if sure else ""), "", f"**{quoted(document['summary'])}**", ""]
    facts = (
        ("Incident", document.get("incident")),
        ("Where", view.where(document)),
        ("When", view.when(document)),
        ("At fault", view.at_fault(document)),
    )
    lines += [f"- {label}: {quoted(value)}" for label, value in facts if value]
    lines += _section("What to do", [f"{number}. {quoted(step)}" for number, step in enumerate(view.todo(document), 1)])
    lines += _section("Evidence", _events(document["evidence"], document.get("time")))
    lines += _section("Slow", [f"- {quoted(view.degraded(row))}" for row in document["degraded"]])
    lines += _section("Only victims", [f"- {quoted(group)}" for group in view.victims(document)])
    against = _events(document["counter_evidence"], document.get("time"))
    against += [f"- not ordered by time: {quoted(tie)}" for tie in dict.fromkeys(document.get("ties") or [])]
    lines += _section("What speaks against it", against)
    lines += _section("Other explanations", [f"- {quoted(view.other(row))}" for row in view.others(document)])
    lines += _section("What could be seen", _coverage(document))
    foot = []
    if skews := view.skews(document):
        foot.append(f"Clocks corrected: {quoted(skews)}.")
    if decided := document.get("decided_by"):
        foot.append(f"Decided by {', '.join(code(str(row)) for row in decided)}.")
    return "\n".join(lines + (["", *foot] if foot else [])) + "\n"


def _section(title: str, body: list[str]) -> list[str]:
    return ["", f"## {title}", "", *body] if body else []


def quoted(value: Any) -> str:
    """Return a value as text in which nothing means anything to Markdown, HTML or a terminal."""
    return _MARKUP.sub(r"\\\1", clean(str(value)))


def code(text: str) -> str:
    """Quote text in a fence longer than any run of backticks in it; a pipe would end a table cell, a newline the quote."""
    text = clean(text).strip() or " "
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    return f"{fence} {text} {fence}" if "`" in text else f"`{text}`"


def _events(events: list[Mapping[str, Any]], head: str | None) -> list[str]:
    lines = []
    for event in events[:SHOWN_EVIDENCE]:
        times = f" ×{event['count']:,}" if event.get("count", 1) > 1 else ""
        place = ", ".join(part for part in (view.stamp(event, head), view.entity(event)) if part)
        role = quoted(event.get("role") or "context")
        lines.append(f"- **{role}** {code(str(event['signature']))}{times}, {code(view.location(event))}, {quoted(place)}")
        if event.get("text"):
            lines.append(f"  {code(shorten(str(event['text']), 400))}")
    if len(events) > SHOWN_EVIDENCE:
        lines.append(f"- … {len(events) - SHOWN_EVIDENCE} more in the JSON form")
    return lines


def _coverage(document: Mapping[str, Any]) -> list[str]:
    if not document["coverage"]:
        return []
    rows = ["| source | status | detail | blind to |", "|---|---|---|---|"]
    for row in document["coverage"]:
        cells = (row["source"], row["status"], row["detail"], view.blind(row))
        rows.append("| " + " | ".join(quoted(cell) for cell in cells) + " |")
    return rows
