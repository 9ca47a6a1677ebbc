"""Turn an incident folder into live sources that behave like servers: for tests of what is built on the workbench, and for trying it out."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from workbench.errors import SourceError
from workbench.sources.contract import Answer, Deadline, Folder, Reach, Scope

__all__ = ["FOLDERS", "FolderSource", "sources_from"]

# source → word of the coverage, and the files of an incident folder that such a server would have told
FOLDERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "kubernetes": ("kubernetes", ("nodes", "pods", "events", "owners", "kubernetes")),
    "slurm": ("slurm", ("slurm",)),
    "prometheus": ("metrics", ("metrics",)),
    "elasticsearch": ("job", ("logs",)),
    "node": ("kernel", ("kernel", "smi", "flight", "stacks")),
}


@dataclass
class FolderSource:
    """
    A live source that tells what an incident folder holds.

    Attributes
    ----------
    name : str
        One of `FOLDERS`.
    root : Path
        The incident folder.
    found : Scope, optional
        What `locate` answers; None: it does not know the job.
    error : SourceError, optional
        What every call ends with instead.
    delay : float
        Seconds before any answer, deadline or not.
    """

    name: str
    root: Path
    found: Scope | None = None
    error: SourceError | None = None
    delay: float = 0.0
    asked: list[Scope] = field(default_factory=list)

    def _serve(self) -> None:
        if self.delay:
            time.sleep(self.delay)
        if self.error is not None:
            raise self.error

    def locate(self, scope: Scope, deadline: Deadline) -> Scope | None:
        """Return `found` with the job's name."""
        self._serve()
        return replace(self.found, job=scope.job) if self.found is not None else None

    def collect(self, scope: Scope, folder: Folder, deadline: Deadline) -> list[Answer]:
        """Copy this source's files of the incident folder, those alone that are not there yet."""
        self.asked.append(scope)
        word, parts = FOLDERS[self.name]
        try:
            self._serve()
        except SourceError as error:
            return [Answer(word, "failed", str(error), error.hint)]
        answers = []
        for path in sorted(path for path in self.root.rglob("*") if path.is_file()):
            name = path.relative_to(self.root).as_posix()
            if name.split("/")[0].split(".")[0] not in parts:
                continue
            deadline.left()
            if not folder.has(name):
                folder.write(name, path.read_bytes())
            answers.append(Answer(word, "ok", name, file=name, rows=1))
        return answers or [Answer(word, "missing", f"{self.name} has nothing on {scope.job!r}")]

    def examine(self, deadline: Deadline) -> list[Reach]:
        """Return one line: there, or not."""
        try:
            self._serve()
        except SourceError as error:
            return [Reach(self.name, "reachability", "critical", str(error), error.hint)]
        return [Reach(self.name, "reachability", "ok", f"answers from {self.root.name}")]


def sources_from(root: str | Path) -> list[FolderSource]:
    """Return one source of each kind that an incident folder has files of."""
    root = Path(root)
    present = {path.name.split(".")[0] for path in root.iterdir()}
    return [FolderSource(name, root) for name, (_, parts) in FOLDERS.items() if present & set(parts)]
