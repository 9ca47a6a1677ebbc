"""Turn `workbench policy show` into all thresholds of retries with their reasons, and `export` into what a scheduler can do of them."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from workbench.cli import exits
from workbench.errors import SourceUnavailable, WorkbenchError

if TYPE_CHECKING:
    from workbench.training.policy import Policy

__all__ = ["add_arguments", "run"]

_KINDS = ("Job", "JobSet", "PyTorchJob")


class _Usage(WorkbenchError):
    exit_code = exits.USAGE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "action",
        choices=("show", "export"),
        metavar="show|export",
        help="show: list every threshold with its value, where it was set, its source and its reason; export TARGET: print a manifest or the "
        "head of a batch script that does of the policy what its target can do, and says in comments what it cannot",
    )
    parser.add_argument("target", nargs="?", choices=("kubernetes", "slurm"), metavar="kubernetes|slurm", help="of export")
    parser.add_argument("--policy", metavar="FILE", help="a site's policy; default: the shipped one")
    parser.add_argument("--job-kind", choices=_KINDS, default="Job", help="of export kubernetes; default: Job")
    parser.add_argument("--name", metavar="NAME", default="train", help="of export: of the job; default: train")
    parser.add_argument("--image", metavar="IMAGE", default="IMAGE", help="of export kubernetes: of its container")
    parser.add_argument(
        "--nodes", metavar="N", type=int, default=0, help="of export: how many; default: nodes.have of the policy, or 1"
    )
    parser.add_argument("--exclude", metavar="NODE,NODE", default="", help="of export: nodes that the job is kept off")
    parser.add_argument(
        "--run", metavar="RUN", help="of export: folder of a `workbench run`, whose excluded nodes are left out as well"
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="of show; default: table")


def run(options: argparse.Namespace) -> int:
    """Print the policy, or what a scheduler can do of it."""
    from workbench.training.policy import load_policy

    policy = load_policy(options.policy)
    if options.action == "show":
        if options.target:
            raise _Usage(f"{options.target!r} is one word too many", hint="workbench policy show")
        return _show(policy, options.output)
    if not options.target:
        raise _Usage("export wants to know for whom", hint="workbench policy export kubernetes, or slurm")
    if options.nodes < 0:
        raise _Usage("--nodes is at least 1")
    from workbench.training.export import Shape, export

    exclude = [one for one in options.exclude.split(",") if one]
    shape = Shape(options.name, options.image, options.nodes, (*exclude, *_left_out(options.run, policy)))
    sys.stdout.write(export(options.target, policy, shape, job_kind=options.job_kind))
    return exits.OK


def _left_out(folder: str | None, policy: Policy) -> tuple[str, ...]:
    """Return the nodes that a run has left out so far."""
    if folder is None:
        return ()
    import time
    from pathlib import Path

    from workbench.training.attempts import RunLedger
    from workbench.training.exclusions import left_out

    path = Path(folder) / "attempts.jsonl"
    if not path.is_file():
        raise SourceUnavailable(f"{path}: there is no such file", hint="--run names the folder of a `workbench run`")
    return left_out(RunLedger(path).attempts(), time.time(), policy)


def _show(policy: Any, output: str) -> int:
    from workbench.report.text import clean
    from workbench.training.policy import plain_value, thresholds

    rows = thresholds(policy)
    if output == "json":
        from workbench.report.verdict_json import dumps

        document = {
            "schema": "workbench.retry/1",
            "thresholds": [
                {"key": one.key, "value": one.value, "origin": one.origin, "source": one.source, "reason": one.reason}
                for one in rows
            ],
        }
        sys.stdout.write(dumps(document, indent=2) + "\n")
        return exits.OK
    wide = max(len(one.key) for one in rows)
    values = [plain_value(one.key, one.value) for one in rows]
    across = min(24, max(map(len, values)))
    for one, value in zip(rows, values, strict=True):
        sys.stdout.write(clean(f"{one.key:<{wide}}  {value:<{across}}  {one.origin}") + "\n")
        sys.stdout.write(clean(f"{'':<{wide}}  {one.reason}") + "\n")
        sys.stdout.write(clean(f"{'':<{wide}}  source: {one.source}") + "\n")
    return exits.OK
