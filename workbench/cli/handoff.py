"""Turn `workbench handoff INCIDENT…` into five lines an incident for the next shift."""

from __future__ import annotations

import argparse
from typing import Any

from workbench.cli import exits
from workbench.cli.incidents import Given, add_incident, done_to, hider, journal_of, open_incident
from workbench.cli.live import config_of

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_incident(parser, several=True)
    parser.add_argument("-o", "--output", choices=("text", "md", "json"), default="text", help="default: text")


def run(options: argparse.Namespace) -> int:
    """Print the lines; the exit code is 3 when some evidence could not be read."""
    from workbench.cli.console import output
    from workbench.report import handoff

    config = config_of(options)
    given = [open_incident(word, config, inbox=options.inbox) for word in options.incidents]
    hide = hider(given, config, options.redact)
    journal = journal_of(options.journal, config)
    items = [_lines(one, journal, hide) for one in given]
    if options.output == "json":
        from workbench.report.verdict_json import dumps

        text = dumps(handoff.to_dict(items), indent=2) + "\n"
    else:
        text = handoff.markdown(items) if options.output == "md" else handoff.text(items)
    with output(options.out) as write:
        write(text)
    return exits.worst(exits.INCOMPLETE if exits.incomplete(dict(one.document)) else exits.OK for one in given)


def _lines(given: Given, journal: list[dict[str, Any]] | None, hide: Any) -> Any:
    from workbench.report.handoff import handoff
    from workbench.report.redact import hide_document

    job = {key: given.job.get(key) for key in ("id", "name")}
    return handoff(
        hide_document({**given.document, "incident": given.name}, hide),
        job=hide_document(job, hide),
        done=done_to(given, journal, hide),
        state=str(given.entry.get("state") or ""),
    )
