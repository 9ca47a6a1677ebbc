"""Turn random matrices of severities into proof that pooling loses no peak."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from workbench.plots.pool import pool, pool_max

MATRIX = hnp.arrays("uint8", hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=70), elements=st.integers(0, 8))
LIMIT = st.integers(1, 40)


def edges_of(matrix: np.ndarray) -> np.ndarray:
    return 1000.0 + np.arange(matrix.shape[1] + 1) * 30.0


@given(MATRIX, LIMIT, LIMIT)
def test_each_pool_keeps_the_largest_of_its_cells_and_tells_the_row_it_came_from(
    matrix: np.ndarray, rows: int, columns: int
) -> None:
    made = pool(matrix, edges_of(matrix), rows=rows, columns=columns)

    assert made.values.shape[0] <= rows
    assert made.values.shape[1] <= columns
    wide = -(-matrix.shape[1] // columns)
    for i in range(made.values.shape[0]):
        for j in range(made.values.shape[1]):
            cells = matrix[i * made.step : (i + 1) * made.step, j * wide : (j + 1) * wide]
            assert made.values[i, j] == cells.max()
            assert matrix[made.who[i, j], j * wide : (j + 1) * wide].max() == cells.max()
            # of equals the first, so that a click is told the same each time
            assert made.who[i, j] == i * made.step + int(cells.max(axis=1).argmax())


@given(MATRIX, LIMIT, LIMIT)
def test_pools_cover_all_rows_and_all_time(matrix: np.ndarray, rows: int, columns: int) -> None:
    edges = edges_of(matrix)

    made = pool(matrix, edges, rows=rows, columns=columns)

    assert made.row == 0
    assert made.bottom >= matrix.shape[0]
    assert made.bottom - made.step < matrix.shape[0]
    assert made.left == edges[0]
    assert made.right >= edges[-1]


@given(MATRIX, LIMIT, st.floats(-10, 80), st.floats(-10, 80), st.floats(900, 3300), st.floats(900, 3300))
def test_a_zoom_shows_the_peak_of_what_it_touches(
    matrix: np.ndarray, rows: int, y0: float, y1: float, t0: float, t1: float
) -> None:
    edges = edges_of(matrix)
    made = pool(matrix, edges, rows=rows, columns=1000, row_range=(y0, y1), time_range=(t0, t1))

    high, wide = matrix.shape
    first = int(np.clip(np.floor(min(y0, y1)), 0, high - 1))
    last = int(np.clip(np.ceil(max(y0, y1)), first + 1, high))
    left = int(np.clip(np.floor((min(t0, t1) - 1000) / 30), 0, wide - 1))
    right = int(np.clip(np.ceil((max(t0, t1) - 1000) / 30), left + 1, wide))
    assert made.values.max() == matrix[first:last, left:right].max()
    assert made.row == first
    assert made.who.min() >= first
    assert made.who.max() < last


@given(MATRIX, st.data())
def test_pieces_of_unequal_length_keep_their_peak_as_well(matrix: np.ndarray, data: st.DataObject) -> None:
    widths = data.draw(st.lists(st.floats(0.5, 900), min_size=matrix.shape[1], max_size=matrix.shape[1]))
    edges = np.concatenate([[5.0], 5.0 + np.cumsum(widths)])

    made = pool(matrix, edges, rows=16, columns=12)

    assert made.values.max() == matrix.max()
    assert made.values.shape[1] <= 12
    borders = np.linspace(made.left, made.right, made.values.shape[1] + 1)
    at = np.unravel_index(int(matrix.argmax()), matrix.shape)
    middle = (edges[at[1]] + edges[at[1] + 1]) / 2
    column = int(np.clip(np.searchsorted(borders, middle, "right") - 1, 0, len(borders) - 2))
    assert made.values[at[0] // made.step, column] == matrix.max()


@given(
    hnp.arrays(
        "float32",
        hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=50),
        elements=st.floats(-100, 100, width=32) | st.just(np.nan),
    ),
    LIMIT,
    LIMIT,
)
def test_of_floats_a_missing_one_never_hides_a_known_one(matrix: np.ndarray, rows: int, columns: int) -> None:
    made = pool_max(matrix, rows, columns)

    assert made.shape[0] <= rows
    assert made.shape[1] <= columns
    known = matrix[~np.isnan(matrix)]
    assert np.nanmax(made) == known.max() if len(known) else np.isnan(made).all()


def test_severities_that_need_more_than_a_byte_are_pooled_too() -> None:
    matrix = np.zeros((5000, 3), "uint16")
    matrix[4321, 1] = 60_000

    made = pool(matrix, edges_of(matrix), rows=10)

    assert made.values[8, 1] == 60_000
    assert made.who[8, 1] == 4321


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_nothing_is_pooled_to_nothing(shape: tuple[int, int]) -> None:
    assert pool(np.zeros(shape, "uint8"), np.zeros(shape[1] + 1)).values.size == 0
