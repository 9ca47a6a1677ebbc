"""
Turn the name of a job into its Kubernetes objects: what owns its pods, the pods, the nodes, the namespace and when it ran.

Which kinds own pods and which labels tell it is the table ``catalog/kubernetes_jobs.csv``; versions come from the server.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.catalog import table
from workbench.errors import SourceError
from workbench.parse.kubernetes_pods import pod_identity
from workbench.parse.kubernetes_reasons import epoch
from workbench.sources.contract import Deadline, Scope
from workbench.sources.kubernetes.api import Api
from workbench.sources.kubernetes.errors import ApiError

__all__ = ["Finder", "Found", "Wanted", "about_job", "path_of", "window_of"]

_THREADS = 6
_MANY = 24  # objects of one kind that are asked for by name; more are listed
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_UNCHANGED = 600.0  # seconds after the end of a job in which what happens to its nodes and pods still belongs to it


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked of the server: verb, API group, resource; so that a refusal can name the right that lacks."""

    verb: str
    group: str
    resource: str
    namespace: str | None = None


@dataclass(slots=True)
class Found:
    """
    What Kubernetes knows of a job.

    Attributes
    ----------
    way : str
        How the pods were found, in words; empty when the job is not known.
    gone : dict
        Pods that are deleted and of which only events tell → their node, when it is told.
    lacks : list
        What could not be asked, and why.
    notes : list of str
        What a person should know of how it was found.
    """

    job: str
    namespace: str | None = None
    pods: list[dict[str, Any]] = field(default_factory=list)
    owners: list[dict[str, Any]] = field(default_factory=list)
    way: str = ""
    gone: dict[str, str | None] = field(default_factory=dict)
    lacks: list[tuple[Wanted, SourceError]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes of the pods, each once, in the order of the pods."""
        told = [(pod.get("spec") or {}).get("nodeName") for pod in self.pods] + list(self.gone.values())
        return tuple(dict.fromkeys(str(node) for node in told if node))

    @property
    def addresses(self) -> tuple[tuple[str, str], ...]:
        """Address → node, as the pods saw it when they ran: ``status.hostIP`` is there also when the node is not any more."""
        found: dict[tuple[str, str], None] = {}
        for pod in self.pods:
            node, status = (pod.get("spec") or {}).get("nodeName"), pod.get("status") or {}
            many = status.get("hostIPs")
            told = [one.get("ip") for one in many if isinstance(one, dict)] if isinstance(many, list) else []
            for address in (status.get("hostIP"), *told):
                if node and address:
                    found[str(address), str(node)] = None
        return tuple(found)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the pods, also of those that are gone."""
        return tuple(dict.fromkeys([_name(pod) for pod in self.pods] + list(self.gone)))


def path_of(group: str, version: str, plural: str, namespace: str | None, name: str = "") -> str:
    """Return the path of a resource, of all namespaces when none is named."""
    root = f"/apis/{group}/{version}" if group else f"/api/{version}"
    within = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{within}/{plural}" + (f"/{name}" if name else "")


def about_job(name: str, job: str) -> bool:
    """Tell whether an object's name is that of the job or begins with it, as controllers name what they make."""
    return name == job or name.startswith((job + "-", job + "."))


def window_of(found: Found, scope: Scope) -> tuple[float, float]:
    """Return from when to when the job ran, within the scope's window where the two overlap."""
    items = [*found.owners, *found.pods]
    begins = [epoch((item.get("metadata") or {}).get("creationTimestamp")) for item in items]
    begins += [epoch((item.get("status") or {}).get("startTime")) for item in items]
    started = [time for time in begins if time is not None]
    if not started:
        return scope.since, scope.until
    ends, runs = [], False
    for pod in found.pods:
        end = _end_of(pod)
        runs = runs or end is None
        ends += [end] if end is not None else []
    for owner in found.owners:
        status = owner.get("status") if isinstance(owner.get("status"), dict) else {}
        end = epoch((status or {}).get("completionTime"))
        ends += [end] if end is not None else []
    since = min(started)
    until = scope.until if runs or not ends else max(ends) + _UNCHANGED
    if until < scope.since or since > scope.until:  # it ran at another time than was asked for: its own window counts
        return since, max(until, since)
    return max(since, scope.since), min(until, scope.until)


def _end_of(pod: Mapping[str, Any]) -> float | None:
    """Return when the last container of a pod ended; None while one runs."""
    status = pod.get("status") or {}
    if status.get("phase") not in ("Failed", "Succeeded"):
        return None
    ends = [
        epoch(((one.get(key) or {}).get("terminated") or {}).get("finishedAt"))
        for one in [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]
        for key in ("state", "lastState")
    ]
    known = [end for end in ends if end is not None]
    since = [epoch(one.get("lastTransitionTime")) for one in status.get("conditions") or []]
    return max(known or [time for time in since if time is not None], default=None)


def _name(item: Mapping[str, Any]) -> str:
    return str((item.get("metadata") or {}).get("name") or "")


def _namespace(item: Mapping[str, Any]) -> str:
    return str((item.get("metadata") or {}).get("namespace") or "")


def _owners_of(item: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return (group, version, kind, name) of each owner."""
    rows = (item.get("metadata") or {}).get("ownerReferences") or []
    made = []
    for row in rows:
        group, _, version = str(row.get("apiVersion") or "v1").rpartition("/")
        made.append((group, version, str(row.get("kind")), str(row.get("name"))))
    return made


def _at(item: Any, path: str) -> str:
    for word in path.split("."):
        item = item.get(word) if isinstance(item, Mapping) else None
    return str(item or "")


class Finder:
    """
    Finds a job; one instance a question.

    Parameters
    ----------
    api : Api
        The server.
    page : int
        Objects a page of a list.
    """

    def __init__(self, api: Api, page: int = 500) -> None:
        self.api, self.page = api, page
        self.groups: dict[str, str] | None = None  # API group → version that the server prefers
        self._lacks: list[tuple[Wanted, SourceError]] = []
        self._elsewhere = False  # there is a narrower place to look when pods may not be listed here

    # ---- what the server has

    def discover(self, deadline: Deadline) -> None:
        """Ask which API groups there are, so that kinds that are not installed are not asked for."""
        document = self.api.json("/apis", deadline)
        self.groups = {
            str(row.get("name")): str((row.get("preferredVersion") or {}).get("version") or "")
            for row in document.get("groups") or []
        }
        if not self.groups:
            raise ApiError("the API server names no API group at all", "not-json", hint="check that this is an API server")

    def has(self, group: str) -> bool:
        """Tell whether an API group is there, as far as is known."""
        return not group or self.groups is None or group in self.groups

    # ---- finding

    def find(self, scope: Scope, deadline: Deadline) -> Found:
        """
        Return what is known of a job; `way` is empty when that is nothing.

        Raises
        ------
        SourceError
            The server did not answer, pods may not be listed, or several namespaces have a job of this name.
        """
        self._lacks = []
        try:
            self.discover(deadline)
        except ApiError as error:
            if error.kind not in ("forbidden", "absent"):
                raise
        namespaces: tuple[str | None, ...] = (scope.namespace,)
        if scope.namespace is None and self.api.namespace:
            namespaces = (None, self.api.namespace)  # who may not look everywhere may look at home
        for place in namespaces:
            self._elsewhere = place is None and len(namespaces) > 1
            try:
                found = self._find_in(place, scope, deadline)
                break
            except ApiError as error:
                if error.kind != "forbidden" or not self._elsewhere:
                    raise
                self._lacks = []
        if place != scope.namespace:
            found.notes.append(f"only namespace {place} was searched, since pods may not be listed in all of them")
        found.lacks = self._lacks
        return found

    def _find_in(self, place: str | None, scope: Scope, deadline: Deadline) -> Found:
        rows = [row for row in table("kubernetes_jobs") if self.has(row["group"])]
        jobs = [row for row in rows if row["kind"] and row["role"] == "job"]
        owners = self._all(
            [lambda row=row: self._named(row, place, scope.job, deadline) for row in jobs]  # type: ignore[misc]
        )
        labels = list(dict.fromkeys(key for row in rows if row["role"] != "plain" for key in row["labels"].split(";") if key))
        wanted = [(key, scope.job) for key in labels] + [
            (via.split("=")[1], _at(owner, via.split("=")[0]))
            for row in jobs
            for owner in owners
            if owner["kind"] == row["kind"] and (via := row["via"]) and _at(owner, via.split("=")[0])
        ]
        pods = self._labelled(wanted, place, deadline)
        way = f"{owners[0]['kind']} {scope.job}" if owners else "the label of its controller" if pods else ""
        if not pods and not owners:
            plain = [(key, scope.job) for row in rows if row["role"] == "plain" for key in row["labels"].split(";")]
            pods = self._labelled(plain, place, deadline)
            way = "a plain label" if pods else ""
        if not pods:
            pods = self._prefixed(place, scope, deadline)
            way = way or ("the names of its pods" if pods else "")
        named = self._given(scope, place, {_name(pod) for pod in pods}, deadline)
        found = self._one_namespace(scope, [*pods, *named], owners)
        found.way = way or ("pods that another source named" if named else "")
        found.pods = _of_attempt(found.pods, scope.attempt)
        if not found.pods:
            self._from_events(found, place, scope, deadline)
        if found.namespace and (found.pods or found.owners):
            self._up(found, deadline)
            self._queues(found, deadline)
        return found

    def _all(self, works: list[Callable[[], list[dict[str, Any]]]]) -> list[dict[str, Any]]:
        """Run the questions beside each other and return what all of them found."""
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="kubernetes") as pool:
            return [item for part in pool.map(lambda work: work(), works) for item in part]

    def _asked(
        self, wanted: Wanted, path: str, deadline: Deadline, query: Mapping[str, Any], **more: Any
    ) -> list[dict[str, Any]]:
        """Return a list; what may not be asked or is not there is noted, and gives nothing."""
        try:
            listing = self.api.list(path, deadline, query, page=self.page, **more)
        except ApiError as error:
            if error.kind == "absent":
                return []
            if error.kind == "forbidden" and (wanted.resource != "pods" or not self._elsewhere):
                self._lack(wanted, error)
                return []
            raise
        if listing.error is not None:
            self._lack(wanted, listing.error)
        return listing.items

    def _lack(self, wanted: Wanted, error: SourceError) -> None:
        if wanted not in [known for known, _ in self._lacks]:
            self._lacks.append((wanted, error))

    def _named(self, row: Mapping[str, str], place: str | None, job: str, deadline: Deadline) -> list[dict[str, Any]]:
        return self._kind(row, place, deadline, {"fieldSelector": f"metadata.name={job}"})

    def _kind(
        self, row: Mapping[str, str], place: str | None, deadline: Deadline, query: Mapping[str, Any], **more: Any
    ) -> list[dict[str, Any]]:
        """Return objects of one kind: in the version that the server prefers for the group, or else in the table's."""
        right = Wanted("list", row["group"], row["plural"], place)
        for version in dict.fromkeys([(self.groups or {}).get(row["group"]) or row["version"], row["version"]]):
            items = self._asked(right, path_of(row["group"], version, row["plural"], place), deadline, query, **more)
            if items:
                return items
        return []

    def _labelled(self, wanted: Iterable[tuple[str, str]], place: str | None, deadline: Deadline) -> list[dict[str, Any]]:
        """Return the pods that bear one of the labels, each once."""
        # the value of a label has 63 characters at most, and is no expression
        pairs = [pair for pair in dict.fromkeys(wanted) if re.fullmatch(r"[A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?", pair[1])]
        asked = Wanted("list", "", "pods", place)
        pods = self._all(
            [
                lambda pair=pair: self._asked(  # type: ignore[misc]
                    asked, path_of("", "v1", "pods", place), deadline, {"labelSelector": f"{pair[0]}={pair[1]}"}
                )
                for pair in pairs
            ]
        )
        return list({(_namespace(pod), _name(pod)): pod for pod in pods}.values())

    def _prefixed(self, place: str | None, scope: Scope, deadline: Deadline) -> list[dict[str, Any]]:
        """Return the pods whose names begin with the job's; first of all pods the names alone are read."""
        names = self._asked(
            Wanted("list", "", "pods", place),
            path_of("", "v1", "pods", place),
            deadline,
            {},
            keep=lambda item: about_job(_name(item), scope.job),
            accept=_METADATA,
        )
        wanted = {(_namespace(item), _name(item)) for item in names}
        pods: list[dict[str, Any]] = []
        for space in sorted({space for space, _ in wanted}):
            inside = [name for where, name in sorted(wanted) if where == space]
            pods += self._by_name(inside, space, deadline)
        return pods

    def _given(self, scope: Scope, place: str | None, have: set[str], deadline: Deadline) -> list[dict[str, Any]]:
        lacking = [name for name in scope.pods if name not in have]
        return self._by_name(lacking, place, deadline) if place and lacking else []

    def _by_name(self, names: list[str], space: str, deadline: Deadline) -> list[dict[str, Any]]:
        path = path_of("", "v1", "pods", space)
        if len(names) > _MANY:
            wanted = set(names)
            return self._asked(Wanted("list", "", "pods", space), path, deadline, {}, keep=lambda item: _name(item) in wanted)
        return self._all([lambda name=name: self._one(path, name, "Pod", deadline) for name in names])  # type: ignore[misc]

    def _one(self, path: str, name: str, kind: str, deadline: Deadline) -> list[dict[str, Any]]:
        try:
            return [{"kind": kind, **self.api.json(f"{path}/{name}", deadline)}]
        except ApiError as error:
            if error.kind in ("absent", "forbidden"):
                return []
            raise

    def _one_namespace(self, scope: Scope, pods: list[dict[str, Any]], owners: list[dict[str, Any]]) -> Found:
        """Return the job of one namespace: the one that was named, the only one, or the only one that ran in the window."""
        spaces = sorted({_namespace(item) for item in [*pods, *owners]})
        found = Found(scope.job, scope.namespace)
        if len(spaces) > 1:
            lively = []
            for space in spaces:
                part = Found(
                    scope.job,
                    space,
                    [pod for pod in pods if _namespace(pod) == space],
                    [owner for owner in owners if _namespace(owner) == space],
                )
                wide = window_of(part, replace(scope, since=0.0))
                if wide[1] >= scope.since and wide[0] <= scope.until:
                    lively.append(space)
            if len(lively) != 1:
                raise SourceError(
                    f"several namespaces have a job {scope.job}: {', '.join(spaces)}", hint="name one: --namespace " + spaces[0]
                )
            others = ", ".join(space for space in spaces if space != lively[0])
            found.notes.append(f"namespace {lively[0]} was taken; {others} had a job of this name at another time")
            spaces = lively
        if spaces:
            found.namespace = spaces[0]
        found.pods = [pod for pod in pods if _namespace(pod) == found.namespace]
        found.owners = [owner for owner in owners if _namespace(owner) == found.namespace]
        return found

    # ---- what is left of deleted pods

    def _from_events(self, found: Found, place: str | None, scope: Scope, deadline: Deadline) -> None:
        """Fill `gone` with pods that only events still know."""
        place = found.namespace or place
        path = path_of("", "v1", "events", place)
        events = self._asked(
            Wanted("list", "", "events", place),
            path,
            deadline,
            {"fieldSelector": "involvedObject.kind=Pod"},
            keep=lambda item: about_job(str((item.get("involvedObject") or {}).get("name")), scope.job),
        )
        spaces = Counter(str((event.get("involvedObject") or {}).get("namespace")) for event in events)
        if len(spaces) > 1:
            raise SourceError(
                f"several namespaces have events of a job {scope.job}: {', '.join(sorted(spaces))}",
                hint=f"name one: --namespace {min(spaces)}",
            )
        for event in events:
            name, host = str((event.get("involvedObject") or {}).get("name")), str((event.get("source") or {}).get("host") or "")
            said = re.match(r"Successfully assigned \S+ to (\S+?)\.?$", str(event.get("message") or event.get("note") or ""))
            if event.get("reportingComponent") == "kubelet":
                host = host or str(event.get("reportingInstance") or "")
            found.gone[name] = (said[1] if said else host) or found.gone.get(name)
        if found.gone:
            found.namespace = found.namespace or next(iter(spaces))
            found.way = found.way or "events of its pods"
            count = len(found.gone)
            found.notes.append(f"{count} pod{'s are' if count > 1 else ' is'} deleted; only events still tell of it")

    # ---- owners

    def _up(self, found: Found, deadline: Deadline) -> None:
        """Add the owners of the pods, and theirs."""
        known = {(row["group"], row["kind"]): row for row in table("kubernetes_jobs") if row["kind"]}
        have = {(item["kind"], _name(item)) for item in found.owners}
        pending = [*found.pods, *found.owners]
        for _ in range(4):
            wanted: dict[tuple[str, str], set[str]] = {}
            for item in pending:
                for group, _version, kind, name in _owners_of(item):
                    if (group, kind) in known and (kind, name) not in have:
                        have.add((kind, name))
                        wanted.setdefault((group, kind), set()).add(name)
            pending = []
            for key, names in wanted.items():
                pending += self._owners(known[key], sorted(names), found.namespace, deadline)
            if not pending:
                return
            found.owners += pending

    def _owners(self, row: Mapping[str, str], names: list[str], space: str | None, deadline: Deadline) -> list[dict[str, Any]]:
        wanted = set(names)
        if len(names) == 1:
            return self._named(row, space, names[0], deadline)
        return self._kind(row, space, deadline, {}, keep=lambda item: _name(item) in wanted)

    def _queues(self, found: Found, deadline: Deadline) -> None:
        """Add what a queue or a gang scheduler made for the job: Kueue's Workload, a PodGroup."""
        uids = {str((item.get("metadata") or {}).get("uid")) for item in [*found.owners, *found.pods]}
        names = {str(value) for pod in found.pods for value in _group_names(pod)}
        for row in table("kubernetes_jobs"):
            if row["role"] != "queue" or not self.has(row["group"]) or self.groups is None:
                continue

            def ours(item: dict[str, Any]) -> bool:
                refs = (item.get("metadata") or {}).get("ownerReferences") or []
                return _name(item) in names or any(str(ref.get("uid")) in uids for ref in refs)

            found.owners += self._kind(row, found.namespace, deadline, {}, keep=ours)


def _group_names(pod: Mapping[str, Any]) -> Iterable[str]:
    """Return the names of the gang that labels and annotations of a pod tell."""
    meta = pod.get("metadata") or {}
    keys = {"scheduling.k8s.io/group-name"}
    keys |= {key for row in table("kubernetes_jobs") if row["role"] == "queue" for key in row["labels"].split(";") if key}
    for texts in (meta.get("labels") or {}, meta.get("annotations") or {}):
        yield from (texts[key] for key in keys if key in texts)


def _of_attempt(pods: list[dict[str, Any]], attempt: int | None) -> list[dict[str, Any]]:
    """Leave out pods that say that they belong to another start of the job."""
    if attempt is None:
        return pods
    return [pod for pod in pods if pod_identity(pod)["attempt"] in (None, attempt)]
