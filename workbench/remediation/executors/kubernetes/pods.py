"""Turn pods and disruption budgets into the work of a node: whose it is, what it holds, and what stands in the way of its leaving."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from workbench.catalog import table
from workbench.parse.kubernetes_pods import pod_identity
from workbench.parse.kubernetes_reasons import epoch, parse_quantity
from workbench.remediation.executors.kubernetes.marks import PREFIX, annotations_of, labels_of
from workbench.remediation.model import Work
from workbench.sources.kubernetes.selectors import covers

__all__ = ["CHECKPOINT", "Budgets", "finished", "gpus_of", "of_jobs", "selector_of", "work_of"]

CHECKPOINT = (
    PREFIX + "checkpoint"
)  # annotation of a pod: when its last checkpoint was written, RFC 3339 or seconds since the epoch
_GPU = re.compile(r"(?:nvidia|amd)\.com/(?:gpu|mig)")
_GRACE = 30.0  # seconds; Kubernetes' default of terminationGracePeriodSeconds


def finished(pod: Mapping[str, Any]) -> bool:
    """Tell whether nothing of a pod runs any more, or will."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


class Budgets:
    """
    The disruption budgets of a cluster.

    Parameters
    ----------
    items : iterable of dict
        PodDisruptionBudget objects (policy/v1).
    """

    def __init__(self, items: Iterable[Mapping[str, Any]]) -> None:
        self._of: dict[str, list[Mapping[str, Any]]] = {}
        for item in items:
            self._of.setdefault(str((item.get("metadata") or {}).get("namespace") or ""), []).append(item)

    def over(self, pod: Mapping[str, Any]) -> tuple[tuple[str, ...], int | None]:
        """
        Return the names of the budgets that cover a pod, and how many disruptions they allow now; None without one.

        Two budgets allow none: the API server refuses such an eviction, whatever they say. A budget whose status is older than itself
        allows none either. A pod that does not run yet is not protected.
        """
        meta, status = pod.get("metadata") or {}, pod.get("status") or {}
        labels = labels_of(pod)
        found = [one for one in self._of.get(str(meta.get("namespace") or ""), ()) if covers(one, labels)]
        names = tuple(sorted(f"{meta.get('namespace')}/{(one.get('metadata') or {}).get('name')}" for one in found))
        if not found or status.get("phase") == "Pending" or meta.get("deletionTimestamp"):
            return (), None
        if len(found) > 1:
            return names, 0
        told, generation = found[0].get("status") or {}, (found[0].get("metadata") or {}).get("generation") or 0
        if (told.get("observedGeneration") or 0) < generation:
            return names, 0
        return names, int(told.get("disruptionsAllowed") or 0)


def work_of(pod: Mapping[str, Any], budgets: Budgets) -> Work:
    """Return a pod as work of its node; `job_gpus` is what this pod alone has, see `of_jobs`."""
    meta, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    identity, notes = pod_identity(pod), annotations_of(pod)
    owners = meta.get("ownerReferences") or []
    names, allowed = budgets.over(pod)
    gpus = gpus_of(pod)
    saved = notes.get(CHECKPOINT, "")
    grace = meta.get("deletionGracePeriodSeconds", spec.get("terminationGracePeriodSeconds"))
    return Work(
        id=f"{meta.get('namespace')}/{meta.get('name')}",
        uid=str(meta.get("uid") or ""),
        job=str(identity["job"] or (owners[0].get("name") if owners else meta.get("name")) or ""),
        ranks=gpus or (1 if identity["job"] else 0),
        gpus=gpus,
        job_gpus=gpus,
        since=epoch(status.get("startTime")),
        saved=float(saved) if re.fullmatch(r"\d+(?:\.\d+)?", saved) else epoch(saved),
        gang=_gang(pod),
        controlled=any(one.get("controller") for one in owners),
        budgets=names,
        disruptions=allowed,
        grace=_GRACE if grace is None else float(grace),
        ignored=bool(identity["service"]) or "kubernetes.io/config.mirror" in notes,
    )


def selector_of(pod: Mapping[str, Any]) -> str:
    """Return the label selector that finds all pods of a pod's job; empty when no label tells its job."""
    job, labels = pod_identity(pod)["job"], labels_of(pod)
    rows = [row for row in table("kubernetes_jobs") if row["role"] == "job"]
    keys = (key for row in rows for key in row["labels"].split(";") if key)
    return next((f"{key}={job}" for key in keys if job and labels.get(key) == job), "")


def gpus_of(pod: Mapping[str, Any]) -> int:
    """Return how many GPUs a pod was promised; those of dynamic resource allocation are not counted."""
    return sum(_gpus(one) for one in (pod.get("spec") or {}).get("containers") or [])


def of_jobs(rows: Iterable[tuple[str, Work]]) -> dict[str, tuple[Work, ...]]:
    """Return (node, work) rows as the work of each node, each with the GPUs of its whole job."""
    rows = list(rows)
    total: dict[tuple[str, str], int] = {}
    for _, one in rows:
        key = (one.id.partition("/")[0], one.job)
        total[key] = total.get(key, 0) + one.gpus
    found: dict[str, list[Work]] = {}
    for node, one in rows:
        gpus = total[one.id.partition("/")[0], one.job]
        found.setdefault(node, []).append(one if one.job_gpus == gpus else replace(one, job_gpus=gpus))
    return {node: tuple(sorted(work, key=lambda one: one.id)) for node, work in found.items()}


def _gpus(container: Mapping[str, Any]) -> int:
    limits = (container.get("resources") or {}).get("limits") or {}
    return int(sum(parse_quantity(value) or 0 for key, value in limits.items() if _GPU.match(str(key))))


@lru_cache(maxsize=1)
def _gangs() -> tuple[frozenset[str], frozenset[tuple[str, str]]]:
    """Return the labels of gangs, and (API group, kind) of what owns them."""
    rows = [row for row in table("kubernetes_jobs") if row["role"] in ("job", "queue")]
    keys = {key for row in rows for key in row["labels"].split(";") if key} | {"scheduling.k8s.io/group-name"}
    return frozenset(keys), frozenset((row["group"], row["kind"]) for row in rows)


def _gang(pod: Mapping[str, Any]) -> bool:
    """Tell whether the whole job stops when this pod does: it belongs to one of the catalog's job kinds, or to a gang scheduler's group."""
    keys, kinds = _gangs()
    owners = (pod.get("metadata") or {}).get("ownerReferences") or []
    return not keys.isdisjoint({*annotations_of(pod), *labels_of(pod)}) or any(
        (str(one.get("apiVersion") or "").rpartition("/")[0], str(one.get("kind"))) in kinds for one in owners
    )
