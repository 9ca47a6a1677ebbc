"""Turn `workbench schema NAME` into the JSON Schema of one of the documents that other commands print."""

from __future__ import annotations

import argparse
import sys

from workbench.cli import exits

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="verdict, finding, findings, plan …; without it they are listed")


def run(options: argparse.Namespace) -> int:
    """Print the schema, or the list of them."""
    from workbench.report.schemas import SCHEMAS, text

    if options.name is None:
        width = max(map(len, SCHEMAS))
        sys.stdout.write("".join(f"{name:<{width}}  {printed}\n" for name, printed in SCHEMAS.items()))
    else:
        sys.stdout.write(text(options.name))
    return exits.OK
