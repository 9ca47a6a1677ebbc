"""
Turn a real Prometheus into ratios: our frames against prometheus-api-client's, in time and size, and against curl to /dev/null.

What was asked stands beside what was measured: frames at least 10 times faster and smaller than the client's, 20 fields in at most 1.5 times
the time of curl. With --job: how long it takes to collect a job by push-down, what travels for it, and the verdict from that.

usage: prometheus.py URL --job NAME [--hours 1] [--end EPOCH]
       prometheus.py URL [--query DCGM_FI_DEV_GPU_TEMP] [--hours 1] [--step 30] [--rounds 5] [--fields N]

Each round does each method once, so that all meet the same noise; medians are printed, ours of a fresh object that has seen no labels yet.
Frames that are not the same samples are a gate: exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

ROOT = Path(__file__).resolve().parent.parent
# what stands beside this file is named like the clients
sys.path[:] = [str(ROOT), *(each for each in sys.path if Path(each or ".").resolve() != ROOT / "benchmarks")]

from benchmarks.bench import Bench, Row  # noqa: E402
from workbench.sources.contract import Deadline, Folder, Scope  # noqa: E402
from workbench.sources.prometheus.source import Prometheus  # noqa: E402


def timed(call: Callable[[], Any]) -> tuple[float, float, Any]:
    """Return seconds, processor seconds of this process, and the result."""
    began, used = time.perf_counter(), time.process_time()
    result = call()
    return time.perf_counter() - began, time.process_time() - used, result


def curl(url: str, query: str, start: float, end: float, step: float) -> None:
    data = urlencode({"query": query, "start": start, "end": end, "step": step})
    subprocess.run(
        [shutil.which("curl") or "curl", "-fsS", "-o", "/dev/null", "--data", data, f"{url}/api/v1/query_range"],
        check=True,
        timeout=300,
    )


def peer(url: str, query: str, start: float, end: float, step: float) -> Any:
    from prometheus_api_client import MetricRangeDataFrame, PrometheusConnect

    client = PrometheusConnect(url)
    data = client.custom_query_range(
        query, datetime.fromtimestamp(start, UTC), datetime.fromtimestamp(end, UTC), str(step), timeout=300
    )
    return MetricRangeDataFrame(data)


def job(prometheus: Prometheus, name: str, start: float, end: float) -> int:
    """Collect a job as ``workbench collect`` does and print seconds, bytes and the verdict."""
    from workbench.incident import load

    moved = [0]
    once = prometheus.api.http._once

    def counted(*arguments: Any) -> Any:
        reply = once(*arguments)
        moved[0] += len(reply.body)
        return reply

    prometheus.api.http._once = counted  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as place:
        folder = Folder(Path(place))
        located, _, where = timed(lambda: prometheus.locate(Scope(name, start, end), Deadline(60)))
        took, cpu, answers = timed(lambda: prometheus.collect(where or Scope(name, start, end), folder, Deadline(300)))
        told, _, verdict = timed(lambda: load(folder.root).triage())
        report = {
            "gpus": next((answer.detail for answer in answers if "questions what changed" in answer.detail), "all taken"),
            "seconds": {"locate": round(located, 2), "collect": round(took, 2), "triage": round(told, 2)},
            "processor_seconds": round(cpu, 2),
            "mb_moved": round(moved[0] / 1e6, 2),
            "mb_kept": round(folder.size / 1e6, 2),
            "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            "verdict": {"class": verdict.cls, "node": verdict.node, "gpu": verdict.gpu.index if verdict.gpu else None},
            "not_ok": [f"{answer.status}: {answer.detail}" for answer in answers if answer.status != "ok"],
        }
    print(json.dumps(report, indent=2))
    return 0


def size(frame: Any) -> int:
    return int(frame.memory_usage(deep=True).sum())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[1])
    parser.add_argument("url")
    parser.add_argument("--query", default="DCGM_FI_DEV_GPU_TEMP")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--end", type=float, default=0.0, help="seconds since the epoch; default now")
    parser.add_argument("--step", type=float, default=30.0)
    parser.add_argument("--job", help="collect this job")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fields", type=int, default=0, help="so many DCGM fields one after the other, against curl alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there as well")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    url, step = options.url.rstrip("/"), options.step
    end = (options.end or time.time()) // step * step
    start = end - options.hours * 3600 // step * step
    prometheus = Prometheus(url)
    if options.job:
        return job(prometheus, options.job, start, end)
    warm = prometheus.frame(options.query, start, end, step)
    bench = Bench(0, 0, options.rounds)
    print(f"{len(warm):,} samples of {options.query}, load {os.getloadavg()[0]:.1f}")
    walls: dict[str, list[float]] = {"curl": [], "ours": [], "client": []}
    cpus: dict[str, list[float]] = {name: [] for name in walls}
    kept: dict[str, Any] = {}
    methods: dict[str, Callable[[], Any]] = {
        "curl": lambda: curl(url, options.query, start, end, step),
        "ours": lambda: Prometheus(url).frame(options.query, start, end, step),
        "client": lambda: peer(url, options.query, start, end, step),
    }
    for _ in range(options.rounds):
        for name, call in methods.items():
            wall, cpu, kept[name] = timed(call)
            walls[name].append(wall)
            cpus[name].append(cpu)
    ours, other = kept["ours"], kept["client"]
    wall_of = {name: statistics.median(times) for name, times in walls.items()}
    cpu_of = {name: statistics.median(times) for name, times in cpus.items()}
    apart = abs(float(ours["value"].sum()) - float(other["value"].astype(float).sum()))
    gate = "" if len(ours) == len(other) and apart < 1e-6 * len(ours) else f"{len(ours)} samples, the client has {len(other)}"
    text = {name: f"{wall_of[name]:.3f} s ({cpu_of[name]:.2f} CPU)" for name in wall_of}
    note = f"by CPU {cpu_of['client'] / cpu_of['ours']:.1f}; {wall_of['ours'] / wall_of['curl']:.2f} x curl"
    bench.add(Row("frame-vs-client", wall_of["client"] / wall_of["ours"], 10, True, text["ours"], text["client"], gate, note))
    sizes = [f"{size(frame) / 1e6:.1f} MB" for frame in (ours, other)]
    bench.add(Row("frame-size", size(other) / size(ours), 10, True, *sizes))
    if options.fields:
        names = [name for name in prometheus.api.values("__name__", [], start, end, Deadline(30)) if name.startswith("DCGM_")]
        names = names[: options.fields]
        limit, all_ours, all_cpu = [], [], []
        for _ in range(options.rounds):
            limit.append(timed(lambda: [curl(url, name, start, end, step) for name in names])[0])
            wall, cpu, _ = timed(lambda: Prometheus(url).frames(names, start, end, step))
            all_ours.append(wall)
            all_cpu.append(cpu)
        took, least = statistics.median(all_ours), statistics.median(limit)
        note = f"{len(names)} fields; peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB with the client's"
        many = f"{took:.2f} s ({statistics.median(all_cpu):.2f} CPU)"
        bench.add(Row("fields-vs-curl", took / least, 1.5, False, many, f"{least:.2f} s", note=note))
    if options.json:
        options.json.write_text(
            json.dumps([{**asdict(row), "met": row.met} for row in bench.rows], indent=1) + "\n", encoding="utf-8"
        )
    return 1 if gate else 0


if __name__ == "__main__":
    sys.exit(main())
