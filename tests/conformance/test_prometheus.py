"""The shipped fake of Prometheus and the real one hold the same samples, and are held to the same answers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import pytest

pytest.importorskip("prometheus_api_client")

from tests.conformance.servers import prometheus, thanos, told, victoriametrics
from tests.conformance.shapes import compared
from workbench.sources.contract import Answer, Deadline, Folder, Scope
from workbench.sources.prometheus.collect import STALE
from workbench.sources.prometheus.http import QueryError
from workbench.sources.prometheus.jobs import question_of
from workbench.sources.prometheus.query import any_of, selector
from workbench.sources.prometheus.source import Prometheus as Source
from workbench.testing.faults import FaultServer, Request
from workbench.testing.prometheus import Prometheus as Fake
from workbench.testing.prometheus import asked

END = time.time() // 60 * 60 - 60
SINCE = END - 3600
STEP = 30
MANY = 9  # nodes of the large job: 72 GPUs are more than are taken whole
GPU = (
    "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "DCGM_FI_DEV_PCIE_LINK_WIDTH",
    "DCGM_FI_DEV_FABRIC_MANAGER_STATUS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
)  # fmt: skip
HOST = (
    "node_boot_time_seconds",
    "node_memory_MemAvailable_bytes",
    "node_vmstat_oom_kill",
    "node_timex_offset_seconds",
    "node_load1",
)


def value(name: str, node: int, gpu: int, at: int) -> float | None:
    """What a GPU tells at a scrape; node 1 has the trouble, and GPU 7 of node 2 is gone after two thirds."""
    sick, late = (node, gpu) == (1, 3), at > 80
    if (node, gpu) == (2, 7) and late:
        return None
    told: dict[str, float] = {
        "DCGM_FI_DEV_GPU_TEMP": 88.5 if sick and late else 45 + gpu,
        "DCGM_FI_DEV_XID_ERRORS": 79 if sick and late else 0,
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": (at if at < 60 else at - 60) if sick else 0,  # begins anew in the middle
        "DCGM_FI_DEV_PCIE_LINK_WIDTH": 8 if sick and late else 16,
        "DCGM_FI_DEV_FABRIC_MANAGER_STATUS": 3,
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": 8 if sick and late else 4,
        "DCGM_FI_DEV_SM_CLOCK": 900 if sick and late else 1980,
        "DCGM_FI_DEV_POWER_USAGE": 101.25 if sick and late else 650.5,
        "DCGM_FI_DEV_GPU_UTIL": 0 if sick and late else 99,
        "DCGM_FI_DEV_FB_FREE": 512 if sick else 40_000,
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": float("nan") if at == 5 and node == 1 else 0,
    }
    return told[name]


def incident(root: Path) -> Path:
    """Write the samples of nine nodes with eight GPUs, and of what watches them, as exporters with times."""
    lines: list[str] = []
    for node in range(MANY):
        host, address = f"gpu-node-{node:03d}", f"10.0.0.{node + 1}"
        for at in range(121):
            moment = SINCE + STEP * at + node * 0.25
            for gpu in range(8):
                labels = f'Hostname="{host}",UUID="GPU-{node:04d}-{gpu}",gpu="{gpu}",instance="{address}:9400",job="dcgm",namespace="ml",pod="{"trainer" if node < 2 else "large"}-{node}"'
                for name in GPU:
                    number = value(name, node, gpu, at)
                    if number is not None and not (at in (30, 31) and node == 0):  # two scrapes of node 0 are lost
                        lines.append(f"{name}{{{labels}}} {number} {moment:.3f}")
            for name, number in zip(HOST, (1.75e9, 8e11 - at * 1e9, at // 100, 0.001, 12.5), strict=True):
                lines.append(f'{name}{{instance="{address}:9100",job="node"}} {number} {moment:.3f}')
            lines.append(f'node_uname_info{{instance="{address}:9100",job="node",nodename="{host}"}} 1 {moment:.3f}')
            lines.append(f'up{{instance="{address}:9400",job="dcgm"}} {0 if node == 1 and at > 110 else 1} {moment:.3f}')
            if node < 2:
                lines.append(f'kube_pod_info{{namespace="ml",node="{host}",pod="trainer-{node}"}} 1 {moment:.3f}')
            lines.append(
                f'kube_node_status_condition{{condition="Ready",node="{host}",status="true"}} {0 if node == 1 and at > 100 else 1} {moment:.3f}'
            )
    (root / "metrics").mkdir(parents=True)
    (root / "metrics" / "all.prom").write_text("\n".join(sorted(lines, key=lambda line: line.split("{")[0])) + "\n")
    return root


@dataclass
class Server:
    """A server, and in front of it something that writes down what it is asked."""

    url: str
    front: FaultServer
    fake: Fake
    kind: str

    @property
    def source(self) -> Source:
        return Source(self.front.url)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """Return what starts a server of a kind, once; all hold the same samples."""
    root = incident(tmp_path_factory.mktemp("incident") / "folder")
    fake, known = Fake(root), dict[str, Server]()
    with ExitStack() as stack:

        def start(kind: str) -> Server:
            if kind not in known:
                url = "" if kind == "fake" else stack.enter_context(REAL[kind](root, tmp_path_factory.mktemp(kind)))
                front = stack.enter_context(FaultServer(url or fake))
                known[kind] = Server(url or front.url, front, fake, kind)
            return known[kind]

        yield start


REAL = {"real": prometheus, "victoria": victoriametrics, "thanos": thanos}
LIVE = [pytest.param(name, marks=pytest.mark.live) for name in REAL]


@pytest.fixture(params=["fake", *LIVE])
def server(request: pytest.FixtureRequest, started: Callable[[str], Server]) -> Server:
    """The fake, Prometheus, and the others that answer the same questions."""
    return started(request.param)


@pytest.fixture(params=["fake", LIVE[0]])
def original(request: pytest.FixtureRequest, started: Callable[[str], Server]) -> Server:
    """The fake and what it is a fake of: words and errors are those of Prometheus."""
    return started(request.param)


def scope(**more: Any) -> Scope:
    return Scope(**{"job": "trainer", "since": SINCE, "until": END, **more})


LARGE = tuple(f"gpu-node-{at:03d}" for at in range(MANY))


def files(answers: list[Answer]) -> dict[str, int]:
    return {answer.file: answer.rows for answer in answers if answer.file}


def samples(root: Path, name: str) -> dict[tuple[str, str], list[list[Any]]]:
    data = json.loads((root / "metrics" / f"{name}.json").read_text())["data"]["result"]
    return {
        (row["metric"].get("Hostname", row["metric"]["instance"]), row["metric"].get("gpu", "")): row["values"] for row in data
    }


def test_locate_tells_where_the_job_ran(server: Server) -> None:
    found = server.source.locate(scope(), Deadline(20))
    assert found is not None
    assert (found.namespace, found.nodes, found.pods) == ("ml", LARGE[:2], ("trainer-0", "trainer-1"))
    assert server.source.locate(scope(job="no-such-job"), Deadline(20)) is None
    assert server.source.locate(scope(job='no"such{job}\\'), Deadline(20)) is None


def test_a_small_job_comes_whole(server: Server, tmp_path: Path) -> None:
    """Each sample once, with its own time; a gap stays a gap, and what ended is not repeated."""
    answers = server.source.collect(scope(nodes=LARGE[:3]), Folder(tmp_path), Deadline(30))
    assert not [answer for answer in answers if answer.status in ("failed", "missing")], answers
    assert {f"metrics/{name}.json" for name in (*GPU, *HOST, "up", "kube_node_status_condition")} <= set(files(answers))
    temperatures = samples(tmp_path, "DCGM_FI_DEV_GPU_TEMP")
    assert len(temperatures) == 24
    assert len(temperatures["gpu-node-000", "0"]) == 119
    assert len(temperatures["gpu-node-002", "7"]) == 81
    assert temperatures["gpu-node-001", "3"][-1] == [pytest.approx(END + 0.25 - STEP), "88.5"]
    # VictoriaMetrics keeps no NaN that an exporter tells
    beside = [value for _, value in samples(tmp_path, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL")["gpu-node-001", "0"][4:7]]
    assert beside == (["0", "0", "0"] if server.kind == "victoria" else ["0", "NaN", "0"])
    reset = next(answer for answer in answers if answer.file == "metrics/DCGM_FI_DEV_PCIE_REPLAY_COUNTER.json")
    assert (reset.status, "began anew" in reset.detail) == ("partial", True)


@pytest.mark.parametrize("edge", [0.0, -0.001, 1.0])
def test_both_edges_of_a_window_belong_to_it(server: Server, tmp_path: Path, edge: float) -> None:
    """Whole seconds are what a server is asked for: a sample on an edge is in, one beyond it is not."""
    since, until = SINCE + 600 + edge, SINCE + 1200
    answers = server.source.collect(scope(nodes=LARGE[:1], since=since, until=until), Folder(tmp_path), Deadline(30))
    assert files(answers)["metrics/DCGM_FI_DEV_GPU_TEMP.json"] == 8
    times = [moment for moment, _ in samples(tmp_path, "DCGM_FI_DEV_GPU_TEMP")["gpu-node-000", "0"]]
    assert times[0] == pytest.approx(SINCE + 600 + (30 if edge > 0 else 0), abs=0.01)
    assert times[-1] == pytest.approx(until, abs=0.01)


def test_of_a_large_job_the_nodes_with_changes_travel(server: Server, tmp_path: Path) -> None:
    answers = server.source.collect(scope(job="large", nodes=LARGE), Folder(tmp_path), Deadline(60))
    (told,) = [answer for answer in answers if "questions what changed on 72 GPUs of 9 nodes" in answer.detail]
    assert told.status == "ok", told
    hosts = {host for host, _ in samples(tmp_path, "DCGM_FI_DEV_XID_ERRORS")}
    assert {"gpu-node-001", "gpu-node-002"} <= hosts
    assert len(hosts) < MANY


@pytest.mark.parametrize("name", [*GPU, *HOST, "up", "kube_node_status_condition"])
def test_a_question_what_changed_names_the_same_everywhere(server: Server, name: str) -> None:
    """All series begin within the window, which to VictoriaMetrics' own `changes` is a change of each."""
    row = question_of(name)
    assert row is not None
    if not row.changed:
        return
    query = f"topk(256, max by (Hostname, gpu, instance, node) ({row.promql(name, [], '3600s', '30s')}))"
    with FaultServer(server.fake) as fake:
        expected, _ = Source(fake.url).api.instant(query, END, Deadline(20))
    if server.kind == "victoria" and name == "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL":
        expected = []  # it changed to NaN and back, which is not kept there
    source = server.source
    source.api.build(Deadline(20))
    rows, warnings = source.api.instant(query, END, Deadline(20))
    assert warnings == []
    assert sorted(sorted(labels.items()) for labels, _ in rows) == sorted(sorted(labels.items()) for labels, _ in expected)
    assert len(rows) < MANY * 8


def test_more_nodes_than_a_query_may_name_are_all_asked(server: Server) -> None:
    """VictoriaMetrics takes 16 KiB of a query; what the names have in common is written once there."""
    source = server.source
    source.api.build(Deadline(20))
    names = [f"gpu-node-{at:03d}" for at in range(MANY)] + [
        f"other-node-{at:04d}.rack-{at % 7}.example.internal" for at in range(900)
    ]
    query = f"count by (Hostname) ({selector('DCGM_FI_DEV_GPU_TEMP', [any_of('Hostname', names)])})"
    assert len(query) > 40_000
    rows, _ = source.api.instant(query, END, Deadline(20))
    assert {labels["Hostname"] for labels, _ in rows} == set(LARGE)


def test_an_unknown_job_and_an_empty_window_are_told(server: Server, tmp_path: Path) -> None:
    other = server.source.collect(scope(job="other", nodes=("other-7",)), Folder(tmp_path / "a"), Deadline(20))
    assert other[0].status == "missing"
    assert "no series of other-7" in other[0].detail
    early = server.source.collect(scope(since=SINCE - 90_000, until=SINCE - 80_000), Folder(tmp_path / "b"), Deadline(20))
    assert early[0].status == "missing"
    assert not list(tmp_path.rglob("*.json"))


def test_data_that_ended_is_stale(server: Server, tmp_path: Path) -> None:
    """The job was up; of its GPUs nothing came for the last ten minutes of a day."""
    answers = server.source.collect(scope(nodes=LARGE[:2], until=END), Folder(tmp_path / "a"), Deadline(30))
    assert not [answer for answer in answers if answer.status == "stale"]
    with FaultServer(Fake([one for one in server.fake.series() if one.labels.get("gpu") == "7"])) as ended:
        late = Source(ended.url).collect(scope(job="large", nodes=LARGE[2:3]), Folder(tmp_path / "b"), Deadline(30))
    assert any(answer.status == "stale" and "newest sample" in answer.detail for answer in late)


def test_a_frame_repeats_a_sample_for_five_minutes_and_no_longer(original: Server) -> None:
    frame = original.source.frame('DCGM_FI_DEV_GPU_TEMP{Hostname="gpu-node-002",gpu="7"}', SINCE, END, 60)
    last = frame["time"].iloc[-1].timestamp()
    assert last == pytest.approx((SINCE + 80 * STEP + 0.5 + 300) // 60 * 60, abs=1)


@pytest.mark.parametrize(
    ("query", "status", "kind"),
    [
        ("up{", 400, "bad_data"),
        ("", 400, "bad_data"),
        ("nonsense(up)", 400, "bad_data"),
        ("rate(up)", 400, "bad_data"),
        ("up[5m", 400, "bad_data"),
        ("up * on(job) node_load1", 422, "execution"),
        ('{job=~".*"}', 400, "bad_data"),
        ("up and 1", 400, "bad_data"),
    ],
)
def test_a_query_that_cannot_be_answered_is_refused(original: Server, query: str, status: int, kind: str) -> None:
    code, body = told(f"{original.url}/api/v1/query?{urlencode({'query': query, 'time': END})}")
    assert (code, body["status"], body["errorType"]) == (status, "error", kind)
    with pytest.raises(QueryError) as caught:
        original.source.frame(query, SINCE, END, 60)
    assert caught.value.status in (400, 422)


def test_more_points_than_a_server_gives_are_refused(original: Server) -> None:
    words = {"query": "up", "start": SINCE, "end": END, "step": 0.1}
    code, body = told(f"{original.url}/api/v1/query_range?{urlencode(words)}")
    assert (code, body["errorType"]) == (400, "bad_data")
    assert "11,000" in body["error"]
    assert told(f"{original.url}/api/v1/query_range?{urlencode({**words, 'step': 0})}")[0] == 400
    assert told(f"{original.url}/api/v1/query_range?{urlencode({**words, 'end': SINCE - 1})}")[0] == 400
    assert told(f"{original.url}/api/v1/series?start={SINCE}")[0] == 400
    assert told(f"{original.url}/api/v1/nothing")[0] == 404


def test_doctor_finds_what_is_there(server: Server) -> None:
    rows = {row.item: row for row in server.source.examine(Deadline(20))}
    told = {"victoria": "victoriametrics (calls itself Prometheus 2.24.0", "thanos": "thanos 0."}
    assert rows["version"].detail.startswith(told.get(server.kind, "prometheus 2."))
    assert {rows[item].status for item in ("version", "clock", "rights", "label node", "label pod")} == {"ok"}
    # the data were written when the tests began; on a slow machine that is a while ago
    assert rows["data age"].status in (("ok",) if time.time() - END < STALE - 5 else ("ok", "warning"))
    assert rows["field DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"].status in ("critical", "warning")
    assert "field DCGM_FI_DEV_XID_ERRORS" not in rows


# -- the answers themselves -----------------------------------------------------------------------------------------------


def questions() -> dict[str, str]:
    """What may be asked: each call once, and each question of the catalog for each metric that is here."""
    span = {"start": f"{SINCE:.0f}", "end": f"{END:.0f}"}
    found = {
        "buildinfo": "/api/v1/status/buildinfo",
        "labels": "/api/v1/labels?" + urlencode({"match[]": "up", **span}),
        "values": "/api/v1/label/Hostname/values?" + urlencode(span),
        "names": "/api/v1/label/__name__/values?" + urlencode({"match[]": '{__name__=~"DCGM_.+"}', **span}),
        "series": "/api/v1/series?" + urlencode({"match[]": 'up{instance=~"10.0.0.[12]:9400"}', **span}),
        "range": "/api/v1/query?" + urlencode({"query": 'up{instance="10.0.0.1:9400"}[10m]', "time": END}),
        "scalar": "/api/v1/query?" + urlencode({"query": "scalar(max(up)) * 2", "time": END}),
        "string": "/api/v1/query?" + urlencode({"query": '"word"', "time": END}),
        "steps": "/api/v1/query_range?" + urlencode({"query": "max by (instance) (up)", **span, "step": "60s"}),
        "bad": "/api/v1/query?" + urlencode({"query": "up{", "time": END}),
        "execution": "/api/v1/query?" + urlencode({"query": "up * on(job) node_load1", "time": END}),
        "none": "/api/v1/query?" + urlencode({"query": "no_such_metric", "time": END}),
    }
    for name in (*GPU, *HOST, "up", "kube_node_status_condition"):
        row = question_of(name)
        if row and row.changed:
            inner = row.promql(name, ['instance!=""'] if name in GPU else [], "3600s", "30s")
            found[f"changed {name}"] = "/api/v1/query?" + urlencode(
                {"query": f"topk(256, max by (instance, gpu) ({inner}))", "time": END}
            )
    for query in (
        "bottomk(3, sum by (gpu) (count_over_time(DCGM_FI_DEV_GPU_TEMP[3600s])) < 1071)",
        "sum by (UUID) (count_over_time(DCGM_FI_DEV_GPU_TEMP[1h])) unless sum by (UUID) (count_over_time(DCGM_FI_DEV_GPU_TEMP[2m]))",
        "quantile(0.9, DCGM_FI_DEV_GPU_TEMP)", "quantile without (gpu, UUID) (0.25, DCGM_FI_DEV_GPU_TEMP)", "count without (gpu) (up)",
        "max(max_over_time(timestamp(up)[1h:1m]))", "absent(no_such_metric{a=\"b\"})", "-DCGM_FI_DEV_GPU_TEMP % 7 + 2 * 3 - 1 / 4",
        "up == 1 or node_load1 > 3", "last_over_time(up[5m])", "resets(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[1h]) > 0",
        "avg_over_time(DCGM_FI_DEV_POWER_USAGE{gpu=\"3\"}[1h])", "changes(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu=\"0\"}[1h])", "up offset 5m" if False else "vector(1)",
        "min_over_time(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu=\"0\"}[1h])", 'up{instance!~"10.0.0.[1-5]:.*"}', "group by (job) (up)",
    ):  # fmt: skip
        found[query] = "/api/v1/query?" + urlencode({"query": query, "time": END})
    return found


def test_each_answer_has_the_shape_of_the_server(original: Server) -> None:
    answers = {name: told(original.url + path)[1] for name, path in questions().items()}
    assert compared("prometheus", answers, real=original.kind == "real", maps=("metric",)) == []


def plain(answer: Any) -> Any:
    """An answer without what may differ: the order of rows, the last digits of a sum, words of an error."""
    if isinstance(answer, dict) and answer.get("status") == "error":
        return answer["errorType"]
    data = answer["data"] if isinstance(answer, dict) else answer
    if not isinstance(data, dict) or "result" not in data:
        return data
    rows = data["result"]
    if data["resultType"] in ("scalar", "string"):
        return rows
    return sorted(
        (
            sorted(row["metric"].items()),
            [[at, value if value == "NaN" else float(value)] for at, value in row.get("values") or [row["value"]]],
        )
        for row in rows
    )


@pytest.mark.live
def test_each_answer_is_that_of_the_server(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    """All of the above, and all that a collection and a doctor ask."""
    root = incident(tmp_path_factory.mktemp("incident") / "folder")
    fake = Fake(root)
    with prometheus(root, tmp_path) as url, FaultServer(url) as front, FaultServer(fake) as mine:
        source = Source(front.url)
        source.collect(scope(nodes=LARGE[:3]), Folder(tmp_path / "a"), Deadline(60))
        source.collect(scope(job="large"), Folder(tmp_path / "b"), Deadline(60))
        source.locate(scope(), Deadline(20))
        source.examine(Deadline(20))
        paths = dict.fromkeys([*questions().values(), *map(whole, front.requests)])
        differ = []
        for path in paths:
            one, two = plain(told(url + path)[1]), plain(told(mine.url + path)[1])
            if "buildinfo" not in path and one != two and json.dumps(one) != json.dumps(two) and not near(one, two):
                differ.append((path, str(one)[:400], str(two)[:400]))
        assert differ == []
        assert len(paths) > 60


def whole(request: Request) -> str:
    """A request as an address, also where it was a form."""
    return urlsplit(request.path).path + "?" + "&".join(f"{quote(key)}={quote(text)}" for key, text in asked(request))


def near(one: Any, two: Any) -> bool:
    """Whether two answers are the same but for the last digits of their numbers."""
    if isinstance(one, (list, tuple)) and isinstance(two, (list, tuple)):
        return len(one) == len(two) and all(near(a, b) for a, b in zip(one, two, strict=True))
    if isinstance(one, float) and isinstance(two, float):
        return one == pytest.approx(two, rel=1e-9)
    return bool(one == two)


def test_the_words_of_a_request_are_read_from_address_and_form() -> None:
    request = Request("POST", "/api/v1/query?time=5", b"query=up%7B%7D", {})
    assert asked(request) == [("time", "5"), ("query", "up{}")] == parse_qsl("time=5&query=up%7B%7D")
