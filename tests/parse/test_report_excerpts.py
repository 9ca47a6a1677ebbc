"""What people paste into a report (cut out, blacked out, of other vendors' GPUs) is read as what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.catalog import signatures
from workbench.incident import load
from workbench.model import Event, Line, Verdict
from workbench.parse.kernel import parse_kernel
from workbench.parse.smi import parse_smi
from workbench.sources.sniff import kind_of
from workbench.triage.verdict import judge


def kernel(text: str) -> list[Event]:
    rows = text.splitlines()
    return parse_kernel([Line(number, row) for number, row in enumerate(rows, 1)], file="k", node="gpu-7").events


def judged(event: Event) -> tuple[str, str]:
    row = signatures()[event.signature]
    return event.role or row.role, event.cls or row.cls


def verdict(folder: Path, files: dict[str, str]) -> Verdict:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return judge(load(str(folder)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("amdgpu 0000:83:00.0: amdgpu: ring comp_1.0.2 timeout, signaled seq=81, emitted seq=83", ("cause", "driver/hang")),
        (
            "amdgpu 0000:83:00.0: amdgpu: uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
            ("cause", "hardware/gpu-other"),
        ),
        (
            "amdgpu 0000:83:00.0: amdgpu: socket: 0, die: 1 2 new uncorrectable hardware errors detected in umc block",
            ("cause", "hardware/gpu-memory"),
        ),
        (
            "amdgpu 0000:83:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32781)",
            ("cause", "user/illegal-memory-access"),
        ),
        ("amdgpu 0000:83:00.0: amdgpu: MES failed to respond to msg=SUSPEND", ("cause", "driver/hang")),
        ("amdgpu 0000:83:00.0: amdgpu: GPU reset begin!", ("symptom", "driver/hang")),
        ("amdgpu 0000:83:00.0: amdgpu: Fatal error during GPU init", ("cause", "driver/other")),
    ],
)
@pytest.mark.parametrize("stamp", ["[ 412.118402] ", "Feb  3 10:11:12 gpu-7 kernel: ", "[Tue Feb  3 10:11:12 2026] "])
def test_the_kernel_names_an_amd_gpu_and_what_became_of_it(stamp: str, text: str, expected: tuple[str, str]) -> None:
    (event,) = kernel(stamp + text)

    assert judged(event) == expected
    assert event.gpu is not None
    assert event.gpu.pci == "0000:83:00.0"


def test_a_recovered_or_empty_count_of_an_amd_gpu_is_no_cause() -> None:
    events = kernel(
        "[ 12.1] amdgpu 0000:83:00.0: amdgpu: ring gfx timeout, but soft recovered\n"
        "[ 12.2] amdgpu 0000:83:00.0: amdgpu: socket: 0, die: 0 0 uncorrectable hardware errors detected in total in umc block\n"
        "[ 12.3] amdgpu 0000:83:00.0: amdgpu: socket: 0, die: 0 3 correctable hardware errors detected in total in umc block\n"
        "[ 12.4] amdgpu 0000:83:00.0: amdgpu: GPU mode1 reset is available"
    )

    assert [event for event in events if judged(event)[0] == "cause"] == []


def test_a_message_of_the_drm_core_is_of_the_amd_gpu_that_speaks_beside_it_unless_two_do() -> None:
    hang = "[ 12.1] [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma1 timeout, signaled seq=4, emitted seq=6\n"
    reset = "[ 12.2] amdgpu 0000:{}:00.0: amdgpu: GPU reset begin!\n"

    one = kernel(hang + reset.format("83"))
    two = kernel(hang + reset.format("83") + reset.format("c3"))

    assert [event.gpu.pci if event.gpu else None for event in one] == ["0000:83:00.0"] * 2
    assert [event.gpu.pci if event.gpu else None for event in two] == [None, "0000:83:00.0", "0000:c3:00.0"]


@pytest.mark.parametrize("address", ["...", "…", "<address>", "<redacted>", "xxxx:xx:xx", "XXXX:XX:00.0".replace("0", "X")])
def test_an_xid_whose_address_is_blacked_out_keeps_its_number(address: str) -> None:
    (event,) = kernel(f"[ 12.1] NVRM: Xid (PCI:{address}): 79, pid=412, name=python, GPU has fallen off the bus.")

    assert (event.signature, event.gpu, event.pid) == ("xid-79", None, 412)


def test_a_line_of_the_hostengine_without_its_time_is_what_the_watch_found() -> None:
    text = (
        "ERROR [4121:4123] [[Health]] Detected a WARNING in health system Thermal: 'Detected clocks event due to thermal "
        "violation in GPU 5. Verify that the cooling on this machine is functional'"
    )
    (event,) = parse_smi([Line(1, text)], file="x", node="gpu-7").events

    assert kind_of("logs/x.log", text.encode()) == "smi"
    assert (event.signature, event.gpu and event.gpu.index, event.time) == ("dcgmi-health-thermal", 5, None)
    assert kind_of("logs/x.log", b"ERROR [4121:4123] loss is not finite, stopping\n") == "job-log"


EVENTS = """
  Warning  Failed  2m17s  kubelet  Error: failed to start container "plugin": Error response from daemon: OCI runtime create failed: {}
nvidia-container-cli: {}: unknown
"""


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("detection error: cuda error: invalid device ordinal", "driver/other"),
        ("initialization error: nvml error: driver not loaded", "driver/missing"),
    ],
)
def test_events_cut_out_of_a_describe_say_why_a_container_did_not_start(tmp_path: Path, said: str, expected: str) -> None:
    """The container toolkit's name begins like a module's, its lines are no kernel's."""
    text = EVENTS.format("hook #0: exit status 1, stdout: , stderr: ", said).strip("\n")

    assert kind_of("logs/x.log", text.encode()) == "kubernetes-text"
    assert verdict(tmp_path, {"logs/x.log": text}).cls == expected


def test_no_device_in_a_program_is_the_gpu_that_the_driver_lost(tmp_path: Path) -> None:
    found = verdict(
        tmp_path,
        {
            "logs/job.log": "RuntimeError: CUDA error: no CUDA-capable device is detected",
            "smi/nvidia-smi.txt": "Unable to determine the device handle for GPU 0000:83:00.0: GPU is lost.  Reboot\n"
            " the system to recover this GPU",
        },
    )

    assert (found.cls, found.gpu and found.gpu.pci) == ("hardware/gpu-lost", "0000:83:00.0")


CONDITIONS = """Conditions:
  Type                   Status  LastHeartbeatTime                 LastTransitionTime                Reason                             Message
  ----                   ------  -----------------                 ------------------                ------                             -------
  GpuThermalMarginWatch  True    Tue, 03 Feb 2026 10:15:57 +0000   Tue, 03 Feb 2026 10:11:57 +0000   GpuThermalMarginWatchIsNotHealthy  \
ErrorCode:GPU_TEMP_HW_SLOWDOWN_VIOLATION GPU:3 thermal margin -4 C below HW slowdown T.Limit Recommended Action=CONTACT_SUPPORT;
  Ready                  True    Tue, 03 Feb 2026 10:15:57 +0000   Tue, 03 Feb 2026 09:30:57 +0000   KubeletReady                       \
kubelet is posting ready status"""


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("step 411 loss 2.1 2.4 s/it", "hardware/thermal-power"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "user/gpu-oom"),
    ],
)
def test_a_gpu_hotter_than_its_slowdown_limit_is_named_unless_the_job_says_what_ended_it(
    tmp_path: Path, log: str, expected: str
) -> None:
    assert verdict(tmp_path, {"kubernetes/node.txt": CONDITIONS, "logs/job.log": log}).cls == expected


def test_a_jax_process_that_no_longer_hears_of_preemptions_was_not_preempted(tmp_path: Path) -> None:
    text = (
        "2026-02-11 09:12:44.118204: W external/xla/xla/tsl/distributed_runtime/preemption/preemption_sync_manager.cc:219] "
        "Failed to retrieve preemption notice from coordination service: UNAVAILABLE: Socket closed\n"
    )

    assert verdict(tmp_path / "alone", {"logs/job.log": text}).cls == "unknown"
    assert (
        verdict(tmp_path / "nan", {"logs/job.log": text + "FloatingPointError: invalid value (nan) in add"}).cls
        == "user/numerics"
    )


def test_a_rank_that_polls_the_store_in_vain_is_a_symptom(tmp_path: Path) -> None:
    text = (
        "[W203 10:11:12.400000000 socket.cpp:462] [c10d] waitForInput: poll for socket SocketImpl(fd=9, "
        "addr=[node-a]:38000, remote=[node-b]:29500) returned 0, likely a timeout\n"
    )
    found = verdict(tmp_path, {"logs/job.log": text})

    assert found.cls == "unknown"
    assert [judged(event) for event in found.evidence_records] == [("symptom", "unknown")]
