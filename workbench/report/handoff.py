"""Turn an incident into five lines for the next shift: what, why, what was done, what is next, what to watch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.report import view
from workbench.report.markdown import quoted
from workbench.report.text import clean, clock, plural, shorten

__all__ = ["LINES", "SCHEMA", "Handoff", "handoff", "markdown", "text", "to_dict"]

SCHEMA = "workbench.handoff/1"
_WIDE = 220
# name → how the line begins
LINES: dict[str, str] = {"what": "What", "why": "Why", "done": "Done", "next": "Next", "watch": "Watch"}


@dataclass(frozen=True, slots=True)
class Handoff:
    """The five lines of one incident; `open` says whether somebody must still do something."""

    incident: str
    what: str
    why: str
    done: str
    next: str
    watch: str
    open: bool

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("incident", *LINES, "open")}


def handoff(
    document: Mapping[str, Any],
    *,
    job: Mapping[str, Any] | None = None,
    done: Sequence[Mapping[str, Any]] | None = None,
    state: str = "",
    note: str = "",
) -> Handoff:
    """
    Return the five lines.

    Parameters
    ----------
    document : mapping
        The verdict (``workbench.verdict/1``), already redacted.
    job : mapping, optional
        ``id``, ``name``.
    done : sequence of mapping, optional
        What was done to its node since, as `workbench.report.tried.tried` gives it; None when there is no journal.
    state, note : str, optional
        Of the incident in the inbox: ``new``, ``acknowledged`` …, and what somebody wrote beside it.
    """
    culprit, cls, cause = document.get("culprit") or {}, str(document["class"]), str(document["cause"])
    name = (job or {}).get("id") or (job or {}).get("name") or document.get("incident") or "a job"
    sure = view.confidence(document)
    at = culprit.get("at_fault")
    place = view.where(document) if cause not in ("none", "unknown") else ""
    when = clock(document["time"])[:16] + " UTC" if document.get("time") else "time not known"
    what = f"{when}  {name}: {cls}" + (f" ({sure})" if sure else "") + (f", {place}" if place else "")
    if place and at in ("rank", "job", "platform"):
        what += f"; at fault is {view.at_fault(document)}"
    steps = view.todo(document) if cause != "none" else []
    row = _done(done)
    pending = [one for one in done or () if one.get("verb") != "note" and one.get("ended") is None]
    watch = [f"{one['what']} on {one['node']} has no end yet" for one in pending]
    if document.get("counter_evidence"):
        watch.append(f"{plural(len(document['counter_evidence']), 'observation')} speak against it")
    if document.get("ties"):
        watch.append(str(document["ties"][0]))
    watch += [f"not seen: {said}" for _, said in view.unseen({"coverage": view.lacking(document)})[:2]]
    return Handoff(
        incident=str(document.get("incident") or name),
        what=_short(what),
        why=_short(str(document["summary"])),
        done=_short("; ".join(part for part in (row, f"inbox: {state}{f' ({note})' if note else ''}" if state else "") if part)),
        next=_short(" ".join(steps[:2]) if steps else "nothing is called for"),
        watch=_short("; ".join(watch) or "nothing speaks against it; every source answered"),
        open=bool(pending)
        or (cause != "none" and state not in ("resolved", "closed", "muted") and document.get("remediation") != "none"),
    )


def _done(done: Sequence[Mapping[str, Any]] | None) -> str:
    if done is None:
        return "no journal of remediation was given"
    told = [
        f"{str(one['time'])[11:16]} {one['verb']} {one['ended'] or 'goes on'}"
        if one["verb"] != "note"
        else f"note: {one['what']}"
        for one in done
    ]
    if not told:
        return "nothing is in the journal"
    return ", ".join(told[-6:]) + (f" and {len(told) - 6} before" if len(told) > 6 else "")


def _short(line: str) -> str:
    return clean(shorten(" ".join(line.split()), _WIDE))


def text(items: Sequence[Handoff]) -> str:
    """Return the lines for a terminal or a chat."""
    parts = []
    for number, item in enumerate(items, 1):
        head = f"{number}. " if len(items) > 1 else ""
        lines = [f"{label + ':':<7}{getattr(item, name)}" for name, label in LINES.items()]
        parts.append("\n".join((head if at == 0 else " " * len(head)) + line for at, line in enumerate(lines)))
    return _head(items) + "\n\n".join(parts) + "\n"


def markdown(items: Sequence[Handoff]) -> str:
    """Return the lines as Markdown."""
    parts = []
    for item in items:
        body = [f"- **{label}:** {quoted(getattr(item, name))}" for name, label in LINES.items()]
        parts.append("\n".join([f"### {quoted(item.incident)}", "", *body]) if len(items) > 1 else "\n".join(body))
    return _head(items) + "\n\n".join(parts) + "\n"


def _head(items: Sequence[Handoff]) -> str:
    if len(items) < 2:
        return ""
    left = sum(item.open for item in items)
    return f"{plural(len(items), 'incident')}, {left or 'none'} of them with something left to do\n\n"


def to_dict(items: Sequence[Handoff]) -> dict[str, Any]:
    """Return them as plain values, schema ``workbench.handoff/1``."""
    return {"schema": SCHEMA, "incidents": [item.to_dict() for item in items]}
