"""Turn what a job inherits on this node into whether it can lock memory, open files and share memory."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.config import size_of
from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.parse.proc_files import UNLIMITED
from workbench.sources.node.limits import STARTERS, JobLimits

__all__ = ["limits"]

_MIB = 1 << 20
# NCCL's guide asks for 1 GiB of shared memory where it must be set (docker --shm-size=1g); hosts have half of their memory
_SHM = 1 << 30
_LITTLE, _NONE = (
    0.10,
    0.01,
)  # shares of free shared memory; before a job, all of it should be free. Our own measure, none published
# Share of the node's memory below which a control group is one that somebody limited: kernel and services need a few percent. Tasks that the
# jobs of a node of eight GPUs may have: each rank starts some hundred threads, and loaders of data beside them. Both our own measure.
_MEMORY, _TASKS = 0.9, 16_384
_USED_UP = 0.9  # share of the tasks that are allowed


@check(
    "limits",
    "jobs inherit limits that they can work with",
    needs=("limits",),
    wants=("network",),
    cls="platform/config",
    required=False,
    required_when=("health.memlock", "health.files", "health.shm"),
)
def limits(seen: Seen) -> Iterator[Finding]:
    """Judge by ``health.memlock``, ``health.files`` and ``health.shm``, and else by what is known to break jobs."""
    value: JobLimits = seen.value("limits")
    yield _memlock(seen, value)
    yield _files(seen, value)
    yield _shared(seen, value)
    if value.starter in STARTERS:  # our own group says nothing of that of jobs
        yield from _group(seen, value)
    if value.balancing and value.nodes > 1:
        # no fault: it costs where jobs are bound to their NUMA node (kernel documentation), and nobody knows here whether they are
        yield seen.found("numa-balancing", f"the kernel moves memory between {value.nodes} NUMA nodes by itself", part="NUMA")


def _words(value: float | None) -> str:
    return "not told" if value is None else "unlimited" if value == UNLIMITED else f"{value / _MIB:.0f} MiB"


def _memlock(seen: Seen, value: JobLimits) -> Finding:
    said = f"{value.starter} passes on a limit of locked memory of {_words(value.memlock)}"
    text = seen.setting("memlock")
    if value.memlock is None:
        return seen.unknown("the limit of locked memory was not told", part="memlock")
    if text:
        try:
            wanted = UNLIMITED if str(text) == "unlimited" else float(size_of(str(text)))
        except ValueError as error:
            return seen.unknown(f"health.memlock: {error}", part="memlock", hint="unlimited, or a size such as 64GiB")
        if value.memlock < wanted:
            return seen.found(
                "memlock-too-small", f"{said}, {_words(wanted)} should be", part="memlock", evidence=[f"health.memlock = {text}"]
            )
    network = seen.value("network")
    # slurmd ships without a limit, so one was set; containers get the right to lock memory with their device, whatever the limit
    if not text and network and network.ports and value.starter == "slurmd" and value.memlock != UNLIMITED:
        hint = "LimitMEMLOCK=infinity in slurmd.service, and PropagateResourceLimitsExcept=MEMLOCK in slurm.conf"
        return seen.found("memlock-limited", f"{said}, and RDMA locks what it sends", part="memlock", hint=hint)
    return seen.ok(said, part="memlock")


def _files(seen: Seen, value: JobLimits) -> Finding:
    wanted = seen.setting("files")
    if value.files is None:
        return seen.unknown("the limit of open files was not told", part="files")
    said = f"{value.starter} lets a process open " + (
        "any number of files" if value.files == UNLIMITED else f"{value.files:.0f} files"
    )
    if wanted and value.files < wanted:
        return seen.found(
            "files-too-few", f"{said}, {wanted:.0f} should be", part="files", evidence=[f"health.files = {wanted:.0f}"]
        )
    return seen.ok(said, part="files")


def _group(seen: Seen, value: JobLimits) -> Iterator[Finding]:
    """What starts jobs ships without limits of its own: one that is there was set, or is systemd's for units that say nothing."""
    group, part = value.group, "cgroup"
    tight = []
    if group.memory is not None and group.memory != UNLIMITED and value.total and group.memory < value.total * _MEMORY:
        what = f"the control group of {value.starter} may use {_words(group.memory)} of {_words(value.total)}"
        tight.append(seen.found("cgroup-memory-limited", what, part=part, hint=f"systemctl show -p MemoryMax {value.starter}"))
    if group.tasks is not None and group.tasks != UNLIMITED:
        used = "" if group.used is None else f", {group.used} are there"
        what = f"the control group of {value.starter} may have {group.tasks:.0f} processes and threads{used}"
        if group.tasks < _TASKS or (group.used is not None and group.used >= group.tasks * _USED_UP):
            hint = f"TasksMax=infinity in {value.starter}.service"
            tight.append(seen.found("cgroup-tasks-limited", what, part=part, hint=hint))
    yield from tight
    if tight:
        return
    if group.unread:
        yield seen.unknown(f"the limits of the control group of {value.starter} were not read: {group.unread}", part=part)
    elif group.memory is None and group.tasks is None:
        yield seen.absent(f"no control group limits {value.starter}", part=part)
    else:
        yield seen.ok(f"the control group of {value.starter} leaves jobs memory and tasks", part=part)


def _shared(seen: Seen, value: JobLimits) -> Finding:
    shm, wanted = value.shm, seen.setting("shm")
    if shm is None:
        return seen.unknown("/dev/shm did not tell its size", part="/dev/shm", hint="stat -f /dev/shm")
    said = f"/dev/shm has {_words(shm.size)}, {_words(shm.free)} of it free"
    if not shm.mounted:
        return seen.found(
            "shm-missing", "/dev/shm is no file system of its own", part="/dev/shm", hint="mount -t tmpfs tmpfs /dev/shm"
        )
    if wanted and shm.size < wanted:
        return seen.found(
            "shm-too-small", f"{said}; {_words(wanted)} should be", part="/dev/shm", evidence=[f"health.shm = {_words(wanted)}"]
        )
    if not wanted and shm.size < _SHM:
        return seen.found("shm-small", f"{said}; NCCL's guide asks for 1 GiB", part="/dev/shm")
    if shm.free <= shm.size * (_NONE if seen.context == "running" else _LITTLE):
        whose = "the job's own" if seen.context == "running" else "left by jobs that are gone: ls -l /dev/shm"
        return seen.found("shm-full", f"{said}: {whose}", part="/dev/shm")
    return seen.ok(said, part="/dev/shm")
