"""
Turn made-up jobs into what the fleet's ledger costs: taking them in against a plain SQLite insert, and jobs by cause and week against duckdb.

    python benchmarks/ledger.py [--jobs N] [--insert N] [--runs N]

The peers do the same work: the same rows from the same dictionaries into a table of the same columns and key, in as many transactions; the
same counts of the same jobs. Equal counts are the gate. Meant for ten million jobs: about ten minutes and 6 GB of disk.
"""

from __future__ import annotations

import argparse
import itertools
import random
import resource
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.bench import Row  # noqa: E402
from workbench.fleet import rollups  # noqa: E402
from workbench.fleet.ledger import Ledger  # noqa: E402
from workbench.fleet.tables import TABLES  # noqa: E402

START = 1_767_571_200.0  # 2026-01-05, a Monday
YEAR = 52 * 7 * 86400.0
CAUSES = ("hardware", "driver", "platform", "user", "unknown")


PORTION = 200_000  # rows that are in memory at a time


class Spent:
    """CPU and wall seconds within ``with``, added up; of several the one with less CPU is the lesser."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0

    def __enter__(self) -> Spent:
        self._began = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu += time.process_time() - self._began[0]
        self.wall += time.perf_counter() - self._began[1]

    def __lt__(self, other: Spent) -> bool:
        return self.cpu < other.cpu


def jobs(count: int) -> Iterator[dict[str, Any]]:
    """Yield jobs over 52 weeks: four clusters, one job in eight fails."""
    rng = random.Random(1)
    step = YEAR / count
    for number in range(count):
        ended = START + step * number
        failed = rng.random() < 0.125
        length = 600.0 + 36000.0 * rng.random()
        gpus = 8 << rng.randrange(5)
        yield {
            "cluster": f"c{number & 3}",
            "job": f"{1_000_000 + number}",
            "name": "pretrain",
            "user": f"u{rng.randrange(200)}",
            "team": f"t{rng.randrange(20)}",
            "pool": "gpu",
            "sku": "H100",
            "nodes": gpus // 8,
            "gpus": gpus,
            "submitted": ended - length - 300.0,
            "started": ended - length,
            "first_step": None if failed and number % 5 == 0 else ended - length + 120.0,
            "ended": ended,
            "state": "failed" if failed else "completed",
            "cause": rng.choice(CAUSES) if failed else None,
            "source": "slurm",
            "recorded": ended,
        }


def ingest(count: int, runs: int, kept: Path | None = None) -> Row:
    """
    Taking in new jobs, weekly counts kept, against a plain insert of the same dictionaries; both are on the disk at the end. By CPU.

    Rows are made and given `PORTION` at a time to each in turn, so memory does not grow with them and a disturbance meets both. `kept` is where
    the ledger of the last run stays.
    """
    names = [column.name for column in TABLES["jobs"].columns]
    types = {"text": "TEXT", "count": "INTEGER"}
    columns = ", ".join(f'"{column.name}" {types.get(column.kind, "REAL")}' for column in TABLES["jobs"].columns)
    insert = f"INSERT INTO jobs VALUES ({', '.join('?' * len(names))})"
    best: tuple[Spent, Spent] | None = None
    gate = ""
    for turn in range(runs):
        folder = Path(tempfile.mkdtemp(prefix="ledger-"))
        try:
            path = kept if kept is not None and turn == runs - 1 else folder / "ours.sqlite"
            peer = sqlite3.connect(folder / "peer.sqlite", isolation_level=None)
            for text in ("journal_mode = WAL", "synchronous = FULL", "cache_size = -65536", "temp_store = MEMORY"):
                peer.execute(f"PRAGMA {text}")
            peer.execute(f"CREATE TABLE jobs ({columns}, PRIMARY KEY (cluster, job)) WITHOUT ROWID")
            mine, theirs, told = Spent(), Spent(), jobs(count)
            with Ledger.open(path) as ledger:
                while rows := list(itertools.islice(told, PORTION)):
                    with mine:
                        ledger.put("jobs", rows)
                    with theirs:
                        peer.execute("BEGIN")
                        peer.executemany(insert, (tuple(map(row.get, names)) for row in rows))
                        peer.execute("COMMIT")
                counted = sum(row["count"] for row in ledger.totals(("cause",)))
            (there,) = peer.execute("SELECT count(*) FROM jobs").fetchone()
            peer.close()
            gate = gate or ("" if counted == there == count else f"ours counts {counted}, the peer {there} of {count} jobs")
            best = (mine, theirs) if best is None else (min(best[0], mine), min(best[1], theirs))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    assert best is not None
    mine, theirs = best
    note = f"{count:,} jobs, by CPU; by wall {theirs.wall / mine.wall:.2f}"
    return Row("slo-ingest", theirs.cpu / mine.cpu, 0.35, True, f"{mine.cpu:.2f} s", f"{theirs.cpu:.2f} s", gate, note)


def query(count: int, runs: int, kept: Path | None = None) -> Row:
    """
    Jobs that ended, by week, state and cause, from the ledger against duckdb's scan of the same jobs in a table of its own.

    Jobs that reached a first step, by the same and the week of their start, are asked as well: their counts are part of the gate, and the note
    has their ratio.

    The ratio is that of wall or of CPU time, whichever is worse for us: duckdb scans on all cores, and another process's work lengthens that.
    `kept` is a ledger that holds these jobs already.
    """
    name = "slo-query"
    try:
        import duckdb  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return Row(name, None, 0.1, False, note="the peer is missing: pip install duckdb")
    folder = Path(tempfile.mkdtemp(prefix="ledger-"))
    try:
        if kept is None:
            kept = folder / "ours.sqlite"
            with Ledger.open(kept) as ledger:
                ledger.put("jobs", jobs(count))
        peer = duckdb.connect(str(folder / "peer.duckdb"))
        _fill(peer, folder / "jobs.csv", count)
        asked = (
            "SELECT CAST(floor((ended + 259200) / 604800) AS BIGINT), state, cause, count(*),"
            " CAST(sum(round(gpus * (ended - started) * 1000)) AS BIGINT) FROM jobs GROUP BY 1, 2, 3"
        )
        begun = "SELECT CAST(floor((started + 259200) / 604800) AS BIGINT), state, cause, first_step IS NOT NULL, count(*) FROM jobs GROUP BY 1, 2, 3, 4"
        mine, theirs, own, other = list[Spent](), list[Spent](), list[Spent](), list[Spent]()
        with Ledger.open(kept, "ro") as ledger:
            for _ in range(runs + 2):
                with Spent() as spent:
                    found = ledger.totals(("week", "state", "cause"))
                mine.append(spent)
                with Spent() as spent:
                    wanted = peer.execute(asked).fetchall()
                theirs.append(spent)
                with Spent() as spent:
                    starts = ledger.totals(("week", "state", "cause", "source", "told"), of="starts")
                own.append(spent)
                with Spent() as spent:
                    reached = peer.execute(begun).fetchall()
                other.append(spent)
        ours = {(row["week"], row["state"], row["cause"]): (row["count"], row["gpu_ms"]) for row in found}
        scanned = {(rollups.week_start(row[0]), row[1], row[2] or None): (row[3], row[4]) for row in wanted}
        counts = {key: value[0] for key, value in ours.items()} == {key: value[0] for key, value in scanned.items()}
        # duckdb sums floats, in an order of its own
        hours = all(abs(ours[key][1] - scanned[key][1]) <= 1 + 1e-9 * scanned[key][1] for key in ours) if counts else False
        same = {(row["week"], row["state"], row["cause"], bool(row["told"])): row["count"] for row in starts} == {
            (rollups.week_start(row[0]), row[1], row[2] or None, row[3]): row[4] for row in reached
        }
        gate = "" if counts and hours and same else "counts, GPU time or starts differ"
        peer.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    first, there = min(one.wall for one in own), min(one.wall for one in other)
    wall, scan = min(one.wall for one in mine), min(one.wall for one in theirs)
    cpu, burnt = min(one.cpu for one in mine), min(one.cpu for one in theirs)
    return Row(
        name,
        max(wall / scan, cpu / burnt),
        0.1,
        False,
        f"{wall * 1000:.2f} ms",
        f"{scan * 1000:.1f} ms",
        gate,
        f"{count:,} jobs, 52 weeks; by wall {wall / scan:.4f}, by CPU {cpu / burnt:.4f}, the worse of the two; starts {first * 1000:.1f} ms "
        f"against {there * 1000:.1f} ms ({first / there:.3f})",
    )


def _fill(peer: Any, path: Path, count: int) -> None:
    keep = ("cluster", "job", "team", "gpus", "started", "first_step", "ended", "state", "cause")
    with path.open("w", encoding="ascii") as out:
        for row in jobs(count):
            out.write(
                ",".join(
                    "" if row[name] is None else repr(row[name]) if isinstance(row[name], float) else str(row[name])
                    for name in keep
                )
                + "\n"
            )
    types = ", ".join(
        f"'{name}': '{'DOUBLE' if name in ('started', 'first_step', 'ended') else 'BIGINT' if name == 'gpus' else 'VARCHAR'}'"
        for name in keep
    )
    peer.execute(f"CREATE TABLE jobs AS SELECT * FROM read_csv('{path}', header = false, columns = {{{types}}})")


def compare(jobs_asked: int, jobs_told: int, runs: int) -> list[Row]:
    """Return both rows; where as many jobs are asked about as are taken in, it is the same ledger."""
    if jobs_asked != jobs_told:
        return [ingest(jobs_told, runs), query(jobs_asked, runs)]
    folder = Path(tempfile.mkdtemp(prefix="ledger-"))
    try:
        return [ingest(jobs_told, runs, folder / "ours.sqlite"), query(jobs_asked, runs, folder / "ours.sqlite")]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Print both rows."""
    from benchmarks.bench import show

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--jobs", type=int, default=1_000_000, help="jobs that are asked about")
    parser.add_argument("--insert", type=int, default=200_000, help="jobs that are taken in")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    rows = compare(options.jobs, options.insert, options.runs)
    for row in rows:
        show(row)
    print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB")
    return 1 if any(row.gate for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
