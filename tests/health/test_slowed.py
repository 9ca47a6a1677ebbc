"""For how long a GPU was slowed down, and which firmware its system processor runs: by NVML, by nvidia-smi, and from drivers that do not tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.health.gpu_node import Node, one
from tests.nvml_fake import SCENARIOS
from tests.nvml_fake import node as played
from workbench.model import Line
from workbench.parse.gpu_state import NodeGpus, from_nvml, from_smi
from workbench.sources.node.nvml import read_nvml

_KEYS = ("sw_thermal", "hw_thermal", "power_brake", "power", "thermal")


def _read(name: str, tmp_path: Path) -> NodeGpus:
    return from_nvml(read_nvml(20, env=played(SCENARIOS / f"{name}.txt", tmp_path).env))


@pytest.mark.parametrize(
    ("scenario", "gpu", "told"),
    [
        ("h100-throttled-r580", 1, [0, 900e6, 0, 0, 0]),
        ("h100-throttled-r575", 2, [0, 0, 900e6, 0, 0]),
        ("h100-throttled-r570", 1, [None, None, None, 0, 900e6]),
        ("h100-throttled-r570", 3, [None, None, None, None, None]),  # garbage is no value
        ("old-driver-450", 0, [None, None, None, 0, 0]),
    ],
)
def test_each_driver_is_asked_for_what_it_counts(scenario: str, gpu: int, told: list[float | None], tmp_path: Path) -> None:
    """The same number of a field means another fact to another driver."""
    state = _read(scenario, tmp_path).states[gpu]
    assert [state.number(f"throttled.{key}") for key in _KEYS] == told


def test_what_a_driver_does_not_count_is_said_and_no_fault(tmp_path: Path) -> None:
    state = _read("old-driver-450", tmp_path).states[0]
    assert not state.can("throttled.hw_thermal", "throttled.power_brake")
    assert state.reason("throttled.hw_thermal") == "driver 450.80.02 does not count it"
    assert not state.can("gsp_firmware")  # its symbol came with R470


def test_a_library_without_the_counter_tells_none(tmp_path: Path) -> None:
    scenario = tmp_path / "old.txt"
    scenario.write_text("without nvmlDeviceGetViolationStatus\n")
    state = from_nvml(read_nvml(20, env=played(scenario, tmp_path).env)).states[0]
    assert not state.can(*(f"throttled.{key}" for key in _KEYS))
    assert state.number("temperature.gpu") == 33


_XML = """<?xml version="1.0" ?>
<nvidia_smi_log>
\t<driver_version>575.51.02</driver_version>
\t<attached_gpus>1</attached_gpus>
\t<gpu id="00000000:19:00.0">
\t\t<product_name>NVIDIA H100 80GB HBM3</product_name>
\t\t<uuid>GPU-00000000-0000-0000-0000-000000000000</uuid>
\t\t<gsp_firmware_version>{gsp}</gsp_firmware_version>
\t\t<clocks_event_reasons_counters>
\t\t\t<clocks_event_reasons_counters_sw_power_cap>{cap} us</clocks_event_reasons_counters_sw_power_cap>
\t\t\t<clocks_event_reasons_counters_sync_boost>0 us</clocks_event_reasons_counters_sync_boost>
\t\t\t<clocks_event_reasons_counters_sw_therm_slowdown>{soft} us</clocks_event_reasons_counters_sw_therm_slowdown>
\t\t\t<clocks_event_reasons_counters_hw_therm_slowdown>{hard} us</clocks_event_reasons_counters_hw_therm_slowdown>
\t\t\t<clocks_event_reasons_counters_hw_power_brake>{brake} us</clocks_event_reasons_counters_hw_power_brake>
\t\t</clocks_event_reasons_counters>
\t</gpu>
</nvidia_smi_log>
"""


def _smi(gsp: str = "575.51.02", **counters: int) -> NodeGpus:
    text = _XML.format(gsp=gsp, **{"cap": 0, "soft": 0, "hard": 0, "brake": 0, **counters})
    return from_smi([Line(at, line) for at, line in enumerate(text.splitlines(), 1)])


@pytest.mark.parametrize(
    ("counters", "reasons"),
    [
        ({"hard": 700_000_000}, ["hw_therm_slowdown"]),
        ({"brake": 700_000_000}, ["hw_power_brake"]),
        ({"soft": 700_000_000}, ["sw_therm_slowdown"]),
        ({"soft": 700_000_000, "cap": 700_000_000}, []),  # driver 575.51.02 told the same number twice
        ({"cap": 700_000_000}, []),
        ({"hard": 500_000_000}, []),
    ],
)
def test_the_xml_of_nvidia_smi_tells_the_history_as_its_text_does(counters: dict[str, int], reasons: list[str]) -> None:
    events = [event for event in _smi(**counters).events if event.signature == "smi-throttle-history"]
    assert [event.data["reason"] for event in events] == reasons


def test_the_xml_gives_the_same_keys_as_nvml() -> None:
    (state,) = _smi(hard=1, brake=2, soft=3, cap=4).states
    assert [state.number(f"throttled.{key}") for key in _KEYS] == [3, 1, 2, 4, None]
    assert state.get("gsp_firmware") == "575.51.02"
    (off,) = _smi(gsp="N/A").states
    assert not off.can("gsp_firmware")


# ---- firmware


def test_firmware_of_another_version_is_found_by_nvml_alone(node: Node, tmp_path: Path) -> None:
    """The driver's own files need not be there: a container does not see them."""
    scenario = tmp_path / "gsp.txt"
    scenario.write_text("3 nvmlDeviceGetGspFirmwareVersion = 565.57.01\n")
    node.file("proc/driver/nvidia/version", "nothing\n")
    found = one(node.check("versions", env={"FAKE_NVML_FILE": str(scenario)}), "version-firmware-differs")
    assert (found.gpu and found.gpu.index, found.summary) == (3, "GSP firmware 565.57.01 under driver 570.133.20")


def test_a_file_that_does_not_answer_matters_only_where_nvml_did_not_tell(node: Node, tmp_path: Path) -> None:
    for folder in (node.root / "proc/driver/nvidia/gpus").iterdir():
        (folder / "information").unlink()
    assert not [finding for finding in node.check("versions") if finding.part == "firmware"]
    scenario = tmp_path / "gsp.txt"
    scenario.write_text("5 nvmlDeviceGetGspFirmwareVersion code 999\n")
    findings = node.check("versions", env={"FAKE_NVML_FILE": str(scenario)})
    assert [finding.status for finding in findings if finding.part == "firmware"] == ["unknown"]
