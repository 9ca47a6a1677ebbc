"""Turn a real Prometheus with a backfilled GPU fault into a collected incident, and check that the verdict names the GPU."""

from __future__ import annotations

import http.server
import json
import struct
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_api_client")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.detect.metrics import detect_metrics
from workbench.incident import load
from workbench.sources.contract import Answer, Deadline, Folder, Scope
from workbench.sources.prometheus import api as prometheus_api
from workbench.sources.prometheus import collect as prometheus_collect
from workbench.sources.prometheus.http import QueryError
from workbench.sources.prometheus.query import any_of, quote, split_matrix
from workbench.sources.prometheus.source import Prometheus
from workbench.testing.faults import FaultServer

pytestmark = pytest.mark.live

SERVICES = Path(__file__).resolve().parent.parent / "services" / "prometheus"
Start = Callable[..., str]


def history(folder: Path, *options: str) -> Path:
    file = folder / f"history{len(list(folder.glob('*.om')))}.om"
    with file.open("wb") as out:
        subprocess.run([sys.executable, SERVICES / "dcgm_history.py", *options], stdout=out, check=True, timeout=300)
    return file


@pytest.fixture(scope="module")
def start(start_prometheus: Start) -> Start:
    """Start a server in a folder and on a port of its own."""
    return start_prometheus


@pytest.fixture(scope="module")
def server(start: Start, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four nodes of eight GPUs: GPU 3 of the last has memory errors, GPU 7 of the third falls off the bus."""
    return start(str(history(tmp_path_factory.mktemp("om"))))


def scope(**more: Any) -> Scope:
    now = time.time()
    return Scope("trainer", now - 3600, now, **more)


def bad(answers: list[Answer]) -> list[Answer]:
    return [answer for answer in answers if answer.status != "ok"]


def culprit(folder: Path) -> tuple[str, str | None, int | None]:
    verdict = load(folder).triage()
    return verdict.cls, verdict.node, verdict.gpu.index if verdict.gpu else None


def test_the_verdict_names_the_gpu(server: str, tmp_path: Path) -> None:
    prometheus = Prometheus(server)
    where = prometheus.locate(scope(), Deadline(20))
    assert where is not None
    assert (where.namespace, where.nodes[0], len(where.nodes), where.pods[-1]) == ("ml", "gpu-node-001", 4, "trainer-3")
    answers = prometheus.collect(where, Folder(tmp_path), Deadline(30))
    assert not bad(answers)
    assert culprit(tmp_path) == ("hardware/gpu-memory", "gpu-node-004", 3)
    events = detect_metrics(load(tmp_path).series)
    told = {(event.signature, event.node, event.gpu.index if event.gpu else None) for event in events}
    assert ("metric-ecc-dbe-increase", "gpu-node-004", 3) in told
    assert ("metric-xid-change", "gpu-node-004", 3) in told
    assert ("metric-xid-change", "gpu-node-003", 7) in told
    assert ("metric-gpu-vanished", "gpu-node-003", 7) in told  # and not five minutes late, as query_range would have it
    gone = next(event.time for event in events if event.signature == "metric-gpu-vanished")
    assert gone is not None
    assert 500 < time.time() - gone < 720


def test_without_a_scheduler_the_name_of_the_pods_will_do(server: str, tmp_path: Path) -> None:
    answers = Prometheus(server).collect(scope(), Folder(tmp_path), Deadline(30))
    assert not [answer for answer in bad(answers) if answer.status == "failed"]
    assert culprit(tmp_path) == ("hardware/gpu-memory", "gpu-node-004", 3)


def test_a_job_that_is_not_there_is_missing(server: str, tmp_path: Path) -> None:
    now = time.time()
    answers = Prometheus(server).collect(Scope('no"such{job}\\', now - 3600, now), Folder(tmp_path), Deadline(30))
    assert answers[0].status == "missing"
    assert not list(tmp_path.rglob("metrics/DCGM*"))


def test_data_that_stopped_long_ago_is_stale(server: str, tmp_path: Path) -> None:
    now = time.time()
    answers = Prometheus(server).collect(Scope("trainer", now - 7000, now - 4000), Folder(tmp_path), Deadline(30))
    assert "missing" in {answer.status for answer in answers}  # nothing before the history begins


def test_of_a_large_job_only_suspects_and_peers_travel(start: Start, tmp_path: Path) -> None:
    """40 nodes, 320 GPUs: the two nodes with faults and four others are taken, and the verdict is that of all of them."""
    url = start(str(history(tmp_path, "--nodes", "40", "--hostname", "hostname")))
    few, whole = Folder(tmp_path / "few"), Folder(tmp_path / "whole")
    nodes = tuple(f"gpu-node-{at:03d}.cluster.local" for at in range(1, 41))
    answers = Prometheus(url).collect(scope(nodes=nodes), few, Deadline(60))
    assert not bad(answers)
    asked = next(answer for answer in answers if "questions what changed on 320 GPUs of 40 nodes" in answer.detail)
    assert asked.rows == 2
    labels = split_matrix((tmp_path / "few/metrics/DCGM_FI_DEV_POWER_USAGE.json").read_bytes()).labels()
    taken = {row["hostname"] for row, _ in labels}
    assert {"gpu-node-040", "gpu-node-039"} < taken
    assert len(taken) == 6
    ports = split_matrix((tmp_path / "few/metrics/node_infiniband_state_id.json").read_bytes())
    assert len(ports.series) == 12
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prometheus_collect, "SMALL", 1000)
        assert not bad(Prometheus(url).collect(scope(nodes=nodes), whole, Deadline(60)))
    assert culprit(tmp_path / "few") == culprit(tmp_path / "whole") == ("hardware/gpu-memory", "gpu-node-040", 3)
    assert few.size < whole.size / 5


def test_a_healthy_large_job_has_no_suspects(start: Start, tmp_path: Path) -> None:
    url = start(str(history(tmp_path, "--nodes", "12", "--healthy")))
    answers = Prometheus(url).collect(scope(), Folder(tmp_path / "all"), Deadline(60))
    assert any("nothing changed; 0 nodes and 4 others" in answer.detail for answer in answers)


def test_tls_and_authentication(start: Start, tmp_path: Path) -> None:
    url = start("--secure", str(history(tmp_path, "--nodes", "1")))
    folder = next(path for path in tmp_path.parent.glob("prometheus*") if (path / "ca.crt").exists())
    ca = folder / "ca.crt"

    def asked(name: str, **options: Any) -> list[Answer]:
        return Prometheus(url, **options).collect(scope(), Folder(tmp_path / name), Deadline(20))

    untrusted = asked("a", username="user", password="secret")
    assert "no trusted TLS connection" in untrusted[0].detail
    unknown = asked("b", ca=ca)
    assert "HTTP 401" in unknown[0].detail
    wrong = asked("c", ca=ca, username="user", password="wr0ng")
    assert "HTTP 401" in wrong[0].detail
    assert "wr0ng" not in repr(wrong)
    assert {answer.status for answer in (*untrusted, *unknown, *wrong)} == {"failed"}
    assert "failed" not in {answer.status for answer in asked("d", ca=ca, username="user", password="secret")}
    lines = Prometheus(url, ca=ca).examine(Deadline(10))
    assert [(line.item, line.status) for line in lines] == [("rights", "critical")]


@pytest.mark.parametrize("fault", ["hang", "slow", "cut", "reset", "401", "403", "429", "500", "503", "login-page", "html"])
def test_faults_in_front_of_a_real_server(server: str, tmp_path: Path, fault: str) -> None:
    with FaultServer(
        server, fault=fault, when=lambda request: "DCGM_FI_DEV_P" in urllib.parse.unquote(request.path), retry_after="20"
    ) as front:
        began = time.monotonic()
        answers = Prometheus(front.url).collect(scope(), Folder(tmp_path), Deadline(8))
        assert time.monotonic() - began < 8.5
    failed = [answer for answer in answers if answer.status == "failed"]
    assert failed
    if fault not in ("hang", "slow"):
        # what stands under another name still counts
        assert culprit(tmp_path) == ("hardware/gpu-memory", "gpu-node-004", 3)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_text_is_safe_in_a_query(server: str, value: str) -> None:
    """The server's own parser gives back what was quoted, and an exact matcher matches just that."""
    api = Prometheus(server).api
    made = f'label_replace(vector(1), "made", {quote(value.replace("$", "$$"))}, "", "")'
    rows, _ = api.instant(made, time.time(), Deadline(10))
    assert rows[0][0].get("made", "") == value
    found, _ = api.instant(f"absent(nothing{{{any_of('made', [value, 'x'])}}})", time.time(), Deadline(10))
    assert len(found) == 1


def test_frames_in_chunks_are_the_frame(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prometheus = Prometheus(server)
    end = time.time() // 30 * 30
    whole = prometheus.frame("DCGM_FI_DEV_POWER_USAGE", end - 3600, end, 30)
    plain = prometheus_api.chunks
    monkeypatch.setattr(prometheus_api, "chunks", lambda since, until, step: plain(since, until, step, 7))
    pieces = prometheus.frame("DCGM_FI_DEV_POWER_USAGE", end - 3600, end, 30)
    assert whole.equals(pieces)
    assert len(whole) > 3000
    # and it is what prometheus-api-client reads
    from datetime import UTC, datetime

    from prometheus_api_client import PrometheusConnect

    data = PrometheusConnect(server).custom_query_range(
        "DCGM_FI_DEV_POWER_USAGE", datetime.fromtimestamp(end - 3600, UTC), datetime.fromtimestamp(end, UTC), "30"
    )
    assert whole["value"].tolist() == [float(value) for one in data for _, value in one["values"]]


def test_ten_days_at_ten_seconds_pass_the_servers_limit(server: str) -> None:
    end = time.time() // 10 * 10
    frame = Prometheus(server).frame("node_load1", end - 10 * 86400, end, 10)  # 86,400 points; the server gives 11,000 at once
    assert frame["time"].is_monotonic_increasing or frame["node"].nunique() > 1
    assert not frame.duplicated(["time", *[name for name in frame if name not in ("time", "value")]]).any()


def test_an_error_has_the_servers_words(server: str) -> None:
    with pytest.raises(QueryError, match="parse error") as caught:
        Prometheus(server).frame("sum(", time.time() - 60, time.time())
    assert caught.value.error_type == "bad_data"
    assert caught.value.query == "sum("


def test_the_doctor(server: str) -> None:
    lines = {line.item: line for line in Prometheus(server).examine(Deadline(20))}
    assert lines["version"].status == lines["clock"].status == lines["rights"].status == lines["data age"].status == "ok"
    assert lines["label node"].detail.startswith("Hostname, 4 nodes")
    assert "field DCGM_FI_DEV_ECC_DBE_VOL_TOTAL" not in lines
    assert lines["field DCGM_FI_DEV_THERMAL_VIOLATION"].fix.startswith("DCGM_FI_DEV_THERMAL_VIOLATION, counter,")


class Exporter(http.server.BaseHTTPRequestHandler):
    """A dcgm-exporter of two GPUs, of which one can be taken away."""

    gpus = 2

    def do_GET(self) -> None:
        text = "".join(
            f'DCGM_FI_DEV_GPU_TEMP{{gpu="{gpu}",UUID="GPU-0000000{gpu}-0000-0000-0000-000000000000",Hostname="node-a",pod="live-0",'
            f'namespace="ml"}} {40 + gpu}\n'
            for gpu in range(self.gpus)
        )
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def test_a_real_scrape_with_staleness_markers(start: Start, tmp_path: Path) -> None:
    """A GPU that goes away leaves a staleness marker, which must be no sample; the exporter's target stays up."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Exporter) as exporter:
        threading.Thread(target=exporter.serve_forever, daemon=True).start()
        try:
            url = start("--target", f"127.0.0.1:{exporter.server_port}")
            began = time.time()
            while Prometheus(url).api.value("count(DCGM_FI_DEV_GPU_TEMP)", time.time(), Deadline(5)) != 2:
                assert time.time() - began < 30
                time.sleep(0.5)
            time.sleep(3)
            Exporter.gpus = 1
            time.sleep(5)
        finally:
            exporter.shutdown()
            Exporter.gpus = 2
    answers = Prometheus(url).collect(Scope("live", began - 1, time.time()), Folder(tmp_path), Deadline(20))
    assert "failed" not in {answer.status for answer in answers}
    matrix = split_matrix((tmp_path / "metrics/DCGM_FI_DEV_GPU_TEMP.json").read_bytes())
    counts = {labels["gpu"]: samples.count(b"],[") + 1 for labels, samples in matrix.labels()}
    assert counts["1"] < counts["0"]
    assert b"NaN" not in (tmp_path / "metrics/DCGM_FI_DEV_GPU_TEMP.json").read_bytes()
    assert json.loads((tmp_path / "metrics/up.json").read_bytes())["data"]["result"]


def _field(number: int, value: int | float | bytes) -> bytes:
    """Return one field of a protobuf message."""
    kind = {int: 0, float: 1, bytes: 2}[type(value)]
    head = _varint(number << 3 | kind)
    if isinstance(value, bytes):
        return head + _varint(len(value)) + value
    return head + (struct.pack("<d", value) if isinstance(value, float) else _varint(value))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


class HistogramExporter(http.server.BaseHTTPRequestHandler):
    """An exporter with a temperature and, in the format that native histograms need, a histogram of utilisation."""

    scrapes = 0

    def do_GET(self) -> None:
        type(self).scrapes += 1
        labels = b"".join(
            _field(1, _field(1, name.encode()) + _field(2, value.encode()))
            for name, value in (("gpu", "0"), ("Hostname", "node-h"), ("pod", "hist-0"), ("namespace", "ml"))
        )
        count = 10 * type(self).scrapes
        # schema 0: one bucket for each power of two; all in the one up to 64 (sint32 and sint64 are in zigzag)
        buckets = (
            _field(5, 0) + _field(6, 1e-128) + _field(7, 0) + _field(12, _field(1, 2 * 6) + _field(2, 1)) + _field(13, 2 * count)
        )
        histogram = _field(1, count) + _field(2, 50.0 * count) + buckets
        body = b""
        for name, kind, metric in (
            ("DCGM_FI_DEV_GPU_TEMP", 1, labels + _field(2, _field(1, 41.0))),
            ("DCGM_FI_DEV_GPU_UTIL", 4, labels + _field(7, histogram)),
        ):
            family = _field(1, name.encode()) + _field(2, b"help") + _field(3, kind) + _field(4, metric)
            body += _varint(len(family)) + family
        self.send_response(200)
        kind_of = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
        self.send_header("Content-Type", kind_of)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def test_native_histograms_of_a_real_server_are_told_of(start: Start, tmp_path: Path) -> None:
    """The metric beside the histogram is read, the histogram is named with the way out, and the way out works."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), HistogramExporter) as exporter:
        threading.Thread(target=exporter.serve_forever, daemon=True).start()
        try:
            url = start("--feature", "native-histograms", "--target", f"127.0.0.1:{exporter.server_port}")
            prometheus, began = Prometheus(url), time.time()
            while not (prometheus.api.value("histogram_count(DCGM_FI_DEV_GPU_UTIL)", time.time(), Deadline(5)) or 0) >= 30:
                assert time.time() - began < 40
                time.sleep(0.5)
        finally:
            exporter.shutdown()
    end = time.time()
    answers = prometheus.collect(Scope("hist", began - 1, end), Folder(tmp_path), Deadline(20))
    (told,) = [answer for answer in answers if "DCGM_FI_DEV_GPU_UTIL" in answer.detail]
    assert (told.status, told.file) == ("failed", "")
    assert "is a native histogram" in told.detail
    assert "histogram_quantile" in told.hint
    assert json.loads((tmp_path / "metrics/DCGM_FI_DEV_GPU_TEMP.json").read_bytes())["data"]["result"]
    with pytest.raises(QueryError, match="native histograms"):
        prometheus.frame("DCGM_FI_DEV_GPU_UTIL", began, end, 1)
    # the grid's last point lies up to a step before the end, so one step more takes in the last scrape
    counts = prometheus.frame("histogram_count(DCGM_FI_DEV_GPU_UTIL)", began, end + 2, 1)
    assert counts["value"].max() >= 30
    middle = prometheus.frame("histogram_quantile(0.5, DCGM_FI_DEV_GPU_UTIL)", began, end, 1)
    assert middle["value"].dropna().between(32, 64).all()
    assert middle["value"].notna().any()


def test_a_deleted_series_is_told(start: Start, tmp_path: Path) -> None:
    url = start(str(history(tmp_path, "--nodes", "1")))
    address = f"{url}/api/v1/admin/tsdb/delete_series?match[]=DCGM_FI_DEV_XID_ERRORS"
    with urllib.request.urlopen(urllib.request.Request(address, method="POST"), timeout=10) as answer:
        assert answer.status == 204
    answers = Prometheus(url).collect(scope(), Folder(tmp_path / "folder"), Deadline(20))
    found = [answer for answer in answers if "DCGM_FI_DEV_XID_ERRORS" in answer.detail]
    assert found
    assert {answer.status for answer in found} <= {"missing", "partial"}
