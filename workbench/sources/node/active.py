"""Turn the GPUs of this node into those that a probe may use: none while somebody computes on them."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.parse.gpu_state import NodeGpus
from workbench.sources.command import run
from workbench.sources.contract import Deadline
from workbench.sources.node.world import READERS, Unread, World

__all__ = ["free_gpus"]

_APPS = ("--query-compute-apps=pid,process_name,gpu_uuid", "--format=csv,noheader")
_HELPERS = ("nvidia-cuda-mps",)  # services that hold a context, and compute nothing by themselves


def free_gpus(world: World, deadline: Deadline, *, whole: bool = True) -> NodeGpus:
    """
    Return the GPUs of the node, when a probe may use them.

    Parameters
    ----------
    world : World
    deadline : Deadline
    whole : bool, optional
        Whether the probe needs whole GPUs: with MIG it has no question to ask then.

    Raises
    ------
    Unread
        The driver does not answer, or somebody computes: a probe would disturb, and measure, a job. ``absent``: there is no GPU, or MIG
        is on.
    """
    reading = READERS["gpus"].read(world, Deadline(min(20.0, deadline.left())))
    if not reading.usable:
        raise Unread(reading.ending, reading.detail, reading.hint)
    gpus: NodeGpus = reading.value
    busy = list(_busy(world, gpus))
    if reading.path == "nvidia-smi":  # its long answer, as we read it, lists no processes
        ran = run(("nvidia-smi", *_APPS), seconds=deadline.left(20.0), env=world.env)
        busy += [
            line.strip() for line in ran.text.splitlines() if line.strip()[:1].isdigit() and not any(h in line for h in _HELPERS)
        ]
    if busy:
        detail = f"not begun, since somebody computes: {', '.join(busy[:4])}"
        raise Unread("exit", detail, "run it between jobs; end what is left over of the last one")
    if whole and any(state.flag("mig.mode.current") for state in gpus.states):
        raise Unread("absent", "MIG is on: what this asks is asked of whole GPUs")
    return gpus


def _busy(world: World, gpus: NodeGpus) -> Iterator[str]:
    for state in gpus.states:
        for one in state.get("processes") or ():
            pid = one.get("pid")
            if "C" not in str(one.get("type") or "") or not isinstance(pid, int):
                continue
            try:
                name = world.text(f"/proc/{pid}/comm").strip()
            except Unread:
                name = str(one.get("name") or "a process")
            if not name.startswith(_HELPERS):
                yield f"{name} (pid {pid}) on GPU {state.gpu.index}"
