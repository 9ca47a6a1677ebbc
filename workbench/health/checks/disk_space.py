"""Turn the file systems on the node's own disks into whether they have space and can be written."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.health.checks.mounts import LITTLE, NONE
from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.sources.node.host import LocalDisk

__all__ = ["disk_space"]

# without these nothing starts: logs, images, job scripts. Elsewhere a full disk is its users' affair, and a warning
_NEEDED = (
    "/",
    "/var",
    "/var/lib",
    "/var/log",
    "/var/spool",
    "/tmp",
    "/var/tmp",
    "/var/lib/containerd",
    "/var/lib/docker",
    "/var/lib/kubelet",
)
_WENT = ("fs-readonly", "fs-shutdown")


@check(
    "disk-space",
    "the node's own file systems have space and can be written",
    needs=("local-disks",),
    wants=("kernel",),
    cls="platform/storage",
)
def disk_space(seen: Seen) -> Iterator[Finding]:
    """Judge each file system on a disk; one that is read-only by design is none that the kernel made so."""
    log = seen.value("kernel")
    went = (
        [event for event in log.events if event.signature in _WENT and (event.time or seen.now) >= (log.boot or 0.0)]
        if log
        else []
    )
    if went:
        yield seen.found(
            "fs-went-read-only",
            "the kernel stopped writing to a file system after errors",
            evidence=[event.text for event in went[-3:]],
            since=went[0].time,
        )
    elif log is None:
        why = seen.readings["kernel"].detail
        yield seen.unknown(f"whether the kernel stopped writing to one is not known from its log: {why}", part="kernel log")
    for disk in seen.value("local-disks"):
        yield _judged(seen, disk)


def _judged(seen: Seen, disk: LocalDisk) -> Finding:
    little, none = float(seen.setting("space_warning") or LITTLE), float(seen.setting("space_critical") or NONE)
    who = f"{disk.place} ({disk.row.kind} on {disk.row.source})"
    # ext4 since 6.12 says so itself; xfs answers every write with an error
    if {"emergency_ro", "shutdown"} & set(disk.row.options):
        return seen.found(
            "fs-went-read-only", f"{who} was made read-only by the kernel", part=disk.place, evidence=[",".join(disk.row.options)]
        )
    shares = [share for share in (disk.free, disk.inodes_free) if share is not None]
    if not shares:
        return seen.unknown(f"{who} did not tell its space", part=disk.place, hint=f"stat -f {disk.place}")
    if disk.row.read_only:
        return seen.absent(f"{who} is mounted read-only", part=disk.place)
    least = min(shares)
    if least * 100 <= little:
        needed = disk.place in _NEEDED
        code = "disk-full" if least * 100 <= none and needed else "disk-nearly-full"
        what = "space" if disk.free == least else "inodes"
        return seen.found(code, f"{who}: {least:.1%} of its {what} left", part=disk.place)
    return seen.ok(f"{who}: {least:.0%} free", part=disk.place)
