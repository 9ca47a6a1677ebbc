"""A Dask cluster gives the answer of one machine, also when it loses a worker; incidents of a year are triaged once each."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import workbench
from tests.dask_cluster import Dask, busy, done_twice
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


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[Dask]:
    started = Dask(tmp_path)
    try:
        yield started
    finally:
        started.stop()


def test_the_cluster_that_loses_a_worker_says_what_one_machine_says(dask: Dask, job: Path) -> None:
    """The worker is halted first, so that it surely has work in hand when it is killed."""
    alone = workbench.load(job)
    cluster = dask.ready()
    told: list[tuple[int, int]] = []
    in_hand: list[int] = []
    dask.workers[1].send_signal(signal.SIGSTOP)

    def progress(done: int, total: int, name: str) -> None:
        told.append((done, total))
        if not in_hand and done > total // 10:
            in_hand.append(dask.ask(busy)["in_hand"]["worker-1"])
            dask.kill(1)

    try:
        shared = workbench.load(job, pool=cluster, progress=progress)
        again = dask.ask(done_twice)
        assert cluster.size == 1
        assert cluster.said() == "1 of the cluster's 2 workers went away; others did their work again"
    finally:
        cluster.close()

    assert in_hand[0] >= 1
    assert again >= in_hand[0]
    assert len(told) >= 10
    assert told[-1][0] == told[-1][1] == sum(file.stat().st_size for file in job.rglob("*.log"))
    assert [document.name for document in shared.documents] == [document.name for document in alone.documents]
    assert shared.records == alone.records
    verdict = to_json(shared.triage())
    assert verdict == to_json(alone.triage())
    assert verdict["culprit"]["rank"] == 321


@pytest.mark.parametrize("lost", ["workers", "scheduler"])
def test_what_a_cluster_that_is_gone_has_not_done_is_done_here(
    dask: Dask, job: Path, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.cluster._ALONE", 0.5)
    cluster = dask.ready()
    try:
        if lost == "workers":
            dask.kill(0)
            dask.kill(1)
        else:
            dask.scheduler.kill()
            dask.scheduler.wait()
        shared = workbench.load(job, pool=cluster)
        assert "no workers any more" in cluster.said()
    finally:
        cluster.close()
    assert to_json(shared.triage()) == to_json(workbench.load(job).triage())


def test_a_person_is_told_what_was_lost(dask: Dask, job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dask.ready().close()
    lost = threading.Event()

    def kill_busy() -> None:
        while not dask.ask(busy)["in_hand"].get("worker-1"):
            time.sleep(0.01)
        dask.kill(1)
        lost.set()

    thread = threading.Thread(target=kill_busy)
    thread.start()
    code = main(["triage", str(job), "--scheduler", dask.address, "--output", "json"])
    thread.join()
    told = capsys.readouterr()

    assert lost.is_set()
    assert "1 of the cluster's 2 workers went away" in told.err
    assert json.loads(told.out)["culprit"]["rank"] == 321
    assert code in (exits.OK, exits.INCOMPLETE)


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
