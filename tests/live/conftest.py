"""Turn a test session into one Elasticsearch, as many Prometheus as are asked for, and the incidents that both hold: each started once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.live.remediation_site import Cluster, KubernetesWorld
from tests.live.restored import in_pods, into_elasticsearch, on_hosts, openmetrics
from tests.live.servers import SERVICES, free_port, run, stop, told
from workbench.remediation.executors.kubernetes.executor import Kubernetes
from workbench.shipped import example_path

HELD = ("nvlink-switch", "preempted", "gpu-memory")  # the shipped incidents that are put into servers


@pytest.fixture(scope="session")
def start_prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Start a server with the arguments of tests/services/prometheus/start and return its address; all stop at the end."""
    if not shutil.which(os.environ.get("PROMETHEUS", "prometheus")) and os.getuid() != 0:
        pytest.skip("no prometheus on the path, and only root may install Debian's")
    folders: list[Path] = []

    def begin(*arguments: object) -> str:
        folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
        folders.append(folder)
        run(SERVICES / "prometheus" / "start", "--dir", folder, "--port", port, "--no-alertmanager", *arguments)
        return f"http{'s' if '--secure' in arguments else ''}://127.0.0.1:{port}"

    yield begin
    for folder in folders:
        stop(SERVICES / "prometheus" / "stop", "--dir", folder)


@pytest.fixture(scope="session")
def start_victoria(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Start a VictoriaMetrics with the arguments of tests/services/prometheus/start-victoria and return its address."""
    folders: list[Path] = []

    def begin(*arguments: object) -> str:
        folder, port = tmp_path_factory.mktemp("victoria"), free_port()
        folders.append(folder)
        run(SERVICES / "prometheus" / "start-victoria", "--dir", folder, "--port", port, *arguments)
        return f"http://127.0.0.1:{port}"

    yield begin
    for folder in folders:
        stop(SERVICES / "prometheus" / "stop", "--dir", folder)


@pytest.fixture(scope="session")
def elasticsearch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """
    The address of an Elasticsearch; whoever uses it keeps to indices of its own.

    ``WORKBENCH_TEST_ELASTICSEARCH`` names a server that already runs; ``WORKBENCH_TEST_ELASTICSEARCH_MAJOR`` is 9 unless it says 8.
    """
    if running := os.environ.get("WORKBENCH_TEST_ELASTICSEARCH"):
        yield running
        return
    folder, major = tmp_path_factory.mktemp("elasticsearch"), os.environ.get("WORKBENCH_TEST_ELASTICSEARCH_MAJOR", "9")
    try:
        yield told(run(SERVICES / "elasticsearch" / "start", "-m", major, free_port(), folder))["url"]
    finally:
        stop(SERVICES / "elasticsearch" / "stop", folder)


@pytest.fixture(scope="session")
def held(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The shipped incidents that `archive` holds, unpacked: name → folder."""
    root = tmp_path_factory.mktemp("incidents")
    for name in HELD:
        shutil.unpack_archive(example_path(name), root / name, filter="data")
    return {name: root / name for name in HELD}


@pytest.fixture(scope="session")
def histories(held: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The metrics of the held incidents, as files that the servers of tests/services/prometheus take."""
    root = tmp_path_factory.mktemp("history")
    for name, folder in held.items():
        assert openmetrics(folder, root / f"{name}.om") > 10_000
    return [root / f"{name}.om" for name in held]


@pytest.fixture(scope="session")
def archive(
    start_prometheus: Callable[..., str], elasticsearch: str, held: dict[str, Path], histories: list[Path]
) -> dict[str, str]:
    """The environment that names a Prometheus with the metrics of all held incidents, and the Elasticsearch with their logs."""
    places = {
        "nvlink-switch": in_pods(held["nvlink-switch"], "speech"),
        "preempted": on_hosts(
            "/home/user/jobs/logs/mt5-xxl-distill-827514", {node: node for node in ("g1152", "g1155", "g1157", "g1158")}
        ),
        "gpu-memory": on_hosts(
            "/scratch/gpt-neo-20b/642979",
            {f"gpt-neo-20b-worker-{number}": f"gpu-node-{node}" for number, node in enumerate(("060", "059", "054", "064"))},
        ),
    }
    for name, folder in held.items():
        assert into_elasticsearch(elasticsearch, f"filebeat-{name}", folder, places[name]) > 500
    return {
        "PROMETHEUS_URL": start_prometheus(*histories),
        "ELASTICSEARCH_URL": elasticsearch,
        "WORKBENCH_NODE_ENABLED": "false",
        "no_proxy": "127.0.0.1",
    }


@pytest.fixture
def executor(cluster: Cluster) -> Kubernetes:
    """An executor with the shipped rights, on the cluster that a module has."""
    return Kubernetes(cluster.kubeconfig)


@pytest.fixture
def world(cluster: Cluster) -> Iterator[KubernetesWorld]:
    """The cluster behind a server that can fail."""
    with cluster.proxy() as (server, path):
        yield KubernetesWorld(cluster, server, Path(path))
