"""
Turn an incident into a verdict: context, groups, rules, hypotheses, then the best of them with victims, coverage and advice.
"""

from __future__ import annotations

from workbench.model import Event, Evidence, Hypothesis, Verdict
from workbench.triage.advice import class_row
from workbench.triage.build import build_context
from workbench.triage.confidence import calibrate
from workbench.triage.context import JOB_SOURCES, Context
from workbench.triage.coverage import assess_coverage
from workbench.triage.degraded import find_degraded, stragglers_told
from workbench.triage.groups import build_groups
from workbench.triage.hypotheses import anchor, first_of_kind, form_hypotheses, rank_hypotheses
from workbench.triage.rules import apply_rules
from workbench.triage.summary import next_steps, summarise
from workbench.triage.victims import find_victims
from workbench.triage.windows import Windows

__all__ = ["decide", "judge"]


def judge(incident: Evidence, windows: Windows | None = None) -> Verdict:
    """
    Return the verdict on an incident.

    Parameters
    ----------
    incident : Incident
        Parsed evidence.
    windows : Windows, optional
        Time windows in seconds; default the documented ones.

    Returns
    -------
    Verdict
        `unknown` when the evidence does not decide, `none` when nothing failed; never raises for want of evidence.
    """
    return decide(build_context(incident, windows))


def decide(context: Context) -> Verdict:
    """Return the verdict on what a context knows; sets the roles of its events."""
    groups = build_groups(context, context.events)
    outcome = apply_rules(context, groups)
    ordered = rank_hypotheses(context, [*form_hypotheses(context, outcome.groups), *outcome.hypotheses])
    carried = anchor(ordered)
    if carried is not None:
        carried = first_of_kind(carried, ordered)
    best = outcome.override or carried or outcome.fallback or Hypothesis("unknown", 0.3, rule="nothing decides")
    return _verdict(context, best, [h for h in ordered if h is not best])


def _verdict(context: Context, best: Hypothesis, rivals: list[Hypothesis]) -> Verdict:
    row = class_row(best.cls)
    evidence = _roles(context, best)
    seen = bool(
        context.events
        or context.incident.series
        or context.incident.jobs
        or context.progress
        or context.has_log
        or context.has_state
    )
    verdict = Verdict(
        cls=best.cls,
        confidence=calibrate(best, rivals),
        summary="",
        node=best.node,
        gpu=best.gpu,
        rank=best.rank,
        at_fault=None if best.cls in ("unknown", "none") else best.at_fault,
        time=best.time,
        attempt=best.attempt,
        evidence_records=evidence,
        counter_records=best.against[:10],
        hypotheses=[h for h in rivals if h.score > 0.0 or h.why_not][:8],
        retry=(best.retry or row.get("retry")) if seen else None,
        remediation=(best.remediation or row.get("remediation")) if seen else None,
        clock_skew=dict(context.skew),
        decided_by=_decided_by(context, best),
    )
    verdict.ties = _ties(context, best, rivals)
    _share(verdict)
    for rival in verdict.hypotheses:
        rival.why_not = rival.why_not or _why_not(best, rival)
    verdict.victim_records = find_victims(context, best)
    verdict.coverage = assess_coverage(context, best)
    verdict.degraded = find_degraded(context)
    verdict.next_steps = next_steps(context, verdict)
    verdict.summary = summarise(context, verdict)
    return verdict


def _share(verdict: Verdict) -> None:
    """Rivals share what the verdict's confidence leaves, in proportion to their strength."""
    total = sum(rival.score for rival in verdict.hypotheses)
    left = max(0.0, 1.0 - verdict.confidence)
    for rival in verdict.hypotheses:
        rival.score = round(left * rival.score / total, 3) if total > 0.0 else 0.0


def _roles(context: Context, best: Hypothesis) -> list[Event]:
    events = []
    said: set[tuple[str, str | None, int | None, str]] = set()
    for event in best.evidence:
        if best.cls in ("unknown", "none"):
            event.role = context.role(event) if context.role(event) != "cause" else "context"
        elif context.role(event) == "symptom" and not event.data.get("promoted"):
            event.role = "symptom"
        else:
            event.role = (
                "cause" if event.data.get("carries") or not any(e.data.get("carries") for e in best.evidence) else "context"
            )
            # what a process says a second time, in other words, is the report of what it said first
            if event.source in JOB_SOURCES:
                again = (event.signature, event.node, event.rank, event.file)
                if again in said:
                    event.role = "context"
                said.add(again)
        event.cls = context.cls(event)
        events.append(event)
    begin = context.start - context.windows.before_start if context.start is not None else None
    symptoms = [
        event
        for event in context.events
        if context.role(event) == "symptom"
        and context.weight(event) > 0.0
        and event not in events
        and not event.data.get("handled")
        and (begin is None or event.time is None or event.time >= begin)
    ]
    symptoms.sort(key=lambda e: (e.time is None, e.time or 0.0, e.order))
    for event in symptoms[:5]:
        event.role = "symptom"
        events.append(event)
    for event in stragglers_told(context)[:5]:  # no cause by itself, and what a person asks next
        if event not in events:
            event.role = "context"
            events.append(event)
    return events


def _decided_by(context: Context, best: Hypothesis) -> list[str]:
    names = []
    for event in best.evidence[:5]:
        origin = context.row(event).origin
        name = f"catalog/{origin.split(':')[0]}:{event.signature}" if origin and not origin.startswith("(") else event.signature
        if name not in names:
            names.append(name)
    if best.rule and best.rule not in {event.signature for event in best.evidence}:
        names.append(f"rule:{best.rule}")
    return names


def _why_not(best: Hypothesis, rival: Hypothesis) -> str:
    if rival.time is not None and best.time is not None and rival.time > best.time + 1.0:
        return f"{rival.time - best.time:.0f} s later than the first evidence of {best.cls}" + (
            "; " + "; ".join(rival.why[:1]) if rival.why else ""
        )
    if rival.why:
        return "; ".join(dict.fromkeys(rival.why[:2]))
    return "weaker evidence"


def _ties(context: Context, best: Hypothesis, rivals: list[Hypothesis]) -> list[str]:
    """Say where order was decided by less than the clocks can tell."""
    window = context.windows.same_instant
    return [
        f"{rival.cls} at {rival.node or rival.rank} is within {window:g} s of the verdict's first evidence: their order is not certain"
        for rival in rivals
        if rival.time is not None and best.time is not None and rival.score > 0.3 and abs(rival.time - best.time) <= window
    ][:5]
