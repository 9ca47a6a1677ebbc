"""
Turn findings and verdicts into a plan of graded actions, and an approved plan into changes that are capped, journaled and can be undone.

>>> from workbench import remediation
>>> plan = remediation.plan(findings, verdicts, state)  # doctest: +SKIP
>>> remediation.apply(plan, executor, journal)  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.health.finding import Finding
    from workbench.model import Verdict
    from workbench.remediation.engine import Outcome, apply, resume, undo
    from workbench.remediation.journal import Journal
    from workbench.remediation.model import FleetState, Plan
    from workbench.remediation.planner import make_plan
    from workbench.remediation.troubles import Report

__all__ = ["FleetState", "Journal", "Outcome", "Plan", "Report", "apply", "make_plan", "plan", "resume", "undo"]

# where each is: the child that runs a site's command imports this package and needs none of it
_PLACES = {
    "FleetState": "model",
    "Journal": "journal",
    "Outcome": "engine",
    "Plan": "model",
    "Report": "troubles",
    "apply": "engine",
    "make_plan": "planner",
    "resume": "engine",
    "undo": "engine",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)


def plan(
    findings: Iterable[Finding | Report], verdicts: Iterable[Verdict | Mapping[str, Any]], state: FleetState, **more: Any
) -> Plan:
    """
    Return what shall be done about findings of checks and verdicts on jobs.

    Parameters
    ----------
    findings : iterable of Finding or Report
        A report says when the checks ran and in which boot; findings alone are taken for checks of this moment.
    verdicts : iterable of Verdict or mapping
        Records or their JSON.
    state : FleetState
        The fleet now, as an executor sees it.
    **more
        As of `make_plan`: ``past``, ``policy``, ``verbs`` …

    Returns
    -------
    Plan
        Data only: nothing has been done.

    Raises
    ------
    ValueError
        A mapping is no verdict.
    """
    from workbench.health.finding import Finding
    from workbench.remediation.planner import make_plan
    from workbench.remediation.troubles import Report, of_findings, of_verdict

    findings = list(findings)
    reports = [one for one in findings if isinstance(one, Report)]
    loose: dict[str, list[Finding]] = {}
    for one in findings:
        if isinstance(one, Finding):
            loose.setdefault(one.node, []).append(one)
    reports += [Report(node, tuple(some), state.time) for node, some in loose.items()]
    troubles, checked = [], []
    for report in reports:
        found, seen = of_findings(report)
        troubles += found
        checked += [seen] if seen else []
    troubles += [trouble for verdict in verdicts if (trouble := of_verdict(verdict))]
    return make_plan(troubles, state, checked=checked, **more)
