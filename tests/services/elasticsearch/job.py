"""
Turn a number of ranks and steps into the log lines of a job of which one rank raises an exception and the others wait for it in vain.

Always the same lines; used by the live tests of the log server and by its benchmark.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["CULPRIT", "JOB", "START", "Line", "document", "fields_of", "lines", "mapping", "node_of", "write_folder"]

JOB = "llm-70b"
CULPRIT = 27
START = 1777888800.0  # 2026-05-04T10:00:00Z
PER_NODE = 8


class Line(NamedTuple):
    """A line of a rank's log: when it was written, where, its place in bytes in the rank's file."""

    rank: int
    node: str
    time: float
    offset: int
    text: str


def node_of(rank: int) -> str:
    """Return the node of a rank."""
    return f"gpu-node-{rank // PER_NODE:03d}"


def _stamp(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S,") + f"{int(time * 1000) % 1000:03d}"


def lines(ranks: int = 64, steps: int = 100, culprit: int = CULPRIT) -> Iterator[Line]:
    """Yield the lines of each rank in turn, each rank's in the order in which it wrote them."""
    for rank in range(ranks):
        node, offset = node_of(rank), 0
        for time, text in _rank(rank, ranks, steps, culprit, node):
            yield Line(rank, node, time, offset, text)
            offset += len(text.encode()) + 1


def _rank(rank: int, ranks: int, steps: int, culprit: int, node: str) -> Iterator[tuple[float, str]]:
    now = START + rank * 0.001
    head = f"[rank{rank}]: "
    local = rank % PER_NODE
    yield (
        now,
        f"{_stamp(now)} | INFO | trainer | rank {rank}/{ranks} local_rank {local} on {node} cuda:{local} (NVIDIA H100 80GB HBM3)",
    )
    yield now, f"{_stamp(now)} | INFO | trainer | Initializing process group: nccl, world size {ranks}"
    yield (
        now,
        f"{node}:{4000 + rank}:{4100 + rank} [{local}] NCCL INFO Channel 00/0 : {rank}[{local}] -> {(rank + 1) % ranks}[{(rank + 1) % 8}] via P2P/CUMEM/read",
    )
    for step in range(1, steps + 1):
        now = START + 10 + step * 2 + rank * 0.001
        yield (
            now,
            f"{_stamp(now)} | INFO | trainer | step {step} loss {2.5 - step / (4 * steps):.4f} grad_norm 0.213 lr 1.5e-04 tok/s/gpu {9000 + (rank * 7 + step) % 200} mem 61.2GiB",
        )
        if step % 4 == 0:
            yield (
                now,
                f"{_stamp(now)} | DEBUG | trainer.data | shard {(rank * 7919 + step) % 65536:016x} cursor {step * 17 + rank} prefetch queue {step % 64}/64",
            )
    now = START + 10 + (steps + 1) * 2
    if rank == culprit:
        yield now, f"{head}Traceback (most recent call last):"
        yield now, f'{head}  File "/workspace/train.py", line 258, in <module>'
        yield now, f"{head}    main()"
        yield now, f'{head}  File "/workspace/train.py", line 211, in main'
        yield now, f"{head}    batch = tokenizer.pack(sample)"
        yield now, f'{head}  File "/workspace/data.py", line 88, in pack'
        yield now, f'{head}    raise ValueError(f"sample {{index}} has no tokens")'
        yield now, f"{head}ValueError: sample 48123 has no tokens"
        return
    now += 600 + rank * 0.01
    glog = datetime.fromtimestamp(now, UTC).strftime("%m%d %H:%M:%S").lstrip("0") + f".{int(now * 1e6) % 1_000_000:06d}000"
    work = f"WorkNCCL(SeqNum={steps * 12 + 7}, OpType=ALLREDUCE, NumelIn=16777216, NumelOut=16777216, Timeout(ms)=600000)"
    yield (
        now,
        f"{head}[E{glog} ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: {work} ran for 600{rank % 1000:03d} milliseconds before timing out.",
    )
    yield (
        now + 0.1,
        f"{head}[E{glog} ProcessGroupNCCL.cpp:1484] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Exception (either an error or timeout) detected by watchdog at work: {steps * 12 + 7}, last enqueued NCCL work: {steps * 12 + 9}, last completed NCCL work: {steps * 12 + 6}.",
    )
    yield (
        now + 0.1,
        f"{head}[E{glog} ProcessGroupNCCL.cpp:690] [Rank {rank}] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.",
    )
    yield (
        now + 0.1,
        f"{head}[E{glog} ProcessGroupNCCL.cpp:704] [Rank {rank}] To avoid data inconsistency, we are taking the entire process down.",
    )


def write_folder(root: Path, ranks: int = 64, steps: int = 100) -> None:
    """Write the same lines as files, one for each rank, as an incident folder has them."""
    (root / "logs").mkdir(parents=True, exist_ok=True)
    streams: dict[int, list[str]] = {}
    for line in lines(ranks, steps):
        streams.setdefault(line.rank, []).append(line.text)
    for rank, texts in streams.items():
        (root / "logs" / f"rank-{rank:03d}.log").write_text("\n".join(texts) + "\n")


# -- the same lines as five shippers send them --------------------------------------------------------------------------


def _set(document: dict[str, Any], path: str, value: Any, nested: bool) -> None:
    if not nested:
        document[path] = value
        return
    *parents, last = path.split(".")
    for each in parents:
        document = document.setdefault(each, {})
    document[last] = value


def fields_of(preset: str, pods: bool = True) -> dict[str, str]:
    """Return meaning → field as one shipper names them."""
    return {
        "ecs": {"message": "message", "time": "@timestamp", "node": "host.name", "job": "labels.job_name", "rank": "labels.rank", "offset": "log.offset", "file": "log.file.path"},
        "beats": {"message": "message", "time": "@timestamp", "node": "kubernetes.node.name", "pod": "kubernetes.pod.name", "container": "kubernetes.container.name", "namespace": "kubernetes.namespace", "job": "kubernetes.labels.job-name", "offset": "log.offset"},
        "fluentbit": {"message": "log", "time": "@timestamp", "node": "kubernetes.host", "pod": "kubernetes.pod_name", "container": "kubernetes.container_name", "namespace": "kubernetes.namespace_name", "job": "kubernetes.labels.job-name", "offset": "offset"},
        "vector": {"message": "message", "time": "@timestamp", "node": "kubernetes.pod_node_name", "pod": "kubernetes.pod_name", "container": "kubernetes.container_name", "namespace": "kubernetes.pod_namespace", "job": "kubernetes.pod_labels.job-name", "offset": "offset"},
        "otel": {"message": "body.text", "time": "@timestamp", "node": "resource.attributes.k8s.node.name", "pod": "resource.attributes.k8s.pod.name", "container": "resource.attributes.k8s.container.name", "namespace": "resource.attributes.k8s.namespace.name", "job": "resource.attributes.k8s.job.name", "offset": "attributes.log.file.record_offset"},
        "custom": {"message": "txt", "time": "when", "node": "machine", "rank": "global_rank_no", "job": "run", "offset": "at"},
    }[preset]  # fmt: skip


def document(line: Line, preset: str = "ecs") -> dict[str, Any]:
    """Return a line as a document of one shipper."""
    values = {
        "message": line.text, "time": datetime.fromtimestamp(line.time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "node": line.node, "pod": f"{JOB}-worker-{line.rank}", "container": "pytorch", "namespace": "train", "job": JOB,
        "rank": line.rank, "offset": line.offset, "file": f"/shared/{JOB}/rank-{line.rank:03d}.log",
    }  # fmt: skip
    found: dict[str, Any] = {}
    for meaning, path in fields_of(preset).items():
        # label names and OpenTelemetry's attributes have dots of their own; objects and dotted names are the same to the server
        _set(found, path, values[meaning], nested="labels" not in path and preset != "otel")
    return found


def mapping(preset: str = "ecs", message: str = "text") -> dict[str, Any]:
    """Return a mapping for the documents of one shipper."""
    kinds = {"message": message, "time": "date", "offset": "long", "rank": "integer" if preset == "custom" else "keyword"}
    return {"properties": {path: {"type": kinds.get(meaning, "keyword")} for meaning, path in fields_of(preset).items()}}
