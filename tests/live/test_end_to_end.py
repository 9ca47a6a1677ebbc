"""A shipped incident, put into a real kube-apiserver, Prometheus and Elasticsearch: the site gives the verdict that the folder gives."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import workbench
from tests.live.restored import into_elasticsearch, into_kubernetes, openmetrics, text_of
from workbench.report.verdict_json import to_json
from workbench.shipped import example_path

pytestmark = pytest.mark.live

SERVICES = Path(__file__).resolve().parents[1] / "services"
EXAMPLE, JOB, NAMESPACE = "nvlink-switch", "whisper-ft-large", "speech"
WINDOW = ("--since", "2025-08-05T00:00Z", "--until", "2025-08-05T21:00Z")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _run(*words: object, **more: str) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=900, env=os.environ | more)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@dataclass
class Site:
    folder: Path
    environ: dict[str, str]

    def workbench(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "workbench", *words],
            capture_output=True,
            text=True,
            timeout=180,
            env=os.environ | self.environ,
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The three servers, filled; stopped at the end."""
    root = tmp_path_factory.mktemp("end-to-end")
    folder = root / "incident"
    shutil.unpack_archive(example_path(EXAMPLE), folder, filter="data")
    stops: list[tuple[object, ...]] = []
    try:
        kubernetes = root / "kubernetes"
        stops.append((SERVICES / "kubernetes" / "stop", kubernetes))
        _run(SERVICES / "kubernetes" / "start", kubernetes, "--controllers", "none")
        port = int((kubernetes / "port").read_text(encoding="utf-8"))
        assert into_kubernetes(f"http://127.0.0.1:{port + 1}", folder) >= 12

        openmetrics(folder, root / "history.om")
        prometheus, metrics_port = root / "prometheus", _free_port()
        stops.append((SERVICES / "prometheus" / "stop", "--dir", prometheus))
        _run(
            SERVICES / "prometheus" / "start",
            "--no-alertmanager",
            "--dir",
            prometheus,
            "--port",
            metrics_port,
            root / "history.om",
        )

        logs, logs_port = root / "elasticsearch", _free_port()
        stops.append((SERVICES / "elasticsearch" / "stop", logs))
        told = dict(
            line.split("=", 1) for line in _run(SERVICES / "elasticsearch" / "start", logs_port, logs).splitlines() if "=" in line
        )
        pods = json.loads(text_of(folder / "pods.json"))["items"]
        nodes = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods}
        into_elasticsearch(told["url"], folder, namespace=NAMESPACE, nodes=nodes)
        yield Site(
            folder,
            {
                "KUBECONFIG": str(kubernetes / "admin.kubeconfig"),
                "PROMETHEUS_URL": f"http://127.0.0.1:{metrics_port}",
                "ELASTICSEARCH_URL": told["url"],
                "WORKBENCH_NODE_ENABLED": "false",
                "WORKBENCH_SLURM_ENABLED": "false",
                "no_proxy": "127.0.0.1",
            },
        )
    finally:
        for words in reversed(stops):
            subprocess.run([str(word) for word in words], capture_output=True, timeout=120, check=False)


def _same(live: dict[str, Any], folder: dict[str, Any]) -> None:
    for key in ("cause", "class", "retry", "remediation"):
        assert live[key] == folder[key], key
    assert (live["culprit"]["node"], live["culprit"]["at_fault"]) == (folder["culprit"]["node"], folder["culprit"]["at_fault"])
    assert {row["rank"] for row in live["victims"]} == {row["rank"] for row in folder["victims"]}
    signatures = [row["signature"] for row in folder["evidence"] if row["role"] == "cause"]
    assert [row["signature"] for row in live["evidence"] if row["role"] == "cause"][:1] == signatures[:1]


def test_the_site_gives_the_verdict_of_the_folder(site: Site, tmp_path: Path) -> None:
    kept = tmp_path / "kept.tar.zst"
    done = site.workbench("triage", "--job", JOB, *WINDOW, "-o", "json", "--keep", str(kept))
    assert done.returncode in (0, 3), done.stderr
    live, folder = json.loads(done.stdout), to_json(workbench.load(site.folder).triage())
    _same(live, folder)
    _same(to_json(workbench.load(kept).triage()), live)


def test_collect_then_triage(site: Site, tmp_path: Path) -> None:
    out = tmp_path / "incident.tar.zst"
    done = site.workbench("collect", "--job", JOB, *WINDOW, "-o", str(out))
    assert done.stdout.strip() == str(out), done.stderr
    _same(to_json(workbench.load(out).triage()), to_json(workbench.load(site.folder).triage()))


@pytest.mark.parametrize("missing", ["PROMETHEUS_URL", "ELASTICSEARCH_URL", "KUBECONFIG"])
def test_each_source_may_be_down(site: Site, missing: str, tmp_path: Path) -> None:
    """Whatever is down is named; none of it makes another node guilty."""
    down = f"http://127.0.0.1:{_free_port()}"
    if missing == "KUBECONFIG":
        config = tmp_path / "kubeconfig"
        config.write_text(
            f"apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: '{down}'}}}}]\n"
            "contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n",
            encoding="utf-8",
        )
        value = str(config)
    else:
        value = down
    broken = Site(site.folder, {**site.environ, missing: value})
    done = broken.workbench("triage", "--job", JOB, *WINDOW, "-o", "json", "--deadline", "20s")
    verdict = json.loads(done.stdout)
    word = {"PROMETHEUS_URL": "metrics", "ELASTICSEARCH_URL": "job", "KUBECONFIG": "kubernetes"}[missing]
    assert "failed" in {row["status"] for row in verdict["coverage"] if row["source"] == word}, done.stderr
    assert verdict["culprit"]["node"] in ("dgx-46", None)
    assert done.returncode == 3


def test_doctor_sees_the_three(site: Site) -> None:
    """All answer; of the GPUs nothing was scraped for a year, which is told first."""
    done = site.workbench("doctor", "-o", "json")
    rows = json.loads(done.stdout)
    critical = {(row["source"], row["item"]) for row in rows if row["status"] == "critical"}
    assert {"kubernetes", "prometheus", "elasticsearch"} <= {row["source"] for row in rows}
    assert ("prometheus", "data age") in critical
    assert {source for source, _ in critical} <= {"prometheus", "elasticsearch"}, done.stdout
    assert done.returncode == 69
