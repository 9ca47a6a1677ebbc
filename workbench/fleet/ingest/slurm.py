"""Turn what sacct, sinfo, scontrol and sacctmgr say, as text or JSON, into jobs, their attempts, and stretches of nodes' lives."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workbench.catalog import signatures
from workbench.fleet.ingest.told import Told
from workbench.model import JobRecord, Line
from workbench.parse.nodeset import expand
from workbench.parse.slurm import parse_slurm, parse_slurm_json
from workbench.parse.slurm_words import base_state, job_event, local_epoch, reason_meaning
from workbench.sources.slurm.jobs import from_json

__all__ = ["of_slurm", "of_slurm_json"]

# job states of Slurm → ours; https://slurm.schedmd.com/sacct.html#SECTION_JOB-STATE-CODES (2026-11-30). REQUEUED is a start that ended without
# its job: sacct does not say why. What is not here goes on
_ENDS = {
    "BOOT_FAIL": "failed",
    "CANCELLED": "cancelled",
    "COMPLETED": "completed",
    "DEADLINE": "timeout",
    "FAILED": "failed",
    "LAUNCH_FAILED": "failed",
    "NODE_FAIL": "failed",
    "OUT_OF_MEMORY": "failed",
    "PREEMPTED": "preempted",
    "REQUEUED": "failed",
    "REVOKED": "cancelled",
    "SPECIAL_EXIT": "failed",
    "TIMEOUT": "timeout",
}
_WAITS = ("PENDING", "CONFIGURING", "REQUEUE_HOLD")
# states that say by themselves why a job ended; of all others a state says only that it did
_TELLING = ("BOOT_FAIL", "DEADLINE", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT")
# node states → ours; https://slurm.schedmd.com/sinfo.html#SECTION_NODE-STATE-CODES (2026-11-30); the first that is among a state's words
_NODES = (
    (("MAINT", "PLANNED", "REBOOT", "REBOOT_ISSUED", "REBOOT_REQUESTED", "RESERVED"), "maintenance"),
    (("DOWN", "FAIL", "ERROR", "INVAL", "INVALID_REG", "NOT_RESPONDING", "NO_RESPOND", "UNK", "UNKNOWN"), "down"),
    (("DRAIN", "DRAINED", "DRAINING", "FAILING"), "held"),
)
_GPUS = re.compile(r"(?:^|,)gres/gpu(?::([\w.-]+))?=(\d+)")


def of_slurm(lines: Sequence[Line], *, file: str, recorded: float, cluster: str = "") -> Told:
    """
    Return what tables of Slurm say.

    Parameters
    ----------
    lines : sequence of Line
        The output of ``sacct -D -P -o …``, ``sacctmgr show event``, ``sinfo``, ``scontrol show node``, with its header; also of several, one
        after another. ``-D`` tells every start of a job that was requeued, ``Restarts`` its number.
    file : str
    recorded : float
        When it was told, seconds since the epoch.
    cluster : str
        Name of the cluster, when the table has no column for it.
    """
    told = Told()
    parsed = parse_slurm(lines, file=file)
    told.problems += [problem for problem in parsed.problems if problem.source == "slurm"]
    _jobs([(job, job.data) for job in parsed.jobs if not job.data.get("step")], told, file, recorded, cluster)
    # rows of `sacctmgr show event` have a begin and an end; the state that a node has now begins when it was set
    _events(lines, told, file, recorded, cluster)
    for one in parsed.conditions:
        if one.kind == "state" and one.node:
            _node(told, one.node, one.status, one.reason, one.since, None, recorded, cluster)
    _nothing(told, file)
    return told


def of_slurm_json(data: Any, *, file: str, recorded: float, cluster: str = "") -> Told:
    """Return what ``sacct --json``, ``scontrol show node --json`` or ``sinfo --json`` say; as `of_slurm`."""
    told = Told()
    rows = []
    jobs = data.get("jobs") if isinstance(data, Mapping) else None
    for place, raw in enumerate(jobs if isinstance(jobs, list) else (), 1):
        try:
            (allocation,) = from_json({"jobs": [raw]})
            job = parse_slurm_json({"jobs": [{**raw, "steps": []}]}, file=file).jobs[0]
        except (ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
            told.wrong(file, f"job {place} is none that Slurm writes: {str(error)[:80]}", "it is left out")
            continue
        job.id, job.start, job.end = allocation.id, allocation.start, allocation.end
        job.nodes = list(allocation.nodes)
        tres = raw.get("tres") if isinstance(raw.get("tres"), Mapping) else {}
        more = {
            **job.data,
            "submitted": allocation.submit,
            "partition": allocation.partition,
            "account": str(raw.get("account") or "") or None,
            "cluster": str(raw.get("cluster") or "") or None,
            "alloctres": _tres((tres or {}).get("allocated")) or str(raw.get("tres_alloc_str") or ""),
        }
        rows.append((job, more))
    _jobs(rows, told, file, recorded, cluster)
    if not jobs:
        parsed = parse_slurm_json(data, file=file)
        told.problems += parsed.problems
        for one in parsed.conditions:
            if one.kind == "state" and one.node:
                _node(told, one.node, one.status, one.reason, one.since, None, recorded, cluster)
    _nothing(told, file)
    return told


def _nothing(told: Told, file: str) -> None:
    if not told.rows and not told.problems:
        told.wrong(file, "no job or node is told", "sacct -D -P -o JobID,JobName,State,…, with the header, or sacct --json")


def _tres(rows: Any) -> str:
    if not isinstance(rows, list):
        return ""
    gres = [row for row in rows if isinstance(row, Mapping) and row.get("type") == "gres"]
    return ",".join(f"gres/{row.get('name')}={row.get('count')}" for row in gres)


# ---- jobs


def _jobs(rows: Iterable[tuple[JobRecord, Mapping[str, Any]]], told: Told, file: str, recorded: float, cluster: str) -> None:
    by_job: dict[tuple[str, str], list[tuple[JobRecord, Mapping[str, Any]]]] = {}
    for job, more in rows:
        if job.id and base_state(job.state) is None:
            told.wrong(file, f"job {job.id[:40]} is in no state that Slurm has: {str(job.state)[:40]!r}", "it is left out")
        elif job.id:
            by_job.setdefault((str(more.get("cluster") or cluster), job.id), []).append((job, more))
    for key, tries in by_job.items():
        tries.sort(key=lambda one: (_submitted(one[1]) or 0.0, one[0].start or 1e12))
        _job(key, tries, told, file, recorded)


def _submitted(more: Mapping[str, Any]) -> float | None:
    told = more.get("submitted")
    return float(told) if isinstance(told, int | float) else local_epoch(str(more.get("submit") or ""))


def _job(key: tuple[str, str], tries: list[tuple[JobRecord, Mapping[str, Any]]], told: Told, file: str, recorded: float) -> None:
    common = {"cluster": key[0], "job": key[1], "source": "slurm", "recorded": recorded}
    numbers = [one.restarts for one, _ in tries]
    told_numbers = [number for number in numbers if number is not None]
    counted = len(told_numbers) == len(tries) and len(set(told_numbers)) == len(tries)
    if not counted:
        told.unnumbered.add(key)
    starts = []
    for place, (one, more) in enumerate(tries):
        state, cls = _end(one)
        gpus, _ = _gpus(more)
        failed = expand(str(more.get("failednode") or ""))
        attempt = {
            **common,
            "attempt": (one.restarts or 0) + 1 if counted else place + 1,
            "queued": _submitted(more),
            "started": one.start,
            "ended": one.end if state not in ("pending", "running") else None,
            "state": state,
            "exit_code": -one.signal if one.signal else one.exit_code,
            "cause": cls.split("/")[0] if cls else None,
            "cls": cls or None,
            "node_names": list(one.nodes),
            "gpus": gpus,
        }
        if cls == "platform/node-lost" and len(failed) == 1:
            attempt |= {"node": failed[0], "at_fault": "node"}
        if one.start is not None or one.nodes:  # one that only waits is no start
            starts.append(attempt)
    told.rows.setdefault("attempts", []).extend(starts)
    last, more = tries[-1]
    state, cls = _end(last)
    gpus, sku = _gpus(more)
    submitted = [moment for _, row in tries if (moment := _submitted(row)) is not None]
    begun = [one.start for one, _ in tries if one.start is not None]
    told.add(
        "jobs",
        **common,
        name=last.name,
        user=last.user,
        team=more.get("account"),
        pool=more.get("partition"),
        sku=sku,
        nodes=len(last.nodes) or None,
        gpus=gpus,
        submitted=min(submitted, default=None),
        started=min(begun, default=None),
        ended=last.end if state not in ("pending", "running") else None,
        state=state,
        cause=cls.split("/")[0] if cls else None,
        cls=cls or None,
    )


def _end(job: JobRecord) -> tuple[str, str]:
    """Return state and class of an end; the class is empty where the state does not say why."""
    word = base_state(job.state) or ""
    state = _ENDS.get(word, "pending" if word in _WAITS else "running")
    out_of_memory = word == "OUT_OF_MEMORY" or (word == "FAILED" and job.signal == 125)
    if word not in _TELLING and not out_of_memory:
        return state, ""
    event = job_event(job, "")
    row = signatures().get(event.signature) if event is not None else None
    return state, str(row.cls) if row is not None and row.cls else ""


def _gpus(more: Mapping[str, Any]) -> tuple[int | None, str | None]:
    """Return how many GPUs were held, and their product where the type is told: of ``gres/gpu:h100=16,gres/gpu=16``."""
    whole, typed, sku = None, 0, None
    text = str(more.get("alloctres") or "")
    for kind, number in _GPUS.findall(text):
        if kind:
            typed, sku = typed + int(number), sku or kind
        else:
            whole = int(number)
    if whole is None and typed:
        whole = typed
    if whole is None and text:
        whole = 0  # what was held is told, and no GPU is among it
    return whole, sku


# ---- nodes


def _events(lines: Sequence[Line], told: Told, file: str, recorded: float, cluster: str) -> None:
    """Read the rows of ``sacctmgr show event``: pipes, or columns under dashes."""
    names: list[str] = []
    spans: list[tuple[int, int]] = []
    for line in lines:
        text = line.text.rstrip()
        words = [word.strip().upper() for word in (text.split("|") if "|" in text else text.split())]
        if {"NODENAME", "TIMESTART"} <= set(words):
            names, spans = words, []
            continue
        if not names:
            continue
        if re.fullmatch(r"[\s-]*-{2,}[\s-]*", text):
            spans = [found.span() for found in re.finditer(r"-+", text)]
            continue
        if spans:
            cells = [text[begin:end].strip() for begin, end in spans]
        else:
            cells = [cell.strip() for cell in text.split("|")]
        if not text.strip():
            names = []
            continue
        row = dict(zip(names, cells, strict=False))
        begin = local_epoch(row.get("TIMESTART"))
        nodes = expand(row.get("NODENAME"), limit=4096)
        if len(cells) < len(names) or begin is None:
            told.wrong(file, "a row of sacctmgr show event is cut", "run it again with -P", line.no)
            continue
        for node in nodes:
            where = row.get("CLUSTER") or cluster
            _node(
                told,
                node,
                row.get("STATE") or "",
                row.get("REASON") or "",
                begin,
                local_epoch(row.get("TIMEEND")),
                recorded,
                where,
            )


def _node(
    told: Told, node: str, state: str, reason: str, begin: float | None, end: float | None, recorded: float, cluster: str
) -> None:
    words = set(re.split(r"[+\s]", state.upper().strip().rstrip("*~#!%$@^-")))
    kind = next((ours for theirs, ours in _NODES if words & set(theirs)), "down" if state.endswith("*") else "usable")
    if kind == "usable" and begin is None:
        return  # since when is not told: that it is usable now is no stretch of its life
    meaning = reason_meaning(reason) if reason and kind != "usable" else {}
    row = signatures().get(str(meaning.get("signature") or ""))
    cls = str(meaning.get("cls") or (row.cls if row is not None and row.role == "cause" else "") or "")
    told.add(
        "node_states",
        cluster=cluster,
        node=node,
        begin=begin if begin is not None else recorded,
        end=end,
        state=kind,
        cause=None if kind in ("usable", "maintenance") else cls.split("/")[0] if cls else "unknown",
        cls=cls or None,
        reason=reason or None,
        source="slurm",
        recorded=recorded,
    )
    if kind == "down" and begin is not None:
        told.out_of_service(cluster, node, begin, cls=cls, detail=reason or state, source="slurm", recorded=recorded)
