"""
Turn the logs of 16,384 ranks and a Dask cluster of two processes into lines per second beside one process and beside the local pool.

    python benchmarks/cluster.py [--quick | --full | --size MIB] [--runs N] [--json FILE]

Each figure is a whole `workbench triage`, from its start to the verdict. In one run a worker is killed (SIGKILL) while it has work in
hand: the verdict must be, to the last character of its JSON, that of one process. Equal verdicts and a kill that cost work are the
gate (exit code 1); a missed target is shown, not punished. On a machine of two cores the cluster's scheduler, its client and its two
workers share these cores, so a ratio says what the cluster costs there, not what it is for.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import generate  # noqa: E402
from benchmarks.bench import Row, show  # noqa: E402
from tests.dask_cluster import Dask, busy, done_twice  # noqa: E402

MIB = 1 << 20
_WHEN = 0.25  # share of the work that is done when the worker is killed

# one thread and one core: what two workers are compared with
_ALONE = (
    "import os, sys; hasattr(os, 'sched_setaffinity') and os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    "from workbench.cli import main; sys.exit(main(sys.argv[1:]))"
)


@dataclass
class Ran:
    """A `workbench triage`: wall time in seconds, and its verdict."""

    wall: float
    verdict: dict[str, Any]


def triage(folder: Path, *more: str, alone: bool = False, beside: Callable[[], None] | None = None) -> Ran:
    """Triage a folder as a user does; `beside` is called while it runs."""
    program = ("-c", _ALONE) if alone else ("-m", "workbench")
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *program, "triage", str(folder), "--output", "json", *more],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        if beside:
            beside()
        out, _ = process.communicate()
    finally:
        process.kill()
    if not out:
        raise SystemExit(f"workbench triage {' '.join(more)} ended with {process.returncode} and no verdict")
    return Ran(time.perf_counter() - started, json.loads(out))


class Killer:
    """Kills a worker when a share of the work is done and it has more in hand, and tells what that cost."""

    def __init__(self, cluster: Dask, parts: int) -> None:
        self.cluster, self.parts = cluster, parts
        self.at = self.in_hand = 0

    def __call__(self) -> None:
        before = self.cluster.ask(busy)["done"]
        end = time.monotonic() + 600
        while time.monotonic() < end:
            now = self.cluster.ask(busy)
            self.at, self.in_hand = now["done"] - before, now["in_hand"].get("worker-1", 0)
            if self.at >= self.parts * _WHEN and self.in_hand:
                self.cluster.kill(1)
                return
            time.sleep(0.01)


def lines_of(folder: Path) -> int:
    """Count the lines of all logs, which also brings them into the page cache for every run alike."""
    return sum(path.read_bytes().count(b"\n") for kind in ("logs", "kernel") for path in (folder / kind).iterdir())


def compare(size: int, runs: int) -> list[Row]:
    """Run all ways in turn and return the rows."""
    folder = generate.incident(size)
    lines = lines_of(folder)
    total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{lines:,} lines of 16,384 ranks and 2,048 nodes, {total / MIB:,.0f} MiB with the metrics of all nodes")
    ways: dict[str, Callable[[], Ran]] = {"one": lambda: triage(folder, alone=True), "pool": lambda: triage(folder)}
    best: dict[str, Ran] = {}
    verdicts: list[dict[str, Any]] = []

    def take(name: str, ran: Ran) -> None:
        verdicts.append(ran.verdict)
        if name not in best or ran.wall < best[name].wall:
            best[name] = ran
        print(f"  {name:<16}{ran.wall:7.1f} s   {lines / ran.wall:>10,.0f} lines/s   {ran.verdict['class']}", flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        cluster = Dask(Path(scratch))
        try:
            cluster.ready().close()
            ways["cluster"] = lambda: triage(folder, "--scheduler", cluster.address)
            for _ in range(runs):
                for name, way in ways.items():
                    take(name, way())
            parts = cluster.ask(busy)["done"] // runs
            killer = Killer(cluster, parts)
            take("cluster, killed", triage(folder, "--scheduler", cluster.address, beside=killer))
            again = cluster.ask(done_twice)
        finally:
            cluster.stop()
    one = best["one"].verdict
    right = one["class"] == "hardware/gpu-lost" and one["culprit"]["node"] == generate.CULPRIT_NODE
    gate = "" if right else f"the verdict of one process is {one['class']} on {one['culprit']['node']}"
    if not gate and any(verdict != one for verdict in verdicts):
        gate = "the verdicts differ"
    note = f"killed after {killer.at} of {parts} parts with {killer.in_hand} in hand; {again} done again"
    lost = "" if killer.in_hand and again else f"the kill cost no work: {note}"

    def row(name: str, ours: str, peer: str, target: float, gate: str, note: str = "") -> Row:
        said = [f"{lines / best[each].wall:,.0f} lines/s" for each in (ours, peer)]
        return Row(name, best[peer].wall / best[ours].wall, target, True, said[0], said[1], gate, note)

    return [
        row("pool-vs-one", "pool", "one", 1.3, gate),
        row("cluster-vs-one", "cluster", "one", 1.2, gate),
        row("cluster-vs-pool", "cluster", "pool", 0.8, gate),
        # from a quarter of the work on it is one process as well, beside a scheduler and a client
        row("killed-vs-one", "cluster, killed", "one", 0.8, gate or lost, f"same verdict; {note}" if not gate else note),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line for each run and one for each ratio."""
    parser = argparse.ArgumentParser(description="The logs of 16,384 ranks on a Dask cluster that loses a worker.")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_true", help="64 MiB of logs, each way once: two minutes")
    sizes.add_argument("--full", action="store_true", help="10 GiB of logs")
    sizes.add_argument("--size", type=int, metavar="MIB", help="of the logs; default 256")
    parser.add_argument("--runs", type=int, help="of each way; the fastest counts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there as well")
    options = parser.parse_args(arguments)
    size = options.size or (64 if options.quick else 10 << 10 if options.full else 256)
    rows = compare(size * MIB, options.runs or (1 if options.quick else 3))
    for row in rows:
        show(row)
    if options.json:
        options.json.write_text(json.dumps([{**asdict(row), "met": row.met} for row in rows], indent=1) + "\n", encoding="utf-8")
    return 1 if any(row.gate for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
