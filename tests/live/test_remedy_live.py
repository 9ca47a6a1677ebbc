"""From a condition that a check shows to a node that works again: plan, apply, loop and undo on a real kube-apiserver, with the shipped rights."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.kubernetes_site import SERVICE, run
from tests.live.remediation_site import Cluster, audited
from workbench.cli import main
from workbench.health.conditions import FIT, NodeCondition
from workbench.health.publish import BOOT

pytestmark = pytest.mark.live

COMMAND = """
import json, subprocess, sys
tool, config, verb, node = sys.argv[1:5]
kubectl = [tool, "--kubeconfig", config]
if verb == "reboot":  # what a machine does: another boot, and checks that see nothing any more
    for path, body in (
        ("status", {"status": {"nodeInfo": {"bootID": "boot-after-" + node}}}),
    ):
        subprocess.run([*kubectl, "patch", "node", node, "--subresource=" + path, "-p", json.dumps(body)], check=True)
print("all checks of the idle context passed" if verb == "validate" else "rebooting")
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane with twelve nodes of one pool."""
    with audited(tmp_path_factory.mktemp("kubernetes")) as made:
        for number in range(12):
            made.node(f"gpu-{number:02}", **{"karpenter.sh/nodepool": "h100"})
        yield made


@pytest.fixture
def settings(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The account, the journal, and a policy whose reboot is a script."""
    script = tmp_path / "machine.py"
    script.write_text(COMMAND)
    kubectl = str(Path(run(SERVICE / "build")) / "kubectl")
    argv = [sys.executable, str(script), kubectl, str(cluster.work / "admin.kubeconfig")]
    (tmp_path / "policy.toml").write_text(
        f'schema = "workbench.policy/1"\nstop_file = "{tmp_path}/stop"\n[limits]\nboot_grace = "0s"\n'
        '[[auto]]\nup_to = "cordon"\nconfidence = 0.9\n'
        + "".join(f"[commands.{verb}]\nargv = {json.dumps([*argv, verb, '{node}'])}\n" for verb in ("reboot", "validate"))
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    monkeypatch.setenv("WORKBENCH_REMEDIATION_POLICY", str(tmp_path / "policy.toml"))
    monkeypatch.setenv("WORKBENCH_REMEDIATION_JOURNAL", str(tmp_path / "journal.jsonl"))
    monkeypatch.setenv("WORKBENCH_REMEDIATION_FOLDER", str(tmp_path / "state"))
    return tmp_path


def shows(cluster: Cluster, node: str, reason: str, kind: str = "WorkbenchGpuLost") -> None:
    """Let a check show on a node what it found, as `workbench check --publish kubernetes` does."""
    now = time.time()
    bad = [NodeCondition(name, "True", reason, "xid: GPU 3: fell off the bus", now, now - 60) for name in (FIT, kind)]
    cluster.site.core.patch_node_status(node, {"status": {"conditions": [one.to_dict() for one in bad]}})
    boot = cluster.raw(node)["status"]["nodeInfo"]["bootID"]
    cluster.site.core.patch_node(node, {"metadata": {"annotations": {BOOT: boot}}})


def test_from_a_condition_to_a_node_that_works_again(
    cluster: Cluster, settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = cluster.replicas("gpu-03", 2)
    shows(cluster, "gpu-03", "Xid79")

    assert main(["plan", "--save", "plan.json"]) == 0
    told = capsys.readouterr().out
    assert "gpu-03  reboot-node  (needs a yes)" in told
    assert "ends 2 tasks" in told
    wrote = len(cluster.audit())
    assert main(["apply", "plan.json"]) == 0, capsys.readouterr()
    capsys.readouterr()
    changes = [
        one
        for one in cluster.audit()[wrote:]
        if one["verb"] not in ("get", "list", "watch") and "dryRun" not in one["requestURI"]
    ]
    assert not changes, [one["requestURI"] for one in changes]

    code = main(["apply", "plan.json", "--yes"])
    said = capsys.readouterr()
    assert code == 0, said.out + said.err
    assert [line.split()[2] for line in said.out.splitlines()] == ["cordon", "collect", "evict", "reboot", "validate", "uncordon"]
    node = cluster.raw("gpu-03")
    assert not node["spec"].get("unschedulable")
    assert not [one for one in node["metadata"]["annotations"] if one.startswith("gpu-workbench/did-")]
    left = {one["metadata"]["name"] for one in cluster.pods("gpu-03") if "deletionTimestamp" not in one["metadata"]}
    assert not left & set(pods)
    assert list((settings / "state/evidence").glob("gpu-03-*"))


def test_the_loop_cordons_and_leaves_the_rest_to_a_person(
    cluster: Cluster, settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shows(cluster, "gpu-05", "MountMissing", "WorkbenchStorageProblem")

    code = main(["loop", "--once"])
    said = capsys.readouterr()
    assert code in (0, 3), said.out + said.err
    assert cluster.raw("gpu-05")["spec"].get("unschedulable"), said.out + said.err
    assert main(["undo", "gpu-05", "--yes"]) == 0
    assert not cluster.raw("gpu-05")["spec"].get("unschedulable")


def test_a_storm_moves_nobody(cluster: Cluster, settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(12):
        shows(cluster, f"gpu-{number:02}", "Xid79")
    main(["loop", "--once"])
    main(["loop", "--once"])
    said = capsys.readouterr()

    assert "breaker open" in said.out
    assert not [number for number in range(12) if cluster.raw(f"gpu-{number:02}")["spec"].get("unschedulable")]
    reports = list((settings / "state/reports").glob("*.json"))
    assert len(reports) == 1
