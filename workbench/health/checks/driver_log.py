"""Turn what the driver logged without an Xid into whether it or a GPU has failed: firmware that does not start, a GPU that is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from workbench.catalog.climbs import climbed
from workbench.catalog.findings import finding_row
from workbench.health.checks.xid import reach
from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.health.told import codes, grouped, names, same, since_boot
from workbench.model import Event, Gpu

__all__ = ["driver_log"]

# filed under the host, unless NVIDIA's driver is on the stack
_STALLS = ("soft-lockup", "hard-lockup", "rcu-stall")
# why a GPU could not be brought up: what was said of it before, and the finding that it then is; the first that fits
_REASONS = (
    ("rm-init-no-space", ("pci-bar-unassigned", "pci-region-invalid")),
    ("rm-init-no-power", ("gpu-power-cable",)),
    ("rm-init-no-firmware", ("gsp-image-missing", "gsp-image-mismatch")),
    # a processor inside the GPU that stopped, said by Xid or by the driver itself
    (
        "rm-init-after-hang",
        ("xid-61", "xid-62", "xid-119", "xid-120", "xid-175", "gsp-heartbeat-timeout", "gsp-timeout", "gsp-crash"),
    ),
)


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
    reasons = [(code, since_boot(log, signatures, driver=not code.endswith("space"))) for code, signatures in _REASONS]
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
        why = _reason(first, reasons) if signature == "rm-init-failed" else ""
        if why:
            finding = seen.found(why, finding_row(why).meaning)
        elif climb := climbed(finding.action, first, log.events):
            if "nvidia-loaded" in climb.by:
                finding = replace(seen.found("gsp-boot-failed", finding.summary), since=first.time)
            finding = replace(finding, action=climb.to, summary=f"{finding.summary}; {climb.why}")
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


def _reason(failed: Event, reasons: Sequence[tuple[str, Sequence[Event]]]) -> str:
    """The finding that a GPU which could not be brought up is, when the log says before why (of the firmware without naming a GPU)."""
    for code, events in reasons:
        for event in events:
            gpu = event.gpu or (Gpu(pci=str(event.data["device"])) if event.data.get("device") else None)
            of_it = same(gpu, failed.gpu) if gpu is not None else code == "rm-init-no-firmware"
            if of_it and (event.order < failed.order or code == "rm-init-no-space"):
                return code
    return ""
