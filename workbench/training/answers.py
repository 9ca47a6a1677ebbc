"""Turn what a job printed after it was asked to end into who still answered: a node without a word then may be gone, one with a word is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workbench.parse.learned import learned_context, split

__all__ = ["answers"]

_MOST = 4 << 20  # bytes of either end of a log
_SAMPLE = 2000  # lines that show how the launcher marks its nodes


def answers(before: Path, after: Path) -> dict[str, Any]:
    """
    Tell which nodes and ranks spoke after the job was asked to end.

    Parameters
    ----------
    before : Path
        What it printed until then: there its launcher's way to mark nodes is learned.
    after : Path
        What it printed since.

    Returns
    -------
    dict
        ``answered`` (names as the launcher prints them) and ``answered_ranks``.
    """
    said = _lines(after)
    known = _lines(before)
    sample = known if len(known) <= _SAMPLE else known[: _SAMPLE // 2] + known[-_SAMPLE // 2 :]
    ctx, learned = learned_context((line for line in [*sample, *said[:_SAMPLE]]), None)
    nodes: dict[str, None] = {}
    ranks: set[int] = set()
    for line in said:
        head = split(line, ctx, learned)
        if (name := head.node or head.pod) is not None:
            nodes[name] = None
        if head.rank is not None:
            ranks.add(head.rank)
    return {"answered": list(nodes), "answered_ranks": sorted(ranks)}


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            data = stream.read(_MOST)
            if size > _MOST:
                stream.seek(max(_MOST, size - _MOST))
                data += stream.read(_MOST)
    except OSError:
        return []
    return data.decode("utf-8", "replace").splitlines()
