"""Turn `workbench backfill FOLDER` into a line of JSON for each incident in it, on this machine or on a Dask cluster."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.cli import exits

if TYPE_CHECKING:
    from workbench.workers import Pool

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("roots", metavar="FOLDER", nargs="+", help="holds one folder or archive for each incident")
    parser.add_argument(
        "-o", "--out", metavar="FILE", type=Path, default=Path("verdicts.jsonl"),
        help="one line for each incident; those it already has are not triaged again (default: verdicts.jsonl)",
    )  # fmt: skip
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="a Dask cluster's, such as tcp://scheduler:8786; it must see the same paths"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="nothing on stderr but errors")


def run(options: argparse.Namespace) -> int:
    """Triage what is not yet in the file and append each verdict when it is there; print how many there are of each class."""
    from workbench.backfill import backfill, incidents_in, names_in
    from workbench.report.verdict_json import dumps

    known = names_in(options.out)
    todo = [path for path in incidents_in(options.roots) if path not in known]
    pool: Pool | None = None
    if options.scheduler:
        from workbench.cluster import Cluster

        pool = Cluster(options.scheduler)
    classes: Counter[str] = Counter()
    unread = 0
    started = time.monotonic()
    _whole_lines(options.out)
    try:
        with options.out.open("a", encoding="utf-8") as stream:
            for number, document in enumerate(backfill(todo, pool=pool), 1):
                stream.write(dumps(document) + "\n")
                stream.flush()
                classes[document["class"]] += 1
                unread += exits.incomplete(document)
                if not options.quiet and sys.stderr.isatty():
                    rate = number / max(time.monotonic() - started, 1e-3)
                    sys.stderr.write(f"\r{number:,} of {len(todo):,} incidents, {rate:.1f} a second\x1b[K")
    finally:
        if pool is not None:
            pool.close()
    if not options.quiet:
        sys.stderr.write(
            ("\n" if sys.stderr.isatty() else "") + f"{len(todo):,} triaged, {len(known):,} were there: {options.out}\n"
        )
    for name, count in classes.most_common():
        sys.stdout.write(f"{count:>7,}  {name}\n")
    return exits.INCOMPLETE if unread else exits.OK


def _whole_lines(path: Path) -> None:
    """Cut off the torn last line that an interrupted run left, so that the next line begins on its own."""
    if not path.exists():
        return
    with path.open("rb+") as stream:
        content = stream.read()
        end = content.rfind(b"\n") + 1
        if end != len(content):
            stream.truncate(end)
