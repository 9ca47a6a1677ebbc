"""What `workbench policy export kubernetes` writes is taken by a real API server, and the real Job controller and scheduler do what it means."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.live.kubernetes_site import SERVICE, Site, control_plane, run, stamp, until
from workbench.training.export import JOB_KINDS, Shape, export
from workbench.training.policy import Policy, load_policy

pytestmark = pytest.mark.live

SPACE = "default"
NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A control plane with the scheduler, the definitions of JobSet and PyTorchJob, and two nodes."""
    with control_plane(tmp_path_factory.mktemp("kubernetes"), "--scheduler") as folder:
        made = Site(folder / "admin.kubeconfig")
        made.crds(Path(run(SERVICE / "build")) / "crds")
        until("service account", lambda: made.core.list_namespaced_service_account(SPACE).items)
        for name in ("gpu-a", "gpu-b"):
            made.node(name)
            made.core.patch_node(name, {"metadata": {"labels": {"kubernetes.io/hostname": name}}})
        yield made


def kubectl(site: Site, *words: str, given: str) -> subprocess.CompletedProcess[str]:
    """Run kubectl on a manifest."""
    argv = [Path(run(SERVICE / "build")) / "kubectl", "--kubeconfig", site.kubeconfig, *words, "-f", "-"]
    return subprocess.run(list(map(str, argv)), input=given, capture_output=True, text=True, timeout=120)


def elastic(folder: Path) -> Policy:
    """A policy of a job that goes on with fewer nodes."""
    file = folder / "retry.toml"
    file.write_text('schema = "workbench.retry/1"\n[nodes]\nmin = 2\n', encoding="utf-8")
    return load_policy(file)


@pytest.mark.parametrize("kind", JOB_KINDS)
@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("which", ["shipped", "no exit codes", "elastic"])
def test_the_server_takes_it(site: Site, tmp_path: Path, kind: str, nodes: int, which: str) -> None:
    """Strictly: no unknown field; then it is made and deleted for real."""
    policy = {"shipped": Policy(), "no exit codes": replace(Policy(), certain_exit_codes=()), "elastic": elastic(tmp_path)}[which]
    shape = Shape(
        f"train-{next(NUMBERS)}", "registry.example/train:1", max(nodes, policy.nodes_min), ("gpu-a",) if nodes > 1 else ()
    )
    text = export("kubernetes", policy, shape, job_kind=kind)

    dry = kubectl(site, "create", "--dry-run=server", "--validate=strict", given=text)
    assert (dry.returncode, dry.stderr) == (0, ""), text
    made = kubectl(site, "create", "--validate=strict", given=text)
    assert (made.returncode, made.stderr) == (0, "")
    assert kubectl(site, "delete", "--wait=false", given=text).returncode == 0


def pods_of(site: Site, job: str) -> list[Any]:
    """Return the pods of a Job that have not ended."""
    found = site.core.list_namespaced_pod(SPACE, label_selector=f"batch.kubernetes.io/job-name={job}").items
    return [one for one in found if one.status.phase in ("Pending", "Running") and not one.metadata.deletion_timestamp]


def made_by(site: Site, text: str, pods: int) -> tuple[str, list[str]]:
    """Create a Job and return its name and its pods when its controller has made them."""
    job = yaml.safe_load(text)
    site.batch.create_namespaced_job(SPACE, job)
    name = job["metadata"]["name"]
    found = until("the pods", lambda: [one for one in [pods_of(site, name)] if len(one) == pods])
    return name, sorted(one.metadata.name for one in found[0])


def disrupted(site: Site, pod: str) -> None:
    """Let a pod end as one that was preempted."""
    row = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": "",
        "lastTransitionTime": stamp(),
    }
    site.ends(SPACE, pod, 143, conditions=[row])


def condition(site: Site, job: str, name: str) -> Any:
    """Return a condition of a Job, when it is there."""
    rows = site.batch.read_namespaced_job_status(job, SPACE).status.conditions or []
    return next((one for one in rows if one.type == name), None)


def end_of(site: Site, job: str) -> Any:
    """Return the condition that a Job failed; until then play the kubelet, which ends the pods that its controller deletes."""

    def failed() -> Any:
        for one in site.core.list_namespaced_pod(SPACE, label_selector=f"batch.kubernetes.io/job-name={job}").items:
            if one.metadata.deletion_timestamp and one.status.phase == "Pending":
                site.ends(SPACE, one.metadata.name, 143)
                site.core.delete_namespaced_pod(one.metadata.name, SPACE, grace_period_seconds=0)
        return condition(site, job, "Failed")

    return until("the end of the Job", failed, seconds=60.0)


def test_the_job_controller_replaces_a_preempted_pod_for_nothing_and_stops_for_a_wrong_command(site: Site) -> None:
    """A preemption against a budget of none; then exit code 127. The controller's own back-off (10 s, then twice that) precedes each new pod."""
    text = export("kubernetes", replace(Policy(), budget_unknown=0), Shape(f"train-{next(NUMBERS)}", "none", 2))
    job, pods = made_by(site, text, 2)
    gone = pods[0]
    disrupted(site, gone)
    pods = until("another pod", lambda: _whole(site, job, 2, gone), seconds=90.0)
    status = site.batch.read_namespaced_job_status(job, SPACE).status
    assert (status.failed or 0) == 0
    assert condition(site, job, "Failed") is None

    site.ends(SPACE, pods[0], 127)
    ended = end_of(site, job)
    assert ended.reason == "PodFailurePolicy"


def _whole(site: Site, job: str, count: int, without: str) -> list[str]:
    names = sorted(one.metadata.name for one in pods_of(site, job))
    return names if len(names) == count and without not in names else []


def test_the_job_controller_counts_what_is_neither(site: Site) -> None:
    """With a budget of none the first failure ends it."""
    text = export("kubernetes", replace(Policy(), budget_unknown=0), Shape(f"train-{next(NUMBERS)}", "none", 1))
    job, pods = made_by(site, text, 1)
    site.ends(SPACE, pods[0], 1)

    assert end_of(site, job).reason == "BackoffLimitExceeded"


@pytest.mark.parametrize(
    ("how", "rule"),
    [("preempted", "preempted"), ("127", "commandIsWrong"), ("1", "")],
    ids=["preempted", "wrong command", "failed"],
)
def test_the_rules_of_the_job_set_match_what_the_job_controller_says(site: Site, how: str, rule: str) -> None:
    """The patterns are of its messages, so they are held against its messages: reason and text of the real Failed condition."""
    whole = yaml.safe_load(export("kubernetes", Policy(), Shape("train", "none", 2), job_kind="JobSet"))
    inner = whole["spec"]["replicatedJobs"][0]["template"]["spec"]
    text = yaml.safe_dump(
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": f"train-{next(NUMBERS)}"}, "spec": inner}
    )
    job, pods = made_by(site, text, 2)
    if how == "preempted":
        disrupted(site, pods[0])
    else:
        site.ends(SPACE, pods[0], int(how))
    ended = end_of(site, job)

    def fits(one: dict[str, Any]) -> bool:
        texts = one["onJobFailureMessagePatterns"]
        return ended.reason in one["onJobFailureReasons"] and any(re.search(pattern, ended.message) for pattern in texts)

    assert next((one["name"] for one in whole["spec"]["failurePolicy"]["rules"] if fits(one)), "") == rule, ended.message


def test_the_scheduler_keeps_the_pods_off_a_node_that_was_left_out(site: Site) -> None:
    """All of them on the other one."""
    text = export("kubernetes", Policy(), Shape(f"train-{next(NUMBERS)}", "none", 3, ("gpu-a",)))
    job, _ = made_by(site, text, 3)

    def bound() -> list[str]:
        nodes = [one.spec.node_name for one in pods_of(site, job)]
        return nodes if all(nodes) else []

    assert set(until("the pods on nodes", bound)) == {"gpu-b"}
