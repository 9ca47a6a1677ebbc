"""
Turn the folder of a failed attempt into a verdict, by programs of their own with a deadline: what goes wrong there costs the job nothing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.sources.command import Ran, run

__all__ = ["EVIDENCE", "TRIAGE", "checkpoint", "gather", "judge", "slow"]

EVIDENCE = 60.0  # seconds until collecting is given up
TRIAGE = 300.0  # and triage: ten gigabytes of logs take one minute on two cores
CHOICE = 120.0  # and the look at checkpoints
SLOW = 60.0  # and at the steps that ranks told
Runner = Callable[..., Ran]


def _program(module: str, *words: str) -> list[str]:
    return [sys.executable, "-m", module, *words]


def _env() -> dict[str, str]:
    """What our own programs need beside `workbench.sources.command`'s few variables: this very package, whatever the working folder."""
    here = str(Path(__file__).resolve().parents[2])
    kept = {
        name: value for name, value in os.environ.items() if name.startswith(("WORKBENCH_", "SLURM", "PYTHON", "VIRTUAL_ENV"))
    }
    # the mark of the job must not be theirs: they would be ended with it
    for name in ("WORKBENCH_RUN", "WORKBENCH_PROGRESS"):
        kept.pop(name, None)
    kept["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    return kept


def gather(about: Path, *, seconds: float = EVIDENCE, runner: Runner = run) -> list[dict[str, str]]:
    """Collect what is at hand into the attempt's folder; returns a row (source, status, detail) for each source, failures included."""
    ran = runner(_program("workbench.training.evidence", str(about), str(max(1.0, seconds - 10))), seconds=seconds, env=_env())
    try:
        rows = json.loads(ran.out)["answers"]
        return [{str(key): str(value) for key, value in row.items()} for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError):
        return [{"source": "collection", "status": "failed", "detail": f"the collection {ran.sentence}", "hint": ""}]


def judge(
    folder: Path, *, seconds: float = TRIAGE, runner: Runner = run, words: Sequence[str] = ()
) -> tuple[dict[str, Any] | None, str]:
    """
    Triage a folder.

    Returns
    -------
    tuple of (dict or None, str)
        The verdict (``workbench.verdict/1``), and why there is none. None is decided about as ``unknown``.
    """
    ran = runner(_program("workbench", "triage", str(folder), "-o", "json", "-q", *words), seconds=seconds, env=_env())
    try:
        verdict = json.loads(ran.out)
    except ValueError:
        return None, f"triage {ran.sentence}"
    if not isinstance(verdict, Mapping) or not str(verdict.get("schema", "")).startswith("workbench.verdict/"):
        return None, f"triage {ran.sentence}, and what it printed is no verdict"
    return dict(verdict), ""


def checkpoint(
    paths: Sequence[str | Path], *, world_size: int | None = None, seconds: float = CHOICE, runner: Runner = run
) -> tuple[dict[str, Any], str]:
    """
    Look for the newest checkpoint that can be restored; returns what `workbench.training.choosing.choose` found, and why nobody could look.
    """
    world = ["--world-size", str(world_size)] if world_size else []
    ran = runner(_program("workbench.training.choosing", *world, *map(str, paths)), seconds=seconds, env=_env())
    try:
        found = json.loads(ran.out)
        if isinstance(found, dict) and "chosen" in found:
            return found, ""
    except ValueError:
        pass
    return {"chosen": None, "passed": [], "seen": 0}, f"the look at the checkpoints {ran.sentence}"


def slow(folder: Path, *, seconds: float = SLOW, runner: Runner = run) -> dict[str, Any] | None:
    """Look a last time at the steps that the ranks of an ended attempt told; None when nobody could. See `workbench.training.pace.judged`."""
    ran = runner(_program("workbench.training.pace", str(folder), "--last"), seconds=seconds, env=_env())
    try:
        found = json.loads(ran.out)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("told"), list) else None
