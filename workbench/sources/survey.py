"""Turn the names and sizes of an incident's files into what each reader of one of them must know: limits, its share, node names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.sources.naming import nodes_in
from workbench.sources.walk import Found

__all__ = ["Limits", "Survey", "has_no_lines", "survey"]

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """
    How much is read; all in bytes unless said.

    Attributes
    ----------
    whole : int
        A log up to this size is kept with all its lines.
    head, tail : int
        What is kept of a larger log besides the lines that match a signature.
    text : int
        Text kept whole of all logs together; with many logs each gets its share, so that work on single lines stays a small
        part of the scan.
    data : int
        Largest JSON or YAML document.
    raw : int
        Largest metrics exposition or flight-recorder dump.
    per_signature : int
        Matched lines kept for each signature of one log.
    samples : int
        Lines taken from all over the logs that are not kept whole, of all logs together: what the job did in between.
    files : int
        Files in a folder.
    workers : int
        Threads that read files, and that scan one large plain file.
    """

    whole: int = 8 * MIB
    head: int = MIB // 4
    tail: int = 2 * MIB
    text: int = 16 * MIB
    data: int = 128 * MIB
    raw: int = 512 * MIB
    per_signature: int = 2000
    samples: int = 65_536
    files: int = 200_000
    workers: int = 2
    expanded: int = 64 << 30
    members: int = 200_000


@dataclass(frozen=True)
class Survey:
    """What all files of an incident together tell the reader of each: names of nodes, bytes in all, the part of a log to keep."""

    limits: Limits
    share: int
    nodes: frozenset[str]
    total: int
    samples: int = 0  # of one log


def survey(found: Sequence[Found], limits: Limits | None = None) -> Survey:
    """Look over the names and sizes of an incident's files, before any of them is read."""
    limits = limits or Limits()
    return Survey(
        limits,
        _share(found, limits),
        frozenset(nodes_in(each.name for each in found)),
        sum(each.size for each in found),
        min(max(limits.samples // max(len(found), 1), _FEWEST), _MOST) if limits.samples else 0,
    )


_FEWEST, _MOST = 4, 2048  # samples of one log


# metrics and structured documents are read whole and cost no work on lines
_NO_LINES = re.compile(r"\.(?:prom|om|json|jsonl|ya?ml|tar|tgz|zip)(?:\.(?:gz|zst|xz))?$|(?:^|/)(?:metrics|flight)/")


def has_no_lines(name: str) -> bool:
    """Tell by its name whether a file is read whole rather than line by line: metrics, JSON, archives."""
    return _NO_LINES.search(name) is not None


def _share(found: Sequence[Found], limits: Limits) -> int:
    """Split `limits.text` over the files so that small ones stay whole: return how much of it each file may use."""
    sizes = sorted(
        min(each.size * (8 if each.name.endswith((".gz", ".zst", ".xz")) else 1), limits.whole)
        for each in found
        if not has_no_lines(each.name)
    )
    room = limits.text
    for at, size in enumerate(sizes):
        equal = room // (len(sizes) - at)
        if size > equal:
            return max(equal, 512)
        room -= size
    return limits.whole
