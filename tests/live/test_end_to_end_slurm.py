"""Shipped incidents, put into a real slurmdbd and slurmctld, Prometheus and Elasticsearch: the site gives the verdict that the folder gives."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import workbench
from tests.live.restored import Site, into_elasticsearch, on_hosts, same, text_of
from tests.live.servers import SERVICES, free_port, run, stop
from tests.live.slurm_past import Event, Past, epoch, from_pods, from_sacct, into_slurm
from workbench.report.verdict_json import to_json

pytestmark = pytest.mark.live


@dataclass(frozen=True)
class Incident:
    """How a shipped incident is asked for: the job's number and name, and a window around it."""

    number: str
    name: str
    since: str
    until: str

    @property
    def window(self) -> tuple[str, ...]:
        return ("--since", self.since, "--until", self.until)


INCIDENTS = {
    "preempted": Incident("827514", "mt5-xxl-distill", "2025-09-30T00:00Z", "2025-09-30T17:45Z"),
    # it ran on Kubernetes; here the same nodes, times and ends are those of a Slurm job
    "gpu-memory": Incident("642979", "gpt-neo-20b", "2025-05-14T00:00Z", "2025-05-15T12:00Z"),
}
NODES = {
    "preempted": ("g1152", "g1154", "g1155", "g1157", "g1158", "g1159"),
    "gpu-memory": tuple(f"gpu-node-{number:03}" for number in (54, 56, 58, 59, 60, 64, 67)),
}
UID = 21285  # of the user whose job was preempted, as scontrol told it


@pytest.fixture(scope="module")
def slurm(held: dict[str, Path]) -> Iterator[Path]:
    """The folder of a running cluster that has the incidents' nodes, and whose accounting remembers their jobs."""
    if not shutil.which("slurmctld") and os.getuid() != 0:
        pytest.skip("no slurmctld on the path, and only root may install Debian's")
    root = Path(tempfile.mkdtemp(prefix="wb-slurm-"))  # short: the name of a socket may have 107 letters
    names = [node for nodes in NODES.values() for node in nodes]
    try:
        port = free_port(1, 2, *range(101, 101 + len(names)))
        run(SERVICES / "slurm" / "start", "--dir", root / "run", "--port", port, "--names", ",".join(names))
        root.chmod(0o755)
        into_slurm(root / "run", [*preempted(held["preempted"], root / "home"), unlucky(held["gpu-memory"])], EVENTS)
        yield root / "run"
    finally:
        stop(SERVICES / "slurm" / "stop", "--dir", root / "run", "--purge")
        shutil.rmtree(root, ignore_errors=True)


def preempted(folder: Path, home: Path) -> list[Past]:
    """The jobs of the incident's sacct, and the try that was preempted, which sacct shows only when it is asked for duplicates."""
    jobs = {job.id: job for job in from_sacct(text_of(folder / "sacct.txt"))}
    victim = jobs["827514"]
    victim.uid, victim.account, victim.workdir = UID, "acct-20", str(home)
    victim.submit_line = "sbatch --output=logs/%x-%j.out mt5-xxl-distill.sbatch"
    (home / "logs").mkdir(parents=True)
    output = home / "logs" / "mt5-xxl-distill-827514.out"
    output.write_text(text_of(folder / "logs" / "slurm-827514.log"), encoding="utf-8")
    os.chown(output, UID, UID)
    # the controller's log says when: preempted 17:19:24, started again 17:28:54
    ended, again = epoch("2025-09-30T17:19:24"), epoch("2025-09-30T17:28:54")
    first = replace(
        victim, state="PREEMPTED", end=ended, steps=[replace(step, state="CANCELLED", end=ended) for step in victim.steps]
    )
    second = replace(
        victim, submit=ended + 1, start=again, steps=[replace(step, start=again) for step in victim.steps if step.id != "0"]
    )
    return [first, second, jobs["827771"]]


def unlucky(folder: Path) -> Past:
    """The job of the other incident."""
    return from_pods(folder, INCIDENTS["gpu-memory"].number, INCIDENTS["gpu-memory"].name)


# what accounting remembers of nodes: the culprit was drained a minute after the failure; a neighbour's trouble was over before the job
EVENTS = (
    Event("gpu-node-054", "DRAIN", "NHC: GPU 4 Xid 95", epoch("2025-05-15T09:27:30"), epoch("2025-05-16T08:00:00")),
    Event("gpu-node-060", "DOWN", "Not responding", epoch("2025-05-11T02:00:00"), epoch("2025-05-11T02:20:00")),
)


@pytest.fixture(scope="module")
def site(slurm: Path, archive: dict[str, str], held: dict[str, Path]) -> Site:
    """The cluster beside the servers that hold the metrics and logs of its jobs; today another node of the job is drained."""
    environ = {
        **archive,
        "SLURM_CONF": str(slurm / "slurm.conf"),
        "PATH": f"{os.environ['PATH']}:/usr/sbin:/usr/bin:/sbin:/bin",
        "WORKBENCH_ELASTICSEARCH_INDEX": "filebeat-preempted,filebeat-gpu-memory",
        "WORKBENCH_KUBERNETES_ENABLED": "false",
    }
    for node in ("gpu-node-059", "g1157"):
        subprocess.run(
            ["scontrol", "update", f"nodename={node}", "state=drain", "reason=NHC: nvidia-smi: GPU 2 has fallen off the bus"],
            env=os.environ | environ, check=True, timeout=60,
        )  # fmt: skip
    return Site(environ, held)


@contextmanager
def without(slurm: Path, daemon: str) -> Iterator[None]:
    """A daemon of the cluster does not run."""
    run(SERVICES / "slurm" / "daemon", daemon, "stop", "--dir", slurm)
    try:
        yield
    finally:
        run(SERVICES / "slurm" / "daemon", daemon, "start", "--dir", slurm)


def folder_says(site: Site, name: str) -> dict[str, Any]:
    return to_json(workbench.load(site.folders[name]).triage())


@pytest.mark.parametrize("name", INCIDENTS)
def test_the_site_gives_the_verdict_of_the_folder(site: Site, name: str, tmp_path: Path) -> None:
    """By the job's number; what was kept on the way says the same."""
    incident, kept = INCIDENTS[name], tmp_path / "kept.tar.zst"
    done = site.workbench("triage", "--job", incident.number, *incident.window, "-o", "json", "--keep", str(kept))
    assert done.returncode in (0, 3), done.stderr
    live = json.loads(done.stdout)
    same(live, folder_says(site, name))
    same(to_json(workbench.load(kept).triage()), live)


@pytest.mark.parametrize("name", INCIDENTS)
def test_collect_by_name_then_triage(site: Site, name: str, tmp_path: Path) -> None:
    incident, out = INCIDENTS[name], tmp_path / "incident.tar.zst"
    done = site.workbench("collect", "--job", incident.name, *incident.window, "-o", str(out))
    assert done.stdout.strip() == str(out), done.stderr
    same(to_json(workbench.load(out).triage()), folder_says(site, name))


def test_logs_that_do_not_hold_the_number_are_found_by_the_name(site: Site, elasticsearch: str) -> None:
    """Asked for by number; the path has the job's name, and another job of that name runs elsewhere."""
    pods = {f"gpt-neo-20b-worker-{number}": f"gpu-node-{node}" for number, node in enumerate(("060", "059", "054", "064"))}
    folder, incident = site.folders["gpu-memory"], INCIDENTS["gpu-memory"]
    assert into_elasticsearch(elasticsearch, "filebeat-nameless", folder, on_hosts("/runs/gpt-neo-20b", pods)) > 500
    stranger = {"gpt-neo-20b-worker-0": "another-node"}
    into_elasticsearch(elasticsearch, "filebeat-nameless", folder, on_hosts("/other/gpt-neo-20b", stranger))
    done = site.workbench(
        "triage", "--job", incident.number, *incident.window, "-o", "json", WORKBENCH_ELASTICSEARCH_INDEX="filebeat-nameless"
    )
    assert done.returncode in (0, 3), done.stderr
    live = json.loads(done.stdout)
    same(live, folder_says(site, "gpu-memory"))
    told = [row["detail"] for row in live["coverage"] if row["source"] == "job"]
    assert any(f"found by its name {incident.name} in the path, on its 7 nodes" in detail for detail in told), told


@pytest.mark.parametrize("name", INCIDENTS)
@pytest.mark.parametrize("daemon", ["slurmctld", "slurmdbd"])
def test_a_daemon_that_is_down_is_named_and_nobody_else_is_blamed(site: Site, slurm: Path, daemon: str, name: str) -> None:
    incident, folder = INCIDENTS[name], folder_says(site, name)
    with without(slurm, daemon):
        done = site.workbench("triage", "--job", incident.number, *incident.window, "-o", "json", "--deadline", "20s")
    verdict = json.loads(done.stdout)
    told = [row for row in verdict["coverage"] if row["source"] == "slurm"]
    assert "failed" in {row["status"] for row in told}, told
    assert verdict["class"] in (folder["class"], "unknown")
    assert verdict["culprit"]["at_fault"] in (folder["culprit"]["at_fault"], None)
    if verdict["culprit"]["at_fault"] in ("gpu", "node"):  # else the node is only where it was seen first
        assert verdict["culprit"]["node"] == folder["culprit"]["node"]
    assert done.returncode == 3, done.stderr


def test_doctor_sees_the_cluster(site: Site) -> None:
    rows = json.loads(site.workbench("doctor", "-o", "json").stdout)
    told = {row["item"]: row["status"] for row in rows if row["source"] == "slurm"}
    assert (told["slurmctld"], told["slurmdbd"], told["clock"], told["rights"]) == ("ok", "ok", "ok", "ok")
