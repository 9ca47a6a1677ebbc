"""Turn canned samples into the answers of a Prometheus with two nodes of two GPUs each, for tests that need no server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.faults import FaultServer, Reply, Request
from workbench.sources.contract import STATUSES, Answer, Deadline, Folder, Scope
from workbench.sources.prometheus.source import Prometheus

NOW = time.time() // 30 * 30
SINCE = NOW - 3600
NODES = ("gpu-node-001", "gpu-node-002")
NAMES = ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER")
Samples = list[tuple[float, str]]


def asked(request: Request) -> dict[str, str]:
    """The parameters of a request, from its address or its body."""
    return dict(parse_qsl(urlsplit(request.path).query) + parse_qsl(request.body.decode()))


def raw(request: Request) -> bool:
    """Whether a request asks for samples."""
    return "/query" in request.path and asked(request).get("query", "").endswith("]")


class Canned:
    """A Prometheus of two nodes with two GPUs each; `samples` and `more` change what it says."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = NAMES
        self.samples: Callable[[str, int], Samples] = lambda name, gpu: [(SINCE + 30 * at, "45") for at in range(121)]
        self.more: dict[str, Any] = {}
        self.histograms = False
        self.empty = False
        self.build: dict[str, str] = {"version": "2.42.0", "goVersion": "go1.19"}

    def __call__(self, request: Request) -> Reply:
        path = urlsplit(request.path).path
        if path.endswith("/buildinfo"):
            return self.reply(self.build)
        if path.endswith("/__name__/values"):
            match = asked(request).get("match[]", "DCGM")
            return self.reply([*self.names] if "DCGM" in match and not self.empty else [])
        if path.endswith("/labels"):
            return self.reply(["__name__", "Hostname", "UUID", "gpu", "instance", "namespace", "pod"])
        if path.endswith("/instance/values"):
            return self.reply([f"10.0.0.{at}:9400" for at in (1, 2)])
        if path.endswith("/values"):
            return self.reply([*NODES])
        query = asked(request).get("query", "")
        if query.startswith("count by (Hostname,instance)"):
            return self.vector([({"Hostname": node, "instance": f"10.0.0.{at}:9400"}, 2) for at, node in enumerate(NODES, 1)])
        if query.startswith("max(sum by"):
            return self.vector([({}, 121)])
        if raw(request) or "query_range" in path:
            return self.matrix(query.split("{")[0])
        return self.vector([])

    def reply(self, data: Any) -> Reply:
        return Reply(json.dumps({"status": "success", "data": data, **self.more}, separators=(",", ":")).encode())

    def vector(self, rows: list[tuple[dict[str, str], float]]) -> Reply:
        result = [{"metric": labels, "value": [NOW, str(value)]} for labels, value in rows]
        return self.reply({"resultType": "vector", "result": result})

    def matrix(self, name: str) -> Reply:
        if name == "up":
            return self.reply({"resultType": "matrix", "result": []})
        result: list[dict[str, Any]] = []
        for number in range(4):
            labels = {
                "__name__": name,
                "Hostname": NODES[number // 2],
                "UUID": f"GPU-00000000-0000-0000-0000-{number:012d}",
                "gpu": str(number % 2),
                "instance": f"10.0.0.{number // 2 + 1}:9400",
                "namespace": "ml",
                "pod": f"trainer-{number // 2}",
            }
            if self.histograms:
                result.append({"metric": labels, "histograms": [[NOW, {"count": "1", "sum": "1", "buckets": []}]]})
            elif values := self.samples(name, number):
                result.append({"metric": labels, "values": [[moment, value] for moment, value in values]})
        return self.reply({"resultType": "matrix", "result": result})


def scope(**more: Any) -> Scope:
    return Scope("trainer", SINCE, NOW, **{"nodes": NODES, **more})


def collect(server: FaultServer, tmp_path: Path, seconds: float = 20.0, **options: Any) -> list[Answer]:
    """Collect, and check what holds whatever happens: answers, of known status, in time."""
    began = time.monotonic()
    answers = Prometheus(server.url, **options).collect(scope(), Folder(tmp_path), Deadline(seconds))
    assert time.monotonic() - began < seconds + 0.5
    assert answers
    assert all(answer.status in STATUSES and answer.source == "metrics" and answer.detail for answer in answers)
    return answers


def statuses(answers: list[Answer]) -> set[str]:
    return {answer.status for answer in answers}


def the(answers: list[Answer], text: str) -> Answer:
    found = [answer for answer in answers if text in answer.detail]
    assert found, [answer.detail for answer in answers]
    return found[0]
