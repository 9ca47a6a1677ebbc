"""Turn one Kubernetes pod into placements of ranks, ends of containers, limits, and why it was taken away or waits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from workbench.model import Condition, Event, Gpu, Line, Parsed, Placement
from workbench.parse.kubernetes_devices import annotated, plugin_devices, pod_claims
from workbench.parse.kubernetes_loose import said_by_container
from workbench.parse.kubernetes_owners import owner_of
from workbench.parse.kubernetes_reasons import Meaning, classify, epoch, parse_quantity

__all__ = ["parse_pod", "pod_identity", "ranks_of_pod"]

# labels and annotations that bear the index of a pod in its job, the most specific first
_INDEX_KEYS = (
    "training.kubeflow.org/replica-index",
    "batch.kubernetes.io/job-completion-index",
    "jobset.sigs.k8s.io/job-global-index",
    "leaderworkerset.sigs.k8s.io/worker-index",
    "apps.kubernetes.io/pod-index",
    "volcano.sh/task-index",
    "ray.io/rank",
)
_JOB_KEYS = (
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
    "leaderworkerset.sigs.k8s.io/name",
    "ray.io/cluster",
    "volcano.sh/job-name",
    "trainer.kubeflow.org/trainjob-ancestor-step",
    "batch.kubernetes.io/job-name",
    "job-name",
)
# owners that hold a service of the cluster and no training job
_SERVICES = {"DaemonSet", "Node"}
_SIGNALS = {129: 1, 130: 2, 131: 3, 132: 4, 133: 5, 134: 6, 135: 7, 136: 8, 137: 9, 139: 11, 141: 13, 143: 15}
_SHM_DEFAULT = 64 * 2**20  # bytes; what container runtimes give when the pod mounts nothing at /dev/shm


def pod_identity(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a pod is part of: ``job``, ``owner`` kind, ``index`` in the job, ``attempt`` (1-based) and ``service``."""
    meta = item.get("metadata") or {}
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    both = {**notes, **labels}
    owners = meta.get("ownerReferences") or []
    owner = str(owners[0].get("kind")) if owners else None
    job = next((str(both[key]) for key in _JOB_KEYS if both.get(key)), None)
    if job is None and owners and owner not in _SERVICES and owner not in ("ReplicaSet", "StatefulSet"):
        job = str(owners[0].get("name"))
    index = next((int(both[key]) for key in _INDEX_KEYS if str(both.get(key, "")).isdigit()), None)
    attempt = both.get("jobset.sigs.k8s.io/restart-attempt")
    return {
        "job": job,
        "owner": owner,
        "index": index,
        "attempt": int(str(attempt)) + 1 if str(attempt).isdigit() else None,
        "service": owner in _SERVICES,
    }


def parse_pod(item: Mapping[str, Any], part: Parsed, _: Mapping[str, str]) -> None:
    """Read one pod into `part`; its facts go to ``part.facts["pods"]``."""
    meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    name, node = str(meta["name"]), spec.get("nodeName")
    identity = pod_identity(item)
    containers = spec.get("containers") or []
    gpus = sum(_gpus(container) for container in containers)
    facts = {
        **identity,
        "node": node,
        "namespace": meta.get("namespace"),
        "team": owner_of(meta)["team"],
        "phase": status.get("phase"),
        "gpus": gpus,
        "start": epoch(status.get("startTime")),
        "end": None,
        "exit_code": None,
        "priority": spec.get("priority"),
        "uid": meta.get("uid"),
        "claims": pod_claims(item),
        "devices": _reported(status) or annotated(meta.get("annotations") or {}, surely=True),
    }
    part.facts["pods"][name] = facts
    base = {"pod": name, "namespace": meta.get("namespace"), "job": identity["job"], "owner": identity["owner"], "gpus": gpus}
    if identity["service"]:
        base["service"] = True
    ranks = _ranks(item, containers, identity, gpus, part) if gpus or identity["job"] else []
    facts["ranks"] = ranks
    first = len(part.events)
    _status(status, base, node, part, facts)
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        _container(container, base, node, part, facts)
    _shm(spec, containers, base, node, part, wanted=bool(gpus))
    if meta.get("deletionTimestamp"):
        when = epoch(meta["deletionTimestamp"])
        text = f"pod/{name} deletionTimestamp={meta['deletionTimestamp']} phase={status.get('phase')}"
        part.events.append(Event("k8s-pod-deleted", "kubernetes", text, when, data={"needle": str(meta["deletionTimestamp"])}))
    for event in part.events[first:]:
        event.node, event.attempt = event.node or node, identity["attempt"]
        event.data = {**base, **event.data}
        if len(ranks) == 1:
            event.rank = ranks[0]
        elif ranks:
            event.data["ranks"] = [ranks[0], ranks[-1]]
        if identity["service"] and event.signature != "k8s-shm-limit":
            event.role, event.weight = "context", 0.1  # a daemon of the cluster, not the job


def _gpus(container: Mapping[str, Any]) -> int:
    limits = (container.get("resources") or {}).get("limits") or {}
    return int(
        sum(parse_quantity(value) or 0 for key, value in limits.items() if re.match(r"(?:nvidia|amd)\.com/(?:gpu|mig)", str(key)))
    )


# ---- placement


def _env(container: Mapping[str, Any]) -> dict[str, str]:
    return {str(row.get("name")): str(row["value"]) for row in container.get("env") or [] if row.get("value") is not None}


def _number(env: Mapping[str, str], *names: str) -> int | None:
    return next((int(env[name]) for name in names if env.get(name, "").isdigit()), None)


def _per_node(env: Mapping[str, str], words: str, gpus: int) -> int | None:
    # torchrun --nproc-per-node=8 | --nproc_per_node 8 | PET_NPROC_PER_NODE=auto
    said = re.search(r"--nproc[-_]per[-_]node[= ](\w+)", words)
    value = said[1] if said else env.get("PET_NPROC_PER_NODE") or env.get("NPROC_PER_NODE") or env.get("LOCAL_WORLD_SIZE") or ""
    if value.isdigit():
        return int(value)
    if value in ("gpu", "auto"):
        return gpus or None
    if re.search(r"\b(?:torchrun|torch\.distributed\.(?:run|launch)|accelerate launch|deepspeed)\b", words):
        return None  # a launcher that says nowhere how many processes it starts
    return 1 if gpus <= 1 else None


def _counted(containers: list[Mapping[str, Any]], identity: Mapping[str, Any], gpus: int) -> tuple[list[int], int | None, bool]:
    """Return the ranks that a pod's environment and command count, the local rank of its one process, and whether torchrun may number anew."""
    main = next((container for container in containers if _gpus(container)), containers[0] if containers else {})
    env, words = _env(main), " ".join(str(word) for word in [*(main.get("command") or []), *(main.get("args") or [])])
    each = _per_node(env, words, gpus)
    # RANK of a PyTorchJob counts pods, and only equals the global rank when a pod is one process
    group = _number(env, "PET_NODE_RANK", "NODE_RANK", "GROUP_RANK", "JOB_COMPLETION_INDEX", "RANK", "OMPI_COMM_WORLD_NODE_RANK")
    if group is None:
        group = identity["index"]
    # with a c10d rendezvous torchrun numbers the nodes anew, whatever the pod is called
    elastic = ("rdzv" in words and "static" not in words) or env.get("PET_RDZV_BACKEND", "static") != "static"
    local, rank = _number(env, "LOCAL_RANK"), _number(env, "RANK")
    if local is not None and rank is not None:
        return [rank], local, elastic
    if each is not None and group is not None:
        return list(range(group * each, group * each + min(each, 1024))), local, elastic
    return [], local, elastic


def ranks_of_pod(item: Mapping[str, Any]) -> list[int]:
    """
    Return the ranks that run in a pod, in the order of their processes; empty where nothing tells, or a rendezvous may number them anew.

    Parameters
    ----------
    item : mapping
        The pod as the API server gives it.
    """
    containers = (item.get("spec") or {}).get("containers") or []
    ranks, _, elastic = _counted(containers, pod_identity(item), sum(_gpus(container) for container in containers))
    return [] if elastic else ranks


def _ranks(
    item: Mapping[str, Any], containers: list[Mapping[str, Any]], identity: Mapping[str, Any], gpus: int, part: Parsed
) -> list[int]:
    """Append the placements of the ranks of a pod and return the ranks."""
    node, name, start = (
        (item.get("spec") or {}).get("nodeName"),
        str(item["metadata"]["name"]),
        epoch((item.get("status") or {}).get("startTime")),
    )
    ranks, local, elastic = _counted(containers, identity, gpus)
    if not ranks:
        if node:
            part.placements.append(Placement(None, node, None, None, None, name, identity["attempt"], start, "pod"))
        return []
    devices = annotated(item["metadata"].get("annotations") or {})
    origin = "pod-env-elastic" if elastic else "pod-env"
    for at, number in enumerate(ranks):
        gpu = devices[at] if len(devices) == len(ranks) else None
        part.placements.append(
            Placement(number, node, local if local is not None else at, gpu, None, name, identity["attempt"], start, origin)
        )
    return ranks


def _reported(status: Mapping[str, Any]) -> list[Gpu]:
    """Return the GPUs that the kubelet reports in the status of a pod's containers (KEP-4680, ``allocatedResourcesStatus``)."""
    rows = [
        row
        for container in status.get("containerStatuses") or []
        for row in container.get("allocatedResourcesStatus") or []
        if not str(row.get("name")).startswith("claim:")  # the ids of claims are the driver's, and the claim says more
    ]
    return plugin_devices(one.get("resourceID") for row in rows for one in row.get("resources") or [])


# ---- status


def _status(status: Mapping[str, Any], base: Mapping[str, Any], node: str | None, part: Parsed, facts: dict[str, Any]) -> None:
    pod, reason, message = base["pod"], str(status.get("reason") or ""), str(status.get("message") or "")
    when: float | None = None
    for raw in status.get("conditions") or []:
        kind, state, since = str(raw.get("type")), str(raw.get("status")), epoch(raw.get("lastTransitionTime"))
        why, said = str(raw.get("reason") or ""), str(raw.get("message") or "")
        if kind == "DisruptionTarget" and state == "True":
            when = since
            part.conditions.append(Condition(kind, state, node, "pod", True, since, why, said))
            meaning = classify(why, said, kind="Pod")
            if meaning:
                part.events.append(_told(meaning, f"pod/{pod} DisruptionTarget", why, said, since))
        elif kind == "PodScheduled" and state == "False":
            part.conditions.append(Condition(kind, state, None, "pod", True, since, why, said))
            meaning = classify("FailedScheduling" if why in ("Unschedulable", "SchedulerError") else why, said, kind="Pod")
            if meaning and why != "SchedulingGated":
                part.events.append(_told(meaning, f"pod/{pod} PodScheduled=False", why, said, since))
        elif kind in ("Ready", "ContainersReady") and state == "False" and facts["phase"] == "Failed":
            when = when or since
    if reason:
        meaning = classify(reason, message, kind="Pod")
        if meaning and meaning.signature != "k8s-warning":
            part.events.append(_told(meaning, f"pod/{pod} {facts['phase']}", reason, message, when))


def _told(meaning: Meaning, what: str, why: str, said: str, time: float | None) -> Event:
    """Return the event of a pod's state: what it is, the reason that Kubernetes gives, and its message."""
    data = {"reason": why, "needle": said or why}
    return meaning.apply(Event(meaning.signature, "kubernetes", f"{what} {why}: {said}", time, data=data))


def _container(raw: Mapping[str, Any], base: Mapping[str, Any], node: str | None, part: Parsed, facts: dict[str, Any]) -> None:
    name, restarts = str(raw.get("name")), int(raw.get("restartCount") or 0)
    waiting = (raw.get("state") or {}).get("waiting")
    if waiting and waiting.get("reason") not in ("ContainerCreating", "PodInitializing"):
        reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
        meaning = classify(reason, message, kind="Pod")
        if meaning:
            text = f"pod/{base['pod']} container {name} waits: {reason}: {message}"
            part.events.append(
                meaning.apply(
                    Event(
                        meaning.signature,
                        "kubernetes",
                        text,
                        data={"container": name, "reason": reason, "needle": message or reason},
                    )
                )
            )
    for key in ("lastState", "state"):
        ended = (raw.get(key) or {}).get("terminated")
        if ended:
            _ended(ended, name, restarts, base, part, facts, now=key == "state")


def _ended(
    raw: Mapping[str, Any],
    container: str,
    restarts: int,
    base: Mapping[str, Any],
    part: Parsed,
    facts: dict[str, Any],
    *,
    now: bool,
) -> None:
    reason, message, code = str(raw.get("reason") or ""), str(raw.get("message") or ""), raw.get("exitCode")
    end = epoch(raw.get("finishedAt"))
    code = int(code) if isinstance(code, (int, str)) and re.fullmatch(r"-?\d+", str(code)) else None
    signal = int(raw.get("signal") or 0) or _SIGNALS.get(code or 0)
    if now and end:
        facts["end"] = max(end, facts["end"] or 0)
        facts["exit_code"] = facts["exit_code"] or code
    if code == 0 and reason in ("Completed", ""):
        return
    meaning = classify(reason, message, kind="Pod") if reason not in ("Error", "Completed", "") else None
    signature = meaning.signature if meaning and meaning.signature != "k8s-warning" else "k8s-exit"
    if signature == "k8s-exit" and code in (126, 127):
        signature = "k8s-exit-command"
    how = "ended" if now else "ended before"
    text = f'pod/{base["pod"]} container {container} {how} "exitCode": {code}, "reason": "{reason}" {message}'.rstrip()
    event = Event(signature, "kubernetes", text, end, code=code)
    event.data = {
        "container": container,
        "reason": reason,
        "exit_code": code,
        "signal": signal,
        "restarts": restarts,
        "started": epoch(raw.get("startedAt")),
        "current": now,
        # a reason that says something is the line to show; Error and Completed stand everywhere
        "needle": message or (reason if meaning else "") or str(raw.get("finishedAt") or reason),
    }
    part.events.append(meaning.apply(event) if meaning and signature == meaning.signature else event)
    if now and reason == "Error" and message:  # the container's last words; with other reasons they are the runtime's
        lines = [Line(at, text) for at, text in enumerate(message.splitlines(), 1)]
        for quoted in said_by_container(lines, file="", node=None, data={"container": container}):
            quoted.line, quoted.time = None, quoted.time or end
            quoted.data["needle"] = quoted.text.strip()
            part.events.append(quoted)


def _shm(
    spec: Mapping[str, Any],
    containers: list[Mapping[str, Any]],
    base: Mapping[str, Any],
    node: str | None,
    part: Parsed,
    *,
    wanted: bool,
) -> None:
    """Add what the pod has at /dev/shm: the size that data loaders and NCCL share."""
    if not wanted:
        return
    volumes = {str(volume.get("name")): volume for volume in spec.get("volumes") or []}
    for container in containers:
        if not _gpus(container):
            continue
        mount = next(
            (row for row in container.get("volumeMounts") or [] if str(row.get("mountPath")).rstrip("/") == "/dev/shm"), None
        )
        volume = volumes.get(str((mount or {}).get("name")), {})
        memory = (volume.get("emptyDir") or {}).get("medium") == "Memory"
        limit = (volume.get("emptyDir") or {}).get("sizeLimit")
        # without a limit the tmpfs is as large as the memory limit of the pod (or half of the node)
        size = (
            parse_quantity(limit)
            if limit
            else (None if memory or volume.get("hostPath") or spec.get("hostIPC") else _SHM_DEFAULT)
        )
        if mount is None and spec.get("hostIPC"):
            size = None
        limits = (container.get("resources") or {}).get("limits") or {}
        what = f"emptyDir medium={'Memory' if memory else 'disk'} sizeLimit={limit}" if mount else "not mounted"
        text = f"pod/{base['pod']} container {container.get('name')} /dev/shm {what} memory limit={limits.get('memory')}"
        data = {
            "container": container.get("name"),
            "size": size,
            "memory_limit": parse_quantity(limits.get("memory", "")),
            "mounted": mount is not None,
        }
        data["needle"] = f'"sizeLimit": "{limit}"' if limit else "/dev/shm"
        part.events.append(Event("k8s-shm-limit", "kubernetes", text, None, node=node, data=data))
