"""Turn `workbench undo` into the way back of what the journal says we did, last first, and nothing that somebody changed since."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.cli import exits, remedy
from workbench.cli.apply import end_of
from workbench.cli.remedy import Usage, add_remedy, site_of
from workbench.cli.stopping import stopping

if TYPE_CHECKING:
    from workbench.remediation.engine import Outcome

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("what", metavar="WHAT", nargs="+", help="ids of actions or plans, or names of nodes")
    parser.add_argument("--yes", action="store_true", help="do it; without it only what would be undone is shown")
    add_remedy(parser)


def run(options: argparse.Namespace) -> int:
    """Undo, or show what would be undone."""
    from workbench.remediation.engine import undo
    from workbench.report.plan import how_it_ended
    from workbench.report.text import clean, iso

    site = site_of(options)
    done = [
        one
        for one in site.journal().entries()
        if one.kind == "intent" and not one.undo and {one.action, one.plan, one.node} & set(options.what)
    ]
    site.know(one.node for one in done)
    if not done:
        raise Usage("the journal knows nothing of it", hint="workbench journal shows what was done")
    if not options.yes:
        for one in reversed(done):
            sys.stdout.write(clean(f"would undo {one.verb} of {one.node or 'the site'} ({one.action}) of {iso(one.time)}") + "\n")
        sys.stdout.write("Nothing was changed. To do it: --yes\n")
        return exits.OK

    def tell(one: Outcome) -> None:
        sys.stdout.write(how_it_ended([one]))
        sys.stdout.flush()

    stop = stopping()
    with site.alone() as lock, site.journal() as journal:
        outcomes = undo(
            [one.action for one in done],
            site.executor,
            journal,
            lock=lock,
            kill=Path(site.policy.stop_file),
            stop=stop.is_set,
            tell=tell,
            **remedy.PACE,
        )
    return end_of(outcomes)
