"""The Kubernetes source against an API server that fails in every way that real ones do; the real one is in tests/live."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from pathlib import Path

import pytest
import yaml

from tests.sources.canned_kubernetes import (
    DEADLINE,
    LOG,
    NOW,
    PATIENT,
    Cluster,
    bad,
    collect,
    event,
    kubeconfig,
    pod,
    scope,
    within,
)
from workbench.errors import SourceError
from workbench.incident import load
from workbench.sources.contract import Deadline
from workbench.sources.kubernetes.source import Kubernetes
from workbench.testing.faults import FaultServer

pytest.importorskip("kubernetes")


# ---- what is well


def test_a_job_is_located_and_collected(source: Kubernetes, tmp_path: Path) -> None:
    """All files, in the form of kubectl, with logs; the triage reads them."""
    found = source.locate(scope(namespace=None), Deadline(DEADLINE))
    answers = collect(source, tmp_path)
    root = tmp_path / "incident"

    assert found is not None
    assert (found.namespace, found.pods, found.nodes) == ("train", ("llm-0", "llm-1"), ("gpu-0", "gpu-1"))
    assert found.since == pytest.approx(NOW - 800, abs=2)
    assert found.until == pytest.approx(NOW, abs=2)  # ten minutes after the end would be in the future
    assert {one.status for one in answers} == {"ok"}
    assert sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()) == [
        "events.json",
        "logs/llm-0.log",
        "logs/llm-1.log",
        "nodes.json",
        "owners.json",
        "pods.json",
    ]
    assert (root / "logs/llm-0.log").read_text(encoding="utf-8") == LOG
    pods = json.loads((root / "pods.json").read_text(encoding="utf-8"))
    assert [(item["kind"], item["metadata"]["name"]) for item in pods["items"]] == [("Pod", "llm-0"), ("Pod", "llm-1")]
    assert "geheim" not in json.dumps(pods)
    assert load(root).triage().cls == "platform/preemption"


def test_the_addresses_of_the_nodes_are_told(source: Kubernetes, cluster: Cluster) -> None:
    """By the pods, which saw them when they ran; by the nodes where no pod tells."""
    cluster.pods[0]["status"] |= {"hostIP": "10.0.3.1", "hostIPs": [{"ip": "10.0.3.1"}, {"ip": "fd00::1"}]}
    told = [{"type": "InternalIP", "address": "10.0.3.2"}, {"type": "Hostname", "address": "gpu-1"}]
    cluster.nodes[1]["status"]["addresses"] = told
    cluster.nodes[2]["status"]["addresses"] = [{"type": "InternalIP", "address": "10.0.3.3"}]  # not the job's
    found = source.locate(scope(namespace=None), Deadline(DEADLINE))
    assert found is not None
    assert found.addresses == (("10.0.3.1", "gpu-0"), ("fd00::1", "gpu-0"), ("10.0.3.2", "gpu-1"))


def test_a_second_collection_asks_for_what_lacks_only(source: Kubernetes, server: FaultServer, tmp_path: Path) -> None:
    """What was collected whole is kept; what was cut off is asked for again."""
    collect(source, tmp_path)
    (tmp_path / "incident" / "logs" / "llm-1.log").unlink()
    text = (tmp_path / "incident" / "nodes.json").read_text(encoding="utf-8")
    (tmp_path / "incident" / "nodes.json").write_text(
        text.replace('"continue": ""', '"continue": "incomplete"'), encoding="utf-8"
    )
    before = len(server.requests)
    answers = collect(source, tmp_path)
    asked = [request.path.split("?")[0] for request in server.requests[before:]]

    assert [path for path in asked if path.endswith("/log")] == ["/api/v1/namespaces/train/pods/llm-1/log"]
    assert not any(path.endswith("/events") for path in asked)
    assert any("/nodes" in path for path in asked)
    assert any("earlier collection" in one.detail for one in answers if one.file == "pods.json")


# ---- the faults


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("refused", "cannot be reached"),
        ("hang", "did not answer within"),
        ("slow", "deadline|did not answer"),
        ("cut", "ended in the middle"),
        ("reset", "ended in the middle"),
        ("401", "HTTP 401.*kubectl auth whoami"),
        ("403", "HTTP 403.*apiGroups"),
        ("429", "HTTP 429"),
        ("500", "HTTP 500"),
        ("503", "HTTP 503"),
        ("login-page", r"sends us to .*login \(HTTP 302\).*log in"),
        ("html", "a web page came .*Sign in"),
        ("empty", "not-json|no list|no API group"),
    ],
)
def test_a_fault_of_the_whole_server_is_an_answer(
    fault: str, words: str, source: Kubernetes, server: FaultServer, tmp_path: Path
) -> None:
    """Every answer failed, in words and with a way out; nothing raised, nothing longer than the deadline, nothing written."""
    server.fault = fault
    answers = collect(source, tmp_path, within(fault))

    assert answers
    assert {one.status for one in answers} <= {"failed", "missing"}
    assert {one.source for one in answers} == {"kubernetes", "job"}
    assert re.search(words, bad(answers)), answers
    assert not list((tmp_path / "incident").rglob("*.json"))
    with pytest.raises(SourceError):
        source.locate(scope(), Deadline(within(fault)))
    lines = source.examine(Deadline(within(fault)))
    assert any(line.status in ("critical", "unknown") for line in lines)
    assert not any(line.item.startswith("rights") and line.status == "ok" for line in lines)


@pytest.mark.parametrize("fault", ["hang", "slow", "cut", "reset", "403", "429", "500", "login-page", "html"])
@pytest.mark.parametrize("what", ["nodes", "events", "/log"])
def test_a_fault_of_one_question_costs_that_one_only(
    fault: str, what: str, source: Kubernetes, server: FaultServer, tmp_path: Path
) -> None:
    """The other files are there, and the answer of the one that lacks says so."""
    server.when = lambda request: what in request.path
    server.fault = fault
    answers = collect(source, tmp_path, within(fault))
    root = tmp_path / "incident"

    assert (root / "pods.json").exists()
    wrong = [one for one in answers if one.status != "ok"]
    assert wrong
    assert {one.status for one in wrong} <= {"failed", "partial"}
    if what != "/log":
        assert not (root / f"{what}.json").exists()
    if fault not in ("hang", "slow"):
        assert len(list(root.glob("*.json"))) >= 3


def test_too_many_requests_passes_after_the_wait(source: Kubernetes, server: FaultServer, tmp_path: Path) -> None:
    """Retry-After is heeded."""
    server.retry_after, server.times, server.fault = "0.3", 2, "429"
    began = time.monotonic()
    answers = collect(source, tmp_path, 10)

    assert {one.status for one in answers} == {"ok"}
    assert time.monotonic() - began >= 0.6


def test_a_wait_longer_than_the_deadline_is_not_waited_for(source: Kubernetes, server: FaultServer, tmp_path: Path) -> None:
    """An hour is said, not slept."""
    server.retry_after, server.fault = "3600", "429"
    began = time.monotonic()
    answers = collect(source, tmp_path)

    assert time.monotonic() - began < PATIENT / 2
    assert "wait 3600 s, longer than the deadline" in bad(answers)


def test_a_single_failure_is_retried(source: Kubernetes, server: FaultServer, tmp_path: Path) -> None:
    """A cut body and a 500 come once; the second try is the answer."""
    for fault in ("cut", "500", "503", "reset"):
        server.retry_after, server.times, server.fault = "0", 1, fault
        answers = collect(source, tmp_path / fault, 10)
        assert {one.status for one in answers} == {"ok"}, (fault, answers)


def test_a_certificate_that_is_not_trusted(cluster: Cluster, tmp_path: Path) -> None:
    """TLS fails before a token is sent; with the right authority it works."""
    with FaultServer(cluster, tls=True) as server:
        answers = collect(Kubernetes(kubeconfig(tmp_path, server.url)), tmp_path)
        assert "TLS to the API server" in bad(answers)
        assert "certificate-authority" in bad(answers)
        assert not server.requests

        good = kubeconfig(tmp_path, server.url, **{"certificate-authority": str(server.certificate)})
        assert {one.status for one in collect(Kubernetes(good), tmp_path)} == {"ok"}


@pytest.mark.parametrize(
    "content",
    ["", "{}", "apiVersion: [", "clusters: 3\ncurrent-context: y", "current-context: y\ncontexts: []\nclusters: []\nusers: []"],
)
def test_a_broken_kubeconfig_is_an_answer(content: str, tmp_path: Path) -> None:
    """Whatever the client raises of it."""
    path = tmp_path / "broken"
    path.write_text(content, encoding="utf-8")

    assert "KUBECONFIG" in bad(collect(Kubernetes(path), tmp_path))
    assert [line.status for line in Kubernetes(path).examine(Deadline(DEADLINE))] == ["critical"]


def test_no_kubeconfig_and_an_unknown_context_are_answers(server: FaultServer, tmp_path: Path) -> None:
    """What is not there is named."""
    assert "there is no kubeconfig" in bad(collect(Kubernetes(tmp_path / "none"), tmp_path))
    assert "cannot be used" in bad(collect(Kubernetes(kubeconfig(tmp_path, server.url), "no-such-context"), tmp_path))


def test_a_credential_plugin_that_waits_for_a_person(tmp_path: Path, server: FaultServer) -> None:
    """An exec plugin that never ends does not hold us longer than the deadline."""
    path = kubeconfig(tmp_path, server.url)
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    document["users"][0]["user"] = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sleep", "args": ["3"], "interactiveMode": "Never"}
    }
    path.write_text(yaml.safe_dump(document), encoding="utf-8")

    assert "did not answer within" in bad(collect(Kubernetes(path), tmp_path, 1))


def test_the_service_account_of_a_pod(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pod there is no kubeconfig: address from the environment, token, authority and namespace from files."""
    from kubernetes.config import incluster_config

    from workbench.sources.kubernetes import api as kubernetes_api

    with FaultServer(cluster, tls=True) as server:
        (tmp_path / "token").write_text("geheim", encoding="utf-8")
        (tmp_path / "namespace").write_text("train\n", encoding="utf-8")
        monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
        monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(server.certificate))
        monkeypatch.setattr(kubernetes_api, "_SERVICE_ACCOUNT", tmp_path / "token")
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("KUBECONFIG", raising=False)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.url.rsplit(":", 1)[1])
        source = Kubernetes()
        found = source.locate(scope(namespace=None), Deadline(DEADLINE))
        lines = {line.item: line for line in source.examine(Deadline(DEADLINE))}

        assert found is not None
        assert found.namespace == "train"
        assert all(request.headers["authorization"].lower() == "bearer geheim" for request in server.requests)
        assert "the service account of this pod" in lines["reachable"].detail


# ---- lists


def test_pages_are_put_together(source: Kubernetes, cluster: Cluster, server: FaultServer, tmp_path: Path) -> None:
    """Seven pods in pages of three."""
    cluster.pods = [pod(number) for number in range(7)]
    answers = collect(Kubernetes(kubeconfig(tmp_path, server.url), page=3), tmp_path)

    assert next(one for one in answers if one.file == "pods.json").rows == 7
    assert any("continue=" in request.path for request in server.requests)


def test_an_expired_continue_token_starts_over(cluster: Cluster, server: FaultServer, tmp_path: Path) -> None:
    """410 Gone in the middle: the list is read again, whole, and the answer says so."""
    cluster.events = [event(number % 2) for number in range(7)]
    cluster.expired = 1
    answers = collect(Kubernetes(kubeconfig(tmp_path, server.url), page=3), tmp_path)
    answer = next(one for one in answers if one.file == "events.json")

    assert answer.rows == 7
    assert "expired" in answer.detail


def test_what_came_before_a_failure_is_kept_and_said(cluster: Cluster, server: FaultServer, tmp_path: Path) -> None:
    """The second page of events fails for good: the first is written, partial, and asked for again next time."""
    cluster.events = [event(number % 2) for number in range(7)]
    server.when = lambda request: "/events" in request.path and "continue" in request.path
    server.fault = "500"
    source = Kubernetes(kubeconfig(tmp_path, server.url), page=3)
    answer = next(one for one in collect(source, tmp_path, 4) if one.file == "events.json")

    assert (answer.status, answer.rows) == ("partial", 3)
    assert "HTTP 500" in answer.detail
    server.fault = None
    answer = next(one for one in collect(source, tmp_path) if one.file == "events.json")
    assert (answer.status, answer.rows) == ("ok", 7)


def test_an_empty_list_where_nodes_must_be(source: Kubernetes, cluster: Cluster, tmp_path: Path) -> None:
    """A cluster without a node is no cluster; nothing is written that would look like an answer."""
    cluster.nodes, cluster.pods, cluster.jobs, cluster.events = [], [], [], []
    answers = collect(source, tmp_path)

    assert {one.asked: one.status for one in answers if one.source == "kubernetes"}["/api/v1/nodes"] == "missing"
    assert {one.status for one in answers if one.asked in ("pods", "events")} == {"missing"}
    assert not list((tmp_path / "incident").rglob("*.json"))


def test_events_that_are_too_old_are_stale(source: Kubernetes, cluster: Cluster, tmp_path: Path) -> None:
    """Kubernetes keeps an hour of them; a job of the morning has none in the evening."""
    cluster.events = [event(5, ago=60)]
    answers = collect(source, tmp_path, since=NOW - 30000, until=NOW - 20000)
    answer = next(one for one in answers if one.asked == "events")

    assert answer.status == "stale"
    assert re.search(r"(?:5\.[5-9]|6\.\d) h ago", answer.detail)  # the suite may have run for a while by now


def test_a_clock_that_is_off_is_said(cluster: Cluster, tmp_path: Path) -> None:
    """Ten minutes: all the same files, and an answer that times may not fit."""
    with FaultServer(cluster, clock_offset=600) as server:
        source = Kubernetes(kubeconfig(tmp_path, server.url))
        answers = collect(source, tmp_path)
        lines = {line.item: line for line in source.examine(Deadline(DEADLINE))}

    (answer,) = [one for one in answers if "clock" in one.detail]
    assert (answer.status, "600 s ahead" in answer.detail) == ("partial", True)
    assert lines["clock"].status == "critical"


class HeaderDrip:
    """A server that takes a request and sends its status line byte by byte, for ever."""

    def __enter__(self) -> HeaderDrip:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()
        return self

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while not self.ended.is_set():
                connection, _ = self.listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.recv(65536)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
                    while not self.ended.wait(0.05):
                        connection.sendall(b"a")

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(5)


def test_a_header_that_drips_does_not_hold_us(tmp_path: Path) -> None:
    """A byte now and then keeps every time-out of a socket from striking; the deadline strikes, and cuts the call off."""
    with HeaderDrip() as server:
        answers = collect(Kubernetes(kubeconfig(tmp_path, server.url)), tmp_path, DEADLINE)
        assert "did not answer within" in bad(answers)
        end = time.monotonic() + 3
        while (left := [one for one in threading.enumerate() if one.name == "kubernetes-api"]) and time.monotonic() < end:
            time.sleep(0.05)
        assert not left  # no thread is left behind
