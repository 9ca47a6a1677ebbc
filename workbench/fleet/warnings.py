"""
Turn metrics of machines that still work into early warnings: what grows, drifts, drops out or differs before it fails.

Rules are rows of ``catalog/early_warnings.csv``; each has an alert budget (alarms per node and day on a healthy fleet) that
``python tests/fleet/warning_truth.py`` measures together with the lead time. A rule whose metric nobody collects is told, and is no silence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from workbench.catalog import table
from workbench.detect.steps import fill_forward, first_true, increases, median_rows, sustained
from workbench.errors import CatalogError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ALARMS", "COVERAGE", "KINDS", "Rule", "Warnings", "early_warnings", "rules"]

ALARMS = ("rule", "time", "node", "gpu_index", "gpu_uuid", "device", "field", "value", "threshold", "unit", "cls", "meaning")
COVERAGE = ("rule", "status", "series", "node_days", "alarms", "per_node_day", "budget")
# growth: a counter's increase within the window; below: a level against its own best; downtime: seconds off 4 (active) within the window;
# drift: distance from the node's other GPUs against what it was; bits: a mask; vanished, frozen: of the series; outlier-low: against the job
KINDS = ("growth", "below", "downtime", "drift", "bits", "vanished", "frozen", "outlier-low")
ACTIVE = 4.0  # IB_PORT_ACTIVE (include/rdma/ib_verbs.h)
STALE = (
    5  # scrapes for which a missing sample stands for the one before it, as Prometheus does for 5 minutes of one-minute scrapes
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: `threshold` in `unit`; `window` in seconds, `hold` scrapes in a row; `budget` in alarms per node-day."""

    id: str
    fields: re.Pattern[str]
    kind: str
    threshold: float
    unit: str
    window: float
    hold: int
    budget: float
    cls: str
    meaning: str


@dataclass(frozen=True)
class Warnings:
    """
    What a look at the metrics gave.

    Attributes
    ----------
    alarms : DataFrame
        `ALARMS`, by time; an alarm that stands is told once a window.
    coverage : DataFrame
        `COVERAGE`; `status` is ``ok``, ``no-data`` (nobody collects the metric) or ``too-short`` (samples cover less than the window, so
        that silence means little).
    """

    alarms: pd.DataFrame
    coverage: pd.DataFrame


@lru_cache(maxsize=1)
def rules() -> tuple[Rule, ...]:
    """
    Return the rules.

    Raises
    ------
    CatalogError
        A row is wrong; names it.
    """
    found = []
    for row in table("early_warnings"):
        try:
            rule = Rule(
                row["id"],
                re.compile(row["fields"]),
                row["kind"],
                float(row["threshold"]),
                row["unit"],
                float(row["window"]),
                int(row["hold"]),
                float(row["budget"]),
                row["class"],
                row["meaning"],
            )
            if rule.kind not in KINDS or rule.window <= 0 or rule.hold < 1 or rule.budget < 0:
                raise ValueError(f"kind {rule.kind!r}, window, hold or budget")
        except (KeyError, ValueError, re.error) as error:
            raise CatalogError(f"early_warnings.csv: {row.get('id')}: {error}", hint="correct the row") from None
        found.append(rule)
    return tuple(found)


@dataclass(slots=True)
class _Matrix:
    """One field: rows are entities, columns scrapes."""

    values: Any
    entities: list[tuple[Any, ...]]  # node, gpu_index, gpu_uuid, device
    nodes: Any  # number of each row's node


def early_warnings(metrics: pd.DataFrame, *, jobs: Mapping[str, str] | None = None, only: tuple[str, ...] = ()) -> Warnings:
    """
    Look for every rule's sign in a frame of metrics.

    Parameters
    ----------
    metrics : DataFrame
        Columns of `workbench.frames.METRICS`; any order.
    jobs : mapping of str to str, optional
        Node → job, for comparisons with a job's other ranks; a node without one is compared with nobody. Default: all nodes as one job.
    only : tuple of str, optional
        Ids of the rules to apply; default all.

    Returns
    -------
    Warnings
    """
    import numpy as np
    import pandas as pd

    chosen = [rule for rule in rules() if not only or rule.id in only]
    known = metrics[metrics["time"].notna()] if len(metrics) else metrics
    # frames put together lose their categories where these differ
    names_of = [
        name for name in ("field", "node", "gpu_uuid", "device") if not isinstance(known[name].dtype, pd.CategoricalDtype)
    ]
    known = known.astype(dict.fromkeys(names_of, "category"))
    alarms: list[dict[str, Any]] = []
    coverage: list[dict[str, Any]] = []
    grid = _axis(known)
    names = [str(name) for name in known["field"].cat.categories] if len(known) else []
    present = set(known["field"].unique()) if len(known) else set()
    cache: dict[str, _Matrix] = {}
    for rule in chosen:
        series, days, count = 0, 0.0, 0
        for name in names:
            if name not in present or not rule.fields.fullmatch(name):
                continue
            if name not in cache:
                cache[name] = _matrix(known[known["field"] == name], grid)
            one = cache[name]
            step, columns = grid[1], one.values.shape[1]
            series += len(one.entities)
            days = max(days, len(set(one.nodes.tolist())) * columns * step / 86400.0)
            hit, level = _look(rule, one, step, _groups(one, jobs))
            for row, column in _told(hit, max(1, round(rule.window / step))):
                node, index, uuid, device = one.entities[row]
                value = float(level[row, column])
                alarms.append(
                    {
                        "rule": rule.id,
                        "time": pd.Timestamp(grid[0] + column * step, unit="s", tz="UTC"),
                        "node": node,
                        "gpu_index": index,
                        "gpu_uuid": uuid,
                        "device": device,
                        "field": name,
                        "value": value,
                        "threshold": rule.threshold,
                        "unit": rule.unit,
                        "cls": rule.cls,
                        "meaning": rule.meaning,
                    }
                )
                count += 1
        span = grid[1] * grid[2]
        status = "no-data" if not series else "too-short" if span < min(rule.window, 3600.0) else "ok"
        coverage.append(
            {
                "rule": rule.id,
                "status": status,
                "series": series,
                "node_days": days,
                "alarms": count,
                "per_node_day": count / days if days else np.nan,
                "budget": rule.budget,
            }
        )
    frame = pd.DataFrame(alarms, columns=list(ALARMS))
    if len(frame):
        frame["time"] = pd.to_datetime(frame["time"], utc=True).dt.as_unit("us")
        frame = frame.sort_values(["time", "rule", "node"], kind="stable", ignore_index=True)
    return Warnings(frame, pd.DataFrame(coverage, columns=list(COVERAGE)))


def _axis(metrics: pd.DataFrame) -> tuple[float, float, int]:
    """Return begin, step (the usual distance of a series' samples, in seconds) and number of columns of the common time axis."""
    import numpy as np

    if not len(metrics):
        return 0.0, 60.0, 0
    times = metrics["time"].dt.as_unit("us").astype("int64").to_numpy() / 1e6
    field = metrics["field"].cat.codes.to_numpy()
    first = times[field == field[0]]
    ordered = np.unique(np.round(first))
    gaps = np.diff(ordered)
    # exporters are scraped out of step with each other: what counts is the distance within one series
    keys = _keys(metrics[field == field[0]])
    own = np.diff(np.sort(first[keys == keys[0]]))
    step = float(np.median(own)) if len(own) else float(gaps.min()) if len(gaps) else 60.0
    step = max(step, 1.0)
    begin = float(times.min())
    return begin, step, int((times.max() - begin) / step + 0.5) + 1


def _keys(rows: pd.DataFrame) -> Any:
    """Return a number for each row that tells its entity: node, GPU, device."""
    import numpy as np

    key = np.zeros(len(rows), dtype=np.int64)
    for name in ("node", "gpu_uuid", "device"):
        key = key * (len(rows[name].cat.categories) + 1) + rows[name].cat.codes.to_numpy() + 1
    return key * 1024 + rows["gpu_index"].to_numpy(dtype=np.int64, na_value=-1) + 1


def _matrix(rows: pd.DataFrame, grid: tuple[float, float, int]) -> _Matrix:
    import numpy as np
    import pandas as pd

    begin, step, columns = grid
    unique, at, codes = np.unique(_keys(rows), return_index=True, return_inverse=True)
    names = ["node", "gpu_index", "gpu_uuid", "device"]
    entities = [
        tuple(None if pd.isna(part) else part for part in entity)
        for entity in rows.iloc[at][names].itertuples(index=False, name=None)
    ]
    column = np.clip(
        ((rows["time"].dt.as_unit("us").astype("int64").to_numpy() / 1e6 - begin) / step + 0.5).astype(np.int64),
        0,
        columns - 1,
    )
    values = np.full((len(unique), columns), np.nan)
    values[codes, column] = rows["value"].to_numpy(dtype=float)
    return _Matrix(values, entities, pd.factorize(pd.Series([entity[0] for entity in entities], dtype="object"))[0])


def _groups(one: _Matrix, jobs: Mapping[str, str] | None) -> Any:
    """Return the number of each row's job; -1 for a node that runs none."""
    import pandas as pd

    if jobs is None:
        return one.nodes * 0
    return pd.factorize(pd.Series([jobs.get(str(entity[0])) for entity in one.entities], dtype="object"))[0]


def _told(hit: Any, window: int) -> list[tuple[int, int]]:
    """Return where alarms begin: a stretch that breaks off for less than a window, or lasts longer than one, is one alarm."""
    found: list[tuple[int, int]] = []
    for row in hit.any(axis=1).nonzero()[0]:
        last = -window - 1
        begun = -window - 1
        for column in hit[row].nonzero()[0]:
            if column - last > window:
                begun = column
                found.append((int(row), int(begun)))
            last = column
    return found


def _rolling_sum(values: Any, width: int) -> Any:
    """Return for each column the sum of the `width` columns that end in it."""
    import numpy as np

    total = np.cumsum(values, axis=1)
    out = total.copy()
    if values.shape[1] > width:
        out[:, width:] = total[:, width:] - total[:, :-width]
    return out


def _held(mask: Any, hold: int) -> Any:
    """Return where a mask has been true for `hold` columns: the moment at which it can be known, not at which it began."""
    import numpy as np

    begun = sustained(mask, hold) if hold > 1 else mask
    out = np.zeros_like(mask)
    if hold == 1:
        return begun
    # `sustained` marks where such a run begins, and takes runs that reach the last column as whole
    out[:, hold - 1 :] = begun[:, : mask.shape[1] - hold + 1] & mask[:, hold - 1 :]
    return out


def _look(rule: Rule, one: _Matrix, step: float, groups: Any) -> tuple[Any, Any]:
    """Return where a rule holds, and the level that is compared with its threshold."""
    import numpy as np

    raw = one.values
    width = max(1, round(rule.window / step))
    if rule.kind == "growth":
        level = _rolling_sum(increases(raw), width)
        return _held(level >= rule.threshold, rule.hold), level
    if rule.kind == "bits":
        level = np.nan_to_num(fill_forward(raw, STALE), nan=0.0)
        return _held((level.astype(np.int64) & int(rule.threshold)) > 0, rule.hold), level
    if rule.kind == "below":
        filled = fill_forward(np.where(raw > 0, raw, np.nan), STALE)
        level = filled / np.fmax.accumulate(filled, axis=1)
        return _held(level < rule.threshold, rule.hold), level
    if rule.kind == "downtime":
        filled = fill_forward(raw, STALE)
        # a port that never was active in the window is one that nobody cabled
        used = np.maximum.accumulate(np.nan_to_num(filled, nan=0.0) == ACTIVE, axis=1)
        level = _rolling_sum((used & np.isfinite(filled) & (filled != ACTIVE)) * step, width)
        return level >= rule.threshold, level
    if rule.kind == "vanished":
        return _vanished(one, rule, step)
    if rule.kind == "frozen":
        return _frozen(one, rule, step)
    if rule.kind == "drift":
        return _drift(one, rule, width)
    return _outlier(one, rule, groups)


def _vanished(one: _Matrix, rule: Rule, step: float) -> tuple[Any, Any]:
    import numpy as np

    present = np.isfinite(one.values)
    seen = np.maximum.accumulate(present, axis=1)
    columns = np.arange(present.shape[1])
    last = np.maximum.accumulate(np.where(present, columns, -1), axis=1)
    silent = np.where(seen, (columns - last) * step, 0.0)
    hit = np.zeros_like(present)
    for node in np.unique(one.nodes):
        rows = np.flatnonzero(one.nodes == node)
        neighbours = present[rows].sum(axis=0)
        # the exporter speaks for others of this node: it is the GPU, not the exporter
        alive = np.maximum.accumulate(np.where(neighbours > 0, columns, -1))
        hit[rows] = (silent[rows] >= rule.threshold) & (columns - alive <= 1) & (len(rows) > 1)
    return _held(hit, 1), silent


def _frozen(one: _Matrix, rule: Rule, step: float) -> tuple[Any, Any]:
    import numpy as np

    filled = one.values
    same = np.zeros(filled.shape, dtype=bool)
    same[:, 1:] = filled[:, 1:] == filled[:, :-1]
    moved = np.isfinite(filled) & ~same
    moved[:, 0] = True
    columns = np.arange(filled.shape[1])
    hit = np.zeros(filled.shape, dtype=bool)
    level = np.zeros(filled.shape)
    anywhere = np.zeros(filled.shape[1])
    numbers = np.unique(one.nodes)
    still = {}
    for node in numbers:
        rows = np.flatnonzero(one.nodes == node)
        any_moved = moved[rows].any(axis=0)
        still[node] = (columns - np.maximum.accumulate(np.where(any_moved, columns, 0))) * step
        anywhere += any_moved
    for node in numbers:
        rows = np.flatnonzero(one.nodes == node)
        speaks = np.isfinite(filled[rows]).any(axis=0)
        first = rows[0]
        level[rows] = still[node]
        # one alarm a node, and only while another node's values move: else the source is coarse, or everything is idle
        others = anywhere - moved[rows].any(axis=0) > 0
        hit[first] = (still[node] >= rule.threshold) & speaks & others
    return hit, level


def _drift(one: _Matrix, rule: Rule, width: int) -> tuple[Any, Any]:
    """Compare a row's distance from its node's median with its own usual distance, both smoothed over the hold."""
    import numpy as np

    distance = np.full(one.values.shape, np.nan)
    for node in np.unique(one.nodes):
        rows = np.flatnonzero(one.nodes == node)
        if len(rows) >= 3:
            distance[rows] = one.values[rows] - median_rows(one.values[rows])
    known = np.isfinite(distance)
    filled = np.where(known, distance, 0.0)
    hold = max(1, rule.hold)
    many = _rolling_sum(known.astype(float), hold)
    now = np.where(many >= hold / 2, _rolling_sum(filled, hold) / np.maximum(many, 1), np.nan)
    # the usual distance is that of the window before, at least an hour's worth of it
    past = np.full(now.shape, np.nan)
    whole, count = _rolling_sum(filled, width), _rolling_sum(known.astype(float), width)
    past[:, hold:] = np.where(count[:, :-hold] >= 2 * hold, whole[:, :-hold] / np.maximum(count[:, :-hold], 1), np.nan)
    # a slow rise pulls its own past along: what it was at first is kept beside it, and the lower of the two is taken
    begun = first_true(np.isfinite(past))
    first = np.where(begun >= 0, past[np.arange(len(past)), np.maximum(begun, 0)], np.nan)
    level = now - np.fmin(past, first[:, None])
    return np.nan_to_num(level, nan=0.0) >= rule.threshold, level


def _outlier(one: _Matrix, rule: Rule, groups: Any) -> tuple[Any, Any]:
    """Compare a row with the median of its job's other ranks, while most of them work alike."""
    import numpy as np

    filled = fill_forward(one.values, STALE)
    level = np.full(filled.shape, np.nan)
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        if group < 0 or len(rows) < 4:
            continue
        centre = median_rows(filled[rows])
        spread = median_rows(np.abs(filled[rows] - centre))
        # ranks that differ among themselves (another phase, the job's begin or end) say nothing of one of them
        alike = spread <= 0.05 * centre
        level[rows] = np.where(alike & (centre > 0), filled[rows] / np.where(centre > 0, centre, np.nan), np.nan)
    return _held(np.nan_to_num(level, nan=1.0) < rule.threshold, rule.hold), level
