"""
Turn a seed into metrics of healthy and failing machines with known onset, and warnings into lead time and alarms per node-day.

Run as a program it prints the tables of docs/early-warnings.md: ``python tests/fleet/warning_truth.py [SEEDS]`` and, for how much the lead
depends on how long a fault smoulders, ``… SEEDS --smoulder``.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pandas as pd

from workbench.fleet.warnings import early_warnings, rules

STEP, DAY = 60.0, 1440  # seconds a scrape; scrapes a day
NODES, GPUS, DAYS = 8, 8, 3
START = 1_767_225_600.0
# how long each fault smoulders before the job dies of it, in hours; begins after a day and a half
SMOULDER = {
    "remap-growth": 24.0,
    "corrected-burst": 12.0,
    "pcie-replay": 6.0,
    "pcie-width": 12.0,
    "port-down": 12.0,
    "port-symbols": 6.0,
    "thermal-gradient": 24.0,
    "power-brake": 2.0,
    "vanished": 1.0,
    "frozen": 6.0,
    "slow-rank": 6.0,
    "idle-rank": 2.0,
}
# of the hours above, for the question how much the lead owes to them; no more than the day and a half that are left
FACTORS = (0.125, 0.25, 0.5, 1.0, 1.5)
ONSET = int(1.5 * DAY)


def load(random: Any) -> Any:
    """Return what share of its power the job asks for at each scrape: it computes, pauses for checkpoints and evaluations, ends and begins."""
    columns = DAYS * DAY
    work = np.full(columns, 0.9)
    at = 0
    while at < columns:
        at += int(random.uniform(120, 400))
        work[at : at + int(random.uniform(1, 8))] = random.uniform(0.2, 0.5)
    for begin in random.integers(0, columns, 4):
        work[begin : begin + int(random.uniform(5, 60))] = 0.1
    return work


def healthy(rule: str, random: Any) -> tuple[str, Any]:
    """Return a field and its healthy values, rows by node then GPU (one port a node for ports)."""
    columns = DAYS * DAY
    gpus = NODES * GPUS
    work = load(random)
    jitter = random.normal(0.0, 0.01, (gpus, columns))
    power = (
        75.0
        + 600.0 * np.clip(work + jitter, 0.0, 1.0) * random.normal(1.0, 0.015, (gpus, 1))
        + random.normal(0, 2.0, (gpus, columns))
    )
    if rule in ("frozen", "idle-rank"):
        return "DCGM_FI_DEV_POWER_USAGE", np.round(power, 3)
    if rule == "slow-rank":
        # boost wanders by some percent under a power cap; every rank slows at a pause
        clock = 1980.0 - 120.0 * random.random((gpus, 1)) * work + random.normal(0, 15.0, (gpus, columns))
        return "DCGM_FI_DEV_SM_CLOCK", np.round(np.clip(clock, 345, 1980) / 15) * 15
    if rule in ("thermal-gradient", "vanished"):
        day = 2.0 * np.sin(2 * np.pi * np.arange(columns) / DAY)
        smooth = np.cumsum(random.normal(0, 0.02, (gpus, columns)), axis=1)
        smooth -= np.linspace(0, 1, columns) * smooth[:, -1:]
        slot = np.tile(random.normal(0, 3.0, GPUS), NODES)[:, None]
        return "DCGM_FI_DEV_GPU_TEMP", np.round(
            32.0 + 0.05 * power + day + slot + smooth + random.normal(0, 0.7, (gpus, columns))
        )
    if rule == "remap-growth":
        # most GPUs never remap; about one in three hundred GPU-years-by-day does: 2 rows in 100 GPU-years is generous
        return "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", np.cumsum(
            random.random((gpus, columns)) < 1e-3 / DAY, axis=1
        ) + random.poisson(0.1, (gpus, 1))
    if rule == "corrected-burst":
        # a few a day on the worst, none on most; now and then a handful at once
        rate = random.gamma(0.2, 5.0, (gpus, 1)) / DAY
        burst = (random.random((gpus, columns)) < 0.05 / DAY) * random.poisson(15, (gpus, columns))
        return "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", np.cumsum(random.poisson(rate, (gpus, columns)) + burst, axis=1)
    if rule == "pcie-replay":
        retrain = (random.random((gpus, columns)) < 0.02 / DAY) * random.poisson(20, (gpus, columns))
        return "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", np.cumsum(random.poisson(0.5 / DAY, (gpus, columns)) + retrain, axis=1)
    if rule == "pcie-width":
        return "DCGM_FI_DEV_PCIE_LINK_WIDTH", np.full((gpus, columns), 16.0)
    if rule == "power-brake":
        # the software power cap (0x4) at full load, idle (0x1), now and then heat by software (0x20); a brake for one scrape is seen, too
        bits = np.where(work > 0.8, 4, 1) * np.ones((gpus, 1))
        bits = np.where(random.random((gpus, columns)) < 1e-4, 0x20, bits)
        return "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", np.where(random.random((gpus, columns)) < 0.002 / DAY, 0x80, bits).astype(
            float
        )
    if rule == "port-down":
        state = np.full((gpus, columns), 4.0)
        for row in range(gpus):  # a flap of seconds every few days, seen by one scrape
            state[row, random.random(columns) < 0.1 / DAY] = 1.0
        return "node_infiniband_state_id", state
    if rule == "port-symbols":
        return "node_infiniband_symbol_error_total", np.cumsum(
            random.poisson(random.gamma(0.5, 20.0, (gpus, 1)), (gpus, columns)), axis=1
        )
    raise ValueError(rule)


def spoil(rule: str, values: Any, row: int, onset: int, fails: int, random: Any) -> Any:
    """Make one GPU or port fail slowly from `onset` on; returns the rows that show it."""
    span = np.arange(fails - onset)
    grow = (span + 1) / len(span)
    part = values[row, onset:]
    if rule == "remap-growth":
        part[: len(span)] += np.floor(6 * grow)
    elif rule == "corrected-burst":
        values[row, onset:fails] += np.cumsum(random.poisson(40.0 * grow))
    elif rule == "pcie-replay":
        values[row, onset:fails] += np.cumsum(random.poisson(60.0 * grow))
    elif rule == "pcie-width":
        part[:] = 8.0
    elif rule == "port-down":
        part[: len(span)][random.random(len(span)) < 0.03 * grow] = 1.0
    elif rule == "port-symbols":
        values[row, onset:fails] += np.cumsum(random.poisson(6000.0 * grow))
    elif rule == "thermal-gradient":
        part[: len(span)] = np.round(part[: len(span)] + 18.0 * grow)
    elif rule == "power-brake":
        part[: len(span)][random.random(len(span)) < 0.8] = 128.0
    elif rule == "vanished":
        part[:] = np.nan
    elif rule == "frozen":
        first = row - row % GPUS
        values[first : first + GPUS, onset:] = values[first : first + GPUS, onset : onset + 1]
    elif rule == "slow-rank":
        part[: len(span)] = np.round(part[: len(span)] * (1.0 - 0.35 * grow) / 15) * 15
    elif rule == "idle-rank":
        part[:] = np.round(110.0 + random.normal(0, 2.0, len(part)), 3)
    return values


def frame(field: str, values: Any) -> pd.DataFrame:
    """Return the matrix as a metrics frame; one scrape in a thousand is lost."""
    rows, columns = values.shape
    column = np.tile(np.arange(columns), rows)
    row = np.repeat(np.arange(rows), columns)
    flat = values.reshape(-1)
    keep = np.isfinite(flat) & (np.random.default_rng(rows * columns).random(len(flat)) > 1e-3)
    row, column, flat = row[keep], column[keep], flat[keep]
    names = [f"n{number:02}" for number in range(NODES)]
    port = field.startswith("node_")
    out = pd.DataFrame(
        {
            "time": pd.to_datetime(((START + column * STEP) * 1e6).astype("int64"), unit="us", utc=True),
            "field": pd.Categorical([field] * len(flat)),
            "value": flat.astype(float),
            "node": pd.Categorical.from_codes(row // GPUS, names),
            "gpu_index": pd.array([pd.NA] * len(flat) if port else row % GPUS, dtype="Int64"),
            "device": pd.Categorical.from_codes(row % GPUS, [f"mlx5_{number}" for number in range(GPUS)])
            if port
            else pd.Categorical([None] * len(flat)),
        }
    )
    for name in ("gpu_uuid", "pci", "mig", "pod", "namespace", "file"):
        out[name] = pd.Categorical([None] * len(flat))
    return out


def measure(rule: str, seed: int) -> dict[str, float]:
    """Return alarms per node-day on a healthy fleet, and for one failing GPU how long after onset and before the failure it warns."""
    (told,) = measures(rule, seed, (1.0,))
    return told


def measures(rule: str, seed: int, factors: tuple[float, ...]) -> list[dict[str, float]]:
    """Return what `measure` does for each factor of the time that the fault smoulders, all on the same healthy fleet and the same GPU."""
    random = np.random.default_rng([seed, sorted(SMOULDER).index(rule)])
    field, values = healthy(rule, random)
    told = early_warnings(frame(field, values), only=(rule,)).coverage
    row = int(random.integers(0, NODES * GPUS))
    state = random.bit_generator.state
    found = []
    for factor in factors:
        random.bit_generator.state = state
        fails = ONSET + min(max(1, int(SMOULDER[rule] * factor * 60)), DAYS * DAY - ONSET)
        sick = early_warnings(frame(field, spoil(rule, values.astype(float), row, ONSET, fails, random)), only=(rule,)).alarms
        mine = sick[sick["node"] == f"n{row // GPUS:02}"]
        if rule != "frozen":
            mine = mine[
                (mine["device"].astype("string") == f"mlx5_{row % GPUS}") | (mine["gpu_index"] == row % GPUS).fillna(False)
            ]
        seconds = mine["time"].astype("int64").to_numpy() / 1e6 - START
        after = seconds[seconds >= ONSET * STEP]
        first = float(after.min()) if len(after) else np.inf
        found.append(
            {
                "alarms": float(told["alarms"].iloc[0]),
                "node_days": float(told["node_days"].iloc[0]),
                "smoulder": float(fails - ONSET),
                "delay": first / 60.0 - ONSET,
                "lead": (fails * STEP - first) / 60.0 if first <= fails * STEP else np.nan,
            }
        )
    return found


def sensitivity(seeds: int) -> None:
    """Print one row a rule: how many faults were warned of, and how long before, by how long they smouldered; and the healthy fleet's alarms."""
    from workbench.fleet.intervals import poisson

    print("| warning | " + " | ".join(f"× {factor:g}" for factor in FACTORS) + " | alarms per node-day, healthy (95 %) |")
    print("|---|" + "---|" * (len(FACTORS) + 1))
    for rule in rules():
        rows = [measures(rule.id, seed, FACTORS) for seed in range(seeds)]
        cells = []
        for at in range(len(FACTORS)):
            lead = np.array([row[at]["lead"] for row in rows])
            good = np.isfinite(lead)
            ahead = f", {np.median(lead[good]):.0f} min" if good.any() else ""
            minutes = rows[0][at]["smoulder"]
            cells.append(f"{f'{minutes / 60:g} h' if minutes >= 60 else f'{minutes:g} min'}: {good.sum()} of {seeds}{ahead}")
        days = sum(row[0]["node_days"] for row in rows)
        count = sum(row[0]["alarms"] for row in rows)
        low, high = poisson(count, days)
        print(f"| {rule.id} | " + " | ".join(cells) + f" | {count / days:.4f} ({low:.4f} to {high:.4f}) |", flush=True)


def main(seeds: int) -> None:
    """Print one row a rule."""
    print(
        "| warning | alarms per node-day, healthy | budget | faults warned of before the failure | after the onset, median | before the failure, median |"
    )
    print("|---|---|---|---|---|---|")
    for rule in rules():
        rows = [measure(rule.id, seed) for seed in range(seeds)]
        alarms = sum(row["alarms"] for row in rows) / sum(row["node_days"] for row in rows)
        lead = np.array([row["lead"] for row in rows])
        good = np.isfinite(lead)
        delay = np.median([row["delay"] for row in rows])
        ahead = f"{np.median(lead[good]):.0f} min" if good.any() else "none"
        print(f"| {rule.id} | {alarms:.4f} | {rule.budget:g} | {good.sum()} of {seeds} | {delay:.0f} min | {ahead} |", flush=True)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    (sensitivity if "--smoulder" in sys.argv else main)(int(words[0]) if words else 10)
