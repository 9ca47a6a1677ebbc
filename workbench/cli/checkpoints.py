"""Turn `workbench checkpoints PATH` into the newest checkpoint that can be restored, why newer ones cannot, and advice on how often to save."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workbench.cli.entry import Parser
from workbench.cli.live import add_site, config_of

if TYPE_CHECKING:
    from workbench.training.checkpoints import Checkpoint
    from workbench.training.interval import Advice

__all__ = ["FOUND", "NONE", "NOT_LOOKED", "add_arguments", "run"]

FOUND, NONE, NOT_LOOKED = 0, 2, 3
_SHOWN = 20  # rows of the table without --all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("path", metavar="PATH", nargs="?", help="a checkpoint, or a folder with checkpoints in it")
    parser.add_argument(
        "--world-size", type=_whole, metavar="N", help="ranks of the next attempt: what only another number can load is said"
    )
    parser.add_argument("--deep", action="store_true", help="read every byte and compare the checksums that torch.save wrote")
    parser.add_argument(
        "--elsewhere", action="store_true", help="the next attempt runs in another pod: pass over what dies with this one"
    )
    parser.add_argument(
        "--settle",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="what is not whole and changed less than so long ago counts as still being written (default 60; 0: the job is dead)",
    )
    parser.add_argument("--all", action="store_true", help=f"show all of them, not the newest {_SHOWN}")
    advice = parser.add_argument_group("how often to save (--advise; PATH can be left out)")
    advice.add_argument(
        "--advise", action="store_true", help="advise an interval from what a save costs and how often the job fails"
    )
    advice.add_argument(
        "--save-seconds", type=float, nargs="+", metavar="S", help="measured: how long training stood still for a save"
    )
    advice.add_argument("--failures", type=float, metavar="K", help="interruptions that were counted")
    advice.add_argument("--hours", type=float, metavar="H", help="hours of running in which they were counted")
    advice.add_argument("--nodes", type=_whole, default=1, metavar="N", help="nodes of the job (default 1)")
    advice.add_argument("--observed-nodes", type=_whole, metavar="N", help="nodes of what was counted, when it was another job")
    advice.add_argument("--gpus-per-node", type=_whole, default=8, metavar="G", help="default 8")
    advice.add_argument("--restart-seconds", type=float, default=0.0, metavar="S", help="from a failure to the first new step")
    advice.add_argument("--present", type=float, metavar="S", help="seconds of work between saves now: say what that costs")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")
    add_site(parser)


def _whole(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def run(options: argparse.Namespace) -> int:
    """Look, choose, advise; the exit code tells whether there is one to restore."""
    if options.path is None and not options.advise:
        Parser(prog="workbench checkpoints").error("the following arguments are required: PATH")
    advice = _advice(options) if options.advise else None
    if options.path is None:
        _print(options, [], None, (), advice)
        return FOUND
    from workbench.training.checkpoints import inspect, newest

    config = config_of(options)
    found = inspect(
        options.path,
        world_size=options.world_size,
        deep=options.deep,
        settle=options.settle,
        keeps=config["training.durable"],
        loses=config["training.scratch"],
    )
    best, passed = newest(found, world_size=options.world_size, elsewhere=options.elsewhere)
    _print(options, found, best, passed, advice)
    if best is not None:
        return FOUND
    return NOT_LOOKED if any(not row.looked for row in found) else NONE


def _advice(options: argparse.Namespace) -> Advice:
    from workbench.training.interval import advise

    missing = [f"--{name.replace('_', '-')}" for name in ("save_seconds", "failures", "hours") if getattr(options, name) is None]
    if missing:
        Parser(prog="workbench checkpoints").error(f"--advise needs {', '.join(missing)}")
    try:
        return advise(
            options.save_seconds,
            options.failures,
            options.hours,
            nodes=options.nodes,
            observed_nodes=options.observed_nodes,
            gpus_per_node=options.gpus_per_node,
            restart_seconds=options.restart_seconds,
            present=options.present,
        )
    except ValueError as error:
        Parser(prog="workbench checkpoints").error(str(error))


def _print(
    options: argparse.Namespace,
    found: list[Checkpoint],
    best: Checkpoint | None,
    passed: tuple[tuple[Checkpoint, str], ...],
    advice: Advice | None,
) -> None:
    from workbench.report.text import clean

    if options.output == "json":
        from workbench.report.verdict_json import dumps

        said: dict[str, Any] = {"schema": "workbench.checkpoints/1", "path": options.path}
        said["newest"] = asdict(best) if best else None
        said["passed_over"] = [
            {"path": row.path, "step": row.step, "state": row.state, "reason": reason} for row, reason in passed
        ]
        said["checkpoints"] = [asdict(row) for row in found]
        said["advice"] = advice.to_dict() if advice else None
        sys.stdout.write(dumps(said, indent=2) + "\n")
        return
    lines: list[str] = []
    if options.path is not None:
        lines += _chosen(best, passed, options)
        lines += _rows(found, None if options.all else _SHOWN)
    if advice is not None:
        lines += ([""] if lines else []) + _advised(advice)
    sys.stdout.write("".join(clean(line) + "\n" for line in lines))


def _chosen(best: Checkpoint | None, passed: tuple[tuple[Checkpoint, str], ...], options: argparse.Namespace) -> list[str]:
    if best is None:
        lines = ["No checkpoint here can be restored." if passed else "There is no checkpoint here."]
    else:
        step = f"step {best.step}" if best.step is not None else "its step is not known"
        lines = [f"Restore {best.path}  ({step}; {best.why})"]
        if best.durable is False:
            lines.append("  It lies on a disk that ends with the pod or node: it is lost when the next attempt starts elsewhere.")
    shown = passed if options.all else passed[:_SHOWN]
    lines += [f"  passed over: {row.path}: {reason}" for row, reason in shown]
    return [*lines, f"  … and {len(passed) - len(shown)} more (--all)"] if len(passed) > len(shown) else lines


def _rows(found: list[Checkpoint], most: int | None) -> list[str]:
    if not found:
        return []
    keeps = {True: "yes", False: "NO", None: "?"}
    rows = [("step", "state", "format", "ranks", "size", "outlives pod", "path")]
    rows += [
        (
            "?" if row.step is None else str(row.step),
            row.state,
            row.format,
            "?" if row.world_size is None else str(row.world_size),
            _size(row.bytes),
            keeps[row.durable],
            row.path,
        )
        for row in found[:most]
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    lines = ["", *("  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[6]]) for row in rows)]
    return [*lines, f"… {len(found) - most} older ones (--all)"] if most is not None and len(found) > most else lines


def _advised(advice: Advice) -> list[str]:
    if advice.interval is None:
        return [advice.reason[0].upper() + advice.reason[1:] + "."]
    high = "no upper bound" if advice.high is None else _time(advice.high)
    lines = [
        f"Save every {_time(advice.interval)} of work  (from {_time(advice.low or 0)} to {high} over the uncertainty)",
        f"  {advice.reason}.",
    ]
    mttf = "not known" if advice.mttf is None else _time(advice.mttf)
    top = "no upper bound" if advice.mttf_high is None else _time(advice.mttf_high)
    lines.append(
        f"  mean time to failure of the job {mttf} (95 %: {_time(advice.mttf_low or 0)} to {top}); a save costs {_time(advice.save)}"
    )
    lines.append(
        f"  then {100 * (advice.loss or 0):.2f} % of the time goes to saves, restarts and lost work; Young's value: {_time(advice.young or 0)}"
    )
    if advice.present is not None and advice.extra is not None:
        lines.append(
            f"  now, every {_time(advice.present)}, it is {100 * (advice.present_loss or 0):.2f} %: {100 * advice.extra:.2f} % more "
            f"({100 * (advice.extra_low or 0):.2f} to {100 * (advice.extra_high or 0):.2f}), or {advice.gpu_hours_day or 0:.1f} GPU-hours a day "
            f"({advice.gpu_hours_day_low or 0:.1f} to {advice.gpu_hours_day_high or 0:.1f})"
        )
    return lines


def _time(seconds: float) -> str:
    from workbench.training.interval import words

    return words(seconds)


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} TiB"
