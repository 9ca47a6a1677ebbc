"""Turn the output of `nvbandwidth` (text of all versions, JSON from 0.5) into one matrix of GB/s for each test case."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.parse.ids import pci

__all__ = ["Bandwidths", "Matrix", "parse_nvbandwidth"]

_RUNNING = re.compile(r"^\s*[Rr]unning (\w+?)\.?\s*$")
_ROW = re.compile(r"^\s*(\d{1,3})\s+((?:(?:N/A|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|-?nan|inf)\s*)+)$")
# "Device 3: NVIDIA H100 80GB HBM3 (00000000:5d:00)" | JSON: "3: NVIDIA H100 80GB HBM3 (00000000:5d:00)"
_DEVICE = re.compile(r"(?:Device )?(\d{1,3}): (.+?)(?: \(([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})\))?:?\s*$")
_ENDINGS = re.compile(r"^\s*(Waived|Error|ERROR|Not Found|CUDA_ERROR\w*|\[?CUDA\w* error)\b[:\]]?\s*(.*)$")
Matrix = tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """
    What one run measured.

    Attributes
    ----------
    tests : dict
        Name of the test case → matrix in GB/s, by row and column as it was printed; None where nothing was measured.
    others : dict
        Name of a test case without a matrix → what was said of it: ``Waived``, an error.
    devices : dict
        Number of a device (of CUDA's order) → its PCI address, where the output says it.
    error : str
        What went wrong with the run as a whole.
    """

    tests: dict[str, Matrix] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    devices: dict[int, str] = field(default_factory=dict)
    error: str = ""


def parse_nvbandwidth(text: str) -> Bandwidths:
    """Parse what `nvbandwidth` printed; a matrix whose rows are of different lengths is none, and said in `others`."""
    start = text.find("{")
    if start >= 0:
        try:
            value, _ = json.JSONDecoder().raw_decode(text, start)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict) and isinstance(value.get("nvbandwidth"), dict):
            return _json(value["nvbandwidth"])
    return _text(text)


def _json(root: Mapping[str, Any]) -> Bandwidths:
    out = Bandwidths(error=str(root.get("error") or ""))
    for text in root.get("GPU Device list") or ():
        if found := _DEVICE.match(str(text)):
            _device(out, found)
    for test in root.get("testcases") or ():
        if not isinstance(test, dict) or not test.get("name"):
            continue
        rows = test.get("bandwidth_matrix")
        if isinstance(rows, list):
            _take(out, str(test["name"]), [[str(cell) for cell in row] for row in rows if isinstance(row, list)])
        else:
            out.others[str(test["name"])] = str(test.get("error") or test.get("status") or "no result")
    return out


def _text(text: str) -> Bandwidths:
    out = Bandwidths()
    name, rows = "", list[list[str]]()
    wrong = ""
    for line in text.splitlines():
        if found := _RUNNING.match(line):
            _close(out, name, rows)
            name, rows = found[1], []
        elif (found := _DEVICE.match(line.strip())) and line.strip().startswith("Device "):
            _device(out, found)
        elif found := _ENDINGS.match(line):
            wrong = line.strip()
            if name and not rows:
                out.others[name] = wrong
        elif name and not rows and _is_head(line):  # "          0         1         2": the numbers of the columns
            continue
        elif (found := _ROW.match(line)) and name and int(found[1]) == len(rows):
            rows.append(found[2].split())
        elif rows and not line.strip():
            _close(out, name, rows)
            name, rows = "", []
    _close(out, name, rows)
    return out if out.tests or out.others or not wrong else Bandwidths(error=wrong)


def _is_head(line: str) -> bool:
    words = line.split()
    return bool(words) and words == [str(at) for at in range(len(words))]


def _close(out: Bandwidths, name: str, rows: list[list[str]]) -> None:
    if name and rows:
        _take(out, name, rows)
    elif name:
        out.others.setdefault(name, "no result")


def _take(out: Bandwidths, name: str, rows: Sequence[Sequence[str]]) -> None:
    matrix = tuple(tuple(_cells(row)) for row in rows)
    if not matrix or not matrix[0] or len({len(row) for row in matrix}) != 1:
        out.others[name] = "a matrix that is not whole"
    else:
        out.tests[name] = matrix


def _cells(row: Sequence[str]) -> Iterator[float | None]:
    for cell in row:
        try:
            value = float(cell)
        except ValueError:
            value = -1.0
        # 0.00 on the diagonal of old versions: nothing was measured
        yield value if 0.0 < value < 1e6 else None


def _device(out: Bandwidths, found: re.Match[str]) -> None:
    address = pci(f"{found[3]}.0") if found[3] else None
    if address:
        out.devices[int(found[1])] = address
