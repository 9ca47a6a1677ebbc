"""Turn plain dictionaries into a small GPU site on a real Kubernetes API server, playing kubelet and operators where there are none."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from workbench.sources.contract import Answer, Deadline, Folder, Scope
from workbench.sources.kubernetes.source import Kubernetes

MANIFEST = Path(__file__).resolve().parents[2] / "workbench" / "sources" / "kubernetes" / "rbac.yaml"
XID = "NVRM: Xid (PCI:0000:9d:00): 79, pid=2004356, name=python, GPU has fallen off the bus."
SERVICE = Path(__file__).resolve().parent.parent / "services" / "kubernetes"


def run(*words: str | Path) -> str:
    """Run one of the service's scripts and return what it prints."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=900, env=os.environ)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout.strip()


@contextlib.contextmanager
def control_plane(folder: Path, *words: str) -> Iterator[Path]:
    """Run a control plane in a folder, started with these options of the service; yields the folder."""
    run(SERVICE / "start", folder, *words)
    try:
        yield folder
    finally:
        run(SERVICE / "stop", folder)


def reader_of(work: Path, namespace: str, name: str) -> Path:
    """Return a kubeconfig of an account that may read, when its rights are in effect."""
    path = Path(run(SERVICE / "kubeconfig-for", work, namespace, name))
    source = Kubernetes(str(path))
    until("rights", lambda: all(line.status == "ok" for line in source.examine(Deadline(10)) if line.item.startswith("rights")))
    return path


def stamp(ago: float = 0.0) -> str:
    """Return a time so many seconds ago, as Kubernetes writes it."""
    return datetime.fromtimestamp(time.time() - ago, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def until(what: str, question: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if answer := question():
            return answer
        time.sleep(0.1)
    raise AssertionError(f"{what} did not come in {seconds} s")


def granted(site: Site, namespace: str, manifest: Path = MANIFEST) -> None:
    """Apply a manifest that ships with the package; its account is there when this returns."""
    kubectl = Path(run(SERVICE / "build")) / "kubectl"
    run(kubectl, "--kubeconfig", site.kubeconfig, "apply", "-f", manifest)
    until("the service account", lambda: site.core.list_namespaced_service_account(namespace).items)


class Site:
    """A cluster that tests fill: nodes, jobs, pods with their ends, events."""

    def __init__(self, kubeconfig: Path) -> None:
        from kubernetes import client, config

        self.kubeconfig = kubeconfig
        self.api = config.new_client_from_config(str(kubeconfig))
        self.core, self.custom, self.batch = (
            client.CoreV1Api(self.api),
            client.CustomObjectsApi(self.api),
            client.BatchV1Api(self.api),
        )
        self.rbac, self.ext = client.RbacAuthorizationV1Api(self.api), client.ApiextensionsV1Api(self.api)
        self.policy = client.PolicyV1Api(self.api)

    def namespace(self, name: str) -> None:
        """Make a namespace and wait for its service account."""
        self.core.create_namespace({"metadata": {"name": name}})
        until("service account", lambda: self.core.list_namespaced_service_account(name).items)

    def crds(self, folder: Path) -> None:
        """Install the real definitions of JobSet, PyTorchJob, TrainJob and Workload."""
        self.defined(file for file in sorted(folder.glob("*.yaml")) if "karpenter" not in file.name)

    def defined(self, files: Iterable[Path]) -> None:
        """Install definitions, and wait until all of them are served: the server takes them up together, and waits some seconds for each alone."""
        kinds = []
        for file in files:
            for crd in filter(None, yaml.safe_load_all(file.read_text(encoding="utf-8"))):
                if (crd["spec"].get("conversion") or {}).get("strategy") == "Webhook":
                    del crd["spec"]["conversion"]
                self.ext.create_custom_resource_definition(crd)
                version = next(one["name"] for one in crd["spec"]["versions"] if one["served"])
                kinds.append((crd["spec"]["group"], version, crd["spec"]["names"]["plural"]))

        def served(kind: tuple[str, str, str]) -> bool:
            with contextlib.suppress(Exception):
                self.custom.list_cluster_custom_object(*kind)
                return True
            return False

        for kind in kinds:
            until(".".join(kind), partial(served, kind), 60.0)

    def node(
        self, name: str, *, gpus: int = 8, usable: int | None = None, conditions: tuple[dict[str, str], ...] = (), **spec: Any
    ) -> None:
        """Make a node with GPUs and conditions."""
        labels = {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
        self.core.create_node({"metadata": {"name": name, "labels": labels}, "spec": spec})
        base = {"Ready": "True", "MemoryPressure": "False", "DiskPressure": "False"}
        rows = [
            {"type": kind, "status": state, "reason": "Kubelet", "message": "", "lastTransitionTime": stamp(90000)}
            for kind, state in base.items()
            if kind not in [row["type"] for row in conditions]
        ]
        size = {"cpu": "208", "memory": "1800Gi", "pods": "110"}
        status = {
            "capacity": {**size, "nvidia.com/gpu": str(gpus)},
            "allocatable": {**size, "nvidia.com/gpu": str(gpus if usable is None else usable)},
            "conditions": [*rows, *conditions],
        }
        self.core.patch_node_status(name, {"status": status})

    def pod(
        self, space: str, name: str, node: str, *, labels: dict[str, str], owner: dict[str, Any] | None = None, **more: Any
    ) -> None:
        """Make a pod that is bound to a node."""
        meta: dict[str, Any] = {"name": name, "labels": labels}
        if owner:
            meta["ownerReferences"] = [reference(owner)]
        self.core.create_namespaced_pod(space, {"metadata": meta, "spec": pod_spec(node, **more)})

    def ends(
        self, space: str, pod: str, code: int, *, reason: str = "Error", message: str = "", ago: float = 0.0, **status: Any
    ) -> None:
        """Let the container of a pod end, as its kubelet would write it."""
        ended = {"exitCode": code, "reason": reason, "message": message, "startedAt": stamp(ago + 600), "finishedAt": stamp(ago)}
        container = {
            "name": "main",
            "image": "none",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"terminated": ended},
        }
        body = {
            "phase": "Failed" if code else "Succeeded",
            "startTime": stamp(ago + 600),
            "containerStatuses": [container],
            **status,
        }
        self.core.patch_namespaced_pod_status(pod, space, {"status": body})

    def event(
        self,
        space: str,
        kind: str,
        name: str,
        reason: str,
        message: str,
        *,
        ago: float = 0.0,
        source: str = "kubelet",
        host: str = "",
        severity: str = "Warning",
    ) -> None:
        """Write an event as a controller or a monitor does."""
        where = {} if kind == "Node" else {"namespace": space}
        self.core.create_namespaced_event(
            space,
            {
                "metadata": {"generateName": f"{name}."},
                "involvedObject": {"kind": kind, "name": name, **where},
                "reason": reason,
                "message": message,
                "type": severity,
                "firstTimestamp": stamp(ago),
                "lastTimestamp": stamp(ago),
                "count": 1,
                "source": {"component": source, "host": host},
            },
        )

    def job(self, space: str, name: str, nodes: tuple[str, ...], **more: Any) -> list[str]:
        """Make a Job, let the real controller make its pods, bind them, and return their names."""
        self.batch.create_namespaced_job(
            space,
            {
                "metadata": {"name": name},
                "spec": {
                    "completions": len(nodes),
                    "parallelism": len(nodes),
                    "completionMode": "Indexed",
                    "backoffLimit": 0,
                    "template": {"spec": {**pod_spec(None, **more), "restartPolicy": "Never"}},
                },
            },
        )

        def made() -> list[Any]:
            pods = self.core.list_namespaced_pod(space, label_selector=f"job-name={name}").items
            return pods if len(pods) == len(nodes) else []

        names = sorted(pod.metadata.name for pod in until("the pods of the Job", made))
        for pod, node in zip(names, nodes, strict=True):
            target = {"metadata": {"name": pod}, "target": {"apiVersion": "v1", "kind": "Node", "name": node}}
            self.core.create_namespaced_binding(space, target, _preload_content=False)
        return names

    def custom_object(self, group: str, version: str, plural: str, space: str, body: dict[str, Any]) -> dict[str, Any]:
        """Make an object of an installed definition, with its status."""
        made = self.custom.create_namespaced_custom_object(group, version, space, plural, body)
        if "status" in body:
            made = self.custom.patch_namespaced_custom_object_status(
                group, version, space, plural, body["metadata"]["name"], {"status": body["status"]}
            )
        return dict(made)


def pod_spec(node: str | None, gpus: int = 8, env: dict[str, str] | None = None, args: list[str] | None = None) -> dict[str, Any]:
    """Return the spec of a pod with one container that wants GPUs."""
    container = {
        "name": "main",
        "image": "none",
        "args": args or [],
        "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    shm = {"name": "shm", "emptyDir": {"medium": "Memory"}}
    return {"containers": [container], "volumes": [shm], **({"nodeName": node} if node else {})}


def reference(owner: dict[str, Any]) -> dict[str, Any]:
    """Return the reference to an owner."""
    meta = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }


def failed_pytorchjob(site: Site) -> str:
    """Make a PyTorchJob of three pods: the GPU of gpu-node-b fell off the bus, and the others died with it."""
    name = "llm-7b"
    template = {
        "spec": {"containers": [{"name": "pytorch", "image": "none", "env": [{"name": "HF_TOKEN", "value": "geheim-1"}]}]}
    }
    job = site.custom_object(
        "kubeflow.org",
        "v1",
        "pytorchjobs",
        "train",
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": name, "annotations": {"kubectl.kubernetes.io/last-applied-configuration": '{"a": "geheim-2"}'}},
            "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 3, "template": template}}},
            "status": {
                "startTime": stamp(700),
                "completionTime": stamp(90),
                "conditions": [
                    {
                        "type": "Failed",
                        "status": "True",
                        "reason": "PyTorchJobFailed",
                        "message": f"PyTorchJob {name} is failed because 3 Worker replica(s) failed.",
                        "lastTransitionTime": stamp(90),
                    }
                ],
                "replicaStatuses": {},
            },
        },
    )
    for at, node in enumerate(("gpu-node-a", "gpu-node-b", "gpu-node-c")):
        labels = {"training.kubeflow.org/job-name": name, "training.kubeflow.org/replica-index": str(at), "gang": name}
        env = {"WANDB_API_KEY": "geheim-3", "PET_NPROC_PER_NODE": "8", "PET_NNODES": "3", "DATA": "s3://user:geheim-4@store/x"}
        pod = f"{name}-worker-{at}"
        site.pod("train", pod, node, labels=labels, owner=job, env=env, args=["train.py", "--api-key", "geheim-5"])
        site.event(
            "train",
            "Pod",
            pod,
            "Scheduled",
            f"Successfully assigned train/{pod} to {node}",
            ago=690,
            source="default-scheduler",
            severity="Normal",
        )
    site.ends("train", f"{name}-worker-1", 1, message="RuntimeError: CUDA error: unspecified launch failure", ago=118)
    for at in (0, 2):
        site.ends(
            "train",
            f"{name}-worker-{at}",
            1,
            message="[rank0]: torch.distributed.DistBackendError: NCCL communicator was aborted on rank 0.",
            ago=100,
        )
    site.event("default", "Node", "gpu-node-b", "XidCriticalError", XID, ago=120, source="gpu-monitor", host="gpu-node-b")
    site.event(
        "default",
        "Node",
        "gpu-node-z",
        "NodeNotReady",
        "Node gpu-node-z status is now: NodeNotReady",
        ago=120,
        source="node-controller",
    )
    site.policy.create_namespaced_pod_disruption_budget(
        "train", {"metadata": {"name": "llm"}, "spec": {"minAvailable": 3, "selector": {"matchLabels": {"gang": name}}}}
    )
    return name


def without(site: Site, work: Path, name: str, lacks: str) -> Path:
    """Return the kubeconfig of an account with the shipped rights but one resource."""
    rules: list[dict[str, Any]] = []
    for document in yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8")):
        for rule in document.get("rules") or []:
            rest = [resource for resource in rule["resources"] if resource != lacks]
            rules += [{**rule, "resources": rest}] if rest else []
    site.rbac.create_cluster_role({"metadata": {"name": name}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    site.rbac.create_cluster_role_binding({"metadata": {"name": name}, "roleRef": role, "subjects": [subject]})
    path = Path(run(SERVICE / "kubeconfig-for", work, "default", name))
    source = Kubernetes(str(path))

    def in_effect() -> bool:
        granted = [line.status == "ok" for line in source.examine(Deadline(10)) if line.item.startswith("rights")]
        return sum(granted) > 10

    until("the role", in_effect)
    return path


def scope_of(job: str, **more: Any) -> Scope:
    """The question as a person asks it: a name, and the last day."""
    return Scope(job, time.time() - 86400, time.time() + 5, **more)


def gather(source: Kubernetes, job: str, root: Path, **more: Any) -> tuple[Scope, list[Answer]]:
    """Locate, then collect, as the command line does."""
    scope = source.locate(scope_of(job, **more), Deadline(20))
    assert scope is not None
    return scope, source.collect(scope, Folder(root), Deadline(20))


def of(answers: list[Answer], file: str) -> Answer:
    """Return the answer for one file."""
    return next(one for one in answers if one.file == file)
