"""Turn `workbench config show` into all settings with the place that decided each, and the other words into what a site deploys."""

from __future__ import annotations

import argparse
import sys

from workbench.cli import exits
from workbench.cli.live import add_site, config_of
from workbench.errors import WorkbenchError

__all__ = ["SHIPPED", "add_arguments", "run"]

# word → package and file
SHIPPED = {
    "rbac": ("workbench.sources.kubernetes", "rbac.yaml"),
    "rbac --writer": ("workbench.sources.kubernetes", "rbac-writer.yaml"),
    "rbac --remediation": ("workbench.remediation.executors.kubernetes", "rbac-remediation.yaml"),
    "daemonset": ("workbench.deploy", "daemonset.yaml"),
    "npd": ("workbench.deploy", "npd.json"),
    "npd-warnings": ("workbench.deploy", "npd-warnings.json"),
    "slurm": ("workbench.deploy", "slurm.sh"),
    "policy": ("workbench.deploy", "policy.toml"),
}


class _Usage(WorkbenchError):
    exit_code = exits.USAGE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "action",
        choices=("show", "rbac", "daemonset", "npd", "npd-warnings", "slurm", "policy"),
        metavar="show|rbac|daemonset|npd|npd-warnings|slurm|policy",
        help="show: list all settings, without secrets; rbac: print the Kubernetes account that may read what triage needs, and no more; "
        "daemonset: print what checks every node; npd: print a monitor for node-problem-detector; "
        "npd-warnings: print one that makes events of what does not make the node unfit; "
        "slurm: print a health program, prolog and epilog; policy: print a policy of remediation to begin with",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--writer", action="store_true", help="with rbac: the account that may show how nodes are, and no more")
    which.add_argument(
        "--remediation", action="store_true", help="with rbac: the account that may act on nodes, pods and machines"
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")
    add_site(parser)


def run(options: argparse.Namespace) -> int:
    """Print every setting, its value and its origin."""
    from workbench.config import SETTINGS

    which = "writer" if options.writer else "remediation" if options.remediation else ""
    word = f"{options.action} --{which}" if which else options.action
    if word in SHIPPED:
        from importlib.resources import files

        package, name = SHIPPED[word]
        sys.stdout.write((files(package) / name).read_text(encoding="utf-8"))
        return exits.OK
    if which:
        raise _Usage(f"only rbac has a --{which}", hint=f"workbench config rbac --{which}")
    config = config_of(options)
    rows = config.shown()
    meanings = {setting.key: setting.meaning for setting in SETTINGS}
    if options.output == "json":
        from workbench.report.verdict_json import dumps

        document = [{"key": key, "value": value, "origin": origin, "meaning": meanings[key]} for key, value, origin in rows]
        sys.stdout.write(dumps(document, indent=2) + "\n")
        return exits.OK
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    where = config.file or "no configuration file"
    sys.stdout.write(f"# {where}" + (f", profile {config.profile}" if config.profile else "") + "\n")
    for key, value, origin in rows:
        sys.stdout.write(f"{key:<{widths[0]}}  {value:<{min(widths[1], 48)}}  {origin:<14}  {meanings[key]}\n")
    return exits.OK
