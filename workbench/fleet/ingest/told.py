"""
Turn rows of several tables, told by one source, into one change of a ledger; and what follows from them: a job's end, who is blamed.

A job's cause is that of its last attempt, and its blame is made anew from all its attempts whenever one is told, so that neither depends on the
order in which sources tell, and a failure that a scheduler and a verdict both tell of is blamed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.fleet.ingest.moves import settle
from workbench.fleet.ledger import BadRow, Ledger
from workbench.fleet.tables import TABLES
from workbench.model import Problem

__all__ = ["Told", "take_in"]

# seconds by which a node's condition and the event of it may lie apart: twice the time after which a silent node is given up (50 s),
# https://kubernetes.io/docs/reference/command-line-tools-reference/kube-controller-manager/ (--node-monitor-grace-period, 2026-11-30)
_NEAR = 100.0
_ASKED = 400  # jobs that one question names; SQLite takes 999 values at least
# ends that may be somebody's fault
_FAILED = ("failed", "timeout")
# who is at fault when a node or what is in it is; of other failures a node is only where it happened
_BLAMED = ("gpu", "node")


@dataclass
class Told:
    """
    Rows by table, and what could not be read.

    Attributes
    ----------
    rows : dict
        Table → rows.
    problems : list of Problem
        With file and line; all else is used.
    unnumbered : set of (cluster, job)
        Jobs whose attempts are numbered from 1 because nobody told how many there were before.
    """

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    unnumbered: set[tuple[str, str]] = field(default_factory=set)

    def add(self, table: str, **row: Any) -> None:
        """Add a row."""
        self.rows.setdefault(table, []).append(row)

    def out_of_service(
        self, cluster: str, node: str, begin: float, *, cls: str | None, detail: str, source: str, recorded: float | None
    ) -> None:
        """Add that a node went out of service, as a sign against it."""
        row = {"cluster": cluster, "node": node, "kind": "out-of-service", "time": begin, "cls": cls or None, "weight": 1.0}
        self.add("signals", **row, detail=detail, source=source, recorded=recorded)

    def wrong(self, file: str, message: str, hint: str = "", line: int | None = None) -> None:
        """Add what could not be used."""
        self.problems.append(Problem(file, message, hint, line, "ledger", "partial"))

    def extend(self, other: Told) -> None:
        """Add all of another."""
        for table, rows in other.rows.items():
            self.rows.setdefault(table, []).extend(rows)
        self.problems += other.problems
        self.unnumbered |= other.unnumbered

    def __len__(self) -> int:
        return sum(map(len, self.rows.values()))


def take_in(ledger: Ledger, told: Told) -> dict[str, int]:
    """
    Write all of it, or nothing when the disk fails; a row that is wrong is left out and becomes a problem of `told`.

    Returns
    -------
    dict
        Table → rows that were new or changed something.
    """
    changed: dict[str, int] = {}
    with ledger.batch():
        _number(ledger, told)
        _near(ledger, told)
        if told.rows.get("gpus"):
            changed["gpus"] = settle(ledger, told)
        for table in TABLES:
            if table == "gpus":
                continue
            rows = told.rows.get(table, [])
            if not rows:
                continue
            try:
                changed[table] = ledger.put(table, rows)
            except BadRow:
                bad = ledger.wrong(table, rows)
                for at, why in bad.items():
                    told.wrong(str(rows[at].get("source") or table), why, "the row is left out")
                changed[table] = ledger.put(table, [row for at, row in enumerate(rows) if at not in bad])
        jobs = {
            (str(row.get("cluster") or ""), str(row["job"])) for table in ("jobs", "attempts") for row in told.rows.get(table, ())
        }
        ledger.succeed((str(row.get("cluster") or ""), str(row["node"])) for row in told.rows.get("node_states", ()))
        changed["signals"] = changed.get("signals", 0) + _settle(ledger, jobs)
    return {table: number for table, number in changed.items() if table in told.rows or number}


def _by_job(
    ledger: Ledger, table: str, jobs: Iterable[tuple[str, str]], **where: Any
) -> Iterator[tuple[tuple[str, str], list[dict[str, Any]]]]:
    """Yield each job that has rows in a table with these, in the order of their key."""
    by_cluster: dict[str, list[str]] = {}
    for cluster, job in sorted(jobs):
        by_cluster.setdefault(cluster, []).append(job)
    for cluster, names in by_cluster.items():
        for at in range(0, len(names), _ASKED):
            found: dict[str, list[dict[str, Any]]] = {}
            for row in ledger.rows(table, cluster=cluster, job=names[at : at + _ASKED], **where):
                found.setdefault(row["job"], []).append(row)
            for job, rows in found.items():
                yield (cluster, job), rows


def _number(ledger: Ledger, told: Told) -> None:
    """Give attempts that were only counted within what was told the numbers that follow those of before."""
    if not told.unnumbered:
        return
    known = dict(_by_job(ledger, "attempts", told.unnumbered))
    shift: dict[tuple[str, str], int] = {}
    for row in sorted(told.rows.get("attempts", ()), key=lambda one: one["attempt"]):
        job = (str(row.get("cluster") or ""), str(row["job"]))
        before = [one for one in known.get(job, ()) if one["source"] == row.get("source")]
        if job not in told.unnumbered or not before or row.get("started") is None:
            continue
        if job not in shift:  # by the first that is told: the same start again, or the next after those before it
            same = next((one["attempt"] for one in before if one["started"] == row["started"]), None)
            earlier = [one["attempt"] for one in before if (one["started"] or 0.0) < row["started"]]
            shift[job] = (same if same is not None else max(earlier, default=0) + 1) - row["attempt"]
        row["attempt"] += max(shift[job], 0)


def _near(ledger: Ledger, told: Told) -> None:
    """Let an event and a condition that tell of the same turn of a node's life, each with its own clock, be one stretch and one sign."""
    states = told.rows.get("node_states", [])
    mine = [row for row in states if str(row.get("source")).startswith("kubernetes")]
    if not mine:
        return
    known: dict[tuple[str, str], list[tuple[float, str, str]]] = {}
    by_cluster: dict[str, set[str]] = {}
    for row in mine:
        by_cluster.setdefault(str(row.get("cluster") or ""), set()).add(str(row["node"]))
    for cluster, nodes in by_cluster.items():
        names = sorted(nodes)
        for at in range(0, len(names), _ASKED):
            for row in ledger.rows("node_states", cluster=cluster, node=names[at : at + _ASKED]):
                if str(row["source"]).startswith("kubernetes"):
                    known.setdefault((cluster, row["node"]), []).append((row["begin"], row["state"], row["source"]))
    turned: dict[tuple[str, str, float, Any], float | None] = {}
    for row in sorted(mine, key=lambda one: (str(one["source"]), one["begin"])):  # conditions before events
        place = (str(row.get("cluster") or ""), str(row["node"]))
        there = known.setdefault(place, [])
        close = [one for one in there if one[1] == row["state"] and abs(one[0] - row["begin"]) <= _NEAR]
        begin: float | None = row["begin"]
        if close:  # an event adds nothing to what is known, also when it is told again
            nearest = min(close, key=lambda one: abs(one[0] - row["begin"]))[0]
            begin = nearest if row["source"] == "kubernetes" else None
        turned[(*place, row["begin"], row["source"])] = begin
        if begin is not None:
            there.append((begin, row["state"], row["source"]))
    for table, name in (("node_states", "begin"), ("signals", "time")):
        kept = []
        for row in told.rows.get(table, ()):
            if table == "node_states" or row.get("kind") == "out-of-service":
                key = (str(row.get("cluster") or ""), str(row["node"]), row[name], row.get("source"))
                begin = turned.get(key, row[name])
                if begin is None:
                    continue
                row[name] = begin
            kept.append(row)
        if table in told.rows:
            told.rows[table] = kept


def _settle(ledger: Ledger, jobs: set[tuple[str, str]]) -> int:
    """Make ends and blame of jobs what their attempts say; return how many signals are new or changed."""
    there = dict(_by_job(ledger, "signals", jobs, kind="job-failure"))
    stale, wanted = list[dict[str, Any]](), list[dict[str, Any]]()
    ends = []
    for (cluster, job), attempts in _by_job(ledger, "attempts", jobs):
        ends.append({**attempts[-1], "cluster": cluster, "job": job})
        shares = _blame(attempts)
        for (node, gpu), one in shares.items():
            common = {name: one[name] for name in ("time", "cls", "detail", "source", "recorded")}
            share = round(one["weight"], 9)
            wanted.append(
                {**common, "cluster": cluster, "node": node, "gpu_uuid": gpu, "kind": "job-failure", "job": job, "weight": share}
            )
        for row in there.get((cluster, job), ()):
            if shares.get((row["node"], row["gpu_uuid"]), {}).get("time") != row["time"]:
                stale.append(row)
    ledger.conclude(ends)
    ledger.delete("signals", stale)
    return ledger.put("signals", wanted)


def _blame(attempts: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """
    Return who is blamed for a job's failures: (node, GPU) → share, time, class; the shares add up to 1.

    Blame needs evidence on the node: a verdict that names it or what is in it, or a scheduler that lost it. Where a scheduler does not say which
    node of an allocation it lost, it was one of them: each has its share.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    failed = [one for one in attempts if one["state"] in _FAILED and one["cause"] not in (None, "user")]
    for one in failed:
        if one["node"] and one["at_fault"] in _BLAMED:
            places = [(str(one["node"]), str(one["gpu_uuid"] or "") if one["at_fault"] == "gpu" else "")]
        elif one["cls"] == "platform/node-lost" and not one["node"] and one["node_names"]:
            places = [(str(name), "") for name in one["node_names"]]
        else:
            continue
        moment = next((one[name] for name in ("ended", "detected", "started") if one[name] is not None), None)
        if moment is None:
            continue
        for place in places:
            row = found.setdefault(place, {"weight": 0.0, "time": moment, "recorded": 0.0})
            row["weight"] += 1 / len(places)
            row["time"] = max(row["time"], moment)
            row["recorded"] = max(row["recorded"], one["recorded"])
            row |= {"cls": one["cls"], "source": one["source"], "detail": _detail(one, len(places))}
    whole = sum(row["weight"] for row in found.values())
    for row in found.values():
        row["weight"] /= whole
    return found


def _detail(attempt: Mapping[str, Any], places: int) -> str:
    many = f", one of {places} nodes" if places > 1 else ""
    return f"attempt {attempt['attempt']} failed: {attempt['cls'] or attempt['cause']}{many}"
