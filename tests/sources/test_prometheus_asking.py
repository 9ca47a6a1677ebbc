"""Turn credentials, kinds of servers, doctor's questions, frames and suspects into requests, and check what is asked."""

from __future__ import annotations

import json
import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("prometheus_api_client")

from tests.canned_prometheus import NAMES, NODES, NOW, SINCE, Canned, asked, collect, raw, scope, statuses
from workbench.sources.contract import Deadline, Folder
from workbench.sources.prometheus.http import PrometheusTimeout, PrometheusUnavailable, QueryError
from workbench.sources.prometheus.jobs import Gpus
from workbench.sources.prometheus.query import any_of, selector
from workbench.sources.prometheus.source import Prometheus
from workbench.sources.prometheus.suspects import Suspects, find_suspects
from workbench.testing.faults import FaultServer, Reply, Request


@pytest.fixture
def canned() -> Canned:
    return Canned()


# -- who asks -------------------------------------------------------------------------------------------------------------


def test_credentials_are_sent_and_never_shown(canned: Canned, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret-token\n")
    with FaultServer(canned) as server:
        for options, header in (
            ({"token_file": token}, "Bearer s3cret-token"),
            ({"token": "s3cret"}, "Bearer s3cret"),
            ({"username": "me", "password": "s3cret"}, "Basic bWU6czNjcmV0"),
        ):
            server.requests.clear()
            answers = collect(server, tmp_path / header.split()[0] / str(len(header)), **options)
            assert {one.headers.get("authorization") for one in server.requests} == {header}
            assert "s3cret" not in repr(answers)
        server.requests.clear()
        Prometheus(server.url.replace("//", "//me:s3cret@"), tenant="team-a").examine(Deadline(10))
        assert server.requests[0].headers["authorization"] == "Basic bWU6czNjcmV0"
        assert server.requests[0].headers["x-scope-orgid"] == "team-a"
        assert server.requests[0].headers["accept-encoding"] == "identity"
        server.fault = "401"
        assert "s3cret" not in repr(Prometheus(server.url.replace("//", "//me:s3cret@")).examine(Deadline(10)))


def test_a_redirect_to_another_host_takes_no_credentials_along(canned: Canned) -> None:
    def away(request: Request) -> Reply:
        return Reply(b"", 302, {"Location": other.url.replace("127.0.0.1", "localhost") + request.path})

    with FaultServer(canned) as other:
        with FaultServer(away) as server, pytest.raises(PrometheusUnavailable, match="sends to another page"):
            Prometheus(server.url, token="s3cret").frame("up", SINCE, NOW, 30)
        assert not other.requests
        # the same API on the same host, e.g. under https, is followed
        with FaultServer(lambda request: Reply(b"", 307, {"Location": other.url + request.path})) as server:
            assert len(Prometheus(server.url, token="s3cret").frame(NAMES[0], SINCE, NOW, 30)) == 4 * 121


def test_a_connection_of_prometheus_api_client_is_taken(canned: Canned) -> None:
    from prometheus_api_client import PrometheusConnect

    with FaultServer(canned) as server:
        client = PrometheusConnect(server.url, headers={"X-Mine": "1"}, auth=("me", "it"))
        assert len(Prometheus(client).frame(NAMES[0], SINCE, NOW, 30)) == 4 * 121
        assert server.requests[0].headers["x-mine"] == "1"
        assert server.requests[0].headers["authorization"].startswith("Basic ")


@pytest.mark.parametrize(
    ("build", "flavour", "params"),
    [
        ({"version": "2.42.0", "goVersion": "go1.19"}, "prometheus", {}),
        ({"version": "2.24.0"}, "victoriametrics", {"nocache": "1", "latency_offset": "1s"}),
        ({"version": "0.36.1", "goVersion": "go1.23"}, "thanos", {"dedup": "true", "partial_response": "true"}),
        ({"version": "2.14.0", "goVersion": "go1.22", "application": "Grafana Mimir"}, "mimir", {}),
    ],
)
def test_what_each_kind_of_server_wants(
    canned: Canned, tmp_path: Path, build: dict[str, str], flavour: str, params: dict[str, str]
) -> None:
    canned.build = build
    with FaultServer(canned) as server:
        collect(server, tmp_path)
        found = asked(next(one for one in server.requests if raw(one)))
        assert flavour in Prometheus(server.url).examine(Deadline(10))[0].detail
    assert params.items() <= found.items()
    assert int(found["timeout"].rstrip("s")) <= 20


VICTORIA = {"version": "2.24.0"}


def test_functions_mean_what_they_mean_in_prometheus(canned: Canned) -> None:
    """VictoriaMetrics' own `changes` counts the first sample of each series."""
    for build, word in (
        (VICTORIA, "changes_prometheus(up[1h])"),
        ({"version": "2.42.0", "goVersion": "go1.19"}, "changes(up[1h])"),
    ):
        canned.build = build
        with FaultServer(lambda request: canned(request) if "buildinfo" in request.path else canned.reply(EMPTY)) as server:
            api = Prometheus(server.url).api
            api.build(Deadline(10))
            api.instant("changes(up[1h])", NOW, Deadline(10))
            assert asked(server.requests[-1])["query"] == word


EMPTY = {"resultType": "vector", "result": []}


def test_a_query_is_shortened_only_where_it_would_be_too_long(canned: Canned) -> None:
    names = [f"gpu-node-{at:04d}.cluster.example.internal" for at in range(1000)]
    long = selector("up", [any_of("node", names)])
    for build, most in ((VICTORIA, 1000), ({"version": "2.42.0", "goVersion": "go1.19"}, len(long))):
        canned.build = build
        with FaultServer(lambda request: canned(request) if "buildinfo" in request.path else canned.reply(EMPTY)) as server:
            api = Prometheus(server.url).api
            api.build(Deadline(10))
            api.instant(long, NOW, Deadline(10))
            assert len(asked(server.requests[-1])["query"]) <= most
            api.instant(selector("up", [any_of("node", names[:3])]), NOW, Deadline(10))
            assert names[1].replace(".", "\\\\.") in asked(server.requests[-1])["query"]


def test_a_list_of_nodes_that_may_lack_some_is_told(canned: Canned, tmp_path: Path) -> None:
    """A node that is not named is not asked for, and nobody would miss it."""

    def answer(request: Request) -> Reply:
        canned.more = {"warnings": ["store 7 did not answer"]} if "/label/" in request.path else {}
        return canned(request)

    with FaultServer(answer) as server:
        answers = collect(server, tmp_path)
    (told,) = [one for one in answers if "the lists of metrics and nodes may not be whole" in one.detail]
    assert (told.status, "store 7 did not answer" in told.detail) == ("partial", True)


@pytest.mark.parametrize(
    ("text", "hint", "times"),
    [
        ("cannot select more than -search.maxSamplesPerQuery=100 samples", "ask for fewer series", 1),
        ("the number of matching timeseries exceeds 300000", "ask for fewer series", 1),
        ("too long query; got 20008 bytes; mustn't exceed `-search.maxQueryLen=16384` bytes", "ask for fewer nodes or pods", 2),
    ],
)
def test_the_reason_of_a_refusal_is_not_lost_behind_the_query(canned: Canned, text: str, hint: str, times: int) -> None:
    """VictoriaMetrics says the query first, whatever its length; what reads too much is not asked again at a step."""
    canned.build = VICTORIA
    said = json.dumps({"status": "error", "errorType": "422", "error": f'error for query="{"x" * 900}\\"y": {text}'}).encode()
    with FaultServer(lambda request: canned(request) if "buildinfo" in request.path else Reply(said, 422)) as server:
        api = Prometheus(server.url).api
        with pytest.raises(QueryError) as caught:
            api.raw("up", SINCE, NOW, 30, Deadline(10))
        assert text in str(caught.value)
        assert hint in caught.value.hint
        assert (caught.value.error_type, len(server.requests)) == ("execution", times)


def test_a_server_without_build_information_is_asked_all_the_same(canned: Canned, tmp_path: Path) -> None:
    with FaultServer(lambda request: Reply(b"", 404) if "buildinfo" in request.path else canned(request)) as server:
        assert "failed" not in statuses(collect(server, tmp_path))


def test_a_server_that_refuses_range_selectors_is_asked_at_a_step(canned: Canned, tmp_path: Path) -> None:
    body = b'{"status":"error","errorType":"bad_data","error":"range vectors are not allowed"}'

    def answer(request: Request) -> Reply:
        return Reply(body, 400) if raw(request) else canned(request)

    with FaultServer(answer) as server:
        answers = collect(server, tmp_path)
        ranges = [asked(one) for one in server.requests if "query_range" in one.path]
    assert "failed" not in statuses(answers)
    assert {one["query"].split("(")[0] for one in ranges} == {"last_over_time"}
    assert {one["step"] for one in ranges} == {"30"}


def test_long_queries_go_by_post(canned: Canned, tmp_path: Path) -> None:
    nodes = tuple(f"gpu-node-{at:05d}.a-rather-long-domain.example" for at in range(200))

    def answer(request: Request) -> Reply:
        return canned.reply([*nodes, *NODES]) if request.path.split("?")[0].endswith("/Hostname/values") else canned(request)

    with FaultServer(answer) as server:
        Prometheus(server.url).collect(scope(nodes=(*nodes, *NODES)), Folder(tmp_path), Deadline(10))
        assert {one.method for one in server.requests if raw(one) and "DCGM" in asked(one)["query"]} == {"POST"}
        assert max(len(one.path) for one in server.requests) < 2000


# -- the doctor -----------------------------------------------------------------------------------------------------------


def test_the_doctor_says_what_is_lacking_and_how_to_switch_it_on(canned: Canned) -> None:
    with FaultServer(canned) as server:
        lines = Prometheus(server.url).examine(Deadline(10))
    by_item = {line.item: line for line in lines}
    assert by_item["version"].status == by_item["clock"].status == by_item["label pod"].status == "ok"
    ecc = by_item["field DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"]
    assert ecc.fix == "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL, counter, Total number of double-bit volatile ECC errors."
    assert ecc.blind_to == ()  # the Xid shows that class as well
    assert by_item["class hardware/network-link"].fix == "--collector.infiniband"
    assert any("hardware/network-link" in line.blind_to for line in lines)


@pytest.mark.parametrize(
    ("fault", "status"),
    [("refused", "critical"), ("401", "critical"), ("hang", "unknown"), ("500", "unknown"), ("html", "critical")],
)
def test_the_doctor_never_raises(canned: Canned, fault: str, status: str) -> None:
    with FaultServer(canned, fault=fault) as server:
        began = time.monotonic()
        lines = Prometheus(server.url).examine(Deadline(1.0))
        assert time.monotonic() - began < 2
    assert [line.status for line in lines] == [status]
    assert "hardware/gpu-memory" in lines[0].blind_to


def test_the_doctor_tells_rights_apart(canned: Canned) -> None:
    with FaultServer(canned, fault="403", when=lambda request: "values" in request.path) as server:
        lines = Prometheus(server.url).examine(Deadline(5))
    assert [(line.item, line.status) for line in lines][-1] == ("rights", "critical")


# -- frames ---------------------------------------------------------------------------------------------------------------


def test_a_frame_has_every_sample_once(canned: Canned) -> None:
    canned.samples = lambda name, gpu: [(SINCE + 0.5 * at, f"{gpu}.{at:03d}") for at in range(51)]
    with FaultServer(canned) as server:
        frame = Prometheus(server.url).frame(NAMES[0], SINCE, SINCE + 25, 0.5)
    assert list(frame.columns) == ["time", "field", "value", "node", "gpu_index", "gpu_uuid", "pod", "namespace"]
    assert str(frame["time"].dtype) == "datetime64[us, UTC]"
    assert len(frame) == 204
    assert frame["time"].iloc[1].timestamp() == pytest.approx(SINCE + 0.5, abs=1e-6)
    np.testing.assert_allclose(frame["value"].iloc[51:54], [1.0, 1.001, 1.002])
    assert frame["node"].iloc[-1] == "gpu-node-002"
    assert all(str(kind) == "category" for name, kind in frame.dtypes.items() if name not in ("time", "value"))
    assert frame.attrs["instances"] == {"gpu-node-001": "10.0.0.1:9400", "gpu-node-002": "10.0.0.2:9400"}


def test_a_frame_s_errors_carry_query_and_server_text(canned: Canned) -> None:
    body = b'{"status":"error","errorType":"bad_data","error":"1:4: parse error: unexpected identifier"}'
    with FaultServer(lambda request: Reply(body, 400)) as server, pytest.raises(QueryError) as caught:
        Prometheus(server.url).frame("up up", SINCE, NOW)
    error = caught.value
    assert (error.query, error.status, error.error_type) == ("up up", 400, "bad_data")
    assert "unexpected identifier" in error.error
    assert "unexpected identifier" in str(error)


def test_no_more_than_four_questions_at_once(canned: Canned, tmp_path: Path) -> None:
    """Also when a range takes many chunks; a fifth would only queue at the server."""
    now, most = [0], [0]
    lock = threading.Lock()

    def answer(request: Request) -> Reply:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.02)
        with lock:
            now[0] -= 1
        return canned.reply({"resultType": "matrix", "result": []}) if "query_range" in request.path else canned(request)

    with FaultServer(answer) as server:
        Prometheus(server.url).frames(["a", "b", "c"], SINCE - 10**7, NOW, 60)
        assert len(server.requests) > 50
    assert most[0] <= 4


def test_a_frame_never_waits_longer(canned: Canned) -> None:
    with FaultServer(canned, fault="hang") as server:
        began = time.monotonic()
        with pytest.raises(PrometheusTimeout):
            Prometheus(server.url).frame("up", SINCE, NOW, timeout=0.5)
        assert time.monotonic() - began < 1.5


def test_a_naive_time_is_refused(canned: Canned) -> None:
    from datetime import datetime

    with FaultServer(canned) as server, pytest.raises(ValueError, match="no time zone"):
        Prometheus(server.url).frame("up", datetime(2026, 1, 1), NOW)  # noqa: DTZ001


# -- suspects -------------------------------------------------------------------------------------------------------------


class Asked:
    """Stands for the API: answers questions by a word in them, and keeps them."""

    def __init__(self, answers: dict[str, list[str]]) -> None:
        self.answers = answers
        self.queries: list[str] = []

    def instant(
        self, query: str, at: float, deadline: Deadline, timeout: float = 30.0
    ) -> tuple[list[tuple[dict[str, str], float]], list[str]]:
        self.queries.append(query)
        for word, nodes in self.answers.items():
            if word in query:
                if not nodes:
                    raise QueryError("too many samples", query=query, status=422)
                return [({"Hostname": node}, 1.0) for node in nodes], []
        return [], []


def suspects(answers: dict[str, list[str]]) -> tuple[Suspects, Asked]:
    names = ["DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"]
    nodes: dict[str, set[str]] = {f"n{at:03d}": set() for at in range(100)}
    gpus = Gpus(names, names[1], "Hostname", ("Hostname", "UUID"), ['Hostname=~"n.*"'], nodes, 800)
    api = Asked(answers)
    return find_suspects(api, scope(), gpus, Deadline(10)), api  # type: ignore[arg-type]


def test_suspects_come_first_and_peers_are_spread() -> None:
    found, api = suspects({"changes(DCGM_FI_DEV_XID_ERRORS": ["n007"], "REPLAY_COUNTER": ["n008", "n008"]})
    assert found.chosen[:2] == ("n007", "n008")
    assert len(found.chosen) == 2 + 4
    peers = [int(node[1:]) for node in found.chosen[2:]]
    assert min(b - a for a, b in pairwise(peers)) > 10
    assert found.hits["DCGM_FI_DEV_XID_ERRORS"] == {"n007"}
    assert all(query.startswith(("topk(", "bottomk(")) for query in api.queries)


def test_what_all_gpus_show_makes_no_suspect() -> None:
    every = [f"n{at:03d}" for at in range(100) for _ in range(8)][:256]
    found, _ = suspects({"REPLAY_COUNTER": every, "changes(DCGM_FI_DEV_XID_ERRORS": ["n099"]})
    assert found.chosen[0] == "n099"
    assert len(found.chosen) == 5


def test_a_question_that_fails_is_told_and_the_others_count() -> None:
    found, _ = suspects({"REPLAY_COUNTER": [], "changes(DCGM_FI_DEV_XID_ERRORS": ["n001"]})
    assert found.chosen[0] == "n001"
    failed = [answer for answer in found.answers if answer.status == "failed"]
    assert len(failed) == 1
    assert "too many samples" in failed[0].detail
    assert "DCGM_FI_DEV_PCIE_REPLAY_COUNTER" in failed[0].asked
