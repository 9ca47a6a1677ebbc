"""Turn faults put into a fleet on paper into a score card: what was known when, what was said, what would have been done, and what was right."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.cli import gameday_live
from workbench.cli.remedy import Usage

if TYPE_CHECKING:
    from workbench.gameday import ScoreCard

__all__ = ["add_arguments", "run"]

# on paper nobody is asked which rank was first
_RIGHT = {name: meaning for name, meaning in gameday_live.RIGHT.items() if name != "rank_right"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "spec", metavar="FLEET.toml", nargs="?", help="the fleet; default: 16,384 GPUs (see workbench simulate --print-spec)"
    )
    parser.add_argument("--rounds", type=int, default=18, metavar="N", help="faults put in (default: 18, each class once)")
    parser.add_argument("--seed", type=int, default=1, help="another seed: another order, other nodes (default: 1)")
    parser.add_argument("--ranks", type=int, default=256, metavar="N", help="ranks of the largest job (default: 256)")
    parser.add_argument(
        "--only", metavar="CLASS", nargs="+", default=[], help="these classes or causes only: hardware, platform/storage"
    )
    parser.add_argument(
        "--clean", action="store_true", help="evidence that nothing is wrong with, whatever [dirt] of the file says"
    )
    parser.add_argument(
        "--into",
        metavar="FOLDER",
        type=Path,
        default=Path("gameday"),
        help="evidence and score card (default: ./gameday); earlier rounds go",
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: table")
    gameday_live.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Play; 0 when all was right, 3 when something was not."""
    from workbench.cli.progress import Progress
    from workbench.gameday import play
    from workbench.simulation import Spec

    if options.rounds < 1 or options.ranks < 2:
        raise Usage("a game day has at least one round, and its jobs at least two ranks")
    spec = Spec.read(options.spec)
    spec = spec.clean() if options.clean else spec
    if options.live:
        return gameday_live.run(options, spec)
    with Progress(enabled=sys.stderr.isatty()) as progress:
        try:
            card = play(
                spec, options.rounds, options.into, seed=options.seed, ranks_most=options.ranks, only=options.only,
                tick=lambda done, of: progress(done, of, "rounds"),
            )  # fmt: skip
        except ValueError as error:
            raise Usage(str(error)) from None
    return gameday_live.ended(card, options.output, lambda: _told(card, options.into))


def _told(card: ScoreCard, into: Path) -> str:
    lines = [f"{'':3} {'put in':<28} {'said':<28} {'ranks':>5} {'judged':>7}  {'would do':<34} wrong with the evidence"]
    lines += [
        f"{'ok' if one.right else 'NO':<3} {one.truth:<28} {one.said:<28} {one.ranks:>5} {one.judged:>5.2f} s  "
        f"{', '.join(dict.fromkeys(one.actions)) or one.retry or '-':<34} {' '.join(one.dirt)}".rstrip()
        for one in card.rounds
    ]
    lines.append("")
    for name, meaning in _RIGHT.items():
        count, of = card.share(name)
        lines.append(f"{count:>4} of {of:<4} {meaning}")
    lines += gameday_live.dirty(card.rounds)
    lines.append(
        f"half of the faults were known within {card.middle('detected'):.0f} s (simulated), judged in {card.middle('judged'):.2f} s, planned in "
        f"{card.middle('planned'):.3f} s (measured)"
    )
    lines.append(f"evidence and score card in {into}")
    return "\n".join(lines) + "\n"
