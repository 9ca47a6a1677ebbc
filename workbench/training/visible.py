"""
Turn the GPUs that are left out of a job's only node into fewer visible ones and fewer ranks: ``CUDA_VISIBLE_DEVICES`` and ``--nproc-per-node``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from workbench.parse import ids
from workbench.sources.command import Ran, run
from workbench.training.attempts import GPU_NAMES

__all__ = ["Seen", "fewer", "gpus_seen"]

_SECONDS = 20.0  # a driver that hangs answers later, or never
_OPTION = re.compile(r"--nproc[-_]per[-_]node|--num[-_]processes")  # of torchrun; of accelerate


@dataclass(frozen=True, slots=True)
class Seen:
    """The GPUs of this node that a job may use, (UUID, PCI address) in the order of the job's own numbers; why there are none."""

    gpus: tuple[tuple[str, str], ...] = ()
    trouble: str = ""


def gpus_seen(env: Mapping[str, str], *, runner: Callable[..., Ran] = run) -> Seen:
    """
    Return the GPUs that a job sees on this node: those of ``CUDA_VISIBLE_DEVICES`` where it is set, else all that the driver has.

    Parameters
    ----------
    env : mapping
        Of the job.
    runner : callable, optional
        Runs ``nvidia-smi``; default `workbench.sources.command.run`.
    """
    ran = runner(["nvidia-smi", "--query-gpu=index,uuid,pci.bus_id", "--format=csv,noheader"], seconds=_SECONDS)
    rows = [[cell.strip() for cell in line.split(",")] for line in ran.out.decode(errors="replace").splitlines()]
    known = {row[0]: (row[1], ids.pci(row[2]) or row[2]) for row in rows if len(row) == 3 and row[1].startswith(GPU_NAMES)}
    if not known:
        return Seen(trouble=f"nvidia-smi {ran.sentence}")
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return Seen(tuple(known.values()))
    by_uuid = {uuid: (uuid, pci) for uuid, pci in known.values()}
    found = []
    for word in (part.strip() for part in visible.split(",")):
        one = known.get(word) or next((gpu for uuid, gpu in by_uuid.items() if word and uuid.startswith(word)), None)
        if one is None:
            break  # CUDA, too, sees nothing from the first on that does not exist
        found.append(one)
    return Seen(tuple(found), "" if found else f"CUDA_VISIBLE_DEVICES={visible} names none of this node's GPUs")


def fewer(
    command: Sequence[str], gpus: Sequence[tuple[str, str]], excluded: Sequence[str]
) -> tuple[list[str], dict[str, str], str]:
    """
    Return how the next attempt does without some GPUs of this node.

    Parameters
    ----------
    command : sequence of str
        Of torchrun, accelerate or python.
    gpus : sequence of (str, str)
        UUID and PCI address of those that the job had.
    excluded : sequence of str
        UUIDs, or NODE/PCI.

    Returns
    -------
    tuple of (list of str, dict, str)
        The command with as many ranks as GPUs are left, where it had one for each; variables; and how, in words, empty when nothing changes.
    """
    out = {one.partition("/")[2] or one for one in excluded}
    left = [uuid for uuid, pci in gpus if uuid not in out and pci not in out]
    if len(left) == len(gpus) or not left:
        return list(command), {}, ""
    words = list(command)
    for at, word in enumerate(words):
        name, equal, value = word.partition("=")
        if not _OPTION.fullmatch(name):
            continue
        given = value if equal else words[at + 1] if at + 1 < len(words) else ""
        if given == str(len(gpus)):
            words[at if equal else at + 1] = f"{name}={len(left)}" if equal else str(len(left))
        break
    return words, {"CUDA_VISIBLE_DEVICES": ",".join(left)}, f"{len(left)} of {len(gpus)} GPUs of this node are used"
