"""The files of a large job go to processes beside ours: same findings, in the same order, also when such a process dies."""

from __future__ import annotations

import gzip
import os
import tarfile
from pathlib import Path

import pytest

import workbench
from workbench.model import Parsed
from workbench.sources.files import Document, read_evidence
from workbench.sources.survey import survey
from workbench.sources.walk import Found
from workbench.workers import Workers

RANKS = 2300


@pytest.fixture(scope="module")
def large_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs of many ranks, one of which raised; of the last ones some have stamps without a year."""
    root = tmp_path_factory.mktemp("large")
    (root / "logs").mkdir()
    for rank in range(RANKS):
        stamp = "2026-05-04 10:00:0{}" if rank % 100 else "May  4 10:00:0{}"
        rows = [f"{stamp.format(second)} [rank{rank}]: step {second} loss 2.0" for second in range(4)]
        if rank == RANKS - 7:
            rows += [
                f"[rank{rank}]: Traceback (most recent call last):",
                f'[rank{rank}]:   File "/w/train.py", line 7, in step',
                f"[rank{rank}]: KeyError: 'labels'",
            ]
        (root / "logs" / f"rank-{rank:05d}.log").write_text("\n".join(rows) + "\n", encoding="utf-8")
    # what is not sent to a process, and what cannot be read
    for folder in ("kernel", "metrics", "nested"):
        (root / folder).mkdir()
    (root / "kernel" / "node-1.log").write_text("[    1.000000] pci 0000:3b:00.0: enabling device\n", encoding="utf-8")
    (root / "kernel" / "core").write_bytes(b"\x7fELF" + bytes(range(128, 256)) * 4)
    (root / "logs" / "rank-99999.log.gz").write_bytes(gzip.compress(b"2026-05-04 10:00:01 step 3 loss 2.0\n" * 400)[:-20])
    (root / "metrics" / "node-1.prom").write_text('DCGM_FI_DEV_GPU_TEMP{gpu="0",Hostname="node-1"} 41\n', encoding="utf-8")
    with tarfile.open(root / "nested" / "more.tar", "w") as archive:
        archive.add(root / "logs" / "rank-00001.log", "rank-3000.log")
    return root


def test_processes_find_what_one_process_finds(large_job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    create = Workers.__init__

    def counted(self: Workers, count: int) -> None:
        started.append(count)
        create(self, count)

    monkeypatch.setattr(Workers, "__init__", counted)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    told: list[tuple[int, int]] = []
    many = workbench.load(large_job, progress=lambda done, total, _: told.append((done, total)))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    one = workbench.load(large_job)

    assert started == [2]
    assert told[-1][0] == told[-1][1] == sum(file.stat().st_size for file in large_job.rglob("*") if file.is_file())
    assert len(one.problems) >= 2
    assert [len(series.times) for series in many.series] == [1]
    assert [document.name for document in many.documents] == [document.name for document in one.documents]
    assert many.records == one.records
    assert many.problems == one.problems
    verdict = many.triage()
    assert (verdict.cls, verdict.rank) == ("user/exception", RANKS - 7)


def test_the_work_of_a_process_that_was_killed_is_done_here(large_job: Path) -> None:
    documents = [found for found in read_evidence([large_job / "logs" / "rank-02293.log"]) if isinstance(found, Document)]
    workers = Workers(1)
    try:
        (before,) = workers.parse(documents).result(timeout=60)
        workers._all[0].kill()
        workers._all[0].wait()
        (after,) = workers.parse(documents).result(timeout=60)
    finally:
        workers.close()
    assert isinstance(before, Parsed)
    assert isinstance(after, Parsed)
    assert [event.text for event in after.events] == [event.text for event in before.events]
    assert any("KeyError" in event.text for event in after.events)


def test_a_large_job_in_an_archive_is_parsed_by_processes_too(large_job: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "job.tar", "w") as archive:
        archive.add(large_job / "logs", "logs")

    verdict = workbench.load(tmp_path / "job.tar").triage()

    assert (verdict.cls, verdict.rank) == ("user/exception", RANKS - 7)


def test_files_are_read_here_when_the_process_was_killed(large_job: Path) -> None:
    found = [
        Found(f"logs/rank-{rank:05d}.log", str(large_job / "logs" / f"rank-{rank:05d}.log"), 0, None) for rank in (2292, 2293)
    ]
    workers = Workers(1)
    try:
        workers._all[0].kill()
        workers._all[0].wait()
        outcomes = workers.read(found, survey(found)).result(timeout=60)
    finally:
        workers.close()
    names = [outcome[0].name for outcome in outcomes if isinstance(outcome, tuple)]
    assert names == ["logs/rank-02292.log", "logs/rank-02293.log"]
