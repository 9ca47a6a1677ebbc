"""Turn the fleet's ledger into an account: what was lost, by what and to whom; each question is a word of its own."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.cli.live import add_site, config_of

if TYPE_CHECKING:
    from workbench.fleet.ledger import Ledger

__all__ = ["add_arguments", "add_common", "ledger_path", "open_ledger", "run", "window_of"]

# word → one line of help; the code of word NAME is workbench/cli/fleet_NAME.py (add_arguments, run)
WORDS: dict[str, str] = {
    "summary": "jobs and how they ended, GPU-hours lost by cause, nodes that fail, last failures (this is shown when no word is given)",
    "ingest": "take in what Slurm, Kubernetes, runs, verdicts, the inbox, checks and the remediation journal tell",
    "jobs": "list jobs, the latest first",
    "incidents": "list failed attempts with cause and blame, the latest first",
    "objectives": "show availability, starts and success of jobs by cause, with bounds, budgets and burns; or write rules of them",
    "goodput": "show where time went, to 100 %, ETTR beside its formula, times to failure and repair",
    "lemons": "nodes and GPUs that fail more often than chance, why, and the list to exclude",
    "warnings": "what grows, drifts or drops out in metrics before it fails",
    "cost": "what failures cost and whom, act now or wait, spares for a target availability, and whether this tool pays",
    "tenants": "success and latency of each tenant of inference servers, or whom an Xid reaches on a shared GPU",
    "export": "write every table as Parquet, CSV or JSON lines",
}
OUTPUTS = ("table", "json", "csv", "md")
# options that may stand before the word or after it
_SHARED = ("config", "profile", "deadline", "ledger", "output", "since", "until", "cluster")


def add_common(parser: argparse.ArgumentParser, *, window: bool = True, outputs: tuple[str, ...] = OUTPUTS) -> None:
    """Declare the options that words share; `run` has filled in ``output`` when nobody gives it."""
    parser.add_argument("--ledger", metavar="FILE", help="default: fleet.ledger")
    parser.add_argument("--cluster", metavar="NAME", help="of this cluster only")
    if window:
        parser.add_argument("--since", metavar="TIME", help="from: 28d ago as 28d, or 2026-05-04")
        parser.add_argument("--until", metavar="TIME", help="to, in the same forms")
    if outputs:
        parser.add_argument("-o", "--output", choices=outputs, help=f"default: {outputs[0]}")
    add_site(parser)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the words of `workbench fleet`."""
    add_common(parser)
    # what stands before a word must not be forgotten for what the word's own parser has as its default
    for action in parser._actions:
        if action.dest in _SHARED:
            action.dest = f"before_{action.dest}"
    words = parser.add_subparsers(dest="word", metavar="WORD")
    for name, summary in WORDS.items():
        word = words.add_parser(
            name, help=summary.replace("%", "%%"), description=summary[0].upper() + summary[1:] + ".", allow_abbrev=False
        )
        import_module(f"workbench.cli.fleet_{name}").add_arguments(word)


def run(options: argparse.Namespace) -> int:
    """Answer one word, or show the summary; returns the exit code."""
    options.word = options.word or "summary"
    for name in _SHARED:
        if getattr(options, name, None) is None:
            setattr(options, name, getattr(options, f"before_{name}", None))
    options.output = options.output or OUTPUTS[0]
    code: int = import_module(f"workbench.cli.fleet_{options.word}").run(options)
    return code


def ledger_path(options: argparse.Namespace) -> Path:
    """Return where the ledger lies: ``--ledger``, else the setting ``fleet.ledger``."""
    return Path(getattr(options, "ledger", None) or config_of(options)["fleet.ledger"]).expanduser()


def open_ledger(options: argparse.Namespace, mode: str = "ro") -> Ledger:
    """
    Open the ledger that the options name; what is to be known of where it lies is told on stderr.

    Parameters
    ----------
    options : Namespace
        With what `add_common` declares.
    mode : str
        ``ro`` for questions, ``rw`` for what writes.
    """
    from workbench.cli.entry import complain
    from workbench.fleet.ledger import Ledger

    ledger = Ledger.open(ledger_path(options), mode)
    if mode == "rw":
        for problem in ledger.problems:
            complain(problem.message, hint=problem.hint)
    return ledger


def window_of(options: argparse.Namespace, ledger: Ledger, days: float, now: float) -> tuple[float, float, str]:
    """
    Return from when to when a question is asked, in seconds since the epoch, and a line that says so.

    Without ``--since`` and ``--until`` these are the last `days`; of a ledger whose last jobs are older, the days before its last week ended,
    since an account of days without a job would say nothing.
    """
    from workbench.cli.fleet_table import when
    from workbench.cli.live import moment

    until, since = moment(options.until, now), moment(options.since, now)
    why = ""
    if since is None and until is None:
        weeks = [row["week"] for row in ledger.totals(("week",)) if row["week"] is not None]
        if weeks and (ends := max(weeks) + 7 * 86400) < now - days * 86400:
            until, why = ends, ": the ledger's last jobs are older than that; --until says another time"
    until = now if until is None else until
    since = until - days * 86400 if since is None else since
    return since, until, f"{when(since)} to {when(until)} (UTC){why}"
