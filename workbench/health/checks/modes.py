"""Turn each GPU's modes (persistence, compute, MIG) into whether it is set up as jobs here need it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.health.told import told
from workbench.parse.gpu_state import GpuState
from workbench.parse.mig import layout_of, profile_words

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
    instances = _instances(state)
    words = [f"compute mode {state.get('compute_mode')}"]
    if state.flag("persistence") is not None:
        words.append("persistence on" if state.flag("persistence") else "persistence off")
    if mig is not None:
        profiles = Counter(str(one["profile"]) for one in instances or () if one.get("profile"))
        which = f" ({profile_words(profiles)})" if profiles else ""
        words.append(
            f"MIG on, {len(instances)} instances{which}" if mig and instances is not None else "MIG on" if mig else "MIG off"
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
    layout = layout_of(wanted)
    current, pending = state.flag("mig.mode.current"), state.flag("mig.mode.pending")
    if wanted not in ("", "on", "off") and not wanted.isdigit() and layout is None:
        yield seen.unknown(
            f"health.mig = {wanted!r} says nothing that is known here", gpu=state.gpu, hint="off, on, 7, or 1g.10gb=4,3g.40gb=1"
        )
        return
    if current is None:
        if state.can("mig.mode", "mig.mode.current"):
            yield seen.unknown(f"MIG mode was not told: {state.reason('mig.mode')}", gpu=state.gpu)
        elif wanted and wanted != "off":
            yield seen.found("mig-differs", f"this GPU has no MIG, health.mig says {wanted}", gpu=state.gpu)
        return
    if pending is not None and pending != current:
        yield seen.found("mig-pending", f"MIG will be {'on' if pending else 'off'} after a reset", gpu=state.gpu)
    instances = _instances(state)
    if wanted == "off" and current:
        yield seen.found("mig-differs", "MIG is on, health.mig says off", gpu=state.gpu)
    elif wanted and wanted != "off" and not current:
        yield seen.found("mig-differs", f"MIG is off, health.mig says {wanted}", gpu=state.gpu)
    elif current and instances is None:
        yield seen.unknown(f"MIG is on, and its instances were not told: {state.reason('mig.instances')}", gpu=state.gpu)
    elif instances is not None and wanted.isdigit() and len(instances) != int(wanted):
        yield seen.found("mig-differs", f"{len(instances)} MIG instances, health.mig says {wanted}", gpu=state.gpu)
    elif current and not instances:
        yield seen.found("mig-empty", "MIG is on and no instance is made: no job can use this GPU", gpu=state.gpu)
    elif instances is not None and layout is not None:
        yield from _layout(seen, state, instances, layout)
    elif mixed and not wanted:
        yield seen.found(
            "mig-mixed",
            f"MIG is {'on' if current else 'off'} here, and {'off' if current else 'on'} on other GPUs",
            gpu=state.gpu,
        )


def _instances(state: GpuState) -> list[Mapping[str, Any]] | None:
    told = state.get("mig.instances")
    return [one for one in told if isinstance(one, Mapping)] if isinstance(told, list) else None


def _layout(seen: Seen, state: GpuState, instances: list[Mapping[str, Any]], wanted: Counter[str]) -> Iterator[Finding]:
    """Compare by profile; a number that is wrong is wrong whatever the profiles are that were not told."""
    silent = [one for one in instances if not one.get("profile")]
    there = Counter(str(one["profile"]).lower() for one in instances if one.get("profile"))
    said = f"{profile_words(there)}{f' and {len(silent)} of an unknown profile' if silent else ''}"
    if there - wanted or len(instances) != wanted.total():
        summary = f"the MIG instances are {said}, health.mig says {profile_words(wanted)}"
        yield seen.found(
            "mig-differs", summary, gpu=state.gpu, evidence=[f"{one.get('uuid')} {one.get('profile')}" for one in instances]
        )
    elif silent:
        why = silent[0].get("error") or "the driver did not name it"
        yield seen.unknown(f"the profile of {len(silent)} MIG instances was not told: {why}", gpu=state.gpu)
