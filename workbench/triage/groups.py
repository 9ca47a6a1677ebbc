"""
Turn events that could be a cause into groups (one signature on one entity), each weighed by when and where it was seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from workbench.model import Event, Gpu
from workbench.triage.context import JOB_SOURCES, Context, Life, life_of, moment, slot

__all__ = ["Group", "ago", "build_groups", "persistent", "skeleton", "sustained"]

_DIGITS = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(slots=True)
class Group:
    """All observations of one signature on one entity, with what its time and place make of its weight."""

    signature: str
    cls: str
    weight: float  # of the signature (or of the strongest line)
    events: list[Event]
    node: str | None = None
    gpu: Gpu | None = None
    rank: int | None = None
    factor: float = 1.0
    notes: list[str] = field(default_factory=list)  # why the factor is what it is
    whole_node: bool = False  # the fault is the node's, not one GPU's: no GPU may be concluded from a rank
    dismissed: str = ""  # the reason why this is no cause here

    @property
    def first(self) -> float | None:
        return min((time for event in self.events if (time := moment(event)) is not None), default=None)

    @property
    def last(self) -> float | None:
        return max((event.last or event.time for event in self.events if event.time is not None), default=None)

    @property
    def count(self) -> int:
        return sum(event.count for event in self.events)

    @property
    def source(self) -> str:
        return self.events[0].source

    @property
    def score(self) -> float:
        return 0.0 if self.dismissed else self.weight * self.factor

    def lower(self, factor: float, note: str) -> None:
        self.factor *= factor
        self.notes.append(note)

    def dismiss(self, reason: str) -> None:
        if not self.dismissed:
            self.dismissed = reason


def skeleton(text: str) -> str:
    """Return a text without its numbers, so that the same message of several ranks compares equal."""
    return _DIGITS.sub("#", text)[-160:]


def build_groups(context: Context, events: Iterable[Event]) -> list[Group]:
    """Group the cause-role events by signature and entity and weigh each group by its time and place."""
    groups: dict[tuple[object, ...], Group] = {}
    for event in events:
        if context.role(event) != "cause" or context.weight(event) <= 0:
            continue
        key = (
            event.signature,
            context.cls(event),
            event.node,
            slot(event.gpu.pci) if event.gpu and event.gpu.pci else (event.gpu.index if event.gpu else None),
            event.rank,
            event.data.get("device") or event.data.get("port"),
        )
        group = groups.get(key)
        if group is None:
            groups[key] = Group(
                event.signature, context.cls(event), context.weight(event), [event], event.node, event.gpu, event.rank
            )
        else:
            group.events.append(event)
            group.weight = max(group.weight, context.weight(event))
    split = [part for group in groups.values() for part in _bursts(context, group)]
    for group in split:
        _weigh(context, group)
    return sorted(split, key=lambda g: (g.first is None, g.first or 0.0, g.events[0].order))


_QUIET = 600.0  # seconds of silence after which the same message again is another occasion


def _bursts(context: Context, group: Group) -> list[Group]:
    """Split a group into its occasions: what a node logged last week is not the begin of what it logs now."""
    timed = sorted((event for event in group.events if event.time is not None), key=lambda e: (e.time or 0.0, e.order))
    untimed = [event for event in group.events if event.time is None]
    bursts: list[list[Event]] = []
    last: float | None = None
    for event in timed:
        if last is None or (event.time or 0.0) - last > _QUIET:
            bursts.append([])
        bursts[-1].append(event)
        last = max(event.last or event.time or 0.0, last or 0.0)
    if not bursts:
        return [group]
    bursts[-1] += untimed
    return [
        Group(
            group.signature, group.cls, max(context.weight(event) for event in events), events, group.node, group.gpu, group.rank
        )
        for events in bursts
    ]


def _weigh(context: Context, group: Group) -> None:
    windows = context.windows
    first, last = group.first, group.last
    handled = [event for event in group.events if event.data.get("handled")]
    if handled and len(handled) == len(group.events):
        group.dismiss("the program caught it and went on")
        return
    if context.in_job(group.node) is False:
        group.dismiss(f"{group.node} is not one of the job's nodes")
        return
    if group.source in ("kernel", "metrics", "smi") and context.is_foreign(group.node, group.gpu):
        group.lower(0.2, "the platform gave this GPU to none of the job's pods")
    if first is None or last is None:
        if context.fail is not None and group.source in ("kernel", "metrics", "kubernetes", "slurm"):
            lasts = persistent(context, group)  # a state that lasts has no place in an order
            near = not _stale(context, group) and (
                lasts or group.source != "kernel" or _of_the_job(context, group) or _at_the_end(context, group)
            )
            group.lower(0.85 if near else 0.4, "without a time it cannot be put in order")
        return
    life = _own_life(context, group) or life_of(context, first)
    if life is None or life.fail is None or context.start is None:
        return
    if group.cls in ("platform/preemption", "user/stopped"):
        # an end on purpose is followed by steps when the job starts again, and may follow errors that nobody minded;
        # its order against real failures is weighed between hypotheses
        if last < context.start - windows.before_start:
            group.dismiss(f"{ago(context.start - last)} before the job began")
        return
    is_job = group.source in ("job", "launcher", "torchelastic", "stacks", "flight-recorder")
    if not is_job:
        if last < context.start - windows.before_start:
            if persistent(context, group):
                group.lower(0.7, f"{ago(context.start - last)} before the job began, but such a state lasts")
            else:
                group.dismiss(f"{ago(context.start - last)} before the job began")
            return
        late = windows.after_end if group.source in ("kubernetes", "slurm", "smi", "bmc", "metrics") else windows.xid_after
        limit = max(life.fail + life.slack, life.stop or 0.0)
        if first > limit + late:
            group.lower(0.3, f"{ago(first - limit)} after the first error")
    ends = _own_life(context, group) or life_of(context, last) or life
    if ends.stop is not None and last + windows.survived < ends.stop and not sustained(context, group):
        group.lower(0.15, f"the job made steps for {ago(ends.stop - last)} after it")


def _own_life(context: Context, group: Group) -> Life | None:
    """Return the start of the job in whose output a group stands: an agent may start again within seconds, which no clock tells apart."""
    told = {event.attempt for event in group.events}
    if len(context.lives) < 2 or len(told) != 1 or group.source not in JOB_SOURCES:
        return None
    attempt = told.pop()
    return next((life for life in context.lives if life.attempt == attempt), None)


def _stale(context: Context, group: Group) -> bool:
    """Tell whether kubectl's ages say that what a group reports was last seen a day or more ago."""
    ages = [event.data.get("age") for event in group.events]
    return all(isinstance(age, (int, float)) and age >= context.windows.stale_condition for age in ages)


def _of_the_job(context: Context, group: Group) -> bool:
    """Tell whether a line names one of the job's processes or GPUs, or stands in the job's own output (a wrapper's ``dmesg``)."""
    outputs = {document.name for document in context.incident.documents if document.kind == "job-log"}
    return group.rank is not None or any(
        event.file in outputs or (event.pid is not None and any(pid == event.pid for _, pid in context.pid_rank))
        for event in group.events
    )


def _at_the_end(context: Context, group: Group) -> bool:
    """Tell whether a line stands in the last tenth of its file: a log that was collected after the failure ends with it."""
    sizes = {document.name: document.lines for document in context.incident.documents}
    return any(event.line is not None and event.line >= 0.9 * sizes.get(event.file, 0) for event in group.events)


_LASTING = (
    "fm-",
    "nvidia-",
    "smi-",
    "lspci-",
    "fabric-manager",
    "driver-",
    "container-",
    "uvm-",
    "rm-init",
    "gpu-power-cable",
    "metric-fabric",
    "slurm-gres",
)


def persistent(context: Context, group: Group) -> bool:
    """Tell whether an observation describes a state that lasts (no driver, no fabric) rather than a moment."""
    return group.signature.startswith(_LASTING) or any(event.data.get("persistent") for event in group.events)


def sustained(context: Context, group: Group) -> bool:
    """Tell whether a group is a lasting degradation, which a job survives for a while, rather than a single blow."""
    if group.source == "metrics" or any(event.data.get("sustained") for event in group.events):
        return True
    first, last = group.first, group.last
    life = life_of(context, first)
    return (
        first is not None
        and last is not None
        and last - first > 120.0
        and life is not None
        and life.stop is not None
        and last > life.stop - 120.0
    )


def ago(seconds: float) -> str:
    seconds = abs(seconds)
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86_400:.0f} days"
