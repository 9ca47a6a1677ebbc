"""
Turn the replacement of a machine into one claim given back, and claim and node into how far that is.

Who gives claims back: `workbench.remediation.executors.replacers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.remediation.executors.contract import Deadline, ExecutorError, fence
from workbench.remediation.executors.kubernetes.karpenter import Karpenter
from workbench.remediation.executors.kubernetes.marks import Change, Mark, did, mark_of
from workbench.remediation.executors.replacers import Claim, Replacer
from workbench.remediation.model import Action, Step

__all__ = ["Machines", "Meant"]


class Meant:
    """Which claim an action is about: with whom, its name, and its uid as soon as that is known."""

    def __init__(self, replacer: Replacer, name: str, uid: str = "") -> None:
        self.replacer, self.name, self.uid = replacer, name, uid

    def __str__(self) -> str:
        return f"{self.replacer.kind} {self.name}"


class Machines:
    """
    All that replaces machines in one cluster.

    Parameters
    ----------
    replacers : sequence of Replacer
        The first that knows a node has it. In plans each is named in front of its claims, but Karpenter, which was there before the others.
    """

    def __init__(self, replacers: Sequence[Replacer]) -> None:
        self._replacers = tuple(replacers)

    def claim_of(self, node: Mapping[str, Any], problems: set[str] | None = None) -> str:
        """Return what stands for a node's machine, by what the node says; empty when nobody knows it. A plug-in that fails is told."""
        for one in self._replacers:
            try:
                name = one.named(node)
            except Exception as error:  # of somebody else's package
                if problems is not None:
                    problems.add(f"replacer {one.name}: {type(error).__name__}: {error}")
                continue
            if name:
                return name if one.name == Karpenter.name else f"{one.name}:{name}"
        return ""

    def meant(self, action: Action, node: Mapping[str, Any] | None) -> Meant | None:
        """Return the claim that an action names, else the one that the node says it has."""
        named = str(action.args.get("claim") or action.target)
        if named == action.node or not named:
            named = "" if node is None else self.claim_of(node)
        if not named:
            return None
        who, colon, name = named.partition(":")
        for one in self._replacers:
            if colon and one.name == who:
                return Meant(one, name)
        return next((Meant(one, named) for one in self._replacers if one.name == Karpenter.name and not colon), None)

    def find(self, action: Action, node: Mapping[str, Any], deadline: Deadline) -> tuple[Meant, Claim] | Step:
        """Return the claim that an action is about, or the step that says why there is none to give back."""
        meant = self.meant(action, node)
        if meant is None:
            return Step("failed", "nobody here knows what stands for this node's machine, so nothing can replace it")
        claim = meant.replacer.get(meant.name, deadline)
        if claim is None:
            return Step("changed", f"there is no {meant} any more")
        if not claim.fits(node):
            return Step("changed", f"{meant} stands for another machine")
        if claim.going:
            return Step("changed", f"somebody deleted {meant} already")
        if claim.stays:
            return Step("failed", f"{meant} is not given back: {claim.stays}")
        meant.uid = claim.uid
        return meant, claim

    def noted(self, action: Action, node: Mapping[str, Any], meant: Meant, now: float) -> dict[str, Any]:
        """Return the patch that writes on the node which claim is given back for which action."""
        more = {"claim": meant.name, "uid": meant.uid, "by": meant.replacer.name}
        return Change().patch(node, {did("replace"): Mark(action.id, now, more=more).text()})

    def marked(self, action: Action, node: Mapping[str, Any] | None) -> Meant | None:
        """Return the claim that the action was begun for; None when the node does not say so. Raises `ExecutorError`: nobody here knows it."""
        mark = None if node is None else mark_of(node, "replace")
        if mark is None or mark.op != action.id:
            return None
        who = str(mark.more.get("by") or Karpenter.name)
        found = next((one for one in self._replacers if one.name == who), None)
        if found is None:  # begun with a plug-in that is not here any more
            raise ExecutorError(f"the replacer {who!r} that gave the machine back is not installed here", sent=False, again=60.0)
        return Meant(found, str(mark.more.get("claim")), str(mark.more.get("uid")))

    def give_back(self, action: Action, meant: Meant, deadline: Deadline, *, dry: bool) -> Step:
        """Give back a claim of this uid."""
        before = {"claim": meant.name, "uid": meant.uid, "by": meant.replacer.name}
        fence(deadline)  # a plug-in need not know of it
        if meant.replacer.give_back(Claim(meant.name, meant.uid), action.id, deadline, dry=dry):
            return Step("pending", f"{meant} is deleted; its machine goes when it is drained", before, again=30.0)
        return Step("pending", f"{meant} was deleted already", before, again=30.0)

    def far(self, action: Action, node: Mapping[str, Any] | None, deadline: Deadline) -> Step:
        """Return how far a replacement is."""
        uid = action.expects.get("uid")
        marked = self.marked(action, node)
        meant = marked or self.meant(action, node)
        claim = meant.replacer.get(meant.name, deadline) if meant else None
        if claim is not None and marked is not None and claim.uid != marked.uid:
            claim = None  # another claim of the same name
        there = node is not None and (uid is None or str(node["metadata"].get("uid")) == uid)
        if claim is not None and claim.going:
            return Step("pending", f"{meant} is being deleted, {claim.going}", again=30.0)
        if claim is not None:
            if there or node is None:
                return Step("absent", f"{meant} stands")
            return Step("changed", f"the node is another machine, and {meant} stands")
        if there:
            if marked is None:
                return Step("changed", f"its {meant} is gone, and not by this action") if meant else Step("absent")
            return Step("pending", f"{meant} is gone; the node is still there", again=30.0)
        return Step("done", "the machine is gone" if node is None else "a new machine has its name")
