"""Turn dictionaries of Kubernetes objects into a small cluster on the shipped fake of an API server."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from workbench.sources.contract import Answer, Deadline, Folder, Scope
from workbench.sources.kubernetes.source import Kubernetes as Source
from workbench.testing.faults import Reply
from workbench.testing.kubernetes import Kubernetes
from workbench.testing.kubernetes import kubeconfig as written

NOW = time.time()
JOB = "llm"
DEADLINE = 1.2  # seconds; short, so that a test of a hang is short
PATIENT = 6.0  # of what does not hang: a loaded machine is no fault


def within(fault: str) -> float:
    """Return the deadline for a fault: short for those that use it up."""
    return DEADLINE if fault in ("hang", "slow") else PATIENT


MANIFEST = Path(__file__).resolve().parents[2] / "workbench" / "sources" / "kubernetes" / "rbac.yaml"
LOG = "2026-05-04T11:02:03.123456789Z Traceback (most recent call last):\n2026-05-04T11:02:03.2Z RuntimeError: boom\n"


def stamp(ago: float) -> str:
    """Return a time so many seconds ago, as Kubernetes writes it."""
    return datetime.fromtimestamp(NOW - ago, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod(number: int, *, space: str = "train", ended: bool = True, restarts: int = 0) -> dict[str, Any]:
    """Return a pod of the job on a node of its own."""
    state: dict[str, Any] = {"running": {}}
    if ended:
        state = {
            "terminated": {
                "exitCode": 1,
                "reason": "Error",
                "message": "",
                "startedAt": stamp(700),
                "finishedAt": stamp(100 - number),
            }
        }
    return {
        "metadata": {
            "name": f"{JOB}-{number}",
            "namespace": space,
            "uid": f"uid-{number}",
            "creationTimestamp": stamp(800),
            "labels": {"job-name": JOB},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": JOB, "uid": "uid-job"}],
            "managedFields": [{"manager": "kubelet"}],
        },
        "spec": {
            "nodeName": f"gpu-{number}",
            "containers": [{"name": "main", "image": "x", "env": [{"name": "HF_TOKEN", "value": "geheim"}]}],
        },
        "status": {
            "phase": "Failed" if ended else "Running",
            "startTime": stamp(750),
            "containerStatuses": [{"name": "main", "restartCount": restarts, "state": state}],
        },
    }


def node(number: int) -> dict[str, Any]:
    """Return a node with eight GPUs."""
    size = {"nvidia.com/gpu": "8"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
    return {
        "metadata": {"name": f"gpu-{number}", "labels": {}},
        "spec": {},
        "status": {"capacity": size, "allocatable": size, "conditions": [ready], "images": [{"names": ["x"]}]},
    }


def event(number: int, ago: float = 110.0) -> dict[str, Any]:
    """Return an event of a pod."""
    return {
        "metadata": {"name": f"e{number}", "namespace": "train", "uid": f"e-{number}"},
        "involvedObject": {"kind": "Pod", "name": f"{JOB}-{number}", "namespace": "train"},
        "reason": "Preempted",
        "message": "Preempted by pod 1",
        "type": "Warning",
        "firstTimestamp": stamp(ago),
        "lastTimestamp": stamp(ago),
    }


class Cluster(Kubernetes):
    """The shipped fake of an API server with a small cluster that a test can change at any time."""

    def __init__(self) -> None:
        super().__init__([])
        self.pods = [pod(0), pod(1)]
        self.nodes = [node(0), node(1), node(2)]
        self.events = [event(0), event(1)]
        self.jobs = [
            {
                "metadata": {"name": JOB, "namespace": "train", "uid": "uid-job", "creationTimestamp": stamp(800)},
                "spec": {},
                "status": {
                    "startTime": stamp(790),
                    "conditions": [
                        {
                            "type": "Failed",
                            "status": "True",
                            "reason": "BackoffLimitExceeded",
                            "message": "Job has reached the specified backoff limit",
                            "lastTransitionTime": stamp(90),
                        }
                    ],
                },
            }
        ]
        self.more: dict[str, list[dict[str, Any]]] = {}  # objects of other kinds, by plural
        self.told: Callable[[str, Mapping[str, str]], Reply | bytes] = lambda name, query: LOG.encode()

    def objects(self, group: str, plural: str) -> list[dict[str, Any]]:
        """Return the objects that the test has put in place."""
        core = {"pods": self.pods, "nodes": self.nodes, "events": self.events}
        return {**core, "jobs": self.jobs if group == "batch" else [], **self.more}.get(plural, [])

    def log(self, pod: str, query: Mapping[str, str]) -> Reply | bytes:
        """Answer for a pod's log with what the test told."""
        return self.told(pod, query)


def kubeconfig(folder: Path, url: str, **cluster: Any) -> Path:
    """Write a kubeconfig with a secret in it and return its path."""
    return written(folder, url, namespace="train", token="geheim", **cluster)


def scope(**more: Any) -> Scope:
    """The question: this job, the last hour."""
    return Scope(**{"job": JOB, "since": NOW - 3600, "until": NOW, "namespace": "train", **more})


def collect(source: Source, root: Path, seconds: float = PATIENT, **more: Any) -> list[Answer]:
    """Collect within the deadline, which is part of what is tested."""
    began = time.monotonic()
    answers = source.collect(scope(**more), Folder(root / "incident"), Deadline(seconds))
    assert time.monotonic() - began < seconds + 1
    assert not any("geheim" in str(answer) for answer in answers)
    return answers


def bad(answers: list[Answer]) -> str:
    """Return what failed, in words."""
    return " | ".join(f"{one.detail} [{one.hint}]" for one in answers if one.status == "failed")
