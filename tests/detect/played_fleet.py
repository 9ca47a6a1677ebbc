"""Turn changes to single fields into the metrics of a small fleet: three nodes of a job, one outside it, an hour of scrapes."""

from __future__ import annotations

import numpy as np

from workbench.catalog import signatures
from workbench.detect.metrics import detect_metrics
from workbench.model import Gpu, Series

START, STEP, SCRAPES = 1_760_000_000.0, 30.0, 60
FAIL = 45  # the scrape at which the run stops


class Fleet:
    """Three job nodes of four busy GPUs, one idle node outside the job; fields are changed before `events` is asked for."""

    def __init__(self, labelled: bool = True) -> None:
        rng = np.random.default_rng(7)
        self.labelled = labelled
        self.times = START + STEP * np.arange(SCRAPES)
        self.fields: dict[tuple[str, int, str], np.ndarray] = {}
        self.hosts: dict[tuple[str, str, str], np.ndarray] = {}
        for node in ("n1", "n2", "n3", "out"):
            job = node != "out"
            for gpu in range(4):
                work = np.arange(SCRAPES) < (FAIL if job else 0)
                power = np.where(work, 650.0, 70.0) + rng.normal(0, 4, SCRAPES)
                values = {
                    "GPU_UTIL": np.where(work, 99.0, 0.0),
                    "POWER_USAGE": power,
                    "SM_CLOCK": np.where(work, 1950.0, 345.0),
                    "GPU_TEMP": np.where(work, 60.0, 35.0) + rng.integers(0, 2, SCRAPES),
                    "FB_USED": np.where(work, 70000.0, 0.0),
                    "FB_FREE": np.where(work, 11000.0, 81000.0),
                    "XID_ERRORS": np.zeros(SCRAPES),
                    "PCIE_REPLAY_COUNTER": np.zeros(SCRAPES),
                    "PCIE_LINK_WIDTH": np.full(SCRAPES, 16.0),
                    "ECC_DBE_VOL_TOTAL": np.zeros(SCRAPES),
                    "ECC_SBE_VOL_TOTAL": np.zeros(SCRAPES),
                    "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": np.zeros(SCRAPES),
                    "CLOCK_THROTTLE_REASONS": np.where(work, 4.0, 1.0),
                    "MEM_COPY_UTIL": np.where(work, 50.0, 0.0),
                }
                for name, row in values.items():
                    self.fields[node, gpu, name] = row
            for port in ("mlx5_0", "mlx5_1"):
                self.hosts[node, port, "node_infiniband_rate_bytes_per_second"] = np.full(SCRAPES, 5e10)
                self.hosts[node, port, "node_infiniband_symbol_error_total"] = np.full(SCRAPES, 17.0)
                self.hosts[node, port, "node_infiniband_link_downed_total"] = np.full(SCRAPES, 1.0)
            self.hosts[node, "", "node_boot_time_seconds"] = np.full(SCRAPES, 1.75e9)
            self.hosts[node, "", "node_memory_MemAvailable_bytes"] = np.full(SCRAPES, 1e12)
            self.hosts[node, "", "node_vmstat_oom_kill"] = np.full(SCRAPES, 2.0)

    def set(self, node: str, gpu: int, name: str, value: float, since: int, until: int = SCRAPES) -> None:
        self.fields[node, gpu, name][since:until] = value

    def all(self, name: str, value: float, since: int, until: int) -> None:
        for (node, _, field), row in self.fields.items():
            if node != "out" and field == name:
                row[since:until] = value

    def series(self) -> list[Series]:
        rows = []
        for (node, gpu, name), values in self.fields.items():
            identity = Gpu(gpu, f"GPU-{node}-{gpu}", f"0000:{16 + gpu:02x}:00.0")
            for begin, end, pod in ((0, FAIL, f"train-worker-{node[-1]}"), (FAIL, SCRAPES, None)):
                held = pod if self.labelled and node != "out" else None
                part = slice(begin, end)
                known = np.isfinite(values[part])
                if known.any():
                    row = Series(f"DCGM_FI_DEV_{name}", self.times[part][known], values[part][known], node, identity)
                    row.pod, row.namespace, row.file = held, "ml" if held else None, f"metrics/{node}.prom"
                    row.labels = {"modelName": "NVIDIA H100 80GB HBM3"}
                    rows.append(row)
        for (node, device, name), values in self.hosts.items():
            known = np.isfinite(values)
            if known.any():
                rows.append(
                    Series(name, self.times[known], values[known], node, device=device or None, file=f"metrics/{node}.prom")
                )
        return rows

    def events(self):
        return detect_metrics(self.series())

    def one(self, signature: str):
        found = [event for event in self.events() if event.signature == signature]
        assert len(found) == 1, [(event.signature, event.node, event.gpu) for event in found]
        return found[0]


def role(event) -> str:
    return event.role or signatures()[event.signature].role


def column(event) -> float:
    return (event.time - START) / STEP
