"""nvidia-smi's tables, queries and failures become events on the right GPU, and nothing it prints raises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.catalog import signatures
from workbench.model import CLASSES, Event, Line, Parsed
from workbench.parse.smi import parse_smi

DATA = Path(__file__).parents[1] / "data" / "smi"


def read(text: str, node: str | None = "gpu-n1") -> Parsed:
    return parse_smi([Line(no, line) for no, line in enumerate(text.splitlines(), 1)], file="smi/x.txt", node=node)


def load(name: str) -> Parsed:
    return read((DATA / name).read_text(encoding="utf-8"))


def only(parsed: Parsed, signature: str) -> Event:
    found = [event for event in parsed.events if event.signature == signature]
    assert len(found) == 1, [event.signature for event in parsed.events]
    return found[0]


def role(event: Event) -> str:
    return event.role or signatures()[event.signature].role


FAILURES = [
    ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure …", "smi-no-driver", None),
    ("Failed to initialize NVML: Driver/library version mismatch", "smi-version-mismatch", None),
    ("Failed to initialize NVML: Unknown Error", "smi-nvml-unknown-error", None),
    ("Failed to initialize NVML: Insufficient Permissions", "smi-nvml-no-permission", None),
    ("Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error", "smi-handle-unknown-error", "0000:0b:00.0"),
    ("Unable to determine the device handle for GPU0000:03:00.0: Unknown Error", "smi-handle-unknown-error", "0000:03:00.0"),
    ("Unable to determine the device handle for GPU1: 0000:4C:00.0: Unknown Error", "smi-handle-unknown-error", "0000:4c:00.0"),
    (
        "Unable to determine the device handle for GPU 00000000:C1:00.0: GPU is lost.  Reboot the system to recover this GPU",
        "smi-gpu-lost",
        "0000:c1:00.0",
    ),
    (
        "Unable to determine the device handle for gpu 0000:3B:00.0: GPU requires reset",
        "smi-handle-reset-required",
        "0000:3b:00.0",
    ),
    ("WARNING: infoROM is corrupted at gpu 0000:18:00.0", "smi-inforom-corrupted", "0000:18:00.0"),
    ("No devices were found", "smi-no-devices", None),
    ("bash: nvidia-smi: command not found", "smi-command-missing", None),
    ("timeout: sending signal TERM to command ‘nvidia-smi’", "smi-timeout", None),
    ("error creating nvml.Device 3: nvml: GPU is lost", "smi-nvml-device-lost", None),
    (
        "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown",
        "container-cli-driver-not-loaded",
        None,
    ),
    (
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4, please update your driver",
        "container-cli-requirement",
        None,
    ),
    ('could not select device driver "" with capabilities: [[gpu]].', "container-no-gpu-runtime", None),
]


@pytest.mark.parametrize(("text", "signature", "pci"), FAILURES)
def test_failure_of_the_tool_is_one_event_with_the_gpu_it_names(text: str, signature: str, pci: str | None) -> None:
    event = only(read(text), signature)
    assert event.text == text
    assert event.source == "smi"
    assert event.node == "gpu-n1"
    assert (event.gpu.pci if event.gpu else None) == pci


def test_table_shows_errors_lost_gpu_gap_and_processes() -> None:
    parsed = load("table-535-mixed.txt")
    ecc = only(parsed, "smi-ecc-uncorrectable")
    assert ecc.gpu is not None
    assert (ecc.gpu.index, ecc.gpu.pci, ecc.data["volatile"]) == (1, "0000:0f:00.0", 3)
    lost = only(parsed, "smi-gpu-lost")
    assert lost.gpu is not None
    assert lost.gpu.pci == "0000:47:00.0"
    sensor = only(parsed, "smi-err-field")
    assert sensor.gpu is not None
    assert sensor.gpu.index == 4
    assert sensor.weight is None, "one unreadable sensor is no lost GPU"
    assert only(parsed, "smi-index-gap").data["index"] == 3
    assert parsed.facts["driver"] == "535.183.01"
    assert parsed.facts["cuda"] == "12.2"
    assert [gpu.index for gpu in parsed.facts["gpus"]] == [0, 1, 2, 4]
    (placement,) = parsed.placements
    assert placement.gpu is not None
    assert (placement.pid, placement.gpu.pci, placement.node) == (48213, "0000:07:00.0", "gpu-n1")
    assert parsed.facts["smi"]["0000:07:00.0"]["memory_mib"] == 71231


def test_healthy_gpus_give_no_event() -> None:
    text = (DATA / "table-535-mixed.txt").read_text(encoding="utf-8").splitlines()
    assert read("\n".join(text[:13])).events == []


def test_table_of_driver_390_without_cuda_and_instances() -> None:
    parsed = load("table-390-v100.txt")
    assert only(parsed, "smi-ecc-uncorrectable").data["volatile"] == 12
    assert [placement.pid for placement in parsed.placements] == [20944]
    assert parsed.facts["driver"] == "390.116"


def test_table_tells_prohibited_compute_and_missing_libcuda() -> None:
    parsed = load("table-470-v100-old-cuda.txt")
    assert {event.signature for event in parsed.events} == {"smi-cuda-version-err", "smi-compute-prohibited"}


def test_mig_row_with_errors_names_gpu_and_instance() -> None:
    event = only(load("table-570-mig.txt"), "smi-ecc-uncorrectable")
    assert event.gpu is not None
    assert (event.gpu.pci, event.data["mig"], event.data["volatile"]) == ("0000:19:00.0", "2", 2)


def test_lifetime_counters_alone_are_history() -> None:
    parsed = load("q-h100-two-gpus.txt")
    first = [event for event in parsed.events if event.gpu and event.gpu.pci == "0000:19:00.0"]
    assert {event.signature for event in first} == {"smi-ecc-aggregate", "smi-remapped-rows"}
    assert all(role(event) == "context" for event in first)


def test_query_text_finds_every_fault_of_the_sick_gpu() -> None:
    parsed = load("q-h100-two-gpus.txt")
    sick = {event.signature for event in parsed.events if event.gpu and event.gpu.pci == "0000:3b:00.0"}
    assert sick >= {
        "smi-ecc-uncorrectable", "smi-sram-threshold", "smi-remap-failure", "smi-remap-pending", "smi-recovery-action",
        "smi-throttle-thermal", "smi-over-temperature", "smi-link-degraded", "smi-fabric-not-ready", "smi-repair-pending",
    }  # fmt: skip
    assert only(parsed, "smi-ecc-uncorrectable").data["volatile"] == 3
    assert only(parsed, "smi-link-degraded").weight == 0.6, "its neighbour has the full width"
    assert parsed.placements[0].pid == 91823
    assert only(parsed, "smi-sram-threshold").text.strip() == "SRAM Threshold Exceeded       : Yes"


def test_old_ecc_tree_counts_the_total_once() -> None:
    parsed = load("q-v100-old-ecc.txt")
    assert only(parsed, "smi-ecc-uncorrectable").data["volatile"] == 2
    assert {event.signature for event in parsed.events} >= {
        "smi-power-brake",
        "smi-page-retirement-pending",
        "smi-over-temperature",
    }


def test_piece_of_a_query_without_head_is_read() -> None:
    parsed = read("    ECC Errors\n        Aggregate\n            SRAM Uncorrectable            : 11\n")
    assert only(parsed, "smi-sram-threshold").weight == 0.7


def test_narrow_slot_of_a_single_card_is_context_only() -> None:
    text = "        GPU Link Info\n            Link Width\n                Max     : 16x\n                Current : 8x\n"
    assert role(only(read(text), "smi-link-degraded")) == "context"


def test_xml_gives_the_same_as_text_with_its_lines() -> None:
    parsed = load("q-b200.xml")
    assert {event.signature for event in parsed.events} == {
        "smi-ecc-uncorrectable", "smi-remap-pending", "smi-recovery-action", "smi-power-brake", "smi-fabric-error",
    }  # fmt: skip
    assert all(event.gpu and event.gpu.index == 1 for event in parsed.events), "a whole listing tells the index"
    assert only(parsed, "smi-fabric-error").text.strip() == "<status>Insufficient Resources</status>"
    assert parsed.placements[0].pid == 7761


def test_xml_with_entities_is_refused() -> None:
    bomb = '<?xml version="1.0"?>\n<!DOCTYPE nvidia_smi_log [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>\n'
    bomb += "<nvidia_smi_log>&b;</nvidia_smi_log>"
    parsed = read(bomb)
    assert parsed.events == []
    assert "entities" in parsed.problems[0].message


def test_xml_cut_short_keeps_what_came_before() -> None:
    text = (DATA / "q-b200.xml").read_text(encoding="utf-8")
    parsed = read(text[: text.index("<remapped_rows>")])
    assert only(parsed, "smi-ecc-uncorrectable").gpu is not None
    assert parsed.problems[0].status == "partial"


def test_csv_with_header_with_command_and_of_processes() -> None:
    parsed = load("query-csv.txt")
    assert only(parsed, "smi-throttle-thermal").line == 4
    assert only(parsed, "smi-link-degraded").line == 5
    lost, pending = only(parsed, "smi-gpu-lost"), only(parsed, "smi-remap-pending")
    assert lost.gpu is not None
    assert pending.gpu is not None
    assert (lost.gpu.index, pending.gpu.index) == (3, 1)
    assert parsed.placements[0].gpu is not None
    assert parsed.placements[0].gpu.index == 0


def test_pdsh_prefix_says_the_node_of_each_line() -> None:
    parsed = load("pdsh-four-nodes.txt")
    assert {(event.node, event.signature) for event in parsed.events} == {
        ("gpu-n2", "smi-version-mismatch"), ("gpu-n3", "smi-handle-unknown-error"), ("gpu-n4", "smi-command-missing"),
    }  # fmt: skip
    assert only(parsed, "smi-version-mismatch").data["library"] == "535.171"


def test_prompt_names_the_node_unless_it_is_a_container() -> None:
    text = "Failed to initialize NVML: Unknown Error"
    assert read(f"root@gpu-77:~# nvidia-smi\n{text}", node=None).events[0].node == "gpu-77"
    assert read(f"root@3f2a1b9c0d1e:/workspace# nvidia-smi\n{text}", node=None).events[0].node is None


def test_kernel_lines_are_left_to_the_kernel_parser() -> None:
    parsed = read("[ 1234.567890] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\nNo devices were found")
    assert parsed.facts["has_kernel_lines"]
    assert [event.signature for event in parsed.events] == ["smi-no-devices"]


def test_empty_output_is_a_problem_not_silence() -> None:
    assert read("").problems[0].status == "missing"


def test_every_signature_has_a_row_and_every_example_matches_its_pattern() -> None:
    rows = [row for row in signatures().values() if row.origin.startswith("signatures_smi.csv")]
    assert len(rows) > 100
    for row in rows:
        assert row.cls in CLASSES
        if row.pattern:
            assert re.search(row.pattern, row.example), row.id
    for file in [*DATA.iterdir(), *(DATA.parent / "dcgmi").iterdir()]:
        for event in read(file.read_text(encoding="utf-8")).events:
            assert event.signature in signatures(), (file.name, event.signature)


LINES = [line for file in sorted(DATA.iterdir()) for line in file.read_text(encoding="utf-8").splitlines()]
LINES += [line for file in sorted((DATA.parent / "dcgmi").iterdir()) for line in file.read_text(encoding="utf-8").splitlines()]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(LINES), st.text(max_size=60)), max_size=30))
def test_no_mixture_of_lines_raises(texts: list[str]) -> None:
    parsed = read("\n".join(texts))
    assert all(event.line is not None and event.line >= 1 for event in parsed.events)
    assert not [problem for problem in parsed.problems if "part of the tool output" in problem.message], parsed.problems


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(LINES), st.integers(0, 200), st.text(max_size=20))
def test_no_damaged_line_raises(line: str, at: int, junk: str) -> None:
    parsed = read(line[:at] + junk + line[at:])
    assert not [problem for problem in parsed.problems if "part of the tool output" in problem.message], parsed.problems
