"""Turn log lines into an Elasticsearch: the calls of its HTTP API that the workbench asks, for tests without a server."""

from __future__ import annotations

import base64
import binascii
import fnmatch
import gzip
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from workbench.testing.elastic_search import search, shards
from workbench.testing.evidence import Evidence
from workbench.testing.faults import Reply, Request
from workbench.testing.lucene import WORDS, Index, Refusal, named

__all__ = ["MAPPING", "Elasticsearch", "documents"]

# what Filebeat's template says of the fields that `documents` has
MAPPING = {"@timestamp": "date", "message": "text", "log.offset": "long"}
_SEARCH = frozenset({
    "ignore_unavailable", "allow_no_indices", "expand_wildcards", "allow_partial_search_results", "filter_path", "routing", "preference",
    "pretty", "human", "error_trace", "request_cache", "batched_reduce_size", "max_concurrent_shard_requests", "rest_total_hits_as_int",
    "typed_keys", "ccs_minimize_roundtrips",
})  # fmt: skip


def documents(evidence: Evidence) -> Iterator[dict[str, Any]]:
    """Yield the log lines of an incident as Filebeat would have sent them: those of pods, of the job's files and of kernels."""
    for line in (*evidence.job_lines, *evidence.kernel_lines):
        document: dict[str, Any] = {"@timestamp": int(line.time * 1000), "message": line.text}
        log: dict[str, Any] = {"offset": line.offset, "file": {"path": f"/var/log/{line.file}"}}
        if line.kernel:
            log |= {"file": {"path": "/var/log/kern.log"}, "syslog": {"appname": "kernel", "facility": {"name": "kern"}}}
        document["log"] = log
        if line.pod:
            meta, spec = evidence.pods[line.pod]["metadata"], evidence.pods[line.pod].get("spec") or {}
            containers = [str(each.get("name")) for each in spec.get("containers") or [{"name": "main"}]]
            document["kubernetes"] = {
                "pod": {"name": line.pod},
                "namespace": str(meta.get("namespace", "default")),
                "container": {"name": next((each for each in containers if f".{each}." in f".{line.file}."), containers[0])},
                **({"node": {"name": line.node}} if line.node else {}),
            }
            log["file"] = {"path": f"/var/log/containers/{line.pod}.log"}
        else:
            document |= {"host": {"name": line.node}} if line.node else {}
            if not line.kernel:
                names = {"job": evidence.job}
                if evidence.allocation and evidence.allocation["JobID"] == evidence.job:
                    names["job_name"] = evidence.allocation.get("JobName", "")
                document["fields"] = names
        yield document


class Elasticsearch:
    """
    An Elasticsearch that holds some indices; to be served by `workbench.testing.FaultServer`.

    Parameters
    ----------
    source : path, Evidence or sequence of Index
        An incident folder, whose logs are then in one index ``filebeat-DATE``, or the indices themselves.
    version : str
        What it says it is.

    Attributes
    ----------
    indices : dict
        Name → `Index`; one may be added or taken away at any time.
    open : dict
        Points in time that are open, by id.
    forbidden : set of str
        Indices that may not be read (403).
    """

    def __init__(self, source: str | Path | Evidence | Sequence[Index], *, version: str = "9.4.3") -> None:
        if isinstance(source, (str, Path, Evidence)):
            evidence = Evidence.of(source)
            day = datetime.fromtimestamp(evidence.reference, UTC)
            source = [Index(f"filebeat-{day:%Y.%m.%d}", MAPPING, documents(evidence))]
        self.indices: dict[str, Index] = {index.name: index for index in source}
        self.version = version
        self.open: dict[str, list[Index]] = {}
        self.forbidden: set[str] = set()
        self._opened = 0
        self._lock = threading.Lock()  # an index makes its postings when it is first asked

    def __call__(self, request: Request) -> Reply:
        """Answer one request."""
        parts = urlsplit(request.path)
        params = dict(parse_qsl(parts.query, keep_blank_values=True))
        status = 200
        try:
            with self._lock:
                told = self._told(request, unquote(parts.path), params)
            if "error" in told:
                status = told["status"]
        except Refusal as refusal:
            status, told = refusal.status, _error(refusal)
        except (KeyError, TypeError, ValueError, AttributeError) as error:  # a body that is not what it should be
            told = _error(Refusal(f"Failed to parse request: {type(error).__name__}: {error}", "x_content_parse_exception"))
            status = 400
        if params.get("filter_path") and status == 200:
            told = filtered(told, params["filter_path"].split(","))
        return _reply(request, told, status)

    def _told(self, request: Request, path: str, params: Mapping[str, str]) -> dict[str, Any]:
        raw = request.body
        if "gzip" in request.headers.get("content-encoding", ""):
            raw = gzip.decompress(raw)
        words = [word for word in path.split("/") if word]
        method = request.method
        if not words and method in ("GET", "HEAD"):
            return self._about()
        if words[-1:] == ["_msearch"] and method in ("GET", "POST"):
            return self._msearch(raw, params)
        if words == ["_nodes", "_local", "stats", "os"] and method == "GET":
            return {"cluster_name": "fake", "nodes": {"node-1": {"timestamp": int(time.time() * 1000), "name": "node-1"}}}
        if words == ["_cluster", "health"] and method == "GET":
            return {"cluster_name": "fake", "status": "green", "timed_out": False, "number_of_nodes": 1}
        body = json.loads(raw) if raw.strip() else {}
        calls: dict[str, Callable[[str, Mapping[str, Any], Mapping[str, str]], dict[str, Any]]] = {
            "_search": self._search,
            "_count": self._count,
            "_field_caps": self._field_caps,
            "_mapping": self._mapping,
            "_pit": self._close if method == "DELETE" else self._pit,
        }
        methods = ("POST", "DELETE") if words[-1:] == ["_pit"] else ("GET", "POST")
        if 1 <= len(words) <= 2 and words[-1] in calls and method in methods:
            return calls[words[-1]](words[0] if len(words) == 2 else "", body, params)
        raise Refusal(f"no handler found for uri [{request.path}] and method [{method}]", "no_handler", 400)

    def _about(self) -> dict[str, Any]:
        return {
            "name": "node-1",
            "cluster_name": "fake",
            "cluster_uuid": "workbench-testing",
            "version": {
                "number": self.version, "build_flavor": "default", "build_type": "tar", "build_hash": "0", "build_date": "2026-01-01T00:00:00Z",
                "build_snapshot": False, "lucene_version": "10.4.0", "minimum_wire_compatibility_version": "8.19.0",
                "minimum_index_compatibility_version": "8.0.0",
            },
            "tagline": "You Know, for Search",
        }  # fmt: skip

    def _chosen(self, pattern: str, params: Mapping[str, str], lenient: bool = False) -> list[Index]:
        """Return the indices that a pattern names; raises `Refusal` as the server does for one that is not there."""
        found: dict[str, Index] = {}
        for each in (pattern or "*").split(","):
            wild = "*" in each or each == "_all"
            names = [name for name in self.indices if each == "_all" or fnmatch.fnmatchcase(name, each)]
            if not names and not wild and params.get("ignore_unavailable") != "true":
                raise Refusal(f"no such index [{each}]", "index_not_found_exception", 404)
            if not wild and self.forbidden & set(names):
                raise Refusal(
                    f"action [indices:data/read/search] is unauthorized for user [reader] on indices [{each}]",
                    "security_exception",
                    403,
                )
            found |= {name: self.indices[name] for name in names if name not in self.forbidden}
        if not found and params.get("allow_no_indices", "true") == "false" and not lenient:
            if self.forbidden:
                raise Refusal(
                    f"action [indices:data/read/search] is unauthorized for user [reader] on indices [{pattern}]",
                    "security_exception",
                    403,
                )
            raise Refusal(f"no such index [{pattern}]", "index_not_found_exception", 404)
        return [found[name] for name in sorted(found)]

    # -- searches ---------------------------------------------------------------------------------------------------------

    def _search(self, pattern: str, body: Mapping[str, Any], params: Mapping[str, str]) -> dict[str, Any]:
        if unknown := set(params) - _SEARCH:
            raise Refusal(
                f"request [/{pattern}/_search] contains unrecognized parameter: [{min(unknown)}]",
                "illegal_argument_exception",
                whole=True,
            )
        pit = body.get("pit")
        if pit is None:
            if body.get("slice"):
                raise Refusal(
                    "[slice] can only be used with [scroll] or [point-in-time] requests", "action_request_validation_exception"
                )
            return search(self._chosen(pattern, params), body)
        if pattern:
            raise Refusal(
                "[indices] cannot be used with point in time. Do not specify any index with point in time.",
                "action_request_validation_exception",
            )
        if unknown := {"ignore_unavailable", "allow_no_indices", "expand_wildcards"} & set(params):
            raise Refusal(f"[{min(unknown)}] cannot be used with point in time", "action_request_validation_exception")
        if pit["id"] not in self.open:
            try:
                base64.b64decode(pit["id"], validate=True)
            except binascii.Error:
                raise Refusal("[1:1] [pit] failed to parse field [id]", "x_content_parse_exception") from None
            raise Refusal(f"No search context found for id [{pit['id']}]", "search_context_missing_exception", 404)
        told = search(self.open[pit["id"]], body, pit=True)
        return {"pit_id": pit["id"], **told}

    def _msearch(self, raw: bytes, params: Mapping[str, str]) -> dict[str, Any]:
        lines = [json.loads(line) for line in raw.splitlines() if line.strip()]
        responses: list[dict[str, Any]] = []
        for header, body in zip(lines[::2], lines[1::2], strict=True):
            names = header.get("index", "")
            given = {key: str(value).lower() for key, value in header.items() if key != "index"}
            try:
                told = self._search(",".join(names) if isinstance(names, list) else names, body, given)
                responses.append({**told, "status": 200})
            except Refusal as refusal:
                if refusal.whole:  # what cannot be read ends all of them; what a shard refuses, one
                    raise
                responses.append(_error(refusal))
        return {"took": 1, "responses": responses}

    def _count(self, pattern: str, body: Mapping[str, Any], params: Mapping[str, str]) -> dict[str, Any]:
        if unknown := set(body) - {"query"}:
            raise Refusal(f"request does not support [{min(unknown)}]")
        chosen = self._chosen(pattern, params)
        told = search(chosen, {**body, "size": 0, "track_total_hits": True})
        return {"count": told["hits"]["total"]["value"], "_shards": told["_shards"]}

    def _pit(self, pattern: str, body: Mapping[str, Any], params: Mapping[str, str]) -> dict[str, Any]:
        if "keep_alive" not in params:
            raise Refusal("[keep_alive] is not specified", "action_request_validation_exception")
        chosen = self._chosen(pattern, params)
        self._opened += 1
        name = base64.b64encode(f"pit-{self._opened:06d}".encode()).decode()
        # what is added later, or taken away, does not show at a point in time
        self.open[name] = [_frozen(index) for index in chosen]
        return {"id": name, "_shards": shards(len(chosen))}

    def _close(self, pattern: str, body: Mapping[str, Any], params: Mapping[str, str]) -> dict[str, Any]:
        gone = self.open.pop(body["id"], None) is not None
        if not gone:
            return {"succeeded": True, "num_freed": 0}
        return {"succeeded": True, "num_freed": 1}

    # -- fields -----------------------------------------------------------------------------------------------------------

    def _field_caps(self, pattern: str, body: Mapping[str, Any], params: Mapping[str, str]) -> dict[str, Any]:
        chosen = self._chosen(pattern, params)
        wanted = params["fields"].split(",") if "fields" in params else list(body.get("fields") or [])
        if not wanted:
            raise Refusal("no fields specified", "action_request_validation_exception")
        every = params.get("include_empty_fields", "true") == "true"
        types: dict[str, set[str]] = {}
        for index in chosen:
            there = set(index.types) if every else {name for fields in index.fields for name in fields}
            for name in named(wanted, there):
                types.setdefault(name, set()).add(index.types[name])
                while "." in name:  # the objects that hold a field come with it, and only so
                    name = name.rpartition(".")[0]
                    types.setdefault(name, set()).add("object")
        return {
            "indices": [index.name for index in chosen],
            "fields": {name: {kind: _caps(kind) for kind in sorted(kinds)} for name, kinds in sorted(types.items())},
        }

    def _mapping(self, pattern: str, body: Mapping[str, Any], params: Mapping[str, str]) -> dict[str, Any]:
        return {index.name: {"mappings": {"properties": properties(index.types)}} for index in self._chosen(pattern, params)}


def properties(types: Mapping[str, str]) -> dict[str, Any]:
    """Return field → type as the ``properties`` of a mapping."""
    root: dict[str, Any] = {}
    for name, kind in sorted(types.items()):
        place = root
        *parents, last = name.split(".")
        for parent in parents:
            place = place.setdefault(parent, {}).setdefault("properties", {})
        place[last] = {"type": kind}
    return root


def _frozen(index: Index) -> Index:
    copy = Index(index.name, index.types)
    copy.sources, copy.fields = list(index.sources), list(index.fields)
    return copy


def _caps(kind: str) -> dict[str, Any]:
    there = kind != "object"
    return {"type": kind, "metadata_field": False, "searchable": there, "aggregatable": there and kind not in WORDS}


def _error(refusal: Refusal) -> dict[str, Any]:
    if refusal.kind == "no_handler":
        return {"error": refusal.reason, "status": refusal.status}
    said = {"type": refusal.kind, "reason": refusal.reason}
    if not refusal.whole:
        shard = {"shard": 0, "index": "index", "node": "node-1", "reason": said}
        phase = {"reason": "all shards failed", "phase": "query", "grouped": True, "failed_shards": [shard]}
        return {"error": {"root_cause": [said], "type": "search_phase_execution_exception", **phase}, "status": refusal.status}
    return {"error": {"root_cause": [said], **said}, "status": refusal.status}


def _reply(request: Request, told: Any, status: int) -> Reply:
    accept = request.headers.get("accept", "")
    kind = accept if "vnd.elasticsearch" in accept else "application/json"
    headers = {"Content-Type": kind.split(",")[0], "X-elastic-product": "Elasticsearch"}
    body = json.dumps(told, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    if "gzip" in request.headers.get("accept-encoding", ""):
        body = gzip.compress(body, 1)
        headers["Content-Encoding"] = "gzip"
    return Reply(body, status, headers)


def filtered(told: Any, paths: Iterable[str]) -> Any:
    """Return the parts of an answer that ``filter_path`` names: ``hits.hits._id``, ``*`` for a name, ``**`` for any number of them."""
    result = _filtered(told, [path.split(".") for path in paths])
    return {} if result is None else result


def _filtered(told: Any, paths: Sequence[Sequence[str]]) -> Any:
    if any(not path for path in paths):
        return told
    if isinstance(told, list):
        rows = [part for each in told if (part := _filtered(each, paths)) is not None]
        return rows or None
    if not isinstance(told, Mapping):
        return None
    kept: dict[str, Any] = {}
    for name, value in told.items():
        inner: list[Sequence[str]] = []
        for path in paths:
            if path[0] == "**":
                inner.append(path)
                path = path[1:]
            if path and re.fullmatch(path[0].replace("*", ".*"), name):
                inner.append(path[1:])
        if inner and (part := _filtered(value, inner)) is not None:
            kept[name] = part
    return kept or None
