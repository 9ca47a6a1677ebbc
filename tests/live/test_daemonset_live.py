"""The shipped DaemonSet on a real control plane that is strict: taken, allowed, scheduled, and each pod run as its fields say."""

from __future__ import annotations

import copy
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.live.kubernetes_site import SERVICE, Site, control_plane, run, until
from tests.live.played_node import XID, PlayedNode
from tests.live.played_pod import Image, argv
from workbench.cli.config import SHIPPED
from workbench.health.conditions import FIT
from workbench.health.publish import LABEL

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]
SPACE, ACCOUNT = "gpu-workbench", "gpu-workbench-writer"
# as managed clusters have it: pods that see the host only where a namespace allows it, critical ones only where a quota does
ADMISSION = """
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
  - name: PodSecurity
    configuration:
      apiVersion: pod-security.admission.config.k8s.io/v1
      kind: PodSecurityConfiguration
      defaults: {enforce: baseline, enforce-version: latest}
  - name: ResourceQuota
    configuration:
      apiVersion: apiserver.config.k8s.io/v1
      kind: ResourceQuotaConfiguration
      limitedResources:
        - resource: pods
          matchScopes:
            - {scopeName: PriorityClass, operator: In, values: [system-node-critical, system-cluster-critical]}
"""
# what a container of the image has, by the manifest's comment, of what the checks run; systemd is not its first process
PROGRAMS = {
    "systemctl": "echo 'System has not been booted with systemd as init system (PID 1).' >&2; exit 1",
    "journalctl": 'for one; do case $one in --root=*) root=${one#--root=};; esac; done; exec cat "$root/var/log/journal/kernel"',
}


def shipped(word: str) -> str:
    """Return what `workbench config` prints."""
    package, name = SHIPPED[word]
    return (ROOT / package.replace(".", "/") / name).read_text(encoding="utf-8").replace("IMAGE", "example/gpu-workbench:1")


def kubectl(work: Path, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run kubectl as administrator."""
    binary = Path(run(SERVICE / "build")) / "kubectl"
    call = [str(binary), "--kubeconfig", str(work / "admin.kubeconfig"), *words]
    return subprocess.run(call, input=given, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A running control plane with a scheduler."""
    folder = tmp_path_factory.mktemp("kubernetes")
    (folder / "admission.yaml").write_text(ADMISSION)
    given = ("--apiserver-arg", f"--admission-control-config-file={folder}/admission.yaml")
    with control_plane(folder, "--scheduler", *given):
        yield folder


@pytest.fixture(scope="module")
def site(work: Path) -> Site:
    """Two nodes with GPUs and one without, sick and cordoned ones too, and both manifests applied."""
    site = Site(work / "admin.kubeconfig")
    for name in ("gpu-a", "gpu-b", "cpu-a"):
        site.node(name)
    site.core.patch_node("cpu-a", {"metadata": {"labels": {"nvidia.com/gpu.present": None}}})
    site.core.patch_node(
        "gpu-b", {"spec": {"unschedulable": True, "taints": [{"key": "x", "value": "y", "effect": "NoExecute"}]}}
    )
    # what GPU operator and node setup make
    runtime = "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: nvidia}\nhandler: nvidia\n"
    for text in (runtime, shipped("rbac --writer"), shipped("daemonset")):
        done = kubectl(work, "create", "--validate=strict", "-f", "-", given=text)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""  # no warnings: fields that are deprecated, pods that would be refused
    return site


@pytest.fixture(scope="module")
def pods(site: Site) -> dict[str, dict[str, Any]]:
    """The pods of the DaemonSet by node, as the API server has them."""

    def bound() -> list[Any]:
        found = json.loads(site.core.list_namespaced_pod(SPACE, _preload_content=False).data)["items"]
        return found if len(found) == 2 and all("nodeName" in one["spec"] for one in found) else []

    return {one["spec"]["nodeName"]: one for one in until("the pods", bound, 60)}


class Kubelet:
    """What runs the pods of nodes that are folders."""

    def __init__(self, work: Path, site: Site, folder: Path) -> None:
        self.work, self.site, self.folder = work, site, folder
        self.count = 0

    def node(self, name: str) -> tuple[PlayedNode, Image]:
        """Make a healthy node, and the image with the driver that its NVIDIA runtime brings."""
        (self.folder / name / "host").mkdir(parents=True)
        node = PlayedNode(self.folder / name / "host")
        driver = (node.root / "bin/nvidia-smi").read_text().split("\n", 1)[1].replace(str(node.root), "/opt/driver")
        image = Image.of(self.folder / name / "opt", libraries=node.libraries, driver={"nvidia-smi": driver}, programs=PROGRAMS)
        for file in ("nvidia-smi.out", "list.out", "links.out"):
            (node.root / file).rename(image.folder / "driver" / file)
        # programs of the host are not those of the container
        shutil.rmtree(node.root / "bin")
        (node.root / "var/log/journal").mkdir(parents=True)
        node.journal = node.root / "var/log/journal/kernel"
        node.log()
        return node, image

    def argv(self, pod: dict[str, Any], node: PlayedNode, image: Image, command: list[str] | None = None) -> list[str]:
        """Return what runs a pod."""
        self.count += 1
        name = pod["metadata"]["name"]

        def token() -> str:
            bound = ("--bound-object-kind", "Pod", "--bound-object-name", name)
            done = kubectl(self.work, "-n", SPACE, "create", "token", pod["spec"]["serviceAccountName"], *bound)
            assert done.returncode == 0, done.stderr
            return done.stdout.strip()

        maps = {one.metadata.name: one.data for one in self.site.core.list_namespaced_config_map(SPACE).items}
        server = ("127.0.0.1", int((self.work / "port").read_text()))
        place = self.folder / f"container-{self.count}"
        return argv(pod, node.root, image, place, server=server, token=token, maps=maps, command=command)

    @contextmanager
    def runs(self, pod: dict[str, Any], node: PlayedNode, image: Image) -> Iterator[subprocess.Popen[str]]:
        """Run the pod's own command; it ends with the block."""
        words = self.argv(pod, node, image)
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            try:
                yield child
            finally:
                child.kill()

    def look(self, pod: dict[str, Any], node: PlayedNode, image: Image) -> list[dict[str, Any]]:
        """Return the findings of the same container when it looks once and tells nobody."""
        words = list(pod["spec"]["containers"][0]["command"])
        for option in ("--watch", "--publish"):
            at = words.index(option)
            del words[at : at + 2]
        done = subprocess.run(
            self.argv(pod, node, image, [*words, "--context", "running", "-o", "json"]),
            capture_output=True,
            text=True,
            timeout=120,
        )
        try:
            found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
        except ValueError:
            raise AssertionError(f"{done.returncode}: {done.stderr}") from None
        return found


@pytest.fixture(scope="module")
def kubelet(work: Path, site: Site, tmp_path_factory: pytest.TempPathFactory) -> Kubelet:
    """What runs the pods."""
    return Kubelet(work, site, tmp_path_factory.mktemp("nodes"))


def condition(site: Site, node: str) -> tuple[str, str] | None:
    """Return status and reason of the node's condition."""
    found = [one for one in site.core.read_node(node).status.conditions if one.type == FIT]
    return (found[0].status, found[0].reason) if found else None


def unfit(findings: list[dict[str, Any]]) -> set[str]:
    """Return the checks by which a node is not fit."""
    return {one["check"] for one in findings if one["required"] and one["status"] in ("critical", "unknown")}


def test_the_api_server_takes_every_field_of_it(work: Path, site: Site) -> None:
    for word in ("rbac --writer", "daemonset", "rbac"):
        done = kubectl(
            work,
            "apply",
            "--server-side",
            "--force-conflicts",
            "--dry-run=server",
            "--validate=strict",
            "-f",
            "-",
            given=shipped(word),
        )
        assert (done.returncode, done.stderr) == (0, ""), word
    wrong = shipped("daemonset").replace("mountPropagation:", "mountPropogation:")
    done = kubectl(work, "create", "--dry-run=server", "--validate=strict", "-f", "-", given=wrong)
    assert done.returncode != 0
    assert "mountPropogation" in done.stderr


def test_a_strict_cluster_takes_its_pods_only_where_our_namespace_and_quota_say_so(work: Path, site: Site) -> None:
    (document,) = [one for one in yaml.safe_load_all(shipped("daemonset")) if one["kind"] == "DaemonSet"]
    spec = {**document["spec"]["template"]["spec"], "serviceAccountName": "default"}
    site.namespace("plain")
    pod = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "namespace": "plain"}, "spec": spec})
    words = ("create", "--dry-run=server", "-f", "-")
    assert "violates PodSecurity" in kubectl(work, *words, given=pod).stderr
    site.core.patch_namespace("plain", {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}})
    until("the quota's word", lambda: "insufficient quota" in kubectl(work, *words, given=pod).stderr)


def test_every_gpu_node_gets_its_pod_also_a_sick_one(pods: dict[str, dict[str, Any]]) -> None:
    assert set(pods) == {"gpu-a", "gpu-b"}


def test_its_account_may_do_what_publishing_does_and_nothing_else(
    work: Path, site: Site, pods: dict[str, dict[str, Any]]
) -> None:
    def rules(account: str, namespace: str) -> set[tuple[str, str, str]]:
        done = kubectl(
            work, "create", "--raw", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", "-f", "-",
            f"--as=system:serviceaccount:{SPACE}:{account}", "--as-group=system:serviceaccounts", "--as-group=system:authenticated",
            given=json.dumps({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": namespace}}),
        )  # fmt: skip
        status = json.loads(done.stdout)["status"]
        assert not status.get("incomplete"), status
        told = [(one.get("apiGroups", ["/"]), one.get("resources", one.get("nonResourceURLs")), one["verbs"]) for one in
                [*status["resourceRules"], *status["nonResourceRules"]]]  # fmt: skip
        return {
            (group, resource, verb)
            for groups, resources, verbs in told
            for group in groups
            for resource in resources
            for verb in verbs
        }

    pod = pods["gpu-a"]
    assert pod["spec"]["serviceAccountName"] == ACCOUNT
    nodes = {("", "nodes", "get"), ("", "nodes/status", "patch")}
    events = {("", "events", verb) for verb in ("get", "create", "patch")}
    for namespace, wanted in ((SPACE, nodes), ("kube-system", nodes), ("default", nodes | events)):
        assert rules(ACCOUNT, namespace) - rules("default", namespace) == wanted, namespace


def test_the_pods_of_a_healthy_and_of_a_sick_node_publish_their_conditions(
    site: Site, pods: dict[str, dict[str, Any]], kubelet: Kubelet
) -> None:
    well, image = kubelet.node("gpu-a")
    sick, other = kubelet.node("gpu-b")
    sick.log(XID)
    with kubelet.runs(pods["gpu-a"], well, image) as one, kubelet.runs(pods["gpu-b"], sick, other) as two:
        for child, name, wanted in ((one, "gpu-a", "False"), (two, "gpu-b", "True")):
            # the first looks are spread over half a minute
            until("the condition", lambda child=child, name=name: condition(site, name) or child.poll() is not None, 90)
            assert child.poll() is None, child.communicate()
            assert (condition(site, name) or ("",))[0] == wanted, condition(site, name)
            assert site.core.read_node(name).metadata.labels[LABEL] == {"False": "true", "True": "false"}[wanted]
        assert (condition(site, "gpu-b") or ("", ""))[1] == "Xid79"
        # what it needs of memory, against the limit of the manifest
        limit = int(pods["gpu-a"]["spec"]["containers"][0]["resources"]["limits"]["memory"].removesuffix("Mi"))
        most = Path(f"/proc/{one.pid}/status").read_text().split("VmHWM:")[1].split()[0]
        assert int(most) / 1024 < limit / 2
        # the state outlives the pod, since it is the host's
        assert any((sick.root / "var/lib/workbench").iterdir())
        begun = time.monotonic()
        for child in (one, two):
            child.send_signal(signal.SIGTERM)
        told = [child.communicate(timeout=60)[0] for child in (one, two)]
        assert time.monotonic() - begun < pods["gpu-a"]["spec"]["terminationGracePeriodSeconds"]
    assert [child.returncode for child in (one, two)] == [0, 0]
    assert "gpu-a fit" in told[0]  # its name in the cluster, not the host's
    assert condition(site, "gpu-a") == condition(site, "gpu-b") == ("Unknown", "CheckerStopped")


def test_a_healthy_node_is_fit_by_its_pod(pods: dict[str, dict[str, Any]], kubelet: Kubelet) -> None:
    node, image = kubelet.node("fit")
    found = kubelet.look(pods["gpu-a"], node, image)
    assert unfit(found) == set()
    well = {one["check"] for one in found if one["status"] == "ok"}  # by what the pod sees, not by what the host has
    assert {"driver", "gpu-count", "gpu-memory", "xid", "nvlink", "fabric", "processes", "host-memory", "disk-space"} <= well


def _without_mount(name: str) -> Callable[[dict[str, Any]], None]:
    def change(container: dict[str, Any]) -> None:
        container["volumeMounts"] = [one for one in container["volumeMounts"] if one["name"] != name]

    return change


def _without_env(name: str) -> Callable[[dict[str, Any]], None]:
    def change(container: dict[str, Any]) -> None:
        container["env"] = [one for one in container["env"] if one["name"] != name]

    return change


def _without_capability(name: str) -> Callable[[dict[str, Any]], None]:
    def change(container: dict[str, Any]) -> None:
        container["securityContext"]["capabilities"]["add"].remove(name)

    return change


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        (_without_mount("host"), {"gpu-count", "xid", "disk-space"}),
        (_without_mount("state"), {"history"}),
        (_without_env("NVIDIA_VISIBLE_DEVICES"), {"driver"}),
        (_without_capability("DAC_READ_SEARCH"), {"xid"}),
    ],
    ids=["host", "state", "devices", "capability"],
)
def test_what_the_manifest_gives_is_needed(
    change: Callable[[dict[str, Any]], None],
    lost: set[str],
    pods: dict[str, dict[str, Any]],
    kubelet: Kubelet,
    request: pytest.FixtureRequest,
) -> None:
    node, image = kubelet.node(request.node.callspec.id)
    # a journal as systemd writes it: for root's group, and root of the container is not in it
    node.journal.chmod(0o640)
    shutil.chown(node.journal, 990, 990)
    pod = copy.deepcopy(pods["gpu-a"])
    whole = kubelet.look(pod, node, image)
    change(pod["spec"]["containers"][0])
    less = kubelet.look(pod, node, image)
    troubled = [{one["check"] for one in found if one["status"] not in ("ok", "not-applicable")} for found in (whole, less)]
    assert lost <= troubled[1] - troubled[0]


def test_with_its_capabilities_it_sees_whose_files_a_process_holds(pods: dict[str, dict[str, Any]], kubelet: Kubelet) -> None:
    """By the kernel's own rule, on a process of another user, in the host's process namespace."""
    node, image = kubelet.node("files")
    pod = copy.deepcopy(pods["gpu-a"])
    with subprocess.Popen(["setpriv", "--reuid=65534", "--clear-groups", "sleep", "60"], stdin=subprocess.DEVNULL) as child:
        try:
            until("the other user", lambda: "\t65534\t" in Path(f"/proc/{child.pid}/status").read_text())
            asked = ["/usr/bin/readlink", f"/proc/{child.pid}/fd/0"]
            seen = subprocess.run(kubelet.argv(pod, node, image, asked), capture_output=True, text=True, timeout=60)
            _without_capability("SYS_PTRACE")(pod["spec"]["containers"][0])
            unseen = subprocess.run(kubelet.argv(pod, node, image, asked), capture_output=True, text=True, timeout=60)
            pod["spec"]["hostPID"] = False
            hidden = subprocess.run(kubelet.argv(pod, node, image, asked), capture_output=True, text=True, timeout=60)
        finally:
            child.kill()
    assert (seen.stdout, unseen.stdout, hidden.stdout) == ("/dev/null\n", "", "")


def test_the_comment_of_the_image_is_what_the_checks_need() -> None:
    """The manifest has no image of ours to name: its comment says how one is built."""
    text = shipped("daemonset")
    assert "gpu-reliability-workbench[sources]" in text
    assert "kubernetes" in (ROOT / "pyproject.toml").read_text().split("sources = [", 1)[1].split("]", 1)[0]
    assert list(yaml.safe_load_all(text))[-1]["kind"] == "DaemonSet"
