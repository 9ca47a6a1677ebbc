"""Turn `workbench examples` into the list of shipped incidents."""

from __future__ import annotations

import argparse
import sys

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")
    parser.add_argument("--path", metavar="NAME", help="print only the path of this one's archive, to unpack it or to triage it")


def run(options: argparse.Namespace) -> int:
    """Print names and one line each."""
    from workbench.shipped import example_path, examples

    if options.path:
        sys.stdout.write(f"{example_path(options.path)}\n")
        return 0
    if options.output == "json":
        from workbench.report.verdict_json import dumps

        rows = [{"name": name, "about": about, "path": str(example_path(name))} for name, about in examples().items()]
        sys.stdout.write(dumps(rows, indent=2) + "\n")
        return 0
    width = max(map(len, examples()), default=0)
    for name, about in examples().items():
        sys.stdout.write(f"{name:<{width}}  {about}\n")
    sys.stdout.write("\nTriage one: workbench demo NAME\n")
    return 0
