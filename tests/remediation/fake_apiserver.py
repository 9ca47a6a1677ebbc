"""Turn dictionaries into the part of a Kubernetes API server that remediation writes to: versions, uids, field managers, evictions, leases."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from workbench.remediation.executors.contract import Deadline
from workbench.remediation.executors.kubernetes.executor import Kubernetes
from workbench.remediation.model import OWNER, Action
from workbench.sources.kubernetes.selectors import covers
from workbench.testing.faults import FaultServer, Reply, Request
from workbench.testing.kubernetes import kubeconfig

__all__ = ["FakeApiServer", "FakeWorld"]

STAMP = "2026-11-01T10:00:00Z"
_PATHS = {
    r"/api/v1/nodes(?:/(?P<name>[^/]+))?": "nodes",
    r"/api/v1(?:/namespaces/(?P<space>[^/]+))?/pods(?:/(?P<name>[^/]+))?(?P<sub>/eviction)?": "pods",
    r"/api/v1/namespaces/(?P<space>[^/]+)/events": "events",
    r"/apis/policy/v1/poddisruptionbudgets": "budgets",
    r"/apis/karpenter.sh/v1/nodeclaims(?:/(?P<name>[^/]+))?": "claims",
    r"/apis/cluster.x-k8s.io/v1beta1/namespaces/(?P<space>[^/]+)/machines(?:/(?P<name>[^/]+))?": "machines",
    r"/apis/coordination.k8s.io/v1/namespaces/(?P<space>[^/]+)/leases(?:/(?P<name>[^/]+))?": "leases",
}


class FakeApiServer:
    """Objects by kind and name; `answer` is a handler of `FaultServer`."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in _PATHS.values()}
        self.writes = 0
        self.leaves = True  # an evicted pod ends at once; else it stays Terminating
        self._versions = itertools.count(1)
        self._lock = threading.Lock()

    # ---- what a test does by hand

    def put(self, kind: str, item: dict[str, Any], manager: str = "kubectl") -> dict[str, Any]:
        """Make or change an object as somebody else; returns it."""
        meta = item["metadata"]
        meta.setdefault("uid", f"uid-{next(self._versions)}")
        self._stamped(item, manager, self.objects[kind].get(meta["name"]))
        self.objects[kind][meta["name"]] = item
        return item

    def _stamped(self, item: dict[str, Any], manager: str, before: dict[str, Any] | None) -> None:
        meta = item["metadata"]
        meta["resourceVersion"] = str(next(self._versions))
        was, now = ((one or {}).get("spec", {}).get("unschedulable") for one in (before, item))
        if was != now:
            fields = {"f:spec": {"f:unschedulable": {}}}
            meta["managedFields"] = [{"manager": manager, "time": STAMP, "fieldsV1": fields}] if now else []

    # ---- the server

    def answer(self, request: Request) -> Reply:
        """Answer one request."""
        parts = urlsplit(request.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        body = json.loads(request.body or b"{}")
        if parts.path == "/apis/cluster.x-k8s.io" and self.objects["machines"]:
            version = {"groupVersion": "cluster.x-k8s.io/v1beta1", "version": "v1beta1"}
            return _json(200, {"kind": "APIGroup", "preferredVersion": version, "versions": [version]})
        for pattern, kind in _PATHS.items():
            if found := re.fullmatch(pattern, parts.path):
                with self._lock:
                    return self._of(request.method, kind, found.groupdict(), query, body)
        return _status(404, "the server could not find the requested resource")

    def _of(self, method: str, kind: str, named: dict[str, Any], query: dict[str, str], body: dict[str, Any]) -> Reply:
        items, name = self.objects[kind], named.get("name")
        dry = (query.get("dryRun") == "All" and method != "DELETE") or body.get("dryRun") == ["All"]
        if method == "GET" and name is None:
            return _json(200, {"kind": "List", "metadata": {}, "items": [one for one in items.values() if _selected(one, query)]})
        if method == "POST" and not named.get("sub"):
            name = body["metadata"]["name"]
            if name in items:
                return _status(409, "it exists")
            if not dry:
                self.put(kind, body, query.get("fieldManager", "x"))
                self.writes += 1
            return _json(201, body)
        if name not in items:
            return _status(404, f"{kind} {name!r} not found")
        item = items[name]
        if method == "GET":
            return _json(200, item)
        if named.get("sub"):
            return self._evict(item, body, dry)
        wanted = body.get("preconditions", {}) if method == "DELETE" else body["metadata"]
        if any(key in wanted and wanted[key] != item["metadata"].get(key) for key in ("uid", "resourceVersion")):
            return _status(409, "the object has been modified")
        if method == "DELETE":
            if not dry:
                item["metadata"]["deletionTimestamp"] = STAMP
                self.writes += 1
            return _json(200, item)
        made = _merged(item, body) if method == "PATCH" else body
        if not dry:
            self._stamped(made, query.get("fieldManager", "x"), item)
            items[name] = made
            self.writes += 1
        return _json(200, made)

    def _evict(self, pod: dict[str, Any], body: dict[str, Any], dry: bool) -> Reply:
        if body["deleteOptions"]["preconditions"]["uid"] != pod["metadata"]["uid"]:
            return _status(409, "the UID in the precondition does not match")
        over = [one for one in self.objects["budgets"].values() if covers(one, pod["metadata"].get("labels") or {})]
        if len(over) > 1:
            return _status(
                500, "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            )
        if over and not over[0]["status"]["disruptionsAllowed"]:
            cause = {
                "reason": "DisruptionBudget",
                "message": f"The disruption budget {over[0]['metadata']['name']} needs 3 and has 3",
            }
            return _status(429, "Cannot evict pod as it would violate the pod's disruption budget.", cause)
        if not dry:
            self.writes += 1
            pod["metadata"]["deletionTimestamp"] = STAMP
            if self.leaves:
                del self.objects["pods"][pod["metadata"]["name"]]
        return _json(201, {"kind": "Status", "status": "Success"})


def _selected(item: dict[str, Any], query: dict[str, str]) -> bool:
    found = re.search(r"spec\.nodeName=([^,]+)", query.get("fieldSelector", ""))
    label = query.get("labelSelector", "=").split("=")
    labels = item["metadata"].get("labels") or {}
    return (not found or item["spec"].get("nodeName") == found[1]) and (not label[0] or labels.get(label[0]) == label[1])


def _merged(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    out = {key: one for key, one in old.items() if not (key in new and new[key] is None)}
    return out | {key: _merged(old.get(key, {}), one) for key, one in new.items() if one is not None}


def _json(status: int, body: dict[str, Any]) -> Reply:
    return Reply(json.dumps(body).encode(), status)


def _status(status: int, message: str, *causes: dict[str, str]) -> Reply:
    details = {"details": {"causes": list(causes)}} if causes else {}
    return _json(status, {"kind": "Status", "status": "Failure", "message": message, "code": status, **details})


class FakeWorld:
    """The world of the conformance suite with this server; see `tests.remediation.conformance.World`."""

    def __init__(self, api: FakeApiServer, server: FaultServer, folder: Path) -> None:
        self.api, self.server = api, server
        self.kubeconfig = kubeconfig(folder, server.url)
        self._numbers = itertools.count()
        self.executor = self.again()

    def again(self) -> Kubernetes:
        return Kubernetes(self.kubeconfig)

    def node(self, name: str, **meta: Any) -> dict[str, Any]:
        """Make a node."""
        ready = {"type": "Ready", "status": "True"}
        status = {"conditions": [ready], "nodeInfo": {"bootID": f"boot-of-{name}"}, "capacity": {"nvidia.com/gpu": "8"}}
        return self.api.put(
            "nodes", {"metadata": {"name": name, **meta}, "spec": {"providerID": f"aws:///{name}"}, "status": status}
        )

    def pod(self, node: str, name: str, **meta: Any) -> dict[str, Any]:
        """Make a pod with a controller that runs on a node."""
        owner = {"kind": "ReplicaSet", "apiVersion": "apps/v1", "name": "set", "controller": True}
        meta = {"name": name, "namespace": "train", "ownerReferences": [owner], **meta}
        spec = {"nodeName": node, "containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}]}
        return self.api.put("pods", {"metadata": meta, "spec": spec, "status": {"phase": "Running"}})

    def action(self, verb: str) -> Action:
        number = next(self._numbers)
        name, id, target = f"node-{number}", f"act-{number}", f"node-{number}"
        expects: dict[str, Any] = {"owner": "", "schedulable": True, "boot": f"boot-of-{name}"}
        expects["uid"] = self.node(name)["metadata"]["uid"]
        args: dict[str, Any] = {"reason": "xid-79"}
        if verb == "cordon":
            args |= {"taint": "gpu-workbench/unfit=xid-79:NoSchedule", "labels": {"gpu-workbench/suspect": "true"}}
        if verb == "exclude":
            args["job"] = "llm-7b"
        if verb == "uncordon":
            first = Action(f"first-{number}", "cordon", "cordon", name, expects=expects, args={"taint": True})
            assert self.again().begin(first, Deadline(10)).status == "done"
            expects |= {"owner": OWNER, "op": first.id, "schedulable": False}
        if verb == "evict":
            expects["work"] = [f"train/{self.pod(name, f'{name}-{at}')['metadata']['name']}" for at in range(2)]
        if verb == "restart-task":
            pod = self.pod(name, f"{name}-0")["metadata"]
            target, args["uid"] = f"train/{pod['name']}", pod["uid"]
        if verb == "replace":
            target = f"claim-{number}"
            status = {"nodeName": name, "providerID": f"aws:///{name}"}
            self.api.put("claims", {"metadata": {"name": target, "finalizers": ["karpenter.sh/termination"]}, "status": status})
        return Action(id, verb, "cordon", name, target, why="a test", expects=expects, args=args, undo="uncordon")

    def writes(self) -> int:
        return self.api.writes

    def shape(self, action: Action) -> Any:
        node = self.api.objects["nodes"].get(action.node)
        meta, spec = (node or {}).get("metadata", {}), (node or {}).get("spec", {})
        pods = {one["metadata"]["uid"] for one in self.api.objects["pods"].values()}
        return (
            meta.get("uid"),
            dict(meta.get("labels") or {}),
            dict(meta.get("annotations") or {}),
            bool(spec.get("unschedulable")),
            list(spec.get("taints") or []),
            pods,
            [name for name, one in self.api.objects["claims"].items() if "deletionTimestamp" in one["metadata"]],
        )

    def settle(self, action: Action) -> None:
        if action.verb == "replace":
            self.api.objects["claims"].pop(action.target, None)
            self.api.objects["nodes"].pop(action.node, None)

    def change(self, name: str, patch: dict[str, Any]) -> None:
        """Change a node by hand."""
        self.api.put("nodes", _merged(self.api.objects["nodes"][name], patch))

    def foreign(self, action: Action) -> None:
        if action.verb == "uncordon":
            self.change(action.node, {"spec": {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}})
        else:
            self.change(action.node, {"spec": {"unschedulable": True}})

    def differ(self, action: Action) -> None:
        del self.api.objects["nodes"][action.node]
        self.node(action.node)

    def meddle(self, action: Action) -> None:
        if action.verb in ("cordon", "drain"):
            self.change(action.node, {"spec": {"unschedulable": None}})
        if action.verb in ("cordon", "drain", "uncordon"):
            self.change(action.node, {"spec": {"unschedulable": True}})
        theirs = {"key": "gpu-workbench/unfit", "value": "theirs", "effect": "NoSchedule"}
        if action.verb == "taint":
            self.change(action.node, {"spec": {"taints": [theirs]}})
        labels = {"label": "gpu-workbench/suspect", "exclude": "exclude.gpu-workbench/llm-7b"}
        if action.verb in labels:
            self.change(action.node, {"metadata": {"labels": {labels[action.verb]: "theirs"}}})

    @contextmanager
    def answer_lost(self) -> Iterator[None]:
        self.server.when = lambda request: request.method != "GET"
        self.server.fault = "cut"
        try:
            yield
        finally:
            self.server.fault, self.server.when = None, None

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        self.server.fault = "refused"
        try:
            yield
        finally:
            self.server.fault = None
