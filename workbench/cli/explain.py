"""Turn `workbench explain WORD…` into what the catalog knows of each word, and from where."""

from __future__ import annotations

import argparse
import sys
import textwrap

from workbench.cli import exits
from workbench.cli.entry import complain
from workbench.errors import ParseError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "terms",
        metavar="WORD",
        nargs="+",
        help="a signature id, xid:79, sxid:12028, dcgm:DCGM_FI_DEV_GPU_TEMP, nvml:15, condition:NAME, class:hardware/nvlink",
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")


def run(options: argparse.Namespace) -> int:
    """Print the cards of every word; words not known are told on stderr."""
    from workbench.report.knowledge import explain

    found, code = [], exits.OK
    for term in options.terms:
        try:
            found.append((term, explain(term)))
        except ParseError as error:
            complain(str(error), hint=error.hint)
            code = exits.DATA
    if options.output == "json":
        from workbench.report.verdict_json import dumps

        cards = [
            {"term": term, "kind": card.kind, "title": card.title, "origin": card.origin, "facts": card.facts}
            for term, cards in found
            for card in cards
        ]
        sys.stdout.write(dumps(cards, indent=2) + "\n")
        return code
    from workbench.report.text import clean

    for number, card in enumerate(card for _, cards in found for card in cards):
        sys.stdout.write(("\n" if number else "") + f"{clean(card.title)}  [{card.origin}]\n")
        for label, text in card.facts.items():
            sys.stdout.write(
                textwrap.fill(
                    clean(text),
                    100,
                    initial_indent=f"  {label + ' ':<18}",
                    subsequent_indent=" " * 20,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
                + "\n"
            )
    return code
