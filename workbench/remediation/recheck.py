"""Turn the guards into the question that the engine asks just before each action: with the fleet as it is then, and what we changed since."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from workbench.errors import WorkbenchError
from workbench.remediation.executors.contract import Deadline, Executor
from workbench.remediation.guards import SHRINKING, recheck
from workbench.remediation.journal import Entry, Journal
from workbench.remediation.model import OWNER, Action, FleetState, NodeState, Plan, Refusal
from workbench.remediation.policy import Policy

__all__ = ["Recheck"]


class Recheck:
    """
    ``check`` of `workbench.remediation.engine.apply`.

    The fleet is read again when it is older than `age`; the node of the action is from this very moment; nodes that the journal says we have
    taken away since (or may have: their end is not known) count as ours, whatever the fleet shows.

    Parameters
    ----------
    plan : Plan
    executor : Executor
    policy : Policy
    clock, steady : callable
        Seconds since the epoch; seconds that only grow.
    age : float, optional
        Seconds for which a list of all nodes is used; ours: what others take away within it is seen half a minute late.
    call : float, optional
        Seconds that reading the fleet may take.
    """

    def __init__(
        self,
        plan: Plan,
        executor: Executor,
        policy: Policy,
        *,
        clock: Callable[[], float],
        steady: Callable[[], float],
        age: float = 30.0,
        call: float = 60.0,
    ) -> None:
        self._plan, self._executor, self._policy = plan, executor, policy
        self._clock, self._steady, self._age, self._call = clock, steady, age, call
        self._fleet: FleetState | None = None
        self._read = 0.0
        self._nodes: dict[str, NodeState] = {}
        self._told = 0  # entries of the journal that `_nodes` shows

    def __call__(self, action: Action, state: NodeState | None, journal: Journal) -> Refusal | None:
        """
        Return why the action must not be done now, or None.

        Raises
        ------
        WorkbenchError
            The fleet cannot be seen and the action makes it smaller.
        """
        entries = journal.past()
        try:
            fleet = self._now(entries)
            # what we took since, of which each check sees only what is new; and what may have been taken by whoever left it open
            for entry in [*journal.open(), *entries[self._told :]]:
                node = self._nodes.get(entry.node)
                if node is not None and not node.owner and _takes(entry, journal):
                    self._nodes[entry.node] = replace(node, owner=OWNER, op=entry.action, schedulable=False)
            self._told = len(entries)
            nodes = dict(self._nodes)
        except WorkbenchError as error:
            if not action.recovery:
                raise
            fleet, nodes = FleetState(self._clock(), {}, complete=False, problems=(str(error),)), {}
        if state is not None:
            nodes[state.name] = state
        elif action.node:
            nodes.pop(action.node, None)
        return recheck(action, self._plan, replace(fleet, nodes=nodes), entries, self._policy, self._clock())

    def _now(self, entries: list[Entry]) -> FleetState:
        if self._fleet is None or self._steady() - self._read >= self._age:
            self._fleet, self._read = None, self._steady()
            self._fleet = self._executor.fleet(Deadline(self._call, self._steady))
            self._nodes, self._told = dict(self._fleet.nodes), len(entries)
        return self._fleet


def _takes(entry: Entry, journal: Journal) -> bool:
    return entry.kind == "intent" and entry.verb in SHRINKING and journal.status_of(entry.action) not in ("refused", "undone")
