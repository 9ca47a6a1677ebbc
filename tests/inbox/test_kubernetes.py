"""What pods and jobs of a cluster show becomes signs of failures; what somebody stopped, or serves, or wants no GPU, is none."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from workbench.catalog import table
from workbench.inbox.kubernetes import KubernetesJobs, signs_of_job, signs_of_pod
from workbench.inbox.sightings import Failure, Seen, Sighting, assign
from workbench.sources.contract import Deadline
from workbench.sources.kubernetes.api import Api
from workbench.testing import FaultServer, Kubernetes, Reply, Request
from workbench.testing.kubernetes import kubeconfig

NOW = 1_800_000_000.0


def stamp(ago: float = 0.0) -> str:
    """Return a time before NOW as Kubernetes writes it."""
    return datetime.fromtimestamp(NOW - ago, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def ended(code: int, ago: float = 0.0, reason: str = "Error") -> dict[str, Any]:
    """Return the end of a container."""
    return {"terminated": {"exitCode": code, "reason": reason, "startedAt": stamp(ago + 60), "finishedAt": stamp(ago)}}


def pod(
    name: str = "train-0",
    *,
    labels: dict[str, str] | None = None,
    owner: str = "Job",
    gpus: int = 8,
    meta: Any = None,
    **status: Any,
) -> dict[str, Any]:
    """Return a pod of the Job `train`, running since ten minutes."""
    marks = {"batch.kubernetes.io/job-name": "train"} if labels is None else labels
    owners = [{"apiVersion": "batch/v1", "kind": owner, "name": "train", "uid": "u-train"}] if owner else []
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {"cpu": "1"}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml", "uid": f"u-{name}", "labels": marks, "creationTimestamp": stamp(700), "ownerReferences": owners, **(meta or {})},
        "spec": {"nodeName": "gpu-1", "containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {"phase": "Running", "startTime": stamp(600), **status},
    }  # fmt: skip


def container(state: dict[str, Any], *, last: dict[str, Any] | None = None, restarts: int = 0) -> list[dict[str, Any]]:
    """Return the status of the pod's one container."""
    return [{"name": "main", "restartCount": restarts, "state": state, "lastState": last or {}}]


def test_a_pod_that_failed_says_whose_when_where_and_how() -> None:
    ((sign, wait),) = signs_of_pod(pod(phase="Failed", containerStatuses=container(ended(137, 30, "OOMKilled"))), NOW)

    assert (sign.key, sign.job, sign.namespace, sign.nodes, sign.pods) == (
        "kubernetes/ml/train",
        "train",
        "ml",
        ("gpu-1",),
        ("train-0",),
    )
    assert (sign.time, sign.begin, wait) == (NOW - 30, NOW - 600, False)
    assert sign.reason == "pod train-0: main ended with exit code 137 (OOMKilled)"


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Running", "containerStatuses": container({"running": {}})},
        {"phase": "Succeeded", "containerStatuses": container(ended(0))},
        {"phase": "Pending"},
        {"phase": "Running", "containerStatuses": container({"running": {}}, last=ended(0), restarts=1)},
        {},
    ],
)
def test_a_pod_that_is_well_is_no_sign(status: dict[str, Any]) -> None:
    assert signs_of_pod(pod(**status), NOW) == []


def test_each_restart_of_a_container_is_one_sign_also_when_it_is_seen_in_two_ways() -> None:
    """First as the state of a container that has just ended, then as the last state of one that runs again."""
    at_once = signs_of_pod(pod(containerStatuses=container(ended(1, 5))), NOW)
    later = signs_of_pod(pod(containerStatuses=container({"running": {}}, last=ended(1, 5), restarts=1)), NOW)
    again = signs_of_pod(
        pod(containerStatuses=container({"waiting": {"reason": "CrashLoopBackOff"}}, last=ended(1, 2), restarts=2)), NOW
    )

    assert [sign.item for sign, _ in (*at_once, *later)] == ["kubernetes/u-train-0/main/1"] * 2
    assert [sign.item for sign, _ in again] == ["kubernetes/u-train-0/main/2"]


@pytest.mark.parametrize(
    "reason", ["EvictionByEvictionAPI", "PreemptionByScheduler", "DeletionByTaintManager", "TerminationByKubelet"]
)
def test_a_pod_that_is_taken_away_is_a_sign_before_it_ended(reason: str) -> None:
    disrupted = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": reason,
        "message": "Eviction API",
        "lastTransitionTime": stamp(9),
    }
    meta = {"deletionTimestamp": stamp(-20), "deletionGracePeriodSeconds": 30}
    ((sign, _),) = signs_of_pod(pod(conditions=[disrupted], meta=meta), NOW)

    assert sign.time == NOW - 9
    assert reason in sign.reason
    failed = pod(conditions=[disrupted], meta=meta, phase="Failed", reason="Evicted", containerStatuses=container(ended(143)))
    assert len(signs_of_pod(failed, NOW)) == 2


def test_a_pod_that_somebody_deleted_did_not_fail_but_one_that_failed_before_did() -> None:
    meta = {"deletionTimestamp": stamp(0), "deletionGracePeriodSeconds": 30}  # asked for 30 s ago

    assert signs_of_pod(pod(meta=meta, phase="Failed", containerStatuses=container(ended(143, 10))), NOW) == []
    assert len(signs_of_pod(pod(meta=meta, phase="Failed", containerStatuses=container(ended(1, 60))), NOW)) == 1


@pytest.mark.parametrize(
    ("labels", "owner", "job"),
    [
        ({"jobset.sigs.k8s.io/jobset-name": "llm", "job-name": "llm-w-0"}, "Job", "llm"),
        ({"training.kubeflow.org/job-name": "pt"}, "PyTorchJob", "pt"),
        ({"leaderworkerset.sigs.k8s.io/name": "lws"}, "StatefulSet", "lws"),
        (
            {"ray.io/cluster": "rj-raycluster-x", "ray.io/originated-from-cr-name": "rj", "ray.io/originated-from-crd": "RayJob"},
            "RayCluster",
            "rj",
        ),
        ({"ray.io/cluster": "rc"}, "RayCluster", "rc"),
        ({"volcano.sh/job-name": "vj"}, "Job", "vj"),
        ({"job-name": "old"}, "Job", "old"),
        ({}, "MyJob", "train"),
        ({}, "", "train-0"),
    ],
)
def test_the_job_of_a_pod_is_the_outermost(labels: dict[str, str], owner: str, job: str) -> None:
    signs = signs_of_pod(pod(labels=labels, owner=owner, phase="Failed", containerStatuses=container(ended(1))), NOW)

    assert signs[0][0].job == job
    assert signs[0][0].key == f"kubernetes/ml/{job}"


@pytest.mark.parametrize("owner", ["ReplicaSet", "StatefulSet", "DaemonSet"])
def test_services_are_followed_only_where_a_selector_names_them(owner: str) -> None:
    item = pod(labels={"app": "infer"}, owner=owner, phase="Failed", containerStatuses=container(ended(1)))

    assert signs_of_pod(item, NOW) == []
    assert len(signs_of_pod(item, NOW, chosen=True)) == 1


def test_jobs_without_gpus_are_left_aside_unless_all_are_wanted_but_launchers_count() -> None:
    plain = pod(gpus=0, phase="Failed", containerStatuses=container(ended(1)))
    launcher = pod(
        labels={"training.kubeflow.org/job-name": "mpi"},
        owner="MPIJob",
        gpus=0,
        phase="Failed",
        containerStatuses=container(ended(1)),
    )
    claimed = pod(gpus=0, phase="Failed", containerStatuses=container(ended(1)))
    claimed["spec"]["resourceClaims"] = [{"name": "gpu"}]

    assert signs_of_pod(plain, NOW) == []
    assert [len(signs_of_pod(one, NOW)) for one in (launcher, claimed)] == [1, 1]
    assert len(signs_of_pod(plain, NOW, every=True)) == 1


def test_the_start_of_a_jobset_is_told() -> None:
    labels = {"jobset.sigs.k8s.io/jobset-name": "llm", "jobset.sigs.k8s.io/restart-attempt": "2"}
    ((sign, _),) = signs_of_pod(pod(labels=labels, phase="Failed", containerStatuses=container(ended(1))), NOW)

    assert sign.attempt == 3


# ---- jobs


def job_signs(kind: str, group: str, status: dict[str, Any], **meta: Any) -> list[Sighting]:
    """Return the signs of a job's own object."""
    row = next(row for row in table("kubernetes_jobs") if (row["kind"], row["group"]) == (kind, group))
    ends = [row for row in table("kubernetes_job_ends") if (row["kind"], row["group"]) == (kind, group)]
    template = {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}]}}
    item = {
        "kind": kind,
        "metadata": {"name": "llm", "namespace": "ml", "uid": "u", **meta},
        "spec": {"template": template},
        "status": status,
    }
    return signs_of_job(item, row, ends, NOW)


@pytest.mark.parametrize(
    ("kind", "group", "status"),
    [
        (
            "Job",
            "batch",
            {"conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "lastTransitionTime": stamp(5)}]},
        ),
        ("JobSet", "jobset.x-k8s.io", {"conditions": [{"type": "Failed", "status": "True", "lastTransitionTime": stamp(5)}]}),
        (
            "PyTorchJob",
            "kubeflow.org",
            {"conditions": [{"type": "Restarting", "status": "True", "lastTransitionTime": stamp(5)}]},
        ),
        (
            "TrainJob",
            "trainer.kubeflow.org",
            {"conditions": [{"type": "Failed", "status": "True", "lastTransitionTime": stamp(5)}]},
        ),
        ("RayJob", "ray.io", {"jobStatus": "FAILED", "endTime": stamp(5), "message": "driver died"}),
        ("RayCluster", "ray.io", {"state": "failed", "lastUpdateTime": stamp(5)}),
    ],
)
def test_a_job_whose_pods_are_gone_tells_by_itself(kind: str, group: str, status: dict[str, Any]) -> None:
    (sign,) = job_signs(kind, group, status)

    assert (sign.key, sign.time) == ("kubernetes/ml/llm", NOW - 5)


def test_each_start_of_a_jobset_that_was_made_anew_is_a_sign() -> None:
    signs = job_signs("JobSet", "jobset.x-k8s.io", {"restarts": 2})

    assert [(sign.item, sign.attempt) for sign in signs] == [
        ("kubernetes/u/status.restarts/1", 1),
        ("kubernetes/u/status.restarts/2", 2),
    ]


def test_conditions_that_are_over_or_say_that_it_is_well_are_no_sign() -> None:
    rows = [
        {"type": "Failed", "status": "False"},
        {"type": "Complete", "status": "True"},
        {"type": "Suspended", "status": "True"},
    ]

    assert job_signs("Job", "batch", {"conditions": rows, "failed": 0}) == []


def test_what_a_jobset_made_speaks_for_the_jobset() -> None:
    owners = [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "outer", "uid": "x"}]
    failed = {"conditions": [{"type": "Failed", "status": "True", "lastTransitionTime": stamp(5)}]}

    assert [sign.key for sign in job_signs("Job", "batch", failed, ownerReferences=owners)] == ["kubernetes/ml/outer"]
    assert [sign.key for sign in job_signs("Job", "batch", failed, labels={"jobset.sigs.k8s.io/jobset-name": "outer"})] == [
        "kubernetes/ml/outer"
    ]


def test_kueue_that_takes_quota_away_speaks_for_the_job() -> None:
    owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "x"}]
    evicted = {"conditions": [{"type": "Evicted", "status": "True", "reason": "Preempted", "lastTransitionTime": stamp(5)}]}

    assert [sign.key for sign in job_signs("Workload", "kueue.x-k8s.io", evicted, ownerReferences=owners)] == [
        "kubernetes/ml/train"
    ]
    assert job_signs("Workload", "kueue.x-k8s.io", evicted) == []


def test_every_end_of_a_job_is_of_a_kind_that_is_known_and_has_a_source() -> None:
    known = {(row["kind"], row["group"]) for row in table("kubernetes_jobs")}
    for row in table("kubernetes_job_ends"):
        assert (row["kind"], row["group"]) in known
        assert row["how"] in ("condition", "value", "count", "attempt")
        assert row["source"].startswith("https://")
        assert row["date"]


# ---- a cluster


@pytest.fixture
def look(tmp_path: Path) -> Callable[..., Seen]:
    """A function that looks at a cluster with these objects."""

    def once(*objects: dict[str, Any], forbidden: tuple[str, ...] = (), now: float = NOW, fault: Any = None, **more: Any) -> Seen:
        cluster = Kubernetes(list(objects))
        cluster.forbidden |= set(forbidden)
        with FaultServer(fault or cluster) as server:
            config = kubeconfig(tmp_path, server.url)
            return KubernetesJobs(Api(str(config)), page=2, **more).look(0.0, now, Deadline(20))

    return once


FAILED = pod(phase="Failed", containerStatuses=container(ended(1)))


def test_a_look_sees_pods_and_jobs_page_by_page(look: Callable[..., Seen]) -> None:
    rest = [pod(f"train-{at}", phase="Failed", containerStatuses=container(ended(1))) for at in range(5)]
    jobset = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "llm", "namespace": "ml", "uid": "js"}, "status": {"restarts": 1},
    }  # fmt: skip
    seen = look(*rest, jobset)

    assert seen.problems == []
    assert sorted(sign.item for sign in seen.sightings) == sorted(
        [*(f"kubernetes/u-train-{at}/failed" for at in range(5)), "kubernetes/js/status.restarts/1"]
    )


def test_a_look_keeps_to_namespaces_and_labels(look: Callable[..., Seen]) -> None:
    assert look(FAILED, namespaces=("other",)).sightings == []
    assert len(look(FAILED, namespaces=("ml", "other")).sightings) == 1
    assert look(FAILED, selector="app=infer").sightings == []
    served = pod("infer-0", labels={"app": "infer"}, owner="ReplicaSet", phase="Failed", containerStatuses=container(ended(1)))
    assert [sign.pods for sign in look(FAILED, served, selector="app=infer").sightings] == [("infer-0",)]


def test_what_may_not_be_read_is_a_problem_with_a_way_out(look: Callable[..., Seen]) -> None:
    seen = look(FAILED, forbidden=("pods",))

    assert seen.sightings == []
    assert any("pods" in problem and "forbidden" in problem for problem in seen.problems)


def test_a_server_that_breaks_is_a_problem_and_no_cluster_without_failures(look: Callable[..., Seen]) -> None:
    def broken(request: Request) -> Reply:
        return Reply(b"<html>login</html>", 200, {"Content-Type": "text/html"})

    assert look(fault=broken).problems


def test_odd_objects_cost_no_look(look: Callable[..., Seen]) -> None:
    odd = pod("odd", phase="Failed")
    odd["status"]["containerStatuses"] = "none"
    seen = look(odd, FAILED)

    assert seen.problems or len(seen.sightings) >= 1


def test_an_image_that_cannot_be_pulled_counts_after_five_minutes(tmp_path: Path) -> None:
    waits = container({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}})
    item = pod(phase="Pending", containerStatuses=waits, startTime=stamp(10))
    with FaultServer(Kubernetes([item])) as server:
        jobs = KubernetesJobs(Api(str(kubeconfig(tmp_path, server.url))))
        assert jobs.look(0.0, NOW, Deadline(20)).sightings == []
        (sign,) = jobs.look(0.0, NOW + 301, Deadline(20)).sightings
    assert "ImagePullBackOff" in sign.reason


# ---- putting together


def sight(item: str, time: float | None, attempt: int | None = None, key: str = "k/a") -> Sighting:
    """Return a sign."""
    return Sighting(item, key, "kubernetes", "a", time=time, attempt=attempt)


def test_signs_of_one_start_are_one_failure_and_of_another_another() -> None:
    found = assign([sight("1", 10.0, 1), sight("2", 700.0, 1), sight("3", 20.0, 2), sight("4", 10.0, 1, "k/b")], [], 1000.0)

    assert sorted((failure.key, failure.attempt, len(failure.items)) for _, failure in found) == [
        ("k/a", 1, 2),
        ("k/a", 2, 1),
        ("k/b", 1, 1),
    ]


def test_a_sign_without_a_start_joins_the_nearest_failure() -> None:
    found = assign([sight("1", 0.0, 1), sight("2", 2000.0, 2), sight("job", 2010.0)], [], 3000.0)

    assert {failure.attempt: failure.items for _, failure in found} == {1: ("1",), 2: ("2", "job")}


def test_a_failure_that_is_known_grows_and_keeps_its_name() -> None:
    ((name, failure),) = assign([sight("1", 100.0)], [], 100.0)
    ((again, more),) = assign([sight("1", 100.0), sight("0", 90.0)], [(name, failure)], 120.0)

    assert again == name
    assert (more.first, more.last, more.items) == (90.0, 100.0, ("1", "0"))
    assert assign([sight("1", 100.0), sight("0", 90.0)], [(name, more)], 130.0) == []


def test_the_order_in_which_signs_come_does_not_matter() -> None:
    signs = [sight(str(at), float(at * 400), None) for at in range(6)]

    assert [failure.first for _, failure in assign(signs, [], 5000.0)] == [
        failure.first for _, failure in assign(signs[::-1], [], 5000.0)
    ]


def test_a_failure_survives_its_way_through_the_row() -> None:
    ((_, failure),) = assign([sight("1", 100.0, 2)], [], 100.0)

    assert Failure.from_dict({**failure.to_dict(), "later": 1}) == failure
