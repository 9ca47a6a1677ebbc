"""Turn `workbench check --compare FILE …` into which of a job's nodes has another driver or firmware than most, printed as findings of each."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["run_compare"]

_MOST = 64 << 20  # bytes: what a thousand nodes print


def run_compare(options: argparse.Namespace) -> str:
    """Compare the versions that the files tell, print the findings, return the status of the nodes together."""
    from workbench.cli.check import show
    from workbench.cli.entry import complain
    from workbench.errors import ConfigError
    from workbench.health import compare, fitness
    from workbench.report.findings import FORMATS
    from workbench.report.text import clean

    if options.output not in ("table", "json", "nagios"):
        raise ConfigError(f"-o {options.output} is for one node", hint="-o table, json or nagios")
    documents = []
    for name in options.compare:
        told, why = _documents(name)
        if why:  # a node of which nothing is known must not look like one that agrees
            complain(f"{clean(name)}: {why}", hint="workbench check versions -o json, on each node")
        documents += told or [{"node": Path(name).stem, "findings": []}]
    findings = compare(documents)
    if options.output == "json":
        show(FORMATS["json"](findings, verbose=options.verbose))
    for node in dict.fromkeys(one.node for one in findings) if options.output != "json" else ():
        mine = [one for one in findings if one.node == node]
        show(FORMATS[options.output](mine, verbose=options.verbose) if node else f"{mine[0].summary}\n")
    return fitness(findings)


def _documents(name: str) -> tuple[list[dict[str, Any]], str]:
    """The documents of a file, one behind another, and why something in it is none."""
    try:
        with sys.stdin.buffer if name == "-" else Path(name).open("rb") as stream:
            text = stream.read(_MOST).decode("utf-8", "replace")
    except OSError as error:
        return [], str(error.strerror)
    found = list(_several(text))
    good = [one for one in found if isinstance(one, dict) and isinstance(one.get("findings"), list)]
    return good, "" if good and len(good) == len(found) else "not all of it is what `workbench check -o json` prints"


def _several(text: str) -> Iterator[object]:
    at, decoder = 0, json.JSONDecoder()
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        try:
            one, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            yield None
            return
        yield one
