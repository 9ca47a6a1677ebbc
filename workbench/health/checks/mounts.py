"""Turn the file systems of servers into whether each answers in time, and those that a site named into whether it is there and has space."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.sources.node.host import Mount

__all__ = ["LITTLE", "NONE", "mounts"]

LITTLE, NONE = (
    5.0,
    0.5,
)  # percent of space or inodes that are little, and next to none: health.space_warning and _critical. node-exporter's mixin warns at 5, too
# (fsSpaceAvailableWarningThreshold), and is critical at 3; gcm at 20 and 15. Ours is critical where writing fails: our own measure.
# A file server that is asked for its free space answers in milliseconds; whoever needs a second is in trouble or far away. Our own measure:
# others only have a time limit (gcm: 300 s).
_SLOW = 1.0
# what statfs(2) says of a mount whose server forgot it, or is gone
_STALE = re.compile(r"Stale file handle|stale NFS", re.I)
_NOTHING = re.compile(r"No such file or directory|Not a directory")
_DENIED = re.compile(r"Permission denied|Operation not permitted")
_BROKEN = re.compile(
    r"Input/output error|Transport endpoint is not connected|Host is down|Software caused connection abort|Cannot send after transport|"
    r"Communication error|Connection timed out|Remote I/O error|No such device",
    re.I,
)


@check(
    "mounts",
    "the file systems that jobs need answer and have space",
    needs=("mounts",),
    cls="platform/storage",
    required=False,
    required_when=("health.mounts",),
)
def mounts(seen: Seen) -> Iterator[Finding]:
    """Judge each place of ``health.mounts``, and of file servers that nobody named whether they answer: that makes no node unfit."""
    little, none = float(seen.setting("space_warning") or LITTLE), float(seen.setting("space_critical") or NONE)
    found: Sequence[Mount] = seen.value("mounts")
    for mount in found:
        if mount.named:
            yield _judged(seen, mount, little, none)
        else:
            finding = _answers(seen, mount)
            yield replace(finding, required=finding.required and not seen.setting("mounts"))
    if not found:
        yield seen.absent("no file system of a server is mounted, and health.mounts names none")


def _answers(seen: Seen, mount: Mount) -> Finding:
    """Of one that nobody named only whether it answers: how full it may be, and whether it is written, is its owner's affair."""
    if mount.ending == "exit" and mount.kind.startswith("fuse.") and _DENIED.search(mount.said):
        return seen.absent(
            f"{mount.path} ({mount.kind}) is a user's own", part=mount.path
        )  # FUSE shows it to nobody else, not to root
    return _judged(seen, replace(mount, free=None, inodes_free=None, options=()), LITTLE, NONE)


def _judged(seen: Seen, mount: Mount, little: float, none: float) -> Finding:
    who = f"{mount.path} ({mount.kind})" if mount.kind else mount.path
    if mount.ending == "time-out":
        hint = "the server or the network to it; the kernel log says since when"
        return seen.found("mount-hangs", f"{who} {mount.said}", part=mount.path, hint=hint)
    if mount.ending == "exit":
        if _STALE.search(mount.said):
            return seen.found("mount-stale", f"{who}: stat {mount.said}", part=mount.path)
        if _BROKEN.search(mount.said):
            return seen.found("mount-broken", f"{who}: stat {mount.said}", part=mount.path)
        if _NOTHING.search(mount.said):
            return seen.found("mount-missing", f"{who}: stat {mount.said}", part=mount.path)
        return seen.unknown(f"{who}: stat {mount.said}", part=mount.path, hint="run as root, or as a user who may go there")
    if mount.ending != "ok":
        return seen.unknown(f"{who}: stat {mount.said}", part=mount.path)
    if not mount.mounted:
        return seen.found("mount-missing", f"nothing is mounted at {mount.path}", part=mount.path)
    if mount.kind == "autofs":
        return seen.found("mount-missing", f"{mount.path}: the automounter is there, and mounted nothing", part=mount.path)
    if "ro" in mount.options:
        return seen.found("mount-read-only", f"{who} is mounted read-only", part=mount.path, evidence=[",".join(mount.options)])
    least = min((share for share in (mount.free, mount.inodes_free) if share is not None), default=1.0)
    if least * 100 <= little:
        code = "mount-full" if least * 100 <= none else "mount-nearly-full"
        what = "space" if mount.free == least else "inodes"
        return seen.found(code, f"{who}: {least:.1%} of its {what} left", part=mount.path)
    if mount.seconds >= _SLOW:
        return seen.found("mount-slow", f"{who} needed {mount.seconds:.1f} s to answer", part=mount.path)
    left = f", {mount.free:.0%} free" if mount.free is not None else ""
    return seen.ok(f"{who} answers{left}", part=mount.path)
