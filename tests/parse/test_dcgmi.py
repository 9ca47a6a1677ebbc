"""dcgmi's boxes and JSON become one event per failed test and GPU, with DCGM's own message deciding the class."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.model import Line, Parsed
from workbench.parse.smi import parse_smi

DATA = Path(__file__).parents[1] / "data" / "dcgmi"


def read(text: str) -> Parsed:
    return parse_smi([Line(no, line) for no, line in enumerate(text.splitlines(), 1)], file="smi/x.txt", node="gpu-n1")


def load(name: str) -> Parsed:
    return read((DATA / name).read_text(encoding="utf-8"))


def facts(parsed: Parsed) -> set[tuple[str, int | None, str | None, str | None]]:
    return {(event.signature, event.gpu.index if event.gpu else None, event.cls, event.role) for event in parsed.events}


def test_box_of_dcgm_3_names_each_failed_test_and_gpu() -> None:
    parsed = load("diag-3-mixed.txt")
    assert facts(parsed) == {
        ("dcgmi-software-fail", 0, "platform/config", "context"),
        ("dcgmi-page-retirement-fail", 3, "hardware/gpu-memory", "cause"),
        ("dcgmi-memory-fail", 3, "hardware/gpu-memory", "cause"),
        ("dcgmi-diagnostic-fail", 1, "hardware/gpu-other", "cause"),
        ("dcgmi-diagnostic-fail", 2, "hardware/gpu-other", "cause"),
    }
    assert parsed.facts["driver"] == "550.54.15"


def test_message_cut_by_the_box_is_joined_and_the_line_stays_verbatim() -> None:
    event = next(event for event in load("diag-3-mixed.txt").events if event.signature == "dcgmi-page-retirement-fail")
    assert event.data["message"] == "GPU 3 had uncorrectable memory errors and row remapping failed. Run a field diagnostic."
    assert event.text.startswith("| Warning                   | GPU 3 had")


def test_box_of_dcgm_4_with_results_per_gpu() -> None:
    parsed = load("diag-4-gpu2-fails.txt")
    assert facts(parsed) == {("dcgmi-memory-fail", 2, "hardware/gpu-memory", "cause")}
    assert parsed.events[0].data["error"] == "DCGM_FR_VOLATILE_DBE_DETECTED"


def test_thermal_violation_in_a_memory_test_is_heat() -> None:
    assert facts(load("diag-3.json")) == {("dcgmi-memory-fail", 2, "hardware/thermal-power", "cause")}


def test_json_of_dcgm_4_uses_the_error_id() -> None:
    parsed = load("diag-4.json")
    assert facts(parsed) == {("dcgmi-diag-fail", 5, "hardware/gpu-memory", "cause")}
    assert parsed.events[0].code == 80
    assert parsed.events[0].line == 16


def test_health_weighs_links_that_may_never_have_been_wired() -> None:
    parsed = load("health-memory-and-links.txt")
    assert facts(parsed) == {
        ("dcgmi-health-memory", 1, "hardware/gpu-memory", "cause"),
        ("dcgmi-health-nvlink", 4, "hardware/nvlink", "cause"),
        ("dcgmi-health-nvlink", 5, "hardware/nvlink", "context"),
    }


def test_health_json() -> None:
    parsed = load("health.json")
    assert facts(parsed) == {("dcgmi-health-pcie", 3, "hardware/pcie", "cause")}


def test_health_of_dcgm_1() -> None:
    text = "| Group 1          | Overall Health: Warning  |\n| GPU ID: 2        | Warning                  |\n"
    text += "|                  | PCIe system: Warning - Detected more than 8 PCIe replays per minute for GPU 2: 13 |\n"
    assert facts(read(text)) == {("dcgmi-health-pcie", 2, "hardware/pcie", "cause")}


def test_discovery_gives_identity_to_the_gpu_whose_links_are_down() -> None:
    (event,) = load("discovery-and-links.txt").events
    assert event.gpu is not None
    assert (event.gpu.index, event.gpu.pci, event.data["links"]) == (1, "0000:3e:00.0", [2, 5])


def test_all_passed_is_no_event() -> None:
    assert read("| GPU Memory                | Pass - All                                     |").events == []


def test_json_cut_short_keeps_its_warnings() -> None:
    text = (DATA / "diag-4.json").read_text(encoding="utf-8")
    parsed = read(text[: text.index("test_summary")])
    assert facts(parsed) == {("dcgmi-diag-fail", 5, "hardware/gpu-memory", "cause")}
    assert parsed.problems[0].status == "partial"


KEYS = st.sampled_from(
    ["DCGM Diagnostic", "DCGM GPU Diagnostic", "test_categories", "tests", "results", "warnings", "status", "name", "gpu_id",
     "gpu_ids", "entity_id", "error_id", "body", "children", "value", "3", "NVLINK system", "runtime_error", "metadata"]
)  # fmt: skip
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.sampled_from(["Fail", "Failure", "GPU 3 failed", "0,1"]), st.text(max_size=8)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=25,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=3))
def test_json_of_any_shape_never_raises(value: dict[str, object]) -> None:
    parsed = read(json.dumps({"DCGM Diagnostic": value, **value, "test_categories": []}, indent=1))
    assert not [problem for problem in parsed.problems if "part of the tool output" in problem.message], parsed.problems


def test_a_limit_that_the_other_gpus_keep_is_no_wrong_setting() -> None:
    """DCGM calls a narrow PCIe link a setting; one narrow link among equals is a fault of that link."""
    message = "GPU 2 is running at PCI link width 8X, which is below the minimum allowed link width of 16"
    bad = {"entity_group": "GPU", "entity_id": 2, "status": "Fail", "warnings": [{"error_id": 46, "warning": message}]}

    def diag(*results: dict[str, object]) -> Parsed:
        test = {"name": "pcie", "results": list(results)}
        return read(
            json.dumps({"DCGM Diagnostic": {"test_categories": [{"category": "Integration", "tests": [test]}]}}, indent=1)
        )

    (alone,), (odd,) = diag(bad).events, diag({"entity_group": "GPU", "entity_id": 0, "status": "Pass"}, bad).events
    assert odd.gpu is not None
    assert odd.gpu.index == 2
    assert odd.cls == "hardware/pcie"
    assert (alone.weight or 0) < 0.5 < (odd.weight or 0)


def test_hostengine_log() -> None:
    parsed = read(
        "2025-12-22 10:41:07.221 ERROR [1514002:1514004] [[Health]] Detected a WARNING in health system Thermal: "
        "'Detected clocks event due to thermal violation in GPU 2. Verify that the cooling on this machine is functional.\n"
        "2025-12-22 10:41:08.000 ERROR [11:88] [Profiling] Got error from GetSamples: -37\n"
        "2025-12-22 10:41:09.000 ERROR [11:88] [[Health]] Detected a WARNING in health system Power: "
        "'Detected clocks event due to power violation in GPU 0. This GPU can still perform workload.'\n"
    )
    heat, profiling, power = parsed.events
    assert heat.gpu is not None
    assert (heat.signature, heat.gpu.index, heat.time) == ("dcgmi-health-thermal", 2, 1766400067.221)
    assert profiling.signature == "dcgm-profiling-error"
    assert power.role == "context"


def test_a_moment_of_heat_is_no_cause() -> None:
    (event,) = read(
        "Successfully ran diagnostic for group.\n"
        "| Targeted Stress           | Fail - GPU: 0                                  |\n"
        "| Warning                   | GPU 0 Thermal violations totaling 0.0 seconds  |\n"
    ).events
    assert event.role == "context"
