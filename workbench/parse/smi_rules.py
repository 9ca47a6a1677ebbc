"""Turn readings of `nvidia-smi` into events: what of a GPU's state speaks of a fault, and how surely."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from workbench.catalog.recovery_actions import remediation_of
from workbench.model import Gpu
from workbench.parse.smi_doc import Out, Row, number
from workbench.parse.smi_query import Reading

__all__ = ["judge", "judge_clocks", "judge_errors", "judge_peers"]

# Above this many lifetime SRAM uncorrectable errors operators replace a GPU; asked only where the driver does not yet print "SRAM Threshold
# Exceeded" itself. From memory: Azure's azure_gpu_ecc.nhc, opened 2026-11-30, takes a node out at the first one.
SRAM_LIMIT = 4
# Retired pages at which NVIDIA's dynamic page retirement guide calls for a replacement.
PAGES_LIMIT = 60
# Time throttled by heat or power brake since the driver was loaded that is worth a line, in microseconds (10 min); our own measure, gpud
# wants somebody to look from six minutes within ten on.
THROTTLED_LIMIT = 600e6
# Share of the highest clock of a query loop below which a GPU that slows down by heat loses real speed; our own measure.
SLOWED = 0.8
_BROKEN = re.compile(r"ERR!|Unknown Error|GPU is lost|GPU requires reset")
_CLOCK_BITS = {0x8: "hw_slowdown", 0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown", 0x80: "hw_power_brake"}


def _sum(reading: Reading, pattern: str) -> tuple[float, Row | None]:
    total, row = 0.0, None
    for _, cell in reading.find(pattern):
        value = number(cell.value)
        if value:
            total += value
            row = row or cell.row
    return total, row


def _yes(reading: Reading, pattern: str) -> Row | None:
    cell = reading.first(pattern)
    return cell.row if cell and re.match(r"(?:yes|true|1\b|pending)", cell.value, re.I) else None


def judge_errors(out: Out, row: Row, values: Sequence[str], gpu: Gpu | None) -> None:
    """Add the event for a GPU of which values could not be read: ``ERR!``, ``[Unknown Error]``, ``GPU is lost``."""
    joined = " ".join(values)
    bad = len(re.findall(r"ERR!|Unknown Error", joined))
    if re.search(r"GPU is lost", joined):
        out.event("smi-gpu-lost", row, gpu)
    elif re.search(r"GPU requires reset|Reset required", joined):
        out.event("smi-reset-required", row, gpu)
    elif bad >= 3:
        # one unreadable value is a sensor (Azure/azhpc-diagnostics#77: passes by itself); when most fail the GPU does not answer
        out.event("smi-err-field", row, gpu, cls="hardware/gpu-lost", weight=0.6, fields=bad)
    elif bad:
        out.event("smi-err-field", row, gpu, fields=bad)


def _memory(reading: Reading, out: Out) -> None:
    gpu = reading.gpu
    kinds = r"(?:sram|dram)_uncorrectable\w*|double_bit/total"
    volatile, row = _sum(reading, rf"volatile/(?:{kinds})|ecc_errors_uncorrected_volatile_total")
    if row:
        sram, _ = _sum(reading, r"volatile/sram_uncorrectable\w*")
        out.event("smi-ecc-uncorrectable", row, gpu, volatile=int(volatile), sram=int(sram))
    lifetime, row = _sum(reading, rf"aggregate/(?:{kinds})|ecc_errors_uncorrected_aggregate_total")
    if row:
        out.event("smi-ecc-aggregate", row, gpu, aggregate=int(lifetime))
    sram, row = _sum(reading, r"aggregate/sram_uncorrectable\w*|ecc_errors_uncorrected_aggregate_sram\w*")
    if over := _yes(reading, r"(?:aggregate/)?sram_threshold_exceeded|\w*sram_thresholdExceeded"):
        out.event("smi-sram-threshold", over, gpu, aggregate=int(sram))
    elif row and sram > SRAM_LIMIT and not reading.value("(?:aggregate/)?sram_threshold_exceeded"):
        out.event("smi-sram-threshold", row, gpu, weight=0.7, aggregate=int(sram), limit=SRAM_LIMIT)
    for kind, word in (("channel", "Channel"), ("tpc", "TPC")):
        if row := _yes(reading, f"{kind}_repair_pending"):
            out.event("smi-repair-pending", row, gpu, key=kind, unit=word)
    if row := _yes(reading, "unrepairable_memory"):
        out.event("smi-unrepairable-memory", row, gpu)
    corrected, row = _sum(reading, r"volatile/(?:(?:sram|dram)_correctable|single_bit/total)|ecc_errors_corrected_volatile_total")
    if row:
        out.event("smi-ecc-corrected", row, gpu, volatile=int(corrected))


def _rows(reading: Reading, out: Out) -> None:
    gpu = reading.gpu
    if row := _yes(reading, r"remapp\w*/(?:remapping_failure_occurred|remapped_row_failure)|remapped_rows_failure"):
        out.event("smi-remap-failure", row, gpu)
    fixed, _ = _sum(reading, r"remapped_rows/(?:correctable_error|remapped_row_corr)|remapped_rows_correctable")
    broken, unc = _sum(reading, r"remapped_rows/(?:uncorrectable_error|remapped_row_unc)|remapped_rows_uncorrectable")
    if row := _yes(reading, r"remapped_rows/(?:remapped_row_)?pending|remapped_rows_pending"):
        # a row that an uncorrectable error marked has cost a process its data; a correctable one has cost nothing yet
        weight = 0.6 if broken else None
        out.event("smi-remap-pending", row, gpu, weight=weight, correctable=int(fixed), uncorrectable=int(broken))
    elif unc:
        out.event("smi-remapped-rows", unc, gpu, correctable=int(fixed), uncorrectable=int(broken))
    spent, row = _sum(reading, r"\w*histogram/(?:row_remapper_histogram_)?none|remapped_rows_histogram_none")
    if row:
        out.event("smi-remap-banks-spent", row, gpu, banks=int(spent))
    pages, row = _sum(
        reading,
        r"retired_pages/(?:single_bit_ecc|double_bit_ecc)|retired_pages/\w+/retired_count|retired_pages_(?:single_bit_ecc|double_bit)_count",
    )
    if row and pages >= PAGES_LIMIT:
        out.event("smi-page-limit", row, gpu, pages=int(pages))
    elif row:
        out.event("smi-retired-pages", row, gpu, pages=int(pages))
    if row := _yes(reading, r"pending_page_blacklist|pending_blacklist|pending_retirement|retired_pages_pending"):
        out.event("smi-page-retirement-pending", row, gpu, pages=int(pages))


def _reset(reading: Reading, out: Out) -> None:
    cell, value = reading.first(r"(?:gpu_)?recovery_action"), reading.value(r"(?:gpu_)?recovery_action")
    if cell and value and value.lower() not in ("none", "unknown"):
        out.event("smi-recovery-action", cell.row, reading.gpu, action=value, remediation=remediation_of(value) or None)
    if row := _yes(reading, r"reset_required|reset_status_reset_required"):
        out.event("smi-reset-required", row, reading.gpu)
    if row := _yes(reading, r"(?:reset_status_)?drain_and_reset_recommended"):
        out.event("smi-drain-reset-recommended", row, reading.gpu)


def _throttle(reading: Reading, out: Out) -> None:
    gpu = reading.gpu
    active: dict[str, Row] = {}
    for key, cell in reading.find(r"(?:.*/)?(?:clocks_(?:event|throttle)_reasons?).*"):
        # CSV has the mask of nvml.h: clocks_event_reasons.active = 0x0000000000000040
        if re.match(r"0x[0-9a-fA-F]{1,16}$", cell.value):
            mask = int(cell.value, 16)
            active |= {name: cell.row for bit, name in _CLOCK_BITS.items() if mask & bit}
        elif cell.value == "Active":
            active[re.sub(r"^clocks_(?:event|throttle)_reasons?_", "", key.split("/")[-1])] = cell.row
    for name, signature in (
        ("hw_thermal_slowdown", "smi-throttle-thermal"),
        ("hw_power_brake_slowdown", "smi-power-brake"),
        ("hw_power_brake", "smi-power-brake"),
        ("sw_thermal_slowdown", "smi-throttle-sw-thermal"),
    ):
        if name in active:
            out.event(signature, active[name], gpu, reason=name)
    if "hw_slowdown" in active and not any(name.startswith(("hw_thermal", "hw_power")) for name in active):
        out.event("smi-throttle-hw", active["hw_slowdown"], gpu)
    counters = r"clocks_event_reasons_counters/(?:\w+counters_)?"
    capped = number(reading.value(counters + r"sw_power_cap\w*"))
    kinds = r"(?:hw_therm(?:al)?_slowdown|hw_power_brak\w+|sw_therm(?:al)?_slowdown|thermal_violation)"
    for key, cell in reading.find(counters + kinds):
        # driver 575.51.02 has been seen to print the time under the power cap, which is usual, as that of software for heat, too
        if (number(cell.value) or 0) > THROTTLED_LIMIT and not ("sw_therm" in key and number(cell.value) == capped):
            reason = key.split("/")[-1].rpartition("counters_")[2]
            out.event("smi-throttle-history", cell.row, gpu, key=key, reason=reason, microseconds=number(cell.value))
    now = number(reading.value(r"gpu_current_temp|gpu_temp|temperature_gpu"))
    limit = number(reading.value(r"gpu_slowdown_temp|gpu_temp_slow_threshold"))
    margin = number(reading.value(r"gpu_t_limit_temp|gpu_temp_tlimit"))
    least = number(reading.value(r"gpu_slowdown_t_limit_temp|gpu_temp_slow_tlimit_threshold"))
    hot = reading.first(r"gpu_current_temp|gpu_temp|temperature_gpu")
    # T.Limit is the distance to the limit: it sinks as the GPU heats; throttling starts below the printed (negative) threshold
    over = (now is not None and limit and now >= limit) or (margin is not None and least is not None and margin <= least)
    if hot and over:
        out.event("smi-over-temperature", hot.row, gpu, celsius=now, limit=limit, margin=margin)


def _bus(reading: Reading, out: Out) -> None:
    gpu = reading.gpu
    now = number(reading.value(r"pcie_generation/current|current_link_gen|pcie_link_gen_(?:gpu)?current"))
    most = number(reading.value(r"pcie_generation/max|max_link_gen|pcie_link_gen_(?:gpu)?max"))
    busy = number(reading.value(r"utilization/gpu|gpu_util|utilization_gpu")) or 0
    cell = reading.first(r"pcie_generation/current|current_link_gen|pcie_link_gen_(?:gpu)?current")
    # the generation drops at idle by design; only a busy GPU on a slow link says something
    if cell and now and most and now < most and busy >= 50:
        out.event("smi-link-gen-low", cell.row, gpu, current=now, max=most, utilization=busy)
    replays, row = _sum(reading, r"replays?_(?:since_reset|counter)|pcie_replay_counter")
    if row and replays:
        out.event("smi-pcie-replay", row, gpu, replays=int(replays))


def _fabric(reading: Reading, out: Out) -> None:
    gpu = reading.gpu
    state, status = reading.value(r"fabric/state|fabric_state"), reading.value(r"fabric/status|fabric_status")
    cell = reading.first(r"fabric/state|fabric_state")
    if cell and state and re.match(r"in progress|not started", state, re.I):
        out.event("smi-fabric-not-ready", cell.row, gpu, state=state, status=status)
    elif state and state.lower() == "completed" and status and not re.match(r"success|nvml_success|0$", status, re.I):
        found = reading.first(r"fabric/status|fabric_status")
        if found:
            out.event("smi-fabric-error", found.row, gpu, state=state, status=status)
    for key, found in reading.find(r"fabric/(?:health/)?(?:bandwidth|route_unhealthy|access_timeout_recovery|summary)"):
        if re.match(r"degraded|true|yes|unhealthy|limited", found.value, re.I):
            out.event("smi-fabric-health", found.row, gpu, key=key, what=key.split("/")[-1], value=found.value)
    for key, found in reading.find(r"fabric/(?:health/)?incorrect_configuration"):
        if not re.match(r"none|n/a|not[ _]supported|unknown|\[|$", found.value, re.I):
            out.event("smi-fabric-health", found.row, gpu, key=key, what=key.split("/")[-1], value=found.value)


def judge(readings: Sequence[Reading], out: Out) -> None:
    """
    Add events for everything in the readings that speaks of a fault.

    Lifetime counters alone are history: `context`. Volatile uncorrectable errors, failed remaps and thresholds are causes.
    """
    for reading in readings:
        values = [cell.value for cell in reading.cells.values()]
        errors = [cell for cell in reading.cells.values() if _BROKEN.search(cell.value)]
        if errors:
            judge_errors(out, errors[0].row, values, reading.gpu)
        for rule in (_memory, _rows, _reset, _throttle, _bus, _fabric):
            rule(reading, out)
    judge_peers(readings, out)
    judge_clocks(readings, out)
    judge_pages(readings, out)


def judge_peers(readings: Sequence[Reading], out: Out) -> None:
    """Add `smi-link-degraded` for links narrower than the GPU can do, weighed against the other GPUs of the same node."""
    widths = []
    for reading in readings:
        now = reading.first(r"link_widths?/current(?:_link_width)?|pcie_link_width_current")
        most = number(reading.value(r"link_widths?/max(?:_link_width)?|pcie_link_width_max"))
        if now and most and (value := number(now.value)):
            widths.append((reading.gpu, now.row, value, most))
    usual = Counter(value for _, _, value, _ in widths).most_common(1)
    for gpu, row, value, most in widths:
        if value < most:
            # a card in a narrow slot (L4 in x8) is built so: only a GPU narrower than its neighbours has a bad link
            odd = len(widths) > 1 and value < usual[0][0]
            out.event("smi-link-degraded", row, gpu, weight=0.6 if odd else None, role="cause" if odd else None,
                      current=int(value), max=int(most), peers=len(widths))  # fmt: skip


def judge_pages(readings: Sequence[Reading], out: Out) -> None:
    """Count the rows of `--query-retired-pages`, which has one a page: NVIDIA's limit is on their number."""
    pages = Counter(reading.gpu for reading in readings if reading.value("retired_pages_address"))
    last = {reading.gpu: cell.row for reading in readings if (cell := reading.first("retired_pages_address"))}
    for gpu, count in pages.items():
        if gpu is not None:
            out.event("smi-page-limit" if count >= PAGES_LIMIT else "smi-retired-pages", last[gpu], gpu, pages=count)


def judge_clocks(readings: Sequence[Reading], out: Out) -> None:
    """Make a software slowdown by heat a cause where a query loop (`-l`) shows that the GPU lost much of its clock meanwhile."""
    clocks: dict[Gpu, list[float]] = {}
    hot: dict[Gpu, list[float]] = {}
    for reading in readings:
        clock = number(reading.value(r"clocks(?:_current)?_sm|clocks(?:_current)?_graphics"))
        if reading.gpu is None or not clock:
            continue
        clocks.setdefault(reading.gpu, []).append(clock)
        state = reading.value(r"clocks_(?:event|throttle)_reasons_sw_thermal_slowdown")
        if state == "Active":
            hot.setdefault(reading.gpu, []).append(clock)
    for event in out.parsed.events[out.first :]:
        if event.signature == "smi-throttle-sw-thermal" and event.gpu in hot and event.gpu in clocks:
            least, most = min(hot[event.gpu]), max(clocks[event.gpu])
            if least < most * SLOWED:
                event.role, event.weight = "cause", 0.5
                event.data |= {"clock": least, "clock_max": most}
