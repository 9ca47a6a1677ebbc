"""
Turn the time that each rank needs for each step into the ranks, nodes or the whole job that became slow: since when and by how much.

Each rank is compared with its peers at the same steps, so what hits all of them alike (longer sequences, a slow file system) is no
straggler. What always was so (a pipeline stage with more layers) is none either: only a change counts, unless peers are named that do
the same work.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.detect.steps import MAD_TO_SIGMA, outliers

__all__ = ["MINIMUM", "Straggler", "Stragglers", "against_others", "find_stragglers"]

MINIMUM = 1.05  # slower by less than 5 % is not worth an exclusion (assumption; a restart costs more)
_FEWEST_STEPS, _FEWEST_PEERS = 20, 3
_CLIP = 4.0  # robust deviations beyond which a step counts no more: one garbage collection is no change
_MANY = 0.25  # when more of the ranks than this changed, the median they are compared with is not what is healthy
_SAME = 0.002  # spread of ranks among each other below which they only wait for each other
_CACHED = 1 << 14  # numbers worked on at once, which stay in a processor's cache
_LARGE = 1 << 20  # samples from which on fewer permutations are drawn


@dataclass(frozen=True, slots=True)
class Straggler:
    """One rank, node, or the job as a whole, that is slower since some step, or (`standing`) always was slower than its peers."""

    kind: str  # rank | node | job
    ranks: tuple[int, ...]
    node: str | None
    since_step: int
    since_time: float | None
    factor: float  # time for a step against before (standing: against its peers), as a ratio to the peers' own
    low: float  # interval of 90 %
    high: float
    p: float  # chance that the largest of all ranks looks like this when none changed; NaN where it was not tested (standing)
    until_step: int | None = None  # first step at which it was as before again
    standing: bool = False

    @property
    def confidence(self) -> float:
        """1 − p."""
        return 1.0 - self.p


@dataclass(frozen=True, slots=True)
class Stragglers:
    """What was found, over how many ranks and steps; `why` says what could not be told, and then nothing found means nothing."""

    found: tuple[Straggler, ...] = ()
    ranks: int = 0
    steps: int = 0
    why: str = ""


def find_stragglers(
    times: Any,
    *,
    waits: Any = None,
    nodes: Sequence[str | None] | None = None,
    groups: Sequence[Hashable] | None = None,
    steps: Sequence[int] | None = None,
    moments: Sequence[float] | None = None,
    ranks: Sequence[int] | None = None,
    level: float = 0.05,
    minimum: float = MINIMUM,
    permutations: int | None = None,
    seed: int = 0,
) -> Stragglers:
    """
    Find ranks whose time for a step changed against that of their peers.

    Parameters
    ----------
    times : array, ranks × steps
        Seconds. NaN where nothing is known. Of synchronous training every rank's step takes equally long; give compute time, or `waits`.
    waits : array, ranks × steps, optional
        Seconds of each step that the rank waited in collectives, which are taken off: the straggler is who waits least.
    nodes : sequence of str, optional
        Node of each rank: when all ranks of a node became slow, the node is told.
    groups : sequence, optional
        Which ranks do the same work (pipeline stage, expert): ranks are compared within, and one that always was slower is told, too.
    steps, moments, ranks : sequence, optional
        Number and time (s since the epoch) of each column, number of each row.
    level : float
        Chance at most that anything is told of a job in which nothing changed.
    minimum : float
        Least ratio that is told.
    permutations : int, optional
        How many orders of the steps the bound is made of; default 199, or 99 for more than a million samples.
    seed : int
        Of the random orders.

    Returns
    -------
    Stragglers

    Notes
    -----
    Logarithms of the ratio to the median of the *other* ranks at the same step, centred, divided by a robust scale, clipped, and freed of what
    a step takes over from the one before (an autoregression common to all ranks); the largest
    standardised difference of means between the steps before and after any cut (the likelihood-ratio scan for one change of a mean); its
    bound from the largest over all ranks when whole blocks of steps are put in another order, the same order for all ranks, so that neither
    steps that resemble their neighbours nor ranks that resemble each other lead to alarms. Ranks found are made flat and the bound is drawn
    anew, so that a bad one does not hide others (step-down, Westfall and Young 1993). The level holds for one look at one window; who looks
    again every step has more chances.
    """
    import numpy as np

    x = np.array(times, dtype=np.float64, ndmin=2)
    if waits is not None:
        x = x - np.asarray(waits, dtype=np.float64)
    count, width = x.shape
    if width < _FEWEST_STEPS:
        return Stragglers((), count, width, f"{width} steps are too few: at least {_FEWEST_STEPS} are needed")
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.log(np.where(x > 0.0, x, np.nan))
    labels = _codes(groups, count)
    ratio, peers = _against_others(logs, labels)
    rows = np.flatnonzero(np.isfinite(ratio).sum(axis=1) >= _FEWEST_STEPS)
    if not len(rows):
        return Stragglers((), count, width, _too_few(peers, count, groups is not None))
    names = _Names(ranks, nodes, steps, moments, count, width)
    rng = np.random.default_rng(seed)
    drawn = permutations or (99 if ratio.size > _LARGE else 199)
    units, members = _units(ratio, rows, names.nodes)
    # half of the level for ranks and nodes, half for the job as a whole
    found = _changed(units, members, ratio, names, rng, level / 2, minimum, drawn)
    hit = sum(len(one.ranks) for one in found)
    job = _of_job(logs, names, rng, level / 2, minimum)
    if hit > max(1, _MANY * len(rows)):
        found = []  # so many did not fail at once: it is the job, or the work was dealt out anew
        if job is None:
            return Stragglers(
                (), count, width, f"{hit} of {len(rows)} ranks changed against each other: the work was dealt out anew"
            )
    if job is not None:
        found.append(job)
    if groups is not None:
        known = {rank for one in found if one.kind != "job" for rank in one.ranks}
        found += [one for one in _standing(ratio, rows, labels, names, minimum) if one.ranks[0] not in known]
    why = ""
    if not any(one.kind != "job" for one in found) and float(np.nanmedian(_scale(ratio[rows]))) < _SAME:
        why = "all ranks take equally long at each step, since they wait for each other: compute time or time in collectives is needed"
    elif len(rows) < count:
        why = f"{count - len(rows)} of {count} ranks could not be compared: {_too_few(peers, count, groups is not None)}"
    return Stragglers(tuple(found), count, width, why)


def against_others(logs: Any) -> Any:
    """Return logarithms of times against the median of the other ranks at the same step: what `find_stragglers` judges, of one group."""
    return _against_others(logs, _codes(None, len(logs)))[0]


class _Names:
    """What rows and columns are called."""

    def __init__(self, ranks: Any, nodes: Any, steps: Any, moments: Any, count: int, width: int) -> None:
        self.ranks = [int(rank) for rank in ranks] if ranks is not None else list(range(count))
        self.nodes = list(nodes) if nodes is not None else [None] * count
        self.steps = [int(step) for step in steps] if steps is not None else list(range(width))
        self.moments = [float(moment) for moment in moments] if moments is not None else None

    def made(
        self, kind: str, rows: Sequence[int], at: int, sizes: tuple[float, float, float], p: float, **more: Any
    ) -> Straggler:
        node = self.nodes[rows[0]] if rows and kind != "job" else None
        time = self.moments[at] if self.moments is not None else None
        return Straggler(kind, tuple(self.ranks[row] for row in rows), node, self.steps[at], time, *sizes, p, **more)


def _codes(groups: Sequence[Hashable] | None, count: int) -> Any:
    import numpy as np

    if groups is None:
        return np.zeros(count, dtype=np.int64)
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(group, len(known)) for group in groups], dtype=np.int64)


def _too_few(peers: int, count: int, grouped: bool) -> str:
    if peers < _FEWEST_PEERS:
        where = "the largest group has" if grouped else "there are"
        return f"{where} {peers} ranks: of fewer than {_FEWEST_PEERS} it cannot be told who is slow"
    return f"too few steps are known of the {count} ranks"


def _against_others(logs: Any, labels: Any) -> tuple[Any, int]:
    """Logarithm of each rank's time against the median of the others of its group at the step; NaN where there are too few of them."""
    import numpy as np

    out = np.full_like(logs, np.nan)
    most = 0
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        part = logs[rows]
        ordered = np.sort(part, axis=0)  # NaN goes last
        known = (~np.isnan(part)).sum(axis=0)
        most = max(most, int(known.max(initial=0)))
        enough = known >= _FEWEST_PEERS
        low, high = np.maximum((known - 2) // 2, 0), np.maximum((known - 1) // 2, 0)
        columns, last = np.arange(part.shape[1]), len(rows) - 1

        def without(at: Any, part: Any = part, ordered: Any = ordered, columns: Any = columns, last: int = last) -> Any:
            # the value in place `at` once one's own is taken out: the next one for who stands at or before it
            here, after = ordered[at, columns], ordered[np.minimum(at + 1, last), columns]
            return np.where(part <= here, after, here)

        out[rows] = np.where(enough, part - (without(low) + without(high)) / 2, np.nan)
    return out, most


def _units(ratio: Any, rows: Any, nodes: Sequence[str | None]) -> tuple[Any, list[tuple[str, list[int]]]]:
    """Rows that are tested: each rank, and the mean of each node's ranks, which shows what is too small in each alone."""
    import warnings

    import numpy as np

    of_node: dict[str, list[int]] = {}
    for row in rows.tolist():
        if nodes[row] is not None:
            of_node.setdefault(str(nodes[row]), []).append(row)
    several = [chosen for chosen in of_node.values() if len(chosen) > 1] if len(of_node) > 2 else []
    members = [("rank", [row]) for row in rows.tolist()] + [("node", chosen) for chosen in several]
    parts = [ratio[rows]]
    if several:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # steps of which nothing is known of a node
            parts.append(np.stack([np.nanmean(ratio[chosen], axis=0) for chosen in several]))
    return np.concatenate(parts), members


def _scale(matrix: Any) -> Any:
    """Robust deviation of each row from step to step, which a change of level does not touch."""
    import numpy as np

    filled = _filled(matrix)
    return MAD_TO_SIGMA * np.median(np.abs(np.diff(filled, axis=1)), axis=1) / np.sqrt(2.0)


def _filled(matrix: Any) -> Any:
    import numpy as np

    if not np.isnan(matrix).any():
        return matrix
    return np.where(np.isnan(matrix), np.nanmedian(matrix, axis=1)[:, None], matrix)


def _prepared(matrix: Any) -> tuple[Any, float]:
    """
    Rows of comparable scale without their own level, without wild steps, and without what a step takes over from the one before it.

    The second is one number for all rows, so that a row that changed does not explain its change away.
    """
    import numpy as np

    filled = _filled(matrix)
    scale = _scale(filled)
    scale = np.maximum(scale, max(0.25 * float(np.median(scale)), 1e-4))[:, None]
    rows = np.clip((filled - np.median(filled, axis=1)[:, None]) / scale, -_CLIP, _CLIP)
    rows -= rows.mean(axis=1, keepdims=True)
    power = np.maximum((rows * rows).sum(axis=1), 1e-12)
    count = rows.shape[1]
    taken = float(np.median((rows[:, 1:] * rows[:, :-1]).sum(axis=1) / power))
    taken = min(max(taken + (1.0 + 3.0 * taken) / count, 0.0), 0.9)  # of a short row it is estimated too small (Kendall 1954)
    if taken > 0.05:
        rows[:, 1:] -= taken * rows[:, :-1]  # the right side is made before anything is written
        rows -= rows.mean(axis=1, keepdims=True)
    return rows.astype(np.float32), taken


def _scan(rows: Any) -> tuple[Any, Any]:
    """Largest standardised rise of each (centred) row and the first column after it."""
    import numpy as np

    rise = np.cumsum(rows[:, :-1], axis=1) * -_weights(rows.shape[1])
    best = rise.argmax(axis=1)
    return rise[np.arange(len(rows)), best], best + 1


def _weights(count: int) -> Any:
    """What makes the sum before a cut of centred values the standardised difference of the two means."""
    import numpy as np

    at = np.arange(1, count)
    return np.sqrt(count / (at * (count - at))).astype(np.float32)


def _orders(count: int, drawn: int, rng: Any) -> Any:
    """Orders of the steps (one a row) that keep blocks together, since a slow step is often followed by another."""
    import numpy as np

    length = max(1, round(count ** (1 / 3)))
    out = np.empty((drawn, count), dtype=np.int64)
    for row in out:
        ring = np.roll(np.arange(count), int(rng.integers(count)))
        blocks = [ring[start : start + length] for start in range(0, count, length)]
        row[:] = np.concatenate([blocks[number] for number in rng.permutation(len(blocks))])
    return out


def _reordered(rows: Any, orders: Any) -> Any:
    """Largest standardised rise of each row (second axis) in each order (first axis)."""
    import numpy as np

    columns = np.ascontiguousarray(rows.T)
    weights = _weights(rows.shape[1])
    out = np.empty((len(orders), len(rows)), dtype=np.float32)
    together = max(1, _CACHED // max(len(rows), 1))
    for start in range(0, len(orders), together):
        part = orders[start : start + together]
        total = np.zeros((len(part), len(rows)), dtype=np.float32)
        best, here = np.full_like(total, -np.inf), np.empty_like(total)
        for at, weight in enumerate(weights):
            total += columns[part[:, at]]
            np.multiply(total, -weight, out=here)
            np.maximum(best, here, out=best)
        out[start : start + len(part)] = best
    return out


def _bound(null: Any, level: float) -> float:
    """The value that the largest of a job without change exceeds with a chance of `level` at most; infinite when too few were drawn."""
    import numpy as np

    above = int(np.floor(level * (len(null) + 1) + 1e-9))  # how many of null and observed together may be as large
    return float(np.sort(null)[::-1][above - 1]) if above >= 1 else float("inf")


def _changed(
    units: Any,
    members: list[tuple[str, list[int]]],
    ratio: Any,
    names: _Names,
    rng: Any,
    level: float,
    minimum: float,
    drawn: int,
) -> list[Straggler]:
    import numpy as np

    rows, taken_over = _prepared(units)
    size, at = _scan(rows)
    orders = _orders(rows.shape[1], drawn, rng)
    each, hits = _reordered(rows, orders), np.zeros(len(rows), dtype=bool)
    while True:
        null = each.max(axis=1)
        more = np.flatnonzero((size > _bound(null, level)) & ~hits)
        if not len(more):
            break
        hits[more] = True
        each[:, more] = _reordered(np.stack([_flat(rows[row], int(at[row])) for row in more]), orders)
    chosen = np.flatnonzero(hits)
    out: list[Straggler] = []
    taken: set[int] = set()
    # a node before its ranks, and the clearest first
    for unit in sorted(chosen.tolist(), key=lambda unit: (members[unit][0] != "node", -float(size[unit]))):
        kind, who = members[unit]
        if taken & set(who):
            continue
        where = int(at[unit])
        sizes = _sizes(units[unit], where, taken_over)
        if sizes[0] < minimum:
            continue
        if kind == "node":
            own = [_rise(ratio[row], where) for row in who]
            if min(own) < 0.5 * np.log(sizes[0]):
                continue  # some of its ranks are as before: it is a rank, not the node
        taken |= set(who)
        p = float((1 + (null >= size[unit]).sum()) / (len(null) + 1))
        until = _recovered(rows[unit], where)
        out.append(names.made(kind, who, where, sizes, p, until_step=names.steps[until] if until is not None else None))
    return out


def _flat(row: Any, at: int) -> Any:
    out = row.copy()
    out[:at] -= row[:at].mean()
    out[at:] -= row[at:].mean()
    return out


def _rise(row: Any, at: int) -> float:
    import numpy as np

    before, after = row[:at], row[at:]
    if not np.isfinite(before).any() or not np.isfinite(after).any():
        return 0.0
    return float(np.nanmedian(after) - np.nanmedian(before))


def _sizes(row: Any, at: int, taken_over: float) -> tuple[float, float, float]:
    """Ratio of after to before, with its interval of 90 % (normal error of two medians)."""
    import numpy as np

    sides = [side[np.isfinite(side)] for side in (row[:at], row[at:])]
    if not all(len(side) for side in sides):
        return 1.0, 1.0, 1.0
    middles = [float(np.median(side)) for side in sides]
    rest = np.concatenate([side - middle for side, middle in zip(sides, middles, strict=True)])
    spread = max(MAD_TO_SIGMA * float(np.median(np.abs(rest))), float(np.quantile(np.abs(rest), 0.68)))
    spread *= float(np.sqrt((1.0 + taken_over) / (1.0 - taken_over)))
    error = 1.645 * 1.2533 * spread * float(np.sqrt(sum(1.0 / len(side) for side in sides)))
    change = middles[1] - middles[0]
    return float(np.exp(change)), float(np.exp(change - error)), float(np.exp(change + error))


def _recovered(row: Any, at: int) -> int | None:
    """First step at which a rank that had become slow was as before again."""
    import numpy as np

    after = row[at:]
    if len(after) < _FEWEST_STEPS:
        return None
    fall, where = _scan(-(after - after.mean())[None, :])
    back = float(np.median(after[int(where[0]) :])) - float(np.median(row[:at]))
    slow = float(np.median(after[: int(where[0])])) - float(np.median(row[:at]))
    return at + int(where[0]) if fall[0] > 5.0 and back < 0.3 * slow else None


def _of_job(logs: Any, names: _Names, rng: Any, level: float, minimum: float) -> Straggler | None:
    """A change of the median rank: everybody became slower at once."""
    import numpy as np

    from workbench.detect.steps import median_rows

    middle = median_rows(logs)[None, :]
    if np.isfinite(middle).sum() < _FEWEST_STEPS:
        return None
    row, taken_over = _prepared(middle)
    size, at = _scan(row)
    null = _reordered(row, _orders(row.shape[1], 199, rng))[:, 0]
    if not size[0] > _bound(null, level):
        return None
    sizes = _sizes(middle[0], int(at[0]), taken_over)
    if sizes[0] < minimum:
        return None
    p = float((1 + (null >= size[0]).sum()) / (len(null) + 1))
    return names.made("job", list(range(len(logs))), int(at[0]), sizes, p)


def _standing(ratio: Any, rows: Any, labels: Any, names: _Names, minimum: float) -> list[Straggler]:
    """Ranks that were slower than those of the same work all along."""
    import numpy as np

    out = []
    for label in np.unique(labels[rows]):
        chosen = rows[labels[rows] == label]
        level = np.nanmedian(ratio[chosen], axis=1)
        for row in chosen[outliers(level, float(np.log(minimum)))].tolist():
            known = ratio[row][np.isfinite(ratio[row])]
            half = len(known) // 2
            if min(np.median(known[:half]), np.median(known[half:])) < np.log(minimum):
                continue  # a change, which is told as such
            error = 1.645 * 1.2533 * float(np.std(known)) / np.sqrt(len(known))
            middle = float(np.median(known))
            sizes = (float(np.exp(middle)), float(np.exp(middle - error)), float(np.exp(middle + error)))
            out.append(names.made("rank", [row], 0, sizes, float("nan"), standing=True))
    return out
