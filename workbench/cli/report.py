"""Turn `workbench report weekly` into the report of one week of the fleet: for a meeting, a mail or a page."""

from __future__ import annotations

import argparse
import json
import sys
import time

from workbench.cli import exits
from workbench.cli.fleet import open_ledger
from workbench.cli.live import add_site, config_of
from workbench.cli.remedy import Usage

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("kind", choices=("weekly",), help="which report")
    parser.add_argument(
        "--week", metavar="WEEK", help="2026-W05 or a day of it; default: the last that is over and has jobs, else this one"
    )
    parser.add_argument("--ledger", metavar="FILE", help="default: fleet.ledger")
    parser.add_argument("--cluster", metavar="NAME", help="of this cluster only")
    parser.add_argument("-o", "--output", choices=("md", "html", "json"), default="md", help="default: md")
    add_site(parser)


def run(options: argparse.Namespace) -> int:
    """Write the report on stdout."""
    from workbench.cli.entry import complain
    from workbench.report.weekly import html, last_week, markdown, week_of, weekly

    begin = None
    if options.week:
        try:
            begin = week_of(options.week)
        except ValueError as error:
            raise Usage(str(error)) from None
    with open_ledger(options) as ledger:
        if begin is None:
            begin = last_week(ledger, time.time())
        if begin is None:
            complain("the ledger has no week with jobs yet", hint="workbench fleet ingest takes some in; --week names one")
            return exits.INCOMPLETE
        told = weekly(ledger, begin, cluster=options.cluster, prices=config_of(options)["report.prices"])
    if options.output == "json":
        sys.stdout.write(json.dumps(told, indent=2, allow_nan=False) + "\n")
    else:
        sys.stdout.write(html(told) if options.output == "html" else markdown(told))
    return exits.INCOMPLETE if told["notes"] else exits.OK
