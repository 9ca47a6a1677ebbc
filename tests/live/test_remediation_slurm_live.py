"""The Slurm executor against real slurmctld and slurmd: the suite of all executors, and what only a real cluster shows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.slurm_cluster import RealCluster, started
from tests.remediation.conformance import Acts, RespectsOthers, TakesBack, begun, soon
from tests.remediation.slurm_world import SlurmWorld
from workbench.remediation.executors.contract import Deadline, ExecutorError
from workbench.remediation.executors.slurm import Slurm
from workbench.remediation.executors.slurm_node import flags_of

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    with started(8) as made:
        yield made


@pytest.fixture
def world(cluster: RealCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmWorld:
    return SlurmWorld(cluster, monkeypatch, cluster.env)


class TestSlurm(Acts, TakesBack, RespectsOthers):
    """The suite of all executors."""

    VERBS = ("cordon", "drain", "uncordon", "reboot")
    UNDONE = ("cordon", "drain")
