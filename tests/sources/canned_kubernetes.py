"""Turn dictionaries of Kubernetes objects into a canned API server with lists, selectors, pages, reviews and logs."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.faults import Reply, Request
from workbench.catalog import table
from workbench.sources.contract import Answer, Deadline, Folder, Scope
from workbench.sources.kubernetes.source import Kubernetes

NOW = time.time()
JOB = "llm"
DEADLINE = 1.2  # seconds; short, so that a test of a hang is short
MANIFEST = Path(__file__).resolve().parents[2] / "workbench" / "sources" / "kubernetes" / "rbac.yaml"
_KINDS = {row["plural"]: row["kind"] for row in table("kubernetes_jobs")}
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


class Cluster:
    """A canned API server: lists with selectors, pages and continue tokens, reviews, logs."""

    def __init__(self) -> None:
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
        self.forbidden: set[str] = set()
        self.refusal = ""
        self.more: dict[str, list[dict[str, Any]]] = {}  # objects of other kinds, by plural
        self.groups = {"batch": "v1", "apps": "v1", "policy": "v1"}
        self.expired = 0  # how many continue tokens are too old
        self.log: Callable[[str, dict[str, str]], Reply | bytes] = lambda name, query: LOG.encode()

    def __call__(self, request: Request) -> Reply | bytes:
        """Answer one request."""
        parts = urlsplit(request.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        path = parts.path
        if path == "/version":
            return json.dumps({"gitVersion": "v1.36.3"}).encode()
        if path == "/apis":
            groups = self.groups
            return json.dumps(
                {
                    "kind": "APIGroupList",
                    "groups": [{"name": name, "preferredVersion": {"version": version}} for name, version in groups.items()],
                }
            ).encode()
        if path.endswith("selfsubjectreviews"):
            return json.dumps({"status": {"userInfo": {"username": "reader", "groups": ["system:authenticated"]}}}).encode()
        if path.endswith("selfsubjectaccessreviews"):
            spec = json.loads(request.body)["spec"]["resourceAttributes"]
            return json.dumps({"status": {"allowed": spec["resource"] not in self.forbidden}}).encode()
        found = re.match(
            r"/api(?:s/[^/]+)?/[^/]+(?:/namespaces/([^/]+))?/(pods|nodes|events|jobs|poddisruptionbudgets|\w+)(?:/([^/]+))?(/log)?$",
            path,
        )
        assert found, path
        space, kind, name, log = found.groups()
        if kind in self.forbidden or (log and "log" in self.forbidden):
            return status(403, self.refusal or f'{kind} is forbidden: User "reader" cannot list resource "{kind}"')
        if log:
            return self.log(str(name), query)
        every = {"pods": self.pods, "nodes": self.nodes, "events": self.events, "jobs": self.jobs, **self.more}.get(kind, [])
        every = [one for one in every if space in (None, one["metadata"].get("namespace"))]
        if name:
            mine = [one for one in every if one["metadata"].get("name") == name]
            return (
                json.dumps({"kind": kind[:-1].capitalize(), "apiVersion": "v1", **mine[0]}).encode()
                if mine
                else status(404, f'{kind} "{name}" not found')
            )
        return self._list(kind, every, query)

    def _list(self, kind: str, every: list[dict[str, Any]], query: dict[str, str]) -> Reply | bytes:
        label, field = query.get("labelSelector", ""), query.get("fieldSelector", "")
        if label:
            key, _, value = label.partition("=")
            every = [one for one in every if _labels(one).get(key) == value]
        if field.startswith("metadata.name="):
            every = [one for one in every if one["metadata"].get("name") == field.partition("=")[2]]
        if field.endswith("kind=Node"):
            every = [
                one
                for one in every
                if (one.get("involvedObject") or {}) == {}
                or one["involvedObject"] == 7
                or one["involvedObject"]["kind"] == "Node"
            ]
        start, size = int(query.get("continue", "0")), int(query.get("limit", "100000"))
        if start and self.expired:
            self.expired -= 1
            return status(410, "The provided continue parameter is too old", metadata={"continue": "1"})
        rest = str(start + size) if start + size < len(every) else ""
        return json.dumps(
            {
                "kind": _KINDS.get(kind, kind[:-1].capitalize()) + "List",
                "apiVersion": "v1",
                "metadata": {"continue": rest},
                "items": every[start : start + size],
            }
        ).encode()


def _labels(item: dict[str, Any]) -> dict[str, str]:
    labels = item["metadata"].get("labels")
    return labels if isinstance(labels, dict) else {}


def status(code: int, message: str, **more: Any) -> Reply:
    """Return a failure as the API server writes it."""
    return Reply(
        json.dumps(
            {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code, **more}
        ).encode(),
        code,
    )


def kubeconfig(folder: Path, url: str, **cluster: Any) -> Path:
    """Write a kubeconfig and return its path."""
    path = folder / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url, **cluster}}],
        "users": [{"name": "u", "user": {"token": "geheim"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "train"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def scope(**more: Any) -> Scope:
    """The question: this job, the last hour."""
    return Scope(**{"job": JOB, "since": NOW - 3600, "until": NOW, "namespace": "train", **more})


def collect(source: Kubernetes, root: Path, seconds: float = DEADLINE, **more: Any) -> list[Answer]:
    """Collect within the deadline, which is part of what is tested."""
    began = time.monotonic()
    answers = source.collect(scope(**more), Folder(root / "incident"), Deadline(seconds))
    assert time.monotonic() - began < seconds + 1
    assert not any("geheim" in str(answer) for answer in answers)
    return answers


def bad(answers: list[Answer]) -> str:
    """Return what failed, in words."""
    return " | ".join(f"{one.detail} [{one.hint}]" for one in answers if one.status == "failed")
