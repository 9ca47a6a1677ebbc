"""Turn the options of `workbench gameday --live` into faults fed into servers that are named, and into a score card of the live path."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from workbench.cli import exits
from workbench.cli.remedy import Usage

if TYPE_CHECKING:
    from workbench.drill.play import LiveCard, LiveRound
    from workbench.drill.target import Target
    from workbench.gameday import Round, ScoreCard
    from workbench.simulation import Spec

__all__ = ["RIGHT", "add_arguments", "dirty", "ended", "run"]

RIGHT = {
    "cause_right": "cause named",
    "node_right": "the right node blamed, or rightly none",
    "rank_right": "the first rank named, where one was first",
    "retry_right": "retry advice right",
    "plan_right": "plan touches the node to blame and no other",
    "innocent": "an innocent node blamed",
}
# what is summed by dirt: word → key of a round
_COLUMNS = {
    "cause": "cause_right",
    "node": "node_right",
    "rank": "rank_right",
    "advice": "retry_right",
    "plan": "plan_right",
    "unknown": "unknown",
    "innocent": "innocent",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what a live game day needs beside what every game day does."""
    live = parser.add_argument_group("with --live: into real servers, while the watch looks at them")
    live.add_argument(
        "--live", action="store_true", help="only servers named here are written to, and only where they are marked for it"
    )
    live.add_argument("--kubeconfig", metavar="FILE", help="the cluster (needed); $KUBECONFIG does not count")
    live.add_argument("--context", metavar="NAME", help="of the kubeconfig; default: its current one")
    live.add_argument("--namespace", metavar="NAME", default="game-day", help="the one that is marked (default: game-day)")
    live.add_argument("--prometheus", metavar="URL", help="one that takes remote writes; none: no metrics are fed")
    live.add_argument("--elasticsearch", metavar="URL", help="none: no logs are fed")
    live.add_argument("--index", metavar="NAME", default="game-day-logs", help="of Elasticsearch (default: game-day-logs)")
    live.add_argument("--nodes", metavar="N", type=int, default=16, help="simulated nodes in the cluster (default: 16)")
    live.add_argument("--speed", metavar="X", type=float, default=1.0, help="feed so many times as fast as time (default: 1)")
    live.add_argument("--every", metavar="TIME", default="5s", help="the watch looks so often (default: 5s)")
    live.add_argument("--settle", metavar="TIME", default="20s", help="the watch waits so long for more victims (default: 20s)")
    live.add_argument("--keep", action="store_true", help="leave nodes, the last job's pods and the index there")
    live.add_argument("--yes", action="store_true", help="write; without it only what would be written is shown")


def run(options: argparse.Namespace, spec: Spec) -> int:
    """Feed and score; 0 when all was right, 3 when something was not."""
    from workbench.cli.progress import Progress
    from workbench.config import time_span
    from workbench.drill.play import node_names, play_live
    from workbench.drill.target import Target, configured

    if not options.kubeconfig:
        raise Usage("--live needs --kubeconfig FILE", hint="the cluster is named here, so that no other is written to by mistake")
    if not 1 <= options.nodes <= 500 or not 1 <= options.speed <= 1000:
        raise Usage("--nodes is 1 to 500, --speed 1 to 1000")
    try:
        every, settle = time_span(options.every), time_span(options.settle)
    except ValueError as error:
        raise Usage(f"--every, --settle: {error}") from None
    spec = spec.with_(nodes__count=options.nodes, nodes__spares=0)
    if options.ranks > options.nodes * int(spec["nodes.gpus"]):
        options.ranks = options.nodes * int(spec["nodes.gpus"])
    target = Target.of(
        configured(
            options.kubeconfig, options.context, options.namespace, options.prometheus, options.elasticsearch, options.index
        )
    )
    if not options.yes:
        names = node_names(spec, options.rounds, options.ranks, time.time())
        target.check(names)
        sys.stdout.write(_intent(options, target, names))
        return exits.OK
    with Progress(enabled=sys.stderr.isatty()) as progress:
        try:
            card = play_live(
                spec, target, options.rounds, options.into, seed=options.seed, ranks_most=options.ranks, only=options.only,
                speed=options.speed, settle=settle, every=every, keep=options.keep, tick=lambda done, of, what: progress(done, of, what),
            )  # fmt: skip
        except ValueError as error:
            raise Usage(str(error)) from None
    return ended(card, options.output, lambda: _told(card) + f"evidence, inbox and score card in {options.into}\n")


def ended(card: LiveCard | ScoreCard, output: str, told: Callable[[], str]) -> int:
    """Print a score card, as JSON or as `told` writes it; 0 when all was right, 3 when something was not."""
    if output == "json":
        from workbench.report.verdict_json import dumps

        sys.stdout.write(dumps(card.to_dict(), indent=2) + "\n")
    else:
        sys.stdout.write(told())
    return exits.OK if all(one.right for one in card.rounds) else exits.INCOMPLETE


def _intent(options: argparse.Namespace, target: Target, names: list[str]) -> str:
    lines = [
        f"would write, for {options.rounds} faults, into servers that are marked for it or empty of what it needs:",
        f"  {options.kubeconfig}: {options.nodes} nodes at a time, such as {names[0]}, tainted, and events of them",
        f"  {options.kubeconfig}: pods in namespace {options.namespace}",
    ]
    lines.append(
        f"  {options.elasticsearch}: index {options.index}" if target.has_logs else "  no Elasticsearch is named: no logs are fed"
    )
    lines.append(
        f'  {options.prometheus}: series with workbench_game_day="yes"'
        if target.has_metrics
        else "  no Prometheus is named: no metrics"
    )
    lines.append("nothing was written; --yes does it")
    return "\n".join(lines) + "\n"


def _told(card: LiveCard) -> str:
    head = "".join(f"{word:>8}" for word in ("rank", "shown", "seen", "judged", "planned"))
    lines = [f"{'':3} {'put in':<28} {'said':<28} {'blamed':<10}{head}  {'would do':<24} wrong with the evidence"]
    lines += [
        f"{'ok' if one.right else 'NO':<3} {one.truth:<28} {one.said:<28} {one.blamed or '-':<10}"
        f"{'-' if one.named is None else one.named:>8}{_s(one.shown)}{_s(one.seen)}{_s(one.judged)}{_s(one.planned)}  "
        f"{', '.join(dict.fromkeys(one.actions)) or one.retry or '-':<24} {' '.join(one.dirt)}".rstrip()
        for one in card.rounds
    ]
    lines.append("")
    for name, meaning in RIGHT.items():
        lines.append(f"{sum(getattr(one, name) for one in card.rounds):>4} of {len(card.rounds):<4} {meaning}")
    lines += dirty(card.rounds)
    lines.append(
        f"shown: from the fault until the cluster had a sign of it, simulated, fed {card.speed:g} times as fast as time; measured: from the "
        f"sign until the watch saw it, from there to the verdict (the watch lets a failure settle for {card.settle:g} s), and the plan"
    )
    return "\n".join(lines) + "\n"


def dirty(rounds: Sequence[LiveRound] | Sequence[Round]) -> list[str]:
    """Return lines that sum rounds by what is wrong with their evidence; none where all of it was clean."""
    from workbench.gameday import by_dirt, sums
    from workbench.simulation.dirt import WORDS

    if not any(one.dirt for one in rounds):
        return []
    asked = {word: key for word, key in _COLUMNS.items() if hasattr(rounds[0], key)}  # on paper nobody is asked for a rank
    lines = ["", f"{'by what is wrong with the evidence':<36} {'rounds':>7}" + "".join(f"{word:>10}" for word in asked)]
    for kind, some in by_dirt(rounds).items():
        found = sums(some, tuple(asked.values()))
        lines.append(f"  {WORDS[kind]:<34} {len(some):>7}" + "".join(f"{found[key]['count']:>10}" for key in asked.values()))
    return [*lines, ""]


def _s(seconds: float | None) -> str:
    return f"{'-':>8}" if seconds is None else f"{seconds:>6.1f} s"
