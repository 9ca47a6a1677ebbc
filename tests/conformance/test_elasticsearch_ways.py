"""How the lines of a Slurm job are found, whatever the site calls its log files: the fake and the real server tell the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("elasticsearch")

from tests.conformance.test_elasticsearch import Server, server  # noqa: F401
from workbench.incident import load
from workbench.sources.contract import Answer, Deadline, Folder, Scope, Source
from workbench.sources.gather import gather

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
START = 1_760_000_000.0
NODES = ("g1152", "g1155.cluster.local")
MAPPING = {
    "properties": {
        "@timestamp": {"type": "date"},
        "message": {"type": "text"},
        "host.name": {"type": "keyword"},
        "log.offset": {"type": "long"},
        "log.file.path": {"type": "keyword"},
    }
}


def lines(path: str, node: str, many: int = 3, message: str = "step 1") -> list[dict[str, Any]]:
    return [
        {
            "@timestamp": int((START + 60 + at) * 1000),
            "message": f"{message} {at}",
            "host.name": node,
            "log.file.path": path,
            "log.offset": 100 * at,
        }
        for at in range(many)
    ]


def scope(**more: Any) -> Scope:
    """What is known of job 4711 once Slurm has told it."""
    known = {"nodes": NODES, "names": ("bert-large",), "user": "alice", "paths": ("/home/alice/out/train.out",)}
    return Scope("4711", START, START + 600, **{**known, **more})


def found(server: Server, documents: list[dict[str, Any]], root: Path, **more: Any) -> tuple[Answer, str]:  # noqa: F811
    """Return the answer about the job's log, and all that was written of it."""
    source = server.source(server.index("filebeat-ways", MAPPING, documents), clock=lambda: START + 600)
    try:
        answers = source.collect(scope(**more), Folder(root), Deadline(60))
    finally:
        source.close()
    (answer,) = [answer for answer in answers if answer.source == "job"]
    return answer, "".join(path.read_text() for path in sorted(root.rglob("*.log")))


def test_a_number_is_found_as_a_whole(server: Server, tmp_path: Path) -> None:  # noqa: F811
    documents = [*lines("/logs/4711/rank0.log", "g1152"), *lines("/logs/147110/rank0.log", "g1152", 5, "other")]
    answer, text = found(server, documents, tmp_path)
    assert (answer.status, answer.rows) == ("ok", 3), answer
    assert "found by its number in the path" in answer.detail
    assert "other" not in text


@pytest.mark.parametrize("path", ["/runs/bert-large/rank0.log", "/runs/alice.bert-large_v2/0.log"])
def test_a_name_in_the_path_counts_on_the_nodes_of_the_job(server: Server, tmp_path: Path, path: str) -> None:  # noqa: F811
    """The node may be named with its domain by one and without it by the other."""
    documents = [
        *lines(path, "g1152"),
        *lines(path, "g1155", 4),
        *lines(path, "g9999", 5, "other"),  # another job of that name elsewhere
        *lines("/runs/robert-largest/0.log", "g1152", 6, "other"),
    ]
    answer, text = found(server, documents, tmp_path)
    assert (answer.status, answer.rows) == ("ok", 7), answer
    assert answer.note == "found by its name bert-large in the path, on its 2 nodes"
    assert "other" not in text


def test_the_output_file_that_slurm_names_and_the_logs_of_the_ranks_come_together(server: Server, tmp_path: Path) -> None:  # noqa: F811
    documents = [*lines("/home/alice/out/train.out", "g1152", 2), *lines("/runs/bert-large/rank1.log", "g1155")]
    answer, _ = found(server, documents, tmp_path)
    assert (answer.status, answer.rows) == ("ok", 5), answer
    assert answer.note == ("found 2 by the output file that Slurm names, 3 by its name bert-large in the path, on its 2 nodes")


def test_what_only_its_user_or_its_nodes_tell_is_not_surely_its_own(server: Server, tmp_path: Path) -> None:  # noqa: F811
    by_user = [*lines("/home/alice/run7/rank0.log", "g1152"), *lines("/home/malice/run7/rank0.log", "g1152", 5, "other")]
    answer, text = found(server, by_user, tmp_path / "a")
    assert (answer.status, answer.rows) == ("partial", 3), answer
    assert "by its user alice in the path, its 2 nodes and its window: other jobs of this user may be among them" in answer.detail
    assert "other" not in text
    answer, _ = found(server, lines("/var/log/app.log", "g1155"), tmp_path / "b")
    assert (answer.status, answer.rows) == ("partial", 3), answer
    assert "by its 2 nodes and its window alone: what else ran there may be among them" in answer.detail
    answer, _ = found(server, lines("/var/log/app.log", "g9999"), tmp_path / "c")
    assert answer.status == "missing"


def test_a_job_asked_for_by_name_is_found_under_its_number(server: Server, tmp_path: Path) -> None:  # noqa: F811
    many = tuple(str(number) for number in range(4711, 5300))  # the tasks of an array: more than one expression may hold
    answer, _ = found(server, lines("/logs/slurm-5100.out", "g1152"), tmp_path, names=("bert-large", *many))
    assert (answer.status, answer.rows) == ("ok", 3), answer


def test_without_a_scheduler_only_the_number_counts(server: Server, tmp_path: Path) -> None:  # noqa: F811
    nothing = {"nodes": (), "names": (), "user": "", "paths": ()}
    answer, _ = found(server, lines("/runs/bert-large/0.log", "g1152"), tmp_path, **nothing)
    assert answer.status == "missing"


class Scheduler:
    """What a Slurm tells of the job."""

    name = "slurm"

    def locate(self, wanted: Scope, deadline: Deadline) -> Scope:
        return scope()

    def collect(self, wanted: Scope, folder: Folder, deadline: Deadline) -> list[Answer]:
        return [Answer("slurm", "ok", "job 4711")]

    def examine(self, deadline: Deadline) -> list[Any]:
        return []


def test_the_coverage_of_the_verdict_says_how_they_were_found(server: Server, tmp_path: Path) -> None:  # noqa: F811
    source = server.source(
        server.index("filebeat-ways", MAPPING, lines("/runs/bert-large/rank0.log", "g1152")), clock=lambda: START + 600
    )
    sources: list[Source] = [Scheduler(), source]
    try:
        gathered = gather(Scope("4711", START, START + 600), sources, Folder(tmp_path), seconds=30)
    finally:
        source.close()
    assert gathered.scope.names == ("bert-large",)
    (job,) = [row for row in load(tmp_path).triage().to_dict()["coverage"] if row["source"] == "job"]
    assert (job["status"], job["detail"]) == ("ok", "1 document; found by its name bert-large in the path, on its 2 nodes"), job
    assert json.loads((tmp_path / "manifest.json").read_text())["scope"]["user"] == "alice"
