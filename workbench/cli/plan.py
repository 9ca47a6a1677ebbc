"""Turn `workbench plan` into a plan: what would be done about findings and verdicts, what it would take away, and what is refused and why."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from workbench.cli import exits
from workbench.cli.remedy import Usage, add_remedy, site_of, wrong_in

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--from",
        dest="files",
        metavar="FILE",
        nargs="+",
        default=[],
        help="verdicts and findings: what triage and check print with -o json or jsonl; - is stdin",
    )
    parser.add_argument("--node", metavar="NAME", nargs="+", default=[], help="of these nodes only")
    parser.add_argument(
        "--no-conditions", action="store_true", help="leave out what checks show on the cluster's nodes; files only"
    )
    parser.add_argument("--save", metavar="FILE", help="write the plan there, for workbench apply")
    parser.add_argument(
        "--despite-breaker", metavar="REASON", default="", help="go on although many nodes fail at once: who decided so, and why"
    )
    parser.add_argument("-o", "--output", choices=("table", "json", "md"), default="table", help="default: table")
    add_remedy(parser)


def run(options: argparse.Namespace) -> int:
    """Print the plan; nothing is done. The exit code is 0 when it could be made, 3 when the fleet could not be seen whole."""
    from dataclasses import replace

    from workbench.remediation.conditions import of_fleet
    from workbench.remediation.planner import make_plan
    from workbench.report.plan import FORMATS

    if options.no_conditions and not options.files:
        raise Usage("there is nothing to plan for", hint="give --from FILE, or leave out --no-conditions")
    site = site_of(options)
    troubles, checked = wrong_in(options.files)
    fleet = site.fleet()
    if not options.no_conditions:
        shown, seen = of_fleet(fleet)
        troubles, checked = troubles + shown, checked + seen
    if options.node:
        if lost := sorted(set(options.node) - set(fleet.nodes)):
            raise Usage(f"there is no node {lost[0]!r}", hint="write its name as the scheduler does")
        troubles = [one for one in troubles if one.node in options.node]
    plan = make_plan(
        troubles,
        fleet,
        past=site.journal().entries(),
        policy=site.policy,
        verbs=site.executor.verbs,
        checked=checked,
        despite_breaker=options.despite_breaker,
    )
    if options.node:
        keep = {one.id for one in plan.actions if one.node in options.node}
        plan = replace(plan, actions=tuple(one for one in plan.actions if one.id in keep))
    text = FORMATS[options.output](plan)
    if options.save:
        beside = Path(f"{options.save}.{os.getpid()}")
        beside.write_text(FORMATS["json"](plan), encoding="utf-8")
        os.replace(beside, options.save)
        text = text.replace("workbench plan … --save plan.json; workbench apply plan.json", f"workbench apply {options.save}")
    sys.stdout.write(text)
    return exits.OK if fleet.complete else exits.INCOMPLETE
