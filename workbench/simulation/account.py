"""Turn what happens in a simulation into rows of the fleet's tables, as they come about, and into its sums."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from workbench.simulation.nodes import Machine, Machines
from workbench.simulation.spec import Fault, Spec
from workbench.simulation.work import Attempt, Job, Spent

if TYPE_CHECKING:
    from workbench.simulation.engine import Sink

__all__ = ["Account", "gpu_uuid"]

_BATCH = 5000
_SOURCE = "simulation"
_EXITS = {"completed": 0, "cancelled": -15, "preempted": -15}  # of the launcher; anything else ends with 1


def gpu_uuid(node: str, slot: int, swaps: int) -> str:
    """Return the UUID of the GPU that is in a slot after so many replacements: always the same, in the form of NVIDIA's."""
    import hashlib

    text = hashlib.sha256(f"{node} {slot} {swaps}".encode()).hexdigest()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"


class Account:
    """Rows of `workbench.fleet.tables`, told to a sink in batches; sums over all jobs in memory."""

    def __init__(self, spec: Spec, machines: Machines, sink: Sink | None, begin: float) -> None:
        self.spec, self.machines, self.sink, self.begin = spec, machines, sink, begin
        self.rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.states: Counter[str] = Counter()
        self.causes: Counter[str] = Counter()
        self.seconds: dict[str, float] = defaultdict(float)
        self.capacity = self.held = 0.0
        self.restarts = self.repairs = 0
        # looked up a million times
        self.phases_from = spec["policy.phases_from"]
        self.start, self.init = float(spec["jobs.start"]), float(spec["jobs.init"])
        self.pool, self.sku = str(spec["nodes.pool"]), str(spec["nodes.sku"])
        if sink is not None:
            for machine in machines.all:
                for slot in range(machines.gpus):
                    self._gpu(machine, slot, begin)

    def _put(self, table: str, row: dict[str, Any], told: float) -> None:
        if self.sink is None:
            return
        row["cluster"], row["source"], row["recorded"] = "", _SOURCE, told
        rows = self.rows[table]
        rows.append(row)
        if len(rows) >= _BATCH:
            self.sink(table, rows)
            self.rows[table] = []

    # ---- jobs -----------------------------------------------------------------------------------------------------------------------

    def attempt(self, attempt: Attempt, ended: float, state: str, cause: str, cls: str, used: Spent) -> None:
        """An attempt ended, after a detection and a diagnosis where it failed."""
        job = attempt.job
        kind = attempt.fault if state == "failed" else None
        if state == "failed":
            self.causes[(kind.cls if kind is not None else job.cls).split("/")[0]] += 1
        stretches = self._stretches(attempt, ended, used)
        for name, seconds in stretches:
            self.seconds[name] += seconds * job.gpus
        self.held += (ended - attempt.begin) * job.gpus
        if self.sink is None:
            return
        blamed = attempt.at if cause not in ("", "unknown") else None
        uuid = None
        if blamed is not None and kind is not None and kind.scope == "gpu":
            uuid = gpu_uuid(blamed.name, attempt.gpu, blamed.swaps.get(attempt.gpu, 0))
        stepped = ended if attempt.died is None else attempt.died
        self._put(
            "attempts",
            {
                "job": str(job.id), "attempt": attempt.number, "queued": job.queued, "started": attempt.begin,
                "first_step": attempt.steps_from if stepped > attempt.steps_from else None, "ended": ended, "state": state,
                "exit_code": _EXITS.get(state, 1), "cause": cause or None, "cls": cls or None,
                "confidence": 0.9 if cause not in ("", "unknown") else None, "node": blamed.name if blamed else None, "gpu_uuid": uuid,
                "at_fault": (kind.scope if kind is not None else "rank") if cause not in ("", "unknown", "platform") else None,
                "node_names": [machine.name for machine in attempt.machines], "excluded": sorted(job.excluded), "gpus": job.gpus,
                "step_first": round(job.saved), "step_last": round(job.saved + used.step), "step_saved": round(job.saved + used.kept),
                "detected": attempt.detected, "diagnosed": ended if attempt.detected is not None else None,
            },
            ended,
        )  # fmt: skip
        if job.gpus >= self.phases_from:
            self._phases(attempt, stretches, ended)

    def _stretches(self, attempt: Attempt, ended: float, used: Spent) -> list[tuple[str, float]]:
        """What the time from the last attempt's end (or submission) to this one's went to, in order; the sums are exact."""
        job = attempt.job
        stopped = attempt.died if attempt.died is not None else ended
        left = max(0.0, stopped - attempt.begin)
        found = [("recover", job.queued - job.last_end), ("queue", attempt.begin - job.queued)]
        for name, planned in (("start", self.start), ("init", self.init), ("restore", attempt.restore)):
            taken = min(left, planned)
            found.append((name, taken))
            left -= taken
        found += [("step", used.step - used.lost), ("slow", used.slow), ("save", used.save), ("lost", used.lost)]
        if attempt.died is not None:
            detected = attempt.detected if attempt.detected is not None else stopped
            found += [("detect", detected - stopped), ("diagnose", ended - detected)]
        return [(name, seconds) for name, seconds in found if seconds > 0]

    def _phases(self, attempt: Attempt, stretches: list[tuple[str, float]], ended: float) -> None:
        begin = attempt.job.last_end
        for name, seconds in stretches:
            row = {"job": str(attempt.job.id), "attempt": attempt.number, "kind": name, "begin": begin, "end": begin + seconds}
            self._put("phases", row, ended)
            begin += seconds

    def job(self, job: Job, state: str, ended: float | None, cause: str, cls: str) -> None:
        """A job is over, or waits or runs at the end of the simulation."""
        self.states[state] += 1
        if job.started is not None:
            self.states["started"] += 1
        self._put(
            "jobs",
            {
                "job": str(job.id), "name": f"{job.team}-{job.gpus}x-{job.id}", "user": job.user, "team": job.team, "pool": self.pool,
                "sku": self.sku, "nodes": -(-job.gpus // self.machines.gpus), "gpus": job.gpus, "submitted": job.submitted,
                "started": job.started, "first_step": job.first_step, "ended": ended, "state": state,
                "cause": cause or None if state == "failed" else None, "cls": cls or None if state == "failed" else None,
            },
            ended if ended is not None else job.submitted,
        )  # fmt: skip

    def still(self, attempt: Attempt, now: float) -> None:
        """An attempt runs when the simulation ends; its time is no part of the sums, since what of it is lost is not known yet."""
        job = attempt.job
        self._put(
            "attempts",
            {
                "job": str(job.id), "attempt": attempt.number, "queued": job.queued, "started": attempt.begin,
                "first_step": attempt.steps_from if now > attempt.steps_from else None, "state": "running", "gpus": job.gpus,
                "node_names": [machine.name for machine in attempt.machines], "excluded": sorted(job.excluded),
                "step_first": round(job.saved),
            },
            now,
        )  # fmt: skip
        self.job(job, "running", None, "", "")

    # ---- nodes ----------------------------------------------------------------------------------------------------------------------

    def node(self, machine: Machine, state: str, now: float, kind: Fault | None) -> None:
        """A node's state changes; the stretch that ends is told."""
        self._state(machine, now)
        machine.state, machine.since = state, now
        if state == "down":
            self._signal(machine, None, "out-of-service", now, kind, "")

    def _state(self, machine: Machine, end: float, *, over: bool = True) -> None:
        if end > machine.since or not over:
            if machine.state != "held" or machine not in self.machines.spare:
                self.capacity += (end - machine.since) * self.machines.gpus
            kind = machine.bad if machine.state in ("down", "held") else None
            self._put(
                "node_states",
                {
                    "node": machine.name, "begin": machine.since, "end": end if over else None, "state": machine.state, "pool": self.pool,
                    "sku": self.sku, "gpus": self.machines.gpus, "cause": kind.cause if kind else None, "cls": kind.cls if kind else None,
                },
                end,
            )  # fmt: skip

    def blame(self, attempt: Attempt, machine: Machine, now: float) -> None:
        """A verdict names a node."""
        kind = attempt.fault
        assert kind is not None
        job = str(attempt.job.id)
        self._signal(machine, attempt, "job-failure", now, kind, job)
        if kind.xid and attempt.died is not None:
            self._signal(machine, attempt, "xid", attempt.died, kind, job, code=kind.xid)
        if self.spec["policy.exclude"]:
            self._signal(machine, attempt, "excluded", now, kind, job)

    def _signal(
        self, machine: Machine, attempt: Attempt | None, kind: str, now: float, fault: Fault | None, job: str, *, code: str = ""
    ) -> None:
        uuid = ""
        if attempt is not None and fault is not None and fault.scope == "gpu":
            uuid = gpu_uuid(machine.name, attempt.gpu, machine.swaps.get(attempt.gpu, 0))
        row = {
            "node": machine.name, "gpu_uuid": uuid, "kind": kind, "time": now, "job": job, "cls": fault.cls if fault else None,
            "code": code or None, "weight": 1.0,
        }  # fmt: skip
        self._put("signals", row, now)

    def finding(self, machine: Machine, now: float) -> None:
        """The check at allocation found a bad node."""
        kind = machine.bad
        uuid = gpu_uuid(machine.name, machine.gpu, machine.swaps.get(machine.gpu, 0)) if kind and kind.scope == "gpu" else ""
        row = {
            "node": machine.name, "gpu_uuid": uuid, "check_name": "allocation", "time": now, "status": "critical",
            "cls": kind.cls if kind else None, "action": kind.rung if kind else None,
        }  # fmt: skip
        self._put("findings", row, now)
        self._signal(machine, None, "finding", now, kind, "", code="allocation")

    def action(self, machine: Machine, kind: Fault, begin: float, end: float, works: bool) -> None:
        """A rung was taken."""
        self.repairs += 1
        row = {
            "node": machine.name, "gpu_uuid": "", "rung": kind.rung, "begin": begin, "end": end, "outcome": "done" if works else "failed",
            "cls": kind.cls,
        }  # fmt: skip
        self._put("actions", row, end)

    def swap(self, machine: Machine, now: float) -> None:
        """A machine was replaced: its slots hold other GPUs."""
        for slot in range(self.machines.gpus):
            machine.swaps[slot] = machine.swaps.get(slot, 0) + 1
            if self.sink is not None:
                self._gpu(machine, slot, now)

    def _gpu(self, machine: Machine, slot: int, begin: float) -> None:
        uuid = gpu_uuid(machine.name, slot, machine.swaps.get(slot, 0))
        row = {
            "gpu_uuid": uuid, "serial": str(int(uuid[4:12], 16)), "node": machine.name, "slot": f"0000:{0x10 * (slot + 1):02x}:00.0",
            "begin": begin,
        }  # fmt: skip
        self._put("gpus", row, begin)

    def close(self, now: float) -> None:
        """Tell the rest."""
        for machine in self.machines.all:
            self._state(machine, now, over=False)
        if self.sink is not None:
            for table, rows in self.rows.items():
                if rows:
                    self.sink(table, rows)
        self.rows.clear()
