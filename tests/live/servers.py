"""Turn the scripts of tests/services into servers that run for one test session; each stops when whoever started it is done."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

__all__ = ["SERVICES", "free_port", "run", "stop", "told"]

SERVICES = Path(__file__).resolve().parent.parent / "services"


def free_port(*offsets: int) -> int:
    """Return a port of 127.0.0.1 that nobody has; with offsets one after which those are free too, as far as can be told."""
    if not offsets:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])
    for port in range(21000, 29000, 400):
        try:
            for offset in (0, *offsets):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port + offset))
            return port
        except OSError:
            continue
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
