"""
Turn a folder with a command in it into its end, once: who runs a command that must outlive the controller, and never a second time.

``command.json`` says what to run; ``started`` is made before it runs and never again; ``out`` and ``err`` are what it printed; ``end.json``
says how it ended. While somebody runs it, he holds the lock of ``lock``: so whoever comes later sees whether it goes on, has ended, has never
begun, or was cut off, in which case nobody knows. Who was asked and is late does not begin any more, so that "never begun" stays true.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workbench.durable import write_whole
from workbench.sources.command import environment

__all__ = ["FORMING", "asked_now", "held", "locked", "run_once", "since_asked", "spawn", "write_whole"]

FORMING = 20.0  # seconds after which a command that was asked for is not begun any more; ours: an interpreter starts in one
_MOST = 16 << 20  # bytes that a command may print to both files together; more is a command gone mad, and fills the disk
_LOOK = 0.2  # seconds between two looks at how much that is
_boot = Path("/proc/sys/kernel/random/boot_id")
_started: list[subprocess.Popen[bytes]] = []
_starting = threading.Lock()  # two threads that start one each keep both


def asked_now() -> dict[str, Any]:
    """Return this moment as a clock has it that nobody sets: seconds since this machine came up, and which boot that is."""
    boot = _boot.read_text().strip() if _boot.exists() else ""
    return {"host": socket.gethostname(), "boot": boot, "up": time.clock_gettime(time.CLOCK_BOOTTIME), "time": time.time()}


def since_asked(asked: dict[str, Any]) -> float:
    """Return seconds since `asked_now`; infinite when this machine has booted since, and by the wall clocks when it was another machine."""
    now = asked_now()
    if asked["host"] != now["host"]:
        return float(now["time"]) - float(asked["time"])
    return float(now["up"]) - float(asked["up"]) if asked["boot"] == now["boot"] else float("inf")


def spawn(folder: Path) -> None:
    """Start `run_once` of a folder as a process of its own, which goes on when we end."""
    with _starting:
        _started[:] = [one for one in _started if one.poll() is None]
        _started.append(
            subprocess.Popen(
                [sys.executable, "-m", __name__, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
                env={**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(one) for one in sys.path)},
            )
        )


def held(folder: Path) -> bool:
    """Whether somebody runs the folder's command."""
    try:
        with (folder / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextlib.contextmanager
def locked(folder: Path, seconds: float = 2.0) -> Iterator[bool]:
    """Hold a folder's lock; yields False when somebody else does. Who only looks (`held`) holds it for a moment, so it is tried for a while."""
    until = time.monotonic() + seconds
    with (folder / "lock").open("ab") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    yield False
                    return
                time.sleep(0.01)
                continue
            yield True
            return


def run_once(folder: Path) -> int:
    """
    Run a folder's command unless it was begun before; return 0 when it ended here, however it ended.

    Parameters
    ----------
    folder : Path
        Holds ``command.json``: ``argv`` (list of str), ``seconds`` (float), ``asked`` (`asked_now`).
    """
    with locked(folder) as mine:
        # who holds it runs it; what was begun before is not ours to repair
        if not mine or (folder / "started").exists():
            return 1
        command = json.loads((folder / "command.json").read_text(encoding="utf-8"))
        if since_asked(command["asked"]) > FORMING:
            return 1
        (folder / "end.json").unlink(missing_ok=True)  # of a try in which nothing could be done
        write_whole(folder / "started", {"time": time.time(), "pid": os.getpid()})
        began = time.monotonic()
        try:
            with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
                process = subprocess.Popen(
                    command["argv"],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                    env=environment(),  # ours is a controller's, with paths and secrets that are none of the command's business
                )
                code, cut = _waited(process, float(command["seconds"]), (out.fileno(), err.fileno()))
            end: dict[str, Any] = {"code": code, "cut": cut}
        except (OSError, ValueError) as error:
            what = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            end = {"code": None, "cut": "", "error": f"{command['argv'][0]}: {what}"}
        write_whole(folder / "end.json", {**end, "time": time.time(), "seconds": round(time.monotonic() - began, 3)})
    return 0


def _waited(process: subprocess.Popen[bytes], seconds: float, files: tuple[int, ...]) -> tuple[int | None, str]:
    """Return the exit code and why we ended it, if we did; a group that does not die is left behind, and its code is None."""
    until, cut = time.monotonic() + seconds, ""
    while True:
        left = until - time.monotonic()
        try:
            return process.wait(max(0.0, min(left, _LOOK))), ""
        except subprocess.TimeoutExpired:
            if left <= 0:
                cut = f"it did not end within {seconds:g} s"
            elif sum(os.fstat(one).st_size for one in files) > _MOST:
                cut = f"it printed more than {_MOST >> 20} MiB"
        if cut:
            break
    code = None
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(5)
            # what it started may have ignored the first signal
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            break
    return code, cut


if __name__ == "__main__":
    sys.exit(run_once(Path(sys.argv[1])))
