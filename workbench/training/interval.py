"""
Turn what a save costs and how often a job fails into how often to save, and into what the present interval costs.

With failures at random (exponential, mean M) and a save of w seconds every τ seconds of work, the expected time for one second of work is
M e^(R/M) (e^((τ+w)/M) − 1) / τ, where R is the time to restart: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for
restart dumps", Future Generation Computer Systems 22 (2006) 303, equation 20. Its best τ is near √(2 w M) (J. W. Young, Communications of the
ACM 17 (1974) 530) and nearer to Daly's equation 37, which is what is advised here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from workbench.fleet.intervals import Bounds, gamma_quantile, poisson

__all__ = ["LARGEST_SHARE", "Advice", "advise", "daly", "loss", "words", "young"]

# a save of more than a tenth of the mean time to failure is not "much smaller"; ours: Young neglects terms of (w/M)^½, and with 0.1 what is lost
# at the best interval is over a third of all time, so that saving faster or failing less is what helps, not another interval
LARGEST_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Advice:
    """
    How often to save.

    Attributes
    ----------
    interval : float, optional
        Seconds of work between saves that lose least; None when none is advised (`reason` says why).
    low, high : float, optional
        The same over the uncertainty of failure rate and save time.
    young : float, optional
        Young's first-order value, seconds.
    save, save_low, save_high : float
        What a save costs the training, seconds: mean of the samples and bounds of the mean.
    mttf, mttf_low, mttf_high : float, optional
        Mean time to failure of the job, seconds; None where the data give none (no failure seen: no mean, no upper bound).
    loss : float, optional
        Share of all time lost to saves, work done again and restarts at `interval`.
    present, present_loss : float, optional
        The interval in use, and what is lost with it.
    extra, extra_low, extra_high : float, optional
        Share of all time that the present interval loses beyond the best one, and its range over the uncertainty.
    gpu_hours_day, gpu_hours_day_low, gpu_hours_day_high : float, optional
        The same as GPU-hours a day of the job.
    reason : str
        Why this is advised, or why nothing is.
    """

    interval: float | None
    low: float | None
    high: float | None
    young: float | None
    save: float
    save_low: float
    save_high: float
    mttf: float | None
    mttf_low: float | None
    mttf_high: float | None
    loss: float | None
    present: float | None
    present_loss: float | None
    extra: float | None
    extra_low: float | None
    extra_high: float | None
    gpu_hours_day: float | None
    gpu_hours_day_low: float | None
    gpu_hours_day_high: float | None
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def young(save: float, mttf: float) -> float:
    """Return Young's interval √(2 w M), seconds; for save times much smaller than the mean time to failure."""
    return math.sqrt(2 * save * mttf)


def daly(save: float, mttf: float) -> float:
    """
    Return Daly's interval (equation 37), seconds of work between saves.

    Parameters
    ----------
    save, mttf : float
        Time of a save and mean time to failure, in the same unit.
    """
    if save >= 2 * mttf:
        return mttf
    root = math.sqrt(save / (2 * mttf))
    return young(save, mttf) * (1 + root / 3 + root * root / 9) - save


def loss(interval: float, save: float, mttf: float, restart: float = 0.0) -> float:
    """
    Return the share of all time that is no progress.

    Parameters
    ----------
    interval, save, mttf, restart : float
        Seconds of work between saves, time of a save, mean time to failure, and from a failure to the first new step.

    Returns
    -------
    float
        0 to 1: 1 − 1 / (time for one second of work).
    """
    if (interval + save + restart) / mttf > 500:  # e^500: nothing is ever finished
        return 1.0
    needed = mttf * math.exp(restart / mttf) * math.expm1((interval + save) / mttf) / interval
    return 1 - 1 / needed


def advise(
    save_seconds: Sequence[float],
    failures: float,
    hours: float,
    *,
    nodes: int = 1,
    observed_nodes: int | None = None,
    gpus_per_node: int = 8,
    restart_seconds: float = 0.0,
    present: float | None = None,
    level: float = 0.95,
) -> Advice:
    """
    Advise how often to save.

    Parameters
    ----------
    save_seconds : sequence of float
        Measured: how long training stood still for a save. Of an asynchronous one only the part that blocks.
    failures, hours : float
        Interruptions, and the hours of running in which they were counted.
    nodes, observed_nodes : int
        Nodes of the job, and of what was observed (default: the same job). The rate is scaled with the nodes.
    gpus_per_node : int
        For the cost in GPU-hours.
    restart_seconds : float
        From a failure to the first new step.
    present : float, optional
        Seconds of work between saves now.
    level : float
        Confidence of the bounds of the failure rate (Garwood's, exact).

    Raises
    ------
    ValueError
        A number is missing, negative or makes no sense.
    """
    numbers = [*save_seconds, failures, hours, restart_seconds, *([present] if present is not None else [])]
    if not save_seconds or min(save_seconds) <= 0 or hours <= 0 or min(numbers) < 0 or not all(map(math.isfinite, numbers)):
        raise ValueError("save times and hours must be above zero, and no number below")
    if nodes < 1 or gpus_per_node < 1 or (observed_nodes is not None and observed_nodes < 1) or present == 0:
        raise ValueError("nodes, GPUs and the present interval must be above zero")
    scale = (observed_nodes or nodes) / nodes  # an hour of four times the nodes is worth four hours of the job
    exposure = hours * 3600 * scale  # seconds of a job of this size
    rates = poisson(failures, exposure, level)
    mean, low, high = _mean(save_seconds, level)
    mttf = exposure / failures if failures > 0 else None
    shortest, longest = 1 / rates.high, 1 / rates.low if rates.low > 0 else None
    base: dict[str, Any] = dict.fromkeys(Advice.__slots__, None)
    base |= {
        "save": mean,
        "save_low": low,
        "save_high": high,
        "mttf": mttf,
        "mttf_low": shortest,
        "mttf_high": longest,
        "present": present,
    }
    # without a failure there is no mean: the shortest that the hours allow is the careful choice
    used = mttf if mttf is not None else shortest
    if mean / used > LARGEST_SHARE:
        return Advice(
            **base
            | {
                "reason": f"no interval is advised: a save ({words(mean)}) takes more than a tenth of the mean time to failure ({words(used)}), "
                "and the formulae hold for much less; save faster (asynchronous, sharded, to local disks) or fail less often"
            }
        )
    best = daly(mean, used)
    lowest, highest = daly(low, shortest), daly(high, longest) if longest is not None else None
    base |= {
        "interval": best,
        "low": lowest,
        "high": highest,
        "young": young(mean, used),
        "loss": loss(best, mean, used, restart_seconds),
    }
    if present is not None:
        base |= _present(present, (mean, used), (low, high), (shortest, longest), restart_seconds)
        for name in ("", "_low", "_high"):
            share = base[f"extra{name}"]
            base[f"gpu_hours_day{name}"] = None if share is None else share * 24 * nodes * gpus_per_node
    reason = f"{failures:g} failures in {hours:g} h"
    if observed_nodes and observed_nodes != nodes:
        reason += f" on {observed_nodes} nodes, scaled to {nodes}"
    if mttf is None:
        reason += (
            f": none was seen, so the mean time to failure is not known; this is for {words(shortest)}, the shortest that "
            f"{level:.0%} bounds allow, and saves rather too often"
        )
    elif mean / shortest > LARGEST_SHARE:
        reason += (
            "; at the upper bound of the failure rate a save would be more than a tenth of the mean time to failure: count longer"
        )
    return Advice(**base | {"reason": reason})


def _present(
    present: float,
    point: tuple[float, float],
    saves: tuple[float, float],
    means: tuple[float, float | None],
    restart: float,
) -> dict[str, Any]:
    """Return what the present interval loses, and beyond the best: at the point and over the corners of what is uncertain."""

    def beyond(save: float, mttf: float) -> float:
        return max(0.0, loss(present, save, mttf, restart) - loss(daly(save, mttf), save, mttf, restart))

    corners = [beyond(save, mttf) for save in saves for mttf in means if mttf is not None and daly(save, mttf) > 0]
    extra = beyond(*point)
    low = daly(saves[0], means[0])
    high = daly(saves[1], means[1]) if means[1] is not None else math.inf
    inside = low <= present <= high  # for some rate in the bounds the present interval is the best one
    return {
        "present_loss": loss(present, *point, restart),
        "extra": extra,
        "extra_low": 0.0 if inside else min([*corners, extra]),
        # saves too frequent for a job that never fails cost their own time: without an upper bound of the mean that is the most
        "extra_high": max([*corners, extra, *([saves[1] / (present + saves[1])] if means[1] is None else [])]),
    }


def _mean(samples: Sequence[float], level: float) -> tuple[float, float, float]:
    """Return mean and bounds of the mean: a gamma distribution of the samples' own spread (never below zero); equal for one sample."""
    mean = fmean(samples)
    spread = stdev(samples) / math.sqrt(len(samples)) if len(samples) > 1 else 0.0
    if spread <= 1e-9 * mean:
        return mean, mean, mean
    shape = (mean / spread) ** 2
    tail = (1 - level) / 2
    bounds = Bounds(gamma_quantile(tail, shape) * mean / shape, gamma_quantile(1 - tail, shape) * mean / shape)
    return mean, min(bounds.low, mean), max(bounds.high, mean)


def words(seconds: float) -> str:
    """Return a time as people say it: ``42 s``, ``3.5 h``."""
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
