"""Dynamic resource allocation on a real kube-apiserver: a limited account sees which GPU each pod of a job was given."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.kubernetes_site import SERVICE, Site, control_plane, granted, pod_spec, run, until, without
from workbench.incident import load
from workbench.sources.contract import Answer, Deadline, Folder, Scope
from workbench.sources.kubernetes.source import Kubernetes

pytestmark = pytest.mark.live

READER = ("gpu-workbench", "gpu-workbench-reader")
NODE = "gpu-node-a"
GROUP = "resource.k8s.io"
ADDRESSES = ("1b", "3a", "4b", "5c", "9d", "ab", "bc", "cd")
UUIDS = tuple(f"GPU-9b341c59-f96b-ba85-c137-78c3652fea{at:02d}" for at in range(8))
XID = "NVRM: Xid (PCI:0000:ab:00): 79, pid=2004356, name=python, GPU has fallen off the bus."


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A running control plane; the older versions of the API are served, too."""
    folder = tmp_path_factory.mktemp("kubernetes")
    with control_plane(folder, "--apiserver-arg", f"--runtime-config={GROUP}/v1beta1=true"):
        yield folder


@pytest.fixture(scope="module")
def site(work: Path) -> Site:
    """One node of eight GPUs, and a job of two pods of which each was given one of them by a claim."""
    site = Site(work / "admin.kubeconfig")
    site.namespace("train")
    site.node(NODE)
    granted(site, READER[0])
    devices = [
        {
            "name": f"gpu-{at}",
            "attributes": {
                "uuid": {"string": uuid},
                "pcieBusID": {"string": f"0000:{ADDRESSES[at]}:00.0"},
                "productName": {"string": "NVIDIA H100 80GB HBM3"},
            },
        }
        for at, uuid in enumerate(UUIDS)
    ]
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    for node, named in ((NODE, devices), ("gpu-node-other", devices[:1])):
        spec = {"driver": "gpu.nvidia.com", "nodeName": node, "pool": {**pool, "name": node}, "devices": named}
        body = {"apiVersion": f"{GROUP}/v1", "kind": "ResourceSlice", "metadata": {"name": f"{node}-slice"}, "spec": spec}
        site.custom.create_cluster_custom_object(GROUP, "v1", "resourceslices", body)
    for at, (pod, claim) in enumerate(claimed(site).items()):
        allocate(site, pod, claim, (2, 5)[at])
        # the kubelet has seen the container end, and has not yet ended the pod: then the claims go
        said = "RuntimeError: CUDA error: unspecified launch failure" if at else ""
        site.ends("train", pod, 1, message=said, ago=100 - at, phase="Running")
    site.event("default", "Node", NODE, "XidCriticalError", XID, ago=120, source="gpu-monitor", host=NODE)
    return site


def claimed(site: Site) -> dict[str, str]:
    """Make a Job whose pods have claims of a template, and return pod → claim, as the real controllers make them."""
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    template = {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "one-gpu"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    site.custom.create_namespaced_custom_object(GROUP, "v1", "train", "resourceclaimtemplates", template)
    spec = pod_spec(None)
    spec["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    spec |= {"restartPolicy": "Never", "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]}
    body = {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimit": 0, "template": {"spec": spec}}
    site.batch.create_namespaced_job("train", {"metadata": {"name": "llm"}, "spec": body})

    def made() -> dict[str, str]:
        pods = site.core.list_namespaced_pod("train", label_selector="job-name=llm").items
        pods.sort(key=lambda pod: pod.metadata.labels["batch.kubernetes.io/job-completion-index"])
        told = {pod.metadata.name: pod.status.resource_claim_statuses for pod in pods}
        return {name: rows[0].resource_claim_name for name, rows in told.items()} if len(told) == 2 and all(told.values()) else {}

    found: dict[str, str] = until("the claims of the pods", made)
    for pod in found:
        target = {"metadata": {"name": pod}, "target": {"apiVersion": "v1", "kind": "Node", "name": NODE}}
        site.core.create_namespaced_binding("train", target, _preload_content=False)
    return found


def allocate(site: Site, pod: str, claim: str, gpu: int) -> None:
    """Play the scheduler: the device of a claim, and the pod that it is reserved for."""
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": NODE, "device": f"gpu-{gpu}"}
    uid = site.core.read_namespaced_pod(pod, "train").metadata.uid
    status = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": pod, "uid": uid}],
    }
    site.custom.patch_namespaced_custom_object_status(GROUP, "v1", "train", "resourceclaims", claim, {"status": status})


@pytest.fixture(scope="module")
def reader(work: Path, site: Site) -> Path:
    """A kubeconfig with the shipped rights only, in effect."""
    path = Path(run(SERVICE / "kubeconfig-for", work, *READER))
    source = Kubernetes(str(path))

    def in_effect() -> bool:
        rights = {line.item: line.status for line in source.examine(Deadline(10)) if line.item.startswith("rights")}
        assert any("resourceslices" in item for item in rights)
        assert any("resourceclaims" in item for item in rights)
        return set(rights.values()) == {"ok"}

    until("rights", in_effect)
    return path


def gather(source: Kubernetes, root: Path) -> list[Answer]:
    scope = source.locate(Scope("llm", time.time() - 86400, time.time() + 5), Deadline(20))
    assert scope is not None
    return source.collect(scope, Folder(root), Deadline(20))


def test_claims_and_slices_tell_the_gpu_of_each_pod(site: Site, reader: Path, tmp_path: Path) -> None:
    answers = gather(Kubernetes(str(reader), log_lines=0), tmp_path)
    files = {one.file: (one.status, one.rows) for one in answers if one.file}

    assert files["resourceclaims.json"] == ("ok", 2), answers
    assert files["resourceslices.json"] == ("ok", 1)
    verdict = load(tmp_path).triage()
    assert (verdict.cls, verdict.node, verdict.rank) == ("hardware/gpu-lost", NODE, 1), verdict.summary
    assert verdict.gpu is not None
    assert (verdict.gpu.uuid, verdict.gpu.pci) == (UUIDS[5], "0000:ab:00.0")


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_what_kubectl_prints_is_read_in_each_version(site: Site, reader: Path, work: Path, version: str, tmp_path: Path) -> None:
    """A folder filled by hand: ``kubectl get pods,events,resourceclaims,resourceslices -o json``."""
    kubectl = Path(run(SERVICE / "build")) / "kubectl"

    def get(file: str, *words: str) -> None:
        text = run(kubectl, "--kubeconfig", work / "admin.kubeconfig", "get", *words, "-o", "json")
        (tmp_path / file).write_text(text, encoding="utf-8")

    get("devices.json", f"resourceclaims.{version}.{GROUP},resourceslices.{version}.{GROUP}", "-n", "train")
    get("state.json", "pods,events", "-A")
    verdict = load(tmp_path).triage()
    assert (verdict.cls, verdict.rank) == ("hardware/gpu-lost", 1), verdict.summary
    assert verdict.gpu is not None
    assert verdict.gpu.uuid == UUIDS[5]


@pytest.mark.parametrize("lacks", ["resourceclaims", "resourceslices"])
def test_a_right_that_lacks_is_an_answer(site: Site, reader: Path, work: Path, lacks: str, tmp_path: Path) -> None:
    source = Kubernetes(str(without(site, work, f"lacks-{lacks}", lacks)), log_lines=0)
    failed = [one for one in gather(source, tmp_path) if one.status == "failed"]
    assert any(f'apiGroups: ["{GROUP}"], resources: ["{lacks}"]' in one.hint for one in failed), failed


def test_claims_that_went_with_their_pods_are_told(site: Site, reader: Path, tmp_path: Path) -> None:
    """Runs last: when a pod has ended the real controller takes the claim away that it made for it."""
    for pod in site.core.list_namespaced_pod("train", label_selector="job-name=llm").items:
        site.ends("train", pod.metadata.name, 1, ago=90)
    until(
        "the end of the claims",
        lambda: not site.custom.list_namespaced_custom_object(GROUP, "v1", "train", "resourceclaims")["items"],
        60.0,
    )
    answer = next(one for one in gather(Kubernetes(str(reader), log_lines=0), tmp_path) if "resourceclaims" in one.asked)
    assert answer.status == "partial"
    assert "no longer known" in answer.detail
    assert "while the job's pods run" in answer.hint
