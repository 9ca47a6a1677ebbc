"""Turn Slurm's words (times, durations, exit codes, job states, drain reasons) into values and signatures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from workbench.catalog import signatures
from workbench.model import Condition, Event, Gpu, JobRecord, Parsed
from workbench.parse.nodeset import expand

__all__ = [
    "SINFO_ROW",
    "SQUEUE_ROW",
    "LONGEST_ROW",
    "STATES",
    "WHEN",
    "base_state",
    "duration",
    "exit_code",
    "is_table_row",
    "job_event",
    "local_epoch",
    "node_bad",
    "node_condition",
    "node_trouble",
    "reason_meaning",
    "split_reason",
]

# job states as sacct, squeue (short) and scontrol write them; https://slurm.schedmd.com/squeue.html#SECTION_JOB-STATE-CODES
STATES = {
    "BOOT_FAIL": "BF",
    "CANCELLED": "CA",
    "COMPLETED": "CD",
    "CONFIGURING": "CF",
    "COMPLETING": "CG",
    "DEADLINE": "DL",
    "FAILED": "F",
    "LAUNCH_FAILED": "LF",
    "NODE_FAIL": "NF",
    "OUT_OF_MEMORY": "OOM",
    "PENDING": "PD",
    "PREEMPTED": "PR",
    "RUNNING": "R",
    "RESIZING": "RS",
    "REQUEUED": "RQ",
    "REQUEUE_HOLD": "RH",
    "REVOKED": "RV",
    "SIGNALING": "SI",
    "SPECIAL_EXIT": "SE",
    "STAGE_OUT": "SO",
    "STOPPED": "ST",
    "SUSPENDED": "S",
    "TIMEOUT": "TO",
}
_BY_SHORT = {short: name for name, short in STATES.items()}
_SIGNATURES = {
    "BOOT_FAIL": "slurm-boot-fail",
    "DEADLINE": "slurm-deadline",
    "FAILED": "slurm-job-failed",
    "LAUNCH_FAILED": "slurm-launch-failed",
    "NODE_FAIL": "slurm-node-fail",
    "OUT_OF_MEMORY": "slurm-oom",
    "PREEMPTED": "slurm-preempted",
    "REQUEUED": "slurm-requeue",
    "TIMEOUT": "slurm-time-limit",
}
WHEN = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"
# Kill task failed root 2026-03-01T10:02:00 node-b  |  Not responding   slurm  2026-03-01T10:00:00  down*  gpu[07-08]
SINFO_ROW = re.compile(
    rf"^(?P<reason>\S.*?)\s+(?P<user>\S+)\s+(?P<when>{WHEN}|Unknown)\s+(?:(?P<state>[a-z]+[*~#!%$@^+-]?)\s+)?(?P<nodes>[A-Za-z0-9]\S*)\s*$"
)
# 9022 gpu eval bob R 2-13:04:21 1 node-a
SQUEUE_ROW = re.compile(
    r"^\s*(?P<id>\d+\S*)\s+(?P<partition>\S+)\s+(?P<name>.*?)\s+(?P<user>\S+)\s+(?P<state>[A-Z]{1,3})\s+(?P<time>[\d:-]+|INVALID)\s+(?P<count>\d+)\s+(?P<where>\S.*?)\s*$"
)
# a longer line is no row of these: backtracking over 64 KiB of blanks would take minutes
LONGEST_ROW = 2000
# scontrol's Key=value, a row between bars
_TABLE = re.compile(r"^\s*[A-Z]\w*(?:[:/]\w+)*=\S|^[^|\n]{0,200}\|[^|\n]{0,200}\|")
_REASON = re.compile(r"^(.*?)\s*\[([^@\[\]]+)@([^\]]+)\]\s*$", re.DOTALL)
# what Slurm itself and usual health checks write as a reason; the first match decides
_REASONS: tuple[tuple[str, str, str | None, float | None], ...] = (
    (
        (
            r"\(Code:\w*(?:Capacity|LimitExceeded|CountExceeded|PriceTooLow|Unsupported)\w*\)|RESOURCE_POOL_EXHAUSTED|QUOTA_EXCEEDED"
            r"|Allocation(?:Request)?Failed|SkuNotAvailable|Out of host capacity|Failure when resuming nodes"
        ),
        "slurm-no-capacity",
        None,
        None,
    ),
    (
        (
            r"\b[Ss]pot\b.{0,40}(?:interrupt|terminat|reclaim)|\b[Pp]reempted\b|[Ii]nstance.{0,3}(?:retirement|stop|interruption)"
            r"|[Ss]cheduled event"
        ),
        "slurm-node-reclaimed",
        None,
        None,
    ),
    (r"(?:Scheduler|EC2|instance) health check failed", "slurm-node-not-responding", None, None),
    (r"unexpectedly rebooted", "slurm-node-rebooted", None, None),
    (r"[Nn]ot responding", "slurm-node-not-responding", None, None),
    (r"[Kk]ill task failed|[Uu]nkillable", "slurm-kill-task-failed", None, None),
    (r"gres/gpu count .*\(0 < \d+\)", "slurm-gres-none", None, None),
    (r"gres/gpu count .*\(\d+ < \d+\)|^gres/gpu count", "slurm-gres-low", None, None),  # a table may cut the numbers off
    (r"Low RealMemory", "slurm-low-memory", None, None),
    (r"Low TmpDisk", "slurm-low-disk", None, None),
    (r"Low (?:socket|CPU|core|thread)", "slurm-low-cpus", None, None),
    (r"SlurmdSpoolDir|[Ss]pool.{0,20} full", "slurm-spool-full", None, None),
    (r"ResumeTimeout reached|ResumeProgram|[Rr]eboot timed out|NO NETWORK ADDRESS", "slurm-resume-failed", None, None),
    (r"^[Pp]rolog", "slurm-prolog-failed", None, None),
    (r"^[Ee]pilog", "slurm-epilog-failed", None, None),
    (r"batch job complete failure|launch failed", "slurm-launch-failed", None, None),
)
_HEALTH = re.compile(
    r"\b(?:NHC|AzNHC|HC|health.?check|check_\w+|hc_\w+|gpud|dcgm|DCGM|nvidia-smi|Xid|XID|ECC|DBE|row.?remap|nvlink|NVLink|ibstat"
    r"|InfiniBand|infiniband|mlx5_?\d*|mce|MCE|EDAC|fabric.?manager|(?:gpu|GPU).{0,12}(?:lost|missing|error|fail|dead|fallen))",
)
# what a person writes who found a fault; notes about planned work may hold the same words
_FAULT = re.compile(
    r"\b(?:dimm|fan|psu|power|disk|drive|nvme|file ?system|lustre|nfs|gpfs|beegfs|weka|mount\w*|scratch|nvswitch|imex|gpus?|cuda|ib|hca|link"
    r"|memory|ram|temp\w*|nic|cable|cpu|motherboard|board|driver)\b.{0,40}?\b(?:fail\w*|fault\w*|errors?|dead|bad|broken|lost|hung|hangs?|down"
    r"|missing|not (?:mounted|running|working|responding|detected|found)"
    r"|degraded|too high|high|falling|overheat\w*|flapping|stuck)\b"
    r"|\b(?:bad|failed|broken|dead|faulty|lost|missing|high|hung) (?:dimm|fan|psu|disk|drive|gpus?|link|cable|nic|memory|temp\w*"
    r"|power|hca|nvme)\b|row.?remap\w*|\bthermal\w*|throttl\w+|version mismatch"
    r"|pcie.{0,24}(?:width|gen\d|x\d)|kernel panic|machine check|node (?:crash|hung|down)",
    re.IGNORECASE,
)
# XID 79 on GPU 3 | GPU2 | gpu:4
_GPU = re.compile(r"\bgpu(?:[ _]id)?[ :#_-]{0,2}(\d{1,2})\b(?! ?(?:GPUs|gpus|of|count))", re.IGNORECASE)
_PLANNED = re.compile(
    r"firmware|upgrad|maintenance|reserv|updat|\brma\b|replac|rollout|planned|testing|burn.?in|reimag|decommission|move[ds]?\b",
    re.IGNORECASE,
)
# words of a health check → the class that they speak of
_WORDS: tuple[tuple[str, str], ...] = (
    (
        r"\bdimm|physmem|\bram size|(?:disk|drive|ssd|nvme)\S*.{0,20}(?:fail|dead|bad)|(?:failed|bad|dead) (?:disk|drive|nvme)",
        "hardware/host",
    ),
    (r"row.?remap|\bECC\b|\becc\b|\bDBE\b|\bdbe\b|uncorrect", "hardware/gpu-memory"),
    (r"nvidia-smi.{0,20}(?:hang|hung|time ?d? ?out)|driver.{0,20}(?:hung|stuck)", "driver/hang"),
    (
        (
            r"fall(?:en|ing) off|gpu.{0,12}(?:lost|missing)|GPU.{0,12}(?:lost|missing)|gpu.?count|number of gpus"
            r"|expected \d+ gpus|device handle for gpu"
        ),
        "hardware/gpu-lost",
    ),
    (r"nvlink|nvswitch|SXid", "hardware/nvlink"),
    (r"fabric.?manager|imex", "driver/fabric-manager"),
    (r"infiniband|\bib\b|ibstat|mlx5|port .*down|link .*down|hca", "hardware/network-link"),
    (r"pcie|\baer\b|link width", "hardware/pcie"),
    (r"therm|temperature|slowdown|power.?brake|\bpsu\b|\bfan\b|high temp|overheat|power suppl", "hardware/thermal-power"),
    (r"\bdimm\b|\bmce\b|edac|check_hw_(?:mem|cpu)|memory size", "hardware/host"),
    (r"check_fs|mount|\bnfs\b|lustre|gpfs|disk|/scratch|/tmp", "platform/storage"),
    (r"version mismatch", "driver/version-mismatch"),
)


def local_epoch(text: str | None, offset: float = 0.0) -> float | None:
    """
    Return a time of Slurm (``2026-03-01T10:00:00``, local to the cluster and without zone) as seconds since the epoch, or None.

    Parameters
    ----------
    text : str or None
        ``Unknown``, ``None``, ``N/A`` and the like give None.
    offset : float
        Seconds that the cluster's clock is east of UTC; a stamp with a zone of its own ignores it.
    """
    found = re.match(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?", text or "")
    if not found:
        return None
    try:
        stamp = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", found[0]))
    except ValueError:
        return None
    return stamp.timestamp() if stamp.tzinfo else stamp.replace(tzinfo=UTC).timestamp() - offset


def is_table_row(text: str) -> bool:
    """Tell whether a line is a row of sacct, sinfo, squeue or scontrol, and no line of a log."""
    stripped = text.strip()
    if len(stripped) > LONGEST_ROW:
        return bool(_TABLE.match(text))
    return bool(_TABLE.match(text) or (SINFO_ROW.match(stripped) and not stripped.startswith("[")) or SQUEUE_ROW.match(text))


def duration(text: str | None) -> float | None:
    """Return ``[days-]hours:minutes:seconds`` or ``minutes:seconds`` in seconds; UNLIMITED and the like give None."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?", (text or "").strip())
    if not found:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def exit_code(text: str | None) -> tuple[int | None, int | None]:
    """Return code and signal of ``1:0``; signal 0 is none."""
    found = re.fullmatch(r"(\d+):(\d+)", (text or "").strip())
    return (int(found[1]), int(found[2]) or None) if found else (None, None)


def base_state(state: str | None) -> str | None:
    """Return the full name of a job state: of ``CANCELLED by 1001``, ``OUT_OF_ME+``, ``TO``, or None when it is none."""
    words = (state or "").strip().upper().split()
    if not words:
        return None
    word = words[0].rstrip("+*~#$@")
    if word in STATES:
        return word
    if word in _BY_SHORT:
        return _BY_SHORT[word]
    cut = [name for name in STATES if name.startswith(word)] if words[0].endswith("+") and len(word) > 4 else []
    return cut[0] if len(cut) == 1 else None


def job_event(job: JobRecord, text: str, line: int | None = None, *, main: bool = True) -> Event | None:
    """
    Return the event that the end of a job is, or None for a job that succeeded, runs or waits.

    A job that is not the one asked about (`main` false: an earlier try, a neighbour) gives context only.
    """
    state = base_state(job.state)
    signature = _SIGNATURES.get(state or "")
    if state == "CANCELLED":
        by = re.search(r"by (\d+)", job.state or "")
        if by:
            # uid 0 and 64030 (Debian's slurm user) are the operator's, and so is anybody but the owner
            other = job.data.get("uid") is not None and str(job.data["uid"]) != by[1]
            signature = "slurm-cancelled-admin" if by[1] in ("0", "64030") or other else "slurm-cancelled-by"
        else:
            signature = "slurm-cancelled-by" if "." not in (job.id or "") else None
    if (
        signature is None
        and state not in (None, "COMPLETED", "RUNNING", "PENDING", "COMPLETING", "CONFIGURING", "CANCELLED")
        and job.exit_code
    ):
        signature = "slurm-job-failed"
    if signature is None:
        return None
    # 0:125 is how Slurm writes that the cgroup killed a task (SLURM_OUT_OF_MEMORY)
    if signature == "slurm-job-failed" and job.signal == 125:
        signature = "slurm-oom"
    event = Event(signature, "slurm", text[:2000], job.end, job.file, line, code=job.exit_code)
    event.data = {
        "job": job.id,
        "name": job.name,
        "state": job.state,
        "exit_code": job.exit_code,
        "signal": job.signal,
        "start": job.start,
    }
    if signature == "slurm-cancelled-by" and "by" not in (job.state or ""):
        event.weight = 0.6  # nobody says who
    if len(job.nodes) == 1:
        event.node = job.nodes[0]
    elif signature == "slurm-node-fail" and (failed := expand(str(job.data.get("failednode") or ""))):
        event.node = failed[0]  # which of them it was: sacct's FailedNode, from 24.11 on
    if not main:
        event.role, event.weight = "context", 0.1
    return event


# ---- nodes


def split_reason(text: str | None) -> tuple[str, str | None, float | None]:
    """Return reason, who set it and when, of ``NHC: nvidia-smi failed [root@2026-03-01T10:00:59]``."""
    found = _REASON.match(text or "")
    return (found[1], found[2], local_epoch(found[3])) if found else ((text or "").strip(), None, None)


def reason_meaning(reason: str, who: str | None = None) -> dict[str, Any]:
    """
    Return ``signature`` and, where the words decide, ``cls``, ``weight``, ``role`` and ``code`` of a drain or down reason.

    Slurm's own reasons are known by their text, a health check by its words; anything else is a person's note about planned work
    and stays context.
    """
    for pattern, signature, cls, weight in _REASONS:
        if re.search(pattern, reason):
            return {"signature": signature, "cls": cls, "weight": weight}
    if _HEALTH.search(reason) or (_FAULT.search(reason) and not _PLANNED.search(reason)):
        code = re.search(r"\bX[Ii][Dd]s?\D{0,8}(\d{1,3})\b", reason)
        cls = next((cls for pattern, cls in _WORDS if re.search(pattern, reason, re.IGNORECASE)), None)
        if code and (row := signatures().get(f"xid-{code[1]}")) and row.role == "cause":
            cls = row.cls  # the number says more than the words around it
        meaning: dict[str, Any] = {
            "signature": "slurm-drain-health",
            "cls": cls,
            "weight": 0.55 if cls else None,
            "role": "cause" if cls else None,
        }
        if code:
            meaning["code"] = int(code[1])
        if gpu := _GPU.search(reason):
            meaning["gpu"] = Gpu(index=int(gpu[1]))
        return meaning
    return {"signature": "slurm-drain-admin"}


def node_bad(state: str) -> bool | None:
    """Tell whether a node state is bad: True when down, failing, draining or silent; None when held on purpose or not known."""
    words = set(re.split(r"[+\s]", state.upper().rstrip("*~#!%$@^-")))
    if state.endswith("*") or words & {
        "DOWN",
        "FAIL",
        "FAILING",
        "DRAIN",
        "DRAINED",
        "DRAINING",
        "NO_RESPOND",
        "NOT_RESPONDING",
        "INVAL",
        "ERROR",
        "INVALID_REG",
    }:
        return True
    if words & {
        "MAINT",
        "REBOOT",
        "REBOOT_ISSUED",
        "RESERVED",
        "POWERED_DOWN",
        "POWERING_DOWN",
        "POWERING_UP",
        "FUTURE",
        "UNKNOWN",
        "BLOCKED",
    }:
        return None
    return False


def node_condition(
    parsed: Parsed,
    node: str,
    state: str,
    reason: str,
    who: str | None,
    when: float | None,
    *,
    text: str,
    file: str,
    line: int | None,
) -> None:
    """Add the state of one node, and the event that its drain or fall was."""
    is_bad = node_bad(state) if state else (True if reason else None)
    message = f"{reason} [{who}]" if who and reason else reason
    parsed.conditions.append(
        Condition("State", state or "DRAIN", node, "state", is_bad, when, reason, message, "slurm", file, line)
    )
    if not is_bad:
        return
    if reason:
        meaning = reason_meaning(reason, who)
    elif re.match(r"DOWN|FAIL", state.upper()) or state.endswith("*"):
        meaning = {"signature": "slurm-node-down"}
    else:
        return
    event = Event(meaning["signature"], "slurm", text[:2000], when, file, line, node, code=meaning.get("code"))
    event.role, event.cls, event.weight = meaning.get("role"), meaning.get("cls"), meaning.get("weight")
    event.gpu = meaning.get("gpu")
    event.data = {"state": state, "reason": reason, "by": who}
    if event.signature == "slurm-no-capacity":
        event.node, event.data["absent"] = None, node  # no machine: nothing happened on a node
    parsed.events.append(event)


def node_trouble(parsed: Parsed, row: Mapping[str, str], *, text: str, file: str, line: int | None) -> None:
    """
    Add the event that a row of ``sacctmgr show event`` is: a node was down or drained for a while, which may be over.

    It is no condition: those say what holds now.
    """
    began = Parsed()
    for name in expand(row.get("NODENAME"), limit=4096):
        who = re.sub(r"\(\d+\)$", "", row.get("USER") or "") or None
        reason, when = (row.get("REASON") or "").strip(), local_epoch(row["TIMESTART"])
        node_condition(began, name, row.get("STATE") or "", reason, who, when, text=text, file=file, line=line)
    for event in began.events:
        event.data["until"] = local_epoch(row.get("TIMEEND"))
    parsed.events += began.events
