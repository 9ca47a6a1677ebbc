"""Turn the step before anything destructive into a bundle of the node's evidence, kept where a reset or reboot does not reach it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.remediation.executors.contract import Deadline, ExecutorError
from workbench.remediation.model import Action, FleetState, NodeState, Step

__all__ = ["Bundles", "Kept"]


@dataclass(frozen=True, slots=True)
class Kept:
    """What was kept: where, of how many sources, and what did not answer."""

    path: str
    answered: int
    silent: tuple[str, ...] = ()


class Bundles:
    """
    Collection of evidence as an executor.

    Parameters
    ----------
    folder : Path
        Where bundles are kept: ``ID.tar.zst``, or whatever `keep` makes.
    keep : callable
        ``keep(action, path, deadline) -> Kept`` collects the node's evidence into that path; it may be called again after a crash.
    node : callable, optional
        As of `workbench.remediation.executors.command.Commands`.
    """

    name = "bundles"
    verbs = frozenset({"collect"})

    def __init__(
        self,
        folder: Path,
        keep: Callable[[Action, Path, Deadline], Kept],
        *,
        node: Callable[[str, Deadline], NodeState | None] | None = None,
    ) -> None:
        self._folder, self._keep, self._node = folder, keep, node

    def fleet(self, deadline: Deadline) -> FleetState:
        """Bundles see no fleet: always an `ExecutorError`."""
        raise ExecutorError("bundles do not tell which nodes there are", hint="use a scheduler's executor", sent=False)

    def node(self, name: str, deadline: Deadline) -> NodeState | None:
        """Return what the scheduler's executor says of the node."""
        if self._node is None:
            return self.fleet(deadline).nodes.get(name)
        return self._node(name, deadline)

    def begin(self, action: Action, deadline: Deadline) -> Step:
        """Collect; that no source answered is a failure, since then nothing was kept before the node is changed for good."""
        if (step := self.look(action, deadline)).status == "done":
            return step
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            kept = self._keep(action, self._path(action), deadline)
        except OSError as error:
            raise ExecutorError(f"{self._folder} cannot be written: {error.strerror or error}", sent=False) from None
        silent = f"; nothing came from {', '.join(kept.silent)}" if kept.silent else ""
        if kept.answered == 0:
            return Step("failed", f"no source had evidence of {action.node}{silent}")
        return Step("done", f"kept in {kept.path}{silent}")

    def look(self, action: Action, deadline: Deadline) -> Step:
        """Tell whether the bundle is there, whole: it gets its name when it is."""
        path = self._path(action)
        if path.exists():
            return Step("done", f"kept in {path}")
        return Step("absent", "no evidence was kept yet")

    def undo(self, action: Action, before: Mapping[str, Any], deadline: Deadline) -> Step:
        """Evidence stays."""
        return Step("done", "the evidence stays")

    def _path(self, action: Action) -> Path:
        return self._folder / f"{action.node or 'site'}-{action.id}.tar.zst"
