"""Turn `workbench plan` into a plan: what would be done about findings and verdicts, what it would take away, and what is refused and why."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.cli import exits
from workbench.cli.remedy import Usage, add_remedy, site_of, wrong_in

if TYPE_CHECKING:
    from workbench.remediation.model import Plan

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
        "--queue",
        action="store_true",
        help="propose it, one plan a node, to whoever may approve (workbench queue, and the dashboard)",
    )
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
    site.know([one.node for one in troubles] + [one.node for one in checked] + options.node)
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
        past=site.journal().past(),
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
    if options.queue:
        _propose(plan, options)
    return exits.OK if fleet.complete else exits.INCOMPLETE


def _propose(plan: Plan, options: argparse.Namespace) -> None:
    """Put each node's part into the queue: what a person asks for needs a yes, whatever the policy would do alone."""
    import getpass
    from dataclasses import replace

    from workbench.cli.live import config_of
    from workbench.cli.queue import queue_of
    from workbench.remediation.proposing import parts

    queue = queue_of(config_of(options))
    asked = replace(plan, actions=tuple(replace(one, approval="person") for one in plan.actions if one.verb != "page"))
    for part in parts(asked):
        one = queue.propose(part, by=f"{getpass.getuser()}@cli")
        assert one is not None  # only a loop is told no
        sys.stdout.write(f"{one.id} {one.state}: {', '.join(dict.fromkeys(action.node for action in part.actions))}\n")
