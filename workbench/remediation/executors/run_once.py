"""
Turn a folder with a command in it into its end, once: who runs a command that must outlive the controller, and never a second time.

``command.json`` says what to run; ``started`` is made before it runs and never again; ``out`` and ``err`` are what it printed; ``end.json``
says how it ended. While somebody runs it, he holds the lock of ``lock``: so whoever comes later sees whether it goes on, has ended, has never
begun, or was cut off, in which case nobody knows.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from workbench.sources.command import environment

__all__ = ["run_once", "spawn", "write_whole"]

_MOST = 16 << 20  # bytes that a command may print to one file


def write_whole(path: Path, value: Any) -> None:
    """Write JSON so that a reader sees all of it or nothing, also after a power loss."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("w", encoding="utf-8") as stream:
        json.dump(value, stream, ensure_ascii=False, sort_keys=True)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(beside, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def spawn(folder: Path) -> None:
    """Start `run_once` of a folder as a process of its own, which goes on when we end."""
    subprocess.Popen(
        [sys.executable, "-m", __name__, str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(one for one in sys.path if one)},
    )


def run_once(folder: Path) -> int:
    """
    Run a folder's command unless it was begun before; return 0 when it ended here, however it ended.

    Parameters
    ----------
    folder : Path
        Holds ``command.json``: ``argv`` (list of str), ``seconds`` (float).
    """
    with (folder / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return 1  # somebody runs it
        if (folder / "started").exists():
            return 1  # it was begun before, and how that ended is not ours to repair
        command = json.loads((folder / "command.json").read_text(encoding="utf-8"))
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
                    preexec_fn=_limit,
                )
                code, late = _waited(process, float(command["seconds"]))
            end: dict[str, Any] = {"code": code, "late": late}
        except OSError as error:
            end = {"code": None, "late": False, "error": f"{command['argv'][0]}: {error.strerror or error}"}
        write_whole(folder / "end.json", {**end, "time": time.time(), "seconds": round(time.monotonic() - began, 3)})
    return 0


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST, _MOST))


def _waited(process: subprocess.Popen[bytes], seconds: float) -> tuple[int | None, bool]:
    """Return the exit code and whether it was too late; a group that does not die is left behind, and its code is None."""
    try:
        return process.wait(seconds), False
    except subprocess.TimeoutExpired:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(5), True
        return None, True


if __name__ == "__main__":
    sys.exit(run_once(Path(sys.argv[1])))
