"""Turn `workbench fleet lemons` into the nodes and GPUs that fail more often than chance, why, and the list to exclude."""

from __future__ import annotations

import argparse
import sys
import time

from workbench.cli import exits
from workbench.cli.fleet import add_common, open_ledger
from workbench.cli.fleet_table import Columns, records, written
from workbench.cli.live import moment

__all__ = ["add_arguments", "run"]

_COLUMNS: Columns = (
    ("listed", "lemon", 5),
    ("unit", "node or GPU", 44),
    ("node", "on", 20),
    ("hours", "hours", -9),
    ("blames", "blames", -7),
    ("expected", "expected", -8),
    ("times", "× usual", -7),
    ("chance", "chance", -6),
    ("why", "why", 400),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the word's options."""
    parser.add_argument(
        "--rate",
        metavar="SHARE",
        type=_share,
        default=0.05,
        help="share of the listed that may be healthy after all (default 0.05)",
    )
    parser.add_argument("--all", action="store_true", help="also what is not listed, by chance")
    parser.add_argument("--exclude", action="store_true", help="print the list for Slurm's --exclude, and nothing else")
    add_common(parser)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 < value < 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is no share between 0 and 1")
    return value


def run(options: argparse.Namespace) -> int:
    """Judge the fleet; what could not be judged is told on stderr."""
    from workbench.cli.entry import complain
    from workbench.fleet.lemons import lemons

    now = time.time()
    since, until = moment(options.since, now), moment(options.until, now)
    where = {} if options.cluster is None else {"cluster": options.cluster}
    with open_ledger(options) as ledger:
        frames = [ledger.frame(name, since, until, **where) for name in ("signals", "attempts", "node_states", "gpus")]
    found = lemons(*frames, rate=options.rate, until=until)
    for problem in found.problems:
        complain(problem)
    code = exits.INCOMPLETE if found.problems or found.units.empty else exits.OK
    if options.exclude:
        sys.stdout.write(f"{found.exclude}\n" if found.exclude else "")
        return code
    units = found.units if options.all else found.units[found.units["listed"]]
    rows = records(units)
    if options.output == "json":
        sys.stdout.write(written(_COLUMNS, [], "json", raw=rows))
        return code
    shown = [
        {
            **row,
            "listed": "yes" if row["listed"] else "no",
            "hours": f"{row['hours']:,.0f}",
            "blames": f"{row['blames']:.3g}",
            **{name: "–" if row[name] is None else f"{row[name]:.2g}" for name in ("expected", "times")},
            "chance": "–" if row["chance"] is None else f"{row['chance']:.3f}",
        }
        for row in rows
    ]
    if not shown and options.output in ("table", "md"):
        judged = int(found.units["chance"].notna().sum())
        sys.stdout.write(
            f"of {judged:,} nodes and GPUs none fails more often than chance\n" if judged else "nothing could be judged\n"
        )
        return code
    sys.stdout.write(written(_COLUMNS, shown, options.output, raw=rows))
    if options.output == "table" and found.exclude:
        sys.stdout.write(f"\nto keep jobs off them: --exclude={found.exclude}\n")
    return code
