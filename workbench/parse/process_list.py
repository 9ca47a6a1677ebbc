"""
Turn process lists (`ps`, `/proc/<pid>/wchan`) into events for processes that are stopped, or that sleep in the kernel for a
file system.

States and wait channels are those of proc(5) and ps(1); the function names are the kernel's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from workbench.model import Event, Line, Parsed

__all__ = ["looks_like_process_list", "parse_process_list", "storage_wait"]

# Wait channels in which only a file system or block device lets a process sleep: NFS and its RPC, FUSE, Lustre, Ceph, CIFS,
# page and journal write-back (names of Linux 4.18 to 6.x).
_STORAGE = re.compile(
    r"^_*(?:nfs\w*|rpc_wait_bit_killable|rpc_execute|request_wait_answer|fuse_\w+|ptlrpc_\w+|cl_sync_\w+|cl_lock_\w+|ll_\w+|osc_\w+|ldlm_\w+"
    r"|ceph_\w+|rbd_\w+|cifs_\w+|smb2?_\w+|wait_for_response|autofs_wait\w*|(?:wait_on|folio_wait|wait_for)_(?:page|bit|folio|writeback|stable)\w*"
    r"|folio_wait_\w+|io_schedule\w*|jbd2_\w+|xlog_\w+|xfs_\w+|ext4_\w+|btrfs_\w+|balance_dirty_pages\w*|blk_\w+|blkdev_\w+|submit_bio_wait"
    r"|sync_inodes_sb|do_fsync|vfs_fsync\w*|wb_wait_for_completion|gpfs\w*|cxiWaitEventWait|beegfs\w*|FhgfsOps\w*|wait_on_buffer|nvme_\w+)$"
)
# Kernel functions of the GPU driver; sleeping there without interruption is the driver's or the GPU's doing.
_DRIVER = re.compile(r"^_*(?:nv_\w+|nvidia\w*|os_acquire_\w+|rm_\w+|uvm_\w+|nvkms\w*)")
_LAUNCHER = re.compile(r"\b(?:torchrun|torch\.distributed\.(?:run|launch)|deepspeed|accelerate|mpirun|orted|srun|slurmstepd)\b")
#     PID    PPID STAT WCHAN                    ELAPSED   RSS COMMAND
_HEADER = re.compile(r"^\s*(?=.*\bPID\b)(?=.*\b(?:STAT|S|STATE)\b)[A-Z%_ +:/-]+$")
# /proc/1234/wchan:futex_wait_queue      1234 request_wait_answer
_WCHAN = re.compile(r"^(?:/proc/(?P<path>\d+)(?:/task/\d+)?/wchan:\s*|(?P<pid>\d{2,8})[:\s]\s*)(?P<wchan>[a-z_][\w.]+|0)\s*$")
# ps-node-a.txt
_NODE_FILE = re.compile(r"^ps(?:aux|list|tree)?[-_.](?P<node>[A-Za-z][\w.-]*?)(?:\.(?:txt|log|out))*$")


def looks_like_process_list(lines: Sequence[Line]) -> bool:
    """
    Whether a document is a process list: a `ps` header or wait channels among its first 20 lines.

    Parameters
    ----------
    lines : sequence of Line

    Returns
    -------
    bool
    """
    return any(_is_header(line.text) or _WCHAN.match(line.text[:200]) for line in lines[:20])


def storage_wait(function: str) -> bool:
    """
    Whether a kernel function is one in which a process waits for storage.

    Parameters
    ----------
    function : str
        Name in a wait channel or a kernel stack, without offset.

    Returns
    -------
    bool
    """
    return bool(_STORAGE.match(function))


def parse_process_list(lines: Sequence[Line], *, file: str) -> Parsed:
    """
    Read `ps` output of any column choice, or wait channels.

    Parameters
    ----------
    lines : sequence of Line
        The document.
    file : str
        Its name; `ps-<node>.txt` names the node.

    Returns
    -------
    Parsed
        Events `ps-stopped` (state T or t), `ps-dstate` (uninterruptible sleep), `stack-storage-wait` (asleep for a file system,
        in whatever state) and `ps-zombie`; `data["local_rank_hint"]` is the position among the launcher's children by process
        id, which is the local rank where a launcher starts its workers in order (torchrun does). `facts["processes"]` counts
        states and wait channels.
    """
    out = Parsed()
    node = _NODE_FILE.match(PurePosixPath(file).name)
    columns: list[str] = []
    rows: list[tuple[Line, dict[str, str]]] = []
    for line in lines:
        if _is_header(line.text):
            columns = line.text.split()
            continue
        wchan = _WCHAN.match(line.text[:200])
        if wchan:
            rows.append((line, {"PID": wchan.group("path") or wchan.group("pid"), "WCHAN": wchan.group("wchan")}))
        elif columns:
            fields = line.text.split(None, len(columns) - 1)
            if len(fields) >= len(columns) - 1:
                rows.append((line, dict(zip(columns, fields, strict=False))))
    hints = _local_ranks([fields for _, fields in rows])
    for line, row in rows:
        event = _event(line, row, file)
        if event is None:
            continue
        event.node = node.group("node") if node else None
        if event.pid in hints:
            event.local_rank = event.data["local_rank_hint"] = hints[event.pid]
        out.events.append(event)
    out.facts["processes"] = {
        "workers": len(hints),
        "pids": {pid: hint for pid, hint in hints.items() if pid is not None},
        "node": node.group("node") if node else None,
    }
    return out


def _is_header(text: str) -> bool:
    return "PID" in text and len(text) < 400 and bool(_HEADER.match(text))


def _event(line: Line, fields: dict[str, str], file: str) -> Event | None:
    state = fields.get("STAT") or fields.get("S") or fields.get("STATE") or ""
    wchan = fields.get("WCHAN", "")
    command = fields.get("COMMAND") or fields.get("CMD") or fields.get("ARGS") or ""
    if command.startswith("[") and command.endswith("]"):
        return None  # a kernel thread
    if storage_wait(wchan):
        signature = "stack-storage-wait"
    elif state[:1] in ("T", "t"):
        signature = "ps-stopped"
    elif state[:1] == "D":
        signature = "ps-dstate"
    elif state[:1] == "Z" and "python" in command:
        signature = "ps-zombie"
    else:
        return None
    pid = fields.get("PID", "")
    event = Event(signature, "stacks", text=line.text[:2000], file=file, line=line.no, pid=int(pid) if pid.isdigit() else None)
    event.data = {"state": state, "wchan": wchan, "command": command[:200], "frame": wchan, "process_list": True}
    if signature == "ps-dstate" and _DRIVER.match(wchan):
        event.cls, event.role, event.weight = "driver/hang", "cause", 0.6
    return event


def _local_ranks(rows: list[dict[str, str]]) -> dict[int | None, int]:
    """Position of each worker among its launcher's children, by process id."""
    launchers = {
        fields.get("PID")
        for fields in rows
        if _LAUNCHER.search(fields.get("COMMAND") or fields.get("CMD") or fields.get("ARGS") or "")
    }
    out: dict[int | None, int] = {}
    for launcher in launchers:
        children = sorted(
            int(f["PID"])
            for f in rows
            if f.get("PPID") == launcher and f.get("PID", "").isdigit() and f.get("PID") not in launchers
        )
        out.update({pid: index for index, pid in enumerate(children)})
    return out
