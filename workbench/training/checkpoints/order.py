"""Turn checkpoints into their order from new to old, and into the newest that can be restored with the reasons why newer ones cannot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workbench.training.checkpoints.record import Checkpoint

__all__ = ["newest", "sort"]


def sort(found: Iterable[Checkpoint]) -> list[Checkpoint]:
    """
    Return checkpoints from new to old: by step, and those without one by when they were saved, above the last known step saved before them.

    The step comes first since times change with a copy; the time stands in where a torn file tells no step.
    """
    rows = list(found)
    known = sorted((row.saved, row.step) for row in rows if row.step is not None)
    tops: list[tuple[float, int]] = []
    for saved, step in known:
        tops.append((saved, max(step, tops[-1][1] if tops else step)))

    def place(row: Checkpoint) -> tuple[int, int, float, str]:
        if row.step is not None:
            return row.step, 0, row.saved, row.path
        before = [step for saved, step in tops if saved <= row.saved]
        return (before[-1] if before else -1), 1, row.saved, row.path

    return sorted(rows, key=place, reverse=True)


def newest(
    found: Sequence[Checkpoint], *, world_size: int | None = None, elsewhere: bool = False
) -> tuple[Checkpoint | None, tuple[tuple[Checkpoint, str], ...]]:
    """
    Pick the newest checkpoint that can be restored.

    Parameters
    ----------
    found : sequence of Checkpoint
        As `inspect` returns them.
    world_size : int, optional
        Only said in reasons; which checkpoints do not fit it is decided by `inspect(…, world_size=…)`.
    elsewhere : bool
        The next attempt runs in another pod or on another node: what is on a disk that ends with this one is passed over.

    Returns
    -------
    tuple
        The checkpoint, or None; and the newer ones that were passed over, each with its reason in a sentence.
    """
    passed: list[tuple[Checkpoint, str]] = []
    for row in sort(found):
        if row.state != "complete":
            with_size = f" (the next attempt has {world_size} ranks)" if row.state == "wrong-world-size" and world_size else ""
            passed.append((row, f"{row.state}: {row.why}{with_size}"))
        elif elsewhere and row.durable is False:
            passed.append((row, "whole, but on a disk that ends with the pod or node, and the next attempt runs elsewhere"))
        else:
            return row, tuple(passed)
    return None, tuple(passed)
