"""
Turn the replacement of a machine into the deletion of Cluster API's Machine, whose MachineSet makes another.

Its controller drains the node, ends the infrastructure and removes the node. The annotation ``cluster.x-k8s.io/delete-machine`` is no way to
replace: it only says which Machine goes first when a set is made smaller. Machines live in the management cluster, which may be another one.
Words and fields: kubernetes-sigs/cluster-api v1.10.4, api/v1beta1/common_types.go and machine_types.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from workbench.remediation.executors.contract import Deadline, ExecutorError
from workbench.remediation.executors.kubernetes.calls import Calls
from workbench.remediation.executors.kubernetes.marks import annotations_of
from workbench.remediation.executors.replacers import Claim

__all__ = ["ClusterApi"]

_GROUP, _RESOURCE = "cluster.x-k8s.io", "machines"
_MACHINE, _SPACE = f"{_GROUP}/machine", f"{_GROUP}/cluster-namespace"  # annotations of the node
_PAUSED = f"{_GROUP}/paused"
_CONTROL = f"{_GROUP}/control-plane"  # label of the Machine
_HOOKS = ("pre-drain.delete.hook.machine.", "pre-terminate.delete.hook.machine.")  # annotations that hold a deletion
_MAKERS = frozenset({"MachineSet", "MachinePool"})  # what makes another in the place of one that goes


class ClusterApi:
    """
    Cluster API's Machines; see `workbench.remediation.executors.replacers.Replacer`.

    Parameters
    ----------
    calls : Calls
        Asks the management cluster.
    """

    name = "cluster-api"
    kind = "Machine"

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._version = ""

    def named(self, node: Mapping[str, Any]) -> str:
        """Return ``namespace/name`` of the Machine that a node says it is, by the annotations that the Machine's controller writes."""
        notes = annotations_of(node)
        name, space = notes.get(_MACHINE, ""), notes.get(_SPACE, "")
        return f"{space}/{name}" if name and space else ""

    def get(self, name: str, deadline: Deadline) -> Claim | None:
        """Return a Machine; None when there is none of that name, or no Cluster API."""
        path = self._path(name, deadline)
        found = self._calls.read(path, ("get", _GROUP, _RESOURCE), deadline) if path else None
        if found is None:
            return None
        meta, spec, status = found["metadata"], found.get("spec") or {}, found.get("status") or {}
        notes = meta.get("annotations") or {}
        held = [*(meta.get("finalizers") or []), *(key for key in notes if key.startswith(_HOOKS))]
        makers = [one.get("kind") for one in meta.get("ownerReferences") or [] if one.get("controller")]
        stays = ""
        if _CONTROL in (meta.get("labels") or {}):
            stays = "it belongs to the control plane"
        elif not _MAKERS & set(makers):
            stays = "no MachineSet has it, so nothing would make another in its place"
        elif _PAUSED in notes:
            stays = "somebody paused it"
        return Claim(
            name,
            str(meta.get("uid")),
            str(spec.get("providerID") or ""),
            str((status.get("nodeRef") or {}).get("name") or ""),
            f"held by {', '.join(held) or 'nothing'}" if meta.get("deletionTimestamp") else "",
            stays,
        )

    def give_back(self, claim: Claim, action: str, deadline: Deadline, *, dry: bool) -> bool:
        """Delete the Machine of this uid."""
        path = self._path(claim.name, deadline)
        return bool(path) and self._calls.delete(path, claim.uid, ("delete", _GROUP, _RESOURCE), deadline, dry=dry)

    def _path(self, name: str, deadline: Deadline) -> str:
        """Return where a Machine is, in the version that the server prefers; empty when it has no Cluster API."""
        if not self._version:
            group = self._calls.read(f"/apis/{_GROUP}", ("get", _GROUP, "versions"), deadline)
            if group is None:
                return ""
            self._version = str((group.get("preferredVersion") or {}).get("version") or "")
            if not self._version:
                raise ExecutorError(f"the API server does not say which version of {_GROUP} it prefers", sent=False)
        space, _, machine = name.partition("/")
        return f"/apis/{_GROUP}/{self._version}/namespaces/{quote(space, safe='')}/{_RESOURCE}/{quote(machine, safe='')}"
