"""Turn the step before anything destructive into a bundle of the node's evidence, kept where a reset or reboot does not reach it."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workbench.durable import write_whole
from workbench.errors import WorkbenchError
from workbench.remediation.executors.beside import Beside
from workbench.remediation.executors.contract import Deadline, ExecutorError, fence
from workbench.remediation.executors.places import place, there
from workbench.remediation.model import Action, NodeState, Step

__all__ = ["Bundles", "Kept"]


@dataclass(frozen=True, slots=True)
class Kept:
    """What was kept: where, of how many sources, and what did not answer."""

    path: str
    answered: int
    silent: tuple[str, ...] = ()


class Bundles(Beside):
    """
    Collection of evidence as an executor.

    Parameters
    ----------
    folder : Path
        Where bundles are kept: ``NODE-ID.tar.zst``, or whatever `keep` makes, and ``ID.json``, which says that it is whole.
    keep : callable
        ``keep(action, path, deadline) -> Kept`` collects the node's evidence into that path, or one that it names; it may be called again
        after a crash.
    node : callable, optional
        As of `workbench.remediation.executors.command.Commands`.
    """

    name = "bundles"
    what = "bundles"
    verbs = frozenset({"collect"})

    def __init__(
        self,
        folder: Path,
        keep: Callable[[Action, Path, Deadline], Kept],
        *,
        node: Callable[[str, Deadline], NodeState | None] | None = None,
    ) -> None:
        super().__init__(node)
        self._folder, self._keep = folder, keep
        with contextlib.suppress(OSError):  # whoever looks says so
            folder.mkdir(parents=True, exist_ok=True)

    def begin(self, action: Action, deadline: Deadline) -> Step:
        """Collect, unless it was; that no source answered is a failure, since then nothing was kept before the node is changed for good."""
        if (step := self.look(action, deadline)).status == "done":
            return step
        node = re.sub(r"[^A-Za-z0-9._-]", "_", action.node).lstrip(".-") or "site"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            fence(deadline)
            kept = self._keep(action, self._folder / f"{node[:80]}-{action.id}.tar.zst", deadline)
            if kept.answered == 0:
                return Step("failed", f"no source had evidence of {action.node}{_silent(kept)}")
            write_whole(place(self._folder, action.id, ".json"), asdict(kept))
        except OSError as error:
            raise ExecutorError(f"{self._folder} cannot be written: {error.strerror or error}", sent=False) from None
        except ExecutorError:
            raise
        except WorkbenchError as error:
            raise ExecutorError(
                f"the evidence of {action.node} could not be collected: {error}", sent=False, again=30.0
            ) from None
        return Step("done", f"kept in {kept.path}{_silent(kept)}")

    def look(self, action: Action, deadline: Deadline) -> Step:
        """Tell whether the bundle is there, whole: it is told of when it is."""
        if action.verb not in self.verbs:
            raise ExecutorError(f"bundles cannot do {action.verb!r}", sent=False)
        file = place(self._folder, action.id, ".json")
        if not there(self._folder, file):
            return Step("absent", "no evidence was kept yet")
        try:
            told = json.loads(file.read_text(encoding="utf-8"))
            kept = Kept(str(told["path"]), int(told["answered"]), tuple(told["silent"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ExecutorError(f"{file} cannot be read: {error}", sent=False) from None
        if not Path(kept.path).exists():
            return Step("absent", f"{kept.path} was kept and is not there any more")
        return Step("done", f"kept in {kept.path}{_silent(kept)}")

    def undo(self, action: Action, before: Mapping[str, Any], deadline: Deadline) -> Step:
        """Evidence stays."""
        return Step("done", "the evidence stays")


def _silent(kept: Kept) -> str:
    return f"; nothing came from {', '.join(kept.silent)}" if kept.silent else ""
