"""The Slurm executor keeps its promises on the shipped fake of Slurm; tests/live/test_remediation_slurm_live.py has the same on a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.remediation.conformance import Acts, RespectsOthers, TakesBack
from tests.remediation.slurm_world import FakeCluster, SlurmWorld


@pytest.fixture
def cluster(tmp_path: Path) -> FakeCluster:
    return FakeCluster(tmp_path / "slurm", [f"gpu-node-{number:03d}" for number in range(1, 7)])


@pytest.fixture
def world(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmWorld:
    return SlurmWorld(cluster, monkeypatch)


class TestSlurm(Acts, TakesBack, RespectsOthers):
    """The suite of all executors."""

    VERBS = ("cordon", "drain", "uncordon", "reboot")
    UNDONE = ("cordon", "drain")
