"""Claims and device slices are asked for when the job's pods have claims, and what lacks of them is an answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.sources.canned_kubernetes import Cluster, bad, collect, kubeconfig
from workbench.incident import load
from workbench.sources.contract import Answer, Deadline
from workbench.sources.kubernetes.source import Kubernetes
from workbench.testing.faults import FaultServer

UUID = "GPU-9b341c59-f96b-ba85-c137-78c3652fea65"


@pytest.fixture
def cluster() -> Cluster:
    """Two pods with a claim each, beside another job's; two nodes with a slice each, beside a third one's."""
    cluster = Cluster()
    cluster.groups["resource.k8s.io"] = "v1"
    for number, pod in enumerate(cluster.pods):
        pod["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": f"llm-{number}-gpu-x"}]
    cluster.more = {
        "resourceclaims": [claim(f"llm-{at}-gpu-x", f"uid-{at}") for at in range(2)] + [claim("other", "uid-9")],
        "resourceslices": [device_slice(f"gpu-{at}") for at in range(3)],
    }
    return cluster


@pytest.fixture
def source(server: FaultServer, tmp_path: Path) -> Kubernetes:
    return Kubernetes(kubeconfig(tmp_path, server.url), log_lines=0)


def claim(name: str, uid: str) -> dict[str, Any]:
    results = [{"request": "gpu", "driver": "gpu.nvidia.com", "pool": "gpu-0", "device": "gpu-3"}]
    return {
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "train", "uid": f"claim-{uid}"},
        "spec": {},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": uid}],
        },
    }


def device_slice(node: str) -> dict[str, Any]:
    device = {"name": "gpu-3", "attributes": {"uuid": {"string": UUID}, "pcieBusID": {"string": "0000:9d:00.0"}}}
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": node, "pool": pool, "devices": [device]}
    return {"kind": "ResourceSlice", "metadata": {"name": f"{node}-x", "uid": f"slice-{node}"}, "spec": spec}


def of(answers: list[Answer], file: str) -> Answer:
    return next(one for one in answers if one.file == file)


def test_claims_and_slices_of_the_job_become_files(source: Kubernetes, tmp_path: Path) -> None:
    answers = collect(source, tmp_path)

    assert (of(answers, "resourceclaims.json").status, of(answers, "resourceclaims.json").rows) == ("ok", 2)
    assert (of(answers, "resourceslices.json").status, of(answers, "resourceslices.json").rows) == ("ok", 2)
    facts = [document.facts for document in load(tmp_path / "incident").documents]
    assert {name for fact in facts for name in fact.get("claims", ())} == {"train/llm-0-gpu-x", "train/llm-1-gpu-x"}
    assert {key[1] for fact in facts for key in fact.get("devices", ())} == {"gpu-0", "gpu-1"}


def test_a_job_without_claims_costs_no_question(
    cluster: Cluster, server: FaultServer, source: Kubernetes, tmp_path: Path
) -> None:
    for pod in cluster.pods:
        del pod["status"]["resourceClaimStatuses"]
    collect(source, tmp_path)
    assert not [request for request in server.requests if "resource.k8s.io" in request.path]


@pytest.mark.parametrize("resource", ["resourceclaims", "resourceslices"])
def test_a_right_that_lacks_is_an_answer(cluster: Cluster, source: Kubernetes, tmp_path: Path, resource: str) -> None:
    cluster.forbidden = {resource}
    said = bad(collect(source, tmp_path))
    assert f"list {resource}.resource.k8s.io" in said
    assert f'apiGroups: ["resource.k8s.io"], resources: ["{resource}"]' in said


def test_claims_that_are_gone_with_their_pods_are_told(cluster: Cluster, source: Kubernetes, tmp_path: Path) -> None:
    cluster.more["resourceclaims"] = [claim("llm-0-gpu-x", "uid-0")]
    answer = of(collect(source, tmp_path), "resourceclaims.json")
    assert (answer.status, answer.rows) == ("partial", 1)
    assert "llm-1-gpu-x" in answer.detail
    assert "while the job's pods run" in answer.hint


def test_all_claims_are_gone_and_no_slice_is_left(cluster: Cluster, source: Kubernetes, tmp_path: Path) -> None:
    cluster.more = {"resourceclaims": [], "resourceslices": []}
    answers = collect(source, tmp_path)
    told = {one.asked.rsplit("/", 1)[-1]: one.status for one in answers}
    assert (told["resourceclaims"], told["resourceslices"]) == ("partial", "missing")


def test_an_object_of_an_odd_shape_is_an_answer(cluster: Cluster, source: Kubernetes, tmp_path: Path) -> None:
    cluster.more["resourceclaims"] = [{"metadata": {"name": "llm-0-gpu-x", "namespace": "train"}, "status": 7}]
    assert any(one.status == "failed" and "unexpected shape" in one.detail for one in collect(source, tmp_path))


def test_what_an_earlier_collection_left_is_not_asked_again(server: FaultServer, source: Kubernetes, tmp_path: Path) -> None:
    collect(source, tmp_path)
    before = len([request for request in server.requests if "resource.k8s.io" in request.path])
    answers = collect(source, tmp_path)
    assert len([request for request in server.requests if "resource.k8s.io" in request.path]) == before == 2
    assert of(answers, "resourceclaims.json").status == "ok"


def test_doctor_asks_for_these_rights_only_where_the_api_is(cluster: Cluster, source: Kubernetes) -> None:
    cluster.forbidden = {"resourceslices"}
    lines = [line for line in source.examine(Deadline(5)) if "resourceslices" in line.item]
    assert [(line.status, "resource.k8s.io" in line.fix) for line in lines] == [("warning", True)]
    del cluster.groups["resource.k8s.io"]
    assert not [line for line in source.examine(Deadline(5)) if "resourceslices" in line.item]


def test_secrets_are_left_out_of_claims_as_of_all(cluster: Cluster, source: Kubernetes, tmp_path: Path) -> None:
    cluster.more["resourceclaims"][0]["spec"] = {
        "devices": {"config": [{"opaque": {"parameters": {"name": "API_TOKEN", "value": "geheim"}}}]}
    }
    collect(source, tmp_path)
    text = (tmp_path / "incident" / "resourceclaims.json").read_text()
    assert "geheim" not in text
    assert json.loads(text)["items"]
