"""Turn what sacct and scontrol say, as text or JSON, into the allocations of one job: its tasks, components, tries, nodes and times."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import Any

from workbench.parse.nodeset import expand
from workbench.parse.slurm_words import base_state, local_epoch

__all__ = ["FIELDS", "SEPARATOR", "Allocation", "chosen", "from_json", "from_scontrol", "from_table", "is_number", "parts"]

SEPARATOR = "\x1f"  # no name, path or command line holds it, unlike the bar
# what locating a job needs; the name comes last, since it is the user's
FIELDS = (
    "JobID",
    "JobIDRaw",
    "State",
    "Submit",
    "Start",
    "End",
    "NodeList",
    "User",
    "UID",
    "Partition",
    "StdOut",
    "StdErr",
    "WorkDir",
    "SubmitLine",
    "JobName",
)
# 4711 | 4711_3 | 4711+1 | 4711.batch | 4711_3.0 | 4711_[3-5]
_NUMBER = re.compile(r"(\d{1,10})(?:_(\d{1,10}|\[[\d,%-]+\]))?(?:\+(\d{1,6}))?(?:\.(?:batch|extern|interactive|\d{1,10}))?$")
_FLAGS = ("REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "LAUNCH_FAILED")
# JobId=4 ArrayJobId=2 ArrayTaskId=1 JobName=a name UserId=root(0) …; the name may hold blanks
_PAIR = re.compile(r"(?:^|\s)([A-Z][A-Za-z]+)=(\S*)")
_NAME = re.compile(r"\bJobName=(.*?)\s+UserId=")


@dataclass(frozen=True, slots=True)
class Allocation:
    """
    One try of one job, array task or component of a heterogeneous job.

    Attributes
    ----------
    id : str
        As people write it: ``4711``, ``4711_3``, ``4711+1``.
    raw : str
        The number that Slurm gave this task or component.
    group : str
        The number that all tasks or components share.
    submit, start, end : float or None
        Seconds since the epoch; None while it has not happened.
    stdout, stderr : str
        Paths, with patterns (``%j``) when Slurm does not expand them; empty when not told.
    """

    id: str
    raw: str
    group: str
    name: str
    state: str
    nodes: tuple[str, ...] = ()
    submit: float | None = None
    start: float | None = None
    end: float | None = None
    user: str = ""
    uid: int | None = None
    partition: str = ""
    stdout: str = ""
    stderr: str = ""
    workdir: str = ""
    submit_line: str = ""

    @property
    def task(self) -> str:
        """The number of the array task, or empty."""
        found = _NUMBER.match(self.id)
        return found[2] or "" if found and (found[2] or "").isdigit() else ""


def is_number(job: str) -> bool:
    """Tell whether a job is given by number (``4711``, ``4711_3``, ``4711+1``, ``4711.batch``) rather than by name."""
    return _NUMBER.match(job) is not None


def parts(job: str) -> tuple[str, str]:
    """Return the number of a job without its step, and of all of it without task and component: ``4711_3.0`` → 4711_3, 4711."""
    found = _NUMBER.match(job)
    return (job.split(".")[0], found[1]) if found else (job, job)


@lru_cache(maxsize=1024)
def _nodes(text: str) -> tuple[str, ...]:
    """Tries and tasks of one job name the same nodes again and again, thousands of them."""
    return tuple(expand(text))


def _known(text: str) -> str:
    return "" if text.strip() in ("Unknown", "None", "N/A", "(null)", "None assigned") else text.strip()


def from_table(text: str, fields: Sequence[str]) -> list[Allocation]:
    """Return the allocations of ``sacct --parsable2 --noheader --delimiter=\\x1f`` with these fields, steps left out; torn rows too."""
    found = []
    for line in text.split("\n"):
        words = line.split(SEPARATOR, len(fields) - 1)
        if len(words) != len(fields):
            continue
        row = dict(zip(fields, words, strict=True))
        number = _NUMBER.match(row["JobID"])
        if not number or "." in row["JobID"]:
            continue
        found.append(
            Allocation(
                id=row["JobID"],
                raw=row.get("JobIDRaw") or number[1],
                group=number[1],
                name=row.get("JobName", ""),
                state=row.get("State", ""),
                nodes=_nodes(row.get("NodeList") or ""),
                submit=local_epoch(row.get("Submit")),
                start=local_epoch(row.get("Start")),
                end=local_epoch(row.get("End")),
                user=row.get("User", ""),
                uid=int(row["UID"]) if row.get("UID", "").isdigit() else None,
                partition=row.get("Partition", ""),
                stdout=_known(row.get("StdOut", "")),
                stderr=_known(row.get("StdErr", "")),
                workdir=_known(row.get("WorkDir", "")),
                submit_line=_known(row.get("SubmitLine", "")),
            )
        )
    return found


def _number(value: Any) -> float | None:
    """A number of any release: plain, or ``{"set": true, "infinite": false, "number": 3}``; 0 is Slurm's word for not yet."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set", True) and not value.get("infinite") else None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value) else None


def _inner(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def from_json(data: Any) -> list[Allocation]:
    """Return the allocations of ``sacct --json`` of any release; what is no job is left out."""
    found = []
    jobs = _inner(data).get("jobs")
    for job in jobs if isinstance(jobs, list) else ():
        raw = _number(_inner(job).get("job_id"))
        if raw is None:
            continue
        array, het, times = _inner(job.get("array")), _inner(job.get("het")), _inner(job.get("time"))
        group, name = int(raw), str(int(raw))
        task = array.get("task_id")
        if of := _number(array.get("job_id")):
            group = int(of)
            # 22.05 says null for no task; later releases {"set": false}
            number = _number(task)
            name = f"{group}_{int(number)}" if number is not None else f"{group}_[{array.get('task') or ''}]"
        elif of := _number(het.get("job_id")):
            group = int(of)
            name = f"{group}+{int(_number(het.get('job_offset')) or 0)}"
        states = _inner(job.get("state")).get("current")
        words = [str(word) for word in states] if isinstance(states, list) else [str(states or "")]
        uid = _number(job.get("user_id"))
        found.append(
            Allocation(
                id=name,
                raw=str(int(raw)),
                group=str(group),
                name=str(job.get("name") or ""),
                # a try that was requeued is ["PENDING", "REQUEUED"] in 24.11: what sacct's text calls REQUEUED
                state=next((word for word in words if word in _FLAGS), words[0] if words else ""),
                nodes=_nodes(str(job.get("nodes") or "")),
                submit=_number(times.get("submission")) or None,
                start=_number(times.get("start")) or None,
                end=_number(times.get("end")) or None,
                user=str(job.get("user") or ""),
                uid=int(uid) if uid is not None else None,
                partition=str(job.get("partition") or ""),
                stdout=_known(str(job.get("stdout_expanded") or job.get("stdout") or "")),
                stderr=_known(str(job.get("stderr_expanded") or job.get("stderr") or "")),
                workdir=_known(str(job.get("working_directory") or "")),
                submit_line=_known(str(job.get("submit_line") or "")),
            )
        )
    return found


def from_scontrol(text: str) -> list[Allocation]:
    """Return the allocations of ``scontrol show job``, in one line a job or many: all that is left where nothing keeps accounts."""
    found = []
    for record in re.split(r"(?m)^(?=JobId=)", text):
        row: dict[str, str] = {}
        for key, value in _PAIR.findall(record):
            row.setdefault(key, value)
        if not row.get("JobId", "").isdigit():
            continue
        raw, group, name = row["JobId"], row["JobId"], row["JobId"]
        if row.get("ArrayJobId", "").isdigit():
            group, name = row["ArrayJobId"], f"{row['ArrayJobId']}_{row.get('ArrayTaskId', '')}"
            if not row.get("ArrayTaskId", "").isdigit():
                name = f"{group}_[{row.get('ArrayTaskId', '')}]"
        elif row.get("HetJobId", "").isdigit():
            group, name = row["HetJobId"], f"{row['HetJobId']}+{row.get('HetJobOffset', '0')}"
        user = re.match(r"(.*?)\((\d+)\)$", row.get("UserId", ""))
        title = _NAME.search(record)
        state = row.get("JobState", "")
        ended = base_state(state) not in ("RUNNING", "PENDING", "CONFIGURING", "SUSPENDED", None)  # else EndTime is in the future
        found.append(
            Allocation(
                id=name,
                raw=raw,
                group=group,
                name=title[1] if title else row.get("JobName", ""),
                state=state,
                nodes=_nodes(row.get("NodeList") or ""),
                submit=local_epoch(row.get("SubmitTime")),
                start=local_epoch(row.get("StartTime")) if state != "PENDING" else None,
                end=local_epoch(row.get("EndTime")) if ended else None,
                user=user[1] if user else "",
                uid=int(user[2]) if user else None,
                partition=row.get("Partition", ""),
                stdout=_rest(record, "StdOut"),
                stderr=_rest(record, "StdErr"),
                workdir=_rest(record, "WorkDir"),
            )
        )
    return found


def _rest(record: str, key: str) -> str:
    """A path runs to the end of its line, or in the form with one line a job to the next key: it may hold blanks."""
    found = re.search(rf"\b{key}=(.*?)(?=\s+[A-Z][A-Za-z]+=|\s*$)", record, re.M)
    return _known(found[1]) if found else ""


def chosen(
    rows: Iterable[Allocation], job: str, since: float, until: float, attempt: int | None = None, *, by_name: bool = False
) -> tuple[list[Allocation], list[Allocation]]:
    """
    Return the allocations of the job that is meant, and the newest allocation of each other job of that name.

    Parameters
    ----------
    rows : iterable of Allocation
        Tries of one task in the order in which they happened.
    job : str
        A number takes that job, task or component; a name takes the newest job of exactly that name.
    since, until : float
        Jobs that ended before or were submitted after this window do not count.
    attempt : int, optional
        Only this start of each task, counted from 1.
    by_name : bool
        Take a job that looks like a number for a name all the same.
    """
    inside = [
        row
        for row in rows
        # where tries are counted, those before the window count
        if attempt is not None or (not (row.end is not None and row.end < since) and (row.submit or row.start or since) <= until)
    ]
    if is_number(job) and not by_name:
        one, group = parts(job)
        taken = [row for row in inside if one in (row.id, row.raw) or (one == group and group == row.group)]
        others: list[Allocation] = []
    else:
        newest: dict[str, Allocation] = {}
        for row in inside:
            if row.name == job and (row.group not in newest or _age(row) >= _age(newest[row.group])):
                newest[row.group] = row
        groups = sorted(newest, key=lambda group: (_age(newest[group]), int(group)))
        taken = [row for row in inside if groups and row.group == groups[-1] and row.name == job]
        others = [newest[group] for group in reversed(groups[:-1])]
    if attempt is not None:
        tries: dict[str, list[Allocation]] = {}
        for row in taken:
            tries.setdefault(row.id, []).append(row)
        taken = [rows[attempt - 1] for rows in tries.values() if 0 < attempt <= len(rows)]
    return taken, others


def _age(row: Allocation) -> float:
    return row.start or row.submit or 0.0
