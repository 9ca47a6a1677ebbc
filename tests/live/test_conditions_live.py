"""`workbench check --publish kubernetes` against a real kube-apiserver, with the token that a pod of the DaemonSet gets and the shipped rights only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.live.kubernetes_site import SERVICE, Site, control_plane, granted, run, stamp, until
from workbench.errors import SourceError
from workbench.health.conditions import FIT
from workbench.health.finding import Finding
from workbench.health.publish import LABEL, OWNER, KubernetesEvents, KubernetesNode
from workbench.model import Gpu
from workbench.parse.kubernetes import parse_objects
from workbench.sources.contract import Deadline
from workbench.sources.kubernetes.api import Api
from workbench.sources.kubernetes.errors import ApiError
from workbench.sources.kubernetes.write import NodeWriter

pytestmark = pytest.mark.live

MANIFEST = Path(__file__).resolve().parents[2] / "workbench/sources/kubernetes/rbac-writer.yaml"
SPACE, ACCOUNT = "gpu-workbench", "gpu-workbench-writer"
BAD = Finding("gpu-memory", "critical", "uncorrected errors", "smi-ecc-uncorrectable", "a", Gpu(3), cls="hardware/gpu-memory")
OTHER = replace(BAD, code="smi-remap-failure", summary="no spare row")
GOOD = Finding("gpu-memory", "ok", "no errors", "", "a", Gpu(3))
WARM = Finding("thermal-power", "warning", "84 C", "smi-throttle-sw-thermal", "a", Gpu(0), cls="hardware/thermal-power")


class Said:
    """What a publisher said to the person who reads its log."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, message: str, hint: str) -> None:
        self.lines.append(f"{message} | {hint}")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A running control plane that writes down every request."""
    folder = tmp_path_factory.mktemp("kubernetes")
    with control_plane(folder, "--audit"):
        yield folder


def token(work: Path, pod: str, account: str = ACCOUNT) -> Path:
    """Write a kubeconfig with the token that a pod gets, bound to it, and return its path."""
    kubectl = (Path(run(SERVICE / "build")) / "kubectl", "--kubeconfig", work / "admin.kubeconfig")
    made = run(*kubectl, "-n", SPACE, "create", "token", account, "--bound-object-kind", "Pod", "--bound-object-name", pod)
    path = Path(run(SERVICE / "kubeconfig-for", work, SPACE, account, work / f"{pod}.kubeconfig"))
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    document["users"][0]["user"] = {"token": made}
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def site(work: Path) -> Site:
    """Nodes, the shipped manifest, and a pod of the DaemonSet on each of two nodes."""
    site = Site(work / "admin.kubeconfig")
    for name in ("gpu-a", "gpu-b", "gpu-c", "gpu-d", "gpu-e"):
        site.node(name)
    granted(site, SPACE, MANIFEST)
    for name in ("gpu-a", "gpu-b", "gpu-c", "gpu-d", "gpu-e"):
        spec = {"nodeName": name, "serviceAccountName": ACCOUNT, "containers": [{"name": "check", "image": "none"}]}
        site.core.create_namespaced_pod(SPACE, {"metadata": {"name": f"on-{name}"}, "spec": spec})
    # grants and the policy take effect a moment later
    anonymous = NodeWriter(Api(run(SERVICE / "kubeconfig-for", work, SPACE, ACCOUNT)), "gpu-e")

    def guarded() -> bool:
        try:
            anonymous.patch(Deadline(5), labels={LABEL: "true"})
        except SourceError as error:
            return "runs on only" in str(error)
        return False

    until("the admission policy", guarded)
    return site


def writer(work: Path, node: str) -> NodeWriter:
    """Return what the pod on a node writes with."""
    return NodeWriter(Api(str(token(work, f"on-{node}"))), node)


def conditions(site: Site, node: str) -> dict[str, Any]:
    """Return a node's conditions by type, as the server has them."""
    found = json.loads(site.core.read_node(node, _preload_content=False).data)
    return {one["type"]: one for one in found["status"]["conditions"]}


def writes(work: Path, node: str) -> list[str]:
    """Return the requests that changed a node, by our account, from the API server's own log."""
    found = {}
    for line in (work / "log/audit.jsonl").read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        ours = str(one.get("user", {}).get("username", "")).endswith(ACCOUNT)
        if ours and one["verb"] not in ("get", "list", "watch") and one.get("objectRef", {}).get("name") == node:
            found[one["auditID"]] = f"{one['verb']} {one['objectRef']['resource']}/{one['objectRef'].get('subresource', '')}"
    return list(found.values())


def test_conditions_and_label_appear_and_are_written_again_only_when_due(work: Path, site: Site) -> None:
    node, now = KubernetesNode(writer(work, "gpu-a"), Said()), time.time()
    node.publish([BAD], now)
    there = conditions(site, "gpu-a")
    assert (there[FIT]["status"], there["WorkbenchGpuMemoryProblem"]["reason"]) == ("True", "SmiEccUncorrectable")
    assert there["Ready"]["status"] == "True"
    meta = site.core.read_node("gpu-a").metadata
    assert (meta.labels[LABEL], meta.annotations[OWNER], meta.labels["nvidia.com/gpu.present"]) == (
        "false",
        "workbench check",
        "true",
    )

    for later in (60, 120, 180, 240):
        node.publish([BAD], now + later)
    KubernetesNode(writer(work, "gpu-a"), Said()).publish([BAD], now + 250)  # a checker that was started anew
    until("the log", lambda: len(writes(work, "gpu-a")) >= 1)
    assert writes(work, "gpu-a") == ["patch nodes/status"]
    node.publish([BAD], now + 301)
    again = conditions(site, "gpu-a")
    assert again[FIT]["lastTransitionTime"] == there[FIT]["lastTransitionTime"]
    assert again[FIT]["lastHeartbeatTime"] > there[FIT]["lastHeartbeatTime"]

    node.publish([GOOD], now + 360)
    well = conditions(site, "gpu-a")
    assert (well[FIT]["status"], well[FIT]["reason"]) == ("False", "NodeFit")
    assert well[FIT]["lastTransitionTime"] > there[FIT]["lastTransitionTime"]
    assert site.core.read_node("gpu-a").metadata.labels[LABEL] == "true"


def test_the_transition_is_kept_while_reasons_take_turns(work: Path, site: Site) -> None:
    node, now = KubernetesNode(writer(work, "gpu-b"), Said()), time.time()
    seen = set()
    for turn in range(6):
        node.publish([OTHER if turn % 2 else BAD], now + 60 * turn)
        one = conditions(site, "gpu-b")["WorkbenchGpuMemoryProblem"]
        seen.add((one["status"], one["lastTransitionTime"]))
        assert one["reason"] == ("SmiRemapFailure" if turn % 2 else "SmiEccUncorrectable")
    assert len(seen) == 1


def test_warnings_are_one_event_with_a_count(work: Path, site: Site) -> None:
    events, now = KubernetesEvents(writer(work, "gpu-b")), time.time()
    for turn in range(25):
        events.publish([WARM, replace(WARM, gpu=Gpu(1)), BAD], now + 60 * turn)
    found = [one for one in site.core.list_namespaced_event("default").items if one.involved_object.name == "gpu-b"]
    assert [(one.reason, one.type, one.count, one.source.component) for one in found] == [
        ("SmiThrottleSwThermal", "Warning", 21, "gpu-workbench")
    ]
    assert "GPU 0: 84 C (and 1 more)" in found[0].message
    KubernetesEvents(writer(work, "gpu-b")).publish([WARM], now + 60 * 40)
    (one,) = [one for one in site.core.list_namespaced_event("default").items if one.involved_object.name == "gpu-b"]
    assert one.count == 22
    kubectl = (Path(run(SERVICE / "build")) / "kubectl", "--kubeconfig", work / "admin.kubeconfig")
    assert "SmiThrottleSwThermal" in run(*kubectl, "describe", "node", "gpu-b")


def test_nothing_that_the_account_may_do_cordons_taints_or_touches_what_is_not_ours(work: Path, site: Site) -> None:
    one = writer(work, "gpu-c")
    merge = {"kind": "application/strategic-merge-patch+json"}
    before = site.core.read_node("gpu-c").spec
    for body in ({"spec": {"unschedulable": True}}, {"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}}):
        with pytest.raises(ApiError) as refused:
            one.api.send("PATCH", "/api/v1/nodes/gpu-c", body, Deadline(10), **merge)
        assert refused.value.kind == "forbidden"
        one.api.send("PATCH", "/api/v1/nodes/gpu-c/status", body, Deadline(10), **merge)
    assert site.core.read_node("gpu-c").spec == before
    for asked in (
        {"labels": {"nvidia.com/gpu.present": "false"}},
        {"annotations": {"other/owner": "x"}},
        {"conditions": [{"type": "Ready", "status": "False", "reason": "X", "message": ""}]},
    ):
        with pytest.raises(SourceError, match="own"):
            one.patch(Deadline(10), **asked)  # type: ignore[arg-type]
    body = {"status": {"allocatable": {"nvidia.com/gpu": "0"}}}
    with pytest.raises(ApiError, match="capacity"):
        one.api.send("PATCH", "/api/v1/nodes/gpu-c/status", body, Deadline(10), **merge)
    with pytest.raises(SourceError, match="runs on only"):
        NodeWriter(one.api, "gpu-a").patch(Deadline(10), labels={LABEL: "false"})


def test_a_label_of_somebody_else_is_left_and_the_conditions_are_written(work: Path, site: Site) -> None:
    site.core.patch_node("gpu-c", {"metadata": {"labels": {LABEL: "sometimes"}}})
    said = Said()
    node = KubernetesNode(writer(work, "gpu-c"), said)
    for turn in range(3):
        node.publish([BAD], time.time() + 60 * turn)
    assert site.core.read_node("gpu-c").metadata.labels[LABEL] == "sometimes"
    assert conditions(site, "gpu-c")[FIT]["status"] == "True"
    assert len(said.lines) == 1
    assert "somebody else" in said.lines[0]


def test_what_is_not_granted_is_said_with_the_way_out(work: Path, site: Site) -> None:
    role = site.rbac.read_namespaced_role(ACCOUNT, "default")
    site.rbac.delete_namespaced_role(ACCOUNT, "default")
    try:
        one = writer(work, "gpu-c")

        def refused() -> str:
            try:
                KubernetesEvents(one).publish([WARM], time.time())
            except SourceError as error:
                return f"{error} {error.hint}"
            return ""

        said = until("the refusal", refused)
        assert "events" in said
        assert "workbench config rbac --writer" in said
        KubernetesNode(one, Said()).publish([GOOD], time.time())
        assert conditions(site, "gpu-c")[FIT]["status"] == "False"
    finally:
        role.metadata.resource_version = None
        site.rbac.create_namespaced_role("default", role)


def test_the_watching_command_publishes_and_takes_back_at_sigterm(work: Path, site: Site, tmp_path: Path) -> None:
    site.core.patch_node_status(
        "gpu-d",
        {
            "status": {
                "conditions": [{"type": "Ready", "status": "True", "reason": "K", "message": "", "lastHeartbeatTime": stamp()}]
            }
        },
    )
    env = {
        **os.environ,
        "KUBECONFIG": str(token(work, "on-gpu-d")),
        "NODE_NAME": "gpu-d",
        "WORKBENCH_HEALTH_STATE": str(tmp_path / "state"),
        "WORKBENCH_HEALTH_GPUS": "0",
    }
    words = ["check", "--watch", "10", "--publish", "kubernetes", "--publish", f"textfile={tmp_path / 'node.prom'}"]
    with subprocess.Popen(
        [sys.executable, "-m", "workbench", *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            until("the conditions", lambda: FIT in conditions(site, "gpu-d"), 60)
            until("the file", lambda: (tmp_path / "node.prom").exists())
            assert conditions(site, "gpu-d")[FIT]["status"] in ("True", "False", "Unknown")
            assert 'workbench_node_fit{node="gpu-d"}' in (tmp_path / "node.prom").read_text()
            child.send_signal(signal.SIGTERM)
            out, err = child.communicate(timeout=30)
        finally:
            child.kill()
    assert child.returncode == 0, err
    assert "gpu-d" in out
    ours = {name: one for name, one in conditions(site, "gpu-d").items() if name.startswith("Workbench")}
    assert {(one["status"], one["reason"]) for one in ours.values()} == {("Unknown", "CheckerStopped")}
    assert site.core.read_node("gpu-d").metadata.labels[LABEL] == "unknown"
    assert not (tmp_path / "node.prom").exists()


def test_a_checker_that_died_without_a_word_is_stale_to_whoever_reads(work: Path, site: Site) -> None:
    node, now = KubernetesNode(writer(work, "gpu-e"), Said()), time.time()
    node.publish([BAD], now - 3600)
    for fresh, wanted in ((3500, True), (0, None)):
        beat = {"type": "Ready", "status": "True", "reason": "Kubelet", "message": "", "lastHeartbeatTime": stamp(fresh)}
        site.core.patch_node_status("gpu-e", {"status": {"conditions": [beat]}})
        document = json.loads(site.core.read_node("gpu-e", _preload_content=False).data)
        parsed = parse_objects([document], file="nodes.json")
        (one,) = [one for one in parsed.conditions if one.name == "WorkbenchGpuMemoryProblem"]
        roles = [event.role for event in parsed.events if event.data.get("condition") == "WorkbenchGpuMemoryProblem"]
        assert (one.bad, roles) == (wanted, ["context"] if wanted is None else roles)
        assert ("stale" in one.message) == (wanted is None)
