"""Turn output of tools run on a GPU node (nvidia-smi, dcgmi, lspci, ibstat, systemctl …) into events, GPUs and placements."""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from workbench.catalog import signatures
from workbench.model import Gpu, Line, Parsed, Placement, Problem
from workbench.parse import dcgmi, pci_tools
from workbench.parse.burn_in import read_burn_in
from workbench.parse.devices import from_reading
from workbench.parse.gpu_monitors import read_amd, read_gpustat
from workbench.parse.ids import pci, uuid
from workbench.parse.imex_ctl import read_imex
from workbench.parse.smi_doc import Document, Out, Row, documents, number
from workbench.parse.smi_query import Reading, read_csv, read_list, read_text, read_xml
from workbench.parse.smi_rules import judge, judge_errors
from workbench.parse.text import MONTHS

__all__ = ["parse_smi"]

# "| NVIDIA-SMI 535.129.03   Driver Version: 535.129.03   CUDA Version: 12.2     |"; R590: "KMD Version", "CUDA UMD Version"
# nvitop: "│ NVITOP 1.4.2       Driver Version: 550.90.12      CUDA Driver Version: 12.4 │"
_HEAD = re.compile(
    r"\|\s*(?:NVIDIA-SMI ([\d.]+)|NVITOP \S+)\s+(?:(?:Driver|KMD) Version: (\S+))?(?:.*?CUDA (?:UMD |Driver )?Version: (\S+))?"
)
# the bus address in the second cell: "00000000:1A:00.0 Off"; drivers before R375 print four digits
_BUS = re.compile(r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])")
# "|    0   N/A  N/A      1234      C   python                           1000MiB |"
_PROCESS = re.compile(
    r"\|\s+(\d+)\s+(?:(?:N/A|\d+)\s+(?:N/A|\d+)\s+)?(\d+)\s+(C\+G|M\+C|[CGM])\s+(.*?)\s+(?:\d+\s?MiB|N/A|ERR!)\s*\|"
)
# "Fri Oct 25 11:35:11 2024" | "Timestamp      : Wed Jun  7 19:32:16 2023"
_DATE = re.compile(r"(?:Timestamp\s+: )?[A-Z][a-z]{2} ([A-Z][a-z]{2})\s+(\d{1,2}) (\d{2}):(\d{2}):(\d{2}) (\d{4})\s*$")
# "2023/06/07 19:32:16.513", the timestamp of --query-gpu
_SORTED_DATE = re.compile(r"(\d{4})/(\d{2})/(\d{2}) (\d{2}):(\d{2}):(\d{2})(?:\.\d+)?\s*$")
_CODES = {"unknown error": 999, "gpu is lost": 15, "gpu requires reset": 16}


@lru_cache(maxsize=1)
def _failures() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Patterns of this area's rows in the catalog, most specific (longest) first."""
    rows = [row for row in signatures().values() if row.layer == "smi" and row.pattern]
    return tuple((row.id, re.compile(row.pattern)) for row in sorted(rows, key=lambda row: -len(row.pattern)))


def _failure(doc: Document, at: int, out: Out) -> int:
    """Look for a line that says by itself that a tool, a driver or a service failed."""
    row = doc.rows[at]
    if len(row.text) > 20_000:
        return at + 1
    for name, pattern in _failures():
        found = pattern.search(row.text)
        if found:
            fields = {key: value for key, value in found.groupdict().items() if value}
            address, index = pci(fields.pop("pci", None)), fields.pop("gpu", None)
            gpu = Gpu(int(index) if index and len(index) < 4 else None, uuid(fields.pop("uuid", None)), address)
            out.event(name, row, None if gpu == Gpu() else gpu, code=_CODES.get(str(fields.get("error", "")).lower()), **fields)
            break
    return at + 1


def _captured(text: str) -> float | None:
    """Return when a snapshot was taken: nvidia-smi prints the node's local time without its zone, too weak to stamp events with."""
    if date := _DATE.match(text):
        parts = (int(date[6]), MONTHS.get(date[1], 1), int(date[2]), int(date[3]), int(date[4]), int(date[5]))
    elif date := _SORTED_DATE.match(text):
        parts = (int(date[1]), int(date[2]), int(date[3]), int(date[4]), int(date[5]), int(date[6]))
    else:
        return None
    return float(calendar.timegm((*parts, 0, 0, 0)))


def _context(doc: Document, at: int, out: Out) -> int:
    """Take versions, the time of the snapshot and NVML's own version from lines that are no event."""
    text = doc.rows[at].text
    if (captured := _captured(text)) is not None:
        out.parsed.facts.setdefault("captured", captured)
    elif found := re.match(r"NVRM version: NVIDIA UNIX .*?Kernel Module\s+(?:for \S+\s+)?([\d.]+)", text):
        out.parsed.facts["module"] = found[1]
    elif found := re.match(r"NVML library version: ([\d.]+)", text.strip()):
        out.parsed.facts["nvml"] = found[1]
        for event in reversed(out.parsed.events):
            if event.signature == "smi-version-mismatch":
                event.data.setdefault("library", found[1])
                break
    return at


def _table(doc: Document, at: int, out: Out) -> int:
    """Read the header or one GPU of nvidia-smi's table."""
    row = doc.rows[at]
    if head := _HEAD.match(row.text.strip()):
        driver, cuda = head[2], head[3]
        if driver and driver[0].isdigit():
            out.parsed.facts.setdefault("driver", driver)
            if head[1] and driver.split(".")[0] != head[1].split(".")[0]:
                out.event("smi-tool-version-differs", row, tool=head[1], driver=driver)
        if cuda and cuda[0].isdigit():
            out.parsed.facts.setdefault("cuda", cuda)
        elif cuda:
            out.event("smi-cuda-version-err", row, value=cuda)
        return at + 1
    if process := _PROCESS.match(row.text.strip()):
        if len(process[1]) < 4 and len(process[2]) < 10:
            gpu = Gpu(index=int(process[1]))
            out.parsed.placements.append(
                Placement(None, out.node, gpu=gpu, pid=int(process[2]), origin="smi-process", file=out.file, line=row.line.no)
            )
        return at + 1
    cells = _cells(row)
    index = re.match(r"(\d{1,3})\s+\S", cells[0]) if len(cells) == 3 else None
    if not index or not (_BUS.search(cells[1]) or re.search(r"ERR!|GPU is lost|Unknown Error", " ".join(cells[1:]))):
        return _mig(row, cells, out, at) if len(cells) >= 4 else at
    found = _BUS.search(cells[1])
    gpu = out.see(Gpu(index=int(index[1]), pci=pci(found[1]) if found else None), listed=True)
    out.rows.setdefault(int(index[1]), row)
    below = []
    at += 1
    while at < len(doc.rows) and len(cell := _cells(doc.rows[at])) == 3 and not re.match(r"\d+\s+[A-Z]", cell[0]):
        below.append(doc.rows[at])
        at += 1
    _gpu(row, cells, below, gpu, out)
    return at


def _cells(row: Row) -> list[str]:
    """The cells of a row; nvitop draws a bar in one more, which says nothing else."""
    cells = row.cells
    return cells[:3] if len(cells) == 4 and re.match(r"(?:MEM|UTL|MBW|PWR): ", cells[3]) else cells


def _gpu(row: Row, cells: list[str], below: list[Row], gpu: Gpu, out: Out) -> None:
    ecc = number(re.sub(r"^(?:Enabled|Disabled|N/A)\s+(?=\d)", "", cells[2]))  # nvitop prints the mode of MIG before it
    if ecc:
        out.event("smi-ecc-uncorrectable", row, gpu, volatile=int(ecc))
    values = [*cells, *(cell for line in below for cell in line.cells)]
    errors = [line for line in (row, *below) if re.search(r"ERR!|GPU is lost|Unknown Error|requires reset", line.text)]
    if errors:
        judge_errors(out, errors[0], values, gpu)
    state: dict[str, str | float | None] = {"persistence": cells[0].split()[-1], "volatile_uncorrected": ecc}
    if below:
        first = _cells(below[0])
        # "N/A   33C    P0              71W / 700W" | "4MiB / 81559MiB" | "0%      Default"
        heat, power = re.search(r"(\d+)C\b", first[0]), re.search(r"(\d+)W\s*/\s*(\d+)W", first[0])
        memory, load = re.search(r"(\d+)MiB\s*/\s*(\d+)MiB", first[1]), re.match(r"(?:(\d+)\s?%|N/A|ERR!)\s*(.*)", first[2])
        state |= {
            "celsius": number(heat[1]) if heat else None,
            "watts": number(power[1]) if power else None,
            "watts_cap": number(power[2]) if power else None,
            "memory_mib": number(memory[1]) if memory else None,
            "memory_total_mib": number(memory[2]) if memory else None,
            "utilization": number(load[1]) if load else None,
            "compute_mode": load[2] if load else None,
            "mig": _cells(below[1])[2] if len(below) > 1 else None,
        }
        if load and load[2].startswith("Prohib"):
            out.event("smi-compute-prohibited", below[0], gpu)
    out.parsed.facts.setdefault("smi", {})[gpu.pci or str(gpu.index)] = {"node": out.node, **state}


def _mig(row: Row, cells: list[str], out: Out, at: int) -> int:
    """Read a MIG row: ``|  0    1   0   0  |     11MiB / 20096MiB | 42      0 |  3   0    2    0    0 |``."""
    ids = re.match(r"(\d{1,3})\s+(\d{1,3})\s+(\d{1,3})\s+(\d{1,3})$", cells[0])
    if not ids:
        return at
    errors = re.match(r"\S+\s+(\d+)$", cells[2])
    if errors and int(errors[1][:9]):
        out.event("smi-ecc-uncorrectable", row, Gpu(index=int(ids[1])), key=ids[2], volatile=int(errors[1][:9]), mig=ids[2])
    return at + 1


def _readings(
    reader: Callable[[Document, int, Out], tuple[int, list[Reading]]], collected: list[list[Reading]]
) -> Callable[[Document, int, Out], int]:
    def read(doc: Document, at: int, out: Out) -> int:
        after, readings = reader(doc, at, out)
        if readings:
            collected.append(readings)
            blocks = [reading for reading in readings if reading.gpu and reading.gpu.pci]
            attached = next((number(value) for reading in readings if (value := reading.value("attached_gpus"))), None)
            if blocks and attached == len(blocks):
                # -q prints the GPUs in the order of their indexes; only a whole listing tells them
                for index, reading in enumerate(blocks):
                    if reading.gpu and reading.gpu.index is None:
                        reading.gpu = out.see(Gpu(index, reading.gpu.uuid, reading.gpu.pci))
            if attached is not None:
                out.parsed.facts.setdefault("attached", int(attached))
            for reading in readings:
                from_reading(reading, out)
                if (captured := _captured(reading.value("timestamp") or "")) is not None:
                    out.parsed.facts.setdefault("captured", captured)
                for fact, pattern in (("driver", "driver_version"), ("cuda", "cuda_version")):
                    if value := reading.value(pattern):
                        out.parsed.facts.setdefault(fact, value)
        return after

    return read


def _missing(out: Out) -> None:
    """Add an event for every GPU that the bus shows and nvidia-smi does not."""
    for address, row in out.on_bus.items():
        if out.listed and address not in out.listed and any(item in out.on_bus for item in out.listed):
            out.event("smi-gpu-missing", row, Gpu(pci=address), listed=len(out.listed), on_bus=len(out.on_bus))
    for gap in sorted(set(range(max(out.rows, default=0))) - set(out.rows)):
        # NVML numbers without gaps: one in the middle is a GPU that the tool skipped, or a line that somebody cut out
        if len(out.rows) > 2:
            after = out.rows[min(index for index in out.rows if index > gap)]
            out.event("smi-index-gap", after, key=gap, index=gap, listed=len(out.rows))


def _read(doc: Document, out: Out) -> None:
    queries: list[list[Reading]] = []
    links = pci_tools.Links(out)
    readers: tuple[Callable[[Document, int, Out], int], ...] = (
        _context,
        read_burn_in,
        read_gpustat,
        read_amd,
        dcgmi.read_hostengine,
        read_imex,
        dcgmi.read_json,
        _readings(read_xml, queries),
        _table,
        _readings(read_text, queries),
        links.read,
        pci_tools.read_topology,
        read_list,
        dcgmi.read_diag,
        dcgmi.read_health,
        dcgmi.read_other,
        pci_tools.read_lspci,
        pci_tools.read_ports,
        pci_tools.read_services,
        pci_tools.read_packages,
        _readings(read_csv, queries),
        _failure,
    )
    at = 0
    while at < len(doc.rows):
        if not doc.rows[at].text.strip():
            at += 1
            continue
        for reader in readers:
            after = reader(doc, at, out)
            if after > at:
                at = after
                break
    for readings in queries:
        judge(readings, out)
    links.judge()
    _missing(out)
    out.finish()


def parse_smi(lines: Sequence[Line], *, file: str, node: str | None = None) -> Parsed:
    """
    Parse one file with output of tools that were run on a node, several outputs one after another included.

    Parameters
    ----------
    lines : sequence of Line
        The whole file.
    file : str
        Name used in events and problems.
    node : str, optional
        The node, when the file's name or place says so. A pdsh or ansible prefix in front of the lines overrules it.

    Returns
    -------
    Parsed
        Events (source ``smi``; without a time, since a snapshot says what is, not since when), placements of processes, problems,
        and facts: ``gpus``, ``driver``, ``cuda``, ``captured`` (epoch seconds of the snapshot, its zone taken as UTC),
        ``smi`` (state of each GPU in the table), ``devices`` (serial numbers and the like), ``has_kernel_lines`` when kernel
        lines were left to the kernel parser.
    """
    parsed = Parsed()
    docs, kernel = documents(lines, node)
    if kernel:
        parsed.facts["has_kernel_lines"] = True
    gpus: list[Gpu] = []
    for doc in docs:
        out = Out(parsed, file, doc.node)
        try:
            _read(doc, out)
        except (ValueError, IndexError, KeyError, TypeError, RecursionError, OverflowError) as error:
            # a bug in a reader must not cost the rest of the evidence
            hint = "please report this file's format"
            parsed.problems.append(Problem(file, f"part of the tool output could not be read: {error}", hint, source="smi"))
        gpus += out.gpus
    parsed.facts["gpus"] = gpus
    if not any(row.text.strip() for doc in docs for row in doc.rows) and not kernel:
        hint = "run the tool again: no output also comes from a hung driver"
        parsed.problems.append(Problem(file, "the tool printed nothing", hint, source="smi", status="missing"))
    return parsed
