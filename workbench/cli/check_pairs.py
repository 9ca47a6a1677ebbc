"""Turn `workbench check --pairs NODES --command …` into which of the nodes is bad, printed as findings of each."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from functools import partial

__all__ = ["run_pairs"]


def run_pairs(options: argparse.Namespace) -> str:
    """Run the pairs, print the findings, return the status of the nodes together."""
    from workbench.cli.check import show
    from workbench.errors import ConfigError
    from workbench.health import fitness
    from workbench.health.pair_runs import judge_nccl
    from workbench.health.pair_runs import run_pairs as run_all
    from workbench.parse.nodeset import expand, fold
    from workbench.report.findings import FORMATS
    from workbench.report.text import clean

    example = '--command "srun -N2 --gpus-per-node=8 -w {a},{b} all_reduce_perf -b 1G -e 4G -f 2 -g 8"'
    if not options.pair_command:
        raise ConfigError("nothing says what to run on the pairs", hint=f"for example {example}")
    try:
        command = shlex.split(options.pair_command)
    except ValueError as error:
        raise ConfigError(f"the command cannot be read: {error}", hint=f"for example {example}") from None
    if options.output not in ("table", "json", "nagios"):
        raise ConfigError(f"-o {options.output} is for one node", hint="-o table, json or nagios")
    findings = run_all(
        expand(options.pairs),
        command,
        seconds=options.pair_seconds,
        at_once=options.at_once,
        judge=partial(judge_nccl, least=options.least),
        progress=_tell if sys.stderr.isatty() else None,
    )
    if options.output == "json":
        show(FORMATS["json"](findings, verbose=options.verbose))
    else:
        bad = fold(one.node for one in findings if one.code == "pair-node-bad")
        links = sorted({one.part for one in findings if one.code == "pair-link-bad"})
        unsure = fold(one.node for one in findings if one.code == "pair-undecided")
        told = [f"bad: {bad}"] * bool(bad) + [f"bad link: {each}" for each in links] + [f"not known: {unsure}"] * bool(unsure)
        show(clean("; ".join(told) or "every node passes with another") + "\n")
        for node in dict.fromkeys(one.node for one in findings):
            mine = [one for one in findings if one.node == node]
            show(FORMATS[options.output](mine, verbose=options.verbose))
    return fitness(findings)


def _tell(wave: int, pairs: Sequence[tuple[str, str]]) -> None:
    sys.stderr.write(f"wave {wave}: {len(pairs)} pairs\n")
