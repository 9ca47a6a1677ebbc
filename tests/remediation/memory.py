"""Turn a dictionary of nodes into a world behind an executor, right or broken in one named way: what the conformance suite is tried on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from workbench.remediation.executors.contract import Deadline, ExecutorError, fence
from workbench.remediation.model import OWNER, Action, FleetState, NodeState, Step

__all__ = ["BREAKAGES", "Memory", "MemoryWorld"]

# what the executor does wrong → the test of the suite that must notice
BREAKAGES = {
    "forgets": "test_begun_twice_is_one_change",
    "looks-with-hands": "test_before_it_nothing_has_happened",
    "sends-anyway": "test_it_asks_the_fence_right_before_it_changes_something",
    "undoes-anyway": "test_undo_asks_the_fence_as_well",
    "ignores-uid": "test_a_changed_world_is_left_alone",
    "says-not-sent": "test_a_lost_answer_is_found_by_looking",
    "blind-is-absent": "test_what_did_not_arrive_has_not_happened",
    "blind-is-empty": "test_what_cannot_be_seen_is_not_missing",
    "invents-nodes": "test_reading_changes_nothing",
    "any-verb": "test_a_verb_of_others_is_refused",
    "undoes-half": "test_undo_brings_back_what_was",
    "needs-memory": "test_undo_after_a_crash_needs_the_journal_only",
    "undoes-blindly": "test_what_somebody_changed_since_stays",
    "takes-over": "test_what_another_restricted_is_seen_and_left_alone",
}


class Memory:
    """Cordons nodes of a `MemoryWorld`."""

    name = "memory"
    verbs = frozenset({"cordon", "evict"})

    def __init__(self, world: MemoryWorld, broken: str = "") -> None:
        self.world, self.broken = world, broken
        self._seen: set[str] = set()

    def _asked(self) -> None:
        if self.world.silent:
            raise ExecutorError("nobody answers", sent=False)

    def fleet(self, deadline: Deadline) -> FleetState:
        if self.broken == "blind-is-empty" and self.world.silent:
            return FleetState(0.0, {})
        self._asked()
        return FleetState(0.0, dict(self.world.nodes))

    def node(self, name: str, deadline: Deadline) -> NodeState | None:
        self._asked()
        return self.world.nodes.get(name) or (NodeState(name) if self.broken == "invents-nodes" else None)

    def begin(self, action: Action, deadline: Deadline) -> Step:
        if action.verb not in self.verbs and self.broken != "any-verb":
            raise ExecutorError(f"{action.verb} is none of mine", sent=False)
        self._asked()
        node = self.world.nodes[action.node]
        if node.op == action.id and self.broken != "forgets":
            return Step("done", before={"owner": ""})
        if node.uid != action.expects["uid"] and self.broken != "ignores-uid":
            return Step("changed", "another machine")
        if node.owner and node.op != action.id and self.broken != "takes-over":
            return Step("changed", f"{node.owner} restricted it")
        self._seen.add(action.id)
        if self.broken != "sends-anyway":
            fence(deadline)
        self.world.put(replace(node, schedulable=False, owner=OWNER, op=action.id), says_sent=self.broken != "says-not-sent")
        return Step("done", before={"owner": node.owner})

    def look(self, action: Action, deadline: Deadline) -> Step:
        if self.world.silent and self.broken == "blind-is-absent":
            return Step("absent")
        self._asked()
        node = self.world.nodes[action.node]
        if self.broken == "looks-with-hands":
            self.world.put(node)
        return Step("done" if node.op == action.id else "absent")

    def undo(self, action: Action, before: Mapping[str, Any], deadline: Deadline) -> Step:
        self._asked()
        node = self.world.nodes[action.node]
        if self.broken == "needs-memory" and action.id not in self._seen:
            return Step("unknown", "I was not there")
        if node.op != action.id and self.broken != "undoes-blindly":
            return Step("changed", "it is not ours any more") if node.owner else Step("absent")
        if self.broken != "undoes-anyway":
            fence(deadline)
        self.world.put(
            replace(node, schedulable=True, owner="", op="", marks={"left": "over"} if self.broken == "undoes-half" else {})
        )
        return Step("done")


class MemoryWorld:
    """Nodes in a dictionary."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken
        self.nodes: dict[str, NodeState] = {}
        self.silent = self.deaf = False
        self._count, self._writes = itertools.count(), 0
        self.executor = self.again()

    def again(self) -> Memory:
        return Memory(self, self.broken)

    def put(self, node: NodeState, *, says_sent: bool = True) -> None:
        self.nodes[node.name] = node
        self._writes += 1
        if self.deaf:
            raise ExecutorError("the answer is lost", sent=says_sent)

    def action(self, verb: str) -> Action:
        name = f"node-{next(self._count)}"
        self.nodes[name] = NodeState(name, uid=f"uid-{name}")
        return Action(f"act-{name}", verb, "cordon", name, expects={"uid": f"uid-{name}"}, undo="uncordon")

    def writes(self) -> int:
        return self._writes

    def shape(self, action: Action) -> Any:
        return self.nodes[action.node]

    def settle(self, action: Action) -> None:
        pass

    def foreign(self, action: Action) -> None:
        self.nodes[action.node] = replace(self.nodes[action.node], schedulable=False, owner="kubectl", op="")

    def differ(self, action: Action) -> None:
        self.nodes[action.node] = replace(self.nodes[action.node], uid="another")

    def meddle(self, action: Action) -> None:
        self.foreign(action)

    @contextmanager
    def answer_lost(self) -> Iterator[None]:
        self.deaf = True
        try:
            yield
        finally:
            self.deaf = False

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        self.silent = True
        try:
            yield
        finally:
            self.silent = False
