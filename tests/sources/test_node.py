"""This machine is a source only when the job ran on it; a hung driver costs the deadline, and the kernel log is there all the same."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.nvml_fake import build
from workbench.incident import load
from workbench.sources.contract import Deadline, Folder, Scope
from workbench.sources.node import source as node
from workbench.sources.node.kernel import Reading
from workbench.sources.node.kubelet import collect_checkpoint
from workbench.sources.node.source import ThisNode

NOW = time.time()
XID = b"2026-05-04T11:02:03.120000+0000 gpu-7 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python, GPU has fallen off the bus."


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without tools of its own, and with a kernel log that is always the same."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    reading = Reading("journal", "ok", "1 line", "journalctl", [XID], NOW - 9e5)
    monkeypatch.setattr("workbench.sources.node.kernel.read_journal", lambda *_: reading)
    for name in ("SLURMD_NODENAME", "NODE_NAME", "K8S_NODE_NAME"):
        monkeypatch.delenv(name, raising=False)


def tool(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / "bin" / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def scope(*nodes: str) -> Scope:
    return Scope("llm", NOW - 100, NOW, nodes=nodes)


def test_a_node_of_the_job(library: str, tmp_path: Path) -> None:
    tool(
        tmp_path,
        "nvidia-smi",
        "echo '==============NVSMI LOG=============='; echo 'Driver Version                            : 570.133.20'",
    )
    tool(tmp_path, "dcgmi", "echo 'Error: unable to establish a connection to the specified host: localhost' >&2; exit 1")
    source = ThisNode(("gpu-7",), env={"LD_LIBRARY_PATH": library})
    answers = source.collect(scope("gpu-6.cluster", "gpu-7.cluster"), Folder(tmp_path / "out"), Deadline(10))

    files = {answer.file: answer.status for answer in answers}
    assert files == {
        "kernel/gpu-7.cluster.log": "ok",
        "smi/gpu-7.cluster-nvml.json": "ok",
        "smi/gpu-7.cluster-nvidia-smi-q.txt": "ok",
        "": "failed",  # DCGM's daemon
    }
    document = json.loads((tmp_path / "out" / "smi" / "gpu-7.cluster-nvml.json").read_text())
    assert document["node"] == "gpu-7.cluster"
    incident = load(tmp_path / "out")
    assert {item.kind for item in incident.documents} == {"kernel-log", "smi"}
    assert not incident.problems
    assert source.locate(scope(), Deadline(1)) is None


def test_another_machine_is_not_looked_at(tmp_path: Path) -> None:
    answers = ThisNode(("login-1",)).collect(scope("gpu-7"), Folder(tmp_path / "out"), Deadline(10))

    assert [(answer.source, answer.status) for answer in answers] == [("kernel", "missing"), ("smi", "missing")]
    assert "ssh gpu-7" in answers[0].hint
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("gpus", [True, False])
def test_without_nodes_a_machine_with_gpus_counts(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: bool
) -> None:
    monkeypatch.setattr(node, "_gpus_here", lambda: gpus)
    answers = ThisNode(("box",), env={"LD_LIBRARY_PATH": library}).collect(scope(), Folder(tmp_path / "out"), Deadline(10))

    assert (tmp_path / "out" / "smi" / "box-nvml.json").exists() == gpus
    assert any("is taken for one" in answer.detail for answer in answers) == gpus


def test_what_the_scheduler_calls_this_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "gpu-node-003")
    assert ThisNode().names[0] == "gpu-node-003"
    assert ThisNode()._me(scope("gpu-node-003")) == "gpu-node-003"
    assert ThisNode()._me(scope("gpu-node-004")) is None


def test_a_hung_driver_costs_the_deadline_once(library: str, tmp_path: Path) -> None:
    tool(tmp_path, "nvidia-smi", "trap '' TERM; while :; do sleep 30; done")
    source = ThisNode(("gpu-7",), env={"LD_LIBRARY_PATH": library, "FAKE_NVML": "hang=nvmlDeviceGetEccMode:2"})
    begun = time.monotonic()
    answers = source.collect(scope("gpu-7"), Folder(tmp_path / "out"), Deadline(3))

    assert time.monotonic() - begun < 4
    by = {answer.asked.split()[0]: answer for answer in answers}
    assert by["journalctl"].status == "ok"
    assert by["NVML"].status == "partial"
    assert "nvmlDeviceGetEccMode of GPU 2" in by["NVML"].detail
    assert by["nvidia-smi"].status == "failed"
    assert {event.signature for event in load(tmp_path / "out").records} >= {"smi-timeout", "xid-79"}


def test_a_message_of_failure_is_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    tool(tmp_path, "nvidia-smi", f'echo "{text}"; exit 9')
    monkeypatch.setattr(node, "_gpus_here", lambda: True)
    folder = tmp_path / "out"
    answers = ThisNode(("gpu-7",), env={"LD_LIBRARY_PATH": "/nonexistent"}).collect(scope("gpu-7"), Folder(folder), Deadline(10))

    (answer,) = [answer for answer in answers if answer.asked == "nvidia-smi -q"]
    assert (answer.status, answer.file) == ("partial", "smi/gpu-7-nvidia-smi-q.txt")
    assert "smi-no-driver" in {event.signature for event in load(folder).records}


def test_it_goes_on_where_it_was(library: str, tmp_path: Path) -> None:
    source = ThisNode(("gpu-7",), env={"LD_LIBRARY_PATH": library})
    source.collect(scope("gpu-7"), Folder(tmp_path / "out"), Deadline(10))
    answers = source.collect(scope("gpu-7"), Folder(tmp_path / "out"), Deadline(10))

    assert all("before" in answer.detail for answer in answers)


def test_a_full_folder_and_no_time_are_answers(library: str, tmp_path: Path) -> None:
    source = ThisNode(("gpu-7",), env={"LD_LIBRARY_PATH": library})
    full = source.collect(scope("gpu-7"), Folder(tmp_path / "out", limit=10), Deadline(10))
    late = source.collect(scope("gpu-7"), Folder(tmp_path / "late"), Deadline(-1))

    assert {answer.status for answer in full} == {"failed"}
    assert {answer.status for answer in late} <= {"failed", "ok"}
    assert any("deadline" in answer.detail for answer in late)


def test_doctor_of_a_gpu_node(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "_gpus_here", lambda: True)
    tool(tmp_path, "nvidia-smi", "echo 'NVIDIA-SMI version  : 570.133.20'")
    found = {reach.item: reach for reach in ThisNode(("gpu-7",), env={"LD_LIBRARY_PATH": library}).examine(Deadline(10))}

    assert found["gpu"].status == "ok"
    assert "8 GPUs, driver 570.133.20, CUDA 12.8" in found["gpu"].detail
    assert found["kernel log"].status == "ok"
    assert found["tool nvidia-smi"].detail == "nvidia-smi 570.133.20"
    assert found["tool dcgmi"].status == "warning"


def test_doctor_of_a_sick_node(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "_gpus_here", lambda: True)
    refused = Reading("kmsg", "refused", "no")
    for name in ("read_journal", "read_files", "read_kmsg", "read_dmesg"):
        monkeypatch.setattr(f"workbench.sources.node.kernel.{name}", lambda *_: refused)
    lost = ThisNode(("gpu-7",), env={"LD_LIBRARY_PATH": library, "FAKE_NVML": "lost=3"}).examine(Deadline(10))
    by = {reach.item: reach for reach in lost}
    hung = {
        reach.item: reach
        for reach in ThisNode(("gpu-7",), env={"LD_LIBRARY_PATH": library, "FAKE_NVML": "hang=nvmlInit_v2"}).examine(Deadline(3))
    }

    assert (by["gpu"].status, "GPU 3 did not answer" in by["gpu"].detail) == ("warning", True)
    assert by["kernel log"].status == "critical"
    assert "driver/hang" in by["kernel log"].blind_to
    assert hung["gpu"].status == "critical"
    assert "hardware/gpu-memory" in hung["gpu"].blind_to


def test_doctor_of_a_machine_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "_gpus_here", lambda: False)
    monkeypatch.setattr(
        node,
        "read_nvml",
        lambda *_, **__: {
            "ending": "init",
            "error": {"code": 12, "error": "NVML Shared Library Not Found"},
            "bus": [],
            "gpus": [],
            "hung": None,
            "why_not": {},
        },
    )
    found = ThisNode(("laptop",)).examine(Deadline(10))

    assert [reach.item for reach in found] == ["gpu", "kernel log"]
    assert found[0].status == "ok"


# ---- the kubelet's device assignments

CHECKPOINT = {
    "Data": {
        "PodDeviceEntries": [
            {
                "PodUID": "u-0",
                "ContainerName": "app",
                "ResourceName": "nvidia.com/gpu",
                "DeviceIDs": {"1": ["GPU-9b341c59-f96b-ba85-c137-78c3652fea65"]},
                "AllocResp": "CmsKFk5WSURJQV9WSVNJQkxFX0RFVklDRVM=",
            }
        ],
        "RegisteredDevices": {"nvidia.com/gpu": ["GPU-9b341c59-f96b-ba85-c137-78c3652fea65"]},
    },
    "Checksum": 3660592824,
}


def kubelet(tmp_path: Path, content: str) -> str:
    path = tmp_path / "kubelet" / "device-plugins"
    path.mkdir(parents=True)
    (path / "kubelet_internal_checkpoint").write_text(content)
    return str(path.parent)


def test_the_kubelets_assignments_are_kept_without_what_plugins_answered(tmp_path: Path) -> None:
    root = kubelet(tmp_path, json.dumps(CHECKPOINT))
    (answer,) = collect_checkpoint("gpu-7", Folder(tmp_path / "out"), root)

    assert (answer.status, answer.file, answer.rows) == ("ok", "kubelet/gpu-7.json", 1)
    assert "AllocResp" not in (tmp_path / "out" / "kubelet" / "gpu-7.json").read_text()
    (document,) = load(tmp_path / "out").documents
    assert document.kind == "kubelet-devices"
    assert [gpu.uuid for gpu in document.facts["kubelet_devices"]["u-0"]] == ["GPU-9b341c59-f96b-ba85-c137-78c3652fea65"]
    assert collect_checkpoint("gpu-7", Folder(tmp_path / "out"), root)[0].detail.endswith("read before")


def test_this_node_collects_them(library: str, tmp_path: Path) -> None:
    source = ThisNode(("gpu-7",), env={"LD_LIBRARY_PATH": library}, kubelet=kubelet(tmp_path, json.dumps(CHECKPOINT)))
    answers = source.collect(scope("gpu-7"), Folder(tmp_path / "out"), Deadline(10))
    assert "kubelet/gpu-7.json" in {answer.file for answer in answers if answer.status == "ok"}


@pytest.mark.parametrize("content", ["{", "[]", '{"Data": {}}', '{"Data": {"PodDeviceEntries": [{}]}}'])
def test_a_checkpoint_that_cannot_be_used_is_an_answer(tmp_path: Path, content: str) -> None:
    (answer,) = collect_checkpoint("gpu-7", Folder(tmp_path / "out"), kubelet(tmp_path, content))
    assert (answer.source, answer.status) == ("kubernetes", "partial")


def test_a_checkpoint_that_may_not_be_read_is_an_answer_and_none_is_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert collect_checkpoint("gpu-7", Folder(tmp_path / "out"), str(tmp_path / "none")) == []

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    (answer,) = collect_checkpoint("gpu-7", Folder(tmp_path / "out"), str(tmp_path))
    monkeypatch.undo()
    assert (answer.status, "root" in answer.hint) == ("partial", True)
    assert "Permission denied" in answer.detail
