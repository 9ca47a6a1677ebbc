"""Turn `scontrol show job` and `scontrol show node` (one line a record or many) into job records, node conditions and events."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from workbench.model import Condition, JobRecord, Line, Parsed
from workbench.parse.nodeset import expand
from workbench.parse.slurm_words import base_state, duration, exit_code, local_epoch, node_condition, split_reason

__all__ = ["parse_scontrol", "show_records"]

_FIRST = re.compile(r"^\s*(JobId|NodeName)=(\S+)")
_PAIR = re.compile(r"(?:^|\s)([A-Za-z][\w/:.-]*)=")
# values that may hold blanks and run to the end of their line or to the next of these keys
_FREE = {
    "Reason",
    "OS",
    "Comment",
    "AdminComment",
    "SystemComment",
    "Command",
    "JobName",
    "ExtraInfo",
    "Extra",
    "JobState",
    "State",
}
# Nodes=gpu-07 CPU_IDs=0-223 Mem=2042880 GRES=gpu:h100:8(IDX:0-7)
_ALLOCATION = re.compile(r"^\s*Nodes=(\S+) CPU_IDs=\S+ Mem=\S+ GRES=(\S*)")


def parse_scontrol(lines: Sequence[Line], parsed: Parsed, file: str) -> set[int]:
    """Read the records of `scontrol show` among some lines into `parsed`; return the numbers of the lines that belong to them."""
    taken: set[int] = set()
    for record in _records(lines):
        taken.update(line.no for line in record)
        found = _FIRST.match(record[0].text)
        if found and found[1] == "JobId":
            _job(record, parsed, file)
        elif found:
            _node(record, parsed, file)
    return taken


def show_records(text: str) -> list[dict[str, str]]:
    """
    Return the records of ``scontrol show node`` or ``job`` as keys and values, as they stand there.

    >>> show_records("NodeName=g1 Arch=x86_64\\n   State=IDLE+DRAIN Gres=gpu:8\\n   Reason=a = b [root@2026-03-01T10:00:59]\\n")[0]["Reason"]
    'a = b [root@2026-03-01T10:00:59]'
    """
    lines = [Line(number, line) for number, line in enumerate(text.splitlines(), 1)]
    return [_collect(record)[0] for record in _records(lines)]


def _records(lines: Sequence[Line]) -> Iterator[list[Line]]:
    record: list[Line] = []
    for line in lines:
        if _FIRST.match(line.text):
            if record:
                yield record
            record = [line]
        elif record:
            # a record is indented, or one line; blank lines with blanks occur inside one (Reason= follows them)
            if line.text[:1].isspace() and (line.text.strip() == "" or _PAIR.search(line.text) or len(record) < 60):
                record.append(line)
            elif line.text.strip():
                yield record
                record = []
    if record:
        yield record


def _pairs(text: str) -> dict[str, str]:
    """Return the ``Key=value`` pairs of a line; a value runs to the next key, since state and reason hold blanks."""
    found = list(_PAIR.finditer(text))
    pairs: dict[str, str] = {}
    at = 0
    while at < len(found):
        key, end = found[at][1], at + 1
        if key in _FREE and key not in ("JobState", "State"):
            # `Reason=` of a node and a comment may hold = themselves: only a known next key ends them
            while end < len(found) and not re.match(
                r"(?:Dependency|Comment|AdminComment|Extra|ExtraInfo|RealMemory|OS|Reason|UserId|WorkDir|CurrentWatts|ExtSensors\w+)$",
                found[end][1],
            ):
                end += 1
        stop = found[end].start() if end < len(found) else len(text)
        pairs.setdefault(key, text[found[at].end() : stop].strip())
        at = end
    return pairs


def _collect(record: Sequence[Line]) -> tuple[dict[str, str], dict[str, Line]]:
    values: dict[str, str] = {}
    where: dict[str, Line] = {}
    for line in record:
        for key, value in _pairs(line.text.rstrip()).items():
            if key not in values:
                values[key], where[key] = value, line
    return values, where


def _known(value: str | None) -> str | None:
    return None if value in (None, "", "(null)", "None", "N/A", "Unknown") else value


def _job(record: Sequence[Line], parsed: Parsed, file: str) -> None:
    values, where = _collect(record)
    state = values.get("JobState", "")
    code, signal = exit_code(values.get("ExitCode"))
    job = JobRecord(
        id=values.get("JobId"),
        name=_known(values.get("JobName")),
        state=re.sub(r"\s+", " ", state) if " by " in state else base_state(state) or _known(state),
        nodes=expand(_known(values.get("NodeList"))),
        start=local_epoch(values.get("StartTime")),
        end=local_epoch(values.get("EndTime")) if base_state(state) not in ("RUNNING", "PENDING") else None,  # the future else
        exit_code=code,
        signal=signal,
        user=re.sub(r"\(.*", "", values.get("UserId", "")) or None,
        reason=_known(values.get("Reason")),
        restarts=int(values["Restarts"]) if values.get("Restarts", "").isdigit() else None,
        time_limit=duration(values.get("TimeLimit")),
        source="scontrol" if base_state(state) != "PENDING" else "squeue",
        file=file,
    )
    uid = re.search(r"\((\d+)\)", values.get("UserId", ""))
    job.data = {
        "uid": int(uid[1]) if uid else None,
        "tasks": int(values["NumTasks"]) if values.get("NumTasks", "").isdigit() else None,
        "admincomment": _known(values.get("AdminComment")),
        "comment": _known(values.get("Comment")),
        "batch_host": _known(values.get("BatchHost")),
        "qos": _known(values.get("QOS")),
        "derived": _known(values.get("DerivedExitCode")),
        "failednode": _known(values.get("FailedNode")),
        "end_expected": local_epoch(values.get("EndTime")),
        "gres": {
            name: found[2] for line in record if (found := _ALLOCATION.match(line.text)) for name in expand(found[1], limit=4096)
        },
        "step": False,
    }
    shown = where.get("JobState", record[0])
    job.data |= {"line": shown.no, "text": shown.text.strip()}
    parsed.jobs.append(job)


def _node(record: Sequence[Line], parsed: Parsed, file: str) -> None:
    values, where = _collect(record)
    state = (values.get("State") or "").split(" ")[0]
    reason, who, when = split_reason(_known(values.get("Reason")))
    shown = where.get("Reason") or where.get("State") or record[0]
    name = values["NodeName"]
    text = shown.text.strip()
    if len(record) == 1:  # one long line: show what matters of it
        text = f"NodeName={name} State={state}" + (f" Reason={values['Reason']}" if reason else "")
    for node in expand(name, limit=4096):
        node_condition(parsed, node, state, reason, who, when, text=text, file=file, line=shown.no)
        boot = local_epoch(values.get("BootTime"))
        if boot is not None:
            parsed.conditions.append(
                Condition("BootTime", values["BootTime"], node, "state", None, boot, "", "", "slurm", file, where["BootTime"].no)
            )
        parsed.facts.setdefault("nodes", {})[node] = {
            "boot": boot,
            "slurmd_start": local_epoch(values.get("SlurmdStartTime")),
            "busy": local_epoch(values.get("LastBusyTime")),
            "gres": _known(values.get("Gres")),
            "address": _known(values.get("NodeAddr")),
        }
