"""Turn what NVML or nvidia-smi said of a node's GPUs into one state a GPU, with the same keys whichever of them was asked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.model import Event, Gpu, Line, Parsed, Problem
from workbench.parse.ids import pci, uuid
from workbench.parse.nvml_doc import parse_nvml
from workbench.parse.smi import parse_smi
from workbench.parse.smi_doc import Out, documents, number
from workbench.parse.smi_query import Reading, read_text, read_xml

__all__ = ["GpuState", "NodeGpus", "from_nvml", "from_smi"]

# what NVML says when a device cannot do it at all, as against could not be asked now
_UNSUPPORTED = (3, 13)
_LOST = re.compile(r"GPU is lost|Unknown Error|ERR!|requires reset", re.I)


@dataclass(frozen=True, slots=True)
class GpuState:
    """
    What one GPU is and counts.

    Attributes
    ----------
    gpu : Gpu
        Its names.
    facts : mapping
        Keys of the schema ``workbench.nvml/1`` (see `workbench.sources.node.nvml`), groups written with a dot
        (``remapped_rows.pending``): bytes, watts, MHz, degrees Celsius, booleans. A key that is not there was not told.
    why_not : mapping
        Key → why there is no value, in the words of who was asked.
    unsupported : frozenset of str
        Keys that this device or driver does not have at all.
    """

    gpu: Gpu
    facts: Mapping[str, Any]
    why_not: Mapping[str, str] = field(default_factory=dict)
    unsupported: frozenset[str] = frozenset()

    @property
    def product(self) -> str:
        """The product's name, empty when not told."""
        return str(self.facts.get("name") or "")

    @property
    def lost(self) -> str:
        """Why it answers no more, empty when it does."""
        # NVML's own library says reset, pynvml restart
        return next((why for why in self.why_not.values() if re.search(r"\blost\b|requires re(?:set|start)", why, re.I)), "")

    def get(self, key: str) -> Any:
        """Return a value; None when it was not told."""
        return self.facts.get(key)

    def reason(self, key: str) -> str:
        """Return why there is no value, in the words of who was asked."""
        return self.why_not.get(key) or self.why_not.get(key.rpartition(".")[0]) or self.why_not.get("handle") or "not told"

    def can(self, *keys: str) -> bool:
        """Whether this device has any of them: False only when it says of every one that it has not."""
        return not all(key in self.unsupported or key.rpartition(".")[0] in self.unsupported for key in keys)

    def flag(self, key: str) -> bool | None:
        """Return a yes or no; None when it was not told."""
        value = self.facts.get(key)
        return value if isinstance(value, bool) else None

    def number(self, key: str) -> float | None:
        """Return a number; None when it was not told."""
        value = self.facts.get(key)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """
    All GPUs of a node, as one way of asking showed them.

    Attributes
    ----------
    states : tuple of GpuState
        One for each GPU that was listed, lost ones included.
    driver, cuda, nvml : str
        Versions, empty when not told.
    count : int or None
        How many GPUs the driver says there are.
    bus : tuple of str
        PCI addresses of the GPUs that the kernel lists; empty when that was not looked at.
    events : tuple of Event
        What the same answer says of faults, by signature of the catalog.
    problems : tuple of str
        What of the answer could not be read.
    """

    states: tuple[GpuState, ...] = ()
    driver: str = ""
    cuda: str = ""
    nvml: str = ""
    count: int | None = None
    bus: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    problems: tuple[str, ...] = ()


def from_nvml(document: Mapping[str, Any], *, file: str = "NVML") -> NodeGpus:
    """
    Return what a document of the schema ``workbench.nvml/1`` says.

    Parameters
    ----------
    document : mapping
        See `workbench.sources.node.nvml`.
    file : str, optional
        Its name, for events.
    """
    parsed = parse_nvml(document, file=file)
    states = []
    for raw in document.get("gpus") or ():
        if not isinstance(raw, Mapping):
            continue
        why = {key: reason for key, reason in (raw.get("why_not") or {}).items() if isinstance(reason, Mapping)}
        index = raw.get("index")
        gpu = Gpu(index if isinstance(index, int) else None, uuid(str(raw.get("uuid") or "")), pci(str(raw.get("pci") or "")))
        states.append(
            GpuState(
                gpu,
                dict(_flat({key: value for key, value in raw.items() if key != "why_not"})),
                {key: str(reason.get("error") or "not told") for key, reason in why.items()},
                frozenset(key for key, reason in why.items() if reason.get("code") in _UNSUPPORTED),
            )
        )
    bus = tuple(address for one in document.get("bus") or () if (address := pci(str(one.get("pci") or ""))))
    count = document.get("count")
    return NodeGpus(
        tuple(states),
        str(document.get("driver") or ""),
        str(document.get("cuda") or ""),
        str(document.get("nvml") or ""),
        count if isinstance(count, int) else None,
        bus,
        tuple(parsed.events),
        tuple(problem.message for problem in parsed.problems),
    )


def _flat(raw: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in raw.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield prefix + key, value


# our key → where `nvidia-smi -q` prints it (text, XML and CSV of all versions differ), and what kind of value it is
_PLACES: tuple[tuple[str, str, str], ...] = (
    ("name", r"product_name|name", "text"),
    ("serial", r"serial_number|serial", "text"),
    ("minor", r"minor_number", "int"),
    ("vbios", r"vbios_version", "text"),
    ("gsp_firmware", r"gsp_firmware_version", "text"),
    ("ecc.mode.current", r"ecc_mode/current(?:_ecc)?|ecc_mode_current", "yes"),
    ("ecc.mode.pending", r"ecc_mode/pending(?:_ecc)?|ecc_mode_pending", "yes"),
    ("ecc.volatile.corrected_dram", r"volatile/dram_correctable", "int"),
    ("ecc.volatile.corrected_sram", r"volatile/sram_correctable", "int"),
    ("ecc.volatile.uncorrected_dram", r"volatile/dram_uncorrectable", "int"),
    ("ecc.volatile.uncorrected_sram", r"volatile/sram_uncorrectable\w*", "sum"),
    ("ecc.aggregate.corrected_dram", r"aggregate/dram_correctable", "int"),
    ("ecc.aggregate.corrected_sram", r"aggregate/sram_correctable", "int"),
    ("ecc.aggregate.uncorrected_dram", r"aggregate/dram_uncorrectable", "int"),
    ("ecc.aggregate.uncorrected_sram", r"aggregate/sram_uncorrectable\w*", "sum"),
    ("ecc.volatile.corrected_total", r"volatile/single_bit/total|ecc_errors_corrected_volatile_total", "int"),
    ("ecc.volatile.uncorrected_total", r"volatile/double_bit/total|ecc_errors_uncorrected_volatile_total", "int"),
    ("ecc.aggregate.uncorrected_total", r"aggregate/double_bit/total|ecc_errors_uncorrected_aggregate_total", "int"),
    ("ecc.sram_threshold_exceeded", r"sram_threshold_exceeded|\w*sram_thresholdExceeded", "yes"),
    ("repair_pending.channel", r"channel_repair_pending", "yes"),
    ("repair_pending.tpc", r"tpc_repair_pending", "yes"),
    ("remapped_rows.correctable", r"remapped_rows/(?:correctable_error|remapped_row_corr)|remapped_rows_correctable", "int"),
    ("remapped_rows.uncorrectable", r"remapped_rows/(?:uncorrectable_error|remapped_row_unc)|remapped_rows_uncorrectable", "int"),
    ("remapped_rows.pending", r"remapped_rows/(?:remapped_row_)?pending|remapped_rows_pending", "yes"),
    (
        "remapped_rows.failure",
        r"remapp\w*/(?:remapping_failure_occurred|remapped_row_failure)|remapped_rows_failure",
        "yes",
    ),
    *(
        (f"remapped_rows_banks.{word}", rf"\w*histogram/(?:row_remapper_histogram_)?{word}", "int")
        for word in ("max", "low", "none")
    ),
    ("retired_pages.single_bit", r"retired_pages/single_bit_ecc|retired_pages_single_bit_ecc_count", "int"),
    ("retired_pages.double_bit", r"retired_pages/double_bit_ecc|retired_pages_double_bit_count", "int"),
    ("retired_pages.pending", r"pending_page_blacklist|pending_blacklist|pending_retirement|retired_pages_pending", "yes"),
    ("temperature.gpu", r"gpu_current_temp|gpu_temp|temperature_gpu", "float"),
    ("temperature.slowdown", r"gpu_slowdown_temp|gpu_temp_slow_threshold", "float"),
    ("temperature.memory", r"memory_current_temp|memory_temp|temperature_memory", "float"),
    ("temperature.margin", r"gpu_t_limit_temp|gpu_temp_tlimit", "float"),
    ("temperature.slowdown_margin", r"gpu_slowdown_t_limit_temp|gpu_temp_slow_tlimit_threshold", "float"),
    # "HW Thermal Slowdown" of the text is hw_therm_slowdown in XML, "HW Power Braking" is hw_power_brake
    ("throttled.sw_thermal", r"clocks_event_reasons_counters/(?:\w+counters_)?sw_therm(?:al)?_slowdown", "int"),
    ("throttled.hw_thermal", r"clocks_event_reasons_counters/(?:\w+counters_)?hw_therm(?:al)?_slowdown", "int"),
    ("throttled.power_brake", r"clocks_event_reasons_counters/(?:\w+counters_)?hw_power_brak\w+", "int"),
    ("throttled.power", r"clocks_event_reasons_counters/(?:\w+counters_)?sw_power_cap\w*", "int"),
    (
        "power.watts",
        r"(?:gpu_power_readings|power_readings)/(?:instantaneous_power_draw|average_power_draw|power_draw|instant_power_draw)",
        "float",
    ),
    ("power.limit", r"(?:gpu_power_readings|power_readings)/(?:current_power_limit|enforced_power_limit|power_limit)", "float"),
    ("clocks.sm", r"clocks/sm(?:_clock)?", "float"),
    ("clocks.sm_max", r"max_clocks/sm(?:_clock)?", "float"),
    ("pcie.generation", r"pcie_generation/current|pcie_gen/current_link_gen", "int"),
    ("pcie.generation_max", r"pcie_generation/max|pcie_gen/max_link_gen", "int"),
    ("pcie.width", r"link_widths?/current(?:_link_width)?", "int"),
    ("pcie.width_max", r"link_widths?/max(?:_link_width)?", "int"),
    ("pcie.replays", r"replays_since_reset|replay_counter", "int"),
    ("utilization.gpu", r"utilization/gpu(?:_util)?", "int"),
    ("persistence", r"persistence_mode", "yes"),
    ("compute_mode", r"compute_mode", "text"),
    ("mig.mode.current", r"mig_mode/current(?:_mig)?", "yes"),
    ("mig.mode.pending", r"mig_mode/pending(?:_mig)?", "yes"),
    ("fabric.state", r"fabric/state", "text"),
    ("fabric.status", r"fabric/status", "status"),
    ("fabric.clique", r"fabric/clique_?id", "int"),
    ("recovery_action", r"(?:gpu_)?recovery_action", "text"),
)
_REASON = re.compile(r"clocks_(?:event|throttle)_reasons?/(?:clocks_(?:event|throttle)_reasons?_)?(\w+)$")


def _cell(reading: Reading, pattern: str, kind: str) -> Any:
    found = reading.find(pattern)
    told = [cell.value for _, cell in found if not re.match(r"\[?(?:N/A|Not Supported|Requested functionality)|$", cell.value)]
    if not told or _LOST.search(told[0]):
        return None
    if kind == "text":
        return told[0]
    if kind == "status":  # NVML's number for success; anything else in the tool's words
        return 0 if told[0].lower() in ("success", "nvml_success", "0") else told[0]
    if kind == "yes":
        return (
            True
            if re.match(r"(?:yes|enabled|on|true|1)\b", told[0], re.I)
            else False
            if re.match(r"(?:no|disabled|off|false|0)\b", told[0], re.I)
            else None
        )
    values = [value for text in told if (value := number(text)) is not None]
    if not values:
        return None
    if kind == "sum":
        return int(sum(values))
    return int(values[0]) if kind == "int" else values[0]


def from_smi(lines: Sequence[Line], *, file: str = "nvidia-smi -q", node: str | None = None) -> NodeGpus:
    """
    Return what `nvidia-smi -q`, as text or XML, says of the GPUs of one node.

    Parameters
    ----------
    lines : sequence of Line
        Everything it printed.
    file, node : str, optional
        Names for events.
    """
    parsed = parse_smi(lines, file=file, node=node)
    states: dict[Gpu, GpuState] = {}
    facts: dict[str, str] = {}
    for doc in documents(lines, node)[0]:
        out = Out(Parsed(), file, doc.node)
        at = 0
        while at < len(doc.rows):
            after, readings = read_xml(doc, at, out)
            if after == at:
                after, readings = read_text(doc, at, out)
            at = max(after, at + 1)
            for reading in readings:
                if reading.gpu is None:
                    for key, pattern in (("driver", "driver_version"), ("cuda", "cuda_version"), ("count", "attached_gpus")):
                        if value := reading.value(pattern):
                            facts.setdefault(key, value)
                    continue
                states[reading.gpu] = _state(reading)
    numbered = [
        replace(state, gpu=replace(state.gpu, index=at if state.gpu.index is None else state.gpu.index))
        for at, state in enumerate(states.values())
    ]
    return NodeGpus(
        tuple(numbered),
        facts.get("driver") or str(parsed.facts.get("driver") or ""),
        facts.get("cuda") or str(parsed.facts.get("cuda") or ""),
        "",
        int(facts["count"]) if facts.get("count", "").isdigit() else None,
        (),
        tuple(parsed.events),
        tuple(_said(problem) for problem in parsed.problems),
    )


def _said(problem: Problem) -> str:
    return f"line {problem.line}: {problem.message}" if problem.line else problem.message


def _state(reading: Reading) -> GpuState:
    flat: dict[str, Any] = {}
    why: dict[str, str] = {}
    unsupported = set()
    for key, pattern, kind in _PLACES:
        value = _cell(reading, pattern, kind)
        if value is not None:
            flat[key] = value
            continue
        cell = reading.first(pattern)
        if cell is None:
            continue  # not printed: nobody knows
        why[key] = cell.value
        if re.match(r"\[?(?:N/A|Not Supported|Requested functionality)", cell.value):
            unsupported.add(key)
    reasons = [
        match[1].removesuffix("_slowdown") if match[1] == "hw_power_brake" else match[1]
        for key, cell in reading.cells.items()
        if cell.value == "Active" and (match := _REASON.search(key))
    ]
    if any(_REASON.search(key) for key in reading.cells):
        flat["throttle"] = reasons
    assert reading.gpu is not None
    return GpuState(reading.gpu, flat, why, frozenset(unsupported))
