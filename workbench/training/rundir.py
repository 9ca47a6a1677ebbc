"""
Turn a folder into the place where a run keeps everything: its attempts, what each printed, what was decided; one supervisor at a time.

    RUN/lock                     held by the supervisor that lives
    RUN/attempt-1/               what is known of one attempt: a folder that `workbench triage` takes
    RUN/attempt-1/logs/launcher.log    every byte that it printed …
    RUN/attempt-1.ended.log      … but for those after we began to end it, when it hung: no sign of what failed
    RUN/attempt-1.json           its command, times, end, and which evidence was to be had
    RUN/attempt-1.verdict.json   what `workbench triage` said
    RUN/attempts.jsonl  RUN/decisions.jsonl    the ledger of the run
    RUN/account.json             what its attempts spent their time on, for the fleet's ledger

Nothing is imported here that a job's start would have to wait for.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.errors import WorkbenchError

__all__ = ["RunBusy", "RunFolder", "default_folder"]

_ATTEMPT = re.compile(r"attempt-(\d+)$")


class RunBusy(WorkbenchError):
    """Another supervisor works in this folder."""

    exit_code = 75


def default_folder(env: Mapping[str, str]) -> Path:
    """
    Return where a run is kept when nobody says: ``workbench-runs/`` in the working folder, by Slurm's job (so that a requeued job goes on with
    its ledger) or by time.
    """
    base = Path("workbench-runs")
    if job := env.get("SLURM_ARRAY_JOB_ID"):
        return base / f"slurm-{job}_{env.get('SLURM_ARRAY_TASK_ID', '0')}"
    if job := env.get("SLURM_JOB_ID"):
        return base / f"slurm-{job}"
    return base / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


class RunFolder:
    """
    The folder of one run, locked.

    Attributes
    ----------
    path : Path
        Absolute.
    trouble : str
        Why it is not the folder that was asked for: that one could not be written, and a job starts all the same.

    Raises
    ------
    RunBusy
        Another supervisor holds it.
    """

    def __init__(self, path: Path) -> None:
        self.trouble = ""
        self._lock = -1
        try:
            self._take(path)
        except OSError as error:
            self.trouble = f"{path} cannot be used ({error.strerror or error})"
            import tempfile

            self._take(Path(tempfile.mkdtemp(prefix="workbench-run-")))

    def _take(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path.resolve()
        self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            self._lock = -1
            raise RunBusy(
                f"{path}: another `workbench run` works in this folder", hint="give another --run-dir, or wait for it to end"
            ) from None
        except OSError:  # a file system without locks: two supervisors in one folder are not noticed
            self.trouble = f"{path} is on a file system without locks"

    @property
    def mark(self) -> str:
        """The entry of the environment that all processes of its jobs have."""
        return f"WORKBENCH_RUN={self.path}"

    def numbers(self) -> list[int]:
        """Return the numbers of the attempts that were begun, in order."""
        return sorted(int(found[1]) for name in os.listdir(self.path) if (found := _ATTEMPT.match(name)))

    def attempt(self, number: int) -> Path:
        """Return the folder of an attempt, made."""
        folder = self.path / f"attempt-{number}"
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        return folder

    def write(self, name: str, value: Any) -> bool:
        """Write a value as JSON, whole or not at all; False when the disk does not take it, which must cost the job nothing."""
        import json

        from workbench.durable import write_bytes

        try:
            write_bytes(self.path / name, json.dumps(value, indent=1, ensure_ascii=True).encode() + b"\n")
        except OSError:
            return False
        return True

    def read(self, name: str) -> Any:
        """Return what `write` wrote; None when it is not there or cannot be read."""
        import json

        try:
            return json.loads((self.path / name).read_bytes())
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """Let another supervisor have it."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
