"""Turn lines of slurmctld, slurmd, slurmstepd and srun into events: who ended a job, which node fell silent, how tasks died."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from workbench.model import Event, JobRecord, Line, Parsed
from workbench.parse.nodeset import expand
from workbench.parse.slurm_words import is_table_row, local_epoch, reason_meaning

__all__ = ["event_of", "parse_slurm_log"]

_TEXT = 2000  # most characters of a text, see model.Event
# [2025-09-23T06:46:02.008] | 2025-09-23T06:46:02.008+02:00 node-a slurmd[1]: | slurmctld: 2025-09-23T06:46:02
_STAMP = re.compile(r"^\W{0,2}(?:slurm\w+: )?\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?)\]?")
# Mar  1 10:00:04 node-a slurmd[1822]: …   (no year: the time stays open)
_SYSLOG = re.compile(r"^(?:[A-Z][a-z]{2} +\d+ [\d:]{8}|\d{4}-\d\d-\d\dT\S+) (\S+) (slurm\w+|srun|nhc)(?:\[\d+\])?: ")
_JOB = re.compile(r"(?:\b(?:JobId=|StepId=|[jJ]ob |JOB |STEP )|(?<!\w)\[(?=\d+\.\w+\]))(\d+)")
# where two rows speak of one line the second one says more
_COVERED = {
    "slurm-node-not-responding": "slurm-node-down",
    "slurm-zero-bytes": "slurm-launch-failed",
    "slurm-step-create-failed": "slurm-invalid-gres",
    "slurm-pyxis": "slurm-pyxis-image",
    "slurm-no-capacity": "slurm-drain-set",
    "slurm-chdir": "slurm-execve",
    "slurm-execve": "slurm-spool-missing",
    "slurm-launch-failed": "slurm-auth",
    "slurm-pyxis-image": "slurm-image-denied",
}


@lru_cache(maxsize=1)
def _patterns() -> tuple[re.Pattern[str], dict[str, re.Pattern[str]]]:
    from workbench.catalog import signatures, table

    known = signatures()  # with a site's own patterns
    rows = {row["id"]: known[row["id"]].pattern for row in table("signatures_slurm") if known[row["id"]].pattern}
    any_of = re.compile("|".join(re.sub(r"\(\?P<\w+>", "(?:", f"(?:{pattern})") for pattern in rows.values()))
    return any_of, {name: re.compile(pattern) for name, pattern in rows.items()}


def parse_slurm_log(lines: Sequence[Line], *, file: str, node: str | None = None, offset: float = 0.0) -> Parsed:
    """
    Return what the logs of Slurm's daemons and of srun say.

    Parameters
    ----------
    lines : sequence of Line
        The document; lines of other programs are passed over. Without the scanner's hits the patterns are tried here.
    file, node : str
        Name of the document, and the node that it is of when a line does not say.
    offset : float
        Seconds that the cluster's clock is east of UTC; the daemons write local time without zone.
    """
    parsed = Parsed(facts={"naive_times": True})
    any_of, rows = _patterns()
    scanned = any(line.hits for line in lines)  # then the scanner has looked at each line with the same patterns
    for line in lines:
        if scanned:
            found = [name for name in line.hits if name in rows]
        else:
            found = [name for name, pattern in rows.items() if pattern.search(line.text)] if any_of.search(line.text) else []
        if not found or is_table_row(line.text):
            continue
        for name in (name for name in found if _COVERED.get(name) not in found):
            parsed.events.extend(event_of(name, line, file=file, node=node, offset=offset))
    _never_started(parsed)
    _starts(parsed)
    return parsed


def event_of(name: str, line: Line, *, file: str, node: str | None = None, offset: float = 0.0) -> Iterator[Event]:
    """
    Yield the events of one line that a Slurm signature matches: one for each node or task that it names.

    Works on lines in the middle of a job's output as well, so that the log scanner can hand its hits over.

    Parameters
    ----------
    name : str
        Id of a row of ``signatures_slurm.csv``.
    line : Line
        The line.
    file, node, offset
        As for `parse_slurm_log`.
    """
    pattern = _patterns()[1].get(name)
    found = pattern.search(line.text) if pattern else None
    if found is None:
        return
    groups = {key: value for key, value in found.groupdict().items() if value}
    host, stamp = _SYSLOG.match(line.text), _STAMP.match(line.text)
    # the time inside `CANCELLED AT …` is the event's; a stamp of a daemon in front is finer and of the same second
    when = local_epoch(stamp[1] if stamp else groups.get("time"), offset)
    job = groups.get("job") or ((other := _JOB.search(line.text)) and other[1])
    named = expand(groups["node"], limit=4096) if groups.get("node") else []
    named = [one for one in named if re.fullmatch(r"[\w][\w.-]*", one)]  # `ON ... CANCELLED`: a name that was taken out
    where: list[str | None] = [*named] or [host[1] if host else node]
    if name == "slurm-job-start":
        where = [None]
    reporter = None
    if name == "slurm-node-fail" and named:
        # the step's daemon prints this where it runs, and lives; srun and the controller name the node that is gone
        reporter, named, where = ", ".join(named), [], [None]
    meaning = _meaning(name, groups)
    for one in where:
        event = Event(
            str(meaning["signature"]), "slurm", _shown(line.text, found.start()), when, file, line.no, one, order=line.no
        )
        event.role, event.cls, event.weight = meaning.get("role"), meaning.get("cls"), meaning.get("weight")
        event.gpu = meaning.get("gpu")
        event.data = {key: value for key, value in groups.items() if key not in ("node", "time", "code", "rank")}
        event.code = int(groups["code"]) if groups.get("code") else meaning.get("code")
        if event.signature == "slurm-no-capacity":
            event.node, event.data["absent"] = None, one  # no machine: nothing happened on a node
        if one is None and named:
            event.data["nodes"] = named
        if reporter:
            event.data["reported_by"] = reporter
        if job:
            event.data["job"] = job
        if groups.get("rank"):
            # task numbers are global ranks only when srun starts one process a rank; the launcher below it counts by itself
            tasks = [int(task) for task in expand(f"[{groups['rank'].strip('[]')}]", limit=65_536) if task.isdigit()]
            event.data["tasks"] = tasks
            if len(tasks) == 1:
                event.data["task"] = tasks[0]
        yield event


def _shown(text: str, at: int) -> str:
    """Return a line, and of a long one (progress bars without line ends) the part around the match."""
    text = text.rstrip()
    return text.strip() if len(text) <= _TEXT else text[max(0, at - 200) : max(0, at - 200) + _TEXT]


def _meaning(name: str, groups: dict[str, str]) -> dict[str, Any]:
    if name == "slurm-drain-set" and groups.get("reason"):
        return reason_meaning(groups["reason"])
    if name == "slurm-nhc-failed":
        found = reason_meaning(f"NHC: {groups.get('reason', '')}")
        return found if found.get("cls") else {"signature": name}
    if name in ("slurm-kill-request", "slurm-cancelled-by") and groups.get("uid") == "0":
        return {"signature": "slurm-cancelled-admin"}
    if name == "slurm-preempted-ctld" and groups.get("how") == "suspended":
        return {"signature": name, "role": "context"}  # gang scheduling: it goes on later
    return {"signature": name}


def _never_started(parsed: Parsed) -> None:
    """A node that the cloud did not give cannot fail: what the controller says of its failure is the consequence."""
    absent = {event.data.get("absent") for event in parsed.events if event.signature == "slurm-no-capacity"} - {None}
    for event in parsed.events:
        if event.node in absent and event.signature in ("slurm-node-fail-ctld", "slurm-node-down", "slurm-node-not-responding"):
            event.role, event.weight = "symptom", 0.2


def _starts(parsed: Parsed) -> None:
    """Make a job record of each start that the controller logged, so that attempts of a requeued job can be told apart."""
    ends = {
        "slurm-preempted-ctld",
        "slurm-time-limit-ctld",
        "slurm-kill-request",
        "slurm-node-fail-ctld",
        "slurm-cancelled-admin",
        "slurm-job-complete",
        "slurm-oom-ctld",
    }
    records: dict[tuple[str, float | None], JobRecord] = {}
    for event in parsed.events:
        if event.signature == "slurm-job-start":
            key = (str(event.data.get("job")), event.time)
            record = records.get(key)
            if record is None:
                record = records[key] = JobRecord(
                    key[0], state="RUNNING", start=event.time, source="slurmctld", file=event.file, data={"step": False}
                )
            record.nodes += event.data.get("nodes", [])
        elif event.signature in ends:
            for (job, start), record in records.items():
                if job == event.data.get("job") and record.end is None and (start or 0) <= (event.time or 0):
                    record.end, record.state = event.time, event.signature.removeprefix("slurm-").removesuffix("-ctld").upper()
    absent = {event.data.get("absent") for event in parsed.events if event.signature == "slurm-no-capacity"} - {None}
    for record in records.values():
        if record.nodes and absent.issuperset(record.nodes):  # all its nodes were to be made first: it still waits
            record.start = record.end = None
            record.nodes, record.state, record.reason = [], "PENDING", "no capacity"
    parsed.jobs += records.values()
