"""Every check with programs that truly cannot be killed: the freezer of cgroup v1 holds them in the kernel until it is thawed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.health.breakage import FORMS, Node, left_behind, recording
from workbench.health import checks, fitness, run

pytestmark = pytest.mark.live

FREEZER = Path("/sys/fs/cgroup/freezer")
_SECONDS = 3.0


def test_no_check_is_ok_or_late_when_every_program_hangs_in_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not os.access(FREEZER, os.W_OK):
        pytest.skip("no writable freezer of cgroup v1")
    cage = FREEZER / f"workbench-{os.getpid()}"
    cage.mkdir()
    monkeypatch.setitem(FORMS, "frozen", (f"echo $$ > {cage}/cgroup.procs; echo FROZEN > {cage}/freezer.state; sleep 60", ""))
    try:
        with recording():
            healthy = Node(tmp_path / "healthy")
            well = run(only=sorted(checks()), world=healthy.world)
            node = Node(tmp_path / "node")
            node.programs("frozen", {path.name for path in node.bin.iterdir()} | healthy.asked.programs)
            begun = time.monotonic()
            findings = run(only=sorted(checks()), world=node.world, seconds=_SECONDS)
            took = time.monotonic() - begun
            frozen = len((cage / "cgroup.procs").read_text().split())
    finally:
        (cage / "freezer.state").write_text("THAWED")
        for _ in range(50):
            try:
                cage.rmdir()
                break
            except OSError:
                time.sleep(0.1)

    by_programs = {one.check for one in well if one.status == "ok" and one.path in ("NVML", "kernel log", "stat -f")}
    assert frozen >= 3
    assert took < _SECONDS + 1.0
    assert fitness(findings) in ("unknown", "critical")
    assert {"driver", "gpu-memory", "mounts", "xid"} <= by_programs
    for check in by_programs:
        assert all(one.status in ("unknown", "critical") for one in findings if one.check == check), check
    assert not left_behind(node.token)  # thawed, they died of the signal that was waiting for them
