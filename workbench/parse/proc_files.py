"""Turn files of /proc (meminfo, mountinfo, limits, stat of a process) into plain values."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["UNLIMITED", "MountRow", "ProcessRow", "limits", "meminfo", "mountinfo", "process"]

UNLIMITED = float("inf")


def meminfo(text: str) -> dict[str, int]:
    """Return the lines of ``/proc/meminfo`` by name: bytes for those in kB, plain numbers for counts such as ``HugePages_Total``."""
    found = re.findall(r"^(\w[\w()]*):\s+(\d+)( kB)?\s*$", text, re.M)
    return {name: int(number) * (1024 if unit else 1) for name, number, unit in found}


@dataclass(frozen=True, slots=True)
class MountRow:
    """One mount: device as ``major:minor``, root within its file system, where, kind, source, options of the mount and its file system."""

    device: str
    root: str
    place: str
    kind: str
    source: str
    options: tuple[str, ...]

    @property
    def read_only(self) -> bool:
        """Whether nothing can be written there."""
        return "ro" in self.options


def _unescaped(text: str) -> str:
    """A blank in the name of a mount is written as ``\\040``."""
    return re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), text)


def mountinfo(text: str) -> tuple[MountRow, ...]:
    """Return the mounts of ``/proc/<pid>/mountinfo`` in their order: of several at one place the last is what is seen."""
    rows = []
    # 36 35 98:0 / /mnt/data rw,noatime master:1 - ext4 /dev/sda1 rw,errors=continue
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if not dash or len(fields) < 6 or len(kind) < 2:
            continue
        options = (*fields[5].split(","), *(kind[2].split(",") if len(kind) > 2 else ()))
        rows.append(MountRow(fields[2], _unescaped(fields[3]), _unescaped(fields[4]), kind[0], _unescaped(kind[1]), options))
    return tuple(rows)


def limits(text: str) -> dict[str, tuple[float, float]]:
    """Return soft and hard limit by name of ``/proc/<pid>/limits``: ``Max locked memory`` → bytes, `UNLIMITED` for none."""
    out = {}
    for name, soft, hard in re.findall(r"^(Max [a-z /]+?)\s{2,}(\d+|unlimited)\s+(\d+|unlimited)\b", text, re.M):
        out[name] = (_limit(soft), _limit(hard))
    return out


def _limit(text: str) -> float:
    return UNLIMITED if text == "unlimited" else float(text)


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One process: id, name, state (one letter of proc(5)), parent's id, and whether it is a thread of the kernel."""

    pid: int
    name: str
    state: str
    parent: int
    kernel: bool


def process(text: str) -> ProcessRow | None:
    """Return what ``/proc/<pid>/stat`` says; None for half a line. A name may itself hold blanks and brackets."""
    found = re.match(r"(\d+) \((.*)\) (\S) (\d+) (?:-?\d+ ){4}(\d+) ", text, re.S)
    if not found:
        return None
    # flag PF_KTHREAD of the ninth field (linux/sched.h)
    return ProcessRow(int(found[1]), found[2], found[3], int(found[4]), bool(int(found[5]) & 0x00200000))
