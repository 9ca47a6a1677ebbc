"""Containers: a device plugin whose socket nobody listens on, a toolkit that sees less than the driver, a CDI file of yesterday."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.health.host_tree import Host, codes
from workbench.health import fitness
from workbench.parse.container_toolkit import parse_cdi

_UUIDS = ["GPU-5a2b1c3d-0000-1111-2222-333344445555", "GPU-5a2b1c3d-0000-1111-2222-333344446666"]
_GPU = '<gpu id="00000000:{bus}:00.0"><product_name>NVIDIA L40S</product_name><uuid>{uuid}</uuid></gpu>'
_SMI = (
    '<?xml version="1.0" ?><nvidia_smi_log><driver_version>550.54.15</driver_version><attached_gpus>2</attached_gpus>\n'
    + "\n".join(_GPU.format(bus=bus, uuid=uuid) for bus, uuid in zip(("17", "3B"), _UUIDS, strict=True))
    + "\n</nvidia_smi_log>\n"
)
_CLI = "NVRM version:   550.54.15\nCUDA version:   12.4\n" + "".join(
    f"\nDevice Index:   {at}\nDevice Minor:   {at}\nModel:          NVIDIA L40S\nBrand:          Nvidia\nGPU UUID:       {uuid}\nBus Location:   00000000:17:00.0\nArchitecture:   8.9\n"
    for at, uuid in enumerate(_UUIDS)
)
_CDI = """---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
  mounts:
  - containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15
    hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15
    options: [ro, nosuid]
  hooks:
  - hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
- name: all
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
"""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    for address in ("0000:17:00.0", "0000:3b:00.0"):
        host.files(f"/sys/bus/pci/devices/{address}", {"vendor": "0x10de", "class": "0x030200"})
    host.tool("nvidia-smi", _SMI)
    host.file("/proc/700/stat", "700 (containerd) S 1 700 700 0 -1 4194560 1 2 3 4 5\n")
    return host


@pytest.fixture
def sockets() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def listen(host: Host, name: str, sockets: ExitStack, *, dead: bool = False) -> None:
    folder = host.path("/var/lib/kubelet/device-plugins")
    folder.mkdir(parents=True, exist_ok=True)
    directory = os.open(folder, os.O_PATH)
    server = sockets.enter_context(socket.socket(socket.AF_UNIX))
    server.bind(f"/proc/self/fd/{directory}/{name}")
    os.close(directory)
    if not dead:
        server.listen()


def test_a_node_without_containers_or_without_gpus_needs_nothing(tmp_path: Path) -> None:
    assert codes(Host(tmp_path / "a").run("containers")) == {("", "not-applicable")}
    host = Host(tmp_path / "b")
    host.file("/proc/700/stat", "700 (containerd) S 1 700 700 0 -1 4194560 1 2 3 4 5\n")
    assert codes(host.run("containers")) == {("", "not-applicable")}


def test_a_runtime_alone_is_no_promise_unless_the_site_makes_it(host: Host) -> None:
    assert codes(host.run("containers")) == {("", "not-applicable")}
    wanted = host.run("containers", containers=True)
    assert codes(wanted) == {("", "toolkit-missing")}
    assert fitness(wanted) == "critical"


def test_all_parts_in_order(host: Host, sockets: ExitStack) -> None:
    listen(host, "kubelet.sock", sockets)
    listen(host, "nvidia-gpu.sock", sockets)
    host.tool("nvidia-container-cli", _CLI)
    host.file("/etc/cdi/nvidia.yaml", _CDI)
    for path in ("/dev/nvidiactl", "/dev/nvidia0", "/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15"):
        host.file(path, "")
    findings = host.run("containers", containers=True)
    assert {one.status for one in findings} == {"ok"}
    assert len(findings) == 3


def test_a_socket_that_nobody_listens_on_is_a_dead_plugin(host: Host, sockets: ExitStack) -> None:
    listen(host, "kubelet.sock", sockets)
    listen(host, "nvidia-gpu.sock", sockets, dead=True)
    findings = host.run("containers", containers=True)
    assert codes(findings) == {("device plugin nvidia-gpu.sock", "device-plugin-dead")}
    assert fitness(findings) == "critical"


def test_kubelet_without_a_plugin_and_one_that_is_gone(host: Host, sockets: ExitStack) -> None:
    listen(host, "kubelet.sock", sockets)
    assert codes(host.run("containers")) == {("device plugin", "device-plugin-missing")}
    host.path("/var/lib/kubelet/plugins/gpu.nvidia.com").mkdir(parents=True)
    assert codes(host.run("containers")) == {("", "not-applicable")}


def test_a_toolkit_that_sees_less_than_the_driver(host: Host) -> None:
    host.tool("nvidia-container-cli", _CLI[: _CLI.rindex("Device Index")])
    (only,) = host.run("containers")
    assert only.code == "toolkit-broken"
    assert only.evidence == (f"not seen: {_UUIDS[1]}",)
    host.tool("nvidia-container-cli", _CLI.replace("550.54.15", "535.104.05"))
    assert "535.104.05" in host.run("containers")[0].summary


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("echo 'nvidia-container-cli: initialization error: nvml error: driver not loaded' >&2; exit 1", "critical"),
        ("exit 0", "unknown"),
        ("echo x", "unknown"),
        ("sleep 60", "unknown"),
    ],
)
def test_a_toolkit_that_fails_is_never_healthy(host: Host, script: str, status: str) -> None:
    host.tool("nvidia-container-cli", script=script)
    assert fitness(host.run("containers", containers=True)) == status


def test_a_specification_for_another_driver(host: Host) -> None:
    host.file("/etc/cdi/nvidia.yaml", _CDI)
    host.file("/dev/nvidiactl", "")
    host.file("/dev/nvidia0", "")
    (only,) = host.run("containers")
    assert (only.code, only.evidence) == ("cdi-stale", ("/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15",))
    host.file("/etc/cdi/nvidia.yaml", "kind: [")
    assert codes(host.run("containers")) == {("/etc/cdi/nvidia.yaml", "cdi-stale")}
    host.file("/etc/cdi/nvidia.yaml", _CDI.replace("nvidia.com/gpu", "vendor.com/nic"))
    assert codes(host.run("containers")) == {("", "not-applicable")}


def test_a_specification_that_names_other_gpus(host: Host) -> None:
    host.file(
        "/var/run/cdi/nvidia.json", json.dumps({"kind": "nvidia.com/gpu", "devices": [{"name": _UUIDS[0]}, {"name": "GPU-dead"}]})
    )
    (only,) = host.run("containers")
    assert (only.code, set(only.evidence)) == ("cdi-stale", {f"not named: {_UUIDS[1]}", "gone: GPU-dead"})


def test_what_is_no_specification() -> None:
    assert parse_cdi("") is None
    assert parse_cdi("{}") is None
    assert parse_cdi("- a\n- b\n") is None
