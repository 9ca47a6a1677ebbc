"""Turn `workbench apply PLAN` into exactly what the plan says, or into the reasons why the world does not fit it any more."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.cli import exits, remedy
from workbench.cli.entry import complain
from workbench.cli.remedy import add_remedy, read_plan, site_of
from workbench.cli.stopping import stopping

if TYPE_CHECKING:
    from workbench.remediation.engine import Outcome

__all__ = ["add_arguments", "end_of", "run"]


QUEUED = "queue:"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "plan",
        metavar="PLAN",
        help="file that workbench plan --save wrote; - is stdin; queue:ID is one of the queue",
    )
    parser.add_argument("--yes", action="store_true", help="do it: you approve the whole plan; without it nothing is changed")
    parser.add_argument("--only", metavar="WHAT", nargs="+", help="ids of actions or names of nodes: of the plan nothing else")
    add_remedy(parser)


def end_of(outcomes: list[Outcome]) -> int:
    """Return the exit code of what was done: 0 all done, 3 something was refused or is still open, 69 something failed or is unknown."""
    statuses = {one.status for one in outcomes}
    if statuses & {"failed", "expired", "unknown"}:
        return exits.UNAVAILABLE
    return exits.INCOMPLETE if statuses - {"done", "undone"} else exits.OK


def run(options: argparse.Namespace) -> int:
    """Execute the plan, or say what would be done; each outcome is printed as it comes and kept in the journal."""
    from workbench.remediation.engine import apply, resume
    from workbench.remediation.executors.dry_run import DryRun
    from workbench.remediation.journal import Journal
    from workbench.remediation.recheck import Recheck
    from workbench.report.plan import how_it_ended

    if options.plan.startswith(QUEUED):
        return _queued(options, options.plan.removeprefix(QUEUED))
    plan = read_plan(options.plan)
    site = site_of(options)
    site.know(one.node for one in plan.actions)

    def tell(one: Outcome) -> None:
        sys.stdout.write(how_it_ended([one]))
        sys.stdout.flush()

    if not options.yes:
        dry = DryRun(site.executor)
        # a copy of the journal tells what is done already; what a dry run writes there is thrown away
        with tempfile.TemporaryDirectory(prefix="workbench-") as folder:
            copy = Path(folder) / "journal.jsonl"
            if (real := site.journal().path) is not None and real.exists():
                shutil.copyfile(real, copy)
            with Journal(copy) as journal:
                check = Recheck(plan, dry, site.policy, clock=remedy.PACE["clock"], steady=remedy.PACE["steady"])
                outcomes = apply(plan, dry, journal, check=check, approved=True, only=options.only, tell=tell, **remedy.PACE)
        sys.stdout.write("Nothing was changed. To do it: --yes\n")
        return end_of(outcomes)
    stop = stopping()
    with site.alone() as lock, site.journal() as journal:
        for problem in journal.problems:
            complain(f"journal: {problem}", hint="nothing that cannot be undone is done until: workbench journal accept REASON")
        resume(journal, site.executor, lock=lock, kill=Path(site.policy.stop_file), stop=stop.is_set, tell=tell, **remedy.PACE)
        outcomes = apply(
            plan,
            site.executor,
            journal,
            check=Recheck(plan, site.executor, site.policy, clock=remedy.PACE["clock"], steady=remedy.PACE["steady"]),
            approved=True,
            only=options.only,
            lock=lock,
            kill=Path(site.policy.stop_file),
            stop=stop.is_set,
            tell=tell,
            **remedy.PACE,
        )
    return end_of(outcomes)


def _queued(options: argparse.Namespace, id: str) -> int:
    """Do exactly what a person has said yes to in the queue."""
    from workbench.cli.queue import queue_of
    from workbench.remediation.engine import resume
    from workbench.remediation.proposing import execute, note_down
    from workbench.report.plan import how_it_ended

    site = site_of(options)
    queue = queue_of(site.config)
    one = queue.get(id)
    site.know(action.node for action in one.plan.actions)
    if options.only:
        raise remedy.Usage(
            "of a plan in the queue all is done or nothing", hint="leave out --only: the yes was to the whole plan"
        )
    if not options.yes:
        sys.stdout.write(
            f"{one.id} is {one.state}{': ' + one.problem if one.problem else ''}\nNothing was changed. To do it: --yes\n"
        )
        return exits.OK if one.state in ("approved", "applying") and not one.problem else exits.INCOMPLETE

    def tell(outcome: Outcome) -> None:
        sys.stdout.write(how_it_ended([outcome]))
        sys.stdout.flush()

    stop = stopping()
    with site.alone() as lock, site.journal() as journal:
        common = {"lock": lock, "kill": Path(site.policy.stop_file), "stop": stop.is_set, "tell": tell, **remedy.PACE}
        resume(journal, site.executor, **common)
        try:
            outcomes = execute(queue, one, site.executor, journal, site.policy, by=journal.by, **common)
        finally:
            note_down(queue, journal)
    return end_of(outcomes)
