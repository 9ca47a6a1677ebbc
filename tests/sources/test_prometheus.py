"""Turn every fault of a Prometheus-like server into an answer with its status, within the deadline: no server needed."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_api_client")

from tests.canned_prometheus import NAMES, NODES, NOW, SINCE, Canned, Samples, collect, raw, scope, statuses, the
from workbench.detect.metrics import detect_metrics
from workbench.incident import load
from workbench.sources.contract import Deadline, Folder
from workbench.sources.prometheus.http import QueryError
from workbench.sources.prometheus.source import Prometheus
from workbench.testing.faults import FaultServer, Reply, Request, self_signed


@pytest.fixture
def canned() -> Canned:
    return Canned()


def test_what_is_collected_is_what_a_folder_is_read_from(canned: Canned, tmp_path: Path) -> None:
    canned.samples = lambda name, gpu: [
        (SINCE + 30 * at, ("79" if gpu == 3 and at > 60 else "0") if "XID" in name else "45") for at in range(121)
    ]
    with FaultServer(canned) as server:
        answers = collect(server, tmp_path)
    assert [one.file for one in answers if one.status == "ok"] == [
        f"metrics/{NAMES[1]}.json",
        f"metrics/{NAMES[2]}.json",
        f"metrics/{NAMES[0]}.json",
    ]
    assert all(one.rows == 4 and one.asked.startswith("DCGM_") for one in answers if one.file)
    event = next(event for event in detect_metrics(load(tmp_path).series) if event.signature == "metric-xid-change")
    assert (event.node, event.gpu.index if event.gpu else None, event.code) == ("gpu-node-002", 1, 79)
    assert event.time == SINCE + 30 * 61
    # node-exporter and kube-state-metrics have nothing here, and the exporter does not count memory errors, which is told
    assert statuses(answers) == {"ok", "missing", "partial"}
    assert "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL" in the(answers, "the GPU exporter does not tell").detail


def test_an_interrupted_collection_goes_on(canned: Canned, tmp_path: Path) -> None:
    with FaultServer(canned) as server:
        collect(server, tmp_path)
        before = len([one for one in server.requests if raw(one)])
        (tmp_path / f"metrics/{NAMES[0]}.json").unlink()
        answers = collect(server, tmp_path)
        assert len([one for one in server.requests if raw(one)]) == before + 1  # the one that lacks
    assert the(answers, "collected before").status == "ok"


# -- faults of the connection ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        ("refused", "refused the connection"),
        ("reset", "no answer from"),
        ("hang", "no complete answer"),
        ("401", "wants to know who asks (HTTP 401)"),
        ("403", "does not allow it (HTTP 403)"),
        ("500", "it broke"),
        ("login-page", "sends to another page"),
        ("html", "an HTML page titled 'Sign in'"),
        ("cut", "was cut after"),
    ],
)
def test_a_server_that_fails_at_once(canned: Canned, tmp_path: Path, fault: str, word: str) -> None:
    with FaultServer(canned, fault=fault) as server:
        answers = collect(server, tmp_path, 1.5)
    assert statuses(answers) == {"failed"}
    assert word in answers[0].detail
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize(
    "fault", ["refused", "reset", "hang", "slow", "401", "403", "429", "500", "503", "login-page", "html", "cut"]
)
def test_a_server_that_fails_in_the_middle(canned: Canned, tmp_path: Path, fault: str) -> None:
    """One field was answered, the others are not; what came is kept, what did not is told with its query."""
    with FaultServer(canned, fault=fault, when=raw, after=1, retry_after="30", drip=0.05) as server:
        if fault == "refused":
            server.fault = None
            server.upstream = _then_refuse(server, canned)
        answers = collect(server, tmp_path, 2.0)
    assert "failed" in statuses(answers)
    assert any(answer.asked.startswith("DCGM_") for answer in answers if answer.status == "failed")
    assert len(list(tmp_path.rglob("*.json"))) == sum(bool(answer.file) for answer in answers) <= 1


def _then_refuse(server: FaultServer, canned: Canned) -> Callable[[Request], Reply]:
    def answer(request: Request) -> Reply:
        if raw(request):
            server.fault = "refused"
            return Reply(b"", 500)
        return canned(request)

    return answer


def test_a_certificate_that_is_not_trusted(canned: Canned, tmp_path: Path) -> None:
    with FaultServer(canned, tls=True) as server:
        answers = collect(server, tmp_path / "a")
        assert statuses(answers) == {"failed"}
        assert "no trusted TLS connection" in answers[0].detail
        assert "self-signed" in answers[0].detail or "self signed" in answers[0].detail
        assert "ca = FILE" in answers[0].hint
        assert "failed" not in statuses(collect(server, tmp_path / "b", ca=server.certificate))


def test_a_client_certificate_is_shown(canned: Canned, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path, "client")
    with FaultServer(canned, tls=True) as server:
        assert server.context is not None
        server.context.verify_mode = ssl.CERT_REQUIRED
        server.context.load_verify_locations(certificate)
        answers = collect(server, tmp_path / "a", ca=server.certificate, certificate=certificate, key=key)
        assert "failed" not in statuses(answers)
        assert statuses(collect(server, tmp_path / "b", ca=server.certificate)) == {"failed"}


def test_too_many_requests_are_asked_again_when_told(canned: Canned, tmp_path: Path) -> None:
    with FaultServer(canned, fault="429", when=raw, times=2, retry_after="0.3") as server:
        answers = collect(server, tmp_path)
    assert "failed" not in statuses(answers)
    assert sum(bool(answer.file) for answer in answers) == len(NAMES)


def test_a_wait_beyond_the_deadline_is_not_waited_for(canned: Canned, tmp_path: Path) -> None:
    with FaultServer(canned, fault="429", retry_after="60") as server:
        began = time.monotonic()
        answers = collect(server, tmp_path, 5.0)
        assert time.monotonic() - began < 2
    assert "asks to wait 60 s" in answers[0].detail


def test_a_very_slow_answer_ends_with_the_deadline(canned: Canned, tmp_path: Path) -> None:
    with FaultServer(canned, fault="slow", when=raw, drip=0.02) as server:
        answers = collect(server, tmp_path, 1.5)
    assert "failed" in statuses(answers)


# -- faults of the data ---------------------------------------------------------------------------------------------------


def test_an_empty_answer_is_missing(canned: Canned, tmp_path: Path) -> None:
    with FaultServer(canned, fault="empty", when=raw, empty=canned.reply({"resultType": "matrix", "result": []}).body) as server:
        answers = collect(server, tmp_path)
    assert statuses(answers) == {"missing", "partial"}
    assert the(answers, f"{NAMES[1]} has no sample in the window").asked


def test_no_metric_at_all_is_missing(canned: Canned, tmp_path: Path) -> None:
    canned.empty = True
    with FaultServer(canned) as server:
        answers = collect(server, tmp_path)
    assert the(answers, "no metric of any GPU exporter").status == "missing"


def test_another_job_s_metrics_are_not_taken(canned: Canned, tmp_path: Path) -> None:
    with FaultServer(canned) as server:
        other = replace(scope(nodes=("other-node-7",)), job="other")
        answers = Prometheus(server.url).collect(other, Folder(tmp_path), Deadline(10))
    assert the(answers, "no series of other-node-7").status == "missing"


def test_a_node_without_metrics_is_told(canned: Canned, tmp_path: Path) -> None:
    with FaultServer(canned) as server:
        answers = Prometheus(server.url).collect(scope(nodes=(*NODES, "gpu-node-003")), Folder(tmp_path), Deadline(10))
    assert the(answers, "no GPU metrics of 1 of 3 nodes: gpu-node-003").status == "partial"


def test_a_deleted_series_is_told(canned: Canned, tmp_path: Path) -> None:
    canned.samples = lambda name, gpu: [] if "XID" in name else [(SINCE + 30 * at, "1") for at in range(121)]
    with FaultServer(canned) as server:
        answers = collect(server, tmp_path)
        canned.names = (NAMES[0],)
        gone = collect(server, tmp_path / "gone")
    assert "DCGM_FI_DEV_XID_ERRORS" in the(gone, "the GPU exporter does not tell").detail
    assert the(answers, "DCGM_FI_DEV_XID_ERRORS has no sample").status == "missing"


def test_a_counter_reset_is_told(canned: Canned, tmp_path: Path) -> None:
    canned.samples = lambda name, gpu: [(SINCE + 30 * at, str(at if at < 60 or gpu != 2 else at - 60)) for at in range(121)]
    with FaultServer(canned) as server:
        answers = collect(server, tmp_path)
    found = the(answers, "1 series began anew (counter reset), first Hostname gpu-node-002")
    assert (found.status, found.file) == ("partial", "metrics/DCGM_FI_DEV_PCIE_REPLAY_COUNTER.json")


def test_samples_out_of_order_and_double_are_told(canned: Canned, tmp_path: Path) -> None:
    def samples(name: str, gpu: int) -> Samples:
        good: Samples = [(SINCE + 30 * at, "1") for at in range(121)]
        return [*good[:5], good[4], *good[5:]] if "XID" in name else [*good[10:], *good[:10]]

    canned.samples = samples
    with FaultServer(canned) as server:
        answers = collect(server, tmp_path)
    assert the(answers, "4 samples stand there twice").status == "partial"
    assert the(answers, "4 samples stand out of order").status == "partial"
    assert load(tmp_path).metrics.groupby("field", observed=True)["time"].size().min() >= 4 * 121


def test_blank_values_are_told(canned: Canned, tmp_path: Path) -> None:
    canned.samples = lambda name, gpu: [(SINCE + 30 * at, "NaN") for at in range(121)]
    with FaultServer(canned) as server:
        answers = collect(server, tmp_path)
    assert the(answers, "all values are NaN").status == "partial"


def test_native_histograms_are_refused(canned: Canned, tmp_path: Path) -> None:
    canned.histograms = True
    with FaultServer(canned) as server:
        answers = collect(server, tmp_path)
        with pytest.raises(QueryError, match="native histograms"):
            Prometheus(server.url).frame(NAMES[0], SINCE, NOW, 30)
    found = the(answers, "is a native histogram")
    assert found.status == "failed"
    assert "histogram_quantile" in found.hint


def test_data_that_ended_early_is_stale(canned: Canned, tmp_path: Path) -> None:
    canned.samples = lambda name, gpu: [(SINCE + 30 * at, "1") for at in range(81)]
    with FaultServer(canned) as server:
        answers = collect(server, tmp_path)
    assert the(answers, "20 min older than the window's end").status == "stale"


@pytest.mark.parametrize("offset", [600, -600])
def test_a_clock_that_is_off_is_told(canned: Canned, tmp_path: Path, offset: float) -> None:
    with FaultServer(canned, clock_offset=offset) as server:
        answers = collect(server, tmp_path)
    found = the(answers, "ahead of this machine's" if offset > 0 else "behind this machine's")
    assert found.status == "partial"
    assert f"{abs(offset):.0f} s" in found.detail or f"{abs(offset) - 1:.0f} s" in found.detail


@pytest.mark.parametrize("more", [{"warnings": ["store 7 did not answer"]}, {"isPartial": True}])
def test_partial_answers_are_told(canned: Canned, tmp_path: Path, more: dict[str, Any]) -> None:
    canned.more = more
    with FaultServer(canned) as server:
        answers = collect(server, tmp_path)
    assert the(answers, "store 7 did not answer" if "warnings" in more else "the answer is partial").status == "partial"
    if "warnings" in more:
        assert any("store 7" in problem.message for problem in load(tmp_path).problems)


def test_a_full_folder_is_told(canned: Canned, tmp_path: Path) -> None:
    with FaultServer(canned) as server:
        answers = Prometheus(server.url).collect(scope(), Folder(tmp_path, limit=5000), Deadline(10))
    assert the(answers, "would hold more than").status == "failed"
