"""The Kubernetes source against a real kube-apiserver, etcd and controller manager, with an account that has the shipped rights only."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import ApiException

from tests.live.kubernetes_site import (
    SERVICE,
    Site,
    control_plane,
    failed_pytorchjob,
    gather,
    granted,
    of,
    reader_of,
    run,
    scope_of,
    stamp,
    until,
    without,
)
from workbench.errors import SourceError
from workbench.incident import load
from workbench.sources.contract import Deadline, Folder, Scope
from workbench.sources.kubernetes.api import Api
from workbench.sources.kubernetes.clean import LEFT_OUT
from workbench.sources.kubernetes.source import Kubernetes

pytestmark = pytest.mark.live

READER = ("gpu-workbench", "gpu-workbench-reader")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A running control plane."""
    folder = tmp_path_factory.mktemp("kubernetes")
    # compacted every five seconds, so that a continue token can grow too old while a test waits
    with control_plane(folder, "--apiserver-arg", "--etcd-compaction-interval=5s"):
        yield folder


@pytest.fixture(scope="module")
def site(work: Path) -> Site:
    """The cluster with nodes, three namespaces, the real definitions and the shipped manifest."""
    site = Site(work / "admin.kubeconfig")
    site.crds(Path(run(SERVICE / "build")) / "crds")
    for name in ("train", "other"):
        site.namespace(name)
    for name in ("gpu-node-a", "gpu-node-b", "gpu-node-c"):
        site.node(name)
    granted(site, READER[0])
    return site


@pytest.fixture(scope="module")
def reader(work: Path, site: Site) -> Path:
    """A kubeconfig with the shipped rights only, in effect."""
    return reader_of(work, *READER)


@pytest.fixture(scope="module")
def pytorchjob(site: Site) -> str:
    """A PyTorchJob of three pods that failed."""
    return failed_pytorchjob(site)


def test_a_pytorchjob_is_found_collected_and_triaged(reader: Path, pytorchjob: str, tmp_path: Path) -> None:
    """Placement, window, files and the verdict: what the limited account sees is enough to name GPU and node."""
    began = time.monotonic()
    scope, answers = gather(Kubernetes(str(reader), page=2), pytorchjob, tmp_path)
    took = time.monotonic() - began

    assert scope.namespace == "train"
    assert set(scope.nodes) == {"gpu-node-a", "gpu-node-b", "gpu-node-c"}
    assert len(scope.pods) == 3
    assert {one.file for one in answers if one.status == "ok"} >= {
        "nodes.json",
        "pods.json",
        "events.json",
        "owners.json",
        "pdbs.json",
    }
    assert of(answers, "pods.json").rows == 3
    assert of(answers, "events.json").rows == 4  # of the other node's none
    assert took < 10

    verdict = load(tmp_path).triage()
    assert (verdict.cls, verdict.node) == ("hardware/gpu-lost", "gpu-node-b"), verdict.summary
    assert verdict.gpu is not None
    assert verdict.gpu.pci == "0000:9d:00.0"
    assert any(event.signature == "xid-79" and event.file == "events.json" and event.line for event in verdict.evidence_records)


def test_no_secret_is_written(reader: Path, pytorchjob: str, tmp_path: Path) -> None:
    """Values of env, options, addresses and copies of objects stay on the server, and the answer says so."""
    _, answers = gather(Kubernetes(str(reader)), pytorchjob, tmp_path)
    text = "".join(file.read_text(encoding="utf-8") for file in tmp_path.rglob("*.json"))

    assert "geheim" not in text
    assert LEFT_OUT in text
    assert "PET_NPROC_PER_NODE" in text
    assert "managedFields" not in text
    assert "look secret" in of(answers, "pods.json").detail


def test_without_kubelets_the_logs_are_an_answer(reader: Path, pytorchjob: str, tmp_path: Path) -> None:
    """No kubelet listens here: the API server says so, and nothing pretends that the logs were empty."""
    _, answers = gather(Kubernetes(str(reader)), pytorchjob, tmp_path)
    (job,) = [one for one in answers if one.source == "job"]

    assert job.status == "failed"
    assert "kubelet" in job.detail
    assert "/var/log/pods" in job.hint


@pytest.mark.parametrize(
    ("job", "cls", "node"),
    [
        ("preempted", "platform/preemption", None),
        ("disk-full", "platform/storage", "gpu-node-c"),
        ("bad-image", "platform/image", None),
        ("node-lost", "platform/node-lost", "gpu-node-l"),
        ("out-of-memory", "user/host-oom", None),
    ],
)
def test_jobs_of_the_real_controller_end_in_their_cause(
    site: Site, reader: Path, job: str, cls: str, node: str | None, tmp_path: Path
) -> None:
    """Failed pods, node conditions, taints, events, termination messages and DisruptionTarget, each told by the real server."""
    where = ("gpu-node-a", node or "gpu-node-c")
    if job == "node-lost":
        lost = {
            "type": "Ready",
            "status": "Unknown",
            "reason": "NodeStatusUnknown",
            "message": "Kubelet stopped posting node status.",
            "lastTransitionTime": stamp(60),
        }
        site.node(
            "gpu-node-l",
            conditions=(lost,),
            taints=[{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": stamp(60)}],
        )
    pods = site.job("train", job, where, env={"MASTER_ADDR": "x"})
    target = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": stamp(30)}
    if job == "preempted":
        site.event(
            "train", "Pod", pods[1], "Preempted", "Preempted by pod 5c7f2a on node gpu-node-c", ago=30, source="default-scheduler"
        )
        site.ends(
            "train",
            pods[1],
            143,
            ago=20,
            conditions=[
                {
                    **target,
                    "reason": "PreemptionByScheduler",
                    "message": "default-scheduler: preempting to accommodate a higher priority pod",
                }
            ],
        )
    elif job == "disk-full":
        said = "The node was low on resource: ephemeral-storage. Threshold quantity: 30Gi, available: 21894024Ki."
        site.event("train", "Pod", pods[1], "Evicted", said, ago=30, host="gpu-node-c")
        site.ends(
            "train",
            pods[1],
            137,
            ago=25,
            reason="Evicted",
            message=said,
            conditions=[{**target, "reason": "TerminationByKubelet", "message": said}],
        )
        site.core.patch_namespaced_pod_status(pods[1], "train", {"status": {"reason": "Evicted", "message": said}})
    elif job == "bad-image":
        waits = {
            "waiting": {"reason": "ErrImagePull", "message": 'failed to resolve reference "registry.example/x:1": not found'}
        }
        status = {
            "phase": "Pending",
            "containerStatuses": [
                {"name": "main", "image": "none", "imageID": "", "ready": False, "restartCount": 0, "state": waits}
            ],
        }
        site.core.patch_namespaced_pod_status(pods[1], "train", {"status": status})
        site.event(
            "train", "Pod", pods[1], "Failed", 'Failed to pull image "registry.example/x:1": not found', ago=20, host="gpu-node-c"
        )
    elif job == "node-lost":
        said = "Taint manager: deleting due to NoExecute taint"
        site.core.patch_namespaced_pod_status(
            pods[1],
            "train",
            {
                "status": {
                    "phase": "Failed",
                    "reason": "NodeLost",
                    "startTime": stamp(400),
                    "conditions": [{**target, "reason": "DeletionByTaintManager", "message": said}],
                }
            },
        )
        site.event(
            "default",
            "Node",
            "gpu-node-l",
            "NodeNotReady",
            "Node gpu-node-l status is now: NodeNotReady",
            ago=60,
            source="node-controller",
        )
    else:
        site.ends("train", pods[1], 137, ago=25, reason="OOMKilled")
    if job != "bad-image":
        site.ends(
            "train",
            pods[0],
            1,
            ago=10,
            message="[rank0]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error",
        )
    scope, answers = gather(Kubernetes(str(reader)), job, tmp_path)
    verdict = load(tmp_path).triage()

    assert set(scope.nodes) == set(where)
    assert not [one for one in answers if one.status == "failed" and one.source == "kubernetes"]
    owners = json.loads((tmp_path / "owners.json").read_text(encoding="utf-8"))["items"]
    assert [item["kind"] for item in owners] == ["Job"]
    assert verdict.cls == cls, verdict.summary
    assert node is None or verdict.node == node


def test_a_jobset_is_found_with_its_jobs_and_its_workload(site: Site, reader: Path, tmp_path: Path) -> None:
    """Pods belong to a Job, the Job to a JobSet, and Kueue's Workload to the JobSet; all of them are owners."""
    template = {"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}}}}
    spec = {"replicatedJobs": [{"name": "workers", "replicas": 1, "template": template}]}
    jobset = site.custom_object(
        "jobset.x-k8s.io",
        "v1alpha2",
        "jobsets",
        "train",
        {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "moe"}, "spec": spec},
    )
    meta = jobset["metadata"]
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "moe", "uid": meta["uid"], "controller": True}
    labels = {"jobset.sigs.k8s.io/jobset-name": "moe", "jobset.sigs.k8s.io/restart-attempt": "0"}
    body = {
        "metadata": {"name": "moe-workers-0", "labels": labels, "ownerReferences": [owner]},
        "spec": {"backoffLimit": 0, "template": {"metadata": {"labels": labels}, **template["spec"]["template"]}},
    }
    site.batch.create_namespaced_job("train", body)
    until("the pod", lambda: site.core.list_namespaced_pod("train", label_selector="jobset.sigs.k8s.io/jobset-name=moe").items)
    pod_sets = [{"name": "workers", "count": 1, "template": template["spec"]["template"]}]
    site.custom_object(
        "kueue.x-k8s.io",
        "v1beta1",
        "workloads",
        "train",
        {
            "apiVersion": "kueue.x-k8s.io/v1beta1",
            "kind": "Workload",
            "metadata": {"name": "jobset-moe-1a2b3", "ownerReferences": [owner]},
            "spec": {"podSets": pod_sets},
        },
    )
    _, answers = gather(Kubernetes(str(reader)), "moe", tmp_path)
    items = json.loads((tmp_path / "owners.json").read_text(encoding="utf-8"))["items"]

    assert {(item["kind"], item["metadata"]["name"]) for item in items} == {
        ("JobSet", "moe"),
        ("Job", "moe-workers-0"),
        ("Workload", "jobset-moe-1a2b3"),
    }
    assert "JobSet moe" in of(answers, "pods.json").detail


def test_plain_labels_and_names_are_the_last_ways(site: Site, reader: Path) -> None:
    """Bare pods are found by the labels that people use, and else by their names."""
    site.pod("other", "serve-0", "gpu-node-a", labels={"app": "vllm-chat"})
    site.pod("other", "adhoc-run-x7", "gpu-node-b", labels={})
    source = Kubernetes(str(reader))
    by_label, by_name = (source.locate(scope_of(name), Deadline(20)) for name in ("vllm-chat", "adhoc-run"))

    assert by_label is not None
    assert (by_label.pods, by_label.nodes, by_label.namespace) == (("serve-0",), ("gpu-node-a",), "other")
    assert by_name is not None
    assert (by_name.pods, by_name.nodes) == (("adhoc-run-x7",), ("gpu-node-b",))


def test_a_name_nobody_knows_is_none(reader: Path, tmp_path: Path) -> None:
    """Not known is no error for `locate`; for `collect` it is an answer that something is missing."""
    source = Kubernetes(str(reader))
    answers = source.collect(scope_of("no-such-job"), Folder(tmp_path), Deadline(20))

    assert source.locate(scope_of("no-such-job"), Deadline(20)) is None
    assert [one.status for one in answers if one.asked == "pods"] == ["missing"]
    assert of(answers, "nodes.json").rows >= 3
    assert not (tmp_path / "pods.json").exists()


def test_two_namespaces_with_the_same_job_are_said(site: Site, reader: Path) -> None:
    """A name is not enough then; with a namespace it is."""
    for space in ("train", "other"):
        site.pod(space, "twin-0", "gpu-node-a", labels={"training.kubeflow.org/job-name": "twin"})
    source = Kubernetes(str(reader))

    with pytest.raises(SourceError, match="other, train"):
        source.locate(scope_of("twin"), Deadline(20))
    scope = source.locate(scope_of("twin", namespace="other"), Deadline(20))
    assert scope is not None
    assert scope.namespace == "other"


def test_of_deleted_pods_events_still_tell(site: Site, reader: Path, tmp_path: Path) -> None:
    """The pods are gone, with them their objects; scheduler and kubelet have told where they were and why they ended."""
    site.pod("other", "gone-worker-0", "gpu-node-a", labels={"training.kubeflow.org/job-name": "gone"})
    site.event(
        "other",
        "Pod",
        "gone-worker-0",
        "Scheduled",
        "Successfully assigned other/gone-worker-0 to gpu-node-a",
        ago=100,
        source="default-scheduler",
        severity="Normal",
    )
    site.event(
        "other", "Pod", "gone-worker-0", "Preempted", "Preempted by pod 77 on node gpu-node-a", ago=50, source="default-scheduler"
    )
    site.core.delete_namespaced_pod("gone-worker-0", "other", grace_period_seconds=0)
    scope, answers = gather(Kubernetes(str(reader)), "gone", tmp_path)

    assert scope.nodes == ("gpu-node-a",)
    assert scope.pods == ("gone-worker-0",)
    assert next(one for one in answers if one.asked == "pods").status == "partial"
    assert of(answers, "events.json").rows == 2
    assert load(tmp_path).triage().cls == "platform/preemption"


def test_events_of_the_newer_api_are_among_the_older(site: Site, reader: Path, tmp_path: Path) -> None:
    """One store, two views: what a controller writes with events.k8s.io is read with v1, once."""
    from kubernetes import client

    site.pod("other", "newer-0", "gpu-node-a", labels={"app": "newer"})
    body = {
        "metadata": {"name": "newer-0.1"},
        "eventTime": stamp(5).replace("Z", ".000001Z"),
        "reason": "FailedScheduling",
        "action": "Scheduling",
        "note": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        "type": "Warning",
        "reportingController": "default-scheduler",
        "reportingInstance": "s-1",
        "regarding": {"kind": "Pod", "name": "newer-0", "namespace": "other"},
    }
    client.EventsV1Api(site.api).create_namespaced_event("other", body)
    _, answers = gather(Kubernetes(str(reader)), "newer", tmp_path)

    assert of(answers, "events.json").rows == 1


@pytest.mark.parametrize(
    ("lacks", "group", "source"),
    [
        ("pods", "", "kubernetes"),
        ("nodes", "", "kubernetes"),
        ("events", "", "kubernetes"),
        ("pods/log", "", "job"),
        ("poddisruptionbudgets", "policy", "kubernetes"),
        ("pytorchjobs", "kubeflow.org", "kubernetes"),
    ],
)
def test_a_right_that_lacks_is_an_answer(
    site: Site, work: Path, pytorchjob: str, lacks: str, group: str, source: str, tmp_path: Path
) -> None:
    """Never an empty list: the answer failed, names verb and resource, and the rule that would allow it; the rest is there."""
    account = "lacks-" + lacks.replace("/", "-")
    kubernetes = Kubernetes(str(without(site, work, account, lacks)))
    answers = kubernetes.collect(scope_of(pytorchjob, namespace="train", nodes=("gpu-node-b",)), Folder(tmp_path), Deadline(20))
    failed = [one for one in answers if one.status == "failed" and "HTTP 403" in one.detail and one.source == source]

    assert failed, answers
    assert all(lacks.split("/")[0] in one.detail for one in failed)
    assert any(f'apiGroups: ["{group}"], resources: ["{lacks}"]' in one.hint for one in failed), failed
    assert len(list(tmp_path.glob("*.json"))) >= 3
    line = next(
        line for line in kubernetes.examine(Deadline(10)) if line.status in ("critical", "warning") and lacks in line.item
    )
    assert "not granted" in line.detail
    assert lacks in line.fix


def test_who_sees_one_namespace_only_looks_there(site: Site, work: Path, pytorchjob: str) -> None:
    """Pods may not be listed everywhere, so the context's own namespace is searched."""
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "gpu-workbench-reader"}
    subject = {"kind": "ServiceAccount", "name": "homely", "namespace": "train"}
    site.rbac.create_namespaced_role_binding("train", {"metadata": {"name": "homely"}, "roleRef": role, "subjects": [subject]})
    source = Kubernetes(run(SERVICE / "kubeconfig-for", work, "train", "homely"))

    def located() -> Scope | None:
        try:
            return source.locate(scope_of(pytorchjob), Deadline(10))
        except SourceError:
            return None

    scope = until("the binding", located)
    assert (scope.namespace, len(scope.pods)) == ("train", 3)


def test_doctor_tells_rights_gpus_and_blind_spots(site: Site, reader: Path, pytorchjob: str) -> None:
    """Version, identity, clock, every right, events, GPUs, labels, monitors: each one line."""
    site.node("gpu-node-short", usable=7)
    began = time.monotonic()
    lines = {line.item: line for line in Kubernetes(str(reader)).examine(Deadline(20))}

    assert time.monotonic() - began < 10
    assert lines["reachable"].status == "ok"
    assert "v1.36" in lines["version"].detail
    assert "gpu-workbench-reader" in lines["identity"].detail
    assert lines["clock"].status == "ok"
    assert lines["rights: list pods"].status == "ok"
    assert lines["rights: list pytorchjobs.kubeflow.org"].status == "ok"
    assert "rights: list rayjobs.ray.io" not in lines  # Ray is not installed here
    assert "the oldest of" in lines["data age: events"].detail
    assert "gpu-node-short 7/8" in lines["GPUs"].detail
    assert lines["node monitors"].status == "warning"


def test_the_admin_is_told_to_use_less(work: Path, site: Site) -> None:
    """Reading needs no system:masters."""
    lines = {line.item: line for line in Kubernetes(str(work / "admin.kubeconfig")).examine(Deadline(20))}

    assert lines["identity"].status == "warning"


def test_nothing_was_changed_by_reading(site: Site, reader: Path, pytorchjob: str, tmp_path: Path) -> None:
    """Objects have the same versions before and after."""

    def versions() -> dict[str, str]:
        return {pod.metadata.name: pod.metadata.resource_version for pod in site.core.list_namespaced_pod("train").items}

    before = versions()
    gather(Kubernetes(str(reader)), pytorchjob, tmp_path)
    assert versions() == before


def test_a_continue_token_that_grew_too_old(site: Site, reader: Path, pytorchjob: str) -> None:
    """Between two pages the server forgets the version that was listed: 410 Gone, and the list is read again, whole."""
    api = Api(str(reader))
    tokens: list[str] = []

    def slow(item: dict[str, Any]) -> bool:
        if not tokens:
            # a token as old as the source's own: what the server forgets with it, it has forgotten for the source, too
            tokens.append(site.core.list_namespaced_pod("train", limit=1).metadata._continue)
            until("a token that is too old", forgotten, 90)
        return True

    def forgotten() -> bool:
        # the server compacts only what was followed by something
        site.core.patch_namespace("other", {"metadata": {"labels": {"waited": str(time.monotonic_ns())}}})
        try:
            site.core.list_namespaced_pod("train", limit=1, _continue=tokens[0])
        except ApiException as error:
            return error.status == 410
        time.sleep(1)
        return False

    listing = api.list("/api/v1/namespaces/train/pods", Deadline(120), page=1, keep=slow)

    assert listing.complete
    assert any("expired" in note for note in listing.notes), listing.notes
    assert len({item["metadata"]["name"] for item in listing.items}) == len(listing.items) >= 3


def test_an_outage_is_an_answer(work: Path, site: Site, reader: Path, pytorchjob: str, tmp_path: Path) -> None:
    """The API server is killed, and comes back: refused first, then the same files as before."""
    source = Kubernetes(str(reader))
    run(SERVICE / "stop", work, "-9:kube-apiserver")
    try:
        began = time.monotonic()
        answers = source.collect(scope_of(pytorchjob), Folder(tmp_path), Deadline(10))
        assert time.monotonic() - began < 3
        assert {one.status for one in answers} == {"failed"}
        assert [line.status for line in source.examine(Deadline(10))] == ["critical"]
        with pytest.raises(SourceError, match="cannot be reached"):
            source.locate(scope_of(pytorchjob), Deadline(10))
    finally:
        run(SERVICE / "start", work)
    _scope, answers = gather(source, pytorchjob, tmp_path)
    assert of(answers, "pods.json").rows == 3
