"""Turn the kernel's complaints since boot, other than of GPUs, into whether the host can be trusted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from workbench.catalog.findings import finding_row, findings_table
from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.model import Event
from workbench.parse.ids import same_pci
from workbench.sources.node.kernel_state import TAINTS, KernelState

__all__ = ["kernel"]

# A machine check or an oops stays true until the node is booted again. A stall that passed does not: it counts for a day.
_PASSES = 86400.0
_MACHINE_CHECK, _BAD_PAGE, _DIED = 4, 5, 7


@check(
    "kernel", "the kernel has no complaint of the host", needs=("kernel",), wants=("kernel-state", "pci-bus"), cls="hardware/host"
)
def kernel(seen: Seen) -> Iterator[Finding]:
    """Give one finding for each kind of complaint that the catalog files under this check, and one for what taints the kernel."""
    log = seen.value("kernel")
    mine = {code for code, row in findings_table().items() if row.check == "kernel"}
    gpus = [one["pci"] for one in seen.value("pci-bus") or ()]
    by_kind: dict[str, list[Event]] = {}
    for event in log.events:
        if event.signature not in mine or event.gpu is not None or any(same_pci(event.data.get("device"), gpu) for gpu in gpus):
            continue
        after = (
            (log.boot or 0.0) if finding_row(event.signature).status == "critical" else max(log.boot or 0.0, seen.now - _PASSES)
        )
        if event.time is None or event.time >= after:
            by_kind.setdefault(event.signature, []).append(event)
    found = [_kind(seen, code, events) for code, events in by_kind.items()]
    state = seen.value("kernel-state")
    found += list(_taint(seen, state, by_kind)) if state else []
    yield from found
    if any(finding.status not in ("ok", "not-applicable") for finding in found):
        return
    if not log.whole:
        since = "" if log.reach is None or log.boot is None else f": it begins {(log.reach - log.boot) / 3600:.0f} h after boot"
        yield seen.ok(f"no complaint of the host in the {log.place}, which does not reach back to the last boot{since}")
    else:
        yield seen.ok(f"no complaint of the host since boot in the {log.place}")


def _kind(seen: Seen, code: str, events: Sequence[Event]) -> Finding:
    count = sum(event.count for event in events)
    times = "" if count == 1 else f", {count} times"
    return seen.found(
        code,
        f"{finding_row(code).meaning}{times}",
        evidence=[event.text for event in events[-3:]],
        since=events[0].time,
    )


def _taint(seen: Seen, state: KernelState, by_kind: dict[str, list[Event]]) -> Iterator[Finding]:
    """The taint outlives the log: it tells of what the log has forgotten."""
    bits = set(state.taints)
    said = [f"/proc/sys/kernel/tainted = {state.taint}: " + ", ".join(TAINTS[bit] for bit in sorted(bits) if bit < len(TAINTS))]
    for bit, code, known in (
        (_DIED, "kernel-died", "kernel-oops"),
        (_MACHINE_CHECK, "kernel-machine-check", "mce-fatal"),
        (_BAD_PAGE, "kernel-bad-page", ""),
    ):
        if bit in bits and known not in by_kind:
            yield seen.found(code, f"the kernel is tainted by {TAINTS[bit]}", part="taint", evidence=said)
