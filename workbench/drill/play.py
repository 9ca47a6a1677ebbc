"""Turn servers of a game day and a few faults into a score card: when the live path knew, what it said, what it would have done."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.drill import objects
from workbench.drill.feed import Clock, Feed
from workbench.drill.target import Target
from workbench.durable import write_bytes
from workbench.errors import WorkbenchError
from workbench.gameday import ASKED, by_dirt, draw, order_of, scored, sums
from workbench.simulation.dirt import Dirt, draw_dirt, write_evidence
from workbench.simulation.metrics import span
from workbench.simulation.nodes import node_name
from workbench.simulation.spec import Spec
from workbench.sources.contract import Deadline

if TYPE_CHECKING:
    from workbench.inbox.model import Entry
    from workbench.inbox.watch import Watch

__all__ = ["LiveCard", "LiveRound", "node_names", "play_live"]

SCHEMA = "workbench.gameday-live/1"
_PATIENCE = 120.0  # seconds after the feed's end in which a verdict may still come


@dataclass(frozen=True, slots=True)
class LiveRound:
    """
    One fault that was fed into servers, and what the live path made of it.

    Attributes
    ----------
    number : int
    folder : str
        The evidence as it was fed, as files.
    job : str
    truth, said : str
        Classes; `said` is ``nothing`` when no verdict came in time.
    confidence : float
    node, blamed : str or None
        The node that is to blame, and the one that was.
    rank, named : int or None
        The first rank that failed, and the one that the verdict names; of what reaches a whole node or job no rank is to be named.
    shown : float or None
        Simulated seconds from the fault until the cluster showed a sign of it: how long the job's ranks took to die.
    seen, judged, planned : float or None
        Measured: seconds from that sign until the watch had an entry, from there until there was the first verdict (with the time that
        the watch lets a failure settle), and what the plan took on the cluster's own nodes.
    steady : bool
        The first verdict was the last one, too.
    lacking : tuple of str
        Sources that failed.
    fed : dict
        How many lines, samples and objects, and by how many seconds the sign came later than it should (``late``).
    actions : tuple of str
    cause_right, node_right, rank_right, retry_right, plan_right, innocent : bool
        As of `workbench.gameday.Round`.
    dirt : tuple of str
        What is wrong with its evidence.
    """

    number: int
    folder: str
    job: str
    truth: str
    said: str
    confidence: float
    node: str | None
    blamed: str | None
    rank: int | None
    named: int | None
    shown: float | None
    seen: float | None
    judged: float | None
    planned: float | None
    steady: bool
    retry: str | None
    lacking: tuple[str, ...]
    fed: dict[str, float]
    actions: tuple[str, ...]
    cause_right: bool
    node_right: bool
    rank_right: bool
    retry_right: bool
    plan_right: bool
    innocent: bool
    dirt: tuple[str, ...] = ()

    @property
    def right(self) -> bool:
        """Whether all of it was."""
        return self.cause_right and self.node_right and self.rank_right and self.retry_right and self.plan_right

    @property
    def unknown(self) -> bool:
        """Whether the verdict says that it does not know, or none came."""
        return self.said in ("unknown", "none", "nothing")


@dataclass(frozen=True, slots=True)
class LiveCard:
    """All rounds, with how fast they were fed."""

    seed: int
    speed: float
    settle: float
    rounds: tuple[LiveRound, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the card as plain values (``workbench.gameday-live/1``)."""
        asked = ("rank_right", *ASKED)
        return {
            "schema": SCHEMA, "seed": self.seed, "speed": self.speed, "settle": self.settle,
            "score": sums(self.rounds, asked),
            "by_dirt": {kind: sums(rounds, asked) for kind, rounds in by_dirt(self.rounds).items()},
            "rounds": [asdict(one) for one in self.rounds],
        }  # fmt: skip


def node_names(spec: Spec, rounds: int, ranks_most: int, now: float) -> list[str]:
    """
    Return the names of all simulated nodes that a game day which begins `now` may make.

    No name is used twice, within it or by another: what servers hold of a node that failed minutes ago would be evidence in a later round.
    """
    tag, left = "", int(now) % 36**5
    for _ in range(5):
        left, digit = divmod(left, 36)
        tag = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + tag
    count = int(spec["nodes.count"]) + rounds * -(-ranks_most // int(spec["nodes.gpus"]))
    return [f"gd{tag}-{index:04d}" for index in range(count)]


def play_live(
    spec: Spec,
    target: Target,
    rounds: int,
    folder: Path,
    *,
    seed: int = 1,
    ranks_most: int = 32,
    only: Sequence[str] = (),
    speed: float = 1.0,
    settle: float = 20.0,
    every: float = 5.0,
    keep: bool = False,
    tick: Callable[[int, int, str], object] | None = None,
) -> LiveCard:
    """
    Feed faults into the servers, one after the other, while the workbench's watch looks at them; and score what it says.

    Parameters
    ----------
    spec : Spec
        The fleet: `nodes.count` nodes are made in the cluster; those of a job are replaced by new ones after it.
    target : Target
        Checked before anything is written.
    rounds : int
    folder : Path
        Gets ``round-…/`` with what was fed, the watch's inbox, and ``scorecard.json``, the only place that holds the truth.
    seed, ranks_most, only
        As of `workbench.gameday.play`.
    speed : float
        How much faster than time; 1 is real time.
    settle, every : float
        Of the watch, in seconds: how long it lets a failure settle, and how often it looks.
    keep : bool
        Leave nodes, the last job's pods and the index where they are; default: all that bears a game day's mark is deleted. Prometheus's
        samples stay.
    tick : callable, optional
        Told (done, rounds, what happens).

    Raises
    ------
    NotATarget
        Nothing was written.
    SourceError
        A server did not take what was fed; what was made is deleted.
    ValueError
        `only` names no class that evidence is known of.
    """
    order, rng = order_of(rounds, seed, only)
    names = node_names(spec, rounds, ranks_most, time.time())
    target.check(names)
    for old in [*folder.glob("round-*"), folder / "inbox"]:
        shutil.rmtree(old, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    say = tick or (lambda done, of, what: None)
    played: list[LiveRound] = []
    try:
        target.clear(nodes=True)
        target.open_index()
        fresh = iter(names)
        fleet = [_made(target, next(fresh), spec) for _ in range(int(spec["nodes.count"]))]
        with _watch(target, folder / "inbox", settle) as watch:
            for number, cls in enumerate(order, 1):
                say(number - 1, rounds, "feeding")
                failure = draw(number, cls, spec, rng, ranks_most)
                drawn = {node_name(index, len(fleet)): name for index, name in enumerate(fleet)}
                clock, fault = Clock.of(span(failure), time.time(), speed)
                failure = replace(
                    failure, job=f"gd-{seed}-{int(clock.began) % 1_000_000}-{number}", time=fault,
                    nodes=[drawn[name] for name in failure.nodes], node=drawn[failure.node] if failure.node is not None else None,
                )  # fmt: skip
                dirt = draw_dirt(failure, spec, f"{seed} {number}")
                path = write_evidence(failure, folder / f"round-{number:03d}", dirt)
                feed = Feed(target, failure, path, clock, metrics="no_metrics" not in dirt.kinds)
                played.append(_round(number, feed, dirt, watch, every, settle, target))
                if keep and number == rounds:
                    break
                target.clear(nodes=False)
                for name in failure.nodes:
                    target.remove_node(name)
                    fleet[fleet.index(name)] = _made(target, next(fresh), spec)
        say(rounds, rounds, "done")
    except BaseException as error:
        if not keep:
            try:
                target.clear(nodes=True)
            except WorkbenchError as more:  # what went wrong first is what people need to know
                error.add_note(f"what was made could not be taken away: {more}")
        raise
    if not keep:
        target.clear(nodes=True)
    card = LiveCard(seed, speed, settle, tuple(played))
    write_bytes(folder / "scorecard.json", (json.dumps(card.to_dict(), indent=2) + "\n").encode())
    return card


def _made(target: Target, name: str, spec: Spec) -> str:
    """Make a simulated node that is ready, and return its name."""
    now = time.time()
    target.make("/api/v1/nodes", objects.node(name, sku=str(spec["nodes.sku"]), pool=str(spec["nodes.pool"])))
    target.status(f"/api/v1/nodes/{name}", objects.node_status(now, now - 86400, gpus=int(spec["nodes.gpus"])))
    return name


def _watch(target: Target, inbox: Path, settle: float) -> Watch:
    """The live path itself: what `workbench watch` runs, with the servers that were named."""
    from workbench.inbox.collecting import Collector
    from workbench.inbox.kubernetes import KubernetesJobs
    from workbench.inbox.store import Inbox
    from workbench.inbox.storms import Settings
    from workbench.inbox.tell import Teller
    from workbench.inbox.watch import Watch

    kept = Inbox(inbox)
    follower = KubernetesJobs(target.api, namespaces=(target.namespace,))
    return Watch(
        kept, [follower], Collector(target.config), Teller(kept, [], clock=time.time), Settings(settle=settle, first=3600.0)
    )


def _round(number: int, feed: Feed, dirt: Dirt, watch: Watch, every: float, settle: float, target: Target) -> LiveRound:
    failure, clock = feed.failure, feed.clock
    seen: float | None = None
    judged: float | None = None
    first: tuple[str, str | None] | None = None
    end = clock.wall(clock.end) + 6 * settle + _PATIENCE
    feed.start()
    try:
        look, whole = 0.0, False
        while time.time() < end:
            if time.monotonic() - look >= every:
                look, whole = time.monotonic(), feed.over
                watch.look()
            watch.work()
            entry = _entry(watch, failure.job)
            if entry is not None and seen is None:
                seen = time.time()
            if entry is not None and judged is None and entry.data.get("ready"):
                judged, first = time.time(), (entry.cls, entry.node)
            if feed.error is not None:
                raise feed.error
            if judged is not None and whole and not watch.busy():
                break
            time.sleep(0.1)
    finally:
        feed.stop()
    entry = _entry(watch, failure.job)
    actions: tuple[str, ...] = ()
    planned = None
    if entry is not None and judged is not None:
        actions, planned = _planned(watch, entry, target)
    blamed = entry.node if entry is not None and judged is not None and entry.at_fault in ("gpu", "node") else None
    said = entry.cls if entry is not None and judged is not None else "nothing"
    retry = entry.retry if entry is not None else None
    score = scored(failure, said, blamed, retry, actions, second=dirt.second.node if dirt.second is not None else None)
    named = entry.rank if entry is not None else None
    rank = failure.rank if _ranked(failure.cls, failure.told_by) else None
    sign = feed.first_sign
    return LiveRound(
        number=number, folder=str(feed.folder), job=failure.job, truth=failure.cls, said=said,
        confidence=entry.confidence if entry is not None else 0.0, node=score.node, blamed=blamed, rank=rank, named=named,
        shown=feed.sign,
        seen=None if seen is None or sign is None else max(0.0, seen - sign), judged=None if judged is None or seen is None else judged - seen,
        planned=planned, steady=first is not None and entry is not None and first == (entry.cls, entry.node), retry=retry,
        lacking=tuple(entry.data.get("lacking") or ()) if entry is not None else (), actions=actions,
        fed={**feed.counts, "late": round(feed.lag, 3)},
        cause_right=score.cause_right, node_right=score.node_right, rank_right=rank is None or named == rank,
        retry_right=score.retry_right, plan_right=score.plan_right, innocent=score.innocent, dirt=dirt.kinds,
    )  # fmt: skip


def _ranked(cls: str, told_by: str) -> bool:
    """Whether one rank failed first, and something tells which: not of a silent node, and not of what takes the whole job."""
    return told_by != "silence" and cls != "platform/preemption"


def _entry(watch: Watch, job: str) -> Entry | None:
    return next((one for one in watch.inbox.entries() if one.job == job), None)


def _planned(watch: Watch, entry: Entry, target: Target) -> tuple[tuple[str, ...], float]:
    """What would be done about the verdict on the cluster's own nodes, and how long it took to say; nothing is done."""
    from workbench.remediation import plan
    from workbench.remediation.executors.kubernetes.executor import Kubernetes

    began = time.perf_counter()
    executor = Kubernetes(target.config["kubernetes.kubeconfig"], target.config["kubernetes.context"])
    try:
        made = plan([], [watch.inbox.verdict(entry.id)], executor.fleet(Deadline(30.0)))
    except WorkbenchError as error:
        raise WorkbenchError(f"no plan could be made on the cluster: {error}", hint=error.hint) from error
    return tuple(f"{action.rung} {action.node}" for action in made.actions), time.perf_counter() - began
