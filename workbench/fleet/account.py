"""
Turn a ledger and a window into an account: the frames of those weeks, and each answer about them when somebody asks for it.

Windows are whole weeks (Monday 00:00 UTC), so that the ledger's weekly counts and its rows speak of the same time; the week that runs is
counted as far as it has come. Of a window with more attempts than `MOST` only what the weekly counts tell is answered, and the rest is said
to be missing.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from workbench.fleet.budgets import DEFAULTS
from workbench.fleet.figures import CAUSES, Figure
from workbench.fleet.trouble import LedgerError

if TYPE_CHECKING:
    import pandas as pd

    from workbench.fleet.budgets import Burn, Objective
    from workbench.fleet.cost import Assumption, Price
    from workbench.fleet.ettr import Ettr
    from workbench.fleet.goodput import Waterfall
    from workbench.fleet.ledger import Ledger
    from workbench.fleet.lemons import Lemons

__all__ = ["BY", "DEFAULT", "MOST", "QUARTER", "Account", "NoLedger", "span_of", "span_written"]

WEEK = 7 * 86400.0
QUARTER = 13  # weeks of history by which lemons are judged, as in the weekly report: a few weeks say nothing about a node
DEFAULT = "8w"
BY = ("team", "pool", "sku", "size")
MOST = 150_000  # attempts of a window that are read row by row: about ten seconds of a thread, and half a GB
_BAD = ("failed", "timeout")
_RELATIVE = re.compile(r"([1-9][0-9]{0,2})w")


class NoLedger(LedgerError):
    """There is no ledger where one is looked for."""


def span_of(text: str, now: float, last: float | None = None) -> tuple[float, float]:
    """
    Return from when to when a window is, seconds since the epoch.

    Parameters
    ----------
    text : str
        ``8w``: the last eight weeks, the present one included; ``2026-01-05/2026-03-02``: the weeks in which these days lie, without the second
        when it is a Monday.
    now : float
        Seconds since the epoch.
    last : float, optional
        When the last week with jobs begins: a relative window of a ledger that ended before it began ends there, since weeks without a job
        would say nothing.

    Raises
    ------
    ValueError
        It is neither.
    """
    if match := _RELATIVE.fullmatch(text):
        span = int(match[1]) * WEEK
        until = now
        if last is not None and last + WEEK < now - span:
            until = last + WEEK
        return _monday(until - 1.0) + WEEK - span, until
    first, slash, second = text.partition("/")
    if not slash or max(len(first), len(second)) > 10:
        raise ValueError("a window is meant, such as 8w or 2026-01-05/2026-03-02")
    begin, end = (dt.datetime.fromisoformat(one).replace(tzinfo=dt.UTC).timestamp() for one in (first, second))
    since, until = _monday(begin), _monday(end - 1.0) + WEEK
    if not 0 <= since < until:
        raise ValueError("a window ends after it begins")
    return since, min(until, max(now, since + WEEK))


def span_written(since: float, until: float) -> str:
    """Return a window as `span_of` reads it, with its dates."""
    days = (dt.datetime.fromtimestamp(one, dt.UTC).date() for one in (since, _monday(until - 1.0) + WEEK))
    return "/".join(day.isoformat() for day in days)


def _monday(time: float) -> float:
    # week 0 began three days before the epoch, a Thursday
    return ((time // 86400 + 3) // 7 * 7 - 3) * 86400.0


@dataclass(frozen=True)
class Account:
    """
    A window of a ledger; every answer is made once, by whoever asks first, and blocks meanwhile.

    Attributes
    ----------
    since, until : float
        Window, seconds since the epoch.
    cluster : str or None
        Of this cluster only.
    clusters : tuple of str
        All that the ledger has.
    frames : mapping of str to DataFrame
        Tables of `workbench.fleet.tables`; empty of rows where `many`.
    counts : tuple of mapping
        The ledger's weekly counts of attempts: week, cluster, cause, state, count, gpu_ms.
    jobs_counted : tuple of mapping
        The same of jobs.
    starts_counted : tuple of mapping
        Weekly counts of jobs by the week in which they were given nodes.
    many : int
        Attempts of the window when they are too many to be read one by one, else 0.
    first, last : float or None
        When the ledger's first and last week with jobs begin.
    now : float
        When it was read.
    judged : float
        From when on lemons are judged: thirteen weeks before the end, or the window alone where those hold more than `MOST` attempts.
    prices : mapping or None
        The setting ``report.prices``.
    targets : tuple of Objective
        What shall be kept.
    """

    since: float
    until: float
    cluster: str | None
    clusters: tuple[str, ...]
    frames: Mapping[str, pd.DataFrame]
    counts: tuple[Mapping[str, Any], ...]
    jobs_counted: tuple[Mapping[str, Any], ...]
    starts_counted: tuple[Mapping[str, Any], ...]
    many: int
    first: float | None
    last: float | None
    now: float
    judged: float = 0.0
    prices: Mapping[str, str] | None = None
    targets: tuple[Objective, ...] = DEFAULTS

    @classmethod
    def read(
        cls,
        ledger: Ledger,
        window: str = DEFAULT,
        *,
        cluster: str | None = None,
        prices: Mapping[str, str] | None = None,
        targets: Sequence[Objective] = DEFAULTS,
        now: float,
    ) -> Account:
        """
        Read what a window needs; blocking.

        Parameters
        ----------
        ledger : Ledger
        window : str
            As `span_of` reads it.
        cluster : str, optional
        prices : mapping, optional
            The setting ``report.prices``.
        targets : sequence of Objective
        now : float
            Seconds since the epoch.

        Raises
        ------
        ValueError
            The window makes no sense.
        """
        from workbench.fleet.counted import BY_CAUSE, BY_START

        where: dict[str, Any] = {} if cluster is None else {"cluster": cluster}
        weeks = [row["week"] for row in ledger.totals(("week",), of="attempts") if row["week"] is not None]
        weeks += [row["week"] for row in ledger.totals(("week",)) if row["week"] is not None]
        since, until = span_of(window, now, max(weeks, default=None))
        clusters = {str(row["cluster"]) for of in ("jobs", "attempts") for row in ledger.totals(("cluster",), of=of)}
        counts = ledger.totals(BY_CAUSE, of="attempts", since=since, until=until, **where)
        jobs_counted = ledger.totals(BY_CAUSE, since=since, until=until, **where)
        starts_counted = ledger.totals(BY_START, of="starts", since=since, until=until, **where)
        size = sum(row["count"] for row in counts)
        many = size if size > MOST else 0
        quarter = min(since, until - QUARTER * WEEK)
        if sum(row["count"] for row in ledger.totals(("week",), of="attempts", since=quarter, until=until, **where)) > MOST:
            quarter = since
        return cls(
            since,
            until,
            cluster,
            tuple(sorted(clusters)),
            _frames(ledger, (since, until, quarter), where, bool(many)),
            tuple(counts),
            tuple(jobs_counted),
            tuple(starts_counted),
            many,
            min(weeks, default=None),
            max(weeks, default=None),
            now,
            quarter,
            prices,
            tuple(targets),
        )

    @property
    def empty(self) -> bool:
        """Whether the ledger tells nothing of these weeks."""
        return not self.counts and not self.jobs_counted and not any(len(frame) for frame in self.frames.values())

    @property
    def weeks(self) -> list[float]:
        """When each week of the window begins, seconds since the epoch."""
        return [
            self.since + number * WEEK for number in range(max(1, round((_monday(self.until - 1.0) - self.since) / WEEK) + 1))
        ]

    # ---- objectives

    def objectives(self, by: Sequence[str] = (), *, causes: bool = True) -> list[Figure]:
        """Return availability, job-start success, job success and infrastructure job success, by week or by one of `BY`."""
        from workbench.fleet.counted import starts_of_counts, success_of_counts
        from workbench.fleet.objectives import availability, job_starts, job_success

        window: dict[str, Any] = {"since": self.since, "until": self.until, "by": tuple(by), "causes": causes}
        found: list[Figure] = []
        if not set(by) & {"team", "size"}:  # a node has neither
            found += availability(self.frames["node_states"], **window)
        if not self.many:
            found += job_starts(self.frames["jobs"], **window)
            for infra in (False, True):
                found += job_success(self.frames["jobs"], infra=infra, **window)
        elif not set(by) & set(BY):
            found += starts_of_counts(self.starts_counted, **window)
            for infra in (False, True):
                found += success_of_counts(self.jobs_counted, infra=infra, **window)
        return found

    @cached_property
    def whole(self) -> list[Figure]:
        """Each objective over the whole window, and what each cause took of it."""
        return self.objectives()

    @cached_property
    def weekly(self) -> list[Figure]:
        """Each objective by week."""
        return self.objectives(("week",), causes=False)

    @cached_property
    def burning(self) -> list[tuple[Objective, Burn]]:
        """How fast each target's budget burns at the end of the window; of jobs only where they are read one by one."""
        from workbench.fleet.budgets import burns_of_fleet

        known = [one for one in self.targets if not self.many or one.indicator == "availability"]
        return burns_of_fleet(known, self.frames["jobs"], self.frames["node_states"], now=self.until)

    # ---- time

    @cached_property
    def ettr(self) -> Ettr:
        """ETTR of the window as it was and as its formula expects it, and where the two differ."""
        from workbench.fleet.ettr import ettr_of

        return ettr_of(self._cut, self.frames["jobs"], self.frames["past"], since=self.since, until=self.until)

    @cached_property
    def _cut(self) -> pd.DataFrame:
        from workbench.fleet.timeline import segments

        return segments(self.frames["jobs"], self.frames["past"], self.frames["phases"], until=self.until)

    def falls(self, denominator: str = "allocated", by: Sequence[str] = ()) -> list[Waterfall]:
        """Return where GPU time went; one waterfall without groups."""
        from workbench.fleet.goodput import waterfall

        return waterfall(
            self._cut,
            denominator=denominator,
            weight="gpus",
            by=tuple(by),
            jobs=self.frames["jobs"],
            since=self.since,
            until=self.until,
        )

    # ---- failures

    @cached_property
    def failures_by_week(self) -> list[dict[str, Any]]:
        """For each week and cause the attempts that failed, of how many that ended; weeks without attempts are rows of none."""
        rows: list[dict[str, Any]] = []
        for week in self.weeks:
            mine = [row for row in self.counts if row["week"] == week]
            whole = sum(row["count"] for row in mine)
            for cause in CAUSES:
                bad = [row for row in mine if row["state"] in _BAD and _cause(row["cause"]) == cause]
                rows.append(
                    {
                        "week": week,
                        "cause": cause,
                        "attempts": sum(row["count"] for row in bad),
                        "gpu_hours": sum(row["gpu_ms"] for row in bad) / 3.6e6,
                        "of": whole,
                    }
                )
        return rows

    @cached_property
    def failed(self) -> pd.DataFrame:
        """The attempts that failed and ended in the window, with what each cost, the latest first."""
        attempts = self.frames["attempts"]
        bad = attempts[attempts["state"].isin(_BAD)]
        costs = self.costs[["cluster", "job", "attempt", "team", "idle_hours", "lost_hours", "cost", "currency", "missing"]]
        bad = bad.assign(cluster=bad["cluster"].fillna(""))
        bad = bad.merge(costs, on=["cluster", "job", "attempt"], how="left")
        return bad.sort_values("ended", ascending=False, ignore_index=True)

    # ---- lemons

    @cached_property
    def lemons(self) -> Lemons:
        """Nodes and GPUs that fail more often than chance, by the thirteen weeks that end with the window."""
        from workbench.fleet.lemons import lemons

        named = ("signals", "quarter", "quarter_states", "gpus")
        return lemons(*(self.frames[name] for name in named), until=self.until)

    # ---- cost

    @cached_property
    def costs(self) -> pd.DataFrame:
        """What each failed attempt of the window cost."""
        from workbench.fleet.cost import incident_costs

        frame = incident_costs(self.frames["attempts"], self.frames["jobs"], self.frames["phases"], prices=self.prices)
        return frame if len(frame) else _no_costs()

    @cached_property
    def size(self) -> tuple[int, int, str | None]:
        """Nodes, GPUs of a usual one (0 when nobody told), and the product that most have."""
        states = self.frames["node_states"]
        latest = states.drop_duplicates(["cluster", "node"], keep="last")
        gpus, skus = latest["gpus"].dropna(), latest["sku"].dropna()
        return len(latest), int(gpus.mode().iloc[0]) if len(gpus) else 0, str(skus.mode().iloc[0]) if len(skus) else None

    @cached_property
    def assumed(self) -> Mapping[str, Assumption]:
        """The assumptions that `pays` rests on."""
        from workbench.fleet.cost import assumptions

        return assumptions()

    @cached_property
    def price(self) -> Price | None:
        """What a GPU-hour of the usual product costs; None when nobody knows."""
        from workbench.fleet.cost import price_of

        return price_of(self.size[2], self.prices)

    @cached_property
    def pays(self) -> pd.DataFrame | None:
        """How much this tool saves in a month, and how that moves with each assumption; None without nodes, GPUs or a price."""
        from workbench.fleet.cost import tornado

        nodes, gpus, _ = self.size
        if not nodes or not gpus or self.price is None:
            return None
        return tornado(self.assumed, nodes=nodes, node_gpus=gpus, price=self.price)


def _frames(ledger: Ledger, window: tuple[float, float, float], where: Mapping[str, Any], many: bool) -> dict[str, pd.DataFrame]:
    """Return the tables of (since, until, since for lemons); rows of attempts are left out where they are too many."""
    since, until, quarter = window
    states = ledger.frame("node_states", since, until, **where)
    names = ("jobs", "attempts", "phases", "signals", "gpus", "actions")
    if many:
        frames = {name: ledger.frame(name, 0.0, 0.0, **where) for name in names}
        return {
            **frames,
            "past": frames["attempts"],
            "quarter": frames["attempts"],
            "quarter_states": states,
            "node_states": states,
        }
    jobs = ledger.frame("jobs", since, until, **where)
    # all of a job's past: what is lost is known only from the attempts around it
    first = jobs["submitted"].min() if len(jobs) else None
    begin = min(since, first.timestamp()) if first is not None and first == first else since
    past = ledger.frame("attempts", begin, until, **where)
    ended = past["ended"]
    inside = ended.notna() & (ended >= _stamp(since)) & (ended < _stamp(until))
    return {
        "jobs": jobs,
        "past": past,
        "attempts": past[inside],
        "phases": ledger.frame("phases", begin, until, **where),
        "actions": ledger.frame("actions", since, until, **where),
        "node_states": states,
        "signals": ledger.frame("signals", quarter, until, **where),
        "quarter": ledger.frame("attempts", quarter, until, **where),
        "quarter_states": ledger.frame("node_states", quarter, until, **where),
        "gpus": ledger.frame("gpus", quarter, until, **where),
    }


def _stamp(seconds: float) -> Any:
    import pandas as pd

    return pd.Timestamp(seconds, unit="s", tz="UTC")


def _cause(word: str | None) -> str:
    return word if word in CAUSES else "unknown"


def _no_costs() -> pd.DataFrame:
    import pandas as pd

    from workbench.fleet.cost import COSTS

    numbers = ("idle_hours", "lost_hours", "people_hours", "gpu_cost", "people_cost", "cost")
    kinds = {name: "Int64" if name == "attempt" else "Float64" if name in numbers else "string" for name in COSTS}
    return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in kinds.items()})
