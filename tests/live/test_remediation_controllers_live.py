"""Controllers of remediation on a real kube-apiserver: one at a time, with the rights that are shipped and no other, told of news by watches."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.live.kubernetes_site import SERVICE, run, stamp, until
from tests.live.remediation_site import ACCOUNT, MANIFEST, Cluster, KubernetesWorld, act, audited, budget, seen, soon
from tests.remediation.conformance import refused
from workbench.remediation.executors.contract import ExecutorError, Fenced
from workbench.remediation.executors.kubernetes.executor import Kubernetes
from workbench.remediation.executors.kubernetes.lease import LeaseLock
from workbench.sources.kubernetes.api import Api

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane that writes down every request."""
    with audited(tmp_path_factory.mktemp("kubernetes")) as cluster:
        yield cluster


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
