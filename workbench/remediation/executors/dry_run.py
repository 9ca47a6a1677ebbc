"""Turn any executor into one that changes nothing: it looks, asks the server to check where the server can, and says what would be done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from workbench.remediation.executors.contract import Deadline, Executor, ExecutorError
from workbench.remediation.executors.expects import misfit
from workbench.remediation.model import OWNER, VERBS, Action, FleetState, NodeState, Step

__all__ = ["Chooses", "DryRun", "Rehearses", "RehearsesUndo"]


@runtime_checkable
class Chooses(Protocol):
    """An executor that lets another one do it."""

    def of(self, action: Action) -> Executor:
        """Return which."""
        ...


@runtime_checkable
class Rehearses(Protocol):
    """An executor whose server can check a change without making it."""

    def rehearse(self, action: Action, deadline: Deadline) -> Step:
        """Return what `begin` would return, and change nothing."""
        ...


@runtime_checkable
class RehearsesUndo(Protocol):
    """An executor that can say what its `undo` would do, and does nothing."""

    def rehearse_undo(self, action: Action, before: Mapping[str, Any], deadline: Deadline) -> Step:
        """Return what `undo` would return, and change nothing."""
        ...


class DryRun:
    """
    An executor in front of another one, through which nothing is changed.

    `begin` returns ``changed`` and ``blocked`` as the real one would, and ``done`` for what would be done or begun; `look` is the other's own
    and so says ``absent`` afterwards. Where the inner executor has no `rehearse`, only node, uid, boot, owner and the rest of `expects` are
    compared, and the step says that nobody else checked. What a step would have changed is remembered, so that the next of the same node is
    judged as it would stand then: that one no server can check.

    Parameters
    ----------
    inner : Executor
    """

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self.name = f"dry-run of {inner.name}"
        self.verbs = inner.verbs
        self._would: dict[str, list[Action]] = {}

    def fleet(self, deadline: Deadline) -> FleetState:
        """Return what the inner executor sees, as it would be after the steps so far."""
        seen = self.inner.fleet(deadline)
        return replace(seen, nodes={name: self._after(node) for name, node in seen.nodes.items()}) if self._would else seen

    def node(self, name: str, deadline: Deadline) -> NodeState | None:
        """Return what the inner executor sees, as it would be after the steps so far."""
        seen = self.inner.node(name, deadline)
        return None if seen is None else self._after(seen)

    def _after(self, node: NodeState) -> NodeState:
        for action in self._would.get(node.name, ()):
            if action.verb in ("cordon", "drain", "taint") and not node.owner:
                node = replace(node, owner=OWNER, op=action.id, schedulable=False)
            if action.verb in ("evict", "drain"):
                node = replace(node, work=tuple(one for one in node.work if one.ignored))
            if action.verb == "uncordon":
                node = replace(node, owner="", op="", schedulable=True)
        return node

    def begin(self, action: Action, deadline: Deadline) -> Step:
        """Return what would come of it; raises `ExecutorError` as the real one would: also when a right lacks."""
        if action.verb not in self.verbs:
            raise ExecutorError(f"{self.inner.name} cannot do {action.verb!r}", sent=False)
        would = f"dry run: it would {VERBS[action.verb]}"
        would_be = self._would.get(action.node, [])
        if same := [number for number, one in enumerate(would_be) if one.id == action.id]:
            del would_be[same[0] :]  # asked again: judged as it stood before it
        if self._would.get(action.node):
            if why := misfit(action.expects, self.node(action.node, deadline)):
                return Step("changed", why)
            self._would[action.node].append(action)
            return Step("done", f"{would}; it comes after what was not done, so only what it expects was compared")
        inner = self.inner.of(action) if isinstance(self.inner, Chooses) else self.inner
        if isinstance(inner, Rehearses):
            step = inner.rehearse(action, deadline)
            if step.status not in ("done", "pending"):
                return step
            self._would.setdefault(action.node, []).append(action)
            return Step("done", f"{would}; {step.detail or 'the server checked it'}")
        far = self.inner.look(action, deadline)
        if far.status != "absent":
            return replace(far, detail=f"dry run: {far.detail or 'it has happened already'}")
        if why := misfit(action.expects, self.inner.node(action.node, deadline)):
            return Step("changed", why)
        self._would.setdefault(action.node, []).append(action)
        return Step("done", f"{would}; only what it expects was compared")

    def look(self, action: Action, deadline: Deadline) -> Step:
        """Return what the inner executor sees."""
        return self.inner.look(action, deadline)

    def undo(self, action: Action, before: Mapping[str, Any], deadline: Deadline) -> Step:
        """Say what would be taken back, and take back nothing."""
        inner = self.inner.of(action) if isinstance(self.inner, Chooses) else self.inner
        far = self.inner.look(action, deadline)
        step = inner.rehearse_undo(action, before, deadline) if isinstance(inner, RehearsesUndo) else far
        if far.status == "absent" and step.status not in ("changed", "unknown"):
            return Step("absent", "dry run: nothing of it is there (any more), so nothing would be taken back")
        if step.status in ("done", "pending", "blocked"):
            return Step("done", f"dry run: it would be undone: {step.detail or action.verb}")
        return replace(step, detail=f"dry run: it would stay: {step.detail}")
