"""Turn a kernel log and what the driver asks for now and asked for before into when each GPU was last reset: what had stuck to it is over."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.health.told import names
from workbench.model import Gpu
from workbench.parse.gpu_state import NodeGpus
from workbench.sources.node.kernel_events import KernelLog

__all__ = ["ALL", "asking_now", "resets_of"]

ALL = ""  # stands for every GPU of the node
# nvml.h, nvmlGpuRecoveryAction_t, and nvidia-smi's words: what only a reset or a boot ends. "Drain P2P" ends by itself
_RESETS = frozenset({"reset", "gpu reset", "reboot", "node reboot", "system reboot", "drain and reset", "bus reset"})


def _words(gpu: Gpu | None) -> list[str]:
    if gpu is None:
        return []
    identities = [name for name in (gpu.uuid, gpu.pci) if name]
    return identities or ([str(gpu.index)] if gpu.index is not None else [])  # a number alone changes owner when one is lost


def asking_now(gpus: NodeGpus | None, now: float) -> dict[str, float]:
    """Return the GPUs (UUID and PCI address) whose driver asks for a reset or boot now, each with `now`."""
    states = gpus.states if gpus is not None else ()
    return {
        name: now for state in states if str(state.get("recovery_action") or "").lower() in _RESETS for name in _words(state.gpu)
    }


def resets_of(
    log: KernelLog | None, gpus: NodeGpus | None = None, *, asked: Mapping[str, float] | None = None
) -> tuple[dict[str, float], dict[str, float]]:
    """
    Return when GPUs were reset, and which of those that had asked for it still have not told that they need none.

    What counts is what clears an Xid (`workbench.health.xid_rulings`): the driver was loaded again, it said itself that the recovery is done
    (Xid 154 with `None`), or it asked for one and asks no more. The last has no time of its own: whatever was seen until it asked for the
    last time is over, and what was seen after that is not.

    Parameters
    ----------
    log : KernelLog or None
    gpus : NodeGpus or None
        As they are now.
    asked : mapping, optional
        GPU → when its driver was last seen to ask (`asking_now` of earlier runs).

    Returns
    -------
    resets : dict
        GPU (UUID, PCI address; `ALL` for every one) → seconds since the epoch.
    asking : dict
        What to remember of `asked`.
    """
    resets: dict[str, float] = {}

    def note(name: str, moment: float) -> None:
        resets[name] = max(resets.get(name, 0.0), moment)

    last = max((int(event.data.get("boot") or 0) for event in log.events), default=0) if log is not None else 0
    for event in log.events if log is not None else ():
        if event.time is None or int(event.data.get("boot") or 0) != last:
            continue
        if event.signature == "nvidia-loaded":
            note(ALL, event.time)
        elif event.signature == "xid-154" and event.data.get("remediation") == "none":
            for name in _words(names(gpus, event)):
                note(name, event.time)
    asking = dict(asked or {})
    for state in gpus.states if gpus is not None else ():
        if str(state.get("recovery_action") or "?").lower() != "none":
            continue
        for name in _words(state.gpu):
            if name in asking:
                # one that was seen in the same moment in which it asked was there before the reset
                note(name, asking.pop(name) + 0.001)
    return resets, asking
