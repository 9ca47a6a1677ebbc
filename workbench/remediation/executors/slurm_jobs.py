"""
Turn the restart of a Slurm job, and what its next attempt leaves out, into calls of ``scontrol``, and the job as it is into how far that is.

Slurm keeps one text about a job that is an operator's to write: AdminComment. Our words stand there behind whatever else does,
``gpu-workbench:ID exclude NODE`` or ``gpu-workbench:ID restart N: why``, so that after a crash it is known what was begun and by whom.
Nodes can be left out only while a job waits (ExcNodeList; slurmctld refuses it for a job that runs), so an attempt that has not been handed in
yet is waited for.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.parse.nodeset import expand, fold
from workbench.parse.slurm_scontrol import show_records
from workbench.remediation.executors.contract import Deadline, ExecutorError
from workbench.remediation.model import Action, Step

__all__ = ["JOB_VERBS", "Asks", "Job", "again", "begin", "look", "undo"]

JOB_VERBS = frozenset({"exclude", "restart-task"})
_MARK = re.compile(r"gpu-workbench:([A-Za-z0-9][A-Za-z0-9-]*) (exclude|restart) ([^\s:;]+)(?:: [^;]*)?(?:; |$)")
_WAITS = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
_RUNS = frozenset({"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})
_NUMBER = re.compile(r"(\d+)(?:[_+.]\S*)?")
_ARRAY = re.compile(r"(?<=\[)([^\]%]*)%\d+(?=\])")  # 27402_[2-4%1]: scontrol takes the tasks and not how many may run at once


@dataclass(frozen=True, slots=True)
class Asks:
    """How slurmctld is asked (it raises when that fails) and told (it raises, and says whether the words may have arrived)."""

    ask: Callable[[tuple[str, ...], Deadline], str]
    tell: Callable[[tuple[str, ...], Deadline], None]
    look: Callable[[str, Deadline], str | None]  # scontrol show job: None when slurmctld knows none of that number


@dataclass(frozen=True, slots=True)
class Job:
    """An attempt of a job: the name by which it is changed, its number, that of its array, and whose it is."""

    handle: str
    number: str
    base: str
    state: str
    user: str
    name: str

    @property
    def waits(self) -> bool:
        return self.state in _WAITS

    @property
    def runs(self) -> bool:
        return self.state in _RUNS


# ---- reading


def _jobs(asks: Asks, deadline: Deadline) -> list[Job]:
    """Return all jobs that slurmctld remembers, ended ones for some minutes (MinJobAge); a name may hold anything."""
    mark = f"<{secrets.token_hex(8)}>"
    text = asks.ask(("squeue", "-h", "-a", "-t", "all", "-o", f"{mark}%i|%A|%F|%T|%u|%j"), deadline)
    found = []
    for row in text.split(mark)[1:]:
        fields = row.rstrip("\n").split("|", 5)
        if len(fields) != 6:
            raise ExecutorError(f"squeue said {row[:80]!r}, which is no job", sent=False)
        found.append(Job(_ARRAY.sub(r"\1", fields[0]), *fields[1:]))
    return found


def _attempts(job: str, jobs: list[Job]) -> list[Job]:
    """
    Return what is an attempt of a job: itself, and what its user has handed in under the same name.

    Raises
    ------
    ValueError
        Nobody knows which is meant.
    """
    number = _NUMBER.fullmatch(job)
    named = [one for one in jobs if number and number[1] in (one.number, one.base)] or [one for one in jobs if one.name == job]
    owners = {(one.user, one.name) for one in named}
    if len(owners) > 1 and not number:
        raise ValueError(f"jobs named {job} are of {', '.join(sorted(user for user, _ in owners))}: say which by its number")
    return [one for one in jobs if one in named or (one.user, one.name) in owners]


def _record(asks: Asks, number: str, deadline: Deadline) -> dict[str, str] | None:
    text = asks.look(number, deadline)
    return next((one for one in show_records(text or "") if one.get("JobId") == number), None)


def _excluded(record: Mapping[str, str]) -> list[str]:
    names = record.get("ExcNodeList", "")
    return [] if names in ("", "(null)") else expand(names)


def _comment(record: Mapping[str, str]) -> str:
    text = record.get("AdminComment", "")
    return "" if text == "(null)" else text


def _ours(record: Mapping[str, str], op: str) -> re.Match[str] | None:
    return next((one for one in _MARK.finditer(_comment(record)) if one[1] == op), None)


def _with(record: Mapping[str, str], mark: str) -> str:
    return f"{old}; {mark}" if (old := _comment(record)) else mark


def _without(record: Mapping[str, str], found: re.Match[str]) -> str:
    text = _comment(record)
    return (text[: found.start()] + text[found.end() :]).removesuffix("; ")


def _why(action: Action) -> str:
    return re.sub(r"[^\w .,:/()%+\[\]-]", "_", " ".join(str(action.args.get("reason") or action.why).split()))[:120].strip()


def again(asks: Asks, deadline: Deadline) -> frozenset[str]:
    """
    Return the numbers of the jobs that Slurm itself starts again when it is told to: batch jobs that may be requeued.

    What cannot be asked (squeue of a release without these fields) gives none, so nobody's job is ended in the belief that it starts again.
    """
    try:
        text = asks.ask(("squeue", "-h", "-a", "-O", "JobID:|,Requeue:|,BatchFlag:|"), deadline)
    except ExecutorError:
        return frozenset()
    rows = (line.strip().split("|") for line in text.splitlines())
    return frozenset(row[0].strip() for row in rows if len(row) >= 3 and row[1].strip() == row[2].strip() == "1")


# ---- doing


def begin(action: Action, asks: Asks, deadline: Deadline, unfit: Callable[[], str]) -> Step:
    """Do it, unless it has been done; `unfit` tells why the node is not as the action expects."""
    step = look(action, asks, deadline)
    if step.status not in ("absent", "blocked"):
        return step
    if why := unfit():
        return Step("changed", why)
    return _restart(action, asks, deadline) if action.verb == "restart-task" else _exclude(action, asks, deadline, step)


def look(action: Action, asks: Asks, deadline: Deadline) -> Step:
    """Tell how far it is, by what slurmctld says of the job."""
    if action.verb == "restart-task":
        return _restarted(action, _record(asks, _number(action), deadline))
    try:
        attempts = _attempts(_job(action), _jobs(asks, deadline))
    except ValueError as error:
        return Step("failed", str(error))
    records = [(one, record) for one in attempts if not _over(one) and (record := _record(asks, one.number, deadline))]
    marked = [(one, record) for one, record in records if _ours(record, action.id)]
    if lost := [one for one, record in marked if action.node not in _excluded(record)]:
        return Step("changed", f"somebody let job {lost[0].handle} use {action.node} again")
    waiting = [(one, record) for one, record in records if one.waits]
    open_ = [one for one, record in waiting if action.node not in _excluded(record)]
    if not open_ and (marked or waiting):
        names = ", ".join(dict.fromkeys(one.handle for one, _ in [*marked, *waiting]))
        return Step("done", f"{names} leaves out {action.node}")
    if open_:
        return Step("absent", f"{open_[0].handle} may start on {action.node}")
    if not attempts:
        return Step("absent", f"slurmctld remembers no job {_job(action)}")
    runs = next((one for one in attempts if one.runs), None)
    return Step("absent", f"job {runs.handle} runs" if runs else f"no attempt of {_job(action)} waits")


def _exclude(action: Action, asks: Asks, deadline: Deadline, seen: Step) -> Step:
    attempts = _attempts(_job(action), _jobs(asks, deadline))
    if not attempts:
        return Step("failed", f"{seen.detail}: its next attempt needs --exclude={action.node}")
    waiting = [one for one in attempts if one.waits]
    if not waiting:
        # slurmctld: "Job is no longer pending execution". It is set when the job is requeued or its next attempt is handed in
        return Step(
            "blocked", f"{seen.detail}: Slurm leaves out a node for what waits only (or: --exclude={action.node})", again=15.0
        )
    kept: dict[str, Any] = {}
    for one in waiting:
        record = _record(asks, one.number, deadline)
        if record is None:
            continue
        names = _excluded(record)
        if action.node in names:
            continue
        kept[one.number] = {"handle": one.handle, "excluded": fold(names)}
        words = (f"excnodelist={fold([*names, action.node])}", f"admincomment={_with(record, _exclusion(action))}")
        asks.tell(("scontrol", "update", f"jobid={one.handle}", *words), deadline)
    return Step("done", f"{', '.join(one.handle for one in waiting)} leaves out {action.node}", {"jobs": kept})


def _restart(action: Action, asks: Asks, deadline: Deadline) -> Step:
    number = _number(action)
    record = _record(asks, number, deadline)
    if record is None:
        return Step("changed", f"slurmctld knows no job {number}")
    nodes = record.get("NodeList", "")
    if record.get("JobState") not in _RUNS or action.node not in ([] if nodes in ("", "(null)") else expand(nodes)):
        return Step("changed", f"job {number} does not run on {action.node} ({record.get('JobState')})")
    if record.get("Requeue") != "1" or record.get("BatchFlag") != "1":
        return Step("changed", f"nothing would start job {number} again: it is no batch job, or must not be requeued")
    before = {"job": number, "restarts": record.get("Restarts", "")}
    found = _ours(record, action.id)
    if found is None or found[3] != record.get("Restarts"):
        why = _why(action)
        mark = f"gpu-workbench:{action.id} restart {record.get('Restarts')}{f': {why}' if why else ''}"
        asks.tell(("scontrol", "update", f"jobid={number}", f"admincomment={_with(record, mark)}"), deadline)
    asks.tell(("scontrol", "requeue", number), deadline)
    return Step("pending", f"job {number} was requeued: it ends, and waits", before, again=5.0)


def _restarted(action: Action, record: Mapping[str, str] | None) -> Step:
    number = _number(action)
    if record is None:
        return Step("absent", f"slurmctld knows no job {number}")
    found = _ours(record, action.id)
    if found is None or not found[3].isdigit():
        return Step("absent", f"job {number} was not told to start again")
    if int(record.get("Restarts") or 0) <= int(found[3]):
        return Step("absent", f"job {number} is still its attempt {int(found[3]) + 1}")
    if record.get("JobState") == "COMPLETING":
        return Step("pending", f"the former attempt of job {number} ends", again=5.0)
    return Step("done", f"job {number} starts again: {record.get('JobState', '').lower()}")


# ---- taking back


def undo(action: Action, before: Mapping[str, Any], asks: Asks, deadline: Deadline) -> Step:
    """Let a job's attempts use the node again, where nobody else has changed that since."""
    if action.verb != "exclude":
        return Step("failed", f"{action.verb} cannot be taken back")
    known = {str(number) for number in dict(before.get("jobs") or {})}
    try:
        jobs = _attempts(_job(action), _jobs(asks, deadline))
    except ValueError as error:
        return Step("changed", str(error))
    done: list[str] = []
    for one in jobs:
        record = None if _over(one) else _record(asks, one.number, deadline)
        if record is None:
            continue
        found, names = _ours(record, action.id), _excluded(record)
        if found is None:
            if one.number in known and action.node in names:
                return Step("changed", f"somebody rewrote what we noted at job {one.handle}: it stays as it is")
            continue
        if action.node not in names:
            return Step("changed", f"somebody let job {one.handle} use {action.node} again")
        if not one.waits:
            return Step("blocked", f"job {one.handle} runs: its list can be changed when it waits again", again=15.0)
        words = (
            f"excnodelist={fold([name for name in names if name != action.node])}",
            f"admincomment={_without(record, found)}",
        )
        asks.tell(("scontrol", "update", f"jobid={one.handle}", *words), deadline)
        done.append(one.handle)
    return Step("done", f"{', '.join(done)} may use {action.node}") if done else Step("absent", "no attempt bears our mark")


def _exclusion(action: Action) -> str:
    return f"gpu-workbench:{action.id} exclude {action.node}"


def _job(action: Action) -> str:
    job = str(action.args.get("job") or "") or ("" if action.target == action.node else action.target)
    if not job:
        raise ExecutorError("an exclusion needs the job that it is for: args.job, or the target", sent=False)
    return job


def _number(action: Action) -> str:
    """Return the number of the job that a task's name begins with: ``4711 (train, alice)``."""
    found = re.match(r"\d+(?=\s|$)", action.target)
    if not found:
        raise ExecutorError(f"{action.target!r} is no job of Slurm", sent=False)
    return found[0]


def _over(job: Job) -> bool:
    return not (job.waits or job.runs)
