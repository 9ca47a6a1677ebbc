"""
Turn two jobs in a real Elasticsearch into ratios: lines read against the client's own loop, and what push-down moves of a very large job.

    python benchmarks/elasticsearch.py [URL] [--ranks 256] [--steps 800] [--rounds 3] [--pushed-ranks 16384] [--pushed-steps 220]

Without a URL a server is started (tests/services/elasticsearch/start). Server and client share the machine: the ratios within one run count,
in wall time and in seconds of our own processors. To index the large job (4.6 M lines) takes some minutes; `--pushed-ranks 0` leaves it out.
"""

from __future__ import annotations

import argparse
import json
import queue
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
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
from workbench.sources.elasticsearch import typed  # noqa: E402
from workbench.sources.elasticsearch.job import Asked, Found, find  # noqa: E402
from workbench.sources.elasticsearch.source import Access, LogIndex  # noqa: E402
from workbench.sources.elasticsearch.whole import whole  # noqa: E402

SERVICE = ROOT / "tests" / "services" / "elasticsearch"
CHUNK = 5000  # documents of one bulk request


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
    there = client.indices.exists(index=name)
    if not there:
        settings = {"number_of_shards": 2, "number_of_replicas": 0, "refresh_interval": "-1"}
        client.indices.create(index=name, settings=settings, mappings=job.mapping())
    chunks: queue.Queue[bytes | None] = queue.Queue(4)
    failed: list[BaseException] = []

    def send() -> None:
        while (chunk := chunks.get()) is not None:
            try:
                headers = {"content-type": "application/x-ndjson", "accept": "application/json"}
                target = f"/{name}/_bulk?filter_path=errors"
                reply = client.options(request_timeout=300).perform_request("POST", target, headers=headers, body=chunk)
                assert not reply.body["errors"]
            except BaseException as error:  # told below
                failed.append(error)

    senders = [threading.Thread(target=send, daemon=True) for _ in range(2)]
    for sender in senders:
        sender.start()
    lines = size = 0
    chunk: list[str] = []
    for line in job.lines(ranks, steps):
        lines, size = lines + 1, size + len(line.text) + 1
        if not there:
            chunk += ('{"index":{}}\n', json.dumps(job.document(line)), "\n")
            if len(chunk) >= 3 * CHUNK:
                chunks.put("".join(chunk).encode())
                chunk = []
    chunks.put("".join(chunk).encode() if chunk else None)
    for _ in senders:
        chunks.put(None)
    for sender in senders:
        sender.join()
    if failed:
        client.indices.delete(index=name)
        raise failed[0]
    if not there:
        client.indices.refresh(index=name)
        client.options(request_timeout=600).indices.forcemerge(index=name, max_num_segments=4)
    return name, lines, size


def asked_for(url: str, name: str, ranks: int, steps: int) -> tuple[LogIndex, Scope, Asked, Found]:
    """Return the source, the scope of the job, and its lines found."""
    scope = Scope(job.JOB, job.START - 60, job.START + steps * 2 + 700 + ranks / 100)
    source = LogIndex(Access(url), name, clock=lambda: scope.until)
    asked = Asked(source.server, name, source.detected(Deadline(60)), Deadline(600))
    return source, scope, asked, find(asked, scope)


def timed(rounds: int, works: dict[str, Callable[[], int]], lines: int) -> dict[str, tuple[float, float]]:
    """Return for each work the median seconds and the median seconds of our own processor time; they take turns, since the machine is shared."""
    taken: dict[str, list[tuple[float, float]]] = {label: [] for label in works}
    for _ in range(rounds):
        for label, work in works.items():
            began, spent = time.perf_counter(), time.process_time()
            count = work()
            taken[label].append((time.perf_counter() - began, time.process_time() - spent))
            assert count == lines, (label, count, lines)
    return {
        label: (statistics.median(each[0] for each in some), statistics.median(each[1] for each in some))
        for label, some in taken.items()
    }


def pulls(client: Elasticsearch, url: str, ranks: int, steps: int, rounds: int) -> dict[str, Any]:
    """Measure the reading of a whole log."""
    name, lines, size = indexed(client, ranks, steps)
    print(f"{ranks:,} ranks, {lines:,} lines, {size / 1e6:.0f} MB of text: the whole log")
    source, _, asked, found = asked_for(url, name, ranks, steps)
    assert found.total == lines, (found.total, lines)

    def scanned() -> int:
        """Read with the client's own loop, as it comes."""
        return sum(1 for _ in helpers.scan(client, index=name, query={"query": found.query}))

    def tuned() -> int:
        """Read with the client's own loop, with large pages and our five fields only."""
        query = {"query": found.query, "_source": ["@timestamp", "message", "labels.rank", "host.name", "log.offset"]}
        return sum(1 for _ in helpers.scan(client, index=name, query=query, size=5000))

    def pulled() -> int:
        got = whole(asked, found, Deadline(600), most=10**9)
        assert not got.trouble, got.trouble
        return got.lines

    def ordered() -> int:
        got = whole(asked, found, Deadline(600), most=10**9)
        assert not got.trouble, got.trouble
        return sum(len(stream.entries) for stream in got.streams(asked, found))

    results: dict[str, Any] = {"lines": lines, "log_bytes": size}
    msgspec = typed._msgspec

    def by(work: Callable[[], int], decode: bool) -> Callable[[], int]:
        def run() -> int:
            typed._msgspec = msgspec if decode else lambda: None
            try:
                return work()
            finally:
                typed._msgspec = msgspec

        return run

    works = {"helpers.scan": scanned, "helpers.scan, 5,000, 5 fields": tuned, "read, plain decode": by(pulled, False)}
    works["and in order, by rank, plain"] = by(ordered, False)
    if msgspec() is not None:
        works |= {"read, typed decode": by(pulled, True), "and in order, by rank, typed": by(ordered, True)}
    taken = timed(rounds, works, lines)
    bounds = {"read, plain decode": 1, "read, typed decode": 4}
    bases = [taken[label] for label in list(works)[:2]]
    for label, (seconds, cpu) in taken.items():
        ratios = [(base / seconds, base_cpu / cpu) for base, base_cpu in bases]
        results[label] = {"lines_per_second": lines / seconds, "lines_per_cpu_second": lines / cpu, "ratios": ratios}
        print(
            f"  {label:32} {lines / seconds:10,.0f} lines/s {lines / cpu / 1e3:8,.0f} k lines per CPU-s   x scan in wall time, per CPU-s: "
            + "; ".join(f"{wall:.2f}, {own:.2f}" for wall, own in ratios)
            + (f"   (asked: >= {bounds[label]})" if label in bounds else "")
        )
    source.close()
    return results


def pushed(url: str, ranks: int, steps: int, lines: int, size: int) -> dict[str, Any]:
    """Measure push-down, from the question to the verdict, in this process."""
    name = f"bench-{ranks}-{steps}"
    source, scope, _, _ = asked_for(url, name, ranks, steps)
    source.whole = 0
    with tempfile.TemporaryDirectory() as root:
        received, moved, began = source.server.received, source.server.moved, time.perf_counter()
        (answer,) = source.collect(scope, Folder(Path(root), limit=64 << 30), Deadline(600))
        seconds = time.perf_counter() - began
        verdict = load(root).triage().to_dict()
        told = time.perf_counter() - began
    unpacked, wire = source.server.received - received, source.server.moved - moved
    source.close()
    culprit = verdict["culprit"]["node"], verdict["culprit"]["rank"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{ranks:,} ranks, {lines:,} lines, {size / 1e6:.0f} MB of text: push-down")
    print(f"  {answer.status}: {answer.detail}")
    print(
        f"  moved {unpacked / 1e6:.2f} MB unpacked = {unpacked / size:.3%} of the log, {wire / 1e6:.2f} MB on the wire = {wire / size:.3%}   (asked: <= 1 %)"
    )
    print(
        f"  {seconds:.1f} s to collect, {told:.1f} s to the verdict (asked: <= 60), peak {peak} MB; {verdict['class']} {culprit}"
    )
    assert (verdict["class"], *culprit) == ("user/exception", job.node_of(job.CULPRIT), job.CULPRIT)
    return {
        "ranks": ranks, "lines": lines, "log_bytes": size, "seconds": seconds, "to_verdict": told, "unpacked": unpacked, "wire": wire,
        "share": unpacked / size, "wire_share": wire / size, "peak_mb": peak,
    }  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?")
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pushed-ranks", type=int, default=16384)
    parser.add_argument("--pushed-steps", type=int, default=220)
    parser.add_argument("--only-pushed", nargs=2, type=int, metavar=("LINES", "BYTES"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    ranks, steps = given.pushed_ranks, given.pushed_steps
    if given.only_pushed:
        print(json.dumps(pushed(given.url, ranks, steps, *given.only_pushed)))
        return
    results: dict[str, Any] = {"time": datetime.now(UTC).isoformat(timespec="seconds")}
    with server(given.url) as url, Elasticsearch(url, request_timeout=120) as client:
        if given.ranks:
            results["whole"] = pulls(client, url, given.ranks, given.steps, given.rounds)
        if ranks:
            _, lines, size = indexed(client, ranks, steps)
            child = [sys.executable, __file__, url, "--pushed-ranks", str(ranks), "--pushed-steps", str(steps)]
            # in a process of its own, whose peak memory is that of the work alone
            done = subprocess.run([*child, "--only-pushed", str(lines), str(size)], check=True, capture_output=True, text=True)
            *said, last = done.stdout.splitlines()
            print("\n".join(said))
            results["pushed"] = json.loads(last)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
