"""Turn events of the kernel log and of the GPUs' own answers into the findings of one check, each for the GPU that it speaks of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from workbench.catalog.findings import findings_table
from workbench.health.finding import Finding
from workbench.health.same import same
from workbench.health.seen import Seen
from workbench.model import Event, Gpu
from workbench.parse.gpu_state import GpuState, NodeGpus
from workbench.sources.node.kernel_events import KernelLog

__all__ = ["STARTING", "codes", "grouped", "names", "same", "seconds_before", "since_boot", "told"]

STARTING = 120.0  # seconds that the driver needs to take eight GPUs, time-outs of its firmware included


def codes(check: str) -> frozenset[str]:
    """Return the codes of the table of findings that belong to a check."""
    return frozenset(code for code, row in findings_table().items() if row.check == check)


def told(seen: Seen, state: GpuState, check: str = "") -> list[Finding]:
    """Return what the GPUs' own answer says of one GPU, for the signatures that belong to a check."""
    mine = codes(check or seen.check.id)
    return [seen.found_event(event) for event in seen.gpus.events if event.signature in mine and same(event.gpu, state.gpu)]


def since_boot(log: KernelLog, signatures: Iterable[str], *, driver: bool = False) -> list[Event]:
    """
    Return the events of some signatures since the node booted.

    Parameters
    ----------
    log : KernelLog
    signatures : iterable of str
    driver : bool, optional
        Only those since the driver was loaded last, which makes its own earlier faults history.
    """
    wanted = set(signatures)
    last = max((int(event.data.get("boot") or 0) for event in log.events), default=0)
    starts = [event for event in log.events if event.signature == "nvidia-loaded"] if driver else []
    loaded = starts[-1] if starts else None
    found = []
    for event in log.events:
        if event.signature not in wanted or int(event.data.get("boot") or 0) != last:
            continue
        if event.time is not None and log.boot is not None and event.time < log.boot - 1.0:
            continue
        # what goes wrong while the driver starts stands partly before the line that says that it is loaded
        if loaded is not None and event.order < loaded.order and seconds_before(event, loaded) > STARTING / 2:
            continue
        found.append(event)
    return found


def seconds_before(event: Event, other: Event) -> float:
    """Return how many seconds an event was before another, negative when after; infinite when no clock tells."""
    if event.time is not None and other.time is not None:
        return other.time - event.time
    mine, theirs = event.data.get("uptime"), other.data.get("uptime")
    return float(theirs) - float(mine) if mine is not None and theirs is not None else inf


def names(gpus: NodeGpus | None, event: Event) -> Gpu | None:
    """Return the GPU of an event with all the names that the driver knows of it."""
    if gpus is not None and event.gpu is not None:
        return next((state.gpu for state in gpus.states if same(state.gpu, event.gpu)), event.gpu)
    return event.gpu


def grouped(events: Sequence[Event]) -> list[tuple[str, Gpu | None, list[Event]]]:
    """Return events by signature and GPU, in the order in which they first occurred."""
    groups: dict[tuple[str, Gpu | None], list[Event]] = {}
    for event in events:
        groups.setdefault((event.signature, event.gpu), []).append(event)
    return [(signature, gpu, found) for (signature, gpu), found in groups.items()]
