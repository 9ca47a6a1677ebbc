"""More families of platform messages: operators, health checks, file systems, clouds and boards, judged as a whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from workbench.catalog import signatures
from workbench.incident import load
from workbench.model import Event, Gpu, Line, Parsed
from workbench.parse.health_records import record_event
from workbench.parse.kernel import parse_kernel
from workbench.parse.kubernetes_reasons import classify
from workbench.parse.slurm_log import parse_slurm_log
from workbench.parse.slurm_words import reason_meaning
from workbench.parse.smi import parse_smi
from workbench.sources.sniff import kind_of
from workbench.triage.verdict import judge


def lines(text: str) -> list[Line]:
    return [Line(number, row) for number, row in enumerate(text.splitlines(), 1)]


def judged(event: Event) -> tuple[str, str]:
    row = signatures()[event.signature]
    return event.role or row.role, event.cls or row.cls


def verdict(folder: Path, files: dict[str, str]) -> tuple[str, str | None]:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    found = judge(load(str(folder)))
    return found.cls, found.node


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024/05/04 10:00:00 Failed to initialize NVML: could not load NVML library.", "platform/config"),
        (
            (
                'level=info msg="Error: error validating driver installation: error creating symlink creator: failed to create '
                'NVIDIA device nodes: failed to create device node nvidia-uvm: failed to determine major: invalid device node"'
            ),
            "platform/config",
        ),
        ('level=fatal msg="Error selecting MIG config: selected mig-config not present: all-2g.12gb"', "platform/config"),
        ('level=error error="failed to get sandbox runtime: no runtime for "nvidia" is configured"', "platform/config"),
        ("XidCriticalError: Xid=79 on Device=GPU-8d1f6c90-5782-c478-4b2a-0000000000ae; marking device", "hardware/gpu-lost"),
        ("XidCriticalEvent: Xid=94 on Device=GPU-8d1f6c90-5782-c478-4b2a-0000000000ae, unhealthy", "hardware/gpu-memory"),
        (
            "Workload couldn't fit: insufficient unused quota for nvidia.com/gpu in flavor h100, 8 more needed",
            "platform/scheduler",
        ),
        ("2026/05/04 10:00:00 INF Got interruption event from channel drainLabel=spot-itn event-id=x", "platform/preemption"),
        ("op-1  compute.instances.terminateOnHostMaintenance  zone/instances/gpu-7  200  DONE", "platform/preemption"),
        ("op-1  compute.instances.hostError  zone/instances/gpu-7  200  DONE", "platform/node-lost"),
        ("[2026-03-01T10:00:00.000] fatal: Invalid node names in topology.conf", "platform/config"),
        ("2024-03-19_02:11:40.119+0100: [E] Disk failure.  Volume scratch. rc = 5. Physical volume nsd12.", "platform/storage"),
        ("(0) Mar19 02:11:40 kworker/3:2 [NodeConn (acquire stream)] >> Connect failed: storage stor-2", "platform/storage"),
        ("A double-bit ECC error has violated policy manager values.", "hardware/gpu-memory"),
    ],
)
def test_lines_of_platform_programs(tmp_path: Path, text: str, expected: str) -> None:
    assert verdict(tmp_path, {"logs/x.log": text})[0] == expected


@pytest.mark.parametrize(
    "text",
    [
        "MIG configuration applied successfully\nChanging the 'nvidia.com/mig.config.state' node label to 'success'",
        "Node Health Check starting.\nNode Health Check completed successfully (2s TOTAL, 0.4s for checks).",
        "Starting GRPC server for 'nvidia.com/gpu'\nRegistered device plugin for 'nvidia.com/gpu' with Kubelet",
    ],
)
def test_what_goes_well_is_no_fault(tmp_path: Path, text: str) -> None:
    assert verdict(tmp_path, {"logs/x.log": text})[0] in ("none", "unknown")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("check_gpu_count:  Expected 8 GPUs, found 7", "hardware/gpu-lost"),
        ("check_fs_mount:  /scratch not mounted", "platform/storage"),
        ("check_hw_ib:  No IB port mlx5_3:1 is ACTIVE (LinkUp 400 Gb/sec).", "hardware/network-link"),
        ("check_gpu_ecc: GPU id 3: SRAM Uncorrectable ECC error count detected, (5).", "hardware/gpu-memory"),
    ],
)
def test_node_health_check(said: str, expected: str) -> None:
    parsed = parse_slurm_log(lines(f"ERROR:  nhc:  Health check failed:  {said}"), file="nhc.log", node="gpu-7")
    (event,) = parsed.events
    assert (*judged(event), event.node) == ("cause", expected, "gpu-7")
    if "GPU id" in said:
        assert event.gpu == Gpu(index=3)


def test_a_health_check_without_a_finding_is_context() -> None:
    (event,) = parse_slurm_log(lines("nhc:  Health check failed:  check_ps_loadavg:  too busy"), file="x").events
    assert judged(event)[0] == "context"


def test_fewer_gpus_than_configured_blame_no_hardware(tmp_path: Path) -> None:
    """The MIG layout changes the count as well as a lost GPU does; a sign of the GPU itself decides."""
    text = (
        "[2026-03-01T10:00:00.101] error: Setting node gpu-7 state to INVAL with reason:gres/gpu count reported lower than "
        "configured (3 < 4)"
    )
    assert verdict(tmp_path / "a", {"logs/slurmctld.log": text}) == ("platform/scheduler", "gpu-7")
    lost = "[ 12.100000] NVRM: Xid (PCI:0000:c1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    assert verdict(tmp_path / "b", {"logs/slurmctld.log": text, "kernel/gpu-7.log": lost}) == ("hardware/gpu-lost", "gpu-7")


def test_memory_refused_by_a_gpu_with_errors(tmp_path: Path) -> None:
    table = "\n".join(
        (
            "| NVIDIA-SMI 450.51.05    Driver Version: 450.51.05    CUDA Version: 11.0     |",
            "|   0  Tesla V100S-PCI...  Off  | 00000000:00:07.0 Off |                    {0} |",
            "| N/A   49C    P0   214W / 250W |   4617MiB / 32510MiB |     99%      Default |",
        )
    )
    job = "RuntimeError: CUDA error: out of memory"
    assert verdict(tmp_path / "a", {"logs/x.log": job, "smi/gpu-7.txt": table.format(1)})[0] == "hardware/gpu-memory"
    assert verdict(tmp_path / "b", {"logs/x.log": job, "smi/gpu-7.txt": table.format(0)})[0] == "user/gpu-oom"


def test_allocation_that_fails_in_the_plugin_names_no_card() -> None:
    text = (
        "Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: error calling nvml.Init: Unknown Error"
    )
    meaning = classify("UnexpectedAdmissionError", text)
    assert meaning is not None
    assert (meaning.signature, meaning.cls) == ("k8s-allocate-failed", "platform/config")


def test_states_of_a_health_agent() -> None:
    state = {"time": "2025-04-01T23:57:40Z", "name": "error_xid", "health": "Unhealthy"}
    found = {
        "component": "accelerator-nvidia-error-xid",
        "states": [state | {"reason": "XID 79(lost) detected on PCI:0000:ae:00"}],
    }
    event = record_event(found)
    assert event is not None
    assert (event.signature, event.gpu) == ("xid-79", Gpu(pci="0000:ae:00.0"))
    event = record_event({"component": "t", "states": [state | {"reason": "failed to get temperature: ERROR_GPU_IS_LOST"}]})
    assert event is not None
    assert judged(event) == ("symptom", "hardware/gpu-lost")
    assert record_event({"component": "disk", "states": [{"health": "Healthy", "reason": "ok"}]}) is None


def test_a_task_hangs_on_the_gpu_of_the_xid_before() -> None:
    stack = " nvidia_ioctl+0x6f4/0x850 [nvidia]"
    hung = "INFO: task nvidia-smi:150 blocked for more than 120 seconds."
    rows = [(100, "NVRM: Xid (PCI:0000:61:00): 45, pid=1, name=x, Ch 0000000a"), (300, hung), (300, "Call Trace:"), (300, stack)]

    def gpu(more: list[tuple[int, str]]) -> Gpu | None:
        text = "\n".join(f"[{at}.000000] {row}" for at, row in [*more, *rows])
        return next(event for event in parse_kernel(lines(text), file="k", node="n").events if event.signature == "hung-task").gpu

    first = gpu([])
    assert first is None or first.pci == "0000:61:00.0"
    assert gpu([(90, "NVRM: Xid (PCI:0000:62:00): 45, pid=1, name=x, Ch 0000000a")]) is None


def test_lifecycle_log_of_a_board() -> None:
    text = "2026-05-04 11:02:03  CRITICAL  MEM0001  Multi-bit memory errors detected on a memory device at location(s) DIMM_A3.\n"
    assert kind_of("lclog.txt", text.encode()) == "bmc"
    assert kind_of("app.log", b"2026-05-04 11:02:03  CRITICAL  request failed\n") != "bmc"


def test_health_box_shows_its_message() -> None:
    box = (
        "| Health Monitor Report                                                                |\n"
        "| Overall Health            | Failure                                                  |\n"
        "| -> 3                      | Failure                                                  |\n"
        "|       -> NVLINK system    | Failure                                                  |\n"
        "|                           | GPU 3's NvLink link 2 is currently down Run a field      |\n"
    )
    parsed: Parsed = parse_smi(lines(box), file="smi/x.txt", node="gpu-7")
    (event,) = parsed.events
    assert (judged(event), event.line) == (("cause", "hardware/nvlink"), 5)
    assert re.search("link 2 is currently down", event.text)


def test_state_of_a_service_is_output_of_a_tool() -> None:
    text = (
        "× nvidia-fabricmanager.service - NVIDIA fabric manager service\n"
        "     Loaded: loaded (/lib/systemd/system/nvidia-fabricmanager.service; enabled; vendor preset: enabled)\n"
        "     Active: failed (Result: exit-code) since Mon 2026-05-04 10:00:00 UTC; 3min ago\n"
    )
    assert kind_of("logs/status.txt", text.encode()) == "smi"
    (event,) = parse_smi(lines(text), file="x", node="gpu-7").events
    assert judged(event) == ("cause", "driver/fabric-manager")


def test_a_cut_reason_of_a_lower_count() -> None:
    assert reason_meaning("gres/gpu count repor")["signature"] == "slurm-gres-low"
