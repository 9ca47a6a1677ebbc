"""The shipped fake of Elasticsearch and the real one hold the same lines, and are held to the same answers."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("elasticsearch")

from tests.conformance.servers import elasticsearch as real_server
from tests.conformance.servers import told
from tests.conformance.shapes import DATA, compared
from tests.services.elasticsearch import job
from workbench.catalog import signatures
from workbench.incident import load
from workbench.sources.contract import Answer, Deadline, Folder, Scope
from workbench.sources.elasticsearch.pull import point_in_time, pull
from workbench.sources.elasticsearch.query import clauses, job_needles
from workbench.sources.elasticsearch.source import Access, LogIndex
from workbench.testing.elasticsearch import Elasticsearch as Fake
from workbench.testing.elasticsearch import filtered
from workbench.testing.faults import FaultServer, Request
from workbench.testing.lucene import Index

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
STEPS = 12
SCOPE = Scope(job.JOB, job.START - 60, job.START + 900)
ALL = sum(1 for _ in job.lines(steps=STEPS))
Documents = list[dict[str, Any]]


def flat(properties: dict[str, Any]) -> dict[str, str]:
    return {name: str(kind["type"]) for name, kind in properties["properties"].items()}


@dataclass
class Server:
    """A server, a way to give it an index, and in front of it something that writes down what it is asked."""

    url: str
    front: FaultServer
    fake: Fake
    real: bool
    drop: Callable[[str], None]

    def index(self, name: str, mapping: dict[str, Any], documents: Documents) -> str:
        """Make an index anew, on the real server with one shard as the fake has."""
        self.fake.indices[name] = Index(name, flat(mapping), documents)
        if self.real:
            told(f"{self.url}/{name}?ignore_unavailable=true", method="DELETE")
            body = {"settings": {"number_of_shards": 1, "number_of_replicas": 0}, "mappings": mapping}
            status, answer = told(f"{self.url}/{name}", body, method="PUT")
            assert status == 200, answer
            rows = iter(documents)
            while part := list(islice(rows, 2000)):
                lines = "".join(json.dumps({"create": {}}) + "\n" + json.dumps(row) + "\n" for row in part)
                status, answer = told(
                    f"{self.url}/{name}/_bulk", lines.encode(), headers={"Content-Type": "application/x-ndjson"}
                )
                assert status == 200, answer
                assert not answer["errors"], str(answer)[:1000]
            told(f"{self.url}/{name}/_refresh", b"", method="POST")
        return name

    def source(self, index: str, **more: Any) -> LogIndex:
        return LogIndex(Access(self.front.url, product="elasticsearch"), index, **{"clock": lambda: SCOPE.until, **more})


@pytest.fixture(scope="module", params=["fake", pytest.param("real", marks=pytest.mark.live)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    fake = Fake([])
    with ExitStack() as stack:
        if request.param == "fake":
            front = stack.enter_context(FaultServer(fake))
            made = Server(front.url, front, fake, False, lambda name: fake.indices.pop(name) and None)
        else:
            url = stack.enter_context(real_server(tmp_path_factory.mktemp("elasticsearch")))
            front = stack.enter_context(FaultServer(url))
            made = Server(url, front, fake, True, lambda name: told(f"{url}/{name}", method="DELETE") and None)
        for preset in ("ecs", "beats"):
            made.index(f"logs-{preset}", job.mapping(preset), [job.document(line, preset) for line in job.lines(steps=STEPS)])
        yield made


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    root = tmp_path_factory.mktemp("truth")
    job.write_folder(root, steps=STEPS)
    return verdict(root)


def verdict(root: Path) -> tuple[Any, ...]:
    told = load(root).triage().to_dict()
    return told["class"], told["culprit"]["node"], told["culprit"]["rank"], told["culprit"]["at_fault"]


def collect(source: LogIndex, root: Path, scope: Scope = SCOPE, seconds: float = 60.0) -> list[Answer]:
    try:
        return source.collect(scope, Folder(root), Deadline(seconds))
    finally:
        source.close()


@pytest.mark.parametrize("preset", ["ecs", "beats"])
def test_a_small_job_comes_whole(server: Server, truth: tuple[Any, ...], preset: str, tmp_path: Path) -> None:
    (answer,) = collect(server.source(f"logs-{preset}"), tmp_path)
    assert (answer.status, answer.rows) == ("ok", ALL), answer
    assert verdict(tmp_path) == truth


def test_of_a_large_job_the_lines_that_matter_come(server: Server, truth: tuple[Any, ...], tmp_path: Path) -> None:
    (answer,) = collect(server.source("logs-ecs", whole=100), tmp_path)
    assert answer.status == "ok", answer
    assert "the lines that matter" in answer.detail
    assert verdict(tmp_path) == truth


def test_locate_tells_pods_nodes_and_namespace(server: Server) -> None:
    found = server.source("logs-beats").locate(SCOPE, Deadline(20))
    assert found is not None
    assert (len(found.pods), len(found.nodes), found.namespace) == (64, 8, "train")
    assert server.source("logs-beats").locate(Scope("no-such-job", job.START, job.START + 9), Deadline(20)) is None
    assert server.source("logs-beats").locate(Scope(job.JOB, job.START - 900, job.START - 800), Deadline(20)) is None


def test_an_unknown_job_and_a_missing_index_are_told(server: Server, tmp_path: Path) -> None:
    (answer,) = collect(server.source("logs-ecs"), tmp_path, Scope("no-such-job", SCOPE.since, SCOPE.until))
    assert answer.status == "missing"
    (answer,) = collect(server.source("nothing-*"), tmp_path)
    assert (answer.status, "no index matches" in answer.detail) == ("missing", True)
    assert not list(tmp_path.rglob("*.log"))


def test_both_edges_of_a_window_belong_to_it(server: Server, tmp_path: Path) -> None:
    name = server.index(
        "logs-edges", job.mapping(), [job.document(job.Line(0, "n-0", job.START + at, at, f"line {at}")) for at in range(10)]
    )
    (answer,) = collect(server.source(name), tmp_path, Scope(job.JOB, job.START + 2, job.START + 5))
    assert answer.rows == 4, answer
    text = next(tmp_path.rglob("*.log")).read_text()
    assert [line.rpartition(" ")[2] for line in text.splitlines()] == ["2", "3", "4", "5"]


@pytest.mark.parametrize(("page", "slices"), [(7, 1), (7, 3), (5000, 2)])
def test_pages_and_slices_bring_each_line_once_in_order(server: Server, page: int, slices: int) -> None:
    """Hundreds of lines have the same millisecond: their place in the file orders them."""
    lines = [job.Line(0, "gpu-node-000", job.START + at // 100, at * 10, f"line {at}") for at in range(300)]
    shuffled = sorted(lines, key=lambda line: (line.offset * 7919) % 503)
    name = server.index("logs-ties", job.mapping(), [job.document(line) for line in shuffled])
    source = server.source(name)
    fields = source.detected(Deadline(20))
    got = pull(
        source.server,
        name,
        {"match_all": {}},
        fields,
        [fields.time, fields.message],
        Deadline(30),
        most=1000,
        slices=slices,
        page=page,
    )
    assert (got.trouble, got.cut_at) == ([], None)
    assert [row.fields["message"][0] for row in got.rows] == [f"line {at}" for at in range(300)]
    cut = pull(source.server, name, {"match_all": {}}, fields, [fields.message], Deadline(30), most=20, slices=1, page=10)
    assert (len(cut.rows), "were left out" in cut.trouble[0]) == (20, True)


def test_what_goes_away_while_it_is_read_stays_at_the_point_in_time(server: Server) -> None:
    name = server.index("logs-gone", job.mapping(), [job.document(line) for line in islice(job.lines(), 50)])
    source = server.source(name)
    with point_in_time(source.server, name, Deadline(20)) as pit:
        search = {"size": 10, "pit": {"id": pit, "keep_alive": "1m"}, "sort": [{"@timestamp": "asc"}]}
        first = source.server.ask("POST", "/_search", Deadline(20), body=search).body
        more = [job.document(line) for line in islice(job.lines(), 50, 60)]
        if server.real:
            for row in more:
                told(f"{server.url}/{name}/_doc?refresh=true", row, method="POST")
        else:
            server.fake.indices[name].add(more)
        after = first["hits"]["hits"][-1]["sort"]
        rest = source.server.ask("POST", "/_search", Deadline(20), body={**search, "size": 1000, "search_after": after}).body
        assert len(first["hits"]["hits"]) + len(rest["hits"]["hits"]) == 50
    status, answer = told(f"{server.url}/_search", {"pit": {"id": pit}})
    assert status == 404, answer
    assert (
        server.source(name).server.ask("POST", f"/{name}/_count", Deadline(20), body={"query": {"match_all": {}}}).body["count"]
        == 60
    )


def test_no_point_in_time_is_left_open(server: Server, tmp_path: Path) -> None:
    collect(server.source("logs-ecs"), tmp_path / "a")
    collect(server.source("logs-ecs", whole=100), tmp_path / "b")
    if server.real:
        stats = told(f"{server.url}/_nodes/stats/indices/search")[1]
        assert sum(node["indices"]["search"]["open_contexts"] for node in stats["nodes"].values()) == 0
    else:
        assert server.fake.open == {}


def test_an_index_that_rolls_over_is_told(server: Server, tmp_path: Path) -> None:
    """A new index appears behind the pattern after its lines were counted."""
    server.index("logs-roll-1", job.mapping(), [job.document(line) for line in islice(job.lines(), 30)])
    source = server.source("logs-roll-*")
    asked = server.front.when
    later = [job.document(line) for line in islice(job.lines(), 30, 40)]

    def roll(request: Request) -> bool:
        if request.path.endswith("/_pit") or "/_pit?" in request.path:
            server.index("logs-roll-2", job.mapping(), later)
        return False

    server.front.when, server.front.fault = roll, "500"
    try:
        (answer,) = collect(source, tmp_path)
    finally:
        server.front.when, server.front.fault = asked, None
        server.drop("logs-roll-2")
        server.fake.indices.pop("logs-roll-2", None)
    assert answer.status == "partial"
    assert "rolled over" in answer.detail


def test_the_sample_of_every_signature_is_found(server: Server) -> None:
    needles = job_needles()
    rows = [
        row
        for row in signatures().values()
        if row.pattern and row.role in ("cause", "symptom") and row.layer != "noise" and row.id not in needles.left_out
        and __import__("re").search(row.pattern, row.example)
    ]  # fmt: skip
    mapping = {"properties": {"message": {"type": "text"}, "id": {"type": "keyword"}}}
    noise = [{"message": f"step {at} loss 2.31 grad_norm 0.2", "id": f"noise-{at}"} for at in range(50)]
    name = server.index("logs-samples", mapping, [*({"message": row.example, "id": row.id} for row in rows), *noise])
    found: set[str] = set()
    for query in clauses(needles, "message", words=True):
        status, answer = told(f"{server.url}/{name}/_search", {"query": query, "size": 5000})
        assert status == 200, answer
        found |= {hit["_source"]["id"] for hit in answer["hits"]["hits"]}
    assert {row.id for row in rows} - found == set()
    assert not [each for each in found if each.startswith("noise")]


def test_doctor_finds_what_is_there(server: Server) -> None:
    rows = {row.item: row for row in server.source("logs-ecs", clock=time.time).examine(Deadline(20))}
    assert {rows[item].status for item in ("indices", "fields", "message", "clock")} == {"ok"}
    assert rows["version"].detail.startswith("elasticsearch 9.")
    assert rows["data age"].status in ("ok", "warning")
    none = {row.item: row.status for row in server.source("nothing-*", clock=time.time).examine(Deadline(20))}
    assert none["indices"] == "critical"


# -- queries, one by one --------------------------------------------------------------------------------------------------

QUERIES: dict[str, dict[str, Any]] = {
    "word": {"match_phrase": {"message": "sample 48123"}},
    "phrase of one": {"match_phrase": {"message": "loss"}},
    "phrase, other case": {"match_phrase": {"message": {"query": "VALUEERROR: Sample"}}},
    "joined words": {"match_phrase": {"message": "torch.distributed"}},
    "term of a text": {"term": {"message": "traceback"}},
    "match, any": {"match": {"message": "traceback valueerror"}},
    "match, all": {"match": {"message": {"query": "most recent call", "operator": "and"}}},
    "keyword": {"term": {"host.name": {"value": "gpu-node-003"}}},
    "keyword, any case": {"term": {"host.name": {"value": "GPU-NODE-003", "case_insensitive": True}}},
    "keywords": {"terms": {"labels.rank": ["1", "27", "x"]}},
    "lenient": {"match": {"log.offset": {"query": "no number", "lenient": True}}},
    "number": {"range": {"log.offset": {"gt": 100, "lte": 200}}},
    "time": {"range": {"@timestamp": {"gte": int(job.START * 1000), "lte": int(job.START * 1000 + 14_000), "format": "epoch_millis"}}},
    "time as text": {"range": {"@timestamp": {"gte": "2026-05-04T10:00:12.000Z", "lt": "2026-05-04T10:00:14.5Z"}}},
    "exists": {"exists": {"field": "log"}},
    "exists not": {"bool": {"must_not": [{"exists": {"field": "labels.rank"}}]}},
    "prefix": {"prefix": {"host.name": "gpu-node-00"}},
    "prefix of words": {"prefix": {"message": "valueer"}},
    "wildcard": {"wildcard": {"host.name": {"value": "*node-0?1"}}},
    "wildcard of words": {"wildcard": {"message": {"value": "*eerro*"}}},
    "wildcard, escaped": {"wildcard": {"log.file.path": {"value": "*\\*llm*"}}},
    "regexp": {"regexp": {"message": {"value": ".*(aceba|lueerr).*"}}},
    "regexp of a keyword": {"regexp": {"host.name": {"value": "GPU-NODE-00[13]", "case_insensitive": True, "flags": "NONE"}}},
    "regexp with a dollar": {"regexp": {"host.name": {"value": "gpu-node-001$"}}},
    "should": {"bool": {"should": [{"term": {"labels.rank": "3"}}, {"term": {"labels.rank": "4"}}]}},
    "should beside filter": {"bool": {"filter": [{"term": {"labels.rank": "3"}}], "should": [{"term": {"labels.rank": "4"}}]}},
    "should of which two": {
        "bool": {"should": [{"term": {"labels.rank": "3"}}, {"prefix": {"host.name": "gpu"}}, {"term": {"message": "step"}}], "minimum_should_match": 2}
    },
    "nested bool": {"bool": {"filter": {"term": {"labels.rank": "27"}}, "must": {"term": {"message": "step"}}, "must_not": {"term": {"message": "7"}}}},
    "constant": {"constant_score": {"filter": {"term": {"labels.rank": "27"}}}},
    "index": {"term": {"_index": "logs-ecs"}},
    "unmapped": {"term": {"no.such.field": "x"}},
    "unmapped range": {"range": {"no.such.field": {"gte": 5}}},
    "none": {"match_none": {}},
}  # fmt: skip


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_finds_the_lines_that_the_server_found(server: Server, name: str) -> None:
    """Which lines of which ranks is recorded of the real server; the lines are always the same."""
    body = {"query": QUERIES[name], "size": 10_000, "_source": False, "sort": [{"labels.rank": "asc"}, {"log.offset": "asc"}]}
    status, answer = told(f"{server.url}/logs-ecs/_search", body)
    assert status == 200, answer
    found = [hit["sort"] for hit in answer["hits"]["hits"]]
    digest = f"{len(found)} {hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]}"
    same_as_recorded(server, "elasticsearch-queries", name, digest)


def same_as_recorded(server: Server, file: str, name: str, told: str) -> None:
    """Hold what came against what the real server had, or write it down."""
    path = DATA / f"{file}.json"
    recorded = json.loads(path.read_text()) if path.exists() else {}
    if server.real and os.environ.get("WORKBENCH_RECORD"):
        path.write_text(json.dumps({**recorded, name: told}, indent=1, sort_keys=True) + "\n")
        return
    assert told == recorded[name]


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "unknown query": ("/logs-ecs/_search", {"query": {"nonsense": {}}}),
    "unknown key": ("/logs-ecs/_search", {"querry": {"match_all": {}}}),
    "unknown word of a query": ("/logs-ecs/_search", {"query": {"term": {"host.name": {"value": "x", "colour": 1}}}}),
    "unknown aggregation": ("/logs-ecs/_search", {"aggs": {"a": {"nonsense": {"field": "x"}}}}),
    "aggregation of words": ("/logs-ecs/_search", {"aggs": {"a": {"terms": {"field": "message"}}}}),
    "sort of words": ("/logs-ecs/_search", {"sort": ["message"]}),
    "sort by an unknown field": ("/logs-ecs/_search", {"sort": ["no.such.field"]}),
    "too many hits": ("/logs-ecs/_search", {"size": 10_001}),
    "too many top hits": ("/logs-ecs/_search", {"aggs": {"a": {"top_hits": {"size": 101}}}}),
    "search_after of another length": ("/logs-ecs/_search", {"sort": ["@timestamp"], "search_after": [1, 2]}),
    "no such index": ("/logs-none/_search", {}),
    "unknown parameter": ("/logs-ecs/_search?colour=red", {}),
    "slice without a point in time": ("/logs-ecs/_search", {"slice": {"id": 0, "max": 2}}),
    "point in time that is none": ("/_search", {"pit": {"id": "x"}}),
    "regexp that is too long": ("/logs-ecs/_search", {"query": {"regexp": {"host.name": {"value": "a" * 1001}}}}),
    "range of a number by a word": ("/logs-ecs/_search", {"query": {"range": {"log.offset": {"gte": "many"}}}}),
    "number that is a word": ("/logs-ecs/_search", {"query": {"term": {"log.offset": "many"}}}),
    "sub-aggregation of a value": ("/logs-ecs/_search", {"aggs": {"a": {"min": {"field": "log.offset"}, "aggs": {"b": {"max": {"field": "log.offset"}}}}}}),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused_loudly(server: Server, name: str) -> None:
    """With the status and the words for the error that the real server had."""
    path, body = REFUSED[name]
    status, answer = told(server.url + path, body)
    assert status >= 400, answer
    same_as_recorded(
        server, "elasticsearch-refused", name, f"{status} {answer['error']['type']} {answer['error']['root_cause'][0]['type']}"
    )


# -- the answers themselves -----------------------------------------------------------------------------------------------

_STAMP = {"field": "@timestamp", "format": "strict_date_optional_time_nanos"}
_HITS = {"size": 2, "_source": False, "fields": ["message", _STAMP, "log.*"], "sort": [{"@timestamp": {"order": "desc", "unmapped_type": "date"}}, {"log.offset": {"order": "desc", "missing": "_last"}}]}  # fmt: skip
ANSWERS: dict[str, tuple[str, Any]] = {
    "about": ("/", None),
    "fields": ("/logs-ecs/_field_caps?fields=message,@timestamp,log.offset,host.name,no.field&include_empty_fields=false", None),
    "objects": ("/logs-ecs/_field_caps?fields=log,host,labels", None),
    "mapping": ("/logs-ecs/_mapping", None),
    "count": ("/logs-ecs/_count", {"query": {"term": {"labels.rank": "27"}}}),
    "hits": ("/logs-ecs/_search", {"query": {"term": {"labels.rank": "27"}}, **_HITS}),
    "hits, ascending": ("/logs-ecs/_search", {"query": {"term": {"labels.rank": "27"}}, "size": 3, "track_total_hits": True, "sort": ["@timestamp", "log.offset"], "seq_no_primary_term": True, "docvalue_fields": ["host.name", _STAMP]}),
    "hits without fields": ("/logs-ecs/_search", {"query": {"term": {"labels.rank": "27"}}, "size": 1, "_source": ["message"], "track_total_hits": False, "sort": ["log.offset"]}),
    "unsorted": ("/logs-ecs/_search", {"query": {"bool": {"filter": [{"term": {"labels.rank": "27"}}]}}, "size": 1}),
    "stored none": ("/logs-ecs/_search", {"query": {"term": {"labels.rank": "27"}}, "size": 1, "stored_fields": "_none_", "docvalue_fields": ["log.offset"], "sort": ["log.offset"]}),
    "filter_path": ("/logs-ecs/_search?filter_path=hits.hits.fields,hits.total,aggregations.*.buckets.doc_count", {**_HITS, "aggs": {"a": {"terms": {"field": "host.name"}}}}),
    "none": ("/logs-ecs/_search", {"query": {"match_none": {}}, "aggs": {"a": {"min": {"field": "@timestamp"}}, "b": {"terms": {"field": "host.name"}}, "c": {"cardinality": {"field": "host.name"}}}}),
    "extremes": ("/logs-ecs/_search", {"size": 0, "aggs": {"first": {"min": {"field": "@timestamp"}}, "last": {"max": {"field": "@timestamp"}}, "far": {"max": {"field": "log.offset"}}, "many": {"value_count": {"field": "host.name"}}, "ranks": {"cardinality": {"field": "labels.rank"}}}}),
    "filters": ("/logs-ecs/_search", {"size": 0, "track_total_hits": False, "aggs": {"ways": {"filters": {"filters": {"a": {"term": {"host.name": "gpu-node-001"}}, "b": {"match_none": {}}}}}, "one": {"filter": {"term": {"labels.rank": "3"}}, "aggs": {"n": {"terms": {"field": "host.name"}}}}}}),
    "terms": ("/logs-ecs/_search", {"size": 0, "aggs": {"few": {"terms": {"field": "host.name", "size": 3}}, "by key": {"terms": {"field": "host.name", "size": 3, "order": {"_key": "desc"}}}, "where": {"terms": {"field": "_index"}}, "none": {"terms": {"field": "no.such.field"}}}}),
    "composite": ("/logs-ecs/_search", {"size": 0, "aggs": {"s": {"composite": {"size": 3, "sources": [{"k0": {"terms": {"field": "labels.rank", "missing_bucket": True}}}, {"k1": {"terms": {"field": "host.name"}}}], "after": {"k0": "20", "k1": "gpu-node-002"}}, "aggs": {"top": {"top_hits": _HITS}}}}}),
    "composite, turned round": ("/logs-ecs/_search", {"size": 0, "aggs": {"s": {"composite": {"size": 3, "sources": [{"k0": {"terms": {"field": "labels.rank", "order": "desc"}}}]}}}}),
    "composite of none": ("/logs-ecs/_search", {"size": 0, "query": {"match_none": {}}, "aggs": {"s": {"composite": {"sources": [{"k0": {"terms": {"field": "labels.rank"}}}]}}}}),
    "refused": ("/logs-ecs/_search", {"query": {"nonsense": {}}}),
    "not there": ("/logs-none/_search", {}),
}  # fmt: skip


def test_each_answer_has_the_shape_of_the_server(server: Server) -> None:
    answers = {name: told(server.url + path, body)[1] for name, (path, body) in ANSWERS.items()}
    status, pit = told(f"{server.url}/logs-ecs/_pit?keep_alive=1m", b"", method="POST")
    answers["pit"] = pit
    answers["page"] = told(
        f"{server.url}/_search",
        {"pit": {"id": pit["id"], "keep_alive": "1m"}, "size": 2, "_source": False, "sort": [{"@timestamp": "asc"}]},
    )[1]
    answers["page by place"] = told(
        f"{server.url}/_search", {"pit": {"id": pit["id"]}, "size": 2, "sort": ["_shard_doc"], "slice": {"id": 0, "max": 2}}
    )[1]
    answers["closed"] = told(f"{server.url}/_pit", {"id": pit["id"]}, method="DELETE")[1]
    header = json.dumps({"index": "logs-ecs", "ignore_unavailable": True})
    lines = "\n".join(
        [
            header,
            json.dumps({"size": 1, "sort": ["log.offset"]}),
            header,
            json.dumps({"query": {"term": {"log.offset": "many"}}}),
            "",
        ]
    )
    answers["several"] = told(f"{server.url}/_msearch", lines.encode(), headers={"Content-Type": "application/x-ndjson"})[1]
    opened = ("about", "version", "error", "reason")
    assert status == 200
    found = compared("elasticsearch", answers, real=server.real, opened=opened, maps=("fields",))
    assert found == [], "\n".join(found)


def plain(answer: Any) -> Any:
    """An answer without what is each server's own: times, ids, scores, places."""
    if isinstance(answer, dict):
        own = (
            "took",
            "_id",
            "_score",
            "max_score",
            "_seq_no",
            "_primary_term",
            "pit_id",
            "version",
            "name",
            "cluster_name",
            "cluster_uuid",
            "error",
            "status",
        )
        return {key: plain(each) for key, each in answer.items() if key not in own}
    return [plain(each) for each in answer] if isinstance(answer, list) else answer


def unordered(answer: Any) -> Any:
    """Return an answer with the number of its hits in place of which of many equal ones came."""
    if isinstance(answer, dict) and isinstance(answer.get("hits"), dict) and "hits" in answer["hits"]:
        return {**answer, "hits": {**answer["hits"], "hits": len(answer["hits"]["hits"])}}
    return answer


@pytest.mark.live
def test_each_answer_is_that_of_the_server(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    """The answers above, and those to all searches of a collection, whole and pushed down, of locate and of the doctor."""
    fake = Fake([])
    with real_server(tmp_path_factory.mktemp("elasticsearch")) as url, FaultServer(url) as front, FaultServer(fake) as mine:
        server = Server(url, front, fake, True, lambda name: None)
        server.index("logs-ecs", job.mapping(), [job.document(line) for line in job.lines(steps=STEPS)])
        collect(server.source("logs-ecs"), tmp_path / "a")
        collect(server.source("logs-ecs", whole=100), tmp_path / "b")
        server.source("logs-ecs").locate(SCOPE, Deadline(20))
        server.source("logs-ecs", clock=time.time).examine(Deadline(20))
        asked = [(path, json.dumps(body).encode() if body is not None else None) for path, body in ANSWERS.values()]
        asked += [
            (one.path, one.body or None)
            for one in front.requests
            # ids and points in time are each server's own
            if "_search" in one.path and b'"pit"' not in one.body and b'"ids"' not in one.body and one.method == "POST"
        ]
        differ = []
        for path, body in asked:
            kind = {"Content-Type": "application/x-ndjson" if "_msearch" in path else "application/json"}
            if body is not None and body[:2] == b"\x1f\x8b":
                kind["Content-Encoding"] = "gzip"
            one, two = (plain(told(base + path, body, headers=kind if body else None)[1]) for base in (url, mine.url))
            words = gzip.decompress(body) if body and body[:2] == b"\x1f\x8b" else body or b""
            if "_search" in path and b'"sort"' not in words:  # documents that match equally well come in any order
                one, two = (unordered(answer) for answer in (one, two))
            if one != two and "mapping" not in path and path != "/":
                differ.append((path, str(body)[:300], *first_difference(one, two)))
        assert differ == [], "\n".join(map(str, differ))
        assert len(asked) > 20


def first_difference(one: Any, two: Any, at: str = "") -> tuple[str, str, str]:
    """Where two answers begin to differ."""
    if isinstance(one, dict) and isinstance(two, dict) and one.keys() == two.keys():
        return next((first_difference(one[key], two[key], f"{at}.{key}") for key in one if one[key] != two[key]), (at, "", ""))
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        return next(
            (first_difference(a, b, f"{at}[{number}]") for number, (a, b) in enumerate(zip(one, two, strict=True)) if a != b),
            (at, "", ""),
        )
    return at, str(one)[:300], str(two)[:300]


def test_filter_path_keeps_what_it_names() -> None:
    answer = {
        "took": 1,
        "hits": {"total": {"value": 3}, "hits": [{"_id": "a", "fields": {"x": [1]}}, {"_id": "b"}]},
        "aggregations": {"s": {"buckets": []}},
    }
    assert filtered(answer, ["hits.hits.fields", "took"]) == {"took": 1, "hits": {"hits": [{"fields": {"x": [1]}}]}}
    assert filtered(answer, ["**.value"]) == {"hits": {"total": {"value": 3}}}
    assert filtered(answer, ["nothing"]) == {}
