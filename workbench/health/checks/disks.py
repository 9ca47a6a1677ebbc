"""Turn the node's disks, what they say of themselves and what the kernel complains of into which are failing."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.sources.node.disks import Array, Disk, Disks

__all__ = ["disks"]

_ERRORS = ("disk-io-error", "nvme-io-error", "nvme-down", "scsi-medium-error", "ata-error", "md-failed")
_WINDOW = 86400.0  # a day: older errors that did not come back were repaired or belong to a disk that is no more
_WORN = 100  # percent of the writes that the disk is made for (NVMe, Percentage Used); it may go on working
_WELL = ("live", "running")


@check(
    "disks",
    "the node's disks are alive and do not fail",
    needs=("disks",),
    wants=("kernel",),
    cls="hardware/host",
    required=False,
    required_when=("health.smart",),
)
def disks(seen: Seen) -> Iterator[Finding]:
    """Judge each disk and each array; that SMART was not asked is unknown only when ``health.smart`` wants it."""
    value: Disks = seen.value("disks")
    for disk in value.disks:
        yield _judged(seen, disk)
    for array in value.arrays:
        yield from _array(seen, array)
    yield from _logged(seen)


def _judged(seen: Seen, disk: Disk) -> Finding:
    who, smart = f"{disk.name} ({disk.model})" if disk.model else disk.name, disk.smart
    if disk.state and disk.state not in _WELL:
        return seen.found("disk-dead", f"{who} is {disk.state}, the kernel says", part=disk.name)
    if smart and (smart.warnings or (smart.passed is False and not smart.hot)):
        said = smart.warnings or ("its own verdict is that it fails",)
        return seen.found("disk-failing", f"{who}: {', '.join(said)}", part=disk.name, evidence=said)
    if smart and smart.pending:
        return seen.found("disk-pending-sectors", f"{who}: {smart.pending} sectors cannot be read", part=disk.name)
    if smart and smart.hot:
        return seen.found("disk-hot", f"{who} is outside its temperature limits", part=disk.name)
    if smart and smart.used is not None and smart.used >= _WORN:
        return seen.found("disk-worn", f"{who} has had {smart.used} % of the writes that it is made for", part=disk.name)
    if smart and smart.passed:
        history = [
            f"{number} {what}"
            for number, what in ((smart.media_errors, "media errors"), (smart.reallocated, "replaced sectors"))
            if number
        ]
        used = f", {smart.used} % worn" if smart.used is not None else ""
        return seen.ok(f"{who} says that it is well{used}", part=disk.name, evidence=[f"{text} in its life" for text in history])
    if disk.virtual:
        return seen.absent(f"{who} is a disk of a hypervisor", part=disk.name)
    if seen.setting("smart"):
        why = disk.why or "; ".join(seen.readings["disks"].tried) or "SMART was not read"
        return seen.unknown(f"{who}: {why}", part=disk.name, hint="install smartmontools, and run as root")
    if not disk.state and disk.name.startswith(("nvme", "sd")):  # the kernel has a state of each of these
        return seen.unknown(f"{who}: neither the kernel nor the disk tells how it is", part=disk.name)
    if not disk.state:
        return seen.absent(f"{who}: neither the kernel nor the disk tells how it is", part=disk.name)
    return seen.ok(f"{who} is {disk.state}, the kernel says; SMART was not read", part=disk.name)


def _array(seen: Seen, array: Array) -> Iterator[Finding]:
    if array.degraded or array.state in ("inactive", "broken"):
        missing = f"{array.degraded} of its disks are missing" if array.degraded else f"it is {array.state}"
        yield seen.found("raid-degraded", f"{array.name}: {missing}", part=array.name)


def _logged(seen: Seen) -> Iterator[Finding]:
    log = seen.value("kernel")
    since = max((log.boot or 0.0) if log else 0.0, seen.now - _WINDOW)
    by_disk: dict[str, list[str]] = {}
    for event in log.events if log else ():
        if event.signature in _ERRORS and (event.time is None or event.time >= since):  # of an unknown time may be of today
            name = str(event.data.get("disk") or event.data.get("disk2") or event.data.get("port") or "a disk")
            if not name.startswith(("loop", "sr", "fd", "nbd", "rbd")):
                by_disk.setdefault(name, []).append(event.text)
    for name, lines in by_disk.items():
        summary = f"the kernel logged {len(lines)} errors of {name} within a day"
        yield seen.found("disk-errors", summary, part=name, evidence=lines[-3:])
