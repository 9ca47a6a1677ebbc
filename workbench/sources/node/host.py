"""Turn the host under the GPUs into readings: mounted file systems and whether they answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.sources.command import Ran, run
from workbench.sources.contract import Deadline
from workbench.sources.node.world import Unread, Way, World, reader

__all__ = ["Mount"]

_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Mount:
    """
    One place of the file system that the site named.

    `kind` and `options` are those of ``/proc/self/mountinfo`` of the deepest mount above it (empty when the place itself must be a mount
    and is none); `ending` how asking it went (`workbench.sources.command.ENDINGS`), `free` and `inodes_free` shares from 0 to 1 of what
    an ordinary user may still take, None when it does not count them.
    """

    path: str
    mounted: bool
    kind: str
    options: tuple[str, ...]
    ending: str
    said: str
    free: float | None = None
    inodes_free: float | None = None


def _unescaped(text: str) -> str:
    """A blank in the name of a mount is written as ``\\040``."""
    return re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), text)


def _mounts(world: World, deadline: Deadline) -> tuple[Mount, ...]:
    wanted: Sequence[str] = tuple(world.settings.get("mounts") or ())
    table: dict[str, tuple[str, tuple[str, ...]]] = {}
    # 36 35 98:0 / /mnt/data rw,noatime master:1 - ext4 /dev/sda1 rw,errors=continue
    for line in world.text("/proc/self/mountinfo").splitlines():
        left, dash, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if dash and len(fields) >= 6 and kind:
            table[_unescaped(fields[4])] = (kind[0], (*fields[5].split(","), *(kind[2].split(",") if len(kind) > 2 else ())))
    if not table:
        raise Unread("garbage", "/proc/self/mountinfo lists no mount")
    return tuple(_asked(world, path, table, deadline) for path in wanted)


def _asked(world: World, path: str, table: dict[str, tuple[str, tuple[str, ...]]], deadline: Deadline) -> Mount:
    place = str(Path(path))
    kind, options = table.get(place, ("", ()))
    # a file server that does not answer holds whoever asks in the kernel: so a process of its own asks, and can be left behind
    ran: Ran = run(
        ("stat", "-f", "-c", "%b %a %c %d", str(world.path(place))),
        seconds=min(deadline.left(), 5.0),
        limit=1 << 16,
        env=world.env,
    )
    found = re.fullmatch(r"(\d+) (\d+) (\d+) (\d+)\s*", ran.text) if ran.ok else None
    if not found:
        return Mount(place, place in table, kind, options, "garbage" if ran.ok else ran.ending, ran.sentence)
    blocks, left, inodes, inodes_left = (int(number) for number in found.groups())
    return Mount(
        place,
        place in table,
        kind,
        options,
        "ok",
        "",
        left / blocks if blocks else None,
        inodes_left / inodes if inodes else None,
    )


reader("mounts", "file systems that jobs need", seconds=_SECONDS, ways=(Way("stat -f", _mounts),))
