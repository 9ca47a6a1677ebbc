"""Documents of a large job go to processes beside ours: same findings, in the same order, also when such a process dies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import workbench
from workbench.model import Parsed
from workbench.sources.files import Document, read_evidence
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
    return root


def test_processes_find_what_one_process_finds(large_job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    create = Workers.__init__

    def counted(self: Workers, count: int) -> None:
        started.append(count)
        create(self, count)

    monkeypatch.setattr(Workers, "__init__", counted)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    many = workbench.load(large_job)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    one = workbench.load(large_job)

    assert started == [2]
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
