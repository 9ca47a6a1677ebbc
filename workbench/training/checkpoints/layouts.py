"""Turn a folder into the checkpoints of many files in it: whichever layout recognises it takes the files that are its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from workbench.training.checkpoints import deepspeed, distributed, folders, megatron
from workbench.training.checkpoints.files import Entry
from workbench.training.checkpoints.record import Found, Scan

__all__ = ["recognise"]

Layout = Callable[[Entry, Mapping[str, Entry], Scan], "tuple[list[Found], set[str]] | None"]

# what stands around others comes first: a Trainer's folder may hold DeepSpeed's, a Megatron folder one of torch.distributed.checkpoint
_LAYOUTS: tuple[Layout, ...] = (
    folders.nemo,
    folders.trainer,
    megatron.root,
    megatron.iteration,
    deepspeed.root,
    deepspeed.tag,
    distributed.folder,
    folders.sharded,
)


def recognise(folder: Entry, files: Mapping[str, Entry], scan: Scan) -> tuple[list[Found], set[str]]:
    """Return the checkpoints of many files in a folder, and the names that belong to them."""
    out: list[Found] = []
    used: set[str] = set()
    for layout in _LAYOUTS:
        left = {name: entry for name, entry in files.items() if name not in used} if used else files
        got = layout(folder, left, scan)
        if got is not None:
            out += got[0]
            used |= got[1]
    return out, used
