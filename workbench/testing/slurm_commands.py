"""
Turn the command line of one of Slurm's commands into its output, from a file with what a cluster remembers.

Run by the scripts of `workbench.testing.Slurm`; answers as release 22.05 does, and refuses an option that it does not know. What changes
nodes (``scontrol update`` and ``reboot``) changes the file.
"""

from __future__ import annotations

import fcntl
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from workbench.parse.nodeset import expand
from workbench.testing import slurm_control as control
from workbench.testing import slurm_queue as queue

__all__ = ["answer", "changing", "main"]

RELEASE = "22.05.8"
# what `sacct --helpformat` of that release prints, as far as anything here has a value for it
FIELDS = (
    "Account", "AdminComment", "AllocCPUS", "AllocNodes", "AllocTRES", "Cluster", "Comment", "Constraints", "DerivedExitCode", "Elapsed",
    "ElapsedRaw", "Eligible", "End", "ExitCode", "Flags", "GID", "Group", "JobID", "JobIDRaw", "JobName", "MaxRSS",
    "MaxRSSNode", "MaxRSSTask", "NCPUS", "NNodes", "NodeList", "NTasks", "Partition", "Priority", "QOS", "Reason", "ReqMem", "ReqTRES",
    "Reservation", "Start", "State", "Submit", "SubmitLine", "Suspended", "SystemComment", "Timelimit", "UID", "User", "WorkDir",
)  # fmt: skip
_CONFIG = {
    "AccountingStorageHost": "127.0.0.1", "AccountingStorageTRES": "cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu",
    "AccountingStorageType": "accounting_storage/slurmdbd", "ClusterName": "fake", "GresTypes": "gpu", "HealthCheckInterval": "300 sec",
    "HealthCheckProgram": "/usr/sbin/nhc", "JobAcctGatherType": "jobacct_gather/cgroup", "MinJobAge": "300 sec", "PrivateData": "none",
    "ProctrackType": "proctrack/cgroup", "SLURM_VERSION": RELEASE, "SlurmUser": "slurm(64030)", "SlurmctldHost[0]": "fake",
    "SlurmdTimeout": "300 sec", "TaskPlugin": "task/cgroup,task/affinity", "ConstrainDevices": "yes", "ConstrainRAMSpace": "yes",
}  # fmt: skip
_NO_CONTROLLER = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
_NO_ACCOUNTS = "Slurm accounting storage is disabled"


class Usage(Exception):
    """The command ends with a message and a code."""

    def __init__(self, message: str, code: int = 1, *, out: bool = False) -> None:
        super().__init__(message)
        self.code, self.out = code, out


def main(argv: Sequence[str]) -> int:
    """Print what a command answers and return its exit code; `argv` is the file, the command's name and its own words."""
    code, out, err = answer(Path(argv[0]), argv[1], list(argv[2:]))
    sys.stdout.write(out)
    sys.stderr.write(err)
    return code


def answer(file: Path, name: str, words: list[str]) -> tuple[int, str, str]:
    """Return exit code, output and complaints of a command."""
    commands = {"sacct": sacct, "scontrol": scontrol, "sinfo": sinfo, "sacctmgr": sacctmgr, "sdiag": sdiag, "squeue": squeue}
    try:
        if words in (["--version"], ["-V"]):
            return 0, f"slurm-wlm {RELEASE}\n", ""
        if name == "scontrol" and words[:1] in (["update"], ["reboot"], ["requeue"]):
            with changing(file) as state:
                return 0, scontrol(state, words), ""
        return 0, commands[name](json.loads(file.read_text(encoding="utf-8")), words), ""
    except Usage as error:
        return (error.code, f"{error}\n", "") if error.out else (error.code, "", f"{error}\n")


@contextmanager
def changing(file: Path) -> Iterator[dict[str, Any]]:
    """Yield what the cluster remembers, and write it back: one after the other, as slurmctld does; an error changes nothing."""
    with file.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = json.loads(file.read_text(encoding="utf-8"))
        yield state
        fresh = file.with_suffix(".changed")
        fresh.write_text(json.dumps(state), encoding="utf-8")
        fresh.replace(file)


def _options(
    command: str, words: Sequence[str], valued: Mapping[str, str], plain: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Return the options by their long names, and the other words; an option that is not known ends the command."""
    found: dict[str, str] = {}
    rest: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            rest.append(word)
        elif name in plain and not equals:
            found[plain[name]] = "yes"
        elif name in valued:
            if not equals:
                if at >= len(words):
                    raise Usage(f"{command}: option requires an argument -- '{name.lstrip('-')}'")
                value, at = words[at], at + 1
            found[valued[name]] = value
        else:
            raise Usage(f"{command}: unrecognized option '{word}'\nTry \"{command} --help\" for more information")
    return found, rest


# -- sacct ----------------------------------------------------------------------------------------------------------------


def sacct(state: Mapping[str, Any], words: Sequence[str]) -> str:
    """Answer for sacct."""
    valued = {
        "--jobs": "jobs", "-j": "jobs", "--name": "name", "--starttime": "since", "-S": "since", "--endtime": "until", "-E": "until",
        "--format": "format", "-o": "format", "--delimiter": "delimiter",
    }  # fmt: skip
    plain = {
        "--allocations": "allocations", "-X": "allocations", "--duplicates": "duplicates", "-D": "duplicates", "--allusers": "all", "-a": "all",
        "--parsable2": "bars", "-P": "bars", "--parsable": "bars", "-p": "bars", "--noheader": "bare", "-n": "bare", "--json": "json",
        "--helpformat": "help", "-e": "help", "--batch-script": "script",
    }  # fmt: skip
    given, rest = _options("sacct", words, valued, plain)
    if rest:
        raise Usage(f"sacct: fatal: unexpected argument: {rest[0]}")
    if "help" in given:
        return "".join(f"{name:<20}" + ("\n" if at % 4 == 3 else "") for at, name in enumerate(FIELDS)) + "\n"
    if not state["accounting"]:
        raise Usage(_NO_ACCOUNTS)
    rows = list(_accounts(state, given))
    if "script" in given:
        return "".join(f"Batch Script for {row['JobID']}\n{'-' * 80}\nNONE\n" for row in rows if "." not in row["JobID"])
    if "json" in given:
        return json.dumps(_json(rows), indent=2) + "\n"
    names = given.get("format", "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode").split(",")
    known = {name.lower(): name for name in FIELDS}
    for name in names:
        if name.partition("%")[0].lower() not in known:
            raise Usage(f'sacct: fatal: Invalid field requested: "{name}"')
    names = [known[name.partition("%")[0].lower()] for name in names]
    if "bars" not in given:
        raise Usage("sacct: only --parsable2 is known here")
    bar = given.get("delimiter", "|")
    lines = [] if "bare" in given else [bar.join(names)]
    lines += [bar.join(row.get(name, "") for name in names) for row in rows]
    return "".join(line + "\n" for line in lines)


def _accounts(state: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[dict[str, str]]:
    rows: list[dict[str, str]] = state["accounts"]
    wanted = given["jobs"].split(",") if "jobs" in given else None
    for each in wanted or ():
        if not re.match(r"\d+(?:[_+.]\S*)?$", each):
            raise Usage(f"sacct: fatal: Bad job/step specified: {each}")
    since, until = _moment(given.get("since")), _moment(given.get("until"))
    newest = {row["JobID"]: at for at, row in enumerate(rows)}
    names = set(given["name"].split(",")) if "name" in given else None
    jobs = {re.split(r"[.]", row["JobID"])[0]: row for row in rows if "." not in row["JobID"]}
    for at, row in enumerate(rows):
        job, _, step = row["JobID"].partition(".")
        mine = jobs.get(job, row)
        if ("allocations" in given and step) or ("duplicates" not in given and newest[row["JobID"]] != at):
            continue
        if wanted is not None and not {row["JobID"], row.get("JobIDRaw", ""), job, re.split(r"[_+]", job)[0]} & set(wanted):
            continue
        if names is not None and mine.get("JobName") not in names:
            continue
        begin, end = _moment(mine.get("Submit") or mine.get("Start")), _moment(mine.get("End"))
        if (until is not None and begin is not None and begin > until) or (since is not None and end is not None and end < since):
            continue
        yield row


def _moment(text: str | None) -> float | None:
    if not text or text in ("Unknown", "None", "N/A"):
        return None
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise Usage(f"sacct: error: Invalid time specification (pos=0): {text}") from None


def _json(rows: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    jobs = [_job(row, rows) for row in rows if "." not in row["JobID"]]
    release = {"version": {"major": 22, "micro": 8, "minor": 5}, "release": RELEASE}
    return {
        "meta": {"plugin": {"type": "openapi/dbv0.0.38", "name": "Slurm OpenAPI DB v0.0.38"}, "Slurm": release},
        "errors": [],
        "jobs": jobs,
    }


def _job(row: Mapping[str, str], rows: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    base, task = re.match(r"(\d+)(?:_(\d+))?", row["JobID"]).groups()  # type: ignore[union-attr]
    raw = row.get("JobIDRaw", base)
    steps = [each for each in rows if each["JobID"].startswith(row["JobID"] + ".")]
    return {
        "account": row.get("Account", ""),
        "comment": {"administrator": None, "job": None, "system": None},
        "allocation_nodes": int(row.get("NNodes") or 0),
        "array": {
            "job_id": int(base) if task else 0, "limits": {"max": {"running": {"tasks": 0}}}, "task": None,
            "task_id": int(task) if task else None,
        },
        "cluster": "fake",
        "constraints": "",
        "container": None,
        "derived_exit_code": {"status": "SUCCESS", "return_code": 0},
        "time": _times(row),
        "exit_code": _code(row),
        "group": row.get("Group", ""),
        "het": {"job_id": 0, "job_offset": None},
        "job_id": int(raw if raw.isdigit() else base),
        "name": row.get("JobName", ""),
        "nodes": row.get("NodeList", ""),
        "partition": row.get("Partition", ""),
        "qos": row.get("QOS", ""),
        "state": {"current": row.get("State", "").split()[0] if row.get("State") else "", "reason": row.get("Reason") or "None"},
        "steps": [
            {
                "step": {"id": step["JobID"].rpartition(".")[2], "name": step.get("JobName", "")},
                "state": step.get("State", "").split(" ")[0],
                "exit_code": _code(step),
                "nodes": {"count": int(step.get("NNodes") or 0), "list": expand(step.get("NodeList"))},
                "time": _times(step),
            }
            for step in steps
        ],
        "user": row.get("User", ""),
        "working_directory": row.get("WorkDir", ""),
    }  # fmt: skip


def _times(row: Mapping[str, str]) -> dict[str, int]:
    found = {
        key: int(_moment(row.get(name)) or 0)
        for key, name in (("start", "Start"), ("end", "End"), ("submission", "Submit"), ("eligible", "Eligible"))
    }
    return {"elapsed": max(found["end"] - found["start"], 0) if found["end"] else 0, "suspended": 0, **found}


def _code(row: Mapping[str, str]) -> dict[str, Any]:
    """Return an exit code; this release calls every one a success."""
    code, _, _signal = row.get("ExitCode", "0:0").partition(":")
    return {"status": "SUCCESS", "return_code": 0 if "." not in row["JobID"] else int(code or 0)}


# -- scontrol, sinfo and the others ---------------------------------------------------------------------------------------


def scontrol(state: Mapping[str, Any], words: Sequence[str]) -> str:
    """Answer for scontrol."""
    plain = {"--oneliner": "line", "-o": "line", "--all": "all", "-a": "all", "--details": "details", "-d": "details"}
    given, rest = _options("scontrol", words, {}, plain)
    if rest == ["ping"]:
        return f"Slurmctld(primary) at fake is {'UP' if state['up'] else 'DOWN'}\n"
    if rest[:1] in (["update"], ["reboot"], ["requeue"]):
        return _changed(state, rest)
    if rest[:1] != ["show"] or len(rest) < 2:
        raise Usage(f"invalid keyword: {' '.join(rest)}")
    if not state["up"]:
        raise Usage(_NO_CONTROLLER)
    what, names = rest[1], rest[2:]
    if what == "config":
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"Configuration data as of {now}\n" + "".join(f"{key:<23} = {value}\n" for key, value in _CONFIG.items())
    if what in ("job", "jobs"):
        records = _jobs(state, names)
        if "details" not in given:
            records = [re.sub(r"(?m)^ +(?:Nodes|JOB_GRES|DerivedExitCode)=.*\n", "", record) for record in records]
    elif what in ("step", "steps") and not names:
        records = queue.steps(state)
    elif what in ("node", "nodes"):
        wanted = [name for each in names for name in expand(each)] or list(state["nodes"])
        if lost := [name for name in wanted if name not in state["nodes"]]:
            raise Usage(f"Node {lost[0]} not found", out=True)
        records = [control.shown(state, name, details="details" in given) for name in wanted]
    else:
        raise Usage(f"invalid entity:{what} for keyword:show")
    if "line" in given:
        return "".join(" ".join(record.split()) + " \n" for record in records)
    return "".join(record.rstrip("\n") + "\n\n" for record in records)


def _changed(state: Mapping[str, Any], words: Sequence[str]) -> str:
    about_job = words[0] == "requeue" or any(word.lower().startswith("jobid=") for word in words)
    if not state["up"]:
        who = "scontrol_reboot_nodes" if words[0] == "reboot" else "slurm_update"
        raise Usage(f"{who} error: Unable to contact slurm controller (connect failure)")
    if state.get("user", "root") != "root" and not about_job:  # neither operator nor SlurmUser
        raise Usage(
            "slurm_update error: Invalid user id" if words[0] == "update" else "scontrol_reboot_nodes error: Permission denied"
        )
    change = {"reboot": control.reboot, "requeue": queue.requeue}.get(words[0], queue.update if about_job else control.update)
    try:
        change(dict(state) if not isinstance(state, dict) else state, words[1:])
    except control.Refused as error:
        raise Usage(str(error)) from None
    return ""


def squeue(state: Mapping[str, Any], words: Sequence[str]) -> str:
    """Answer for squeue with a format of one-letter fields."""
    valued = {"-o": "format", "--format": "format", "-t": "states", "--states": "states", "-w": "nodes", "--nodelist": "nodes"}
    valued |= {"-O": "columns", "--Format": "columns"}
    plain = {"-h": "bare", "--noheader": "bare", "-a": "all", "--all": "all"}
    given, rest = _options("squeue", words, valued, plain)
    if rest or "bare" not in given or not {"format", "columns"} & set(given):
        raise Usage("squeue: only --noheader --format is known here")
    if not state["up"]:
        raise Usage("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    try:
        return queue.columns(state, given["columns"]) if "columns" in given else queue.squeue(state, given)
    except control.Refused as error:
        raise Usage(str(error)) from None


def _jobs(state: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    known = state["jobs"] if state["memory"] else {}
    known = {**known, **{job["id"]: queue.record(job) for job in state.get("queue", ())}}
    if not names:
        return list(known.values()) or ["No jobs in the system"]
    base = re.split(r"[_+.]", names[0])[0]
    found = [record for record in known.values() if re.search(rf"\b(?:JobId|ArrayJobId|HetJobId)={re.escape(base)}\b", record)]
    if not found:
        raise Usage("slurm_load_jobs error: Invalid job id specified")
    # of an array the task that bears its number comes first, then the others, the newest first
    numbers = {record: int(re.findall(r"\d+", record)[0]) for record in found}
    return sorted(found, key=lambda record: (numbers[record] != int(base), -numbers[record]))


def sinfo(state: Mapping[str, Any], words: Sequence[str]) -> str:
    """Answer for sinfo in the one form that is asked."""
    valued = {
        "--format": "format",
        "-o": "format",
        "--nodes": "nodes",
        "-n": "nodes",
        "--partition": "partition",
        "-p": "partition",
    }
    given, _ = _options("sinfo", words, valued, {"--all": "all", "-a": "all", "--Node": "node", "-N": "node"})
    if "all" in given and "partition" in given:
        raise Usage("sinfo: error: Conflicting options, -a and -p, specified. Please choose one or the other.")
    if given.get("format") != "%N|%T|%E|%u|%H":
        raise Usage(f"sinfo: only --format=%N|%T|%E|%u|%H is known here, not {given.get('format')}")
    if not state["up"]:
        raise Usage("slurm_load_partitions: Unable to contact slurm controller (connect failure)")
    rows = state["states"]
    if "nodes" in given:
        wanted = set(expand(given["nodes"]))
        rows = [row for row in rows if row.partition("|")[0] in wanted]
    if "partition" in given:
        inside = {name for name, record in state["nodes"].items() if given["partition"] in _partitions(record)}
        rows = [row for row in rows if row.partition("|")[0] in inside]
    return "NODELIST|STATE|REASON|USER|TIMESTAMP\n" + "".join(row + "\n" for row in rows)


def _partitions(record: str) -> list[str]:
    found = re.search(r"\bPartitions=(\S+)", record)
    return found[1].split(",") if found else []


def sacctmgr(state: Mapping[str, Any], words: Sequence[str]) -> str:
    """Answer for sacctmgr show cluster and show user."""
    _, rest = _options("sacctmgr", words, {}, {"--noheader": "bare", "-n": "bare", "--parsable2": "bars", "-P": "bars"})
    if not state["accounting"]:
        raise Usage("You are not running a supported accounting_storage plugin\nOnly 'accounting_storage/slurmdbd' is supported.")
    if rest[:2] == ["show", "cluster"]:
        return "fake|127.0.0.1\n"
    if rest[:2] == ["show", "user"]:
        return "None\n"
    raise Usage(f" Unknown or unsupported here: {' '.join(rest)}")


def sdiag(state: Mapping[str, Any], words: Sequence[str]) -> str:
    """Answer for sdiag: its time is what is asked for."""
    _options("sdiag", words, {}, {})
    if not state["up"]:
        raise Usage("slurm_get_statistics: Unable to contact slurm controller (connect failure)")
    rule, now = "*" * 55, time.time()
    stamp = datetime.fromtimestamp(now, UTC).strftime("%a %b %d %H:%M:%S %Y")
    return (
        f"{rule}\nsdiag output at {stamp} ({int(now)})\nData since      {stamp} ({int(now)})\n{rule}\nServer thread count:  1\n"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
