"""Each rung of remediation on a real kube-apiserver with 1,500 nodes, with its undo, and what stands in its way."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.live.kubernetes_site import SERVICE, run, until
from tests.live.remediation_site import MACHINES, PLACE, Cluster, KubernetesWorld, act, audited, budget, rebooted, seen, soon
from tests.remediation.conformance import refused
from workbench.remediation.executors.contract import ExecutorError
from workbench.remediation.executors.dry_run import DryRun
from workbench.remediation.executors.kubernetes.executor import Kubernetes
from workbench.remediation.executors.kubernetes.pods import CHECKPOINT
from workbench.remediation.executors.kubernetes.restrict import excluded
from workbench.remediation.model import OWNER, Action

pytestmark = pytest.mark.live

ALL = ("cordon", "drain", "uncordon", "taint", "label", "exclude", "evict", "restart-task", "replace")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane that writes down every request, and a fleet of 1,500 nodes beside those that tests make."""
    with audited(tmp_path_factory.mktemp("kubernetes")) as cluster:
        cluster.crowd(1500)
        yield cluster


def test_an_evacuation_waits_for_its_budget_then_empties_the_node_and_is_undone(cluster: Cluster, executor: Kubernetes) -> None:
    """Cordon; the budget blocks and is named; a pod elsewhere makes room; the node is empty; uncordon leaves nothing of ours."""
    bad, good = cluster.name("node"), cluster.name("node")
    for name in (bad, good):
        cluster.node(name)
    (pod,) = cluster.replicas(bad, 1, gang="a")
    budget(cluster, "gang-a", 1, gang="a")
    cordon = act(cluster, "cordon", bad, reason="xid-79", taint=True)
    assert executor.begin(cordon, soon()).status == "done"

    (work,) = seen(executor, bad).busy()
    assert (work.budgets, work.disruptions, work.controlled, work.gpus) == (("train/gang-a",), 0, True, 1)
    evict = act(cluster, "evict", bad, expects={"owner": OWNER, "op": cordon.id, "work": [f"train/{pod}"]})
    step = executor.begin(evict, soon())
    assert step.status == "blocked"
    assert "gang-a needs 1 healthy pods and has 1" in step.detail
    assert executor.look(evict, soon()).status == "blocked"
    assert cluster.pods(bad)[0]["metadata"].get("deletionTimestamp") is None

    cluster.pod(good, labels={"gang": "a"}, owner=cluster.pods(bad)[0]["metadata"]["ownerReferences"][0])
    until("room", lambda: cluster.site.policy.read_namespaced_pod_disruption_budget("gang-a", "train").status.disruptions_allowed)
    assert executor.begin(evict, soon()).status in ("pending", "done")
    until("the node is empty", lambda: executor.look(evict, soon()).status == "done")
    assert not cluster.pods(bad)

    lift = act(cluster, "uncordon", bad, expects={"owner": OWNER, "op": cordon.id})
    assert executor.begin(lift, soon()).status == "done"
    node = seen(executor, bad)
    assert (node.owner, node.schedulable) == ("", True)
    assert set(node.marks) == {"gpu-workbench/last"}
    events = cluster.site.core.list_namespaced_event("default", field_selector=f"involvedObject.name={bad}").items
    ours = {one.reason: one.message for one in events if one.reason.startswith("Workbench")}
    assert set(ours) == {"WorkbenchCordoned", "WorkbenchEvicting", "WorkbenchUncordoned"}
    assert cordon.id in ours["WorkbenchCordoned"]


def test_two_budgets_over_one_pod_are_told_and_never_forced(cluster: Cluster, executor: Kubernetes) -> None:
    """The API server answers such an eviction with 500; the step says what a person must do."""
    name = cluster.name("node")
    cluster.node(name)
    (pod,) = cluster.replicas(name, 1, gang="two", team="x")
    budget(cluster, "by-gang", 0, gang="two")
    budget(cluster, "by-team", 0, team="x")
    evict = act(cluster, "evict", name, expects={"work": [f"train/{pod}"]})

    began = time.monotonic()
    step = executor.begin(evict, soon())
    assert time.monotonic() - began < 10, "a refusal for good is not tried again"
    assert step.status == "blocked"
    assert "two disruption budgets cover it" in step.detail
    looked = executor.look(evict, soon())
    assert (looked.status, looked.detail) == ("blocked", f"train/{pod}: held by train/by-gang and train/by-team")


def test_a_successor_of_the_same_name_is_not_evicted(cluster: Cluster, executor: Kubernetes) -> None:
    """A repeated eviction is for the pods of the first time, by uid; nobody agreed to lose another."""
    name = cluster.name("node")
    cluster.node(name)
    pod = cluster.pod(name, "worker-0", space="train")
    evict = act(cluster, "evict", name, expects={"work": [pod]})
    assert executor.begin(evict, soon()).status in ("pending", "done")
    until("the pod is gone", lambda: not cluster.pods(name))
    cluster.pod(name, "worker-0", space="train")

    assert executor.begin(evict, soon()).status == "done"
    assert "deletionTimestamp" not in cluster.pods(name)[0]["metadata"]

    strange = act(cluster, "evict", name, expects={"work": ["train/another"]})
    step = executor.begin(strange, soon())
    assert step.status == "changed"
    assert "worker-0 runs there by now" in step.detail


def test_daemons_stay_and_finished_pods_are_no_work(cluster: Cluster, executor: Kubernetes) -> None:
    """An eviction is for what would be lost."""
    from kubernetes import client

    name = cluster.name("node")
    cluster.node(name, role=name)
    spec = {"containers": [{"name": "c", "image": "none"}], "nodeSelector": {"role": name}}
    template = {"metadata": {"labels": {"app": "exporter"}}, "spec": spec}
    client.AppsV1Api(cluster.site.api).create_namespaced_daemon_set(
        "train",
        {"metadata": {"name": "exporter"}, "spec": {"selector": {"matchLabels": {"app": "exporter"}}, "template": template}},
    )
    until("the daemon", lambda: cluster.pods(name))
    node = seen(executor, name)
    assert [one.ignored for one in node.work] == [True]

    evict = act(cluster, "evict", name, expects={"work": []})
    assert executor.begin(evict, soon()).status == "done"
    assert len(cluster.pods(name)) == 1


def test_a_cordon_survives_others_who_write_the_same_node(cluster: Cluster, executor: Kubernetes) -> None:
    """Conflicts are judged anew and nobody's change is lost; two actions at once leave one."""
    name = cluster.name("node")
    cluster.node(name)
    stop, written = threading.Event(), 0

    def busy() -> None:
        nonlocal written
        while not stop.is_set():
            taint = {"key": f"site/{written % 3}", "effect": "PreferNoSchedule"}
            cluster.site.core.patch_node(name, {"metadata": {"labels": {"site/n": str(written)}}, "spec": {"taints": [taint]}})
            written += 1
            time.sleep(0.01)

    thread = threading.Thread(target=busy)
    cordons = [act(cluster, "cordon", name, taint=True, expects={"owner": ""}) for _ in range(4)]
    ends: list[str] = []

    def cordon(action: Action) -> None:
        while (error := refused(lambda: ends.append(Kubernetes(cluster.kubeconfig).begin(action, soon()).status))) is not None:
            assert not error.sent

    threads = [threading.Thread(target=cordon, args=(one,)) for one in cordons]
    thread.start()
    until("somebody writes", lambda: written > 3)
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    stop.set()
    thread.join()

    assert sorted(ends) == ["changed", "changed", "changed", "done"]
    node = seen(executor, name)
    assert node.op in [one.id for one in cordons]
    taints = {one["key"] for one in cluster.raw(name)["spec"]["taints"]}
    assert f"site/{(written - 1) % 3}" in taints


def test_a_cordon_that_was_lifted_and_set_by_hand_is_not_ours(cluster: Cluster, executor: Kubernetes) -> None:
    """Our annotations outlive a manual uncordon; they do not blame the next cordon, and it is not undone."""
    name = cluster.name("node")
    cluster.node(name)
    cordon = act(cluster, "cordon", name, reason="xid-79")
    executor.begin(cordon, soon())
    cluster.kubectl("uncordon", name)
    free = seen(executor, name)
    assert (free.owner, free.schedulable) == ("", True)
    assert executor.look(cordon, soon()).status == "changed"

    cluster.kubectl("cordon", name)
    theirs = seen(executor, name)
    assert theirs.foreign
    assert theirs.owner.startswith("kubectl")
    assert executor.undo(cordon, {}, soon()).status == "changed"
    lift = act(cluster, "uncordon", name)
    assert executor.begin(lift, soon()).status == "changed"
    assert cluster.raw(name)["spec"]["unschedulable"] is True

    cluster.kubectl("uncordon", name)
    assert executor.undo(cordon, {}, soon()).status == "done"
    after = seen(executor, name)
    assert not after.marks


@pytest.mark.parametrize(
    ("sign", "holder"),
    [
        (("taint", "karpenter.sh/disrupted:NoSchedule"), "karpenter"),
        (("taint", "ToBeDeletedByClusterAutoscaler=1:NoSchedule"), "cluster-autoscaler"),
        (("label", "k8saas.nvidia.com/cordon-by=NVSentinel"), "NVSentinel"),
        (("annotate", "weave.works/kured-reboot-in-progress=2026-11-30"), "kured"),
        (("annotate", "gpu-workbench/owner=alice", "--overwrite"), "alice"),
    ],
)
def test_a_node_that_another_holds_too_is_theirs(
    cluster: Cluster, executor: Kubernetes, sign: tuple[str, ...], holder: str
) -> None:
    """Also when we cordoned it first; when they are done with it, it is ours again."""
    name = cluster.name("node")
    cluster.node(name)
    cordon = act(cluster, "cordon", name)
    executor.begin(cordon, soon())
    cluster.kubectl(sign[0], "node", name, *sign[1:])

    node = seen(executor, name)
    assert node.owner == holder
    assert executor.undo(cordon, {}, soon()).status == "changed"
    assert executor.begin(act(cluster, "uncordon", name), soon()).status == "changed"
    assert executor.begin(act(cluster, "evict", name), soon()).status == "changed"
    assert cluster.raw(name)["spec"]["unschedulable"] is True

    key = sign[1].partition("=")[0].partition(":")[0]
    cluster.kubectl(sign[0], "node", name, f"{key}-")
    assert executor.undo(cordon, {}, soon()).status == "done"


def test_an_excluded_node_gets_none_of_the_jobs_retries(cluster: Cluster, executor: Kubernetes) -> None:
    """With one stanza in the job's template the real scheduler keeps away; other jobs do not, and undo ends it."""
    name, role = cluster.name("node"), cluster.name("role")
    cluster.node(name, role=role)
    exclude = act(cluster, "exclude", name, job="llm-7b")
    assert executor.begin(exclude, soon()).status == "done"
    assert seen(executor, name).schedulable
    term = {"matchExpressions": [{"key": excluded("llm-7b"), "operator": "DoesNotExist"}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}

    def retry(pod: str, **more: Any) -> None:
        spec = {"containers": [{"name": "c", "image": "none"}], "nodeSelector": {"role": role}, **more}
        cluster.site.core.create_namespaced_pod("train", {"metadata": {"name": pod}, "spec": spec})

    def placed(pod: str) -> str:
        return cluster.site.core.read_namespaced_pod(pod, "train").spec.node_name or ""

    retry("llm-7b-retry", affinity=affinity)
    retry("other-job")
    until("the other job's pod", lambda: placed("other-job") == name)
    assert placed("llm-7b-retry") == ""
    second = act(cluster, "exclude", name, job="another")
    assert executor.begin(second, soon()).status == "done"
    assert executor.undo(exclude, {}, soon()).status == "done"
    until("the retry's pod", lambda: placed("llm-7b-retry") == name)
    assert executor.look(second, soon()).status == "done"


def test_a_machine_is_replaced_and_the_look_says_what_holds_it(cluster: Cluster, executor: Kubernetes) -> None:
    """The claim waits for its finalizer; then a node of the same name is another machine."""
    name = cluster.name("node")
    cluster.node(name)
    claim = cluster.claim(name)
    node = seen(executor, name)
    assert (node.claim, node.environment) == (claim, "cloud")
    swap = act(cluster, "replace", name, claim, expects={"claim": claim})
    step = executor.begin(swap, soon())
    assert (step.status, step.before["claim"]) == ("pending", claim)
    assert "karpenter.sh/termination" in executor.look(swap, soon()).detail

    cluster.terminate(claim, name)
    until("the claim is gone", lambda: executor.look(swap, soon()).status == "done")
    cluster.node(name)
    assert executor.look(swap, soon()).status == "done"
    assert executor.begin(swap, soon()).status == "done"

    other = act(cluster, "replace", name)
    assert executor.begin(other, soon()).status == "failed"
    stolen = cluster.claim(cluster.name("node"))
    assert executor.begin(act(cluster, "replace", name, stolen), soon()).status == "changed"
    assert "deletionTimestamp" not in cluster.site.custom.get_cluster_custom_object(name=stolen, **PLACE)["metadata"]


def test_a_machine_of_cluster_api_is_replaced_by_the_deletion_of_its_machine(cluster: Cluster, executor: Kubernetes) -> None:
    """With the real definition of cluster-api v1.10.4 and the shipped rights; its finalizer holds it until the controller is done."""
    name = cluster.name("node")
    cluster.node(name)
    machine = cluster.machine(name)
    node = seen(executor, name)
    assert node.claim == f"cluster-api:{machine}"
    assert {one.claim for one in executor.fleet(soon()).nodes.values() if one.name == name} == {node.claim}
    swap = act(cluster, "replace", name, node.claim, expects={"claim": node.claim})

    def going() -> bool:
        found = cluster.site.custom.get_namespaced_custom_object(name=machine.partition("/")[2], **MACHINES)
        return "deletionTimestamp" in found["metadata"]

    assert DryRun(executor).begin(swap, soon()).status == "done"
    assert not going()
    step = executor.begin(swap, soon())
    assert (step.status, step.before["claim"], step.before["by"]) == ("pending", machine, "cluster-api")
    assert going()
    assert "held by machine.cluster.x-k8s.io" in Kubernetes(cluster.kubeconfig).look(swap, soon()).detail

    cluster.site.core.delete_node(name)
    body = {"metadata": {"finalizers": None}}
    cluster.site.custom.patch_namespaced_custom_object(name=machine.partition("/")[2], body=body, **MACHINES)
    until("the machine is gone", lambda: executor.look(swap, soon()).status == "done")

    lone = cluster.name("node")
    cluster.node(lone)
    machine = cluster.machine(lone)
    body = {"metadata": {"ownerReferences": None}}
    cluster.site.custom.patch_namespaced_custom_object(name=machine.partition("/")[2], body=body, **MACHINES)
    refused_one = executor.begin(act(cluster, "replace", lone, f"cluster-api:{machine}"), soon())
    assert (refused_one.status, "nothing would make another" in refused_one.detail) == ("failed", True)
    assert not going()


@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize("fault", ["cut", "reset", "503"])
def test_a_crash_between_any_two_requests_of_an_eviction_loses_nothing(world: KubernetesWorld, fault: str, after: int) -> None:
    """Whatever answer is lost: looking and beginning again ends with both pods gone once, and the mark of one action."""
    evict = world.action("evict")
    world.server.when = lambda request: request.method != "GET"
    world.server.after, world.server.times = after, 1
    world.server.fault = fault
    lost = refused(lambda: world.executor.begin(evict, soon()))
    assert lost is None or lost.sent
    world.server.fault = None
    world.server.after = 0
    for _ in range(3):
        if world.again().look(evict, soon()).status in ("absent", "blocked"):
            world.again().begin(evict, soon())
    world.settle(evict)
    assert world.again().look(evict, soon()).status == "done"
    asked = [one for one in world.cluster.audit() if one["objectRef"].get("subresource") == "eviction"]
    went = [
        one["objectRef"]["name"]
        for one in asked
        if f"train/{one['objectRef']['name']}" in evict.expects["work"] and one.get("responseStatus", {}).get("code") == 201
    ]
    assert sorted(f"train/{one}" for one in went) == sorted(evict.expects["work"])


def test_a_dry_run_writes_nothing(world: KubernetesWorld) -> None:
    """The API server's own log has nothing but dry runs of every verb, and no object has another version."""
    actions = [world.action(verb) for verb in ALL]
    before = [world.shape(one) for one in actions]
    known = {one["auditID"] for one in world.cluster.audit()}
    dry = DryRun(Kubernetes(world.cluster.kubeconfig))

    for action in actions:
        step = dry.begin(action, soon())
        assert step.status == "done", (action.verb, step)
        assert "dry run" in step.detail
        assert dry.look(action, soon()).status == "absent"
        assert dry.undo(action, {}, soon()).status in ("done", "absent")
    assert dry.fleet(soon()).complete

    fresh = [one for one in world.cluster.audit() if one["auditID"] not in known]
    assert len(fresh) >= len(ALL)
    assert [one["requestURI"] for one in fresh if "dryRun=All" not in one["requestURI"]] == []
    # of a DELETE the server reads the body only
    assert [one["requestObject"]["dryRun"] for one in fresh if one["verb"] == "delete"] == [["All"]]
    assert [world.shape(one) for one in actions] == before


def test_a_dry_run_tells_of_a_foreign_cordon_and_of_a_missing_right(world: KubernetesWorld, cluster: Cluster) -> None:
    """It fails as the real run would."""
    action = world.action("cordon")
    cluster.kubectl("cordon", action.node)
    assert DryRun(world.executor).begin(action, soon()).status == "changed"
    nobody = Kubernetes(run(SERVICE / "kubeconfig-for", cluster.work, "default", "nobody"))
    with pytest.raises(ExecutorError) as error:
        DryRun(nobody).begin(world.action("cordon"), soon())
    assert "workbench config rbac --remediation" in error.value.hint


def test_the_fleet_is_seen_page_by_page_with_who_restricted_what(cluster: Cluster, executor: Kubernetes) -> None:
    """Pool, zone, GPU, machine, boot, owner and work of each node, the same from `fleet` and from `node`."""
    names = [cluster.name("node") for _ in range(7)]
    labels = {
        "karpenter.sh/nodepool": "h100",
        "topology.kubernetes.io/zone": "test-1a",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    }
    for name in names:
        cluster.node(name, **labels)
    rebooted(cluster.site, names[0], f"boot-of-{names[0]}", 300)
    rebooted(cluster.site, names[1], "an-older-boot", 300)
    claim = cluster.claim(names[0])
    executor.begin(act(cluster, "cordon", names[0], reason="xid-79", expires=time.time() + 60), soon())
    cluster.kubectl("cordon", names[1])
    job = {"training.kubeflow.org/job-name": "llm"}
    saved = {"annotations": {CHECKPOINT: "2026-11-30T10:00:00Z"}}
    for name in names[2:4]:
        cluster.pod(name, labels=job, meta=saved, terminationGracePeriodSeconds=120)

    fleet = Kubernetes(cluster.kubeconfig, page=300).fleet(soon())
    assert fleet.complete, fleet.problems
    assert set(names) <= set(fleet.nodes)
    ours, theirs, third = (fleet.nodes[name] for name in names[:3])
    assert (ours.pool, ours.zone, ours.sku, ours.environment) == ("h100", "test-1a", "NVIDIA-H100-80GB-HBM3", "cloud")
    assert (ours.gpus, ours.claim, ours.owner, ours.reason, ours.ready) == (8, claim, OWNER, "xid-79", True)
    assert ours.booted is not None
    assert abs(time.time() - 300 - ours.booted) < 30
    assert ours.expires is not None
    assert theirs.foreign
    assert theirs.booted is None  # the event is of another boot
    (work,) = third.busy()
    assert (work.job, work.gpus, work.job_gpus, work.gang, work.grace, work.controlled) == ("llm", 8, 16, True, 120.0, False)
    assert work.saved == 1796032800.0
    for name in names:
        alone, among = seen(executor, name), fleet.nodes[name]
        assert replace(alone, version="", work=()) == replace(among, version="", work=())
        assert alone.work == among.work
