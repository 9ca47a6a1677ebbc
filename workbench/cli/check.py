"""Turn `workbench check` into findings of this node and an exit code: 0 ok, 1 warning, 2 critical, 3 unknown."""

from __future__ import annotations

import argparse
import sys

__all__ = ["add_arguments", "run"]

# Nagios's numbers, which Slurm's and Kubernetes' helpers read, too
_CODES = {"ok": 0, "not-applicable": 0, "warning": 1, "critical": 2, "unknown": 3}


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
    parser.add_argument("--node", help="this node's name; default its host name")
    parser.add_argument("--seconds", type=float, default=45.0, help="what is not read by then is unknown; default 45")
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
    findings = run_checks(options.context, node=options.node, only=options.checks, seconds=options.seconds, settings=settings)
    sys.stdout.write(FORMATS[options.output](findings, verbose=options.verbose))
    return _CODES[fitness(findings)]
