"""Turn what an incident folder has of Slurm into commands in a folder: sacct, scontrol, squeue, sinfo, sacctmgr and sdiag for a PATH."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from workbench.testing.evidence import Evidence
from workbench.testing.slurm_control import node_record

__all__ = ["COMMANDS", "Slurm"]

COMMANDS = ("sacct", "scontrol", "squeue", "sinfo", "sacctmgr", "sdiag")
# what people paste of `scontrol show job` and sacct has under another name
_FROM_RECORD = {"WorkDir": "WorkDir", "Account": "Account", "QOS": "QOS", "Priority": "Priority", "Reservation": "Reservation"}


class Slurm:
    """
    A Slurm cluster that remembers some jobs and nodes.

    Parameters
    ----------
    source : path or Evidence, optional
        An incident folder with sacct's table, and, where it has them, ``scontrol show job``, ``scontrol show node`` and sinfo's table.
    nodes : iterable of str, optional
        Names of nodes that idle, beside those of the folder.

    Attributes
    ----------
    state : dict
        What the commands answer from: ``accounts`` (rows of sacct), ``jobs`` and ``nodes`` (records of scontrol), ``states`` (rows of
        sinfo), ``accounting`` (whether there is a slurmdbd), ``up`` (whether slurmctld answers) and ``memory`` (whether it still knows
        ended jobs), ``queue`` (jobs that hold nodes or wait: id, user, state, start, nodes, gres, used, name), ``user`` (who asks).
    """

    def __init__(self, source: str | Path | Evidence | None = None, nodes: Iterable[str] = ()) -> None:
        if source is None:
            self.state: dict[str, Any] = {"accounts": [], "jobs": {}, "nodes": {}, "accounting": True, "up": True, "memory": True}
        else:
            self.state = self._of(Evidence.of(source))
        self.state["nodes"] |= {name: node_record(name) for name in nodes}
        self.state.setdefault("states", [_state(name, record) for name, record in self.state["nodes"].items()])

    @staticmethod
    def _of(evidence: Evidence) -> dict[str, Any]:
        records = {found[1]: record for record in evidence.slurm_jobs if (found := re.match(r"JobId=(\d+)", record))}
        return {
            "accounts": [_whole(row, records) for row in evidence.accounts],
            "jobs": records,
            "nodes": evidence.slurm_nodes,
            "states": evidence.slurm_states or [_state(name, record) for name, record in evidence.slurm_nodes.items()],
            "accounting": True,
            "up": True,
            "memory": True,
        }

    @property
    def empty(self) -> bool:
        """Whether the folder has nothing of Slurm."""
        return not (self.state["accounts"] or self.state["jobs"])

    def install(self, folder: Path) -> Path:
        """Write the commands into a folder, and return it; called again it only changes what they answer."""
        folder.mkdir(parents=True, exist_ok=True)
        state = folder / ".state.json"
        fresh = folder / ".state.new"
        fresh.write_text(json.dumps(self.state), encoding="utf-8")
        fresh.replace(state)
        root = Path(__file__).resolve().parents[2]
        for name in COMMANDS:
            words = [sys.executable, "-S", "-m", "workbench.testing.slurm_commands", str(state), name]
            script = folder / name
            script.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(root))} exec {shlex.join(words)} "$@"\n', encoding="utf-8")
            script.chmod(0o755)
        # in front of a command, as `ssh login-1` would be: settings can name it where no PATH is at hand
        prefix = folder / "slurm"
        prefix.write_text(f'#!/bin/sh\nPATH={shlex.quote(str(folder))}:"$PATH" exec "$@"\n', encoding="utf-8")
        prefix.chmod(0o755)
        return folder


def _whole(row: Mapping[str, str], records: Mapping[str, str]) -> dict[str, str]:
    """Return a row of the accounts with what the job's own record tells beside it."""
    whole = {"JobIDRaw": row["JobID"], **row}
    record = records.get(row["JobID"], "")
    for key, word in _FROM_RECORD.items():
        if not whole.get(key) and (found := re.search(rf"\b{word}=(\S+)", record)):
            whole[key] = found[1]
    if not whole.get("UID") and (found := re.search(r"\bUserId=[^(\s]*\((\d+)\)", record)):
        whole["UID"] = found[1]
    return whole


def _state(name: str, record: str) -> str:
    """Return a node as a row of ``sinfo --Node --format=%N|%T|%E|%u|%H``."""
    word = re.search(r"\bState=(\S+)", record)
    state = (word[1] if word else "UNKNOWN").split("+")
    shown = state[0].lower()
    if "DRAIN" in state:
        shown = "draining" if shown in ("allocated", "mixed") else "drained"
    if state[0].endswith("*") or "NOT_RESPONDING" in state:
        shown = shown.rstrip("*") + "*"
    reason = re.search(r"\bReason=(.*?)\s*(?:\[(\S+?)@([^\]]+)\])?\s*$", record, re.M)
    if not reason:
        return f"{name}|{shown}|none|Unknown|Unknown"
    return f"{name}|{shown}|{reason[1]}|{reason[2] or 'Unknown'}|{reason[3] or 'Unknown'}"
