"""Turn what a file tells about pids, devices and exit codes into the rank of the events whose lines name none."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.model import Event, Parsed, Placement
from workbench.parse.ids import same_node
from workbench.parse.job_launcher import Failure

__all__ = ["attribute"]

_CRASHES = ("native-", "fatal-python-error", "torch-terminate-called", "c10d-shape-mismatch")
_CUDA = ("cuda-", "cublas-", "cudnn-", "nccl-unhandled-cuda")
# endings that the launcher itself brings about, so that they say nothing about who began
_ENDED_BY_OTHERS = (-15, -9, 0, None)


def _unique(ranks: set[int | None]) -> int | None:
    ranks.discard(None)
    return next(iter(ranks)) if len(ranks) == 1 else None


def _from_placements(event: Event, placements: Sequence[Placement], one_node: bool) -> int | None:
    near = [
        one for one in placements
        if one.rank is not None and (one.attempt is None or event.attempt is None or one.attempt == event.attempt)
        and (event.node is None or one.node is None or same_node(event.node, one.node))
    ]  # fmt: skip
    if event.pid is not None and (rank := _unique({one.rank for one in near if one.pid == event.pid})) is not None:
        return rank
    if (
        event.local_rank is not None
        and (rank := _unique({one.rank for one in near if one.local_rank == event.local_rank})) is not None
    ):
        return rank
    nodes = {one.node for one in placements if one.node}
    if (
        event.local_rank is not None
        and one_node
        and len(nodes) <= 1
        and event.signature.startswith(("exit-", "elastic-exit"))
        and not near
    ):
        return event.local_rank  # one node only as far as the file tells: local and global numbers agree
    if event.gpu is not None and event.gpu.index is not None and event.node is not None and event.signature.startswith("nccl-"):
        index = event.gpu.index
        return _unique(
            {one.rank for one in near if one.node and (one.local_rank == index or (one.gpu and one.gpu.index == index))}
        )
    return None


def attribute(parsed: Parsed, failures: Sequence[Failure], *, one_node: bool = True) -> None:
    """
    Fill in ranks in place; `data["rank_from"]` says from what.

    In this order: a placement with the same pid, local rank or (for NCCL's own lines) device on the node; for crashes in native
    code the only worker whose exit code says so; for a CUDA error the only rank that reports the same one later; for an exception
    that was raised once the only worker that did not end by the launcher's hand.
    """
    names: dict[tuple[int | None, int], str | None] = {}
    for one in parsed.placements:
        if one.rank is not None and one.node:
            key = (one.attempt, one.rank)
            names[key] = one.node if key not in names or names[key] == one.node else None
    blank = [event for event in parsed.events if event.rank is None]
    reported: dict[tuple[int | None, str], set[int | None]] = {}
    for event in parsed.events:
        if event.rank is not None and event.signature.startswith(_CUDA):
            reported.setdefault((event.attempt, event.signature), set()).add(event.rank)
    raised: dict[tuple[int | None, str], int] = {}
    for event in parsed.events:
        if "exception" in event.data and event.signature != "elastic-failure":
            raised[event.attempt, event.text] = raised.get((event.attempt, event.text), 0) + event.count
    for event in blank:
        if event.signature in ("elastic-failure", "elastic-death-signal", "elastic-restart") or event.signature.startswith(
            "slurm-"
        ):
            continue
        rank, how = _from_placements(event, parsed.placements, one_node), "placement"
        own = [
            failure for failure in failures if failure.attempt in (None, event.attempt) and failure.code not in _ENDED_BY_OTHERS
        ]
        if rank is None and event.signature.startswith(_CRASHES):
            rank, how = _unique({failure.rank for failure in own if failure.code is not None and failure.code < 0}), "exit-code"
        if rank is None and event.signature.startswith(_CUDA):
            rank, how = _unique(set(reported.get((event.attempt, event.signature), set()))), "same-error"
        once = "exception" in event.data and raised.get((event.attempt, event.text)) == 1
        if rank is None and once and len(own) == 1 and not event.data.get("handled"):
            rank, how = own[0].rank, "exit-code"
        if rank is not None:
            event.rank = rank
            event.data["rank_from"] = how
    for event in parsed.events:
        if event.node is None and event.rank is not None:
            event.node = names.get((event.attempt, event.rank))
