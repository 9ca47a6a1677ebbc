"""What an exporter prints once for each MIG instance is one value of the GPU under them: never a sum, never as many faults as instances."""

from __future__ import annotations

import numpy as np

from workbench.detect.grid import build_grid
from workbench.detect.metrics import detect_metrics
from workbench.model import Gpu, Series

TIMES = 1_760_000_000.0 + 30.0 * np.arange(40)
INSTANCES = ("1", "2", "7", "8", "9", "11", "12")


def rows(field: str, values: np.ndarray, gpu: int = 0) -> list[Series]:
    """A field as dcgm-exporter prints it with MIG on: the GPU's value once for each instance."""
    out = []
    for instance in INSTANCES:
        row = Series(f"DCGM_FI_DEV_{field}", TIMES, values, "n1", Gpu(gpu, f"GPU-{gpu}", f"0000:{19 + gpu}:00.0"))
        row.mig, row.file = instance, "metrics/n1.prom"
        row.labels = {"modelName": "NVIDIA H100 80GB HBM3"}
        out.append(row)
    return out


def test_a_value_of_the_device_is_one_row_with_that_value() -> None:
    power, memory = np.full(40, 412.0), np.full(40, 9000.0)
    grid = build_grid([*rows("POWER_USAGE", power), *rows("FB_USED", memory)])
    assert grid is not None
    table = grid.table("DCGM_FI_DEV_POWER_USAGE")
    assert table is not None
    assert len(table.rows) == 1
    assert np.nanmax(table.values) == 412.0
    assert grid.entities[table.rows[0]].mig is None
    # what an instance has for itself is its own
    used = grid.table("DCGM_FI_DEV_FB_USED")
    assert used is not None
    assert sorted(str(grid.entities[number].mig) for number in used.rows) == sorted(INSTANCES)


def test_one_error_of_the_device_is_one_event_of_the_parent() -> None:
    errors = np.where(np.arange(40) < 25, 0.0, 1.0)
    power = 400.0 + np.random.default_rng(7).normal(0, 4, 40)  # values that never move would be those of a dead exporter
    series = []
    for gpu in range(4):  # an error is one against the peers
        series += [*rows("ECC_DBE_VOL_TOTAL", errors if gpu == 0 else np.zeros(40), gpu), *rows("POWER_USAGE", power, gpu)]
    events = [event for event in detect_metrics(series) if "ecc" in event.signature]
    assert [(event.signature, event.count, event.data["growth"]) for event in events] == [("metric-ecc-dbe-increase", 1, 1)]
    assert events[0].gpu == Gpu(0, "GPU-0", "0000:19:00.0")
    assert events[0].data.get("mig") is None
