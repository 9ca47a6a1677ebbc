"""The fleet of a real kube-apiserver and a real Prometheus, with the reader's rights only: nodes, conditions that a check wrote, jobs, values, and both going away."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes")
pytest.importorskip("prometheus_api_client")

from tests.live.kubernetes_site import SERVICE, Site, control_plane, granted, run, until
from tests.serving.served import Served
from workbench.config import load_config
from workbench.health import Finding
from workbench.health.publish import KubernetesEvents, KubernetesNode
from workbench.model import Gpu
from workbench.site.frames import check_snapshot
from workbench.site.live import Live
from workbench.site.model import Snapshot
from workbench.site.poller import Poller
from workbench.sources.kubernetes.api import Api
from workbench.sources.kubernetes.write import NodeWriter
from workbench.testing.faults import FaultServer

pytestmark = pytest.mark.live

NODES = ("gpu-node-001", "gpu-node-002", "gpu-node-003", "gpu-node-004")
SPACE, READER = "gpu-workbench", "gpu-workbench-reader"


def found(
    check: str, status: str, code: str = "", gpu: int | None = None, summary: str = "as it should be", cls: str = ""
) -> Finding:
    """Return what a check found on one of the nodes."""
    return Finding(check, status, summary, code, gpu=None if gpu is None else Gpu(gpu), cls=cls)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A running control plane."""
    folder = tmp_path_factory.mktemp("kubernetes")
    with control_plane(folder):
        yield folder


@pytest.fixture(scope="module")
def cluster(work: Path) -> str:
    """Four GPU nodes of a job of four pods, one without GPUs, one cordoned; the reader's kubeconfig."""
    site = Site(work / "admin.kubeconfig")
    granted(site, SPACE)
    for name in NODES:
        site.node(name)
    site.node("gpu-node-005", unschedulable=True)
    site.core.create_node({"metadata": {"name": "cpu-1"}})
    site.namespace("ml")
    for number, name in enumerate(NODES):
        labels = {
            "training.kubeflow.org/job-name": "trainer",
            "training.kubeflow.org/replica-index": str(number),
            "team": "speech",
        }
        site.core.create_namespaced_pod(
            "ml",
            {
                "metadata": {"name": f"trainer-{number}", "labels": labels},
                "spec": {
                    "nodeName": name,
                    "containers": [{"name": "pytorch", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "8"}}}],
                },
            },
        )
    admin = Api(str(work / "admin.kubeconfig"))
    now = time.time()
    good = [found("gpu-memory", "ok", cls="hardware/gpu-memory"), found("gpu-count", "ok", cls="hardware/gpu-lost")]
    bad = [found("gpu-memory", "critical", "smi-remap-failure", 5, "a row could not be remapped", "hardware/gpu-memory"), good[1]]
    warns = [*good, found("pcie", "warning", "smi-pcie-replay", 2, "the replay counter grows", "hardware/pcie")]
    for name, findings in ((NODES[0], bad), (NODES[1], warns)):
        writer = NodeWriter(admin, name)
        KubernetesNode(writer, lambda *_: None, boot="boot-1").publish(findings, now)
        KubernetesEvents(writer).publish(findings, now)
    return run(SERVICE / "kubeconfig-for", work, SPACE, READER)


@pytest.fixture(scope="module")
def prometheus(start_prometheus: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """An hour of four nodes: GPU 3 of the last has memory errors and Xid 95, GPU 7 of the third is gone with Xid 79."""
    file = tmp_path_factory.mktemp("om") / "history.om"
    with file.open("wb") as out:
        script = SERVICE.parent / "prometheus" / "dcgm_history.py"
        subprocess.run([sys.executable, script], stdout=out, check=True, timeout=300)
    return start_prometheus(str(file))


def environment(cluster: str, url: str, folder: Path) -> dict[str, str]:
    return {
        "KUBECONFIG": cluster, "PROMETHEUS_URL": url, "HOME": str(folder), "WORKBENCH_NODE_ENABLED": "false", "WORKBENCH_SLURM_ENABLED": "false",
        "WORKBENCH_REMEDIATION_JOURNAL": str(folder / "journal.jsonl"), "WORKBENCH_DEADLINE": "60s",
    }  # fmt: skip


def site_of(cluster: str, url: str, folder: Path) -> Live:
    return Live(load_config(environ=environment(cluster, url, folder)))


def row(snapshot: Snapshot, name: str) -> dict[str, Any]:
    (one,) = snapshot.nodes[snapshot.nodes["node"] == name].to_dict("records")
    return {str(key): value for key, value in one.items()}


def heard(snapshot: Snapshot) -> dict[str, str]:
    return {one.source: one.status for one in snapshot.heard}


def test_both_servers_together_tell_the_fleet(cluster: str, prometheus: str, tmp_path: Path) -> None:
    snapshot = site_of(cluster, prometheus, tmp_path)()

    check_snapshot(snapshot)
    assert heard(snapshot)["kubernetes"] == "ok", snapshot.heard
    assert heard(snapshot)["prometheus"] in ("ok", "partial"), snapshot.heard
    assert list(snapshot.nodes["node"]) == [*NODES, "gpu-node-005"]  # what has no GPU is not of it
    assert snapshot.nodes["gpus"].sum() == 40

    # what the check wrote: an unfit node, and a warning told by an event
    first = row(snapshot, NODES[0])
    assert (first["health"], first["cause"]) == ("critical", "hardware")
    mine = snapshot.findings[snapshot.findings["node"] == NODES[0]].set_index("code")
    assert (mine.loc["smi-remap-failure", "gpu_index"], mine.loc["smi-remap-failure", "action"]) == (5, "replace-node")
    warned = snapshot.findings[(snapshot.findings["node"] == NODES[1]) & (snapshot.findings["status"] == "warning")]
    assert "smi-pcie-replay" in set(warned["code"])

    # what the exporter showed within the hour
    told = snapshot.findings[snapshot.findings["source"] == "prometheus"]
    assert {(row["node"], row["gpu_index"]) for row in told[told["code"] == "xid-95"].to_dict("records")} == {(NODES[3], 3)}
    gone = told[told["code"] == "metric-gpu-vanished"]
    assert [(one["node"], one["gpu_index"]) for one in gone.to_dict("records")] == [(NODES[2], 7)]
    assert snapshot.gpus.set_index(["node", "gpu_index"]).loc[(NODES[2], 7), "health"] == "critical"
    assert snapshot.gpus.loc[snapshot.gpus["node"] == NODES[1], "temperature"].notna().all()

    # nobody looked at the GPUs of the one that has no exporter and no check
    last = row(snapshot, "gpu-node-005")
    assert (last["health"], last["schedulable"], last["state"]) == ("unknown", False, "Ready,SchedulingDisabled")

    (job,) = snapshot.jobs.to_dict("records")
    assert (job["job"], job["namespace"], job["team"], job["nodes"], job["gpus"]) == ("trainer", "ml", "speech", 4, 32)


def test_the_dashboard_shows_that_fleet_and_says_when_a_server_goes_away(cluster: str, prometheus: str, tmp_path: Path) -> None:
    """`serve --live`: the first answer for a node, before any script, has what both servers tell of it."""
    (tmp_path / "inbox").mkdir()
    with FaultServer(prometheus) as server:
        environ = environment(cluster, server.url, tmp_path) | {
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "WORKBENCH_REMEDIATION_FOLDER": str(tmp_path / "state"),
        }
        with Served(("--inbox", str(tmp_path / "inbox"), "--live", "--every", "3s"), environ) as served:

            def fleet() -> dict[str, Any]:
                return served.ask("/api/fresh").json()["fleet"] or {}

            until("the fleet", lambda: fleet().get("time"), 90)
            assert not fleet().get("stale")
            for page in ("/fleet", "/remediation", "/"):
                answer = served.ask(page)
                assert answer.status == 200
                assert "could not be made" not in answer.body.decode()
            first = served.ask(f"/node?node={NODES[0]}").body.decode()
            assert "smi-remap-failure" in first or "could not be remapped" in first
            assert "critical" in first
            last = until(
                "values of Prometheus",
                lambda: (lambda text: text if "°C" in text else "")(served.ask(f"/node?node={NODES[3]}").body.decode()), 60,
            )  # fmt: skip
            assert NODES[3] in last
            assert "No source knows a node" in served.ask("/node?node=gpu-node-999").body.decode()

            server.fault = "503"
            lost = until(
                "that Prometheus is gone",
                lambda: (lambda text: text if "rometheus" in text and "stale" in text else "")(
                    served.ask(f"/node?node={NODES[3]}").body.decode()
                ),
                90,
            )
            assert NODES[3] in lost
            server.fault = None
            assert served.ask("/healthz").status == 200
            assert not any("Traceback" in line for line in served.said), "".join(served.said)
            assert served.stop() == 0


def test_a_node_that_is_looked_at_brings_its_hour(cluster: str, prometheus: str, tmp_path: Path) -> None:
    site = site_of(cluster, prometheus, tmp_path)
    site.watch([NODES[3]])
    samples = site().samples

    assert set(samples["node"]) == {NODES[3]}
    assert {"DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE"} <= set(samples["field"])
    assert samples["gpu_index"].nunique() == 8


def test_a_prometheus_that_goes_away_and_comes_back_is_stale_in_between(cluster: str, prometheus: str, tmp_path: Path) -> None:
    with FaultServer(prometheus) as server:
        poller = Poller(site_of(cluster, server.url, tmp_path), 30)
        assert poller.poll()
        before = poller.snapshot.gpus["power"]
        server.fault = "503"
        assert poller.poll()
        assert heard(poller.snapshot)["prometheus"] == "stale"
        assert heard(poller.snapshot)["kubernetes"] == "ok"
        assert poller.snapshot.gpus["power"].equals(before)
        server.fault = None
        assert poller.poll()
        assert heard(poller.snapshot)["prometheus"] in ("ok", "partial")


def test_a_reader_that_may_not_list_pods_is_told_the_right_that_lacks(
    work: Path, cluster: str, prometheus: str, tmp_path: Path
) -> None:
    site = Site(work / "admin.kubeconfig")
    role = site.rbac.read_cluster_role(READER)
    rules = role.rules
    role.rules = [one for one in rules if "pods" not in (one.resources or [])]
    site.rbac.replace_cluster_role(READER, role)
    try:
        live = site_of(cluster, prometheus, tmp_path)
        snapshot = until("the refusal", lambda: (lambda one: one if heard(one)["kubernetes"] == "partial" else None)(live()), 60)
    finally:
        role = site.rbac.read_cluster_role(READER)
        role.rules = rules
        site.rbac.replace_cluster_role(READER, role)
    one = next(one for one in snapshot.heard if one.source == "kubernetes")
    assert '"pods"' in one.hint
    assert len(snapshot.jobs) == 0
    assert len(snapshot.nodes) == 5
