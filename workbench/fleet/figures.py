"""
Turn a numerator and a denominator into a figure that cannot be read wrongly: value or none, bounds, method, definition, window, group.

Also what all counting of the fleet shares: whole microseconds of a column of times, weeks, sizes of jobs, and shares of groups of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from workbench.fleet.intervals import student, wilson

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

__all__ = [
    "CAUSES",
    "NEVER",
    "NOT_TOLD",
    "SIZES",
    "Figure",
    "figures_frame",
    "instant",
    "in_order",
    "micros",
    "shares",
    "size_of",
    "week_of",
]

CAUSES = ("hardware", "driver", "platform", "user", "unknown")
NOT_TOLD = "not told"
# GPUs of a job: one, one usual node, a rack or pod, and what needs more and more of the fabric; each bucket ends with a usual job size
SIZES = ((1, "1"), (8, "2-8"), (64, "9-64"), (512, "65-512"), (4096, "513-4096"))
_LARGEST = "4097+"
NEVER = -(2**63)  # of a time that nobody told, in microseconds: numpy's NaT
_DAY = 86_400_000_000
_HOUR = 3_600_000_000


@dataclass(frozen=True, slots=True)
class Figure:
    """
    One figure of the account.

    Attributes
    ----------
    name : str
        What it is, such as ``job success``.
    value : float or None
        None if there is no denominator: absent is neither 0 nor 1.
    numerator, denominator : float or None
        What was divided by what.
    unit : str
        Unit of numerator and denominator, such as ``jobs`` or ``node-hours``; of the value if there is no denominator.
    low, high : float or None
        Bounds at `level`; None where none can be given, and `method` says why.
    method : str
        How the bounds were found.
    definition : str
        Numerator and denominator in words, with what was left out.
    since, until : float
        Window, seconds since the epoch.
    by : tuple of (dimension, value)
        The group; empty for all.
    notes : tuple of str
        What a reader must know: what was left out for want of data, and how much.
    level : float
        Confidence of the bounds.
    """

    name: str
    value: float | None
    numerator: float | None
    denominator: float | None
    unit: str
    low: float | None = None
    high: float | None = None
    method: str = ""
    definition: str = ""
    since: float = 0.0
    until: float = 0.0
    by: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    level: float = 0.95

    def row(self) -> dict[str, Any]:
        """Return it flat, for JSON, CSV and tables."""
        kept = (
            "name",
            "value",
            "numerator",
            "denominator",
            "unit",
            "low",
            "high",
            "level",
            "method",
            "definition",
            "since",
            "until",
        )
        return {
            **dict(self.by),
            **{name: getattr(self, name) for name in kept},
            "notes": list(self.notes),
        }


def figures_frame(figures: Iterable[Figure]) -> pd.DataFrame:
    """Return figures as a frame: dimensions of the groups first, then what `Figure.row` gives; what is absent is NA."""
    import pandas as pd

    rows = [figure.row() for figure in figures]
    numbers = dict.fromkeys(("value", "numerator", "denominator", "low", "high", "level"), "Float64")
    frame = pd.DataFrame(rows)
    return frame.astype({name: kind for name, kind in numbers.items() if name in frame})


def micros(times: pd.Series[Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return times as whole microseconds since the epoch; `NEVER` where none was told."""
    import numpy as np
    import pandas as pd

    if not isinstance(times.dtype, pd.DatetimeTZDtype) and not str(times.dtype).startswith("datetime64"):
        times = pd.to_datetime(times, utc=True)
    naive = times.dt.tz_convert("UTC").dt.tz_localize(None) if times.dt.tz is not None else times
    return naive.to_numpy("datetime64[us]").astype(np.int64)


def instant(time: Any) -> int:
    """Return one moment (seconds since the epoch, or anything that pandas takes for a time; UTC unless it says) in microseconds."""
    import pandas as pd

    if isinstance(time, int | float):
        return round(time * 1_000_000)
    stamp = pd.Timestamp(time)
    stamp = stamp.tz_localize("UTC") if stamp.tzinfo is None else stamp
    # `value` is in nanoseconds whatever the unit
    return int(stamp.value // 1000)


def week_of(moments: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the number of the week (from Monday, UTC) in which each moment lies; week 0 begins on 1969-12-29."""
    import numpy as np

    weeks: np.ndarray[Any, np.dtype[np.int64]] = np.floor_divide(np.floor_divide(moments, _DAY) + 3, 7)
    return weeks


def week_names(weeks: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, Any]:
    """Return the date of each week's Monday."""
    import numpy as np

    return (weeks * 7 - 3).astype("datetime64[D]").astype(str).astype(object) if len(weeks) else np.array([], dtype=object)


def size_of(gpus: pd.Series[Any]) -> np.ndarray[Any, Any]:
    """Return the bucket of `SIZES` of each number of GPUs."""
    import numpy as np

    numbers = gpus.astype("Float64").to_numpy(dtype=float, na_value=np.nan)
    names = np.array([name for _, name in SIZES] + [_LARGEST], dtype=object)
    found = names[np.searchsorted([most for most, _ in SIZES], np.nan_to_num(numbers, nan=0.0))]
    return np.where(np.isnan(numbers), NOT_TOLD, found)


def in_order(labels: tuple[tuple[str, str], ...]) -> tuple[tuple[int, str], ...]:
    """Return what sorts groups as people do: sizes of jobs by size, numbers by value, the rest by name."""
    names = [name for _, name in SIZES] + [_LARGEST]
    return tuple(
        (names.index(value) if name == "size" and value in names else int(value) if value.isdecimal() else 0, value)
        for name, value in labels
    )


def shares(
    units: pd.DataFrame,
    base: Figure,
    by: Sequence[str] = (),
    *,
    scale: float = 1.0,
    counts: bool = False,
    clusters: str = "",
    causes: bool = False,
) -> list[Figure]:
    """
    Return for each group the share of what is good, and with `causes` also the shares that each cause took.

    Parameters
    ----------
    units : pandas.DataFrame
        `all` and `good` (whole numbers), `cause` of what is not good, the columns of `by`, and `_unit`: rows of one unit are not
        independent of each other.
    base : Figure
        Name, unit, definition, window and notes of the figures.
    by : sequence of str
        Columns that make groups.
    scale : float
        Divides numerator and denominator for people (microseconds to hours).
    counts : bool
        Each row is one independent trial: Wilson's interval as it stands.
    clusters : str
        What a unit is, for `method`.
    causes : bool
        Add one figure for each cause.
    """
    import pandas as pd

    names = list(by)
    found: list[Figure] = []
    if units.empty:
        return [] if names else [replace(base, value=None, method="no data")]
    groups: list[tuple[tuple[Any, ...], pd.DataFrame]] = (
        [(key, part) for key, part in units.groupby(names, sort=True, dropna=False)] if names else [((), units)]
    )
    named = [
        (tuple((name, NOT_TOLD if pd.isna(value) else str(value)) for name, value in zip(names, key, strict=True)), part)
        for key, part in groups
    ]
    for labels, part in sorted(named, key=lambda pair: in_order(pair[0])):
        found.append(_share(part, part["good"], replace(base, by=labels), scale, counts, clusters))
        if causes:
            bad = part["all"] - part["good"]
            for cause in CAUSES:
                one = replace(base, name=f"{base.name}: lost to {cause}", by=(*labels, ("cause", cause)))
                found.append(_share(part, bad.where(part["cause"] == cause, 0), one, scale, counts, clusters))
    return found


def _share(part: pd.DataFrame, good: pd.Series[Any], base: Figure, scale: float, counts: bool, clusters: str) -> Figure:
    top, bottom = int(good.sum()), int(part["all"].sum())
    if bottom == 0:
        return replace(base, value=None, numerator=None, denominator=0.0, method="no denominator")
    base = replace(base, value=top / bottom, numerator=top / scale, denominator=bottom / scale)
    if counts:
        low, high = wilson(top, bottom, base.level)
        return replace(base, low=low, high=high, method="Wilson, jobs taken as independent")
    size = _effective(part, good, top, bottom, base.level)
    if size is None:
        return replace(base, method=f"no bounds from fewer than two {clusters}")
    low, high = wilson(top / bottom * size, size, base.level)
    return replace(base, low=low, high=high, method=f"Wilson at {size:.4g} effective {clusters}")


def _effective(part: pd.DataFrame, good: pd.Series[Any], top: int, bottom: int, level: float) -> float | None:
    """
    Return how many independent trials would leave as much doubt about the share as these clusters do.

    The variance is that of a ratio estimator with clusters drawn with replacement (W. G. Cochran, Sampling Techniques, 3rd ed. 1977, 6.3);
    the trials with that variance, fewer by Student's t for the number of clusters, go into the interval (E. L. Korn, B. I. Graubard, Survey
    Methodology 24 (1998) 193). Clusters that are each all good or all bad tell no more than Kish's effective number of them: where one is
    larger than all others the variance is blind to what it might have been.
    """
    both = part[["all"]].assign(good=good).groupby(part["_unit"], dropna=False).sum().astype(float)
    both = both[both["all"] > 0]
    number = len(both)
    if number < 2:
        return None
    kish = float(bottom**2 / (both["all"] ** 2).sum())
    share = top / bottom
    spread = number / (number - 1) * float(((both["good"] - share * both["all"]) ** 2).sum()) / bottom**2
    if top in (0, bottom) or spread <= 0:
        return kish
    size = share * (1 - share) / spread * (NormalDist().inv_cdf(0.5 + level / 2) / student(level, number - 1)) ** 2
    pure = bool(((both["good"] == 0) | (both["good"] == both["all"])).all())
    return min(size, kish if pure else 1e9)
