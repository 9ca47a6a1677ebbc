"""All sources are asked at once, each for as long as it may; what one lacks is told, and the others still count."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import workbench
from workbench.errors import SourceUnavailable
from workbench.sources.contract import Answer, Deadline, Folder, FolderFull, Reach, Scope, SourceTimeout
from workbench.sources.gather import AROUND, gather

SCOPE = Scope("llm-pretrain", since=1_777_888_000.0, until=1_777_895_000.0)
LOG = (
    "2026-05-04 10:00:00,000 - trainer - INFO - rank 0/1 local_rank 0 on node-a cuda:0\n"
    "2026-05-04 10:00:05,000 - trainer - INFO - step 1 loss 2.0\n"
    "[rank0]: Traceback (most recent call last):\n"
    '[rank0]:   File "/w/train.py", line 7, in step\n'
    "[rank0]: KeyError: 'labels'\n"
)


@dataclass
class Told:
    """A source that does what a test says."""

    name: str
    find: Callable[[Scope, Deadline], Scope | None] = lambda scope, deadline: None
    tell: Callable[[Scope, Folder, Deadline], list[Answer]] = lambda scope, folder, deadline: []

    def locate(self, scope: Scope, deadline: Deadline) -> Scope | None:
        return self.find(scope, deadline)

    def collect(self, scope: Scope, folder: Folder, deadline: Deadline) -> list[Answer]:
        return self.tell(scope, folder, deadline)

    def examine(self, deadline: Deadline) -> list[Reach]:
        return []


def _logs(scope: Scope, folder: Folder, deadline: Deadline) -> list[Answer]:
    folder.write("logs/rank-0.log", LOG.encode())
    return [Answer("job", "ok", "1 log", file="logs/rank-0.log", rows=5)]


def _raise(error: Exception) -> Callable[..., list[Answer]]:
    def tell(*_: object) -> list[Answer]:
        raise error

    return tell


def test_what_a_scheduler_knows_narrows_what_the_others_are_asked(tmp_path: Path) -> None:
    seen: list[Scope] = []

    def remember(scope: Scope, folder: Folder, deadline: Deadline) -> list[Answer]:
        seen.append(scope)
        return []

    found = replace(SCOPE, since=SCOPE.since + 2000, until=SCOPE.until - 3000, nodes=("node-a",), namespace="train")
    gathered = gather(
        SCOPE, [Told("kubernetes", lambda *_: found), Told("slurm"), Told("prometheus", tell=remember)], Folder(tmp_path)
    )

    assert (seen[0].nodes, seen[0].namespace) == (("node-a",), "train")
    assert (seen[0].since, seen[0].until) == (found.since - AROUND, found.until + AROUND)
    assert gathered.scope == seen[0]
    assert [answer.status for answer in gathered.answers["prometheus"]] == ["missing"]


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(_raise(SourceUnavailable("connection refused", hint="is it up?")), id="refused"),
        pytest.param(_raise(ZeroDivisionError("division by zero")), id="defect"),
        pytest.param(lambda *_: time.sleep(30) or [], id="hangs"),
    ],
)
def test_one_source_that_fails_costs_only_what_it_knows(tmp_path: Path, wrong: Callable[..., list[Answer]]) -> None:
    begun = time.monotonic()
    gathered = gather(
        SCOPE,
        [Told("elasticsearch", lambda scope, _: replace(scope, nodes=("node-a",)), _logs), Told("prometheus", tell=wrong)],
        Folder(tmp_path),
        seconds=0.5,
    )

    assert time.monotonic() - begun < 8
    (failed,) = gathered.failed
    assert (failed.source, failed.status) == ("metrics", "failed")
    assert failed.hint
    verdict = workbench.load(tmp_path).triage()
    assert verdict.cls == "user/exception"
    assert next(entry.status for entry in verdict.coverage if entry.source == "metrics") == "failed"


def test_a_source_that_comes_back_after_its_deadline_writes_nothing(tmp_path: Path) -> None:
    refused: list[str] = []

    def late(scope: Scope, folder: Folder, deadline: Deadline) -> list[Answer]:
        time.sleep(3.2)
        try:
            folder.write("logs/late.log", b"x")
        except SourceTimeout:
            refused.append("late")
        return []

    gather(SCOPE, [Told("elasticsearch", tell=late)], Folder(tmp_path), seconds=0.5)
    end = time.monotonic() + 10
    while not refused and time.monotonic() < end:
        time.sleep(0.05)

    assert refused == ["late"]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["manifest.json"]


def test_nobody_knows_the_job(tmp_path: Path) -> None:
    gathered = gather(SCOPE, [Told("kubernetes")], Folder(tmp_path))
    (answer,) = gathered.answers["workbench"]
    assert answer.status == "partial"
    assert "--namespace" in answer.hint


def test_the_manifest_lists_questions_and_files_with_their_hashes(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    gather(SCOPE, [Told("elasticsearch", tell=_logs)], folder)
    document = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))
    assert document["schema"] == "workbench.manifest/1"
    assert document["scope"]["job"] == "llm-pretrain"
    assert document["sources"][0]["answers"][0]["file"] == "logs/rank-0.log"
    (file,) = document["files"]
    assert (file["name"], file["size"], len(file["sha256"])) == ("logs/rank-0.log", len(LOG), 64)


def test_a_full_folder_says_so_and_keeps_no_torn_file(tmp_path: Path) -> None:
    folder = Folder(tmp_path, limit=100)
    folder.write("logs/a.log", b"x" * 60)
    with pytest.raises(FolderFull, match="more than 0 MiB"):
        folder.write("logs/b.log", (b"y" * 30 for _ in range(3)))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a.log"]
    assert folder.size == 60


@pytest.mark.parametrize("name", ["../x", "/etc/x", "logs/../../x"])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="leads out"):
        Folder(tmp_path / "incident").write(name, b"x")


def test_a_deadline_that_is_over_raises() -> None:
    now = [0.0]
    deadline = Deadline(10, clock=lambda: now[0])
    assert deadline.left(3) == 3
    now[0] = 11
    assert deadline.over
    with pytest.raises(SourceTimeout):
        deadline.left()
