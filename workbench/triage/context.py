"""
Turn an incident's records into the context that hypotheses are judged in: who ran where, when the job ran, stopped and ended.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from workbench.catalog import Signature, Signatures, signatures
from workbench.incident import Incident
from workbench.model import Event, Gpu
from workbench.parse.ids import pci as canonical_pci
from workbench.parse.ids import short_node
from workbench.triage.windows import Windows

__all__ = ["Context", "Life", "build_context", "life_of", "slot"]

_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")
Progress = tuple[float, int | None, int | None, float | None]  # time, rank, step, seconds a step


@dataclass(slots=True)
class Life:
    """One start of the job: when it began, made its last step, failed first, and said its last word (seconds, UTC)."""

    attempt: int
    start: float
    until: float = float("inf")  # the next start
    stop: float | None = None
    fail: float | None = None
    end: float | None = None


@dataclass(slots=True)
class Context:
    """Everything a rule may look at; built once per verdict."""

    incident: Incident
    windows: Windows
    catalog: Signatures
    events: list[Event] = field(default_factory=list)  # normalised, coalesced, ordered
    alias: dict[str, str] = field(default_factory=dict)
    rank_node: dict[int, str] = field(default_factory=dict)
    rank_gpu: dict[int, Gpu] = field(default_factory=dict)
    rank_local: dict[int, int] = field(default_factory=dict)
    gpu_rank: dict[tuple[str, str], int] = field(default_factory=dict)  # (node, pci) → rank
    pid_rank: dict[tuple[str | None, int], int] = field(default_factory=dict)
    pod_node: dict[str, str] = field(default_factory=dict)
    job_pods: set[str] = field(default_factory=set)
    job_nodes: set[str] = field(default_factory=set)
    gpus: dict[str, dict[int, Gpu]] = field(default_factory=dict)  # node → index → identity at the job's start
    world_size: int | None = None
    start: float | None = None  # first line of the job
    stop: float | None = None  # last progress
    fail: float | None = None  # first error of the job
    end: float | None = None  # last line of the job
    progress: list[Progress] = field(default_factory=list)
    rank_last: dict[int, dict[str, Any]] = field(default_factory=dict)
    skew: dict[str, float] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=list)  # one a start of the job, in order
    other_pods: set[str] = field(default_factory=set)  # pods of other jobs, seen in the platform's state
    sole_node: str | None = None  # the only node that any evidence names
    finished: list[Event] = field(default_factory=list)  # lines that say the job ended well

    @property
    def has_job(self) -> bool:
        """Whether any evidence is of a job: its output, its dumps, or a scheduler's record of it."""
        kinds = {document.kind for document in self.incident.documents if document.events or document.facts.get("progress")}
        return bool(kinds & {"job-log", "flight-recorder", "torchelastic-error", "stacks"} or self.incident.jobs)

    def row(self, event: Event) -> Signature:
        return self.catalog[event.signature]

    def role(self, event: Event) -> str:
        return event.role or self.catalog[event.signature].role

    def cls(self, event: Event) -> str:
        return event.cls or self.catalog[event.signature].cls

    def weight(self, event: Event) -> float:
        return event.weight if event.weight is not None else self.catalog[event.signature].weight

    def node(self, name: str | None) -> str | None:
        """Return the canonical name of a node that a source called `name` (host name, pod, address)."""
        if not name:
            return None
        return self.alias.get(name) or self.alias.get(name.lower()) or self.alias.get(short_node(name)) or name

    def in_job(self, node: str | None) -> bool | None:
        """Tell whether a node belongs to the job; None when the job's nodes are not known."""
        if node is None or not self.job_nodes:
            return None
        return node in self.job_nodes

    def rank_on(self, node: str | None, gpu: Gpu | None) -> int | None:
        """Return the rank that ran on a GPU, by PCI address, UUID, or the index at the job's start."""
        if node is None or gpu is None:
            return None
        address = gpu.pci or self.identify(node, gpu).pci
        if address:
            rank = self.gpu_rank.get((node, slot(address)))
            if rank is not None:
                return rank
        for rank, other in self.rank_gpu.items():
            if self.rank_node.get(rank) == node and gpu.uuid and other.uuid == gpu.uuid:
                return rank
        return None

    def identify(self, node: str | None, gpu: Gpu) -> Gpu:
        """Complete a GPU's identity (index, UUID, PCI) with what the node's other sources say of the same device."""
        for known in self.gpus.get(node or "", {}).values():
            if (
                (gpu.uuid and gpu.uuid == known.uuid)
                or (gpu.pci and known.pci and slot(gpu.pci) == slot(known.pci))
                or (not gpu.uuid and not gpu.pci and gpu.index is not None and gpu.index == known.index)
            ):
                return Gpu(
                    gpu.index if gpu.index is not None else known.index,
                    gpu.uuid or known.uuid,
                    gpu.pci or known.pci,
                )
        return gpu

    def ranks_of(self, node: str) -> list[int]:
        return sorted(rank for rank, name in self.rank_node.items() if name == node)


def slot(address: str) -> str:
    """Return a PCI address without its function: sources disagree about the function of a GPU, never about its slot."""
    return (canonical_pci(address) or address).rsplit(".", 1)[0]


def build_context(incident: Incident, windows: Windows | None = None) -> Context:
    """Return the context of an incident: names unified, clocks corrected, placement and the job's life line established."""
    context = Context(incident, windows or Windows(), signatures())
    _aliases(context)
    _job_pods(context)
    _placement(context)
    _life_line(context)
    _clock_skew(context)
    events = _normalise(context, incident.records)
    _local_time(context, events)
    _bound_times(events)
    context.events = _coalesce(context, events)
    _failure_time(context)
    _derived(context)
    return context


# ---------------------------------------------------------------- names


def _aliases(context: Context) -> None:
    """Unify names: pods, addresses and short names all lead to the name that the node's own sources use."""
    incident = context.incident
    names: Counter[str] = Counter()
    for document in incident.documents:
        if document.node and document.kind in ("kernel-log", "metrics-text", "smi", "bmc"):
            names[document.node] += 3
    for one in incident.series[:20000]:
        if one.node:
            names[one.node] += 1
    for condition in incident.condition_records:
        if condition.node:
            names[condition.node] += 2
    for placement in incident.placement_records:
        if placement.node:
            names[placement.node] += 1
        if placement.pod and placement.node:
            context.pod_node.setdefault(placement.pod, placement.node)
    for job in incident.jobs:
        for name in job.nodes:
            names[name] += 1
    for document in incident.documents:
        if document.node:
            names[document.node] += 1
    for name in names:
        if name in context.pod_node:
            continue
        context.alias[name] = name
    full = sorted((name for name in names if "." in name and not re.fullmatch(r"[\d.]+", name)), key=len, reverse=True)
    for name in full:
        short = short_node(name)
        if short in context.alias and context.alias[short] == short:
            # one machine under two names: the longer one wins only where its own sources use it more
            better = name if names[name] > names[short] else short
            context.alias[short] = context.alias[name] = better
        else:
            context.alias.setdefault(short, name)
    for pod, node in context.pod_node.items():
        context.alias[pod] = context.alias.get(node, node)
    for document in incident.documents:
        addresses = document.facts.get("addresses") or {}
        for address, node in addresses.items():
            context.alias.setdefault(address, context.alias.get(node, node))
        nodes = document.facts.get("nodes")
        for node, facts in (nodes.items() if isinstance(nodes, dict) else ()):
            for address in (facts or {}).get("addresses") or []:
                context.alias.setdefault(str(address), context.alias.get(node, node))
    for one in incident.series:
        instance = (one.labels.get("instance") or "").rsplit(":", 1)[0]
        if one.node and re.fullmatch(r"\d+\.\d+\.\d+\.\d+", instance):
            context.alias.setdefault(instance, context.alias.get(one.node, one.node))


# ---------------------------------------------------------------- placement


_ORIGIN_TRUST = {"nccl-init": 5, "launcher-line": 4, "torchelastic": 4, "pod-env": 3, "slurm": 2, "dcgm-pod-label": 1}


def _job_pods(context: Context) -> None:
    """Tell the job's pods from others: those whose logs are here, else those of the job with most ranks."""
    pods: dict[str, dict[str, Any]] = {}
    for document in context.incident.documents:
        found = document.facts.get("pods")
        if isinstance(found, dict):
            pods.update(found)
    if not pods:
        return
    names = [re.split(r"[/!]", document.name)[-1] for document in context.incident.documents]
    logged = {pod for pod in pods if any(pod in name for name in names)}
    jobs = Counter(pods[pod].get("job") for pod in logged if pods[pod].get("job"))
    if not jobs:
        jobs = Counter({facts.get("job"): len(facts.get("ranks") or []) or 1 for facts in pods.values() if facts.get("job") and not facts.get("service")})
    main = jobs.most_common(1)[0][0] if jobs else None
    for pod, facts in pods.items():
        if pod in logged or (main is not None and facts.get("job") == main):
            context.job_pods.add(pod)
            if facts.get("node"):
                context.job_nodes.add(context.node(facts["node"]) or facts["node"])
                context.pod_node.setdefault(pod, facts["node"])
            ranks = facts.get("ranks") or []
            for rank in ranks if isinstance(ranks, list) else []:
                if facts.get("node"):
                    context.rank_node.setdefault(int(rank), context.node(facts["node"]) or facts["node"])
        else:
            context.other_pods.add(pod)


def _placement(context: Context) -> None:
    incident = context.incident
    for one in incident.series:
        if one.node and one.gpu and one.gpu.index is not None and not one.mig:
            # the first identity seen wins: indices are renumbered when a GPU is lost
            node = context.node(one.node) or one.node
            known = context.gpus.setdefault(node, {})
            have = known.get(one.gpu.index)
            first = float(one.times[0]) if len(one.times) else 0.0
            if have is None or (have.pci is None and one.gpu.pci):
                if not any(other.uuid and other.uuid == one.gpu.uuid and index != one.gpu.index for index, other in known.items()):
                    known[one.gpu.index] = one.gpu
            del first
    for document in incident.documents:
        for gpu in document.facts.get("gpus") or []:
            if isinstance(gpu, Gpu) and gpu.index is not None and document.node:
                node = context.node(document.node) or document.node
                context.gpus.setdefault(node, {}).setdefault(gpu.index, gpu)
        size = document.facts.get("world_size")
        if isinstance(size, int) and size > (context.world_size or 0):
            context.world_size = size
    records = sorted(incident.placement_records, key=lambda p: -_ORIGIN_TRUST.get(p.origin, 2))
    for placement in records:
        node = context.node(placement.node) or context.node(placement.pod)
        if node and placement.origin in ("pod-env", "slurm", "launcher-line", "nccl-init", "torchelastic", "kubernetes"):
            context.job_nodes.add(node)
        if placement.pod and placement.origin == "pod-env":
            context.job_pods.add(placement.pod)
        if placement.rank is None:
            continue
        rank = placement.rank
        if node:
            context.rank_node.setdefault(rank, node)
        if placement.local_rank is not None:
            context.rank_local.setdefault(rank, placement.local_rank)
        if placement.pid is not None:
            context.pid_rank.setdefault((node, placement.pid), rank)
        if placement.gpu is not None:
            gpu = context.identify(node, placement.gpu)
            have = context.rank_gpu.get(rank)
            if have is None or (have.pci is None and gpu.pci):
                context.rank_gpu[rank] = gpu
    for rank, local in context.rank_local.items():
        node = context.rank_node.get(rank)
        if rank not in context.rank_gpu and node:
            # the local rank is the index only as far as the process sees all devices in order; at the start it does
            context.rank_gpu[rank] = context.identify(node, Gpu(index=local))
    for rank, gpu in context.rank_gpu.items():
        node = context.rank_node.get(rank)
        if node and gpu.pci:
            context.gpu_rank.setdefault((node, slot(gpu.pci)), rank)
    for job in incident.jobs:
        for name in job.nodes:
            context.job_nodes.add(context.node(name) or name)
    context.job_nodes |= set(context.rank_node.values())
    if not context.world_size and context.rank_node:
        context.world_size = max(context.rank_node) + 1


# ---------------------------------------------------------------- the job's life line


def _life_line(context: Context) -> None:
    starts: list[tuple[int, float]] = []
    for document in context.incident.documents:
        facts = document.facts
        for row in facts.get("progress") or []:
            time, rank, step = row[0], row[1], row[2]
            if time is not None:
                context.progress.append((time, rank, step, row[3] if len(row) > 3 else None))
        for rank, last in (facts.get("ranks") or {}).items():
            have = context.rank_last.get(rank)
            if have is None or (last.get("last_time") or 0) > (have.get("last_time") or 0):
                context.rank_last[rank] = last
        for attempt in facts.get("attempts") or []:
            if isinstance(attempt, dict) and isinstance(attempt.get("time"), (int, float)):
                starts.append((int(attempt.get("attempt") or 0), float(attempt["time"])))
        evidence = facts.get("finished_evidence")
        if isinstance(evidence, Event):
            context.finished.append(evidence)
    context.progress.sort(key=lambda row: row[0])
    by_number: dict[int, float] = {}
    for number, time in starts:
        by_number[number] = min(time, by_number.get(number, time))
    for number, time in sorted(by_number.items(), key=lambda item: item[1]):
        if context.lives and time - context.lives[-1].start < 10.0:
            continue  # the ranks of one start announce themselves within seconds
        if context.lives:
            context.lives[-1].until = time
        context.lives.append(Life(number, time))


def _clock_skew(context: Context) -> None:
    """
    Estimate how far each node's clock is ahead, from steps that all ranks finish together.

    A step of synchronous training ends everywhere with the same collective, so the stamps of one step number differ between
    nodes by their clocks; the median over steps is robust against a rank that logs late.
    """
    by_step: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for time, rank, step, _ in context.progress:
        node = context.rank_node.get(rank) if rank is not None else None
        if node is not None and step is not None:
            by_step[step][node].append(time)
    if not by_step:
        return
    offsets: dict[str, list[float]] = defaultdict(list)
    for nodes in by_step.values():
        if len(nodes) < 2:
            continue
        stamps = {node: median(times) for node, times in nodes.items()}
        middle = median(stamps.values()) if len(stamps) > 2 else min(stamps.values())
        for node, time in stamps.items():
            offsets[node].append(time - middle)
    for node, values in offsets.items():
        ahead = median(values)
        spread = median(abs(value - ahead) for value in values)
        if len(values) >= 3 and abs(ahead) > 2.0 and spread < abs(ahead) / 4:
            context.skew[node] = round(ahead, 3)


_JOB_SOURCES = ("job", "launcher", "torchelastic")


def _failure_time(context: Context) -> None:
    """Establish, per start of the job, when it began, stopped making steps, failed first and ended."""
    skew = context.skew

    def shift(time: float, rank: int | None) -> float:
        return time - skew.get(context.rank_node.get(rank, "") if rank is not None else "", 0.0)

    context.progress = sorted(((shift(time, rank), rank, step, seconds) for time, rank, step, seconds in context.progress), key=lambda row: row[0])
    events = [event for event in context.events if event.source in _JOB_SOURCES and event.time is not None]
    stamps = [shift(last["last_time"], rank) for rank, last in context.rank_last.items() if last.get("last_time")]
    firsts = [shift(last["first_time"], rank) for rank, last in context.rank_last.items() if last.get("first_time")]
    begin = firsts + [event.time for event in events if event.time is not None] + [row[0] for row in context.progress[:1]]
    finish = stamps + [event.time for event in events if event.time is not None] + [row[0] for row in context.progress[-1:]]
    if not begin:
        begin = [job.start for job in context.incident.jobs if job.start]
    finish += [job.end for job in context.incident.jobs if job.end] if not finish else []
    context.start = min(begin) if begin else None
    context.end = max(finish) if finish else None
    if context.start is None:
        return
    if not context.lives:
        context.lives = [Life(1, context.start)]
    context.lives[0].start = min(context.lives[0].start, context.start)
    for life in context.lives:
        steps = [row[0] for row in context.progress if life.start <= row[0] < life.until]
        life.stop = max(steps) if steps else None
        errors = [
            event.time
            for event in events
            if event.time is not None
            and life.start <= event.time < life.until
            and context.role(event) in ("cause", "symptom")
            and context.weight(event) > 0
            and not event.data.get("handled")
        ]
        late = [time for time in errors if life.stop is None or time >= life.stop - context.windows.survived]
        life.fail = min(late, default=None)
        inside = [time for time in finish if life.start <= time < life.until]
        life.end = max(inside + errors + steps, default=life.start)
        if life.fail is None:
            life.fail = life.end
    first = context.lives[0]
    context.stop, context.fail = first.stop, first.fail


def life_of(context: Context, time: float | None) -> Life | None:
    """Return the start of the job that an event belongs to: the one that ran then, or the next one."""
    if not context.lives:
        return None
    if time is None:
        return context.lives[0]
    for life in context.lives:
        if time < life.until - (30.0 if life.until != float("inf") else 0.0):
            return life
    return context.lives[-1]


def _local_time(context: Context, events: list[Event]) -> None:
    """
    Correct kernel logs in local time without zone: a whole number of quarter hours brings their last line to the others' end.

    Logs are collected together, so the newest kernel lines of all nodes lie close; a log that ends hours away is in another zone.
    """
    ends: dict[str, float] = {}
    naive: set[str] = set()
    for document in context.incident.documents:
        if document.kind == "kernel-log":
            last = document.facts.get("last_time")
            if not isinstance(last, (int, float)):
                last = max((event.time for event in events if event.file == document.name and event.time is not None), default=None)
            if last is not None:
                ends[document.name] = float(last)
                if document.facts.get("naive_local"):
                    naive.add(document.name)
    sure = [time for name, time in ends.items() if name not in naive]
    reference = max(sure) if sure else max((last["last_time"] for last in context.rank_last.values() if last.get("last_time")), default=None)
    if reference is None:
        return
    for name in naive:
        quarter = round((ends[name] - reference) / 900.0)
        offset = quarter * 900.0
        if abs(offset) >= 900.0 and abs(offset) <= 14 * 3600.0 and abs(ends[name] - reference - offset) < 400.0:
            for event in events:
                if event.file == name and event.time is not None:
                    event.time -= offset
                    if event.last is not None:
                        event.last -= offset
                    event.data["utc_offset"] = offset


def _bound_times(events: list[Event]) -> None:
    """
    Give lines without a stamp of their own a time between the stamped lines around them.

    A traceback inherits the stamp of the line before it, which may be hours old in a log that was cut or is quiet; then the next
    stamped line of the file is the better witness, and without one the time is not known.
    """
    by_file: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.source in (*_JOB_SOURCES, "slurm") and event.line is not None:
            by_file[event.file].append(event)
    newest = max((event.time for event in events if event.source in _JOB_SOURCES and event.time is not None and not event.data.get("time_from")), default=None)
    for rows in by_file.values():
        rows.sort(key=lambda event: event.line or 0, reverse=True)
        following: float | None = None
        for event in rows:
            if not event.data.get("time_from"):
                following = event.time if event.time is not None else following
            elif event.time is not None:
                if following is not None and following - event.time > 60.0:
                    event.data["not_before"] = event.time
                    event.time = event.last = following
                elif following is None and newest is not None and newest - event.time > 120.0:
                    event.data["not_before"] = event.time
                    event.time = event.last = None


def _derived(context: Context) -> None:
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
    fresh += analyse_watchdogs(of_first, context.world_size)
    fresh += analyse_stacks(context.events)
    base = max((event.order for event in context.events), default=0)
    for number, event in enumerate(fresh):
        event.order = base + 1 + number
    context.events = _coalesce(context, [*context.events, *_normalise(context, fresh)])


# ---------------------------------------------------------------- events


def _normalise(context: Context, records: Iterable[Event]) -> list[Event]:
    """Give every event the canonical node, the GPU's whole identity, the rank where it can be known, and the common clock."""
    events = []
    homes = _homes(context)
    named = {context.node(document.node) for document in context.incident.documents if document.node} | context.job_nodes
    named |= {context.node(record.node) for record in context.incident.records if record.node}
    named.discard(None)
    context.sole_node = next(iter(named)) if len(named) == 1 else None
    for record in records:
        event = replace(record, data=dict(record.data))
        event.node = context.node(event.node) or homes.get(event.file)
        if event.node is None and event.source in _JOB_SOURCES and "[pod/" in event.text:
            pod = re.match(r"\[pod/([\w.-]+)", event.text)
            event.node = context.pod_node.get(pod[1]) if pod else None
        if event.node is None and event.rank is not None:
            event.node = context.rank_node.get(event.rank)
        if event.node is None and context.sole_node is not None:
            event.node = context.sole_node
        if event.gpu is not None:
            event.gpu = context.identify(event.node, event.gpu)
        if event.rank is None and event.source != "kubernetes":
            if event.pid is not None and (event.node, event.pid) in context.pid_rank:
                event.rank = context.pid_rank[event.node, event.pid]
            elif event.gpu is not None:
                event.rank = context.rank_on(event.node, event.gpu)
            elif event.local_rank is not None and event.node:
                matches = [rank for rank in context.ranks_of(event.node) if context.rank_local.get(rank) == event.local_rank]
                event.rank = matches[0] if len(matches) == 1 else None
        ahead = context.skew.get(event.node or "", 0.0)
        if ahead and event.time is not None and event.source in (*_JOB_SOURCES, "kernel", "stacks", "flight-recorder"):
            event.time -= ahead
            if event.last is not None:
                event.last -= ahead
            event.data["clock_ahead"] = ahead
        events.append(event)
    return events


def _homes(context: Context) -> dict[str, str]:
    """Return, by document, the node that a job log was written on: its pod's, or the only node that its lines place ranks on."""
    homes: dict[str, str] = {}
    placed: dict[str, set[str]] = defaultdict(set)
    for placement in context.incident.placement_records:
        node = context.node(placement.node) or context.node(placement.pod)
        if node and placement.file:
            placed[placement.file].add(node)
    for document in context.incident.documents:
        if document.kind not in ("job-log", "text"):
            continue
        name = re.split(r"[/!]", document.name)[-1]
        pod = max((pod for pod in context.pod_node if pod in name), key=len, default=None)
        if pod is not None:
            homes[document.name] = context.node(context.pod_node[pod]) or context.pod_node[pod]
        elif document.node:
            homes[document.name] = context.node(document.node) or document.node
        elif len(placed.get(document.name, ())) == 1 and len(context.job_nodes) > 1:
            homes[document.name] = next(iter(placed[document.name]))
    return homes


def _coalesce(context: Context, events: list[Event]) -> list[Event]:
    """Merge repeats of one signature on one entity within the window into one event with first, last and count."""
    merged: list[Event] = []
    latest: dict[tuple[Any, ...], Event] = {}
    for event in sorted(events, key=lambda e: (e.time is None, e.time or 0.0, e.order)):
        key = (
            event.signature, event.role, event.node, event.gpu, event.rank, event.code, event.data.get("device") or event.data.get("port"),
            _NUMBERS.sub("#", event.text)[:160], event.file if event.time is None else "",
        )  # fmt: skip
        have = latest.get(key)
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
        latest[key] = event
        merged.append(event)
    return merged
