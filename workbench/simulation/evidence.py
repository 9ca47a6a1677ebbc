"""Turn a simulated failure into the incident folder that people would have in hand: job, kernel and scheduler logs in their native forms."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from workbench.catalog import table

__all__ = ["DECOYS", "Failure", "write_incident"]

# what an innocent node's kernel says in the minutes before: none of it ends a job. Forms: catalog/xid.csv 63 and 92, signatures_kernel.csv
DECOYS = (
    "NVRM: Xid (PCI:0000:30:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row (0x0000000003a4c2d1) marked for remapping",
    "NVRM: Xid (PCI:0000:50:00): 92, pid='<unknown>', name=<unknown>, High single-bit ECC error rate",
    "pcieport 0000:15:01.0: AER: Corrected error received: 0000:17:00.0",
)

_STEP = 30.0  # seconds between two lines of progress
_STEPS = 20


@dataclass(frozen=True, slots=True)
class Failure:
    """
    What really happened to one attempt.

    Attributes
    ----------
    job, attempt : str, int
    cls : str
        The true class.
    time : float
        When it began, seconds since the epoch.
    told_by : str
        ``crash``, ``hang``, ``silence``: what the other ranks notice.
    nodes : sequence of str
    gpus : int
        Ranks; the nodes hold them in order, `per_node` each.
    per_node : int
    node : str or None
        The culprit, or None for what reaches the whole job.
    slot : int
        GPU of the node.
    """

    job: str
    attempt: int
    cls: str
    time: float
    told_by: str
    nodes: Sequence[str]
    gpus: int
    per_node: int
    node: str | None
    slot: int = 0

    @property
    def rank(self) -> int:
        """The first rank that fails: that of the culprit's GPU; of what reaches the whole job one of the first node."""
        culprit = self.nodes.index(self.node) if self.node is not None else 0
        return culprit * self.per_node + self.slot % max(1, min(self.per_node, self.gpus - culprit * self.per_node))


def write_incident(
    failure: Failure,
    folder: Path,
    *,
    decoy: str = "",
    skew: Mapping[str, float] | None = None,
    second: Failure | None = None,
    foreign: Sequence[tuple[float, str]] = (),
) -> Path:
    """
    Write the folder and return it; the truth is nowhere in it.

    Parameters
    ----------
    failure : Failure
    folder : Path
        Made; files in it are replaced.
    decoy : str, optional
        What the kernel of an innocent node says three minutes before; one of `DECOYS`.
    skew : mapping, optional
        Node → seconds by which its clock is ahead: its stamps are.
    second : Failure, optional
        Another fault of the same job, of which its own node tells as well.
    foreign : sequence of (float, str), optional
        Seconds after the fault, and what an innocent node's kernel says then.

    Raises
    ------
    ValueError
        No evidence is known of that class (``catalog/simulated_evidence.csv``).
    """
    said = _said(failure)
    if not said:
        raise ValueError(f"no evidence of {failure.cls} is known")
    more = _said(second) if second is not None else []
    for sub in ("logs", "kernel"):
        (folder / sub).mkdir(parents=True, exist_ok=True)
    culprit = failure.nodes.index(failure.node) if failure.node is not None else 0
    innocent = (culprit + 1) % len(failure.nodes)
    for index, node in enumerate(failure.nodes):
        first, off = index * failure.per_node, (skew or {}).get(node, 0.0)
        ranks = range(first, min(first + failure.per_node, failure.gpus))
        told = [(failure.time + after, layer, text) for after, layer, text in said if index == culprit]
        if second is not None and node == second.node:
            told += [(second.time + after, layer, text) for after, layer, text in more]
        here = replace(failure, time=failure.time + off)
        own = [(time + off, text) for time, layer, text in told if layer == "job"]
        bad = failure.rank if second is None or node != second.node else second.rank
        lines = _log(here, node, ranks, bad, own, silent=index == culprit and failure.told_by == "silence")
        (folder / "logs" / f"{node}.log").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        kernel = [(failure.time - 900 + 60 * minute, f"audit: type=1400 pid={4000 + minute}") for minute in range(14)]
        kernel += [(time, text) for time, layer, text in told if layer == "kernel"]
        if index == innocent and index != culprit:
            kernel += [(failure.time - 180, decoy)] if decoy else []
            kernel += [(failure.time + after, _filled(text, failure, first, 0)) for after, text in foreign]
        kernel.sort()
        (folder / "kernel" / f"{node}.log").write_text(
            "".join(f"{_iso(time + off)} {node} kernel: {text}\n" for time, text in kernel), encoding="utf-8"
        )
    slurm = [(failure.time + after, text) for after, layer, text in said if layer == "slurm"]
    if slurm:
        rows = "".join(f"[{_stamp(time, 'T')}.000] {text}\n" for time, text in slurm)
        (folder / "logs" / ("slurmctld.log" if failure.cls == "platform/node-lost" else f"slurm-{failure.job}.out")).write_text(
            rows, encoding="utf-8"
        )
    (folder / "nodes.json").write_text(json.dumps(_nodes(failure)), encoding="utf-8")
    return folder


def _said(failure: Failure) -> list[tuple[float, str, str]]:
    """Return what is said of a failure: seconds after it, layer, text."""
    culprit = failure.nodes.index(failure.node) if failure.node is not None else 0
    slot = failure.rank - culprit * failure.per_node
    return [
        (float(row["after"]), row["layer"], _filled(row["text"], failure, failure.rank, slot))
        for row in table("simulated_evidence")
        if row["class"] == failure.cls
    ]


def _filled(text: str, failure: Failure, rank: int, slot: int) -> str:
    return text.format(
        pci=f"0000:{0x10 * (slot + 1):02x}:00", nic=f"0000:{0x10 * (slot + 1) + 8:02x}:00.0", pid=10_000 + rank, rank=rank, slot=slot,
        node=failure.node or failure.nodes[0], step=_STEPS, job=failure.job, stamp=_stamp(failure.time, "T"),
    )  # fmt: skip


def _log(failure: Failure, node: str, ranks: range, bad: int, own: list[tuple[float, str]], *, silent: bool) -> list[str]:
    """The output of one node's ranks: start, progress, what they noticed."""
    begin = failure.time - _STEP * _STEPS
    rows = [(begin, _hello(begin, failure, node, rank)) for rank in ranks]
    for step in range(1, _STEPS + 1):
        time = begin + step * _STEP - 1
        rows += [
            (time, f"{_stamp(time)},{rank % 1000:03d} - trainer - INFO - [rank{rank}] step {step} loss {8 / (step + 3):.4f}")
            for rank in ranks
        ]
    rows += [(time, f"{_stamp(time)} {text}") for time, text in own]
    if not silent and failure.cls != "platform/preemption":
        rows += [row for rank in ranks if rank != bad or failure.told_by == "hang" for row in _noticed(failure, rank)]
    return [text for _, text in sorted(rows, key=lambda row: row[0])]


def _hello(begin: float, failure: Failure, node: str, rank: int) -> str:
    local = rank % failure.per_node
    place = f"rank {rank}/{failure.gpus} local_rank {local} on {node} cuda:{local} pid {10_000 + rank}"
    return f"{_stamp(begin)},000 - trainer - INFO - {place}"


def _noticed(failure: Failure, rank: int) -> list[tuple[float, str]]:
    """What a rank says whose peer is gone: a closed connection at once, or a watchdog ten minutes later."""
    when = failure.time + (600 if failure.told_by == "hang" else 4)
    stamp = dt.datetime.fromtimestamp(when, dt.UTC)
    if failure.told_by == "hang":
        text = (
            f"[rank{rank}]:[E{stamp:%m%d %H:%M:%S}.{rank % 1000:03d}000000 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective "
            f"operation timeout: WorkNCCL(SeqNum={_STEPS * 100}, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) ran for "
            f"600012 milliseconds before timing out."
        )
    else:
        text = (
            f"{_stamp(when)} [rank{rank}]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, remote process "
            f"exited or there was a network error, NCCL version 2.21.5"
        )
    return [(when, text)]


def _nodes(failure: Failure) -> dict[str, object]:
    items = []
    for node in failure.nodes:
        lost = node == failure.node and failure.told_by == "silence"
        since = failure.time + 40 if lost else failure.time - 86400
        condition = {
            "type": "Ready", "status": "Unknown" if lost else "True", "reason": "NodeStatusUnknown" if lost else "KubeletReady",
            "message": "Kubelet stopped posting node status." if lost else "kubelet is posting ready status",
            "lastTransitionTime": _iso(since), "lastHeartbeatTime": _iso(since),
        }  # fmt: skip
        items.append({"kind": "Node", "metadata": {"name": node}, "status": {"conditions": [condition]}})
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _stamp(time: float, between: str = " ") -> str:
    return dt.datetime.fromtimestamp(time, dt.UTC).strftime(f"%Y-%m-%d{between}%H:%M:%S")


def _iso(time: float) -> str:
    return dt.datetime.fromtimestamp(time, dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
