"""What the Kubernetes source makes of kinds of jobs, rights that lack, pods that are gone, logs, secrets and odd objects."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.sources.canned_kubernetes import (
    DEADLINE,
    JOB,
    LOG,
    MANIFEST,
    NOW,
    Cluster,
    bad,
    collect,
    kubeconfig,
    node,
    pod,
    scope,
    stamp,
)
from workbench.catalog import table
from workbench.errors import SourceError
from workbench.model import CLASSES
from workbench.sources.contract import Deadline, Folder
from workbench.sources.kubernetes.clean import LEFT_OUT, Cleaner
from workbench.sources.kubernetes.jobs import Found, window_of
from workbench.sources.kubernetes.source import Kubernetes
from workbench.testing.faults import FaultServer, Reply
from workbench.testing.kubernetes_words import status

pytest.importorskip("kubernetes")


# ---- kinds of jobs


def test_a_rayjob_leads_to_the_pods_of_its_cluster(source: Kubernetes, cluster: Cluster, tmp_path: Path) -> None:
    """The pods bear the name of the RayCluster, which only the RayJob's status tells."""
    cluster.groups["ray.io"] = "v1"
    meta = {"namespace": "train", "creationTimestamp": stamp(900)}
    cluster.more["rayjobs"] = [{"metadata": {**meta, "name": "tune", "uid": "r1"}, "status": {"rayClusterName": "tune-x8"}}]
    job = {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": "tune", "uid": "r1"}
    cluster.more["rayclusters"] = [{"metadata": {**meta, "name": "tune-x8", "uid": "c1", "ownerReferences": [job]}, "status": {}}]
    for one in cluster.pods:
        one["metadata"]["labels"] = {"ray.io/cluster": "tune-x8"}
        one["metadata"]["ownerReferences"] = [{"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "tune-x8", "uid": "c1"}]
    answers = collect(source, tmp_path, job="tune")
    owners = json.loads((tmp_path / "incident" / "owners.json").read_text(encoding="utf-8"))["items"]

    assert next(one for one in answers if one.file == "pods.json").rows == 2
    assert [item["kind"] for item in owners] == ["RayJob", "RayCluster"]


def test_a_leaderworkerset_comes_with_its_stateful_sets(source: Kubernetes, cluster: Cluster, tmp_path: Path) -> None:
    """Owners of owners are followed."""
    cluster.groups["leaderworkerset.x-k8s.io"] = "v1"
    root = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": "vllm", "uid": "l1"}
    cluster.more["leaderworkersets"] = [{"metadata": {"name": "vllm", "namespace": "train", "uid": "l1"}, "status": {}}]
    cluster.more["statefulsets"] = [
        {"metadata": {"name": name, "namespace": "train", "uid": name, "ownerReferences": [root]}} for name in ("vllm", "vllm-0")
    ]
    for one, name in zip(cluster.pods, ("vllm", "vllm-0"), strict=True):
        one["metadata"]["labels"] = {"leaderworkerset.sigs.k8s.io/name": "vllm"}
        one["metadata"]["ownerReferences"] = [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name, "uid": name}]
    collect(source, tmp_path, job="vllm")
    owners = json.loads((tmp_path / "incident" / "owners.json").read_text(encoding="utf-8"))["items"]

    assert sorted((item["kind"], item["metadata"]["name"]) for item in owners) == [
        ("LeaderWorkerSet", "vllm"),
        ("StatefulSet", "vllm"),
        ("StatefulSet", "vllm-0"),
    ]


def test_a_kind_is_asked_for_in_the_version_that_serves_it(source: Kubernetes, cluster: Cluster, server: FaultServer) -> None:
    """The group prefers v1, and MPIJob lives in v2beta1 only; the gang of a Volcano job is found by its name."""
    cluster.groups |= {"kubeflow.org": "v1", "batch.volcano.sh": "v1alpha1", "scheduling.volcano.sh": "v1beta1"}
    cluster.more["mpijobs"] = [{"metadata": {"name": JOB, "namespace": "train", "uid": "m1"}, "status": {}}]
    server.when = lambda request: "/kubeflow.org/v1/" in request.path and "mpijobs" in request.path
    server.empty, server.fault = b'{"kind": "MPIJobList", "apiVersion": "kubeflow.org/v1", "items": []}', "empty"

    found = source.locate(scope(), Deadline(DEADLINE))
    assert found is not None
    assert any("/kubeflow.org/v2beta1/" in request.path for request in server.requests)


def test_only_the_attempt_that_was_asked_for(source: Kubernetes, cluster: Cluster) -> None:
    """JobSet tells the attempt in a label."""
    for number, one in enumerate(cluster.pods):
        one["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] = str(number)
    found = source.locate(scope(attempt=2), Deadline(DEADLINE))

    assert found is not None
    assert found.pods == ("llm-1",)


# ---- rights and pods that are gone


@pytest.mark.parametrize("kind", ["pods", "nodes", "events", "jobs", "log"])
def test_what_is_not_granted_is_failed_with_its_rule(kind: str, source: Kubernetes, cluster: Cluster, tmp_path: Path) -> None:
    """Verb, resource and rule stand in the answer, and no file pretends to be it."""
    cluster.forbidden = {kind}
    answers = collect(source, tmp_path, nodes=("gpu-0",))
    failed = [one for one in answers if one.status == "failed" and "HTTP 403" in one.detail]
    name = {"log": "pods/log"}.get(kind, kind)

    assert failed
    assert any(f'resources: ["{name}"]' in one.hint for one in failed)
    assert all("workbench config rbac" in one.hint for one in failed if one.source == "kubernetes")
    assert not (tmp_path / "incident" / f"{kind}.json").exists()


def test_not_found_is_not_said_when_it_could_not_look(source: Kubernetes, cluster: Cluster) -> None:
    """`locate` gives None only when it looked everywhere."""
    cluster.pods, cluster.events = [], []
    cluster.forbidden = {"jobs"}
    with pytest.raises(SourceError, match="not all could be asked"):
        source.locate(scope(), Deadline(DEADLINE))
    cluster.forbidden, cluster.jobs = set(), []
    assert source.locate(scope(), Deadline(DEADLINE)) is None


def test_deleted_pods_that_another_source_named(source: Kubernetes, cluster: Cluster, tmp_path: Path) -> None:
    """Metrics know a pod that the server no longer has: it is named, and the rest is there."""
    answers = collect(source, tmp_path, pods=("llm-0", "llm-9"))
    answer = next(one for one in answers if one.file == "pods.json")

    assert answer.status == "partial"
    assert "llm-9" in answer.detail


def test_an_owner_without_pods_is_missing_not_empty(source: Kubernetes, cluster: Cluster, tmp_path: Path) -> None:
    """The Job is there and its pods are not."""
    cluster.pods, cluster.events = [], []
    answers = collect(source, tmp_path)

    assert next(one for one in answers if one.asked == "pods").status == "missing"
    assert (tmp_path / "incident" / "owners.json").exists()
    assert next(one for one in answers if one.source == "job").status == "missing"


def test_a_node_that_an_autoscaler_took_is_named(source: Kubernetes, cluster: Cluster, tmp_path: Path) -> None:
    """One of two nodes is gone: partial; both: missing."""
    cluster.nodes = [node(0)]
    answers = collect(source, tmp_path)
    answer = next(one for one in answers if one.file == "nodes.json")
    assert (answer.status, answer.rows, "gpu-1" in answer.detail) == ("partial", 1, True)

    cluster.nodes = [node(7)]
    answers = collect(source, tmp_path / "second")
    assert next(one for one in answers if one.asked == "nodes").status == "missing"


# ---- logs


def test_logs_come_with_the_failed_first_and_the_previous_run(
    source: Kubernetes, cluster: Cluster, server: FaultServer, tmp_path: Path
) -> None:
    """Of a container that restarted both runs are read."""
    cluster.pods = [pod(0, ended=False, restarts=2), pod(1)]
    collect(source, tmp_path)
    asked = [request.path for request in server.requests if "/log" in request.path]

    assert (tmp_path / "incident" / "logs" / "llm-0.previous.log").exists()
    assert any("previous=true" in path for path in asked)
    assert all("tailLines=20000" in path and "timestamps=true" in path for path in asked)


def test_of_a_long_log_the_end_is_kept(cluster: Cluster, server: FaultServer, tmp_path: Path) -> None:
    """What failed stands at the end; lines stay whole; the answer says that it is not all."""
    lines = b"".join(b"2026-05-04T11:02:03Z step %08d\n" % number for number in range(40000))
    cluster.told = lambda name, query: lines
    source = Kubernetes(kubeconfig(tmp_path, server.url), log_bytes=100_000)
    answer = next(one for one in collect(source, tmp_path) if one.source == "job")
    kept = (tmp_path / "incident" / "logs" / "llm-0.log").read_bytes()

    assert answer.status == "partial"
    assert "the end only" in answer.detail
    assert len(kept) <= 100_000
    assert kept.startswith(b"2026-05-04T11:02:03Z step ")
    assert kept.endswith(b"step 00039999\n")


def test_a_log_that_drips_is_kept_as_far_as_it_came(
    source: Kubernetes, cluster: Cluster, server: FaultServer, tmp_path: Path
) -> None:
    """The deadline comes in the middle of a log: its begin is written, and said to be partial."""
    server.when, server.drip = (lambda request: "/log" in request.path), 0.03
    server.fault = "slow"
    answer = next(one for one in collect(source, tmp_path, 1.5) if one.source == "job")

    assert answer.status == "partial"
    assert (tmp_path / "incident" / "logs" / "llm-0.log").read_text(encoding="utf-8").startswith("2026-05-04T11:02")


def test_a_dead_kubelet_is_asked_once(source: Kubernetes, cluster: Cluster, server: FaultServer, tmp_path: Path) -> None:
    """The API server cannot reach a node: no retry, no second log of that node, and the others are read."""

    def log(name: str, query: dict[str, str]) -> Reply | bytes:
        return (
            status(500, 'Get "https://10.0.0.7:10250/containerLogs/": dial tcp 10.0.0.7:10250: connect: no route to host')
            if name == "llm-0"
            else LOG.encode()
        )

    cluster.told = log
    answer = next(one for one in collect(source, tmp_path) if one.source == "job")

    assert answer.status == "partial"
    assert "the kubelet of gpu-0 does not answer" in answer.detail
    assert len([request for request in server.requests if "llm-0/log" in request.path]) == 1
    assert (tmp_path / "incident" / "logs" / "llm-1.log").exists()


def test_no_kubelet_answers(source: Kubernetes, cluster: Cluster, server: FaultServer, tmp_path: Path) -> None:
    """The tunnel to the nodes is down: some are asked, not all thousand."""
    cluster.pods, cluster.nodes = [pod(number) for number in range(200)], [node(number) for number in range(200)]
    cluster.told = lambda name, query: status(502, "proxy error from 127.0.0.1:8132 while dialing 10.0.0.7:10250, code 502")
    answer = next(one for one in collect(source, tmp_path, 5) if one.source == "job")

    assert (answer.status, "no kubelet answers" in answer.detail) == ("failed", True)
    assert len([request for request in server.requests if "/log" in request.path]) < 60


def test_an_anonymous_refusal_is_about_who_we_are(
    source: Kubernetes, server: FaultServer, cluster: Cluster, tmp_path: Path
) -> None:
    """Credentials that did not come are no missing right."""
    cluster.refusal = (
        'pods is forbidden: User "system:anonymous" cannot list resource "pods" in API group "" at the cluster scope'
    )
    cluster.forbidden = {"pods", "nodes", "events", "jobs"}
    answers = collect(source, tmp_path)

    assert "kubectl auth whoami" in bad(answers)
    assert "apiGroups" not in bad(answers)


def test_a_full_folder_is_said(source: Kubernetes, cluster: Cluster, tmp_path: Path) -> None:
    """Nothing grows beyond the limit, and the answers name it."""
    answers = source.collect(scope(), Folder(tmp_path / "small", limit=3000), Deadline(DEADLINE))

    assert any("would hold more than" in one.detail for one in answers if one.status == "failed")
    assert sum(path.stat().st_size for path in (tmp_path / "small").rglob("*") if path.is_file()) <= 3000


def test_empty_logs_are_missing(source: Kubernetes, cluster: Cluster, tmp_path: Path) -> None:
    """A container that said nothing is not a log."""
    cluster.told = lambda name, query: b""
    answer = next(one for one in collect(source, tmp_path) if one.source == "job")

    assert (answer.status, "2 empty" in answer.detail) == ("missing", True)


# ---- hostile and odd objects


@pytest.mark.parametrize("kind", ["pods", "nodes", "events", "jobs"])
@pytest.mark.parametrize(
    "odd",
    [
        {"metadata": {"name": "llm-0", "namespace": "train"}},
        {"metadata": {"name": "llm-0", "namespace": "train"}, "spec": None, "status": None},
        {"metadata": {"name": "llm", "namespace": "train", "labels": None, "ownerReferences": None, "annotations": None}},
        {"metadata": {"name": "llm-0", "namespace": "train", "labels": ["x"], "ownerReferences": "x"}, "spec": [], "status": 3},
        {
            "metadata": {"name": "llm-0", "namespace": "train"},
            "status": {"conditions": [1], "containerStatuses": {"a": 1}},
            "spec": {"nodeName": 7},
        },
        {"metadata": {"name": 5, "namespace": "train"}, "involvedObject": 7, "message": {"a": 1}},
        {"metadata": {"namespace": "train"}},
    ],
)
def test_an_odd_object_is_no_exception(
    kind: str, odd: dict[str, Any], source: Kubernetes, cluster: Cluster, tmp_path: Path
) -> None:
    """Objects come from old servers, from hands, and from things that are no API server; nothing raises."""
    getattr(cluster, kind)[:] = [odd]
    answers = collect(source, tmp_path)

    assert answers
    with contextlib.suppress(SourceError):
        source.locate(scope(), Deadline(DEADLINE))
    assert source.examine(Deadline(DEADLINE))


def test_a_job_name_is_never_a_query_or_a_path(source: Kubernetes, server: FaultServer, tmp_path: Path) -> None:
    """What stands in an alert is quoted; the label of a selector is only asked for when it can be one."""
    collect(source, tmp_path, job="../../secrets?x=,y in (z)")

    assert all("/secrets" not in urlsplit(request.path).path for request in server.requests)
    assert not any("labelSelector" in request.path for request in server.requests)


def test_names_of_pods_do_not_lead_out_of_the_folder(source: Kubernetes, cluster: Cluster, tmp_path: Path) -> None:
    """A server that lies does not write where it likes."""
    cluster.pods[0]["metadata"]["name"] = "../../../evil"
    collect(source, tmp_path)

    assert not list(tmp_path.rglob("*evil*"))
    assert not list(tmp_path.parent.glob("*evil*"))


# ---- tables, manifest, pure parts


def test_the_manifest_grants_what_is_asked_for_and_no_more() -> None:
    """One rule for each right of the tables; no verb that writes, no Secret, no ConfigMap, no exec."""
    rules = [
        rule for document in yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8")) for rule in document.get("rules") or []
    ]
    granted = {
        (verb, group, resource)
        for rule in rules
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    wanted = {
        (row["verb"], row["group"], row["resource"] + (f"/{row['subresource']}" if row["subresource"] else ""))
        for row in table("kubernetes_rights")
    }
    wanted |= {("list", row["group"], row["plural"]) for row in table("kubernetes_jobs") if row["kind"]}

    assert wanted <= granted
    assert {(group, resource) for _, group, resource in granted} == {(group, resource) for _, group, resource in wanted}
    assert {verb for verb, _, _ in granted} == {"get", "list"}


def test_the_tables_are_whole() -> None:
    """Sources and dates in every row; classes are classes; patterns compile."""
    for name in ("kubernetes_jobs", "kubernetes_rights", "kubernetes_secrets"):
        for row in table(name):
            assert row["source"].startswith("https://"), row
            assert re.fullmatch(r"\d{4}-\d\d-\d\d", row["date"]), row
    for row in table("kubernetes_rights"):
        assert set(filter(None, row["blind_to"].split(";"))) <= set(CLASSES)
    for row in table("kubernetes_secrets"):
        re.compile(row["pattern"])


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("RANK", "3", True),
        ("TOKENIZERS_PARALLELISM", "false", True),
        ("MAX_TOKENS", "4096", True),
        ("NCCL_IB_HCA", "mlx5_0", True),
        ("PET_RDZV_ENDPOINT", "llm-0:29500", True),
        ("HF_TOKEN", "x", False),
        ("AWS_SECRET_ACCESS_KEY", "x", False),
        ("WANDB_API_KEY", "x", False),
        ("githubToken", "x", False),
        ("DB_PASSWORD", "x", False),
        ("ANY", "hf_" + "a" * 34, False),
        ("ANY", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.c2lnbmF0dXJl", False),
        ("URL", "postgres://me:pass@db/x", False),
        ("KEY_FILE", "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----", False),
    ],
)
def test_what_looks_secret(name: str, value: str, kept: bool) -> None:
    """Names and values of the table; what a triage needs stays."""
    cleaner = Cleaner()
    cleaned = json.dumps(cleaner.clean({"kind": "Pod", "spec": {"containers": [{"env": [{"name": name, "value": value}]}]}}))

    assert (LEFT_OUT not in cleaned) is kept
    assert (json.dumps(value)[1:-1] in cleaned) is kept
    assert cleaner.secrets == (0 if kept else 1)


def test_a_command_line_loses_its_secrets() -> None:
    """In one word, in two, and inside a shell's string."""
    args = ["train.py", "--api-key", "geheim1", "--wandb-token=geheim2", "--lr", "3e-4", "bash -c 'x --password geheim3 --y'"]
    cleaned = json.dumps(Cleaner().clean({"kind": "Pod", "spec": {"containers": [{"args": args}]}}))

    assert "geheim" not in cleaned
    assert "3e-4" in cleaned


def test_the_window_is_the_jobs_own_when_the_two_do_not_meet() -> None:
    """A job of last week is triaged in its own window."""
    found = Found(JOB, "train", [pod(0)], [])

    assert window_of(found, scope())[0] == pytest.approx(NOW - 800, abs=2)
    since, until = window_of(found, scope(since=NOW - 90000, until=NOW - 80000))
    assert (since, until) == (pytest.approx(NOW - 800, abs=2), pytest.approx(NOW + 500, abs=2))
    assert window_of(Found(JOB, "train", [pod(0, ended=False)], []), scope())[1] == NOW


def test_importing_costs_nothing() -> None:
    """The client's two hundred modules are imported when a server is asked."""
    code = "import sys, workbench.sources.kubernetes.source; sys.exit(any(name == 'kubernetes' or name.startswith(('kubernetes.', 'urllib3', 'pandas')) for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_the_doctor_names_nodes_whose_checker_died(tmp_path: Path) -> None:
    """Conditions that nobody renews say how a node was."""
    cluster = Cluster()
    late = time.time() - NOW  # how long the suite has run
    for number, ago in ((0, 7200.0), (1, 60.0 - late)):
        ours = {
            "type": "WorkbenchNodeUnfit",
            "status": "False",
            "reason": "NodeFit",
            "message": "",
            "lastHeartbeatTime": stamp(ago),
        }
        cluster.nodes[number]["status"]["conditions"].append(ours)
    with FaultServer(cluster) as server:
        lines = Kubernetes(kubeconfig(tmp_path, server.url)).examine(Deadline(10))
    (line,) = [one for one in lines if one.item == "age of our conditions"]
    assert line.status == "warning"
    assert re.search(r"1 nodes, for 2\.\d h at most: gpu-0$", line.detail)
