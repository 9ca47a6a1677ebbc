"""Turn `workbench fleet export` into files of the account's tables."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from workbench.cli import exits
from workbench.cli.fleet import add_common, open_ledger
from workbench.cli.live import moment
from workbench.fleet.tables import TABLES

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the word's options."""
    parser.add_argument(
        "folder", metavar="DIR", type=Path, help="made when it is not there; files of the same names are replaced"
    )
    parser.add_argument(
        "--format", choices=("parquet", "csv", "jsonl"), default="", help="default: parquet where pyarrow is, else csv"
    )
    parser.add_argument("--table", choices=tuple(TABLES), action="append", help="this table only; may be repeated")
    add_common(parser, outputs=())


def run(options: argparse.Namespace) -> int:
    """Write the files and name them."""
    from workbench.fleet.exporting import export

    now = time.time()
    with open_ledger(options) as ledger:
        written = export(
            ledger,
            options.folder,
            format=options.format,
            tables=options.table or (),
            since=moment(options.since, now),
            until=moment(options.until, now),
            cluster=options.cluster,
        )
    sys.stdout.write("".join(f"{path}\n" for path in written))
    return exits.OK
