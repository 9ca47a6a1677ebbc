"""
Turn one read or one write into one request to the API server, and every way in which it fails into an `ExecutorError` that says whether it may
have arrived.

A write is sent once. Whether one of which the answer was lost has happened is for a look to tell, not for a second try.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from workbench.errors import SourceError
from workbench.remediation.executors.contract import Deadline, ExecutorError, fence
from workbench.remediation.executors.kubernetes.marks import MANAGER, stamp
from workbench.remediation.model import digest
from workbench.sources.contract import SourceTimeout
from workbench.sources.kubernetes.api import Api, Listing
from workbench.sources.kubernetes.errors import ApiError, words

__all__ = ["CLAIMS", "MANIFEST", "ROLE", "Calls", "Conflict", "Held", "right", "told"]

ROLE = "gpu-workbench-remediation"
MANIFEST = "workbench config rbac --remediation | kubectl apply -f -"
CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
_MERGE = "application/merge-patch+json"
_SPACE = "default"  # where events of nodes live, as those of the kubelet
# what was surely not carried out, whatever the way it was refused
_NOT_SENT = {"config", "tls", "auth", "forbidden", "absent", "gone", "client", "throttled"}
_MESSAGE = 1024  # characters of an event's message that the API server takes


class Conflict(ExecutorError):
    """Somebody changed the object since it was read, or it is another one by now: nothing was written."""


class Held(ExecutorError):
    """The API server does not let a pod go: a disruption budget allows none, or two cover it."""


def right(verb: str, group: str, resource: str) -> str:
    """Return the line that grants what was refused, and the command that grants all that is needed."""
    return (
        f'add to the role {ROLE}: {{apiGroups: ["{group}"], resources: ["{resource}"], verbs: ["{verb}"]}}; '
        f"`{MANIFEST}` grants all that acting needs"
    )


def told(error: SourceError, what: tuple[str, str, str], *, wrote: bool) -> ExecutorError:
    """
    Return an error of a request as what an executor raises.

    Parameters
    ----------
    error : SourceError
    what : tuple of str
        Verb, API group and resource, e.g. ``("patch", "", "nodes")``.
    wrote : bool
        Whether the request changes something when it arrives.
    """
    verb, group, resource = what
    said = f"{verb} {resource}: {error}"
    if not isinstance(error, ApiError):
        return ExecutorError(said, hint=error.hint, sent=wrote)
    if error.status == 409:
        return Conflict(said, hint=error.hint, sent=False, again=1.0)
    hint = right(verb, group, resource) if error.kind == "forbidden" else error.hint
    sure = error.kind in _NOT_SENT or type(error.__cause__).__name__ == "NewConnectionError"
    return ExecutorError(said, hint=hint, sent=wrote and not sure, again=5.0 if error.wait is None else error.wait)


class Calls:
    """
    The requests that the executor makes.

    Parameters
    ----------
    api : Api
        The server, with credentials that may do what ``workbench config rbac --remediation`` grants.
    page : int
        Objects a page of a list.
    """

    def __init__(self, api: Api, page: int = 500) -> None:
        self.api, self.page = api, page

    # ---- reads

    def read(self, path: str, what: tuple[str, str, str], deadline: Deadline) -> dict[str, Any] | None:
        """Return an object, or None when there is none of that name; raises `ExecutorError`."""
        try:
            return self.api.json(path, deadline)
        except SourceError as error:
            if isinstance(error, ApiError) and error.kind == "absent":
                return None
            raise told(error, what, wrote=False) from error

    def node(self, name: str, deadline: Deadline) -> dict[str, Any] | None:
        """Return a node; None when there is none of that name."""
        return self.read(_node(name), ("get", "", "nodes"), deadline)

    def pod(self, id: str, deadline: Deadline) -> dict[str, Any] | None:
        """Return a pod ``namespace/name``; None when there is none."""
        return self.read(_pod(id), ("get", "", "pods"), deadline)

    def list(
        self,
        path: str,
        what: tuple[str, str, str],
        deadline: Deadline,
        keep: Callable[[dict[str, Any]], bool] | None = None,
        **query: str,
    ) -> Listing:
        """Return a list, page by page; raises `ExecutorError` when not even the first page came."""
        try:
            return self.api.list(path, deadline, query, page=self.page, keep=keep)
        except SourceError as error:
            raise told(error, what, wrote=False) from error

    # ---- writes

    def patch_node(self, name: str, body: Mapping[str, Any], deadline: Deadline, *, dry: bool) -> dict[str, Any]:
        """Change a node by a merge patch that names its uid and version; raises `Conflict` when it is not that any more."""
        path = _node(name) + _query(dry, fieldManager=MANAGER)
        return self._send("PATCH", path, body, ("patch", "", "nodes"), deadline, kind=_MERGE)

    def evict(self, id: str, uid: str, deadline: Deadline, *, dry: bool) -> bool:
        """
        Ask a pod to leave, with its disruption budgets and its own grace; False when that pod is gone already.

        Raises
        ------
        Held
            A budget does not allow it; it names the budget in the server's own words.
        ExecutorError
        """
        space, _, name = id.partition("/")
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": space},
            "deleteOptions": {"preconditions": {"uid": uid}},  # another pod of the same name is not meant
        }
        what = ("create", "", "pods/eviction")
        fence(deadline)
        try:
            self.api.send("POST", f"{_pod(id)}/eviction{_query(dry)}", body, deadline, tries=1)
        except SourceTimeout as error:
            raise told(error, what, wrote=True) from error
        except ApiError as error:
            if error.status in (404, 409):
                return False
            if held := _held(id, error):
                raise held from error
            raise told(error, what, wrote=True) from error
        return True

    def delete(self, path: str, uid: str, what: tuple[str, str, str], deadline: Deadline, *, dry: bool) -> bool:
        """Delete an object of this uid; False when it is gone already, or another one has its name."""
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        if dry:
            body["dryRun"] = ["All"]  # of a DELETE with a body the server ignores the query
        try:
            self._send("DELETE", f"{path}{_query(dry)}", body, what, deadline)
        except Conflict:
            return False
        except ExecutorError as error:
            if isinstance(error.__cause__, ApiError) and error.__cause__.kind == "absent":
                return False
            raise
        return True

    def event(self, node: str, key: str, reason: str, message: str, now: float, deadline: Deadline) -> None:
        """Tell of an action in an event of the node, once a key; raises `ExecutorError`."""
        mark, when = digest([node, key], 16), stamp(now)
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{node}.{mark}", "namespace": _SPACE},
            # the kubelet, too, names nodes by their name where others have a uid: so `kubectl describe node` finds it
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
            "type": "Normal",
            "reason": reason,
            "message": words(message, _MESSAGE),
            "firstTimestamp": when,
            "lastTimestamp": when,
            "count": 1,
            "source": {"component": MANAGER},
            "reportingComponent": MANAGER,
            "reportingInstance": node,
        }
        try:
            self._send("POST", f"/api/v1/namespaces/{_SPACE}/events", body, ("create", "", "events"), deadline)
        except Conflict:
            pass  # it was told already

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        what: tuple[str, str, str],
        deadline: Deadline,
        kind: str = "application/json",
    ) -> dict[str, Any]:
        fence(deadline)
        try:
            return self.api.send(method, path, body, deadline, kind=kind, tries=1)
        except SourceError as error:
            raise told(error, what, wrote=True) from error


def _held(id: str, error: ApiError) -> Held | None:
    """Return why a pod may not leave, when that is what the server said."""
    causes = (error.said.get("details") or {}).get("causes") or []
    said = "; ".join(words(str(one.get("message"))) for one in causes if one.get("reason") == "DisruptionBudget")
    message = words(str(error.said.get("message") or ""))
    if error.status == 429 and (said or "disruption budget" in message):
        return Held(f"{id}: {said or message}", sent=False, again=10.0 if error.wait is None else error.wait)
    # "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    if error.status == 500 and "more than one PodDisruptionBudget" in message:
        why = "two disruption budgets cover it, and the API server evicts no such pod until one of them is gone"
        return Held(f"{id}: {why}", sent=False, again=60.0)
    return None


def _node(name: str) -> str:
    return f"/api/v1/nodes/{quote(name, safe='')}"


def _pod(id: str) -> str:
    space, _, name = id.partition("/")
    return f"/api/v1/namespaces/{quote(space, safe='')}/pods/{quote(name, safe='')}"


def _query(dry: bool, **more: str) -> str:
    query = {**more, **({"dryRun": "All"} if dry else {})}
    return f"?{urlencode(query)}" if query else ""
