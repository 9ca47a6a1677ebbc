"""Turn what DCGM's health watches found into one finding for each incident."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from workbench.catalog.findings import findings_table
from workbench.health.checks.dcgm_diag import named
from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.model import Event
from workbench.sources.node.dcgm import DcgmHealth

__all__ = ["dcgm"]


@check(
    "dcgm",
    "DCGM answers, and its health watches found nothing",
    needs=("dcgm-health",),
    wants=("gpus",),
    cls="hardware/gpu-other",
    required=False,
    required_when=("health.dcgm",),
)
def dcgm(seen: Seen) -> Iterator[Finding]:
    """
    Take over what the watches say: a failure is critical, a warning a warning.

    Links of a card without a bridge, and an IMEX domain that an idle system has none of, are told as notes: DCGM counts them as trouble.
    """
    health: DcgmHealth = seen.value("dcgm-health")
    told = [event for event in health.events if event.role != "context"]
    for event in told:
        yield _incident(seen, event)
    for event in health.events:
        if event.role == "context":
            what = str(event.data.get("message") or event.text).strip()
            why = event.data.get("note") or "seen on healthy nodes, too"
            yield seen.absent(f"DCGM reports {what[:200]!r}: no fault by itself ({why})", gpu=named(seen, event.gpu), part="note")
    if health.overall == "Healthy" and not told:
        yield seen.ok("DCGM's health watches found nothing")
    elif health.overall in ("Warning", "Failure") and not health.events:
        code = "dcgmi-health" if health.overall == "Failure" else "dcgm-health-warning"
        yield seen.found(code, f"DCGM's overall health is {health.overall}, and it does not say why", hint="dcgmi health -g 0 -c")
    elif health.overall not in ("Healthy", "Warning", "Failure"):
        yield seen.unknown(f"DCGM's overall health is {health.overall!r}", hint="dcgmi health -g 0 -c")


def _incident(seen: Seen, event: Event) -> Finding:
    warning = str(event.data.get("status") or "").lower().startswith("warn")
    code = event.signature if event.signature in findings_table() else "dcgmi-health"
    summary = str(event.data.get("message") or event.text).strip()[:300]
    watch = str(event.data.get("test") or "")
    one = seen.found(
        "dcgm-health-warning" if warning else code,
        f"{watch}: {summary}" if summary else f"{watch}: {event.data.get('status')}",
        gpu=named(seen, event.gpu),
        part=watch,
        evidence=[event.text] if event.text else (),
    )
    return replace(one, cls=event.cls or one.cls, action=str(event.data.get("remediation") or one.action))
