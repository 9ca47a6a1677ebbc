"""Turn the GPUs that answer, those on the PCI bus and those that there should be into whether one is missing."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.model import Gpu

__all__ = ["gpu_count"]


@check("gpu-count", "all GPUs are there", needs=("pci-bus",), wants=("gpus",), cls="hardware/gpu-lost")
def gpu_count(seen: Seen) -> Iterator[Finding]:
    """Compare what answers with the bus and with ``health.gpus``; a node without any GPU is only right when the site says so."""
    bus = {one["pci"] for one in seen.value("pci-bus")}
    wanted = seen.setting("gpus")
    reading = seen.readings["gpus"]
    if reading.ending == "absent" or (not bus and not reading.usable):
        yield _none(seen, wanted)
        return
    if not reading.usable:
        yield seen.unknown(f"{len(bus)} GPUs on the bus; whether they answer is not known: {reading.detail}", hint=reading.hint)
        return
    sound = True
    for state in seen.gpus.states:
        if state.lost:
            sound = False
            yield seen.found("gpu-lost", f"GPU {_name(state.gpu)} answers no more: {state.lost}", gpu=state.gpu)
    listed = {state.gpu.pci for state in seen.gpus.states}
    for address in sorted(bus - listed) if None not in listed else ():
        sound = False
        summary = f"the kernel lists {address}, and {reading.path} does not show it"
        yield seen.found("gpu-not-held", summary, gpu=Gpu(pci=address))
    for state in seen.gpus.states:  # the kernel took it off the bus, and the driver has not noticed yet
        if state.gpu.pci and state.gpu.pci not in bus and not state.lost:
            sound = False
            yield seen.found(
                "gpu-off-the-bus", f"{reading.path} shows {state.gpu.pci}, and the bus has it no more", gpu=state.gpu
            )
    there = len(seen.gpus.states)
    if wanted is not None and there != wanted:
        code = "gpu-missing" if there < wanted else "gpu-surplus"
        yield seen.found(code, f"{there} GPUs answer, {int(wanted)} should", evidence=[f"health.gpus = {int(wanted)}"])
    elif sound:
        yield seen.ok(f"{there} GPUs answer, as the PCI bus lists" + ("" if wanted is None else " and the site expects"))


def _none(seen: Seen, wanted: int | None) -> Finding:
    if wanted is None:
        hint = "say how many there should be: health.gpus (0 for a node without)"
        return seen.unknown("no GPU on the PCI bus, and nobody said how many there should be", hint=hint)
    if wanted > 0:
        return seen.found(
            "gpu-missing", f"no GPU on the PCI bus, {int(wanted)} should be there", evidence=[f"health.gpus = {int(wanted)}"]
        )
    return seen.absent("this node has no GPU, as the site expects")


def _name(gpu: Gpu) -> str:
    return " ".join(str(word) for word in (gpu.index, f"({gpu.pci})" if gpu.pci else None) if word is not None) or "?"
