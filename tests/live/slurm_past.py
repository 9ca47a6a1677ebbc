"""Turn what an incident folder tells of a job into rows of the tables that slurmdbd keeps, so that a real sacct answers for the past."""

from __future__ import annotations

import csv
import json
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tests.live.restored import text_of
from workbench.parse.nodeset import expand, fold

__all__ = ["Event", "Past", "Step", "epoch", "from_pods", "from_sacct", "into_slurm"]

# enum job_states and the step ids of slurm/slurm.h, as the database keeps them
_STATES = ("PENDING", "RUNNING", "SUSPENDED", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")
_STEPS = {"batch": -5, "extern": -4}
_NO_VAL = 4294967294
_NODE_STATES = {"DOWN": 1, "DRAIN": 2 | 0x200}


@dataclass(frozen=True)
class Step:
    """A step of a job: ``batch``, ``extern`` or a number."""

    id: str
    name: str
    state: str
    exit_code: str
    start: float
    end: float
    nodes: str


@dataclass
class Past:
    """One try of a job, as accounting keeps it; times in seconds since the epoch, 0 while they have not come."""

    id: str
    name: str
    state: str
    submit: float
    start: float
    end: float
    nodes: str
    user: str = "root"
    uid: int = 0
    partition: str = "train"
    account: str = "root"
    exit_code: str = "0:0"
    minutes: int = 2880
    tres: dict[str, str] = field(default_factory=dict)
    workdir: str = ""
    submit_line: str = ""
    steps: list[Step] = field(default_factory=list)


@dataclass(frozen=True)
class Event:
    """A time in which a node was down or drained; `end` 0 while it still is."""

    node: str
    state: str
    reason: str
    start: float
    end: float = 0.0


def epoch(text: str) -> float:
    """Return a time of Slurm or Kubernetes, UTC, in seconds; 0 for one that has not come."""
    if text in ("Unknown", "None", ""):
        return 0.0
    return datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=UTC).timestamp()


def from_sacct(text: str) -> list[Past]:
    """Return the jobs of ``sacct --parsable2`` with their steps."""
    jobs: dict[str, Past] = {}
    for row in csv.DictReader(text.splitlines(), delimiter="|"):
        number, _, step = row["JobID"].partition(".")
        start, end = epoch(row["Start"]), epoch(row["End"])
        if step:
            jobs[number].steps.append(Step(step, row["JobName"], row["State"], row["ExitCode"], start, end, row["NodeList"]))
            continue
        jobs[number] = Past(
            number, row["JobName"], row["State"], epoch(row["Submit"]), start, end, row["NodeList"],
            user=row["User"], partition=row["Partition"], exit_code=row["ExitCode"],
            tres=dict(pair.split("=", 1) for pair in row["AllocTRES"].split(",")),
        )  # fmt: skip
    return list(jobs.values())


def from_pods(folder: Path, number: str, job: str) -> Past:
    """Return the Slurm job that would have run where the pods of a Kubernetes job ran, and ended as they did."""
    pods = json.loads(text_of(folder / "pods.json"))["items"]
    ends = [pod["status"]["containerStatuses"][0]["state"]["terminated"] for pod in pods]
    start, end = min(epoch(one["startedAt"]) for one in ends), max(epoch(one["finishedAt"]) for one in ends)
    code = f"{max(one['exitCode'] for one in ends)}:0"
    nodes = fold(sorted(pod["spec"]["nodeName"] for pod in pods))
    first = expand(nodes)[0]
    steps = [
        Step("batch", "batch", "FAILED", code, start, end, first),
        Step("extern", "extern", "COMPLETED", "0:0", start, end, nodes),
        Step("0", "torchrun", "FAILED", code, start, end, nodes),
    ]
    submit = min(epoch(pod["metadata"]["creationTimestamp"]) for pod in pods)
    tres = {"cpu": "896", "node": str(len(pods)), "gres/gpu": str(8 * len(pods)), "gres/gpu:h100": str(8 * len(pods))}
    return Past(number, job, "FAILED", submit, start, end, nodes, exit_code=code, tres=tres, steps=steps)


def into_slurm(root: Path, jobs: Iterable[Past], events: Iterable[Event] = ()) -> None:
    """
    Put jobs and the troubles of nodes into the database of a running slurmdbd.

    Parameters
    ----------
    root : Path
        The folder in which ``tests/services/slurm/start`` runs it.
    jobs, events : iterable
        Users and accounts that Slurm lacks are added with sacctmgr; ``sacctmgr archive load`` takes only what slurmdbd archived
        itself, so the rest are rows for the tables that slurmdbd made.
    """
    jobs = list(jobs)
    accounts = [("account", account) for account in sorted({job.account for job in jobs} - {"root"})]
    users = [("user", user, f"account={account}") for user, account in sorted({(job.user, job.account) for job in jobs})]
    for words in [*accounts, *(words for words in users if words[1] != "root")]:
        done = subprocess.run(
            ["sacctmgr", "--immediate", "--quiet", "add", *words],
            env={"SLURM_CONF": str(root / "slurm.conf"), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0 or "Nothing new added" in done.stdout, done.stdout + done.stderr
    tres = {
        f"{kind}/{name}" if name else kind: number
        for number, kind, name in (
            line.split("\t")
            for line in _sql(root, "select id, type, coalesce(name, '') from tres_table where deleted = 0").splitlines()
        )
    }
    statements = [statement for job in jobs for statement in _job(job, tres)]
    statements += [
        _insert(
            "gpu_event_table",
            time_start=int(event.start), time_end=int(event.end), node_name=event.node, reason=event.reason, reason_uid=0,
            state=_NODE_STATES[event.state],
        )
        for event in events
    ]  # fmt: skip
    _sql(root, ";\n".join(statements))


def _sql(root: Path, text: str) -> str:
    done = subprocess.run(
        ["mariadb", "--no-defaults", f"--socket={root / 'mysql.sock'}", "--user=root", "--skip-column-names", "--batch", "slurm_acct_db"],
        input=text, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def _literal(value: object) -> str:
    if isinstance(value, int):
        return str(value)
    if isinstance(value, _Raw):
        return value.text
    return "'" + str(value).replace("\\", "\\\\").replace("'", "''") + "'"


@dataclass(frozen=True)
class _Raw:
    text: str


def _insert(table: str, **columns: object) -> str:
    names = ", ".join(f"`{name}`" for name in columns)
    return f"insert into {table} ({names}) values ({', '.join(map(_literal, columns.values()))})"


def _code(text: str) -> int:
    code, _, signal = text.partition(":")
    return int(code) << 8 | int(signal)


def _tres(wanted: dict[str, str], known: dict[str, str]) -> str:
    def number(text: str) -> int:
        found = re.fullmatch(r"(\d+)([KMGT]?)", text)
        assert found, text
        return int(found[1]) * {"": 1, "K": 0, "M": 1, "G": 1024, "T": 1 << 20}[found[2]]  # memory is kept in megabytes

    return ",".join(f"{known[name]}={number(value)}" for name, value in wanted.items())


def _job(job: Past, known: dict[str, str]) -> Iterable[str]:
    assoc = _Raw(f"(select id_assoc from gpu_assoc_table where user = {_literal(job.user)} and acct = {_literal(job.account)})")
    yield _insert(
        "gpu_job_table",
        id_job=int(job.id), job_name=job.name, state=_STATES.index(job.state), account=job.account, id_assoc=assoc, id_user=job.uid,
        id_group=job.uid, id_resv=0, id_wckey=0, het_job_id=0, het_job_offset=_NO_VAL, state_reason_prev=0, priority=1000,
        cpus_req=int(job.tres.get("cpu", "1")), nodelist=job.nodes, nodes_alloc=len(expand(job.nodes)), partition=job.partition,
        timelimit=job.minutes, time_submit=int(job.submit), time_eligible=int(job.submit), time_start=int(job.start),
        time_end=int(job.end), mod_time=int(job.end or job.start), exit_code=_code(job.exit_code), derived_ec=_code(job.exit_code),
        work_dir=job.workdir, submit_line=job.submit_line, tres_alloc=_tres(job.tres, known), tres_req=_tres(job.tres, known),
    )  # fmt: skip
    yield "set @job = last_insert_id()"
    for step in job.steps:
        yield _insert(
            "gpu_step_table",
            job_db_inx=_Raw("@job"), id_step=_STEPS.get(step.id) or int(step.id), step_name=step.name,
            state=_STATES.index(step.state.split()[0]), exit_code=_code(step.exit_code), nodelist=step.nodes,
            nodes_alloc=len(expand(step.nodes)), task_cnt=len(expand(step.nodes)), time_start=int(step.start), time_end=int(step.end),
        )  # fmt: skip
