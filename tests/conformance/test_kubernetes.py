"""The shipped fake of an API server and a real one hold the same objects, and are held to the same answers."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("kubernetes")

from tests.conformance.servers import kubernetes as real_server
from tests.conformance.servers import put
from tests.conformance.shapes import compared
from workbench.sources.contract import Answer, Deadline, Folder, Scope
from workbench.sources.kubernetes.api import Api
from workbench.sources.kubernetes.errors import ApiError
from workbench.sources.kubernetes.source import Kubernetes as Source
from workbench.testing.faults import FaultServer, Reply, Request
from workbench.testing.kubernetes import Kubernetes as Fake
from workbench.testing.kubernetes import kubeconfig

NOW = time.time()
JOB, SPACE = "llm", "train"
NODES = ("gpu-a", "gpu-b", "gpu-c")


def stamp(ago: float) -> str:
    return datetime.fromtimestamp(NOW - ago, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def objects(kubelet: int) -> list[dict[str, Any]]:
    """A Job of three pods on three nodes that failed, with its events and a disruption budget; a pod of another job beside it."""
    made: list[dict[str, Any]] = []
    for number, name in enumerate(NODES):
        size = {"cpu": "208", "memory": "1800Gi", "pods": "110", "nvidia.com/gpu": "8"}
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "kubelet is posting ready status",
            "lastHeartbeatTime": stamp(60),
            "lastTransitionTime": stamp(90000),
        }
        made.append(
            {
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": name, "uid": f"n-{number}", "creationTimestamp": stamp(90000), "labels": {"nvidia.com/gpu.product": "H100"}},
                "spec": {"podCIDR": f"10.244.{number}.0/24", **({"unschedulable": True} if number == 2 else {})},
                "status": {
                    "capacity": size, "allocatable": {**size, "nvidia.com/gpu": "7" if number == 1 else "8"}, "conditions": [ready],
                    "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}], "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet}},
                },
            }
        )  # fmt: skip
        made.append(pod(f"{JOB}-{number}-x", number, JOB))
        made.append(event(f"{JOB}-{number}-x.1", SPACE, "Pod", f"{JOB}-{number}-x", "Preempted", 110 + number))
    made.append(pod("other-0", 0, "other", ended=False))
    made.append(event("gpu-b.1", "default", "Node", "gpu-b", "XidCriticalError", 120))
    made.append(
        {
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": JOB, "namespace": SPACE, "uid": "uid-job", "creationTimestamp": stamp(800)},
            "spec": {
                "completions": 3, "parallelism": 3, "selector": {"matchLabels": {"job-name": JOB}},
                "template": {"metadata": {"labels": {"job-name": JOB}}, "spec": {"containers": [{"name": "main", "image": "x"}], "restartPolicy": "Never"}},
            },
            "status": {
                "startTime": stamp(790), "failed": 3,
                "conditions": [
                    {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "too often", "lastTransitionTime": stamp(90)}
                ],
            },
        }
    )  # fmt: skip
    made.append(
        {
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": "gang", "namespace": SPACE, "uid": "pdb-1", "creationTimestamp": stamp(800)},
            "spec": {"minAvailable": 3, "selector": {"matchLabels": {"job-name": JOB}}},
        }
    )  # fmt: skip
    return made


def pod(name: str, number: int, job: str, *, ended: bool = True) -> dict[str, Any]:
    state: dict[str, Any] = {"running": {"startedAt": stamp(700)}}
    if ended:
        state = {
            "terminated": {
                "exitCode": 1,
                "reason": "Error",
                "message": "boom",
                "startedAt": stamp(700),
                "finishedAt": stamp(100 - number),
            }
        }
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": job,
        "uid": f"uid-{'job' if job == JOB else job}",
        "controller": True,
    }
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": SPACE, "uid": f"uid-{name}", "creationTimestamp": stamp(800),
            "labels": {"job-name": job, "batch.kubernetes.io/job-name": job}, "ownerReferences": [owner],
        },
        "spec": {
            "nodeName": NODES[number], "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "x", "env": [{"name": "HF_TOKEN", "value": "geheim"}, {"name": "RANK", "value": str(number)}]}],
        },
        "status": {
            "phase": "Failed" if ended else "Running", "startTime": stamp(750),
            "containerStatuses": [
                {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": state},
            ],
        },
    }  # fmt: skip


def event(name: str, space: str, kind: str, about: str, reason: str, ago: float) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": space, "uid": f"e-{name}", "creationTimestamp": stamp(ago)},
        "involvedObject": {"kind": kind, "name": about, **({"namespace": space} if kind == "Pod" else {})},
        "reason": reason, "message": f"{reason} of {about}", "type": "Warning", "count": 1, "source": {"component": "monitor"},
        "firstTimestamp": stamp(ago), "lastTimestamp": stamp(ago), "reportingComponent": "monitor", "reportingInstance": "",
    }  # fmt: skip


@dataclass
class Server:
    """A server, the fake with the same objects, and kubeconfigs by the resource that their account may not read."""

    config: Callable[[str], Path]
    fake: Fake
    real: bool

    def source(self, lacks: str = "", **more: Any) -> Source:
        return Source(self.config(lacks), **more)

    def api(self, lacks: str = "") -> Api:
        return Api(str(self.config(lacks)))


def incident(root: Path, kubelet: int = 10250) -> Path:
    """Write the objects and the pods' logs as an incident folder."""
    made = objects(kubelet)
    (root / "logs").mkdir(parents=True)
    for kind, name in (
        ("Node", "nodes"),
        ("Pod", "pods"),
        ("Event", "events"),
        ("Job", "owners"),
        ("PodDisruptionBudget", "pdbs"),
    ):
        items = [item for item in made if item["kind"] == kind]
        (root / f"{name}.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    for number in range(2):  # of the third one nothing is kept
        lines = [f"{stamp(600 - at)} step {at} of rank {number}" for at in range(500)]
        (root / "logs" / f"{JOB}-{number}-x.log").write_text("\n".join([*lines, "RuntimeError: boom"]) + "\n")
    return root


@pytest.fixture(scope="module", params=["fake", pytest.param("real", marks=pytest.mark.live)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("kubernetes")
    if request.param == "fake":
        yield from _fake(root)
    else:
        yield from _real(root)


def _fake(root: Path) -> Iterator[Server]:
    folder = incident(root / "incident")
    fakes = {"": Fake(folder)}
    with FaultServer(fakes[""]) as front:
        places = {"": kubeconfig(root, front.url, namespace=None)}
        fronts: list[FaultServer] = []

        def config(lacks: str) -> Path:
            if lacks not in places:
                fakes[lacks] = Fake(folder)
                fakes[lacks].forbidden = {lacks}
                fronts.append(FaultServer(fakes[lacks]).__enter__())
                (root / lacks).mkdir()
                places[lacks] = kubeconfig(root / lacks, fronts[-1].url, namespace=None)
            return places[lacks]

        try:
            yield Server(config, fakes[""], False)
        finally:
            for one in fronts:
                one.__exit__(None, None, None)


def _real(root: Path) -> Iterator[Server]:
    from tests.live.kubernetes_site import Site

    def kubelet(request: Request) -> Reply | bytes:
        """Answer the API server as the kubelet of a node would: it has the logs."""
        from urllib.parse import parse_qsl, urlsplit

        parts = urlsplit(request.path)
        _, _, _, name, container = parts.path.split("/")
        if name == f"{JOB}-2-x":
            return Reply(b"log file is gone\n", 500, {"Content-Type": "text/plain"})
        reply = fake.log(name, {**dict(parse_qsl(parts.query)), "container": container})
        if isinstance(reply, Reply) and reply.status >= 400:
            return Reply(json.loads(reply.body)["message"].encode(), reply.status, {"Content-Type": "text/plain"})
        return reply

    with FaultServer(kubelet, tls=True) as machine, real_server(root) as place:
        folder = incident(root / "incident", int(machine.url.rpartition(":")[2]))
        fake = Fake(folder)
        for item in objects(int(machine.url.rpartition(":")[2])):
            put(place, copy.deepcopy(item))
        site = Site(place / "admin.kubeconfig")
        places = {"": place / "admin.kubeconfig"}

        def config(lacks: str) -> Path:
            if lacks not in places:
                places[lacks] = account(site, place, "pods/log" if lacks == "log" else lacks)
            return places[lacks]

        yield Server(config, fake, True)


def account(site: Any, place: Path, lacks: str) -> Path:
    """Make an account with the shipped rights but one resource, and wait until they are in effect."""
    from tests.live.kubernetes_site import MANIFEST, SERVICE, run, until

    name = f"no-{lacks.replace('/', '-')}"
    rules = [
        {**rule, "resources": rest}
        for document in yaml.safe_load_all(MANIFEST.read_text())
        for rule in document.get("rules") or []
        if (rest := [each for each in rule["resources"] if each != lacks])
    ]
    site.rbac.create_cluster_role({"metadata": {"name": name}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    site.rbac.create_cluster_role_binding({"metadata": {"name": name}, "roleRef": role, "subjects": [subject]})
    path = Path(run(SERVICE / "kubeconfig-for", place, "default", name))

    def granted() -> bool:
        rows = {row.item: row.status for row in Source(path).examine(Deadline(10))}
        return rows.get("rights: get pods") == "ok" and list(rows.values()).count("ok") > 6

    until("the role", granted)
    return path


def scope(**more: Any) -> Scope:
    return Scope(**{"job": JOB, "since": NOW - 3600, "until": NOW, **more})


def by_file(answers: list[Answer]) -> dict[str, Answer]:
    return {answer.file or f"{answer.source} {answer.asked}": answer for answer in answers}


def items(root: Path, name: str) -> list[dict[str, Any]]:
    return list(json.loads((root / name).read_text())["items"])


def test_locate_tells_where_and_when(server: Server) -> None:
    found = server.source().locate(scope(), Deadline(20))
    assert found is not None
    assert (found.namespace, found.nodes, sorted(found.pods)) == (SPACE, NODES, [f"{JOB}-{number}-x" for number in range(3)])
    assert found.since == pytest.approx(NOW - 800, abs=2)
    assert server.source().locate(scope(job="no-such-job"), Deadline(20)) is None
    assert server.source().locate(scope(namespace="elsewhere"), Deadline(20)) is None


@pytest.mark.parametrize("page", [1, 2, 500])
def test_what_is_collected_does_not_depend_on_pages(server: Server, tmp_path: Path, page: int) -> None:
    answers = by_file(server.source(page=page).collect(scope(), Folder(tmp_path), Deadline(30)))
    told = {
        name: (answers[name].status, answers[name].rows)
        for name in ("pods.json", "nodes.json", "events.json", "owners.json", "pdbs.json")
    }
    assert told == {
        "pods.json": ("ok", 3),
        "nodes.json": ("ok", 3),
        "events.json": ("ok", 4),
        "owners.json": ("ok", 1),
        "pdbs.json": ("ok", 1),
    }
    assert {item["metadata"]["name"] for item in items(tmp_path, "events.json")} == {
        "gpu-b.1",
        *(f"{JOB}-{at}-x.1" for at in range(3)),
    }
    ended = items(tmp_path, "pods.json")[0]["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["message"]) == (1, "boom")
    assert "geheim" not in (tmp_path / "pods.json").read_text()
    assert {item["kind"] for name in ("pods.json", "nodes.json") for item in items(tmp_path, name)} == {"Pod", "Node"}


def test_logs_come_from_the_kubelets(server: Server, tmp_path: Path) -> None:
    """Of the third pod nothing is kept: that is told, and costs the others nothing."""
    answers = server.source(log_lines=100).collect(scope(), Folder(tmp_path), Deadline(30))
    (told,) = [answer for answer in answers if answer.source == "job"]
    assert told.status == "partial"
    assert told.detail.startswith("2 of 3 container logs")
    lines = (tmp_path / "logs" / f"{JOB}-0-x.log").read_text().splitlines()
    assert len(lines) == 100
    assert lines[-1].endswith("RuntimeError: boom")
    assert lines[-2][:4] == "2026" or lines[-2][4] == "-"
    assert lines[0].split(" ", 1)[1].endswith("step 401 of rank 0")


def test_an_unknown_job_is_missing(server: Server, tmp_path: Path) -> None:
    answers = server.source().collect(scope(job="no-such-job"), Folder(tmp_path), Deadline(20))
    assert next(one for one in answers if one.asked == "pods").status == "missing"
    assert not (tmp_path / "pods.json").exists()


def test_events_outside_the_window_are_not_the_job_s(server: Server, tmp_path: Path) -> None:
    answers = server.source(log_lines=0).collect(scope(since=NOW - 9000, until=NOW - 7200), Folder(tmp_path), Deadline(20))
    assert next(one for one in answers if "event" in one.asked).status in ("stale", "missing")


@pytest.mark.parametrize(
    ("lacks", "word"), [("nodes", "list nodes"), ("events", "list events"), ("poddisruptionbudgets", "list poddisruptionbudgets")]
)
def test_what_may_not_be_read_is_failed_and_says_the_right(server: Server, tmp_path: Path, lacks: str, word: str) -> None:
    answers = server.source(lacks, log_lines=0).collect(scope(), Folder(tmp_path), Deadline(20))
    failed = [answer for answer in answers if answer.status == "failed"]
    assert any(answer.detail.startswith(word) and "add to the reader's role" in answer.hint for answer in failed), answers
    assert (tmp_path / "pods.json").exists()


def test_doctor_sees_rights_gpus_and_age(server: Server) -> None:
    rows = {row.item: row for row in server.source().examine(Deadline(20))}
    assert {rows[item].status for item in ("reachable", "version", "clock", "rights: list pods", "rights: get pods/log")} == {
        "ok"
    }
    assert (rows["GPUs"].status, "gpu-b 7/8" in rows["GPUs"].detail) == ("warning", True)
    assert rows["data age: events"].status == "ok"
    less = {row.item: row.status for row in server.source("nodes").examine(Deadline(20))}
    assert less["rights: list nodes"] == "critical"
    assert less["nodes"] == "unknown"


def failure(api: Api, path: str, query: dict[str, Any] | None = None) -> tuple[str, int | None]:
    with pytest.raises(ApiError) as caught:
        api.json(path, Deadline(10), query)
    return caught.value.kind, caught.value.status


def test_what_cannot_be_answered_is_refused(server: Server) -> None:
    api = server.api()
    assert failure(api, "/api/v1/namespaces/train/pods/nobody") == ("absent", 404)
    assert failure(api, "/apis/nothing.example/v1/things") == ("absent", 404)
    assert failure(api, "/api/v1/unknowns") == ("absent", 404)
    assert failure(api, "/api/v1/pods", {"fieldSelector": "spec.colour=red"})[1] == 400
    assert failure(api, "/api/v1/pods", {"labelSelector": "a=b=c"})[1] == 400
    assert failure(api, "/api/v1/pods", {"limit": 1, "continue": "nonsense"})[1] == 400
    assert failure(api, "/api/v1/namespaces/train/pods/llm-0-x/log", {"container": "nobody"})[1] == 400
    assert failure(server.api("nodes"), "/api/v1/nodes") == ("forbidden", 403)


@pytest.mark.parametrize(
    ("path", "query", "names"),
    [
        ("/api/v1/pods", {"labelSelector": "job-name=llm"}, ["llm-0-x", "llm-1-x", "llm-2-x"]),
        ("/api/v1/pods", {"labelSelector": "job-name in (llm, other),job-name!=llm"}, ["other-0"]),
        ("/api/v1/pods", {"labelSelector": "!job-name"}, []),
        ("/api/v1/pods", {"fieldSelector": "spec.nodeName=gpu-a,status.phase=Failed"}, ["llm-0-x"]),
        ("/api/v1/nodes", {"fieldSelector": "spec.unschedulable=true"}, ["gpu-c"]),
        ("/api/v1/nodes", {"labelSelector": "nvidia.com/gpu.product"}, [*NODES]),
        ("/api/v1/events", {"fieldSelector": "involvedObject.kind=Node"}, ["gpu-b.1"]),
        ("/apis/events.k8s.io/v1/events", {"fieldSelector": "regarding.kind=Node"}, ["gpu-b.1"]),
        ("/apis/batch/v1/jobs", {"fieldSelector": "metadata.name=llm"}, ["llm"]),
        ("/api/v1/namespaces/nowhere/pods", {}, []),
    ],
)
def test_selectors_select_the_same(server: Server, path: str, query: dict[str, str], names: list[str]) -> None:
    for page in (1, 500):
        found = server.api().list(path, Deadline(10), query, page=page)
        assert [item["metadata"]["name"] for item in found.items] == names
        assert found.complete


def test_each_answer_has_the_shape_of_the_server(server: Server) -> None:
    """Below an object the fake may lack what the server fills in by itself; it has nothing that the server has not."""
    api, end = server.api(), Deadline(30)
    metadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
    answers = {
        "version": api.json("/version", end),
        "pods": api.json("/api/v1/pods", end, {"limit": 2}),
        "selected pods": api.json("/api/v1/pods", end, {"labelSelector": "job-name=llm"}),
        "pod": api.json("/api/v1/namespaces/train/pods/llm-0-x", end),
        "names of pods": api.json("/api/v1/pods", end, {"limit": 2}, accept=metadata),
        "node": api.json("/api/v1/nodes/gpu-a", end),
        "nodes": api.json("/api/v1/nodes", end),
        "events": api.json("/api/v1/events", end),
        "newer events": api.json("/apis/events.k8s.io/v1/events", end),
        "jobs": api.json("/apis/batch/v1/jobs", end),
        "budgets": api.json("/apis/policy/v1/poddisruptionbudgets", end),
        "groups": api.json("/apis", end),
        "resources": api.json("/api/v1", end),
        "who": api.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}, end),
        "may": api.post(
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": {"verb": "list", "resource": "pods"}}},
            end,
        ),
    }  # fmt: skip
    opened = ("items", "metadata", "spec", "status", "resources", "version", "userInfo")
    found = compared(
        "kubernetes",
        answers,
        real=server.real,
        opened=opened,
        maps=("labels", "annotations", "capacity", "allocatable", "f:labels"),
    )
    assert found == [], "\n".join(found)
