"""Turn a log server into the lines of `workbench doctor`: what it is, what we may read, how old it is, and what it therefore cannot show."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from workbench.errors import SourceError, WorkbenchError
from workbench.sources.contract import Deadline, Reach
from workbench.sources.elasticsearch.fields import Fields
from workbench.sources.elasticsearch.job import Asked
from workbench.sources.elasticsearch.pull import shard_trouble
from workbench.sources.elasticsearch.server import BadAnswer, Refused, Server
from workbench.sources.http_words import server_time

__all__ = ["LOG_CLASSES", "examined"]

NAME = "elasticsearch"
# what only the job's own words tell
LOG_CLASSES = (
    "user/exception", "user/gpu-oom", "user/illegal-memory-access", "user/collective-mismatch", "user/numerics", "user/config",
    "user/hang", "platform/network",
)  # fmt: skip
_OLD = 900.0  # seconds after which the newest line says that a shipper stopped
_LAG = 120.0
_CLOCK = 30.0


def examined(
    server: Server, index: str, deadline: Deadline, detected: Callable[[], Fields], clock: Callable[[], float] = time.time
) -> list[Reach]:
    """Return what ``workbench doctor`` says; never raises."""
    found: list[Reach] = []
    steps = (_version, _indices, _fields, _search, _newest)
    state = _State(server, index, deadline, detected, clock)
    for step in steps:
        try:
            found += step(state)
        except SourceError as error:
            item = {
                "_version": "version",
                "_indices": "indices",
                "_fields": "fields",
                "_search": "message",
                "_newest": "data age",
            }[step.__name__]
            if isinstance(error, Refused):
                item = f"rights: {item}"
            first = not found
            critical = first or isinstance(error, Refused)
            found.append(
                Reach(
                    NAME, item, "critical" if critical else "unknown", server.access.hidden(str(error)), error.hint, LOG_CLASSES
                )
            )
            if first or isinstance(error, Refused):
                break  # nobody there, or not for us: the rest would only say so again
        except WorkbenchError as error:
            found.append(Reach(NAME, "configuration", "critical", str(error), error.hint, LOG_CLASSES))
            break
    return found


class _State:
    def __init__(
        self, server: Server, index: str, deadline: Deadline, detected: Callable[[], Fields], clock: Callable[[], float]
    ) -> None:
        self.server, self.index, self.deadline, self.detected, self.clock = server, index, deadline, detected, clock

    @property
    def asked(self) -> Asked:
        return Asked(self.server, self.index, self.detected(), self.deadline)


def _version(state: _State) -> Iterator[Reach]:
    try:
        reply = state.server.ask("GET", "/", state.deadline)
    except Refused as error:
        if "403" not in str(error):
            raise
        # a key that may only read logs is the right one to have: all that is lost is the version
        yield Reach(
            NAME, "version", "unknown", "we may not ask for it (403)", "grant the cluster privilege monitor to have it checked"
        )
        yield from _clock(state, "")
        return
    about = (reply.body.get("version") or {}) if isinstance(reply.body, dict) else {}
    number = str(about.get("number") or "")
    product = str(about.get("distribution") or "elasticsearch")
    mine = state.server.client_version()
    detail = f"{product} {number or '(says no version)'}, client {mine}"
    if product != ("opensearch" if state.server.opensearch else "elasticsearch"):
        yield Reach(NAME, "version", "critical", detail, f'[elasticsearch] product = "{product}"', LOG_CLASSES)
    elif product == "elasticsearch" and number and mine.split(".")[0] != number.split(".")[0]:
        major = number.split(".")[0]
        newer = int(mine.split(".")[0]) > int(major)
        yield Reach(
            NAME, "version", "critical" if newer else "warning",
            f"{detail}: the client's major version must be the server's", f"pip install 'elasticsearch>={major},<{int(major) + 1}'",
            LOG_CLASSES if newer else (),
        )  # fmt: skip
    else:
        yield Reach(NAME, "version", "ok" if number else "unknown", detail)
    yield from _clock(state, reply.headers.get("date", ""))


def _clock(state: _State, date: str) -> Iterator[Reach]:
    before = state.clock()
    theirs = server_time(date)
    if theirs is None:
        try:
            body = state.server.ask(
                "GET", "/_nodes/_local/stats/os", state.deadline, params={"filter_path": "nodes.*.timestamp"}
            ).body
            theirs = max((each["timestamp"] / 1000 for each in (body.get("nodes") or {}).values()), default=None)
            before = (before + state.clock()) / 2
        except SourceError as error:
            yield Reach(
                NAME, "clock", "unknown", f"the server does not tell its time: {error}", "grant the cluster privilege monitor"
            )
            return
    if theirs is None:
        yield Reach(NAME, "clock", "unknown", "the server does not tell its time", "grant the cluster privilege monitor")
        return
    offset = theirs - before
    fine = abs(offset) <= _CLOCK
    yield Reach(
        NAME, "clock", "ok" if fine else "warning", f"{offset:+.1f} s from ours", "" if fine else "start chrony or ntpd on both machines",
        () if fine else ("platform/node-lost",),
    )  # fmt: skip


def _indices(state: _State) -> Iterator[Reach]:
    fields = state.detected()
    if not fields.indices:
        yield Reach(
            NAME, "indices", "critical", f"no index matches {state.index}, or we may see none",
            "[elasticsearch] index = \"…\"; grant read and view_index_metadata on it", LOG_CLASSES,
        )  # fmt: skip
        return
    shown = ", ".join(fields.indices[:3]) + (" …" if len(fields.indices) > 3 else "")
    yield Reach(NAME, "indices", "ok", f"{len(fields.indices)} match {state.index}: {shown}")


def _fields(state: _State) -> Iterator[Reach]:
    fields = state.detected()
    if not fields.message or not fields.time:
        lacks = "message" if not fields.message else "time"
        yield Reach(NAME, "fields", "critical", f"no field for the {lacks}", f'[elasticsearch.fields] {lacks} = "…"', LOG_CLASSES)
        return
    told = ", ".join(f"{name} {values[0]}" for name, values in fields.named.items() if values and name not in ("message", "time"))
    yield Reach(NAME, "fields", "ok", f"preset {fields.preset}: message {fields.message}, time {fields.time}, {told}")
    if not any(fields.named[name] for name in ("job", "pod", "file")):
        yield Reach(
            NAME, "field job", "warning", "nothing tells which job a line is from; only nodes and times do",
            "let the shipper add the job's name or the pod, or [elasticsearch.fields] job = \"…\"", ("user/exception",),
        )  # fmt: skip
    if not any(fields.named[name] for name in ("pod", "rank", "file", "container")):
        yield Reach(
            NAME, "field pod", "warning", "nothing tells the ranks of a job apart", '[elasticsearch.fields] pod = "…" or rank = "…"',
            ("user/hang", "user/collective-mismatch"),
        )  # fmt: skip
    if not fields.named["node"]:
        yield Reach(
            NAME, "field node", "warning", "nothing tells on which node a line was written",
            '[elasticsearch.fields] node = "…"', ("platform/node-lost",),
        )  # fmt: skip
    if not fields.offset and not fields.nanos:
        yield Reach(
            NAME, "field offset", "warning", "lines of one millisecond may come in any order: no offset, no nanoseconds",
            "ship the offset of the line in its file (Filebeat: log.offset, Fluent Bit: Offset_Key, Vector: offset_key)",
        )  # fmt: skip
    if not fields.kernel:
        yield Reach(
            NAME, "kernel log", "warning", "no field marks kernel lines: they are not shipped here, or not recognised",
            "ship the journal with its transport, or syslog with its program name",
            ("hardware/gpu-lost", "hardware/nvlink", "hardware/pcie", "driver/hang"),
        )  # fmt: skip


def _search(state: _State) -> Iterator[Reach]:
    fields = state.detected()
    if not fields.message:
        return
    if not fields.searchable:
        yield Reach(
            NAME, "message", "warning", f"{fields.message} is not indexed: a large job's log cannot be searched on the server",
            "map it as text or match_only_text", ("user/exception",),
        )  # fmt: skip
        return
    if not fields.words:
        status = "ok" if "wildcard" in fields.message_type else "warning"
        yield Reach(
            NAME, "message", status, f"{fields.message} is {fields.message_type}: it is searched by wildcards",
            "" if status == "ok" else "map it as text: a keyword is slow to search, and lines beyond ignore_above are not found",
        )  # fmt: skip
        return
    said = _finds(state.asked)
    if said:
        yield Reach(NAME, "message", "warning", said, "let the field be analysed by the standard analyzer", ("user/exception",))
    else:
        yield Reach(NAME, "message", "ok", f"{fields.message} is {fields.message_type} and finds its words")


def _finds(asked: Asked) -> str:
    """Look for the words of a newest line by themselves: an analyzer of another kind does not find them."""
    fields = asked.fields
    body = asked.search(
        {"size": 5, "sort": [{fields.time: {"order": "desc", "unmapped_type": "date"}}], "_source": False, "fields": [fields.message],
         "query": {"exists": {"field": fields.message}}}
    )  # fmt: skip
    import re

    for hit in body["hits"]["hits"]:
        text = " ".join(str(each) for each in (hit.get("fields") or {}).get(fields.message, ()))
        pair = re.search(r"(?<=\s)([A-Za-z]{3,}) ([A-Za-z]{3,})(?=\s)", text)
        if pair is None:
            continue
        phrase = {"match_phrase": {fields.message: pair[0].lower()}}
        count = asked.search({"size": 0, "query": {"bool": {"filter": [{"ids": {"values": [hit["_id"]]}}, phrase]}}})
        if not count["hits"]["total"]["value"]:
            return f"{fields.message} does not find the words {pair[0]!r} of its own line"
    return ""


def _newest(state: _State) -> Iterator[Reach]:
    fields = state.detected()
    if not fields.time:
        return
    aggs: dict[str, Any] = {"newest": {"max": {"field": fields.time}}}
    body = state.asked.search({"size": 0, "aggs": aggs})
    if trouble := shard_trouble(body["_shards"], bool(body.get("timed_out"))):
        yield Reach(NAME, "shards", "warning", trouble, "look at GET /_cluster/allocation/explain", LOG_CLASSES)
    value = ((body.get("aggregations") or {}).get("newest") or {}).get("value")
    if value is None:
        yield Reach(NAME, "data age", "critical", f"{state.index} holds no line", "check the shipper", LOG_CLASSES)
        return
    age = state.clock() - float(value) / 1000
    when = datetime.fromtimestamp(float(value) / 1000, UTC).isoformat(timespec="seconds")
    if age < -60:
        yield Reach(
            NAME,
            "data age",
            "warning",
            f"the newest line is {-age:.0f} s in the future ({when})",
            "a node's clock is off: check chrony",
        )
    else:
        old = age > _OLD
        yield Reach(
            NAME, "data age", "warning" if old else "ok", f"the newest line is {age:.0f} s old ({when})",
            "check that the shippers still send" if old else "", LOG_CLASSES if old else (),
        )  # fmt: skip
    yield from _lag(state)


def _lag(state: _State) -> Iterator[Reach]:
    fields = state.detected()
    ingested = fields.first("ingested")
    if not ingested:
        return
    try:
        body = state.asked.search(
            {"size": 20, "sort": [{fields.time: {"order": "desc", "unmapped_type": "date"}}], "_source": False,
             "query": {"exists": {"field": ingested}},
             "fields": [{"field": name, "format": "epoch_millis"} for name in (fields.time, ingested)]}
        )  # fmt: skip
    except BadAnswer:
        return
    lags = [
        (float(got[ingested][0]) - float(got[fields.time][0])) / 1000
        for hit in body["hits"]["hits"]
        if (got := hit.get("fields") or {}).get(ingested) and got.get(fields.time)
    ]
    if lags:
        lag = sorted(lags)[len(lags) // 2]
        late = lag > _LAG
        yield Reach(
            NAME, "ingest lag", "warning" if late else "ok", f"a line is searchable {lag:.0f} s after it was written",
            "wait that long before a triage, or give the shipper more workers" if late else "",
        )  # fmt: skip
