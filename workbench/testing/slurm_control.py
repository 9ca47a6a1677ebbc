"""
Turn what is asked of slurmctld about nodes (drain, resume, reboot) into a changed memory of a cluster, and that into which jobs hold nodes.

Answers as release 22.05 does, also where that is odd: what was seen of the real one is in tests/data/conformance/slurm-changes.json.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from workbench.parse.nodeset import expand

__all__ = ["Refused", "holding", "node_record", "reboot", "shown", "update"]

_WAKES = 0.3  # seconds for which a node that was given back shows no boot and no answer (with real slurmd: until its next answer)
_ASKED, _AWAY = 0.2, 0.6  # seconds until a reboot that was asked for is issued, and until it is over
_STATES = (
    "Invalid input: state={}\nRequest aborted\nValid states are: NoResp DRAIN FAIL FUTURE RESUME POWER_DOWN POWER_UP UNDRAIN\n"
    "Not all states are valid given a node's prior state"
)


class Refused(Exception):
    """slurmctld says no, in these words."""


def node_record(name: str, gres: str = "gpu:h100:8", partitions: str = "train", boot: float = 1.7e9) -> str:
    """Return a node that idles, as ``scontrol show node`` of 22.05 writes it."""
    up = _stamp(boot)
    return (
        f"NodeName={name} Arch=x86_64 CoresPerSocket=8 \n   CPUAlloc=0 CPUEfctv=16 CPUTot=16 CPULoad=0.10\n"
        f"   AvailableFeatures=(null)\n   ActiveFeatures=(null)\n   Gres={gres}\n   NodeAddr=127.0.0.1 NodeHostName={name} Version=22.05.8\n"
        f"   OS=Linux 6.1.0 #1 SMP \n   RealMemory=64000 AllocMem=0 FreeMem=16216 Sockets=2 Boards=1\n"
        f"   State=IDLE ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A\n   Partitions={partitions} \n"
        f"   BootTime={up} SlurmdStartTime={up}\n   LastBusyTime={up}\n   CfgTRES=cpu=16,mem=62.50G,billing=16\n   AllocTRES=\n"
        f"   CapWatts=n/a\n   CurrentWatts=0 AveWatts=0\n   ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s\n"
    )


def _stamp(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _flags(record: str) -> list[str]:
    found = re.search(r"\bState=(\S+)", record)
    return found[1].split("+") if found else ["UNKNOWN"]


def _reason(record: str) -> str:
    found = re.search(r"(?m)^ +Reason=(.*)$", record)
    return found[1] if found else ""


def _with(record: str, flags: Sequence[str], reason: str) -> str:
    record = re.sub(r"\bState=\S+", lambda _: f"State={'+'.join(flags)}", record, count=1)
    record = re.sub(r"(?m)^ +Reason=.*\n", "", record.rstrip("\n") + "\n")
    return record + (f"   Reason={reason}\n" if reason else "")


def _base(flags: Sequence[str], base: str = "") -> list[str]:
    """Return the flags in Slurm's order, the basic state first."""
    rest = [one for one in flags[1:] if one]
    order = ("DRAIN", "FAIL", "REBOOT_REQUESTED", "REBOOT_ISSUED", "NOT_RESPONDING")
    return [base or flags[0], *sorted(rest, key=lambda one: order.index(one) if one in order else 0)]


def update(state: dict[str, Any], words: Sequence[str]) -> None:
    """
    Change nodes as ``scontrol update nodename=…`` does.

    Raises
    ------
    Refused
        With slurmctld's words.
    """
    given = {key.lower(): value for key, equals, value in (word.partition("=") for word in words) if equals}
    if set(given) - {"nodename", "state", "reason"} or "nodename" not in given or len(given) != len(words):
        raise Refused(f"Unknown or unsupported here: update {' '.join(words)}")
    what, reason = given.get("state", "").lower(), given.get("reason")
    if what and what not in ("drain", "down", "fail", "resume", "undrain"):
        raise Refused(_STATES.format(given["state"]))
    if what in ("drain", "down", "fail") and not reason:
        raise Refused("You must specify a reason when DOWNING or DRAINING a node. Request denied")
    names = expand(given["nodename"])
    if not names or any(name not in state["nodes"] for name in names):
        raise Refused("slurm_update error: Invalid node name specified")
    signed = f"{reason} [{state.get('user', 'root')}@{_stamp(time.time())}]" if reason else ""
    for name in names:
        _settle(state, name)
        record = state["nodes"][name]
        flags, old = _flags(record), _reason(record)
        held = set(flags) & {"DRAIN", "FAIL", "DOWN"}
        if what == "drain":
            flags, old = _base([*dict.fromkeys([*flags, "DRAIN"])]), signed
        elif what == "fail":
            flags, old = _base([*dict.fromkeys([*flags, "FAIL"])]), signed
        elif what == "down":
            flags, old = _base(flags, "DOWN"), signed
        elif what == "resume":
            if not held:
                raise Refused("slurm_update error: Invalid node state specified")
            flags, old = _base([one for one in flags if one not in ("DRAIN", "FAIL")], "IDLE"), ""
        elif what == "undrain":
            flags = _base([one for one in flags if one != "DRAIN"])
            old = (signed or old) if "DOWN" in flags else ""
            if "DOWN" in flags and "NOT_RESPONDING" not in flags and old.startswith("Not responding"):
                flags, old = _base(flags, "IDLE"), ""  # slurmd answers, and ReturnToService=1 takes back what has this reason
        elif held:  # a reason alone, on a node that nobody holds, is forgotten
            old = signed or old
        state["nodes"][name] = _with(record, flags, old)
        if what in ("resume", "undrain"):
            state.setdefault("waking", {})[name] = time.time() + _WAKES


def reboot(state: dict[str, Any], words: Sequence[str]) -> None:
    """
    Note that nodes are to be rebooted, as ``scontrol reboot`` does without ASAP.

    Raises
    ------
    Refused
        With slurmctld's words.
    """
    given = {key.lower(): value for key, equals, value in (word.partition("=") for word in words) if equals}
    names = [name for word in words if "=" not in word for name in expand(word)]
    if set(given) - {"reason"} or "ASAP" in words:
        raise Refused(f"Unknown or unsupported here: reboot {' '.join(words)}")
    if not names or any(name not in state["nodes"] for name in names):
        raise Refused("scontrol_reboot_nodes error: Invalid node name specified")
    for name in names:
        _settle(state, name)
        record = state["nodes"][name]
        old = _reason(record)
        stamp = old[old.rindex(" [") :] if " [" in old else f" [root@{_stamp(time.time())}]"
        reason = f"{given['reason']}{stamp}" if given.get("reason") else old
        state["nodes"][name] = _with(record, _base([*dict.fromkeys([*_flags(record), "REBOOT_REQUESTED"])]), reason)
        state.setdefault("reboots", {})[name] = time.time()


def _settle(state: dict[str, Any], name: str) -> None:
    """Make what time has brought about a part of the memory."""
    state["nodes"][name] = _aged(state, name)
    if time.time() - state.get("reboots", {}).get(name, 0.0) > _AWAY:
        state.get("reboots", {}).pop(name, None)


def _aged(state: Mapping[str, Any], name: str) -> str:
    record: str = state["nodes"][name]
    asked, now = state.get("reboots", {}).get(name), time.time()
    if asked is None or now - asked < _ASKED or any(name in job["nodes"] for job in holding(state)):
        return record
    reason = _reason(record)
    if "reboot issued" not in reason:
        at = reason.rindex(" [") if " [" in reason else len(reason)
        reason = f"{reason[:at]} : reboot issued{reason[at:]}"
    flags = [one for one in _flags(record) if one != "REBOOT_REQUESTED"]
    if now - asked < _AWAY:
        return _with(record, _base([*flags, "REBOOT_ISSUED"], "DOWN"), reason)
    before = re.search(r"BootTime=(\S+)", record)
    boot = _stamp(asked + 1)
    if before and before[1] == boot:
        boot = _stamp(asked + 2)
    return re.sub(r"BootTime=\S+", f"BootTime={boot}", _with(record, _base(flags), reason))


def shown(state: Mapping[str, Any], name: str, *, details: bool = False) -> str:
    """Return the record of a node as it is now: with what runs there, what a reboot has come to, and, with `details`, the GPUs in use."""
    record = _aged(state, name)
    flags, mine = _flags(record), [job for job in holding(state) if name in job["nodes"]]
    if mine and flags[0] == "IDLE":
        ends = all(job["state"] == "CG" for job in mine)
        record = _with(record, _base([*flags, "COMPLETING"]) if ends else _base(flags, "MIXED"), _reason(record))
    if state.get("waking", {}).get(name, 0.0) > time.time():
        record = _with(record, _base([*dict.fromkeys([*_flags(record), "NOT_RESPONDING"])]), _reason(record))
        record = re.sub(r"BootTime=\S+ SlurmdStartTime=\S+", "BootTime=None SlurmdStartTime=None", record)
    if details and "GresUsed=" not in record:
        used = sum(job.get("used", 0) for job in mine)
        found = re.search(r"\bGres=(gpu(?::[A-Za-z][\w.-]*)?)", record)
        told = f"{found[1]}:{used}(IDX:{f'0-{used - 1}' if used > 1 else '0' if used else 'N/A'})" if found else "gpu:0"
        record = re.sub(r"(?m)^( +Gres=.*)$", lambda gres: f"{gres[1]}\n   GresDrain=N/A\n   GresUsed={told}", record, count=1)
    return record


def holding(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the jobs that hold nodes: those of the queue, and those whose record says that they run."""
    found: list[dict[str, Any]] = list(state.get("queue", ()))
    for job, record in state["jobs"].items():
        if re.search(r"\bJobState=RUNNING\b", record):
            values = {
                key: (re.search(rf"\b{key}=(\S+)", record) or ["", ""])[1]
                for key in ("UserId", "StartTime", "NodeList", "JobName")
            }
            row = {"id": job, "user": values["UserId"].split("(")[0], "state": "R", "start": values["StartTime"], "gres": "N/A"}
            found.append({**row, "nodes": expand(values["NodeList"]), "name": values["JobName"]})
    return found
