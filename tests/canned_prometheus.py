"""Turn canned samples into the answers of a Prometheus with two nodes of two GPUs each, for tests that need no server."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.sources.contract import STATUSES, Answer, Deadline, Folder, Scope
from workbench.sources.prometheus.source import Prometheus
from workbench.testing.faults import FaultServer, Reply, Request
from workbench.testing.prometheus import Prometheus as Fake
from workbench.testing.prometheus import asked as parameters
from workbench.testing.promql import Series, selected

NOW = time.time() // 30 * 30
SINCE = NOW - 3600
NODES = ("gpu-node-001", "gpu-node-002")
NAMES = ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER")
Samples = list[tuple[float, str]]


def asked(request: Request) -> dict[str, str]:
    """The parameters of a request, from its address or its body."""
    return dict(parameters(request))


def raw(request: Request) -> bool:
    """Whether a request asks for samples."""
    return "/query" in request.path and asked(request).get("query", "").endswith("]")


class Canned(Fake):
    """
    The shipped fake with two nodes of two GPUs each; `samples` and `more` change what it says.

    Samples come as they are told, also what no server would keep: out of order, twice, native histograms, names without samples.
    """

    def __init__(self) -> None:
        super().__init__([])
        self.names: tuple[str, ...] = NAMES
        self.samples: Callable[[str, int], Samples] = lambda name, gpu: [(SINCE + 30 * at, "45") for at in range(121)]
        self.histograms = False
        self.empty = False

    def __call__(self, request: Request) -> Reply:
        odd = raw(request) or (self.histograms and "query_range" in request.path)
        return self.matrix(asked(request)["query"].split("{")[0]) if odd else super().__call__(request)

    def series(self) -> list[Series]:
        found = []
        for name in () if self.empty else self.names:
            for number in range(4):
                samples = sorted(self.samples(name, number))
                found.append(Series(self.labels(name, number), [at for at, _ in samples], [float(value) for _, value in samples]))
        return found

    def _matching(self, params: list[tuple[str, str]], *, must: bool = False) -> list[Series]:
        wanted = [value for key, value in params if key == "match[]"]
        series = self.series()
        return [one for text in wanted for one in selected(series, text)] if wanted else series

    def labels(self, name: str, number: int) -> dict[str, str]:
        return {
            "__name__": name,
            "Hostname": NODES[number // 2],
            "UUID": f"GPU-00000000-0000-0000-0000-{number:012d}",
            "gpu": str(number % 2),
            "instance": f"10.0.0.{number // 2 + 1}:9400",
            "namespace": "ml",
            "pod": f"trainer-{number // 2}",
        }

    def matrix(self, name: str) -> Reply:
        result: list[dict[str, Any]] = []
        for number in range(4) if name in self.names else ():
            if self.histograms:
                told: dict[str, Any] = {"histograms": [[NOW, {"count": "1", "sum": "1", "buckets": []}]]}
            else:
                told = {"values": [[moment, value] for moment, value in self.samples(name, number)]}
            if all(told.values()):
                result.append({"metric": self.labels(name, number), **told})
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
