"""Early warnings: in time, within their alert budget, and honest about what they could not see."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.fleet.warning_truth import GPUS, NODES, START, STEP, frame, measure, measures
from workbench.fleet.warnings import KINDS, early_warnings, rules
from workbench.frames import METRICS, check_frame, empty_frame

COLUMNS = 600


def gpus(values: np.ndarray, field: str) -> pd.DataFrame:
    """Return a small fleet's metrics."""
    return frame(field, values)


def still(level: float) -> np.ndarray:
    """Return a matrix of one value, a row a GPU."""
    return np.full((NODES * GPUS, COLUMNS), level)


def test_simulated_metrics_keep_the_contract_of_the_frame() -> None:
    """What is measured on them holds for what sources give."""
    check_frame(gpus(still(1.0), "DCGM_FI_DEV_GPU_TEMP"), METRICS)


@pytest.mark.parametrize("rule", ["corrected-burst", "thermal-gradient", "slow-rank"])
def test_a_fault_is_warned_of_before_it_strikes_and_healthy_machines_stay_within_the_budget(rule: str) -> None:
    """All rules are measured by the program; here one of each family: a counter, a drift, a comparison with the job's other ranks."""
    told = measure(rule, 1)
    budget = next(one.budget for one in rules() if one.id == rule)

    assert told["alarms"] <= budget * told["node_days"]
    assert told["lead"] > 30.0
    assert told["delay"] >= 0.0


def test_every_kind_of_rule_is_used_and_every_rule_has_a_budget() -> None:
    """A kind that no row uses is code that nobody tests."""
    assert {rule.kind for rule in rules()} == set(KINDS)
    assert all(0 < rule.budget < 1 for rule in rules())


def test_a_metric_that_nobody_collects_is_told() -> None:
    """No alarm without data is no good news."""
    nothing = early_warnings(empty_frame(METRICS))
    some = early_warnings(gpus(still(40.0), "DCGM_FI_DEV_GPU_TEMP")).coverage.set_index("rule")["status"]

    assert set(nothing.coverage["status"]) == {"no-data"}
    assert nothing.alarms.empty
    assert some["thermal-gradient"] == "ok"
    assert some["power-brake"] == "no-data"
    short = early_warnings(gpus(still(40.0)[:, :10], "DCGM_FI_DEV_GPU_TEMP")).coverage.set_index("rule")["status"]
    assert short["thermal-gradient"] == "too-short"


def test_a_counter_that_restarts_is_no_growth() -> None:
    """A reboot sets it to 0; what it shows again afterwards is old."""
    values = still(5000.0)
    values[3, 200:300] = 0.0

    assert early_warnings(gpus(values, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL")).alarms.empty


def test_flaps_too_short_for_an_alert_add_up() -> None:
    """One minute down three times in ten hours is 180 s; a port that never was active is not cabled."""
    values = still(4.0)
    values[5, [100, 250, 400]] = 1.0
    values[6, :] = 1.0

    alarms = early_warnings(gpus(values, "node_infiniband_state_id"), only=("port-down",)).alarms

    assert alarms["device"].tolist() == ["mlx5_5"]
    assert (alarms["time"].iloc[0].timestamp() - START) / STEP == pytest.approx(250, abs=1)


def test_a_width_is_compared_with_the_links_own_best() -> None:
    """8 lanes all along is what the machine is; 16 that become 8 are a fault."""
    values = still(8.0)
    values[9, :300], values[9, 300:] = 16.0, 8.0

    alarms = early_warnings(gpus(values, "DCGM_FI_DEV_PCIE_LINK_WIDTH"), only=("pcie-width",)).alarms

    assert alarms["gpu_index"].tolist() == [9 % GPUS]
    assert alarms["value"].iloc[0] == 0.5


def test_a_gpu_that_vanishes_is_told_from_an_exporter_that_does() -> None:
    """One series of a node ends; all of another node's do."""
    values = still(40.0)
    values[2, 300:] = np.nan
    values[GPUS : 2 * GPUS, 300:] = np.nan

    alarms = early_warnings(gpus(values, "DCGM_FI_DEV_GPU_TEMP"), only=("vanished",)).alarms

    assert alarms[["node", "gpu_index"]].values.tolist() == [["n00", 2]]


def test_a_power_cap_is_no_power_brake() -> None:
    """0x4 is ordinary at full load; 0x80 is not."""
    values = still(4.0)
    values[1, 100:140] = 0x80

    alarms = early_warnings(gpus(values, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")).alarms

    assert alarms["gpu_index"].tolist() == [1]


def test_a_rank_is_compared_with_its_own_job_only() -> None:
    """Half of the fleet runs a lighter job: no rank of it is slow; the one that lags behind its own job is."""
    values = still(1900.0)
    light = NODES // 2 * GPUS
    values[:light] = 1400.0
    values[light + 3, 200:] = 1400.0
    jobs = {f"n{number:02}": "light" if number < NODES // 2 else "heavy" for number in range(NODES)}

    alarms = early_warnings(gpus(values, "DCGM_FI_DEV_SM_CLOCK"), jobs=jobs).alarms

    assert alarms[["node", "gpu_index"]].values.tolist() == [[f"n{NODES // 2:02}", 3]]


def test_a_standing_alarm_is_told_once_a_stretch() -> None:
    """Hours of the same brake are one alarm; two of them a day apart are two."""
    values = still(4.0)
    values[1, 100:200] = 0x80
    values[1, 400:450] = 0x80

    alarms = early_warnings(gpus(values, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")).alarms

    assert len(alarms) == 2


def test_frames_of_several_folders_are_one_look() -> None:
    """Put together they lose their categories, as pandas does it; each fault is still found."""
    bits, width = still(4.0), still(16.0)
    bits[1, 100:140] = 0x80
    width[2, 300:] = 8.0

    both = pd.concat(
        [gpus(bits, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"), gpus(width, "DCGM_FI_DEV_PCIE_LINK_WIDTH")], ignore_index=True
    )

    assert sorted(early_warnings(both).alarms["rule"]) == ["pcie-width", "power-brake"]


def test_a_fault_that_smoulders_longer_is_warned_of_at_least_as_long_before() -> None:
    """The lead owes most to that time; the healthy fleet beside it is the same."""
    short, usual, long = measures("corrected-burst", 1, (0.125, 1.0, 1.5))

    assert usual == measure("corrected-burst", 1)
    assert [one["smoulder"] for one in (short, usual, long)] == [90.0, 720.0, 1080.0]
    assert short["alarms"] == long["alarms"]
    assert np.nan_to_num(short["lead"]) < usual["lead"] < long["lead"]
    assert all(one["delay"] < one["smoulder"] for one in (usual, long))
