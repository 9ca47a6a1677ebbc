"""Turn a document of the schema ``workbench.nvml/1`` (what NVML said of one node) into the events that `nvidia-smi -q` would give."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from workbench.model import Gpu, Line, Parsed, Placement, Problem
from workbench.parse.devices import from_nvml
from workbench.parse.ids import pci, uuid
from workbench.parse.pci_tools import Links
from workbench.parse.smi_doc import Out, Row
from workbench.parse.smi_query import Cell, Reading
from workbench.parse.smi_rules import judge

__all__ = ["INIT_SIGNATURES", "is_nvml", "parse_nvml"]

_SCHEMA = re.compile(r"workbench\.nvml/\d+$")
# what nvmlInit returned → the signature of the same words in nvidia-smi's output; catalog/nvml_returns.csv has the codes
INIT_SIGNATURES = {
    4: "smi-nvml-no-permission",
    9: "smi-nvml-not-loaded",
    10: "smi-nvml-timeout",
    12: "smi-library-missing",
    15: "smi-nvml-gpu-lost",
    17: "smi-nvml-blocked",
    18: "smi-version-mismatch",
    999: "smi-nvml-unknown-error",
}
_NO_DRIVER = (9, 12)  # also what a machine without a GPU says
_BROKEN = {15: "GPU is lost", 16: "GPU requires reset", 999: "Unknown Error"}
# our key → the key that `nvidia-smi -q` makes of the same fact (see smi_query), which the rules know
_KEYS = {
    "ecc.volatile.corrected_dram": "ecc_errors/volatile/dram_correctable",
    "ecc.volatile.corrected_sram": "ecc_errors/volatile/sram_correctable",
    "ecc.volatile.uncorrected_dram": "ecc_errors/volatile/dram_uncorrectable",
    "ecc.volatile.uncorrected_sram": "ecc_errors/volatile/sram_uncorrectable",
    "ecc.aggregate.corrected_dram": "ecc_errors/aggregate/dram_correctable",
    "ecc.aggregate.corrected_sram": "ecc_errors/aggregate/sram_correctable",
    "ecc.aggregate.uncorrected_dram": "ecc_errors/aggregate/dram_uncorrectable",
    "ecc.aggregate.uncorrected_sram": "ecc_errors/aggregate/sram_uncorrectable",
    "ecc.sram_threshold_exceeded": "ecc_errors/aggregate/sram_threshold_exceeded",
    "retired_pages.single_bit": "retired_pages/single_bit_ecc",
    "retired_pages.double_bit": "retired_pages/double_bit_ecc",
    "retired_pages.pending": "retired_pages/pending_page_blacklist",
    "temperature.gpu": "temperature/gpu_current_temp",
    "temperature.slowdown": "temperature/gpu_slowdown_temp",
    "temperature.margin": "temperature/gpu_t_limit_temp",
    "temperature.slowdown_margin": "temperature/gpu_slowdown_t_limit_temp",
    "throttled.sw_thermal": "clocks_event_reasons_counters/sw_thermal_slowdown",
    "throttled.hw_thermal": "clocks_event_reasons_counters/hw_thermal_slowdown",
    "throttled.power_brake": "clocks_event_reasons_counters/hw_power_braking",
    "throttled.power": "clocks_event_reasons_counters/sw_power_capping",
    "pcie.generation": "pci/gpu_link_info/pcie_generation/current",
    "pcie.generation_max": "pci/gpu_link_info/pcie_generation/max",
    "pcie.width": "pci/gpu_link_info/link_width/current",
    "pcie.width_max": "pci/gpu_link_info/link_width/max",
    "pcie.replays": "pci/replays_since_reset",
    "recovery_action": "gpu_recovery_action",
}
# where an old GPU or driver counts no places, its total stands for them
_TOTALS = {
    "ecc.volatile.corrected_total": ("volatile.corrected", "ecc_errors_corrected_volatile_total"),
    "ecc.volatile.uncorrected_total": ("volatile.uncorrected", "ecc_errors_uncorrected_volatile_total"),
    "ecc.aggregate.uncorrected_total": ("aggregate.uncorrected", "ecc_errors_uncorrected_aggregate_total"),
}
_NESTED = {
    "remapped_rows": {
        "correctable": "remapped_rows/correctable_error",
        "uncorrectable": "remapped_rows/uncorrectable_error",
        "pending": "remapped_rows/pending",
        "failure": "remapped_rows/remapping_failure_occurred",
    },
    "remapped_rows_banks": {"none": "remapped_rows/bank_remap_availability_histogram/none"},
    "repair_pending": {"channel": "ecc_errors/channel_repair_pending", "tpc": "ecc_errors/tpc_repair_pending"},
    "utilization": {"gpu": "utilization/gpu"},
    "fabric": {"state": "fabric/state", "status": "fabric/status"},
}
_COUNTERS = {
    "replay_errors": "Replay Errors",
    "recovery_errors": "Recovery Errors",
    "crc_flit_errors": "CRC FLIT Errors",
    "crc_data_errors": "CRC Data Errors",
    "receive_errors": "Rx Errors",
    "malformed_packet_errors": "Malformed packet Errors",
    "integrity_errors": "Local link integrity Errors",
    "recovery_failed": "Link recovery failed events",
}
_FAILED = ("recovery_errors", "integrity_errors", "recovery_failed")  # a link that was down and could not be helped
# nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_…: two bits each, 1 is bad
_FABRIC_HEALTH = {"bandwidth": (0, "Degraded"), "route_unhealthy": (4, "True"), "access_timeout_recovery": (6, "True")}
# nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_…: four bits from the eighth on, 1 is right, 0 is not told
_FABRIC_CONFIGURATION = {
    2: "Incorrect SysGUID", 3: "Incorrect Chassis Serial Number", 4: "No Partition", 5: "Insufficient NVLinks",
    6: "Incompatible GPU Firmware", 7: "Invalid Location", 8: "GPU State Invalid",
}  # fmt: skip
_MIB = 1 << 20


def is_nvml(data: Any) -> bool:
    """Tell whether a JSON document says that it is what NVML said of a node."""
    return isinstance(data, Mapping) and bool(_SCHEMA.match(str(data.get("schema") or "")))


def parse_nvml(data: Any, *, file: str, node: str | None = None, lines: Sequence[Line] = ()) -> Parsed:
    """
    Return what the document says: the events, GPUs, placements and facts that `nvidia-smi -q` gives for the same state.

    Parameters
    ----------
    data : mapping
        The document, see `workbench.sources.node.nvml`.
    file, node : str
        Its name, and the node when the name tells one; the document's own word counts more.
    lines : sequence of Line, optional
        The document's text, to point at.

    Returns
    -------
    Parsed
        A document that is not whole gives a problem of source ``smi``: what was not read is not healthy.
    """
    parsed = Parsed()
    if not is_nvml(data):
        parsed.problems.append(Problem(file, "no document of the schema workbench.nvml/1", "collect it again", source="smi"))
        return parsed
    where = _Where(lines)
    out = Out(parsed, file, str(data.get("node") or "") or node)
    bus = [address for one in _items(data.get("bus")) if (address := pci(str(one.get("pci") or "")))]
    for fact in ("driver", "cuda", "nvml"):
        if isinstance(data.get(fact), str):
            parsed.facts[fact] = data[fact]
    if isinstance(data.get("count"), int):
        parsed.facts["attached"] = data["count"]
    try:
        parsed.facts["captured"] = datetime.fromisoformat(str(data.get("time"))).timestamp()
    except ValueError:
        pass
    gpus = [(raw, _gpu(raw, out)) for raw in _items(data.get("gpus"))]
    _name_lost(gpus, bus)
    readings, links = [], Links(out)
    for raw, gpu in gpus:
        known = out.see(gpu, listed=True)
        reading = _reading(raw, known, where)
        if len(reading.cells) or raw.get("uuid"):
            readings.append(reading)
        _states(raw, known, where, links, out)
        from_nvml(raw, known, out, where.row(known.index, "serial", "").line.no)
    _ending(data, bus, where, out)
    judge(readings, out)
    links.judge()
    for address in bus:
        if out.listed and address not in out.listed and data.get("ending") == "whole":
            out.event(
                "smi-gpu-missing", where.row(None, "bus", address), Gpu(pci=address), listed=len(out.listed), on_bus=len(bus)
            )
    out.finish()
    parsed.facts["gpus"] = out.gpus
    return parsed


class _Where:
    """Finds the line of a fact in the text of the document, as it is written with an indent of one."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines: dict[tuple[int | None, str], Line] = {}
        index: int | None = None
        for line in lines:
            if found := re.match(r' "(\w+)":', line.text):
                index = None
                self.lines.setdefault((None, found[1]), line)
            elif found := re.match(r'   "index": (\d{1,4})', line.text):
                index = int(found[1])
            elif index is not None and (found := re.match(r'   "([\w.]+)":', line.text)):
                self.lines.setdefault((index, found[1]), line)

    def row(self, index: int | None, key: str, value: Any) -> Row:
        line = self.lines.get((index, key)) or self.lines.get((index, "why_not"))
        text = f"{'NVML' if index is None else f'NVML GPU {index}'}: {key} = {value}"
        return Row(Line(line.no if line else 1, text), text)


def _items(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, Mapping))


def _inner(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mib(value: Any) -> float | None:
    return value / _MIB if isinstance(value, (int, float)) else None


def _gpu(raw: Mapping[str, Any], out: Out) -> Gpu:
    index = raw.get("index")
    return Gpu(index if isinstance(index, int) else None, uuid(str(raw.get("uuid") or "")), pci(str(raw.get("pci") or "")))


def _name_lost(gpus: list[tuple[Mapping[str, Any], Gpu]], bus: Sequence[str]) -> None:
    """Give the one GPU without an address the one address that is left: NVML tells nothing of a lost GPU, the kernel still lists it."""
    nameless = [at for at, (_, gpu) in enumerate(gpus) if gpu.pci is None]
    left = [address for address in bus if address not in {gpu.pci for _, gpu in gpus}]
    if len(nameless) == len(left) == 1:
        raw, gpu = gpus[nameless[0]]
        gpus[nameless[0]] = (raw, Gpu(gpu.index, gpu.uuid, left[0]))


def _text(value: Any) -> str:
    return "Yes" if value is True else "No" if value is False else str(value)


def _reading(raw: Mapping[str, Any], gpu: Gpu, where: _Where) -> Reading:
    """The cells that `nvidia-smi -q` would print."""
    reading = Reading(gpu)

    def put(key: str, name: str, value: Any) -> None:
        reading.cells.setdefault(key, Cell(_text(value), where.row(gpu.index, name, value)))

    for name, key in _KEYS.items():
        if raw.get(name) is not None:
            put(key, name, raw[name])
    for name, (places, key) in _TOTALS.items():
        if raw.get(name) is not None and raw.get(f"ecc.{places}_dram") is None and raw.get(f"ecc.{places}_sram") is None:
            put(key, name, raw[name])
    for name, keys in _NESTED.items():
        inner = _inner(raw.get(name))
        for part, key in keys.items():
            if inner.get(part) is not None:
                put(key, name, "Success" if key == "fabric/status" and inner[part] == 0 else inner[part])
    # a driver before R575 tells heat of hardware and of software as one
    if raw.get("throttled.thermal") is not None and raw.get("throttled.hw_thermal") is None:
        put("clocks_event_reasons_counters/thermal_violation", "throttled.thermal", raw["throttled.thermal"])
    mask = _inner(raw.get("fabric")).get("health_mask")
    for part, (shift, said) in _FABRIC_HEALTH.items():
        if isinstance(mask, int) and mask >> shift & 3 == 1:
            put(f"fabric/health/{part}", "fabric", said)
    wrong = mask >> 8 & 15 if isinstance(mask, int) else 0
    if wrong > 1:
        put("fabric/health/incorrect_configuration", "fabric", _FABRIC_CONFIGURATION.get(wrong, f"code {wrong}"))
    throttle = raw.get("throttle")
    for reason in throttle if isinstance(throttle, list) else ():
        put(f"clocks_event_reasons/{reason}", "throttle", "Active")
    for name, reason in _inner(raw.get("why_not")).items():
        code = _inner(reason).get("code")
        word = _BROKEN.get(code) if isinstance(code, int) else None
        if word:
            put(f"why_not/{name}/error", name, word)
    return reading


def _states(raw: Mapping[str, Any], gpu: Gpu, where: _Where, links: Links, out: Out) -> None:
    """Take NVLinks, processes and modes."""
    for one in _items(raw.get("nvlink")):
        number = one.get("link")
        if not isinstance(number, int) or one.get("active") is None:
            continue
        row = where.row(gpu.index, "nvlink", f"link {number} {'active' if one['active'] else 'inactive'}")
        links.states.setdefault(gpu, {})[number] = ("active" if one["active"] else "inactive", row)
        for key, words in _COUNTERS.items():
            value = one.get(key)
            if isinstance(value, int) and value:
                signature = "smi-nvlink-recovery-failed" if key in _FAILED else "smi-nvlink-errors"
                key_of = (number, words) if key in _FAILED else words
                row = where.row(gpu.index, "nvlink", f"link {number} {words}: {value}")
                out.event(signature, row, gpu, key=key_of, link=number, counter=words, value=value)
    for one in _items(raw.get("processes")):
        if isinstance(one.get("pid"), int):
            line = where.row(gpu.index, "processes", one["pid"]).line.no
            out.parsed.placements.append(
                Placement(None, out.node, gpu=gpu, pid=one["pid"], origin="smi-process", file=out.file, line=line)
            )
    if raw.get("compute_mode") == "Prohibited":
        out.event("smi-compute-prohibited", where.row(gpu.index, "compute_mode", "Prohibited"), gpu)
    memory: Mapping[str, Any] = _inner(raw.get("memory"))
    load: Mapping[str, Any] = _inner(raw.get("utilization"))
    mig = _inner(raw.get("mig.mode")).get("current")
    out.parsed.facts.setdefault("smi", {})[gpu.pci or str(gpu.index)] = {
        "node": out.node,
        "persistence": None if raw.get("persistence") is None else "On" if raw["persistence"] else "Off",
        "volatile_uncorrected": raw.get("ecc.volatile.uncorrected_total"),
        "celsius": raw.get("temperature.gpu"),
        "watts": raw.get("power.watts"),
        "watts_cap": raw.get("power.limit"),
        "memory_mib": _mib(memory.get("used")),
        "memory_total_mib": _mib(memory.get("total")),
        "utilization": load.get("gpu"),
        "compute_mode": raw.get("compute_mode"),
        "mig": None if mig is None else "Enabled" if mig else "Disabled",
    }
    if isinstance(raw.get("name"), str):
        out.parsed.facts.setdefault("products", {}).setdefault(str(gpu.index), raw["name"])


def _ending(data: Mapping[str, Any], bus: Sequence[str], where: _Where, out: Out) -> None:
    """Say what of the node could not be read: a driver that is not there, one that hangs, a reader that died."""
    ending, error = data.get("ending"), _inner(data.get("error"))
    code, words = error.get("code"), str(error.get("error") or "")
    if ending == "whole":
        why = _inner(data.get("why_not"))
        for name, reason in why.items():
            said = f"NVML did not tell {name}: {_inner(reason).get('error')}"
            out.parsed.problems.append(Problem(out.file, said, "nvidia-smi may say more", None, "smi", "partial"))
        if not data.get("gpus") and bus and not why:
            out.event("smi-no-devices", where.row(None, "count", data.get("count")), on_bus=len(bus))
        return
    row = where.row(None, "error", words or ending)
    if ending == "hang":
        hung = _inner(data.get("hung"))
        index = hung.get("gpu")
        gpu = next((gpu for gpu in out.gpus if gpu.index == index), None) if isinstance(index, int) else None
        out.event("smi-timeout", row, gpu, call=hung.get("call"))
    elif (
        ending == "init"
        and (bus or code not in _NO_DRIVER)
        and isinstance(code, int)
        and (signature := INIT_SIGNATURES.get(code))
    ):
        out.event(signature, row, code=code, error=words)
    absent = ending == "init" and code in _NO_DRIVER and not bus
    message = f"NVML was not read to its end ({ending}): {words}"
    hint = (
        "the kernel lists no NVIDIA GPU here: it has none, or it is hidden"
        if absent
        else "nvidia-smi, and the kernel log, tell more"
    )
    status = "missing" if absent else "partial" if out.gpus else "failed"
    out.parsed.problems.append(Problem(out.file, message, hint, row.line.no, "smi", status))
