"""Links, ports, services and packages: what is degraded against its twins is a suspect, what was never in use is not."""

from __future__ import annotations

from pathlib import Path

from workbench.catalog import signatures
from workbench.model import Event, Gpu, Line, Parsed
from workbench.parse.smi import parse_smi

DATA = Path(__file__).parents[1] / "data" / "smi"


def read(text: str) -> Parsed:
    return parse_smi([Line(no, line) for no, line in enumerate(text.splitlines(), 1)], file="smi/x.txt", node="gpu-n1")


def load(name: str) -> Parsed:
    return read((DATA / name).read_text(encoding="utf-8"))


def role(event: Event) -> str:
    return event.role or signatures()[event.signature].role


def by(parsed: Parsed, signature: str) -> list[Event]:
    return [event for event in parsed.events if event.signature == signature]


def test_all_functions_of_a_card_that_reads_ff_are_one_event() -> None:
    text = "\n".join(
        f"0000:{bus}:00.{function} {kind}: NVIDIA Corporation GA102 (rev {'ff' if bus == '5e' else 'a1'})"
        for bus in ("3b", "5e")
        for function, kind in ((0, "VGA compatible controller"), (1, "Audio device"))
    )
    (event,) = read(text).events
    assert event.gpu is not None
    assert (event.signature, event.gpu.pci, event.line) == ("lspci-rev-ff", "0000:5e:00.0", 3)


def test_unknown_header_type_is_a_card_off_the_bus() -> None:
    (event,) = read("3b:00.0 3D controller: NVIDIA Corporation GH100 (rev a1)\n\t!!! Unknown header type 7f\n").events
    assert event.signature == "lspci-rev-ff"


def test_network_adapter_that_reads_ff_is_a_network_fault() -> None:
    (event,) = read("5e:00.0 Infiniband controller: Mellanox Technologies MT28908 Family [ConnectX-6] (rev ff)").events
    assert (event.cls, event.gpu) == ("hardware/network-link", None)


def test_width_is_a_cause_and_speed_alone_context() -> None:
    parsed = load("lspci-narrow-and-missing.txt")
    assert [(event.gpu and event.gpu.index, role(event)) for event in by(parsed, "lspci-link-degraded")] == [
        (0, "cause"),
        (1, "context"),
    ]


def test_card_given_to_a_vm_is_not_missing() -> None:
    parsed = load("lspci-narrow-and-missing.txt")
    assert by(parsed, "smi-gpu-missing") == []
    assert by(parsed, "lspci-other-driver")[0].data["driver"] == "vfio-pci"


def test_card_on_the_bus_that_nvidia_smi_does_not_list_is_missing() -> None:
    text = (DATA / "lspci-narrow-and-missing.txt").read_text(encoding="utf-8").replace("vfio-pci", "nvidia")
    (event,) = by(read(text), "smi-gpu-missing")
    assert event.gpu is not None
    assert event.gpu.pci == "0000:af:00.0"


def test_port_down_among_ports_up_is_a_suspect() -> None:
    parsed = load("ibstat-one-port-down.txt")
    (down,) = by(parsed, "ib-port-down")
    assert (down.data["device"], role(down)) == ("mlx5_2", "cause")
    assert by(parsed, "ib-rate-low")[0].data["device"] == "mlx5_3"
    assert by(parsed, "ib-port-initializing")[0].data["device"] == "mlx5_4"


def test_disabled_port_is_context() -> None:
    down = by(load("ibstatus-and-devinfo.txt"), "ib-port-down")
    assert [(event.data["device"], role(event)) for event in down] == [("mlx5_1", "context"), ("mlx5_5", "context")]


def test_mlxlink_state_and_recommendation() -> None:
    text = "# mlxlink -d mlx5_3\n\nOperational Info\n----------------\nState                 : Polling\n"
    text += (
        "\nTroubleshooting Info\n--------------------\nStatus Opcode         : 1024\nRecommendation        : Cable is unplugged\n"
    )
    parsed = read(text)
    assert {event.signature for event in parsed.events} == {"ib-port-down", "mlxlink-recommendation"}
    assert parsed.events[0].data["device"] == "mlx5_3"


def test_inactive_links_are_weighed_against_peers() -> None:
    parsed = load("nvlink-one-gpu-down.txt")
    assert [(event.gpu and event.gpu.index, role(event)) for event in by(parsed, "smi-nvlink-inactive")] == [
        (1, "cause"),
        (2, "cause"),
    ]
    assert by(parsed, "smi-nvlink-recovery-failed")[0].data["link"] == 1


def test_links_that_no_gpu_has_are_not_wired() -> None:
    text = "".join(f"GPU {gpu}: NVIDIA A40 (UUID: x)\n\t Link 0: 14.062 GB/s\n\t Link 1: <inactive>\n" for gpu in range(4))
    assert {role(event) for event in by(read(text), "smi-nvlink-inactive")} == {"context"}


def test_topology_names_the_gpu_without_nvlink() -> None:
    (event,) = load("topo-gpu3-without-nvlink.txt").events
    assert event.gpu is not None
    assert (event.signature, event.gpu.index) == ("smi-topo-no-nvlink", 3)


def test_topology_of_a_box_without_nvlink_is_no_event() -> None:
    assert read("\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n").events == []


def test_failed_service_has_the_time_of_its_failure() -> None:
    parsed = load("systemctl-fabricmanager-failed.txt")
    (service,) = by(parsed, "fabric-manager-inactive")
    assert service.time == 1705314225.0
    assert by(parsed, "fabric-manager-version")[0].data["driver"] == "535.154.05"


def test_running_service_is_no_event() -> None:
    text = "● nvidia-fabricmanager.service - NVIDIA fabric manager service\n"
    text += "     Active: active (running) since Mon 2024-01-15 10:23:45 UTC; 5min ago"
    assert read(text).events == []


def test_unattended_upgrade_of_the_driver_is_context_with_its_time() -> None:
    first, second = by(load("packages-changed.txt"), "driver-upgraded")
    assert (first.data["package"], first.data["unattended"], first.time) == ("nvidia-driver-535", True, 1712730731.0)
    assert second.data["now"].startswith("535.171")
    assert role(first) == "context"


def test_session_of_many_tools_is_taken_apart() -> None:
    parsed = load("session-gb200.txt")
    fabric = [(event.line, event.data["state"]) for event in by(parsed, "smi-fabric-not-ready")]
    assert fabric == [(6, "In Progress")], "grep prints one GPU after another under the same keys"
    assert by(parsed, "fabric-manager-inactive")[0].text == "inactive"
    assert by(parsed, "ib-rate-low")[0].data["usual"] == "Could be 53.125 Gbps"
    assert role(by(parsed, "ib-port-down")[0]) == "context", "no other port is up to compare with"
    assert by(parsed, "smi-ecc-uncorrectable")[0].gpu == Gpu(pci="0009:01:00.0")
    assert {event.data["what"] for event in by(parsed, "smi-fabric-health")} == {"summary", "bandwidth", "route_unhealthy"}
    assert parsed.facts["module"] == "535.161.07"


def test_task_numbers_of_srun_are_taken_off() -> None:
    text = (DATA / "table-390-v100.txt").read_text(encoding="utf-8")
    parsed = read("\n".join(f"0: {line}" for line in text.splitlines()))
    assert [event.signature for event in parsed.events] == ["smi-ecc-uncorrectable"]
