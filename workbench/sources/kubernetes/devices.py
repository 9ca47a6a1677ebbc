"""Turn the claims of a job's pods and the device slices of their nodes into files: which GPU a pod was given by dynamic allocation."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.parse.kubernetes_devices import pod_claims
from workbench.sources.contract import Answer
from workbench.sources.kubernetes.jobs import path_of

if TYPE_CHECKING:
    from workbench.sources.kubernetes.collect import Collection

__all__ = ["GROUP", "collect_claims", "collect_slices", "wanted"]

GROUP = "resource.k8s.io"


def wanted(collection: Collection) -> bool:
    """Tell whether a pod of the job has claims; else nothing is asked."""
    return any(pod_claims(pod) for pod in collection.found.pods)


def collect_claims(collection: Collection) -> Answer:
    """Write ``resourceclaims.json``: the claims that the job's pods name, or that are reserved for them."""
    began, found = time.monotonic(), collection.found
    if kept := collection.kept("resourceclaims.json", "resourceclaims"):
        return kept
    names = {name for pod in found.pods for name in pod_claims(pod)}
    pods = {str((pod.get("metadata") or {}).get("uid")) for pod in found.pods}

    def ours(item: dict[str, Any]) -> bool:
        status = item.get("status") or {}
        users = {str(row.get("uid")) for row in status.get("reservedFor") or []}
        return str((item.get("metadata") or {}).get("name")) in names or bool(users & pods)

    path = path_of(GROUP, collection.version(GROUP), "resourceclaims", found.namespace)
    listing = collection.api.list(path, collection.deadline, page=collection.page, keep=ours)
    have = {str(item["metadata"]["name"]) for item in listing.items}
    lost = sorted(names - have) if listing.complete else []
    open_ = [item for item in listing.items if not (item.get("status") or {}).get("allocation")]
    said = f"{len(listing.items)} claims of the job's pods"
    hint = ""
    if lost or open_:
        # the controller takes a claim that was made for one pod away when the pod has ended
        said += (
            f"; of {len(lost) + len(open_)} the devices are no longer known: {', '.join(lost[:5]) or 'not allocated any more'}"
        )
        hint = "collect while the job's pods run, or give the job a ResourceClaim of its own, which outlives them"
    if not listing.items and listing.complete:
        return Answer("kubernetes", "partial", said, hint, path, seconds=time.monotonic() - began)
    answer = collection.write("resourceclaims.json", listing, said, path, began, "partial" if lost or open_ else "ok")
    return replace(answer, hint=answer.hint or hint)


def collect_slices(collection: Collection) -> Answer:
    """Write ``resourceslices.json``: UUID and PCI address of each device on the job's nodes."""
    began = time.monotonic()
    if kept := collection.kept("resourceslices.json", "resourceslices"):
        return kept
    nodes = {*collection.scope.nodes, *collection.found.nodes}

    def ours(item: dict[str, Any]) -> bool:
        spec = item.get("spec") or {}
        # a slice that is not of one node may be of any
        return not spec.get("nodeName") or str(spec["nodeName"]) in nodes

    path = path_of(GROUP, collection.version(GROUP), "resourceslices", None)
    query = {"fieldSelector": f"spec.nodeName={next(iter(nodes))}"} if len(nodes) == 1 else {}
    listing = collection.api.list(path, collection.deadline, query, page=collection.page, keep=ours)
    if not listing.items and listing.complete:
        return Answer(
            "kubernetes",
            "missing",
            "no device slice of the job's nodes, so the devices of its claims have no UUID",
            "check the driver's pods on these nodes: kubectl get resourceslices",
            path,
            seconds=time.monotonic() - began,
        )
    return collection.write("resourceslices.json", listing, f"{len(listing.items)} device slices of the job's nodes", path, began)
