"""Turn each GPU's modes (persistence, compute, MIG) into whether it is set up as jobs here need it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.health.told import told
from workbench.parse.gpu_state import GpuState

__all__ = ["modes"]


@check("modes", "persistence, compute and MIG mode are as they should be", needs=("gpus",), cls="platform/config")
def modes(seen: Seen) -> Iterator[Finding]:
    """Compare with ``health.persistence``, ``health.compute_mode`` and ``health.mig``; a change that waits for a reset is told."""
    states = seen.gpus.states
    modes = Counter(mode for state in states if (mode := state.flag("mig.mode.current")) is not None)
    odd = None if len(modes) < 2 else modes[True] <= modes[False]  # the mode of the fewer, MIG when both are as many
    for state in states:
        found = [
            *(finding for finding in told(seen, state) if finding.status != "ok"),
            *_persistence(seen, state),
            *_compute(seen, state),
            *_mig(seen, state, mixed=odd is not None and state.flag("mig.mode.current") is odd),
        ]
        yield from found
        if not found:
            yield seen.ok(_words(state), gpu=state.gpu)


def _words(state: GpuState) -> str:
    mig = state.flag("mig.mode.current")
    instances = state.get("mig.instances")
    words = [f"compute mode {state.get('compute_mode')}"]
    if state.flag("persistence") is not None:
        words.append("persistence on" if state.flag("persistence") else "persistence off")
    if mig is not None:
        words.append(
            f"MIG on, {len(instances)} instances" if mig and isinstance(instances, list) else "MIG on" if mig else "MIG off"
        )
    return ", ".join(words)


def _persistence(seen: Seen, state: GpuState) -> Iterator[Finding]:
    wanted, mode = seen.setting("persistence"), state.flag("persistence")
    if mode is None and state.can("persistence"):
        yield seen.unknown(f"persistence mode was not told: {state.reason('persistence')}", gpu=state.gpu)
    elif mode is False and wanted is not False:
        yield seen.found("persistence-off", "persistence mode is off", gpu=state.gpu)


def _compute(seen: Seen, state: GpuState) -> Iterator[Finding]:
    wanted, mode = seen.setting("compute_mode"), state.get("compute_mode")
    if mode is None:
        if state.can("compute_mode"):
            yield seen.unknown(f"compute mode was not told: {state.reason('compute_mode')}", gpu=state.gpu)
    elif str(mode).lower() == "prohibited":
        if not any(finding.code == "smi-compute-prohibited" for finding in told(seen, state)):
            yield seen.found("smi-compute-prohibited", "compute mode is Prohibited: no job can use this GPU", gpu=state.gpu)
    elif wanted and str(wanted).replace(" ", "_").lower() != str(mode).replace(" ", "_").lower():
        yield seen.found("compute-mode-differs", f"compute mode is {mode}, health.compute_mode says {wanted}", gpu=state.gpu)


def _mig(seen: Seen, state: GpuState, *, mixed: bool) -> Iterator[Finding]:
    wanted = str(seen.setting("mig") if seen.setting("mig") is not None else "").strip().lower()
    current, pending = state.flag("mig.mode.current"), state.flag("mig.mode.pending")
    if current is None:
        if state.can("mig.mode", "mig.mode.current"):
            yield seen.unknown(f"MIG mode was not told: {state.reason('mig.mode')}", gpu=state.gpu)
        elif wanted and wanted != "off":
            yield seen.found("mig-differs", f"this GPU has no MIG, health.mig says {wanted}", gpu=state.gpu)
        return
    if pending is not None and pending != current:
        yield seen.found("mig-pending", f"MIG will be {'on' if pending else 'off'} after a reset", gpu=state.gpu)
    instances = state.get("mig.instances")
    count = len(instances) if isinstance(instances, list) else None
    if wanted == "off" and current:
        yield seen.found("mig-differs", "MIG is on, health.mig says off", gpu=state.gpu)
    elif wanted and wanted != "off" and not current:
        yield seen.found("mig-differs", f"MIG is off, health.mig says {wanted}", gpu=state.gpu)
    elif wanted.isdigit() and count is not None and count != int(wanted):
        yield seen.found("mig-differs", f"{count} MIG instances, health.mig says {wanted}", gpu=state.gpu)
    elif wanted.isdigit() and count is None:
        yield seen.unknown("how many MIG instances there are was not told", gpu=state.gpu)
    elif current and count is None:
        yield seen.unknown(f"MIG is on, and its instances were not told: {state.reason('mig.instances')}", gpu=state.gpu)
    elif current and count == 0:
        yield seen.found("mig-empty", "MIG is on and no instance is made: no job can use this GPU", gpu=state.gpu)
    elif mixed and not wanted:
        yield seen.found(
            "mig-mixed",
            f"MIG is {'on' if current else 'off'} here, and {'off' if current else 'on'} on other GPUs",
            gpu=state.gpu,
        )
