"""Turn what the driver itself asks for (reset, reboot, drain) into whether a GPU needs a recovery before the next job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from workbench.catalog.recovery_actions import remediation_of
from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.health.told import same, told
from workbench.parse.gpu_state import GpuState

__all__ = ["recovery"]

# one value that cannot be read is a sensor; when its temperature and so many others cannot, the GPU does not answer
_SILENT = 3


@check("recovery", "the driver asks for no reset, reboot or drain", needs=("gpus",), cls="hardware/gpu-other")
def recovery(seen: Seen) -> Iterator[Finding]:
    """Give each GPU what the driver asks for; a driver too old to tell (before R555) is not asked."""
    for state in seen.gpus.states:
        bad = [_named(finding, state) for finding in told(seen, state) if finding.status != "ok"]
        said = state.get("recovery_action")
        refused = state.why_not.get("handle") or _blank(seen, state)
        if (state.lost or refused) and not any(finding.status == "critical" for finding in bad):
            code = "gpu-lost" if state.lost else "gpu-handle-refused"
            yield seen.found(code, f"it answers no more: {state.lost or refused}", gpu=state.gpu)
        elif bad:
            yield from bad
        elif said is None and not state.can("recovery_action"):
            yield seen.absent("this driver or GPU does not tell which recovery it needs", gpu=state.gpu)
        elif said is None:
            yield seen.unknown(f"which recovery is needed was not told: {state.reason('recovery_action')}", gpu=state.gpu)
        elif str(said).lower() == "none":
            yield seen.ok("no recovery is needed", gpu=state.gpu)
        else:
            yield seen.unknown(f"the driver asks for {said!r}, and nobody here knows what that is", gpu=state.gpu)


def _blank(seen: Seen, state: GpuState) -> str:
    """Why a GPU counts as silent of which a table shows errors only; empty when it shows more, or there is a better word for it."""
    for event in seen.gpus.events:
        many = int(event.data.get("fields") or 0) >= _SILENT
        if event.signature == "smi-err-field" and many and same(event.gpu, state.gpu) and state.number("temperature.gpu") is None:
            return "most of its values are errors"
    return ""


def _named(finding: Finding, state: GpuState) -> Finding:
    said = str(state.get("recovery_action") or "")
    if finding.code == "smi-err-field" and len(state.why_not) >= _SILENT and not state.number("temperature.gpu"):
        return replace(
            finding, status="critical", cls="hardware/gpu-lost", action="reboot-node", summary="most of its values cannot be read"
        )
    if finding.code != "smi-recovery-action" or not said:
        return finding
    action = remediation_of(said)
    summary = f"the driver asks for: {said}"
    return replace(finding, summary=summary, action=action or finding.action)
