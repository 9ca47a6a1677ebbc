"""Kubernetes objects become nodes with an owner, work with its budgets, and marks that an undo can go by; the tables behind that are whole."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from workbench.catalog import table
from workbench.cli import main
from workbench.health.publish import BOOT, LABEL
from workbench.health.publish import OWNER as FIT_BY
from workbench.remediation.executors.contract import ExecutorError
from workbench.remediation.executors.kubernetes.calls import ROLE, Conflict, right, told
from workbench.remediation.executors.kubernetes.executor import Kubernetes
from workbench.remediation.executors.kubernetes.marks import MANAGER, Change, Mark, did, marks_of
from workbench.remediation.executors.kubernetes.nodes import node_state
from workbench.remediation.executors.kubernetes.pods import Budgets, of_jobs, work_of
from workbench.remediation.executors.kubernetes.restrict import excluded
from workbench.remediation.model import OWNER
from workbench.sources.contract import SourceTimeout
from workbench.sources.kubernetes.errors import ApiError, Reply, refusal
from workbench.sources.kubernetes.selectors import selects


def node(*, manager: str = "", taints: tuple[str, ...] = (), provider: str = "", **meta: Any) -> dict[str, Any]:
    """Return a node that `manager` cordoned (nobody, when empty), with taints ``key=value:effect``."""
    rows = []
    for text in taints:
        head, _, effect = text.rpartition(":")
        key, _, value = head.partition("=")
        rows.append({"key": key, "value": value, "effect": effect})
    fields = [{"manager": manager, "time": "2026-11-30T10:00:00Z", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}]
    spec = {"taints": rows, "providerID": provider, **({"unschedulable": True} if manager else {})}
    return {"metadata": {"name": "n", "managedFields": fields if manager else [], **meta}, "spec": spec, "status": {}}


def ours(**change: Any) -> dict[str, str]:
    """Return the annotation of a cordon of ours."""
    return {did("cordon"): Mark("act-1", 1000.0, Change.of({"unschedulable": [False, True], **change})).text()}


@pytest.mark.parametrize(
    ("item", "owner"),
    [
        (node(), ""),
        (node(taints=("nvidia.com/gpu=present:NoSchedule",)), ""),  # a taint of a pool restricts nothing that belongs there
        (node(taints=("node.kubernetes.io/unreachable:NoExecute",)), ""),  # Kubernetes' own word for a dead kubelet
        (node(manager="kubectl-cordon"), "kubectl-cordon"),
        (node(manager=MANAGER, annotations=ours()), OWNER),
        (node(manager="kubectl-cordon", annotations=ours()), "kubectl-cordon"),
        (node(manager=MANAGER), "somebody"),
        (node(manager=MANAGER, annotations=ours(), taints=("karpenter.sh/disrupted:NoSchedule",)), "karpenter"),
        (node(annotations=ours()), ""),  # lifted by hand
        (node(annotations=ours(taints={"a/b:NoSchedule": [None, "x"]}), taints=("a/b=x:NoSchedule",)), OWNER),
        (node(annotations=ours(taints={"a/b:NoSchedule": [None, "x"]}), taints=("a/b=y:NoSchedule",)), ""),
        (node(annotations=ours(taints={"a/b:PreferNoSchedule": [None, "x"]}), taints=("a/b=x:PreferNoSchedule",)), ""),
        (node(manager=MANAGER, annotations={did("cordon"): "{broken"}), "somebody"),
        (node(manager=MANAGER, annotations=ours() | {"gpu-workbench/owner": "alice"}), "alice"),
        (node(labels={"k8saas.nvidia.com/cordon-by": "NVSentinel"}), "NVSentinel"),
        (node(annotations={"machineconfiguration.openshift.io/desiredDrain": "uncordon-rendered"}), ""),
        (node(annotations={"machineconfiguration.openshift.io/desiredDrain": "drain-rendered"}), "machine-config-operator"),
    ],
)
def test_the_owner_of_a_restriction_is_who_set_it(item: dict[str, Any], owner: str) -> None:
    state = node_state(item)
    assert state.owner == owner
    assert state.schedulable == (not owner and not item["spec"].get("unschedulable"))
    assert bool(state.op) == (owner == OWNER)


def test_a_cordon_of_which_nobody_tells_who_set_it_is_not_ours() -> None:
    """Without managed fields: what cannot be told is somebody's."""
    item = node(manager=MANAGER, annotations=ours())
    item["metadata"]["managedFields"] = []
    assert node_state(item).owner == "somebody"


@pytest.mark.parametrize(
    ("provider", "environment"),
    [
        ("aws:///us-east-1a/i-0abc", "cloud"),
        ("gce://p/us-test1-a/n", "cloud"),
        ("ocid1.instance.oc1.iad.x", "cloud"),
        ("metal3://metal3/n/b", "metal"),
        ("ours://rack/1", ""),
        ("", ""),
    ],
)
def test_the_environment_is_known_by_the_provider_or_not_at_all(provider: str, environment: str) -> None:
    assert node_state(node(provider=provider)).environment == environment


def test_a_node_should_have_the_gpus_of_its_last_discovery_when_it_offers_fewer() -> None:
    """Seven of eight is what a missing GPU looks like."""
    item = node(labels={"nvidia.com/gpu.count": "8"})
    item["status"] = {"capacity": {"nvidia.com/gpu": "7"}}
    assert node_state(item).gpus == 8


def test_what_checks_show_is_no_mark_of_ours() -> None:
    """An uncordon must not take it away, nor must a person look for an action behind it."""
    shown = {LABEL: "false"}
    notes = {FIT_BY: "workbench check", BOOT: "b", did("cordon"): "{}"}
    assert set(node_state(node(labels=shown, annotations=notes)).marks) == {did("cordon")}


def test_ready_unknown_is_not_ready_and_absent_is_not_known() -> None:
    item = node()
    for status, ready in (("True", True), ("False", False), ("Unknown", False)):
        item["status"] = {"conditions": [{"type": "Ready", "status": status}]}
        assert node_state(item).ready is ready
    item["status"] = {}
    assert node_state(item).ready is None


# ---- work


def pod(name: str = "p", **more: Any) -> dict[str, Any]:
    """Return a running pod with 8 GPUs."""
    meta = {"name": name, "namespace": "train", "uid": f"u-{name}", **more.pop("meta", {})}
    spec = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}], **more.pop("spec", {})}
    return {"metadata": meta, "spec": spec, "status": {"phase": "Running", **more.pop("status", {})}}


def budget(name: str, selector: Any, allowed: int = 0, space: str = "train", **status: Any) -> dict[str, Any]:
    """Return a disruption budget."""
    return {
        "metadata": {"name": name, "namespace": space, "generation": 2},
        "spec": {"selector": selector},
        "status": {"disruptionsAllowed": allowed, "observedGeneration": 2, **status},
    }


GANG = {"matchLabels": {"gang": "a"}}


@pytest.mark.parametrize(
    ("budgets", "names", "allowed"),
    [
        ([], (), None),
        ([budget("b", GANG, 1)], ("train/b",), 1),
        ([budget("b", GANG, 1, observedGeneration=1)], ("train/b",), 0),  # older than itself: the server refuses
        ([budget("b", GANG, 1), budget("c", {}, 1)], ("train/b", "train/c"), 0),  # two: the server answers 500
        ([budget("b", None, 0)], (), None),  # no selector means no pod
        ([budget("b", GANG, 0, "other")], (), None),
    ],
)
def test_the_budgets_over_a_pod(budgets: list[dict[str, Any]], names: tuple[str, ...], allowed: int | None) -> None:
    work = work_of(pod(meta={"labels": {"gang": "a"}}), Budgets(budgets))
    assert (work.budgets, work.disruptions) == (names, allowed)


def test_a_pod_that_does_not_run_yet_or_ends_is_not_protected() -> None:
    """As the server has it."""
    covering = Budgets([budget("b", {}, 0)])
    assert work_of(pod(status={"phase": "Pending"}), covering).disruptions is None
    assert work_of(pod(meta={"deletionTimestamp": "2026-11-30T10:00:00Z"}), covering).disruptions is None


@pytest.mark.parametrize(
    ("meta", "job", "gang", "ignored"),
    [
        ({"labels": {"training.kubeflow.org/job-name": "llm"}}, "llm", True, False),
        ({"ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "controller": True}]}, "j", True, False),
        ({"ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs"}]}, "rs", False, False),
        ({"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "ds"}]}, "ds", False, True),
        ({"annotations": {"kubernetes.io/config.mirror": "x"}}, "p", False, True),
        ({"labels": {"scheduling.x-k8s.io/pod-group": "g"}}, "p", True, False),
        ({}, "p", False, False),
    ],
)
def test_whose_a_pod_is(meta: dict[str, Any], job: str, gang: bool, ignored: bool) -> None:
    work = work_of(pod(meta=meta), Budgets(()))
    assert (work.job, work.gang, work.ignored) == (job, gang, ignored)


def test_a_job_is_counted_over_all_nodes_and_by_namespace() -> None:
    """Two jobs of one name are two."""
    label = {"labels": {"training.kubeflow.org/job-name": "llm"}}
    rows = [(f"n{at}", work_of(pod(f"p{at}", meta=label), Budgets(()))) for at in range(3)]
    other = work_of(pod("q", meta={**label, "namespace": "other"}), Budgets(()))
    found = of_jobs([*rows, ("n0", other)])
    assert {one.id: one.job_gpus for one in found["n0"]} == {"train/p0": 24, "other/q": 8}


@pytest.mark.parametrize(
    ("selector", "fits"),
    [
        ({}, True),
        (None, False),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["2"]}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["2"]}]}, False),
        ({"matchExpressions": [{"key": "b", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "Invented"}]}, False),
    ],
)
def test_a_selector_means_what_the_server_says(selector: Any, fits: bool) -> None:
    assert selects(selector, {"a": "1"}) is fits


# ---- marks


def test_a_change_comes_back_from_its_mark_and_turned_twice_is_itself() -> None:
    change = Change({"a/b": (None, "1"), "c": ("0", "1")}, {"k:NoSchedule": (None, "")}, (False, True))
    (mark,) = marks_of({"metadata": {"annotations": {did("cordon"): Mark("x", 5.0, change, {"job": "j"}).text()}}}).values()
    assert (mark.op, mark.at, mark.change, mark.more) == ("x", 5.0, change, {"job": "j"})
    assert change.turned().turned() == change


def test_a_patch_keeps_the_taints_of_others_and_names_uid_and_version() -> None:
    """The list goes whole, so it must hold theirs, with all their fields."""
    item = node(taints=("a/b=1:NoSchedule", "mine=:NoSchedule"), uid="u", resourceVersion="7")
    item["spec"]["taints"][0]["timeAdded"] = "2026-11-30T10:00:00Z"
    body = Change(taints={"mine:NoSchedule": ("", None), "new:NoExecute": (None, "v")}).patch(item, {})
    assert body["metadata"] == {"uid": "u", "resourceVersion": "7"}
    assert body["spec"]["taints"] == [item["spec"]["taints"][0], {"key": "new", "effect": "NoExecute", "value": "v"}]


@pytest.mark.parametrize("job", ["llm-7b", "a" * 63, "a" * 64, "with space", "x/y", "ends-"])
def test_an_excluding_label_is_one_that_kubernetes_takes(job: str) -> None:
    prefix, _, name = excluded(job).partition("/")
    assert re.fullmatch(r"[a-z0-9.-]{1,253}", prefix)
    assert re.fullmatch(r"[A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?", name)


# ---- errors


def api_error(status: int, body: bytes = b"{}") -> ApiError:
    return refusal(status, Reply(body, {}, 0.0), "/api/v1/nodes/n")


@pytest.mark.parametrize(
    ("error", "sent"),
    [
        (api_error(403), False),
        (api_error(404), False),
        (api_error(422), False),
        (api_error(429), False),
        (api_error(401), False),
        (api_error(500), True),
        (api_error(503), True),
        (api_error(504), True),
        (SourceTimeout("late"), True),
        (ApiError("cut", "cut"), True),
        (ApiError("refused", "refused"), True),  # whether it was refused before or after it was sent is not told
    ],
)
def test_a_write_that_may_have_arrived_is_never_said_not_to_be_sent(error: Exception, sent: bool) -> None:
    assert isinstance(error, (ApiError, SourceTimeout))
    assert told(error, ("patch", "", "nodes"), wrote=True).sent is sent
    assert told(error, ("get", "", "nodes"), wrote=False).sent is False


def test_a_conflict_is_its_own_error_and_a_missing_right_names_the_rule() -> None:
    assert isinstance(told(api_error(409), ("patch", "", "nodes"), wrote=True), Conflict)
    error = told(api_error(403), ("patch", "", "nodes"), wrote=True)
    assert isinstance(error, ExecutorError)
    assert f'add to the role {ROLE}: {{apiGroups: [""], resources: ["nodes"], verbs: ["patch"]}}' in error.hint
    assert error.hint == right("patch", "", "nodes")


# ---- what is shipped


def test_every_row_of_the_tables_has_a_source_a_date_and_a_pattern_that_compiles() -> None:
    for name, places in (
        ("kubernetes_node_facts", {"label", "annotation", "capacity", "provider"}),
        ("kubernetes_node_holders", {"label", "annotation", "taint"}),
    ):
        rows = table(name)
        assert len(rows) > 10
        for row in rows:
            assert row["where"] in places
            assert row["source"].startswith("https://")
            assert re.fullmatch(r"\d{4}-\d\d-\d\d", row["date"])
            assert row["meaning"]
            re.compile(row["pattern"])


def test_the_remediation_account_can_neither_delete_pods_nor_read_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    """Each right is one that a verb needs; more is not asked for."""
    assert main(["config", "rbac", "--remediation"]) == 0
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    rules = {
        (resource, verb)
        for one in documents
        for rule in one.get("rules") or []
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert rules == {
        *(("nodes", verb) for verb in ("get", "list", "watch", "patch")),
        *(("pods", verb) for verb in ("get", "list", "watch")),
        ("pods/eviction", "create"),
        *(("poddisruptionbudgets", verb) for verb in ("list", "watch")),
        *(("nodeclaims", verb) for verb in ("get", "list", "watch", "delete")),
        *(("machines", verb) for verb in ("get", "delete")),
        *(("events", verb) for verb in ("list", "watch", "create")),
        *(("leases", verb) for verb in ("create", "get", "update")),
    }
    assert {one["kind"] for one in documents} >= {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}


def test_only_rbac_has_a_remediation_account(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "npd", "--remediation"]) == 64
    assert "rbac --remediation" in capsys.readouterr().err


def test_an_executor_is_made_without_asking_anybody() -> None:
    """Credentials are read when they are needed."""
    assert Kubernetes("/nonexistent").name == "kubernetes"
