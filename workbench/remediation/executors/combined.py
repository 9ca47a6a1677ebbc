"""
Turn several executors into one: the scheduler's tells which nodes there are, and each verb goes to the first that can do it.

A machine that no claim stands for is exchanged by the site's own command, where there is one: its claim is then ``command:`` and the provider's
id or the node's name, so that a plan says who will do it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from workbench.remediation.executors.contract import Deadline, Executor, ExecutorError
from workbench.remediation.model import Action, FleetState, NodeState, Step

__all__ = ["BY_COMMAND", "Combined"]

BY_COMMAND = "command:"


class Combined:
    """
    A scheduler's executor, and others for what it cannot do.

    Parameters
    ----------
    scheduler : Executor
        Kubernetes or Slurm.
    *others : Executor
        Commands of the site, tickets.
    prefer : executors asked before the scheduler's, optional
        For a site whose own command cordons or reboots.
    """

    def __init__(self, scheduler: Executor, *others: Executor, prefer: tuple[Executor, ...] = ()) -> None:
        self._scheduler, self._order = scheduler, (*prefer, scheduler, *others)
        self.name = "+".join(dict.fromkeys(one.name for one in (scheduler, *prefer, *others) if one.verbs))
        self.verbs = frozenset(verb for one in self._order for verb in one.verbs)
        # what exchanges machines that the scheduler knows no claim of
        self._swaps = next((one for one in (*prefer, *others) if "replace" in one.verbs), None)

    def fleet(self, deadline: Deadline) -> FleetState:
        """Return what the scheduler's executor sees."""
        fleet = self._scheduler.fleet(deadline)
        if self._swaps is None:
            return fleet
        return replace(fleet, nodes={name: self._swappable(one) for name, one in fleet.nodes.items()})

    def node(self, name: str, deadline: Deadline) -> NodeState | None:
        """Return the node as the scheduler's executor sees it."""
        state = self._scheduler.node(name, deadline)
        return state if state is None or self._swaps is None else self._swappable(state)

    def _swappable(self, state: NodeState) -> NodeState:
        return state if state.claim else replace(state, claim=f"{BY_COMMAND}{state.provider or state.name}")

    def begin(self, action: Action, deadline: Deadline) -> Step:
        """Let the executor of the verb begin it."""
        return self.of(action).begin(action, deadline)

    def look(self, action: Action, deadline: Deadline) -> Step:
        """Let the executor of the verb look."""
        return self.of(action).look(action, deadline)

    def undo(self, action: Action, before: Mapping[str, Any], deadline: Deadline) -> Step:
        """Let the executor of the verb take it back."""
        return self.of(action).undo(action, before, deadline)

    def of(self, action: Action) -> Executor:
        """
        Return the executor that does an action's verb.

        Raises
        ------
        ExecutorError
            None does.
        """
        if action.verb == "replace" and self._swaps is not None and action.target.startswith(BY_COMMAND):
            return self._swaps
        for one in self._order:
            if action.verb in one.verbs:
                return one
        raise ExecutorError(f"no executor can do {action.verb!r}", hint="configure [commands] in the policy", sent=False)
