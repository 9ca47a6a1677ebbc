"""Turn `workbench ticket INCIDENT --to provider|internal` into the report of a fault for whoever mends it."""

from __future__ import annotations

import argparse

from workbench.cli import exits
from workbench.cli.incidents import add_incident, done_to, hider, journal_of, open_incident
from workbench.cli.live import config_of

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_incident(parser)
    parser.add_argument(
        "--to",
        choices=("provider", "internal"),
        default="provider",
        help="provider (default): what the machine says, nothing of what ran on it; internal: the job, its victims and what is not sure, too",
    )
    parser.add_argument("--reference", metavar="TEXT", default="", help="what you call this report, such as a ticket's number")
    parser.add_argument("--kept", metavar="PATH", default="", help="where the evidence is kept, when it is told")
    parser.add_argument("-o", "--output", choices=("md", "json"), help="default: what --out ends with, else md")


def run(options: argparse.Namespace) -> int:
    """Print the report; the exit code is 3 when some evidence could not be read."""
    from workbench.cli.console import output
    from workbench.report.machines import gpu_facts, machine_facts
    from workbench.report.redact import hide_document
    from workbench.report.ticket import markdown, of_verdict
    from workbench.report.timeline import seconds

    config = config_of(options)
    given = open_incident(options.incident, config, inbox=options.inbox, evidence=True)
    hide = hider([given], config, options.redact)
    culprit = given.document.get("culprit") or {}
    node, gpu = culprit.get("node"), culprit.get("gpu")
    machine = machine_facts(given.evidence, node, before=seconds(given.document.get("time"))) if given.evidence else {}
    report = of_verdict(
        hide_document(given.document, hide),
        to=options.to,
        machine=hide_document(machine, hide),
        gpu=gpu_facts(given.evidence, node, gpu) if given.evidence else gpu,
        done=done_to(given, journal_of(options.journal, config), hide),
        job=hide_document({key: given.job.get(key) for key in ("id", "name", "start", "end")}, hide),
        reference=options.reference or given.name,
        kept=options.kept,
    )
    kind = options.output or ("json" if options.out and options.out.suffix.lower() == ".json" else "md")
    if kind == "json":
        from workbench.report.verdict_json import dumps

        text = dumps({**report.to_dict(), "text": markdown(report)}, indent=2) + "\n"
    else:
        text = markdown(report)
    with output(options.out) as write:
        write(text)
    return exits.INCOMPLETE if exits.incomplete(dict(given.document)) else exits.OK
