"""Turn a verdict into one sentence that a tired person understands, and into the next steps."""

from __future__ import annotations

from signal import Signals

from workbench.model import CLASSES, Verdict
from workbench.triage.advice import class_row
from workbench.triage.context import Context

__all__ = ["next_steps", "summarise"]


_GENERIC = ("python-exception", "app-last-words", "py-builtin-exception", "fatal-python-error")


def _where(verdict: Verdict) -> str:
    parts = []
    if verdict.gpu is not None and verdict.at_fault == "gpu":
        index = f"index {verdict.gpu.index}" if verdict.gpu.index is not None else ""
        name = verdict.gpu.pci or verdict.gpu.uuid or index
        if name:
            parts.append(f"GPU {name}")
    if verdict.rank is not None and not parts:
        parts.append(f"rank {verdict.rank}")
    if verdict.node:
        parts.append(f"{'of' if verdict.at_fault == 'gpu' else 'on'} {verdict.node}" if parts else f"node {verdict.node}")
    if verdict.rank is not None and verdict.at_fault == "gpu" and parts:
        parts.append(f"(rank {verdict.rank})")
    return " ".join(parts)


def _what(context: Context, verdict: Verdict) -> str:
    """What happened, in a few words: the catalog's meaning, or the program's own last words where the row says nothing special."""
    cause = next((event for event in verdict.evidence_records if event.role == "cause"), None)
    if cause is None:
        return CLASSES.get(verdict.cls, verdict.cls)
    if cause.signature in _GENERIC:
        name, message = cause.data.get("exception"), cause.data.get("message")
        said = f"{name}: {message}" if name and message else str(name or cause.text.strip())
        return f"the program failed with {said if len(said) <= 140 else said[:139] + '…'}"
    rule = next((name.removeprefix("rule:") for name in verdict.decided_by if name.startswith("rule:")), "")
    concluded = context.catalog[rule] if rule else None
    if concluded is not None and concluded.cls == verdict.cls != context.row(cause).cls and concluded.meaning:
        return concluded.meaning  # the line is a symptom; what many of them together mean is the news
    return context.row(cause).meaning or CLASSES.get(verdict.cls, verdict.cls)


def _death(verdict: Verdict) -> str:
    """How the process ended where an undecided failure began, when a signal ended it: who sent it is what is not known."""
    for event in verdict.evidence_records:
        if event.rank is not None and event.rank == verdict.rank and event.code is not None and event.code < 0:
            try:
                return f", which {Signals(-event.code).name} ended"
            except ValueError:
                return f", which signal {-event.code} ended"
    return ""


def summarise(context: Context, verdict: Verdict) -> str:
    """Return the verdict in one sentence."""
    where = _where(verdict)
    if verdict.cls == "none":
        slow = f"; {len(verdict.degraded)} part(s) of it are slow" if verdict.degraded else ""
        return f"Nothing failed: the job succeeded, or it was still running when the evidence ends{slow}."
    if verdict.cls == "unknown":
        if not context.incident.documents:
            return "Nothing could be read, so nothing can be said."
        began = "The job failed and the evidence" if context.has_job else "The evidence shows no job that failed, and"
        return (
            began
            + (" does not decide why" if context.has_job else " does not decide what is wrong")
            + (f"; it began at {where}{_death(verdict)}" if where else "")
            + "."
        )
    what = _what(context, verdict).rstrip(".")
    victims = (
        f"; {len(verdict.victim_records)} other ranks only lost it"
        if verdict.victim_records and verdict.at_fault in ("gpu", "node", "rank")
        else ""
    )
    return f"{what[:1].upper()}{what[1:]}" + (f": {where}" if where else "") + f" ({verdict.cls}){victims}."


def next_steps(context: Context, verdict: Verdict) -> list[str]:
    """Return what to do next: the advice of the class, the command that would settle doubts, and what to collect."""
    row = class_row(verdict.cls)
    if not context.incident.documents:
        return ["Give a folder with logs, kernel logs, metrics or scheduler output, an archive of it, or a single log file."]
    steps = [row["advice"]] if row.get("advice") else []
    if verdict.cls != "none" and row.get("settle"):
        steps.append(f"To settle it: {row['settle']}")
    if verdict.cls == "unknown" or verdict.confidence < 0.7:
        missing = [entry.source for entry in verdict.coverage if entry.status in ("missing", "failed")]
        if missing:
            steps.append(f"Collect what is missing: {', '.join(dict.fromkeys(missing))}.")
        for rival in verdict.hypotheses[:2]:
            settle = class_row(rival.cls).get("settle")
            if settle and rival.score > 0.2:
                steps.append(f"{rival.cls} would show in: {settle}")
    return steps
