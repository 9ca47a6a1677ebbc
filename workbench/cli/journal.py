"""Turn `workbench journal` into what was done to which node, what is open, and the words of a person who has looked."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from workbench.cli import exits
from workbench.cli.live import add_site, config_of, moment
from workbench.cli.remedy import Usage

if TYPE_CHECKING:
    from workbench.remediation.journal import Entry

__all__ = ["add_arguments", "run"]

_SETTLED = ("done", "failed", "undone")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "action",
        nargs="?",
        default="show",
        choices=("show", "open", "offenders", "settle", "accept", "note"),
        metavar="show|open|offenders|settle|accept|note",
        help="show: what was done (default); open: what has no end yet; offenders: nodes that had to be mended "
        "more than once in a month; settle ID done|failed|undone REASON: how an action ended that only a "
        "person could find out; accept REASON: damaged lines were looked at; note TEXT: something to remember",
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="of settle, accept and note")
    parser.add_argument("--node", metavar="NAME", help="of this node only")
    parser.add_argument("--since", metavar="TIME", help="6h ago as 6h, or 2026-05-04T10:00Z")
    parser.add_argument("--journal", metavar="FILE", help="default: remediation.journal")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")
    add_site(parser)


def run(options: argparse.Namespace) -> int:
    """Show or add entries."""
    import json
    import time
    from pathlib import Path

    from workbench.cli.entry import complain
    from workbench.remediation.engine import settle
    from workbench.remediation.journal import Journal

    journal = Journal(Path(options.journal or config_of(options)["remediation.journal"]))
    for problem in journal.problems:
        complain(f"journal: {problem}", hint="look at it, then: workbench journal accept REASON")
    words = list(options.words)
    if options.action == "settle":
        if len(words) < 3 or words[1] not in _SETTLED:
            raise Usage(
                "settle wants an id, how it ended, and why", hint=f"workbench journal settle ID {'|'.join(_SETTLED)} REASON"
            )
        with journal:
            settle(journal, words[0], words[1], " ".join(words[2:]))
        return exits.OK
    if options.action in ("accept", "note"):
        if not words:
            raise Usage(f"{options.action} wants words", hint=f"workbench journal {options.action} 'who looked, and what it was'")
        with journal:
            journal.accept(" ".join(words)) if options.action == "accept" else journal.note(
                " ".join(words), node=options.node or ""
            )
        return exits.OK
    if words:
        raise Usage(f"{words[0]!r} is one word too many")
    if options.action == "offenders":
        return _offenders(journal.past(), time.time(), options.output)
    since = moment(options.since, time.time()) or 0.0
    entries = journal.open() if options.action == "open" else journal.entries()
    entries = [one for one in entries if one.time >= since and (not options.node or one.node == options.node)]
    if options.output == "json":
        sys.stdout.write("".join(json.dumps(one.to_dict(), ensure_ascii=False) + "\n" for one in entries))
    else:
        sys.stdout.write(_table(entries) or "nothing\n")
    return exits.INCOMPLETE if journal.problems else exits.OK


def _offenders(entries: list[Entry], now: float, output: str) -> int:
    import json

    from workbench.remediation.ladder import offenders
    from workbench.report.text import clean, iso

    found = offenders(entries, now)
    if output == "json":
        table = [
            {"node": node, "tries": [{"rung": one.rung, "time": iso(one.begun), "status": one.status} for one in tries]}
            for node, tries in found
        ]
        sys.stdout.write(json.dumps(table, indent=2) + "\n")
        return exits.OK
    for node, tries in found:
        rungs = ", ".join(f"{one.rung} {iso(one.begun)} {one.status or 'goes on'}" for one in tries)
        sys.stdout.write(clean(f"{node:<20} {len(tries)} times: {rungs}") + "\n")
    sys.stdout.write(clean(f"--exclude={','.join(node for node, _ in found)}") + "\n" if found else "nothing\n")
    return exits.OK


def _table(entries: list[Entry]) -> str:
    from workbench.report.text import clean, iso

    lines = []
    for one in entries:
        verb = f"undo {one.verb}" if one.undo and not one.verb.startswith("un") else one.verb
        what = one.status or one.kind
        lines.append(
            f"{iso(one.time)}  {what:<8} {one.node or '-':<20} {verb:<12} {one.action or one.plan:<14} {one.detail}".rstrip()
        )
    return "".join(clean(line) + "\n" for line in lines)
