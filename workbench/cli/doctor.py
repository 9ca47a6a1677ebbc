"""Turn `workbench doctor` into one line for each thing that this site has or lacks, and what of it a verdict can therefore not show."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from workbench.cli import exits
from workbench.cli.live import add_site, config_of

if TYPE_CHECKING:
    from workbench.sources.contract import Reach

__all__ = ["add_arguments", "run"]

_FIELDS = 8  # missing fields of one source that are shown at once
_MARKS = {"ok": "ok", "warning": "warn", "critical": "CRIT", "unknown": "????"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")
    parser.add_argument("-v", "--verbose", action="store_true", help="also what is as it should be")
    add_site(parser)


def run(options: argparse.Namespace) -> int:
    """Examine every source and print what was found; the exit code is that of the worst line."""
    from workbench.live import examine

    rows = examine(config_of(options))
    if options.output == "json":
        from dataclasses import asdict

        from workbench.report.verdict_json import dumps

        sys.stdout.write(dumps([asdict(row) for row in rows], indent=2) + "\n")
    else:
        sys.stdout.write(_table(rows, options.verbose))
    worst = {row.status for row in rows}
    if "critical" in worst:
        return exits.UNAVAILABLE
    return exits.INCOMPLETE if worst & {"unknown", "warning"} else exits.OK


def _table(rows: list[Reach], verbose: bool) -> str:
    from workbench.live import unseen
    from workbench.report.text import clean

    lines: list[str] = []
    for source in dict.fromkeys(row.source for row in rows):
        mine = [row for row in rows if row.source == source]
        good = [row for row in mine if row.status == "ok"]
        lines.append(f"{source}: {len(good)} of {len(mine)} as they should be")
        bad = [row for row in mine if row.status != "ok"]
        # a server without any GPU metrics lacks every field: its first few say as much as all of them
        fields = [row for row in bad if row.item.startswith("field ")]
        fields.sort(key=lambda row: row.status != "critical")
        hidden = set() if verbose else set(map(id, fields[_FIELDS:]))
        for row in mine if verbose else bad:
            if id(row) in hidden:
                continue
            lines.append(f"  {_MARKS.get(row.status, row.status):<4}  {clean(row.item)}: {clean(row.detail)}")
            if row.fix:
                lines.append(f"        → {clean(row.fix)}")
        if hidden:
            lines.append(f"  …     {len(hidden)} more fields (-v shows all)")
    if blind := unseen(rows):
        lines += ["", "Cannot be seen here: " + ", ".join(blind)]
    return "\n".join(lines) + "\n"
