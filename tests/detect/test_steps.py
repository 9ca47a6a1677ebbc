"""The step helpers: what counts as growth, as an outlier, as sustained."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from workbench.detect.steps import fill_forward, first_true, increases, last_true, median_rows, outliers, quantile, sustained

NAN = np.nan


def test_gaps_are_filled_with_the_last_value_up_to_a_limit():
    """A missed scrape is bridged, a dead exporter is not."""
    row = np.array([[NAN, 1, NAN, NAN, NAN, 2]])
    np.testing.assert_array_equal(fill_forward(row), [[NAN, 1, 1, 1, 1, 2]])
    np.testing.assert_array_equal(fill_forward(row, 2), [[NAN, 1, 1, 1, NAN, 2]])


def test_growth_is_counted_over_gaps_and_resets_are_not_growth():
    """After a reset the old total coming back is no new error."""
    np.testing.assert_array_equal(increases(np.array([[5.0, NAN, 8, 8, 0, 8, 9]])), [[0, 0, 3, 0, 0, 0, 1]])


def test_one_row_among_equal_ones_is_an_outlier_only_above_the_floor():
    """With a spread of zero the floor decides."""
    values = np.array([0, 0, 0, 0, 3.0])
    assert outliers(values, 2).tolist() == [False] * 4 + [True]
    assert not outliers(values, 5).any()


def test_what_all_rows_share_is_no_outlier():
    """A counter that grows everywhere is the workload."""
    assert not outliers(np.array([90.0, 100, 110, 105, 95]), 10).any()


def test_a_single_column_is_not_sustained():
    """Two scrapes in a row are asked for; the last column cannot prove itself."""
    mask = np.array([[True, False, True, True, False, True]])
    assert sustained(mask, 2).tolist() == [[False, False, True, False, False, False]]


def test_first_and_last_true_say_minus_one_where_none_is():
    """No column is not column 0."""
    mask = np.array([[False, True, True], [False, False, False]])
    assert first_true(mask).tolist() == [1, -1]
    assert last_true(mask).tolist() == [2, -1]


@given(hnp.arrays(float, (7, 5), elements=st.one_of(st.just(NAN), st.floats(-1e6, 1e6))))
def test_median_and_quantile_agree_with_numpy(matrix):
    """The sort-based forms are only faster."""
    with np.errstate(all="ignore"):
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            np.testing.assert_allclose(median_rows(matrix), np.nanmedian(matrix, axis=0))
    for row, value in zip(matrix, quantile(matrix, 1.0), strict=True):
        known = row[~np.isnan(row)]
        assert (np.isnan(value) and not len(known)) or value == known.max()
