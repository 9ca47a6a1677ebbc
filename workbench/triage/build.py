"""
Turn an incident into the context that hypotheses are judged in: events normalised, coalesced and ordered, joint signals derived.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from workbench.catalog import signatures
from workbench.model import Event, Evidence, Gpu
from workbench.triage.context import JOB_SOURCES, Context
from workbench.triage.placement import find_job_pods, place_ranks, unify_names
from workbench.triage.timeline import (
    anchor_uptimes,
    bound_times,
    correct_local_time,
    estimate_skew,
    find_failure,
    find_job_zone,
    read_progress,
)
from workbench.triage.windows import Windows

__all__ = ["build_context", "correct_events", "homes", "place_context"]

_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")


def build_context(incident: Evidence, windows: Windows | None = None) -> Context:
    """Return the context of an incident: names unified, clocks corrected, placement and the job's life line established."""
    context = place_context(incident, windows)
    context.events = coalesce(context, correct_events(context, incident.records))
    find_failure(context)
    derive(context)
    return context


def place_context(incident: Evidence, windows: Windows | None = None) -> Context:
    """Return a context that knows names, placement, progress and clocks, but no events yet: what costs little of a large incident."""
    context = Context(incident, windows or Windows(), signatures())
    unify_names(context)
    find_job_pods(context)
    place_ranks(context)
    read_progress(context)
    estimate_skew(context, homes)
    find_job_zone(context)
    return context


def correct_events(context: Context, records: Iterable[Event]) -> list[Event]:
    """Return copies of events under canonical names, with times of the common clock."""
    events = _once(normalise(context, records))
    anchor_uptimes(context, events)
    correct_local_time(context, events)
    bound_times(events, max((row[0] for row in context.progress), default=None))
    return events


def _once(events: list[Event]) -> list[Event]:
    """Leave out what an error file repeats of the rank's own log, which has it with the lines around it."""
    logged: dict[tuple[str, str], set[int | None]] = defaultdict(set)

    def what(event: Event) -> tuple[str, str]:
        # an error file may leave the exception's module out
        return event.signature, str(event.data.get("exception") or "").rsplit(".", 1)[-1]

    for event in events:
        if event.source in JOB_SOURCES and not event.data.get("error_file"):
            logged[what(event)].add(event.rank)

    def told(event: Event) -> bool:
        ranks = logged.get(what(event), set())
        return bool(ranks) and (event.rank is None or event.rank in ranks or None in ranks)

    return [event for event in events if not (event.data.get("error_file") and told(event))]


def normalise(context: Context, records: Iterable[Event], *, timed: bool = False) -> list[Event]:
    """
    Give every event the canonical node, the GPU's whole identity, the rank where it can be known, and the common clock.

    `timed` says that they are on that clock already: what is derived from events that went through here before.
    """
    events = []
    home_of = homes(context)
    named = {context.node(document.node) for document in context.incident.documents if document.node} | context.job_nodes
    named |= {context.node(record.node) for record in context.incident.records if record.node}
    named.discard(None)
    context.sole_node = next(iter(named)) if len(named) == 1 else None
    for record in records:
        event = record.copy(dict(record.data))
        event.node = context.node(event.node) or home_of.get(event.file)
        if event.node is None and event.source in JOB_SOURCES and "[pod/" in event.text:
            pod = re.match(r"\[pod/([\w.-]+)", event.text)
            event.node = context.pod_node.get(pod[1]) if pod else None
        nameless = event.node is None or (event.source in JOB_SOURCES and _ADDRESS.fullmatch(event.node))
        # where the rank says that it runs is a name; an address that nobody knows is none
        if nameless and event.rank is not None:
            event.node = context.rank_node.get(event.rank) or event.node
        if event.node is None and context.sole_node is not None:
            event.node = context.sole_node
        number = event.data.get("rm_gpu")  # the driver's own number of the device: a label, where no other source has one
        if isinstance(number, int) and (
            event.gpu is None or (event.gpu.index is None and not context.gpus.get(event.node or ""))
        ):
            event.gpu = Gpu(number, event.gpu.uuid, event.gpu.pci) if event.gpu is not None else Gpu(index=number)
        if event.gpu is not None:
            event.gpu = context.identify(event.node, event.gpu)
        if event.rank is None and event.source != "kubernetes":
            place = next((key for key in ((event.node, event.pid), (None, event.pid)) if key in context.pid_rank), None)
            if event.pid is not None and place is not None:
                event.rank = context.pid_rank[place]
            elif event.gpu is not None:
                event.rank = context.rank_on(event.node, event.gpu)
            elif event.local_rank is not None and event.node:
                matches = [rank for rank in context.ranks_of(event.node) if context.rank_local.get(rank) == event.local_rank]
                event.rank = matches[0] if len(matches) == 1 else None
            elif event.local_rank is not None and event.source == "stacks" and not context.rank_node and not context.job_nodes:
                event.rank = event.local_rank  # of one node as far as anything tells: local and global numbers agree
        events.append(event)
        if timed or event.time is None:
            continue
        if context.job_offset and event.source in (*JOB_SOURCES, "stacks", "slurm"):
            event.time -= context.job_offset
            event.last = event.last - context.job_offset if event.last is not None else None
            if isinstance(event.data.get("not_after"), float):
                event.data["not_after"] -= context.job_offset
            event.data["utc_offset"] = context.job_offset
        ahead = context.skew.get(event.node or "", 0.0)
        if ahead and event.source in (*JOB_SOURCES, "kernel", "stacks", "flight-recorder"):
            event.time -= ahead
            if event.last is not None:
                event.last -= ahead
            event.data["clock_ahead"] = ahead
    return events


def homes(context: Context) -> dict[str, str]:
    """Return, by document, the node that a job log was written on: its pod's, or the only node that its lines place ranks on."""
    found: dict[str, str] = {}
    placed: dict[str, set[str]] = defaultdict(set)
    for placement in context.incident.placement_records:
        node = context.node(placement.node) or context.node(placement.pod)
        if node and placement.file:
            placed[placement.file].add(node)
    for document in context.incident.documents:
        if document.kind not in ("job-log", "text"):
            continue
        name = re.split(r"[/!]", document.name)[-1]
        pod = _pod_in(context, name)
        if pod is not None:
            found[document.name] = context.node(context.pod_node[pod]) or context.pod_node[pod]
        elif document.node:
            found[document.name] = context.node(document.node) or document.node
        elif len(placed.get(document.name, ())) == 1 and len(context.job_nodes) > 1:
            found[document.name] = next(iter(placed[document.name]))
    return found


_MANY_PODS = 512


def _pod_in(context: Context, name: str) -> str | None:
    """Return the pod that a file is named after, whatever stands before and behind it (namespace, container, attempt, ending)."""
    pods = context.pod_node
    if not pods:
        return None
    parts = [name, name.split(".")[0], *re.split(r"[_.]", name)]
    known = [part for part in parts if part in pods]
    if known:
        return max(known, key=len)
    if len(pods) > _MANY_PODS:
        return None  # comparing every name with every pod would take minutes for a job of this size
    return max((pod for pod in pods if pod in name), key=len, default=None)


def coalesce(context: Context, events: list[Event]) -> list[Event]:
    """Merge repeats of one signature on one entity within the window into one event with first, last and count."""
    merged: list[Event] = []
    latest: dict[tuple[Any, ...], dict[str | None, Event]] = {}  # by what they say; None = one alone, which need not be compared
    for event in sorted(events, key=lambda e: (e.time is None, e.time or 0.0, e.order)):
        key = (
            event.signature,
            event.role,
            event.node,
            event.gpu,
            event.rank,
            event.code,
            event.data.get("device") or event.data.get("port"),
            event.file if event.time is None else "",
        )
        alike = latest.setdefault(key, {})
        if lone := alike.pop(None, None):
            alike[_said(lone)] = lone
        said = _said(event) if alike else None
        have = alike.get(said) if alike else None
        if have is not None and (
            (event.time is None and have.time is None and have.text == event.text)
            or (event.time is not None and have.last is not None and event.time - have.last <= context.windows.coalesce)
        ):
            have.count += event.count
            have.last = event.last or event.time
            have.data.setdefault("repeats", []).append(event.line)
            if len(have.data["repeats"]) > 50:
                del have.data["repeats"][50:]
            continue
        if event.last is None:
            event.last = event.time
        alike[said] = event
        merged.append(event)
    return merged


def _said(event: Event) -> str:
    return _NUMBERS.sub("#", event.text)[:160]


def derive(context: Context) -> None:
    """Add what only many ranks or samples together show: metric signals, watchdogs, flight recorders and stacks compared."""
    from workbench.detect.collectives import analyse_flight
    from workbench.detect.metrics import detect_metrics
    from workbench.detect.stack_compare import analyse_stacks
    from workbench.detect.watchdogs import analyse_watchdogs

    fresh: list[Event] = []
    if context.incident.series:
        fresh += detect_metrics(context.incident.series)
    dumps = [document.facts["flight"] for document in context.incident.documents if document.facts.get("flight")]
    if dumps:
        fresh += analyse_flight(dumps, context.world_size)
    first = context.lives[0] if context.lives else None
    of_first = [event for event in context.events if first is None or event.time is None or event.time < first.until]
    fresh = normalise(context, fresh)
    _told_by_kernel(context, fresh)
    compared = analyse_watchdogs(of_first, context.world_size) + analyse_stacks(context.events)
    base = max((event.order for event in context.events), default=0)
    for number, event in enumerate((*fresh, *compared)):
        event.order = base + 1 + number
    context.events = coalesce(context, [*context.events, *fresh, *normalise(context, compared, timed=True)])


_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}|[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,7}")
_SCRAPES = 90.0  # seconds within which a gauge shows what the kernel log has: exporters are asked every 15 to 60 s


def _told_by_kernel(context: Context, fresh: list[Event]) -> None:
    """Take the last-value gauge for a repetition where the node's kernel log has the Xid itself, with the process that it is about."""
    logged: dict[tuple[str | None, int | None], list[Event]] = defaultdict(list)
    for event in context.events:
        if event.source == "kernel" and event.code is not None and event.time is not None:
            logged[event.node, event.code].append(event)
    for event in fresh:
        if event.signature != "metric-xid-change" or event.time is None:
            continue
        for other in logged[event.node, event.code]:
            apart = event.gpu is not None and other.gpu is not None and _differ(event.gpu, other.gpu)
            if not apart and -5.0 <= event.time - (other.time or 0.0) <= _SCRAPES:
                event.role, event.data["same_as"] = "context", f"{other.file}:{other.line}"
                break


def _differ(one: Gpu, other: Gpu) -> bool:
    return any(
        mine is not None and theirs is not None and mine != theirs
        for mine, theirs in ((one.pci, other.pci), (one.uuid, other.uuid))
    )
