"""A pod's process calls its first GPU 0, whichever of the node's it is: what the platform gave it tells which GPU and rank failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import workbench
from workbench.incident import IncidentVerdict

ADDRESSES = ("1b", "3a", "4b", "5c", "9d", "ab", "bc", "cd")
UUIDS = tuple(f"GPU-9b341c59-f96b-ba85-c137-78c3652fea{at:02d}" for at in range(8))
NODE = "gpu-node-007"
XID = "Xid (PCI:0000:{}:00): 79, pid=1000, name=python, GPU has fallen off the bus."


def pod(number: int, gpus: int = 1, **more: Any) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(gpus)}
    status = {"phase": "Running", "startTime": "2026-03-02T09:59:00Z", **more.pop("status", {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"llm-{number}",
            "namespace": "train",
            "uid": f"uid-{number}",
            "labels": {"batch.kubernetes.io/job-name": "llm", "batch.kubernetes.io/job-completion-index": str(number)},
            "annotations": more.pop("annotations", {}),
            "ownerReferences": [{"kind": "Job", "name": "llm"}],
        },
        "spec": {
            "nodeName": NODE,
            "containers": [{"name": "main", "resources": {"limits": limits}, "args": ["torchrun", f"--nproc-per-node={gpus}"]}],
            **more,
        },
        "status": status,
    }


def job(root: Path, pods: list[dict[str, Any]], *, lost: int, ranks: int = 2, each: int = 1) -> None:
    """Write the pods, their logs (each rank sees its GPUs from 0 on) and a kernel log in which one of the node's eight GPUs is lost."""
    (root / "logs").mkdir(parents=True)
    (root / "kernel").mkdir()
    (root / "metrics").mkdir()
    write(root, "pods.json", *pods)
    for number in range(ranks // each):
        rows = []
        for local in range(each):
            rank = number * each + local
            rows.append(f"2026-03-02 10:00:00,000 | rank {rank}/{ranks} local_rank {local} on {NODE} cuda:{local} (NVIDIA H100)")
        rows += [
            f"2026-03-02 10:{step // 60:02d}:{step % 60:02d},000 | rank {number * each} | step {step}/9000 | loss 2.4"
            for step in range(10, 600, 10)
        ]
        rows.append("2026-03-02 10:10:03,000 | RuntimeError: NCCL communicator was aborted")
        (root / "logs" / f"llm-{number}.log").write_text("\n".join(rows) + "\n", encoding="utf-8")
    line = f"2026-03-02T10:10:01.000000+0000 {NODE} kernel: NVRM: {XID.format(ADDRESSES[lost])}"
    (root / "kernel" / f"{NODE}.log").write_text(line + "\n", encoding="utf-8")
    rows = [
        f'DCGM_FI_DEV_GPU_TEMP{{gpu="{at}",UUID="{uuid}",pci_bus_id="00000000:{ADDRESSES[at].upper()}:00.0",Hostname="{NODE}"}} 61'
        for at, uuid in enumerate(UUIDS)
    ]
    (root / "metrics" / f"{NODE}.prom").write_text("\n".join(rows) + "\n", encoding="utf-8")


def write(root: Path, name: str, *items: dict[str, Any]) -> None:
    (root / name).write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)}, indent=1), encoding="utf-8")


def by_claims(root: Path, given: dict[int, tuple[int, ...]]) -> list[dict[str, Any]]:
    """Write claims and slices as a cluster with dynamic resource allocation has them."""
    claims, pods = [], []
    for number, gpus in given.items():
        results = [{"request": "gpu", "driver": "gpu.nvidia.com", "pool": NODE, "device": f"gpu-{gpu}"} for gpu in gpus]
        results.append({"request": "channel", "driver": "compute-domain.nvidia.com", "pool": NODE, "device": "channel-0"})
        claims.append(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": f"llm-{number}-gpu", "namespace": "train"},
                "status": {
                    "allocation": {"devices": {"results": results}},
                    "reservedFor": [{"resource": "pods", "name": f"llm-{number}", "uid": f"uid-{number}"}],
                },
            }
        )
        pods.append(pod(number, len(gpus)))
    devices = [
        {"name": f"gpu-{at}", "attributes": {"uuid": {"string": uuid}, "pcieBusID": {"string": f"0000:{ADDRESSES[at]}:00.0"}}}
        for at, uuid in enumerate(UUIDS)
    ]
    spec = {"driver": "gpu.nvidia.com", "nodeName": NODE, "pool": {"name": NODE, "generation": 1}, "devices": devices}
    slices = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "x"}, "spec": spec}
    write(root, "resourceclaims.json", *claims)
    write(root, "resourceslices.json", slices)
    return pods


def by_checkpoint(root: Path, given: dict[int, tuple[int, ...]]) -> list[dict[str, Any]]:
    entries = [
        {
            "PodUID": f"uid-{number}",
            "ContainerName": "main",
            "ResourceName": "nvidia.com/gpu",
            "DeviceIDs": {"0": [f"{UUIDS[gpu]}::1" for gpu in gpus]},
        }
        for number, gpus in given.items()
    ]
    document = {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {"nvidia.com/gpu": UUIDS}}, "Checksum": 1}
    (root / "kubelet_internal_checkpoint").write_text(json.dumps(document), encoding="utf-8")
    return [pod(number, len(gpus)) for number, gpus in given.items()]


def by_annotation(root: Path, given: dict[int, tuple[int, ...]]) -> list[dict[str, Any]]:
    return [
        pod(
            number,
            len(gpus),
            annotations={"hami.io/vgpu-devices-allocated": ":".join(f"{UUIDS[gpu]},NVIDIA,81559,100" for gpu in gpus) + ":;"},
        )
        for number, gpus in given.items()
    ]


def by_index(root: Path, given: dict[int, tuple[int, ...]]) -> list[dict[str, Any]]:
    return [
        pod(number, len(gpus), annotations={"volcano.sh/gpu-index": ",".join(map(str, gpus))}) for number, gpus in given.items()
    ]


def by_status(root: Path, given: dict[int, tuple[int, ...]]) -> list[dict[str, Any]]:
    def rows(gpus: tuple[int, ...]) -> list[dict[str, Any]]:
        resources = [{"resourceID": UUIDS[gpu], "health": "Healthy"} for gpu in gpus]
        return [{"name": "main", "allocatedResourcesStatus": [{"name": "nvidia.com/gpu", "resources": resources}]}]

    return [pod(number, len(gpus), status={"containerStatuses": rows(gpus)}) for number, gpus in given.items()]


WAYS = [by_claims, by_checkpoint, by_annotation, by_index, by_status]


def judged(root: Path) -> IncidentVerdict:
    return workbench.load(root).triage()


@pytest.mark.parametrize("way", WAYS)
def test_the_rank_of_the_pod_that_had_the_lost_gpu(tmp_path: Path, way: Any) -> None:
    """Two pods on one node; both call their GPU 0, and the second has the node's sixth."""
    (tmp_path / "x").mkdir()
    pods = way(tmp_path / "x", {0: (2,), 1: (5,)})
    job(tmp_path / "x", pods, lost=5)
    verdict = judged(tmp_path / "x")
    assert (verdict.cls, verdict.node, verdict.rank) == ("hardware/gpu-lost", NODE, 1)
    assert verdict.gpu is not None
    assert (verdict.gpu.index, verdict.gpu.uuid) == (5, UUIDS[5])


@pytest.mark.parametrize("way", WAYS)
def test_the_gpus_of_one_pod_are_numbered_by_address(tmp_path: Path, way: Any) -> None:
    """One pod of two ranks with the node's sixth and third GPU, listed in that order: the sixth is its second."""
    (tmp_path / "x").mkdir()
    pods = way(tmp_path / "x", {0: (5, 2)})
    job(tmp_path / "x", pods, lost=5, each=2)
    assert judged(tmp_path / "x").rank == 1


def test_without_assignments_the_local_rank_is_taken_for_the_index(tmp_path: Path) -> None:
    """What the tests above are about: here rank 0 of each pod looks like the node's first GPU, and nobody had the sixth."""
    job(tmp_path / "x", [pod(0), pod(1)], lost=5)
    assert judged(tmp_path / "x").rank is None


@pytest.mark.parametrize("way", WAYS)
def test_a_gpu_that_another_pod_had_is_hardly_the_cause(tmp_path: Path, way: Any) -> None:
    (tmp_path / "x").mkdir()
    pods = way(tmp_path / "x", {0: (2,), 1: (3,)})
    job(tmp_path / "x", pods, lost=5)
    verdict = judged(tmp_path / "x")
    assert verdict.confidence < 0.6 or verdict.cls != "hardware/gpu-lost", verdict.summary
    (tmp_path / "y").mkdir()
    job(tmp_path / "y", way(tmp_path / "y", {0: (2,), 1: (5,)}), lost=5)
    assert judged(tmp_path / "y").confidence >= 0.8
