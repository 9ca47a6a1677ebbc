"""Turn `workbench check` into findings of this node and an exit code: 0 ok, 1 warning, 2 critical, 3 unknown."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["add_arguments", "run"]

# Nagios's numbers, which Slurm's and Kubernetes' helpers read, too
_CODES = {"not-applicable": 0, "ok": 0, "warning": 1, "unknown": 3, "critical": 2}  # worst last


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("checks", nargs="*", metavar="CHECK", help="run these only; default all of the context")
    parser.add_argument(
        "--context",
        choices=("allocation", "running", "idle"),
        default="allocation",
        help="before a job gets the node (default), while one runs (disturbs nothing), between jobs (may use the GPUs)",
    )
    parser.add_argument(
        "-o", "--output", choices=("table", "json", "nagios", "npd", "prom"), default="table", help="default: table"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="also what is as it should be, and how it was looked at")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="with the check xid: which rule decided on each Xid and why, and what other tools would do",
    )
    parser.add_argument(
        "--from",
        dest="kept",
        metavar="PATH",
        nargs="+",
        help="do not look at this node: say what the checks make of kept kernel logs and outputs of nvidia-smi, NVML and dcgmi",
    )
    parser.add_argument("--node", help="this node's name; default its host name")
    parser.add_argument(
        "--seconds",
        type=float,
        help="what is not read by then is unknown; default 45, and with --context idle as long as each probe takes at most",
    )
    parser.add_argument(
        "--pairs",
        metavar="NODES",
        help="do not look at this node: run --command on pairs of these, such as gpu[01-16], until it is clear which node is bad",
    )
    parser.add_argument(
        "--command",
        dest="pair_command",
        metavar="COMMAND",
        help="with --pairs: what is run, {a} and {b} for the nodes, no shell: 'srun -N2 --gpus-per-node=8 -w {a},{b} all_reduce_perf -g 8'",
    )
    parser.add_argument(
        "--pair-seconds", type=float, default=300.0, metavar="S", help="after this time a pair hangs; default 300"
    )
    parser.add_argument(
        "--least", type=float, metavar="GB/S", help="bus bandwidth below which a pair is bad; default any will do"
    )
    parser.add_argument("--at-once", type=int, default=16, metavar="N", help="pairs run at the same time; default 16")
    parser.add_argument("--config", metavar="FILE", help="default: ./workbench.toml, then ~/.config/workbench/workbench.toml")
    parser.add_argument("--profile", metavar="NAME", help="one of the file's [profiles.NAME]")


def run(options: argparse.Namespace) -> int:
    """Check this node, print the findings, return the code of the node's status."""
    from workbench.config import load_config
    from workbench.health import fitness
    from workbench.health import run as run_checks
    from workbench.report.findings import FORMATS

    config = load_config(options.config, profile=options.profile, flags={})
    settings = config.section("health")
    if options.explain:
        return _explain(options, settings)
    if options.kept:
        return _kept(options, settings)
    if options.pairs:
        from workbench.cli.check_pairs import run_pairs

        return _CODES[run_pairs(options)]
    findings = run_checks(options.context, node=options.node, only=options.checks, seconds=options.seconds, settings=settings)
    sys.stdout.write(FORMATS[options.output](findings, verbose=options.verbose))
    return _CODES[fitness(findings)]


def _kept(options: argparse.Namespace, settings: Mapping[str, Any]) -> int:
    from workbench.cli.entry import complain
    from workbench.health import fitness
    from workbench.health.folder import check_folder
    from workbench.report.findings import FORMATS
    from workbench.report.text import clean

    findings = check_folder(*options.kept, context=options.context, settings=settings)
    if options.checks:
        findings = [one for one in findings if one.check in options.checks]
    if not findings:
        complain("nothing of a node is among the files", hint="give kernel logs, or what nvidia-smi -q or dcgmi printed")
        return _CODES["unknown"]
    for node in dict.fromkeys(one.node for one in findings):
        mine = [one for one in findings if one.node == node]
        if options.output == "table" and not options.verbose:  # a log alone leaves most checks without what they need: said once
            unseen = {one.check for one in mine if one.code == "unread-missing"}
            shown = [one for one in mine if one.code != "unread-missing"]
            lines = FORMATS["table"](shown, verbose=False).split("\n", 1)
            if fitness(shown) != "critical":  # files that hold little show little: no node is fit by them
                lines[0] = f"{clean(node) or 'a node without a name'}: nothing in these files makes it unfit"
            sys.stdout.write("\n".join(lines))
            sys.stdout.write(f"  {len(unseen)} checks need more than these files hold\n" if unseen else "")
        else:
            sys.stdout.write(FORMATS[options.output](mine, verbose=options.verbose))
    return _CODES[fitness(findings)]


def _explain(options: argparse.Namespace, settings: Mapping[str, Any]) -> int:
    from workbench.errors import ConfigError
    from workbench.health.runner import read
    from workbench.health.xid_rulings import rulings
    from workbench.report.text import clean
    from workbench.report.xid_explained import explained
    from workbench.sources.node.world import World

    if options.checks != ["xid"]:
        raise ConfigError("only one check can be explained", hint="workbench check xid --explain")
    readings = read(("kernel", "gpus", "machine"), World(settings=settings), options.seconds)
    kernel, machine = readings["kernel"], readings["machine"].value
    if not kernel.usable:
        sys.stdout.write(clean(f"no kernel log could be read, so nobody knows: {kernel.detail}") + "\n")
        return _CODES["unknown"]
    log = kernel.value
    kinds = (machine.kind,) if machine and machine.kind else ()
    found, cleared = rulings(log, readings["gpus"].value, environment=kinds)
    whole = "back to the last boot" if log.whole else "not back to the last boot"
    sys.stdout.write(explained(found, cleared, f"the {log.place} reaches {whole}"))
    return _CODES[max((one.rule.status for one in found), key=list(_CODES).index, default="ok" if log.whole else "unknown")]
