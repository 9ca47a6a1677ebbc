"""The scripts that start real servers: what does not come up says so at once and leaves nothing that runs; two sessions do not meet."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.servers import SERVICES, free_port, stop

pytestmark = pytest.mark.live


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: the name of a socket may have 107 letters."""
    made = Path(tempfile.mkdtemp(prefix="wb-start-"))
    yield made
    stop(SERVICES / "slurm/stop", "--dir", made, "--purge")
    shutil.rmtree(made, ignore_errors=True)


def of(folder: Path) -> list[str]:
    """Return the command lines of what runs in a folder."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                where = os.readlink(process / "cwd")
            except OSError:
                continue
            if str(folder) in line or where.startswith(str(folder)):
                found.append(line)
    return found


def test_a_slurm_that_does_not_come_up_leaves_nothing_that_runs(folder: Path) -> None:
    """The port of slurmctld is taken: munged, which came up before it, ends as well, and who waits is told which of them ended."""
    port = free_port(1, 2, 101)
    with socket.socket() as taken, (folder / "start.out").open("w+") as out:
        taken.bind(("0.0.0.0", port))
        taken.listen()
        words = [SERVICES / "slurm/start", "--no-accounting", "--nodes", "1", "--dir", folder, "--port", str(port)]
        done = subprocess.run(words, stdout=out, stderr=subprocess.STDOUT, cwd="/tmp", timeout=300)
        out.seek(0)
        told = out.read()
    assert done.returncode != 0
    assert "slurmctld has ended" in told
    assert of(folder) == []
    assert not (folder / "pids").exists(), "nobody could start it again"


def test_two_sessions_have_ports_of_their_own() -> None:
    """Also before anything listens there."""
    mine = free_port(1, 2)
    ask = "from tests.live.servers import free_port; print(free_port(1, 2))"
    other = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True, timeout=60)
    assert abs(int(other.stdout) - mine) >= 400
