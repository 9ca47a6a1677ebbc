"""Turn file systems into readings: those of file servers and whether they answer, and the local ones with their space."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from workbench.parse.proc_files import MountRow, mountinfo
from workbench.sources.command import Ran, run
from workbench.sources.contract import Deadline
from workbench.sources.node.world import Unread, Way, World, reader, tool

__all__ = ["LocalDisk", "Mount"]

_SECONDS = 15.0
_ANSWER = 5.0  # seconds that a file server has to answer; health.mount_seconds
# kinds that lie on a disk of this node; the rest is memory, network, or made up
_LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "jfs", "reiserfs")
# kinds behind which a server is asked over the network, or a process of this node (FUSE) that may be gone
_REMOTE = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "wekafs", "panfs", "orangefs", "pvfs2", "afs")
# FUSE that serves a desktop, container layers or /proc, and no files of a server
_INSIDE = ("fuse.portal", "fuse.gvfsd-fuse", "fuse.lxcfs", "fuse.fuse-overlayfs", "fuse.snapfuse")
_UNNAMED = 16  # of those that nobody named: what hangs takes a process each
# what belongs to pods and images, or to nobody who writes
_NOT_OURS = ("/var/lib/kubelet/pods", "/var/lib/kubelet/plugins", "/run", "/boot", "/snap", "/proc", "/sys", "/dev")


@dataclass(frozen=True, slots=True)
class Mount:
    """
    One file system that the site named, or one of a file server that is mounted here.

    `kind` and `options` are those of its mount (empty when the place is none); `ending` how asking it went
    (`workbench.sources.command.ENDINGS`), `seconds` how long that took, `free` and `inodes_free` shares from 0 to 1 of what an ordinary user
    may still take, None when it does not count them; `named` whether the site named it.
    """

    path: str
    mounted: bool
    kind: str
    options: tuple[str, ...]
    ending: str
    said: str
    free: float | None = None
    inodes_free: float | None = None
    seconds: float = 0.0
    named: bool = True


@dataclass(frozen=True, slots=True)
class LocalDisk:
    """A file system on a disk of this node: where, its row of the mount table, shares that are free (None when it did not answer)."""

    place: str
    row: MountRow
    free: float | None
    inodes_free: float | None


def mount_table(world: World) -> tuple[MountRow, ...]:
    """
    Return what is mounted; of a host whose root is mounted here, what its first process sees.

    Raises
    ------
    Unread
    """
    places = ("/proc/self/mountinfo",) if world.root == Path("/") else ("/proc/1/mountinfo", "/proc/self/mountinfo")
    for at, place in enumerate(places):
        try:
            rows = mountinfo(world.text(place))
        except Unread:
            if at == len(places) - 1:
                raise
        else:
            if rows:
                return rows
    raise Unread("garbage", f"{places[-1]} lists no mount")


def _mounts(world: World, deadline: Deadline) -> tuple[Mount, ...]:
    named: Sequence[str] = tuple(str(Path(place)) for place in world.settings.get("mounts") or ())
    rows = mount_table(world)  # whoever cannot read it knows of no mount
    seconds = float(world.settings.get("mount_seconds") or _ANSWER)
    wanted = [*named, *_unnamed(rows, named)]
    if not wanted:
        return ()
    # all at once: two that hang together would else use up the time of those that answer
    with ThreadPoolExecutor(min(len(wanted), 16)) as pool:
        ran = list(pool.map(lambda place: _statfs(world, place, min(seconds, deadline.left())), wanted))
    table = {row.place: row for row in mount_table(world)}  # after asking: that is what makes an automounter mount
    found = (_mount(place, one, table.get(place)) for place, one in zip(wanted, ran, strict=True))
    return tuple(replace(mount, named=mount.path in named) for mount in found)


def _unnamed(rows: Sequence[MountRow], named: Sequence[str]) -> list[str]:
    """The places of file servers that nobody named: one of each file system, and no automounter, which would mount when it is asked."""
    known = {row.device for row in rows if row.place in named}
    found: dict[str, str] = {}
    fuse = [row for row in rows if row.kind.startswith("fuse.") and row.kind not in _INSIDE]
    for row in (*(row for row in rows if row.kind in _REMOTE), *fuse):
        if row.device not in known:
            found[row.device] = min(found.get(row.device, row.place), row.place, key=len)
    return list(found.values())[:_UNNAMED]


def _statfs(world: World, place: str, seconds: float) -> Ran:
    """A file server that does not answer holds whoever asks in the kernel: so a process of its own asks, and can be left behind."""
    argv = ("stat", "-f", "-c", "%b %a %c %d", str(world.path(place)))
    return run(argv, seconds=seconds, limit=1 << 16, env=world.env)


def _shares(text: str) -> tuple[float | None, float | None] | None:
    found = re.fullmatch(r"(\d+) (\d+) (\d+) (\d+)\s*", text)
    if not found:
        return None
    blocks, left, inodes, inodes_left = (int(number) for number in found.groups())
    return left / blocks if blocks else None, inodes_left / inodes if inodes else None


def _mount(place: str, ran: Ran, row: MountRow | None) -> Mount:
    kind, options = (row.kind, row.options) if row else ("", ())
    shares = _shares(ran.text) if ran.ok else None
    if shares is None:
        return Mount(
            place, row is not None, kind, options, "garbage" if ran.ok else ran.ending, ran.sentence, seconds=ran.seconds
        )
    return Mount(place, row is not None, kind, options, "ok", "", *shares, seconds=ran.seconds)


def _local(world: World, deadline: Deadline) -> tuple[LocalDisk, ...]:
    rows: dict[str, MountRow] = {}
    for row in mount_table(world):
        ours = row.kind in _LOCAL or row.place == "/"
        if not ours or row.source.startswith("/dev/loop") or any(f"{row.place}/".startswith(f"{place}/") for place in _NOT_OURS):
            continue
        # one file system may be seen at several places: the shortest name is the one that people know
        if row.device not in rows or len(row.place) <= len(rows[row.device].place):
            rows[row.device] = row
    if not rows:
        raise Unread("garbage", "the mount table shows no file system on a disk, not even /")
    places = {str(world.path(row.place)): row for row in rows.values()}
    ran = tool(world, ("stat", "-f", "-c", "%b %a %c %d %n", *places), deadline, codes=(0, 1), seconds=_ANSWER)
    told = {}
    for line in ran.text.splitlines():
        if found := re.match(r"(\d+ \d+ \d+ \d+) (.+)$", line):
            told[found[2]] = _shares(found[1])
    out = [LocalDisk(row.place, row, *(told.get(path) or (None, None))) for path, row in places.items()]
    return tuple(sorted(out, key=lambda one: one.place))


reader(
    "mounts",
    "file systems that the site names, and those of file servers that are mounted",
    seconds=_SECONDS,
    ways=(Way("stat -f", _mounts, ("whether files can be read: only that the file system answers",)),),
)
reader("local-disks", "space on the node's own disks", seconds=8.0, ways=(Way("stat -f", _local),))
