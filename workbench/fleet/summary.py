"""Turn a ledger into the few figures that a small team looks at first, each with what it is a part of."""

from __future__ import annotations

from typing import Any

from workbench.fleet import rollups
from workbench.fleet.ledger import Ledger

__all__ = ["summary"]

_BAD = ("failed", "timeout", "preempted")
SCHEMA = "workbench.fleet-summary/1"


def summary(
    ledger: Ledger, *, since: float | None = None, until: float | None = None, cluster: str | None = None, most: int = 5
) -> dict[str, Any]:
    """
    Return the account's summary as plain values.

    Parameters
    ----------
    ledger : Ledger
    since, until : float, optional
        Seconds since the epoch. Jobs are counted by whole weeks (Monday 00:00 UTC), so the weeks in which these lie count in full.
    cluster : str, optional
        Of this cluster only.
    most : int
        Rows of nodes and of failures.

    Returns
    -------
    dict
        ``weeks`` (first Monday and the Monday after the last, seconds); ``jobs`` (``ended``, ``open`` by state); ``ends``: of each state and
        cause the jobs, of how many (``of``) and their GPUs times the hours from first start to end, waits between attempts included;
        ``lost``: of each cause the attempts that failed, the GPU-hours they held and for how many attempts these are known,
        ``of_gpu_hours``: those of all attempts that ended; ``clock``: where no job told GPUs, the hours by the clock of ``ends`` (state,
        cause), of failed attempts by cause (``lost``) and of what they spent them on (``phases``); ``nodes``; ``incidents``.
    """
    since = rollups.week_of(since) if since is not None else None
    until = rollups.week_of(until - 1e-6) + rollups.WEEK if until is not None else None
    where: dict[str, Any] = {"cluster": cluster} if cluster is not None else {}
    ends = [
        row for row in ledger.totals(("week", "state", "cause"), since=since, until=until, **where) if row["week"] is not None
    ]
    still = [row for row in ledger.totals(("week", "state"), **where) if row["week"] is None]
    weeks = sorted({row["week"] for row in ends})
    whole = sum(row["count"] for row in ends)
    return {
        "schema": SCHEMA,
        "ledger": str(ledger.path),
        "cluster": cluster,
        "weeks": [weeks[0], weeks[-1] + rollups.WEEK] if weeks else None,
        "jobs": {"ended": whole, "open": {row["state"] or "unknown": row["count"] for row in still}},
        "ends": [{**row, "of": whole} for row in _grouped(ends)],
        **_lost(ledger, since, until, where),
        "clock": None if any(row["ended"] for row in ends) else _clock(ledger, since, until, cluster),
        **_nodes(ledger, since, until, cluster, most),
        "incidents": _incidents(ledger, since, until, where, most),
    }


def _grouped(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        key = (row["state"] or "unknown", row["cause"] or "")
        one = found.setdefault(key, {"state": key[0], "cause": key[1] or None, "jobs": 0, "known": 0, "gpu_ms": 0})
        one["jobs"] += row["count"]
        one["known"] += row["ended"]
        one["gpu_ms"] += row["gpu_ms"]
    order = sorted(found.values(), key=lambda one: (one["state"] != "completed", -one["jobs"], one["state"], one["cause"] or ""))
    return [_hours(one) for one in order]


def _hours(row: dict[str, Any]) -> dict[str, Any]:
    held = row.pop("gpu_ms") / 3_600_000
    return {**row, "gpu_hours": held if row["known"] else None}


def _lost(ledger: Ledger, since: float | None, until: float | None, where: dict[str, Any]) -> dict[str, Any]:
    rows = ledger.totals(("week", "state", "cause"), of="attempts", since=since, until=until, **where)
    rows = [row for row in rows if row["week"] is not None]
    by: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["state"] in _BAD:
            one = by.setdefault(row["cause"] or "unknown", {"attempts": 0, "known": 0, "gpu_ms": 0})
            one["attempts"] += row["count"]
            one["known"] += row["ended"]
            one["gpu_ms"] += row["gpu_ms"]
    known = sum(row["ended"] for row in rows)
    order = sorted(by.items(), key=lambda item: (-item[1]["gpu_ms"], -item[1]["attempts"], item[0]))
    return {
        "lost": [_hours({"cause": cause, **one}) for cause, one in order],
        "attempts": sum(row["count"] for row in rows),
        "of_gpu_hours": sum(row["gpu_ms"] for row in rows) / 3_600_000 if known else None,
    }


def _clock(ledger: Ledger, since: float | None, until: float | None, cluster: str | None) -> dict[str, Any]:
    """Hours by the clock, for an account whose jobs hold no GPUs or did not tell them; others are counted by GPU-hours, from rollups."""
    tests = ["ended IS NOT NULL", "ended >= ?", "ended < ?"]
    values: list[Any] = [since if since is not None else 0.0, until if until is not None else 1e12]
    if cluster is not None:
        tests.append("cluster = ?")
        values.append(cluster)
    where = " AND ".join(tests)
    begun = "coalesce(started, submitted)"
    ends = ledger.select(f"SELECT state, cause, sum(ended - {begun}) FROM jobs WHERE {where} GROUP BY state, cause", values)
    bad = f"state IN ({', '.join('?' * len(_BAD))})"
    lost = ledger.select(
        f"SELECT coalesce(cause, 'unknown'), sum(ended - started) FROM attempts WHERE {where} AND {bad} GROUP BY 1",
        [*values, *_BAD],
    )
    phases = ledger.select(
        f'SELECT kind, sum("end" - "begin") FROM phases WHERE "begin" >= ? AND "begin" < ?{" AND cluster = ?" if cluster is not None else ""}'
        " GROUP BY kind",
        values,
    )
    return {
        "ends": [{"state": row[0] or "unknown", "cause": row[1], "hours": (row[2] or 0.0) / 3600} for row in ends],
        "lost": {row[0]: (row[1] or 0.0) / 3600 for row in lost},
        "phases": {row[0]: (row[1] or 0.0) / 3600 for row in phases},
    }


def _nodes(ledger: Ledger, since: float | None, until: float | None, cluster: str | None, most: int) -> dict[str, Any]:
    tests, values = (
        ["time >= ?", "time < ?", "node <> ''"],
        [since if since is not None else 0.0, until if until is not None else 1e12],
    )
    if cluster is not None:
        tests.append("cluster = ?")
        values.append(cluster)  # type: ignore[arg-type]
    where = " AND ".join(tests)
    blamed = "CASE WHEN kind = 'job-failure' THEN coalesce(weight, 1) ELSE 0 END"
    rows = ledger.select(
        f"SELECT cluster, node, sum({blamed}), sum(kind <> 'job-failure'), max(time),"
        f" group_concat(DISTINCT CASE WHEN kind <> 'job-failure' THEN kind END) FROM signals WHERE {where}"
        " GROUP BY cluster, node ORDER BY 3 DESC, 4 DESC, node LIMIT ?",
        [*values, most],
    )
    ((whole, nodes),) = ledger.select(
        f"SELECT sum({blamed}), count(DISTINCT cluster || '/' || node) FROM signals WHERE {where}", values
    )
    names = ("cluster", "node", "blamed", "signs", "last", "kinds")
    return {
        "nodes": [
            {
                **dict(zip(names, row, strict=True)),
                "of": whole or 0.0,
                "kinds": sorted((row[5] or "").split(",")) if row[5] else [],
            }
            for row in rows
        ],
        "nodes_with_signs": nodes or 0,
    }


def _incidents(
    ledger: Ledger, since: float | None, until: float | None, where: dict[str, Any], most: int
) -> list[dict[str, Any]]:
    rows = ledger.rows("attempts", since, until, state=["failed", "timeout"], limit=most, last="ended", **where)
    keep = (
        "cluster",
        "job",
        "attempt",
        "ended",
        "state",
        "cause",
        "cls",
        "confidence",
        "at_fault",
        "node",
        "gpu_uuid",
        "rank",
        "incident",
    )
    return [{name: row[name] for name in keep} for row in rows]
