"""Turn `workbench run -- COMMAND…` into a job that is kept on disk, and started again when that is right; its exit code is the command's."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from workbench.cli import exits

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.usage = "workbench run [OPTIONS] -- COMMAND…   |   workbench run --show RUN"
    parser.add_argument(
        "--policy", metavar="FILE", help="when to start again (TOML); `workbench policy show` prints what holds without one"
    )
    parser.add_argument(
        "--run-dir",
        metavar="DIR",
        help="keep everything there, and go on with the ledger of an earlier run there; default workbench-runs/ with the time or Slurm's job",
    )
    parser.add_argument(
        "--checkpoints",
        metavar="PATH",
        action="append",
        default=[],
        help="look there for the newest checkpoint that can be restored; may be repeated. Without it the job finds its own",
    )
    parser.add_argument(
        "--max-hang",
        metavar="TIME",
        type=_time,
        help="no step for so long is a hang (90s, 10m; 0: never); default: ten usual steps, at least 30 minutes",
    )
    parser.add_argument("--grace", metavar="TIME", type=_time, default=30.0, help="between SIGTERM and SIGKILL; default 30s")
    parser.add_argument(
        "--spares",
        metavar="NODE,NODE",
        default="",
        help="nodes that take the place of excluded ones where the command names its nodes",
    )
    parser.add_argument(
        "--keeps-allocation",
        action="store_true",
        help="after a SIGTERM start again here: the scheduler takes the job's time, not its nodes",
    )
    parser.add_argument(
        "--storm", metavar="FILE", help="where all jobs of the cluster count their restarts; default beside the run's folder"
    )
    parser.add_argument(
        "--ledger", metavar="FILE", help="write the attempts into this ledger of the fleet, too; default the setting fleet.ledger"
    )
    parser.add_argument(
        "--stacks",
        choices=("auto", "py-spy", "signal", "none"),
        default="auto",
        help="how stacks of a hang are taken; auto: py-spy where it is installed, else each Python of the job gets a small hook",
    )
    parser.add_argument(
        "--together",
        metavar="DIR",
        help="a folder that all nodes of the job share, where each node runs its own `workbench run`: a hang that one sees makes all take the "
        "stacks of their ranks, and a node whose supervisor falls silent is told",
    )
    parser.add_argument("--show", metavar="RUN", help="print attempts and decisions of a run, and start nothing")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="of --show")


def _time(text: str) -> float:
    units = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    try:
        seconds = float(digits) * units[text[len(digits) :] or "s"]
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r} is no time, such as 90s, 10m or 2h") from None
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no time, such as 90s, 10m or 2h")
    return seconds


def run(options: argparse.Namespace) -> int:
    """Run the command, or show a run."""
    if options.show is not None:
        return _show(options)
    if not options.program:
        from workbench.cli.entry import complain

        complain(
            "there is no command to run", hint="workbench run [OPTIONS] -- COMMAND…, such as workbench run -- torchrun train.py"
        )
        return exits.USAGE
    from workbench.training.supervise import supervise

    outcome = supervise(
        options.program,
        policy=options.policy,
        run_dir=options.run_dir,
        checkpoints=options.checkpoints,
        max_hang=options.max_hang,
        spares=[node for node in options.spares.split(",") if node],
        ledger=options.ledger or _configured,
        storm=options.storm,
        grace=options.grace,
        keeps_allocation=options.keeps_allocation,
        stacks=options.stacks,
        whole=True,
        together=options.together,
    )
    if outcome.summary:
        try:
            sys.stderr.write("\n".join(outcome.summary) + "\n")
        except (OSError, ValueError):  # nobody listens
            pass
    return outcome.exit_code


def _configured() -> str | None:
    """Return the setting `fleet.ledger` where the environment or the file of settings gives it; asked when the job has ended."""
    if named := os.environ.get("WORKBENCH_FLEET_LEDGER"):
        return named
    from workbench.config import load_config

    config = load_config()
    return None if config.origin("fleet.ledger") == "default" else config["fleet.ledger"]


def _show(options: argparse.Namespace) -> int:
    import json
    from pathlib import Path

    from workbench.cli.entry import complain
    from workbench.training.showing import page, shown

    folder = Path(options.show)
    if not (folder / "lock").exists() and not (folder / "attempts.jsonl").exists():
        runs = sorted((one.parent for one in folder.glob("*/lock")), key=lambda one: (one / "lock").stat().st_mtime)
        complain(
            f"{folder}: there is no run in this folder" + (f", but {len(runs)} are below it" if runs else ""),
            hint=f"the newest: workbench run --show {runs[-1]}"
            if runs
            else "give the folder that `workbench run` named, such as workbench-runs/…",
        )
        return exits.UNAVAILABLE
    found: dict[str, Any] = shown(folder)
    if options.output == "json":
        sys.stdout.write(json.dumps(found, indent=2, ensure_ascii=True) + "\n")
    else:
        sys.stdout.write(page(found))
    return exits.INCOMPLETE if found["problems"] else exits.OK
