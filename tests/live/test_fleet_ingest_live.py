"""`workbench fleet ingest` asks a real slurmctld with its slurmdbd, and a real kube-apiserver with the reader's rights only."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.live.kubernetes_site import SERVICE, Site, control_plane, granted, reader_of, run, until
from tests.live.servers import SERVICES, free_port, stop
from workbench.cli import exits, main
from workbench.fleet.ledger import Ledger

pytestmark = pytest.mark.live

UUID = "GPU-1a2b3c40-9f3e-4c00-8d71-5e0fa9b2c000"


def test_a_real_slurm_tells_starts_of_jobs_troubles_and_states_of_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(tempfile.mkdtemp(prefix="wb-ing-"))  # short: the name of a socket may have 107 letters
    folder, file = root / "run", str(tmp_path / "fleet.sqlite")
    try:
        with (root / "out").open("w+") as out:  # what it starts keeps its streams open
            words = [
                str(SERVICES / "slurm/start"),
                "--nodes",
                "2",
                "--dir",
                str(folder),
                "--port",
                str(free_port(1, 2, 101, 102)),
            ]
            done = subprocess.run(words, stdout=out, stderr=out, cwd="/tmp", timeout=300)
            out.seek(0)
            assert done.returncode == 0, out.read()
        monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin:/usr/bin")
        monkeypatch.chdir(root)
        ask = lambda *words: subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout.strip()  # noqa: E731
        wrong = ask("sbatch", "--parsable", "--job-name=wrong", "--gres=gpu:2", "--output=/dev/null", "--wrap=exit 3")
        again = ask(
            "sbatch",
            "--parsable",
            "--job-name=again",
            "--requeue",
            "-w",
            "gpu-node-001",
            "--output=/dev/null",
            "--wrap=sleep 300",
        )
        until("the second job", lambda: ask("squeue", "-h", "-o", "%T", "-j", again) == "RUNNING", 60)
        ask("scontrol", "requeue", again)
        ask("scontrol", "update", "NodeName=gpu-node-002", "State=DRAIN", "Reason=Xid 79 on GPU 3")

        def told() -> bool:
            assert main(["fleet", "ingest", "--ledger", file, "--slurm", "--since", "1d", "--deadline", "60s"]) == exits.OK
            with Ledger.open(file, "ro") as ledger:
                ends = {(one["job"], one["state"], one["exit_code"]) for one in ledger.rows("attempts")}
                held = {
                    (one["node"], one["state"], one["reason"]) for one in ledger.rows("node_states") if one["state"] == "held"
                }
            return (wrong, "failed", 3) in ends and any(job == again for job, _, _ in ends) and len(held) == 1

        until("slurmdbd", told, 60)  # it hears of ends some seconds later
        with Ledger.open(file, "ro") as ledger:
            (job,) = ledger.rows("jobs", job=wrong)
            (held,) = ledger.rows("node_states", state="held")
        assert (job["name"], job["gpus"], job["cause"]) == ("wrong", 2, "unknown")
        assert (held["node"], held["cls"]) == ("gpu-node-002", "hardware/gpu-lost")
        assert abs(held["begin"] - time.time()) < 600
    finally:
        stop(SERVICES / "slurm/stop", "--dir", folder, "--purge")
        shutil.rmtree(root, ignore_errors=True)


def test_a_real_cluster_tells_jobs_turns_of_nodes_xids_and_gpus_to_the_readers_account(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with control_plane(tmp_path_factory.mktemp("kubernetes")) as work:
        site = Site(work / "admin.kubeconfig")
        site.crds(Path(run(SERVICE / "build")) / "crds")
        site.namespace("train")
        for name in ("gpu-node-a", "gpu-node-b"):
            site.node(name)
        granted(site, "gpu-workbench")
        (first, second) = site.job("train", "llm", ("gpu-node-a", "gpu-node-b"))
        site.ends("train", first, 1)
        site.event("default", "Node", "gpu-node-a", "NodeNotReady", "Node gpu-node-a status is now: NodeNotReady", ago=900.0)
        site.event(
            "default", "Node", "gpu-node-a", "NodeReady", "Node gpu-node-a status is now: NodeReady", ago=600.0, severity="Normal"
        )
        text = f"XidCriticalError: Xid=79 on Device={UUID}; marking device as unhealthy."
        site.event("default", "Node", "gpu-node-b", "GpuUnhealthy", text, ago=60.0)
        notes = {"metadata": {"annotations": {"hami.io/vgpu-devices-allocated": f"{UUID},NVIDIA,4000,0:;"}}}
        site.core.patch_namespaced_pod(second, "train", notes)
        site.core.patch_namespaced_pod_status(second, "train", {"status": {"phase": "Running"}})

        monkeypatch.setenv("KUBECONFIG", str(reader_of(work, "gpu-workbench", "gpu-workbench-reader")))
        file = str(tmp_path / "fleet.sqlite")
        for _ in range(2):
            assert main(["fleet", "ingest", "--ledger", file, "--kubernetes"]) == exits.OK
        with Ledger.open(file, "ro") as ledger:
            (attempt,) = ledger.rows("attempts")
            turns = [
                one["state"] for one in ledger.rows("node_states", node="gpu-node-a") if one["source"] == "kubernetes:events"
            ]
            signs = [(one["kind"], one["node"], one["code"], one["gpu_uuid"]) for one in ledger.rows("signals", kind="xid")]
            gpus = [(one["gpu_uuid"], one["node"], one["end"]) for one in ledger.rows("gpus")]
    assert (attempt["job"], attempt["state"], attempt["node_names"], attempt["gpus"]) == (
        "train/llm",
        "failed",
        ["gpu-node-a", "gpu-node-b"],
        16,
    )
    assert turns == ["down", "usable"]
    assert signs == [("xid", "gpu-node-b", "79", UUID)]
    assert gpus == [(UUID, "gpu-node-b", None)]
