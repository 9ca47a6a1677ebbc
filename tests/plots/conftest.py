"""Turn a number of ranks into an invented job as plots are given it: activity, placement, events, metrics, a fleet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from workbench import frames
from workbench.casefile.model import RANKS, STATES, Activity
from workbench.model import Gpu, Series

START = 1_777_892_400.0  # 2026-05-04T11:00:00Z


def frame(contract: dict[str, str], rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Return rows as a frame that fulfils a contract; what a row does not say is missing. Times are seconds since the epoch."""
    made = pd.DataFrame({name: [row.get(name) for row in rows] for name in contract}, dtype=object)
    for name, dtype in contract.items():
        if dtype == frames.UTC:
            made[name] = pd.to_datetime(pd.to_numeric(made[name]), unit="s", utc=True).dt.as_unit("us")
        else:
            made[name] = made[name].astype(dtype)
    return made


@pytest.fixture
def job() -> Callable[..., tuple[Activity, pd.DataFrame, int]]:
    """Make a job of n ranks, eight to a node, in which one rank is the culprit for one piece of time: activity, ranks, that rank."""

    def make(count: int, pieces: int = 240) -> tuple[Activity, pd.DataFrame, int]:
        dead = count // 3
        states = np.full((count, pieces), STATES.index("running"), "uint8")
        states[dead, pieces // 2] = STATES.index("culprit")
        steps = np.tile(np.arange(pieces, dtype="float32") * 2, (count, 1))
        steps[dead, pieces // 2 :] = steps[dead, pieces // 2]
        steps[:, 0] = np.nan
        activity = Activity(np.arange(count), START + np.arange(pieces + 1) * 30.0, states, steps)
        rows = [
            {"rank": r, "node": f"gpu-node-{r // 8:04d}", "gpu_index": r % 8, "local_rank": r % 8, "state": "victim"}
            for r in range(count)
        ]
        rows[dead]["state"] = "culprit"
        return activity, frame(RANKS, rows), dead

    return make


@pytest.fixture
def events() -> Callable[[list[dict[str, Any]]], pd.DataFrame]:
    """Make the events of a case file from rows with what matters; seconds count from START."""

    def make(rows: list[dict[str, Any]]) -> pd.DataFrame:
        full = []
        for row in rows:
            time = None if row.get("time", 0.0) is None else START + row.get("time", 0.0)
            last = START + row["last"] if "last" in row else time
            full.append(
                {
                    "role": "context",
                    "lane": "other",
                    "count": 1,
                    "signature": "xid-79",
                    "text": "a line",
                    **row,
                    "time": time,
                    "last": last,
                }
            )
        return frame({**frames.EVENTS, "lane": "string", "evidence": "Int64"}, full)

    return make


@pytest.fixture
def metrics() -> Callable[..., pd.DataFrame]:
    """Make metrics of nodes × 8 GPUs at 30 s; `gap` leaves samples out of node 1, GPU 3."""

    def make(
        nodes: int = 2, samples: int = 100, fields: tuple[str, ...] = ("DCGM_FI_DEV_GPU_TEMP",), gap: slice | None = None
    ) -> pd.DataFrame:
        series = []
        for field in fields:
            for node in range(nodes):
                for gpu in range(8):
                    kept = np.ones(samples, bool)
                    if (node, gpu) == (1, 3) and gap is not None:
                        kept[gap] = False
                    times = START + np.arange(samples) * 30.0
                    values = 60.0 + gpu + np.arange(samples) % 3
                    name = f"gpu-node-{node:04d}"
                    series.append(
                        Series(
                            field, times[kept], values[kept], node=name, gpu=Gpu(gpu, f"GPU-{node}-{gpu}", f"0000:{gpu:02x}:00.0")
                        )
                    )
        return frames.metrics_frame(series)

    return make


@pytest.fixture
def fleet() -> Callable[[int, dict[tuple[int, int], str]], pd.DataFrame]:
    """Make a fleet of n nodes × 8 GPUs that are ok, but for those given by (node, gpu)."""
    from workbench.site.model import GPUS

    def make(nodes: int, other: dict[tuple[int, int], str]) -> pd.DataFrame:
        made = pd.DataFrame({name: pd.Series([None] * (nodes * 8), dtype=object) for name in GPUS})
        number = np.arange(nodes * 8)
        made["node"] = [f"gpu-node-{one:04d}" for one in number // 8]
        made["gpu_index"] = number % 8
        made["health"] = "ok"
        for (node, gpu), word in other.items():
            made.loc[node * 8 + gpu, "health"] = word
            made.loc[node * 8 + gpu, "why"] = f"{word} for a reason"
        return made.astype(GPUS)

    return make
