"""Turn what scheduler, launcher and logs tell of a job into who it was and what its failure cost, None with a reason where unknown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from workbench.model import Event, JobRecord, Verdict
    from workbench.triage.context import Context

__all__ = ["impact_of", "job_of"]

JOB = ("id", "name", "namespace", "user", "team", "scheduler", "cluster", "start", "end", "state", "ranks", "nodes", "gpus")
_SLURM = ("sacct", "scontrol", "squeue", "slurmctld", "slurm", "slurmrestd")
# gres/gpu=32 | gres/gpu:h100=32 in a list of trackable resources; the first without a type counts all (Slurm, sacct(1) AllocTRES)
_TRES = re.compile(r"(?:^|,)gres/gpu=(\d+)")
_TRES_TYPED = re.compile(r"(?:^|,)gres/gpu:[^=,]+=(\d+)")
_JOB_SOURCES = ("job", "launcher", "torchelastic", "slurm", "kubernetes")


def job_of(context: Context, verdict: Verdict) -> dict[str, Any]:
    """Return who the job was: keys of `JOB`, None where nobody told."""
    job: dict[str, Any] = dict.fromkeys(JOB)
    rows = _own(context.incident.jobs, context)
    shift = context.job_offset
    for row in rows:
        slurm = row.source in _SLURM
        job["id"] = job["id"] or row.id
        job["name"] = job["name"] or row.name
        job["user"] = job["user"] or row.user
        job["namespace"] = job["namespace"] or row.data.get("namespace")
        job["team"] = job["team"] or row.data.get("account")
        job["cluster"] = job["cluster"] or row.data.get("cluster")
        job["scheduler"] = job["scheduler"] or ("slurm" if slurm else "kubernetes" if row.source == "kubernetes" else None)
        job["state"] = job["state"] or row.state
        job["gpus"] = job["gpus"] or _tres(row)
        # Slurm's tools print the site's local time; the job's own clock tells which that is
        local = shift if slurm else 0.0
        if job["start"] is None and row.start is not None:
            job["start"] = row.start - local
        if job["end"] is None and row.end is not None:
            job["end"] = row.end - local
    for document in context.incident.documents:
        pods = document.facts.get("pods")
        for pod, facts in pods.items() if isinstance(pods, dict) else ():
            if pod in context.job_pods:
                job["name"] = job["name"] or facts.get("job")
                job["namespace"] = job["namespace"] or facts.get("namespace")
                job["team"] = job["team"] or facts.get("team")
                job["scheduler"] = job["scheduler"] or "kubernetes"
        if isinstance(pods, dict) and job["gpus"] is None:
            job["gpus"] = sum(int(facts.get("gpus") or 0) for pod, facts in pods.items() if pod in context.job_pods) or None
    job["ranks"] = context.world_size or (len(context.rank_node) or None)
    job["nodes"] = len(context.job_nodes) or None
    if job["gpus"] is None and context.rank_gpu and len(context.rank_gpu) == job["ranks"]:
        job["gpus"] = len({(context.rank_node.get(rank), gpu) for rank, gpu in context.rank_gpu.items()})
    if job["end"] is None and context.end is not None and (verdict.cls != "none" or context.finished):
        job["end"] = max([context.end, *[life.end for life in context.lives if life.end is not None]])
    if job["start"] is None:
        job["start"] = context.start
    return job


def _own(jobs: Iterable[JobRecord], context: Context) -> list[JobRecord]:
    """Return the records of the failed job itself, the scheduler's accounting first: neither its steps nor other jobs'."""
    rows = [row for row in jobs if not row.data.get("step") and row.data.get("main") is not False]
    ends = [row for row in rows if row.end is not None] or rows
    if not ends:
        return rows
    main = max(ends, key=lambda row: (bool(row.data.get("main")), row.source == "sacct", _overlap(row, context)))
    return [main, *[row for row in rows if row is not main and (row.id == main.id or (row.id is None and row.name == main.name))]]


def _overlap(row: JobRecord, context: Context) -> int:
    return len({context.node(name) for name in row.nodes} & context.job_nodes)


def _tres(row: JobRecord) -> int | None:
    text = str(row.data.get("alloctres") or row.data.get("tres") or "")
    found = _TRES.search(text)
    if found:
        return int(found[1]) or None
    return sum(int(number) for number in _TRES_TYPED.findall(text)) or None


def impact_of(context: Context, verdict: Verdict, job: Mapping[str, Any], ranks: pd.DataFrame) -> dict[str, Any]:
    """
    Return what the failure cost.

    Returns
    -------
    dict
        ``ranks``, ``nodes``, ``gpus``, ``gpu_hours`` (GPUs held from the first failure to the job's end), ``gpu_hours_lost`` (work since
        the last checkpoint, when logs tell of one), ``detection_seconds`` (from the first evidence to the first word of the job or its
        scheduler), and ``why`` for each that is None. Times in hours or seconds.
    """
    why: dict[str, str] = {}
    impact: dict[str, Any] = {
        "ranks": job.get("ranks") or (len(ranks) or None),
        "nodes": job.get("nodes"),
        "gpus": job.get("gpus"),
    }
    for name in ("ranks", "nodes", "gpus"):
        if impact[name] is None:
            why[name] = f"no evidence tells how many {'GPUs' if name == 'gpus' else name} the job had"
    failed = verdict.time if verdict.time is not None else context.fail
    impact["gpu_hours"] = impact["gpu_hours_lost"] = impact["detection_seconds"] = None
    end, gpus = job.get("end"), impact["gpus"]
    if verdict.cls == "none":
        impact["gpu_hours"], impact["gpu_hours_lost"] = (0.0, 0.0) if context.finished or _ended_well(job) else (None, None)
        why["detection_seconds"] = "nothing failed"
        if impact["gpu_hours"] is None:
            why["gpu_hours"] = why["gpu_hours_lost"] = (
                "nothing failed as far as the evidence goes, which does not tell how the job ended"
            )
        impact["why"] = why
        return impact
    if failed is None:
        why["gpu_hours"] = why["gpu_hours_lost"] = why["detection_seconds"] = "no evidence tells when it failed"
    else:
        if gpus is None:
            why["gpu_hours"] = why["gpus"]
        elif end is None:
            why["gpu_hours"] = "no evidence tells when the job ended"
        else:
            impact["gpu_hours"] = round(max(end - failed, 0.0) * gpus / 3600.0, 3)
        _lost(context, failed, end, gpus, impact, why)
        _detection(context, verdict, failed, impact, why)
    impact["why"] = why
    return impact


def _ended_well(job: Mapping[str, Any]) -> bool:
    return str(job.get("state") or "").upper().startswith(("COMPLETED", "SUCCEEDED"))


def _lost(
    context: Context, failed: float, end: float | None, gpus: int | None, impact: dict[str, Any], why: dict[str, str]
) -> None:
    before = [time for time in saves(context) if time <= failed]
    partly = any(document.kind == "job-log" and not document.complete for document in context.incident.documents)
    until = end if end is not None else failed
    if gpus is None:
        why["gpu_hours_lost"] = why["gpus"]
    elif not before:
        why["gpu_hours_lost"] = (
            "no log line that was kept tells of a checkpoint; the logs are too large to be kept whole"
            if partly
            else "no log line with a time tells of a checkpoint"
        )
    else:
        impact["gpu_hours_lost"] = round(max(until - max(before), 0.0) * gpus / 3600.0, 3)


def saves(context: Context) -> list[float]:
    """
    Return when checkpoints were complete, as far as log lines tell (seconds since the epoch, rising).

    A line without a stamp that names its step has the time at which the job told of that step.
    """
    moments = []
    steps = [(time, step) for time, _, step, _ in context.progress if step is not None]
    for document in context.incident.documents:
        for time, _, step in document.facts.get("checkpoints") or ():
            if time is not None:
                moments.append(time - context.job_offset)
            elif step is not None and (moment := _time_of(step, steps)) is not None:
                moments.append(moment)
    return sorted(moments)


def _time_of(step: int, steps: list[tuple[float, int]]) -> float | None:
    """Return about when a step was made, between the steps around it that were told; None when it lies outside of them."""
    before = max(((at, time) for time, at in steps if at <= step), default=None)
    after = min(((at, time) for time, at in steps if at >= step), default=None)
    if before is None or after is None or before[1] > after[1]:
        return None
    if after[0] == before[0]:
        return before[1]
    return before[1] + (after[1] - before[1]) * (step - before[0]) / (after[0] - before[0])


def _detection(context: Context, verdict: Verdict, failed: float, impact: dict[str, Any], why: dict[str, str]) -> None:
    events: list[Event] = [*context.events, *verdict.evidence_records]
    noticed = [
        event.time
        for event in events
        if event.source in _JOB_SOURCES
        and event.time is not None
        and event.time >= failed - 1e-3
        and context.role(event) in ("cause", "symptom")
        and not event.data.get("handled")
    ]
    noticed += [
        victim.since
        for victim in verdict.victim_records
        if victim.since is not None and victim.since >= failed and "no error" not in victim.by
    ]
    if noticed:
        impact["detection_seconds"] = round(max(min(noticed) - failed, 0.0), 3)
    else:
        why["detection_seconds"] = "neither the job nor its scheduler said a word after the failure that has a time"
