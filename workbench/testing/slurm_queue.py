"""
Turn what is asked of slurmctld about jobs (leave out a node, requeue, a comment) into a changed memory of a cluster, and its jobs into tables.

Answers as release 22.05 does: what was seen of the real one is in tests/data/conformance/slurm-job-changes.json.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from workbench.parse.nodeset import expand, fold
from workbench.testing.slurm_control import Refused, holding

__all__ = ["columns", "record", "requeue", "squeue", "steps", "update"]

_STATES = {"R": "RUNNING", "PD": "PENDING", "CG": "COMPLETING", "CF": "CONFIGURING", "F": "FAILED", "CA": "CANCELLED"}
_ENDED = frozenset({"F", "CA"})
_FIELDS = {
    "i": "id", "A": "id", "F": "id", "u": "user", "a": "account", "t": "state", "T": "said", "S": "start", "D": "count", "N": "nodes",
    "b": "gres", "j": "name",
}  # fmt: skip


def _queued(state: Mapping[str, Any], number: str) -> dict[str, Any]:
    found: dict[str, Any] | None = next((job for job in state.get("queue", ()) if job["id"] == number), None)
    if found is None:
        raise Refused(f"Invalid job id specified for job {number}")
    return found


def record(job: Mapping[str, Any]) -> str:
    """Return a job of the queue as ``scontrol show job`` of 22.05 writes it, as far as anything here reads it."""
    runs = job["state"] in ("R", "CG", "CF")
    comment = f"   AdminComment={job['comment']} \n" if job.get("comment") is not None else ""
    return (
        f"JobId={job['id']} JobName={job['name']}\n   UserId={job['user']}(1000) GroupId={job['user']}(1000) MCS_label=N/A\n"
        f"   JobState={_STATES[job['state']]} Reason=None Dependency=(null)\n"
        f"   Requeue={job.get('requeue', 1)} Restarts={job.get('restarts', 0)} BatchFlag=1 Reboot=0 ExitCode=0:0\n"
        f"   SubmitTime={job['start']} EligibleTime={job['start']}\n   StartTime={job['start']} EndTime=Unknown Deadline=N/A\n"
        f"   ReqNodeList=(null) ExcNodeList={job.get('excluded') or '(null)'}\n   NodeList={fold(job['nodes']) if runs else ''}\n{comment}"
    )


def update(state: dict[str, Any], words: Sequence[str]) -> None:
    """
    Change a job as ``scontrol update jobid=…`` does.

    Raises
    ------
    Refused
        With slurmctld's words.
    """
    given = {key.lower(): value for key, equals, value in (word.partition("=") for word in words) if equals}
    if set(given) - {"jobid", "excnodelist", "admincomment"} or len(given) != len(words):
        raise Refused(f"Unknown or unsupported here: update {' '.join(words)}")
    number = given["jobid"]
    if state.get("user", "root") != "root":
        raise Refused(f"{'Invalid user id' if 'excnodelist' in given else 'Access/permission denied'} for job {number}")
    job = _queued(state, number)
    if "excnodelist" in given:
        if any(name not in state["nodes"] for name in expand(given["excnodelist"])):
            raise Refused(f"Invalid node name specified for job {number}")
        if job["state"] != "PD":
            raise Refused(f"Job is no longer pending execution for job {number}")
        job["excluded"] = given["excnodelist"]
    if "admincomment" in given:
        job["comment"] = given["admincomment"]


def requeue(state: dict[str, Any], words: Sequence[str]) -> None:
    """
    Let a job end and wait to start again, as ``scontrol requeue`` does.

    Raises
    ------
    Refused
        With slurmctld's words.
    """
    (number,) = words
    if state.get("user", "root") != "root":
        raise Refused(f"Access/permission denied for job {number}")
    job = _queued(state, number)
    if not job.get("requeue", 1):
        raise Refused(f"Requested operation is presently disabled for job {number}")
    if job["state"] == "PD":
        raise Refused(f"Job is pending execution for job {number}")
    job |= {"state": "PD", "nodes": [], "restarts": job.get("restarts", 0) + 1}


def columns(state: Mapping[str, Any], form: str) -> str:
    """Answer for ``squeue --noheader --Format=…`` of the fields that tell whether a job starts again."""
    names = {"jobid": "id", "requeue": "requeue", "batchflag": "batch"}
    fields = [re.fullmatch(r"(\w+):(\D)", one) for one in form.split(",")]
    if not all(one and one[1].lower() in names for one in fields):
        raise Refused(f"squeue: error: Invalid job format specification: {form}")
    rows = [{"requeue": 1, "batch": 1, **job} for job in holding(state) if job["state"] not in _ENDED]
    return "".join("".join(f"{row[names[one[1].lower()]]}{one[2]}" for one in fields if one) + "\n" for row in rows)


def squeue(state: Mapping[str, Any], given: Mapping[str, str]) -> str:
    """
    Answer for ``squeue --noheader --format=…``.

    Raises
    ------
    Refused
        With squeue's words.
    """
    wanted = set(expand(given["nodes"])) if "nodes" in given else None
    if wanted is not None and (lost := sorted(wanted - set(state["nodes"]))):
        raise Refused(f"squeue: error: Invalid node name {lost[0]}")
    states = set(given["states"].split(",")) if "states" in given else set(_STATES) - _ENDED
    lines = []
    for job in holding(state):
        if (wanted is not None and not wanted & set(job["nodes"])) or not states & {job["state"], "all"}:
            continue
        values = {
            "account": "(null)",
            **job,
            "count": len(job["nodes"]),
            "nodes": ",".join(job["nodes"]),
            "said": _STATES.get(job["state"], job["state"]),
        }
        lines.append(re.sub(r"%([a-zA-Z])", lambda found: str(values[_FIELDS[found[1]]]), given["format"]) + "\n")  # noqa: B023
    return "".join(lines)


def steps(state: Mapping[str, Any]) -> list[str]:
    """Return the records of ``scontrol show step``: each running job's batch step, and those that its ``steps`` name (tasks, dist, nodes)."""
    found = []
    for job in holding(state):
        if job["state"] != "R":
            continue
        told = [{"step": "batch", "tasks": 1, "nodes": job["nodes"][:1], "dist": ""}]
        told += [{"step": number, "nodes": job["nodes"], **one} for number, one in enumerate(job.get("steps", ()))]
        found += [
            f"StepId={job['id']}.{one['step']} UserId=1000 StartTime={job['start']} TimeLimit=UNLIMITED\n"
            f"   State=RUNNING Partition=train NodeList={fold(one['nodes'])}\n"
            f"   Nodes={len(one['nodes'])} CPUs={one['tasks']} Tasks={one['tasks']} Name=python Network=(null)\n"
            f"   TRES=(null)\n   ResvPorts=(null)\n   CPUFreqReq=Default{' Dist=' + one['dist'] if one['dist'] else ''}\n"
            "   SrunHost:Pid=(null):0\n"
            for one in told
        ]
    return found
