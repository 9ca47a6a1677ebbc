"""Turn the scripts of tests/services into servers that run for one test session; each stops when whoever started it is done."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import IO

__all__ = ["SERVICES", "free_port", "run", "stop", "told"]

SERVICES = Path(__file__).resolve().parent.parent / "services"


_FIRST, _LAST, _BLOCK = 21000, 31000, 400  # below what the kernel hands out by itself (32768 on)
_blocks: list[IO[str]] = []  # locks that last as long as this process


def free_port(*offsets: int) -> int:
    """
    Return a port of 127.0.0.1 that nobody has; with offsets the first of a block of 400 in which those are free too.

    A block is this process's until it ends: what several test sessions start at the same moment on one machine does not meet.
    """
    if not offsets:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])
    for port in range(_FIRST, _LAST, _BLOCK):
        lock = (Path(tempfile.gettempdir()) / f".workbench-ports-{port}").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for offset in (0, *offsets):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port + offset))
        except OSError:
            lock.close()
            continue
        _blocks.append(lock)
        return port
    raise RuntimeError("no free ports")


def run(*words: object, **more: str) -> str:
    """Run one of the scripts and return what it prints; `more` is added to the environment."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=900, env=os.environ | more)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def stop(*words: object) -> None:
    """Run a script that ends servers; that they are not there any more is no trouble."""
    subprocess.run([str(word) for word in words], capture_output=True, timeout=120, check=False)


def told(text: str) -> dict[str, str]:
    """Return the ``name=value`` lines that a start script prints."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
