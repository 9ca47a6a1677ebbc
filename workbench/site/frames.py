"""Turn rows of plain values into frames with the columns of the snapshot, and tell when a snapshot does not fulfil them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.frames import CONDITIONS, EVENTS, METRICS, check_frame, empty_frame
from workbench.health import STATUSES
from workbench.site.model import ACTIONS, FINDINGS, GPUS, HEALTH, INCIDENTS, JOBS, NODES, SUSPECTS, UTC

if TYPE_CHECKING:
    from workbench.site.model import Snapshot

__all__ = ["HEARD", "check_snapshot", "frame", "no_snapshot", "worse"]

HEARD = ("ok", "partial", "missing", "failed", "stale")
_FRAMES: dict[str, Mapping[str, str]] = {
    "nodes": NODES,
    "gpus": GPUS,
    "conditions": CONDITIONS,
    "findings": FINDINGS,
    "jobs": JOBS,
    "suspects": SUSPECTS,
    "actions": ACTIONS,
    "samples": METRICS,
    "incidents": INCIDENTS,
    "events": EVENTS,
}
_RANK = {word: number for number, word in enumerate(HEALTH)}


def worse(one: str, other: str) -> bool:
    """Tell whether a word of `HEALTH` is worse than another."""
    return _RANK[one] > _RANK[other]


def frame(rows: Iterable[Mapping[str, Any]], contract: Mapping[str, str]) -> pd.DataFrame:
    """
    Return rows as a frame with a contract's columns; what a row does not have is missing.

    Parameters
    ----------
    rows : iterable of mapping
        Times are seconds since the epoch; empty texts count as missing.
    contract : mapping
        Column → dtype.
    """
    rows = list(rows)
    if not rows:
        return empty_frame(contract)
    columns: dict[str, Any] = {}
    for name, dtype in contract.items():
        values = [row.get(name) for row in rows]
        if dtype == UTC:
            stamps = pd.to_numeric(pd.Series(values, dtype="object"), errors="coerce")
            columns[name] = pd.to_datetime(stamps.astype("float64"), unit="s", utc=True, errors="coerce").dt.as_unit("us")
        elif dtype == "string":
            columns[name] = pd.array([None if value in (None, "") else str(value) for value in values], dtype="string")
        elif dtype == "Float64":
            # NaN is how an exporter says that it has no value
            columns[name] = pd.array(
                [None if value is None or value != value else float(value) for value in values], dtype="Float64"
            )
        elif dtype == "object":
            column = pd.Series([None] * len(values), dtype="object")
            column[:] = values
            columns[name] = column
        else:
            columns[name] = pd.Series(values, dtype=dtype)
    return pd.DataFrame(columns)


def check_snapshot(snapshot: Snapshot) -> None:
    """
    Raise when a snapshot does not fulfil what every page relies on.

    Raises
    ------
    ValueError
        Names the frame and what is wrong: a column, a word that is not known, a GPU of a node that is not there, health without a
        word, a node that is better than its worst GPU.
    """
    for name, contract in _FRAMES.items():
        one = getattr(snapshot, name)
        if one is None and name in ("incidents", "events"):
            continue
        try:
            check_frame(one, contract)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    nodes, gpus = snapshot.nodes, snapshot.gpus
    if nodes["node"].isna().any() or nodes["node"].duplicated().any():
        raise ValueError("nodes: a node has no name, or is there twice")
    for name, one in (("nodes", nodes), ("gpus", gpus)):
        if strange := set(one["health"].fillna("(none)")) - set(HEALTH):
            raise ValueError(f"{name}: {sorted(strange)[0]!r} is no word of HEALTH")
    if strange := set(gpus["node"]) - set(nodes["node"]):
        raise ValueError(f"gpus: {sorted(strange)[0]} is no node")
    if gpus.duplicated(["node", "gpu_index"]).any():
        raise ValueError("gpus: one GPU is there twice")
    if strange := set(snapshot.findings["status"].fillna("(none)")) - set(STATUSES):
        raise ValueError(f"findings: {sorted(strange)[0]!r} is no status of a finding")
    rank = gpus["health"].map(_RANK).groupby(gpus["node"]).max()
    own = nodes.set_index("node")["health"].map(_RANK).reindex(rank.index)
    better = rank.index[(own < rank) & (rank >= _RANK["warning"])]
    if len(better):
        raise ValueError(f"nodes: {better[0]} is told to be better than its worst GPU")
    if strange := {one.status for one in snapshot.heard} - set(HEARD):
        raise ValueError(f"heard: {sorted(strange)[0]!r} is none of {', '.join(HEARD)}")


def no_snapshot(name: str, time: float, *, period: float = 30.0, heard: tuple[Any, ...] = ()) -> Snapshot:
    """Return the snapshot before anybody answered: no node is known, which is not the same as no node is there."""
    from workbench.site.model import Snapshot

    frames: dict[str, Any] = {key: empty_frame(contract) for key, contract in _FRAMES.items()}
    return Snapshot(time, name, **frames, heard=heard, period=period)
