"""Turn what the driver logged without an Xid into whether it or a GPU has failed: firmware that does not start, a GPU that is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from workbench.health.checks.xid import reach
from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.health.told import codes, grouped, names, since_boot

__all__ = ["driver_log"]


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
    bad = False
    for signature, _, events in grouped(since_boot(log, codes("driver-log"), driver=True)):
        first = events[0]
        if signature == "hung-task" and not any(event.data.get("nvidia_stack") for event in events):
            continue
        finding = seen.found_event(first)
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
