"""Turn jobs whose times are seconds after one moment into segments of their time, and these into seconds of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from tests.fleet.account_frames import frame
from workbench.fleet.goodput import waterfall
from workbench.fleet.timeline import segments

T = 1_777_000_000  # whole seconds, so that what is told and what is counted are the same


def jobs(*rows: dict[str, Any]) -> pd.DataFrame:
    return frame("jobs", [{"job": "1", "state": "completed", "gpus": 8, "nodes": 1, **row} for row in rows])


def at(row: dict[str, Any]) -> dict[str, Any]:
    """Times given as seconds after T."""
    names = {"submitted", "queued", "started", "first_step", "ended", "detected", "diagnosed", "begin", "end"}
    return {name: T + value if name in names and value is not None else value for name, value in row.items()}


def account(
    job: dict[str, Any],
    attempts: list[dict[str, Any]],
    phases: Sequence[tuple[int, str, float, float]] = (),
    until: float = 10_000,
) -> pd.DataFrame:
    return segments(
        jobs(at(job)),
        frame("attempts", [at({"job": "1", **row}) for row in attempts]),
        frame(
            "phases", [at({"job": "1", "attempt": n, "kind": kind, "begin": begin, "end": end}) for n, kind, begin, end in phases]
        ),
        until=T + until,
    )


def seconds(cut: pd.DataFrame, **more: Any) -> dict[str, float]:
    (one,) = waterfall(cut, **more)
    return {kind: part / 1e6 for kind, part in one.parts.items() if part}


TWO = [
    {"attempt": 1, "queued": 0, "started": 10, "first_step": 20, "ended": 100, "detected": 105, "diagnosed": 110, "state": "failed", "step_first": 1, "step_last": 80, "step_saved": 60},
    {"attempt": 2, "queued": 120, "started": 130, "first_step": 140, "ended": 200, "state": "completed", "step_first": 61, "step_last": 120},
]  # fmt: skip
