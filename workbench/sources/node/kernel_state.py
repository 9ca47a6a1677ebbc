"""Turn what the running kernel says of itself (taint, uptime, boot) into one reading."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.sources.contract import Deadline
from workbench.sources.node.world import Unread, Way, World, reader

__all__ = ["TAINTS", "KernelState"]

# bits of /proc/sys/kernel/tainted (Documentation/admin-guide/tainted-kernels.rst)
TAINTS = (
    "a proprietary module",
    "a module loaded by force",
    "a system out of specification",
    "a module unloaded by force",
    "a machine check",
    "a bad page",
    "a program's request",
    "an oops or BUG",
    "an ACPI table overridden",
    "a warning of the kernel",
    "a staging driver",
    "a workaround for the firmware",
    "a module from outside the kernel",
    "an unsigned module",
    "a soft lockup",
    "a live patch",
    "the distribution's own",
    "a randomised structure layout",
    "an in-kernel test",
)


@dataclass(frozen=True, slots=True)
class KernelState:
    """
    The running kernel: its release, the id of this boot, seconds since then and its taint as a number (None for what was not told).
    """

    release: str
    boot_id: str
    uptime: float | None
    taint: int | None

    @property
    def taints(self) -> tuple[int, ...]:
        """Numbers of the bits that are set."""
        return tuple(bit for bit in range(64) if (self.taint or 0) >> bit & 1)


def _text(world: World, name: str) -> str:
    try:
        return world.text(name).strip()
    except Unread:
        return ""


def _state(world: World, deadline: Deadline) -> KernelState:
    taint = _text(world, "/proc/sys/kernel/tainted")
    uptime = _text(world, "/proc/uptime").split()
    try:
        seconds = float(uptime[0]) if uptime else None
    except ValueError:
        seconds = None
    release, boot_id = _text(world, "/proc/sys/kernel/osrelease"), _text(world, "/proc/sys/kernel/random/boot_id")
    if not taint.isdigit() and seconds is None:
        raise Unread("missing", "neither /proc/sys/kernel/tainted nor /proc/uptime tells anything", "mount the host's /proc")
    return KernelState(release, boot_id, seconds, int(taint) if taint.isdigit() else None)


reader("kernel-state", "what the running kernel says of itself", seconds=3.0, ways=(Way("/proc/sys/kernel", _state),))
