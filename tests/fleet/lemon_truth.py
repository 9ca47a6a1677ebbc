"""
Turn a seed into a fleet whose lemons are known, and lists of lemons into how right they are.

Run as a program it prints the table of docs/lemons.md: ``python tests/fleet/lemon_truth.py [SEEDS]``, and with ``--held-out`` that of designs
and seeds on which nothing was set.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from workbench.fleet.excess import excess, selected

POISSON = math.inf
# nodes, shape of the healthy rates' gamma, share of lemons, by how much they fail more (from, to)
FLEETS = [
    (nodes, shape, share, low, high)
    for nodes in (300, 1000, 3000)
    for shape in (1.0, 2.0, 4.0, POISSON)
    for share, low, high in ((0.015, 8.0, 30.0), (0.03, 5.0, 15.0), (0.003, 10.0, 30.0))
]
# designs on which no constant of the fit was set: other rates, other spreads, other lemons
HELD_OUT = [
    (nodes, shape, 0.02, 4.0, 40.0, mean)
    for nodes in (300, 1000, 3000)
    for mean in (0.25, 2.0)
    for shape in (1.4, 2.8, 6.0, POISSON)
]
SALT = 7_919  # added to the seeds of these
MEAN = 0.6  # failures of a healthy node in 90 days: 6.5 in 1,000 node-days (RSC-1)


def fleet(seed: int, nodes: int, shape: float, share: float, low: float, high: float, mean: float = MEAN) -> tuple[Any, Any, Any]:
    """Return counts, exposures (days) and which nodes are lemons."""
    random = np.random.default_rng([seed, nodes, int(min(shape, 1e6)), int(1000 * share)])
    days = np.round(90.0 * np.exp(random.normal(0.0, 0.5, nodes))) + 1.0
    healthy = np.ones(nodes) if math.isinf(shape) else random.gamma(shape, 1.0 / shape, nodes)
    truth = random.random(nodes) < share
    factor = np.where(truth, np.exp(random.uniform(math.log(low), math.log(high), nodes)), 1.0)
    return random.poisson(mean / 90.0 * healthy * factor * days), days, truth


def poisson_tails(counts: Any, expected: Any) -> Any:
    """Return P(X ≥ count) of Poisson variables: the exact test of each node by itself against the fleet's mean rate."""
    tails = np.ones(len(counts))
    for at, (count, mean) in enumerate(zip(counts, expected, strict=True)):
        if count:
            term = math.exp(-mean + count * math.log(mean) - math.lgamma(count + 1))
            total, number = 0.0, int(count)
            while term > 1e-14 * total or number < mean:
                total += term
                number += 1
                term *= mean / number
            tails[at] = min(1.0, total)
    return tails


def spread_tails(counts: Any, exposure: Any) -> Any:
    """Return P(X ≥ count) of negative binomials whose mean and spread are the fleet's own, by moments: an exact test of each node that allows for overdispersion."""
    expected = counts.sum() / exposure.sum() * exposure
    excess_variance = float((((counts - expected) ** 2) - expected).sum() / (expected**2).sum())
    if excess_variance < 1e-6:
        return poisson_tails(counts, expected)
    shape = 1.0 / excess_variance
    tails = np.ones(len(counts))
    for at, (count, mean) in enumerate(zip(counts, expected, strict=True)):
        term = below = shape * (math.log(shape) - math.log(shape + mean))
        total = math.exp(below) if count else 0.0
        for number in range(1, int(count)):
            term += math.log((shape + number - 1) / number) + math.log(mean / (shape + mean))
            total += math.exp(term)
        tails[at] = max(0.0, 1.0 - total)
    return tails


def knower(counts: Any, days: Any, nodes: int, shape: float, share: float, low: float, high: float, mean: float = MEAN) -> Any:
    """
    Return each node's chance of being a lemon for who knows all parameters of the design: nobody can do better than by these.

    Of all lists whose expected share of false ones, given the counts, is at most the rate asked for, the longest one by these chances has the most
    true lemons (Sun and Cai, https://doi.org/10.1198/016214507000000545).
    """
    rising = np.vectorize(lambda value: math.lgamma(value + shape) - math.lgamma(shape))

    def likelihood(expected: Any) -> Any:
        if math.isinf(shape):
            return counts * np.log(expected) - expected
        return rising(counts) - shape * np.log1p(expected / shape) + counts * (np.log(expected) - np.log(shape + expected))

    usual = mean / 90.0 * days
    factors = np.exp(math.log(low) + (np.arange(24) + 0.5) / 24 * math.log(high / low))
    rows = np.stack([likelihood(usual * factor) for factor in factors])
    top = rows.max(axis=0)
    lemon = top + np.log(np.exp(rows - top).mean(axis=0)) + math.log(share)
    return 1.0 / (1.0 + np.exp(likelihood(usual) + math.log1p(-share) - lemon))


def longest(chances: Any, rate: float) -> Any:
    """Return the longest list, by chance, whose expected share of healthy ones is at most `rate`."""
    order = np.argsort(-chances, kind="stable")
    mean = np.cumsum(1.0 - chances[order]) / np.arange(1, len(chances) + 1)
    listed = np.zeros(len(chances), dtype=bool)
    listed[order[: np.flatnonzero(mean <= rate)[-1] + 1 if (mean <= rate).any() else 0]] = True
    return listed


def benjamini_hochberg(tails: Any, rate: float) -> Any:
    """Return which tests are discoveries at a false-discovery rate."""
    ordered = np.sort(tails)
    below = np.flatnonzero(ordered <= rate * np.arange(1, len(tails) + 1) / len(tails))
    return tails <= ordered[below[-1]] if len(below) else np.zeros(len(tails), dtype=bool)


def score(listed: Any, truth: Any) -> tuple[float, int]:
    """Return the share of false ones among the listed (0 where none is) and how many true ones are listed."""
    return float((listed & ~truth).sum() / max(1, listed.sum())), int((listed & truth).sum())


def compare(seeds: int, design: tuple[Any, ...], levels: tuple[float, ...] = (0.05,), first: int = 0) -> dict[str, Any]:
    """Return mean false share and found lemons of all methods, and of who knows all parameters, over many seeds of one design; the test at several levels."""
    ours, best, wide, theirs, lemons = [], [], [], {level: [] for level in levels}, 0
    for seed in range(first, first + seeds):
        counts, days, truth = fleet(seed, *design)
        lemons += int(truth.sum())
        ours.append(score(selected(excess(counts, days).lemon, 0.05), truth))
        best.append(score(longest(knower(counts, days, *design), 0.05), truth))
        wide.append(score(benjamini_hochberg(spread_tails(counts, days), 0.05), truth))
        tails = poisson_tails(counts, counts.sum() / days.sum() * days)
        for level in levels:
            theirs[level].append(score(benjamini_hochberg(tails, level), truth))
    return {
        "lemons": lemons,
        "ours": (float(np.mean([one[0] for one in ours])), sum(one[1] for one in ours)),
        "best": (float(np.mean([one[0] for one in best])), sum(one[1] for one in best)),
        "spread": (float(np.mean([one[0] for one in wide])), sum(one[1] for one in wide)),
        "test": {
            level: (float(np.mean([one[0] for one in rows])), sum(one[1] for one in rows)) for level, rows in theirs.items()
        },
    }


def main(seeds: int, held_out: bool = False) -> None:
    """Print one row a design (of held-out ones named by shape and mean), then what one level of the test for all designs would find at a false-discovery rate of 5 % on average."""
    levels = (0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0002, 0.0001, 5e-5, 2e-5, 1e-5, 1e-6)
    print(
        "| nodes | shape | lemons | times | FDR | found | best possible: FDR | found | exact Poisson test + BH: FDR | found | exact negative binomial test + BH: FDR | found |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    false, found, best, wide = [], [], [], []
    theirs = {level: [] for level in levels}
    for design in HELD_OUT if held_out else FLEETS:
        told = compare(seeds, design, levels, SALT if held_out else 0)
        false.append(told["ours"][0])
        found.append(told["ours"][1])
        best.append(told["best"])
        wide.append(told["spread"])
        for level in levels:
            theirs[level].append(told["test"][level])
        nodes, shape, share, low, high, *mean = design
        name = ("Poisson" if math.isinf(shape) else f"{shape:g}") + "".join(f", mean {one:g}" for one in mean)
        print(
            f"| {nodes} | {name} | {share:.1%} | {low:g} to {high:g} | {false[-1]:.1%} | {found[-1]} of {told['lemons']} "
            f"| {best[-1][0]:.1%} | {best[-1][1]} | {theirs[0.05][-1][0]:.1%} | {theirs[0.05][-1][1]} "
            f"| {wide[-1][0]:.1%} | {wide[-1][1]} |",
            flush=True,
        )
    print(f"\nall: FDR {np.mean(false):.1%} (highest {max(false):.1%}), found {sum(found)}")
    print(f"best possible: FDR {np.mean([one[0] for one in best]):.1%}, found {sum(one[1] for one in best)}")
    print(f"exact negative binomial + BH: FDR {np.mean([one[0] for one in wide]):.1%}, found {sum(one[1] for one in wide)}")
    for level in levels:
        print(
            f"exact Poisson + BH at {level:g}: FDR {np.mean([one[0] for one in theirs[level]]):.1%}, found {sum(one[1] for one in theirs[level])}"
        )


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--held-out"]
    main(int(words[0]) if words else 40, held_out="--held-out" in sys.argv)
