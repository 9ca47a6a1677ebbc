"""
Turn the replacement of a machine into the deletion of Karpenter's NodeClaim.

Karpenter then drains the node with its budgets, ends the instance, and makes another when pods need one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from workbench.remediation.executors.contract import Deadline
from workbench.remediation.executors.kubernetes.calls import CLAIMS, Calls
from workbench.remediation.executors.replacers import Claim

__all__ = ["Karpenter", "claim_from"]

_GROUP, _RESOURCE = "karpenter.sh", "nodeclaims"


class Karpenter:
    """
    Karpenter's NodeClaims; see `workbench.remediation.executors.replacers.Replacer`.

    Parameters
    ----------
    calls : Calls
    """

    name = "karpenter"
    kind = "NodeClaim"

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def named(self, node: Mapping[str, Any]) -> str:
        """Return the name of the NodeClaim that owns a node: Karpenter writes it into ``ownerReferences``."""
        for row in (node.get("metadata") or {}).get("ownerReferences") or []:
            if row.get("kind") == self.kind and str(row.get("apiVersion") or "").startswith(f"{_GROUP}/"):
                return str(row.get("name") or "")
        return ""

    def get(self, name: str, deadline: Deadline) -> Claim | None:
        """Return a NodeClaim; None when there is none of that name, or no Karpenter."""
        found = self._calls.read(_path(name), ("get", _GROUP, _RESOURCE), deadline)
        return None if found is None else claim_from(found)

    def give_back(self, claim: Claim, action: str, deadline: Deadline, *, dry: bool) -> bool:
        """Delete the NodeClaim of this uid."""
        return self._calls.delete(_path(claim.name), claim.uid, ("delete", _GROUP, _RESOURCE), deadline, dry=dry)


def claim_from(found: Mapping[str, Any]) -> Claim:
    """Return a NodeClaim, as the API server has it, as a claim."""
    meta, status = found["metadata"], found.get("status") or {}
    held = ", ".join(meta.get("finalizers") or []) or "nothing"
    return Claim(
        str(meta.get("name")),
        str(meta.get("uid")),
        str(status.get("providerID") or ""),
        str(status.get("nodeName") or ""),
        f"held by {held}" if meta.get("deletionTimestamp") else "",
    )


def _path(name: str) -> str:
    return f"{CLAIMS}/{quote(name, safe='')}"
