"""Turn `workbench loop` into turns of looking, planning and acting, with metrics and readiness for who watches the watcher."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.cli import exits, remedy
from workbench.cli.entry import complain
from workbench.cli.remedy import Usage, add_remedy, site_of, wrong_in

if TYPE_CHECKING:
    from workbench.remediation.loop import Round
    from workbench.remediation.model import Trouble
    from workbench.remediation.troubles import Checked

__all__ = ["add_arguments", "run"]

_LEAST = 5.0  # seconds between two turns: faster than this the cluster's own view is not new


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--once", action="store_true", help="one turn, then the exit code of what was done")
    how.add_argument("--every", metavar="TIME", help="a turn each 60s, until SIGTERM")
    parser.add_argument(
        "--verdicts",
        metavar="FOLDER",
        help="verdicts and findings that others write there as *.json count beside the cluster's conditions",
    )
    parser.add_argument("--listen", metavar="ADDRESS", help="serve /metrics, /healthz and /readyz there: 127.0.0.1:9812")
    add_remedy(parser)


class _Folder:
    """Verdicts and findings in a folder; a file that is none is told and the others count."""

    def __init__(self, path: Path) -> None:
        self._path, self._told = path, set[tuple[str, str]]()

    def __call__(self, now: float) -> tuple[list[Trouble], list[Checked]]:
        from workbench.errors import WorkbenchError

        troubles: list[Trouble] = []
        checked: list[Checked] = []
        for file in sorted(self._path.glob("*.json*")):
            try:
                found, seen = wrong_in([str(file)])
            except WorkbenchError as error:
                if (file.name, str(error)) not in self._told:
                    complain(str(error), hint=error.hint)
                    self._told.add((file.name, str(error)))
                continue
            troubles += found
            checked += seen
        return troubles, checked


def run(options: argparse.Namespace) -> int:
    """Make one turn, or turn after turn until told to stop."""
    from workbench.cli.apply import end_of
    from workbench.cli.queue import queue_of
    from workbench.cli.scrape import serve
    from workbench.cli.stopping import stopping
    from workbench.config import time_span
    from workbench.remediation.loop import Loop
    from workbench.report.plan import how_it_ended
    from workbench.report.text import clean

    try:
        seconds = 0.0 if options.once else time_span(options.every)
    except ValueError as error:
        raise Usage(str(error)) from None
    if not options.once and seconds < _LEAST:
        raise Usage(f"--every {options.every} is too often", hint=f"every {_LEAST:.0f}s at most; 60s is usual")
    if options.verdicts and not Path(options.verdicts).is_dir():
        raise Usage(f"--verdicts {options.verdicts} is no folder")
    site, stop = site_of(options), stopping()
    site.known()

    def done(turn: Round) -> None:
        for problem in turn.problems:
            complain(f"not seen: {problem}")
        if turn.plan is not None:
            waiting = [one for one in turn.plan.actions if one.approval == "person"]
            if turn.plan.breaker:
                sys.stdout.write(clean(f"breaker open: {turn.plan.breaker}") + "\n")
            if waiting:
                nodes = ", ".join(dict.fromkeys(one.node for one in waiting if one.node))
                sys.stdout.write(clean(f"{len(waiting)} actions wait for a yes, on {nodes}: workbench queue") + "\n")
        sys.stdout.flush()

    def wait(span: float) -> None:
        stop.wait(span)

    def tell(one: object) -> None:
        sys.stdout.write(how_it_ended([one]))
        sys.stdout.flush()

    with site.alone() as lock, site.journal() as journal:
        loop = Loop(
            site.executor,
            journal,
            site.policy,
            seen=(_Folder(Path(options.verdicts)),) if options.verdicts else (),
            lock=lock,
            stop=stop.is_set,
            clock=remedy.PACE["clock"],
            steady=remedy.PACE["steady"],
            sleep=wait if remedy.PACE["sleep"] is time.sleep else remedy.PACE["sleep"],
            tell=tell,
            wake=None if options.once else site.watch(),
            queue=queue_of(site.config),
        )
        fresh = 3 * seconds + 120
        why_not = "the last turn is too old or did not see the fleet whole"
        server = serve(options.listen, loop.metrics, lambda: loop.ready(fresh), why_not) if options.listen else None
        try:
            if options.once:
                turn = loop.once()
                done(turn)
                return exits.INCOMPLETE if turn.plan is None or turn.problems else end_of(list(turn.outcomes))
            loop.every(seconds, done)
        finally:
            if server is not None:
                server.shutdown()
                server.server_close()
    return exits.OK
