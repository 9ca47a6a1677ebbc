"""Turn each GPU's error counters and row remapping into whether its memory can be trusted."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.row_history import KEYS, growth
from workbench.health.seen import Seen
from workbench.health.told import told
from workbench.parse.gpu_state import GpuState

__all__ = ["gpu_memory"]

# any of these tells whether there were uncorrectable errors; old GPUs count no places
_UNCORRECTED = ("ecc.volatile.uncorrected_dram", "ecc.volatile.uncorrected_sram", "ecc.volatile.uncorrected_total")


# One event is what the spares are for. A second one within a month is worth a diagnosis before the spares are gone: our own measure; NVIDIA
# names only the end (a remap that fails), its early sign in `catalog/early_warnings.csv` is any growth within a day.
_EVENTS = 2


@check(
    "gpu-memory",
    "GPU memory has no uncorrected errors and spare rows are left",
    needs=("gpus",),
    wants=("kept-rows",),
    cls="hardware/gpu-memory",
)
def gpu_memory(seen: Seen) -> Iterator[Finding]:
    """Give each GPU what its events say, or what could not be read; lifetime counters alone are history and no fault."""
    for state in seen.gpus.states:
        found = told(seen, state)
        bad = [finding for finding in found if finding.status != "ok"] + list(_trend(seen, state))
        yield from bad
        yield from _modes(seen, state)
        if not bad:
            yield _counted(seen, state, [finding.evidence[0] for finding in found if finding.evidence])


def _modes(seen: Seen, state: GpuState) -> Iterator[Finding]:
    current, pending = state.flag("ecc.mode.current"), state.flag("ecc.mode.pending")
    sku = seen.sku(state)
    if current is False and (sku is None or sku.ecc):
        yield seen.found("ecc-off", f"error correction is off on {state.product or 'this GPU'}", gpu=state.gpu)
    elif current is not None and pending is not None and current != pending:
        yield seen.found("ecc-pending", f"error correction will be {'on' if pending else 'off'} after a reset", gpu=state.gpu)


def _trend(seen: Seen, state: GpuState) -> Iterator[Finding]:
    """By what earlier looks kept: spares that go one after another, while each single loss is repaired."""
    grown = growth(seen.value("kept-rows"), state, now=seen.now)
    if grown is None or grown.times < _EVENTS:
        return
    day = datetime.fromtimestamp(grown.since, UTC).strftime("%Y-%m-%d")
    verb = "remapped" if grown.what == "rows" else "retired"
    summary = f"{grown.lost} {grown.what} of its memory were {verb} at {grown.times} times since {day}: it goes on losing them"
    evidence = [f"{key} = {value:.0f}" for key in KEYS[grown.what] if (value := state.number(key)) is not None]
    hint = "dcgmi diag -r 3 on the drained node"
    yield seen.found("memory-rows-growing", summary, gpu=state.gpu, evidence=evidence, since=grown.since, hint=hint)


def _counted(seen: Seen, state: GpuState, history: list[str]) -> Finding:
    sku = seen.sku(state)
    if not state.can(*_UNCORRECTED) or (sku is not None and not sku.ecc):
        return seen.absent(f"{state.product or 'this GPU'} has no error correction", gpu=state.gpu)
    if state.flag("ecc.mode.current") is False:
        return seen.unknown("nothing counts memory errors while error correction is off", gpu=state.gpu)
    if state.lost:  # what it told before it went is half an answer
        return seen.unknown(f"error counters were not read: {state.lost}", gpu=state.gpu)
    refused = [key for key in _UNCORRECTED if key in state.why_not and state.can(key)]
    if refused or all(state.number(key) is None for key in _UNCORRECTED):
        why = state.reason((*refused, _UNCORRECTED[0])[0])
        return seen.unknown(f"error counters were not read: {why}", gpu=state.gpu)
    remaps = sku.row_remap if sku else state.can("remapped_rows.pending")
    if remaps and state.flag("remapped_rows.failure") is None and state.can("remapped_rows.failure"):
        return seen.unknown(f"the state of row remapping was not read: {state.reason('remapped_rows')}", gpu=state.gpu)
    return seen.ok(
        "no uncorrected errors since the driver was loaded" + (", no row waits" if remaps else ""),
        gpu=state.gpu,
        evidence=history,
    )
