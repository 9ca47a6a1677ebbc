"""
Turn the words of a launcher's command line (torchrun, srun, mpirun, deepspeed, accelerate, horovodrun) into the size of the job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

__all__ = ["Launch", "parse_command"]


@dataclass(slots=True)
class Launch:
    """What one command line says of the job; None is "not said"."""

    launcher: str = ""
    world: int | None = None
    nnodes: int | None = None
    nproc: int | None = None  # processes on each node
    max_restarts: int | None = None
    rdzv_id: str | None = None
    rdzv_endpoint: str | None = None
    master_port: str | None = None
    node_rank: int | None = None
    standalone: bool = False
    hosts: list[str] = field(default_factory=list)
    local_ranks_filter: list[int] = field(
        default_factory=list
    )  # local ranks whose output is kept; the others are silent by choice
    command: str = ""

    def merge(self, other: Launch) -> Launch:
        """The same job as another command line says it: what is said later fills what is missing."""
        merged = Launch()
        for item in fields(Launch):
            mine, theirs = getattr(self, item.name), getattr(other, item.name)
            value = (
                list(dict.fromkeys([*mine, *theirs]))
                if isinstance(mine, list)
                else (mine if mine not in (None, "", False) else theirs)
            )
            setattr(merged, item.name, value)
        return merged


_LAUNCHERS = re.compile(
    r"^(?:torchrun|srun|sbatch|salloc|mpirun|mpiexec|orterun|deepspeed|accelerate|horovodrun|python3?(?:\.\d+)?)$"
)
# Words that stand in front of a launcher and take no part: env A=1, time, nohup, timeout 22, numactl …
_WRAPPERS = {
    "env",
    "time",
    "nohup",
    "timeout",
    "numactl",
    "sudo",
    "exec",
    "stdbuf",
    "nice",
    "ionice",
    "bash",
    "sh",
    "-c",
    "#SBATCH",
}
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "torch.distributed.elastic.run": "torchrun",
}

_TORCHRUN = {
    "nnodes": "nnodes", "nproc-per-node": "nproc", "max-restarts": "max_restarts", "rdzv-id": "rdzv_id", "node-rank": "node_rank",
    "rdzv-endpoint": "rdzv_endpoint", "master-addr": "rdzv_endpoint", "master-port": "master_port", "standalone": "standalone",
    "local-ranks-filter": "filter",
}  # fmt: skip
_SLURM = {
    "nodes": "nnodes",
    "N": "nnodes",
    "ntasks": "world",
    "n": "world",
    "ntasks-per-node": "nproc",
    "nodelist": "hosts",
    "w": "hosts",
}
_MPI = {
    "np": "world", "n": "world", "c": "world", "npernode": "nproc", "N": "nproc", "ppn": "nproc",
    "H": "hosts", "host": "hosts", "hosts": "hosts",
}  # fmt: skip
_DEEPSPEED = {
    "num_gpus": "nproc", "num-gpus": "nproc", "num_nodes": "nnodes", "num-nodes": "nnodes",
    "master-addr": "rdzv_endpoint", "master-port": "master_port", "include": "hosts",
}  # fmt: skip
_ACCELERATE = {
    "num-processes": "world",
    "num-machines": "nnodes",
    "machine-rank": "node_rank",
    "main-process-ip": "rdzv_endpoint",
    "main-process-port": "master_port",
}
_OPTIONS = {
    "torchrun": _TORCHRUN, "srun": _SLURM, "sbatch": _SLURM, "salloc": _SLURM, "#SBATCH": _SLURM, "mpirun": _MPI, "mpiexec": _MPI,
    "orterun": _MPI, "horovodrun": _MPI, "deepspeed": _DEEPSPEED, "accelerate": _ACCELERATE,
}  # fmt: skip


def parse_command(words: Sequence[str]) -> Launch | None:
    """
    Read one command line, launchers within launchers (`srun … torchrun …`) included.

    Parameters
    ----------
    words : sequence of str
        As a shell splits them.

    Returns
    -------
    Launch or None
        None when there is no launcher among the words.
    """
    found: Launch | None = None
    at = 0
    while at < len(words):
        word = words[at]
        name = word.rsplit("/", 1)[-1]
        if name == "#SBATCH":
            launcher, at = name, at + 1
        elif not _LAUNCHERS.match(name):
            at += 1
            if found is None and at > 24 and name not in _WRAPPERS:
                return None  # prose, not a command
            continue
        elif name.startswith("python"):
            module = words[at + 2] if at + 2 < len(words) and words[at + 1] == "-m" else ""
            # `python -u -m torch.distributed.run` too
            if not module:
                near = list(words[at : at + 6])
                module = near[near.index("-m") + 1] if "-m" in near[:-1] else ""
            if module not in _MODULES:
                at += 1
                continue
            launcher, at = _MODULES[module], list(words).index(module, at) + 1
        else:
            launcher, at = name, at + 1
        launch = Launch(launcher=launcher, command=" ".join(words)[:2000])
        at = _options(launch, words, at, _OPTIONS[launcher])
        found = launch if found is None else _inner(found, launch)
    return found


def _inner(outer: Launch, inner: Launch) -> Launch:
    """
    A launcher started by another: the inner one makes the ranks.

    `srun -N4 -n4 torchrun --nproc_per_node=8` has 4 tasks that are agents, not ranks.
    """
    merged = inner.merge(outer)
    if inner.nproc is not None or inner.world is not None:
        merged.nproc, merged.world = inner.nproc, inner.world
        merged.nnodes = inner.nnodes if inner.nnodes is not None else outer.nnodes or outer.world
    return merged


def _options(launch: Launch, words: Sequence[str], at: int, table: dict[str, str]) -> int:
    """Take the options up to the program that is launched; return where it starts."""
    while at < len(words):
        word = words[at]
        if not word.startswith("-"):
            if launch.launcher == "accelerate" and word == "launch":
                at += 1
                continue
            return at
        name, equals, value = word.lstrip("-").partition("=")
        key = name if name in table else name.replace("_", "-")
        target = table.get(key)
        if target is None and not word.startswith("--") and len(name) > 1 and name[0] in table and name[1:].isdigit():
            target, equals, value = table[name[0]], "=", name[1:]  # -N4
        at += 1
        if target == "standalone":
            launch.standalone = True
            continue
        takes = not equals and at < len(words) and not words[at].startswith("-")
        if not equals and target is not None and takes:
            value, at = words[at], at + 1
        elif not equals and target is None and takes and _unknown_takes_value(launch.launcher, word, words[at]):
            at += 1
        if target is not None and value and not value.startswith("$"):  # a shell variable that nobody expanded says nothing
            _SET[target](launch, value) if target in _SET else setattr(launch, target, value)
    return at


def _unknown_takes_value(launcher: str, option: str, following: str) -> bool:
    """Whether the word after an option that we do not know belongs to it: not when it looks like the program."""
    if launcher in ("mpirun", "mpiexec", "orterun", "horovodrun") and option in (
        "-x",
        "--mca",
        "-mca",
        "--map-by",
        "--bind-to",
        "-bind-to",
    ):
        return True
    return not (following.endswith((".py", ".sh")) or _LAUNCHERS.match(following.rsplit("/", 1)[-1]) or "/" in following)


def _number(name: str) -> Callable[[Launch, str], None]:
    def put(launch: Launch, value: str) -> None:
        last = value.split(":")[-1].split("-")[-1]  # nnodes=2:4 and -N 2-4: the most that can take part
        if last.isdigit():
            setattr(launch, name, int(last))

    return put


def _hosts(launch: Launch, value: str) -> None:
    """`a:8,b:8` of mpirun, `a@b:0,1` of deepspeed, `node[01-04]` of Slurm (left folded: the Slurm parser unfolds it)."""
    if "[" in value:
        return
    pieces = [piece for piece in re.split(r"[@,]", value) if piece and not piece.isdigit()]
    launch.hosts = [piece.split(":")[0] for piece in pieces]
    slots = [piece.split(":")[1] for piece in pieces if ":" in piece]
    if slots and launch.launcher not in ("deepspeed",) and all(slot.isdigit() for slot in slots) and len(set(slots)) == 1:
        launch.nproc = launch.nproc or int(slots[0])
    launch.nnodes = launch.nnodes or len(launch.hosts)


def _filter(launch: Launch, value: str) -> None:
    launch.local_ranks_filter = [int(n) for n in value.split(",") if n.isdigit()]


_SET: dict[str, Callable[[Launch, str], None]] = {
    **{name: _number(name) for name in ("world", "nnodes", "nproc", "max_restarts", "node_rank")},
    "hosts": _hosts,
    "filter": _filter,
}
