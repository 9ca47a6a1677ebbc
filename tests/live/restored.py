"""Turn an incident folder back into running servers that hold it: Kubernetes objects, Prometheus samples, log lines; and ask the site."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from workbench.parse.prefix import context, split_prefix

__all__ = ["Site", "in_pods", "into_elasticsearch", "into_kubernetes", "on_hosts", "openmetrics", "same", "text_of"]

Fields = Callable[[str], dict[str, Any] | None]

_KINDS = {"Pod": "pods", "Node": "minions", "Event": "events"}
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback needs no proxy


@dataclass
class Site:
    """Running servers, by the environment that names them, and the incident folders that they hold."""

    environ: dict[str, str]
    folders: dict[str, Path]

    def workbench(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run the command line as a user of this site does; `more` changes the environment."""
        return subprocess.run(
            [sys.executable, "-m", "workbench", *words],
            capture_output=True,
            text=True,
            timeout=180,
            env=os.environ | self.environ | more,
        )


def same(live: Mapping[str, Any], folder: Mapping[str, Any]) -> None:
    """Check that two verdicts say the same: cause, culprit, victims, the first evidence of the cause, and what to do."""
    for key in ("cause", "class", "retry", "remediation"):
        assert live[key] == folder[key], key
    for key in ("node", "rank", "at_fault"):
        assert live["culprit"][key] == folder["culprit"][key], key
    one, two = live["culprit"]["gpu"], folder["culprit"]["gpu"]
    assert (one and (one["uuid"], one["pci"])) == (two and (two["uuid"], two["pci"]))
    assert {row["rank"]: row["node"] for row in live["victims"]} == {row["rank"]: row["node"] for row in folder["victims"]}
    first, second = (next(row for row in each["evidence"] if row["role"] == "cause") for each in (live, folder))
    assert (first["signature"], first["node"]) == (second["signature"], second["node"])
    apart = datetime.fromisoformat(first["time"]) - datetime.fromisoformat(second["time"])
    assert abs(apart.total_seconds()) < 0.002  # a log server keeps milliseconds


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


def in_pods(folder: Path, namespace: str) -> Fields:
    """Return what Filebeat says of the log of a pod: the name of the file is that of the pod."""
    pods = json.loads(text_of(folder / "pods.json"))["items"]
    nodes = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods}
    return lambda pod: {
        "log": {"file": {"path": f"/var/log/containers/{pod}.log"}},
        "kubernetes": {
            "pod": {"name": pod},
            "namespace": namespace,
            "node": {"name": nodes[pod]},
            "container": {"name": "pytorch"},
        },
    }


def on_hosts(place: str, nodes: Mapping[str, str]) -> Fields:
    """Return what Filebeat says of a log file in a folder that all nodes see, written by a process of one node; else None."""
    return lambda name: (
        {"log": {"file": {"path": f"{place}/{name}.log"}}, "host": {"name": nodes[name]}} if name in nodes else None
    )


def into_elasticsearch(url: str, index: str, folder: Path, fields: Fields) -> int:
    """
    Index a job's logs and its nodes' kernel logs as Filebeat would have; return how many lines.

    Parameters
    ----------
    url : str
        Of the server.
    index : str
        Its name begins with ``filebeat-``.
    folder : Path
        The incident folder.
    fields : callable
        Name of a log file without its ending → fields of each of its lines; None where no shipper reads it.
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
    rows = list(_documents(folder, fields))
    for at in range(0, len(rows), 2000):
        body = "".join(json.dumps({"create": {"_index": index}}) + "\n" + json.dumps(row) + "\n" for row in rows[at : at + 2000])
        answer = _post(f"{url}/_bulk", body.encode(), "application/x-ndjson")
        assert not answer["errors"], str(answer)[:2000]
    _request("POST", f"{url}/_refresh", None)
    return len(rows)


def _request(method: str, url: str, body: dict[str, Any] | None) -> None:
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with _OPENER.open(request, timeout=60) as reply:
        reply.read()


def _documents(folder: Path, fields: Fields) -> Iterator[dict[str, Any]]:
    for path in sorted((folder / "logs").iterdir()):
        told = fields(path.name.split(".log")[0])
        if told is None:
            continue
        lines = text_of(path).splitlines()
        ctx = context(lines, 2025)
        moment, offset = None, 0
        times = [split_prefix(line, ctx).time for line in lines]
        first = next(time for time in times if time is not None)
        for line, time in zip(lines, times, strict=True):
            moment = time if time is not None else (moment or first)
            yield {**told, "@timestamp": int(moment * 1000), "message": line, "log": {**told["log"], "offset": offset}}
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
