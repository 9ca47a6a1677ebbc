"""Turn what a file tells about pids, devices and exit codes into the rank of the events whose lines name none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workbench.model import Event, Gpu, Parsed, Placement
from workbench.parse.ids import same_node
from workbench.parse.job_launcher import Failure

__all__ = ["attribute"]

_CRASHES = ("native-", "fatal-python-error", "torch-terminate-called", "c10d-shape-mismatch")
_CUDA = ("cuda-", "cublas-", "cudnn-", "nccl-unhandled-cuda")
_OF_THE_DEVICE = (
    "cuda-ecc-uncorrectable",
    "cuda-contained-error",
    "cuda-nvlink-uncorrectable",
    "cuda-unknown-error",
    "nvml-gpu-lost",
    "nvml-reset-required",
)
_REPORTS = (  # one line, one worker
    "elastic-exit", "composer-rank-ended", "ray-worker-failed", "exit-code", "exit-worker", "exit-mpi-abort", "tgi-shard",
    "vllm-worker-died",
)  # fmt: skip
_NOTICED_FIRST = "noticed that process rank"  # mpirun tells of the first process that ended by itself, and ends the others then
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
    named = event.gpu is not None and event.gpu.index is not None and event.signature.startswith(("nccl-", "gpu-"))
    if named and event.gpu is not None and event.node is not None:
        index = event.gpu.index
        return _unique(
            {one.rank for one in near if one.node and (one.local_rank == index or (one.gpu and one.gpu.index == index))}
        )
    return None


def _global(local: int, seen: set[int], local_size: int | None) -> int | None:
    """
    Return the rank with a local number, from the ranks that speak in the file.

    With none seen the file is of one node as far as it tells. Else the only rank that the number fits is meant (nodes have eight
    ranks where nothing says how many), or the number counts from the first rank of the agent's node.
    """
    if not seen or local in seen:
        return local
    size = local_size or 8
    fits = {rank for rank in seen if rank % size == local}
    if len(fits) == 1:
        return fits.pop()
    base = min(seen) // size * size
    if local_size and max(seen) < base + size:
        return base + local
    return local if max(seen) < size else None


def _ended(parsed: Parsed, failures: Sequence[Failure], one_node: bool, local_size: int | None, seen: set[int]) -> list[Failure]:
    """Return whose end was no follow-up: of the agent's summary, else of what other launchers report one line a worker."""
    if failures:
        return [failure for failure in failures if failure.code not in _ENDED_BY_OTHERS]
    seen = seen | {event.rank for event in parsed.events if event.rank is not None and event.signature != "elastic-exit"}
    ended: dict[tuple[int | None, int], Failure] = {}
    for event in parsed.events:
        if event.signature not in _REPORTS and not event.signature.startswith(("exit-sig", "slurm-task-")):
            continue
        rank, local = event.rank, event.local_rank
        if rank is None and local is not None and one_node:
            rank = _global(local, seen, local_size)
            if event.signature == "elastic-exit" and rank is not None:
                event.rank = rank
                if event.pid is not None:
                    parsed.placements.append(
                        Placement(
                            rank, event.node, local, pid=event.pid, attempt=event.attempt, time=event.time, origin="line-prefix",
                            file=event.file, line=event.line,
                        )
                    )  # fmt: skip
        if event.signature in ("slurm-task-killed", "slurm-task-terminated"):
            continue  # srun ends the others so
        code = event.code if event.code is not None else 1
        if rank is not None and (code not in _ENDED_BY_OTHERS or _NOTICED_FIRST in event.text):
            ended.setdefault(
                (event.attempt, rank),
                Failure(
                    event.line or 0, event.text, rank=rank, local_rank=local, host=event.node, code=code, attempt=event.attempt
                ),
            )
    return list(ended.values())


def _drop_wrong_devices(parsed: Parsed) -> None:
    """
    Forget a device number that cannot be the node's.

    It counts the devices that the process may see; a placement that names another one knows better, and "GPU 0" in a process
    that is not the first of its node mostly means that it sees one device only.
    """
    placed = {
        (one.attempt, one.rank): one.gpu.index
        for one in parsed.placements
        if one.rank is not None and one.gpu is not None and one.gpu.index is not None
    }
    for event in parsed.events:
        if event.gpu is None or event.gpu.index is None or event.gpu.pci or event.rank is None:
            continue
        known = placed.get((event.attempt, event.rank))
        local = event.local_rank if event.local_rank is not None else event.rank % 8
        if known is not None and known != event.gpu.index:
            event.gpu = Gpu(index=known)
        elif event.gpu.index == 0 and local != 0 and event.signature.startswith(("cuda-oom", "cublas-", "cudnn-")):
            event.gpu = None


def attribute(
    parsed: Parsed,
    failures: Sequence[Failure],
    *,
    one_node: bool = True,
    local_size: int | None = None,
    seen: Iterable[int] = (),
) -> None:
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
    here = set(seen)
    ended = _ended(parsed, failures, one_node, local_size, here)
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
        index = event.gpu.index if event.gpu is not None and event.signature.startswith("gpu-") else None
        if rank is None and one_node and not parsed.placements and index in here and max(here) < 8:
            rank, how = index, "device"
        own = [failure for failure in ended if failure.attempt in (None, event.attempt)]
        if rank is None and event.signature.startswith(_CRASHES):
            rank, how = _unique({failure.rank for failure in own if failure.code is not None and failure.code < 0}), "exit-code"
        if rank is None and event.signature.startswith(_CUDA):
            rank, how = _unique(set(reported.get((event.attempt, event.signature), set()))), "same-error"
        if rank is None and event.signature in _OF_THE_DEVICE:
            rank, how = (
                _unique({who for (attempt, _), ranks in reported.items() if attempt == event.attempt for who in ranks}),
                "same-device",
            )
        once = ("exception" in event.data and raised.get((event.attempt, event.text)) == 1) or event.signature == "app-last-words"
        # a launcher that tells of one worker alone means the one whose GPU call failed
        told = once or (event.signature.startswith(_CUDA) and not failures)
        if rank is None and told and len(own) == 1 and not event.data.get("handled"):
            rank, how = own[0].rank, "exit-code"
        if rank is not None:
            event.rank = rank
            event.data["rank_from"] = how
            if how == "exit-code":
                event.node = event.node or own[0].host
            if how == "exit-code" and event.gpu is None and event.signature in _OF_THE_DEVICE and own[0].local_rank is not None:
                event.gpu = Gpu(index=own[0].local_rank)
    for event in parsed.events:
        if event.node is None and event.rank is not None:
            event.node = names.get((event.attempt, event.rank))
    _drop_wrong_devices(parsed)
