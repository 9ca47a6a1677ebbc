"""Turn `workbench fleet jobs` into a list of jobs, the latest first."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from workbench.cli.fleet_list import add_list, show
from workbench.cli.fleet_table import Columns, job_name, when
from workbench.fleet.tables import JOB_STATES

__all__ = ["add_arguments", "run"]

_COLUMNS: Columns = (
    ("ended", "ended (UTC)", 16),
    ("job", "job", 20),
    ("team", "team", 10),
    ("gpus", "GPUs", -6),
    ("state", "state", 9),
    ("cls", "class", 24),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the word's options."""
    parser.add_argument("--state", choices=JOB_STATES, action="append", help="how it ended, or that it has not; may be repeated")
    parser.add_argument("--team", metavar="NAME", action="append", help="of this team only; may be repeated")
    parser.add_argument("--user", metavar="NAME", action="append", help="of this user only; may be repeated")
    add_list(parser)


def run(options: argparse.Namespace) -> int:
    """List jobs."""
    return show(options, "jobs", _COLUMNS, _shown, state=options.state, team=options.team, user=options.user)


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    team, cls = row["team"] or row["user"], row["cls"] or row["cause"]
    return {**row, "job": job_name(row["job"]), "ended": when(row["ended"]), "team": team, "cls": cls}
