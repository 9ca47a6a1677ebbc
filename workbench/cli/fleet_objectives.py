"""Turn `workbench fleet objectives` into the fleet's objectives with bounds, causes, budgets and burns, or into rules and metrics of them."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli import exits
from workbench.cli.entry import complain
from workbench.cli.fleet import add_common, open_ledger, window_of
from workbench.cli.fleet_table import Columns, when, written
from workbench.cli.live import config_of
from workbench.cli.remedy import Usage

if TYPE_CHECKING:
    from workbench.fleet.budgets import Objective
    from workbench.fleet.figures import Figure

__all__ = ["add_arguments", "run"]

_COLUMNS: Columns = (
    ("name", "objective", 22),
    ("by", "of", 16),
    ("value", "value", -9),
    ("bounds", "95 % bounds", 13),
    ("counted", "good of all", -23),
    ("left", "budget left", -9),
)
_NAMES = {
    "availability": "availability",
    "job-start success": "job-start",
    "job success": "job-success",
    "infrastructure job success": "infra-job-success",
}
_GROUPS = ("week", "cluster", "team", "pool", "sku", "size")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the word's options."""
    parser.add_argument("--by", metavar="WORDS", default="", help=f"a figure for each of these together: {', '.join(_GROUPS)}")
    parser.add_argument(
        "--only",
        metavar="NAMES",
        default="",
        help=f"of these objectives only: {', '.join(_NAMES.values())}",
    )
    parser.add_argument(
        "--weight", choices=("jobs", "gpus"), default="jobs", help="count jobs and nodes, or their GPUs and GPU time"
    )
    parser.add_argument(
        "--planned", choices=("out", "in"), default="out", help="planned maintenance: left out, or not available (default out)"
    )
    parser.add_argument("--no-causes", action="store_true", help="without what each cause took")
    parser.add_argument(
        "--slo", metavar="FILE", type=Path, help="targets from an OpenSLO file (openslo/v1); default: fleet.objectives, else ours"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--rules", action="store_true", help="write Prometheus rules for the targets instead (recording and alerts)"
    )
    what.add_argument("--openslo", action="store_true", help="write the targets as OpenSLO instead")
    what.add_argument("--metrics", action="store_true", help="write the metrics that the rules ask for instead (text format)")
    parser.add_argument("--match", metavar="MATCHERS", default="", help='added to the rules\' selectors, such as job="workbench"')
    add_common(parser)


def run(options: argparse.Namespace) -> int:
    """Show objectives, or write what is made of them."""
    from workbench.fleet import openslo
    from workbench.fleet.budgets import DEFAULTS

    objectives: Sequence[Objective] = DEFAULTS
    others: Sequence[Any] = ()
    code = exits.OK
    slo = options.slo
    if slo is None and (named := config_of(options)["fleet.objectives"]):
        slo = Path(named).expanduser()
    if slo is not None:
        try:
            read = openslo.load(slo.read_text(encoding="utf-8", errors="replace"))
        except OSError as error:
            raise Usage(f"cannot read {slo}: {error.strerror or error}") from None
        objectives, others = read.objectives, read.others
        for problem in read.problems:
            complain(problem)
        code = exits.INCOMPLETE if read.problems else exits.OK
        if not objectives:
            return exits.DATA
    if options.rules:
        from workbench.fleet.rules import rules_yaml

        sys.stdout.write(rules_yaml(objectives, match=options.match))
        return code
    if options.openslo:
        sys.stdout.write(openslo.dump(objectives, others, match=options.match))
        return code
    if options.metrics:
        from workbench.fleet.exporter import fleet_metrics

        where = {"cluster": options.cluster} if options.cluster else {}
        with open_ledger(options) as ledger:
            jobs, states = ledger.frame("jobs", **where), ledger.frame("node_states", **where)
        sys.stdout.write(fleet_metrics(jobs, states, now=time.time()))
        return code
    return max(code, _show(options, objectives))


def _show(options: argparse.Namespace, objectives: Sequence[Objective]) -> int:
    from workbench.fleet.budgets import WINDOWS
    from workbench.fleet.counted import BY_CAUSE, BY_START, starts_of_counts, success_of_counts
    from workbench.fleet.objectives import availability, job_starts, job_success
    from workbench.fleet.rollups import week_of

    now = time.time()
    days = max((one.days for one in objectives), default=30.0)
    by = [word for word in options.by.replace(",", " ").split() if word]
    if wrong := [word for word in by if word not in _GROUPS]:
        raise Usage(f"--by {', '.join(wrong)}: it knows {', '.join(_GROUPS)}")
    only = set(options.only.replace(",", " ").split()) or set(_NAMES.values())
    if wrong := sorted(only - set(_NAMES.values())):
        raise Usage(f"--only {', '.join(wrong)}: it knows {', '.join(_NAMES.values())}")
    where = {"cluster": options.cluster} if options.cluster else {}
    heavy = options.weight == "gpus"
    burning = options.output in ("table", "md") and not by and not heavy
    with open_ledger(options) as ledger:
        since, until, said = window_of(options, ledger, days, now)
        if "week" in by and options.since is None:  # a part of a week beside whole ones would be compared with them
            since = week_of(since)
            said = f"{when(since)} to {when(until)} (UTC)"
        # weekly counts say the same as rows where the window is of whole weeks, in a millisecond for any number of jobs
        whole = since == week_of(since) and (until == week_of(until) or until >= now)
        counts = starts = None
        if not heavy and whole and set(by) <= {"week", "cluster"}:
            counts = ledger.totals(BY_CAUSE, since=since, until=until, **where)
            starts = ledger.totals(BY_START, of="starts", since=since, until=until, **where)
        if counts is None:
            jobs = ledger.frame("jobs", since, until, **where)
        else:  # only what burns is asked of rows, and no window of that is longer than three days
            jobs = ledger.frame("jobs", *((until - max(one.long for one in WINDOWS), until) if burning else (0.0, 0.0)), **where)
        states = ledger.frame("node_states", since, until, **where)
    window: dict[str, Any] = {"since": since, "until": until, "by": by, "causes": not options.no_causes}
    figures: list[Figure] = []
    if "availability" in only and not set(by) & {"team", "size"}:  # a node has neither
        figures += availability(states, planned=options.planned, weight="gpus" if heavy else "nodes", **window)
    if "job-start" in only:
        if starts is not None:
            figures += starts_of_counts(starts, **window)
        else:
            figures += job_starts(jobs, weight="gpus" if heavy else "jobs", **window)
    for infra in (False, True):
        if ("infra-job-success" if infra else "job-success") not in only:
            continue
        if counts is not None:
            figures += success_of_counts(counts, infra=infra, **window)
            continue
        figures += job_success(jobs, weight="gpu-time" if heavy else "jobs", infra=infra, **window)
    targets = {one.indicator: one for one in reversed(objectives) if one.indicator}
    raw = [_raw(one, targets) for one in figures]
    rows = [_row(figure, line) for figure, line in zip(figures, raw, strict=True)]
    text = written(_COLUMNS, rows, options.output, raw=raw)
    if options.output in ("table", "md"):
        text = f"{said}\n\n{text}" + _below(figures, options.output == "md")
        if burning:
            text += _burning([one for one in objectives if one.indicator in only], jobs, states, until)
    sys.stdout.write(text)
    return exits.OK


def _raw(figure: Figure, targets: dict[str, Objective]) -> dict[str, Any]:
    from workbench.fleet.budgets import budget

    row = figure.row()
    one = targets.get(_NAMES.get(figure.name, ""))
    spent = None
    if one is not None and figure.denominator and figure.numerator is not None:
        spent = budget(one, figure.denominator, figure.numerator, figure.unit)
    row["by"] = " ".join(f"{name}={value}" for name, value in figure.by)
    row["target"] = one.target if one else None
    row["budget_allowed"] = spent.allowed if spent else None
    row["budget_left"] = spent.left if spent else None
    row["budget_share_left"] = spent.share_left if spent else None
    for name, _ in figure.by:
        row.pop(name, None)
    row.update(figure.by)
    return row


def _row(figure: Figure, raw: dict[str, Any]) -> dict[str, Any]:
    loss = ": lost to " in figure.name
    left = raw["budget_share_left"]
    groups = [value for name, value in figure.by if name != "cause"]
    return {
        "name": "  lost to " + figure.name.rpartition(" ")[2] if loss else figure.name.replace("infrastructure", "infra"),
        "by": ", ".join(groups) if groups else (" " if loss else "all"),
        "value": "–" if figure.value is None else f"{100 * figure.value:.2f} %",
        "bounds": "–" if figure.low is None or figure.high is None else f"{100 * figure.low:.2f}–{100 * figure.high:.2f}",
        "counted": "–" if not figure.denominator else f"{_number(figure.numerator)} of {_number(figure.denominator)}",
        "left": " " if left is None and raw["target"] is None else "–" if left is None else f"{100 * left:.0f} %",
    }


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else f"{value:,.2f}"


def _below(figures: Sequence[Figure], markdown: bool) -> str:
    """What each figure is and what it left out, once each."""
    import textwrap

    lines: list[str] = []
    for figure in figures:
        if ": lost to " in figure.name:
            continue
        for text in (
            f"{figure.name}: {figure.definition}; in {figure.unit}; {figure.method}",
            *(f"{figure.name}: {note}" for note in figure.notes),
        ):
            text = text if not figure.by or "effective" not in text else text.rpartition("; ")[0]
            if text not in lines:
                lines.append(text)
    if markdown:
        return "\n" + "".join(f"- {line}\n" for line in lines)
    return "\n" + "".join(textwrap.fill(line, 98, initial_indent="  ", subsequent_indent="    ") + "\n" for line in lines)


def _burning(objectives: Sequence[Objective], jobs: Any, states: Any, until: float) -> str:
    from workbench.fleet.budgets import burns_of_fleet

    lines = []
    for one, burn in burns_of_fleet(objectives, jobs, states, now=until):
        if burn.state in ("burning", "few"):
            word = burn.window.severity if burn.state == "burning" else "too few to tell"
            lines.append(f"  {one.name} ({one.target:.2%}), {burn.window.long_name}: {word}: {burn.why}\n")
    return "\nBudgets that burn:\n" + "".join(lines) if lines else ""
