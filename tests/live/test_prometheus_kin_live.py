"""Turn a real VictoriaMetrics and a real Thanos with a backfilled GPU fault into a collected incident: the verdict is that of Prometheus."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("prometheus_api_client")

from tests.live.servers import free_port, run, stop
from tests.live.test_prometheus_live import SERVICES, Exporter, bad, culprit, history, scope
from workbench.sources.contract import Deadline, Folder, Scope
from workbench.sources.prometheus import collect as prometheus_collect
from workbench.sources.prometheus.http import QueryError
from workbench.sources.prometheus.query import split_matrix
from workbench.sources.prometheus.source import Prometheus

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def victoria(start_victoria: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A VictoriaMetrics with 12 nodes."""
    return start_victoria(history(tmp_path_factory.mktemp("om"), "--nodes", "12"))


@pytest.mark.parametrize("small", [64, 1000])
def test_victoriametrics(victoria: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int) -> None:
    """The same questions, by suspects and whole, of the other server that many sites have."""
    monkeypatch.setattr(prometheus_collect, "SMALL", small)
    prometheus = Prometheus(victoria)
    where = prometheus.locate(scope(), Deadline(20))
    assert where is not None
    assert len(where.nodes) == 12
    answers = prometheus.collect(where, Folder(tmp_path / "folder"), Deadline(60))
    assert not bad(answers)
    assert culprit(tmp_path / "folder") == ("hardware/gpu-memory", "gpu-node-012", 3)
    if small == 64:
        labels = split_matrix((tmp_path / "folder/metrics/DCGM_FI_DEV_POWER_USAGE.json").read_bytes()).labels()
        assert len({row["Hostname"] for row, _ in labels}) == 6
    assert "victoriametrics" in prometheus.examine(Deadline(10))[0].detail
    end = time.time() // 30 * 30
    assert len(prometheus.frame("DCGM_FI_DEV_GPU_TEMP", end - 1800, end - 900, 30)) == 96 * 31


def test_a_healthy_large_job_has_no_suspects_there(start_victoria: Callable[..., str], tmp_path: Path) -> None:
    """Every series begins within the window: its own `changes` would count that as a change of each GPU."""
    url = start_victoria(history(tmp_path, "--nodes", "12", "--healthy"))
    now = time.time()
    answers = Prometheus(url).collect(Scope("trainer", now - 7000, now), Folder(tmp_path / "all"), Deadline(60))
    assert any("nothing changed; 0 nodes and 4 others" in answer.detail for answer in answers), answers


def test_the_marker_of_a_series_that_ended_is_no_sample(start_victoria: Callable[..., str], tmp_path: Path) -> None:
    """It scrapes by itself here; its answer has a NaN where the GPU was last looked for."""

    class Shrinking(Exporter):
        gpus = 2

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Shrinking) as exporter:
        threading.Thread(target=exporter.serve_forever, daemon=True).start()
        try:
            config = tmp_path / "scrape.yml"
            config.write_text(
                "scrape_configs: [{job_name: dcgm, scrape_interval: 1s, honor_labels: true, "
                f"static_configs: [{{targets: ['127.0.0.1:{exporter.server_port}']}}]}}]\n"
            )
            url = start_victoria("--option", f"-promscrape.config={config}")
            prometheus, began = Prometheus(url), time.time()
            prometheus.api.build(Deadline(5))
            while prometheus.api.value("count(DCGM_FI_DEV_GPU_TEMP)", time.time(), Deadline(5)) != 2:
                assert time.time() - began < 30
                time.sleep(0.5)
            time.sleep(3)
            Shrinking.gpus = 1
            gone = time.time()
            while prometheus.api.value("count(DCGM_FI_DEV_GPU_TEMP)", time.time(), Deadline(5)) != 1:
                assert time.time() - gone < 60
                time.sleep(0.5)
        finally:
            exporter.shutdown()
    end = time.time()
    asked = prometheus.api.http.ask(
        "/api/v1/query",
        [("query", f"DCGM_FI_DEV_GPU_TEMP[{end - began + 5:.0f}s]"), ("time", f"{end:.0f}"), ("nocache", "1")],
        Deadline(10),
    )
    assert b'"NaN"' in asked.body
    answers = prometheus.collect(Scope("live", began - 1, end), Folder(tmp_path / "folder"), Deadline(20))
    assert "failed" not in {answer.status for answer in answers}, answers
    matrix = split_matrix((tmp_path / "folder/metrics/DCGM_FI_DEV_GPU_TEMP.json").read_bytes())
    counts = {labels["gpu"]: samples.count(b"],[") + 1 for labels, samples in matrix.labels()}
    assert counts["1"] < counts["0"]
    assert not any(b"NaN" in samples for samples in matrix.series.values())


def test_what_it_allows_no_more_of_is_told_with_the_way_out(start_victoria: Callable[..., str], tmp_path: Path) -> None:
    url = start_victoria("--option", "-search.maxSamplesPerQuery=100", history(tmp_path, "--nodes", "1"))
    answers = Prometheus(url).collect(scope(), Folder(tmp_path / "folder"), Deadline(30))
    failed = [answer for answer in answers if answer.status == "failed"]
    assert failed
    assert all("cannot select more than -search.maxSamplesPerQuery" in answer.detail for answer in failed), failed
    assert {answer.hint for answer in failed} == {"ask for fewer series or a shorter window, or raise the server's limit"}
    assert not list((tmp_path / "folder").rglob("DCGM*"))
    with pytest.raises(QueryError, match="too long query") as caught:
        Prometheus(url).frame(f'up{{node="{"x" * 20_000}"}}', time.time() - 60, time.time())
    assert caught.value.hint == "ask for fewer nodes or pods, or raise -search.maxQueryLen"


@pytest.fixture(scope="module")
def thanos(start_prometheus: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Start a Thanos in front of a pair of Prometheus that scraped the same."""
    file = history(tmp_path_factory.mktemp("om"), "--nodes", "12")
    pair = [start_prometheus("--replica", name, file) for name in ("a", "b")]
    folders: list[Path] = []

    def begin(*options: object) -> str:
        folder, port = tmp_path_factory.mktemp("thanos"), free_port(1, 2, 3, 4, 5)
        folders.append(folder)
        run(SERVICES / "start-thanos", "--dir", folder, "--port", port, *options, *pair)
        return f"http://127.0.0.1:{port}"

    yield begin
    for folder in folders:
        stop(SERVICES / "stop", "--dir", folder)


@pytest.mark.parametrize("small", [64, 1000])
def test_a_pair_behind_thanos_is_one_server(
    thanos: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    """Each sample once, although two servers have it."""
    monkeypatch.setattr(prometheus_collect, "SMALL", small)
    prometheus = Prometheus(thanos())
    answers = prometheus.collect(scope(), Folder(tmp_path / "folder"), Deadline(60))
    assert not bad(answers)
    assert culprit(tmp_path / "folder") == ("hardware/gpu-memory", "gpu-node-012", 3)
    lines = {line.item: line for line in prometheus.examine(Deadline(20))}
    assert lines["version"].detail.startswith("thanos 0.")
    assert {lines[item].status for item in ("version", "clock", "rights", "data age", "label node")} == {"ok"}


def test_a_store_that_does_not_answer_makes_the_answers_partial(thanos: Callable[..., str], tmp_path: Path) -> None:
    """Also the list of nodes may then lack some."""
    url = thanos("--store", f"127.0.0.1:{free_port()}")
    answers = Prometheus(url).collect(scope(), Folder(tmp_path / "folder"), Deadline(60))
    assert {answer.status for answer in answers if answer.file} == {"partial"}, answers
    assert any("lists of metrics and nodes may not be whole" in answer.detail for answer in bad(answers))
    assert culprit(tmp_path / "folder") == ("hardware/gpu-memory", "gpu-node-012", 3)
