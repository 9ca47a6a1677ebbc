"""
Turn a fault of a shared GPU into the tenants that it reaches, and the metrics of inference servers into each tenant's success and latency.

How far an Xid reaches is in ``catalog/tenant_reach.csv``; names of metrics of vLLM, SGLang, TGI and Triton are in
``catalog/inference_metrics.csv``. What buckets of a histogram cannot tell exactly is given as bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from workbench.catalog import table
from workbench.catalog.xid_facts import xid_row
from workbench.fleet.intervals import wilson
from workbench.parse.prom_text import parse_exposition

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["OBJECTIVES", "Histogram", "Reach", "Tenant", "objectives", "reach"]

# labels that name a tenant, in the order in which they are looked for
TENANT = ("tenant", "namespace", "exported_namespace", "model_name", "model")
ROLES = ("success", "failure", "cancelled")
OBJECTIVES = (
    *("server", "tenant", "requests", "success", "failure", "cancelled", "ratio", "ratio_low", "ratio_high", "waiting"),
    *(
        "histogram",
        "p50",
        "p95",
        "p99",
        "p99_low",
        "p99_high",
        "mean",
        "target",
        "within_low",
        "within_high",
        "restarted",
        "missing",
    ),
)


@dataclass(frozen=True, slots=True)
class Tenant:
    """
    Who uses a GPU or a part of it.

    Attributes
    ----------
    name : str
        Job, pod or user.
    gpu : str
        UUID of the GPU, not of the MIG device.
    instance : int or None
        GPU instance (MIG); None without MIG.
    compute : int or None
        Compute instance in it.
    sharing : str
        ``alone``, ``time-sliced`` or ``mps`` with others of the same (compute) instance or GPU.
    pids : tuple of int
        Its processes, as the host numbers them.
    """

    name: str
    gpu: str
    instance: int | None = None
    compute: int | None = None
    sharing: str = "alone"
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Reach:
    """
    Whom a fault reaches.

    Attributes
    ----------
    scope : str
        ``none``, ``process``, ``mps-server``, ``instance`` or ``gpu``.
    reached : tuple of Tenant
        Those that it ended or will end; where `certain` is False those that it may have.
    caused_by : Tenant or None
        Whose process caused it; None for a fault of hardware or driver, and where nobody told which process it was.
    certain : bool
        Whether both the catalog and the line told enough to say exactly this.
    why : str
    """

    scope: str
    reached: tuple[Tenant, ...]
    caused_by: Tenant | None
    certain: bool
    why: str


def reach(code: int, tenants: Iterable[Tenant], *, gpu: str, instance: int | None = None, pid: int | None = None) -> Reach:
    """
    Return which tenants of a GPU an Xid reaches.

    Parameters
    ----------
    code : int
        The Xid.
    tenants : iterable of Tenant
        All known ones, also of other GPUs.
    gpu : str
        UUID of the GPU in the line.
    instance : int, optional
        GPU instance in the line (``GPU-I:05``).
    pid : int, optional
        Process in the line.

    Returns
    -------
    Reach
        A code that the catalog does not know reaches all of the GPU, without certainty: to say less would be a guess.
    """
    mine = tuple(one for one in tenants if one.gpu == gpu)
    owner = next((one for one in mine if pid is not None and pid in one.pids), None)
    if instance is None and owner is not None:
        instance = owner.instance
    row = _reaches().get(code)
    known = xid_row(code)
    if row is not None:
        scope, why, certain = row["scope"], row["why"], True
    elif known.get("contained") in ("yes", "no"):
        scope, certain = ("process" if known["contained"] == "yes" else "gpu"), True
        why = known["summary"]
    else:
        scope, why, certain = "gpu", "the catalog does not know how far this code reaches", False
    caused = owner if known.get("attribution") == "user" else None
    if scope == "none":
        return Reach(scope, (), None, certain, why)
    if scope == "gpu":
        return Reach(scope, mine, caused, certain, why)
    inside = tuple(one for one in mine if one.instance == instance) if instance is not None else mine
    if scope == "instance":
        mig = any(one.instance is not None for one in mine)
        if mig and instance is None:
            return Reach("instance", mine, caused, False, why + "; the line does not tell which instance")
        return Reach("instance" if mig else "gpu", inside, caused, certain, why)
    if owner is None:
        alone = len(inside) == 1
        told = why if alone else why + "; the process in the line is no known tenant's, so that it may be any of these"
        return Reach(
            "process", inside, inside[0] if alone and known.get("attribution") == "user" else None, certain and alone, told
        )
    if owner.sharing == "mps":
        # clients of one MPS server share a context on the hardware: a fatal fault of one ends all of them
        # (https://docs.nvidia.com/deploy/mps/index.html, "Error Containment")
        clients = tuple(one for one in inside if one.sharing == "mps" and one.compute == owner.compute)
        return Reach("mps-server", clients, caused, certain, why + "; clients of one MPS server fail together")
    return Reach("process", (owner,), caused, certain, why)


@lru_cache(maxsize=1)
def _reaches() -> dict[int, dict[str, str]]:
    return {int(row["xid"]): row for row in table("tenant_reach")}


@dataclass(frozen=True, slots=True)
class Histogram:
    """
    Counts of a Prometheus histogram: `bounds` upper ends of the buckets in seconds, the last infinite; `counts` in each bucket alone.

    `total` is the sum of all observations in seconds; NaN where nobody told it.
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    total: float = math.nan

    @property
    def count(self) -> float:
        """Return how many observations there are."""
        return math.fsum(self.counts)

    def quantile(self, share: float) -> tuple[float, float, float]:
        """
        Return (interpolated, low, high) of a quantile: within [low, high] it is for certain; inside, the bucket is taken as even.

        The interpolation is that of PromQL's ``histogram_quantile``, which gives the last finite bound for what lies above it; here `high`
        is infinite then.
        """
        if not 0.0 <= share <= 1.0 or self.count <= 0:
            return math.nan, math.nan, math.nan
        rank, below, low = share * self.count, 0.0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if below + count >= rank and count > 0:
                if math.isinf(bound):
                    return low, low, bound
                return low + (bound - low) * (rank - below) / count, low, bound
            below += count
            low = bound
        return low, low, math.inf

    def within(self, target: float) -> tuple[float, float]:
        """Return bounds of the share of observations of at most `target` seconds; both are equal where it is the end of a bucket."""
        if self.count <= 0:
            return math.nan, math.nan
        surely = math.fsum(count for bound, count in zip(self.bounds, self.counts, strict=True) if bound <= target)
        if any(bound == target for bound in self.bounds):
            return surely / self.count, surely / self.count
        perhaps = next((count for bound, count in zip(self.bounds, self.counts, strict=True) if bound > target), 0.0)
        return surely / self.count, (surely + perhaps) / self.count


@dataclass(slots=True)
class _Page:
    """One page of metrics: counters by (role row, tenant), histograms by (role, tenant)."""

    counters: dict[tuple[int, str], float] = field(default_factory=dict)
    buckets: dict[tuple[int, str], dict[float, float]] = field(default_factory=dict)
    sums: dict[tuple[int, str], float] = field(default_factory=dict)


@lru_cache(maxsize=1)
def _metrics() -> tuple[tuple[dict[str, str], dict[str, frozenset[str]]], ...]:
    rows = []
    for row in table("inference_metrics"):
        wanted = {}
        for part in row["labels"].split(";"):
            if part:
                name, _, values = part.partition("=")
                wanted[name] = frozenset(values.split("|"))
        rows.append((row, wanted))
    return tuple(rows)


def _read(page: bytes, name: str, labels: Sequence[str]) -> _Page:
    """Return what the catalog knows of one page; a tenant is the first of `labels` that a series has, else the page's name."""
    out = _Page()
    series = [one for one in parse_exposition(page, file=name, default_time=0.0).series if len(one.values)]
    for number, (row, wanted) in enumerate(_metrics()):
        metric, scale = row["metric"], float(row["scale"])
        for one in series:
            # counters of OpenMetrics end in _total where the text format need not
            base = getattr(one, "name", one.field)
            kind = base.removeprefix(metric)
            if not base.startswith(metric) or kind not in ("", "_total", "_bucket", "_sum", "_count"):
                continue
            if any(one.labels.get(label, "") not in values for label, values in wanted.items()):
                continue
            value = float(one.values[-1])
            if math.isnan(value):
                continue
            tenant = next((one.labels[label] for label in labels if one.labels.get(label)), "")
            key = (number, tenant)
            if kind == "_bucket":
                try:
                    bound = float(one.labels.get("le", "").replace("+Inf", "inf")) * scale
                except ValueError:
                    continue
                mine = out.buckets.setdefault(key, {})
                mine[bound] = mine.get(bound, 0.0) + value
            elif kind == "_sum":
                out.sums[key] = out.sums.get(key, 0.0) + value * scale
            elif kind in ("", "_total"):
                out.counters[key] = out.counters.get(key, 0.0) + value * scale
    _name(out, name)
    return out


def _name(page: _Page, name: str) -> None:
    """Give what names no tenant (vLLM's HTTP counters) to the server's only tenant, or, where there are several or none, to the replica."""
    keys = {*page.counters, *page.buckets}
    for part in (page.counters, page.buckets, page.sums):
        rows: dict[Any, Any] = part
        for number, tenant in [key for key in rows if not key[1]]:
            server = _metrics()[number][0]["server"]
            named = {other for at, other in keys if other and _metrics()[at][0]["server"] == server}
            rows[number, next(iter(named)) if len(named) == 1 else name] = rows.pop((number, tenant))


def _alone(cumulated: Mapping[float, float], total: float) -> Histogram:
    """Return buckets by themselves from those of a page, which hold all below them too."""
    bounds = sorted(cumulated)
    counts = [cumulated[bounds[0]]] + [max(0.0, cumulated[b] - cumulated[a]) for a, b in pairwise(bounds)]
    return Histogram(tuple(bounds), tuple(counts), total)


def objectives(
    after: Mapping[str, bytes],
    before: Mapping[str, bytes] | None = None,
    *,
    target: float | None = None,
    histogram: str = "latency",
    labels: Sequence[str] = TENANT,
) -> pd.DataFrame:
    """
    Return success and latency of each tenant of inference servers.

    Parameters
    ----------
    after : mapping of str to bytes
        Replica → its page of metrics.
    before : mapping, optional
        The same at the begin of the window; without it all since the servers began counts.
    target : float, optional
        Seconds within which a request should be answered.
    histogram : str
        ``latency`` (to the last token), ``first-token`` or ``between-tokens``.
    labels : sequence of str
        Labels that name a tenant; the first that a series has. Pages without any are tenants by their replica's name.

    Returns
    -------
    DataFrame
        `OBJECTIVES`; counts over all replicas of a tenant. `ratio` is success / (success + failure) with Wilson's 95 % interval: what a
        client gave up is in neither. `p50` to `p99` are interpolated in their bucket; `p99_low` and `p99_high`, `within_low` and
        `within_high` are bounds that hold for certain. `missing` names what the server does not tell; absent is not zero. A replica whose
        counters fell has restarted: what it counted before is lost, and `restarted` counts it.
    """
    import pandas as pd

    totals: dict[tuple[str, str], dict[Any, Any]] = {}
    for replica, page in after.items():
        now = _read(page, replica, labels)
        old = _read((before or {})[replica], replica, labels) if before and replica in before else _Page()
        counters, buckets, sums, again = _since(now, old)
        seen: set[tuple[str, str, str]] = set()
        ranked = sorted(range(len(_metrics())), key=lambda number: int(_metrics()[number][0]["rank"]))
        for number in ranked:
            row = _metrics()[number][0]
            for key in [key for key in (*counters, *buckets) if key[0] == number]:
                place = (row["server"], key[1])
                if (*place, row["role"]) in seen:
                    continue  # a better row has told it already
                seen.add((*place, row["role"]))
                mine = totals.setdefault(place, {"restarted": set()})
                if again:
                    mine["restarted"].add(replica)
                if key in buckets:
                    merged = mine.setdefault(("histogram", row["role"]), {})
                    for bound, value in buckets[key].items():
                        merged[bound] = merged.get(bound, 0.0) + value
                    mine[("sum", row["role"])] = mine.get(("sum", row["role"]), 0.0) + sums.get(key, math.nan)
                else:
                    mine[row["role"]] = mine.get(row["role"], 0.0) + counters[key]
    rows = [_told(server, tenant, mine, target, histogram) for (server, tenant), mine in sorted(totals.items())]
    # a name that several servers share (http_requests_total) makes a tenant of none of them by itself
    return pd.DataFrame([row for row in rows if row["success"] is not None or row["p50"] is not None], columns=list(OBJECTIVES))


def _since(now: _Page, old: _Page) -> tuple[dict[Any, float], dict[Any, dict[float, float]], dict[Any, float], bool]:
    """Return what came since the older page; a counter that fell belongs to a server that has begun anew, and counts from zero."""
    gauges = {number for number, (row, _) in enumerate(_metrics()) if row["role"] in ("waiting", "running")}
    again = any(value < old.counters.get(key, 0.0) for key, value in now.counters.items() if key[0] not in gauges)
    again = again or any(max(rows.values()) < max(old.buckets.get(key, {0.0: 0.0}).values()) for key, rows in now.buckets.items())
    if again:
        old = _Page()
    counters = {key: value - (0.0 if key[0] in gauges else old.counters.get(key, 0.0)) for key, value in now.counters.items()}
    buckets = {
        key: {bound: value - old.buckets.get(key, {}).get(bound, 0.0) for bound, value in rows.items()}
        for key, rows in now.buckets.items()
    }
    return counters, buckets, {key: value - old.sums.get(key, 0.0) for key, value in now.sums.items()}, again


def _told(server: str, tenant: str, mine: dict[Any, Any], target: float | None, histogram: str) -> dict[str, Any]:
    success, failure = mine.get("success"), mine.get("failure")
    missing = [role for role in ("success", "failure") if role not in mine]
    row: dict[str, Any] = dict.fromkeys(OBJECTIVES)
    row |= {"server": server, "tenant": tenant, "success": success, "failure": failure, "cancelled": mine.get("cancelled")}
    row |= {"waiting": mine.get("waiting"), "histogram": histogram, "target": target, "restarted": len(mine["restarted"])}
    # a counter with labels appears with its first event: where the server tells successes, no series of failures means none so far
    if (
        failure is None
        and success is not None
        and any(one["role"] == "failure" and one["labels"] for one, _ in _metrics() if one["server"] == server)
    ):
        row["failure"] = failure = 0.0
        missing.remove("failure")
    if success is not None and failure is not None:
        row["requests"] = success + failure
        if row["requests"] > 0:
            row["ratio"] = success / row["requests"]
            row["ratio_low"], row["ratio_high"] = wilson(success, row["requests"])
    cumulated = mine.get(("histogram", histogram))
    if cumulated and max(cumulated.values()) > 0:
        made = _alone(cumulated, mine.get(("sum", histogram), math.nan))
        for name, share in (("p50", 0.5), ("p95", 0.95)):
            row[name] = made.quantile(share)[0]
        row["p99"], row["p99_low"], row["p99_high"] = made.quantile(0.99)
        row["mean"] = None if math.isnan(made.total) else made.total / made.count
        if target is not None:
            row["within_low"], row["within_high"] = made.within(target)
    else:
        missing.append(histogram)
        if mine.get("total-time") is not None and success:
            row["mean"] = mine["total-time"] / success
    row["missing"] = ", ".join(missing)
    return row
