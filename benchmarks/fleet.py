"""
Turn one job of 16,384 ranks, in a real Prometheus and a real Elasticsearch, into seconds to its verdict, memory, and bytes that travelled.

    python benchmarks/fleet.py [--nodes 2048] [--lines 100] [--rounds 1] [--json FILE]

A GPU falls off the bus: its Xid 79 stands in the metrics alone, its rank's CUDA error and ten minutes later the watchdogs of all other
ranks in the logs alone. The same node names are on both sides. `workbench triage --job` runs as a process of its own with the defaults of
a user, behind a relay in front of each server that counts what really came over the wire. The verdict is a gate: exit code 1 when it is
not the right GPU.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
# what stands beside this file is named like the clients
sys.path[:] = [str(ROOT), *(each for each in sys.path if Path(each or ".").resolve() != ROOT / "benchmarks")]

from benchmarks.bench import Bench, Row  # noqa: E402
from tests.services.elasticsearch import job  # noqa: E402

SERVICES = ROOT / "tests" / "services"
SECONDS = 60.0  # asked: the verdict within them on two cores
SHARE = 0.01  # asked: of the log bytes at most so many travel
WINDOW = 1800  # seconds of metrics, from the start of the job on; more when the job takes longer
BATCH = 4000  # lines in one bulk request


def free_port() -> int:
    """Return a port of loopback that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Relay:
    """Passes connections on to a server on loopback and counts the bytes that came back and those that were sent."""

    def __init__(self, port: int) -> None:
        self.behind = port
        self.received = self.sent = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self.behind))
                for pair, name in (((near, far), "sent"), ((far, near), "received")):
                    threading.Thread(target=self._pass, args=(*pair, name), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, name: str) -> None:
        with suppress(OSError):
            while block := source.recv(1 << 18):
                with self._lock:
                    setattr(self, name, getattr(self, name) + len(block))
                target.sendall(block)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """Begin to count anew."""
        self.received = self.sent = 0

    def counted(self) -> dict[str, int]:
        """Return the bytes of answers and of requests since the last reset."""
        return {"received": self.received, "sent": self.sent}

    def close(self) -> None:
        """Accept no more."""
        self._listener.close()


class Plan(NamedTuple):
    """The job: how many nodes and steps, which rank's GPU is lost, when it is, and when the metrics end; seconds since the epoch."""

    nodes: int
    steps: int
    culprit: int
    lost: float
    end: int
    scrape: int

    @property
    def ranks(self) -> int:
        return self.nodes * job.PER_NODE


def planned(nodes: int, lines: int, scrape: int) -> Plan:
    """Return the plan of a job of which each rank writes about so many lines."""
    steps = max(int((lines - 7) / 1.25), 4)
    lost = job.START + 10 + (steps + 1) * 2
    last = lost + 600 + nodes * job.PER_NODE * 0.01  # the last watchdog
    end = math.ceil(max(job.START + WINDOW, last + 120) / scrape) * scrape
    return Plan(nodes, steps, int(nodes * 0.67) * job.PER_NODE + 5, lost, end, scrape)


# -- what the servers are given -------------------------------------------------------------------------------------------


def lines(plan: Plan) -> Iterator[job.Line]:
    """Yield the log lines of all ranks: all wait for one whose GPU went away."""
    for line in job.lines(plan.ranks, plan.steps, culprit=-1):
        if line.rank != plan.culprit or line.time < plan.lost + 1:
            yield line
        elif "Watchdog caught" in line.text:
            offset, head = line.offset, f"[rank{plan.culprit}]: "
            local = plan.culprit % job.PER_NODE
            for text in (
                f"{line.node}:{4000 + plan.culprit}:{4200 + plan.culprit} [{local}] NCCL WARN Cuda failure 'unspecified launch failure'",
                f"{head}Traceback (most recent call last):",
                f'{head}  File "/workspace/train.py", line 211, in main',
                f"{head}    loss.backward()",
                f"{head}RuntimeError: CUDA error: unspecified launch failure",
            ):
                yield job.Line(line.rank, line.node, plan.lost + 1, offset, text)
                offset += len(text.encode()) + 1


def index(port: int, name: str, plan: Plan) -> tuple[int, int]:
    """Index the job's lines; return how many there are, and the bytes of their text."""
    settings = {"number_of_shards": 2, "number_of_replicas": 0, "refresh_interval": "-1", "translog.durability": "async"}
    _ask(port, "PUT", f"/{name}", json.dumps({"settings": settings, "mappings": job.mapping()}).encode())
    count = size = 0
    room = threading.Semaphore(4)

    def send(body: bytes) -> None:
        try:
            answer = _ask(port, "POST", f"/{name}/_bulk?filter_path=errors,items.*.error", body)
            assert answer == {"errors": False}, str(answer)[:600]
        finally:
            room.release()

    with ThreadPoolExecutor(2) as pool:
        pending, rows = [], []
        for line in lines(plan):
            count, size = count + 1, size + len(line.text) + 1
            rows.append('{"index":{}}\n' + json.dumps(job.document(line)))
            if len(rows) == BATCH:
                room.acquire()
                pending.append(pool.submit(send, ("\n".join(rows) + "\n").encode()))
                rows = []
        if rows:
            room.acquire()
            pending.append(pool.submit(send, ("\n".join(rows) + "\n").encode()))
        for one in pending:
            one.result()
    _ask(port, "POST", f"/{name}/_refresh", b"")
    _ask(port, "POST", f"/{name}/_forcemerge?max_num_segments=4", b"")
    found = _ask(port, "GET", f"/{name}/_count", b"")["count"]
    assert found == count, (found, count)
    return count, size


def _ask(port: int, method: str, path: str, body: bytes) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        connection.request(
            method, path, body, {"Content-Type": "application/x-ndjson" if "_bulk" in path else "application/json"}
        )
        reply = connection.getresponse()
        text = reply.read()
        assert reply.status < 300, (method, path, reply.status, text[:600])
        return json.loads(text)
    finally:
        connection.close()


def _run(*words: object) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise SystemExit(f"{words[0]} failed: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    return done.stdout


def start_prometheus(place: Path, plan: Plan, stops: ExitStack) -> int:
    """Start a Prometheus that has the history of the job's nodes and return its port."""
    port, history = free_port(), place / "history.om"
    first = math.ceil(plan.lost / plan.scrape) * plan.scrape  # the scrape that sees the Xid first
    words = [
        *(
            "--nodes",
            plan.nodes,
            "--first",
            0,
            "--hours",
            (plan.end - job.START) / 3600,
            "--step",
            plan.scrape,
            "--end",
            plan.end,
        ),
        *("--lost", f"{plan.culprit // job.PER_NODE}:{plan.culprit % job.PER_NODE}", "--ago", plan.end - first - plan.scrape),
        *("--pods", f"{job.JOB}-worker"),
    ]
    with history.open("wb") as out:
        made = [sys.executable, SERVICES / "prometheus" / "dcgm_history.py", *map(str, words)]
        subprocess.run(made, stdout=out, check=True, timeout=900)
    stops.callback(_run, SERVICES / "prometheus" / "stop", "--dir", place / "prometheus", "--purge")
    _run(SERVICES / "prometheus" / "start", "--no-alertmanager", "--dir", place / "prometheus", "--port", port, history)
    history.unlink()
    return port


def start_elasticsearch(place: Path, stops: ExitStack) -> int:
    """Start an Elasticsearch and return its port."""
    port = free_port()
    stops.callback(_run, SERVICES / "elasticsearch" / "stop", place / "elasticsearch")
    _run(SERVICES / "elasticsearch" / "start", port, place / "elasticsearch")
    return port


# -- the measurement ------------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What one run of the command gave."""

    wall: float
    cpu: float
    peak_mb: float
    verdict: dict[str, Any]
    said: str


def triage(environ: dict[str, str], plan: Plan) -> Outcome:
    """Run `workbench triage --job` as a process and return its verdict, time and peak memory."""
    since, until = (datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for moment in (job.START - 60, plan.end))
    command = [sys.executable, "-m", "workbench", "triage", "--job", job.JOB, "--since", since, "--until", until, "-o", "json"]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environ)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0), err.seek(0)
        text, said = out.read().decode(), err.read().decode()
    if process.returncode not in (0, 3):
        raise SystemExit(f"triage ended with {process.returncode}: {said[-2000:]}")
    return Outcome(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, json.loads(text), said)


def wrong(verdict: dict[str, Any], plan: Plan) -> str:
    """Return what is wrong with a verdict; empty when it names the GPU that was lost."""
    culprit = verdict["culprit"]
    told = verdict["class"], culprit["node"], (culprit["gpu"] or {}).get("index"), culprit["rank"]
    right = "hardware/gpu-lost", job.node_of(plan.culprit), plan.culprit % job.PER_NODE, plan.culprit
    return "" if told == right else f"the verdict is {told}, not {right}"


def main() -> int:
    """Fill the servers, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[1])
    parser.add_argument("--nodes", type=int, default=2048, help="of eight ranks each")
    parser.add_argument("--lines", type=int, default=100, help="log lines of each rank, about")
    parser.add_argument("--scrape", type=int, default=30, help="seconds between samples of the metrics")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where servers keep their data; default: a temporary one")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # else the servers would stay
    plan = planned(given.nodes, given.lines, given.scrape)
    bench = Bench(0, 0, given.rounds)
    with ExitStack() as stops:
        place = Path(tempfile.mkdtemp(prefix="fleet-", dir=given.folder))
        stops.callback(shutil.rmtree, place, ignore_errors=True)
        began = time.perf_counter()
        metrics = Relay(start_prometheus(place, plan, stops))
        stops.callback(metrics.close)
        print(f"{plan.nodes * 8:,} GPUs in Prometheus after {time.perf_counter() - began:.0f} s", flush=True)
        logs = Relay(start_elasticsearch(place, stops))
        stops.callback(logs.close)
        count, size = index(logs.behind, "logs-train", plan)
        print(
            f"{count:,} lines of {plan.ranks:,} ranks, {size / 1e6:.0f} MB, indexed after {time.perf_counter() - began:.0f} s",
            flush=True,
        )
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("WORKBENCH_", "KUBE"))} | {
            "HOME": str(place),  # neither a kubeconfig nor settings of whoever runs this
            "PYTHONPATH": str(ROOT),
            "PROMETHEUS_URL": f"http://127.0.0.1:{metrics.port}",
            "ELASTICSEARCH_URL": f"http://127.0.0.1:{logs.port}",
            "WORKBENCH_NODE_ENABLED": "false",
            "WORKBENCH_SLURM_ENABLED": "false",
            "no_proxy": "127.0.0.1",
        }
        outcomes: list[tuple[Outcome, dict[str, int], dict[str, int]]] = []
        for _ in range(given.rounds):
            metrics.reset(), logs.reset()
            outcomes.append((triage(environ, plan), metrics.counted(), logs.counted()))
        outcome, of_metrics, of_logs = sorted(outcomes, key=lambda one: one[0].wall)[len(outcomes) // 2]
    gate = wrong(outcome.verdict, plan)
    ours = f"{outcome.wall:.1f} s ({outcome.cpu:.1f} CPU)"
    bench.add(Row("fleet-seconds", outcome.wall, SECONDS, False, ours, f"{SECONDS:g} s on 2 cores", gate))
    travelled = sum(of_logs.values())
    moved = f"{of_logs['received'] / 1e6:.2f} MB and {of_logs['sent'] / 1e6:.2f} MB of questions"
    bench.add(Row("fleet-logs-moved-%", 100 * travelled / size, 100 * SHARE, False, moved, f"{size / 1e6:.0f} MB of logs"))
    print(
        f"metrics moved {of_metrics['received'] / 1e6:.2f} MB and {of_metrics['sent'] / 1e6:.2f} MB of questions; peak memory {outcome.peak_mb:.0f} MB"
    )
    blind = [
        f"{row['source']} {row['status']}: {row['detail']}"
        for row in outcome.verdict["coverage"]
        if row["status"] not in ("ok", "missing")
    ]
    for line in blind[:12]:
        print(f"  {line[:240]}")
    result = {
        "ranks": plan.ranks,
        "lines": count,
        "log_bytes": size,
        "seconds": round(outcome.wall, 2),
        "processor_seconds": round(outcome.cpu, 2),
        "peak_mb": round(outcome.peak_mb),
        "moved_bytes": {"elasticsearch": of_logs, "prometheus": of_metrics},
        "moved_share_of_logs": travelled / size,
        "verdict": {
            "class": outcome.verdict["class"],
            "culprit": outcome.verdict["culprit"],
            "confidence": outcome.verdict["confidence"],
        },
        "victims": len(outcome.verdict["victims"]),
        "wrong": gate,
    }
    print(json.dumps(result))
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 1 if gate else 0


if __name__ == "__main__":
    sys.exit(main())
