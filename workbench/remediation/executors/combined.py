"""Turn several executors into one: the scheduler's tells which nodes there are, and each verb goes to the first that can do it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.remediation.executors.contract import Deadline, Executor, ExecutorError
from workbench.remediation.model import Action, FleetState, NodeState, Step

__all__ = ["Combined"]


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

    def fleet(self, deadline: Deadline) -> FleetState:
        """Return what the scheduler's executor sees."""
        return self._scheduler.fleet(deadline)

    def node(self, name: str, deadline: Deadline) -> NodeState | None:
        """Return the node as the scheduler's executor sees it."""
        return self._scheduler.node(name, deadline)

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
        for one in self._order:
            if action.verb in one.verbs:
                return one
        raise ExecutorError(f"no executor can do {action.verb!r}", hint="configure [commands] in the policy", sent=False)
