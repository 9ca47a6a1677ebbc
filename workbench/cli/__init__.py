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
    "run": "run a training command, and start it again when that is right: without the bad node, from the last good checkpoint",
    "check": "tell whether this node is fit to run a job; what could not be checked counts as unfit",
    "plan": "say what would be done about findings and verdicts, what it takes away and what is refused; nothing is done",
    "apply": "do exactly what a plan says, or say why the world does not fit it any more; a dry run without --yes",
    "undo": "take back what was done, and nothing that somebody changed since",
    "journal": "show what was done to which node and how it ended, and take the word of a person who has looked",
    "queue": "list the plans that wait for a person, and say yes or no to one",
    "loop": "look, plan, do what the policy lets be done without a person, verify and write down, again and again",
    "handoff": "say in five lines an incident what the next shift must know",
    "postmortem": "write a postmortem from an incident's verdict: what is known is filled in, what is not stays to be filled",
    "ticket": "write the report of a fault for the provider of the machine, or for your own people",
    "watch": "follow jobs, collect and triage each failure while its evidence is fresh, and tell people once",
    "inbox": "list, show and settle the incidents that the watch found, and export one",
    "doctor": "tell what of this site can be reached, and which failures it can therefore not show",
    "backfill": "triage every incident of a folder, on this machine or on a Dask cluster",
    "checkpoints": "find the newest checkpoint that can be restored, say why newer ones cannot, and advise how often to save",
    "policy": "show when a failed job starts again, waits or stops, and write it for Kubernetes or Slurm",
    "config": "show all settings and where each comes from",
    "explain": "print what the catalog knows of a signature, Xid, SXid, DCGM field, condition or class",
    "notebook": "run a shipped notebook with parameters and write it as a page",
    "schema": "print the JSON schema of a verdict, a finding, a plan or another document of ours",
    "mcp": "serve read-only tools to assistants (Model Context Protocol, on standard input and output)",
    "fleet": "show the fleet's account: how jobs ended and why, what was lost, which nodes fail; and take in what others tell",
    "report": "write the fleet's week: objectives, where time went, failures and their cost, lemons, repairs",
    "simulate": "run a fleet of 16,384 GPUs, or yours, for months in minutes, and compare policies on the same faults",
    "gameday": "put faults into a fleet on paper, judge their evidence and score verdict and plan against the truth",
    "examples": "list the shipped incidents",
    "demo": "triage a shipped incident and write an HTML report",
    "serve": "show inbox, incidents, fleet and remediation as a dashboard in the browser",
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
