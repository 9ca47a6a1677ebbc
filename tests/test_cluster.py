"""A Dask cluster gives the answer of one machine, also when it loses a worker; incidents of a year are triaged once each."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import workbench
from workbench.backfill import backfill, incidents_in
from workbench.cli import exits, main
from workbench.cluster import Cluster
from workbench.errors import SourceUnavailable
from workbench.report.verdict_json import to_json
from workbench.shipped import example_path
from workbench.workers import Workers

RANKS = 600


def _log(rank: int) -> str:
    rows = [
        f"2026-05-04 10:{second // 60:02d}:{second % 60:02d},000 [rank{rank}]: step {second} loss 2.0" for second in range(40)
    ]
    if rank == 321:
        rows += [
            f"[rank{rank}]: Traceback (most recent call last):",
            f'[rank{rank}]:   File "/w/train.py", line 7, in step',
            f"[rank{rank}]: KeyError: 'labels'",
        ]
    return "\n".join(rows) + "\n"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("job")
    (root / "logs").mkdir()
    for rank in range(RANKS):
        (root / "logs" / f"rank-{rank:05d}.log").write_text(_log(rank), encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five incidents, one of them no archive at all."""
    root = tmp_path_factory.mktemp("year")
    for name in ("nvlink-switch", "gpu-memory", "preempted"):
        shutil.copy(example_path(name), root / f"2026-03-{name}.tar.gz")
    shutil.unpack_archive(example_path("checkpoint-disk-full"), root / "2026-04-disk", filter="data")
    (root / "2026-05-torn.tar.gz").write_bytes(b"\x1f\x8b\x08 torn")
    return root


class Dask:
    """A scheduler and two workers as programs of their own, without a nanny: a worker that is killed stays dead."""

    def __init__(self, folder: Path) -> None:
        environ = os.environ | {"DASK_DISTRIBUTED__SCHEDULER__WORK_STEALING": "True", "PYTHONPATH": os.pathsep.join(sys.path)}
        where = folder / "scheduler.json"
        common = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
        self.processes = [
            subprocess.Popen(
                [*common, "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(where)],
                env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
        ]  # fmt: skip
        end = time.monotonic() + 60
        while not where.exists() or not where.read_text(encoding="utf-8").strip():
            assert time.monotonic() < end, "the scheduler did not start"
            time.sleep(0.05)
        self.address: str = json.loads(where.read_text(encoding="utf-8"))["address"]
        for number in range(2):
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "distributed.cli.dask_worker", self.address, "--nthreads", "1", "--no-nanny", "--no-dashboard",
                     "--host", "127.0.0.1", "--local-directory", str(folder / f"worker-{number}")],
                    env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )
            )  # fmt: skip

    def ready(self) -> Cluster:
        """Return the cluster when both workers are there."""
        end = time.monotonic() + 60
        while True:
            try:
                cluster = Cluster(self.address)
                if cluster.size == 2:
                    return cluster
                cluster.close()
            except SourceUnavailable:
                if time.monotonic() > end:
                    raise
            time.sleep(0.2)

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.wait()


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[Dask]:
    started = Dask(tmp_path)
    try:
        yield started
    finally:
        started.stop()


def test_the_cluster_that_loses_a_worker_says_what_one_machine_says(dask: Dask, job: Path) -> None:
    alone = workbench.load(job)
    cluster = dask.ready()
    killed = threading.Event()

    def progress(done: int, total: int, name: str) -> None:
        if not killed.is_set() and done > total // 10:
            killed.set()
            dask.processes[-1].send_signal(signal.SIGKILL)

    try:
        shared = workbench.load(job, pool=cluster, progress=progress)
        assert cluster.size == 1
    finally:
        cluster.close()

    assert killed.is_set()
    assert [document.name for document in shared.documents] == [document.name for document in alone.documents]
    assert shared.records == alone.records
    assert to_json(shared.triage())["culprit"] == to_json(alone.triage())["culprit"]
    assert shared.triage().rank == 321


def test_backfill_on_the_cluster_and_here_give_the_same_verdicts(dask: Dask, year: Path) -> None:
    paths = incidents_in([year])
    cluster = dask.ready()
    try:
        there = {document["incident"]: document["class"] for document in backfill(paths, pool=cluster)}
    finally:
        cluster.close()
    here = {document["incident"]: document["class"] for document in backfill(paths)}

    assert there == here
    assert {Path(name).name: cls for name, cls in here.items()} == {
        "2026-03-nvlink-switch.tar.gz": "hardware/nvlink",
        "2026-03-gpu-memory.tar.gz": "hardware/gpu-memory",
        "2026-03-preempted.tar.gz": "platform/preemption",
        "2026-04-disk": "platform/storage",
        "2026-05-torn.tar.gz": "unknown",
    }


def test_backfill_goes_on_where_it_was_left(year: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "verdicts.jsonl"
    first = next(iter(backfill(incidents_in([year])[:1])))
    out.write_text(json.dumps(first) + '\n{"schema": "workbench.verd', encoding="utf-8")

    code = main(["backfill", str(year), "-o", str(out)])

    names = [json.loads(line)["incident"] for line in out.read_text(encoding="utf-8").splitlines()]
    assert sorted(names) == incidents_in([year])
    told = capsys.readouterr()
    assert "4 triaged, 1 were there" in told.err
    assert "platform/storage" in told.out
    assert code == exits.OK


def test_a_process_that_dies_of_an_incident_costs_no_verdict(year: Path) -> None:
    workers = Workers(1)
    try:
        workers._all[0].kill()
        workers._all[0].wait()
        document = workers.triage(str(year / "2026-04-disk")).result(timeout=60)
    finally:
        workers.close()
    assert document["class"] == "platform/storage"


def test_an_address_at_which_nothing_listens() -> None:
    with pytest.raises(SourceUnavailable, match="does not answer") as caught:
        Cluster("tcp://127.0.0.1:9", seconds=1)
    assert "dask scheduler" in caught.value.hint


def test_a_folder_without_incidents(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match="no incidents in it"):
        incidents_in([tmp_path])
    assert main(["backfill", str(tmp_path / "none")]) == exits.UNAVAILABLE
