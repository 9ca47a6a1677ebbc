"""Turn what a Kubernetes cluster shows of pods and jobs into signs of failures: ends, restarts, evictions, and starts that never come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from workbench.catalog import table
from workbench.errors import SourceError
from workbench.inbox.sightings import Seen, Sighting
from workbench.parse.kubernetes_owners import owner_of
from workbench.parse.kubernetes_pods import pod_identity
from workbench.parse.kubernetes_reasons import epoch
from workbench.sources.contract import Deadline
from workbench.sources.kubernetes.api import Api
from workbench.sources.kubernetes.errors import ApiError
from workbench.sources.kubernetes.jobs import Finder, path_of

__all__ = ["KubernetesJobs", "signs_of_job", "signs_of_pod"]

# A container in one of these never starts by itself when it is not mended; kubelet's own words:
# https://kubernetes.io/docs/concepts/containers/images/#imagepullbackoff and pkg/kubelet/images/types.go, container/sync_result.go
_STUCK = frozenset(
    {
        "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "CreateContainerConfigError",
        "CreateContainerError", "RunContainerError", "StartError",
    }
)  # fmt: skip
_PATIENCE = 300.0  # seconds that one of them may take to mend itself: a registry that is slow
# owners whose pods serve and do no job; followed only where a selector names them
_SERVICES = frozenset({"DaemonSet", "Node", "ReplicaSet", "StatefulSet", "ReplicationController"})
_GPU = ("nvidia.com/", "amd.com/gpu", "habana.ai/gaudi", "gpu.intel.com/")


class KubernetesJobs:
    """
    Follows the jobs of a cluster.

    Parameters
    ----------
    api : Api
    namespaces : tuple of str
        Where to look; empty: everywhere.
    selector : str
        Labels of pods that are followed whatever owns them, in kubectl's words; empty: pods of jobs.
    every : bool
        Also jobs that want no GPU.
    """

    name = "kubernetes"

    def __init__(
        self, api: Api, *, namespaces: tuple[str, ...] = (), selector: str = "", every: bool = False, page: int = 500
    ) -> None:
        self._api, self._page = api, page
        self._namespaces, self._selector, self._every = namespaces, selector, every
        self._lock = threading.Lock()
        self._found: list[Sighting] = []
        self._waiting: dict[str, float] = {}  # item of a container that does not start → since when

    def look(self, since: float, now: float, deadline: Deadline) -> Seen:
        """Return every sign that the cluster shows now; those of pods that are gone were seen before, or not at all."""
        seen = Seen()
        finder = Finder(self._api, self._page)
        try:
            finder.discover(deadline)
        except ApiError as error:
            if error.kind not in ("forbidden", "absent"):
                return Seen(problems=[_said("the cluster", error)])
        except SourceError as error:
            return Seen(problems=[_said("the cluster", error)])
        stuck: set[str] = set()

        def pod(item: dict[str, Any]) -> bool:
            for sign, wait in signs_of_pod(item, now, every=self._every, chosen=bool(self._selector)):
                if wait:
                    stuck.add(sign.item)
                    if now - self._waiting.setdefault(sign.item, sign.time or now) < _PATIENCE:
                        continue
                seen.sightings.append(sign)
            return False  # nothing of it is kept: a large cluster has gigabytes of pods

        query = {"labelSelector": self._selector} if self._selector else {}
        for space in self._namespaces or (None,):
            whole = self._each("pods", path_of("", "v1", "pods", space), query, pod, seen, deadline)
            if not self._selector:
                self._jobs(finder, space, seen, deadline, now)
        if whole:
            self._waiting = {item: began for item, began in self._waiting.items() if item in stuck}
        return seen

    def _jobs(self, finder: Finder, space: str | None, seen: Seen, deadline: Deadline, now: float) -> None:
        for row in table("kubernetes_jobs"):
            ends = _ends().get((row["kind"], row["group"]))
            if not ends or (finder.groups is not None and row["group"] not in finder.groups):
                continue

            def job(item: dict[str, Any], ends: Iterable[Mapping[str, str]] = ends, row: Mapping[str, str] = row) -> bool:
                seen.sightings += signs_of_job(item, row, ends, now, every=self._every)
                return False

            version = (finder.groups or {}).get(row["group"]) or row["version"]
            self._each(row["plural"], path_of(row["group"], version, row["plural"], space), {}, job, seen, deadline)

    def _each(
        self,
        what: str,
        path: str,
        query: Mapping[str, Any],
        keep: Callable[[dict[str, Any]], bool],
        seen: Seen,
        deadline: Deadline,
    ) -> bool:
        """Show all objects of a list to `keep`; what did not come is a problem. Return whether all came."""
        try:
            listing = self._api.list(path, deadline, query, page=self._page, keep=keep)
        except ApiError as error:
            if error.kind == "absent":  # a kind that is not installed
                return True
            seen.problems.append(_said(what, error))
            return False
        except SourceError as error:
            seen.problems.append(_said(what, error))
            return False
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            seen.problems.append(f"kubernetes: {what}: an object of an unexpected shape came ({type(error).__name__}: {error})")
            return False
        if listing.error is not None:
            seen.problems.append(_said(what, listing.error))
        return listing.error is None


def _said(what: str, error: SourceError) -> str:
    return f"kubernetes: {what}: {error}" + (f" ({error.hint})" if error.hint else "")


@lru_cache(maxsize=1)
def _ends() -> dict[tuple[str, str], list[dict[str, str]]]:
    """How each kind of job tells that it failed (``catalog/kubernetes_job_ends.csv``)."""
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in table("kubernetes_job_ends"):
        found.setdefault((row["kind"], row["group"]), []).append(row)
    return found


@lru_cache(maxsize=1)
def _labels() -> tuple[tuple[str, str], ...]:
    """(label, kind) that tell the job of a pod, what makes others first: a JobSet makes Jobs, a RayJob a RayCluster."""
    rows = [row for row in table("kubernetes_jobs") if row["role"] == "job"]
    order = sorted(rows, key=lambda row: (row["group"] == "batch", row["kind"] == "RayCluster", row["kind"] != "TrainJob"))
    return tuple((key, row["kind"]) for row in order for key in row["labels"].split(";") if key)


def _job_of(item: Mapping[str, Any], chosen: bool) -> tuple[str, str] | None:
    """Return kind and name of the job of a pod, outermost first; None when it is of none."""
    meta = item.get("metadata") or {}
    labels = {**(meta.get("annotations") or {}), **(meta.get("labels") or {})}
    for key, kind in _labels():
        if value := labels.get(key):
            made_by = labels.get("ray.io/originated-from-crd")
            return str(made_by) if kind.startswith("Ray") and made_by else kind, str(value)
    identity = pod_identity(item)
    if identity["service"] or identity["owner"] in _SERVICES:
        return (str(identity["owner"]), str(meta["ownerReferences"][0].get("name"))) if chosen else None
    return str(identity["owner"] or "Pod"), str(identity["job"] or meta.get("name"))


def _wants_gpu(spec: Mapping[str, Any]) -> bool:
    """Whether a pod's spec asks for a GPU, by count or by claim (DRA)."""
    if spec.get("resourceClaims"):
        return True
    for container in spec.get("containers") or []:
        for rows in (container.get("resources") or {}).values():
            if isinstance(rows, Mapping) and any(str(key).startswith(_GPU) for key in rows):
                return True
    return False


def signs_of_pod(
    item: Mapping[str, Any], now: float, *, every: bool = False, chosen: bool = False
) -> list[tuple[Sighting, bool]]:
    """
    Return the signs that a pod shows, each with whether it counts only after a while.

    Parameters
    ----------
    item : mapping
        The pod.
    now : float
        Seconds since the epoch.
    every : bool
        Also of jobs that want no GPU.
    chosen : bool
        A selector named the pod: it counts whatever owns it.
    """
    meta, spec, status = item.get("metadata") or {}, item.get("spec") or {}, item.get("status") or {}
    job = _job_of(item, chosen)
    # the pods of a training operator belong together with or without GPUs: a launcher, a head
    if job is None or not (every or chosen or job[0] not in ("Job", "Pod", "CronJob") or _wants_gpu(spec)):
        return []
    uid, name, space = str(meta.get("uid") or meta.get("name")), str(meta.get("name")), str(meta.get("namespace") or "")
    owner = owner_of(meta)
    node = str(spec.get("nodeName") or "")
    attempt = pod_identity(item)["attempt"]

    def sign(what: str, when: float | None, reason: str) -> Sighting:
        return Sighting(
            item=f"kubernetes/{uid}/{what}",
            # without its kind: a TrainJob and its JobSet share name and label, and all kinds of Kubeflow the label
            key=f"kubernetes/{space}/{job[1]}",
            source="kubernetes",
            job=job[1],
            namespace=space,
            attempt=attempt,
            time=when,
            begin=epoch(status.get("startTime")) or epoch(meta.get("creationTimestamp")),
            nodes=(node,) if node else (),
            pods=(name,),
            reason=f"pod {name}: {reason}",
            user=owner["user"] or "",
            team=owner["team"] or "",
        )

    found: list[tuple[Sighting, bool]] = []
    disrupted = next(
        (one for one in status.get("conditions") or [] if one.get("type") == "DisruptionTarget" and one.get("status") == "True"),
        None,
    )
    phase, ended = str(status.get("phase")), _last_end(status)
    if disrupted is not None and phase != "Succeeded":
        said = f"{disrupted.get('reason') or 'DisruptionTarget'}: {disrupted.get('message') or 'it is being taken away'}"
        found.append((sign("disrupted", epoch(disrupted.get("lastTransitionTime")), said), False))
    if phase == "Failed" and not (disrupted is None and _stopped(meta, ended)):
        said = " ".join(str(part) for part in (status.get("reason"), status.get("message")) if part) or _how_it_ended(status)
        found.append((sign("failed", ended, said), False))
    for container in status.get("containerStatuses") or []:
        title, count = str(container.get("name")), int(container.get("restartCount") or 0)
        last = (container.get("lastState") or {}).get("terminated") or {}
        if last.get("exitCode") and count:
            found.append(
                (sign(f"{title}/{count}", epoch(last.get("finishedAt")), f"{title} restarted after {_code(last)}"), False)
            )
        over = (container.get("state") or {}).get("terminated") or {}
        if over.get("exitCode") and phase == "Running" and not meta.get("deletionTimestamp"):
            found.append(
                (sign(f"{title}/{count + 1}", epoch(over.get("finishedAt")), f"{title} ended with {_code(over)}"), False)
            )
    if phase in ("Pending", "Running") and not meta.get("deletionTimestamp"):
        for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
            waits = (container.get("state") or {}).get("waiting") or {}
            if waits.get("reason") in _STUCK and not container.get("restartCount"):
                said = f"{container.get('name')} cannot start: {waits['reason']} {waits.get('message') or ''}"
                began = epoch(status.get("startTime")) or epoch(meta.get("creationTimestamp")) or now
                found.append((sign(f"{container.get('name')}/stuck", began, said.strip()), True))
    return found


def _last_end(status: Mapping[str, Any]) -> float | None:
    ends = [
        epoch(((one.get("state") or {}).get("terminated") or {}).get("finishedAt"))
        for one in [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]
    ]
    times = [end for end in ends if end is not None]
    if not times:  # an evicted pod, or one whose node is gone
        changed = [epoch(one.get("lastTransitionTime")) for one in status.get("conditions") or []]
        times = [time for time in changed if time is not None]
    return max(times, default=None)


def _stopped(meta: Mapping[str, Any], ended: float | None) -> bool:
    """Whether a pod ended because somebody deleted it: its job was stopped, suspended, or is made anew after another pod failed."""
    gone = epoch(meta.get("deletionTimestamp"))  # when it is to be gone at the latest: asked for a grace period earlier
    if gone is None:
        return False
    asked = gone - float(meta.get("deletionGracePeriodSeconds") or 0)
    return ended is None or ended >= asked - 1.0


def _how_it_ended(status: Mapping[str, Any]) -> str:
    for one in [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]:
        over = (one.get("state") or {}).get("terminated") or {}
        if over.get("exitCode"):
            return f"{one.get('name')} ended with {_code(over)}"
    return "it failed"


def _code(over: Mapping[str, Any]) -> str:
    word = str(over.get("reason") or "")
    return f"exit code {over.get('exitCode')}" + (f" ({word})" if word and word != "Error" else "")


# ---- jobs


def signs_of_job(
    item: Mapping[str, Any], row: Mapping[str, str], ends: Iterable[Mapping[str, str]], now: float, *, every: bool = False
) -> list[Sighting]:
    """Return the signs that a job's own object shows, for what its pods do not: they may be gone, or were never made."""
    meta, status = item.get("metadata") or {}, item.get("status") or {}
    name, space, uid = str(meta.get("name")), str(meta.get("namespace") or ""), str(meta.get("uid") or meta.get("name"))
    kind, title = row["kind"], name
    for owner in meta.get("ownerReferences") or []:  # what makes others speaks for them
        if any(one["kind"] == owner.get("kind") and one["role"] == "job" for one in table("kubernetes_jobs")):
            kind, title = str(owner["kind"]), str(owner.get("name"))
    for key, outer in _labels():
        if (meta.get("labels") or {}).get(key) and outer != row["kind"] and not outer.startswith("Ray"):
            kind, title = outer, str(meta["labels"][key])
            break
    template = ((item.get("spec") or {}).get("template") or {}).get("spec") or {}
    if kind in ("Job", "Pod", "CronJob") and row["group"] == "batch" and not (every or _wants_gpu(template)):
        return []
    if row["role"] == "queue" and kind == row["kind"]:
        return []  # of a group of plain pods, which tell for themselves
    began = epoch(status.get("startTime")) or epoch(meta.get("creationTimestamp"))

    def sign(what: str, when: float | None, reason: str, attempt: int | None = None) -> Sighting:
        owner = owner_of(meta)
        return Sighting(
            item=f"kubernetes/{uid}/{what}",
            key=f"kubernetes/{space}/{title}",
            source="kubernetes",
            job=title,
            namespace=space,
            attempt=attempt,
            time=when,
            begin=began,
            reason=f"{row['kind']} {name}: {reason}",
            user=owner["user"] or "",
            team=owner["team"] or "",
        )

    found = []
    for end in ends:
        if end["how"] == "condition":
            for one in status.get("conditions") or []:
                if one.get("type") == end["where"] and one.get("status") == end["value"]:
                    when = epoch(one.get("lastTransitionTime"))
                    said = " ".join(str(part) for part in (one.get("reason"), one.get("message")) if part) or end["meaning"]
                    found.append(sign(f"{end['where']}@{when or 0:.0f}", when, said))
        elif end["how"] == "value":
            if str(_at(item, end["where"])) == end["value"]:
                when = epoch(status.get("endTime") or status.get("lastUpdateTime"))
                found.append(
                    sign(
                        f"{end['where']}={end['value']}", when, f"{end['where']} is {end['value']}: {status.get('message') or ''}"
                    )
                )
        else:
            count = _at(item, end["where"])
            for number in range(1, min(count, 100) + 1) if isinstance(count, int) else ():
                attempt = number if end["how"] == "attempt" else None
                found.append(sign(f"{end['where']}/{number}", None, f"start {number} failed: {end['meaning']}", attempt))
    return found


def _at(item: Any, path: str) -> Any:
    for word in path.split("."):
        item = item.get(word) if isinstance(item, Mapping) else None
    return item
