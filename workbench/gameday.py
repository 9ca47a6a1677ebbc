"""Turn a fleet on paper into a game day: faults put in, their evidence judged and planned for, and a score card against the truth."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from workbench.catalog import table
from workbench.durable import write_bytes
from workbench.incident import load
from workbench.model import Verdict
from workbench.remediation import plan
from workbench.remediation.model import FleetState, NodeState, Work
from workbench.simulation.dirt import KINDS, draw_dirt, write_evidence
from workbench.simulation.evidence import DECOYS, Failure
from workbench.simulation.nodes import node_name
from workbench.simulation.spec import Spec, faults

__all__ = ["ASKED", "Round", "Score", "ScoreCard", "by_dirt", "draw", "order_of", "play", "scored", "sums", "write_failures"]

SCHEMA = "workbench.gameday/1"
ASKED = ("cause_right", "node_right", "retry_right", "plan_right", "innocent", "unknown")
_BLAMES_NODE = ("hardware", "driver")


@dataclass(frozen=True, slots=True)
class Round:
    """
    One fault, and what was made of it.

    Attributes
    ----------
    number : int
    folder : str
        Its evidence.
    truth, said : str
        Classes.
    confidence : float
    node, blamed : str or None
        The node that is to blame, and the one that was; None for none.
    ranks : int
    detected : float
        Seconds from the fault until somebody could know: virtual, by the spec's ``policy.detect_…``.
    judged : float
        Seconds that reading and judging the evidence took: measured.
    planned : float
        Seconds that the plan took: measured.
    retry : str or None
        What the verdict advises.
    actions : tuple of str
        ``rung node`` of the plan.
    cause_right, node_right, retry_right, plan_right : bool
        `node_right` also when rightly none was blamed. `plan_right`: something is planned for the node to blame, and nothing for another.
    innocent : bool
        A node was blamed that has done nothing.
    dirt : tuple of str
        What is wrong with its evidence; none: nothing.
    second : str or None
        The node of a second fault, seconds after the first: to blame it instead is wrong, but it is not innocent.
    """

    number: int
    folder: str
    truth: str
    said: str
    confidence: float
    node: str | None
    blamed: str | None
    ranks: int
    detected: float
    judged: float
    planned: float
    retry: str | None
    actions: tuple[str, ...]
    cause_right: bool
    node_right: bool
    retry_right: bool
    plan_right: bool
    innocent: bool
    dirt: tuple[str, ...] = ()
    second: str | None = None

    @property
    def right(self) -> bool:
        """Whether cause, node, advice and plan were."""
        return self.cause_right and self.node_right and self.retry_right and self.plan_right

    @property
    def unknown(self) -> bool:
        """Whether the verdict says that it does not know."""
        return self.said in ("unknown", "none")


@dataclass(frozen=True, slots=True)
class ScoreCard:
    """All rounds of a game day."""

    seed: int
    rounds: tuple[Round, ...]

    def by_dirt(self) -> dict[str, ScoreCard]:
        """Return the rounds by what is wrong with their evidence, ``clean`` first; a round with two troubles counts for both."""
        return {kind: ScoreCard(self.seed, rounds) for kind, rounds in by_dirt(self.rounds).items()}

    def share(self, what: str) -> tuple[int, int]:
        """Return (how many rounds have it, of how many): ``cause_right``, ``innocent`` …"""
        return sum(bool(getattr(one, what)) for one in self.rounds), len(self.rounds)

    def middle(self, what: str) -> float | None:
        """Return the median of a time in seconds; None without rounds."""
        values = sorted(getattr(one, what) for one in self.rounds)
        return values[len(values) // 2] if values else None

    def to_dict(self) -> dict[str, Any]:
        """Return the card as plain values (``workbench.gameday/1``)."""
        return {
            "schema": SCHEMA,
            "seed": self.seed,
            "score": sums(self.rounds, ASKED),
            "by_dirt": {kind: sums(rounds, ASKED) for kind, rounds in by_dirt(self.rounds).items()},
            "seconds": {name: self.middle(name) for name in ("detected", "judged", "planned")},
            "rounds": [asdict(one) for one in self.rounds],
        }


class _Dirty(Protocol):
    """A round of any game day."""

    @property
    def dirt(self) -> tuple[str, ...]: ...


Dirty = TypeVar("Dirty", bound=_Dirty)


def by_dirt(rounds: Sequence[Dirty]) -> dict[str, tuple[Dirty, ...]]:
    """Return rounds by what is wrong with their evidence, ``clean`` first; one with two troubles counts for both."""
    found = {"clean": tuple(one for one in rounds if not one.dirt)}
    found |= {kind: tuple(one for one in rounds if kind in one.dirt) for kind in KINDS}
    return {kind: some for kind, some in found.items() if some}


def sums(rounds: Sequence[object], names: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return of how many rounds each of these is true, as a score card holds it."""
    return {name: {"count": sum(bool(getattr(one, name)) for one in rounds), "of": len(rounds)} for name in names}


def play(
    spec: Spec,
    rounds: int,
    folder: Path,
    *,
    seed: int = 1,
    ranks_most: int = 256,
    only: Sequence[str] = (),
    judge: Callable[[Path], Verdict] | None = None,
    tick: Callable[[int, int], object] | None = None,
) -> ScoreCard:
    """
    Put faults in, one after the other, and judge each from its evidence alone.

    Parameters
    ----------
    spec : Spec
        The fleet: nodes, sizes of jobs, detection times.
    rounds : int
        Every class that evidence is known of comes in turn, in an order by `seed`.
    folder : Path
        Gets ``round-…/`` with the evidence and ``scorecard.json``; what was there of an earlier game day is replaced. The truth is in the score
        card only.
    seed : int
    ranks_most : int
        The largest job.
    only : sequence of str
        These classes or causes only.
    judge : callable, optional
        Instead of `workbench.load(folder).triage()`.
    tick : callable, optional
        Told (done, rounds).

    Raises
    ------
    ValueError
        `only` names no class that evidence is known of.
    """
    order, rng = order_of(rounds, seed, only)
    for old in folder.glob("round-*"):
        shutil.rmtree(old)
    folder.mkdir(parents=True, exist_ok=True)
    played: list[Round] = []
    for number, cls in enumerate(order, 1):
        played.append(_round(number, cls, spec, folder, rng, ranks_most, seed, judge or (lambda path: load(path).triage())))
        if tick is not None:
            tick(number, rounds)
    card = ScoreCard(seed, tuple(played))
    write_bytes(folder / "scorecard.json", (json.dumps(card.to_dict(), indent=2) + "\n").encode())
    return card


def order_of(rounds: int, seed: int, only: Sequence[str]) -> tuple[list[str], random.Random]:
    """
    Return the classes of all rounds, each in turn, and the generator that goes on with the rest.

    Raises
    ------
    ValueError
        `only` names no class that evidence is known of.
    """
    known = list(dict.fromkeys(row["class"] for row in table("simulated_evidence")))
    classes = [cls for cls in known if not only or cls in only or cls.split("/")[0] in only]
    if not classes:
        raise ValueError(f"none of {', '.join(only)} has known evidence: {', '.join(known)}")
    rng = random.Random(f"{seed} gameday")
    order: list[str] = []
    while len(order) < rounds:
        order += rng.sample(classes, len(classes))
    return order[:rounds], rng


@dataclass(frozen=True, slots=True)
class Score:
    """What was right of a verdict and a plan, in the words of `Round`; `node` is the one to blame."""

    node: str | None
    cause_right: bool
    node_right: bool
    retry_right: bool
    plan_right: bool
    innocent: bool


def scored(
    failure: Failure, said: str, blamed: str | None, retry: str | None, actions: Sequence[str], *, second: str | None = None
) -> Score:
    """
    Compare the class that was said, the node that was blamed, the advice, and a plan's ``rung node`` with the truth.

    `second` is the node of a second fault: a plan may touch it as well.
    """
    at_fault = failure.node if _node_at_fault(failure.cls) else None
    touched = {action.rpartition(" ")[2] for action in actions}
    return Score(
        node=at_fault, cause_right=said.split("/")[0] == failure.cls.split("/")[0], node_right=blamed == at_fault,
        retry_right=_retry_right(failure.cls, at_fault, retry),
        plan_right=touched - {second} == ({at_fault} if at_fault else set()), innocent=blamed is not None and blamed not in (at_fault, second),
    )  # fmt: skip


def _round(
    number: int,
    cls: str,
    spec: Spec,
    folder: Path,
    rng: random.Random,
    ranks_most: int,
    seed: int,
    judge: Callable[[Path], Verdict],
) -> Round:
    failure = draw(number, cls, spec, rng, ranks_most)
    dirt = draw_dirt(failure, spec, f"{seed} {number}")
    path = write_evidence(failure, folder / f"round-{number:03d}", dirt, decoy=rng.choice(("", *DECOYS)))
    began = time.perf_counter()
    verdict = judge(path)
    judged = time.perf_counter() - began
    state = _state(failure, spec)
    began = time.perf_counter()
    made = plan([], [verdict], state)
    planned = time.perf_counter() - began
    blamed = verdict.node if verdict.at_fault in ("gpu", "node") else None
    actions = tuple(f"{action.rung} {action.node}" for action in made.actions)
    second = dirt.second.node if dirt.second is not None else None
    score = scored(failure, verdict.cls, blamed, verdict.retry, actions, second=second)
    return Round(
        number=number, folder=str(path), truth=cls, said=verdict.cls, confidence=verdict.confidence, node=score.node, blamed=blamed,
        ranks=failure.gpus, detected=float(spec[f"policy.detect_{failure.told_by}"]), judged=judged, planned=planned, retry=verdict.retry,
        actions=actions, cause_right=score.cause_right, node_right=score.node_right, retry_right=score.retry_right,
        plan_right=score.plan_right, innocent=score.innocent, dirt=dirt.kinds, second=second,
    )  # fmt: skip


def draw(number: int, cls: str, spec: Spec, rng: random.Random, ranks_most: int) -> Failure:
    """Return a failure of a class: a job of the fleet's sizes, at most `ranks_most`, somewhere on it, and the culprit among its nodes."""
    per_node = int(spec["nodes.gpus"])
    sizes = [size.gpus for size in spec.mix if per_node * 2 <= size.gpus <= ranks_most] or [min(per_node * 2, ranks_most)]
    gpus = rng.choice(sizes)
    count = max(1, -(-gpus // per_node))
    picked = sorted(rng.sample(range(max(count, int(spec["nodes.count"]))), count))
    nodes = [node_name(index, int(spec["nodes.count"])) for index in picked]
    whole_job = cls.startswith("platform/") and cls != "platform/node-lost"
    told: Mapping[str, str] = {kind.cls: kind.told_by for kind in faults()} | {"user/hang": "hang"}
    told_by = told.get(cls, "crash")
    begin = float(spec["begin"]) + rng.uniform(1, 30) * 86400
    return Failure(
        job=str(4000 + number), attempt=1, cls=cls, time=float(int(begin)), told_by="crash" if told_by == "slow" else told_by, nodes=nodes,
        gpus=gpus, per_node=per_node, node=None if whole_job else rng.choice(nodes), slot=rng.randrange(per_node),
    )  # fmt: skip


def write_failures(
    happened: Sequence[Mapping[str, Any]], spec: Spec, folder: Path, most: int
) -> list[tuple[Path, Mapping[str, Any]]]:
    """
    Write the evidence of faults that a simulation had (`Truth.faults`), classes in turn, at most `most`.

    Returns each folder with its fault and, under ``dirt``, what is wrong with its evidence.

    A fault that nobody's job died of has no evidence but a kernel line, and is left out.
    """
    by_class: dict[str, list[Mapping[str, Any]]] = {}
    for one in happened:
        if one["jobs"]:
            by_class.setdefault(one["cls"], []).append(one)
    written: list[tuple[Path, Mapping[str, Any]]] = []
    rng = random.Random(f"{spec['seed']} evidence")
    while by_class and len(written) < most:
        for cls in list(by_class):
            one = by_class[cls].pop(0)
            if not by_class[cls]:
                del by_class[cls]
            base = draw(one["jobs"][0], cls, spec, rng, 256)
            node = one["node"] if isinstance(one["node"], str) else None
            nodes = list(base.nodes) if node is None or node in base.nodes else sorted([node, *base.nodes[1:]])
            failure = replace(
                base, job=str(one["jobs"][0]), time=float(int(one["time"])), nodes=nodes, node=node, slot=one["gpu"] or 0,
            )  # fmt: skip
            dirt = draw_dirt(failure, spec, f"{spec['seed']} {len(written)}")
            path = write_evidence(failure, folder / f"{len(written) + 1:03d}-job-{failure.job}", dirt)
            written.append((path, {**one, "dirt": dirt.to_dict()}))
            if len(written) >= most:
                break
    return written


def _node_at_fault(cls: str) -> bool:
    return cls.split("/")[0] in _BLAMES_NODE or cls == "platform/node-lost"


def _retry_right(cls: str, node: str | None, retry: str | None) -> bool:
    """A user's fault is fixed first, a bad node left out, and nobody's node is left out for what the platform did."""
    if cls.startswith("user/"):
        return retry == "fix-first"
    return retry == "exclude-node" if node is not None else retry in ("same-nodes", "fix-first")


def _state(failure: Failure, spec: Spec) -> FleetState:
    """The fleet as its scheduler shows it when the verdict is there: all nodes, the job's work gone from its own."""
    now = failure.time + 700
    shared: dict[str, Any] = {
        "pool": str(spec["nodes.pool"]),
        "sku": str(spec["nodes.sku"]),
        "environment": "metal",
        "gpus": int(spec["nodes.gpus"]),
    }
    nodes = {}
    for index in range(int(spec["nodes.count"])):
        name = node_name(index, int(spec["nodes.count"]))
        silent = name == failure.node and failure.told_by == "silence"
        other = Work(f"pod-{name}", job="other", ranks=8, gpus=8, job_gpus=8, since=failure.time - 7200)
        nodes[name] = NodeState(
            name,
            uid=f"uid-{name}",
            boot=f"boot-{name}",
            booted=failure.time - 30 * 86400,
            ready=not silent,
            work=() if name in failure.nodes else (other,),
            **shared,
        )
    return FleetState(now, nodes)
