"""Turn the Xids of a kernel log and what else is known of the GPUs into one ruling for each GPU and code that still counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from workbench.catalog import signatures
from workbench.catalog.climbs import climbed
from workbench.catalog.skus import sku_of
from workbench.catalog.xid_facts import facts_of, neighbours
from workbench.catalog.xid_rules import XidContext, XidRule, rule_for
from workbench.model import Event, Gpu
from workbench.parse.gpu_state import GpuState, NodeGpus
from workbench.sources.node.kernel_events import KernelLog

__all__ = ["Ruling", "instances", "rulings", "state_of"]

_DAY = 86400.0
# Seconds between two errors of one kind that make two incidents; our own measure (NVSentinel: 180 for Xid 31, 15 for Xid 13)
_INCIDENT = 600.0
_TOGETHER = 60.0  # seconds within which the same code on another GPU means that the job did it, not the GPU
_RANK = {"ok": 0, "warning": 1, "unknown": 2, "critical": 3}


@dataclass(frozen=True, slots=True)
class Ruling:
    """
    What one code means on one GPU now.

    `events` are those that count, oldest first; `rule` decided on the worst of them; `gpu` is as the log named it, completed by NVML;
    `cls` the rule's class or that of the code's row; `instance` the MIG instance when only that is hit.
    """

    code: int
    gpu: Gpu | None
    events: tuple[Event, ...]
    rule: XidRule
    context: XidContext
    cls: str
    instance: str = ""

    @property
    def count(self) -> int:
        """How many lines."""
        return sum(event.count for event in self.events)

    @property
    def last(self) -> float | None:
        """When it was logged last, seconds since the epoch."""
        return max((event.last or event.time for event in self.events if event.time is not None), default=None)


def rulings(
    log: KernelLog, gpus: NodeGpus | None = None, *, environment: Iterable[str] = ()
) -> tuple[tuple[Ruling, ...], tuple[Event, ...]]:
    """
    Judge every Xid since the last boot, driver reload or reset.

    Parameters
    ----------
    log : KernelLog
        Events since the last boot, and earlier ones when the log has them.
    gpus : NodeGpus, optional
        What the driver says of the GPUs now: products, remapping, recovery action.
    environment : iterable of str, optional
        ``vm`` or ``bare-metal``; empty when not known.

    Returns
    -------
    rulings : tuple of Ruling
        Worst first.
    cleared : tuple of Event
        Xids that a later boot, driver reload or reset has made history.
    """
    xids = [event for event in log.events if event.signature.startswith("xid-") and event.code is not None]
    alive, cleared = _alive(log, xids, gpus)
    groups: dict[tuple[str, int, str], list[Event]] = {}
    for event in alive:
        groups.setdefault((_key(event), event.code or 0, str(event.data.get("mig") or "")), []).append(event)
    near = neighbours(log.events)
    found = []
    for (key, code, instance), events in groups.items():
        cause = events[0].data.get("stands_for")
        state = state_of(events[0].gpu, gpus)
        others = sorted({event.code or 0 for event in alive if _key(event) == key and event.code != code})
        demand = next(
            (str(event.data.get("remediation") or "") for event in reversed(alive) if _key(event) == key and event.code == 154),
            "",
        )
        counts = _counts(code, key, alive, xids)
        around = _facts(state, demand, _peers(gpus, xids)) | {"place": "only" if _places(events)[1] else "one of many"}
        ruled = []
        for event in events[-1:] if code == 154 else events:  # the last word of the driver counts
            context = XidContext(
                int(event.data.get("stands_for") or code),  # "45 … caused by previous Xid 149", and no line of that one
                {*environment, *_mig(state)},
                _architecture(state),
                gpus.driver if gpus and gpus.driver else str(log.facts.get("driver") or ""),
                _remap(state),
                counts,
                facts_of(event, near.get((event.node, key), ()), others) | around,
            )
            ruled.append((_RANK[(rule := rule_for(context)).status], rule, context))
        _, rule, context = max(ruled, key=lambda one: one[0])
        after = (*log.events, *(gpus.events if gpus else ()))
        if rule.status != "ok" and (climb := climbed(rule.action, events[-1], after)):
            rule = replace(rule, action=climb.to, why=f"{rule.why}; {climb.why}")
        cls = rule.cls or events[0].cls or signatures()[f"xid-{cause or code}"].cls
        found.append(Ruling(code, _named(events[0].gpu, state), tuple(events), rule, context, cls, instance))
    found.sort(key=lambda one: (-_RANK[one.rule.status], one.last or 0.0))
    return tuple(found), cleared


def _key(event: Event) -> str:
    return str(event.gpu.pci or event.gpu.uuid or event.gpu.index) if event.gpu else ""


def _alive(log: KernelLog, xids: Sequence[Event], gpus: NodeGpus | None) -> tuple[list[Event], tuple[Event, ...]]:
    """Split the Xids into those that count and those that a boot, a driver reload or a reset has made history."""
    node = max((event.order for event in log.events if event.signature in ("kernel-boot", "nvidia-loaded")), default=-1)
    last_boot = max((int(event.data.get("boot") or 0) for event in log.events), default=0)
    gpu: dict[str, int] = {}
    for event in xids:
        if event.code != 154:
            continue
        if event.data.get("remediation") == "none":  # printed when the reset that was asked for has happened
            gpu[_key(event)] = event.order
        else:
            state = state_of(event.gpu, gpus)
            if state is not None and str(state.get("recovery_action") or "?").lower() == "none":  # it asked, and asks no more
                gpu[_key(event)] = event.order
    alive: list[Event] = []
    cleared: list[Event] = []
    for event in xids:
        before = event.order < node or event.order <= gpu.get(_key(event), -1)
        before = before or int(event.data.get("boot") or 0) < last_boot
        # a log that begins in the middle has no line of the boot: then the clock decides
        before = before or (event.time is not None and log.boot is not None and event.time < log.boot - 1.0)
        (cleared if before else alive).append(event)
    return alive, tuple(cleared)


def _counts(code: int, key: str, alive: Sequence[Event], xids: Sequence[Event]) -> Mapping[str, int]:
    mine = [event for event in alive if event.code == code and _key(event) == key]
    last = max((event.time for event in mine if event.time is not None), default=None)
    recent = [event for event in mine if last is None or event.time is None or last - event.time <= _DAY]
    others = [event.time for event in alive if event.code == code and _key(event) != key and event.time is not None]
    processes: set[object] = set()
    times = 0
    before: float | None = None
    for event in sorted(recent, key=lambda one: (one.time or 0.0, one.order)):
        apart = before is None or event.time is None or event.time - before > _INCIDENT
        times += apart
        alone = event.time is None or all(abs(event.time - other) > _TOGETHER for other in others)
        if alone:
            processes.add(event.pid if event.pid is not None else ("incident", times))
        before = event.last or event.time or before
    boots = {event.data.get("boot") for event in xids if event.code == code and _key(event) == key}
    return {"processes": len(processes), "times": times, "boots": len(boots), "places": _places(mine)[0]}


def _places(events: Sequence[Event]) -> tuple[int, bool]:
    """
    Return how many processes faulted at the unit (GPC and TPC) where most did, and whether that is all of them.

    A bug in code hits many units at once, and others the next time: a process that faulted at more than two of them is not counted.
    """
    units: dict[object, set[str]] = {}
    for event in events:
        if found := event.data.get("sm"):
            units.setdefault(event.pid if event.pid is not None else event.time, set()).add("/".join(str(found).split("/")[:2]))
    telling = [places for places in units.values() if len(places) <= 2]
    most = max((sum(place in places for places in telling) for place in set().union(*telling)), default=0) if telling else 0
    return most, most == len(units)


def _peers(gpus: NodeGpus | None, xids: Sequence[Event]) -> bool:
    return (len(gpus.states) if gpus else len({_key(event) for event in xids})) > 1


def _facts(state: GpuState | None, demand: str, peers: bool) -> dict[str, str]:
    """What is known of the GPU and the node beside the line."""
    facts = {"demand": demand, "peers": "yes" if peers else "no"}
    if state is not None:
        if state.get("recovery_action") is not None:
            facts["recovery"] = str(state.get("recovery_action")).lower()
        links = state.get("nvlink")
        if isinstance(links, list) and links:
            facts["links"] = "up" if all(one.get("active") for one in links) else "down"
    return facts


def _remap(state: GpuState | None) -> str:
    if state is None:
        return "unknown"
    failed, pending = state.flag("remapped_rows.failure"), state.flag("remapped_rows.pending")
    if failed:
        return "failed"
    if pending or state.flag("retired_pages.pending"):
        return "pending"
    return "none" if pending is False or state.flag("retired_pages.pending") is False else "unknown"


def _mig(state: GpuState | None) -> tuple[str, ...]:
    mode = state.flag("mig.mode.current") if state else None
    return () if mode is None else ("mig",) if mode else ("no-mig",)


def _architecture(state: GpuState | None) -> str:
    sku = sku_of(state.product) if state else None
    return f"{sku.product} {sku.architecture}" if sku else state.product if state else ""


def state_of(gpu: Gpu | None, gpus: NodeGpus | None) -> GpuState | None:
    """Return the state of the GPU that a log names, by UUID, PCI address or, when it names nothing else, index."""
    if gpu is None or gpus is None:
        return None
    for state in gpus.states:
        mine = state.gpu
        if (gpu.uuid and gpu.uuid == mine.uuid) or (gpu.pci and gpu.pci == mine.pci):
            return state
    if gpu.uuid or gpu.pci:
        return None
    return next((state for state in gpus.states if gpu.index is not None and state.gpu.index == gpu.index), None)


def _named(gpu: Gpu | None, state: GpuState | None) -> Gpu | None:
    return state.gpu if state is not None else gpu


def instances(state: GpuState | None) -> int:
    """Return how many MIG instances a GPU has: what hits the GPU hits them all."""
    found = state.get("mig.instances") if state else None
    return len(found) if isinstance(found, list) else 0
