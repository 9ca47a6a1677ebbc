"""Serial number, VBIOS and part of a GPU are kept from every tool that tells them, and only when they are that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from workbench.incident import load
from workbench.model import Line
from workbench.parse.smi import parse_smi


def devices(*lines: str) -> list[dict[str, Any]]:
    """What is kept of these lines of output."""
    parsed = parse_smi([Line(number, text) for number, text in enumerate(lines, 1)], file="smi/n1.txt", node="n1")
    found: list[dict[str, Any]] = parsed.facts.get("devices", [])
    return found


def test_the_text_of_nvidia_smi_q_tells_them(root: Path) -> None:
    """With the line where they stand, and the GPU's identity."""
    kept = [row for document in load(root / "tests/data/smi/q-h100-two-gpus.txt").documents for row in document.facts["devices"]]

    assert kept[0]["serial"] == "1650000000001"
    assert (kept[0]["pci"], kept[0]["line"], kept[0]["by"]) == ("0000:19:00.0", 16, "nvidia-smi")
    assert "serial" not in kept[1]


def test_a_query_as_csv_tells_them() -> None:
    """Names of --query-gpu."""
    (row,) = devices(
        "index, uuid, pci.bus_id, serial, vbios_version, name",
        "3, GPU-1d0c0c4e-7d0e-1a22-9f4a-0c3f5d9a1b01, 00000000:19:00.0, 1650000000001, 96.00.74.00.1C, NVIDIA H100 80GB HBM3",
    )

    assert (row["index"], row["serial"], row["vbios"], row["product"]) == (
        3,
        "1650000000001",
        "96.00.74.00.1C",
        "NVIDIA H100 80GB HBM3",
    )


def test_a_diagnostic_of_dcgm_4_tells_them_by_entity(root: Path) -> None:
    """One a GPU."""
    kept = [row for d in load(root / "tests/data/health/dcgmi-4-pcie-replays").documents for row in d.facts.get("devices", [])]

    assert {(row["index"], row["serial"]) for row in kept} == {(number, f"165492300000{number}") for number in range(8)}


def test_a_diagnostic_of_dcgm_3_tells_them_by_number() -> None:
    """A list without names is of no GPU: places in it shift where one is not known."""
    named = devices('{"DCGM GPU Diagnostic": {"test_categories": [], "GPU Device Serials": {"2": "1423923001498"}}}')
    listed = devices('{"DCGM GPU Diagnostic": {"test_categories": [], "GPU Device Serials": ["1423923001498"]}}')

    assert [(row["index"], row["serial"]) for row in named] == [(2, "1423923001498")]
    assert listed == []


@pytest.mark.parametrize("word", ["Unknown Error", "[Unknown Error]", "N/A", "[N/A]", "0", "GPU is lost", "ERR!", ""])
def test_a_lost_gpu_has_no_serial_number(word: str) -> None:
    """What stands there then is no number."""
    assert devices("index, pci.bus_id, serial, vbios_version", f"0, 00000000:19:00.0, {word}, {word}") == []


def test_a_mig_devices_index_is_not_the_gpus(root: Path) -> None:
    """Two GPUs with MIG are not both GPU 0."""
    kept = [row for d in load(root / "tests/data/health/memory-errors-under-mig").documents for row in d.facts.get("devices", [])]

    assert sorted(row["index"] for row in kept) == [0, 1]
