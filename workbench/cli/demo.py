"""Turn `workbench demo` into a verdict on a shipped incident: in the terminal, and as an HTML report."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

__all__ = ["add_arguments", "run"]

DEFAULT = "nvlink-switch"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "name", metavar="NAME", nargs="?", default=DEFAULT, help=f"a name of `workbench examples` (default: {DEFAULT})"
    )
    parser.add_argument(
        "--out", metavar="FILE", type=Path, default=Path("demo-report.html"), help="the HTML report (default: demo-report.html)"
    )
    parser.add_argument("--no-color", action="store_true", help="no colours")


def run(options: argparse.Namespace) -> int:
    """Triage the incident, print the verdict, write the report."""
    from workbench.cli.console import color_wanted, output, width
    from workbench.report.html import render as page
    from workbench.report.terminal import render as draw
    from workbench.report.verdict_json import to_json
    from workbench.shipped import load_example

    started = time.monotonic()
    incident = load_example(options.name)
    document = to_json(incident.triage(), name=incident.name)
    seconds = time.monotonic() - started
    tty = sys.stdout.isatty()
    with output(None) as write:
        write(draw(document, color=color_wanted(options.no_color, tty), width=width(tty)))
    with output(options.out) as write:
        write(page(document))
    lines = sum(summary.lines for summary in incident.documents)
    sys.stderr.write(
        f"\nRead {lines:,} lines in {len(incident.documents)} files in {seconds:.1f} s. The report is in {options.out}\n"
    )
    return 0
