"""Turn an executor that keeps files (commands, reports, bundles) and a scheduler in memory into a world for the conformance suite."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.remediation.memory import MemoryWorld
from workbench.model import Gpu
from workbench.remediation.executors.combined import Combined
from workbench.remediation.executors.contract import Executor
from workbench.remediation.model import Action, NodeState

__all__ = ["KeptWorld"]


class KeptWorld:
    """What all of them share: a folder that can go away, and nodes that another machine can take the place of."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.scheduler = folder, MemoryWorld()
        self._count = itertools.count(1)
        self.executor = self.again()

    def make(self) -> Executor:
        """Return the executor that is tried."""
        raise NotImplementedError

    def again(self) -> Combined:
        return Combined(self.scheduler.executor, self.make())

    def action(self, verb: str) -> Action:
        name = f"node-{next(self._count)}"
        self.scheduler.nodes[name] = NodeState(name, uid=f"uid-{name}", boot="boot-1")
        gpu = Gpu(index=3, uuid="GPU-5f3c9a1e-0000-4000-8000-000000000003", pci="00000000:5D:00.0")
        why = "GPU 3: uncorrectable memory errors"
        expects = {"uid": f"uid-{name}", "boot": "boot-1"}
        return Action(f"act-{name}", verb, "reset-gpu", name, name, gpu, why, args={"reason": why}, expects=expects)

    def writes(self) -> int:
        raise NotImplementedError

    def shape(self, action: Action) -> Any:
        return sorted(file.name for file in self.folder.rglob("*") if action.id in str(file)) if self.folder.is_dir() else []

    def settle(self, action: Action) -> None:
        pass

    def foreign(self, action: Action) -> None:
        node = self.scheduler.nodes[action.node]
        self.scheduler.nodes[action.node] = replace(node, schedulable=False, owner="bob", reason="dimm 3")

    def differ(self, action: Action) -> None:
        self.scheduler.nodes[action.node] = replace(self.scheduler.nodes[action.node], uid="another")

    def meddle(self, action: Action) -> None:
        raise NotImplementedError

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        """The folder's file server is away, and so is the scheduler."""
        aside = self.folder.with_name("aside")
        self.folder.rename(aside)
        self.folder.write_text("no folder")
        self.scheduler.silent = True
        try:
            yield
        finally:
            self.scheduler.silent = False
            self.folder.unlink()
            shutil.move(aside, self.folder)

    @contextmanager
    def answer_lost(self) -> Iterator[None]:
        yield
