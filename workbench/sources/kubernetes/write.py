"""
Turn a node's conditions, label and events into the few writes that Kubernetes gets from us, and every refusal into a typed error.

All that is written is the node's status, its metadata by the same request, and events: never its spec, so nothing here can cordon or
taint a node, and the manifest ``rbac-writer.yaml`` grants no right that could.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from workbench.parse.kubernetes_reasons import epoch
from workbench.sources.contract import Deadline
from workbench.sources.kubernetes.api import Api
from workbench.sources.kubernetes.errors import ApiError

__all__ = ["COMPONENT", "NodeWriter"]

COMPONENT = "gpu-workbench"
_MERGE = "application/strategic-merge-patch+json"  # conditions are merged by their type: those of others stay as they are
_SPACE = "default"  # where events of nodes live, as those of the kubelet
_MANIFEST = "workbench config rbac --writer | kubectl apply -f -"
_MESSAGE = 1024  # characters of an event's message that the API server takes


class NodeWriter:
    """
    What writes to one node.

    Parameters
    ----------
    api : Api
        The server, with credentials that may do what ``rbac-writer.yaml`` grants.
    node : str
        The node's name in the cluster.
    """

    def __init__(self, api: Api, node: str) -> None:
        self.api, self.node = api, node
        self._path = f"/api/v1/nodes/{quote(node, safe='')}"

    def read(self, deadline: Deadline) -> dict[str, Any]:
        """
        Return the node as the server has it.

        Raises
        ------
        ApiError, SourceTimeout
        """
        return self._granted("get nodes", lambda: self.api.json(self._path, deadline))

    def patch(
        self,
        deadline: Deadline,
        *,
        conditions: Sequence[Mapping[str, str]] = (),
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """
        Write conditions, labels and annotations in one request, and return the node as it is then.

        It goes to the node's status, by which metadata can be changed and the spec cannot.

        Raises
        ------
        ApiError, SourceTimeout
        """
        metadata = {name: dict(value) for name, value in (("labels", labels), ("annotations", annotations)) if value}
        body: dict[str, Any] = {"metadata": metadata} if metadata else {}
        if conditions:
            body["status"] = {"conditions": [dict(one) for one in conditions]}
        path = f"{self._path}/status"
        return self._granted("patch nodes/status", lambda: self.api.send("PATCH", path, body, deadline, kind=_MERGE))

    def event(
        self, deadline: Deadline, *, key: str, reason: str, message: str, now: float, count: int = 1, every: float = 0.0
    ) -> bool:
        """
        Tell of something temporary: a new event, or the one of the same key with its count raised.

        Parameters
        ----------
        key : str
            What makes two of them the same.
        reason, message : str
            One word in CamelCase, and a sentence.
        now : float
            Seconds since the epoch.
        count : int
            How often it was seen since it was told last.
        every : float
            Nothing is written when it was told within so many seconds.

        Returns
        -------
        bool
            Whether something was written.

        Raises
        ------
        ApiError, SourceTimeout
        """
        mark = hashlib.sha256(f"{self.node}\0{key}".encode("utf-8", "replace")).hexdigest()[:16]
        name, events = f"{self.node}.{mark}", f"/api/v1/namespaces/{_SPACE}/events"
        path, stamp = f"{events}/{quote(name, safe='')}", datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        message = message if len(message) <= _MESSAGE else message[: _MESSAGE - 1] + "…"
        try:
            there = self._granted("get events", lambda: self.api.json(path, deadline))
        except ApiError as error:
            if error.kind != "absent":
                raise
        else:
            if now - (epoch(there.get("lastTimestamp")) or 0.0) < every:
                return False
            total = there.get("count")
            body = {"count": (total if isinstance(total, int) else 0) + count, "lastTimestamp": stamp, "message": message}
            self._granted("patch events", lambda: self.api.send("PATCH", path, body, deadline, kind=_MERGE))
            return True
        # the kubelet, too, names nodes by their name where others have a uid: so `kubectl describe node` finds it
        entity = {"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": self.node}
        made = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": _SPACE},
            "involvedObject": entity,
            "type": "Warning",
            "reason": reason,
            "message": message,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": count,
            "source": {"component": COMPONENT, "host": self.node},
            "reportingComponent": COMPONENT,
            "reportingInstance": self.node,
        }
        try:
            self._granted("create events", lambda: self.api.send("POST", events, made, deadline))
        except ApiError as error:
            if error.status != 409:  # our own request, of which the answer was lost
                raise
        return True

    def _granted(self, what: str, ask: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = ask()
            return answer
        except ApiError as error:
            if error.kind == "forbidden":
                raise ApiError(f"{what}: {error}", "forbidden", hint=_MANIFEST, status=error.status) from error
            raise
