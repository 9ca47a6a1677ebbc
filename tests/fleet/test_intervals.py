"""Bounds of shares, rates and times to failure: against closed forms, plain sums, published tables, and by counting how often they cover."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from workbench.fleet.intervals import (
    beta_cdf,
    beta_quantile,
    chi_square_quantile,
    exact,
    gamma_cdf,
    gamma_quantile,
    mttf,
    newcombe,
    poisson,
    rate_ratio,
    student,
    wilson,
)


def binomial(k: int, n: int, p: float) -> float:
    return math.comb(n, k) * p**k * (1 - p) ** (n - k)


def at_most(k: int, rate: float) -> float:
    return sum(math.exp(i * math.log(rate) - rate - math.lgamma(i + 1)) for i in range(k + 1))


@pytest.mark.parametrize(("n", "p"), [(1, 0.3), (10, 0.01), (10, 0.5), (60, 0.93), (200, 0.2)])
def test_the_incomplete_beta_function_is_the_sum_of_binomial_chances(n: int, p: float) -> None:
    for a in range(1, n + 1):
        summed = math.fsum(binomial(k, n, p) for k in range(a, n + 1))
        assert beta_cdf(p, a, n - a + 1) == pytest.approx(summed, rel=1e-10, abs=1e-14)


@pytest.mark.parametrize("rate", [0.01, 1.0, 7.5, 80.0, 400.0])
def test_the_incomplete_gamma_function_is_the_sum_of_poisson_chances(rate: float) -> None:
    for k in (0, 1, 5, 60, 390, 420):
        assert 1 - gamma_cdf(rate, k + 1) == pytest.approx(at_most(k, rate), rel=1e-9, abs=1e-12)


# NIST/SEMATECH e-Handbook of Statistical Methods 1.3.6.7.4, critical values of the chi-square distribution
@pytest.mark.parametrize(
    ("p", "degrees", "value"),
    [(0.95, 1, 3.841), (0.975, 1, 5.024), (0.95, 10, 18.307), (0.99, 20, 37.566), (0.999, 5, 20.515), (0.05, 10, 3.940), (0.025, 20, 9.591), (0.95, 100, 124.342)],
)  # fmt: skip
def test_chi_square_quantiles_are_those_of_the_tables(p: float, degrees: int, value: float) -> None:
    assert chi_square_quantile(p, degrees) == pytest.approx(value, abs=6e-4)


# Garwood's bounds of a Poisson count, 95 %: Ulm, American Journal of Epidemiology 131 (1990) 373, and every table of them
@pytest.mark.parametrize(
    ("count", "low", "high"), [(0, 0, 3.689), (1, 0.0253, 5.572), (2, 0.2422, 7.225), (5, 1.623, 11.668), (10, 4.795, 18.390), (100, 81.36, 121.63)]
)  # fmt: skip
def test_bounds_of_a_count_are_the_tabulated_ones(count: int, low: float, high: float) -> None:
    found = poisson(count, 1)
    assert found.low == pytest.approx(low, rel=1e-3)
    assert found.high == pytest.approx(high, rel=1e-3)


# R. G. Newcombe, Statistics in Medicine 17 (1998) 857, table I: methods 3 (score) and 5 (Clopper-Pearson)
@pytest.mark.parametrize(
    ("k", "n", "score", "clopper"),
    [
        (81, 263, (0.2553, 0.3662), (0.2527, 0.3676)),
        (15, 148, (0.0624, 0.1605), (0.0578, 0.1617)),
        (0, 20, (0.0, 0.1611), (0.0, 0.1684)),
        (1, 29, (0.0061, 0.1718), (0.0009, 0.1776)),
    ],
)
def test_bounds_of_a_share_are_the_published_ones(
    k: int, n: int, score: tuple[float, float], clopper: tuple[float, float]
) -> None:
    assert wilson(k, n) == pytest.approx(score, abs=6e-5)
    assert exact(k, n) == pytest.approx(clopper, abs=6e-5)


def test_bounds_of_none_and_all_have_a_closed_form() -> None:
    for n in (1, 7, 1000, 3_000_000):
        assert exact(0, n).high == pytest.approx(-math.expm1(math.log(0.025) / n), rel=1e-9)
        assert exact(n, n).low == pytest.approx(0.025 ** (1 / n), rel=1e-12)
        assert exact(0, n).low == 0
        assert exact(n, n).high == 1
    assert poisson(0, 4).high == pytest.approx(-math.log(0.025) / 4)


def test_without_data_nothing_is_excluded() -> None:
    assert wilson(0, 0) == exact(0, 0) == (0, 1)
    assert poisson(0, 0) == (0, math.inf)
    assert mttf(0, 0) == (0, math.inf)
    assert mttf(0, 100).high == math.inf
    assert rate_ratio(0, 1, 0, 1) == (0, math.inf)
    assert newcombe(0, 0, 1, 2) == (-1, 1)


@pytest.mark.parametrize("arguments", [(-1, 3), (4, 3), (math.nan, 3), (1, math.inf)])
def test_what_is_no_share_is_refused(arguments: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="is no share"):
        wilson(*arguments)
    with pytest.raises(ValueError, match="is no share"):
        exact(*arguments)


def test_wrong_levels_and_rates_are_refused() -> None:
    for level in (0, 1, 95):
        with pytest.raises(ValueError, match="between 0 and 1"):
            wilson(1, 2, level)
    with pytest.raises(ValueError, match="no rate"):
        poisson(-1, 3)
    with pytest.raises(ValueError, match="needs an exposure"):
        rate_ratio(1, 0, 1, 1)


def coverage(bounds: list[tuple[float, float]], p: float) -> float:
    n = len(bounds) - 1
    return math.fsum(binomial(k, n, p) for k in range(n + 1) if bounds[k][0] <= p <= bounds[k][1])


@pytest.mark.parametrize("n", [10, 30, 100])
def test_wilson_covers_95_percent_of_the_time_over_all_true_shares(n: int) -> None:
    bounds = [wilson(k, n) for k in range(n + 1)]
    shares = [(i + 0.5) / 500 for i in range(500)]
    mean = sum(coverage(bounds, p) for p in shares) / len(shares)
    assert 0.93 <= mean <= 0.97
    print(f"wilson n={n}: {mean:.4f}")


@pytest.mark.parametrize("n", [10, 30, 100])
def test_exact_bounds_never_cover_less_than_they_say(n: int) -> None:
    bounds = [exact(k, n) for k in range(n + 1)]
    covered = [coverage(bounds, (i + 0.5) / 500) for i in range(500)]
    assert min(covered) >= 0.95
    assert sum(covered) / len(covered) > 0.96  # conservative, and said so


def test_poisson_bounds_never_cover_less_than_they_say_and_come_near_it_with_many_events() -> None:
    bounds = [poisson(k, 1) for k in range(400)]
    for rate in (0.5, 3.3, 12.0, 50.0, 200.0):
        chances = (math.exp(k * math.log(rate) - rate - math.lgamma(k + 1)) for k in range(400))
        covered = math.fsum(chance for chance, one in zip(chances, bounds, strict=True) if one.low <= rate <= one.high)
        assert covered >= 0.95
        if rate >= 12:
            assert covered <= 0.97


def test_time_to_failure_is_one_over_the_rate() -> None:
    rate, time = poisson(4, 1000), mttf(4, 1000)
    assert time == pytest.approx((1 / rate.high, 1 / rate.low))
    # NIST 8.4.5.1: watching that stops at the last failure has 2r degrees of freedom on both sides
    stopped = mttf(4, 1000, stopped_by_failure=True)
    assert stopped.low == pytest.approx(2 * 1000 / chi_square_quantile(0.975, 8))
    assert stopped.high == pytest.approx(2 * 1000 / chi_square_quantile(0.025, 8))


# NIST/SEMATECH e-Handbook 1.3.6.7.2
@pytest.mark.parametrize(("degrees", "value"), [(1, 12.706), (2, 4.303), (5, 2.571), (10, 2.228), (30, 2.042), (100, 1.984)])
def test_students_t_is_that_of_the_tables(degrees: int, value: float) -> None:
    assert student(0.95, degrees) == pytest.approx(value, abs=6e-4)


def test_the_ratio_of_two_rates_turns_round_with_them() -> None:
    one, other = rate_ratio(10, 100, 4, 200), rate_ratio(4, 200, 10, 100)
    assert one.low == pytest.approx(1 / other.high)
    assert one.low < (10 / 100) / (4 / 200) < one.high


def test_the_difference_of_two_shares_is_the_published_one() -> None:
    # Newcombe, Statistics in Medicine 17 (1998) 873, table II, method 10: 56/70 - 48/80
    assert newcombe(56, 70, 48, 80) == pytest.approx((0.0524, 0.3339), abs=6e-5)


@given(st.floats(1e-6, 1 - 1e-6), st.floats(0.05, 500))
def test_gamma_quantiles_undo_the_distribution(p: float, shape: float) -> None:
    assert gamma_cdf(gamma_quantile(p, shape), shape) == pytest.approx(p, rel=1e-7, abs=1e-10)


@example(0.9998999999999999, 1.0, 0.25)
@given(st.floats(1e-4, 1 - 1e-4), st.floats(0.2, 300), st.floats(0.2, 300))
def test_beta_quantiles_undo_the_distribution(p: float, a: float, b: float) -> None:
    x, near = beta_quantile(p, a, b), 1e-13
    if beta_cdf(x, a, b) != pytest.approx(p, rel=1e-6, abs=1e-9):  # where the distribution is steep, x is exact, and p less so
        assert beta_cdf(max(0.0, x - near), a, b) <= p <= beta_cdf(min(1.0, x + near), a, b)


@given(st.integers(0, 10_000_000), st.integers(0, 10_000_000))
def test_bounds_hold_what_was_seen_at_any_size(k: int, more: int) -> None:
    n = k + more
    if n:
        for found in (wilson(k, n), exact(k, n)):
            assert 0 <= found.low <= k / n <= found.high <= 1
