"""Turn a matrix of bandwidths between GPUs into the GPU, or else the pair, that is slower than its peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ["PEERS", "Slow", "slow_of"]

# A cell below this share of the median of its row and column is slow. Healthy cells of one fabric differ by less than 2 %
# (nvbandwidth's own README); a PCIe node with two sockets shows 83 % between them (NVIDIA/nvbandwidth#50); one lost link of four is 75 %
PEERS = 0.7
_WHOLE = 0.75  # share of a GPU's row or column that is slow before it is the GPU and not a pair
_MIXED = 0.25  # share of all pairs beyond which the node is built so: half the pairs over NVLink bridges, half over PCIe


@dataclass(frozen=True, slots=True)
class Slow:
    """
    What is slow in a matrix.

    Attributes
    ----------
    gpus : dict
        Number of a GPU whose whole row or column is slow → the median of its slow cells and of what the others reach, in GB/s.
    pairs : dict
        (lower, higher) number of two GPUs that are slow with each other only → the same.
    mixed : bool
        So much is slow that pairs must be connected in different ways: there is nothing to compare with.
    """

    gpus: Mapping[int, tuple[float, float]]
    pairs: Mapping[tuple[int, int], tuple[float, float]]
    mixed: bool = False


def slow_of(matrix: Sequence[Sequence[float | None]], share: float = PEERS) -> Slow:
    """
    Return what is slow among GPUs that should all reach each other equally well; exact for fewer than half of the GPUs.

    Parameters
    ----------
    matrix : sequence of sequence of float or None
        Row → column, GB/s; the diagonal and what was not measured is None.
    share : float, optional
        Of the median of its peers, below which a cell is slow.
    """
    count = len(matrix)
    cells = {(a, b): value for a, row in enumerate(matrix) for b, value in enumerate(row) if a != b and value is not None}
    if count < 3 or not cells:
        return Slow({}, {})
    gone: set[int] = set()
    gpus: dict[int, tuple[float, float]] = {}
    while True:
        low = _low(cells, gone, share)
        worst = _culprit(cells, low, gone)
        if worst is None:
            break
        gone.add(worst)
        mine = [cells[cell] for cell in low if worst in cell]
        rest = [value for cell, value in cells.items() if not gone & set(cell)]
        gpus[worst] = (median(mine), median(rest) if rest else median(mine))
        if len(gone) * 2 > count:
            return Slow({}, {}, mixed=True)
    pairs: dict[tuple[int, int], list[float]] = {}
    for a, b in low:
        pairs.setdefault((min(a, b), max(a, b)), []).append(cells[a, b])
    left = count - len(gone)
    if len(pairs) > max(1.0, _MIXED * left * (left - 1) / 2):
        return Slow({}, {}, mixed=True)
    good = [value for cell, value in cells.items() if cell not in low and not gone & set(cell)]
    usual = median(good) if good else 0.0
    return Slow(gpus, {pair: (median(values), usual) for pair, values in pairs.items()})


def _low(cells: Mapping[tuple[int, int], float], gone: set[int], share: float) -> set[tuple[int, int]]:
    """Cells far below the better of their row's and column's medians: in the row of a slow GPU all are equal, in the column one sticks out."""
    here = {cell: value for cell, value in cells.items() if not gone & set(cell)}
    rows: dict[int, list[float]] = {}
    columns: dict[int, list[float]] = {}
    for (a, b), value in here.items():
        rows.setdefault(a, []).append(value)
        columns.setdefault(b, []).append(value)
    medians = {a: median(values) for a, values in rows.items()}, {b: median(values) for b, values in columns.items()}
    return {(a, b) for (a, b), value in here.items() if value < share * max(medians[0][a], medians[1][b])}


def _culprit(cells: Mapping[tuple[int, int], float], low: set[tuple[int, int]], gone: set[int]) -> int | None:
    """The GPU with most slow cells, when most of its row or of its column is slow; among equals none: a pair that is slow has two ends."""
    marks: dict[int, tuple[float, int]] = {}
    for gpu in {end for cell in low for end in cell}:
        row = [cell in low for cell in cells if cell[0] == gpu and cell[1] not in gone]
        column = [cell in low for cell in cells if cell[1] == gpu and cell[0] not in gone]
        whole = max((sum(side) / len(side) for side in (row, column) if side), default=0.0)
        marks[gpu] = (whole, sum(row) + sum(column))
    if not marks:
        return None
    ranked = sorted(marks, key=lambda gpu: marks[gpu], reverse=True)
    first = ranked[0]
    if marks[first][0] < _WHOLE or len([cell for cell in low if first in cell]) < 2:
        return None
    return first
