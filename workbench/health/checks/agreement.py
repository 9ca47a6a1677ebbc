"""Turn the lists of GPUs of NVML, nvidia-smi, DCGM, the PCI bus and /dev into whether all show the same GPUs."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.model import Gpu
from workbench.sources.node.gpu_lists import GpuList

__all__ = ["agreement"]


@check(
    "agreement",
    "NVML, nvidia-smi, DCGM, the PCI bus and /dev show the same GPUs",
    needs=("gpus",),
    wants=("pci-bus", "device-files", "smi-list", "dcgm-list"),
    contexts=("allocation", "idle"),  # two more programs: too dear for every minute of a job
    cls="hardware/gpu-lost",
)
def agreement(seen: Seen) -> Iterator[Finding]:
    """Compare each list with the state that was read first; DCGM counts only where it is installed or ``health.dcgm`` asks for it."""
    states = seen.gpus.states
    path = seen.readings["gpus"].path
    uuids = {state.gpu.uuid for state in states if state.gpu.uuid}
    if seen.gpus.count is not None and seen.gpus.count != len(states):
        yield seen.found("gpu-count-differs", f"{path} counts {seen.gpus.count} GPUs and shows {len(states)}", part=path)
    double = len(states) - len({state.gpu.pci for state in states if state.gpu.pci}) if all(s.gpu.pci for s in states) else 0
    if double:
        yield seen.found("gpu-count-differs", f"{path} shows {double} addresses twice", part=path)
    yield from _bus(seen, path)
    yield from _files(seen, path)
    yield from _list(seen, path, "smi-list", "nvidia-smi", uuids)
    dcgm = seen.readings["dcgm-list"]
    if dcgm.ending == "missing" and not seen.setting("dcgm"):
        yield seen.absent("DCGM is not installed here, and health.dcgm does not ask for it", part="DCGM")
    else:
        yield from _list(seen, path, "dcgm-list", "DCGM", uuids)


def _bus(seen: Seen, path: str) -> Iterator[Finding]:
    reading = seen.readings["pci-bus"]
    if not reading.usable:
        yield seen.unknown(f"the PCI bus could not be read: {reading.detail}", part="PCI")
        return
    bus = {one["pci"] for one in reading.value}
    shown = {state.gpu.pci for state in seen.gpus.states if state.gpu.pci}
    if len(shown) < len(seen.gpus.states):
        yield seen.unknown(f"{path} does not tell the address of every GPU", part="PCI")
        return
    for address in sorted(bus - shown):
        yield seen.found("gpu-count-differs", f"the bus lists {address}, {path} does not", gpu=Gpu(pci=address), part="PCI")
    for address in sorted(shown - bus):
        yield seen.found(
            "gpu-count-differs", f"{path} shows {address}, and the bus has it no more", gpu=Gpu(pci=address), part="PCI"
        )
    if bus == shown:
        yield seen.ok(f"{len(bus)} GPUs on the PCI bus", part="PCI")


def _files(seen: Seen, path: str) -> Iterator[Finding]:
    reading = seen.readings["device-files"]
    if not reading.usable:
        yield seen.unknown(f"/dev could not be read: {reading.detail}", part="/dev")
        return
    files = reading.value
    minors = {int(state.get("minor")) for state in seen.gpus.states if state.get("minor") is not None}
    told = len(minors) == len(seen.gpus.states)
    missing = sorted(minors - set(files.minors))
    # a container gets the files of its own GPUs only, and NVML then shows only these
    if not files.control:
        yield seen.found("device-file-missing", "/dev/nvidiactl is not there: no program can open a GPU", part="/dev")
    elif not told and len(files.minors) < len(seen.gpus.states):
        yield seen.found(
            "device-file-missing", f"{len(files.minors)} files /dev/nvidiaN, {len(seen.gpus.states)} GPUs", part="/dev"
        )
    elif missing:
        lost = ", ".join(f"/dev/nvidia{minor}" for minor in missing)
        yield seen.found("device-file-missing", f"{lost} not there, and {path} shows the GPU", part="/dev")
    elif not files.uvm:
        yield seen.found(
            "uvm-file-missing", "/dev/nvidia-uvm is not there: CUDA starts only where nvidia-modprobe can make it", part="/dev"
        )
    elif len(files.minors) > len(seen.gpus.states):
        yield seen.found(
            "device-file-surplus", f"{len(files.minors)} files /dev/nvidiaN, {len(seen.gpus.states)} GPUs by {path}", part="/dev"
        )
    else:
        yield seen.ok(f"{len(files.minors)} device files", part="/dev")


def _list(seen: Seen, path: str, name: str, who: str, uuids: Collection[str]) -> Iterator[Finding]:
    reading = seen.readings[name]
    states = seen.gpus.states
    if not reading.usable:
        yield seen.unknown(f"{who} gave no list: {reading.detail}", part=who, hint=reading.hint)
        return
    listed: GpuList = reading.value
    if listed.count != len(states):
        yield seen.found("gpu-count-differs", f"{who} lists {listed.count} GPUs, {path} {len(states)}", part=who)
    elif len(uuids) < len(states):
        yield seen.unknown(f"{path} does not tell every UUID, so {who}'s cannot be compared", part=who)
    elif set(listed.uuids) != set(uuids):
        only = sorted(set(listed.uuids) - set(uuids))
        yield seen.found("gpu-count-differs", f"{who} lists {', '.join(only)}, which {path} does not show", part=who)
    else:
        yield seen.ok(f"{who} lists the same {listed.count} GPUs", part=who)
