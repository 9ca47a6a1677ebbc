"""Turn the Xids of the kernel log into what each means for the node now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

from workbench.catalog.findings import findings_table
from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.health.xid_rulings import Ruling, instances, rulings, state_of
from workbench.parse.gpu_state import NodeGpus
from workbench.sources.node.kernel_events import KernelLog

__all__ = ["reach", "xid"]

# How far back a log must go at least when it does not go back to the last boot: strikes are counted over a day, and what stays broken
# longer than that shows in counters, states and the recovery action, which other checks read from the driver.
_LEAST = 86400.0


def _when(moment: float | None) -> str:
    return "an unknown time" if moment is None else datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%MZ")


def reach(seen: Seen, log: KernelLog) -> tuple[bool, str]:
    """
    Tell whether a log reaches back far enough to say that nothing happened, and in words how far it does.

    It does when it holds everything since the last boot; else when it holds a day, or when the driver itself says of every GPU that no
    recovery is needed.
    """
    if log.whole:
        return True, f"the {log.place} reaches back to the last boot ({_when(log.boot)})"
    said = f"the {log.place} reaches back to {_when(log.reach)} only" + (
        f", the last boot was {_when(log.boot)}" if log.boot is not None else ", and when the node booted is not known"
    )
    if log.reach is not None and seen.now - log.reach >= _LEAST:
        return True, said
    gpus = seen.value("gpus")
    if isinstance(gpus, NodeGpus) and gpus.states and all(state.get("recovery_action") == "None" for state in gpus.states):
        return True, f"{said}; of what was before, the driver says that no GPU needs a recovery"
    return False, said


@check(
    "xid",
    "the kernel log has no Xid that makes a GPU unfit",
    needs=("kernel",),
    wants=("gpus", "machine"),
    cls="hardware/gpu-other",
)
def xid(seen: Seen) -> Iterator[Finding]:
    """Judge every Xid since the last boot, driver reload or reset by the first rule of ``catalog/xid_rules.csv`` that fits."""
    log: KernelLog = seen.value("kernel")
    gpus = seen.value("gpus")
    machine = seen.value("machine")
    found, cleared = rulings(log, gpus, environment=(machine.kind,) if machine and machine.kind else ())
    enough, said = reach(seen, log)
    blind = () if log.whole else (f"Xids before {_when(log.reach)}",)
    harmless = []
    for ruling in found:
        if ruling.rule.status == "ok":
            harmless.append(ruling)
            continue
        yield _finding(seen, ruling, gpus, blind)
    evidence = [f"Xid {one.code} ×{one.count} on {one.gpu.pci if one.gpu else 'a GPU'}: {one.rule.why}" for one in harmless]
    history = f"; {len(cleared)} older ones were cleared by a boot, a driver reload or a reset" if cleared else ""
    if log.problems and not found:
        evidence += log.problems
    if not enough:
        hint = "let the journal keep kernel messages (Storage=persistent), or make the ring buffer larger (log_buf_len)"
        yield replace(seen.unknown(f"{said}: an Xid before that would not be seen", hint=hint), blind=blind)
    elif len(harmless) == len(found):
        what = f"{len(harmless)} kinds of Xid, none that makes a GPU unfit" if harmless else "no Xid"
        yield replace(seen.ok(f"{what}: {said}{history}", evidence=evidence), blind=blind)


def _finding(seen: Seen, ruling: Ruling, gpus: NodeGpus | None, blind: tuple[str, ...]) -> Finding:
    code = f"xid-{ruling.code}"
    rule, last = ruling.rule, ruling.events[-1]
    times = f" ×{ruling.count}" if ruling.count > 1 else ""
    behind = last.data.get("stands_for")  # the Xid that this one only follows, and of which no line is there
    summary = f"Xid {ruling.code}{times}{f' after Xid {behind}' if behind else ''}: {rule.why}"
    inside = instances(state_of(ruling.gpu, gpus))
    if ruling.instance:
        summary += f" (MIG instance {ruling.instance} of this GPU)"
    elif inside:
        summary += f"; it reaches all {inside} MIG instances of this GPU"
    finding = seen.found(
        code,
        summary,
        gpu=ruling.gpu,
        part=f"MIG instance {ruling.instance}" if ruling.instance else "",
        evidence=[*(event.text for event in ruling.events[-3:]), f"decided by {rule.origin} ({rule.said})"],
        since=ruling.events[0].time,
        hint=f"workbench check xid --explain; workbench explain xid:{behind or last.code}",
    )
    finding = replace(finding, blind=blind)
    if code in findings_table():  # a site's own row for this code
        return finding
    return replace(finding, status=rule.status, cls=ruling.cls, action=rule.action)
