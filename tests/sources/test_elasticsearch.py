"""What the log source answers when its server refuses, hangs, drips, lies or has nothing; without a real server."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workbench.catalog import table
from workbench.errors import ConfigError
from workbench.sources.contract import Answer, Deadline, Folder, Scope
from workbench.testing.faults import FaultServer, Reply, Request

pytest.importorskip("elasticsearch")

from workbench.sources.elasticsearch.fields import MEANINGS, PRESETS, presets
from workbench.sources.elasticsearch.source import Access, LogIndex

START = 1777888800.0
HEADERS = {"Content-Type": "application/vnd.elasticsearch+json; compatible-with=9", "X-Elastic-Product": "Elasticsearch"}
SHARDS = {"total": 2, "successful": 2, "skipped": 0, "failed": 0}
SCOPE = Scope("llm-70b", START - 60, START + 120)


class Canned:
    """An Elasticsearch that holds `lines` lines of one rank and answers as the real one does."""

    def __init__(self, lines: int = 20, **more: Any) -> None:
        self.lines = lines
        self.shards: dict[str, Any] = SHARDS
        self.timed_out = False
        self.indices = ["logs-1"]
        self.rolled: list[str] = []
        self.page: Callable[[dict[str, Any]], None] = lambda body: None
        self.opened = self.closed = 0
        self.begin = START
        self.version = "9.4.3"
        self.unsaid: set[str] = set()  # fields that no document has
        self.shape: Callable[[int, dict[str, Any]], dict[str, Any]] = lambda at, source: source
        self.__dict__.update(more)

    def __call__(self, request: Request) -> Reply:
        path = request.path.partition("?")[0]
        body = json.loads(request.body) if request.body.startswith(b"{") and b"\n{" not in request.body else {}
        return Reply(json.dumps(self.answer(request.method, path, body)).encode(), headers=HEADERS)

    def answer(self, method: str, path: str, body: dict[str, Any]) -> Any:
        if path == "/":
            return {"version": {"number": self.version, "build_flavor": "default"}, "tagline": "You Know, for Search"}
        if path.endswith("/_field_caps"):
            kinds = {
                "@timestamp": "date",
                "message": "text",
                "host.name": "keyword",
                "labels.job_name": "keyword",
                "labels.rank": "keyword",
                "log.offset": "long",
            }
            return {
                "indices": self.indices,
                "fields": {
                    name: {kind: {"type": kind, "searchable": True, "aggregatable": kind != "text"}}
                    for name, kind in kinds.items()
                },
            }
        if path.endswith("/_pit"):
            if method == "DELETE":
                self.closed += 1
                return {"succeeded": True, "num_freed": 1}
            self.opened += 1
            return {"id": f"pit-{self.opened}", "_shards": self.shards}
        if path.endswith("/_search"):
            return self.search(path, body)
        return {}

    def search(self, path: str, body: dict[str, Any]) -> Any:
        told: dict[str, Any] = {
            "took": 1, "timed_out": self.timed_out, "_shards": self.shards, "hits": {"total": {"value": self.lines, "relation": "eq"}, "hits": []},
        }  # fmt: skip
        if path == "/_search":
            self.page(body)
            after = (body.get("search_after") or [-1])[-1] + 1
            part = range(after, min(after + body["size"], self.lines)) if not body.get("slice", {}).get("id") else []
            told["hits"]["hits"] = [self.hit(at, body) for at in part]
            return told | {"pit_id": "pit-1"}
        if body.get("size") and body.get("_source"):
            told["hits"]["hits"] = [self.hit(at, body) for at in range(min(body["size"], self.lines))]
        aggregations: dict[str, Any] = {}
        for name, each in (body.get("aggs") or {}).items():
            if "filters" in each:
                ways = each["filters"]["filters"]
                aggregations[name] = {"buckets": {way: {"doc_count": self.lines if way != "node" else 0} for way in ways}}
            elif "min" in each or "max" in each:
                value = (self.begin + ("max" in each) * max(self.lines - 1, 0)) * 1000
                aggregations[name] = {"value": value if self.lines else None}
            elif each.get("terms", {}).get("field") == "_index":
                names = [*self.indices, *(self.rolled if set(body["aggs"]) == {"indices"} else [])]
                aggregations[name] = {"buckets": [{"key": one, "doc_count": self.lines} for one in names]}
            else:
                aggregations[name] = {"buckets": [{"key": "gpu-node-003", "doc_count": self.lines}]}
        return told | {"aggregations": aggregations}

    def hit(self, at: int, body: dict[str, Any]) -> dict[str, Any]:
        moment = self.begin + at
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(moment))
        text = "ValueError: sample 48123 has no tokens" if at == self.lines - 1 else f"step {at}"
        fields = {
            "@timestamp": [stamp],
            "message": [text],
            "labels.rank": ["27"],
            "host.name": ["gpu-node-003"],
            "log.offset": [at * 40],
        }
        sort = [int(moment * 1000), at * 40, at]
        source = {
            "@timestamp": stamp,
            "message": text,
            "labels.rank": "27",
            "host": {"name": "gpu-node-003"},
            "log": {"offset": at * 40},
        }
        hit: dict[str, Any] = {"_index": "logs-1", "_id": f"id-{at}", "sort": sort[-len(body.get("sort") or sort) :]}
        if body.get("fields"):
            hit["fields"] = {
                name: fields[name]
                for each in body["fields"]
                if (name := each["field"] if isinstance(each, dict) else each) in fields and name not in self.unsaid
            }
        if body.get("_source"):
            hit["_source"] = self.shape(at, source)
        return hit


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "incident")


def collected(server: FaultServer, folder: Folder, seconds: float = 8.0, scope: Scope = SCOPE, **more: Any) -> list[Answer]:
    """Collect, and see to it that nobody waited beyond the deadline and no secret was told."""
    access = Access(server.url, **{"api_key": "c2VjcmV0LWtleQ==", "product": "elasticsearch", **more.pop("access", {})})
    source = LogIndex(access, index="logs-*", clock=lambda: SCOPE.until, **more)
    began = time.monotonic()
    try:
        answers = source.collect(scope, folder, Deadline(seconds))
    finally:
        source.close()
    assert time.monotonic() - began < seconds + 0.5
    assert answers
    assert "c2VjcmV0" not in repr(answers)
    return answers


def test_lines_become_a_file_in_order(folder: Folder) -> None:
    canned = Canned(20)
    with FaultServer(canned) as server:
        (answer,) = collected(server, folder)
    assert (answer.status, answer.rows) == ("ok", 20), answer
    text = (folder.root / answer.file).read_text().splitlines()
    assert answer.file == "logs/nodes/gpu-node-003/rank-27.log"
    assert text[0] == "2026-05-04T10:00:00.000Z step 0"
    assert text[-1].endswith("ValueError: sample 48123 has no tokens")
    assert canned.opened == canned.closed == 1


@pytest.mark.parametrize(
    ("fault", "status", "says"),
    [
        ("refused", "failed", "reach"),
        ("hang", "failed", "answer"),
        ("slow", "failed", "answer"),
        ("reset", "failed", ""),
        ("cut", "failed", "cut"),
        ("401", "failed", "401"),
        ("403", "failed", "403"),
        ("500", "failed", "500"),
        ("503", "failed", "503"),
        ("login-page", "failed", "redirect"),
        ("html", "failed", "web page"),
        ("empty", "failed", "Elasticsearch"),
    ],
)
def test_a_fault_is_an_answer(fault: str, status: str, says: str, folder: Folder) -> None:
    with FaultServer(Canned(), fault=fault, retry_after="0") as server:
        (answer,) = collected(server, folder, 4.0)
    assert answer.status == status
    assert says in answer.detail, answer.detail
    assert answer.hint or fault in ("500", "503", "reset")
    assert answer.source == "job"


@pytest.mark.parametrize("fault", ["hang", "slow", "cut", "500", "403", "reset", "html"])
def test_a_fault_in_the_middle_of_paging_leaves_what_came(fault: str, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.sources.elasticsearch.source.PAGE", 5)
    canned = Canned(40)
    with FaultServer(
        canned, fault=fault, when=lambda request: request.path.startswith("/_search?"), after=2, retry_after="0"
    ) as server:
        (answer, *_) = collected(server, folder, 5.0)
    assert answer.status == "partial", answer
    assert answer.rows == 10
    assert canned.closed == 1


def test_too_many_requests_are_asked_again_when_the_server_says(folder: Folder) -> None:
    with FaultServer(Canned(), fault="429", times=2, retry_after="1") as server:
        began = time.monotonic()
        (answer,) = collected(server, folder)
    assert answer.status == "ok"
    assert time.monotonic() - began >= 2


def test_too_many_requests_for_longer_than_we_have_is_an_answer_at_once(folder: Folder) -> None:
    with FaultServer(Canned(), fault="429", retry_after="120") as server:
        began = time.monotonic()
        (answer,) = collected(server, folder)
    assert answer.status == "failed"
    assert "429" in answer.detail
    assert time.monotonic() - began < 3


def test_a_certificate_that_nobody_signed_is_said(folder: Folder) -> None:
    with FaultServer(Canned(), tls=True) as server:
        (answer,) = collected(server, folder)
        assert (answer.status, "TLS" in answer.detail) == ("failed", True), answer
        assert "ca = FILE" in answer.hint
        (answer,) = collected(server, folder, access={"ca": str(server.certificate)})
        assert answer.status == "ok", answer


def test_no_line_of_a_known_job_is_missing(folder: Folder) -> None:
    with FaultServer(Canned(0)) as server:
        (answer,) = collected(server, folder)
    assert answer.status == "missing"
    assert "llm-70b" in answer.detail


def test_no_index_is_missing(folder: Folder) -> None:
    canned = Canned(0)
    canned.answer = lambda method, path, body: {"indices": [], "fields": {}}  # type: ignore[method-assign]
    with FaultServer(canned) as server:
        (answer,) = collected(server, folder)
    assert answer.status == "missing"
    assert "no index" in answer.detail


def test_lines_that_end_long_before_the_window_are_stale(folder: Folder) -> None:
    with FaultServer(Canned()) as server:
        (answer,) = collected(server, folder, scope=Scope("llm-70b", START - 60, START + 7200))
    assert answer.status == "stale"
    assert "older" in answer.detail


def test_shards_that_fail_are_partial(folder: Folder) -> None:
    failed = SHARDS | {
        "successful": 1,
        "failed": 1,
        "failures": [{"index": "logs-1", "reason": {"type": "x", "reason": "no such shard"}}],
    }
    with FaultServer(Canned(shards=failed)) as server:
        (answer,) = collected(server, folder)
    assert answer.status == "partial"
    assert "1 of 2 shards" in answer.detail
    assert "no such shard" in answer.detail


def test_a_search_that_the_server_stops_is_partial(folder: Folder) -> None:
    with FaultServer(Canned(timed_out=True)) as server:
        (answer,) = collected(server, folder)
    assert answer.status == "partial"
    assert "time-out" in answer.detail


def test_an_index_that_rolls_over_is_partial(folder: Folder) -> None:
    with FaultServer(Canned(rolled=["logs-2"])) as server:
        (answer,) = collected(server, folder)
    assert answer.status == "partial"
    assert "rolled over" in answer.detail
    assert "logs-2" in answer.detail


def test_more_lines_than_are_fetched_are_cut_at_a_moment(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.sources.elasticsearch.source.PAGE", 10)
    canned = Canned(50)
    with FaultServer(canned) as server:
        (answer,) = collected(server, folder, most=20)
    assert (answer.status, answer.rows) == ("partial", 20)
    assert "left out" in answer.detail
    assert canned.closed == 1


@pytest.mark.parametrize("offset", [-600.0, 600.0])
def test_a_clock_that_is_off_is_said(offset: float, folder: Folder) -> None:
    with FaultServer(Canned(), clock_offset=offset) as server:
        (answer,) = collected(server, folder)
        assert answer.status == "partial"
        assert "clock" in answer.detail
        reaches = LogIndex(Access(server.url), index="logs-*").examine(Deadline(5))
    assert [each.status for each in reaches if each.item == "clock"] == ["warning"]


def test_lines_from_the_future_are_said(folder: Folder) -> None:
    with FaultServer(Canned(begin=START + 600)) as server:
        (answer,) = collected(server, folder)
    assert answer.status == "partial"
    assert "future" in answer.detail


def test_a_client_of_the_wrong_major_version_is_told_the_way_out(folder: Folder) -> None:
    refused = {
        "error": {"type": "media_type_header_exception", "reason": "Invalid media-type value on headers [Accept]"},
        "status": 400,
    }
    with FaultServer(lambda request: Reply(json.dumps(refused).encode(), 400)) as server:
        (answer,) = collected(server, folder)
    assert "major version" in answer.detail
    assert "pip install" in answer.hint


def test_an_interrupted_collection_keeps_the_files_it_had(folder: Folder) -> None:
    folder.write("logs/nodes/gpu-node-003/rank-27.log", b"as it was\n")
    with FaultServer(Canned()) as server:
        collected(server, folder)
    assert (folder.root / "logs/nodes/gpu-node-003/rank-27.log").read_bytes() == b"as it was\n"


def test_a_full_folder_is_partial(folder: Folder) -> None:
    folder.limit = 100
    with FaultServer(Canned()) as server:
        (answer,) = collected(server, folder)
    assert answer.status == "partial"


def test_the_doctor_tells_what_is_wrong() -> None:
    with FaultServer(Canned(version="8.19.8")) as server:
        reaches = LogIndex(Access(server.url), index="logs-*").examine(Deadline(8))
    said = {each.item: each for each in reaches}
    assert said["version"].status == "critical"
    assert "pip install" in said["version"].fix
    assert said["fields"].status == "ok"
    assert said["kernel log"].blind_to
    with FaultServer(Canned(), fault="401") as server:
        (reach,) = LogIndex(Access(server.url), index="logs-*").examine(Deadline(8))
    assert reach.status == "critical"
    assert "user/exception" in reach.blind_to


def test_locate_tells_pods_and_nodes() -> None:
    with FaultServer(Canned()) as server:
        found = LogIndex(Access(server.url), index="logs-*").locate(SCOPE, Deadline(8))
        assert found is not None
        assert found.nodes == ("gpu-node-003",)
    with FaultServer(Canned(0)) as server:
        assert LogIndex(Access(server.url), index="logs-*").locate(SCOPE, Deadline(8)) is None


def test_a_preset_that_is_none_is_a_wrong_setting(folder: Folder) -> None:
    with FaultServer(Canned()) as server:
        (answer,) = collected(server, folder, preset="splunk")
        assert answer.status == "failed"
        with pytest.raises(ConfigError):
            LogIndex(Access(server.url), fields={"colour": "red"}).detected(Deadline(5))


def test_secrets_are_not_shown() -> None:
    access = Access("https://u:pass-word@h:9200", api_key="key-value", password="pass-word", headers={"X-Token": "token-value"})
    assert not any(secret in repr(access) for secret in ("key-value", "token-value"))
    assert access.hidden("https://u:pass-word@h key-value token-value") == "https://***@h *** ***"


def test_the_table_of_fields_is_whole() -> None:
    assert set(presets()) == set(PRESETS) - {"custom"}
    for row in table("log_fields"):
        assert row["meaning"] in MEANINGS
        assert all(row[name] for name in ("fields", "source", "date"))
        assert row["source"].startswith("https://")


# -- a whole log ----------------------------------------------------------------------------------------------------------


def _dotted(at: int, source: dict[str, Any]) -> dict[str, Any]:
    return (
        source | {"host.name": source["host"]["name"], "host": None, "log": None, "log.offset": source["log"]["offset"]}
        if at % 2
        else source
    )


def _alias(at: int, source: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in source.items() if at < 30 or name != "labels.rank"}


def _local(at: int, source: dict[str, Any]) -> dict[str, Any]:
    return source | {"@timestamp": source["@timestamp"].replace("10:00", "12:00").replace("Z", "+02:00")}


def _numbers(at: int, source: dict[str, Any]) -> dict[str, Any]:
    return source | {"labels.rank": 27, "message": [source["message"]]}


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize("shape", [lambda at, source: source, _dotted, _alias, _local, _numbers])
def test_documents_of_any_shape_give_the_same_files(
    shape: Callable[[int, dict[str, Any]], dict[str, Any]], typed: bool, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.sources.elasticsearch.source.PAGE", 20)
    if not typed:
        monkeypatch.setattr("workbench.sources.elasticsearch.typed._msgspec", lambda: None)
    bodies: list[dict[str, Any]] = []
    with FaultServer(Canned(50, shape=shape, page=bodies.append)) as server:
        (answer,) = collected(server, folder)
    assert (answer.status, answer.rows) == ("ok", 50), answer
    text = (folder.root / "logs/nodes/gpu-node-003/rank-27.log").read_text().splitlines()
    assert [re.sub(r"^2026\S+ ", "", line) for line in text] == [f"step {at}" for at in range(49)] + [
        "ValueError: sample 48123 has no tokens"
    ]
    assert all(body["sort"] == [{"_shard_doc": "asc"}] for body in bodies)  # the only order that costs the server nothing
    asked_again = sum(bool(body.get("fields")) for body in bodies)
    assert asked_again == (2 if shape is _alias else 0)  # the page that lacks a field, and all pages after it


def test_a_field_that_some_lines_lack_is_asked_for_once_only(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.sources.elasticsearch.source.PAGE", 10)
    bodies: list[dict[str, Any]] = []
    canned = Canned(60, page=bodies.append, unsaid={"host.name"}, shape=lambda at, source: {**source, "host": None})
    with FaultServer(canned) as server:
        (answer,) = collected(server, folder)
    assert (answer.status, answer.rows) == ("ok", 60), answer
    assert sum(bool(body.get("fields")) for body in bodies) == 1


def test_what_moved_is_counted_on_the_wire_and_unpacked(folder: Folder) -> None:
    with FaultServer(Canned()) as server:
        source = LogIndex(Access(server.url, "elasticsearch"), "logs-*", clock=lambda: SCOPE.until)
        (answer,) = source.collect(SCOPE, folder, Deadline(8))
        source.close()
    assert source.server.moved == source.server.received > 1000  # this server does not compress
    assert "MB moved" in answer.detail
