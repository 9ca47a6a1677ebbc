"""
Turn words on a command line into calls of the library, one command a file.

Only the standard library's `argparse` is imported here; each command imports what it needs when it runs, so that
`workbench --help` costs next to nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["command_names", "main"]

# name → one line of help; the code of command NAME is workbench/cli/NAME.py (add_arguments, run)
COMMANDS = {
    "triage": "say what failed first, where, why and what to do, from a folder of evidence or of a job on a running site",
    "collect": "write all that a running site knows of a job into one incident folder or archive",
    "check": "tell whether this node is fit to run a job; what could not be checked counts as unfit",
    "plan": "say what would be done about findings and verdicts, what it takes away and what is refused; nothing is done",
    "apply": "do exactly what a plan says, or say why the world does not fit it any more; a dry run without --yes",
    "undo": "take back what was done, and nothing that somebody changed since",
    "journal": "show what was done to which node and how it ended, and take the word of a person who has looked",
    "loop": "look, plan, do what the policy lets be done without a person, verify and write down, again and again",
    "doctor": "tell what of this site can be reached, and which failures it can therefore not show",
    "backfill": "triage every incident of a folder, on this machine or on a Dask cluster",
    "config": "show all settings and where each comes from",
    "explain": "print what the catalog knows of a signature, Xid, SXid, DCGM field, condition or class",
    "examples": "list the shipped incidents",
    "demo": "triage a shipped incident and write an HTML report",
}


def command_names() -> tuple[str, ...]:
    """Return the names of all commands, in the order of `--help`."""
    return tuple(COMMANDS)


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run one command and return its exit code.

    Parameters
    ----------
    argv : sequence of str, optional
        Words after the program's name; default `sys.argv[1:]`.
    """
    from workbench.cli.entry import run

    return run(list(sys.argv[1:] if argv is None else argv))
