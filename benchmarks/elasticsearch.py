"""
Turn one job in a real Elasticsearch into three numbers: lines per second against the client's own loop, and what push-down moves.

    python benchmarks/elasticsearch.py [URL] [--ranks 256] [--steps 800] [--rounds 3]

Without a URL a server is started (tests/services/elasticsearch/start). Ratios within one run count, since server and client share the machine.
"""

from __future__ import annotations

import argparse
import json
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:] = [
    str(ROOT),
    *(each for each in sys.path if Path(each or ".").resolve() != ROOT / "benchmarks"),
]  # this file's name is the client's

from elasticsearch import Elasticsearch, helpers  # noqa: E402

from tests.services.elasticsearch import job  # noqa: E402
from workbench.incident import load  # noqa: E402
from workbench.sources.contract import Deadline, Folder, Scope  # noqa: E402
from workbench.sources.elasticsearch import typed as typed  # noqa: E402
from workbench.sources.elasticsearch.job import Asked, find  # noqa: E402
from workbench.sources.elasticsearch.pull import pull  # noqa: E402
from workbench.sources.elasticsearch.source import Access, LogIndex  # noqa: E402

SERVICE = ROOT / "tests" / "services" / "elasticsearch"


@contextmanager
def server(url: str | None) -> Iterator[str]:
    """Yield the address of a server: the one named, or one of our own."""
    if url:
        yield url
        return
    with tempfile.TemporaryDirectory() as data, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        done = subprocess.run([SERVICE / "start", str(port), data], capture_output=True, text=True, check=True)
        try:
            yield dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)["url"]
        finally:
            subprocess.run([SERVICE / "stop", data], check=False)


def indexed(client: Elasticsearch, ranks: int, steps: int) -> tuple[str, int, int]:
    """Return the index that holds the job, its lines and the bytes of their text."""
    name = f"bench-{ranks}-{steps}"
    lines = size = 0
    if client.indices.exists(index=name):
        for line in job.lines(ranks, steps):
            lines, size = lines + 1, size + len(line.text) + 1
        return name, lines, size
    settings = {"number_of_shards": 2, "number_of_replicas": 0, "refresh_interval": "-1"}
    client.indices.create(index=name, settings=settings, mappings=job.mapping())

    def documents() -> Iterator[dict[str, Any]]:
        nonlocal lines, size
        for line in job.lines(ranks, steps):
            lines, size = lines + 1, size + len(line.text) + 1
            yield {"_index": name, **job.document(line)}

    for _ in helpers.parallel_bulk(client, documents(), thread_count=2, chunk_size=3000):
        pass
    client.indices.refresh(index=name)
    client.indices.forcemerge(index=name, max_num_segments=4)
    return name, lines, size


def best(rounds: int, work: Callable[[], int]) -> tuple[float, float, int]:
    """Return the median seconds, the median seconds of our own processor time, and what the work returned."""
    seconds, own, result = [], [], 0
    for _ in range(rounds):
        began, spent = time.perf_counter(), time.process_time()
        result = work()
        seconds.append(time.perf_counter() - began)
        own.append(time.process_time() - spent)
    return statistics.median(seconds), statistics.median(own), result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?")
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    results: dict[str, Any] = {"ranks": given.ranks, "steps": given.steps}
    with server(given.url) as url, Elasticsearch(url, request_timeout=120) as client:
        name, lines, size = indexed(client, given.ranks, given.steps)
        results |= {"lines": lines, "log_bytes": size}
        print(f"{lines:,} lines, {size / 1e6:.0f} MB of text")
        scope = Scope(job.JOB, job.START - 60, job.START + given.steps * 2 + 2000 + given.ranks)
        source = LogIndex(Access(url), name, clock=lambda: scope.until)
        asked = Asked(source.server, name, source.detected(Deadline(60)), Deadline(600))
        found = find(asked, scope)
        assert found.total == lines, (found.total, lines)

        def scanned() -> int:
            query = {"query": found.query, "_source": ["@timestamp", "message", "labels.rank", "host.name", "log.offset"]}
            return sum(1 for _ in helpers.scan(client, index=name, query=query, size=5000, preserve_order=False))

        def pulled() -> int:
            got = pull(source.server, name, found.query, asked.fields, asked.wanted(found), Deadline(600), most=10**9)
            assert not got.trouble, got.trouble
            return len(got.rows)

        base, base_cpu, count = best(given.rounds, scanned)
        assert count == lines
        print(f"{'helpers.scan':32} {lines / base:10,.0f} lines/s {lines / base_cpu / 1e3:8,.0f} k lines per CPU-s")
        for label, on in (("pull, 4 slices, in order", False), ("pull, typed decode", True)):
            typed._decoder = None if on else False
            if on and not typed._page_decoder():
                print(f"{label:32} msgspec is not installed")
                continue
            seconds, cpu, count = best(given.rounds, pulled)
            assert count == lines, (count, lines)
            results[label] = {"ratio": base / seconds, "cpu_ratio": base_cpu / cpu}
            print(
                f"{label:32} {lines / seconds:10,.0f} lines/s {lines / cpu / 1e3:8,.0f} k lines per CPU-s   "
                f"{base / seconds:.2f} x scan, {base_cpu / cpu:.2f} x per CPU-s"
            )
        typed._decoder = None
        for whole, label in ((10**9, "whole"), (0, "pushed down")):
            source.whole, source.most = whole, 10**9 if whole else 400_000
            with tempfile.TemporaryDirectory() as root:
                before, began = source.server.received, time.perf_counter()
                (answer,) = source.collect(scope, Folder(Path(root), limit=64 << 30), Deadline(600))
                seconds, moved = time.perf_counter() - began, source.server.received - before
                verdict = load(root).triage().to_dict()
                told = time.perf_counter() - began
                culprit = verdict["culprit"]["node"], verdict["culprit"]["rank"]
                print(
                    f"{label:32} {seconds:8.1f} s to collect, {told:6.1f} s to the verdict, {moved / 1e6:8.1f} MB moved = {moved / size:7.2%} of the log; "
                    f"{verdict['class']} {culprit} ({answer.status}, {answer.rows:,} lines)"
                )
                assert (verdict["class"], *culprit) == ("user/exception", job.node_of(job.CULPRIT), job.CULPRIT)
                results[label] = {"seconds": seconds, "to_verdict": told, "moved": moved, "share": moved / size}
        source.close()
    results["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps(results))


if __name__ == "__main__":
    main()
