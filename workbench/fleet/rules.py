"""
Turn objectives into Prometheus rules on the metrics of `workbench.fleet.exporter`: error ratios, budgets left, and alerts that they burn.

Windows and factors are those of `workbench.fleet.budgets`. What cannot fire is left out and said: with a target of 90 % even a fleet in
which all fails burns at 10, never at 14.4. Jobs end seldom, so that an alert on jobs also wants some bad ones in its long window.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from workbench.fleet.budgets import LEAST, WINDOWS, Objective, Window
from workbench.fleet.exporter import PREFIX
from workbench.fleet.objectives import COUNTED, INFRA

__all__ = ["ALERT", "INDICATORS", "queries", "rules", "rules_yaml"]

ALERT = "WorkbenchFleetErrorBudgetBurn"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9./]{0,200}[a-z0-9])?")
_FAILED = "|".join(state for state in COUNTED if state != "completed")
# indicator → metric, matchers of all events, matchers of bad ones, whether events are jobs
INDICATORS: Mapping[str, tuple[str, str, str, bool]] = {
    "availability": (f"{PREFIX}node_seconds_total", 'state!="maintenance"', 'state=~"held|down"', False),
    "job-start": (f"{PREFIX}job_starts_total", "", 'outcome="not-reached"', True),
    "job-success": (f"{PREFIX}jobs_ended_total", f'state=~"{"|".join(COUNTED)}"', f'state=~"{_FAILED}"', True),
    "infra-job-success": (
        f"{PREFIX}jobs_ended_total",
        f'state=~"{"|".join(COUNTED)}"',
        f'state=~"{_FAILED}",cause=~"{"|".join(INFRA)}"',
        True,
    ),
}


def queries(indicator: str, match: str = "") -> tuple[str, str]:
    """
    Return the selectors of an indicator's bad and of all its events, for counters.

    Parameters
    ----------
    indicator : str
        One of `INDICATORS`.
    match : str
        Matchers to add to both, such as ``job="workbench",cluster="a"``.

    Raises
    ------
    KeyError
        For an indicator that is not ours.
    """
    metric, everything, bad, _ = INDICATORS[indicator]

    def selector(one: str) -> str:
        inside = ",".join(part for part in (one, match) if part)
        return f"{metric}{{{inside}}}" if inside else metric

    return selector(bad), selector(everything)


def rules(
    objectives: Sequence[Objective], *, match: str = "", windows: Sequence[Window] = WINDOWS, least: int = LEAST
) -> tuple[dict[str, Any], list[str]]:
    """
    Return a rules file as plain values, and what is not in it and why.

    Parameters
    ----------
    objectives : sequence of Objective
    match : str
        As in `queries`.
    windows : sequence of Window
    least : int
        Bad jobs that the long window must have seen.

    Returns
    -------
    file : dict
        `groups`, as Prometheus reads it.
    left_out : list of str
        Objectives whose indicator is not ours, windows that could never fire.
    """
    groups: list[dict[str, Any]] = []
    left_out: list[str] = []
    for one in objectives:
        if one.indicator not in INDICATORS:
            left_out.append(f"{one.name}: its indicator is not one of {', '.join(INDICATORS)}")
            continue
        if not _NAME.fullmatch(one.name):
            left_out.append(f"{one.name!r}: no name for a rule; letters, digits, dots and dashes only")
            continue
        fit = [window for window in windows if window.factor * one.allowed < 1]
        left_out += [
            f"{one.name}: no alert over {window.long_name}: with {one.allowed:.3g} allowed, all bad is a burn of {1 / one.allowed:.3g}, "
            f"never above {window.factor:g}"
            for window in windows
            if window not in fit
        ]
        spans = sorted(
            {
                (size, name)
                for window in fit
                for size, name in ((window.long, window.long_name), (window.short, window.short_name))
            }
        )
        groups.append(
            {"name": f"workbench-fleet-{one.name}", "rules": _recorded(one, spans, match) + _alerts(one, fit, match, least)}
        )
    return {"groups": groups}, left_out


def rules_yaml(objectives: Sequence[Objective], *, match: str = "") -> str:
    """Return the rules file as YAML; what is left out stands as comments above it."""
    import yaml

    file, left_out = rules(objectives, match=match)
    head = ["# Written by `workbench fleet objectives --rules`; metrics: `workbench fleet objectives --metrics`."]
    head += [f"# left out: {' '.join(line.split())}" for line in left_out]
    return "\n".join(head) + "\n" + yaml.safe_dump(file, sort_keys=False, allow_unicode=True, width=1000)


def _recorded(one: Objective, spans: Sequence[tuple[float, str]], match: str) -> list[dict[str, Any]]:
    bad, everything = queries(one.indicator, match)
    labels = {"objective": one.name}
    days = f"{one.days:g}d" if one.days == int(one.days) else f"{round(one.days * 24)}h"
    found = [
        {"record": f"workbench_fleet:error_ratio:rate{name}", "expr": _ratio(bad, everything, name), "labels": dict(labels)}
        for _, name in spans
    ]
    # without any event the ratio is absent, and so is what is left of the budget
    left = f"1 - {_ratio(bad, everything, days)} / {one.allowed:.12g}"
    found.append({"record": "workbench_fleet:objective:target", "expr": f"vector({one.target:.12g})", "labels": dict(labels)})
    found.append({"record": "workbench_fleet:error_budget:left", "expr": left, "labels": dict(labels)})
    return found


def _ratio(bad: str, everything: str, span: str) -> str:
    return f"(sum(rate({bad}[{span}])) / (sum(rate({everything}[{span}])) > 0))"


def _alerts(one: Objective, windows: Sequence[Window], match: str, least: int) -> list[dict[str, Any]]:
    bad, _ = queries(one.indicator, match)
    jobs = INDICATORS[one.indicator][3]
    own = f'{{objective="{one.name}"}}'
    found = []
    for window in windows:
        # 12 digits: 14.4 × (1 − 0.99) is not exactly what a person would write
        limit = f"{window.factor * one.allowed:.12g}"
        parts = [f"workbench_fleet:error_ratio:rate{name}{own} > {limit}" for name in (window.long_name, window.short_name)]
        expr = " and ".join(parts)
        if jobs:
            # rate and increase stretch what they saw to the window's ends, so that three are seldom exactly three
            expr += f" and on() (sum(increase({bad}[{window.long_name}])) > {least - 0.5:g})"
        found.append(
            {
                "alert": ALERT,
                "expr": expr,
                "labels": {"severity": window.severity, "objective": one.name, "window": window.long_name},
                "annotations": {
                    "summary": f"{one.name}: the error budget burns more than {window.factor:g} times as fast as it may",
                    "description": "{{ $value | humanizePercentage }} bad over "
                    f"{window.long_name}, {one.allowed:.3g} allowed; `workbench fleet objectives` says by what cause.",
                },
            }
        )
    return found
