"""NVML's reader against NVIDIA's own libraries, 535 and 550, on a machine without a driver: what they really say."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from workbench.health import checks, fitness, run
from workbench.incident import load
from workbench.sources.contract import Deadline, Folder, Scope
from workbench.sources.node.nvml import read_nvml
from workbench.sources.node.source import ThisNode
from workbench.sources.node.world import World

pytestmark = pytest.mark.live

FETCH = Path(__file__).resolve().parent.parent / "services" / "nvml" / "fetch"


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def library(request: pytest.FixtureRequest) -> str:
    """The folder of NVIDIA's library, unpacked and not installed."""
    done = subprocess.run([FETCH, request.param], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_real_library_says_that_no_driver_is_loaded(library: str) -> None:
    if os.path.exists("/proc/driver/nvidia/version"):
        pytest.skip("this machine has a driver: the library is not alone")
    document = read_nvml(20, node="gpu-7", env={"LD_LIBRARY_PATH": library})

    assert document["ending"] == "init"
    assert document["error"] == {"code": 9, "error": "Driver Not Loaded"}
    assert document["gpus"] == []
    assert document["seconds"] < 10


def test_the_real_nvidia_smi_is_asked_and_understood(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.path.exists("/proc/driver/nvidia/version"):
        pytest.skip("this machine has a driver: the library is not alone")
    monkeypatch.setenv("PATH", f"{library}/bin:{os.environ['PATH']}")
    monkeypatch.setattr("workbench.sources.node.source._gpus_here", lambda: True)
    source = ThisNode(("gpu-7",), env={"LD_LIBRARY_PATH": library})
    answers = source.collect(Scope("llm", 0, 4e9, nodes=("gpu-7",)), Folder(tmp_path), Deadline(20))

    (answer,) = [answer for answer in answers if answer.asked == "nvidia-smi -q"]
    assert (answer.status, answer.file) == ("partial", "smi/gpu-7-nvidia-smi-q.txt")
    assert "smi-no-driver" in {event.signature for event in load(tmp_path / "smi").records}


def test_a_node_without_gpus_that_has_nvidias_own_tools_is_fit_when_the_site_says_that_it_has_none(library: str) -> None:
    if os.path.exists("/proc/driver/nvidia/version"):
        pytest.skip("this machine has a driver: the library is not alone")
    env = {"LD_LIBRARY_PATH": library, "PATH": f"{library}/bin:{os.environ['PATH']}"}
    of_gpus = [one.id for one in checks().values() if "gpus" in one.needs and "running" in one.contexts]
    without = run(only=[*of_gpus, "gpu-count", "driver"], world=World(env=env, settings={"gpus": 0}))
    assert {one.status for one in without} == {"not-applicable"}
    for settings, status in (({}, "unknown"), ({"gpus": 8}, "critical")):
        findings = run(only=[*of_gpus, "gpu-count"], world=World(env=env, settings=settings))
        assert fitness(findings) == status
        assert "ok" not in {one.status for one in findings}
