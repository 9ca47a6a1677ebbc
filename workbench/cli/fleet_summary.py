"""Turn `workbench fleet` into one screen: how jobs ended, what was lost to which cause, which nodes fail, what failed last."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from workbench.cli import exits
from workbench.cli.fleet import add_common, open_ledger
from workbench.cli.fleet_table import Columns, hours, job_name, share, table, when, written
from workbench.cli.live import moment

__all__ = ["add_arguments", "run"]

_ENDS: Columns = (("end", "how jobs ended", 34), ("jobs", "jobs", -12), ("share", "of all", -8), ("hours", "GPUs × hours", -16))
_BETWEEN = "\n  hours from first start to end, waits between attempts included"
_LOST: Columns = (
    ("cause", "failed attempts by cause", 34),
    ("attempts", "attempts", -12),
    ("hours", "GPU-hours held", -16),
    ("share", "of all", -8),
)
_BY_CLOCK = {"hours": "time by the clock"}
_WASTED = (
    ("lost", "steps made again"),
    ("detect", "until it was noticed"),
    ("diagnose", "until the cause was known"),
    ("recover", "until it ran again"),
)
_NODES: Columns = (
    ("node", "nodes with most signs", 28),
    ("blamed", "jobs blamed", -12),
    ("share", "of all blame", -12),
    ("signs", "other signs", -11),
    ("last", "last", 10),
)
_LAST: Columns = (("ended", "last failures", 16), ("job", "job", 22), ("cls", "class", 26), ("node", "blamed", 12))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the word's options."""
    add_common(parser)


def run(options: argparse.Namespace) -> int:
    """Print the summary."""
    from workbench.fleet.summary import summary

    now = time.time()
    with open_ledger(options) as ledger:
        told = summary(ledger, since=moment(options.since, now), until=moment(options.until, now), cluster=options.cluster)
    if options.output == "json":
        import json

        sys.stdout.write(json.dumps(told, indent=2, ensure_ascii=True, allow_nan=False) + "\n")
    elif options.output == "csv":
        sys.stdout.write(written((), _flat(told), "csv"))
    else:
        sys.stdout.write(_text(told, markdown=options.output == "md"))
    return exits.OK


def _rows(told: dict[str, Any]) -> list[tuple[Columns, list[dict[str, Any]], str]]:
    """Return the parts: columns, rows as people read them, what stands below."""
    ended = told["jobs"]["ended"]
    ends = [
        {
            "end": f"{row['state']}: {row['cause']}" if row["cause"] else row["state"],
            "jobs": row["jobs"],
            "share": share(row["jobs"], row["of"]),
            "hours": _known(row["gpu_hours"], row["known"], row["jobs"]),
        }
        for row in told["ends"]
    ]
    whole = told["of_gpu_hours"]
    lost = [
        {
            "cause": row["cause"],
            "attempts": row["attempts"],
            "hours": _known(row["gpu_hours"], row["known"], row["attempts"]),
            "share": share(row["gpu_hours"] or 0.0, whole or 0.0) if row["gpu_hours"] is not None else "–",
        }
        for row in told["lost"]
    ]
    nodes = [
        {
            "node": row["node"],
            "blamed": f"{row['blamed']:.2f}".rstrip("0").rstrip("."),
            "share": share(row["blamed"], row["of"]),
            "signs": row["signs"],
            "last": when(row["last"])[:10],
        }
        for row in told["nodes"]
    ]
    last = [
        {
            "ended": when(row["ended"]),
            "job": f"{job_name(row['job'])}/{row['attempt']}",
            "cls": row["cls"] or row["cause"],
            "node": _blamed(row),
        }
        for row in told["incidents"]
    ]
    open_ = ", ".join(f"{number:,} {state}" for state, number in sorted(told["jobs"]["open"].items()))
    blame = told["nodes"][0]["of"] if told["nodes"] else 0.0
    below = f"of all: {ended:,} jobs that ended" + (f"; besides {open_}" if open_ else "") + _BETWEEN
    of_lost = f"of all: {hours(whole)} GPU-hours of {told['attempts']:,} attempts that ended"
    columns = (_ENDS, _LOST)
    if told["clock"] is not None and ended:
        columns, of_lost = _by_clock(told, ends, lost)
    return [
        (columns[0], ends, below),
        (columns[1], lost, of_lost),
        (_NODES, nodes, f"{blame:,.0f} jobs blamed, {told['nodes_with_signs']:,} nodes with signs; chance alone blames some"),
        (_LAST, last, ""),
    ]


def _by_clock(
    told: dict[str, Any], ends: list[dict[str, Any]], lost: list[dict[str, Any]]
) -> tuple[tuple[Columns, Columns], str]:
    """Put times in the place of GPU-hours where no job told GPUs; return the columns for that, and what the failures cost."""
    from workbench.report.text import duration

    clock = told["clock"]
    spent = {(row["state"], row["cause"]): row["hours"] for row in clock["ends"]}
    for row, source in zip(ends, told["ends"], strict=True):
        row["hours"] = duration(3600 * spent.get((source["state"], source["cause"]), 0.0))
    for row in lost:
        row["hours"], row["share"] = (
            duration(3600 * clock["lost"].get(row["cause"], 0.0)),
            share(row["attempts"], told["attempts"]),
        )
    parts = [(words, 3600 * clock["phases"][kind]) for kind, words in _WASTED if clock["phases"].get(kind)]
    text = f"of all: {told['attempts']:,} attempts that ended; no job told GPUs, so times are by the clock"
    if parts:
        whole = 3600 * sum(spent.values())
        detail = ", ".join(f"{duration(seconds)} {words}" for words, seconds in parts)
        text += f"\n  lost to failures: {duration(sum(seconds for _, seconds in parts))} of {duration(whole)} ({detail})"
        text += "\n  where all of it went: workbench fleet goodput"
    first, second = (tuple((key, _BY_CLOCK.get(key, label), width) for key, label, width in each) for each in (_ENDS, _LOST))
    return (first, second), text


def _known(value: float | None, known: int, whole: int) -> str:
    """Hours of which a part is not known are those of the others, and say so."""
    return hours(value) if known in (0, whole) else f"{hours(value)} ({known:,})"


def _blamed(row: dict[str, Any]) -> str | None:
    if row["at_fault"] in ("gpu", "node"):
        return str(row["node"] or "") or None
    return f"rank {row['rank']}" if row["at_fault"] == "rank" and row["rank"] is not None else None


def _text(told: dict[str, Any], *, markdown: bool) -> str:
    from workbench.report.text import clean

    weeks = told["weeks"]
    span = f"{when(weeks[0])[:10]} to {when(weeks[1])[:10]} (whole weeks, UTC)" if weeks else "nothing ended in this time"
    of = f" of cluster {clean(told['cluster'])}" if told["cluster"] else ""
    if markdown:
        parts = [f"# The fleet's account{of}\n\n{span}\n"]
        for columns, rows, below in _rows(told):
            if rows:
                parts.append(written(columns, rows, "md") + (f"\n{below}\n" if below else ""))
        return "\n".join(parts)
    parts = [f"The fleet's account{of}: {span}\n"]
    for columns, rows, below in _rows(told):
        if rows:
            parts.append(table(columns, rows, indent="  ") + (f"  {below}\n" if below else ""))
        elif columns[0] == _ENDS[0] and below:
            parts.append(f"  {below}\n")
    if any("(" in str(row.get("hours", "")) for _, rows, _ in _rows(told) for row in rows):
        parts.append("  (n): known for so many of them; of the others nobody told GPUs or times\n")
    return "\n".join(parts)


def _flat(told: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """One table of all parts: what, of which, how many, of how many."""
    rows = [
        {
            "part": "ends",
            "name": f"{row['state']}/{row['cause'] or ''}".rstrip("/"),
            "count": row["jobs"],
            "of": row["of"],
            "gpu_hours": row["gpu_hours"],
        }
        for row in told["ends"]
    ]
    rows += [
        {"part": "open", "name": state, "count": number, "of": None, "gpu_hours": None}
        for state, number in told["jobs"]["open"].items()
    ]
    rows += [
        {
            "part": "failed-attempts",
            "name": row["cause"],
            "count": row["attempts"],
            "of": told["attempts"],
            "gpu_hours": row["gpu_hours"],
        }
        for row in told["lost"]
    ]
    rows += [
        {"part": "blamed-nodes", "name": row["node"], "count": row["blamed"], "of": row["of"], "gpu_hours": None}
        for row in told["nodes"]
    ]
    return rows
