"""Turn Kubernetes objects into an API server: lists with selectors and pages, reviews of rights, discovery and logs, for tests without one."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from workbench.catalog import table
from workbench.parse.kubernetes_reasons import epoch
from workbench.testing.evidence import Evidence, LogLine
from workbench.testing.faults import Reply, Request
from workbench.testing.kubernetes_words import NAMESPACED, RESOURCES, event_of, fields_of, labelled, status

__all__ = ["Kubernetes", "kubeconfig"]

_PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))(?:/namespaces/(?P<space>[^/]+))?/(?P<plural>[a-z]+)"
    r"(?:/(?P<name>[^/]+))?(?P<log>/log)?"
)
_TEXT = {"Content-Type": "text/plain; charset=utf-8"}


class Kubernetes:
    """
    An API server that holds some objects and reads only; to be served by `workbench.testing.FaultServer`.

    Parameters
    ----------
    source : path, Evidence or sequence of dict
        An incident folder, or objects with ``apiVersion`` and ``kind``.
    version : str
        What it says it is.

    Attributes
    ----------
    groups : dict
        API group → version.
    forbidden : set of str
        Resources that may not be read: ``pods``, ``nodes`` …, and ``log``.
    refusal : str
        What it says then, in place of its own words.
    expired : int
        How many of the next continue tokens are too old (410).
    user : str
        Who we are.
    """

    def __init__(self, source: str | Path | Evidence | Sequence[dict[str, Any]], *, version: str = "v1.36.3") -> None:
        self.version, self.user = version, "reader"
        self.forbidden: set[str] = set()
        self.refusal = ""
        self.expired = 0
        self.groups = {group: rows[0] for group, rows in RESOURCES.items() if group}
        self._objects: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self._lines: dict[str, dict[str, list[LogLine]]] = {}  # pod → file → lines
        if isinstance(source, (str, Path, Evidence)):
            evidence = Evidence.of(source)
            source = evidence.objects
            for line in evidence.job_lines:
                if line.pod:
                    self._lines.setdefault(line.pod, {}).setdefault(line.file, []).append(line)
        for item in source:
            self.add(item)

    def add(self, item: dict[str, Any]) -> None:
        """Add an object; the group of one that no server has by itself is then served."""
        group, _, version = str(item.get("apiVersion") or "v1").rpartition("/")
        plural = _plural(group, str(item["kind"]))
        if group and group not in self.groups:
            self.groups[group] = version
        self._objects.setdefault((group, plural), []).append(item)

    def objects(self, group: str, plural: str) -> list[dict[str, Any]] | None:
        """Return the objects of a resource, None when there is no such resource."""
        if (group, plural) == ("events.k8s.io", "events"):
            return [event_of(item) for item in self.objects("", "events") or []]
        found = self._objects.get((group, plural))
        return found if found is not None else [] if plural in RESOURCES.get(group, ("", {}))[1] else None

    # -- requests ---------------------------------------------------------------------------------------------------------

    def __call__(self, request: Request) -> Reply | bytes:
        """Answer one request."""
        parts = urlsplit(request.path)
        query = {key: values[0] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        path = unquote(parts.path)
        if request.method == "POST" and path.startswith("/apis/auth") and path.endswith("reviews"):
            return self._review(path.rpartition("/")[2], json.loads(request.body or b"{}"))
        if (known := self._discovery(path)) is not None:
            return json.dumps(known).encode()
        if path in ("/healthz", "/livez", "/readyz"):
            return Reply(b"ok", headers=_TEXT)
        found = _PATH.fullmatch(path)
        group = (found["group"] or "") if found else ""
        every = self.objects(group, found["plural"]) if found else None
        if found is None or every is None or (group and self.groups.get(group) != found["version"]):
            return Reply(b"404 page not found\n", 404, _TEXT)
        if request.method != "GET" or query.get("watch") in ("true", "1"):
            return status(405, "the server does not allow this method on the requested resource", "MethodNotAllowed")
        space, plural, name = found["space"], found["plural"], found["name"]
        if refused := self._refused("get" if name else "list", group, plural, space, found["log"]):
            return refused
        every = [one for one in every if space in (None, one["metadata"].get("namespace"))]
        if not name:
            return self._list(group, plural, every, query, request.headers.get("accept", ""))
        mine = [one for one in every if one["metadata"].get("name") == name]
        if not mine or (space is None and plural in NAMESPACED):
            return status(404, f'{plural} "{name}" not found', "NotFound", details={"name": name, "kind": plural})
        if found["log"]:
            return self.log(str(name), query)
        kind, version = mine[0].get("kind") or _kind(group, plural), f"{group}/{found['version']}" if group else "v1"
        return json.dumps({"kind": kind, "apiVersion": version, **mine[0]}).encode()

    def _refused(self, verb: str, group: str, plural: str, space: str | None, log: str | None) -> Reply | None:
        if plural not in self.forbidden and not (log and "log" in self.forbidden):
            return None
        what = f"{plural}/log" if log else plural
        where = f'in the namespace "{space}"' if space else "at the cluster scope"
        said = f'{plural} is forbidden: User "{self.user}" cannot {verb} resource "{what}" in API group "{group}" {where}'
        return status(403, self.refusal or said, "Forbidden", details={"kind": plural})

    def _discovery(self, path: str) -> dict[str, Any] | None:
        if path == "/version":
            found = re.match(r"v(\d+)\.(\d+)", self.version)
            return {
                "major": found[1] if found else "1", "minor": found[2] if found else "36", "gitVersion": self.version, "gitCommit": "0",
                "gitTreeState": "clean", "buildDate": "2026-01-01T00:00:00Z", "goVersion": "go1.26", "compiler": "gc", "platform": "linux/amd64",
            }  # fmt: skip
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        if path == "/apis":
            rows = []
            for name, version in self.groups.items():
                one = {"groupVersion": f"{name}/{version}", "version": version}
                rows.append({"name": name, "versions": [one], "preferredVersion": one})
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": rows}
        found = re.fullmatch(r"/api/v1|/apis/([^/]+)/([^/]+)", path)
        if not found or (found[1] and self.groups.get(found[1]) != found[2]):
            return None
        group = found[1] or ""
        kinds = dict(RESOURCES.get(group, ("", {}))[1])
        kinds |= {plural: str(items[0]["kind"]) for (known, plural), items in self._objects.items() if known == group}
        resources = [
            {
                "name": plural, "singularName": kind.lower(), "namespaced": plural not in ("nodes", "namespaces"), "kind": kind,
                "verbs": ["get", "list"],
            }
            for plural, kind in sorted(kinds.items())
        ]  # fmt: skip
        told = {"kind": "APIResourceList", "groupVersion": f"{group}/{found[2]}" if group else "v1", "resources": resources}
        return {**told, "apiVersion": "v1"} if group else told  # the core group's list has no version of its own

    def _review(self, kind: str, body: Mapping[str, Any]) -> Reply:
        told: dict[str, Any] = {"kind": body.get("kind"), "apiVersion": body.get("apiVersion"), "metadata": {}}
        if kind == "selfsubjectreviews":
            told["metadata"] = {"creationTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
            told["status"] = {"userInfo": {"username": self.user, "groups": ["system:authenticated"]}}
        elif kind == "selfsubjectaccessreviews":
            spec = body["spec"]["resourceAttributes"]
            names = {spec["resource"], *(["log"] if spec.get("subresource") == "log" else [])}
            told |= {"spec": body["spec"], "status": {"allowed": not names & self.forbidden}}
        else:
            return Reply(b"404 page not found\n", 404, _TEXT)
        return Reply(json.dumps(told).encode(), 201)

    # -- lists ------------------------------------------------------------------------------------------------------------

    def _list(self, group: str, plural: str, every: list[dict[str, Any]], query: Mapping[str, str], accept: str) -> Reply | bytes:
        try:
            if text := query.get("labelSelector"):
                every = [one for one in every if labelled(text, one["metadata"].get("labels"))]
            if text := query.get("fieldSelector"):
                tests = fields_of(text, group, plural)
                every = [one for one in every if all(test(one) for test in tests)]
        except ValueError as error:
            return status(400, str(error), "BadRequest")
        every = sorted(every, key=lambda one: (str(one["metadata"].get("namespace", "")), str(one["metadata"].get("name", ""))))
        start = 0
        if token := query.get("continue"):
            try:
                start = int(json.loads(base64.b64decode(token))["start"])
            except (ValueError, KeyError, TypeError) as error:
                return status(400, f"continue key is not valid: {error}", "BadRequest")
            if self.expired:
                self.expired -= 1
                said = (
                    "The provided continue parameter is too old to display a consistent list result. You can start a new list without the "
                    "continue parameter, or use the continue token in this response to retrieve the remainder of the results."
                )
                return status(410, said, "Expired", metadata={"continue": token})
        size = int(query.get("limit") or 0) or len(every)
        shown, rest = every[start : start + size], max(len(every) - start - size, 0)
        meta: dict[str, Any] = {"resourceVersion": "1000"}
        if rest:
            meta["continue"] = base64.b64encode(
                json.dumps({"v": "meta.k8s.io/v1", "rv": 1000, "start": str(start + size)}).encode()
            ).decode()
            if not query.get("labelSelector") and not query.get("fieldSelector"):
                meta["remainingItemCount"] = rest
        kind, version = f"{_kind(group, plural)}List", f"{group}/{self.groups[group]}" if group else "v1"
        items: list[dict[str, Any]] = shown
        if "as=PartialObjectMetadataList" in accept:
            kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
            items = [{"kind": "PartialObjectMetadata", "apiVersion": version, "metadata": one["metadata"]} for one in shown]
        elif group in RESOURCES:  # inside lists the API leaves out what the list says, but for resources that were defined later
            items = [{key: value for key, value in one.items() if key not in ("kind", "apiVersion")} for one in shown]
        return json.dumps({"kind": kind, "apiVersion": version, "metadata": meta, "items": items}).encode()

    # -- logs -------------------------------------------------------------------------------------------------------------

    def log(self, pod: str, query: Mapping[str, str]) -> Reply | bytes:
        """Answer for ``pods/log``, also as the pod's kubelet would: `query` has container, tailLines, sinceTime, timestamps, previous."""
        item = next((one for one in self.objects("", "pods") or [] if one["metadata"].get("name") == pod), {})
        spec = item.get("spec") or {}
        names = [str(each.get("name")) for key in ("initContainers", "containers") for each in spec.get(key) or []]
        main = [str(each.get("name")) for each in spec.get("containers") or []]
        name = query.get("container") or (main[0] if len(main) == 1 else "")
        if not name:
            return status(
                400, f"a container name must be specified for pod {pod}, choose one of: [{' '.join(names)}]", "BadRequest"
            )
        if name not in names:
            return status(400, f"container {name} is not valid for pod {pod}", "BadRequest")
        files = self._lines.get(pod, {})
        previous = query.get("previous") in ("true", "1")
        mine = [
            file
            for file in files
            if (".previous" in file) == previous and (len(main) < 2 or f".{name}." in file or name == main[0])
        ]
        if previous and not mine:
            return status(400, f'previous terminated container "{name}" in pod "{pod}" not found', "BadRequest")
        if not mine:
            where = f"https://{spec.get('nodeName', 'unknown')}:10250/containerLogs/{item.get('metadata', {}).get('namespace')}/{pod}/{name}"
            return status(500, f'Get "{where}": dial tcp: connect: connection refused', "")
        lines = [line for file in mine for line in files[file]]
        if (since := epoch(query.get("sinceTime"))) is not None:
            lines = [line for line in lines if line.time >= since]
        if (tail := query.get("tailLines")) is not None:
            lines = lines[-int(tail) :] if int(tail) else []
        stamped = query.get("timestamps") in ("true", "1")
        text = "".join(f"{_stamp(line.time)} {line.text}\n" if stamped else f"{line.text}\n" for line in lines).encode(
            "utf-8", "replace"
        )
        return Reply(text[: int(query["limitBytes"])] if "limitBytes" in query else text, headers={"Content-Type": "text/plain"})


def _stamp(time: float) -> str:
    return f"{datetime.fromtimestamp(int(time), UTC):%Y-%m-%dT%H:%M:%S}.{round(time % 1 * 1e6):06d}000Z"


def _plural(group: str, kind: str) -> str:
    known = {name: plural for plural, name in RESOURCES.get(group, ("", {}))[1].items()}
    known |= {row["kind"]: row["plural"] for row in table("kubernetes_jobs") if row["group"] == group}
    return known.get(kind, kind.lower() + "s")


def _kind(group: str, plural: str) -> str:
    known = {row["plural"]: row["kind"] for row in table("kubernetes_jobs") if row["group"] == group}
    return RESOURCES.get(group, ("", {}))[1].get(plural) or known.get(plural, plural[:-1].capitalize())


def kubeconfig(folder: Path, url: str, *, namespace: str | None = "default", token: str = "token", **cluster: Any) -> Path:
    """Write a kubeconfig for a server and return its path; `cluster` is put beside the server's address."""
    path = folder / "kubeconfig"
    context = {"cluster": "c", "user": "u", **({"namespace": namespace} if namespace else {})}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url, **cluster}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": context}],
        "current-context": "x",
    }
    path.write_text(json.dumps(document), encoding="utf-8")  # JSON is YAML, too
    return path
