"""Turn `workbench collect --job NAME` into an incident folder or archive, and a line on each source that did not answer."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from workbench.cli import exits
from workbench.cli.live import add_scope, add_site, config_of, scope_of

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_scope(parser, required=True)
    parser.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        type=Path,
        help="folder, or archive by its name: .tar.zst, .tar.gz, .tar, .zip (default: NAME.tar.zst)",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="nothing on stderr but errors")
    add_site(parser)


def run(options: argparse.Namespace) -> int:
    """Collect, print the path, and tell on stderr what is not in it."""
    from workbench.live import collect
    from workbench.report.text import clean

    config = config_of(options)
    scope = scope_of(options, config)
    out = options.output or Path("".join(c if c.isalnum() or c in "._-" else "-" for c in scope.job) + ".tar.zst")
    done = collect(scope, out, config)
    if not options.quiet:
        lines = []
        for name, answers in done.gathered.answers.items():
            good = sum(answer.rows for answer in answers if answer.status == "ok")
            bad = [answer for answer in answers if answer.status != "ok"]
            took = f", {done.gathered.seconds[name]:.1f} s" if name in done.gathered.seconds else ""
            lines.append(f"{name:<14} {len(answers) - len(bad)} of {len(answers)} questions answered, {good:,} rows{took}")
            lines += [
                f"  {answer.status}: {clean(answer.detail)}" + (f" ({clean(answer.hint)})" if answer.hint else "")
                for answer in bad
            ]
        sys.stderr.write("\n".join([*lines, f"{done.size / 1e6:.1f} MB; now: workbench triage {done.path}"]) + "\n")
    sys.stdout.write(f"{done.path}\n")
    failed = any(answer.status == "failed" for answer in done.gathered.failed)
    return exits.INCOMPLETE if failed else exits.OK
