"""Turn what was seen of a checkpoint into one record: where, which step, which format, whether it can be restored, and why not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["STATES", "Checkpoint", "Found", "Part", "Scan", "join"]

# from best to worst: of a checkpoint of many files the worst is what it is
STATES = ("complete", "wrong-world-size", "partly-renamed", "in-progress", "torn", "unreadable")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """
    One checkpoint as it lies on the disk.

    Attributes
    ----------
    path : str
        Its file or folder.
    step : int, optional
        Training step it was saved at; None when neither content nor name tell.
    format : str
        ``torch-zip``, ``torch-legacy``, ``pickle``, ``dcp`` (torch.distributed.checkpoint), ``safetensors``, ``megatron``, ``megatron-dist``,
        ``deepspeed``, ``huggingface`` (Trainer), ``lightning``, ``nemo`` or ``unknown``.
    state : str
        One of `STATES`: ``complete``; ``torn`` (bytes, records or files are missing); ``partly-renamed`` (a temporary name is still there, or an
        index names files that were renamed); ``wrong-world-size`` (whole, and not for this many ranks); ``unreadable`` (no right to read it, an
        I/O error, or content that is no checkpoint); ``in-progress`` (not whole, and changed a moment ago).
    world_size : int, optional
        Ranks that wrote it, where that can be told.
    bytes : int
        Size of all its files.
    saved : float
        When the newest of its files was changed last, seconds since the epoch.
    why : str
        What the state rests on, in a sentence.
    durable : bool, optional
        False: on a disk that ends with the pod or the node's memory; None: not known.
    step_from : str
        Where the step was read: a file's field, or ``name``.
    looked : bool
        False when the system kept it from being read: what it is, is not known.
    """

    path: str
    step: int | None
    format: str
    state: str
    world_size: int | None
    bytes: int
    saved: float
    why: str
    durable: bool | None = None
    step_from: str = ""
    looked: bool = True


@dataclass(slots=True)
class Part:
    """What one look at one file or folder found; `join` makes one of many."""

    format: str
    state: str
    why: str
    step: int | None = None
    step_from: str = ""
    world_size: int | None = None
    bytes: int = 0
    saved: float = 0.0
    facts: dict[str, object] = field(default_factory=dict)  # what a layout must know of it: sizes of the parallel groups
    notes: list[str] = field(default_factory=list)  # true of it whatever its state
    looked: bool = True  # False: the system did not let us


@dataclass(frozen=True, slots=True)
class Scan:
    """What one look at a path was asked for."""

    world_size: int | None = None
    deep: bool = False


@dataclass(slots=True)
class Found:
    """A checkpoint: where, and what it is."""

    path: str
    part: Part


def join(form: str, parts: Iterable[tuple[str, Part]], *, whole: str = "all its files are whole") -> Part:
    """
    Make one part of many: the worst state with its reasons, the sum of bytes, the newest time, the first step that a part tells.

    Parameters
    ----------
    form : str
        Format of the whole.
    parts : iterable of (str, Part)
        Name of each within the whole, and what it is.
    whole : str
        The reason when every part is complete.
    """
    out = Part(form, "complete", whole)
    reasons: list[str] = []
    for name, part in parts:
        out.bytes += part.bytes
        out.looked = out.looked and part.looked
        out.saved = max(out.saved, part.saved)
        if out.step is None and part.step is not None:
            out.step, out.step_from = (
                part.step,
                part.step_from if "/" in part.step_from or not name else f"{name}: {part.step_from}",
            )
        out.world_size = out.world_size if part.world_size is None else max(out.world_size or 0, part.world_size)
        for note in part.notes:
            if note not in out.notes and len(out.notes) < 5:
                out.notes.append(note)
        if STATES.index(part.state) > STATES.index(out.state):
            out.state, reasons = part.state, []
        if part.state == out.state != "complete":
            reasons.append(f"{name}: {part.why}" if name else part.why)
    if reasons:
        more = f" (and {len(reasons) - 3} more)" if len(reasons) > 3 else ""
        out.why = "; ".join(reasons[:3]) + more
    return out
