"""Turn the processes that hold GPUs into whether one is stuck in the kernel, is a zombie, or sits on a GPU that should be free."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.health.finding import Finding
from workbench.health.registry import check
from workbench.health.seen import Seen
from workbench.model import Gpu
from workbench.sources.node.gpu_files import Holder, Holders

__all__ = ["processes"]


@check(
    "processes",
    "no stuck or leftover process holds a GPU",
    needs=("gpu-holders",),
    wants=("gpus",),
    cls="driver/hang",
)
def processes(seen: Seen) -> Iterator[Finding]:
    """Judge each holder; before a job gets the node nobody should compute (critical with ``health.exclusive``, else worth a line)."""
    holders: Holders = seen.value("gpu-holders")
    if seen.readings["gpus"].ending == "absent" and not holders.found:
        yield seen.absent(seen.readings["gpus"].detail)
        return
    bad = False
    for one in holders.found:
        who = f"{one.name} (pid {one.pid})"
        where = f" in {one.waits}" if one.waits not in ("", "0") else ""
        if one.state == "D":
            bad = True
            yield from _each(
                seen, one, "gpu-process-stuck", f"{who} waits in the kernel{where} and cannot be killed, and holds this GPU"
            )
        elif one.state in "ZX":
            bad = True
            yield from _each(seen, one, "gpu-process-zombie", f"{who} has ended and still holds this GPU")
        elif seen.context == "allocation" and one.computes and one.minors:
            bad = True
            code = "gpu-in-use" if seen.setting("exclusive") else "gpu-shared"
            yield from _each(seen, one, code, f"{who} computes on a GPU that is about to be given to a job")
    known = {one.pid for one in holders.found}
    for pid, gpu in _listed(seen):
        state = holders.states.get(pid)
        if state == "Z" and pid not in known:
            bad = True
            yield seen.found(
                "gpu-process-zombie", f"pid {pid} has ended, and the driver still lists it", gpu=gpu, part=f"pid {pid}"
            )
    if bad:
        return
    if holders.hidden:
        hint = "run as root, or with CAP_SYS_PTRACE"
        yield seen.unknown(f"{holders.hidden} processes do not show this user their state and files", hint=hint)
    else:
        yield seen.ok(f"{len(holders.found)} processes hold GPUs, none is stuck" if holders.found else "no process holds a GPU")


def _listed(seen: Seen) -> Iterator[tuple[int, Gpu]]:
    gpus = seen.value("gpus")
    for state in gpus.states if gpus is not None else ():
        for one in state.get("processes") or ():
            if isinstance(one.get("pid"), int):
                yield one["pid"], state.gpu


def _each(seen: Seen, one: Holder, code: str, summary: str) -> Iterator[Finding]:
    """One finding for each GPU that a process holds, named by UUID where its device number tells which."""
    gpus = seen.value("gpus")
    states = (
        {} if gpus is None else {int(state.get("minor")): state.gpu for state in gpus.states if state.get("minor") is not None}
    )
    evidence = [f"pid {one.pid} ({one.name}) state {one.state}, /dev/nvidia{{{','.join(map(str, one.minors))}}}"]
    if not one.minors:
        yield seen.found(code, summary.replace("this GPU", "the driver"), part=f"pid {one.pid}", evidence=evidence)
    for minor in one.minors:
        gpu = states.get(minor, Gpu(index=minor))
        yield seen.found(code, summary, gpu=gpu, part=f"pid {one.pid}", evidence=evidence)
