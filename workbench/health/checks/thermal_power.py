"""Turn each GPU's temperatures, power, clocks and reasons to slow down into whether it runs as cool and as fast as it should."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.health.told import told
from workbench.parse.gpu_state import GpuState

__all__ = ["thermal_power"]

# Degrees by which HBM is hotter than the core when something is wrong with its contact to the cooler. Healthy ones stay within about
# 15 under load; our own measure, to be overridden by peers: see _ODD. No published figure was found (2026-11: NVIDIA Health Validation,
# NVSentinel, gpud, gcm, Azure's and Oracle's node checks).
_GRADIENT = 30.0
_ODD = 15.0  # degrees above the median gradient of the node's GPUs of the same product, under load
_BUSY = 90.0  # percent
# Share of the peers' clock below which a busy GPU is stuck; our own measure. Power capping spreads clocks by a tenth, not by half.
# Published: Meta's gcm calls 75 MHz beside the application clock that a site names critical; DCGM 4.5's diagnostic compares with the mean of
# the node, by a percentage that the caller gives.
_STUCK = 0.6
# for how long since the driver was loaded; none of them is told by drivers and GPUs that do not count it, and then nothing is said
_COUNTED = ("throttled.hw_thermal", "throttled.power_brake", "throttled.thermal")
_CAPPED = ("sw_power_cap", "applications_clocks_setting", "sync_boost", "display_clock_setting")


@check(
    "thermal-power",
    "no GPU is too hot, throttled by heat or power brake, or stuck at low clocks",
    needs=("gpus",),
    cls="hardware/thermal-power",
)
def thermal_power(seen: Seen) -> Iterator[Finding]:
    """Take what the driver says of throttling, and compare gradients and clocks with the peers."""
    for state in seen.gpus.states:
        found = [finding for finding in told(seen, state) if finding.status != "ok"]
        found += _limits(seen, state, any(one.code == "smi-over-temperature" for one in found))
        found += [*_gradient(seen, state, seen.gpus.states), *_clocks(seen, state, seen.gpus.states)]
        yield from found
        if not found:
            yield _seen(seen, state)


def _seen(seen: Seen, state: GpuState) -> Finding:
    core, throttle = state.number("temperature.gpu"), state.get("throttle")
    missing = [
        f"{word}: {state.reason(key)}"
        for word, key, value in (("temperature", "temperature.gpu", core), ("reasons to slow down", "throttle", throttle))
        if value is None and state.can(key)
    ]
    if missing or (core is None and throttle is None):
        return seen.unknown("not told: " + "; ".join(missing or ["temperature and reasons to slow down"]), gpu=state.gpu)
    memory = state.number("temperature.memory")
    hot = f"{core:.0f} °C" if core is not None else "temperature not measured"
    return seen.ok(
        f"{hot}{f', memory {memory:.0f} °C' if memory is not None else ''}, not throttled",
        gpu=state.gpu,
        evidence=[f"{key} = {value / 1e6:.0f} s" for key in _COUNTED if (value := state.number(key)) is not None],
    )


def _limits(seen: Seen, state: GpuState, said: bool) -> Iterator[Finding]:
    core, limit = state.number("temperature.gpu"), state.number("temperature.slowdown")
    memory, most = state.number("temperature.memory"), state.number("temperature.memory_max")
    if not said and core is not None and limit and core >= limit:
        yield seen.found("smi-over-temperature", f"{core:.0f} °C, it slows down at {limit:.0f} °C", gpu=state.gpu)
    if memory is not None and most and memory >= most:
        yield seen.found("memory-over-temperature", f"its memory has {memory:.0f} °C, its limit is {most:.0f} °C", gpu=state.gpu)


def _difference(state: GpuState) -> float | None:
    core, memory = state.number("temperature.gpu"), state.number("temperature.memory")
    # 0 is what a GPU without a sensor in its memory says
    return memory - core if core is not None and memory else None


def _gradient(seen: Seen, state: GpuState, states: Sequence[GpuState]) -> Iterator[Finding]:
    mine = _difference(state)
    if mine is None:
        return
    others = [
        value
        for other in states
        if other is not state and other.product == state.product and (value := _difference(other)) is not None
    ]
    usual = median(others) if len(others) >= 3 else None
    if mine >= _GRADIENT or (usual is not None and mine - usual >= _ODD and _loaded(state)):
        beside = f", its peers' by {usual:.0f}" if usual is not None else ""
        yield seen.found("hbm-gradient", f"its memory is hotter than its core by {mine:.0f} °C{beside}", gpu=state.gpu)


def _loaded(state: GpuState) -> bool:
    return (state.number("utilization.gpu") or 0.0) >= _BUSY


def _clocks(seen: Seen, state: GpuState, states: Sequence[GpuState]) -> Iterator[Finding]:
    clock, most = state.number("clocks.sm"), state.number("clocks.sm_max")
    if clock is None or not most or not _loaded(state):
        return
    others = [
        value
        for other in states
        if other is not state and other.product == state.product and _loaded(other) and (value := other.number("clocks.sm"))
    ]
    usual = median(others) if others else most
    reasons = [reason for reason in state.get("throttle") or () if reason != "idle"]
    if clock >= usual * _STUCK or (not others and any(reason in _CAPPED for reason in reasons)):
        return
    who = "its busy peers run at" if others else "it can do"
    yield seen.found(
        "clocks-stuck",
        f"{clock:.0f} MHz while busy, {who} {usual:.0f} MHz",
        gpu=state.gpu,
        evidence=[f"clocks.sm = {clock:.0f}", f"clocks.sm_max = {most:.0f}", f"throttle = {', '.join(reasons) or 'none'}"],
    )
