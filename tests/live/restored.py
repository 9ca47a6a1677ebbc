"""Turn an incident folder back into running servers that hold it: Kubernetes objects, Prometheus samples, log lines."""

from __future__ import annotations

import base64
import gzip
import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workbench.parse.prefix import context, split_prefix

__all__ = ["into_elasticsearch", "into_kubernetes", "openmetrics", "text_of"]

_KINDS = {"Pod": "pods", "Node": "minions", "Event": "events"}
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback needs no proxy


def text_of(path: Path) -> str:
    """Return a file's text, unpacked."""
    return gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text(encoding="utf-8")


def into_kubernetes(etcd: str, folder: Path) -> int:
    """
    Put the objects of `kubectl get -o json` where the API server keeps them, with the times they had; return how many.

    Through the API every object would have been created now, and nothing would have happened in the past.
    """
    count = 0
    for file in ("nodes.json", "pods.json", "events.json"):
        for item in json.loads(text_of(folder / file))["items"]:
            meta = item["metadata"]
            meta.pop("resourceVersion", None)
            if item["kind"] == "Node":  # the API server asks kubelets for logs: none may be looked for beyond this machine
                item["status"]["addresses"] = [{"type": "InternalIP", "address": "127.0.0.1"}]
            meta.setdefault("uid", f"00000000-0000-4000-8000-{count:012d}")
            meta.setdefault("creationTimestamp", item.get("lastTimestamp") or "2025-01-01T00:00:00Z")
            space = f"{meta['namespace']}/" if "namespace" in meta else ""
            _put(etcd, f"/registry/{_KINDS[item['kind']]}/{space}{meta['name']}", item)
            count += 1
    return count


def _put(etcd: str, key: str, item: dict[str, Any]) -> None:
    body = {"key": base64.b64encode(key.encode()).decode(), "value": base64.b64encode(json.dumps(item).encode()).decode()}
    _post(f"{etcd}/v3/kv/put", json.dumps(body).encode(), "application/json")


def _post(url: str, body: bytes, kind: str) -> dict[str, Any]:
    with _OPENER.open(urllib.request.Request(url, body, {"Content-Type": kind}), timeout=60) as reply:
        answer: dict[str, Any] = json.load(reply)
    return answer


def openmetrics(folder: Path, out: Path) -> int:
    """Write the samples of an exposition with times as the OpenMetrics that promtool takes; return how many."""
    families: dict[str, list[str]] = {}
    for path in sorted((folder / "metrics").iterdir()):
        for line in text_of(path).splitlines():
            if line and not line.startswith("#"):
                families.setdefault(re.split(r"[{\s]", line, maxsplit=1)[0], []).append(line)
    with out.open("w", encoding="utf-8") as stream:
        for name, lines in families.items():
            stream.write(f"# TYPE {name} unknown\n" + "\n".join(lines) + "\n")
        stream.write("# EOF\n")
    return sum(map(len, families.values()))


def into_elasticsearch(url: str, folder: Path, *, namespace: str, nodes: dict[str, str]) -> int:
    """
    Index a job's logs and its nodes' kernel logs as Filebeat would have; return how many lines.

    Parameters
    ----------
    url : str
        Of the server.
    folder : Path
        The incident folder.
    namespace : str
        Of the job.
    nodes : dict of str
        Pod → the node it ran on.
    """
    template = {
        "index_patterns": ["filebeat-*"],
        "template": {
            "settings": {"number_of_replicas": 0},
            "mappings": {
                "dynamic_templates": [{"words": {"match_mapping_type": "string", "mapping": {"type": "keyword"}}}],
                "properties": {
                    "@timestamp": {"type": "date"},
                    "message": {"type": "text"},
                    "log": {"properties": {"offset": {"type": "long"}}},
                },
            },
        },
    }
    _request("PUT", f"{url}/_index_template/filebeat", template)
    rows = list(_documents(folder, namespace, nodes))
    for at in range(0, len(rows), 2000):
        body = "".join(
            json.dumps({"create": {"_index": "filebeat-2025.08.05"}}) + "\n" + json.dumps(row) + "\n"
            for row in rows[at : at + 2000]
        )
        answer = _post(f"{url}/_bulk", body.encode(), "application/x-ndjson")
        assert not answer["errors"], str(answer)[:2000]
    _request("POST", f"{url}/_refresh", None)
    return len(rows)


def _request(method: str, url: str, body: dict[str, Any] | None) -> None:
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with _OPENER.open(request, timeout=60) as reply:
        reply.read()


def _documents(folder: Path, namespace: str, nodes: dict[str, str]) -> Iterator[dict[str, Any]]:
    for path in sorted((folder / "logs").iterdir()):
        pod = path.name.split(".log")[0]
        lines = text_of(path).splitlines()
        told = context(lines, 2025)
        moment, offset = None, 0
        times = [split_prefix(line, told).time for line in lines]
        first = next(time for time in times if time is not None)
        for line, time in zip(lines, times, strict=True):
            moment = time if time is not None else (moment or first)
            yield {
                "@timestamp": int(moment * 1000),
                "message": line,
                "log": {"offset": offset, "file": {"path": f"/var/log/containers/{pod}.log"}},
                "kubernetes": {
                    "pod": {"name": pod},
                    "namespace": namespace,
                    "node": {"name": nodes[pod]},
                    "container": {"name": "pytorch"},
                },
            }
            offset += len(line.encode()) + 1
    for path in sorted((folder / "kernel").iterdir()):
        node, offset = path.name.split(".log")[0], 0
        for line in text_of(path).splitlines():
            stamp, _, rest = line.partition(" ")
            yield {
                "@timestamp": re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", stamp),
                "message": rest.partition("kernel: ")[2],
                "log": {
                    "offset": offset,
                    "file": {"path": "/var/log/kern.log"},
                    "syslog": {"facility": {"name": "kern"}, "appname": "kernel"},
                },
                "host": {"name": node},
            }
            offset += len(line.encode()) + 1
