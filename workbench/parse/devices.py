"""Turn what tools say of a GPU as a thing (serial number, VBIOS, part) into facts that a ticket to its provider needs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workbench.model import Gpu

if TYPE_CHECKING:
    from workbench.parse.smi_doc import Out
    from workbench.parse.smi_query import Reading

__all__ = ["from_dcgm", "from_nvml", "from_reading", "note"]

# fact → keys of `nvidia-smi -q` (text, XML) and of --query-gpu, and the shape of a value: a GPU that is lost says "Unknown Error" there
_FACTS: dict[str, tuple[tuple[str, ...], re.Pattern[str]]] = {
    "serial": (("serial_number", "serial", "gpu_serial"), re.compile(r"(?=.*[1-9A-Za-z])[0-9A-Za-z-]{6,30}")),
    "vbios": (("vbios_version",), re.compile(r"[0-9A-Fa-f]{2}(?:\.[0-9A-Fa-f]{2}){3,6}")),  # 96.00.74.00.1C
    "product": (
        ("product_name", "name", "gpu_name"),
        re.compile(r"(?!.*(?:Unknown Error|GPU is lost|ERR!))[A-Z][\w .+/()-]{2,60}"),
    ),
    "part": (("gpu_part_number", "board_part_number"), re.compile(r"[0-9A-Z]{3,8}-[0-9A-Z-]{4,20}")),  # 2330-885-A1
    "inforom": (
        ("inforom_version/image_version", "inforom_version/img_version", "inforom_img"),
        re.compile(r"[0-9A-Z]{4}(?:\.[0-9A-Z]{2,4}){3}"),  # G520.0200.00.05
    ),
}


def note(out: Out, gpu: Gpu, said: Mapping[str, Any], *, by: str, line: int | None) -> None:
    """Keep what is known of a GPU as a thing under ``facts["devices"]``; values of another shape than theirs are left out."""
    told = {}
    for fact, (_, shape) in _FACTS.items():
        value = said.get(fact)
        if isinstance(value, str) and shape.fullmatch(value.strip()):
            told[fact] = value.strip()
    if told and gpu != Gpu():
        row = {"node": out.node, **gpu.as_dict(), **told, "by": by, "file": out.file, "line": line}
        out.parsed.facts.setdefault("devices", []).append(row)


def from_reading(reading: Reading, out: Out) -> None:
    """Keep what one reading of nvidia-smi says of its GPU."""
    if reading.gpu is None:
        return
    cells = {fact: next((reading.cells[key] for key in keys if key in reading.cells), None) for fact, (keys, _) in _FACTS.items()}
    first = next((cell for cell in cells.values() if cell is not None), None)
    if first is not None:
        said = {fact: cell.value for fact, cell in cells.items() if cell is not None}
        note(out, reading.gpu, said, by="nvidia-smi", line=first.row.line.no)


def from_nvml(raw: Mapping[str, Any], gpu: Gpu, out: Out, line: int | None) -> None:
    """Keep what NVML says of one GPU."""
    note(out, gpu, {"serial": raw.get("serial"), "vbios": raw.get("vbios"), "product": raw.get("name")}, by="NVML", line=line)


def from_dcgm(value: Mapping[str, Any], root: Any, out: Out, line: int | None) -> None:
    """
    Keep the serial numbers that `dcgmi diag -j` gives: DCGM 4 by entity, DCGM 3 by number of the GPU.

    DCGM 2 gives a list without those that it does not know, so that a place in it names no GPU: it is not used.
    """
    serials: dict[str, Any] = {}
    for group in value.get("entity_groups") or ():
        if isinstance(group, Mapping) and group.get("entity_group") == "GPU":
            for one in group.get("entities") or ():
                if isinstance(one, Mapping):
                    serials[str(one.get("entity_id"))] = one.get("serial_num")
    for part in (value, root):
        if isinstance(part, Mapping) and isinstance(told := part.get("GPU Device Serials"), Mapping):
            serials |= {str(number): serial for number, serial in told.items()}
    for number, serial in serials.items():
        if number.isdigit() and len(number) < 4:
            gpu = out.see(Gpu(index=int(number)))
            note(out, gpu, {"serial": serial}, by="dcgmi", line=line)
