"""Turn a Kubernetes API server into what ``workbench doctor`` says of it: reach, rights, clock, events, GPUs, monitors, blind spots."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from workbench.catalog import table
from workbench.errors import SourceError
from workbench.parse.kubernetes_reasons import epoch, parse_quantity, stale_since
from workbench.sources.contract import Deadline, Reach
from workbench.sources.kubernetes.api import Api
from workbench.sources.kubernetes.collect import EVENTS_KEPT, MANIFEST, ODD, rule
from workbench.sources.kubernetes.devices import GROUP as DYNAMIC
from workbench.sources.kubernetes.errors import ApiError, place
from workbench.sources.kubernetes.jobs import Finder, Wanted, path_of

__all__ = ["Doctor", "seen_here"]

_SKEW = 3  # minor versions between client and server that raw JSON of stable APIs does not mind
_NODES = 2000  # nodes that are looked at
_GPU = re.compile(r"^(?:nvidia\.com/(?:gpu|gpu\.shared|mig-\S+)|amd\.com/gpu|gpu\.intel\.com/\S+)$")
# the conditions that every kubelet sets; all others come from a monitor
_KUBELET = {"Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"}
_OF_NO_NAMESPACE = ("nodes", "resourceslices")
_MONITOR = (
    "install node-problem-detector with GPU rules, NVSentinel or the GPU operator's health checks, which make node conditions"
)


def seen_here() -> tuple[str, ...]:
    """Return the failure classes that Kubernetes can show."""
    return tuple(row["class"] for row in table("classes") if "kubernetes" in row["seen_by"].split(";"))


class Doctor:
    """One examination of an API server; every check is a line, and none raises."""

    def __init__(self, api: Api, namespace: str | None, page: int, clock: Callable[[], float]) -> None:
        self.api, self.namespace, self.page, self._clock = api, namespace, page, clock

    def examine(self, deadline: Deadline) -> list[Reach]:
        """Return all lines; when the server is not there, only the one that says so."""
        began = time.monotonic()
        try:
            self.api.open(deadline)
            version = self.api.json("/version", deadline)
        except SourceError as error:
            return [Reach("kubernetes", "reachable", "critical", str(error), error.hint, seen_here())]
        took = time.monotonic() - began
        lines = [
            Reach(
                "kubernetes",
                "reachable",
                "ok",
                f"{place(self.api.host)} answered in {took * 1000:.0f} ms, with {self.api.origin}",
            ),
            _version(version),
            self._clock_line(),
        ]
        checks: list[tuple[str, Callable[[Deadline], list[Reach]]]] = [
            ("identity", self._identity),
            ("rights", self._rights),
            ("data age: events", self._events),
            ("nodes", self._nodes),
        ]

        def safely(check: tuple[str, Callable[[Deadline], list[Reach]]]) -> list[Reach]:
            try:
                return check[1](deadline)
            except SourceError as error:
                return [Reach("kubernetes", check[0], "unknown", str(error), error.hint)]
            except ODD as error:
                return [Reach("kubernetes", check[0], "unknown", f"an object of an unexpected shape came ({error})")]

        with ThreadPoolExecutor(len(checks), thread_name_prefix="kubernetes") as pool:
            for found in pool.map(safely, checks):
                lines += found
        return lines

    # ---- clock, identity, rights

    def _clock_line(self) -> Reach:
        ahead = self.api.offset
        if ahead is None:
            return Reach("kubernetes", "clock", "unknown", "the answer has no Date header")
        status = "ok" if abs(ahead) < 2 else "warning" if abs(ahead) < 60 else "critical"
        way = "ahead of" if ahead > 0 else "behind"
        said = f"{abs(ahead):.0f} s {way} this machine's" if abs(ahead) >= 1 else "within a second of this machine's"
        fix = "" if status == "ok" else "check NTP here and on the control plane: timedatectl; chronyc tracking"
        return Reach("kubernetes", "clock", status, said, fix)

    def _identity(self, deadline: Deadline) -> list[Reach]:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        try:
            review = self.api.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", body, deadline)
        except ApiError as error:
            if error.kind == "absent":  # before Kubernetes 1.28
                return [Reach("kubernetes", "identity", "unknown", "this server cannot say who we are", "kubectl auth whoami")]
            raise
        user = (review.get("status") or {}).get("userInfo") or {}
        groups = [group for group in user.get("groups") or [] if group != "system:authenticated"]
        said = f"{user.get('username', '?')}" + (f" ({', '.join(groups[:4])})" if groups else "")
        if "system:masters" in groups:
            fix = f"use an account of its own that reads only: `{MANIFEST}`"
            return [Reach("kubernetes", "identity", "warning", f"{said}: may do everything, which reading does not need", fix)]
        return [Reach("kubernetes", "identity", "ok", said)]

    def _rights(self, deadline: Deadline) -> list[Reach]:
        finder = Finder(self.api, self.page)
        try:
            finder.discover(deadline)
        except ApiError as error:
            if error.kind not in ("forbidden", "absent"):
                raise
        asked = [
            (row, Wanted(row["verb"], row["group"], _resource(row), self.namespace))
            for row in table("kubernetes_rights")
            if row["group"] != DYNAMIC or finder.has(DYNAMIC)  # a cluster without it lacks no right to it
        ]
        for row in table("kubernetes_jobs"):
            if row["kind"] and finder.groups is not None and finder.has(row["group"]):
                more = {"need": "should", "used_for": f"{row['kind']}: {row['meaning']}", "blind_to": ""}
                asked.append((more, Wanted("list", row["group"], row["plural"], self.namespace)))

        def check(one: tuple[dict[str, str], Wanted]) -> Reach | None:
            return self._right(one[0], one[1], deadline)

        with ThreadPoolExecutor(4, thread_name_prefix="kubernetes") as pool:
            return [line for line in pool.map(check, asked) if line is not None]

    def _right(self, row: dict[str, str], wanted: Wanted, deadline: Deadline) -> Reach | None:
        resource, _, part = wanted.resource.partition("/")
        item = f"rights: {wanted.verb} {wanted.resource}" + (f".{wanted.group}" if wanted.group else "")
        namespace = "" if resource in _OF_NO_NAMESPACE else wanted.namespace or ""
        attributes = {
            "verb": wanted.verb,
            "group": wanted.group,
            "resource": resource,
            "subresource": part,
            "namespace": namespace,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
        }
        try:
            review = self.api.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body, deadline)
        except SourceError as error:
            return Reach("kubernetes", item, "unknown", str(error), error.hint)
        allowed = (review.get("status") or {}).get("allowed")
        where = f"in namespace {namespace}" if namespace else "in all namespaces"
        if allowed is True:
            return Reach("kubernetes", item, "ok", f"granted {where}")
        if allowed is None:
            return Reach("kubernetes", item, "unknown", "the server's review says neither yes nor no")
        home = self.api.namespace
        if not wanted.namespace and home and resource not in _OF_NO_NAMESPACE:
            inside = self._right(row, replace(wanted, namespace=home), deadline)
            if inside is not None and inside.status == "ok":
                return replace(inside, status="warning", detail=f"granted in namespace {home} only", fix=rule(wanted))
        if row["need"] == "may":
            return None  # another right does as well
        blind = tuple(name for name in row["blind_to"].split(";") if name)
        status = "critical" if row["need"] == "must" else "warning"
        return Reach("kubernetes", item, status, f"not granted {where}; needed for {row['used_for']}", rule(wanted), blind)

    # ---- data

    def _events(self, deadline: Deadline) -> list[Reach]:
        listing = self.api.list(path_of("", "v1", "events", self.namespace), deadline, page=self.page, most_pages=4)
        times = [
            time
            for one in listing.items
            for time in [
                epoch(one.get("lastTimestamp") or one.get("eventTime") or (one.get("metadata") or {}).get("creationTimestamp"))
            ]
            if time is not None
        ]
        if not times:
            said = "the server keeps no event at the moment"
            return [Reach("kubernetes", "data age: events", "unknown", said, "kubectl get events -A shows the same")]
        now = self._clock() + (self.api.offset or 0.0)
        age = now - min(times)
        some = "" if listing.complete and not listing.notes else f" (of {listing.seen} that were looked at)"
        said = f"{len(times)} events, the oldest of {age / 60:.0f} min ago{some}"
        if age <= EVENTS_KEPT * 1.1:
            fix = (
                "the API server keeps events for an hour unless --event-ttl says more: ship them to a log store, or collect soon"
            )
            return [Reach("kubernetes", "data age: events", "ok", said, fix)]
        return [Reach("kubernetes", "data age: events", "ok", said)]

    def _nodes(self, deadline: Deadline) -> list[Reach]:
        listing = self.api.list(
            path_of("", "v1", "nodes", None), deadline, page=self.page, most_pages=max(_NODES // self.page, 1)
        )
        nodes = listing.items
        if not nodes:
            return [
                Reach(
                    "kubernetes",
                    "nodes",
                    "critical",
                    "the server has no node",
                    "check that this is the right cluster",
                    ("platform/node-lost",),
                )
            ]
        notes = "".join(f"; {note}" for note in listing.notes)
        ready = sum(_condition(node, "Ready") == "True" for node in nodes)
        return [
            Reach("kubernetes", "nodes", "ok" if ready == len(nodes) else "warning", f"{ready} of {len(nodes)} Ready{notes}"),
            *_gpus(nodes),
            _monitors(nodes),
            *_stale(nodes, self._clock()),
        ]


def _resource(row: dict[str, str]) -> str:
    return row["resource"] + (f"/{row['subresource']}" if row["subresource"] else "")


def _version(said: dict[str, Any]) -> Reach:
    from importlib.metadata import PackageNotFoundError, version

    server = str(said.get("gitVersion") or "?")
    try:
        client = version("kubernetes")
    except PackageNotFoundError:
        client = "?"
    minor, ours = re.match(r"v?1\.(\d+)", server), re.match(r"(\d+)\.", client)
    text = f"server {server}, Python client {client}"
    if not minor or not ours:
        return Reach("kubernetes", "version", "unknown", text)
    skew = int(ours[1]) - int(minor[1])  # the client's major version is the server's minor
    if abs(skew) <= _SKEW:
        return Reach("kubernetes", "version", "ok", text)
    return Reach(
        "kubernetes", "version", "warning", f"{text}: {abs(skew)} minor versions apart", f"pip install 'kubernetes=={minor[1]}.*'"
    )


def _condition(node: dict[str, Any], name: str) -> str:
    conditions = (node.get("status") or {}).get("conditions") or []
    return next((str(one.get("status")) for one in conditions if one.get("type") == name), "")


def _gpus(nodes: list[dict[str, Any]]) -> list[Reach]:
    """Return what GPUs nodes have and offer, and whether a device plugin runs where GPUs are."""
    has: Counter[str] = Counter()
    offers: Counter[str] = Counter()
    short: list[str] = []
    plain: list[str] = []
    with_gpus = labelled = 0
    for node in nodes:
        meta, status = node.get("metadata") or {}, node.get("status") or {}
        capacity, allocatable = status.get("capacity") or {}, status.get("allocatable") or {}
        mine = [name for name in capacity if _GPU.match(str(name)) and parse_quantity(capacity[name])]
        for name in mine:
            all_, usable = parse_quantity(capacity[name]) or 0, parse_quantity(allocatable.get(name, 0)) or 0
            has[name] += int(all_)
            offers[name] += int(usable)
            if usable < all_:
                short.append(f"{meta.get('name')} {usable:g}/{all_:g}")
        labels = meta.get("labels") or {}
        with_gpus += bool(mine)
        labelled += "nvidia.com/gpu.product" in labels
        present = (
            labels.get("nvidia.com/gpu.present") == "true" or labels.get("feature.node.kubernetes.io/pci-10de.present") == "true"
        )
        if present and not mine:
            plain.append(str(meta.get("name")))
    if not has:
        fix = "install the GPU operator or the device plugin; kubectl get nodes -o custom-columns=N:.metadata.name,G:.status.capacity"
        gone = f"; {len(plain)} nodes have a GPU by their labels: {', '.join(plain[:5])}" if plain else ""
        return [
            Reach(
                "kubernetes",
                "GPUs",
                "critical" if plain else "warning",
                f"no node has a GPU resource{gone}",
                fix,
                ("platform/scheduler",),
            )
        ]
    told = ", ".join(f"{name} {offers[name]} of {has[name]} allocatable" for name in sorted(has))
    lines = [
        Reach(
            "kubernetes",
            "GPUs",
            "warning" if short else "ok",
            f"{with_gpus} nodes: {told}" + (f"; fewer than they have: {', '.join(short[:5])}" if short else ""),
            "kubectl describe node, then the device plugin's log on it" if short else "",
        )
    ]
    if plain:
        lines.append(
            Reach(
                "kubernetes",
                "device plugin",
                "critical",
                f"{len(plain)} nodes have a GPU by their labels and offer none: {', '.join(plain[:5])}",
                "kubectl get pods -A -o wide | grep device-plugin; its log says why",
            )
        )
    mig = sorted(name for name in has if "mig-" in name)
    lines.append(Reach("kubernetes", "MIG", "ok", ", ".join(mig) if mig else "no MIG resources"))
    if labelled < with_gpus:
        fix = "install GPU feature discovery (part of the GPU operator), which labels nodes with product, driver and MIG"
        lines.append(
            Reach("kubernetes", "GPU labels", "warning", f"{labelled} of {with_gpus} GPU nodes say which GPU they have", fix)
        )
    else:
        lines.append(Reach("kubernetes", "GPU labels", "ok", f"all {with_gpus} GPU nodes say which GPU they have"))
    return lines


def _stale(nodes: list[dict[str, Any]], now: float) -> list[Reach]:
    """Return a line when conditions of ours are there that nobody renews any more: what they say of a node is history."""
    old = []
    for node in nodes:
        beats = [stale_since(one, now) for one in (node.get("status") or {}).get("conditions") or []]
        if last := min((beat for beat in beats if beat is not None), default=None):
            old.append((last, str(node["metadata"].get("name"))))
    if not old:
        return []
    old.sort()
    hours, names = (now - old[0][0]) / 3600, ", ".join(name for _, name in old[:5])
    said = f"nobody renews the conditions of {len(old)} nodes, for {hours:.1f} h at most: {names}"
    return [Reach("kubernetes", "age of our conditions", "warning", said, "kubectl -n gpu-workbench get pods -o wide")]


def _monitors(nodes: list[dict[str, Any]]) -> Reach:
    """Return which monitors write node conditions, and whether one of them knows GPUs."""
    known = {row["name"]: row for row in table("conditions") if row["kind"] == "node condition"}
    seen = Counter(str(one.get("type")) for node in nodes for one in (node.get("status") or {}).get("conditions") or [])
    extra = sorted(name for name in seen if name not in _KUBELET)
    emitters = sorted({known[name]["emitter"] for name in extra if name in known})
    gpu = [
        name
        for name in extra
        if re.search(r"gpu|nvlink|nvidia|xid|dcgm|nvswitch", name, re.IGNORECASE)
        or (name in known and known[name]["class"].startswith(("hardware/gpu", "hardware/nvlink", "driver/")))
    ]
    if gpu:
        by = f" (of {', '.join(emitters)})" if emitters else ""
        return Reach("kubernetes", "node monitors", "ok", f"GPU conditions: {', '.join(gpu)}{by}")
    other = f"only {', '.join(extra)}" if extra else "none beside the kubelet's"
    return Reach("kubernetes", "node monitors", "warning", f"no node condition tells of GPUs: {other}", _MONITOR)
