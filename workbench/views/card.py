"""Turn a case file into its verdict card: plain escaped HTML that is useful before any script, plot or table is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workbench.report.facts import cost_of
from workbench.views.markup import css, render

if TYPE_CHECKING:
    from workbench.casefile.model import CaseFile

__all__ = ["first_evidence", "verdict_card_css", "verdict_card_html"]

# What a verdict must have for the card; a document of an older or broken producer shows what it has
_EMPTY: dict[str, Any] = {
    "cause": "unknown", "class": "unknown", "confidence": None, "summary": "", "time": None, "attempt": None, "evidence": (), "degraded": (),
    "victims": (), "counter_evidence": (), "hypotheses": (), "coverage": (), "retry": None, "remediation": None, "next_steps": (),
    "decided_by": (), "clock_skew": {}, "ties": (),
}  # fmt: skip


def document(case: CaseFile) -> dict[str, Any]:
    """Return the verdict with every key that the templates read; missing stays empty, never invented."""
    given = {key: value for key, value in case.verdict.items() if value is not None}
    whole = {**_EMPTY, **given}
    whole["culprit"] = {"node": None, "gpu": None, "rank": None, "at_fault": None, **(given.get("culprit") or {})}
    return whole


def first_evidence(verdict: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the first evidence of the root cause; of a verdict without one the first thing that was seen."""
    evidence = verdict.get("evidence") or ()
    return next((event for event in evidence if event.get("role") == "cause"), evidence[0] if evidence else None)


def verdict_card_html(
    case: CaseFile, base: Mapping[str, str] | None = None, *, compact: bool = False, prices: Mapping[str, str] | None = None
) -> str:
    """
    Return the verdict card of a case.

    Parameters
    ----------
    case : CaseFile
    base : mapping, optional
        What the page's address holds beside the view's state, such as ``{"id": "…"}``: the card's links keep it.
    compact : bool
        One line instead of the whole card, for the parts of the page that need the room.
    prices : mapping, optional
        The site's price table (``report.prices``); without one no cost is told.

    Returns
    -------
    str
        HTML to be put into a page that has `verdict_card_css`; its links work without script, and are heard by an `IncidentView`
        of the same case in the same page.
    """
    doc, impact = document(case), {**case.impact}
    hours = (impact.get("gpu_hours"), impact.get("gpu_hours_lost"))
    return render(
        "incident.j2",
        "card_line" if compact else "card",
        doc=doc,
        name=case.name,
        job={"name": None, "team": None, "namespace": None, **case.job},
        impact=impact,
        cost=cost_of(hours, impact.get("product"), prices),
        priced=bool(prices),
        queries={**case.queries},
        base=dict(base or {}),
        scope=case.id,
        first=first_evidence(doc),
    )


def verdict_card_css() -> str:
    """Return the style sheet of the card (and of all other parts of the view), for the head of a page."""
    return css()
