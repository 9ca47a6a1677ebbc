"""Turn `workbench config show` into all settings with the place that decided each, `config rbac` into the Kubernetes rights to grant."""

from __future__ import annotations

import argparse
import sys

from workbench.cli import exits
from workbench.cli.live import add_site, config_of

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "action",
        choices=("show", "rbac"),
        metavar="show|rbac",
        help="show: list all settings, without secrets; rbac: print the Kubernetes account that may read what triage needs, and no more",
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")
    add_site(parser)


def run(options: argparse.Namespace) -> int:
    """Print every setting, its value and its origin."""
    from workbench.config import SETTINGS

    if options.action == "rbac":
        from importlib.resources import files

        sys.stdout.write((files("workbench.sources.kubernetes") / "rbac.yaml").read_text(encoding="utf-8"))
        return exits.OK
    config = config_of(options)
    rows = config.shown()
    meanings = {setting.key: setting.meaning for setting in SETTINGS}
    if options.output == "json":
        from workbench.report.verdict_json import dumps

        document = [{"key": key, "value": value, "origin": origin, "meaning": meanings[key]} for key, value, origin in rows]
        sys.stdout.write(dumps(document, indent=2) + "\n")
        return exits.OK
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    where = config.file or "no configuration file"
    sys.stdout.write(f"# {where}" + (f", profile {config.profile}" if config.profile else "") + "\n")
    for key, value, origin in rows:
        sys.stdout.write(f"{key:<{widths[0]}}  {value:<{min(widths[1], 48)}}  {origin:<14}  {meanings[key]}\n")
    return exits.OK
