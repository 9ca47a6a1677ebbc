"""
Turn matrices of samples (rows are entities, columns scrapes, NaN is missing) into level changes, increases, gaps and outliers.

All functions are vectorised over rows, since a fleet has a hundred thousand of them, and robust (median, MAD), since one bad row
must not hide itself.
"""

from __future__ import annotations

from typing import Any

__all__ = ["fill_forward", "first_true", "increases", "last_true", "median_rows", "outliers", "quantile", "sustained"]

MAD_TO_SIGMA = 1.4826  # of a normal distribution


def fill_forward(matrix: Any, limit: int | None = None) -> Any:
    """Return the matrix with NaN replaced by the row's last value before it, over at most `limit` columns."""
    import numpy as np

    if not matrix.size:
        return matrix
    columns = np.arange(matrix.shape[1])
    seen = np.where(np.isnan(matrix), -1, columns)
    last = np.maximum.accumulate(seen, axis=1)
    filled = np.take_along_axis(matrix, np.maximum(last, 0), axis=1)
    stale = last < 0 if limit is None else (last < 0) | (columns - last > limit)
    return np.where(stale, np.nan, filled)


def first_true(mask: Any) -> Any:
    """Return for each row the first column that is true, -1 where none is."""
    import numpy as np

    return np.where(mask.any(axis=1), mask.argmax(axis=1), -1)


def last_true(mask: Any) -> Any:
    """Return for each row the last column that is true, -1 where none is."""
    import numpy as np

    return np.where(mask.any(axis=1), mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1), -1)


def increases(matrix: Any) -> Any:
    """
    Return how much a counter grew into each column since the last known sample, 0 where it did not.

    A fall is a reset (driver reload, reboot), not growth; what the counter shows after it is not counted either, since a
    restarted exporter may show the old total again.
    """
    import numpy as np

    filled = fill_forward(matrix)
    grown = np.zeros_like(matrix)
    if matrix.shape[1] > 1:
        change = filled[:, 1:] - filled[:, :-1]
        grown[:, 1:] = np.where(np.isfinite(change) & (change > 0), change, 0.0)
        back = filled[:, 1:] <= np.fmax.accumulate(filled, axis=1)[:, :-1]
        grown[:, 1:][back] = 0.0
    return grown


def median_rows(matrix: Any) -> Any:
    """Return the median over rows of each column, ignoring NaN (NaN where all are)."""
    import numpy as np

    if not matrix.shape[0]:
        return np.full(matrix.shape[1], np.nan)
    ordered = np.sort(matrix, axis=0)  # NaN goes last
    count = (~np.isnan(matrix)).sum(axis=0)
    low, high = np.maximum((count - 1) // 2, 0), np.minimum(count // 2, matrix.shape[0] - 1)
    columns = np.arange(matrix.shape[1])
    middle = (ordered[low, columns] + ordered[high, columns]) / 2
    return np.where(count > 0, middle, np.nan)


def outliers(values: Any, floor: float, factor: float = 6.0) -> Any:
    """
    Return which values stand above the others: more than `factor` robust deviations over the median and at least `floor` over it.

    `floor` keeps rows of equal values (MAD 0) from making an outlier of every small difference.
    """
    import numpy as np

    good = values[np.isfinite(values)]
    if not len(good):
        return np.zeros(len(values), dtype=bool)
    centre = np.median(good)
    spread = MAD_TO_SIGMA * np.median(np.abs(good - centre))
    return np.isfinite(values) & (values - centre > np.maximum(factor * spread, floor))


def sustained(mask: Any, length: int) -> Any:
    """Return the mask with only the columns that start `length` true columns in a row (or reach the last column true)."""
    import numpy as np

    kept = mask.copy()
    for shift in range(1, length):
        ahead = np.zeros_like(mask)
        ahead[:, :-shift] = mask[:, shift:]
        kept &= ahead
    return kept


def quantile(matrix: Any, share: float) -> Any:
    """Return for each row the value below which `share` (0..1) of its known values lie, NaN where none is known."""
    import numpy as np

    if not matrix.size:
        return np.full(matrix.shape[0], np.nan)
    ordered = np.sort(matrix, axis=1)  # NaN goes last
    count = (~np.isnan(matrix)).sum(axis=1)
    at = np.clip(np.rint(share * (count - 1)), 0, matrix.shape[1] - 1).astype(np.int64)
    return np.where(count > 0, np.take_along_axis(ordered, at[:, None], axis=1)[:, 0], np.nan)
