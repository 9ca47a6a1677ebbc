"""Turn an executor that sees no nodes of its own (commands, bundles, reports) into one that says of them what the scheduler's says."""

from __future__ import annotations

from collections.abc import Callable

from workbench.remediation.executors.contract import Deadline, ExecutorError
from workbench.remediation.model import FleetState, NodeState

__all__ = ["Beside"]


class Beside:
    """
    What stands beside a scheduler's executor.

    Attributes
    ----------
    what : str
        What it is, in the words of its error: ``reports``.
    """

    what = ""

    def __init__(self, node: Callable[[str, Deadline], NodeState | None] | None = None) -> None:
        self._node = node

    def fleet(self, deadline: Deadline) -> FleetState:
        """It sees no fleet: always an `ExecutorError`."""
        raise ExecutorError(f"{self.what} do not tell which nodes there are", hint="use a scheduler's executor", sent=False)

    def node(self, name: str, deadline: Deadline) -> NodeState | None:
        """Return what the scheduler's executor says of the node."""
        if self._node is None:
            return self.fleet(deadline).nodes.get(name)
        return self._node(name, deadline)
