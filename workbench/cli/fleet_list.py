"""Turn a table of the ledger into a list for people: the options that lists share, and how they are shown."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from workbench.cli import exits
from workbench.cli.fleet import add_common, open_ledger
from workbench.cli.fleet_table import Columns, written
from workbench.cli.live import moment

__all__ = ["add_list", "show"]


def add_list(parser: argparse.ArgumentParser) -> None:
    """Declare the options of a list."""
    parser.add_argument(
        "--cause", metavar="CAUSE", action="append", help="hardware, driver, platform, user or unknown; may be repeated"
    )
    parser.add_argument("--limit", metavar="N", type=int, default=20, help="the most rows (default 20; 0: all)")
    add_common(parser)


def show(
    options: argparse.Namespace, source: str, columns: Columns, shown: Callable[[Mapping[str, Any]], dict[str, Any]], **where: Any
) -> int:
    """Print the rows of a table, the latest end first."""
    now = time.time()
    chosen = {
        key: value for key, value in {"cluster": options.cluster, "cause": options.cause, **where}.items() if value is not None
    }
    with open_ledger(options) as ledger:
        rows = ledger.rows(
            source,
            moment(options.since, now),
            moment(options.until, now),
            limit=(options.limit or 0) + 1 if options.limit else None,
            last="ended",
            **chosen,
        )
    more = bool(options.limit) and len(rows) > options.limit
    rows = rows[: options.limit] if options.limit else rows
    if not rows and options.output in ("table", "md"):
        sys.stdout.write("nothing of the kind is in the account\n")
        return exits.OK
    sys.stdout.write(written(columns, [shown(row) for row in rows], options.output, raw=rows))
    if more and options.output in ("table", "md"):
        sys.stdout.write("\nthere are more: --limit 0 shows all, --since a part\n")
    return exits.OK
