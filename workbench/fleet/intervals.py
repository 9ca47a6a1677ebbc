"""
Turn counts into bounds: shares (Wilson, Clopper-Pearson), rates (Garwood), mean times to failure, ratios and differences of two.

No scipy: the incomplete gamma and beta functions are computed as the Digital Library of Mathematical Functions (https://dlmf.nist.gov, NIST,
sections 8.7, 8.9 and 8.17) gives them, and their quantiles by Newton's method kept inside a bracket. The tests compare them with closed forms
and with plain sums of binomial and Poisson probabilities.

What the bounds promise. All take each event as independent of the others; failures that come together (one switch, one bad image) make
the true uncertainty larger than the bounds say. `exact`, `poisson`, `mttf` and `rate_ratio` cover the true value at least as often as
`level` says, whatever it is, and mostly more often: they are conservative. `wilson` covers it about as often as `level` says on average over
the true shares, and less often for some of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

__all__ = [
    "Bounds",
    "beta_cdf",
    "beta_quantile",
    "chi_square_quantile",
    "exact",
    "gamma_cdf",
    "gamma_quantile",
    "mttf",
    "newcombe",
    "poisson",
    "rate_ratio",
    "student",
    "wilson",
]

_TINY = 1e-300
_EPS = 1e-15


class Bounds(NamedTuple):
    """Lower and upper bound, in the unit of what they bound; `math.inf` where the data give no upper one."""

    low: float
    high: float


def wilson(k: float, n: float, level: float = 0.95) -> Bounds:
    """
    Return Wilson's score interval of a share.

    Parameters
    ----------
    k, n : float
        Successes and trials; an effective number of trials need not be whole.
    level : float
        Confidence, 0 to 1.

    Returns
    -------
    Bounds
        (0, 1) without trials: nothing is known.

    Raises
    ------
    ValueError
        If not 0 <= k <= n or `level` is not between 0 and 1.

    Notes
    -----
    E. B. Wilson, JASA 22 (1927) 209; recommended for small n by Brown, Cai, DasGupta, Statistical Science 16 (2001) 101.
    """
    _share(k, n, level)
    if n == 0:
        return Bounds(0.0, 1.0)
    z = NormalDist().inv_cdf(0.5 + level / 2)
    middle = (k + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(k * (n - k) / n + z * z / 4)
    return Bounds(0.0 if k == 0 else max(0.0, middle - half), 1.0 if k == n else min(1.0, middle + half))


def exact(k: float, n: float, level: float = 0.95) -> Bounds:
    """
    Return the Clopper-Pearson interval of a share: it covers the true share at least as often as `level` says.

    Parameters
    ----------
    k, n : float
        Successes and trials.
    level : float
        Confidence, 0 to 1.

    Returns
    -------
    Bounds
        (0, 1) without trials.

    Raises
    ------
    ValueError
        If not 0 <= k <= n or `level` is not between 0 and 1.

    Notes
    -----
    C. J. Clopper, E. S. Pearson, Biometrika 26 (1934) 404; quantiles of the beta distribution: DLMF 8.17.5.
    """
    _share(k, n, level)
    if n == 0:
        return Bounds(0.0, 1.0)
    tail = (1 - level) / 2
    low = 0.0 if k == 0 else beta_quantile(tail, k, n - k + 1)
    high = 1.0 if k == n else 1 - beta_quantile(tail, n - k, k + 1)
    return Bounds(low, high)


def poisson(count: float, exposure: float, level: float = 0.95) -> Bounds:
    """
    Return Garwood's exact bounds of a rate: events per unit of exposure.

    Parameters
    ----------
    count : float
        Events seen; shares of events may add up to a number that is not whole.
    exposure : float
        What they were seen in, such as node-days; the rate is per one of it.
    level : float
        Confidence, 0 to 1.

    Returns
    -------
    Bounds
        (0, inf) without exposure.

    Raises
    ------
    ValueError
        If a number is negative or `level` is not between 0 and 1.

    Notes
    -----
    F. Garwood, Biometrika 28 (1936) 437: half of the chi-square quantiles with 2 count and 2 count + 2 degrees of freedom.
    """
    _level(level)
    if count < 0 or exposure < 0 or math.isnan(count) or math.isnan(exposure):
        raise ValueError(f"no rate of {count} events in {exposure}")
    if exposure == 0:
        return Bounds(0.0, math.inf)
    tail = (1 - level) / 2
    low = 0.0 if count == 0 else gamma_quantile(tail, count)
    return Bounds(low / exposure, gamma_quantile(1 - tail, count + 1) / exposure)


def mttf(count: float, exposure: float, level: float = 0.95, *, stopped_by_failure: bool = False) -> Bounds:
    """
    Return bounds of the mean time to failure, if failures come at a constant rate.

    Parameters
    ----------
    count : float
        Failures.
    exposure : float
        Time at risk, over all parts, also of those that did not fail (censored); the bounds are in its unit.
    level : float
        Confidence, 0 to 1.
    stopped_by_failure : bool
        Watching ended with a failure and because of it, so that the last failure is no surprise; usual windows end by the clock.

    Returns
    -------
    Bounds
        The upper one is infinite without a failure: the time at risk says only how short it is not.

    Raises
    ------
    ValueError
        As in `poisson`.

    Notes
    -----
    2 T / chi-square quantiles: NIST/SEMATECH e-Handbook of Statistical Methods 8.4.5.1 (repairable or not, exponential).
    """
    rate = poisson(count, exposure, level)
    if stopped_by_failure and count > 0:
        rate = Bounds(rate.low, gamma_quantile(0.5 + level / 2, count) / exposure if exposure else math.inf)
    return Bounds(0.0 if math.isinf(rate.high) else 1 / rate.high, math.inf if rate.low == 0 else 1 / rate.low)


def rate_ratio(count: float, exposure: float, other: float, other_exposure: float, level: float = 0.95) -> Bounds:
    """
    Return exact bounds of the ratio of two rates, (count / exposure) / (other / other_exposure).

    Raises
    ------
    ValueError
        If a number is negative, an exposure is zero, or `level` is not between 0 and 1.

    Notes
    -----
    Given the sum of both, the first count is binomial (J. Przyborowski, H. Wilenski, Biometrika 31 (1940) 313); its exact bounds become
    those of the ratio. Without any event it is (0, inf).
    """
    if exposure <= 0 or other_exposure <= 0:
        raise ValueError("a rate needs an exposure")
    share = exact(count, count + other, level)
    scale = other_exposure / exposure
    low = share.low / (1 - share.low) * scale if share.low < 1 else math.inf
    return Bounds(low, share.high / (1 - share.high) * scale if share.high < 1 else math.inf)


def newcombe(k: float, n: float, other_k: float, other_n: float, level: float = 0.95) -> Bounds:
    """
    Return bounds of the difference of two shares, k / n - other_k / other_n.

    Raises
    ------
    ValueError
        As in `wilson`.

    Notes
    -----
    R. G. Newcombe, Statistics in Medicine 17 (1998) 873, method 10: Wilson's bounds of both, put together. (-1, 1) if one has no trials.
    """
    first, second = wilson(k, n, level), wilson(other_k, other_n, level)
    if n == 0 or other_n == 0:
        return Bounds(-1.0, 1.0)
    one, two = k / n, other_k / other_n
    return Bounds(
        one - two - math.hypot(one - first.low, second.high - two), one - two + math.hypot(first.high - one, two - second.low)
    )


def gamma_cdf(x: float, shape: float) -> float:
    """
    Return P(shape, x), the regularized lower incomplete gamma function; 1 - it at (λ, k + 1) is the chance of at most k Poisson events.

    Notes
    -----
    Series DLMF 8.7.1 below shape + 1, continued fraction DLMF 8.9.2 (by Lentz's method) above.
    """
    if x <= 0:
        return 0.0
    if math.isinf(x):
        return 1.0
    front = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x < shape + 1:
        term = total = 1 / shape
        n = shape
        while term > total * _EPS:
            n += 1
            term *= x / n
            total += term
        return min(1.0, front * total)
    b = x + 1 - shape
    c, d = 1 / _TINY, 1 / b
    value = d
    for i in range(1, _terms(shape)):
        a = -i * (i - shape)
        b += 2
        d = 1 / (a * d + b or _TINY)
        c = b + a / c or _TINY
        value *= d * c
        if abs(d * c - 1) < _EPS:
            break
    return max(0.0, 1 - front * value)


def gamma_quantile(p: float, shape: float) -> float:
    """Return the x at which `gamma_cdf` of `shape` is p."""
    _level(p)
    # Wilson and Hilferty, PNAS 17 (1931) 684: the cube root of a chi-square number is nearly normal
    z = NormalDist().inv_cdf(p)
    guess = shape * max(1e-3, 1 - 1 / (9 * shape) + z / (3 * math.sqrt(shape))) ** 3
    high = max(1.0, guess)
    while gamma_cdf(high, shape) < p:
        high *= 2

    def density(x: float) -> float:
        return math.exp((shape - 1) * math.log(x) - x - math.lgamma(shape))

    return _solve(lambda x: gamma_cdf(x, shape), density, p, high, guess)


def chi_square_quantile(p: float, degrees: float) -> float:
    """Return the quantile of the chi-square distribution: twice that of a gamma distribution with half its degrees of freedom."""
    return 2 * gamma_quantile(p, degrees / 2)


def beta_cdf(x: float, a: float, b: float) -> float:
    """
    Return I_x(a, b), the regularized incomplete beta function; it is the chance of at least a successes in a + b - 1 trials of chance x.

    Notes
    -----
    Continued fraction DLMF 8.17.22 by Lentz's method, with the symmetry DLMF 8.17.4 where that converges faster.
    """
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x > (a + 1) / (a + b + 2):
        return max(0.0, 1 - front * _beta_fraction(1 - x, b, a) / b)
    return min(1.0, front * _beta_fraction(x, a, b) / a)


def beta_quantile(p: float, a: float, b: float) -> float:
    """Return the x at which `beta_cdf` of a and b is p."""
    _level(p)
    constant = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)

    def density(x: float) -> float:
        return math.exp(constant + (a - 1) * math.log(x) + (b - 1) * math.log1p(-x)) if 0 < x < 1 else 0.0

    mean, spread = a / (a + b), math.sqrt(a * b / (a + b + 1)) / (a + b)
    guess = min(1 - 1e-9, max(1e-9, mean + NormalDist().inv_cdf(p) * spread))
    return _solve(lambda x: beta_cdf(x, a, b), density, p, 1.0, guess)


def student(level: float, degrees: float) -> float:
    """Return the t within which a share `level` of Student's distribution lies, on both sides of zero (DLMF 8.17.5, its tail a beta's)."""
    _level(level)
    x = beta_quantile(1 - level, degrees / 2, 0.5)
    return math.sqrt(degrees * (1 - x) / x)


def _beta_fraction(x: float, a: float, b: float) -> float:
    c = 1.0
    d = 1 / (1 - (a + b) * x / (a + 1) or _TINY)
    value = d
    for m in range(1, _terms(max(a, b))):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for step in (even, odd):
            d = 1 / (1 + step * d or _TINY)
            c = 1 + step / c or _TINY
            value *= d * c
        if abs(d * c - 1) < _EPS:
            break
    return value


def _terms(size: float) -> int:
    # both fractions need some multiple of √size terms; ten times that is never reached unless rounding keeps them from settling
    return int(200 + 10 * math.sqrt(size))


def _solve(cdf: Callable[[float], float], density: Callable[[float], float], p: float, high: float, guess: float) -> float:
    # Newton's method; a step that leaves the bracket is replaced by its middle, so that it always ends
    low, x = 0.0, guess
    for _ in range(200):
        off = cdf(x) - p
        if off == 0:
            return x
        if off > 0:
            high = x
        else:
            low = x
        slope = density(x) if x > 0 else 0.0
        new = x - off / slope if slope > 0 else math.nan
        if not low < new < high:
            # near zero by orders of magnitude, else by halves
            new = high / 1024 if low == 0 else math.sqrt(low * high) if high > 4 * low else (low + high) / 2
        if abs(new - x) <= 1e-14 * abs(new) or high - low <= 4e-16 * high:
            return new
        x = new
    return x


def _share(k: float, n: float, level: float) -> None:
    _level(level)
    if not 0 <= k <= n or math.isinf(n):
        raise ValueError(f"{k} of {n} is no share")


def _level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"a probability between 0 and 1 is needed, not {level}")
