"""Turn `workbench fleet incidents` into a list of attempts that failed: when, which class, who is blamed, where the evidence is."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from workbench.cli.fleet_list import add_list, show
from workbench.cli.fleet_table import Columns, job_name, when

__all__ = ["add_arguments", "run"]

_COLUMNS: Columns = (
    ("ended", "ended (UTC)", 16),
    ("job", "job/attempt", 22),
    ("cls", "class", 24),
    ("sure", "sure", -5),
    ("blamed", "blamed", 16),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the word's options."""
    parser.add_argument("--node", metavar="NAME", action="append", help="that a verdict places on this node; may be repeated")
    add_list(parser)


def run(options: argparse.Namespace) -> int:
    """List failed attempts."""
    return show(options, "attempts", _COLUMNS, _shown, state=["failed", "timeout"], node=options.node)


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    blamed = row["node"] if row["at_fault"] in ("gpu", "node") else None
    if row["at_fault"] == "rank" and row["rank"] is not None:
        blamed = f"rank {row['rank']}"
    sure = f"{row['confidence']:.0%}" if row["confidence"] is not None else None
    cls = row["cls"] or row["cause"]
    return {
        **row,
        "ended": when(row["ended"]),
        "job": f"{job_name(row['job'])}/{row['attempt']}",
        "cls": cls,
        "sure": sure,
        "blamed": blamed,
    }
