"""Turn selectors, failures and events into the form in which a Kubernetes API server reads and writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from workbench.testing.faults import Reply

__all__ = ["NAMESPACED", "RESOURCES", "event_of", "fields_of", "labelled", "status"]

# group → version and plural → kind of what every API server has, as far as it is asked here
RESOURCES: dict[str, tuple[str, dict[str, str]]] = {
    "": ("v1", {"pods": "Pod", "nodes": "Node", "events": "Event", "namespaces": "Namespace"}),
    "apps": (
        "v1",
        {"statefulsets": "StatefulSet", "replicasets": "ReplicaSet", "deployments": "Deployment", "daemonsets": "DaemonSet"},
    ),
    "batch": ("v1", {"jobs": "Job", "cronjobs": "CronJob"}),
    "policy": ("v1", {"poddisruptionbudgets": "PodDisruptionBudget"}),
    "events.k8s.io": ("v1", {"events": "Event"}),
    "authentication.k8s.io": ("v1", {}),
    "authorization.k8s.io": ("v1", {}),
}
NAMESPACED = frozenset({"pods", "events", "jobs", "statefulsets", "replicasets", "deployments", "poddisruptionbudgets"})
# what a field selector may name beside the name and the namespace
_FIELDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "pods"): (
        "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "status.phase", "status.podIP",
        "status.nominatedNodeName",
    ),
    ("", "nodes"): ("spec.unschedulable",),
    ("", "events"): (
        *(f"involvedObject.{word}" for word in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")),
        "reason", "reportingComponent", "source", "type",
    ),
    ("events.k8s.io", "events"): (
        *(f"regarding.{word}" for word in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")),
        "reason", "reportingController", "type",
    ),
    ("batch", "jobs"): ("status.successful",),
}  # fmt: skip
_LABEL = re.compile(
    r"\s*(?:(?P<no>!)\s*)?(?P<key>[\w./-]+)\s*(?:(?P<op>==|=|!=)\s*(?P<value>[\w.-]*)|(?P<set>in|notin)\s*\((?P<values>[^)]*)\))?\s*(?:,|$)"
)


def labelled(selector: str, labels: Any) -> bool:
    """Tell whether labels fit a label selector; raises ValueError for one that is none."""
    mine = labels if isinstance(labels, Mapping) else {}
    at, fits = 0, True
    while at < len(selector):
        found = _LABEL.match(selector, at)
        if not found or (found["no"] and (found["op"] or found["set"])):
            raise ValueError(f"unable to parse requirement: {selector!r}")
        at = found.end()
        key, value = found["key"], mine.get(found["key"])
        if found["set"]:
            values = [each.strip() for each in found["values"].split(",")]
            fits &= (value in values) if found["set"] == "in" else (value not in values)
        elif found["op"]:
            fits &= (value == found["value"]) == (found["op"] != "!=")
        else:
            fits &= (key in mine) != bool(found["no"])
    return fits


def fields_of(selector: str, group: str, plural: str) -> list[Callable[[Mapping[str, Any]], bool]]:
    """Return the tests that a field selector stands for; raises ValueError for a field that cannot be selected by."""
    tests: list[Callable[[Mapping[str, Any]], bool]] = []
    for part in selector.split(","):
        found = re.fullmatch(r"\s*([\w./\[\]-]+?)\s*(==|=|!=)\s*(.*?)\s*", part)
        if not found:
            raise ValueError(f"invalid field selector: {part!r}; can't understand it")
        name, op, value = found[1], found[2], found[3]
        if name not in ("metadata.name", "metadata.namespace", *_FIELDS.get((group, plural), ())):
            raise ValueError(f"field label not supported: {name}")
        tests.append(partial(_selected, name, op, value))
    return tests


def _selected(name: str, op: str, value: str, item: Mapping[str, Any]) -> bool:
    return (_at(item, name) == value) == (op != "!=")


def _at(item: Any, path: str) -> str:
    if path == "source":
        path = "source.component"
    for word in path.split("."):
        item = item.get(word) if isinstance(item, Mapping) else None
    return "" if item is None else str(item).lower() if isinstance(item, bool) else str(item)


def status(code: int, message: str, reason: str = "", **more: Any) -> Reply:
    """Return a failure as the API server writes it; `more` is put beside it."""
    told = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "code": code}
    if reason:
        told["reason"] = reason
    return Reply(json.dumps({**told, **more}).encode(), code)


def event_of(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event of the core group as the newer group shows it: the same object, its fields under other names."""
    names = {
        "involvedObject": "regarding", "message": "note", "firstTimestamp": "deprecatedFirstTimestamp", "count": "deprecatedCount",
        "lastTimestamp": "deprecatedLastTimestamp", "source": "deprecatedSource", "reportingComponent": "reportingController",
    }  # fmt: skip
    told = {names.get(key, key): value for key, value in item.items() if value != ""}
    return {**told, "apiVersion": "events.k8s.io/v1"}
