"""
Turn counts and exposures of a fleet's units into each one's chance of failing more often than its fellows do.

Healthy units do not all fail alike: age, position and use differ, so counts spread wider than Poisson's. Their rates are taken as a gamma
distribution (counts are then negative binomial), and a small share of units as such rates times a factor. All parameters are fitted on the
fleet itself (empirical Bayes), and each unit is judged by its posterior.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

__all__ = ["FACTORS", "Excess", "excess", "selected"]

# by how much a lemon's rate exceeds a healthy unit's: RSC took 40 nodes out that failed jobs many times as often as the others
# (https://arxiv.org/abs/2410.21680); below 5 times a few bad weeks and a lemon look the same
FACTORS = (5.0, 8.0, 12.0, 20.0, 32.0, 64.0)
# shapes of the gamma of healthy rates that are considered: from wider than any fleet's (coefficient of variation 1.7) to Poisson
_SHAPES = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0, 12.0, 20.0, 50.0, 1e4)
# The rest was set on simulated fleets with known lemons, so that lists hold no more healthy units than asked
# (`python tests/fleet/lemon_truth.py`):
_PRIOR = 20.0  # units' worth of belief that there are no lemons, so that a chance pair of failures in a small fleet moves the share little
_CAUTION = 0.6  # power of belief in widely spread healthy rates, since a few weak lemons and a wider spread look alike
_GATE = 5.5  # twice the gain in log-likelihood below which a fleet is taken to have no lemons at all
_MARGIN = 0.9  # of the false-discovery rate asked for, since the parameters are estimated on the same fleet
# times the rate asked for that a listed unit's own chance of being healthy may be, as long as the list has no more than so many units: eight
# certain lemons would pay for a ninth that is healthy one time in three, and how weak the weakest lemons are is what few of them do not tell, so
# that of such units more were healthy than was said
_WEAKEST, _FEW = 4.0, 10


@dataclass(frozen=True, slots=True)
class Excess:
    """
    What the fit says of each unit and of the fleet.

    Attributes
    ----------
    lemon : ndarray
        Posterior probability that the unit is a lemon; 1 minus it is the local false-discovery rate.
    rate : ndarray
        Posterior mean of its rate: its own count shrunk towards the fleet's by as much as its exposure is short.
    times : ndarray
        That rate over the healthy units' mean.
    usual : float
        Mean rate of healthy units, per unit of exposure.
    shape : float
        Of the gamma of healthy rates; its inverse is the squared coefficient of variation. Infinite for Poisson.
    share : float
        Share of lemons.
    gain : float
        Twice the log-likelihood gained by there being lemons at all.
    """

    lemon: Any
    rate: Any
    times: Any
    usual: float
    shape: float
    share: float
    gain: float


def _log_rising(counts: Any, shape: float) -> Any:
    """Return log of Γ(y + a) / Γ(a) for counts that need not be whole."""
    import numpy as np

    values, inverse = np.unique(counts, return_inverse=True)
    base = math.lgamma(shape)
    return np.array([math.lgamma(float(value) + shape) - base for value in values])[inverse]


class _Fleet:
    """Counts and exposures, and what they say under one shape of the healthy rates."""

    def __init__(self, counts: Any, exposure: Any) -> None:
        import numpy as np

        # units that are alike in both are one row with a weight: a fleet has thousands of units and a few dozen different counts
        pairs = np.stack([counts, exposure])
        rows, inverse, weight = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
        self.inverse = inverse.reshape(-1)
        self.counts, self.exposure, self.weight = rows[0][:, None], rows[1][:, None], weight.astype(float)

    def fit(self, shape: float, factors: Any, rounds: int, start: _Fit | None = None) -> _Fit:
        """
        Return the best mean and shares for a shape, searched from those of a shape near it.

        Each round is one of EM for the shares and one of Fisher's scoring for the mean: its score for log m is r·a(y − m)/(a + m) and its
        information r·a·m/(a + m), for a negative binomial with mean m and shape a.
        """
        import numpy as np

        y, total = self.counts, self.weight.sum()
        rising = _log_rising(y[:, 0], shape)[:, None]
        mean = float((self.weight @ y[:, 0]) / (self.weight @ self.exposure[:, 0]))
        shares = np.full(len(factors), 0.004 / max(1, len(factors) - 1))
        shares[0] = 0.996 if len(factors) > 1 else 1.0
        belief = np.zeros(len(factors))
        belief[0] = _PRIOR
        if start is not None:
            mean, shares = start.mean, start.shares
        value = -math.inf
        for _ in range(rounds):
            expected = mean * self.exposure * factors
            # Γ(y+a)/Γ(a) · (a/(a+m))^a · (m/(a+m))^y, without the term of the count alone
            table = rising - shape * np.log1p(expected / shape) + y * (np.log(expected) - np.log(shape + expected))
            top = table.max(axis=1, keepdims=True)
            joint = np.exp(table - top) * shares
            both = joint.sum(axis=1, keepdims=True)
            mine = joint / both
            before, value = value, float(self.weight @ (np.log(both) + top)[:, 0] + _PRIOR * math.log(shares[0]))
            if abs(value - before) < 1e-4:
                break
            weighted = self.weight[:, None] * mine
            score = float((weighted * shape * (y - expected) / (shape + expected)).sum())
            information = float((weighted * shape * expected / (shape + expected)).sum())
            shares = (weighted.sum(axis=0) + belief) / (total + _PRIOR)
            mean *= math.exp(min(0.5, max(-0.5, score / information)))
        rate = (mine * (shape + y) / (shape / (mean * factors) + self.exposure)).sum(axis=1)
        return _Fit(value, mean, shares, mine, rate)


@dataclass(frozen=True, slots=True)
class _Fit:
    value: float
    mean: float
    shares: Any
    mine: Any
    rate: Any


def excess(counts: Any, exposure: Any) -> Excess:
    """
    Fit the fleet and return each unit's posterior.

    What is said of a unit is the mean over all shapes of the healthy rates, each as far as the fleet speaks for it: in a small fleet the
    shape is not known well, and a list made with the best one alone holds too many healthy units.

    Parameters
    ----------
    counts : array_like of float
        Blames of each unit; shares of a blame count as their share. A sum of shares of Poisson events has a variance below its mean, so
        that the fit errs towards fewer lemons.
    exposure : array_like of float
        Time at risk of each, all in the same unit and above 0.

    Raises
    ------
    ValueError
        An exposure is not above 0, a count is negative, or the two differ in length.
    """
    import numpy as np

    y, e = np.asarray(counts, dtype=float), np.asarray(exposure, dtype=float)
    if y.shape != e.shape or y.ndim != 1:
        raise ValueError("counts and exposures are not of one length")
    if not ((e > 0).all() and np.isfinite(e).all() and (y >= 0).all() and np.isfinite(y).all()):
        raise ValueError("an exposure is not above 0, or a count is negative")
    if not len(y) or y.sum() == 0:
        zero = np.zeros(len(y))
        return Excess(zero, zero, zero, 0.0, math.inf, 0.0, 0.0)
    fleet = _Fleet(y, e)
    shapes = np.array(_SHAPES)
    alone = [fleet.fit(shape, np.array((1.0,)), 12) for shape in _SHAPES]
    factors = np.array((1.0, *FACTORS))
    mixed: list[_Fit] = []
    for shape in _SHAPES:
        mixed.append(fleet.fit(shape, factors, 60 if mixed else 150, mixed[-1] if mixed else None))
    gain = 2.0 * (max(fit.value for fit in mixed) - max(fit.value for fit in alone))
    fits = mixed if gain >= _GATE else alone
    value = np.array([fit.value for fit in fits]) + _CAUTION * np.log(1.0 / shapes + 0.05)
    weight = np.exp(value - value.max())
    weight /= weight.sum()
    lemon = sum(part * (1.0 - fit.mine[:, 0]) for part, fit in zip(weight, fits, strict=True))
    rate = sum(part * fit.rate for part, fit in zip(weight, fits, strict=True))
    usual = float(sum(part * fit.mean for part, fit in zip(weight, fits, strict=True)))
    share = float(sum(part * (1.0 - fit.shares[0]) for part, fit in zip(weight, fits, strict=True)))
    spread = float((weight / shapes).sum())  # mean of the squared coefficient of variation
    at = fleet.inverse
    return Excess(
        lemon[at], rate[at], rate[at] / usual, usual, 1.0 / spread if spread > 1e-3 else math.inf, share, max(gain, 0.0)
    )


def selected(lemon: Any, rate: float = 0.05) -> Any:
    """
    Return which units to list so that at most `rate` of the listed are expected to be healthy.

    The expected share of false ones among the listed is the mean of their local false-discovery rates; the longest list by posterior for
    which it stays below `rate` is taken (Efron, Large-Scale Inference, 2010, ch. 5). There are no p-values in it, so that their being
    discrete at small counts, which makes Benjamini and Hochberg's procedure list too few, does not matter. In a list of up to ten no unit's own
    local rate exceeds four times `rate`, and in proportion more in longer ones.
    """
    import numpy as np

    false = 1.0 - np.asarray(lemon, dtype=float)
    order = np.argsort(false, kind="stable")
    mean = np.cumsum(false[order]) / np.arange(1, len(false) + 1)
    weakest = _WEAKEST * rate * np.maximum(1.0, np.arange(1, len(false) + 1) / _FEW)
    rate *= _MARGIN
    listed = np.zeros(len(false), dtype=bool)
    good = np.flatnonzero((mean <= rate) & (false[order] <= weakest))
    if len(good):
        # units that are alike are listed together or not at all
        listed = false <= false[order[good[-1]]]
        if false[listed].mean() > rate:
            listed = false < false[order[good[-1]]]
    return listed
