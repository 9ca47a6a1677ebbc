"""Turn what a Kubernetes API server knows of a job into the JSON files of an incident folder, with one answer for each file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from workbench.errors import SourceError
from workbench.parse.kubernetes_reasons import event_span
from workbench.sources.contract import Answer, Deadline, Folder, Scope, SourceTimeout
from workbench.sources.kubernetes import devices
from workbench.sources.kubernetes.api import Api, Listing
from workbench.sources.kubernetes.clean import Cleaner
from workbench.sources.kubernetes.errors import ApiError
from workbench.sources.kubernetes.jobs import Finder, Found, Wanted, about_job, path_of, window_of
from workbench.sources.kubernetes.selectors import covers

__all__ = ["EVENTS_KEPT", "MANIFEST", "ODD", "Collection", "lacking", "rule"]

MANIFEST = "workbench config rbac | kubectl apply -f -"  # prints rbac.yaml
EVENTS_KEPT = 3600.0  # seconds; the API server's default of --event-ttl
_MANY = 24  # nodes that are asked for by name; more are listed
_BEFORE = {"Node": 1800.0}  # seconds before the job in which an event still tells of its end
_MARGIN = 300.0
# what an object of an unexpected shape makes of code that reads it: the answer to that is an answer, too
ODD = (AttributeError, KeyError, TypeError, ValueError)
_INCOMPLETE = "incomplete"  # stands as the list's continue token in a file that is not all


def rule(wanted: Wanted) -> str:
    """Return the RBAC rule that would allow what was refused."""
    resource, _, part = wanted.resource.partition("/")
    verbs = '"get"' if part or wanted.verb == "get" else '"get", "list"'
    return (
        f'add to the reader\'s role: {{apiGroups: ["{wanted.group}"], resources: ["{wanted.resource}"], verbs: [{verbs}]}}'
        f"; `{MANIFEST}` grants it ({resource} of {'one namespace' if wanted.namespace else 'all namespaces'})"
    )


def lacking(wanted: Wanted, error: SourceError, **more: Any) -> Answer:
    """Return the answer of something that could not be asked: it names verb, resource and the rule that would allow it."""
    what = f"{wanted.verb} {wanted.resource}" + (f".{wanted.group}" if wanted.group else "")
    where = f" in namespace {wanted.namespace}" if wanted.namespace else ""
    refused = isinstance(error, ApiError) and error.kind == "forbidden"
    return Answer(
        "kubernetes",
        "failed",
        f"{what}{where}: {error}",
        hint=rule(wanted) if refused else error.hint,
        asked=more.pop("asked", f"{what}{where}"),
        **more,
    )


class Collection:
    """One collection: what is asked, where it is written, and until when."""

    def __init__(
        self,
        api: Api,
        scope: Scope,
        folder: Folder,
        deadline: Deadline,
        *,
        page: int = 500,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.api, self.scope, self.folder, self.deadline = api, scope, folder, deadline
        self.page, self._clock = page, clock
        self.found = Found(scope.job, scope.namespace)
        self._groups: dict[str, str] = {}

    def version(self, group: str) -> str:
        """Return the version of an API group that the server prefers."""
        return self._groups.get(group) or "v1"

    def objects(self) -> list[Answer]:
        """Write all JSON files and return what became of them; `found` then tells what the job is."""
        began = time.monotonic()
        answers: list[Answer] = []
        trouble: SourceError | None = None
        try:
            finder = Finder(self.api, self.page)
            self.found = finder.find(self.scope, self.deadline)
            self._groups = finder.groups or {}
        except SourceError as error:
            trouble = error
        except ODD as error:
            trouble = SourceError(f"the API server sent an object of an unexpected shape ({type(error).__name__}: {error})")
        seconds = time.monotonic() - began
        if trouble is not None and not _local(trouble):
            # the server is not there for us: asking four more times would only cost four more time-outs
            return [Answer("kubernetes", "failed", str(trouble), trouble.hint, f"job {self.scope.job}", seconds=seconds)]
        answers.append(self._safely(lambda: self._pods(trouble, seconds), "pods"))
        parts: list[tuple[str, Callable[[], Answer]]] = [("nodes", self._nodes), ("events", self._events)]
        if self.found.owners or (trouble is None and not self.found.lacks):  # else it is said already what could not be asked
            parts.append(("owners", self._owners))
        if self.found.pods:
            parts.append(("poddisruptionbudgets", self._budgets))
        if devices.wanted(self):
            parts.append(("resourceclaims", lambda: devices.collect_claims(self)))
            parts.append(("resourceslices", lambda: devices.collect_slices(self)))
        with ThreadPoolExecutor(len(parts), thread_name_prefix="kubernetes") as pool:
            answers += pool.map(lambda part: self._safely(part[1], part[0]), parts)
        refused = {wanted.resource for wanted, _ in self.found.lacks}
        answers = [one for one in answers if not (one.asked == "pods" and "pods" in refused and not one.rows)]
        answers += [lacking(wanted, error) for wanted, error in self.found.lacks if wanted.resource != "events"]
        return answers + self._clocks()

    def _safely(self, work: Callable[[], Answer], what: str) -> Answer:
        """Run one part; whatever goes wrong is its answer."""
        began = time.monotonic()
        try:
            return work()
        except ApiError as error:
            groups = {"poddisruptionbudgets": "policy", "resourceclaims": devices.GROUP, "resourceslices": devices.GROUP}
            return lacking(Wanted("list", groups.get(what, ""), what), error, seconds=time.monotonic() - began)
        except SourceError as error:
            detail = f"list {what}: {error}"
            return Answer("kubernetes", "failed", detail, error.hint, f"list {what}", seconds=time.monotonic() - began)
        except ODD as error:
            detail = f"list {what}: an object of an unexpected shape came ({type(error).__name__}: {error})"
            return Answer("kubernetes", "failed", detail, "please report what the API server sends", f"list {what}")
        except OSError as error:  # the disk
            return Answer("kubernetes", "failed", f"{what} could not be written: {error}", asked=f"list {what}")

    # ---- files

    def write(self, name: str, listing: Listing, said: str, asked: str, began: float, status: str = "ok") -> Answer:
        """Write one list as `kubectl get -o json` would, and say how it went."""
        cleaner = Cleaner()
        notes = "".join(f"; {note}" for note in listing.notes)
        hint = ""
        if listing.error is not None:
            status, hint = "partial", listing.error.hint
            notes += f"; not all: {listing.error}"
        file = self.folder.write(name, _document(listing.items, cleaner, listing.complete))
        return Answer(
            "kubernetes",
            status,
            said + notes + cleaner.said(),
            hint=hint,
            asked=asked,
            file=file.name,
            rows=len(listing.items),
            seconds=time.monotonic() - began,
        )

    def kept(self, name: str, asked: str) -> Answer | None:
        """Return the answer for a file that an earlier collection left whole."""
        if not self.folder.has(name):
            return None
        with open(self.folder.root / name, "rb") as stream:
            if _INCOMPLETE.encode() in stream.read(256):
                return None
        return Answer("kubernetes", "ok", f"{name} is there from an earlier collection", asked=asked, file=name)

    def _pods(self, trouble: SourceError | None, seconds: float) -> Answer:
        found, began = self.found, time.monotonic() - seconds
        if trouble is not None:
            return Answer("kubernetes", "failed", str(trouble), trouble.hint, "pods", seconds=seconds)
        notes = "".join(f"; {note}" for note in found.notes)
        if found.pods:
            kept = self.kept("pods.json", "pods")
            if kept:
                return kept
            where = f"{len(found.pods)} pods of {self.scope.job} in namespace {found.namespace}, found by {found.way}"
            lost = [name for name in self.scope.pods if name not in found.names]
            gone = f"; {len(lost)} of the pods that were named are deleted: {', '.join(lost[:5])}" if lost else ""
            partial = bool(lost) or any(wanted.resource == "pods" for wanted, _ in found.lacks)
            return self.write(
                "pods.json", Listing(found.pods), where + notes + gone, "pods", began, "partial" if partial else "ok"
            )
        if found.gone:
            shown = ", ".join(f"{name}{f' on {node}' if node else ''}" for name, node in list(found.gone.items())[:8])
            return Answer(
                "kubernetes",
                "partial",
                f"the pods of {self.scope.job} are deleted; events still tell of {shown}",
                hint="keep finished pods longer: ttlSecondsAfterFinished, cleanPodPolicy: None",
                asked="pods",
                seconds=seconds,
            )
        where = f"namespace {found.namespace}" if found.namespace else "all namespaces"
        if found.way:
            detail = f"{found.way} is there, but none of its pods{notes}: deleted, or never made"
            hint = "owners.json says why; keep finished pods longer: ttlSecondsAfterFinished, cleanPodPolicy: None"
        else:
            detail = f"no pod, owner or event of a job {self.scope.job} in {where}{notes}"
            hint = "check its name, the namespace and the cluster: kubectl get jobs,jobsets,pods -A | grep NAME"
        return Answer("kubernetes", "missing", detail, hint, "pods", seconds=seconds)

    def _owners(self) -> Answer:
        began, found = time.monotonic(), self.found
        if not found.owners:
            bare = "its pods have no owner" if found.pods else "none is left"
            return Answer("kubernetes", "ok" if found.pods else "missing", f"no owner of the job: {bare}", asked="owners")
        kinds = ", ".join(sorted({str(item["kind"]) for item in found.owners}))
        return self.kept("owners.json", "owners") or self.write(
            "owners.json", Listing(found.owners), f"{len(found.owners)} owners of the job's pods: {kinds}", "owners", began
        )

    def _nodes(self) -> Answer:
        began = time.monotonic()
        if kept := self.kept("nodes.json", "nodes"):
            return kept
        names = list(dict.fromkeys([*self.scope.nodes, *self.found.nodes]))
        path = path_of("", "v1", "nodes", None)
        lost: list[str] = []
        if names and len(names) <= _MANY:
            listing = Listing(pages=1)
            with ThreadPoolExecutor(8, thread_name_prefix="kubernetes") as pool:
                for name, item in zip(names, pool.map(lambda name: self._node(path, name), names), strict=True):
                    lost += [] if item else [name]
                    listing.items += [item] if item else []
        else:
            wanted = set(names)
            keep = (lambda item: str(item["metadata"]["name"]) in wanted) if names else None
            listing = self.api.list(path, self.deadline, page=self.page, keep=keep)
            have = {str(item["metadata"]["name"]) for item in listing.items}
            lost = [name for name in names if name not in have] if listing.complete else []
        if not listing.items:
            if lost:
                return Answer(
                    "kubernetes",
                    "missing",
                    f"the nodes of the job are no longer in the cluster: {', '.join(lost[:8])}",
                    hint="a node that an autoscaler or a cloud took away; its events and the provider's log tell why",
                    asked="nodes",
                )
            return Answer(
                "kubernetes",
                "missing",
                "the API server answered with no node at all, and a cluster has some",
                hint="check that this is the right cluster: kubectl get nodes",
                asked=path,
            )
        said = f"{len(listing.items)} nodes" + (" of the job" if names else ", all, since the job's are not known")
        if lost:
            said += f"; no longer in the cluster: {', '.join(lost[:8])}"
        return self.write("nodes.json", listing, said, path, began, "partial" if lost else "ok")

    def _node(self, path: str, name: str) -> dict[str, Any] | None:
        try:
            return {"kind": "Node", **self.api.json(f"{path}/{name}", self.deadline)}
        except ApiError as error:
            if error.kind == "absent":
                return None
            if error.kind == "forbidden":  # who may list may not always get
                found = self.api.list(path, self.deadline, {"fieldSelector": f"metadata.name={name}"})
                return found.items[0] if found.items else None
            raise

    # ---- events

    def _events(self) -> Answer:
        """
        Write the events of the job's pods, owners and nodes.

        Both APIs of events show the same objects, so the second is asked only where the first is not granted.
        """
        began = time.monotonic()
        if kept := self.kept("events.json", "events"):
            return kept
        oldest: list[float] = []
        group = ""
        try:
            listing = self._events_of("", oldest)
        except ApiError as error:
            if error.kind not in ("forbidden", "absent"):
                raise
            try:
                listing, group = self._events_of("events.k8s.io", oldest), "events.k8s.io"
            except ApiError:
                raise error from None
        asked = f"events{'.' + group if group else ''}"
        now, first = self._now(), min(oldest, default=None)
        if not listing.items and listing.complete:
            return self._no_event(asked, first, now)
        said, status = f"{len(listing.items)} events of the job's pods, owners and nodes", "ok"
        # when nothing tells when the job began, nothing tells that events lack
        start = window_of(self.found, self.scope)[0] if self.found.pods or self.found.owners else now
        if first is not None and first > start + _MARGIN and now - start > EVENTS_KEPT:
            status, said = "partial", f"{said}; those before {_stamp(first)} are no longer kept"
        return self.write("events.json", listing, said, asked, began, status)

    def _no_event(self, asked: str, first: float | None, now: float) -> Answer:
        ago = now - self.scope.until
        kept = f"the oldest event that is kept is of {_stamp(first)}" if first else "the server keeps no event at all"
        if ago > EVENTS_KEPT or (first is not None and first > self.scope.until):
            detail = f"no event of the job: it ended {ago / 3600:.1f} h ago, and {kept}"
            hint = "Kubernetes keeps events for an hour (--event-ttl); export them to a log store to see further back"
            return Answer("kubernetes", "stale", detail, hint, asked)
        hint = "check the window and the namespace: kubectl get events -A --sort-by=.lastTimestamp"
        return Answer("kubernetes", "missing", f"no event of the job's pods, owners or nodes; {kept}", hint, asked)

    def _events_of(self, group: str, oldest: list[float]) -> Listing:
        field = "regarding" if group else "involvedObject"
        names = {*self.found.names, *self.scope.pods, *(str(item["metadata"]["name"]) for item in self.found.owners)}
        nodes = {*self.scope.nodes, *self.found.nodes}
        skew = abs(self.api.offset or 0.0)

        def ours(item: dict[str, Any]) -> bool:
            about = item.get(field) or item.get("involvedObject") or item.get("regarding") or {}
            first, last = event_span(item)
            if last is not None:
                oldest.append(last)
            kind, name = str(about.get("kind")), str(about.get("name"))
            if kind == "Node":
                if nodes and name not in nodes:
                    return False
            elif name not in names and not about_job(name, self.scope.job):
                return False
            before = _BEFORE.get(kind, _MARGIN) + skew
            return (last is None or last >= self.scope.since - before) and (
                first is None or first <= self.scope.until + _MARGIN + skew
            )

        place = self.found.namespace or self.scope.namespace
        path = path_of(group, "v1", "events", place)
        listing = self.api.list(path, self.deadline, page=self.page, keep=ours)
        if place in (None, "default") or listing.error is not None:
            return listing  # events of nodes are in the namespace default
        try:
            path = path_of(group, "v1", "events", "default")
            more = self.api.list(path, self.deadline, {"fieldSelector": f"{field}.kind=Node"}, page=self.page, keep=ours)
        except SourceError as error:
            listing.error = error
            return listing
        listing.items += more.items
        listing.notes += more.notes
        listing.error = more.error
        return listing

    # ---- the rest

    def _budgets(self) -> Answer:
        began, place = time.monotonic(), self.found.namespace or self.scope.namespace
        if kept := self.kept("pdbs.json", "poddisruptionbudgets"):
            return kept
        labels = [(pod.get("metadata") or {}).get("labels") or {} for pod in self.found.pods]
        path = path_of("policy", "v1", "poddisruptionbudgets", place)
        listing = self.api.list(path, self.deadline, page=self.page, keep=lambda item: any(covers(item, one) for one in labels))
        if not listing.items and listing.complete:
            return Answer("kubernetes", "ok", "no disruption budget covers the job's pods", asked=path)
        said = f"{len(listing.items)} disruption budgets that cover the job's pods"
        return self.write("pdbs.json", listing, said, path, began)

    def _clocks(self) -> list[Answer]:
        ahead = self.api.offset or 0.0
        if abs(ahead) < 5.0:
            return []
        way = "ahead of" if ahead > 0 else "behind"
        return [
            Answer(
                "kubernetes",
                "partial",
                f"the clock of the API server is {abs(ahead):.0f} s {way} this machine's; times from elsewhere may not fit its own",
                hint="check NTP here and there: timedatectl; chronyc tracking",
                asked="Date header",
            )
        ]

    def _now(self) -> float:
        """Return the time by the server's clock, which stamps the events."""
        return self._clock() + (self.api.offset or 0.0)


def _local(error: SourceError) -> bool:
    """Tell whether an error concerns one question, so that others are still worth asking."""
    if isinstance(error, ApiError):
        return error.kind not in ("refused", "tls", "auth", "config", "client", "not-json")
    return not isinstance(error, SourceTimeout)


def _document(items: list[dict[str, Any]], cleaner: Cleaner, complete: bool) -> Iterator[bytes]:
    """Yield a List as kubectl prints it; a list that is not all keeps a continue token, as the API has it."""
    token = "" if complete else _INCOMPLETE
    head = {"apiVersion": "v1", "kind": "List", "metadata": {"continue": token, "resourceVersion": ""}}
    yield json.dumps(head, indent=4)[:-2].encode() + b',\n    "items": ['
    for at, item in enumerate(items):
        # each field on a line of its own, which evidence can be cited by; indenting would cost five times the time and twice the size
        text = json.dumps(cleaner.clean(item), separators=(",\n", ": "), ensure_ascii=False)
        yield ((",\n" if at else "\n") + text).encode("utf-8", "replace")
    yield b"\n    ]\n}\n"


def _stamp(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
