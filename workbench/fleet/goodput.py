"""
Turn segments of jobs' time into a waterfall of goodput and badput that sums exactly to its denominator, per fleet, group, job or attempt.

All sums are of whole microseconds (times whole GPUs), so that parts and total agree to the last one; shares are divided at the end.
The denominator is always said: `elapsed` is a job's time from submission to end, `scheduled` the same without the wait before its first
allocation, `allocated` only the time in which an attempt held its nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from workbench.fleet.figures import NOT_TOLD, Figure, in_order, instant, size_of, week_names, week_of
from workbench.fleet.timeline import KINDS

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["DENOMINATORS", "MEANINGS", "Waterfall", "goodput", "spread", "waterfall", "weight_of"]

DENOMINATORS = {
    "elapsed": "time of jobs from submission to end, waiting included",
    "scheduled": "time of jobs from their first allocation to their end, waiting between attempts included",
    "allocated": "time in which attempts held their nodes",
}
MEANINGS = {
    "queue": "waiting for an allocation",
    "start": "from allocation until all ranks run",
    "init": "from ranks running to the first step",
    "restore": "reading a checkpoint",
    "data": "waiting for input",
    "step": "productive",
    "slow": "slow steps, beyond the usual time",
    "save": "steps waiting for a checkpoint",
    "lost": "steps that were made again",
    "detect": "failed or hung, and nobody knew",
    "diagnose": "known, cause being found",
    "recover": "repair, replacement, back-off",
    "unknown": "nodes held, and nobody told what for",
    "idle": "between attempts, none of these",
}
_GROUPS = ("cluster", "job", "attempt", "user", "team", "pool", "sku", "size", "week")


@dataclass(frozen=True, slots=True)
class Waterfall:
    """
    Where time went.

    Attributes
    ----------
    parts : mapping of str to int
        Kind (of `workbench.fleet.timeline.KINDS`) to microseconds, or GPU-microseconds if `weight` is ``gpus``.
    denominator : str
        One of `DENOMINATORS`.
    weight : str
        ``time`` or ``gpus``.
    jobs : int
        Jobs with any time in it.
    by : tuple of (dimension, value)
        The group.
    notes : tuple of str
        What was left out.
    since, until : float
        Window, seconds since the epoch.
    """

    parts: Mapping[str, int]
    denominator: str = "elapsed"
    weight: str = "time"
    jobs: int = 0
    by: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    since: float = 0.0
    until: float = 0.0
    total: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", sum(self.parts.values()))

    def share(self, kind: str) -> Fraction | None:
        """Return the exact share of one kind; None if there was no time at all."""
        return Fraction(self.parts.get(kind, 0), self.total) if self.total else None

    @property
    def unit(self) -> str:
        """Unit of `rows`."""
        return "GPU-hours" if self.weight == "gpus" else "job-hours"

    def percents(self, digits: int = 1) -> dict[str, str]:
        """
        Return the shares in percent, rounded so that the printed numbers add up to 100 exactly (largest remainders are rounded up).

        Parameters
        ----------
        digits : int
            After the point.
        """
        if not self.total:
            return dict.fromkeys(self.parts, "")
        whole = 100 * 10**digits
        floors = {kind: part * whole // self.total for kind, part in self.parts.items()}
        rest = {kind: part * whole % self.total for kind, part in self.parts.items()}
        for kind in sorted(rest, key=lambda kind: (-rest[kind], kind))[: whole - sum(floors.values())]:
            floors[kind] += 1
        return {
            kind: f"{count // 10**digits}.{count % 10**digits:0{digits}d}" if digits else str(count)
            for kind, count in floors.items()
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return one row a kind: kind, meaning, hours, share of the total, what the total is."""
        return [
            {
                **dict(self.by),
                "kind": kind,
                "meaning": MEANINGS[kind],
                "amount": self.parts[kind] / 3_600_000_000,
                "unit": self.unit,
                "share": self.parts[kind] / self.total if self.total else None,
                "microseconds": self.parts[kind],
                "total_microseconds": self.total,
                "denominator": self.denominator,
            }
            for kind in self.parts
        ]


def weight_of(cut: pd.DataFrame) -> str:
    """
    Return the weight that fits segments: ``gpus``, or ``time`` where no job told its GPUs (a run on a laptop).

    Parameters
    ----------
    cut : pandas.DataFrame
        From `workbench.fleet.timeline.segments`.
    """
    return "gpus" if cut.empty or cut["gpus"].notna().any() else "time"


def waterfall(
    cut: pd.DataFrame,
    *,
    denominator: str = "elapsed",
    weight: str = "time",
    by: Sequence[str] = (),
    jobs: pd.DataFrame | None = None,
    since: Any = None,
    until: Any = None,
) -> list[Waterfall]:
    """
    Return where the time of segments went.

    Parameters
    ----------
    cut : pandas.DataFrame
        From `workbench.fleet.timeline.segments`.
    denominator : str
        One of `DENOMINATORS`.
    weight : str
        ``time``: an hour of a job is an hour. ``gpus``: it is as many hours as the attempt (or, while none runs, the job) has GPUs; time of
        jobs whose number was not told is left out, and the notes say of how many.
    by : sequence of str
        ``cluster``, ``job``, ``attempt``, ``week``, and with `jobs` also ``user``, ``team``, ``pool``, ``sku``, ``size``. Empty for one of all.
    jobs : pandas.DataFrame, optional
        For the dimensions of jobs.
    since, until : time, optional
        Only what lies in this window counts; segments are cut at its ends.

    Returns
    -------
    list of Waterfall
        One a group; without groups exactly one, be there time or not.

    Raises
    ------
    ValueError
        If a dimension or the denominator is unknown.
    """
    if denominator not in DENOMINATORS:
        raise ValueError(f"{denominator}: the denominator is one of {', '.join(DENOMINATORS)}")
    if wrong := [name for name in by if name not in _GROUPS]:
        raise ValueError(f"{', '.join(wrong)}: no dimension of a waterfall; there are {', '.join(_GROUPS)}")
    frame = cut
    if since is not None:
        frame = frame.assign(begin=frame["begin"].clip(lower=instant(since)))
    if until is not None:
        frame = frame.assign(end=frame["end"].clip(upper=instant(until)))
    frame = frame[frame["end"] > frame["begin"]]
    if denominator == "scheduled":
        frame = frame[~frame["first_wait"]]
    elif denominator == "allocated":
        frame = frame[frame["held"]]
    if "week" in by:
        frame = _weeks(frame)
    length = frame["end"] - frame["begin"]
    notes: tuple[str, ...] = ()
    if weight == "gpus":
        fit = frame["gpus"].notna()
        if missing := _count(frame[~fit]):
            notes = (f"{missing} jobs left out: their number of GPUs was not told",)
        frame, length = frame[fit], length[fit] * frame.loc[fit, "gpus"].astype("int64")
    frame = frame.assign(length=length)
    frame = _dimensions(frame, by, jobs)
    edges = (
        (instant(since) if since is not None else (int(cut["begin"].min()) if len(cut) else 0)) / 1e6,
        (instant(until) if until is not None else (int(cut["end"].max()) if len(cut) else 0)) / 1e6,
    )

    def one(part: pd.DataFrame, labels: tuple[tuple[str, str], ...]) -> Waterfall:
        sums = part.groupby("kind")["length"].sum()
        parts = {kind: int(sums.get(kind, 0)) for kind in KINDS}
        return Waterfall(parts, denominator, weight, _count(part), labels, notes, *edges)

    if not by:
        return [one(frame, ())]
    falls = [
        one(part, tuple((name, str(value)) for name, value in zip(by, key, strict=True)))
        for key, part in frame.groupby(list(by), sort=False)
    ]
    return sorted(falls, key=lambda fall: in_order(fall.by))


def goodput(one: Waterfall) -> Figure:
    """
    Return the productive share of a waterfall; its bounds are what it is if all unknown time was wasted, and if all of it was productive.
    """
    step, unknown = one.parts.get("step", 0), one.parts.get("unknown", 0)
    definition = f"time in productive steps / {DENOMINATORS[one.denominator]}"
    definition += ", each second times its GPUs" if one.weight == "gpus" else ""
    base = Figure(
        "goodput", None, None, one.total / 3.6e9, one.unit, definition=definition, since=one.since, until=one.until, by=one.by, notes=one.notes
    )  # fmt: skip
    if not one.total:
        return base
    return Figure(
        base.name,
        step / one.total,
        step / 3.6e9,
        one.total / 3.6e9,
        one.unit,
        step / one.total,
        (step + unknown) / one.total,
        "from all unknown time wasted to all of it productive",
        definition,
        one.since,
        one.until,
        one.by,
        one.notes,
    )


def spread(cut: pd.DataFrame, kinds: Iterable[str]) -> dict[str, dict[str, float | int | None]]:
    """
    Return for each kind how long its stretches were: number, mean, median, 90th percentile and longest, in seconds.

    A stretch is one segment or several that follow each other in one attempt; of a kind that nobody told there are none, and no zeros.
    """
    import numpy as np

    found: dict[str, dict[str, float | int | None]] = {}
    for kind in kinds:
        part = cut[cut["kind"] == kind]
        length = ((part["end"] - part["begin"]) / 1e6).to_numpy(dtype=float)
        found[kind] = {
            "stretches": len(length),
            "mean": float(length.mean()) if len(length) else None,
            "median": float(np.median(length)) if len(length) else None,
            "p90": float(np.quantile(length, 0.9)) if len(length) else None,
            "longest": float(length.max()) if len(length) else None,
        }
    return found


def _weeks(frame: pd.DataFrame) -> pd.DataFrame:
    import numpy as np

    begin, end = frame["begin"].to_numpy(), frame["end"].to_numpy()
    first = week_of(begin)
    pieces = week_of(end - 1) - first + 1
    frame = frame.iloc[np.repeat(np.arange(len(frame)), pieces)]
    week = np.repeat(first, pieces) + np.arange(len(frame)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    monday = (week * 7 - 3) * 86_400_000_000
    begin, end = np.maximum(frame["begin"], monday), np.minimum(frame["end"], monday + 7 * 86_400_000_000)
    return frame.assign(begin=begin, end=end, week=week_names(week))


def _dimensions(frame: pd.DataFrame, by: Sequence[str], jobs: pd.DataFrame | None) -> pd.DataFrame:
    wanted = [name for name in by if name in ("user", "team", "pool", "sku", "size")]
    if wanted:
        if jobs is None:
            raise ValueError(f"{', '.join(wanted)}: the jobs are needed for this")
        known = jobs.assign(cluster=jobs["cluster"].fillna(""))
        if "size" in wanted:
            known = known.assign(size=size_of(known["gpus"]))
        frame = frame.merge(known[["cluster", "job", *wanted]], on=["cluster", "job"], how="left")
    for name in by:
        plain = frame[name].astype("object")
        frame[name] = plain.where(plain.notna() & (plain != ""), NOT_TOLD)
    return frame


def _count(frame: pd.DataFrame) -> int:
    return len(frame[["cluster", "job"]].drop_duplicates())
