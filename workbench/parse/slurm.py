"""Turn Slurm's tables (sacct, squeue, sinfo, scontrol, plain or JSON) into job records, node conditions and events."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workbench.model import Event, JobRecord, Line, Parsed, Problem
from workbench.parse.nodeset import expand
from workbench.parse.slurm_scontrol import parse_scontrol
from workbench.parse.slurm_words import (
    LONGEST_ROW,
    SINFO_ROW,
    SQUEUE_ROW,
    STATES,
    WHEN,
    base_state,
    duration,
    exit_code,
    job_event,
    local_epoch,
    node_condition,
    node_trouble,
    split_reason,
)

__all__ = ["parse_slurm", "parse_slurm_json"]

# 4711 | 4711_3 | 4711_[1-8] | 4711+0 | 4711.batch | 4711.0
_JOB_ID = re.compile(r"^\d+(?:_(?:\d+|\[[^\]]*\]))?(?:\+\d+)?(?:\.[\w.+-]+)?$")
# columns that are kept as they are, for who needs them
_KEPT = (
    *("ADMINCOMMENT", "COMMENT", "DERIVEDEXITCODE", "ELAPSED", "QOS", "PARTITION"),
    *("ALLOCTRES", "SUBMIT", "TIME", "FAILEDNODE", "ACCOUNT", "CLUSTER"),
)
_MOST_JOINED = 200  # lines of one record: a comment may hold newlines, a torn file must not swallow the rest


def parse_slurm(lines: Sequence[Line], *, file: str, node: str | None = None) -> Parsed:
    """
    Return what the output of sacct, squeue, sinfo or scontrol says.

    Parameters
    ----------
    lines : sequence of Line
        The document, which may hold several outputs one after another; pipe-separated and padded tables with any set of columns.
    file, node : str
        Name of the document, and the node that it is of (not used by these tables).

    Returns
    -------
    Parsed
        Job times are taken as UTC, since Slurm prints local times without zone; ``facts["naive_times"]`` says so.
    """
    parsed = Parsed(facts={"naive_times": True})
    rest: list[Line] = []
    at = 0
    while at < len(lines):
        header = _header(lines, at)
        if header is None:
            rest.append(lines[at])
            at += 1
            continue
        at = _table(lines, at, header, parsed, file)
    taken = parse_scontrol(rest, parsed, file)
    for line in rest:
        if line.no not in taken:
            _loose(line, parsed, file)
    _judge_jobs(parsed)
    return parsed


# ---- tables


def _header(lines: Sequence[Line], at: int) -> list[str] | None:
    text = lines[at].text.strip()
    if "|" in text:
        words = [word.strip() for word in text.split("|")]
        if words and words[-1] == "":  # sacct -p ends each row with a bar
            words.pop()
        upper = {word.upper() for word in words}
    else:
        words = text.split()
        upper = {word.upper() for word in words}
    is_sacct = ("JOBID" in upper or "JOBIDRAW" in upper) and ("STATE" in upper or "ST" in upper)
    is_sinfo = bool({"NODELIST", "NODE"} & upper) and bool({"STATE", "REASON"} & upper)
    is_event = {"NODENAME", "TIMESTART"} <= upper  # sacctmgr show event
    return words if is_sacct or is_sinfo or is_event else None


def _table(lines: Sequence[Line], at: int, header: list[str], parsed: Parsed, file: str) -> int:
    """Read the table whose header is line `at`; return where it ends."""
    first = lines[at].text
    names = [re.sub(r"\(.*\)|%\d+", "", word).upper() for word in header]
    if "|" in first:
        return _piped(lines, at + 1, names, parsed, file)
    spans = None
    start = at + 1
    if start < len(lines) and re.fullmatch(r"[\s-]*-{2,}[\s-]*", lines[start].text):  # ------------ ----------
        spans = [found.span() for found in re.finditer(r"-+", lines[start].text)]
        start += 1
    elif "NODELIST" in names and "JOBID" not in names:
        spans = _columns(first, header)
    for here in range(start, len(lines)):
        text = lines[here].text.rstrip()
        if not text.strip() or _header(lines, here) is not None:
            return here + (not text.strip())
        if spans is not None:
            row = {name: text[a:b].strip() for name, (a, b) in zip(names, spans, strict=False)}
            if len(spans) == len(names):
                row[names[-1]] = text[spans[-1][0] :].strip()
        else:
            row = _squeue_row(text, names)
        if row:
            _row(row, lines[here], parsed, file)
    return len(lines)


def _columns(text: str, header: list[str]) -> list[tuple[int, int]]:
    starts = []
    at = 0
    for word in header:
        at = text.index(word, at)
        starts.append(at)
        at += len(word)
    return list(zip(starts, [*starts[1:], 1_000_000], strict=True))


def _squeue_row(text: str, names: list[str]) -> dict[str, str]:
    found = SQUEUE_ROW.match(text) if len(text) <= LONGEST_ROW else None
    if found and names[:5] == ["JOBID", "PARTITION", "NAME", "USER", "ST"]:
        return dict(
            zip(
                names,
                [found[name] for name in ("id", "partition", "name", "user", "state", "time", "count", "where")],
                strict=False,
            )
        )
    words = text.split(None, len(names) - 1)
    return dict(zip(names, words, strict=True)) if len(words) == len(names) else {}


def _piped(lines: Sequence[Line], at: int, names: list[str], parsed: Parsed, file: str) -> int:
    """Read rows between bars; a comment may hold newlines and bars of its own."""
    width = len(names)
    key = "NODELIST" if names[0] not in ("JOBID", "JOBIDRAW") else names[0]
    while at < len(lines):
        text = lines[at].text
        if not text.strip() or _header(lines, at) is not None:
            return at + (not text.strip())
        if "|" not in text and width > 1 and _looks_other(text):
            return at
        first, end = lines[at], at + 1
        while text.count("|") < width - 1 and end < len(lines) and end - at < _MOST_JOINED:
            if (
                key.startswith("JOBID")
                and _JOB_ID.match(lines[end].text.split("|")[0])
                and lines[end].text.count("|") >= width - 1
            ):
                break  # the next record is whole: this one is torn
            text += "\n" + lines[end].text
            end += 1
        if text.count("|") < width - 1:
            parsed.problems.append(
                Problem(
                    file,
                    f"a record has {text.count('|') + 1} of {width} columns",
                    "the output is cut; run sacct again",
                    first.no,
                    "slurm",
                    "partial",
                )
            )
        _row(_fields(text, names), first, parsed, file, text)
        at = end
    return at


def _looks_other(text: str) -> bool:
    return bool(re.match(r"(?:JobId|NodeName|PartitionName)=|\s*JOBID\s|[$#>] ?(?:sacct|sinfo|squeue|scontrol)\b", text))


def _fields(text: str, names: list[str]) -> dict[str, str]:
    parts = text.split("|")
    if len(parts) == len(names) + 1 and parts[-1].strip() == "":
        parts.pop()
    surplus = len(parts) - len(names)
    if surplus > 0:  # bars inside a comment or a name
        at = next(
            (
                names.index(name)
                for name in ("ADMINCOMMENT", "COMMENT", "SYSTEMCOMMENT", "SUBMITLINE", "JOBNAME", "REASON")
                if name in names
            ),
            len(names) - 1,
        )
        parts[at : at + surplus + 1] = ["|".join(parts[at : at + surplus + 1])]
    return {name: part.strip() for name, part in zip(names, parts, strict=False)}


def _row(row: Mapping[str, str], line: Line, parsed: Parsed, file: str, text: str | None = None) -> None:
    shown = (text or line.text).strip()
    if row.get("JOBID") or row.get("JOBIDRAW"):
        if _JOB_ID.match(row.get("JOBID") or row["JOBIDRAW"]):
            _job_row(row, shown, line, parsed, file)
    elif row.get("TIMESTART"):
        node_trouble(parsed, row, text=shown, file=file, line=line.no)
    elif row.get("NODELIST") or row.get("NODE"):
        reason, who, when = split_reason(row.get("REASON"))
        if reason.lower() in ("none", "(null)", "n/a"):
            reason = ""
        when = when or local_epoch(row.get("TIMESTAMP"))
        for name in expand(row.get("NODELIST") or row.get("NODE"), limit=4096):
            node_condition(
                parsed, name, row.get("STATE", ""), reason, who or row.get("USER"), when, text=shown, file=file, line=line.no
            )


def _job_row(row: Mapping[str, str], text: str, line: Line, parsed: Parsed, file: str) -> None:
    state = row.get("STATE") or row.get("ST") or ""
    code, signal = exit_code(row.get("EXITCODE"))
    where = row.get("NODELIST") or ""
    waiting = re.fullmatch(r"\((.*)\)", where)
    job = JobRecord(
        id=row.get("JOBID") or row.get("JOBIDRAW"),
        name=row.get("JOBNAME") or row.get("NAME") or None,
        state=re.sub(r"\s+", " ", state) if " by " in state else base_state(state) or state or None,
        nodes=[] if waiting else expand(where),
        start=local_epoch(row.get("START")),
        end=local_epoch(row.get("END")),
        exit_code=code,
        signal=signal,
        user=row.get("USER") or None,
        reason=waiting[1] if waiting else (row.get("REASON") or None),
        restarts=int(row["RESTARTS"]) if row.get("RESTARTS", "").isdigit() else None,
        time_limit=duration(row.get("TIMELIMIT")),
        source="sacct" if "EXITCODE" in row or "END" in row else "squeue",
        file=file,
    )
    job.data = {name.lower(): row[name] for name in _KEPT if row.get(name)}
    job.data |= {"text": text, "line": line.no, "step": "." in (job.id or "")}
    parsed.jobs.append(job)


# ---- rows without a header


def _loose(line: Line, parsed: Parsed, file: str) -> None:
    text = line.text.rstrip()
    if len(text) > LONGEST_ROW:
        return
    parts = [part.strip() for part in text.split("|")]
    if len(parts) > 2 and _JOB_ID.match(parts[0]):  # sacct -n -P
        state = next((part for part in parts[1:] if base_state(part) and not re.fullmatch(r"[A-Z]{1,3}", part)), None)
        if state:
            times = [part for part in parts if re.fullmatch(WHEN, part)]
            row = {
                "JOBID": parts[0],
                "STATE": state,
                "EXITCODE": next((part for part in parts if re.fullmatch(r"\d+:\d+", part)), ""),
            }
            row |= {"START": times[-2], "END": times[-1]} if len(times) > 1 else {}
            row["NODELIST"] = parts[-1] if re.search(r"\d", parts[-1]) and not re.search(r"[:=]", parts[-1]) else ""
            _row(row, line, parsed, file)
        return
    found = SINFO_ROW.match(text.strip())
    if found and not re.match(r"\d+\s", text.strip()):
        nodes, state = expand(found["nodes"], limit=4096), found["state"] or ""
        for name in nodes:
            node_condition(
                parsed,
                name,
                state,
                found["reason"],
                found["user"],
                local_epoch(found["when"]),
                text=text.strip(),
                file=file,
                line=line.no,
            )
        return
    waits = SQUEUE_ROW.match(text)
    if waits and base_state(waits["state"]):
        _row(
            {
                "JOBID": waits["id"],
                "NAME": waits["name"],
                "USER": waits["user"],
                "ST": waits["state"],
                "NODELIST": waits["where"],
                "TIME": waits["time"],
            },
            line,
            parsed,
            file,
        )


# ---- which job, and what its end means


def _judge_jobs(parsed: Parsed) -> None:
    """Add the events of the ends of jobs: of the job asked about as they are, of others as context."""
    tops = [job for job in parsed.jobs if not job.data.get("step")]
    stepped = {_top(job.id) for job in parsed.jobs if job.data.get("step")}
    # accounting of one job lists its steps; of several with steps, or none, the one that ran last
    candidates = [job for job in tops if _top(job.id) in stepped and stepped] or tops
    latest = max((job.start or 0.0 for job in candidates), default=0.0)
    main = {_top(job.id) for job in candidates if (job.start or 0.0) >= latest} if candidates else stepped
    for job in parsed.jobs:
        text, line = str(job.data.pop("text", "")), job.data.pop("line", None)
        step = bool(job.data.get("step"))
        job.data["main"] = _top(job.id) in main
        if job.source == "squeue":
            _waits(job, text, line, parsed)
            continue
        event = job_event(job, text, line, main=bool(job.data["main"]))
        if event is None:
            continue
        if step and event.signature in (
            "slurm-job-failed",
            "slurm-node-fail",
            "slurm-time-limit",
            "slurm-preempted",
            "slurm-cancelled-by",
        ):
            event.role, event.weight = "symptom" if job.data["main"] else "context", 0.1  # the job's own row says the same
        parsed.events.append(event)
    order = {id(event): number for number, event in enumerate(parsed.events)}
    parsed.events.sort(key=lambda event: (event.line or 0, order[id(event)]))


def _top(job: str | None) -> str:
    return (job or "").split(".")[0]


def _waits(job: JobRecord, text: str, line: int | None, parsed: Parsed) -> None:
    reason = job.reason or ""
    if base_state(job.state) != "PENDING" or not reason:
        return
    if "launch failed" in reason or "JobHeldAdmin" in reason:
        signature = "slurm-launch-failed" if "launch failed" in reason else "slurm-pending"
    elif re.search(r"DOWN|DRAINED|ReqNodeNotAvail|NodeDown|PartitionDown|PartitionInactive|BadConstraints", reason):
        signature = "slurm-pending-nodes"
    else:
        signature = "slurm-pending"
    parsed.events.append(Event(signature, "slurm", text, None, job.file, line, data={"job": job.id, "reason": reason}))


# ---- JSON


def parse_slurm_json(data: Any, *, file: str = "") -> Parsed:
    """
    Return what ``sacct --json``, ``squeue --json``, ``scontrol show job|node --json`` or ``sinfo --json`` say.

    Parameters
    ----------
    data : mapping
        The document; of every release since 21.08, where numbers are plain or ``{"set": …, "number": …}``.
    """
    parsed = Parsed(facts={"naive_times": False})
    if not isinstance(data, Mapping):
        parsed.problems.append(
            Problem(file, "no Slurm JSON: the document is no object", "use sacct --json or scontrol --json", source="slurm")
        )
        return parsed
    for raw in _items(data.get("jobs")):
        job = _json_job(raw, file)
        parsed.jobs.append(job)
        for step in _items(raw.get("steps")):
            parsed.jobs.append(_json_step(step, job, file))
    for raw in [*_items(data.get("nodes")), *_items(data.get("sinfo"))]:
        name = str(raw.get("name") or raw.get("hostname") or "")
        state = raw.get("state")
        words = "+".join(str(word) for word in state) if isinstance(state, list) else str(state or "")
        if isinstance(raw.get("state"), Mapping) or isinstance(raw.get("node"), Mapping):  # sinfo groups nodes
            group = raw.get("node") or {}
            words, names = (
                "+".join(str(word) for word in (group.get("state") or [])),
                [str(one) for one in ((raw.get("nodes") or {}).get("nodes") or [])],
            )
        else:
            names = [name] if name else []
        flags = raw.get("state_flags") or []
        words = "+".join([words, *(str(flag) for flag in flags)]) if flags else words
        why = raw.get("reason")
        reason = str(why.get("description") if isinstance(why, Mapping) else why or "")
        for one in names:
            node_condition(
                parsed,
                one,
                words,
                reason,
                str(raw.get("reason_set_by_user") or "") or None,
                _number(raw.get("reason_changed_at")),
                text=f"{one} {words} {reason}".strip(),
                file=file,
                line=None,
            )
    _judge_jobs(parsed)
    return parsed


def _items(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, Mapping))


def _number(value: Any) -> float | None:
    if isinstance(value, Mapping):
        if value.get("set") is False or value.get("infinite"):
            return None
        value = value.get("number")
    return float(value) if isinstance(value, (int, float)) and value else None


def _json_code(raw: Any) -> tuple[int | None, int | None]:
    if not isinstance(raw, Mapping):
        return (raw >> 8 & 255, raw & 127 or None) if isinstance(raw, int) else (None, None)
    code, signal = raw.get("return_code"), raw.get("signal")
    number = signal.get("id", signal.get("signal_id")) if isinstance(signal, Mapping) else signal
    said = _number(number)
    value = code.get("number", 0) if isinstance(code, Mapping) else code
    return (int(value) if isinstance(value, int) else None), (int(said) if said else None)


def _json_state(raw: Any) -> str | None:
    if isinstance(raw, Mapping):
        raw = raw.get("current")
    words = [str(word) for word in raw] if isinstance(raw, list) else [str(raw)] if raw else []
    # a try that was requeued is ["PENDING", "REQUEUED"] from 24.11 on, and REQUEUED in sacct's text
    if "REQUEUED" in words:
        return "REQUEUED"
    return next((word for word in words if word in STATES), words[0] if words else None)


def _json_job(raw: Mapping[str, Any], file: str) -> JobRecord:
    times = raw.get("time") if isinstance(raw.get("time"), Mapping) else {}
    times = times or {}
    state, reason = raw.get("state", raw.get("job_state")), raw.get("state_reason")
    if isinstance(state, Mapping):
        reason = reason or state.get("reason")
    limit = _number(times.get("limit", raw.get("time_limit")))
    job = JobRecord(
        str(raw.get("job_id", "")) or None,
        raw.get("name"),
        _json_state(state),
        expand(str(raw.get("nodes") or "")),
        source="sacct",
        file=file,
    )
    job.start, job.end = _number(times.get("start", raw.get("start_time"))), _number(times.get("end", raw.get("end_time")))
    job.exit_code, job.signal = _json_code(raw.get("exit_code"))
    job.user = str(raw.get("user") or raw.get("user_name") or "") or None
    job.reason, job.time_limit = str(reason) if reason else None, limit * 60 if limit else None  # minutes in Slurm
    job.restarts = int(_number(raw.get("restart_cnt")) or 0) if raw.get("restart_cnt") is not None else None
    by = str(raw.get("kill_request_user") or "")
    if job.state == "CANCELLED" and by:
        job.state = f"CANCELLED by {'0' if by == 'root' else by}"
    comment = raw.get("comment") if isinstance(raw.get("comment"), Mapping) else {}
    job.data = {"admincomment": (comment or {}).get("administrator") or raw.get("admin_comment"), "step": False}
    job.data["failednode"] = raw.get("failed_node") or None
    job.data["text"] = f"{job.id} {job.name} {job.state} {job.exit_code}:{job.signal or 0} {job.reason or ''}".strip()
    if job.state == "PENDING":
        job.source = "squeue"
    return job


def _json_step(raw: Mapping[str, Any], job: JobRecord, file: str) -> JobRecord:
    inner, times, nodes = raw.get("step") or {}, raw.get("time") or {}, raw.get("nodes") or {}
    name = str(inner.get("id") or "") if isinstance(inner, Mapping) else ""
    if isinstance(inner, Mapping) and isinstance(inner.get("id"), Mapping):
        name = str(inner["id"].get("step_id", ""))
    name = name.split(".")[-1] or "0"
    where = [str(one) for one in nodes.get("list") or []] if isinstance(nodes, Mapping) else []
    step = JobRecord(
        f"{job.id}.{name}",
        str(inner.get("name") or "") if isinstance(inner, Mapping) else None,
        _json_state(raw.get("state")),
        where,
        source="sacct",
        file=file,
    )
    step.start, step.end = _number(times.get("start")), _number(times.get("end"))
    step.exit_code, step.signal = _json_code(raw.get("exit_code"))
    step.data = {"step": True, "text": f"{step.id} {step.name} {step.state} {step.exit_code}:{step.signal or 0}"}
    return step
