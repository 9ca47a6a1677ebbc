"""
Turn a size into the snapshot of an invented fleet that says of itself that it is one: for demonstrations, tests and measurements.

The incidents are the shipped ones, triaged as any other, and moved to the last days; all else is simulated. Same size, seed and moment give
the same fleet, so a picture of it can be compared with another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from workbench.catalog import table
from workbench.frames import METRICS
from workbench.model import Condition, Event, Gpu
from workbench.remediation.words import OWNER
from workbench.site.assemble import assemble
from workbench.site.demo_world import World, values, world
from workbench.site.model import Snapshot
from workbench.site.parts import NodeSeen, Part

__all__ = ["NAME", "SIZES", "Demo", "Played", "fetch", "fleet_world"]

NAME = "Demo fleet"
SIZES = (128, 16_384)
_STEP = 60.0  # seconds between two samples of a node that is looked at
# panel of the node page → (DCGM field, key of `values`)
_FIELDS = {
    "DCGM_FI_DEV_GPU_TEMP": "temperature",
    "DCGM_FI_DEV_POWER_USAGE": "power",
    "DCGM_FI_DEV_GPU_UTIL": "utilization",
    "DCGM_FI_DEV_FB_USED": "memory_used",
}
_OF_ALL = 8  # nodes at most whose samples are part of a snapshot
_LONG_AGO = 30.0  # hours: repairs of before, of which a controller that plays knows nothing


@dataclass(frozen=True, slots=True)
class Played:
    """
    What a controller has done to the demo fleet so far, where one plays on it (`workbench.serving.desk_demo`).

    Attributes
    ----------
    mended : frozenset of (str, str)
        Node and code of troubles that are no more.
    held : mapping
        Node → who keeps work away from it, empty for nobody; of a node that is not in it nothing was touched.
    actions : tuple of mapping
        Rows of its journal.
    """

    mended: frozenset[tuple[str, str]] = frozenset()
    held: Mapping[str, str] = field(default_factory=dict)
    actions: tuple[Mapping[str, Any], ...] = ()


def fleet_world(gpus: int, seed: int) -> World:
    """Return the world of the demo fleet: with the nodes of the shipped incidents, so that all that plays on it speaks of the same nodes."""
    return world(gpus, seed, _NAMED)


class Demo:
    """
    Gives a snapshot of the demo fleet whenever it is called; see `workbench.site.poller.Poller`.

    Parameters
    ----------
    gpus : int
        128 to 16,384, in nodes of 8 and some of 4.
    seed : int, optional
        Another one is another fleet.
    period : float, optional
        Seconds between two polls, as the snapshot says.
    clock : callable, optional
        Returns the seconds since the epoch.
    incidents : callable, optional
        Returns the rows of incidents (`workbench.site.model.INCIDENTS`), as an inbox has them; default the shipped ones.
    played : callable, optional
        Returns what a controller has done to it (`Played`); default: a journal of its own, of which nothing can be approved.
    """

    def __init__(
        self,
        gpus: int = 1024,
        *,
        seed: int = 7,
        period: float = 15.0,
        clock: Callable[[], float] = time.time,
        incidents: Callable[[], Iterable[Mapping[str, Any]]] | None = None,
        played: Callable[[], Played] | None = None,
    ) -> None:
        if not SIZES[0] <= gpus <= SIZES[1]:
            raise ValueError(f"a demo fleet has {SIZES[0]} to {SIZES[1]} GPUs, not {gpus}")
        self.gpus, self.seed, self.period = gpus, seed, period
        self._clock, self._incidents, self._played = clock, incidents, played
        self._watched: tuple[str, ...] = ()
        self._asked = 0

    def watch(self, nodes: Iterable[str]) -> None:
        """Take the nodes that people look at: their samples are part of the next snapshot."""
        self._watched = tuple(nodes)[:_OF_ALL]

    def __call__(self) -> Snapshot:
        """Return the fleet as it is now."""
        self._asked += 1
        return self.at(self._clock())

    def at(self, now: float) -> Snapshot:
        """Return the fleet as it is at a moment, seconds since the epoch."""
        past = list(self._incidents()) if self._incidents is not None else _shipped(now)
        if self._incidents is None:
            made = fleet_world(self.gpus, self.seed)
        else:
            made = world(self.gpus, self.seed, tuple(sorted({str(row["node"]) for row in past if row.get("node")}))[:16])
        done = self._played() if self._played is not None else None
        if done is not None:
            made = _mended(made, done)
        held = done.held if done is not None else {}
        parts = [
            *_scheduler(made, now, held),
            _exporters(made, now),
            _journal(made, now, done),
            Part("inbox", now, incidents=tuple(past)),
        ]
        looked = list(dict.fromkeys((*self._watched, *_suspicious(made))))[:_OF_ALL]
        parts[-2] = _with_samples(parts[-2], made, now, looked)
        return assemble(parts, now, name=NAME, period=self.period, data={"demo": True, "asked": self._asked, "gpus": made.gpus})


def fetch(gpus: int = 1024, *, seed: int = 7, now: float | None = None) -> Snapshot:
    """
    Return the demo fleet once.

    Parameters
    ----------
    gpus : int
        128 to 16,384.
    seed : int, optional
    now : float, optional
        Seconds since the epoch; the same moment gives the same snapshot.
    """
    return Demo(gpus, seed=seed).at(time.time() if now is None else now)


# What triage says of the shipped incidents that name a node (tests/site/test_demo.py holds it to that), so that a page need not wait for it
_VERDICTS: tuple[dict[str, Any], ...] = (
    {
        "id": "nvlink-switch", "node": "dgx-46", "gpu_index": None, "class": "hardware/nvlink", "at_fault": "node",
        "summary": "Link micro-controller halted: node dgx-46 (hardware/nvlink); 24 other ranks only lost it.",
    },
    {
        "id": "gpu-memory", "node": "gpu-node-054", "gpu_index": 4, "class": "hardware/gpu-memory", "at_fault": "gpu",
        "summary": "Uncorrectable (double-bit) ECC error in device memory or on-chip SRAM: GPU 0000:9d:00.0 of gpu-node-054.",
    },
    {
        "id": "hang-data-loader", "node": "g1151", "gpu_index": 5, "class": "user/hang", "at_fault": "rank",
        "summary": "The others wait in a collective, and this rank stands elsewhere.",
    },
    {
        "id": "preempted", "node": "g1152", "gpu_index": None, "class": "platform/preemption", "at_fault": "platform",
        "summary": "A job of higher priority took the nodes: node g1152 (platform/preemption).",
    },
    {
        "id": "checkpoint-disk-full", "node": "gpu-node-030", "gpu_index": 0, "class": "platform/storage", "at_fault": "platform",
        "summary": "A disk is full: rank 0 on gpu-node-030 (platform/storage).",
    },
)  # fmt: skip

_NAMED = tuple(sorted(str(row["node"]) for row in _VERDICTS))


def _shipped(now: float) -> list[dict[str, Any]]:
    common = {"confidence": 0.9, "state": "new"}
    return [
        {**common, **row, "job": row["id"], "cause": row["class"].split("/")[0], "time": now - 3600.0 * (5 + 19 * number)}
        for number, row in enumerate(_VERDICTS)
    ]


# -- what each source would tell -------------------------------------------------------------------------------------------


def _mended(made: World, done: Played) -> World:
    """Return the world without the troubles that are no more."""
    left = {name: [row for row in rows if (name, row[0].code) not in done.mended] for name, rows in made.troubles.items()}
    return replace(made, troubles={name: rows for name, rows in left.items() if rows})


def _scheduler(made: World, now: float, holds: Mapping[str, str]) -> list[Part]:
    """Return the part of the scheduler with what health checks show on nodes."""
    kinds = {row["class"]: row["condition"] for row in table("conditions_published")}
    nodes: list[NodeSeen] = []
    findings: list[dict[str, Any]] = []
    conditions: list[Condition] = []
    events: list[Event] = []
    work: list[dict[str, Any]] = []
    # each node is checked every two minutes, at a moment of its own
    ages = (now + made.seeds[made.first[:-1]] * 120.0) % 120.0
    for i, name in enumerate(made.names):
        model, troubles = made.models[i], made.troubles.get(name, [])
        held = next((t.held for t, *_ in troubles if t.held), "somebody" if name in made.maintenance else "")
        held = holds.get(name, held)
        since = now - 3600.0 * min((hours for _, _, hours in troubles), default=6.0)
        silent, stopped = name in made.silent, name in made.unchecked
        checked = now - (5400.0 if silent or stopped else float(ages[i]))
        critical = any(trouble.status == "critical" for trouble, *_ in troubles)
        lost = sum(trouble.code == "gpu-off-bus" for trouble, *_ in troubles)
        ready = "NotReady" if silent else "Ready"
        nodes.append(
            NodeSeen(
                name,
                made.pools[i],
                made.zones[i],
                model.name,
                gpus=model.each,
                usable=0 if silent else model.each - lost,
                ready=not silent,
                schedulable=not held and not silent,
                held_by=held,
                reason="kernel upgrade"
                if name in made.maintenance
                else (troubles[0][0].code if troubles else "repaired")
                if held
                else "",
                state=ready + (",SchedulingDisabled" if held else ""),
                since=since if held or silent else None,
                fit=not critical,
                checked=checked,
            )
        )
        conditions.append(
            Condition(
                "Ready", "Unknown" if silent else "True", name, "condition", silent, now - (5280.0 if silent else 9e5),
                "NodeStatusUnknown" if silent else "KubeletReady",
                "Kubelet stopped posting node status." if silent else "kubelet is posting ready status",
            )
        )  # fmt: skip
        if held:
            conditions.append(
                Condition(
                    "gpu-workbench/unfit" if held in ("gpu-workbench", OWNER) else "node.kubernetes.io/unschedulable",
                    "NoSchedule",
                    name,
                    "taint",
                    None,
                    since,
                )
            )
        bad = {kinds.get(t.cls, "WorkbenchConfigProblem"): (t, gpu, h) for t, gpu, h in troubles if t.status == "critical"}
        for kind in ("WorkbenchNodeUnfit", *sorted({row["condition"] for row in table("conditions_published")})):
            hit = next(iter(bad.values()), None) if kind == "WorkbenchNodeUnfit" else bad.get(kind)
            if hit is None and i % 64 and not troubles:
                continue  # what is well is told of some nodes only: a frame of 30,000 rows of "False" shows nothing
            said = _words(hit[0], hit[1], made) if hit else "nothing was found that makes the node unfit"
            conditions.append(
                Condition(
                    kind, "True" if hit else "False", name, "condition", bool(hit), now - 3600.0 * (hit[2] if hit else 300.0),
                    hit[0].code if hit else "Healthy", said,
                )
            )  # fmt: skip
        for trouble, gpu, hours in troubles:
            said = _words(trouble, gpu, made)
            findings.append(
                {
                    "node": name, "gpu_index": gpu, "gpu_uuid": made.uuid(i, gpu) if gpu is not None else None, "check": trouble.check,
                    "code": trouble.code, "status": trouble.status, "class": trouble.cls, "message": said, "action": trouble.action,
                    "time": checked, "since": now - 3600.0 * hours, "source": "workbench check",
                }
            )  # fmt: skip
            if trouble.kernel:
                bus = made.pci(gpu or 0)
                text = trouble.kernel.format(gpu=gpu, pci=bus.removesuffix(".0"))
                sign = f"xid-{trouble.xid}" if trouble.xid else "mlx5-module-event"
                where = Gpu(gpu, made.uuid(i, gpu), bus) if gpu is not None else None
                events.append(Event(sign, "kernel", text, now - 3600.0 * hours, node=name, gpu=where, code=trouble.xid))
        if not troubles and not silent and not stopped and not i % 16:
            well = {"node": name, "status": "ok", "message": "as it should be", "action": "none", "time": checked}
            findings += [
                {**well, "check": check, "source": "workbench check"}
                for check in ("gpu-count", "gpu-memory", "nvlink", "network")
            ]
    each_of = {name: model.each for name, model in zip(made.names, made.models, strict=True)}
    for job, row in made.jobs.items():
        for name in row["nodes"]:
            each = each_of[name]
            work.append(
                {
                    "node": name,
                    "job": job,
                    "namespace": row["team"],
                    "user": row["user"],
                    "team": row["team"],
                    "gpus": each,
                    "ranks": each,
                    "start": now - 3600.0 * row["hours"],
                }
            )
    gone = len(made.silent) + len(made.unchecked)
    queries = {"conditions": {"kubectl": "kubectl get nodes -o json"}, "jobs": {"kubectl": "kubectl get pods -A -o json"}}
    scheduler = Part("kubernetes", now, nodes=tuple(nodes), conditions=tuple(conditions), work=tuple(work), queries=queries)
    check = Part(
        "workbench check", now, "partial" if gone else "ok",
        f"{gone} of {len(made.names)} nodes have not been checked for 15 minutes" if gone else "",
        "kubectl -n gpu-workbench get pods -o wide shows where the checker does not run" if gone else "",
        findings=tuple(findings), events=tuple(events),
    )  # fmt: skip
    return [scheduler, check]


def _words(trouble: Any, gpu: int | None, made: World) -> str:
    return str(trouble.message.format(gpu=gpu, pci=made.pci(gpu or 0)))


def _exporters(made: World, now: float) -> Part:
    """Return the part of the GPU exporters."""
    told = values(made, now)
    columns = {key: column.tolist() for key, column in told.items()}
    rows: list[dict[str, Any]] = []
    for i, name in enumerate(made.names):
        if name in made.silent:
            continue
        first, job = int(made.first[i]), made.job_of.get(name)
        here = made.jobs[job]["nodes"].index(name) if job and len(made.jobs[job]["nodes"]) <= 64 else None
        xids = {gpu: t.xid for t, gpu, _ in made.troubles.get(name, ()) if t.xid and gpu is not None}
        lost = {gpu for t, gpu, _ in made.troubles.get(name, ()) if t.code == "gpu-off-bus"}
        hot = {gpu for t, gpu, _ in made.troubles.get(name, ()) if t.code == "smi-throttle-thermal"}
        for gpu in range(made.models[i].each):
            at = first + gpu
            row = {
                "node": name, "gpu_index": gpu, "gpu_uuid": made.uuid(i, gpu), "pci": made.pci(gpu), "sku": made.models[i].name, "job": job,
                "rank": here * made.models[i].each + gpu if here is not None else None,
                "temperature": columns["temperature"][at], "power": columns["power"][at], "utilization": columns["utilization"][at],
                "memory_used": columns["memory_used"][at], "xid": xids.get(gpu, 0), "seen": now - 5.0, "judged": True,
            }  # fmt: skip
            if gpu in lost:
                row |= {
                    "temperature": None,
                    "power": None,
                    "utilization": None,
                    "memory_used": None,
                    "seen": now - 3600.0,
                    "judged": False,
                }
            if gpu in hot:
                row["temperature"] = 91.0
            rows.append(row)
    queries = {key: {"promql": f"max by (Hostname, gpu, UUID) ({field})"} for field, key in _FIELDS.items()}
    return Part(
        "prometheus",
        now,
        gpus=tuple(rows),
        queries={**queries, "xid": {"promql": "max by (Hostname, gpu, UUID) (DCGM_FI_DEV_XID_ERRORS)"}},
    )


def _journal(made: World, now: float, done: Played | None) -> Part:
    rows = [
        {**{k: v for k, v in one.items() if k != "hours"}, "time": now - 3600.0 * one["hours"]}
        for one in made.actions
        if done is None or one["hours"] >= _LONG_AGO
    ]
    return Part("journal", now, actions=(*rows, *(done.actions if done is not None else ())))


def _suspicious(made: World) -> list[str]:
    return [name for name, rows in made.troubles.items() if any(trouble.status == "critical" for trouble, *_ in rows)]


def _with_samples(part: Part, made: World, now: float, nodes: list[str]) -> Part:
    """Return a part with the last hour of the nodes that are looked at, in the columns of `workbench.frames.METRICS`."""
    where = [made.names.index(name) for name in nodes if name in made.names and name not in made.silent]
    if not where:
        return part
    moments = np.floor(now / _STEP) * _STEP - _STEP * np.arange(60)[::-1]
    at = np.concatenate([np.arange(made.first[i], made.first[i + 1]) for i in where])
    grid = {key: np.empty((len(moments), len(at))) for key in _FIELDS.values()}
    for number, moment in enumerate(moments):
        told = values(made, float(moment))
        for key in grid:
            grid[key][number] = told[key][at]
    names = np.concatenate([np.repeat(made.names[i], made.models[i].each) for i in where])
    index = np.concatenate([np.arange(made.models[i].each) for i in where])
    uuids = np.array([made.uuid(i, gpu) for i in where for gpu in range(made.models[i].each)])
    pieces = []
    for told_as, key in _FIELDS.items():
        piece = pd.DataFrame(
            {"time": np.repeat(moments, len(at)), "value": grid[key].ravel(), "node": np.tile(names, len(moments))}
        )
        piece["gpu_index"], piece["gpu_uuid"], piece["field"] = (
            np.tile(index, len(moments)),
            np.tile(uuids, len(moments)),
            told_as,
        )
        pieces.append(piece)
    whole = pd.concat(pieces, ignore_index=True)
    whole["time"] = pd.to_datetime(whole["time"], unit="s", utc=True).dt.as_unit("us")
    whole["gpu_index"] = whole["gpu_index"].astype("Int64")
    for column in ("pci", "device", "mig", "pod", "namespace", "file"):
        whole[column] = pd.Categorical([None] * len(whole))
    for column in ("field", "node", "gpu_uuid"):
        whole[column] = whole[column].astype("category")
    return replace(part, samples=whole[list(METRICS)])
