"""Each rung of remediation on a real kube-apiserver, controller manager and scheduler, with its undo, and what stands in its way."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.live.kubernetes_site import SERVICE, control_plane, run, stamp, until
from tests.live.remediation_site import ACCOUNT, MACHINES, MANIFEST, PLACE, Cluster, KubernetesWorld, rebooted
from tests.remediation.conformance import refused
from workbench.remediation.executors.contract import Deadline, ExecutorError, Fenced
from workbench.remediation.executors.dry_run import DryRun
from workbench.remediation.executors.kubernetes.executor import Kubernetes
from workbench.remediation.executors.kubernetes.lease import LeaseLock
from workbench.remediation.executors.kubernetes.pods import CHECKPOINT
from workbench.remediation.executors.kubernetes.restrict import excluded
from workbench.remediation.model import OWNER, Action, NodeState
from workbench.sources.kubernetes.api import Api

pytestmark = pytest.mark.live

ALL = ("cordon", "drain", "uncordon", "taint", "label", "exclude", "evict", "restart-task", "replace")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane that writes down every request."""
    folder = tmp_path_factory.mktemp("kubernetes")
    with control_plane(folder, "--scheduler", "--kwok", "--audit"):
        yield Cluster(folder)


@pytest.fixture
def executor(cluster: Cluster) -> Kubernetes:
    """An executor with the shipped rights."""
    return Kubernetes(cluster.kubeconfig)


@pytest.fixture
def world(cluster: Cluster) -> Iterator[KubernetesWorld]:
    """The cluster behind a server that can fail."""
    with cluster.proxy() as (server, path):
        yield KubernetesWorld(cluster, server, Path(path))


def soon() -> Deadline:
    return Deadline(30)


def seen(executor: Kubernetes, name: str) -> NodeState:
    """Return a node that is there."""
    node = executor.node(name, soon())
    assert node is not None
    return node


def act(cluster: Cluster, verb: str, node: str, target: str = "", **more: Any) -> Action:
    """Return an action that expects the node as it is."""
    expects = {"uid": cluster.raw(node)["metadata"]["uid"], **more.pop("expects", {})}
    return Action(cluster.name("act"), verb, "evacuate", node, target or node, why="xid-79", expects=expects, args=more)


def budget(cluster: Cluster, name: str, available: int, **labels: str) -> None:
    """Make a disruption budget, and wait until the controller has computed it."""
    spec = {"minAvailable": available, "selector": {"matchLabels": labels}}
    cluster.site.policy.create_namespaced_pod_disruption_budget("train", {"metadata": {"name": name}, "spec": spec})
    read = cluster.site.policy.read_namespaced_pod_disruption_budget_status
    until("the budget", lambda: (read(name, "train").status.current_healthy or 0) > 0)


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

    fleet = Kubernetes(cluster.kubeconfig, page=3).fleet(soon())
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


def test_two_controllers_exclude_each_other(cluster: Cluster) -> None:
    """One holds the lease; when it dies the other takes it after its time, with a higher token; the dead one knows that it lost it."""
    api = lambda: Api(str(cluster.kubeconfig))  # noqa: E731
    first, second = (LeaseLock(api(), seconds=2.0) for _ in range(2))
    assert first.acquire(soon())
    assert first.held()
    assert not second.acquire(soon())
    assert not second.held()
    until("a renewal", lambda: first.held() and time.sleep(1.2) is None and first.held(), 5)
    assert not second.acquire(soon()), "it was renewed, so its time began anew"

    until("the other takes over", lambda: second.acquire(soon()), 15)  # the first renews no more
    assert second.held()
    assert not first.held()
    assert second.token > first.token
    assert not first.acquire(soon())
    second.release()
    assert first.acquire(soon()), "what was given back is taken at once"
    assert first.token > second.token


def test_who_stood_still_while_another_took_the_lease_changes_nothing(cluster: Cluster, executor: Kubernetes) -> None:
    """As a paused machine, by whose clock no time has passed: the server's word counts, right before the request."""
    name = cluster.name("node")
    cluster.node(name)
    first = LeaseLock(Api(str(cluster.kubeconfig)), seconds=2.0, clock=lambda: 1000.0)
    second = LeaseLock(Api(str(cluster.kubeconfig)), seconds=2.0)

    def taken() -> bool:
        if second.acquire(soon()):  # whoever had it before let it expire: by a clock that stands nobody could tell
            second.release()
        return first.acquire(soon())

    until("the lease", taken, 60)
    assert first.confirm(soon())
    until("the other takes over", lambda: second.acquire(soon()), 15)
    assert first.held(), "by its own clock"

    before = cluster.raw(name)["metadata"]["resourceVersion"]
    fenced = Fenced(30.0, time.monotonic, lambda deadline: "" if first.confirm(deadline) else "another has the lock")
    error = refused(lambda: executor.begin(act(cluster, "cordon", name), fenced))

    assert error is not None
    assert not error.sent
    assert cluster.raw(name)["metadata"]["resourceVersion"] == before
    assert not first.held()
    second.release()


def test_of_many_who_take_the_lease_at_once_one_has_it(cluster: Cluster) -> None:
    """The API server decides."""
    LeaseLock(Api(str(cluster.kubeconfig))).release()
    cluster.kubectl("-n", "gpu-workbench", "delete", "lease", "gpu-workbench-controller", "--ignore-not-found")
    locks = [LeaseLock(Api(str(cluster.kubeconfig)), seconds=30) for _ in range(8)]
    threads = [threading.Thread(target=one.acquire, args=(soon(),)) for one in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (one,) = [one for one in locks if one.held()]
    one.release()  # whoever comes next does not wait until it has expired


def test_the_account_can_do_nothing_else(cluster: Cluster) -> None:
    """Not delete a pod, not touch another's label, taint or annotation, not a status, not a secret."""
    from kubernetes import client, config
    from kubernetes.client.exceptions import ApiException

    name = cluster.name("node")
    cluster.node(name, team="x")
    pod = cluster.pod(name).partition("/")[2]
    core = client.CoreV1Api(config.new_client_from_config(str(cluster.kubeconfig)))
    taint = {"key": "another/s", "effect": "NoExecute"}
    tries = {
        "delete a pod": lambda: core.delete_namespaced_pod(pod, "train"),
        "another's label": lambda: core.patch_node(name, {"metadata": {"labels": {"team": "y"}}}),
        "another's label away": lambda: core.patch_node(name, {"metadata": {"labels": {"team": None}}}),
        "another's annotation": lambda: core.patch_node(name, {"metadata": {"annotations": {"a/b": "y"}}}),
        "another's taint": lambda: core.patch_node(name, {"spec": {"taints": [taint]}}),
        "a finalizer": lambda: core.patch_node(name, {"metadata": {"finalizers": ["x/y"]}}),
        "a status": lambda: core.patch_node_status(name, {"status": {"capacity": {"nvidia.com/gpu": "0"}}}),
        "delete a node": lambda: core.delete_node(name),
        "secrets": lambda: core.list_namespaced_secret("train"),
        "make pods": lambda: core.create_namespaced_pod("train", {"metadata": {"name": "x"}, "spec": {"containers": []}}),
    }
    for what, attempt in tries.items():
        with pytest.raises(ApiException) as error:
            attempt()
        assert error.value.status in (403, 422), what


@pytest.mark.parametrize(
    ("verb", "lacks", "resource"),
    [
        ("cordon", "patch", "nodes"),
        ("evict", "create", "pods/eviction"),
        ("replace", "delete", "nodeclaims"),
        ("evict", "list", "poddisruptionbudgets"),
        ("restart-task", "get", "pods"),
    ],
)
def test_a_missing_right_is_named_with_the_line_that_grants_it(
    cluster: Cluster, world: KubernetesWorld, verb: str, lacks: str, resource: str
) -> None:
    """And nothing was changed but what stood before it."""
    account = cluster.name("account")
    rules = []
    for document in yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8")):
        if document["kind"] == "ClusterRole":
            for rule in document["rules"]:
                verbs = [one for one in rule["verbs"] if not (rule["resources"] == [resource] and one == lacks)]
                rules += [{**rule, "verbs": verbs}] if verbs else []
    cluster.site.rbac.create_cluster_role({"metadata": {"name": account}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": account, "namespace": "default"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": account}
    cluster.site.rbac.create_cluster_role_binding({"metadata": {"name": account}, "roleRef": role, "subjects": [subject]})
    limited = Kubernetes(run(SERVICE / "kubeconfig-for", cluster.work, "default", account), events=False)
    action = world.action(verb)

    def refusal() -> ExecutorError | None:
        error = refused(lambda: limited.begin(action, soon()))
        assert error is not None, "it was done without the right"
        return error if f'resources: ["{resource}"], verbs: ["{lacks}"]' in error.hint else None

    error = until("the right's refusal", refusal)
    assert not error.sent
    assert "workbench config rbac --remediation" in error.hint
    assert ACCOUNT[1] in error.hint


def test_watches_keep_the_fleet_and_tell_of_news(cluster: Cluster) -> None:
    """What a list would show, at once; a condition of a check is news, a heartbeat is none; a gone node is gone."""
    watched, listed = Kubernetes(cluster.kubeconfig), Kubernetes(cluster.kubeconfig)
    watched.watch()
    name = cluster.name("node")
    cluster.node(name)
    assert name in watched.fleet(soon()).nodes
    until("the watches", lambda: not watched.unwatched(), 30)
    while watched.wait(1.0):
        pass

    def same() -> bool:
        seen, told = watched.fleet(soon()).nodes, listed.fleet(soon()).nodes
        return {key: replace(one, version="") for key, one in seen.items()} == {
            key: replace(one, version="") for key, one in told.items()
        }

    until("the same fleet", same)
    pod = cluster.pod(name)
    until("the pod", lambda: [one.id for one in watched.fleet(soon()).nodes[name].busy()] == [pod])
    budget(cluster, cluster.name("all"), 1)
    until("its budget", lambda: watched.fleet(soon()).nodes[name].busy()[0].budgets)
    assert not watched.wait(0.5)
    said = {"type": "WorkbenchNodeUnfit", "status": "True", "reason": "GpuMissing", "message": "", "lastHeartbeatTime": stamp()}
    cluster.site.core.patch_node_status(name, {"status": {"conditions": [said]}})
    assert watched.wait(10)
    assert watched.fleet(soon()).nodes[name].conditions
    cluster.site.core.patch_node_status(name, {"status": {"conditions": [{**said, "lastHeartbeatTime": stamp(-5)}]}})
    assert not watched.wait(1.0)
    until("the same fleet", same)
    cluster.site.core.delete_node(name)
    assert watched.wait(10)
    until("the node is gone", lambda: name not in watched.fleet(soon()).nodes)
    watched.close()


def test_a_watch_that_may_not_be_is_no_empty_fleet(cluster: Cluster) -> None:
    """Without the right to watch the fleet is listed each time."""
    account = cluster.name("account")
    rules = [
        {"apiGroups": ["", "policy"], "resources": ["nodes", "pods", "poddisruptionbudgets", "events"], "verbs": ["get", "list"]}
    ]
    cluster.site.rbac.create_cluster_role({"metadata": {"name": account}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": account, "namespace": "default"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": account}
    cluster.site.rbac.create_cluster_role_binding({"metadata": {"name": account}, "roleRef": role, "subjects": [subject]})
    limited = Kubernetes(run(SERVICE / "kubeconfig-for", cluster.work, "default", account))
    limited.watch()
    until("the rights", lambda: refused(lambda: limited.fleet(soon())) is None)
    until("a refusal", lambda: any("not allowed" in one for one in limited.unwatched()))
    for _ in range(3):
        fleet = limited.fleet(soon())
        assert fleet.complete
        assert fleet.nodes
    limited.close()


def test_a_controller_cordons_what_a_check_shows_once(cluster: Cluster, tmp_path: Path) -> None:
    """From the condition on the node through plan, guards, lease and journal to the cordon, whose reason names the finding."""
    from workbench.remediation.journal import Journal
    from workbench.remediation.loop import Loop
    from workbench.remediation.policy import Auto, Limits, Policy

    name = cluster.name("node")
    cluster.node(name)
    lock = LeaseLock(Api(str(cluster.kubeconfig)), seconds=15)
    until("the lease", lambda: lock.acquire(soon()), 60)
    many, whole = 10_000, 100.0  # other tests have left nodes of ours out of service
    limits = Limits(many, whole, many, whole, many, many, many, many, 0, 0.0, many, whole)
    policy = Policy(limits, auto=(Auto("cordon", busy=True),), stop_file=str(tmp_path / "stop"))
    executor = Kubernetes(cluster.kubeconfig)
    loop = Loop(executor, Journal(tmp_path / "journal.jsonl"), policy, lock=lock)

    said = {"status": "True", "reason": "DriverNotLoaded", "message": "driver: not loaded", "lastHeartbeatTime": stamp()}
    rows = [{"type": kind, **said, "lastTransitionTime": stamp(60)} for kind in ("WorkbenchNodeUnfit", "WorkbenchDriverProblem")]
    cluster.site.core.patch_node_status(name, {"status": {"conditions": rows}})
    turn = loop.once()
    assert [(one.action.verb, one.action.node, one.status) for one in turn.outcomes] == [("cordon", name, "done")], turn.plan
    node = seen(executor, name)
    assert node.ours
    assert "driver-not-loaded" in node.reason
    assert loop.once().outcomes == ()
    lock.release()
