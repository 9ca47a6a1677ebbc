"""Turn `workbench postmortem INCIDENT` into a postmortem in the order of a template: Markdown, a page or a notebook."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from workbench.cli import exits
from workbench.cli.incidents import add_incident, hider, journal_of, open_incident, product_of
from workbench.cli.live import config_of

__all__ = ["add_arguments", "run"]

FORMATS = ("md", "html", "ipynb", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_incident(parser)
    parser.add_argument(
        "--template",
        metavar="google|atlassian|pagerduty|FILE",
        help="whose order: one of these, or your own site.md.j2 (report.template; default google)",
    )
    parser.add_argument(
        "-o", "--output", choices=FORMATS, help="default: what --out ends with, else md; json: the facts that templates see"
    )


def run(options: argparse.Namespace) -> int:
    """Print the postmortem; the exit code is 3 when some evidence could not be read."""
    from workbench.cli.console import output
    from workbench.report.facts import gather
    from workbench.report.redact import hide_document

    config = config_of(options)
    given = open_incident(options.incident, config, inbox=options.inbox)
    hide = hider([given], config, options.redact)
    facts = gather(
        given.document,
        made=time.time(),
        job=given.job_facts(),
        impact=given.impact,
        entry=given.entry,
        journal=journal_of(options.journal, config),
        prices=config["report.prices"],
        product=product_of(given),
        hide=hide,
    )
    template = options.template or config["report.template"]
    kind = options.output or _kind(options.out)
    if kind == "html":
        from workbench.report.postmortem import html

        text = html(facts, template, hide_document(given.document, hide))
    elif kind == "ipynb":
        from workbench.report.postmortem_notebook import notebook

        text = notebook(facts, template)
    elif kind == "json":
        from workbench.report.verdict_json import dumps

        text = dumps(facts.to_dict(), indent=2) + "\n"
    else:
        from workbench.report.postmortem import markdown

        text = markdown(facts, template)
    with output(options.out) as write:
        write(text)
    return exits.INCOMPLETE if exits.incomplete(dict(given.document)) else exits.OK


def _kind(out: Path | None) -> str:
    return {".html": "html", ".htm": "html", ".ipynb": "ipynb", ".json": "json"}.get(out.suffix.lower() if out else "", "md")
