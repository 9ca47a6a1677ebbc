"""Turn the node's clock into one reading: by chrony, else ntpd, else systemd, else what the kernel itself knows."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

from workbench.parse.time_sync import ClockState, from_chronyc, from_ntpq, from_timedatectl
from workbench.sources.contract import Deadline
from workbench.sources.node.world import Unread, Way, World, reader, tool

__all__ = ["same_kernel"]

_STA_UNSYNC = 0x40  # linux/timex.h: the clock is not synchronised
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_BY_HOW_MUCH = ("by how much it is off",)


def same_kernel(world: World) -> bool:
    """Whether a call of this process asks the kernel that the world's files are from: not so for a tree that stands for another node."""
    try:
        return world.text(_BOOT_ID) == World().text(_BOOT_ID)
    except Unread:
        return False


def _asked(argv: Sequence[str], parse: Callable[[str], ClockState | None]) -> Callable[[World, Deadline], ClockState]:
    def read(world: World, deadline: Deadline) -> ClockState:
        ran = tool(world, argv, deadline, limit=1 << 16, seconds=4.0)
        state = parse(ran.text)
        if state is None:
            raise Unread("garbage", f"{ran.asked} printed no whole answer", "run it by hand")
        return state

    return read


class _Timex(ctypes.Structure):
    """struct timex of adjtimex(2), with room for what a newer kernel may add."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 32),
    ]


def _adjtimex(world: World, deadline: Deadline) -> ClockState:
    if not same_kernel(world):
        raise Unread("missing", "these are files of another machine: its kernel cannot be asked")
    timex = _Timex(modes=0)  # reads, and sets nothing
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.adjtimex(ctypes.byref(timex)) < 0:
        raise Unread("exit", f"adjtimex: error {ctypes.get_errno()}")
    held = not timex.status & _STA_UNSYNC
    return ClockState(held, error=timex.maxerror / 1e6 if held else None)


reader(
    "clock",
    "whether the clock is held, and by how much it is off",
    seconds=10.0,
    ways=(
        Way("chronyc", _asked(("chronyc", "-n", "tracking"), from_chronyc)),
        Way("ntpq", _asked(("ntpq", "-n", "-c", "rv"), from_ntpq)),
        Way("timedatectl", _asked(("timedatectl", "show"), from_timedatectl), _BY_HOW_MUCH),
        Way("adjtimex", _adjtimex, _BY_HOW_MUCH),
    ),
)
