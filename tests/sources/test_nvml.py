"""NVML is read in a process of its own; what it says, and what it does not, gives the events that nvidia-smi -q gives."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.nvml_fake import build
from workbench.catalog import table
from workbench.incident import Incident, load
from workbench.model import Line
from workbench.parse.nvml_doc import INIT_SIGNATURES, is_nvml, parse_nvml
from workbench.parse.smi import parse_smi
from workbench.sources.node import nvml
from workbench.sources.node.nvml import SCHEMA, read_nvml
from workbench.sources.sniff import kind_of

Play = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def play(library: str) -> Play:
    """Read NVML of a node that plays something."""

    def read(what: str = "", seconds: float = 10.0) -> dict[str, Any]:
        return read_nvml(seconds, node="gpu-7", env={"LD_LIBRARY_PATH": library, "FAKE_NVML": what})

    return read


def triaged(document: dict[str, Any], folder: Path) -> Incident:
    path = folder / "smi" / "gpu-7-nvml.json"
    path.parent.mkdir()
    path.write_text(json.dumps(document, indent=1) + "\n")
    return load(folder)


def test_a_healthy_node(play: Play) -> None:
    document = play()

    assert document["schema"] == SCHEMA
    assert (document["ending"], document["error"], document["hung"]) == ("whole", None, None)
    assert (document["driver"], document["nvml"], document["cuda"], document["count"]) == (
        "570.133.20",
        "12.570.133.20",
        "12.8",
        8,
    )
    assert len(document["gpus"]) == 8
    gpu = document["gpus"][1]
    assert gpu["uuid"] == "GPU-00000000-0000-0000-0000-000000000001"
    assert gpu["pci"] == "00000000:3B:00.0"
    assert gpu["memory"] == {"total": 85520809984, "used": 1 << 30, "free": 85520809984 - (1 << 30)}
    assert gpu["ecc.volatile.uncorrected_dram"] == 0
    assert gpu["remapped_rows"] == {"correctable": 0, "uncorrectable": 0, "pending": False, "failure": False}
    assert (gpu["temperature.gpu"], gpu["power.watts"], gpu["clocks.sm"], gpu["throttle"]) == (34, 71.3, 1980, ["idle"])
    assert (gpu["pcie.generation"], gpu["pcie.width"], gpu["pcie.replays"]) == (5, 16, 0)
    assert len(gpu["nvlink"]) == 18
    assert gpu["fabric"]["state"] == "Completed"
    assert gpu["recovery_action"] == "None"
    assert gpu["retired_pages.double_bit"] is None
    assert gpu["why_not"]["retired_pages.double_bit"] == {
        "code": 3,
        "error": "Not Supported",
        "call": "nvmlDeviceGetRetiredPages",
    }
    assert gpu["why_not"]["fan"]["code"] == 3  # an SXM module has none


def test_this_process_never_opens_nvml(play: Play) -> None:
    play()
    assert "pynvml" not in sys.modules


@pytest.mark.parametrize(
    ("what", "cls", "signature", "gpu"),
    [
        ("lost=3", "hardware/gpu-lost", "smi-gpu-lost", 3),
        ("lost-late=3", "hardware/gpu-lost", "smi-gpu-lost", 3),
        ("unknown=1", "hardware/gpu-lost", "smi-err-field", 1),
        ("ecc=2", "hardware/gpu-memory", "smi-ecc-uncorrectable", 2),
        ("remap=4", "hardware/gpu-memory", "smi-remap-pending", 4),
        ("remap-failed=4", "hardware/gpu-memory", "smi-remap-failure", 4),
        ("heat=1", "hardware/thermal-power", "smi-throttle-thermal", 1),
        ("link=0", "hardware/nvlink", "smi-nvlink-inactive", 0),
        ("new-links=6", "hardware/nvlink", "smi-nvlink-recovery-failed", 6),
        ("narrow=6", "hardware/pcie", "smi-link-degraded", 6),
        ("fabric=5", "driver/fabric-manager", "smi-fabric-not-ready", 5),
        ("hang=nvmlDeviceGetPowerUsage:5", "driver/hang", "smi-timeout", 5),
        ("hang=nvmlInit_v2", "driver/hang", "smi-timeout", None),
        ("init=18", "driver/version-mismatch", "smi-version-mismatch", None),
        ("init=4", "platform/config", "smi-nvml-no-permission", None),
    ],
)
def test_a_fault_gets_its_verdict(play: Play, tmp_path: Path, what: str, cls: str, signature: str, gpu: int | None) -> None:
    incident = triaged(play(what, 1.5 if "hang" in what else 10.0), tmp_path)
    verdict = incident.triage()

    assert verdict.cls == cls
    assert verdict.node == "gpu-7"
    (event, *_) = [event for event in incident.records if event.signature == signature]
    assert (event.gpu.index if event.gpu else None) == gpu
    assert event.line is not None
    if gpu is not None and what.split("=")[0] in ("ecc", "remap", "heat", "narrow", "fabric"):
        text = (tmp_path / "smi" / "gpu-7-nvml.json").read_text().splitlines()
        key = event.text.split(": ")[1].split(" = ")[0]
        assert f'"{key}":' in text[event.line - 1]


@pytest.mark.parametrize("what", ["", "mig=1", "busy=2", "garbage=2"])
def test_what_is_no_fault_blames_nobody(play: Play, tmp_path: Path, what: str) -> None:
    incident = triaged(play(what), tmp_path)

    assert not [event for event in incident.records if (event.role or "") == "cause"]
    assert incident.triage().cls == "unknown"
    assert len(incident.placement_records) == (2 if what == "busy=2" else 0)


def test_the_health_of_the_fabric(play: Play, tmp_path: Path) -> None:
    (event,) = triaged(play("fabric-slow=4"), tmp_path).records

    assert (event.signature, event.gpu.index if event.gpu else None, event.data["what"]) == ("smi-fabric-health", 4, "bandwidth")


def test_a_wrong_configuration_of_the_fabric_has_bits_of_its_own() -> None:
    """The two-bit faults below it are all well (2, not faulty), and so is a mask that says nothing (0) or right (1)."""

    def told(configuration: int) -> list[tuple[str, str]]:
        state = {"state": "Completed", "status": 0, "health_mask": configuration << 8 | 0b10101010}
        document = {"schema": SCHEMA, "node": "n", "ending": "whole", "gpus": [{"index": 4, "uuid": "GPU-1", "fabric": state}]}
        found = parse_nvml(document, file="a.json").events
        return [(event.signature, event.data["value"]) for event in found]

    assert [told(code) for code in (0, 1)] == [[], []]
    assert told(5) == [("smi-fabric-health", "Insufficient NVLinks")]
    assert told(13) == [("smi-fabric-health", "code 13")]


def test_a_lost_gpu_gets_the_address_that_is_left(play: Play, tmp_path: Path) -> None:
    """NVML has no word for a lost GPU; the kernel still lists its address."""
    document = play("lost=3")
    bus = [0x19, 0x3B, 0x4C, 0x5D, 0x9B, 0xBB, 0xCB, 0xDB]
    document["bus"] = [{"pci": f"0000:{number:02x}:00.0", "driver": "nvidia"} for number in bus]
    verdict = triaged(document, tmp_path).triage()

    assert verdict.gpu is not None
    assert verdict.gpu.pci == "0000:5d:00.0"


def test_a_gpu_that_the_bus_has_and_nvml_has_not(play: Play, tmp_path: Path) -> None:
    document = play("count=2")
    document["bus"] = [{"pci": f"0000:{number}:00.0", "driver": "nvidia"} for number in ("19", "3b", "4c")]

    assert [
        event.gpu.pci for event in triaged(document, tmp_path).records if event.signature == "smi-gpu-missing" and event.gpu
    ] == ["0000:4c:00.0"]


def test_a_call_that_never_returns_costs_the_deadline_and_no_more(play: Play) -> None:
    """The child ignores SIGTERM, as one in state D does."""
    begun = time.monotonic()
    document = play("hang=nvmlDeviceGetPowerUsage:5", 1.0)

    assert time.monotonic() - begun < 2.5
    assert document["ending"] == "hang"
    assert document["hung"] == {"call": "nvmlDeviceGetPowerUsage", "gpu": 5}
    assert len(document["gpus"]) == 6
    assert document["gpus"][4]["recovery_action"] == "None"
    assert document["gpus"][5]["temperature.gpu"] == 38


def test_a_library_that_crashes(play: Play, tmp_path: Path) -> None:
    document = play("crash=nvmlDeviceGetUUID:1")

    assert document["ending"] == "crash"
    assert document["error"]["error"] == "was ended by SIGSEGV in nvmlDeviceGetUUID"
    assert [problem.status for problem in triaged(document, tmp_path).problems] == ["partial"]


def test_garbage_is_null_with_its_reason(play: Play) -> None:
    gpu = play("garbage=2")["gpus"][2]

    for key in ("name", "memory", "temperature.gpu", "power.watts", "utilization"):
        assert gpu[key] is None
        assert gpu["why_not"][key]["code"] is None
    assert "no plausible value: 4294967295" in gpu["why_not"]["temperature.gpu"]["error"]
    assert play("count=4294967295")["gpus"] == []


def test_mig_and_processes(play: Play) -> None:
    gpu = play("mig=1")["gpus"][1]
    assert gpu["mig.mode"] == {"current": True, "pending": True}
    assert [instance["uuid"][:4] for instance in gpu["mig.instances"]] == ["MIG-", "MIG-"]
    busy = play("busy=2")["gpus"][2]["processes"]
    assert busy == [{"pid": 91823, "type": "C", "memory": 70 << 30}, {"pid": 91824, "type": "C", "memory": None}]


def test_no_driver_on_a_machine_without_gpus_blames_nobody(play: Play, tmp_path: Path) -> None:
    document = play("no-driver") | {"bus": []}
    incident = triaged(document, tmp_path)

    assert document["error"] == {"code": 9, "error": "Driver Not Loaded"}
    assert not incident.records
    assert [problem.status for problem in incident.problems] == ["missing"]


def test_no_driver_on_a_machine_with_gpus(play: Play, tmp_path: Path) -> None:
    document = play("no-driver") | {"bus": [{"pci": "0000:19:00.0", "driver": ""}]}

    assert [event.signature for event in triaged(document, tmp_path).records] == ["smi-nvml-not-loaded"]


def test_no_library() -> None:
    document = read_nvml(10, env={"LD_LIBRARY_PATH": "/nonexistent"})
    if document["ending"] == "whole":
        pytest.skip("this machine has NVIDIA's library")
    assert document["error"]["code"] in (9, 12)


def test_no_pynvml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nvml, "find_spec", lambda name: None)
    monkeypatch.setattr(nvml.sys, "executable", _bare_python(tmp_path))
    document = read_nvml(10)

    assert document["ending"] == "no-pynvml"
    assert "No module named" in document["error"]["error"]


def _bare_python(folder: Path) -> str:
    """A python that has no site-packages."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_no_reader_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml.sys, "executable", "/nonexistent/python")
    assert read_nvml(5)["ending"] == "not-started"


def test_the_fake_has_the_layout_that_pynvml_expects(library: str, tmp_path: Path) -> None:
    """Sizes of the structs in nvml_min.h, asked in a process of its own since this one must not import pynvml."""
    import subprocess

    code = """
import ctypes, pynvml as n
names = ["nvmlPciInfo_t", "c_nvmlMemory_t", "c_nvmlEccSramErrorStatus_v1_t", "c_nvmlRowRemapperHistogramValues", "c_nvmlUtilization_t", "c_nvmlGpuFabricInfo_v2_t", "c_nvmlFieldValue_t"]
print([ctypes.sizeof(getattr(n, name)) for name in names])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == [68, 24, 104, 20, 8, 36, 40]
    assert ctypes.sizeof(ctypes.c_void_p) == 8


# ---- the document


def test_the_document_is_known_by_its_content() -> None:
    text = json.dumps({"schema": SCHEMA, "node": "n", "gpus": []}, indent=1).encode()

    assert kind_of("evidence.json", text) == "smi"
    assert is_nvml(json.loads(text))
    assert not is_nvml({"schema": "workbench.verdict/1"})
    assert not is_nvml([])
    assert parse_nvml({}, file="f").problems


Q = """
==============NVSMI LOG==============

Driver Version                            : 570.133.20
CUDA Version                              : 12.8

Attached GPUs                             : 1
GPU 00000000:3B:00.0
    GPU UUID                              : GPU-1d0c0c4e-7d0e-1a22-9f4a-0c3f5d9a1b02
    GPU Recovery Action                   : Drain and Reset
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 1
            Link Width
                Max                       : 16x
                Current                   : 8x
        Replays Since Reset               : 5120
    Clocks Event Reasons
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
    Utilization
        GPU                               : 88 %
    ECC Errors
        Volatile
            SRAM Uncorrectable            : 1
            DRAM Uncorrectable            : 2
        Aggregate
            SRAM Uncorrectable            : 12
            DRAM Uncorrectable            : 2
            SRAM Threshold Exceeded       : Yes
        Channel Repair Pending            : Yes
        TPC Repair Pending                : No
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 9
        Pending                           : Yes
        Remapping Failure Occurred        : Yes
        Bank Remap Availability Histogram
            None                          : 1 bank(s)
    Temperature
        GPU Current Temp                  : 89 C
        GPU Slowdown Temp                 : 87 C
    Fabric
        State                             : In Progress
        Status                            : N/A
"""


def test_the_same_state_gives_the_same_events_as_nvidia_smi() -> None:
    gpu = {
        "index": 0,
        "uuid": "GPU-1d0c0c4e-7d0e-1a22-9f4a-0c3f5d9a1b02",
        "pci": "00000000:3B:00.0",
        "recovery_action": "Drain and Reset",
        "pcie.generation": 1,
        "pcie.generation_max": 5,
        "pcie.width": 8,
        "pcie.width_max": 16,
        "pcie.replays": 5120,
        "throttle": ["hw_slowdown", "hw_thermal_slowdown"],
        "utilization": {"gpu": 88, "memory": 10},
        "ecc.volatile.uncorrected_total": 3,
        "ecc.volatile.uncorrected_sram": 1,
        "ecc.volatile.uncorrected_dram": 2,
        "ecc.aggregate.uncorrected_total": 14,
        "ecc.aggregate.uncorrected_sram": 12,
        "ecc.aggregate.uncorrected_dram": 2,
        "ecc.sram_threshold_exceeded": True,
        "repair_pending": {"channel": True, "tpc": False},
        "remapped_rows": {"correctable": 0, "uncorrectable": 9, "pending": True, "failure": True},
        "remapped_rows_banks": {"none": 1},
        "temperature.gpu": 89,
        "temperature.slowdown": 87,
        "fabric": {"state": "In Progress", "status": 0},
        "why_not": {},
    }
    document = {
        "schema": SCHEMA,
        "node": "gpu-7",
        "ending": "whole",
        "driver": "570.133.20",
        "cuda": "12.8",
        "count": 1,
        "gpus": [gpu],
    }
    ours = parse_nvml(document, file="a.json")
    theirs = parse_smi([Line(number, text) for number, text in enumerate(Q.splitlines(), 1)], file="a.txt", node="gpu-7")

    def shape(parsed: Any) -> set[tuple[Any, ...]]:
        ignored = ("status",)
        return {
            (event.signature, event.gpu, event.role, event.cls, event.weight, tuple(sorted((key, str(value)) for key, value in event.data.items() if key not in ignored)))
            for event in parsed.events
        }  # fmt: skip

    assert shape(ours) == shape(theirs)
    assert len(ours.events) > 10
    for fact in ("driver", "cuda", "attached"):
        assert ours.facts[fact] == theirs.facts[fact]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["gpu", "link", "active", "pid", "code", "used", "state", "current", "pci"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
KEYS = st.sampled_from(["index", "uuid", "pci", "memory", "throttle", "nvlink", "processes", "fabric", "why_not", "mig.mode", "remapped_rows", "pcie.width", "utilization", "recovery_action", "name"])  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    gpus=st.lists(st.dictionaries(KEYS, VALUES, max_size=5), max_size=3) | VALUES,
    head=st.dictionaries(
        st.sampled_from(["bus", "error", "hung", "ending", "count", "time", "node", "why_not"]), VALUES, max_size=4
    ),
)
def test_a_hostile_document_raises_nothing(gpus: Any, head: dict[str, Any]) -> None:
    parse_nvml({"schema": SCHEMA, "gpus": gpus} | head, file="f")


def test_codes_of_init_are_those_of_the_table() -> None:
    known = {int(row["code"]) for row in table("nvml_returns") if row["code"].isdigit()}
    from workbench.catalog import signatures

    assert set(INIT_SIGNATURES) <= known
    assert all(signature in signatures() for signature in INIT_SIGNATURES.values())


def test_the_reader_imports_nothing_of_ours() -> None:
    text = Path(nvml.__file__).with_name("nvml_child.py").read_text()
    assert "import workbench" not in text
    assert "from workbench" not in text
    assert os.path.exists(nvml.__file__)
