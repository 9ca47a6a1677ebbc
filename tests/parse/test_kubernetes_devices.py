"""Which GPU a pod was given: claims and device slices in all their versions, the kubelet's checkpoint in both, and annotations."""

from __future__ import annotations

import json
from typing import Any

import pytest

from workbench.catalog import table
from workbench.model import Gpu, Parsed
from workbench.parse.kubernetes import parse_objects
from workbench.parse.kubernetes_devices import annotated, parse_checkpoint, plugin_devices, pod_claims
from workbench.sources.sniff import kind_of

ONE = "GPU-9b341c59-f96b-ba85-c137-78c3652fea65"
TWO = "GPU-c1e9f249-b37b-81c2-a8d9-ba5ca0294841"
MIG = "MIG-5c89ba4f-1b16-5e0b-9bb9-5a3c9d5a1f10"
DRIVER = "gpu.nvidia.com"


def claim(*devices: str, **status: Any) -> dict[str, Any]:
    results = [{"request": "gpu", "driver": DRIVER, "pool": "gpu-07", "device": name} for name in devices]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "llm-0-gpu", "namespace": "train"},
        "status": {"allocation": {"devices": {"results": results}}, **status},
    }


def device(name: str, **attributes: str) -> dict[str, Any]:
    return {"name": name, "attributes": {key: {"string": value} for key, value in attributes.items()}}


def device_slice(*devices: dict[str, Any], generation: int = 1) -> dict[str, Any]:
    pool = {"name": "gpu-07", "generation": generation, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "gpu-07-gpu.nvidia.com-x"},
        "spec": {"driver": DRIVER, "nodeName": "gpu-07", "pool": pool, "devices": list(devices)},
    }


def objects(*items: dict[str, Any]) -> Parsed:
    parsed = parse_objects(list(items), file="x.json")
    assert not parsed.problems
    return parsed


def test_a_claim_names_its_devices_and_its_pods() -> None:
    item = claim("gpu-3", "gpu-4", reservedFor=[{"resource": "pods", "name": "llm-0", "uid": "u-0"}])
    assert objects(item).facts["claims"] == {
        "train/llm-0-gpu": {
            "pods": [("llm-0", "u-0")],
            "devices": [(DRIVER, "gpu-07", "gpu-3"), (DRIVER, "gpu-07", "gpu-4")],
        }
    }


def test_the_claim_of_a_pod_that_ended_still_has_it_as_its_owner() -> None:
    item = claim("gpu-3")
    item["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", "name": "llm-0", "uid": "u-0"}]
    assert objects(item).facts["claims"]["train/llm-0-gpu"]["pods"] == [("llm-0", "u-0")]


def test_a_device_that_a_monitor_only_looks_at_was_given_to_nobody() -> None:
    item = claim("gpu-3")
    item["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    assert objects(item).facts["claims"]["train/llm-0-gpu"]["devices"] == []


@pytest.mark.parametrize("nested", [False, True], ids=["v1", "v1beta1"])
def test_a_slice_tells_uuid_and_address_of_each_device(nested: bool) -> None:
    gpu = device("gpu-3", uuid=ONE, pcieBusID="0000:9D:00.0", productName="NVIDIA H100 80GB HBM3")
    part = device(
        "gpu-4-mig-19-0-1", uuid=MIG, parentUUID=TWO, profile="1g.10gb", **{"resource.kubernetes.io/pciBusID": "0000:ab:00.0"}
    )
    every = [gpu, part]
    if nested:
        every = [{"name": one["name"], "basic": {"attributes": one["attributes"]}} for one in every]
    found = objects(device_slice(*every)).facts["devices"]
    assert found[DRIVER, "gpu-07", "gpu-3"] == {
        "node": "gpu-07",
        "generation": 1,
        "uuid": ONE,
        "pci": "0000:9d:00.0",
        "product": "NVIDIA H100 80GB HBM3",
    }
    assert found[DRIVER, "gpu-07", "gpu-4-mig-19-0-1"] == {
        "node": "gpu-07",
        "generation": 1,
        "uuid": MIG,
        "parent": TWO,
        "profile": "1g.10gb",
        "pci": "0000:ab:00.0",
    }


def test_of_two_generations_of_a_pool_the_newer_counts() -> None:
    new, old = device_slice(device("gpu-3", uuid=ONE), generation=2), device_slice(device("gpu-3", uuid=TWO))
    for order in ((new, old), (old, new)):
        assert objects(*order).facts["devices"][DRIVER, "gpu-07", "gpu-3"]["uuid"] == ONE


def test_a_list_as_kubectl_prints_it_and_a_claim_that_is_cut() -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [claim("gpu-3"), device_slice(device("gpu-3", uuid=ONE))]}
    assert kind_of("x.json", json.dumps(listed, indent=4).encode()) == "kubernetes"
    assert set(objects(listed).facts) >= {"claims", "devices"}
    broken = parse_objects([{"kind": "ResourceSlice", "metadata": {"name": "x"}, "spec": 7}], file="x.json")
    assert [one.status for one in broken.problems] == ["partial"]


def test_a_pod_names_its_claims_in_three_ways() -> None:
    item = {
        "spec": {
            "resourceClaims": [{"name": "a", "resourceClaimName": "shared"}, {"name": "b", "resourceClaimTemplateName": "t"}]
        },
        "status": {
            "resourceClaimStatuses": [{"name": "b", "resourceClaimName": "llm-0-b-x7x"}],
            "extendedResourceClaimStatus": {"resourceClaimName": "llm-0-extended"},
        },
    }
    assert pod_claims(item) == ["shared", "llm-0-b-x7x", "llm-0-extended"]


# ---- the kubelet


def checkpoint(given: Any, resource: str = "nvidia.com/gpu") -> dict[str, Any]:
    entry = {"PodUID": "u-0", "ContainerName": "app", "ResourceName": resource, "DeviceIDs": given, "AllocResp": "CmsKFk5W"}
    return {"Data": {"PodDeviceEntries": [entry], "RegisteredDevices": {resource: [ONE, TWO]}}, "Checksum": 3660592824}


@pytest.mark.parametrize(
    "given", [{"1": [ONE, TWO]}, {"0": [ONE], "1": [TWO]}, [ONE, TWO]], ids=["one node", "two nodes", "1.19"]
)
def test_the_checkpoint_by_numa_node_and_as_a_list(given: Any) -> None:
    document = checkpoint(given)
    assert kind_of("kubelet_internal_checkpoint", json.dumps(document).encode()) == "kubelet-devices"
    parsed = parse_checkpoint(document, file="x")
    assert parsed.facts["kubelet_devices"] == {"u-0": [Gpu(uuid=ONE), Gpu(uuid=TWO)]}
    assert not parsed.problems


def test_replicas_are_one_gpu_and_both_spellings_of_mig_are_read() -> None:
    assert plugin_devices([f"{ONE}::0", f"{ONE}::7", f"MIG-{TWO}/3/0", MIG, "tegra"]) == [
        Gpu(uuid=ONE),
        Gpu(uuid=TWO),
        Gpu(uuid=MIG),
    ]


def test_a_checkpoint_that_gave_nothing_and_one_of_another_shape() -> None:
    assert not parse_checkpoint({"Data": {"PodDeviceEntries": None}}, file="x").problems
    for odd in ({"Data": 7}, [], {"Data": {"PodDeviceEntries": "x"}}, {"Data": {"PodDeviceEntries": [{"PodUID": "u"}, 7]}}):
        assert [one.status for one in parse_checkpoint(odd, file="x").problems] == ["partial"], odd


def test_the_kubelets_report_in_a_pods_status() -> None:
    rows = [{"name": "nvidia.com/gpu", "resources": [{"resourceID": ONE, "health": "Healthy"}]}]
    rows += [{"name": "claim:gpu", "resources": [{"resourceID": TWO}]}]
    status = {"containerStatuses": [{"name": "main", "allocatedResourcesStatus": rows}]}
    pod = {"kind": "Pod", "metadata": {"name": "llm-0"}, "spec": {"nodeName": "gpu-07"}, "status": status}
    assert objects(pod).facts["pods"]["llm-0"]["devices"] == [Gpu(uuid=ONE)]


# ---- annotations


@pytest.mark.parametrize("row", table("device_annotations"), ids=lambda row: row["key"])
def test_the_example_of_each_annotation(row: dict[str, str]) -> None:
    found = annotated({row["key"]: row["example"]})
    if row["form"] == "wish":
        assert found == []
    elif row["form"] == "indices":
        assert found == [Gpu(index=int(row["example"]))]
    else:
        assert found == [Gpu(uuid=row["example"].split(",")[0])]


def test_what_was_given_counts_before_what_was_wished_and_before_unknown_keys() -> None:
    notes = {
        "nvidia.com/use-gpuuuid": f"{ONE},{TWO}",
        "site.example/gpu-history": f"{ONE} {TWO}",
        "hami.io/vgpu-devices-allocated": f"{TWO},NVIDIA,4000,0:;",
    }
    assert annotated(notes) == [Gpu(uuid=TWO)]
    assert annotated({"volcano.sh/gpu-index": "0,2"}) == [Gpu(index=0), Gpu(index=2)]
    assert annotated({"volcano.sh/gpu-index": "many"}) == []
    assert annotated({"site.example/gpu-history": ONE}) == [Gpu(uuid=ONE)]
    assert annotated({"site.example/gpu-history": ONE}, surely=True) == []
