"""
Turn a real Prometheus into ratios: our frames against prometheus-api-client's, in time and size, and against curl to /dev/null.

With --job: how long it takes to collect a job by push-down, what travels for it, and the verdict from that.

usage: prometheus.py URL --job NAME [--hours 1] [--end EPOCH]
       prometheus.py URL [--query DCGM_FI_DEV_GPU_TEMP] [--hours 1] [--step 30] [--rounds 5] [--fields N]

Each round does each method once, so that all meet the same noise; medians are printed. The frames are compared: the same samples.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from workbench.sources.contract import Deadline, Folder, Scope
from workbench.sources.prometheus.source import Prometheus


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
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    url, step = options.url.rstrip("/"), options.step
    end = (options.end or time.time()) // step * step
    start = end - options.hours * 3600 // step * step
    prometheus = Prometheus(url)
    if options.job:
        return job(prometheus, options.job, start, end)
    warm = prometheus.frame(options.query, start, end, step)
    walls: dict[str, list[float]] = {"curl to /dev/null": [], "workbench": [], "prometheus-api-client": []}
    cpus: dict[str, list[float]] = {name: [] for name in walls}
    kept: dict[str, Any] = {}
    methods = {"curl to /dev/null": curl, "prometheus-api-client": peer}
    for _ in range(options.rounds):
        for name in walls:
            call = methods.get(name)
            wall, cpu, kept[name] = timed(
                (lambda call=call: call(url, options.query, start, end, step))
                if call
                else (lambda: prometheus.frame(options.query, start, end, step))
            )
            walls[name].append(wall)
            cpus[name].append(cpu)
    ours, other = kept["workbench"], kept["prometheus-api-client"]
    medians = {name: statistics.median(times) for name, times in walls.items()}
    cpu_of = {name: statistics.median(times) for name, times in cpus.items()}
    same = len(ours) == len(other) and abs(float(ours["value"].sum()) - float(other["value"].astype(float).sum())) < 1e-6 * len(
        ours
    )
    report: dict[str, Any] = {
        "query": options.query,
        "samples": len(warm),
        "seconds": {name: round(value, 4) for name, value in medians.items()},
        "processor_seconds": {
            name: round(value, 4) for name, value in cpu_of.items() if name in ("workbench", "prometheus-api-client")
        },
        "frame_mb": {"workbench": round(size(ours) / 1e6, 2), "prometheus-api-client": round(size(other) / 1e6, 2)},
        "faster_than_prometheus_api_client": round(medians["prometheus-api-client"] / medians["workbench"], 1),
        "faster_by_processor_time": round(cpu_of["prometheus-api-client"] / cpu_of["workbench"], 1),
        "smaller_than_prometheus_api_client": round(size(other) / size(ours), 1),
        "times_curl": round(medians["workbench"] / medians["curl to /dev/null"], 2),
        "same_samples": same,
    }
    if options.fields:
        names = [name for name in prometheus.api.values("__name__", [], start, end, Deadline(30)) if name.startswith("DCGM_")]
        names = names[: options.fields]
        limit, ours_all = [], []
        for _ in range(options.rounds):
            limit.append(timed(lambda: [curl(url, name, start, end, step) for name in names])[0])
            ours_all.append(timed(lambda: prometheus.frames(names, start, end, step))[0])
        report["fields"] = {
            "many": len(names),
            "curl_seconds": round(statistics.median(limit), 3),
            "workbench_seconds": round(statistics.median(ours_all), 3),
            "times_curl": round(statistics.median(ours_all) / statistics.median(limit), 2),
        }
    print(json.dumps(report, indent=2))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
