"""
Turn folders of checkpoints into the newest that can be restored, and why newer ones were passed over.

Run as a program (`python -m workbench.training.choosing [--world-size N] PATH…`), so that a dead file server costs the supervisor a deadline.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["choose", "main"]


def choose(paths: Sequence[str | Path], *, world_size: int | None = None) -> dict[str, Any]:
    """
    Return the choice as plain values.

    Returns
    -------
    dict
        ``chosen``: path, step, format, why of the newest that can be restored, or None. ``passed``: path, step, state and the reason of each
        that is newer. ``seen``: how many there are.
    """
    from workbench.training.checkpoints import inspect, newest

    found = [one for path in paths if os.path.lexists(path) for one in inspect(path, world_size=world_size)]
    best, passed = newest(found, world_size=world_size)
    return {
        "chosen": None if best is None else _row(best),
        "passed": [{**_row(one), "reason": reason} for one, reason in passed],
        "seen": len(found),
    }


def _row(one: Any) -> dict[str, Any]:
    return {
        "path": str(one.path),
        "step": one.step,
        "format": one.format,
        "state": one.state,
        "saved": one.saved,
        "why": one.why,
        "durable": one.durable,
    }


def main(words: Sequence[str]) -> int:
    """Print the choice."""
    world = None
    if words[:1] == ["--world-size"]:
        world, words = int(words[1]), words[2:]
    sys.stdout.write(json.dumps(choose(words, world_size=world)) + "\n")
    sys.stdout.flush()
    os._exit(0)  # a thread that a file server holds is left behind


if __name__ == "__main__":
    main(sys.argv[1:])
