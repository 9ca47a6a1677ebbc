"""Turn the file systems that a site named into whether each is mounted, answers and has space."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen

__all__ = ["mounts"]

_NETWORK = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "fuse", "ceph", "wekafs", "9p", "virtiofs")
_LITTLE, _NONE = 0.05, 0.005  # shares of space or inodes that are little, and next to none; our own measure, override by settings


@check(
    "mounts",
    "the file systems that jobs need answer and have space",
    needs=("mounts",),
    cls="platform/storage",
    switch="health.mounts",
)
def mounts(seen: Seen) -> Iterator[Finding]:
    """Judge each place of ``health.mounts``."""
    for mount in seen.value("mounts"):
        if mount.ending == "time-out":
            yield seen.found("mount-hangs", f"{mount.path} {mount.said}", part=mount.path)
        elif mount.ending == "exit" or not mount.mounted:
            why = mount.said if mount.ending != "ok" else "nothing is mounted there"
            yield seen.found("mount-missing", f"{mount.path}: {why}", part=mount.path)
        elif mount.ending != "ok":
            yield seen.unknown(f"{mount.path}: stat {mount.said}", part=mount.path)
        elif "ro" in mount.options:
            yield seen.found("mount-read-only", f"{mount.path} ({mount.kind}) is mounted read-only", part=mount.path)
        elif (least := min(share for share in (mount.free, mount.inodes_free, 1.0) if share is not None)) <= _LITTLE:
            code = "mount-full" if least <= _NONE else "mount-nearly-full"
            what = "space" if mount.free == least else "inodes"
            yield seen.found(code, f"{mount.path}: {least:.1%} of its {what} left", part=mount.path)
        else:
            left = f", {mount.free:.0%} free" if mount.free is not None else ""
            yield seen.ok(f"{mount.path} ({mount.kind}) answers{left}", part=mount.path)
