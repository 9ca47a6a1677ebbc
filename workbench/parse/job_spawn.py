"""Turn what a parent says of its children (spawned processes, srun's tasks, DeepSpeed's workers) into their ranks and roles."""

from __future__ import annotations

import re

from workbench.model import Event
from workbench.parse.job_state import JobState, remember

__all__ = ["children", "meshes", "recovered", "rooms", "tasks_of_nodes"]

# torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal SIGABRT | … with exit code 1
_ENDED = re.compile(r"ProcessExitedException: process (\d+) terminated with (?:signal|exit code) ")
_PASSED_ON = re.compile(r"(?:ProcessRaisedException|ChildFailedError):? ?$")
# frames of calls that take their room from /dev/shm, not from a disk
_IN_MEMORY = re.compile(
    r"multiprocessing/(?:synchronize|heap|shared_memory|queues|sharedctypes|pool)\.py|joblib/\S*(?:_memmapping|externals)"
)
_ROOM = ("storage-enospc",)


def _cause(job: JobState, event: Event) -> bool:
    return (event.role or job.matcher.rows[event.signature].role) == "cause"


def rooms(job: JobState) -> None:
    """Semaphores and shared memory lie in /dev/shm: what found no room there says nothing about a disk."""
    shm = any(event.signature == "storage-enospc-shm" for event in job.parsed.events)
    for event in job.parsed.events:
        if event.signature in _ROOM and (shm or any(_IN_MEMORY.search(frame) for frame in event.data.get("frames", [])[-3:])):
            if not any(_IN_MEMORY.search(frame) for frame in event.data.get("frames", [])[-3:]):
                continue
            event.signature = "storage-enospc-shm"


def meshes(job: JobState) -> None:
    """
    Place the ranks that gloo says it connected: those of the largest group, which is the default one where each rank is in it once.

    In any other group the numbers are the group's own. A group that is smaller than the job is another one, and so is one whose
    numbers come from several nodes.
    """
    size = max((one[0] for one in job.meshes), default=0)
    if size < 2 or (job.world is not None and size < job.world):
        return
    homes: dict[int, set[str | None]] = {}
    for each, rank, head, _ in job.meshes:
        if each == size:
            homes.setdefault(rank, set()).add(head.node or head.pod or job.node)
    if any(len(nodes) > 1 for nodes in homes.values()):
        return
    job.world = size
    for each, rank, head, no in job.meshes:
        if each == size and head.rank in (None, rank):
            remember(job, rank, head.local_rank, head.node or head.pod or job.node, head.pid, head.time, no, "gloo-mesh")


def tasks_of_nodes(job: JobState) -> None:
    """``srun: error: node-c: task 19: Exited`` tells where rank 19 ran, when nothing else does."""
    placed = {one.rank for one in job.parsed.placements if one.rank is not None and one.node}
    for event in job.parsed.events:
        one = event.signature.startswith("slurm-task-") and event.rank is not None and event.rank == event.data.get("task")
        if one and event.node and event.rank not in placed:
            remember(job, event.rank, None, event.node, None, event.time, event.line or 0, "launcher-line")


def children(job: JobState) -> None:
    """Give what one child said its rank, and take the parent's words about it for what follows from that."""
    ended = {int(found[1]) for event in job.parsed.events if (found := _ENDED.search(event.text))}
    first = next((event for event in job.parsed.events if _ENDED.search(event.text)), None)
    for event in job.parsed.events:
        before = first is not None and (event.line or 0) < (first.line or 0) and event.attempt == first.attempt
        if len(ended) == 1 and before and event.rank is None and event.pid is None and _cause(job, event) and not event.node:
            event.rank = next(iter(ended))
            event.data["rank_from"] = "exit-code"
    if first is not None and any(_cause(job, event) and (event.line or 0) < (first.line or 0) for event in job.parsed.events):
        first.role = "symptom" if first.signature == "python-exception" else first.role
    exceptions = [event for event in job.parsed.events if "exception" in event.data]
    for event in exceptions:
        if event.signature == "python-exception" and event.role is None and _PASSED_ON.search(event.text.strip()):
            inner = [other for other in exceptions if 0 < (other.line or 0) - (event.line or 0) < 300 and other.role != "symptom"]
            if inner:
                event.role = "symptom"
                for other in inner[:1]:
                    other.role = None if other.role == "context" and not other.data.get("handled") else other.role
    # DeepSpeed's launcher ends the others when one of its children failed: then nobody stopped it from outside
    if any("exits with return code" in event.text for event in job.parsed.events):
        for event in job.parsed.events:
            if event.signature == "deepspeed-killing":
                event.cls, event.weight = "unknown", 0.05


def recovered(job: JobState) -> None:
    """An allocation that failed, that the program said it takes care of, and after which it made steps, is no failure."""
    last = max((point[5] for point in job.progress), default=0)
    lines = {(event.rank, event.line or 0) for event in job.parsed.events if event.signature == "oom-recovery"}
    for event in job.parsed.events:
        if event.signature.startswith("cuda-oom") and _cause(job, event):
            at = event.line or 0
            if any(rank == event.rank and 0 <= line - at <= 60 and line < last for rank, line in lines):
                event.role, event.data["handled"] = "context", True
