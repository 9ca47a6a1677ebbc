"""
Turn the replacement of a machine into the deletion of the NodeClaim that stands for it, and claim and node into how far that is.

Karpenter then drains the node with its budgets, ends the instance, and makes another when pods need one. Other providers' machines
(Cluster API, autoscaling groups) are a command of the site: `workbench.remediation.executors.command`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.remediation.executors.contract import Deadline
from workbench.remediation.executors.kubernetes.calls import Calls
from workbench.remediation.executors.kubernetes.marks import Change, Mark, did, mark_of
from workbench.remediation.model import Action, Step

__all__ = ["claim_of", "delete", "far", "find", "fits", "marked", "noted"]


def claim_of(node: Mapping[str, Any]) -> str:
    """Return the name of the NodeClaim that owns a node; empty when none does: Karpenter writes it into ``ownerReferences``."""
    for row in (node.get("metadata") or {}).get("ownerReferences") or []:
        if row.get("kind") == "NodeClaim" and str(row.get("apiVersion") or "").startswith("karpenter.sh/"):
            return str(row.get("name") or "")
    return ""


def fits(claim: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """Tell whether a NodeClaim stands for a node: by the provider's id where both have it, else by the node's name."""
    status, provider = claim.get("status") or {}, str((node.get("spec") or {}).get("providerID") or "")
    if provider and status.get("providerID"):
        return str(status["providerID"]) == provider
    return str(status.get("nodeName") or "") == str((node.get("metadata") or {}).get("name"))


def find(action: Action, node: Mapping[str, Any], calls: Calls, deadline: Deadline) -> dict[str, Any] | Step:
    """Return the NodeClaim that an action is about, or the step that says why there is none."""
    name = _named(action) or claim_of(node)
    if not name:
        return Step("failed", "no NodeClaim stands for this node, so nothing here can replace its machine")
    claim = calls.claim(name, deadline)
    if claim is None:
        return Step("changed", f"there is no NodeClaim {name} any more")
    if not fits(claim, node):
        return Step("changed", f"NodeClaim {name} stands for another machine")
    if claim["metadata"].get("deletionTimestamp"):
        return Step("changed", f"somebody deleted NodeClaim {name} already")
    return claim


def _named(action: Action) -> str:
    """Return the claim that an action names; a target that is the node names none."""
    name = str(action.args.get("claim") or action.target)
    return "" if name == action.node else name


def noted(action: Action, node: Mapping[str, Any], claim: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Return the patch that writes on the node which claim is deleted for which action."""
    more = {"claim": str(claim["metadata"]["name"]), "uid": str(claim["metadata"]["uid"])}
    return Change().patch(node, {did("replace"): Mark(action.id, now, more=more).text()})


def marked(action: Action, node: Mapping[str, Any] | None) -> tuple[str, str] | None:
    """Return name and uid of the claim that the action was begun for; None when the node does not say so."""
    mark = None if node is None else mark_of(node, "replace")
    if mark is None or mark.op != action.id:
        return None
    return str(mark.more.get("claim")), str(mark.more.get("uid"))


def delete(name: str, uid: str, calls: Calls, deadline: Deadline, *, dry: bool) -> Step:
    """Delete a claim of this uid."""
    before = {"claim": name, "uid": uid}
    if calls.delete_claim(name, uid, deadline, dry=dry):
        return Step("pending", f"NodeClaim {name} is deleted; its machine goes when it is drained", before, again=30.0)
    return Step("pending", f"NodeClaim {name} was deleted already", before, again=30.0)


def far(action: Action, node: Mapping[str, Any] | None, calls: Calls, deadline: Deadline) -> Step:
    """Return how far a replacement is."""
    uid = action.expects.get("uid")
    mark = marked(action, node)
    name = mark[0] if mark else _named(action)
    claim = calls.claim(name, deadline) if name else None
    theirs = claim is not None and mark is not None and str(claim["metadata"].get("uid")) != mark[1]
    if theirs:
        claim = None  # another claim of the same name
    there = node is not None and (uid is None or str(node["metadata"].get("uid")) == uid)
    if claim is not None and claim["metadata"].get("deletionTimestamp"):
        held = ", ".join(claim["metadata"].get("finalizers") or []) or "nothing"
        return Step("pending", f"NodeClaim {name} is being deleted, held by {held}", again=30.0)
    if claim is not None:
        if there or node is None:
            return Step("absent", f"NodeClaim {name} stands")
        return Step("changed", f"the node is another machine, and NodeClaim {name} stands")
    if there:
        if mark is None:
            return Step("changed", "its NodeClaim is gone, and not by this action") if name else Step("absent")
        return Step("pending", f"NodeClaim {name} is gone; the node is still there", again=30.0)
    return Step("done", "the machine is gone" if node is None else "a new machine has its name")
