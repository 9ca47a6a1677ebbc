"""Turn what people's own monitors print of GPUs (gpustat, amd-smi) into lost GPUs, uncorrectable errors, states and processes of a node."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from workbench.model import Gpu, Placement
from workbench.parse.ids import uuid
from workbench.parse.smi_doc import Document, Out, Row, number

__all__ = ["read_amd", "read_gpustat"]

# [0] NVIDIA A100-SXM4-40GB | 59°C,  30 %,  88 %,  253 / 400 W | 31337 / 40960 MB | alice:python/1234(31335M)
# degrees are °C, 'C or ℃; a value that was not told is ? or ??; the old version prints "Mem:" and MiB
_LINE = re.compile(
    r"\[(\d{1,3})\]\s+(\S.*?)\s*\|\s*([\d?]{1,3})\s*(?:°C|'C|℃|C),(?:\s*[\d?]{1,3}\s*%,)?\s*([\d?]{1,3})\s*%[^|]*\|"
    r"\s*(?:Mem:\s*)?([\d?]{1,7})\s*(?:Mi?B)?\s*/\s*([\d?]{1,7})\s*Mi?B\s*(?:\|\s*(.*))?$"
)
# gpu-7                    Wed Jan 13 12:10:38 2021  455.32.00
_HEAD = re.compile(r"[\w.-]+\s{2,}\S.*\d\d:\d\d:\d\d.*?\s{2,}(\d{3}(?:\.\d+)+)\s*$")
# alice:python/1234(645M) of `gpustat -cpu`
_PROCESS = re.compile(r"/(\d{1,9})\((?:\d+|\?)M\)")
# what gpustat calls a GPU whose handle NVML refuses, and what that is
_REFUSED = {"((GPU is lost))": ("smi-gpu-lost", 15), "((Unknown Error))": ("smi-handle-unknown-error", 999)}

_AMD_GPU = re.compile(r"\s*GPU: (\d{1,3})\s*$")
_AMD_COUNT = re.compile(r"\s+TOTAL_UNCORRECTABLE_COUNT: (\d{1,12})\s*$")
_BLOCK = 400  # lines that `amd-smi metric` prints of one GPU at most


def read_gpustat(doc: Document, at: int, out: Out) -> int:
    """Read one line of `gpustat`, or all of `gpustat --json`, at row `at`; returns the row after it, or the same."""
    row = doc.rows[at]
    text = row.text.strip()
    if found := _LINE.match(text):
        gpu = out.see(Gpu(index=int(found[1])))
        _refused(out, row, gpu, found[2])
        _state(out, gpu, found[3], found[4], found[5], found[6])
        for pid in _PROCESS.findall(found[7] or ""):
            _process(out, row, gpu, int(pid))
        return at + 1
    if (head := _HEAD.match(text)) and at + 1 < len(doc.rows) and _LINE.match(doc.rows[at + 1].text.strip()):
        out.parsed.facts.setdefault("driver", head[1])
        return at + 1
    if text.startswith("{") and any('"query_time"' in each.text for each in doc.rows[at : at + 6]):
        return _json(doc, at, out)
    return at


def _json(doc: Document, at: int, out: Out) -> int:
    try:
        data, _ = json.JSONDecoder().raw_decode("\n".join(row.text for row in doc.rows[at:]).lstrip())
    except ValueError:
        return at
    gpus = data.get("gpus") if isinstance(data, dict) else None
    if not isinstance(gpus, list):
        return at
    row = doc.rows[at]
    if version := str(data.get("driver_version") or ""):
        out.parsed.facts.setdefault("driver", version)
    for told in gpus:
        if not isinstance(told, Mapping) or not isinstance(told.get("index"), int):
            continue
        mine = next((each for each in doc.rows[at:] if str(told.get("uuid") or told.get("name") or "?") in each.text), row)
        gpu = out.see(Gpu(int(told["index"]), uuid(str(told.get("uuid") or ""))))
        _refused(out, mine, gpu, str(told.get("name") or ""))
        _state(out, gpu, *(told.get(key) for key in ("temperature.gpu", "utilization.gpu", "memory.used", "memory.total")))
        for process in told.get("processes") or ():
            if isinstance(process, Mapping) and isinstance(process.get("pid"), int):
                _process(out, mine, gpu, process["pid"])
    return len(doc.rows)


def _refused(out: Out, row: Row, gpu: Gpu, name: str) -> None:
    if name in _REFUSED:
        signature, code = _REFUSED[name]
        out.event(signature, row, gpu, code=code, error=name.strip("()"))


def _state(out: Out, gpu: Gpu, celsius: Any, load: Any, used: Any, total: Any) -> None:
    names = ("celsius", "utilization", "memory_mib", "memory_total_mib")
    told = {name: number(str(value)) for name, value in zip(names, (celsius, load, used, total), strict=True)}
    out.parsed.facts.setdefault("smi", {}).setdefault(gpu.pci or str(gpu.index), {"node": out.node, **told})


def _process(out: Out, row: Row, gpu: Gpu, pid: int) -> None:
    out.parsed.placements.append(
        Placement(None, out.node, gpu=gpu, pid=pid, origin="smi-process", file=out.file, line=row.line.no)
    )


def read_amd(doc: Document, at: int, out: Out) -> int:
    """Read the number of uncorrectable errors of `amd-smi metric` at row `at`; returns the row after it, or the same."""
    found = _AMD_COUNT.match(doc.rows[at].text)
    if not found:
        return at
    if int(found[1]):
        above = (_AMD_GPU.match(row.text) for row in reversed(doc.rows[max(0, at - _BLOCK) : at]))
        index = next((one[1] for one in above if one), None)
        gpu = out.see(Gpu(index=int(index))) if index is not None else None
        out.event("smi-ecc-uncorrectable", doc.rows[at], gpu, volatile=int(found[1]))
    return at + 1
