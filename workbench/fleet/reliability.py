"""
Turn failures and the time at risk into rates, mean times to failure and to repair, each with bounds, and into what other job sizes can expect.

Time at risk counts also of what did not fail (censored). The projection to other sizes takes failures as independent and as many per node and
day whatever the job: 1 / (N r). That holds for large jobs; small ones fail for other reasons than node hardware. RSC's 6.5 failures per 1,000
node-days give its 1.8 h at 16,384 GPUs, but 28.8 h at 1,024 GPUs, where it measured 7.9 h (https://arxiv.org/abs/2410.21680).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from workbench.fleet.figures import NEVER, NOT_TOLD, Figure, instant, micros, size_of
from workbench.fleet.intervals import Bounds, beta_cdf, mttf, poisson
from workbench.fleet.objectives import INFRA

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

__all__ = [
    "AtRisk",
    "Point",
    "at_risk",
    "failure_rate",
    "mean_time_to_failure",
    "median_bounds",
    "outages",
    "project",
    "repair_times",
    "survival",
]

_DAY = 86_400_000_000


class AtRisk(NamedTuple):
    """Failures, the node-days in which they were seen, and what was left out."""

    failures: float
    node_days: float
    notes: tuple[str, ...] = ()


class Point(NamedTuple):
    """One step of a survival curve: after `time`, the share that goes on, its bounds, and how many were at risk just before."""

    time: float
    share: float
    low: float
    high: float
    at_risk: int


def at_risk(
    attempts: pd.DataFrame, jobs: pd.DataFrame, *, since: Any, until: Any, causes: Sequence[str] = INFRA, by_size: bool = False
) -> dict[str, AtRisk]:
    """
    Return failures and node-days of attempts in a window.

    Parameters
    ----------
    attempts, jobs : pandas.DataFrame
        As in `workbench.fleet.tables`. Nodes are those that the attempt ran on, else those that its job asked for.
    since, until : time
        Window: held time within it counts, and failures that ended in it. Running attempts count their time, and no failure (censored).
    causes : sequence of str
        Causes that count as failures; default those of the infrastructure.
    by_size : bool
        One entry for each bucket of job sizes (GPUs) instead of ``all``.
    """
    import numpy as np

    start, stop = instant(since), instant(until)
    asked = jobs.assign(cluster=jobs["cluster"].fillna(""))[["cluster", "job", "nodes", "gpus"]].rename(columns={"gpus": "asked"})
    frame = attempts.assign(cluster=attempts["cluster"].fillna("")).merge(asked, on=["cluster", "job"], how="left")
    ran = frame["node_names"].map(_length).astype("Int64")
    nodes = ran.fillna(frame["nodes"]).astype("Float64").to_numpy(dtype=float, na_value=np.nan)
    began, ended = micros(frame["started"]), micros(frame["ended"])
    over = ended != NEVER
    held = (np.minimum(np.where(over, ended, stop), stop) - np.maximum(began, start)).clip(0)
    held = np.where(began == NEVER, 0, held)
    failed = (frame["state"] == "failed").fillna(False).to_numpy(dtype=bool) & over & (ended >= start) & (ended < stop)
    told = failed & frame["cause"].isin(list(causes)).fillna(False).to_numpy(dtype=bool)
    unknown = failed & ~frame["cause"].isin(["hardware", "driver", "platform", "user"]).fillna(False).to_numpy(dtype=bool)
    sizes = size_of(frame["gpus"].fillna(frame["asked"])) if by_size else np.full(len(frame), "all", dtype=object)
    found = {}
    for size in sorted(set(sizes)) or ([] if by_size else ["all"]):
        mine = sizes == size
        blind = mine & np.isnan(nodes) & (held > 0)
        notes: tuple[str, ...] = ()
        if number := int(blind.sum()):
            notes += (f"{number} attempts left out: their number of nodes was not told",)
        if "unknown" not in causes and (number := int((unknown & mine).sum())):
            notes += (f"{number} failures of unknown cause are not counted",)
        fit = mine & ~np.isnan(nodes)
        days = float((np.where(fit, nodes, 0) * held).sum()) / _DAY
        found[str(size)] = AtRisk(float((told & fit).sum()), days, notes)
    return found


def failure_rate(seen: AtRisk, *, since: float = 0.0, until: float = 0.0, level: float = 0.95) -> Figure:
    """Return failures per 1,000 node-days with Garwood's exact bounds (conservative)."""
    base = Figure(
        "failure rate",
        None,
        seen.failures,
        seen.node_days,
        "failures per 1000 node-days",
        definition="1000 × failures / node-days held by attempts, those that did not fail included",
        since=since,
        until=until,
        notes=seen.notes,
        level=level,
    )
    if seen.node_days <= 0:
        return replace(base, method="no time at risk")
    low, high = poisson(seen.failures, seen.node_days, level)
    value = 1000 * seen.failures / seen.node_days
    return replace(base, value=value, low=1000 * low, high=1000 * high, method="exact Poisson (Garwood), failures independent")


def mean_time_to_failure(
    seen: AtRisk, nodes: float = 1, *, since: float = 0.0, until: float = 0.0, level: float = 0.95
) -> Figure:
    """
    Return hours to the first failure of a job on so many nodes, 1 / (N r); without a failure only how short it is not.

    Parameters
    ----------
    seen : AtRisk
    nodes : float
        N.
    since, until : float
        Window of `seen`, for the figure.
    level : float
        Confidence of the bounds.

    Raises
    ------
    ValueError
        If `nodes` is not above zero.
    """
    if nodes <= 0:
        raise ValueError("a job has nodes")
    base = Figure(
        "MTTF" if nodes == 1 else f"MTTF of {nodes:g} nodes",
        None,
        seen.node_days * 24 / nodes,
        seen.failures,
        "hours",
        definition="node-hours held / nodes / failures; failures at a constant rate, alike on all nodes",
        since=since,
        until=until,
        notes=seen.notes,
        level=level,
    )
    if seen.node_days <= 0:
        return replace(base, numerator=None, denominator=0.0, method="no time at risk")
    low, high = mttf(seen.failures, seen.node_days * 24 / nodes, level)
    value = seen.node_days * 24 / nodes / seen.failures if seen.failures else None
    method = "exact (chi-square), censored time counted" if seen.failures else "exact lower bound: no failure was seen"
    return replace(base, value=value, low=low, high=None if math.isinf(high) else high, method=method)


def project(rate: float, nodes: float, *, bounds: Bounds | None = None) -> tuple[float, float | None, float | None]:
    """
    Return the hours to failure that a rate means for a job on so many nodes.

    Parameters
    ----------
    rate : float
        Failures per 1,000 node-days.
    nodes : float
        N.
    bounds : Bounds, optional
        Of the rate.

    Returns
    -------
    hours, low, high : float
        The bounds are None where the rate has none; `math.inf` for a rate of zero.
    """
    if nodes <= 0 or rate < 0:
        raise ValueError("a rate is not negative, and a job has nodes")

    def hours(one: float) -> float:
        return math.inf if one == 0 else 24 * 1000 / (one * nodes)

    if bounds is None:
        return hours(rate), None, None
    return hours(rate), hours(bounds.high), hours(bounds.low)


def outages(node_states: pd.DataFrame, *, until: Any) -> pd.DataFrame:
    """
    Return the times in which nodes were out of service: `cluster`, `node`, `begin`, `end` (µs), `over`, `planned`, `cause`, `pool`, `sku`.

    Stretches that are not usable and follow each other without a gap are one outage; its cause is that of its first stretch that has one. It is
    planned if all of it is maintenance. Of one that lasts, or after which nothing is told, only a shortest length is known (`over` is False).
    """
    import numpy as np
    import pandas as pd

    now = instant(until)
    columns = ["cluster", "node", "begin", "end", "over", "planned", "cause", "pool", "sku"]
    rows = node_states.assign(begin=micros(node_states["begin"]), end=micros(node_states["end"]))
    rows["cluster"] = rows["cluster"].astype("object").fillna("")
    rows = rows[(rows["begin"] != NEVER) & (rows["begin"] < now)].sort_values(["cluster", "node", "begin"], kind="stable")
    found: list[dict[str, Any]] = []
    current: dict[str, Any] | None = None
    names = ("cluster", "node", "state", "cause", "begin", "end", "pool", "sku")
    cells = list(zip(*(rows[name].tolist() for name in names), strict=True))
    for at, (cluster, node, state, cause, begin, told, pool, sku) in enumerate(cells):
        follows = at + 1 < len(cells) and cells[at + 1][:2] == (cluster, node)
        end = min(now if told == NEVER else told, cells[at + 1][4] if follows else now)
        if current is not None and (state == "usable" or begin > current["end"]):
            current["over"] = state == "usable" and begin == current["end"]
            found.append(current)
            current = None
        if state != "usable":
            if current is None:
                current = {"cluster": cluster, "node": node, "begin": begin, "over": False, "planned": True}
                current |= {"cause": pd.NA, "pool": pool, "sku": sku}
            current["end"] = end
            current["planned"] = current["planned"] and state == "maintenance"
            if pd.isna(current["cause"]) and not pd.isna(cause):
                current["cause"] = cause
        if current is not None and not follows:
            # that its last stretch has an end says that it was over then, though nobody told what the node did after
            current["over"] = told != NEVER and told < now
            found.append(current)
            current = None
    frame = pd.DataFrame(found, columns=columns)
    return frame.astype({"begin": np.int64, "end": np.int64, "over": bool, "planned": bool})


def repair_times(
    node_states: pd.DataFrame, actions: pd.DataFrame | None = None, *, since: Any, until: Any, level: float = 0.95
) -> list[Figure]:
    """
    Return the mean time to repair: of all unplanned outages that ended in the window, and by the rung of the ladder that came last in each.

    Parameters
    ----------
    node_states, actions : pandas.DataFrame
        As in `workbench.fleet.tables`. A rung belongs to an outage in which it began and was done; outages without one are ``none told``.
    since, until : time
        Window.
    level : float
        Confidence of the medians' bounds.

    Returns
    -------
    list of Figure
        Hours; ``MTTR`` over all first, then one a rung, and ``rung took`` for how long each rung itself took.
    """
    import numpy as np

    start, stop = instant(since), instant(until)
    out = outages(node_states, until=until)
    planned = int((out["planned"] & (out["end"] >= start)).sum())
    out = out[~out["planned"]]
    lasting = int((~out["over"]).sum())
    closed = out[out["over"] & (out["end"] >= start) & (out["end"] < stop)]
    notes = tuple(
        f"{number} {text}"
        for number, text in (
            (planned, "planned outages left out"),
            (lasting, "outages last still, or nobody told their end: left out"),
        )
        if number
    )
    definition = "hours from out of service to usable / unplanned outages that ended in the window"
    hours = (closed["end"] - closed["begin"]).to_numpy(dtype=float) / 3.6e9
    found = [_mean("MTTR", hours, definition, start, stop, (), notes, level)]
    if actions is None or actions.empty:
        return found
    done = actions.assign(
        begin=micros(actions["begin"]), end=micros(actions["end"]), cluster=actions["cluster"].astype("object").fillna("")
    )
    done = done[(done["begin"] != NEVER) & (done["outcome"] == "done")].sort_values("begin", kind="stable")
    by_node: dict[Any, list[tuple[int, str]]] = {}
    for cluster, node, begin, rung in zip(done["cluster"], done["node"], done["begin"], done["rung"], strict=True):
        by_node.setdefault((cluster, node), []).append((begin, str(rung)))
    rungs = []
    for cluster, node, begin, end in zip(closed["cluster"], closed["node"], closed["begin"], closed["end"], strict=True):
        inside = [rung for moment, rung in by_node.get((cluster, node), []) if begin <= moment <= end]
        rungs.append(inside[-1] if inside else NOT_TOLD)
    names = np.array(rungs, dtype=object)
    found += [
        _mean("MTTR", hours[names == rung], definition, start, stop, (("rung", rung),), (), level) for rung in sorted(set(rungs))
    ]
    took = done[(done["end"] != NEVER) & (done["end"] >= start) & (done["end"] < stop)]
    for rung, part in took.groupby("rung", sort=True):
        spent = (part["end"] - part["begin"]).to_numpy(dtype=float) / 3.6e9
        text = "hours from intent to outcome / rungs of this name that were done in the window"
        found.append(_mean("rung took", spent, text, start, stop, (("rung", str(rung)),), (), level))
    return found


def median_bounds(values: Sequence[float], level: float = 0.95) -> tuple[float, float | None, float | None]:
    """
    Return the median and bounds of it that hold for any distribution (order statistics).

    H. A. David, H. N. Nagaraja, Order Statistics, 2003, section 7.1.

    The bounds are None for fewer values than they need (six at 95 %).

    Raises
    ------
    ValueError
        Without values.
    """
    ordered = sorted(values)
    number = len(ordered)
    if not number:
        raise ValueError("no median of nothing")
    middle = (ordered[(number - 1) // 2] + ordered[number // 2]) / 2
    rank = 0
    # P(fewer than k of n lie below the median) = I_1/2(n - k + 1, k): the largest k whose tail is small enough
    while rank + 1 <= number // 2 and beta_cdf(0.5, number - rank, rank + 1) <= (1 - level) / 2:
        rank += 1
    return (middle, ordered[rank - 1], ordered[number - rank]) if rank else (middle, None, None)


def survival(lengths: Sequence[float], ended: Sequence[bool], level: float = 0.95) -> list[Point]:
    """
    Return the Kaplan-Meier curve: the share of outages (or runs) that last longer than each time at which one ended.

    Parameters
    ----------
    lengths : sequence of float
        How long each lasted, or has lasted until now.
    ended : sequence of bool
        Whether it has ended; one that has not is censored: it counts as at risk until then.
    level : float
        Confidence of the bounds, Greenwood's variance on the scale of log(-log): J. D. Kalbfleisch, R. L. Prentice, The Statistical
        Analysis of Failure Time Data, 2002, 1.4.
    """
    from statistics import NormalDist

    z = NormalDist().inv_cdf(0.5 + level / 2)
    pairs = sorted(zip(lengths, ended, strict=True))
    share, spread = 1.0, 0.0
    points: list[Point] = []
    for time in sorted({length for length, over in pairs if over}):
        risk = sum(length >= time for length, _ in pairs)
        gone = sum(over and length == time for length, over in pairs)
        share *= 1 - gone / risk
        spread += gone / (risk * (risk - gone)) if risk > gone else 0.0
        if 0 < share < 1:
            factor = math.exp(z * math.sqrt(spread) / abs(math.log(share)))
            low, high = share**factor, share ** (1 / factor)
        else:
            low = high = share
        points.append(Point(time, share, low, high, risk))
    return points


def _mean(
    name: str,
    values: np.ndarray[Any, Any],
    definition: str,
    start: int,
    stop: int,
    by: tuple[tuple[str, str], ...],
    notes: tuple[str, ...],
    level: float,
) -> Figure:
    base = Figure(
        name,
        None,
        None,
        0.0,
        "hours",
        definition=definition,
        since=start / 1e6,
        until=stop / 1e6,
        by=by,
        notes=notes,
        level=level,
    )
    if not len(values):
        return replace(base, method="no data")
    middle, low, high = median_bounds(values.tolist(), level)
    text = f"median {middle:.4g} h" + (f" ({low:.4g} to {high:.4g})" if low is not None and high is not None else "")
    return replace(
        base,
        value=float(values.mean()),
        numerator=float(values.sum()),
        denominator=float(len(values)),
        method="no bounds of the mean: repair times have long tails; the median's are exact",
        notes=(text, *notes),
    )


def _length(names: Any) -> int | None:
    if isinstance(names, str):
        import json

        try:
            names = json.loads(names)
        except ValueError:
            return None
    return len(names) if isinstance(names, list | tuple) and names else None
