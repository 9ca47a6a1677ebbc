"""Turn GPU observations into causes: repetition on one GPU, remaps that harm nobody, PCIe floods, faults of a whole node."""

from __future__ import annotations

import re
from collections import defaultdict

from workbench.model import Event
from workbench.triage.context import JOB_SOURCES, Context, life_of, slot
from workbench.triage.groups import Group
from workbench.triage.rules.outcome import Outcome

__all__ = [
    "driver_hang_tasks",
    "gone_after_a_trap",
    "pcie_floods",
    "of_other_processes",
    "of_the_same_fault",
    "remap_without_harm",
    "repeated_faults",
    "strangers",
    "supports",
    "whole_node",
]

# what a program does to itself: no corrected error on a link makes it
_OF_ITSELF = ("user/gpu-oom", "user/host-oom", "user/exception", "user/config", "user/collective-mismatch")
# Graphics SM Warp Exception on (GPC 2, TPC 1, SM 0): Illegal Instruction Encoding
_UNIT = re.compile(r"\((GPC \d+, TPC \d+), SM \d+\)")
_AFTER_A_TRAP = 1800.0  # seconds within which a GPU that cannot be initialised belongs to the trap before it
_SHOWN = 300.0  # seconds after a line within which a monitor's condition is of that line; they read every few seconds to minutes
_FLOOD = 20  # corrected errors in the job's window that are more than weather (single ones occur on healthy machines)


def _gpu_key(event: Event) -> tuple[str | None, str | None]:
    return event.node, slot(event.gpu.pci) if event.gpu and event.gpu.pci else None


def repeated_faults(context: Context, outcome: Outcome) -> None:
    """
    Xid 13 and 31 are the program's fault, unless the same GPU repeats them across jobs.

    NVIDIA's own test is repetition on the same GPU (or GPC/TPC/SM) by different processes while others stay clean; several
    GPUs faulting within seconds share the code, not a defect. A program that is started again in place gives the same rank the
    same data: its repetition tells of the GPU only where program, rank or the faulting unit say that it is not the data.
    """
    faults: dict[tuple[str | None, str | None], list[Event]] = defaultdict(list)
    for event in context.events:
        if event.signature in ("xid-13", "xid-31"):
            faults[_gpu_key(event)].append(event)
    now = [group for group in outcome.alive("xid-13", "xid-31") if group.factor >= 0.3]
    gpus_now = {_gpu_key(group.events[0]) for group in now}
    for group in now:
        key = _gpu_key(group.events[0])
        programs = {(event.data.get("name"), event.pid) for event in faults[key]}
        days = {int((event.time or 0) // 3600) for event in faults[key]}
        others = sum(1 for other, events in faults.items() if other != key and other[0] == key[0] and len(events) > 1)
        names = {name for name, _ in programs if name}
        if len(gpus_now) == 1 and len(names) >= 2 and not context.has_job:
            # several programs on one GPU and no job to ask: code, driver and card are all still possible
            group.cls = "unknown"
            group.notes.append(
                f"{', '.join(sorted(map(str, names)))} all fault on this GPU, and no job's log tells whose fault it is"
            )
        elsewise = len(names) >= 2 or len({event.rank for event in faults[key]} - {None}) >= 2 or _one_unit(faults[key])
        if len(gpus_now) == 1 and len(programs) >= 3 and len(days) >= 3 and not others and elsewise:
            for event in group.events:
                event.data["at_fault"] = "gpu"
            outcome.add(
                context,
                group.signature,
                "hardware/gpu-other",
                0.85,
                group.events,
                node=group.node,
                gpu=group.gpu,
                rank=group.rank,
                note=f"{len(programs)} programs faulted on this GPU alone at {len(days)} times",
            )
            group.dismiss("the same GPU repeats it across programs and no other does: the GPU, not the code")
            _said_by_cuda(context, outcome, group, faults[key])
        else:
            for event in group.events:
                event.data["at_fault"] = "job" if len(gpus_now) > 1 else "rank"


def gone_after_a_trap(context: Context, outcome: Outcome) -> None:
    """
    A program's own fault ends its process and leaves the GPU usable; one after which the GPU cannot be initialised is the GPU's.

    Xid 13 and 31 are then the first that was seen of what broke, as long as the driver had not started between.
    """
    dead = [group for group in outcome.alive("rm-init-failed", "gpu-off-bus", "gpu-lost-assert") if group.gpu is not None]
    for group in outcome.alive("xid-13", "xid-31"):
        last = group.last
        after = [
            other
            for other in dead
            if _gpu_key(other.events[0]) == _gpu_key(group.events[0])
            and None not in _gpu_key(group.events[0])
            and last is not None
            and other.first is not None
            and 0.0 <= other.first - last <= _AFTER_A_TRAP
            and other.events[0].data.get("boot") == group.events[-1].data.get("boot")
        ]
        if after and group.cls.startswith("user/"):
            group.cls, group.weight = after[0].cls, max(group.weight, after[0].weight)
            group.notes.append("the GPU could not be initialised afterwards")
            for event in group.events:
                event.data["at_fault"] = "gpu"


def _one_unit(faults: list[Event]) -> bool:
    """Tell whether every fault that names a unit of the GPU names the same one (Xid 13 does, in its line of the warp)."""
    units = [found[1] for event in faults if (found := _UNIT.search(event.text))]
    return len(units) >= 3 and len(set(units)) == 1


def _said_by_cuda(context: Context, outcome: Outcome, group: Group, faults: list[Event]) -> None:
    """CUDA's own report of those faults, on that node and in those seconds, is of the GPU as well: it cannot know whose fault they are."""
    times = [event.time for event in faults if event.time is not None]
    for other in outcome.alive("cuda-", "nccl-cuda"):
        near = other.first is None or any(abs(other.first - time) <= context.windows.xid_after for time in times)
        if other.cls == "user/illegal-memory-access" and other.node == group.node and near:
            other.cls, other.gpu = "hardware/gpu-other", group.gpu
            for event in other.events:
                event.data["at_fault"], event.data["supports"] = "gpu", group.signature


def remap_without_harm(context: Context, outcome: Outcome) -> None:
    """
    A recorded row remap (63) or a corrected-error rate (92) kills no job; it matters beside an uncorrectable error on that GPU.

    NVIDIA's catalog ignores both; the reset that activates the spare row can wait for the job's end.
    """
    hard = {
        _gpu_key(group.events[0])
        for group in outcome.alive("xid-48", "xid-94", "xid-95", "xid-64", "xid-140", "cuda-ecc", "metric-ecc-dbe")
    }
    for event in list(context.events):
        key = _gpu_key(event)
        if (
            event.signature in ("xid-92", "metric-ecc-sbe-rate", "metric-row-remap-increase", "metric-row-remap-pending")
            and key in hard
            and key[1]
        ):
            outcome.add(
                context, event.signature, "hardware/gpu-memory", 0.45, [event], node=event.node, gpu=event.gpu, rank=event.rank
            )
    for group in outcome.alive("xid-63"):
        key = _gpu_key(group.events[0])
        if key in hard and key[1]:
            group.weight = max(group.weight, 0.5)


def pcie_floods(context: Context, outcome: Outcome) -> None:
    """
    Corrected PCIe errors are weather one by one; many on one port while the job slows down or its GPU vanishes are a bad link.
    """
    floods: dict[tuple[str | None, str], list[Event]] = defaultdict(list)
    for event in context.events:
        if event.signature != "aer-corrected" or context.in_job(event.node) is False:
            continue
        if context.start is None or event.time is None or event.time >= context.start - context.windows.before_start:
            port = event.data.get("port") or event.data.get("device") or (event.gpu and event.gpu.pci) or ""
            floods[event.node, str(port)].append(event)
    for (node, port), seen in floods.items():
        events = _last_occasion(context, seen)
        count = sum(event.count for event in events)
        gpu = next((event.gpu for event in events if event.gpu is not None), None)
        mates = [group for group in outcome.alive("metric-pcie", "pcie-width", "smi-link", "lspci-link") if group.node == node]
        handles = [other for other in context.events if other.signature.startswith("smi-handle") and other.node == node]
        if handles and gpu is None:
            gpu = handles[0].gpu
        if gpu is None and mates:
            gpu = next((group.gpu for group in mates if group.gpu is not None), None)
        if count >= _FLOOD or (count >= 3 and (mates or handles)):
            group = outcome.add(
                context,
                "aer-corrected",
                "hardware/pcie",
                0.65 if mates or handles or gpu else 0.5,
                events,
                node=node,
                gpu=gpu,
                rank=context.rank_on(node, gpu),
                note=f"{count} corrected errors on {port or 'one port'}",
            )
            if not (mates or handles) and any(own.cls in _OF_ITSELF and own.score >= 0.5 for own in outcome.alive()):
                group.lower(
                    0.4, "nothing was lost by what was corrected, and the program's own error needs no link to explain it"
                )


def strangers(context: Context, outcome: Outcome) -> None:
    """
    A device's fault on a node that nothing of the job names explains no error of the program's own logic on another node.

    A lost GPU ends its rank with a CUDA error and the others with a lost peer; it makes no dictionary miss a key.
    """
    own = [group for group in outcome.alive("python-", "py-") if group.cls in _OF_ITSELF and group.score >= 0.5 and group.node]
    if not own:
        return
    for group in outcome.alive():
        if (
            group.source in ("kernel", "metrics", "smi", "bmc")
            and group.cls.startswith(("hardware/", "driver/"))
            and group.node is not None
            and context.in_job(group.node) is not True
            and all(one.node != group.node for one in own)
        ):
            group.lower(0.25, f"nothing of the job names {group.node}, and {own[0].node} failed of its own program")


# what a process makes of a fault of its GPU, in whatever layer it meets it, or how it dies of one
_OF_THE_GPU = ("cuda-", "cublas-", "cudnn-", "cufft-", "cusolver-", "nvml-", "nccl-cuda", "nccl-unhandled-cuda", "jax-", "xla-")
_KILLED = (-4, -6, -7, -9, -11, 132, 134, 135, 137, 139)


def of_other_processes(context: Context, outcome: Outcome) -> None:
    """
    An error that ends one process on one GPU (Xid 94, 13, 31) is not what ended a job that met no error of a GPU.

    The process it hits gets a CUDA error or dies; a job on that node whose ranks say nothing of either, and that has an error of its
    own logic, shares the node with whoever it hit. So does one of which all ranks of the node spoke later, of anything but a GPU.
    """
    groups = [group for group in outcome.alive("xid-94", "xid-63", "xid-13", "xid-31") if group.source == "kernel"]
    if not groups:
        return
    met = _met_by_the_job(context)
    told: dict[str | None, list[Event]] = defaultdict(list)
    for event in context.events:
        if event.source in JOB_SOURCES and event.time is not None and context.role(event) in ("cause", "symptom"):
            told[event.node].append(event)
    for group in groups:
        if None in met or group.node in met:
            continue
        own = [
            other
            for other in outcome.alive("python-", "py-")
            if other.cls in _OF_ITSELF
            and other.score >= 0.5
            and other.node == group.node
            and _named(other)
            and other.rank is not None
        ]
        if own:
            group.lower(0.3, f"no process of the job met an error of a GPU, and rank {own[0].rank} failed of its own program")
        elif group.signature in ("xid-13", "xid-31") and _all_spoke(context, group, told[group.node]):
            group.lower(0.3, f"no process of the job on {group.node} met an error of a GPU, and all of them spoke after it")


def _met_by_the_job(context: Context) -> set[str | None]:
    """Return the nodes on which the job says anything of a GPU, or a process of it was killed; None for one that is not known."""
    return {
        event.node
        for event in context.events
        if event.source not in ("kernel", "metrics", "kubernetes")
        and (
            event.signature.startswith(_OF_THE_GPU)
            or "CUDA" in event.text
            or (event.source in ("launcher", "torchelastic") and event.code in _KILLED)
        )
    }


def _all_spoke(context: Context, group: Group, told: list[Event]) -> bool:
    """Tell whether every rank of a node (or some process there, where none is known) told an error after a group of other pids."""
    if group.first is None or any(
        event.pid is not None and (group.node, event.pid) in context.pid_rank for event in group.events
    ):
        return False
    later = [event for event in told if event.time is not None and event.time >= group.first and context.weight(event) > 0]
    return bool(later) and set(context.ranks_of(str(group.node))) <= {event.rank for event in later}


def of_the_same_fault(context: Context, outcome: Outcome) -> None:
    """
    What a condition says of an Xid is the line of the kernel log again: it weighs no more than that line does.

    A monitor reads that log and shows its last entry until somebody takes it away (node-problem-detector, problem daemons).
    """
    lines: dict[tuple[str | None, int | None], list[Group]] = defaultdict(list)
    for group in outcome.groups:
        if group.source == "kernel" and group.events[0].code is not None:
            lines[group.node, group.events[0].code].append(group)
    for group in outcome.alive("xid-"):
        first = group.events[0]
        if group.source != "kubernetes" or group.first is None:
            continue
        same = [
            one
            for one in lines[group.node, first.code]
            if one.last is not None
            and -5.0 <= group.first - one.last <= _SHOWN
            and not (one.gpu and group.gpu and one.gpu.pci and group.gpu.pci and slot(one.gpu.pci) != slot(group.gpu.pci))
        ]
        if not same:
            continue
        best = max(same, key=lambda one: one.score)
        if best.dismissed:
            group.dismiss(f"the kernel log has the same: {best.dismissed}")
        elif best.factor < group.factor:
            group.factor, group.notes = best.factor, [*group.notes, *best.notes]


def _named(group: Group) -> bool:
    """Tell whether the exception's type says that it is the program's own; a RuntimeError may pass any other error on."""
    names = {str(event.data.get("exception") or "").rsplit(".", 1)[-1] for event in group.events}
    return bool(names - {"", "RuntimeError", "Exception", "SystemError", "OSError"})


def _last_occasion(context: Context, events: list[Event]) -> list[Event]:
    """Return the errors that belong to the job's end: the last run of them without ten quiet minutes, if it reached the last steps."""
    timed = sorted((event for event in events if event.time is not None), key=lambda e: e.time or 0.0)
    if not timed:
        return events
    run = [timed[-1]]
    for event in reversed(timed[:-1]):
        if (run[-1].time or 0.0) - (event.last or event.time or 0.0) > 600.0:
            break
        run.append(event)
    life = life_of(context, timed[-1].time)
    if life is not None and life.stop is not None and (timed[-1].last or timed[-1].time or 0.0) < life.stop - 120.0:
        return []
    return run[::-1]


def whole_node(context: Context, outcome: Outcome) -> None:
    """
    The same NVLink fault on most GPUs of a node within a second is the switch side, not a card; one that is first is the card.

    A fatal NVSwitch error before or with the GPUs' own lines says the same.
    """
    by_node: dict[str | None, list[Group]] = defaultdict(list)
    for group in outcome.alive("xid-74", "xid-149", "xid-144", "xid-145", "xid-146", "xid-147", "xid-148", "xid-150"):
        if group.cls == "hardware/nvlink" and group.factor >= 0.3:
            by_node[group.node].append(group)
    for node, groups in by_node.items():
        gpus = {_gpu_key(group.events[0])[1] for group in groups if _gpu_key(group.events[0])[1]}
        if len(gpus) == 1:
            # a switch's fatal error beside the link fault of one GPU alone is that GPU's link, seen from its other end
            only = next(group for group in groups if group.gpu is not None)
            for group in outcome.alive("sxid-"):
                near = group.first is None or only.first is None or abs(group.first - only.first) <= 5.0
                if group.node == node and group.gpu is None and near:
                    group.gpu, group.rank = only.gpu, only.rank
        if len(gpus) < 2:
            continue
        strongest = max(group.score for group in groups)
        strong = [group for group in groups if group.score >= 0.8 * strongest]
        strong_gpus = {_gpu_key(group.events[0])[1] for group in strong}
        times = sorted(group.first for group in strong if group.first is not None)
        switch = [group for group in outcome.alive("sxid-") if group.node == node and group.factor >= 0.3]
        grown = {
            _gpu_key(group.events[0])[1] for group in outcome.alive("metric-nvlink") if group.node == node and group.factor >= 0.3
        }
        if len(grown & gpus) == 1:
            chosen = next(iter(grown & gpus))
            for group in groups:
                if _gpu_key(group.events[0])[1] != chosen:
                    group.lower(0.6, "the link errors had grown on another GPU of the node before")
            continue
        if switch and times and min(g.first or times[0] for g in switch) <= times[0] + context.windows.same_instant:
            _of_the_node(outcome, node, [*groups, *switch])
            continue
        if len(strong_gpus) >= 3 and times and times[-1] - times[0] <= 2.0:
            _of_the_node(outcome, node, groups)


def _of_the_node(outcome: Outcome, node: str | None, groups: list[Group]) -> None:
    seen = [group for group in outcome.alive() if group.node == node and group.cls == "hardware/nvlink"]
    for group in [*groups, *seen]:
        group.gpu = None
        group.rank = None
        group.whole_node = True


def driver_hang_tasks(context: Context, outcome: Outcome) -> None:
    """A task in uninterruptible sleep inside the NVIDIA modules waits for a driver that does not answer."""
    for event in context.events:
        if event.signature == "hung-task" and event.data.get("nvidia_stack"):
            event.data["promoted"] = True
            outcome.add(context, "hung-task", "driver/hang", 0.6, [event], node=event.node, rank=event.rank)


def supports(context: Context, outcome: Outcome) -> None:
    """
    A CUDA error that names no cause (launch failure, unknown error) takes the cause of the GPU fault that its rank sat on.
    """
    for group in outcome.alive("k8s-gpu-allocatable-low", "k8s-device-unhealthy", "smi-gpu-missing", "metric-gpu-count-low"):
        known = [
            g
            for g in outcome.alive()
            if g.cls.startswith(("hardware/gpu-memory", "hardware/gpu-lost", "hardware/nvlink"))
            and g.node == group.node
            and g.score >= 0.3
        ]
        if known:  # a device that the platform took away has the fault that its own evidence shows
            best = max(known, key=lambda g: g.score)
            group.cls, group.gpu = best.cls, best.gpu or group.gpu
    hardware = [
        g
        for g in outcome.alive()
        if g.cls.startswith(("hardware/", "driver/")) and g.source in ("kernel", "metrics", "smi", "bmc") and g.score >= 0.4
    ]
    for group in outcome.alive("cuda-", "nccl-", "cublas-", "cudnn-"):
        if (
            group.cls
            not in (
                "unknown",
                "hardware/gpu-other",
                "user/config",
                "driver/missing",
                "driver/other",
                "user/illegal-memory-access",
            )
            or group.node is None
        ):
            continue
        mates = [
            g
            for g in hardware
            if g.node == group.node
            and (g.gpu is None or group.rank is None or g.rank is None or g.rank == group.rank)
            and (g.first is None or group.first is None or g.first <= group.first + context.windows.xid_after)
        ]
        if mates and group.cls != "user/illegal-memory-access":
            best = max(mates, key=lambda g: g.score)
            group.cls = best.cls
            group.gpu = best.gpu or group.gpu
            for event in group.events:
                event.data["supports"] = best.signature  # it shows the fault's consequence, not the fault
