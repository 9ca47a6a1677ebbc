"""Turn `nvidia-smi -q` (text and XML) and `--query-…` CSV into one reading per GPU: key → value and the line it stood in."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, field
from xml.parsers import expat

from workbench.model import Gpu, Placement, Problem
from workbench.parse.ids import pci, uuid
from workbench.parse.smi_doc import Document, Out, Row

__all__ = ["Reading", "read_csv", "read_list", "read_text", "read_xml"]

# "GPU 00000000:10:1C.0" opens the block of one GPU
_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*$")
# "    SRAM Uncorrectable Parity     : 0"
_PAIR = re.compile(r"(\s*)([A-Za-z<][^:]*?)\s*: ?(.*)$")
# "    Remapped Rows"
_SECTION = re.compile(r"(\s+)([A-Z][\w ./()&-]*?)\s*$")
_OPENER = re.compile(r"=+NVSMI LOG=+|(?:Timestamp|Driver Version|CUDA Version|Attached GPUs)\s+: ")
# a piece of -q without its head, as people paste it
_PIECE = re.compile(
    r"\s+(?:ECC Errors|Remapped Rows|Retired Pages|Clocks (?:Event|Throttle) Reasons|Fabric|Temperature|GPU Link Info|"
    r"GPU Reset Status|(?:GPU )?Power Readings|Volatile|Aggregate|PCI|ECC Mode|MIG Mode|Utilization)\s*$"
)
# "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-…)"
_LISTED = re.compile(r"\s*GPU (\d+): (.*?) \(UUID: ([^)]*)\)\s*$")
_MIG = re.compile(r"\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)]*)\)")
_ASKED = re.compile(r"--query-[\w-]+[= ]([\w.,-]+)")
# names that open a CSV header; the dotted ones are recognised by their family
_PLAIN = frozenset(
    ("timestamp", "driver_version", "count", "name", "serial", "uuid", "index", "pstate", "pid", "process_name", "gpu_uuid",
     "gpu_name",
     "gpu_bus_id", "gpu_serial", "persistence_mode", "compute_mode", "vbios_version", "used_gpu_memory", "used_memory",
     "gpu_recovery_action")
)  # fmt: skip
_FAMILY = re.compile(
    r"(?:pci|pcie|temperature|utilization|memory|power|clocks|clocks_\w+|ecc|retired_pages|remapped_rows|fabric|fan|enforced|"
    r"mig|inforom|gom|reset_status|encoder|module|gsp)\.[\w.]+$"
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A value and the line it stood in."""

    value: str
    row: Row


@dataclass(slots=True)
class Reading:
    """What a query said of one GPU (or of the node, when `gpu` is None and `head` is true)."""

    gpu: Gpu | None
    cells: dict[str, Cell] = field(default_factory=dict)

    def find(self, pattern: str) -> list[tuple[str, Cell]]:
        """Return the keys that a pattern matches at their end, in reading order."""
        wanted = re.compile(f"(?:^|/)(?:{pattern})$")
        return [(key, cell) for key, cell in self.cells.items() if wanted.search(key)]

    def first(self, pattern: str) -> Cell | None:
        """Return the first cell that `find` finds."""
        found = self.find(pattern)
        return found[0][1] if found else None

    def value(self, pattern: str) -> str | None:
        """Return the first value that `find` finds; N/A and unsupported ones are None."""
        cell = self.first(pattern)
        return None if cell is None or re.match(r"\[?(?:N/A|Not Supported|Requested functionality)|$", cell.value) else cell.value


def _key(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


def _identify(reading: Reading, out: Out) -> None:
    own = reading.cells.get("index")  # a MIG device's index stands deeper
    index = own.value if own else None
    address = reading.gpu.pci if reading.gpu else None
    found = Gpu(
        index=int(index) if index and index.isdigit() and len(index) < 4 else None,
        uuid=uuid(reading.value(r"gpu_uuid|uuid") or ""),
        pci=address or pci(reading.value(r"pci_bus_id|gpu_bus_id|pci/bus_id|bus_id")),
    )
    if found != Gpu():
        reading.gpu = out.see(found, listed=True)


def read_text(doc: Document, at: int, out: Out) -> tuple[int, list[Reading]]:
    """
    Read the text of `nvidia-smi -q`, whole or a piece of it, from row `at`.

    Returns the row after it, and the readings; the same row and none when there is no such text here.
    """
    first = doc.rows[at].text
    if not (_OPENER.match(first) or _GPU.match(first) or _PIECE.match(first)):
        return at, []
    readings = [Reading(None)]
    stack: list[tuple[int, str]] = []
    process: dict[str, str] = {}
    while at < len(doc.rows):
        row = doc.rows[at]
        text = row.text
        if not text.strip() or text.startswith("==="):
            at += 1
            continue
        if found := _GPU.match(text):
            readings.append(Reading(Gpu(pci=pci(found[1]))))
            stack = []
        elif pair := _PAIR.match(text):
            depth = len(pair[1].expandtabs())
            if depth == 0 and not _OPENER.match(text) and not re.match(r"(?:HIC|Unit|Driver|CUDA|GSP|vGPU|Product|GPU )", text):
                break
            while stack and stack[-1][0] >= depth:
                stack.pop()
            key, value = _key(pair[2]), pair[3].strip()
            path = "/".join([*(name for _, name in stack), key])
            if readings[-1].gpu is None and path in readings[-1].cells:
                # `nvidia-smi -q | grep -A2 Fabric` prints the same keys for one GPU after another and not which
                readings.append(Reading(None))
            readings[-1].cells.setdefault(path, Cell(value, row))
            if key == "process_id":
                process = {"pid": value}
            elif key == "name" and process.get("pid", "").isdigit():
                gpu = readings[-1].gpu
                out.parsed.placements.append(_placed(out, row, gpu, int(process["pid"]), value))
                process = {}
        elif section := _SECTION.match(text):
            depth = len(section[1].expandtabs())
            while stack and stack[-1][0] >= depth:
                stack.pop()
            stack.append((depth, _key(section[2])))
        else:
            break
        at += 1
    for reading in readings[1:]:
        _identify(reading, out)
    return at, [reading for reading in readings if reading.cells]


def _placed(out: Out, row: Row, gpu: Gpu | None, pid: int, name: str) -> Placement:
    return Placement(None, out.node, gpu=gpu, pid=pid, origin="smi-process", file=out.file, line=row.line.no)


def read_xml(doc: Document, at: int, out: Out) -> tuple[int, list[Reading]]:
    """
    Read `nvidia-smi -q -x` from row `at`; as `read_text`.

    The document names its DTD, which is never loaded; a document that declares entities of its own is refused.
    """
    if not re.match(r"\s*(?:<\?xml|<!DOCTYPE nvidia_smi_log|<nvidia_smi_log)", doc.rows[at].text):
        return at, []
    end = at
    while end < len(doc.rows) and "</nvidia_smi_log>" not in doc.rows[end].text:
        end += 1
    rows = doc.rows[at : end + 1]
    readings = [Reading(None)]
    path: list[str] = []
    words: list[str] = []
    pids: list[tuple[Row, Gpu | None, int]] = []
    parser = expat.ParserCreate()

    def here() -> Row:
        return rows[min(max(parser.CurrentLineNumber - 1, 0), len(rows) - 1)]

    def refuse(*_: object) -> None:
        raise ValueError("it declares entities of its own")

    def start(tag: str, attributes: dict[str, str]) -> None:
        words.clear()
        path.append(tag)
        if path == ["nvidia_smi_log", "gpu"]:
            readings.append(Reading(Gpu(pci=pci(attributes.get("id")))))

    def stop(tag: str) -> None:
        value = "".join(words).strip()
        words.clear()
        names = path[2:] if path[:2] == ["nvidia_smi_log", "gpu"] else path[1:]
        if value and names:
            readings[-1].cells.setdefault("/".join(_key(name) for name in names), Cell(value, here()))
        if tag == "pid" and value.isdigit() and len(value) < 10:
            pids.append((here(), readings[-1].gpu, int(value)))
        if path:
            path.pop()

    parser.EntityDeclHandler = refuse
    parser.StartElementHandler = start
    parser.EndElementHandler = stop
    parser.CharacterDataHandler = words.append
    try:
        parser.Parse("\n".join(row.text for row in rows).lstrip().encode("utf-8", "replace"), True)
    except (expat.ExpatError, ValueError) as error:
        out.parsed.problems.append(
            Problem(
                out.file,
                f"nvidia-smi XML ends early or is damaged: {error}",
                "collect nvidia-smi -q -x again; what came before is used",
                rows[0].line.no,
                "smi",
                "partial",
            )
        )
    for reading in readings[1:]:
        _identify(reading, out)
    out.parsed.placements += [_placed(out, row, gpu, pid, "") for row, gpu, pid in pids]
    return end + 1, [reading for reading in readings if reading.cells]


def _split(text: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([text], skipinitialspace=True), [])]
    except csv.Error:
        return []


def _fields(text: str) -> list[str] | None:
    """Return the field names when the line is a CSV header of a query, e.g. ``index, pci.bus_id, memory.used [MiB]``."""
    if len(text) > 4000 or not re.match(r"[a-z_]+[.,\w]*", text):
        return None
    names = [re.sub(r"\s*\[[^\]]*\]$", "", cell) for cell in _split(text)]
    known = sum(1 for name in names if name in _PLAIN or _FAMILY.match(name))
    if len(names) == 1:
        return names if _FAMILY.match(names[0]) and "[" not in text[:2] else None
    return names if names and known * 2 > len(names) else None


def read_csv(doc: Document, at: int, out: Out) -> tuple[int, list[Reading]]:
    """Read the CSV of `nvidia-smi --query-gpu=…` (or apps, remapped rows, retired pages) from row `at`; as `read_text`."""
    row = doc.rows[at]
    names = _fields(row.text.strip())
    if names:
        at += 1
    else:
        # without a header the command in front of it tells, or the row itself: "4, 00000000:BB:00.0, GPU-…"
        asked = _ASKED.search(row.command)
        cells = _split(row.text)
        if asked and "noheader" in row.command and len(cells) == len(asked[1].split(",")) and row.text.strip():
            names = asked[1].split(",")
        elif len(cells) > 1 and re.match(r"\d{1,3}$", cells[0]) and any(pci(cell) or uuid(cell) for cell in cells[1:]):
            names = [
                "index" if place == 0 else "pci.bus_id" if pci(cell) else "uuid" if uuid(cell) else f"field{place}"
                for place, cell in enumerate(cells)
            ]
        else:
            return at, []
    keys = [_key(name) for name in names]
    readings = []
    while at < len(doc.rows):
        row = doc.rows[at]
        cells = _split(row.text)
        if not row.text.strip() or len(cells) != len(keys) or _fields(row.text.strip()) == names:
            break
        reading = Reading(None, {key: Cell(cell, row) for key, cell in zip(keys, cells, strict=True)})
        pid = reading.value("pid")
        if pid and pid.isdigit() and len(pid) < 10:
            gpu = Gpu(uuid=uuid(reading.value("gpu_uuid")), pci=pci(reading.value("gpu_bus_id")))
            out.parsed.placements.append(_placed(out, row, gpu if gpu != Gpu() else None, int(pid), ""))
        else:
            _identify(reading, out)
            readings.append(reading)
        at += 1
    return at, readings


def read_list(doc: Document, at: int, out: Out) -> int:
    """Read one line of `nvidia-smi -L` at row `at`; returns the row after it, or the same."""
    text = doc.rows[at].text
    if found := _LISTED.match(text):
        gpu = Gpu(index=int(found[1][:4]), uuid=uuid(found[3]))
        out.see(gpu, listed=True)
        out.parsed.facts.setdefault("products", {}).setdefault(found[1], found[2])
        return at + 1
    if found := _MIG.match(text):
        out.parsed.facts.setdefault("mig", []).append({"profile": found[1], "device": int(found[2][:4]), "uuid": found[3]})
        return at + 1
    return at
