"""
The log source against a real Elasticsearch: what it collects of a job gives the verdict that the job's own files give.

The server is that of the session (tests/live/conftest.py); about 15 s when it was fetched before.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.elasticsearch import job
from workbench.catalog import signatures
from workbench.incident import load
from workbench.sources.contract import Answer, Deadline, Folder, Scope

pytest.importorskip("elasticsearch")

from elasticsearch import Elasticsearch, helpers

from workbench.sources.elasticsearch.query import clauses, job_needles
from workbench.sources.elasticsearch.source import Access, LogIndex

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
SERVICE = Path(__file__).resolve().parent.parent / "services" / "elasticsearch"
STEPS = 60
SCOPE = Scope(job.JOB, job.START - 60, job.START + STEPS * 2 + 800)


@pytest.fixture(scope="module")
def url(elasticsearch: str) -> str:
    return elasticsearch


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[Elasticsearch]:
    with Elasticsearch(url, request_timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    root = tmp_path_factory.mktemp("truth")
    job.write_folder(root, steps=STEPS)
    return said(root)


def said(root: Path) -> tuple[Any, ...]:
    verdict = load(root).triage().to_dict()
    return verdict["class"], verdict["culprit"]["node"], verdict["culprit"]["rank"], verdict["culprit"]["at_fault"]


def indexed(client: Elasticsearch, name: str, documents: Any, mapping: dict[str, Any], shards: int = 2) -> str:
    client.indices.delete(index=name, ignore_unavailable=True)
    client.indices.create(index=name, settings={"number_of_shards": shards, "number_of_replicas": 0}, mappings=mapping)
    helpers.bulk(client, ({"_index": name, **each} for each in documents), refresh=True, chunk_size=2000)
    return name


@pytest.fixture(scope="module")
def logs(client: Elasticsearch) -> str:
    return indexed(client, "test-ecs", (job.document(line) for line in job.lines(steps=STEPS)), job.mapping())


def open_contexts(client: Elasticsearch) -> int:
    stats = client.nodes.stats(metric="indices", index_metric="search")
    return sum(node["indices"]["search"]["open_contexts"] for node in stats["nodes"].values())


def collect(url: str, index: str, root: Path, scope: Scope = SCOPE, seconds: float = 60.0, **more: Any) -> list[Answer]:
    source = LogIndex(Access(url), index, clock=lambda: scope.until, **more)
    try:
        return source.collect(scope, Folder(root), Deadline(seconds))
    finally:
        source.close()


@pytest.mark.parametrize("preset", ["ecs", "beats", "fluentbit", "vector", "otel", "custom"])
def test_each_preset_gives_the_verdict_of_the_files(
    preset: str, url: str, client: Elasticsearch, truth: tuple[Any, ...], tmp_path: Path
) -> None:
    name = indexed(
        client, f"test-{preset}-p", (job.document(line, preset) for line in job.lines(steps=STEPS)), job.mapping(preset)
    )
    own = job.fields_of("custom") if preset == "custom" else {}
    source = LogIndex(Access(url), name, fields=own)
    assert source.detected(Deadline(20)).preset == preset
    (answer,) = collect(url, name, tmp_path, fields=own)
    assert answer.status == "ok", answer
    assert answer.rows == sum(1 for _ in job.lines(steps=STEPS))
    assert said(tmp_path) == truth


def test_what_is_pushed_down_gives_the_verdict_of_the_files(url: str, logs: str, truth: tuple[Any, ...], tmp_path: Path) -> None:
    (answer,) = collect(url, logs, tmp_path, whole=100)
    assert answer.status == "ok", answer
    assert "the lines that matter" in answer.detail
    assert said(tmp_path) == truth
    text = "".join(path.read_text() for path in tmp_path.rglob("rank-27.log"))
    assert text.count("Traceback (most recent call last):") == 1
    assert text.index("in pack") < text.index("ValueError: sample 48123")


@pytest.mark.parametrize("kind", ["keyword", "text"])
def test_both_kinds_of_message_can_be_searched(
    kind: str, url: str, client: Elasticsearch, truth: tuple[Any, ...], tmp_path: Path
) -> None:
    name = indexed(client, f"test-{kind}-m", (job.document(line) for line in job.lines(steps=20)), job.mapping(message=kind))
    (answer,) = collect(url, name, tmp_path, whole=100)
    assert answer.status == "ok", answer
    assert said(tmp_path) == truth


def test_a_flood_of_many_ranks_hides_nothing_and_is_told(url: str, client: Elasticsearch, tmp_path: Path) -> None:
    ranks = 1200

    def lines() -> Iterator[job.Line]:
        for rank in range(ranks):
            texts = [(at, f"NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory ({at})") for at in range(8)]
            texts += [(20 + at, f"step {at} loss 2.0") for at in range(12)]
            if rank == 777:
                texts.append((40, "RuntimeError: CUDA error: an illegal memory access was encountered"))
            for at, (second, text) in enumerate(texts):
                yield job.Line(rank, job.node_of(rank), job.START + second, at * 100, text)

    name = indexed(client, "test-flood", (job.document(line) for line in lines()), job.mapping())
    source = LogIndex(Access(url), name, clock=lambda: SCOPE.until, whole=100)
    (answer,) = source.collect(SCOPE, Folder(tmp_path), Deadline(60))
    assert answer.status == "ok", answer
    assert "9,600 times" in answer.detail, answer.detail  # what is left out of a flood is told by name and number
    assert "when each ended" in answer.detail
    rest = next(tmp_path.rglob("rest-of-the-ranks.log")).read_text().splitlines()
    own = {path.name for path in tmp_path.rglob("rank-*.log")}
    assert len(rest) + len(own) == ranks
    assert "illegal memory access" in next(tmp_path.rglob("rank-777.log")).read_text()
    verdict = load(tmp_path).triage().to_dict()
    assert verdict["culprit"]["rank"] == 777


def test_what_moves_does_not_grow_with_the_length_of_the_logs(url: str, client: Elasticsearch, tmp_path: Path) -> None:
    moved = []
    for steps in (40, 160):
        name = indexed(client, f"test-length-{steps}", (job.document(line) for line in job.lines(1024, steps)), job.mapping())
        scope = Scope(job.JOB, job.START - 60, job.START + steps * 2 + 700)
        source = LogIndex(Access(url), name, clock=lambda scope=scope: scope.until, whole=100)
        (answer,) = source.collect(scope, Folder(tmp_path / name), Deadline(60))
        assert answer.status == "ok", answer
        assert said(tmp_path / name) == ("user/exception", job.node_of(job.CULPRIT), job.CULPRIT, "rank")
        moved.append(source.server.received)
    assert moved[1] < 1.2 * moved[0], moved


def test_locate_tells_pods_nodes_and_namespace(url: str, client: Elasticsearch) -> None:
    name = indexed(client, "test-locate", (job.document(line, "beats") for line in job.lines(steps=2)), job.mapping("beats"))
    found = LogIndex(Access(url), name).locate(SCOPE, Deadline(20))
    assert found is not None
    assert (len(found.pods), len(found.nodes), found.namespace) == (64, 8, "train")
    assert LogIndex(Access(url), name).locate(Scope("no-such-job", job.START, job.START + 9), Deadline(20)) is None


def test_the_query_finds_the_sample_of_every_signature_on_the_server(url: str, client: Elasticsearch) -> None:
    import re

    needles = job_needles()
    rows = [
        row
        for row in signatures().values()
        if row.pattern and row.role in ("cause", "symptom") and row.layer != "noise" and re.search(row.pattern, row.example)
        and row.id not in needles.left_out
    ]  # fmt: skip
    name = indexed(
        client,
        "test-samples",
        ({"message": row.example, "id": row.id} for row in rows),
        {"properties": {"message": {"type": "text"}, "id": {"type": "keyword"}}},
    )
    found: set[str] = set()
    for query in clauses(needles, "message", words=True):
        found |= {hit["_source"]["id"] for hit in client.search(index=name, query=query, size=5000)["hits"]["hits"]}
    assert {row.id for row in rows} - found == set()


def test_lines_of_one_millisecond_keep_the_order_of_the_file(url: str, client: Elasticsearch, tmp_path: Path) -> None:
    lines = [job.Line(0, "gpu-node-000", job.START, at * 10, f"line {at}") for at in range(500)]
    shuffled = sorted(lines, key=lambda line: hash((line.offset * 7919) % 503))
    name = indexed(client, "test-ties", (job.document(line) for line in shuffled), job.mapping(), shards=3)
    for whole in (1000, 10):
        root = tmp_path / str(whole)
        (answer,) = collect(url, name, root, whole=whole)
        assert answer.rows
        numbers = [
            int(line.rsplit(" ", 1)[1]) for line in next(root.rglob("*.log")).read_text().splitlines() if "workbench" not in line
        ]
        assert numbers == (list(range(500)) if whole > 500 else sorted(numbers))


def test_shards_that_are_not_there_are_partial(url: str, client: Elasticsearch, logs: str, tmp_path: Path) -> None:
    client.indices.delete(index="test-red-1", ignore_unavailable=True)
    client.indices.create(
        index="test-red-1", settings={"number_of_replicas": 0, "index.routing.allocation.require._name": "nowhere"},
        mappings=job.mapping(), wait_for_active_shards=0,
    )  # fmt: skip
    try:
        for whole in (100_000, 100):
            (answer,) = collect(url, f"{logs},test-red-1", tmp_path / str(whole), whole=whole)
            assert answer.status == "partial", answer
            assert "shards did not answer" in answer.detail
    finally:
        client.indices.delete(index="test-red-1")
    assert open_contexts(client) == 0


def test_an_index_that_rolls_over_while_paging_is_partial(
    url: str, client: Elasticsearch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in ("test-roll-000001", "test-roll-000002"):
        client.indices.delete(index=each, ignore_unavailable=True)
    documents = [job.document(line) for line in job.lines(ranks=8, steps=50)]
    indexed(client, "test-roll-000001", documents, job.mapping())
    monkeypatch.setattr("workbench.sources.elasticsearch.source.PAGE", 100)
    source = LogIndex(Access(url), "test-roll-*", clock=lambda: SCOPE.until)
    ask, pages = source.server.ask, []

    def rolling(method: str, path: str, *words: Any, **more: Any) -> Any:
        if path == "/_search":
            pages.append(path)
            if len(pages) == 2:
                indexed(client, "test-roll-000002", documents[:7], job.mapping())
        return ask(method, path, *words, **more)

    monkeypatch.setattr(source.server, "ask", rolling)
    (answer,) = source.collect(SCOPE, Folder(tmp_path), Deadline(60))
    assert answer.status == "partial", answer
    assert "rolled over" in answer.detail
    assert "test-roll-000002" in answer.detail
    assert answer.rows == len(documents)
    assert open_contexts(client) == 0


def test_an_index_that_goes_away_while_paging_is_an_answer(
    url: str, client: Elasticsearch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed(client, "test-gone", [job.document(line) for line in job.lines(ranks=8, steps=50)], job.mapping())
    monkeypatch.setattr("workbench.sources.elasticsearch.source.PAGE", 100)
    source = LogIndex(Access(url), "test-gone*", clock=lambda: SCOPE.until)
    ask, pages = source.server.ask, []

    def deleting(method: str, path: str, *words: Any, **more: Any) -> Any:
        if path == "/_search":
            pages.append(path)
            if len(pages) == 3:
                client.indices.delete(index="test-gone")
        return ask(method, path, *words, **more)

    monkeypatch.setattr(source.server, "ask", deleting)
    (answer,) = source.collect(SCOPE, Folder(tmp_path), Deadline(60))
    assert answer.status == "partial", answer
    assert open_contexts(client) == 0


def test_a_deadline_in_the_middle_keeps_what_came_and_closes_the_point_in_time(
    url: str, client: Elasticsearch, logs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    monkeypatch.setattr("workbench.sources.elasticsearch.source.PAGE", 50)
    source = LogIndex(Access(url), logs, clock=lambda: SCOPE.until)
    ask = source.server.ask

    def slow(method: str, path: str, *words: Any, **more: Any) -> Any:
        if path == "/_search":
            time.sleep(0.4)
        return ask(method, path, *words, **more)

    monkeypatch.setattr(source.server, "ask", slow)
    began = time.monotonic()
    (answer,) = source.collect(SCOPE, Folder(tmp_path), Deadline(4))
    assert time.monotonic() - began < 4.5
    assert answer.status == "partial", answer
    assert answer.rows > 0
    assert open_contexts(client) == 0


def test_nothing_is_left_open(url: str, client: Elasticsearch, logs: str, tmp_path: Path) -> None:
    for whole in (100_000, 100):
        collect(url, logs, tmp_path / str(whole), whole=whole)
    assert open_contexts(client) == 0


def test_kernel_lines_of_the_nodes_come_with_the_job(url: str, client: Elasticsearch, tmp_path: Path) -> None:
    def documents() -> Iterator[dict[str, Any]]:
        yield from (job.document(line) for line in job.lines(ranks=8, steps=5))
        for at, text in enumerate(
            ["eth0: link becomes ready", "NVRM: Xid (PCI:0000:9d:00): 79, pid=4123, name=python, GPU has fallen off the bus."]
        ):
            for node in ("gpu-node-000", "gpu-node-009"):
                stamp = f"2026-05-04T10:00:{30 + at}.000Z"
                yield {"@timestamp": stamp, "message": text, "host.name": node, "systemd.transport": "kernel"}

    mapping = job.mapping()
    mapping["properties"]["systemd.transport"] = {"type": "keyword"}
    name = indexed(client, "test-kernel", documents(), mapping)
    answers = collect(url, name, tmp_path)
    assert [(each.source, each.status) for each in answers] == [("job", "ok"), ("kernel", "ok")], answers
    assert [path.name for path in (tmp_path / "kernel").iterdir()] == ["gpu-node-000.log"]
    verdict = load(tmp_path).triage().to_dict()
    assert (verdict["class"], verdict["culprit"]["node"]) == ("hardware/gpu-lost", "gpu-node-000")


def test_the_doctor_of_a_sound_server(url: str, logs: str) -> None:
    reaches = LogIndex(Access(url), logs, clock=lambda: SCOPE.until).examine(Deadline(20))
    said = {each.item: each.status for each in reaches}
    assert said["indices"] == said["fields"] == said["message"] == said["version"] == "ok"
    assert "clock" in said
