"""Turn `workbench queue` into the plans that wait for a yes, and a person's yes or no to one of them."""

from __future__ import annotations

import argparse
import getpass
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.cli import exits, remedy
from workbench.cli.entry import complain
from workbench.cli.live import add_site, config_of
from workbench.cli.remedy import Usage

if TYPE_CHECKING:
    from workbench.config import Config
    from workbench.remediation.queue import Proposal, Queue

__all__ = ["add_arguments", "run", "queue_of"]

_ACTIONS = ("list", "show", "approve", "reject", "undo")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "action",
        nargs="?",
        default="list",
        choices=_ACTIONS,
        metavar="|".join(_ACTIONS),
        help="list: what waits, then what is over (default); show ID: a plan and what happened to it; approve ID: say yes to exactly this "
        "plan; reject ID: say no; undo WHAT: propose to take back what was done (ids of actions or plans, or names of nodes)",
    )
    parser.add_argument("words", nargs="*", metavar="ID", help="of show, approve, reject and undo")
    parser.add_argument("--reason", metavar="TEXT", default="", help="why; a no needs one")
    parser.add_argument("--by", metavar="NAME", default="", help="who decides; default: the user")
    parser.add_argument(
        "--digest", metavar="DIGEST", default="", help="of the plan that you looked at; a yes to another one is refused"
    )
    parser.add_argument("--all", action="store_true", help="of list: also what is over")
    parser.add_argument("--journal", metavar="FILE", help="default: remediation.journal")
    parser.add_argument("-o", "--output", choices=("table", "json", "md"), default="table", help="default: table")
    add_site(parser)


def queue_of(config: Config) -> Queue:
    """Return the queue of a site: a folder beside evidence and reports."""
    from workbench.remediation.queue import Queue

    return Queue(Path(config["remediation.folder"]) / "queue", clock=remedy.PACE["clock"])


def run(options: argparse.Namespace) -> int:
    """Show the queue, or decide."""
    config = config_of(options)
    queue = queue_of(config)
    words = list(options.words)
    if options.action == "list":
        if words:
            raise Usage(f"{words[0]!r} is one word too many")
        return _list(queue, options)
    if options.action == "undo":
        return _undo(queue, config, options, words)
    if len(words) != 1:
        raise Usage(f"{options.action} wants the id of one plan", hint="workbench queue shows them")
    one = queue.get(words[0])
    if options.action == "show":
        return _show(one, options.output)
    by = options.by or f"{getpass.getuser()}@cli"
    seal = options.digest or one.digest
    if options.action == "approve":
        one = queue.approve(one.id, seal, by=by, reason=options.reason)
    else:
        if not options.reason.strip():
            raise Usage("a no needs a reason", hint="--reason 'why not': whoever proposed it must learn from it")
        one = queue.reject(one.id, seal, by=by, reason=options.reason)
    _journal(queue, config, options)
    sys.stdout.write(f"{one.id} {one.state} by {by}\n")
    if one.state == "approved":
        sys.stdout.write(f"It is done by a running loop, or by: workbench apply queue:{one.id} --yes\n")
    return exits.OK


def _journal(queue: Queue, config: Config, options: argparse.Namespace) -> None:
    """Write it into the journal as well; a controller that holds the journal does it otherwise."""
    from workbench.remediation.journal import Journal, JournalError
    from workbench.remediation.proposing import note_down

    try:
        with Journal(Path(options.journal or config["remediation.journal"]), clock=remedy.PACE["clock"]) as journal:
            note_down(queue, journal)
    except JournalError as error:
        if error.exit_code != 75:  # busy: the loop writes it in its next turn
            complain(f"it stands in the queue and not yet in the journal: {error}")


def _undo(queue: Queue, config: Config, options: argparse.Namespace, words: list[str]) -> int:
    from workbench.remediation.journal import Journal
    from workbench.remediation.proposing import undo_plan

    if not words:
        raise Usage("undo wants ids of actions or plans, or names of nodes", hint="workbench journal shows what was done")
    journal = Journal(Path(options.journal or config["remediation.journal"]), clock=remedy.PACE["clock"])
    begun = {
        entry.action: action
        for entry in journal.entries()
        if entry.kind == "intent" and not entry.undo and {entry.action, entry.plan, entry.node} & set(words)
        if journal.status_of(entry.action) not in ("undone", "refused") and (action := entry.intended()) is not None
    }
    if not begun:
        raise Usage("the journal knows nothing of it that could be taken back", hint="workbench journal shows what was done")
    by = options.by or f"{getpass.getuser()}@cli"
    plan = undo_plan(list(begun.values()), now=remedy.PACE["clock"](), why=options.reason or f"asked for by {by}")
    one = queue.propose(plan, by=by, kind="undo", reason=options.reason)
    assert one is not None  # only a loop is told no
    _journal(queue, config, options)
    sys.stdout.write(f"{one.id} waits for a yes: workbench queue approve {one.id}\n")
    return exits.OK


def _list(queue: Queue, options: argparse.Namespace) -> int:
    import json

    from workbench.remediation.queue import WAITING
    from workbench.report.text import clean, duration, iso, shorten

    now = time.time() if remedy.PACE["clock"] is time.time else remedy.PACE["clock"]()
    found = [one for one in queue.proposals() if options.all or one.state in WAITING]
    for problem in queue.problems:
        complain(problem, hint="nothing of it is done")
    if options.output == "json":
        sys.stdout.write("".join(json.dumps(_plain(one), ensure_ascii=False) + "\n" for one in found))
        return exits.INCOMPLETE if queue.problems else exits.OK
    lines = []
    for one in found:
        nodes = ", ".join(dict.fromkeys(action.node or action.target for action in one.plan.actions))
        rungs = ", ".join(dict.fromkeys(action.rung for action in one.plan.actions))
        what = f"undo of {rungs}" if one.kind == "undo" else rungs
        left = f"until {iso(one.plan.expires)}" if one.state in WAITING else (iso(one.last.time) or "")
        lines.append(f"{one.id:<14} {one.state:<9} {nodes:<20} {what:<14} waits {duration(max(0.0, now - one.since))}, {left}")
        lines.append(f"               {shorten(one.problem or one.plan.actions[0].why, 110)}")
    sys.stdout.write("".join(clean(line) + "\n" for line in lines) or "nothing waits\n")
    return exits.INCOMPLETE if queue.problems else exits.OK


def _plain(one: Proposal) -> dict[str, object]:
    events = [{name: getattr(event, name) for name in event.__dataclass_fields__} for event in one.events]
    return {
        "id": one.id,
        "kind": one.kind,
        "state": one.state,
        "digest": one.digest,
        "since": one.since,
        "problem": one.problem,
        "events": events,
        "plan": one.plan.to_dict(),
    }


def _show(one: Proposal, output: str) -> int:
    import json

    from workbench.report.plan import FORMATS
    from workbench.report.text import clean, iso

    if output == "json":
        sys.stdout.write(json.dumps(_plain(one), indent=2, ensure_ascii=False) + "\n")
        return exits.OK
    sys.stdout.write(FORMATS[output](one.plan))
    what = "Takes back" if one.kind == "undo" else "Does"
    lines = ["", f"{what} the steps above. Digest {one.digest}."]
    lines += [one.problem] if one.problem else []
    for event in one.events:
        lines.append(f"{iso(event.time)}  {event.state:<9} by {event.by}{': ' + event.reason if event.reason else ''}")
    sys.stdout.write("".join(clean(line) + "\n" for line in lines))
    return exits.INCOMPLETE if one.problem else exits.OK
