"""Turn the shares of a fleet's description into what is wrong with the evidence of one incident, and a failure into such evidence."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from workbench.catalog import table
from workbench.simulation.evidence import Failure, write_incident
from workbench.simulation.metrics import exposition, samples

__all__ = ["KINDS", "WORDS", "Dirt", "draw_dirt", "write_evidence"]

# kind of dirt → what is wrong with the evidence, for people
WORDS = {
    "clean": "nothing",
    "clock_skew": "clocks of some nodes are off",
    "no_metrics": "no GPU metrics",
    "no_kernel": "no kernel logs",
    "foreign_xid": "an innocent node shows an Xid",
    "second_fault": "a second fault seconds later",
    "truncated": "some logs are cut",
}
KINDS = tuple(kind for kind in WORDS if kind != "clean")
_TOUCHED = 0.34  # of a job's nodes, those whose clock is off or whose log is cut; one at least
_WITHIN = 15.0  # seconds within which the second fault comes
_METRIC_NODES = 8  # nodes whose metrics are kept: a collection fetches those of the suspects
# what a second fault may be: one of a node, that its own node tells of
_SECOND = ("hardware/gpu-memory", "hardware/gpu-lost", "hardware/gpu-other", "hardware/network-link")


@dataclass(frozen=True, slots=True)
class Dirt:
    """
    What is wrong with one incident's evidence; a part of the truth.

    Attributes
    ----------
    kinds : tuple of str
        Of `KINDS`; none is clean.
    skew : mapping
        Node → seconds by which its clock is ahead.
    story : str
        Which of the foreign Xids.
    second : Failure or None
    cut : mapping
        File below the folder → share of its bytes that is left.
    """

    kinds: tuple[str, ...] = ()
    skew: Mapping[str, float] = field(default_factory=dict)
    story: str = ""
    second: Failure | None = None
    cut: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "kinds": list(self.kinds), "skew": dict(self.skew), "story": self.story, "cut": dict(self.cut),
            "second": {"cls": self.second.cls, "node": self.second.node, "time": self.second.time} if self.second else None,
        }  # fmt: skip


def draw_dirt(failure: Failure, spec: Mapping[str, Any], key: str) -> Dirt:
    """
    Return what is wrong with the evidence of a failure.

    Parameters
    ----------
    failure : Failure
    spec : mapping
        Its values ``dirt.…`` are shares of incidents.
    key : str
        Seed and number: each kind has a stream of its own, so that a changed share changes no other kind and no failure.
    """
    kinds: list[str] = []
    skew: dict[str, float] = {}
    story, second, cut = "", None, {}
    for kind in KINDS:
        rng = random.Random(f"{key} dirt {kind}")
        if rng.random() >= float(spec[f"dirt.{kind}"]):
            continue
        touched = rng.sample(list(failure.nodes), max(1, round(_TOUCHED * len(failure.nodes))))
        others = [node for node in failure.nodes if node != failure.node]
        if kind in ("foreign_xid", "second_fault") and not others:
            continue
        # while a job hangs or a node is silent a second crash would be what ends the job: nobody could say which is the first
        if kind == "second_fault" and (failure.node is None or failure.told_by != "crash" or failure.cls.startswith("user/")):
            continue
        if kind == "clock_skew":
            most = float(spec["dirt.clock_most"])
            skew = {node: round(rng.uniform(-most, most), 1) for node in touched}
        elif kind == "foreign_xid":
            story = rng.choice(sorted({row["story"] for row in table("simulated_dirt") if row["kind"] == kind}))
        elif kind == "second_fault":
            second = replace(
                failure, cls=rng.choice([cls for cls in _SECOND if cls != failure.cls]), told_by="crash", node=rng.choice(others),
                slot=rng.randrange(failure.per_node), time=failure.time + float(round(rng.uniform(2, _WITHIN))),
            )  # fmt: skip
        elif kind == "truncated":
            cut = {f"{rng.choice(('logs', 'logs', 'kernel'))}/{node}.log": round(rng.uniform(0.5, 0.98), 3) for node in touched}
        kinds.append(kind)
    return Dirt(tuple(kinds), skew, story, second, cut)


def write_evidence(failure: Failure, folder: Path, dirt: Dirt | None = None, *, decoy: str = "") -> Path:
    """
    Write an incident folder with logs and metrics, as far as the dirt leaves them; return it. The truth is nowhere in it.

    Parameters
    ----------
    failure : Failure
    folder : Path
    dirt : Dirt, optional
        Default none.
    decoy : str
        As of `write_incident`.
    """
    dirt = dirt or Dirt()
    foreign = [
        (float(row["after"]), row["text"])
        for row in table("simulated_dirt")
        if row["kind"] == "foreign_xid" and row["story"] == dirt.story
    ]
    write_incident(failure, folder, decoy=decoy, skew=dirt.skew, second=dirt.second, foreign=foreign)
    if "no_metrics" not in dirt.kinds:
        at = failure.nodes.index(failure.node) if failure.node is not None else 0
        first = min(max(0, at - _METRIC_NODES // 2), max(0, len(failure.nodes) - _METRIC_NODES))
        (folder / "metrics").mkdir(exist_ok=True)
        kept = failure.nodes[first : first + _METRIC_NODES]
        (folder / "metrics" / "dcgm.prom").write_text(exposition(samples(failure, nodes=kept)), encoding="utf-8")
    if "no_kernel" in dirt.kinds:
        shutil.rmtree(folder / "kernel")
    for name, share in dirt.cut.items():
        path = folder / name
        if path.exists():
            data = path.read_bytes()
            path.write_bytes(data[: int(len(data) * share)])
    return folder
