"""Turn /proc into the processes of a job: who is a rank, who a rank's helper and who the launcher, in which state; and end them in order."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.parse.proc_files import process as parse_stat

__all__ = ["Member", "caught", "end_in_order", "members", "same"]

_PROC = Path("/proc")
# number of the rank and of the rank on its node, the most specific first: torchrun, Open MPI, PMIx/MPICH, Slurm
_RANKS = (
    ("RANK", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMIX_RANK", "MPI_LOCALRANKID"),
    ("PMI_RANK", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_LOCALID"),
)
_BY_ITSELF = 2.0  # s in which a launcher notices that its ranks have ended
# children of a rank that are no data loaders: their stacks say nothing of what the rank waits for
_HELPERS = (
    "from multiprocessing.resource_tracker import", "from multiprocessing.semaphore_tracker import",
    "from multiprocessing.forkserver import", "torch/_inductor/compile_worker", "wandb-core", "wandb service", "wandb/sdk/internal",
    "bin/tensorboard",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a job; `born` (clock ticks since boot) tells it from a later process of the same number."""

    pid: int
    parent: int
    born: int
    state: str  # R S D T t Z, as proc(5)
    command: str
    wchan: str = ""
    role: str = "other"  # rank | worker (a data loader of a rank) | launcher | other
    rank: int | None = None
    local_rank: int | None = None
    python: bool = False


def members(pids: int | Iterable[int]) -> list[Member]:
    """
    Return the processes below some processes, and these, with the role of each.

    Parameters
    ----------
    pids : int or iterable of int
        What was started: a launcher, or ranks.

    Returns
    -------
    list of Member
        In order of role (ranks, workers, launcher, others) and rank; a process that ends meanwhile is left out. What `srun` starts on
        other nodes is not below it.

    Notes
    -----
    A rank is the topmost Python that has a rank's number in its environment. Where some have a local rank, too, only these count: in
    a pod of PyTorchJob even torchrun itself has a RANK, which numbers the node.
    """
    roots = [pids] if isinstance(pids, int) else list(pids)
    rows: dict[int, tuple[int, int, str]] = {}
    below: dict[int, list[int]] = {}
    for entry in os.listdir(_PROC):
        if entry.isdigit() and (row := _stat(int(entry))) is not None:
            rows[int(entry)] = row
            below.setdefault(row[0], []).append(int(entry))
    order, todo = [], [pid for pid in roots if pid in rows]
    while todo:
        pid = todo.pop(0)
        if pid not in order:
            order.append(pid)
            todo += sorted(below.get(pid, ()))
    environments = {pid: _environment(pid) for pid in order}
    commands = {pid: " ".join(_read(pid, "cmdline").replace("\0", " ").split())[:1000] for pid in order}
    pythons = {pid for pid in order if _is_python(pid, commands[pid])}
    ranks = _ranks(order, environments, pythons)
    found = []
    for pid in order:
        parent, born, state = rows[pid]
        rank, local = ranks.get(pid, (None, None))
        role = "other"
        if rank is not None and pid in pythons:
            above = parent
            while above in rows and above in order and not (above in pythons and above in ranks):
                above = rows[above][0]
            helper = any(word in commands[pid] for word in _HELPERS)
            role = "other" if helper else "worker" if ranks.get(above, (None,))[0] == rank and above in pythons else "rank"
        found.append(
            Member(pid, parent, born, state, commands[pid], _read(pid, "wchan").strip(), role, rank, local, pid in pythons)
        )
    has_ranks = any(one.role == "rank" for one in found)
    places = {"rank": 0, "worker": 1, "launcher": 2, "other": 3}
    if has_ranks:
        ancestors = {one.parent for one in found if one.role == "rank"}
        while more := {one.parent for one in found if one.pid in ancestors} - ancestors:
            ancestors |= more
        found = [_with_role(one, "launcher") if one.pid in ancestors and one.role == "other" else one for one in found]
    return sorted(found, key=lambda one: (places[one.role], one.rank if one.rank is not None else -1, one.pid))


def _with_role(one: Member, role: str) -> Member:
    from dataclasses import replace

    return replace(one, role=role)


def _ranks(
    order: Sequence[int], environments: dict[int, dict[str, str]], pythons: set[int]
) -> dict[int, tuple[int | None, int | None]]:
    for name, local in _RANKS:
        having = [pid for pid in order if environments[pid].get(name, "").isdigit()]
        both = [pid for pid in having if environments[pid].get(local, "").isdigit()]
        chosen = both if any(pid in pythons for pid in both) else having
        if any(pid in pythons for pid in chosen):
            return {pid: (int(environments[pid][name]), int(environments[pid][local]) if pid in both else None) for pid in chosen}
    return {}


def _stat(pid: int) -> tuple[int, int, str] | None:
    """Parent, birth and state."""
    text = _read(pid, "stat")
    row = parse_stat(text)
    fields = text[text.rfind(")") + 2 :].split()
    return (row.parent, int(fields[19]), row.state) if row is not None and len(fields) > 19 and fields[19].isdigit() else None


def _read(pid: int, name: str) -> str:
    try:
        return (_PROC / str(pid) / name).read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def _environment(pid: int) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in _read(pid, "environ").split("\0"))
    return {name: value for name, _, value in pairs if name}


def _is_python(pid: int, command: str) -> bool:
    try:
        name = os.path.basename(os.readlink(_PROC / str(pid) / "exe"))
    except OSError:
        name = ""
    return "python" in name or "python" in os.path.basename(command.split(" ", 1)[0]) or "/libpython" in _read(pid, "maps")


def same(one: Member) -> bool:
    """Whether the process still is the one that was seen (its number may be another's by now), and has not ended."""
    row = _stat(one.pid)
    return row is not None and row[1] == one.born and row[2] not in ("Z", "X")


def caught(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, which would otherwise end it; False where that cannot be told."""
    for line in _read(pid, "status").splitlines():
        if line.startswith("SigCgt:"):
            try:
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
            except (ValueError, IndexError):
                return False
    return False


def end_in_order(
    pids: int | Iterable[int],
    *,
    grace: float = 10.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """
    End the processes of a job: SIGTERM to the ranks, then to what is left (launchers end by themselves once their ranks have), SIGKILL at last.

    Parameters
    ----------
    pids : int or iterable of int
        What was started.
    grace : float
        Seconds that ranks, and then the others, get for ending by themselves.

    Returns
    -------
    list of str
        What was done and what is left, a sentence each; a process in uninterruptible sleep outlives SIGKILL and is named.

    Notes
    -----
    A launcher that is told first kills its ranks, with its own shorter grace, and then nobody is left who says how they ended.
    """
    everyone = members(pids)
    said: list[str] = []
    ranks = [one for one in everyone if one.role == "rank"]
    for what, chosen in (("ranks", ranks), ("the launcher and what else was left", [o for o in everyone if o.role != "rank"])):
        if said:
            _gone(chosen, min(grace, _BY_ITSELF), clock, sleep)
        alive = [one for one in chosen if same(one)]
        if alive:
            said.append(f"SIGTERM to {what}: {_send(alive, signal.SIGTERM)} processes")
            _gone(alive, grace, clock, sleep)
    known = {one.pid for one in everyone}
    left = [one for one in everyone if same(one)] + [one for one in members(pids) if one.pid not in known]
    if left:
        said.append(f"SIGKILL to {_send(left, signal.SIGKILL)} that did not end in {grace:g} s")
        _gone(left, 5.0, clock, sleep)
    for one in left:
        if same(one):
            state = (_stat(one.pid) or (0, 0, "?"))[2]
            said.append(
                f"process {one.pid} is still there in state {state} ({_read(one.pid, 'wchan').strip() or 'no wait channel'})"
            )
    return said


def _send(chosen: Sequence[Member], number: int) -> int:
    sent = 0
    for one in chosen:
        try:
            if same(one):
                os.kill(one.pid, number)
                sent += 1
                if one.state in ("T", "t") and number != signal.SIGKILL:
                    os.kill(one.pid, signal.SIGCONT)  # one that is stopped takes a signal only when it goes on
        except (ProcessLookupError, PermissionError):
            continue
    return sent


def _gone(chosen: Sequence[Member], most: float, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
    end = clock() + most
    while clock() < end and any(same(one) for one in chosen):
        sleep(0.05)
