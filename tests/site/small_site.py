"""Turn a few plain values into a small GPU site of fakes: an API server, a Prometheus and Slurm's commands, with what each tells now."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from workbench.config import Config, load_config
from workbench.health.conditions import NodeCondition
from workbench.testing import FaultServer, Kubernetes, Prometheus, Slurm
from workbench.testing.kubernetes import kubeconfig
from workbench.testing.promql import Series

GPUS = 8


def stamp(ago: float = 0.0) -> str:
    """Return a moment so many seconds ago, as Kubernetes writes it."""
    return datetime.fromtimestamp(time.time() - ago, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(
    kind: str, status: str, reason: str = "Fine", message: str = "", *, ago: float = 30.0, since: float = 3600.0
) -> dict[str, str]:
    """Return a condition as our checker or a kubelet writes it."""
    now = time.time()
    return NodeCondition(kind, status, reason, message, now - ago, now - since).to_dict()


def fit(status: str = "False", **more: Any) -> dict[str, str]:
    """Return the condition that tells whether a node may get a job."""
    return condition("WorkbenchNodeUnfit", status, "NodeFit", "nothing was found that makes the node unfit", **more)


def node(
    name: str, *conditions: Mapping[str, str], ready: str = "True", gpus: int = GPUS, usable: int | None = None, **spec: Any
) -> dict[str, Any]:
    """Return a node as the API server has it."""
    about = {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": str(gpus), "nvidia.com/gpu.present": "true",
        "karpenter.sh/nodepool": "h100-train", "topology.kubernetes.io/zone": "zone-a",
    }  # fmt: skip
    base = [
        condition("Ready", ready, "KubeletReady" if ready == "True" else "NodeStatusUnknown", "kubelet is posting ready status")
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": about, "creationTimestamp": stamp(1e6)},
        "spec": spec,
        "status": {
            "capacity": {"nvidia.com/gpu": str(gpus)},
            "allocatable": {"nvidia.com/gpu": str(gpus if usable is None else usable)},
            "conditions": [*base, *conditions],
            "addresses": [{"type": "InternalIP", "address": f"10.0.0.{len(name)}"}],
            "nodeInfo": {"bootID": "boot-1"},
        },
    }


def pod(name: str, where: str, job: str, gpus: int = GPUS, **labels: str) -> dict[str, Any]:
    """Return a pod of a training job that runs."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "ml", "uid": f"uid-{name}", "creationTimestamp": stamp(7200),
            "labels": {"training.kubeflow.org/job-name": job, "training.kubeflow.org/replica-index": "0", **labels},
            "ownerReferences": [{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": job, "uid": f"uid-{job}", "controller": True}],
        },
        "spec": {"nodeName": where, "containers": [{"name": "pytorch", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}]},
        "status": {"phase": "Running", "startTime": stamp(7200)},
    }  # fmt: skip


def warning(where: str, reason: str, message: str, *, component: str = "gpu-workbench", ago: float = 60.0) -> dict[str, Any]:
    """Return an event of a node."""
    return {
        "apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": reason, "message": message, "count": 1,
        "metadata": {"name": f"{where}.{reason}", "namespace": "default", "uid": f"uid-{where}-{reason}"},
        "involvedObject": {"kind": "Node", "name": where, "uid": where}, "source": {"component": component, "host": where},
        "firstTimestamp": stamp(ago + 600), "lastTimestamp": stamp(ago),
    }  # fmt: skip


def gpu(name: str, index: int, **more: str) -> dict[str, str]:
    """Return the labels of a GPU as dcgm-exporter has them."""
    return {
        "Hostname": name, "gpu": str(index), "UUID": f"GPU-{name}-{index}", "pci_bus_id": f"00000000:{16 * (index + 1):02X}:00.0",
        "modelName": "NVIDIA H100 80GB HBM3", "instance": f"{name}:9400", "job": "dcgm", **more,
    }  # fmt: skip


def series(name: str, labels: Mapping[str, str], *values: float, until: float = 0.0, every: float = 60.0) -> Series:
    """Return the samples of one series, the last of them `until` seconds ago; one value stands for an hour of it."""
    told = list(values) * 60 if len(values) == 1 else list(values)
    end = time.time() - until
    return Series(
        {"__name__": name, **labels}, [end - every * (len(told) - 1 - i) for i in range(len(told))], [float(v) for v in told]
    )


def exporter(name: str, gpus: Iterable[int] = range(GPUS), *, until: float = 0.0, **more: str) -> list[Series]:
    """Return what a healthy node's exporter tells."""
    values = {
        "DCGM_FI_DEV_GPU_TEMP": 41,
        "DCGM_FI_DEV_POWER_USAGE": 610.5,
        "DCGM_FI_DEV_GPU_UTIL": 98,
        "DCGM_FI_DEV_FB_USED": 70000,
        "DCGM_FI_DEV_XID_ERRORS": 0,
    }
    return [series(field, gpu(name, i, **more), value, until=until) for i in gpus for field, value in values.items()]


@dataclass
class Here:
    """A running site; `kubernetes` and `prometheus` are servers whose `fault` can be set."""

    config: Config
    kubernetes: FaultServer | None = None
    prometheus: FaultServer | None = None


@contextmanager
def small(
    folder: Path,
    objects: Iterable[dict[str, Any]] = (),
    metrics: Iterable[Series] = (),
    slurm: Slurm | None = None,
    **settings: str,
) -> Iterator[Here]:
    """Serve objects, series and commands until the block ends; what is None or empty is not configured."""
    objects, metrics = list(objects), list(metrics)
    environ = {
        "HOME": str(folder),
        "WORKBENCH_NODE_ENABLED": "false",
        "WORKBENCH_REMEDIATION_JOURNAL": str(folder / "journal.jsonl"),
        **settings,
    }
    environ.setdefault("WORKBENCH_DEADLINE", "60s")
    with ExitStack() as stack:
        here = Here(load_config(environ=environ))
        if objects:
            here.kubernetes = stack.enter_context(FaultServer(Kubernetes(objects)))
            environ["KUBECONFIG"] = str(kubeconfig(folder, here.kubernetes.url))
        else:
            environ["WORKBENCH_KUBERNETES_ENABLED"] = "false"
        if metrics:
            here.prometheus = stack.enter_context(FaultServer(Prometheus(metrics)))
            environ["PROMETHEUS_URL"] = here.prometheus.url
        if slurm is None:
            environ["WORKBENCH_SLURM_ENABLED"] = "false"
        else:
            place = slurm.install(folder / "bin")
            environ["WORKBENCH_SLURM_PREFIX"] = f"/usr/bin/env PATH={place}:/usr/bin:/bin"
        here.config = load_config(environ=environ)
        yield here
