"""Turn an incident folder into a real server that holds it, for the tests that hold the shipped fakes against it."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.live.restored import openmetrics
from tests.live.servers import free_port as free_ports

__all__ = ["SERVICES", "elasticsearch", "kubernetes", "prometheus", "put", "run", "thanos", "told", "victoriametrics"]

SERVICES = Path(__file__).resolve().parents[1] / "services"
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback needs no proxy


def run(*words: object, **more: str) -> str:
    """Run a script of `tests/services` and return what it prints."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=900, env=os.environ | more)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout.strip()


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def told(url: str, body: Any = None, *, method: str = "", headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
    """Return status and decoded JSON of a request; a body that is no text is sent as JSON."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    kind = {"Content-Type": "application/json"} if data is not None else {}
    request = urllib.request.Request(url, data, {**kind, **(headers or {})}, method=method or None)
    try:
        with _OPENER.open(request, timeout=60) as reply:
            return reply.status, json.loads(reply.read() or b"null")
    except urllib.error.HTTPError as error:
        text = error.read()
        try:
            return error.code, json.loads(text)
        except ValueError:
            return error.code, text.decode("utf-8", "replace")


@contextmanager
def prometheus(folder: Path, work: Path) -> Iterator[str]:
    """Start a Prometheus that holds a folder's samples, and yield its address."""
    openmetrics(folder, work / "history.om")
    port = free_port()
    try:
        run(
            SERVICES / "prometheus" / "start",
            "--no-alertmanager",
            "--dir",
            work / "prometheus",
            "--port",
            port,
            work / "history.om",
        )
        yield f"http://127.0.0.1:{port}"
    finally:
        subprocess.run(
            [SERVICES / "prometheus" / "stop", "--dir", work / "prometheus"], check=False, timeout=60, capture_output=True
        )


@contextmanager
def victoriametrics(folder: Path, work: Path) -> Iterator[str]:
    """Start a VictoriaMetrics that holds a folder's samples, and yield its address."""
    openmetrics(folder, work / "history.om")
    port = free_port()
    try:
        run(SERVICES / "prometheus" / "start-victoria", "--dir", work / "victoria", "--port", port, work / "history.om")
        yield f"http://127.0.0.1:{port}"
    finally:
        subprocess.run(
            [SERVICES / "prometheus" / "stop", "--dir", work / "victoria"], check=False, timeout=60, capture_output=True
        )


@contextmanager
def thanos(folder: Path, work: Path) -> Iterator[str]:
    """Start a Prometheus that holds a folder's samples, with a Thanos querier in front of it, and yield the querier's address."""
    with prometheus(folder, work) as url:
        port = free_ports(1, 2, 3)
        try:
            run(SERVICES / "prometheus" / "start-thanos", "--dir", work / "thanos", "--port", port, url)
            yield f"http://127.0.0.1:{port}"
        finally:
            subprocess.run(
                [SERVICES / "prometheus" / "stop", "--dir", work / "thanos"], check=False, timeout=60, capture_output=True
            )


@contextmanager
def elasticsearch(work: Path) -> Iterator[str]:
    """Start an Elasticsearch, and yield its address."""
    if running := os.environ.get("WORKBENCH_TEST_ELASTICSEARCH"):
        yield running
        return
    data = work / "elasticsearch"
    try:
        told = run(SERVICES / "elasticsearch" / "start", free_port(), data)
        yield dict(line.split("=", 1) for line in told.splitlines() if "=" in line)["url"]
    finally:
        subprocess.run([SERVICES / "elasticsearch" / "stop", data], check=False, timeout=60, capture_output=True)


@contextmanager
def kubernetes(work: Path) -> Iterator[Path]:
    """Start etcd and an API server without controllers, and yield the folder with ``admin.kubeconfig``."""
    place = work / "kubernetes"
    try:
        run(SERVICES / "kubernetes" / "start", place, "--controllers", "none")
        yield place
    finally:
        subprocess.run([SERVICES / "kubernetes" / "stop", place], check=False, timeout=60, capture_output=True)


_PLACES = {"Node": "minions", "PodDisruptionBudget": "poddisruptionbudgets"}


def put(place: Path, item: dict[str, Any]) -> None:
    """Put an object where the API server keeps it, with the times it had: through the API it would have been made now."""
    port = int((place / "port").read_text(encoding="utf-8"))
    meta = item["metadata"]
    space = f"{meta['namespace']}/" if "namespace" in meta else ""
    key = f"/registry/{_PLACES.get(item['kind'], item['kind'].lower() + 's')}/{space}{meta['name']}"
    body = {"key": base64.b64encode(key.encode()).decode(), "value": base64.b64encode(json.dumps(item).encode()).decode()}
    status, answer = told(f"http://127.0.0.1:{port + 1}/v3/kv/put", body)
    assert status == 200, answer
