"""Turn lists of Kubernetes objects (Jobs of any kind, Pods, Nodes, Events) into jobs, their attempts, and stretches of nodes' lives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from workbench.catalog import table
from workbench.fleet.ingest.devices import of_devices, of_parsed
from workbench.fleet.ingest.kubernetes_events import of_events
from workbench.fleet.ingest.told import Told
from workbench.parse.kubernetes import parse_objects
from workbench.parse.kubernetes_devices import annotated, plugin_devices
from workbench.parse.kubernetes_owners import owner_of
from workbench.parse.kubernetes_reasons import bad, classify, condition_row, epoch

__all__ = ["of_kubernetes"]

_GPU = "nvidia.com/"
# reasons of a pod's or container's end that say by themselves why; https://kubernetes.io/docs/concepts/workloads/pods/disruptions/ and
# https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/ (2026-11-30)
_REASONS = {
    "OOMKilled": "user/host-oom",
    "Evicted": "platform/preemption",
    "Preempting": "platform/preemption",
    "PreemptionByScheduler": "platform/preemption",
    "TerminationByKubelet": "platform/preemption",
    "DeletionByTaintManager": "platform/node-lost",
    "NodeLost": "platform/node-lost",
    "NodeShutdown": "platform/preemption",
    "Terminated": "platform/preemption",
    "DeadlineExceeded": "platform/preemption",
}


def of_kubernetes(document: Any, *, file: str, recorded: float, cluster: str = "") -> Told:
    """
    Return what ``kubectl get jobs,pods,nodes,events -A -o json`` says.

    Parameters
    ----------
    document : mapping or list
        A List, one object, or a list of objects.
    file : str
    recorded : float
        When it was told, seconds since the epoch.
    cluster : str
        Name of the cluster.
    """
    told = Told()
    items = [one for one in _items(document) if isinstance(one, Mapping)]
    if not items:
        told.wrong(file, "it holds no Kubernetes object", "kubectl get jobs,pods,nodes -A -o json")
        return told
    kinds = _kinds()
    works: dict[str, Mapping[str, Any]] = {}
    pods: dict[str, list[Mapping[str, Any]]] = {}
    events, whole, devices = list[Mapping[str, Any]](), list[Mapping[str, Any]](), list[Mapping[str, Any]]()
    for place, item in enumerate(items, 1):
        meta = _mapping(item.get("metadata"))
        kind, name = str(item.get("kind") or ""), str(meta.get("name") or "")
        if not kind or not name:
            told.wrong(file, f"item {place} has no kind or name", "it is left out")
        elif kind == "Event":
            events.append(item)
        elif kind in ("ResourceSlice", "ResourceClaim"):
            devices.append(item)
        elif kind == "Pod":
            whole.append(item)
            if (job := _job_of(item)) is not None:
                pods.setdefault(job, []).append(item)
        elif kind == "Node":
            _node(item, told, recorded, cluster)
        elif kind in kinds and not any(_mapping(one).get("kind") in kinds for one in meta.get("ownerReferences") or ()):
            works[f"{meta.get('namespace') or 'default'}/{name}"] = item
    said, ends = of_events(events, whole, file=file, recorded=recorded, cluster=cluster)
    told.extend(said)
    for job in sorted({*works, *pods}):
        _job(job, works.get(job), pods.get(job, []), ends, told, recorded, cluster)
    _gpus_seen(devices, whole, told, file, recorded, cluster)
    return told


def _items(document: Any) -> Iterable[Any]:
    if isinstance(document, list):
        return document
    items = _mapping(document).get("items")
    if not isinstance(items, list):
        return [document] if _mapping(document).get("kind") else []
    kind = str(_mapping(document).get("kind") or "").removesuffix("List")  # the API itself leaves out the kind of a list's items
    return [{"kind": kind, **one} if kind and isinstance(one, Mapping) and "kind" not in one else one for one in items]


def _gpus_seen(
    devices: list[Mapping[str, Any]], pods: list[Mapping[str, Any]], told: Told, file: str, recorded: float, cluster: str
) -> None:
    """ResourceSlices say which GPUs a node has; pods that run say which they were given, where a plugin writes it down."""
    if devices:
        told.extend(
            of_parsed(
                parse_objects(devices, file=file), node=None, file=file, recorded=recorded, source="kubernetes", cluster=cluster
            )
        )
    given = []
    for pod in pods:
        if _phase(pod) != "Running" or not _node_of(pod):
            continue
        names = annotated(_mapping(_mapping(pod.get("metadata")).get("annotations")), surely=True)
        for container in _mapping(pod.get("status")).get("containerStatuses") or ():
            for row in _mapping(container).get("allocatedResourcesStatus") or ():
                names += plugin_devices(_mapping(one).get("resourceID") for one in _mapping(row).get("resources") or ())
        given += [{"uuid": gpu.uuid, "node": _node_of(pod)} for gpu in names if gpu.uuid]
    told.extend(of_devices(given, file=file, recorded=recorded, cluster=cluster))


def _kinds() -> frozenset[str]:
    return frozenset(row["kind"] for row in table("kubernetes_jobs") if row["role"] == "job")


def _labels() -> tuple[str, ...]:
    rows = [row for row in table("kubernetes_jobs") if row["role"] == "job"]
    rows.sort(key=lambda row: row["group"] == "batch")  # what makes Jobs speaks for them
    return tuple(key for row in rows for key in row["labels"].split(";") if key)


def _job_of(pod: Mapping[str, Any]) -> str | None:
    meta = _mapping(pod.get("metadata"))
    labels = _mapping(meta.get("labels"))
    space = meta.get("namespace") or "default"
    for key in _labels():
        if labels.get(key):
            return f"{space}/{labels[key]}"
    return None  # a pod of no job: a service, a daemon, or one by hand


# ---- jobs


def _job(
    job: str,
    work: Mapping[str, Any] | None,
    pods: list[Mapping[str, Any]],
    ends_of: Mapping[str, str],
    told: Told,
    recorded: float,
    cluster: str,
) -> None:
    meta, status = _mapping(_mapping(work).get("metadata")), _mapping(_mapping(work).get("status"))
    common = {"cluster": cluster, "job": job, "source": "kubernetes", "recorded": recorded}
    rounds = _rounds(pods)
    attempts = list[dict[str, Any]]()
    for number, group in enumerate(rounds, 1):
        state, cls = _end_of_pods(group, ends_of)
        begun = [_start(one) for one in group]
        ends = [end for one in group if (end := _end(one)) is not None]
        running = state in ("running", "pending")
        lost = sorted({_node_of(one) for one in group if _reason(one, ends_of) == "platform/node-lost"} - {""})
        row: dict[str, Any] = {
            **common,
            "attempt": number,
            "queued": min((moment for one in group if (moment := _made(one)) is not None), default=None),
            "started": min((moment for moment in begun if moment is not None), default=None),
            "ended": None if running else max(ends, default=None),
            "state": state,
            "exit_code": next((code for one in group if (code := _code(one))), 0 if state == "completed" else None),
            "cause": cls.split("/")[0] if cls else None,
            "cls": cls or None,
            "node_names": sorted({_node_of(one) for one in group} - {""}),
            "gpus": sum(_gpus(one) for one in group),
        }
        if cls == "platform/node-lost" and len(lost) == 1:
            row |= {"node": lost[0], "at_fault": "node"}
        attempts.append(row)
    told.rows.setdefault("attempts", []).extend(one for one in attempts if one["started"] is not None)
    last = attempts[-1] if attempts else None
    state = _state_of(status) or (last["state"] if last else "pending")
    labels = {**_mapping(_mapping(pods[0].get("metadata")).get("labels") if pods else None), **_mapping(meta.get("labels"))}
    owner = owner_of({"labels": labels})
    ended = epoch(status.get("completionTime") or status.get("endTime")) or _changed(status) or (last["ended"] if last else None)
    made = epoch(meta.get("creationTimestamp"))
    failed = state in ("failed", "preempted", "timeout")
    told.add(
        "jobs",
        **common,
        name=job.partition("/")[2],
        user=owner["user"],
        team=owner["team"] or job.partition("/")[0],
        pool=None,
        nodes=len(last["node_names"]) or None if last else None,
        gpus=last["gpus"] if last else None,
        submitted=made if made is not None else attempts[0]["queued"] if attempts else None,
        started=epoch(status.get("startTime")) or (attempts[0]["started"] if attempts else None),
        ended=ended if state not in ("pending", "running") else None,
        state=state,
        cause=last["cause"] if last and failed else None,
        cls=last["cls"] if last and failed else None,
    )


def _rounds(pods: list[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """
    Return the pods of each start: one made after another of the same place had ended belongs to a later start.

    The place is the index of the Job or the replica; a pod without one is a place of its own kind.
    """
    by_place: dict[str, list[Mapping[str, Any]]] = {}
    for pod in sorted(pods, key=lambda one: (_made(one) or 0.0, str(_mapping(one.get("metadata")).get("name")))):
        labels = _mapping(_mapping(pod.get("metadata")).get("labels"))
        place = "/".join(
            str(labels.get(key) or "")
            for key in (
                "jobset.sigs.k8s.io/job-key",
                "training.kubeflow.org/replica-type",
                "training.kubeflow.org/replica-index",
                "batch.kubernetes.io/job-completion-index",
            )
        )
        by_place.setdefault(place, []).append(pod)
    found: list[list[Mapping[str, Any]]] = []
    for group in by_place.values():
        turn, ends = 0, float("-inf")
        for pod in group:
            if (_made(pod) or 0.0) >= ends and ends > float("-inf"):
                turn += 1
            ends = max(ends, end) if (end := _end(pod)) is not None and _phase(pod) == "Failed" else ends
            while len(found) <= turn:
                found.append([])
            found[turn].append(pod)
    return [one for one in found if one]


def _end_of_pods(pods: list[Mapping[str, Any]], ends_of: Mapping[str, str]) -> tuple[str, str]:
    """Return state and class of a start: by the first pod that failed."""
    failed = sorted((one for one in pods if _phase(one) == "Failed"), key=lambda one: _end(one) or 0.0)
    if failed:
        cls = next((reason for one in failed if (reason := _reason(one, ends_of))), "")
        return "preempted" if cls == "platform/preemption" else "failed", cls
    if all(_phase(one) == "Succeeded" for one in pods):
        return "completed", ""
    return ("pending" if all(_phase(one) == "Pending" for one in pods) else "running"), ""


def _state_of(status: Mapping[str, Any]) -> str:
    for one in status.get("conditions") or ():
        row = _mapping(one)
        if row.get("status") != "True":
            continue
        if row.get("type") in ("Complete", "Succeeded", "Completed"):
            return "completed"
        if row.get("type") == "Failed":
            return "timeout" if row.get("reason") == "DeadlineExceeded" else "failed"
    return ""


def _changed(status: Mapping[str, Any]) -> float | None:
    rows = [_mapping(one) for one in status.get("conditions") or ()]
    ends = ("Complete", "Succeeded", "Completed", "Failed")
    return max(
        (when for one in rows if one.get("type") in ends and (when := epoch(one.get("lastTransitionTime"))) is not None),
        default=None,
    )


# ---- pods


def _phase(pod: Mapping[str, Any]) -> str:
    return str(_mapping(pod.get("status")).get("phase") or "")


def _made(pod: Mapping[str, Any]) -> float | None:
    return epoch(_mapping(pod.get("metadata")).get("creationTimestamp"))


def _start(pod: Mapping[str, Any]) -> float | None:
    return epoch(_mapping(pod.get("status")).get("startTime"))


def _node_of(pod: Mapping[str, Any]) -> str:
    return str(_mapping(pod.get("spec")).get("nodeName") or "")


def _ended(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    rows = [_mapping(one) for one in _mapping(pod.get("status")).get("containerStatuses") or ()]
    return [over for one in rows if (over := _mapping(_mapping(one.get("state")).get("terminated")))]


def _end(pod: Mapping[str, Any]) -> float | None:
    if _phase(pod) not in ("Failed", "Succeeded"):
        return None
    times = [when for one in _ended(pod) if (when := epoch(one.get("finishedAt"))) is not None]
    if not times:  # evicted, or its node is gone
        rows = [_mapping(one) for one in _mapping(pod.get("status")).get("conditions") or ()]
        times = [when for one in rows if (when := epoch(one.get("lastTransitionTime"))) is not None]
    return max(times, default=None)


def _code(pod: Mapping[str, Any]) -> int | None:
    codes = [one.get("exitCode") for one in _ended(pod)]
    return next((code for code in codes if isinstance(code, int) and code), None)


def _reason(pod: Mapping[str, Any], ends_of: Mapping[str, str]) -> str:
    """Return the class that a pod's end names by itself, else that of the event that ended it; empty when neither says more."""
    status = _mapping(pod.get("status"))
    rows = [_mapping(one) for one in status.get("conditions") or ()]
    words = [
        str(one.get("reason") or "") for one in rows if one.get("type") == "DisruptionTarget" and one.get("status") == "True"
    ]
    words += [str(status.get("reason") or ""), *(str(one.get("reason") or "") for one in _ended(pod))]
    own = next((_REASONS[word] for word in words if word in _REASONS), "")
    meta = _mapping(pod.get("metadata"))
    return own or ends_of.get(f"{meta.get('namespace') or 'default'}/{meta.get('name')}", "")


def _gpus(pod: Mapping[str, Any]) -> int:
    whole = 0
    for one in _mapping(pod.get("spec")).get("containers") or ():
        limits = _mapping(_mapping(_mapping(one).get("resources")).get("limits"))
        for key, value in limits.items():
            if str(key) == f"{_GPU}gpu" and str(value).isdigit():
                whole += int(value)
    return whole


# ---- nodes


def _node(item: Mapping[str, Any], told: Told, recorded: float, cluster: str) -> None:
    """A node's conditions say what holds now and since when; that it takes jobs is told by no condition being bad."""
    meta, status, spec = (_mapping(item.get(key)) for key in ("metadata", "status", "spec"))
    name, labels = str(meta.get("name")), _mapping(meta.get("labels"))
    wrong = []
    for one in status.get("conditions") or ():
        row = _mapping(one)
        kind, said = str(row.get("type") or ""), str(row.get("status") or "")
        if bad(kind, said, str(row.get("reason") or "")):
            wrong.append((kind != "Ready", epoch(row.get("lastTransitionTime")) or recorded, kind, row))
    ready = next((_mapping(one) for one in status.get("conditions") or () if _mapping(one).get("type") == "Ready"), {})
    state, begin, reason, cls = "usable", epoch(ready.get("lastTransitionTime")) or epoch(meta.get("creationTimestamp")), "", ""
    taints = [_mapping(one) for one in spec.get("taints") or ()]
    if wrong:
        off, begin, kind, row = min(wrong, key=lambda one: one[:2])
        state = "held" if off else "down"
        reason = f"{kind}: {row.get('reason') or ''} {row.get('message') or ''}".strip()
        meaning = classify(str(row.get("reason") or kind), str(row.get("message") or ""), kind="Node")
        cls = str(getattr(meaning, "cls", "") or (condition_row(kind) or {}).get("class") or "")
    elif spec.get("unschedulable"):
        marks = [epoch(one.get("timeAdded")) for one in taints if one.get("key") == "node.kubernetes.io/unschedulable"]
        state, reason = "held", "cordoned"
        begin = next((mark for mark in marks if mark is not None), recorded)
    if begin is None:
        begin = recorded
    told.add(
        "node_states",
        cluster=cluster,
        node=name,
        begin=begin,
        end=None,
        state=state,
        cause=None if state == "usable" else cls.split("/")[0] if "/" in cls else "unknown",
        cls=cls if "/" in cls else None,
        reason=reason or None,
        pool=labels.get("node.kubernetes.io/instance-type"),
        sku=labels.get("nvidia.com/gpu.product"),
        gpus=int(count) if (count := str(_mapping(status.get("capacity")).get(f"{_GPU}gpu") or "")).isdigit() else None,
        source="kubernetes",
        recorded=recorded,
    )
    if state == "down":
        told.out_of_service(cluster, name, begin, cls=cls, detail=reason, source="kubernetes", recorded=recorded)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
