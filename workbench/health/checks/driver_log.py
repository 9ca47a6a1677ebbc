"""Turn what the driver logged without an Xid into whether it or a GPU has failed: firmware that does not start, a GPU that is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from workbench.catalog.findings import finding_row
from workbench.health.checks.xid import reach
from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.health.told import STARTING, codes, grouped, names, same, seconds_before, since_boot
from workbench.model import Gpu

__all__ = ["driver_log"]

_STARTS = ("gsp-heartbeat-timeout", "gsp-timeout", "gsp-crash", "gsp-init-failed")
# filed under the host, unless NVIDIA's driver is on the stack
_STALLS = ("soft-lockup", "hard-lockup", "rcu-stall")
# a processor inside the GPU that stopped, said by Xid: what fails afterwards for this GPU follows from it
_HANGS = ("xid-61", "xid-62", "xid-119", "xid-120", "xid-175")


@check(
    "driver-log",
    "the kernel log has no fault of the driver without an Xid",
    needs=("kernel",),
    wants=("gpus",),
    cls="driver/other",
)
def driver_log(seen: Seen) -> Iterator[Finding]:
    """Judge what the driver printed since it was loaded; a hung task counts only with the driver on its stack."""
    log, gpus = seen.value("kernel"), seen.value("gpus")
    no_space = since_boot(log, ("pci-bar-unassigned", "pci-region-invalid"))
    no_space = [event if event.gpu else replace(event, gpu=Gpu(pci=str(event.data.get("device")))) for event in no_space]
    loads = [event for event in log.events if event.signature == "nvidia-loaded"]
    hangs = since_boot(log, _HANGS, driver=True)
    stalls = [event for event in since_boot(log, _STALLS, driver=True) if event.data.get("nvidia_stack")]
    bad = False
    for signature, _, events in grouped([*since_boot(log, codes("driver-log"), driver=True), *stalls]):
        first = events[0]
        if signature == "hung-task" and not any(event.data.get("nvidia_stack") for event in events):
            continue
        if signature in _STALLS:
            finding = seen.found("driver-lockup", finding_row("driver-lockup").meaning, since=first.time)
        else:
            finding = seen.found_event(first)
        if signature in _STARTS and any(0.0 <= -seconds_before(first, one) <= STARTING for one in loads):
            # what never came up cannot be reset by nvidia-smi
            finding = replace(seen.found("gsp-boot-failed", seen.found_event(first).summary), since=first.time)
        if signature == "rm-init-failed" and any(same(event.gpu, first.gpu) for event in no_space):
            finding = seen.found("rm-init-no-space", "the driver could not bring a GPU up that got too little address space")
        elif signature == "rm-init-failed" and any(same(event.gpu, first.gpu) and event.order < first.order for event in hangs):
            finding = seen.found(
                "rm-init-after-hang", "the driver could not bring a GPU up again whose system processor had stopped answering"
            )
        count = sum(event.count for event in events)
        summary = finding.summary + (f" ({count} times)" if count > 1 else "")
        if finding.status != "ok":
            bad = True
            yield replace(finding, summary=summary, gpu=names(gpus, first), evidence=tuple(event.text for event in events[:5]))
    if not bad:
        enough, said = reach(seen, log)
        if enough:
            yield seen.ok(f"no fault of the driver: {said}")
        else:
            yield seen.unknown(said)
