"""Turn `workbench inbox` into the incidents that were found: a list, one of them whole, a change of its state, a copy to take away."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli import exits
from workbench.cli.console import color_wanted, width
from workbench.cli.entry import complain
from workbench.cli.live import add_site, config_of, moment
from workbench.cli.remedy import Usage

if TYPE_CHECKING:
    from workbench.inbox.model import Entry
    from workbench.inbox.store import Inbox

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "action",
        nargs="?",
        default="list",
        choices=("list", "show", "set", "note", "add", "export", "forget"),
        metavar="list|show|set|note|add|export|forget",
        help="list (default); show ID: verdict and history; set ID STATE [WHY]: new, acknowledged, resolved, closed or muted; note ID TEXT; "
        "add PATH: triage a folder or archive and add it; export ID PATH: copy evidence, verdict and history there; "
        "forget TIME: remove what is older",
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="of show, set, note, add, export and forget")
    parser.add_argument("--inbox", metavar="DIR", type=Path, help="default: inbox.folder")
    parser.add_argument("--state", metavar="STATE", action="append", help="list: of this state only; may be repeated")
    parser.add_argument("--since", metavar="TIME", help="list: 6h ago as 6h, or 2026-05-04T10:00Z")
    parser.add_argument("--by", metavar="NAME", default="", help="who does it (default: you)")
    parser.add_argument("-o", "--output", choices=("table", "json", "jsonl"), default="table", help="default: table")
    add_site(parser)


_WORDS = {
    "list": (0, 0, ""),
    "show": (1, 1, "ID"),
    "set": (2, 99, "ID STATE [WHY]"),
    "note": (2, 99, "ID TEXT"),
    "add": (1, 1, "PATH"),
    "export": (2, 2, "ID PATH"),
    "forget": (1, 1, "TIME, such as 90d"),
}


def run(options: argparse.Namespace) -> int:
    """Show or change entries."""
    from workbench.inbox.store import Inbox
    from workbench.owners import Teams

    least, most, wanted = _WORDS[options.action]
    words = list(options.words)
    if not least <= len(words) <= most:
        raise Usage(
            f"{options.action} wants {wanted or 'no more words'}", hint=f"workbench inbox {options.action} {wanted}".strip()
        )
    config = config_of(options)
    inbox = Inbox(options.inbox or config["inbox.folder"], prices=config["report.prices"], teams=Teams.of(config))
    if options.action == "list":
        return _list(inbox, options)
    if options.action == "show":
        return _show(inbox, _one(inbox, words[0]), options)
    if options.action == "set":
        entry = inbox.set_state(_one(inbox, words[0]).id, words[1], options.by, " ".join(words[2:]))
        sys.stdout.write(f"{entry.id}: {entry.state}\n")
    elif options.action == "note":
        inbox.note(_one(inbox, words[0]).id, " ".join(words[1:]), options.by)
    elif options.action == "add":
        entry = _add(inbox, Path(words[0]), options.by)
        sys.stdout.write(f"{entry.id}\n")
    elif options.action == "export":
        sys.stdout.write(f"{_export(inbox, _one(inbox, words[0]), Path(words[1]))}\n")
    else:
        from workbench.config import time_span

        try:
            older = time_span(words[0])
        except ValueError as error:
            raise Usage(str(error)) from None
        sys.stdout.write("".join(f"{line}\n" for line in inbox.forget(older=older, by=options.by)))
    return exits.OK


def _one(inbox: Inbox, word: str) -> Entry:
    """Return the entry of an id, or the only one whose id begins so or whose job is called so."""
    if word in inbox:
        return inbox.get(word)
    entries = inbox.entries()
    found = [one for one in entries if one.id.startswith(word)] or [one for one in entries if one.job == word]
    if len(found) == 1:
        return found[0]
    if found:
        raise Usage(f"{word!r} means {len(found)} entries: {', '.join(one.id for one in found[:5])}", hint="give more of the id")
    return inbox.get(word)


def _list(inbox: Inbox, options: argparse.Namespace) -> int:
    from workbench.inbox.model import STATES
    from workbench.inbox.rows import to_json

    for state in options.state or ():
        if state not in STATES:
            raise Usage(f"{state!r} is no state", hint=f"one of {', '.join(STATES)}")
    since = moment(options.since, time.time())
    entries = [one for one in inbox.entries(options.state) if since is None or (one.time or one.seen) >= since]
    for problem in inbox.problems:
        complain(problem)
    if options.output == "json":
        sys.stdout.write(json.dumps([to_json(one) for one in entries], indent=2) + "\n")
    elif options.output == "jsonl":
        sys.stdout.write("".join(json.dumps(to_json(one)) + "\n" for one in entries))
    elif entries:
        sys.stdout.write(_table(entries))
    else:
        sys.stdout.write(f"no entries in {inbox.root}\n")
    return exits.INCOMPLETE if inbox.problems else exits.OK


def _when(seconds: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds)) if seconds is not None else "–"


def _table(entries: list[Entry]) -> str:
    from workbench.report.text import clean, percent, shorten

    head = ("failed (UTC)", "state", "job", "class", "conf.", "culprit", "id")
    rows = [
        (
            _when(entry.time),
            entry.state,
            shorten(clean(entry.job or "–"), 32),
            "not triaged" if entry.problem else "waits" if not entry.summary and entry.cls == "unknown" else entry.cls,
            percent(entry.confidence) if entry.confidence else "–",
            shorten(clean(_culprit(entry)), 32),
            entry.id,
        )
        for entry in entries
    ]
    sizes = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head) - 1)]
    lines = ["  ".join([*(cell.ljust(size) for cell, size in zip(row, sizes, strict=False)), row[-1]]) for row in (head, *rows)]
    return "\n".join(lines) + "\n"


def _culprit(entry: Entry) -> str:
    parts = [
        entry.node or "",
        f"GPU {entry.gpu}" if entry.gpu is not None else "",
        f"rank {entry.rank}" if entry.rank is not None else "",
    ]
    return " ".join(part for part in parts if part) or "–"


def _show(inbox: Inbox, entry: Entry, options: argparse.Namespace) -> int:
    from workbench.inbox.notify import note_of
    from workbench.inbox.rows import to_json
    from workbench.report.text import clean

    verdict, history = inbox.verdict(entry.id), inbox.history(entry.id)
    if options.output != "table":
        document = {**to_json(entry), "verdict": verdict or None, "history": history}
        sys.stdout.write(json.dumps(document, indent=2 if options.output == "json" else None) + "\n")
        return exits.OK
    lines = [*note_of(entry, verdict).lines[:4], "", f"id        {entry.id}", f"state     {entry.state}"]
    lines += [f"evidence  {clean(entry.evidence) or '–'}"]
    for name, alert in sorted((entry.data.get("alerts") or {}).items()):
        lines.append(
            clean(f"alert     {alert.get('name')} {alert.get('status')} since {_when(alert.get('starts'))} UTC ({name})")
        )
    lines += ["", "history (UTC)"]
    for row in history:
        said = " ".join(str(row.get(key)) for key in ("what", "state", "note") if row.get(key))
        lines.append(clean(f"  {_when(row.get('time'))}  {row.get('by') or '–'}: {said}"))
    text = "\n".join(lines) + "\n"
    if verdict:
        from workbench.report import terminal

        tty = sys.stdout.isatty()
        text += "\n" + terminal.render(verdict, color=color_wanted(False, tty), width=width(tty))
    sys.stdout.write(text)
    return exits.OK


def _add(inbox: Inbox, path: Path, by: str) -> Entry:
    from workbench.casefile import open_path

    return inbox.add(open_path(path), source="folder", evidence=path.absolute(), by=by or "workbench inbox add")


def _export(inbox: Inbox, entry: Entry, target: Path) -> Path:
    """Copy an entry into a folder that is not there yet: whoever has it can triage it again."""
    from workbench.inbox.rows import to_json

    if target.exists():
        raise Usage(f"{target} is there already", hint="give the path of a folder that is made")
    files: dict[str, Any] = {
        "entry.json": to_json(entry),
        "verdict.json": inbox.verdict(entry.id),
        "history.json": inbox.history(entry.id),
    }
    target.mkdir(parents=True)
    for name, value in files.items():
        (target / name).write_text(json.dumps(value, indent=2) + "\n", encoding="ascii")
    source = Path(entry.evidence) if entry.evidence else None
    if source is None or not source.exists():
        complain(f"{entry.id}: its evidence is not there{': ' + entry.problem if entry.problem else ''}")
    elif source.is_dir():
        shutil.copytree(source, target / "evidence", symlinks=True)
    else:
        shutil.copy2(source, target / source.name)
    return target
