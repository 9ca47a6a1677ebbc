"""
The log source against a real OpenSearch, through its own client: the same code gives the same verdict as with Elasticsearch.

``WORKBENCH_TEST_OPENSEARCH`` names a server that already runs; otherwise one is started (`tests/services/opensearch/start`, about 12 s).
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.elasticsearch import job
from workbench.incident import load
from workbench.sources.contract import Answer, Deadline, Folder, Scope

pytest.importorskip("opensearchpy")

from opensearchpy import OpenSearch, helpers

from workbench.sources.elasticsearch.source import Access, LogIndex

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
SERVICE = Path(__file__).resolve().parent.parent / "services" / "opensearch"
STEPS = 40
SCOPE = Scope(job.JOB, job.START - 60, job.START + STEPS * 2 + 800)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if running := os.environ.get("WORKBENCH_TEST_OPENSEARCH"):
        yield running
        return
    data = tmp_path_factory.mktemp("opensearch")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    done = subprocess.run([SERVICE / "start", str(port), data], capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        pytest.fail(f"OpenSearch did not start: {done.stderr[-2000:]}")
    try:
        yield dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)["url"]
    finally:
        subprocess.run([SERVICE / "stop", data], check=False, timeout=60)


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[OpenSearch]:
    made = OpenSearch([url], timeout=60)
    yield made
    made.close()


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    root = tmp_path_factory.mktemp("truth")
    job.write_folder(root, steps=STEPS)
    return said(root)


def said(root: Path) -> tuple[Any, ...]:
    verdict = load(root).triage().to_dict()
    return verdict["class"], verdict["culprit"]["node"], verdict["culprit"]["rank"], verdict["culprit"]["at_fault"]


def indexed(client: OpenSearch, name: str, documents: Iterable[dict[str, Any]], mapping: dict[str, Any]) -> str:
    client.indices.delete(index=name, ignore_unavailable=True)
    client.indices.create(index=name, body={"settings": {"number_of_shards": 2, "number_of_replicas": 0}, "mappings": mapping})
    helpers.bulk(client, ({"_index": name, **each} for each in documents), refresh=True, chunk_size=2000)
    return name


def contexts(client: OpenSearch) -> int:
    stats = client.nodes.stats(metric="indices", index_metric="search")
    return sum(node["indices"]["search"]["open_contexts"] for node in stats["nodes"].values())


def collect(url: str, index: str, root: Path, product: str = "opensearch", **more: Any) -> list[Answer]:
    source = LogIndex(Access(url, product), index, clock=lambda: SCOPE.until, **more)
    try:
        return source.collect(SCOPE, Folder(root), Deadline(60))
    finally:
        source.close()


@pytest.mark.parametrize("kind", ["text", "match_only_text", "wildcard", "keyword"])
@pytest.mark.parametrize("whole", [100_000, 100])
def test_each_kind_of_message_gives_the_verdict_of_the_files(
    kind: str, whole: int, url: str, client: OpenSearch, truth: tuple[Any, ...], tmp_path: Path
) -> None:
    name = indexed(
        client,
        f"test-{kind.replace('_', '-')}",
        (job.document(line) for line in job.lines(steps=STEPS)),
        job.mapping(message=kind),
    )
    (answer,) = collect(url, name, tmp_path, whole=whole)
    assert answer.status == "ok", answer
    assert said(tmp_path) == truth
    assert contexts(client) == 0


def test_it_is_found_out_what_the_server_is(url: str, client: OpenSearch, truth: tuple[Any, ...], tmp_path: Path) -> None:
    name = indexed(client, "test-auto", (job.document(line, "beats") for line in job.lines(steps=STEPS)), job.mapping("beats"))
    (answer,) = collect(url, name, tmp_path, product="auto")
    assert answer.status == "ok", answer
    assert said(tmp_path) == truth


def test_the_wrong_product_is_told_the_way_out(url: str, tmp_path: Path) -> None:
    (answer,) = collect(url, "*", tmp_path, product="elasticsearch")
    assert answer.status == "failed"
    assert 'product = "opensearch"' in answer.hint


def test_the_doctor(url: str, client: OpenSearch) -> None:
    name = indexed(client, "test-doctor", (job.document(line) for line in job.lines(ranks=2, steps=2)), job.mapping())
    reaches = LogIndex(Access(url), name, clock=lambda: SCOPE.until).examine(Deadline(20))
    found = {each.item: each.status for each in reaches}
    assert found["version"] == found["indices"] == found["fields"] == found["message"] == "ok", reaches
