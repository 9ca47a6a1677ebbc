"""
Turn what several sources told of a fleet into one snapshot: one row a node, one a GPU, and of each how it is and who said so.

Pure. Nobody's word makes a node healthy but that of who looked at its GPUs: a health check that is fresh, or an exporter that would have
told. A scheduler that calls a node ready has not looked at its GPUs. What befalls a whole node befalls its GPUs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from workbench.frames import METRICS, conditions_frame, empty_frame, events_frame
from workbench.model import Condition
from workbench.parse.ids import short_node
from workbench.parse.kubernetes_reasons import condition_row
from workbench.site.frames import frame, worse
from workbench.site.model import ACTIONS, FINDINGS, GPUS, INCIDENTS, JOBS, NODES, Heard, Snapshot
from workbench.site.parts import NodeSeen, Part
from workbench.site.suspects import suspects

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["assemble"]

SCHEDULERS = ("kubernetes", "slurm")
OLD = 900.0  # seconds after which a check says nothing of the node as it is: three heartbeats of five minutes, as for its conditions
_HEALTH = {"critical": "critical", "warning": "warning", "unknown": "unknown"}
NOT_TOLD = "nobody who looks at its GPUs told of it: no health check, no GPU exporter"


@dataclass(slots=True)
class _Say:
    """Something that is said of a node or GPU."""

    health: str
    why: str
    cause: str = ""
    since: float | None = None


@dataclass(slots=True)
class _Node:
    """All that was told of one node."""

    name: str
    facts: dict[str, Any] = field(default_factory=dict)
    said: list[_Say] = field(default_factory=list)
    gpus: dict[Any, dict[str, Any]] = field(default_factory=dict)
    work: list[Mapping[str, Any]] = field(default_factory=list)
    fit: bool | None = None
    checked: float | None = None
    scheduler: bool = False


def assemble(
    parts: Sequence[Part],
    now: float,
    *,
    name: str = "",
    period: float = 30.0,
    heard: Iterable[Heard] = (),
    data: Mapping[str, Any] | None = None,
) -> Snapshot:
    """
    Return the snapshot that some parts make.

    Parameters
    ----------
    parts : sequence of Part
        One a source; those of schedulers name the nodes, the others' names are matched to them.
    now : float
        Seconds since the epoch.
    name : str
        What the site is called.
    period : float
        Seconds between two snapshots.
    heard : iterable of Heard
        Of sources without a part.
    """
    parts = sorted(parts, key=lambda part: part.source not in SCHEDULERS)
    called = _names(parts)
    nodes: dict[str, _Node] = {}

    def node(told: str) -> _Node:
        known = called(told)
        return nodes.setdefault(known, _Node(known))

    pods: dict[str, str] = {}
    scheduled = any(part.source in SCHEDULERS and part.status in ("ok", "partial") for part in parts)
    for part in parts:
        for seen in part.nodes:
            _take(node(seen.node), seen, part, now)
        for row in part.gpus:
            # an exporter that fell silent with a node that its scheduler does not know any more: it was taken away
            if row.get("gone") and scheduled and called(str(row["node"])) not in nodes:
                continue
            one = node(str(row["node"]))
            key = row.get("gpu_uuid") or row.get("pci") or row.get("gpu_index")
            one.gpus[key] = {**one.gpus.get(key, {}), **{k: v for k, v in row.items() if v is not None}}
        for row in part.work:
            node(str(row["node"])).work.append(row)
            if row.get("pod"):
                pods[str(row["pod"])] = str(row["job"])
    for one in nodes.values():
        for gpu in one.gpus.values():
            if gpu.get("pod") and not gpu.get("job"):
                gpu["job"] = pods.get(str(gpu["pod"]))
    # a finding of a node that nobody else knows is of no node of this fleet
    findings = [{**row, "node": called(str(row["node"]))} for part in parts for row in part.findings]
    conditions = [_renamed(one, called) for part in parts for one in part.conditions]
    events = [event for part in parts for event in part.events]
    for event in events:
        event.node = called(event.node) if event.node else None
    for row in findings:
        if row["node"] in nodes and row["status"] in _HEALTH:
            _judge(nodes[row["node"]], row)
    for condition in conditions:
        if condition.node in nodes:
            _weigh(nodes[condition.node], condition)
    rows: list[dict[str, Any]] = []
    gpus: list[dict[str, Any]] = []
    doubtful = _doubtful(nodes.values())
    for one in sorted(nodes.values(), key=lambda one: one.name):
        mine, said = _gpus_of(one, doubtful)
        rows.append(_row(one, mine, said))
        gpus += mine
    past = [{**row, "node": called(row["node"]) if row.get("node") else None} for part in parts for row in part.incidents]
    incidents = frame(sorted(past, key=lambda row: -(row.get("time") or 0.0)), INCIDENTS)
    acts = [{**row, "node": called(row["node"]) if row.get("node") else None} for part in parts for row in part.actions]
    actions = frame(sorted(acts, key=lambda row: -(row.get("time") or 0.0)), ACTIONS)
    found = frame(sorted(findings, key=_worst_first), FINDINGS)
    samples = [part.samples for part in parts if part.samples is not None and len(part.samples)]
    return Snapshot(
        time=now,
        name=name,
        nodes=frame(rows, NODES),
        gpus=frame(gpus, GPUS),
        conditions=conditions_frame(conditions),
        findings=found,
        jobs=_jobs(nodes.values()),
        suspects=suspects(incidents, found, actions, now),
        actions=actions,
        samples=samples[0] if samples else empty_frame(METRICS),
        heard=(*(part.heard() for part in parts), *heard),
        period=period,
        queries={key: dict(value) for part in parts for key, value in part.queries.items()},
        data={"demo": False, **(data or {})},
        incidents=incidents,
        events=events_frame(events),
    )


def _names(parts: Sequence[Part]) -> Callable[[str], str]:
    """Return the function from how a source calls a node to how its scheduler does."""
    first = [one.node for part in parts if part.source in SCHEDULERS for one in part.nodes]
    short: dict[str, str] = {}
    for name in first:
        short.setdefault(short_node(name).lower(), name)
    whole = {name.lower(): name for name in first}
    address = {key.lower(): name for part in parts for key, name in part.addresses.items()}
    known: dict[str, str] = {}

    def called(told: str) -> str:
        if told not in known:
            low = told.lower()
            near = short.get(short_node(low), "")
            fits = near and ("." not in low or "." not in near)  # two names with different domains are two nodes
            known[told] = whole.get(low) or address.get(low) or (near if fits else "") or told
        return known[told]

    return called


def _renamed(one: Condition, called: Callable[[str], str]) -> Condition:
    if one.node:
        one.node = called(one.node)
    return one


def _take(one: _Node, seen: NodeSeen, part: Part, now: float) -> None:
    """Lay what one source says of a node beside what is known; the scheduler's word is the first."""
    for key in ("pool", "zone", "sku", "held_by", "reason", "state", "gpus", "usable", "schedulable", "since"):
        value = getattr(seen, key)
        if value not in (None, "") and one.facts.get(key) in (None, ""):
            one.facts[key] = value
    one.scheduler = one.scheduler or part.source in SCHEDULERS
    if seen.checked is not None:
        one.checked = max(one.checked or 0.0, seen.checked)
    if seen.ready is False:
        why = f"{seen.state}: it does not answer its scheduler" + (f" ({seen.reason})" if seen.reason else "")
        one.said.append(_Say("critical", why, "platform/node-lost", seen.since))
    elif seen.ready is None and part.source in SCHEDULERS:
        one.said.append(_Say("unknown", "its scheduler does not tell whether it answers"))
    old = seen.checked is not None and now - seen.checked > OLD
    if seen.fit is not None and not old:
        one.fit = seen.fit if one.fit is None else one.fit and seen.fit
    elif seen.unchecked or (seen.fit is not None and old):
        said = seen.unchecked or f"nobody has checked it for {(now - (seen.checked or now)) / 60:.0f} min"
        one.said.append(_Say("unknown", said, since=seen.checked))


def _judge(one: _Node, row: Mapping[str, Any]) -> None:
    """Say a finding of the GPU it names, or of the node."""
    say = _Say(
        _HEALTH[row["status"]],
        str(row.get("message") or row.get("code") or row["check"]),
        row.get("class") or "",
        row.get("since"),
    )
    gpu = _gpu_named(one, row)
    (one.said if gpu is None else gpu.setdefault("said", [])).append(say)


def _gpu_named(one: _Node, row: Mapping[str, Any]) -> dict[str, Any] | None:
    uuid, index = row.get("gpu_uuid"), row.get("gpu_index")
    if uuid is None and index is None:
        return None
    for gpu in one.gpus.values():
        if (uuid is not None and uuid in (gpu.get("gpu_uuid"), gpu.get("pci"))) or (
            uuid is None and index == gpu.get("gpu_index")
        ):
            return gpu
    key = uuid if uuid is not None else index
    return one.gpus.setdefault(key, {"gpu_index": index, "gpu_uuid": uuid if str(uuid or "").startswith("GPU-") else None})


def _weigh(one: _Node, condition: Condition) -> None:
    """Say what a condition of somebody else's monitor means; ours come as findings, and whether a node answers is told by its scheduler."""
    if not condition.bad or condition.kind not in ("condition", "resource") or condition.name == "Ready":
        return
    if condition.name.startswith("Workbench"):
        return
    row = condition_row(condition.reason) or condition_row(condition.name) or {}
    cls = row.get("class") or ""
    # a monitor's word on hardware or driver makes the node unfit; pressure and the like are worth knowing
    health = "critical" if cls.startswith(("hardware/", "driver/")) else "warning"
    one.said.append(_Say(health, f"{condition.name}: {condition.message or condition.reason}", cls, condition.since))


def _gpus_of(one: _Node, doubtful: Container[str] = ()) -> tuple[list[dict[str, Any]], list[_Say]]:
    """Return the rows of a node's GPUs, those that it should have and nobody saw among them, and what is said of single GPUs."""
    whole = _worst(one.said)
    known = list(one.gpus.values())
    taken = {gpu["gpu_index"] for gpu in known if gpu.get("gpu_index") is not None}
    free = iter(index for index in range(1024) if index not in taken)
    for gpu in known:
        if gpu.get("gpu_index") is None:
            gpu["gpu_index"] = next(free)
    seen, should = len(known), int(one.facts.get("gpus") or 0)
    known += [{"gpu_index": next(free), "lacks": seen > 0} for _ in range(max(0, should - seen))]
    out, told = [], []
    holder = _sole_job(one)
    # indices move when a GPU is lost: then nobody knows which process has which
    whose = _ranks(one, holder, doubtful, 0 if any(gpu.get("lacks") for gpu in known) else len(known)) or [None] * len(known)
    for gpu, rank in zip(sorted(known, key=lambda gpu: gpu["gpu_index"]), whose, strict=True):
        said = list(gpu.pop("said", ()))
        if gpu.pop("lacks", False):
            said.append(_Say("unknown", f"the node should have {should} GPUs, and only {seen} of them are told of"))
        judged = bool(gpu.pop("judged", False))
        own = _worst(said)
        if own is None:
            own = _Say("ok", "") if one.fit is not None or judged else _Say("unknown", NOT_TOLD)
        elif worse(own.health, "ok"):
            who = f"GPU {gpu['gpu_index']}"
            told.append(_Say(own.health, own.why if who in own.why else f"{who}: {own.why}", own.cause, own.since))
        if whole is not None and worse(whole.health, own.health):
            own = _Say(whole.health, f"the whole node: {whole.why}", whole.cause, whole.since)
        out.append(
            {
                **gpu,
                "node": one.name,
                "sku": gpu.get("sku") or one.facts.get("sku"),
                "pool": one.facts.get("pool"),
                "health": own.health,
                "why": own.why,
                "cause": own.cause.split("/")[0],
                "job": gpu.get("job") or holder,
                "rank": rank if gpu.get("rank") is None else gpu["rank"],
            }
        )
    return out, told


def _worst(said: Sequence[_Say]) -> _Say | None:
    """Return the worst that is said, the first of several alike."""
    found: _Say | None = None
    for one in said:
        if found is None or worse(one.health, found.health):
            found = one
    return found


def _row(one: _Node, gpus: Sequence[Mapping[str, Any]], said: Sequence[_Say]) -> dict[str, Any]:
    """Return the row of a node: as bad as what is worst of it and of its GPUs."""
    worst = _worst([*one.said, *said])
    if one.fit is False and (worst is None or worse("critical", worst.health)):
        # its reasons did not come along
        worst = _Say("critical", "its health check calls it unfit", since=one.checked)
    if worst is None:
        looked = one.fit is not None or (bool(gpus) and all(gpu["health"] == "ok" for gpu in gpus))
        worst = _Say("ok", "") if looked else _Say("unknown", NOT_TOLD)
    jobs = list(dict.fromkeys(str(row["job"]) for row in one.work if row.get("gpus")))
    facts = one.facts
    usable = facts.get("usable")
    return {
        "node": one.name,
        "pool": facts.get("pool"),
        "zone": facts.get("zone"),
        "sku": facts.get("sku") or next((gpu["sku"] for gpu in gpus if gpu.get("sku")), None),
        "gpus": max(int(facts.get("gpus") or 0), len(gpus)),
        "gpus_ready": usable
        if usable is not None
        else (sum(gpu["health"] in ("ok", "warning") for gpu in gpus) if gpus else None),
        "health": worst.health,
        "why": worst.why,
        "cause": worst.cause.split("/")[0],
        "schedulable": facts.get("schedulable"),
        "held_by": facts.get("held_by"),
        "state": facts.get("state"),
        "job": jobs[0] if len(jobs) == 1 else ", ".join(jobs[:3]) + (" …" if len(jobs) > 3 else ""),
        "checked": one.checked,
        "since": worst.since if worst.since is not None else facts.get("since"),
    }


def _sole_job(one: _Node) -> str | None:
    """Return the job that holds all GPUs of a node; with several nobody knows which has which."""
    jobs = {str(row["job"]) for row in one.work if row.get("gpus")}
    held = sum(int(row.get("gpus") or 0) for row in one.work)
    return jobs.pop() if len(jobs) == 1 and held >= int(one.facts.get("gpus") or len(one.gpus) or 1) else None


def _ranks(one: _Node, holder: str | None, doubtful: Container[str], count: int) -> Sequence[int | None]:
    """
    Return the rank on each GPU of a node, in the order of GPUs: known when one pod of one job holds all of them with a process each.

    Launchers give the first process of a node its first GPU (torchrun's LOCAL_RANK), and only then places and ranks are the same.
    """
    rows = [row for row in one.work if row.get("gpus")]
    numbers = tuple(rows[0].get("numbers") or ()) if len(rows) == 1 else ()
    sure = holder is not None and holder not in doubtful and len(numbers) == count
    return numbers if sure else (None,) * count


def _doubtful(nodes: Iterable[_Node]) -> set[str]:
    """Return the jobs of which two pods claim the same rank: their numbers are those of something else, such as of kinds of replicas."""
    told: dict[str, Counter[int]] = defaultdict(Counter)
    for one in nodes:
        for row in one.work:
            told[str(row.get("job"))].update(row.get("numbers") or ())
    return {job for job, numbers in told.items() if any(many > 1 for many in numbers.values())}


def _jobs(nodes: Iterable[_Node]) -> pd.DataFrame:
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for one in nodes:
        for row in one.work:
            if not row.get("gpus"):
                continue
            key = str(row.get("namespace") or ""), str(row["job"])
            job = found.setdefault(
                key,
                {
                    "job": key[1],
                    "namespace": key[0],
                    "state": row.get("state") or "running",
                    "gpus": 0,
                    "ranks": 0,
                    "names": {},
                    "start": None,
                },
            )
            for word in ("user", "team"):
                job[word] = job.get(word) or row.get(word)
            job["gpus"] += int(row["gpus"])
            job["ranks"] += int(row.get("ranks") or 0)
            job["names"][one.name] = None
            start = row.get("start")
            job["start"] = start if job["start"] is None else min(job["start"], start) if start is not None else job["start"]
    rows = [{**job, "nodes": len(job["names"]), "node_names": tuple(job["names"])} for job in found.values()]
    rows.sort(key=lambda job: (-job["gpus"], job["job"]))
    return frame(rows, JOBS)


_ORDER = {"critical": 0, "unknown": 1, "warning": 2, "ok": 3, "not-applicable": 4}


def _worst_first(row: Mapping[str, Any]) -> tuple[int, str, int]:
    return _ORDER.get(str(row["status"]), 5), str(row["node"]), -1 if row.get("gpu_index") is None else int(row["gpu_index"])
