"""Turn Kubernetes objects (nodes, pods, events, jobs of `kubectl -o json`) into events, conditions, placements and jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from workbench.model import Condition, Event, JobRecord, Parsed, Problem
from workbench.parse.health_records import is_record, record_event
from workbench.parse.kubernetes_devices import parse_claim, parse_slice
from workbench.parse.kubernetes_pods import parse_pod
from workbench.parse.kubernetes_reasons import (
    bad,
    classify,
    condition_row,
    epoch,
    event_span,
    gpu_in,
    parse_quantity,
    stale_since,
)

__all__ = ["Locator", "epoch", "locate", "parse_objects"]

_TEXT = 2000  # most characters of a text, see model.Event
# resources that stand for GPUs: whole ones and MIG slices of NVIDIA, and AMD's
_GPU_RESOURCE = re.compile(r"^(?:nvidia\.com/(?:gpu|gpu\.shared|mig-\S+)|amd\.com/gpu|gpu\.intel\.com/\S+)$")
_FAILED = ("Failed", "Failure", "FailedAttempt")


def locate(text: str, needle: str, near: str = "") -> int | None:
    """
    Return the 1-based line of a document on which a value stands, or None.

    Parameters
    ----------
    text : str
        The raw JSON or YAML.
    needle : str
        The value, unescaped; its JSON form is tried as well, and its beginning where YAML folded it.
    near : str
        Another value of the same object, its uid at best: of several places the one nearest to it is taken.
    """
    at = _find(text, needle, text.find(near) if near else -1)
    return text.count("\n", 0, at) + 1 if at >= 0 else None


def _find(text: str, needle: str, anchor: int) -> int:
    for form in dict.fromkeys((needle, json.dumps(needle)[1:-1], json.dumps(needle, ensure_ascii=False)[1:-1], needle[:40])):
        if not form:
            continue
        if anchor < 0:
            at = text.find(form)
        else:
            at = -1
            for reach in (
                1 << 14,
                len(text),
            ):  # nearly always within the same object: the whole of a large list is the last resort
                after, before = text.find(form, anchor, anchor + reach), text.rfind(form, max(anchor - reach, 0), anchor)
                at = after if before < 0 or (after >= 0 and after - anchor <= anchor - before) else before
                if at >= 0:
                    break
        if at >= 0:
            return at
    return -1


class Locator(Mapping[str, int]):
    """Line numbers of values in a raw document, looked up on demand; give it to `parse_objects` as `lines`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts: list[int] | None = None
        self._anchors: dict[str, int] = {}
        self._last = 0  # where the object before this one was: objects are asked for in the order of the document

    def find(self, needle: str, near: str = "") -> int | None:
        """Return the line of a value, of several the one nearest to another value; see `locate`."""
        import bisect

        if self._starts is None:
            self._starts = [0, *(found.end() for found in re.finditer("\n", self.text))]
        anchor = self._anchors.get(near, -1) if near else -1
        if near and near not in self._anchors:
            anchor = self.text.find(near, self._last)
            anchor = anchor if anchor >= 0 else self.text.find(near)
            self._anchors[near], self._last = anchor, max(anchor, 0)
        at = _find(self.text, needle, anchor)
        return bisect.bisect_right(self._starts, at) if at >= 0 else None

    def __getitem__(self, needle: str) -> int:
        found = self.find(needle)
        if found is None:
            raise KeyError(needle)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return len(self.text)


def parse_objects(items: Sequence[Mapping[str, Any]], *, file: str, lines: Mapping[str, int] | None = None) -> Parsed:
    """
    Return what Kubernetes objects say.

    Parameters
    ----------
    items : sequence of mapping
        Objects of any kind, also lists of them; a kind that is not known is left out, a broken one becomes a `Problem`.
    file : str
        Name of the document.
    lines : mapping, optional
        Value → line number; a `Locator` of the raw text finds the right one of several.

    Returns
    -------
    Parsed
        Times are seconds since the epoch, UTC. ``facts``: ``nodes`` and ``pods`` by name, with what has no record of its own
        (boot id, driver, owner, GPUs asked for, job); ``claims`` and ``devices`` of dynamic resource allocation where there are some.
    """
    parsed = Parsed(facts={"nodes": {}, "pods": {}})
    flat = list(_flatten(items))
    where = _pod_nodes(flat)
    readers = {"Node": _node, "Pod": parse_pod, "Event": _event, "ResourceClaim": parse_claim, "ResourceSlice": parse_slice}
    for order, item in enumerate(flat):
        kind = str(item.get("kind", ""))
        try:
            part = Parsed(facts=parsed.facts)
            if kind in readers:
                readers[kind](item, part, where)
            elif not kind and is_record(item):
                record = record_event(item)
                part.events += [record] if record else []
            elif isinstance(item.get("status"), Mapping) and (
                "Job" in kind or kind in ("JobSet", "Workload", "LeaderWorkerSet", "PodGroup", "RayCluster", "ComputeDomain")
            ):
                _job(item, part)
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # a hand-edited or cut object
            name = (item.get("metadata") or {}).get("name", "?") if isinstance(item.get("metadata"), Mapping) else "?"
            parsed.problems.append(
                Problem(
                    file,
                    f"{kind or 'object'} {name} has an unexpected shape ({error})",
                    "export it again with kubectl -o json",
                    source="kubernetes",
                    status="partial",
                )
            )
            continue
        _finish(part, item, file, lines, order)
        parsed.extend(part)
    _jobs_of_pods(parsed)
    for job in parsed.jobs:
        job.file = file
    return parsed


def _flatten(items: Sequence[Any]) -> Iterator[Mapping[str, Any]]:
    pending = list(items)
    while pending:
        item = pending.pop(0)
        if not isinstance(item, Mapping):
            continue
        if isinstance(item.get("items"), list):
            # a PodList's items have no kind of their own when the API gave them
            kind = re.sub(r"List$", "", str(item.get("kind", "")))
            pending[:0] = [
                {"kind": kind, **one} if kind and isinstance(one, Mapping) and "kind" not in one else one for one in item["items"]
            ]
        elif not item.get("kind"):
            yield {**item, "kind": _kind_by_shape(item)}
        else:
            yield item


def _kind_by_shape(item: Mapping[str, Any]) -> str:
    """Return the kind of an object that does not name it (the API leaves it out inside lists, and so do dumps of clients)."""
    spec, status = item.get("spec"), item.get("status")
    if "reason" in item and isinstance(item.get("involvedObject", item.get("regarding")), Mapping):
        return "Event"
    if isinstance(spec, Mapping) and isinstance(spec.get("containers"), list):
        return "Pod"
    if isinstance(status, Mapping) and (
        isinstance(status.get("nodeInfo"), Mapping) or {"capacity", "addresses"} <= status.keys()
    ):
        return "Node"
    return ""


def _pod_nodes(items: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return pod name → node, from the pods and from `Scheduled` events."""
    found: dict[str, str] = {}
    for item in items:
        meta, spec = item.get("metadata"), item.get("spec")
        if item.get("kind") == "Pod" and isinstance(meta, Mapping) and isinstance(spec, Mapping) and spec.get("nodeName"):
            found[str(meta.get("name"))] = str(spec["nodeName"])
        elif item.get("kind") == "Event" and item.get("reason") == "Scheduled":
            # Successfully assigned perception/sam2-worker-0 to dgx-86
            said = re.match(r"Successfully assigned \S*?([^/\s]+) to (\S+?)\.?$", str(item.get("message")))
            if said:
                found.setdefault(said[1], said[2])
    return found


def _finish(part: Parsed, item: Mapping[str, Any], file: str, lines: Mapping[str, int] | None, order: int) -> None:
    """Write file, line and order into the records of one object."""
    meta = item.get("metadata") if isinstance(item.get("metadata"), Mapping) else {}
    near = str((meta or {}).get("uid") or (meta or {}).get("name") or "")

    def line(needle: str) -> int | None:
        if lines is None or not needle:
            return None
        return lines.find(needle, near) if isinstance(lines, Locator) else lines.get(needle)

    for event in part.events:
        needle = str(event.data.pop("needle", ""))
        event.file, event.order, event.text = file, order, event.text[:_TEXT]
        event.line = line(needle) or line(near)
    for condition in part.conditions:
        condition.file = file
        condition.line = line(condition.message or condition.reason or condition.name) if condition.bad else None
    for placement in part.placements:
        placement.file = file
        placement.line = line(near)


# ---- nodes


def _node(item: Mapping[str, Any], part: Parsed, _: Mapping[str, str]) -> None:
    meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    name, notes, labels = str(meta["name"]), meta.get("annotations") or {}, meta.get("labels") or {}
    info = status.get("nodeInfo") or {}
    part.facts["nodes"][name] = {
        "boot_id": info.get("bootID"),
        "kernel": info.get("kernelVersion"),
        "provider": spec.get("providerID"),
        "system_uuid": info.get("systemUUID"),
        "type": labels.get("node.kubernetes.io/instance-type"),
        "zone": labels.get("topology.kubernetes.io/zone"),
        "created": epoch(meta.get("creationTimestamp")),
        "labels": {
            key: value for key, value in labels.items() if "nvidia.com" in key or "nvsentinel" in key or "healthcheck" in key
        },
        "addresses": [str(address.get("address")) for address in status.get("addresses") or []],
        "unschedulable": bool(spec.get("unschedulable")),
        # who cordoned it and why: sites keep that in annotations of their own
        "cordon": {
            key.rsplit("/", 1)[-1]: value
            for key, value in notes.items()
            if re.search(r"cordon|drain|maintenance|quarantine", key)
        },
    }
    conditions = status.get("conditions") or []
    # what a checker renewed long before the kubelet renewed its own is the word of one that is gone
    now = max((epoch(condition.get("lastHeartbeatTime")) or 0.0 for condition in conditions), default=0.0)
    for condition in conditions:
        _node_condition(name, condition, part, stale_since(condition, now))
    for taint in spec.get("taints") or []:
        _taint(name, taint, part, part.facts["nodes"][name])
    _resources(name, status, part)


def _node_condition(node: str, raw: Mapping[str, Any], part: Parsed, stale: float | None = None) -> None:
    name, state = str(raw.get("type")), str(raw.get("status"))
    reason, message, since = str(raw.get("reason") or ""), str(raw.get("message") or ""), epoch(raw.get("lastTransitionTime"))
    is_bad = bad(name, state, reason)
    if stale is not None:
        message = f"(stale, not renewed after {datetime.fromtimestamp(stale, UTC):%Y-%m-%dT%H:%M:%SZ}) {message}"
    part.conditions.append(Condition(name, state, node, "condition", None if stale else is_bad, since, reason, message))
    if not is_bad:
        return
    row = condition_row(reason) or condition_row(name)
    event = Event(
        (row or {}).get("signature") or "k8s-condition",
        "kubernetes",
        f"{node}: condition {name}={state} {reason}: {message}".rstrip(": "),
        since,
        node=node,
        data={
            "condition": name,
            "status": state,
            "reason": reason,
            "needle": message or reason or name,
            "heartbeat": epoch(raw.get("lastHeartbeatTime")),
        },
    )
    if row and event.signature == "k8s-condition":
        event.role, event.cls, event.weight = row["role"], row["class"], float(row["weight"] or 0)
    if stale is not None:  # it was so once: worth reading, no evidence of how the node is
        event.role, event.weight, event.data["stale"] = "context", 0.0, stale
        part.events.append(event)
        return
    meaning = classify(reason or name, message, kind="Node")
    if meaning and (meaning.signature.startswith(("xid-", "sxid-")) or meaning.signature == "k8s-gpu-health"):
        event.signature, event.gpu = meaning.signature, gpu_in(message)
        if meaning.code is not None:  # the table of codes decides, not the name of the monitor
            event.role = event.cls = event.weight = None
        meaning.apply(event)
    elif name == "Ready":
        event.weight = 0.85 if state == "Unknown" else 0.6  # False: the kubelet lives and says what hurts
    part.events.append(event)


def _taint(node: str, raw: Mapping[str, Any], part: Parsed, facts: Mapping[str, Any]) -> None:
    key, value, effect = str(raw.get("key")), str(raw.get("value") or ""), str(raw.get("effect") or "")
    since, row = epoch(raw.get("timeAdded")), condition_row(key)
    written = f"{key}={value}:{effect}" if value else f"{key}:{effect}"
    cordon = " ".join(f"{name}={text}" for name, text in facts["cordon"].items()) if key.endswith("/unschedulable") else ""
    part.conditions.append(
        Condition(key, value or effect, node, "taint", row is None or "bad" in row["polarity"], since, effect, cordon)
    )
    if row is None and not re.search(r"error|fault|unhealthy|terminat|not-ready|maintenance|quarantine", key):
        return  # a dedicated node pool, no trouble
    event = Event("k8s-taint", "kubernetes", f"{node}: taint {written} {cordon}".rstrip(), since, node=node)
    event.data = {"taint": key, "value": value, "effect": effect, "needle": key}
    if row:
        event.role, event.cls, event.weight = row["role"], row["class"], float(row["weight"] or 0)
    if re.search(r"impending-node-termination|termination-handler", key):
        event.signature = "k8s-impending-termination"
    part.events.append(event)


def _resources(node: str, status: Mapping[str, Any], part: Parsed) -> None:
    capacity, allocatable = status.get("capacity") or {}, status.get("allocatable") or {}
    for name in capacity:
        if not _GPU_RESOURCE.match(str(name)):
            continue
        has, offers = parse_quantity(capacity[name]) or 0, parse_quantity(allocatable.get(name, 0)) or 0
        part.conditions.append(
            Condition(
                str(name), f"{offers:g}/{has:g}", node, "resource", offers < has, None, "", f"allocatable {offers:g} of {has:g}"
            )
        )
        if offers < has:
            part.events.append(
                Event(
                    "k8s-gpu-allocatable-low" if offers else "k8s-gpu-allocatable-none",
                    "kubernetes",
                    f"{node}: allocatable {name}: {offers:g} of capacity {has:g}",
                    node=node,
                    data={"resource": str(name), "allocatable": offers, "capacity": has, "needle": f'"{name}"'},
                )
            )


# ---- events


def _event(item: Mapping[str, Any], part: Parsed, where: Mapping[str, str]) -> None:
    about = item.get("involvedObject") or item.get("regarding") or {}
    source, series = item.get("source") or item.get("deprecatedSource") or {}, item.get("series") or {}
    reason, message = str(item.get("reason") or ""), str(item.get("message") or item.get("note") or "")
    component = str(source.get("component") or item.get("reportingComponent") or item.get("reportingController") or "")
    first, last = event_span(item)
    kind, name, severity = str(about.get("kind") or ""), str(about.get("name") or ""), str(item.get("type") or "Warning")
    node = _event_node(kind, name, source, item, component, where)
    meaning = classify(reason, message, kind=kind, severity=severity)
    if meaning is None:
        return
    container = re.search(r"\{(.+)\}", str(about.get("fieldPath") or ""))
    event = Event(
        meaning.signature,
        "kubernetes",
        f"{kind.lower()}/{name} {component}: {message or reason}",  # the reason is in data: here stands what was said
        first,
        node=node,
        gpu=gpu_in(message) if kind == "Node" or meaning.signature.startswith(("xid", "sxid", "k8s-gpu", "k8s-device")) else None,
        count=int(item.get("count") or item.get("deprecatedCount") or series.get("count") or 1),
        last=last,
        data={
            "reason": reason,
            "kind": kind,
            "object": name,
            "component": component,
            "namespace": about.get("namespace"),
            "needle": message or reason,
        },
    )
    if kind == "Pod":
        event.data["pod"] = name
    if container:
        event.data["container"] = container[1]
    if "needle" in event.data and reason == "ExitedWithCode":  # Pod: speech.worker-2 exited with code 1
        said = re.match(r"Pod: (?:[^.\s]+\.)?(\S+) exited with code (-?\d+)", message)
        if said:
            event.data["pod"], event.code, event.node = said[1], int(said[2]), where.get(said[1])
    if meaning.signature == "k8s-taint-eviction":
        said = re.search(r"Pod \S+?/(\S+)", message)
        if said:
            event.data["pod"] = said[1]
            event.node = event.node or where.get(said[1])
    part.events.append(meaning.apply(event))


def _event_node(
    kind: str, name: str, source: Mapping[str, Any], item: Mapping[str, Any], component: str, where: Mapping[str, str]
) -> str | None:
    if kind == "Node":
        return name
    host = source.get("host")
    if not host and component == "kubelet":  # newer events name the node of the kubelet as instance
        host = item.get("reportingInstance")
    return str(host) if host else where.get(name)


# ---- jobs


def _job(item: Mapping[str, Any], part: Parsed) -> None:
    meta, status, spec = item["metadata"], item["status"], item.get("spec") or {}
    record = JobRecord(str(meta.get("uid") or "") or None, str(meta["name"]), source="kubernetes")
    record.start = epoch(status.get("startTime") or meta.get("creationTimestamp"))
    record.end = epoch(status.get("completionTime"))
    record.restarts = status.get("restarts") if isinstance(status.get("restarts"), int) else None
    deadline = spec.get("activeDeadlineSeconds") or (spec.get("runPolicy") or {}).get("activeDeadlineSeconds")
    record.time_limit = float(deadline) if deadline else None
    record.data = {"kind": item.get("kind"), "namespace": meta.get("namespace")}
    for raw in status.get("conditions") or []:
        if raw.get("status") != "True":
            _waits(record, item, raw, part)
            continue
        record.state, record.reason = str(raw.get("type")), str(raw.get("reason") or "") or None
        message, since = str(raw.get("message") or ""), epoch(raw.get("lastTransitionTime"))
        if record.state in ("Failed", "Complete", "Succeeded", "Completed"):
            record.end = record.end or since
        if record.state in (*_FAILED, "Suspended", "Evicted", "Preempted", "DisruptionTarget", "Unschedulable"):
            meaning = classify(str(raw.get("reason") or record.state), message, kind=str(item.get("kind")))
            if meaning and meaning.signature != "k8s-warning":
                text = f"{item.get('kind')} {record.name}: {record.state} {raw.get('reason')}: {message}"
                event = Event(
                    meaning.signature,
                    "kubernetes",
                    text,
                    since,
                    data={"job": record.name, "reason": raw.get("reason"), "needle": message},
                )
                part.events.append(meaning.apply(event))
    if record.state == "Unschedulable" or (status.get("phase") in ("Pending", "Inqueue", "PreScheduling") and not record.end):
        record.start = epoch(status.get("startTime"))  # made, but not begun
    part.jobs.append(record)


# conditions of Kueue's Workload, Volcano's PodGroup and others that are False while a job waits for a place
_PLACED = ("QuotaReserved", "Admitted", "Scheduled", "PodScheduled")


def _waits(record: JobRecord, item: Mapping[str, Any], raw: Mapping[str, Any], part: Parsed) -> None:
    """Add the event of a job that a queue or a gang scheduler does not let start."""
    kind, name, message = str(raw.get("type")), record.name, str(raw.get("message") or "")
    if (
        raw.get("status") != "False"
        or kind not in _PLACED
        or not message
        or record.state in ("Complete", "Succeeded", "Finished")
    ):
        return
    text = f"{item.get('kind')} {name}: {kind}=False {raw.get('reason')}: {message}"
    meaning = classify(str(raw.get("reason") or kind), message, kind=str(item.get("kind")), severity="Normal")
    if meaning is None or meaning.signature not in ("k8s-gang-waiting", "k8s-failed-scheduling"):
        return
    data = {"job": name, "reason": raw.get("reason"), "needle": message}
    part.events.append(
        meaning.apply(Event(meaning.signature, "kubernetes", text, epoch(raw.get("lastTransitionTime")), data=data))
    )


def _jobs_of_pods(parsed: Parsed) -> None:
    """Add a record for each job that only its pods tell of; a job of one start has the span of its pods."""
    known = {job.name for job in parsed.jobs}
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for pod in parsed.facts["pods"].values():
        if pod["job"] and pod["job"] not in known:
            groups.setdefault(pod["job"], []).append(pod)
    for name, pods in groups.items():
        ends, starts = [pod["end"] for pod in pods if pod["end"]], [pod["start"] for pod in pods if pod["start"]]
        phases = {pod["phase"] for pod in pods}
        state = next((phase for phase in ("Failed", "Pending", "Running", "Succeeded", "Unknown") if phase in phases), None)
        record = JobRecord(
            None, name, state, list(dict.fromkeys(pod["node"] for pod in pods if pod["node"])), source="kubernetes"
        )
        record.start, record.end = (
            min(starts, default=None),
            max(ends, default=None) if state == "Failed" or len(ends) == len(pods) else None,
        )
        codes = [pod["exit_code"] for pod in pods if pod["exit_code"]]
        record.exit_code = codes[0] if codes else (0 if state == "Succeeded" else None)
        record.data = {"kind": pods[0]["owner"], "namespace": pods[0]["namespace"], "pods": len(pods), "from": "pods"}
        parsed.jobs.append(record)
