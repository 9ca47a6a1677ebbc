"""
Turn the mark in a job's environment into all processes of that job, wherever they were re-parented, and end them in order.

Run as a program (`python lineage.py MARK GRACE`) it is the guard of `workbench run`: it waits until its standard input closes, which the
kernel does when the supervisor dies in whatever way, and then ends the job. Nothing but small modules of the standard library is imported.
"""

from __future__ import annotations

import os
import signal
import sys
import time

__all__ = ["Ended", "descendants", "end_all", "marked", "of_job", "reaper", "stuck"]

_POLL = 0.02  # seconds between two looks while processes end
_SETTLE = 2.0  # seconds that a process may take to vanish after SIGKILL; what is longer there hangs in the kernel
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of linux/prctl.h


class Ended:
    """What became of processes that were ended: how many went when asked, how many were killed, which are still there (state D)."""

    __slots__ = ("asked", "killed", "stuck")

    def __init__(self, asked: int, killed: int, stuck: tuple[int, ...]) -> None:
        self.asked, self.killed, self.stuck = asked, killed, stuck


def reaper(on: bool = True) -> bool:
    """Let processes that lose their parent become children of this one (Linux), so that none is lost; False where there is no such thing."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        import ctypes  # here: 3 ms that a job's start need not wait for

        return int(ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, int(on), 0, 0, 0)) == 0
    except (ImportError, OSError, AttributeError):
        return False


def _stat(pid: int) -> tuple[int, str] | None:
    """Return parent and state of a process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            fields = stream.read().rpartition(b")")[2].split()
        return int(fields[1]), fields[0].decode()
    except (OSError, IndexError, ValueError):  # it ended meanwhile
        return None


def _numbers() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def descendants(root: int) -> set[int]:
    """Return all processes that descend from one, zombies left out."""
    parents: dict[int, int] = {}
    dead: set[int] = set()
    for pid in _numbers():
        if (found := _stat(pid)) is not None:
            parents[pid] = found[0]
            if found[1] in "ZX":
                dead.add(pid)
    mine, last = {root}, 0
    while last != len(mine):
        last = len(mine)
        mine |= {pid for pid, parent in parents.items() if parent in mine}
    return mine - {root} - dead


def marked(mark: str) -> set[int]:
    """
    Return all processes that were started with an entry in their environment, this one left out.

    Ranks of torchrun are in sessions of their own and may outlive it: neither group nor parent leads to them, their environment does.

    Parameters
    ----------
    mark : str
        ``NAME=VALUE``.
    """
    wanted, own = b"\0" + os.fsencode(mark) + b"\0", os.getpid()
    found = set()
    for pid in _numbers():
        try:
            with open(f"/proc/{pid}/environ", "rb") as stream:
                if pid != own and wanted in b"\0" + stream.read():
                    found.add(pid)
        except OSError:  # another user's, or it ended; a zombie's is empty
            continue
    return found


def of_job(mark: str, leader: int = 0) -> set[int]:
    """Return the processes of a job that are not dead: those with its mark, and those that descend from its leader."""
    found = marked(mark)
    if leader:
        found |= descendants(leader)
        if (state := _stat(leader)) is not None and state[1] not in "ZX":
            found.add(leader)
    return {pid for pid in found if (seen := _stat(pid)) is not None and seen[1] not in "ZX"}


def stuck(pid: int) -> bool:
    """Tell whether a process waits in the kernel and cannot be ended (state D)."""
    return (found := _stat(pid)) is not None and found[1] == "D"


def _send(pids: set[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:  # it is gone, or not ours
            pass


def _group(leader: int, number: int) -> None:
    if leader:
        try:
            os.killpg(leader, number)
        except OSError:
            pass


def end_all(mark: str, leader: int = 0, grace: float = 10.0, *, asked: bool = False, reap: bool = False) -> Ended:
    """
    End a job in order: SIGTERM to its group and all its processes, SIGKILL after the grace, and never wait for what hangs in the kernel.

    Parameters
    ----------
    mark : str
        Entry of the environment that all its processes have.
    leader : int, optional
        Process group of the command.
    grace : float, optional
        Seconds between the two signals.
    asked : bool, optional
        They were told to end already: only the grace and what follows.
    reap : bool, optional
        Wait for those that are children of this process.
    """

    def alive() -> set[int]:
        if reap:
            _reap()
        return of_job(mark, leader)

    begun = alive()
    if not begun:
        return Ended(0, 0, ())
    if not asked:
        _group(leader, signal.SIGTERM)
        _send(begun, signal.SIGTERM)
        _group(leader, signal.SIGCONT)  # what is stopped would not hear the other
        _send(begun, signal.SIGCONT)
    until = time.monotonic() + grace
    left = alive()
    while left and time.monotonic() < until and not all(stuck(pid) for pid in left):
        time.sleep(_POLL)
        left = alive()
    killed, until = set(left), time.monotonic() + _SETTLE
    while left and time.monotonic() < until:
        _group(leader, signal.SIGKILL)
        _send(left, signal.SIGKILL)  # again each time: they may have had children meanwhile
        killed |= left
        time.sleep(_POLL)
        left = alive()
    return Ended(len(begun - killed), len(killed - left), tuple(sorted(left)))


def _reap() -> None:
    """Take the exit status of adopted processes, so that they do not stay as zombies."""
    try:
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
    except ChildProcessError:
        pass


def _guard(mark: str, grace: float) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    while True:
        try:
            said = os.read(0, 1)
        except InterruptedError:
            continue
        break
    if not said:  # closed without a word: the supervisor was killed
        end_all(mark, 0, grace)


if __name__ == "__main__":
    _guard(sys.argv[1], float(sys.argv[2]))
