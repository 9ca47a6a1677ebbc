"""Fixtures of the tests of sources: a canned Kubernetes with one failed job, the server that plays it, and the source that asks it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources.canned_kubernetes import Cluster, kubeconfig
from tests.sources.slurm_commands import Tools, commands
from workbench.sources.kubernetes.source import Kubernetes
from workbench.testing.faults import FaultServer


@pytest.fixture
def cluster() -> Cluster:
    """A cluster in which one job failed."""
    return Cluster()


@pytest.fixture
def server(cluster: Cluster) -> Iterator[FaultServer]:
    """The canned server, without a fault at first."""
    with FaultServer(cluster) as server:
        yield server


@pytest.fixture
def source(server: FaultServer, tmp_path: Path) -> Kubernetes:
    """The source that asks it."""
    return Kubernetes(kubeconfig(tmp_path, server.url))


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    """Put sacct, scontrol, sinfo, sacctmgr and sdiag of a release first on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return commands(tmp_path)
