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
    "kernel",
    "the kernel has no complaint of the host",
    needs=("kernel",),
    wants=("kernel-state", "pcie-paths"),
    cls="hardware/host",
)
def kernel(seen: Seen) -> Iterator[Finding]:
    """Give one finding for each kind of complaint that the catalog files under this check, and one for what taints the kernel."""
    log = seen.value("kernel")
    rows = {code: row for code, row in findings_table().items() if row.check == "kernel"}
    paths = seen.value("pcie-paths") or {}
    gpus = {*paths, *(port for above in paths.values() for port in above)}
    by_kind: dict[str, list[Event]] = {}
    for event in log.events:
        # what GPUs and the ports above them may have, too, is filed here under a name of its own
        code = event.signature if event.signature in rows else f"host-{event.signature}"
        if event.signature == "ghes-fatal" and event.data.get("severity") == "recoverable":
            code = "ghes-recoverable"
        if code not in rows or _of_a_gpu(event, gpus):
            continue
        after = (log.boot or 0.0) if rows[code].status == "critical" else max(log.boot or 0.0, seen.now - _PASSES)
        if event.time is None or event.time >= after:
            by_kind.setdefault(code, []).append(event)
    found = [_kind(seen, code, events) for code, events in by_kind.items()]
    state = seen.value("kernel-state")
    found += list(_taint(seen, state, by_kind)) if state else []
    yield from found
    if any(finding.status not in ("ok", "not-applicable") for finding in found):
        return
    if not log.whole:
        since = "" if log.reach is None or log.boot is None else f": it begins {(log.reach - log.boot) / 3600:.0f} h after boot"
        yield seen.ok(
            f"no complaint of the host that matters now in the {log.place}, which does not reach back to the last boot{since}"
        )
    else:
        yield seen.ok(f"no complaint of the host that matters now, since boot, in the {log.place}")


def _of_a_gpu(event: Event, gpus: set[str]) -> bool:
    """Whether other checks judge it: a GPU, a port on the way to one, or a task that hangs in its driver."""
    device = event.data.get("device")
    return event.gpu is not None or bool(event.data.get("nvidia_stack")) or any(same_pci(device, gpu) for gpu in gpus)


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
