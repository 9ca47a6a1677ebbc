"""Turn a Slurm cluster into a part of the fleet: its GPU nodes with state and reason, and the jobs that hold them."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

from workbench.errors import SourceUnavailable
from workbench.model import Condition
from workbench.parse.nodeset import expand
from workbench.parse.slurm_scontrol import show_records
from workbench.parse.slurm_words import local_epoch, node_bad, reason_meaning, split_reason
from workbench.remediation.executors.slurm_node import by_itself, gpus_of, node_of
from workbench.site.parts import NodeSeen, Part
from workbench.sources.command import Ran
from workbench.sources.contract import Deadline
from workbench.sources.slurm.source import Slurm

__all__ = ["SlurmFleet"]

_HOLDING = "CF,R,CG,S,ST,SI,SO,RS"  # states in which a job holds its nodes; squeue(1)
_FIELDS = "%A|%u|%a|%t|%S|%D|%N|%b|%j"
_STATES = {"R": "running", "CG": "completing", "CF": "configuring"}


class SlurmFleet:
    """
    One cluster, asked through its own commands; `read` gives its part, see `workbench.site.live`.

    Parameters
    ----------
    slurm : Slurm
    """

    name = "slurm"

    def __init__(self, slurm: Slurm) -> None:
        self._slurm = slurm

    def read(self, deadline: Deadline, watched: tuple[str, ...] = ()) -> Part:
        """
        Return what slurmctld tells now; without the list of jobs it is partial and says so.

        Raises
        ------
        SourceUnavailable
            It did not tell of its nodes.
        """
        del watched
        ran = self._slurm.ask("scontrol", "-d", "show", "node", deadline=deadline)
        if not ran.ok:
            raise SourceUnavailable(f"scontrol show node {ran.sentence}", hint="scontrol ping says whether slurmctld answers")
        now = time.time()
        seen: list[NodeSeen] = []
        findings: list[dict[str, Any]] = []
        conditions: list[Condition] = []
        for record in show_records(ran.text):
            if not gpus_of(record.get("Gres", ""))[0]:
                continue
            seen.append(_node(record))
            conditions.append(_condition(record))
            findings += _finding(record, now)
        each = {one.node: one.gpus or 0 for one in seen}
        mark = f"<{secrets.token_hex(8)}>"  # begins each job: no name can have guessed it
        jobs = self._slurm.ask("squeue", "-h", "-a", "-t", _HOLDING, "-o", f"{mark}{_FIELDS}", deadline=deadline)
        # whose ranks are where: without an answer jobs are told all the same, and their ranks are not
        steps = self._slurm.ask("scontrol", "-o", "show", "step", deadline=deadline) if jobs.ok else None
        placed = _placed(steps.text) if steps is not None and steps.ok else {}
        work = list(_work(jobs, mark, each, placed)) if jobs.ok else []
        queries = {
            "nodes": {"slurm": "scontrol -d show node"},
            "conditions": {"slurm": "sinfo -R"},
            "jobs": {"slurm": "squeue -a"},
        }
        return Part(
            self.name,
            now,
            "missing" if not seen else "ok" if jobs.ok else "partial",
            "slurmctld knows no node with GPUs"
            if not seen
            else ""
            if jobs.ok
            else f"what runs is not known: squeue {jobs.sentence}",
            "are they in Gres= of slurm.conf?" if not seen else "",
            nodes=tuple(seen),
            findings=tuple(findings),
            conditions=tuple(conditions),
            work=tuple(work),
            queries=queries,
        )


def _node(record: Mapping[str, str]) -> NodeSeen:
    state = node_of(record)
    return NodeSeen(
        state.name,
        state.pool,
        sku=state.sku,
        gpus=state.gpus,
        ready=state.ready,
        schedulable=state.schedulable,
        held_by=state.owner,
        reason=state.reason,
        state=record.get("State", "").split(" ")[0],
        since=state.restricted,
    )


def _reason(record: Mapping[str, str]) -> tuple[str, str | None, float | None]:
    told = record.get("Reason")
    return split_reason("" if told in (None, "none", "(null)") else told)


def _condition(record: Mapping[str, str]) -> Condition:
    reason, who, when = _reason(record)
    state = record.get("State", "").split(" ")[0]
    message = f"{reason} [{who}]" if who and reason else reason
    return Condition("State", state, record["NodeName"], "state", node_bad(state), when, reason, message, "slurm")


def _finding(record: Mapping[str, str], now: float) -> Iterator[dict[str, Any]]:
    """Yield what the reason of a node says is wrong with it; a person's note about planned work says nothing of that."""
    reason, _, when = _reason(record)
    if not reason or by_itself(reason) or not node_bad(record.get("State", "").split(" ")[0]):
        return
    # what stands behind the mark of an action of ours is why it was done
    words = re.sub(r"^gpu-workbench:[\w-]+[^:]*: ", "", reason)
    meaning = reason_meaning(words)
    if not meaning.get("cls"):
        return
    gpu, code = meaning.get("gpu"), meaning.get("code")
    yield {
        "node": record["NodeName"],
        "gpu_index": gpu.index if gpu else None,
        "check": "slurm reason",
        "code": f"xid-{code}" if code else meaning["signature"],
        "status": "critical",
        "class": meaning["cls"],
        "message": reason,
        "action": "none",
        "time": now,
        "since": when,
        "source": "slurm",
    }


def _placed(text: str) -> dict[str, dict[str, tuple[int, ...]]]:
    """
    Return job → node → the ranks that run there, from ``scontrol -o show step``, where one reading only is possible.

    srun counts tasks along its nodes in blocks (``Dist=Block``) and gives each node as many when they divide evenly; any other distribution,
    and a second step of the same job that runs on several tasks, leaves open which process is rank 3. A step of one task a node is a launcher
    (torchrun), whose processes number themselves.
    """
    found: dict[str, list[dict[str, tuple[int, ...]]]] = {}
    for line in text.splitlines():
        head, _, tail = line.partition(
            " Name="
        )  # a name is hostile text: what counts stands before it, and at the end of the line
        keys = dict(word.split("=", 1) for word in head.split() if "=" in word)
        job, dot, step = keys.get("StepId", "").partition(".")
        if not dot or not step.isdigit() or keys.get("State") != "RUNNING":
            continue
        nodes, tasks, dist = tuple(expand(keys.get("NodeList", ""))), keys.get("Tasks", ""), tail.rpartition(" Dist=")[2]
        rows: dict[str, tuple[int, ...]] = {}
        if tasks.isdigit() and nodes and dist.startswith("Block") and not int(tasks) % len(nodes):
            many = int(tasks) // len(nodes)
            rows = {node: tuple(range(at * many, (at + 1) * many)) for at, node in enumerate(nodes)} if many > 1 else {}
        if not tasks.isdigit() or int(tasks) > 1:
            found.setdefault(job, []).append(rows)
    return {job: steps[0] for job, steps in found.items() if len(steps) == 1}


def _work(
    ran: Ran, mark: str, each: Mapping[str, int], placed: Mapping[str, Mapping[str, tuple[int, ...]]]
) -> Iterator[dict[str, Any]]:
    """Yield a row for each job on each node of the fleet."""
    for row in ran.text.split(mark)[1:]:
        fields = row.rstrip("\n").split("|", 8)
        if len(fields) != 9:
            continue
        job, user, account, state, start, _, names, gres, _ = fields
        told, _ = gpus_of(gres)
        for node in expand(names):
            if node not in each:
                continue
            yield {
                "node": node,
                "job": job,
                "user": user,
                "team": account if account not in ("", "(null)") else None,
                "state": _STATES.get(state, state),
                # without a word on it (--gpus of a whole job, --exclusive) it is the node that is held
                "gpus": told or each[node],
                "ranks": told or each[node],
                "numbers": placed.get(job, {}).get(node, ()),
                "start": local_epoch(start),
            }
