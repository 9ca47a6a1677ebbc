"""A command that truly cannot be killed: the freezer of cgroup v1 holds a process in state D until it is thawed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from workbench.sources import command
from workbench.sources.command import run

pytestmark = pytest.mark.live

FREEZER = Path("/sys/fs/cgroup/freezer")


def test_a_frozen_process_is_left_behind_in_time(tmp_path: Path) -> None:
    if not os.access(FREEZER, os.W_OK):
        pytest.skip("no writable freezer of cgroup v1")
    cage = FREEZER / f"workbench-{os.getpid()}"
    cage.mkdir()
    try:
        begun = time.monotonic()
        script = f"echo $$ > {cage}/cgroup.procs; echo before; echo FROZEN > {cage}/freezer.state; sleep 60; echo after"
        ran = run(["sh", "-c", script], seconds=1.0)
        took = time.monotonic() - begun
        state = Path(f"/proc/{command._left[-1].pid}/stat").read_text().rsplit(")", 1)[1].split()[0] if ran.stuck else ""
    finally:
        (cage / "freezer.state").write_text("THAWED")
        for _ in range(50):
            try:
                cage.rmdir()
                break
            except OSError:
                time.sleep(0.1)

    assert (ran.ending, ran.stuck, ran.out) == ("time-out", True, b"before\n")
    assert state in ("D", "S", "T")
    assert took < 2.5
    assert "SIGKILL did not end it" in ran.sentence
    run(["true"], seconds=5)
    assert not command._left  # thawed, it died of the signal that was waiting for it, and was reaped
