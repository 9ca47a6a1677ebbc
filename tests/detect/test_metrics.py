"""Metrics become events at their onset; history, peers' common changes and other people's GPUs do not become causes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from workbench.catalog import signatures
from workbench.detect.metrics import detect_metrics
from workbench.model import Gpu, Series
from workbench.parse.prom_text import parse_exposition

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


@pytest.fixture
def fleet():
    return Fleet()


def test_a_healthy_run_that_ends_is_one_symptom(fleet):
    """All GPUs go idle at once: the end of the run, and nothing else."""
    events = fleet.events()
    assert [event.signature for event in events] == ["metric-activity-end"]
    assert role(events[0]) == "symptom"
    assert events[0].count == 12
    assert column(events[0]) == FAIL


def test_a_changed_xid_gauge_is_an_event_with_its_code(fleet):
    """The gauge keeps the last code: the change is what happened."""
    fleet.set("n2", 1, "XID_ERRORS", 79, 44)
    event = fleet.one("metric-xid-change")
    assert (event.code, event.node, event.gpu.index, column(event)) == (79, "n2", 1, 44)
    assert role(event) == "cause"


def test_a_constant_xid_gauge_is_history(fleet):
    """Decoy: a value that stood before the window began."""
    fleet.set("n2", 1, "XID_ERRORS", 79, 0)
    event = fleet.one("metric-xid-standing")
    assert role(event) == "context"
    assert all(event.signature != "metric-xid-change" for event in fleet.events())


def test_xid_63_alone_blames_nothing(fleet):
    """A recorded row remap is no failure."""
    fleet.set("n2", 1, "XID_ERRORS", 63, 44)
    assert role(fleet.one("metric-xid-change")) == "context"


def test_an_uncorrectable_ecc_count_that_grows_is_a_cause(fleet):
    """One is enough."""
    fleet.set("n1", 2, "ECC_DBE_VOL_TOTAL", 1, 44)
    event = fleet.one("metric-ecc-dbe-increase")
    assert role(event) == "cause"
    assert (event.gpu.index, column(event), event.data["before"], event.data["after"]) == (2, 44, 0, 1)


def test_a_constant_ecc_count_is_history(fleet):
    """Aggregate counts are a lifetime's."""
    fleet.set("n1", 2, "ECC_DBE_VOL_TOTAL", 3, 0)
    assert [event.signature for event in fleet.events()] == ["metric-activity-end"]


def test_corrected_errors_in_numbers_are_a_trend(fleet):
    """Context: they often precede, but do not end a job."""
    fleet.fields["n1", 2, "ECC_SBE_VOL_TOTAL"][20:] = np.minimum(np.arange(40) * 25.0, 600)
    event = fleet.one("metric-ecc-sbe-rate")
    assert role(event) == "context"
    assert column(event) == 21


def test_replays_that_grow_on_one_gpu_are_a_cause_and_an_old_count_is_not(fleet):
    """Decoy beside it: a high count that stands still."""
    fleet.set("n3", 0, "PCIE_REPLAY_COUNTER", 5000, 0)
    fleet.fields["n1", 1, "PCIE_REPLAY_COUNTER"][25:45] = np.arange(1, 21) * 80.0
    fleet.fields["n1", 1, "PCIE_REPLAY_COUNTER"][45:] = 1600
    event = fleet.one("metric-pcie-replay-growth")
    assert (event.node, event.gpu.index, column(event)) == ("n1", 1, 25)
    assert event.data["rate_per_minute"] > 100


def test_a_link_that_narrows_under_load_is_a_cause(fleet):
    """x16 to x4 while the GPU works."""
    fleet.set("n1", 1, "PCIE_LINK_WIDTH", 4, 30)
    event = fleet.one("metric-pcie-link-degraded")
    assert (role(event), column(event), event.data["before"], event.data["after"]) == ("cause", 30, 16, 4)


def test_a_link_that_rests_at_idle_is_no_fault(fleet):
    """Links lower their speed when nothing uses them."""
    for gpu in range(4):
        fleet.set("n1", gpu, "PCIE_LINK_WIDTH", 8, FAIL)
    assert all(event.signature != "metric-pcie-link-degraded" for event in fleet.events())


def test_nvlink_errors_of_one_gpu_stand_out(fleet):
    """Growth of minutes before the fault."""
    fleet.fields["n2", 0, "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL"][30:] = np.arange(30) * 12.0
    event = fleet.one("metric-nvlink-errors-growth")
    assert (event.node, event.gpu.index, column(event)) == ("n2", 0, 31)


def test_link_xids_on_several_gpus_in_one_scrape_blame_only_the_one_whose_link_was_worn(fleet):
    """Both ends of a link report; a gauge read every 30 s cannot say who was first."""
    for gpu in (0, 2, 3):
        fleet.set("n2", gpu, "XID_ERRORS", 74, 44)
    assert {role(event) for event in fleet.events() if event.signature == "metric-xid-change"} == {"context"}
    fleet.fields["n2", 2, "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL"][30:] = np.arange(30) * 12.0
    found = {event.gpu.index: role(event) for event in fleet.events() if event.signature == "metric-xid-change"}
    assert found == {0: "context", 2: "cause", 3: "context"}


def test_a_link_xid_on_one_gpu_alone_is_a_cause(fleet):
    """Nothing to share it with."""
    fleet.set("n2", 0, "XID_ERRORS", 74, 44)
    assert role(fleet.one("metric-xid-change")) == "cause"


def test_nvlink_errors_of_all_gpus_are_the_workload(fleet):
    """What everybody has is nobody's fault."""
    for (_, _, name), row in fleet.fields.items():
        if name.startswith("NVLINK"):
            row[:] = np.arange(SCRAPES) * 12.0
    assert all(event.signature != "metric-nvlink-errors-growth" for event in fleet.events())


def overheat(fleet, node, gpu, clock, since=30, until=FAIL):
    fleet.fields[node, gpu, "GPU_TEMP"][since:until] = 92
    fleet.fields[node, gpu, "SM_CLOCK"][since:until] = clock
    fleet.fields[node, gpu, "CLOCK_THROTTLE_REASONS"][since:until] = 72


def test_a_gpu_that_heats_up_and_falls_to_a_quarter_is_a_cause(fleet):
    """Heat, clocks and the driver's own reason agree."""
    overheat(fleet, "n2", 3, 500)
    event = fleet.one("metric-thermal")
    assert (role(event), event.node, event.gpu.index, column(event)) == ("cause", "n2", 3, 30)
    assert event.data["ratio"] == pytest.approx(500 / 1950, abs=0.01)


def test_mild_throttling_is_context(fleet):
    """A tenth slower ends no job."""
    overheat(fleet, "n2", 3, 1750)
    assert role(fleet.one("metric-thermal")) == "context"


def test_heat_at_full_clocks_is_nothing(fleet):
    """Decoy: hot, but not slower."""
    for gpu in range(4):
        fleet.fields["n3", gpu, "GPU_TEMP"][:FAIL] = 85
    assert [event.signature for event in fleet.events()] == ["metric-activity-end"]


def test_throttling_outside_the_job_is_context(fleet):
    """Decoy: another node's GPU, which no label gives to the job."""
    fleet.fields["out", 1, "GPU_UTIL"][:] = 99
    fleet.fields["out", 1, "SM_CLOCK"][:] = 1950
    overheat(fleet, "out", 1, 500, 10, SCRAPES)
    event = fleet.one("metric-thermal")
    assert role(event) == "context"
    assert event.data["in_job"] is False


def test_the_power_brake_speaks_of_the_node(fleet):
    """0x80 on all GPUs of a server is its power supply."""
    for gpu in range(4):
        fleet.set("n1", gpu, "CLOCK_THROTTLE_REASONS", 128 + 4, 35, FAIL)
        fleet.set("n1", gpu, "SM_CLOCK", 900, 35, FAIL)
    event = fleet.one("metric-power-brake")
    assert (role(event), event.node, event.gpu, event.data["gpus"]) == ("cause", "n1", None, 4)


def test_a_node_that_slows_down_as_a_whole_without_heat_is_braked(fleet):
    """Default exporters have no clock reasons: all GPUs of a server at once is its power."""
    for key in [key for key in fleet.fields if key[2] == "CLOCK_THROTTLE_REASONS"]:
        del fleet.fields[key]
    for gpu in range(4):
        fleet.set("n1", gpu, "SM_CLOCK", 600, 35, FAIL)
    event = fleet.one("metric-power-brake")
    assert (role(event), event.node, event.gpu, column(event)) == ("cause", "n1", None, 35)


def test_one_gpu_that_slows_down_without_any_reason_is_context(fleet):
    """No heat, no brake, no violation: seen, not explained."""
    fleet.set("n1", 2, "SM_CLOCK", 600, 35, FAIL)
    assert role(fleet.one("metric-clock-drop")) == "context"


def test_nvlink_traffic_that_one_gpu_loses_is_context(fleet):
    """Its peers keep theirs."""
    for node in ("n1", "n2", "n3"):
        for gpu in range(4):
            fleet.fields[node, gpu, "NVLINK_BANDWIDTH_TOTAL"] = np.where(np.arange(SCRAPES) < FAIL, 9e4, 0.0)
    fleet.set("n2", 0, "NVLINK_BANDWIDTH_TOTAL", 5e3, 30, FAIL)
    event = fleet.one("metric-nvlink-bandwidth-drop")
    assert (role(event), event.node, event.gpu.index, column(event)) == ("context", "n2", 0, 30)


def test_a_power_reading_of_zero_is_a_hint(fleet):
    """A GPU at rest draws tens of watts."""
    fleet.set("n2", 0, "POWER_USAGE", 0, 40)
    assert column(fleet.one("metric-power-zero")) == 40


def spin(fleet, since, until):
    fleet.all("GPU_UTIL", 100, since, until)
    fleet.all("MEM_COPY_UTIL", 0, since, until)
    for (node, _, name), row in fleet.fields.items():
        if node != "out" and name == "POWER_USAGE":
            row[since:until] = 210 + np.arange(until - since) % 3


def test_the_gpu_that_went_idle_while_its_peers_spin_is_named(fleet):
    """The hung rank: its process feeds it no more, all others wait in the collective."""
    spin(fleet, 30, FAIL)
    fleet.set("n2", 2, "GPU_UTIL", 0, 30)
    fleet.fields["n2", 2, "POWER_USAGE"][30:FAIL] = 95 + np.arange(FAIL - 30) % 2
    spinning, idle = fleet.one("metric-spinning"), fleet.one("metric-idle-while-peers-spin")
    assert (idle.node, idle.gpu.index, column(idle)) == ("n2", 2, 30)
    assert role(spinning) == "symptom"
    assert (spinning.data["gpus"], spinning.data["idle"], column(spinning)) == (12, 1, 30)
    assert fleet.one("metric-stopped-first").gpu.index == 2


def test_when_all_spin_nobody_is_named(fleet):
    """A mismatch or a dead link: every GPU waits."""
    spin(fleet, 30, FAIL)
    assert {event.signature for event in fleet.events()} == {"metric-spinning", "metric-activity-end"}


def test_the_gpu_that_still_copies_while_its_peers_wait_is_named(fleet):
    """It never reached the collective."""
    spin(fleet, 30, FAIL)
    fleet.set("n3", 1, "MEM_COPY_UTIL", 45, 30, FAIL)
    event = fleet.one("metric-busy-while-peers-spin")
    assert (event.node, event.gpu.index) == ("n3", 1)


def test_a_gpu_whose_series_vanish_is_lost_hint(fleet):
    """Its exporter goes on with the seven others."""
    for (node, gpu, _), row in fleet.fields.items():
        if (node, gpu) == ("n1", 3):
            row[40:] = np.nan
    event = fleet.one("metric-gpu-vanished")
    assert (role(event), event.node, event.gpu.index, column(event)) == ("cause", "n1", 3, 40)
    assert event.data["last_seen"] == START + 39 * STEP


def silence(fleet, node, since, until=SCRAPES, hosts=True):
    for (name, _, _), row in fleet.fields.items():
        if name == node:
            row[since:until] = np.nan
    for (name, _, _), row in fleet.hosts.items():
        if name == node and hosts:
            row[since:until] = np.nan


def test_a_node_whose_exporters_all_fall_silent_is_gone(fleet):
    """GPU and host exporter together."""
    silence(fleet, "n2", 44)
    event = fleet.one("metric-node-gone")
    assert (role(event), event.node, event.gpu, column(event)) == ("cause", "n2", None, 44)


def test_a_gpu_exporter_that_stops_alone_is_context(fleet):
    """The host goes on: no fault of the node."""
    silence(fleet, "n2", 44, hosts=False)
    assert role(fleet.one("metric-exporter-gone")) == "context"


def test_an_exporter_that_restarts_is_context(fleet):
    """Decoy: all series of a node vanish for 90 s and come back."""
    silence(fleet, "n2", 20, 23, hosts=False)
    event = fleet.one("metric-exporter-gap")
    assert role(event) == "context"
    assert event.data["seconds"] == 90
    assert all(event.signature != "metric-gpu-vanished" for event in fleet.events())


def test_a_frozen_exporter_is_context_and_hidden_from_comparisons(fleet):
    """Decoy: the same values for ever look like a GPU that works while all others stop."""
    for (node, _, _), row in fleet.fields.items():
        if node == "n3":
            row[25:] = row[25]
    spin(fleet, 30, FAIL)
    for (node, _, _), row in fleet.fields.items():
        if node == "n3":
            row[25:] = row[25]
    event = fleet.one("metric-exporter-frozen")
    assert (role(event), event.node, column(event)) == ("context", "n3", 26)
    assert not [other for other in fleet.events() if other.node == "n3" and other.signature != "metric-exporter-frozen"]


def test_memory_that_climbs_to_the_limit_is_a_hint(fleet):
    """One GPU's frame buffer in the minutes before the end."""
    climb = np.linspace(70000, 80800, 15)
    fleet.fields["n1", 0, "FB_USED"][30:FAIL] = climb
    fleet.fields["n1", 0, "FB_FREE"][30:FAIL] = 81000 - climb
    event = fleet.one("metric-fb-full")
    assert (role(event), event.gpu.index) == ("context", 0)
    assert event.data["rises_since"] < event.time


def test_memory_that_is_full_all_along_is_a_pool(fleet):
    """Serving engines take it all at start."""
    fleet.set("n1", 0, "FB_USED", 80500, 0, FAIL)
    fleet.set("n1", 0, "FB_FREE", 500, 0, FAIL)
    assert all(event.signature != "metric-fb-full" for event in fleet.events())


def test_a_port_that_loses_rate_is_a_cause(fleet):
    """A quarter of the rate without the link going down."""
    fleet.hosts["n2", "mlx5_1", "node_infiniband_rate_bytes_per_second"][20:] = 1.25e10
    event = fleet.one("metric-port-rate-drop")
    assert (role(event), event.node, event.data["device"], column(event)) == ("cause", "n2", "mlx5_1", 20)


def test_port_errors_that_grow_are_a_cause_and_old_ones_are_not(fleet):
    """All ports start with 17; one grows."""
    fleet.hosts["n2", "mlx5_1", "node_infiniband_symbol_error_total"][20:] += np.arange(40)
    event = fleet.one("metric-port-errors-growth")
    assert (event.node, event.data["device"]) == ("n2", "mlx5_1")


def test_one_flap_is_context_and_many_are_a_cause(fleet):
    """How long it was down the kernel tells; three times is a bad port."""
    fleet.hosts["n2", "mlx5_1", "node_infiniband_link_downed_total"][20:] += 1
    assert role(fleet.one("metric-link-downed")) == "context"
    fleet.hosts["n2", "mlx5_1", "node_infiniband_link_downed_total"][30:] += 1
    fleet.hosts["n2", "mlx5_1", "node_infiniband_link_downed_total"][40:] += 1
    assert {role(event) for event in fleet.events() if event.signature == "metric-link-downed"} == {"cause"}


def test_ports_of_many_nodes_in_the_same_minute_are_the_fabric(fleet):
    """Their switch, not three cables."""
    for node in ("n1", "n2", "n3"):
        fleet.hosts[node, "mlx5_1", "node_infiniband_link_downed_total"][40:] += 1
    found = [event for event in fleet.events() if event.signature == "metric-link-downed"]
    assert {(event.cls, event.role, event.data["same_minute_nodes"]) for event in found} == {("platform/network", "symptom", 3)}


def test_host_memory_near_zero_and_the_kill_after_it(fleet):
    """Context both: whose memory it was the kernel log tells."""
    fleet.hosts["n1", "", "node_memory_MemAvailable_bytes"][20:44] = np.linspace(1e12, 1e9, 24)
    fleet.hosts["n1", "", "node_vmstat_oom_kill"][44:] += 1
    assert fleet.one("metric-host-memory-exhausted").node == "n1"
    assert column(fleet.one("metric-oom-kill")) == 44


def test_a_moved_boot_time_is_a_reboot(fleet):
    """A wander of a second is not."""
    fleet.hosts["n1", "", "node_boot_time_seconds"][10:] += 1
    fleet.hosts["n3", "", "node_boot_time_seconds"][50:] = START + 48 * STEP
    assert fleet.one("metric-reboot").node == "n3"


def test_a_slow_gpu_is_a_straggler_with_its_onset(fleet):
    """It draws a fifth less than its peers from some minute on; nothing else tells why."""
    fleet.fields["n1", 2, "POWER_USAGE"][20:FAIL] *= 0.75
    event = fleet.one("metric-straggler")
    assert (role(event), event.gpu.index, column(event)) == ("context", 2, 20)
    assert event.data["direction"] == "less"


def test_what_begins_after_the_job_is_context(fleet):
    """Decoy: four ports of a node go down minutes after the end."""
    fleet.hosts["n1", "mlx5_0", "node_infiniband_rate_bytes_per_second"][55:] = 1.25e10
    event = fleet.one("metric-port-rate-drop")
    assert role(event) == "context"
    assert event.data["after_end"] > 60


def test_without_job_labels_the_signals_are_the_same():
    """Bare-metal exporters know no pods."""
    fleet = Fleet(labelled=False)
    overheat(fleet, "n2", 3, 500)
    event = fleet.one("metric-thermal")
    assert role(event) == "cause"
    assert event.data["in_job"] is None


def test_a_job_that_never_worked_is_said_so(fleet):
    """It held its GPUs and none was ever busy."""
    for name, value in (("GPU_UTIL", 0), ("POWER_USAGE", 70), ("SM_CLOCK", 345)):
        fleet.all(name, value, 0, SCRAPES)
    event = fleet.one("metric-never-busy")
    assert (event.data["gpus"], event.data["nodes"]) == (12, 3)


def exposition(lines: list[str]) -> list[Series]:
    return parse_exposition("\n".join(lines).encode(), file="metrics/n1.prom").series


def test_fabric_state_two_is_a_level_that_counts():
    """3 is success; a node that stays at 2 cannot initialise CUDA, however long ago it got there."""
    lines = [
        f'DCGM_FI_DEV_FABRIC_MANAGER_STATUS{{gpu="{gpu}",UUID="GPU-{node}-{gpu}",Hostname="{node}"}} '
        f"{2 if node == 'n2' else 3} {1760000000 + 30 * at}.000"
        for node in ("n1", "n2", "n3")
        for gpu in range(2)
        for at in range(10)
    ]
    found = [event for event in detect_metrics(exposition(lines)) if role(event) == "cause"]
    assert [(event.signature, event.node, event.gpu, event.data["gpus"]) for event in found] == [
        ("metric-fabric-not-ready", "n2", None, 2)
    ]


def test_dcgms_health_watch_gives_the_class_of_its_error():
    """A new failing series is a change; one that failed all along is context."""
    labels = 'gpu="%d",UUID="GPU-a-%d",Hostname="n1",health_watch="PCIE",health_error_code="DCGM_FR_PCI_REPLAY_RATE"'
    name = f"DCGM_EXP_GPU_HEALTH_STATUS{{{labels}}}"
    lines = [f"{name % (0, 0)} {20 if at > 6 else 0} {1760000000 + 30 * at}.000" for at in range(10)]
    lines += [f"{name % (1, 1)} 20 {1760000000 + 30 * at}.000" for at in range(10)]
    found = {event.gpu.index: event for event in detect_metrics(exposition(lines))}
    assert (found[0].cls, role(found[0]), found[0].time) == ("hardware/pcie", "cause", 1760000210.0)
    assert role(found[1]) == "context"


def test_a_page_without_times_tells_states_and_no_growth():
    """What stands all along a window is history; on a page fetched by hand it is of now, and a counter says nothing."""
    labels = 'gpu="%d",UUID="GPU-a-%d",Hostname="n1"'
    failed = f"DCGM_FI_DEV_ROW_REMAP_FAILURE{{{labels % (0, 0)}}} 1"
    counter = f"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{labels % (1, 1)}}} 4"
    found = detect_metrics(exposition([failed, counter]))
    assert [(event.signature, role(event), event.time) for event in found] == [("metric-row-remap-failure", "cause", None)]
    window = [f"{failed} {1760000000 + 30 * at}.000" for at in range(10)]
    assert [role(event) for event in detect_metrics(exposition(window))] == ["context"]


def test_an_exporter_that_never_answered_is_said_so():
    """`up` is 0 all along on a node whose host exporter answers."""
    lines = [
        f'up{{instance="10.0.0.{node}:{port}",job="{job}"}} {int(port == 9100 or node != 2)} {1760000000 + 30 * at}'
        for node in (1, 2, 3)
        for port, job in ((9400, "dcgm-exporter"), (9100, "node-exporter"))
        for at in range(10)
    ]
    (event,) = detect_metrics(exposition(lines))
    assert (event.signature, event.node, event.data["node_up"]) == ("metric-exporter-down", "10.0.0.2", True)


def test_events_quote_their_line():
    """text, file and line lead to the evidence."""
    head = "DCGM_FI_DEV_XID_ERRORS"
    lines = [
        f'{head}{{gpu="{gpu}",UUID="GPU-a-{gpu}",Hostname="n1"}} {79 * (gpu == 1 and at >= 7)} {1760000000 + 30 * at}.250'
        for gpu in range(2)
        for at in range(10)
    ]
    (event,) = detect_metrics(exposition(lines))
    assert event.text == lines[17]
    assert (event.file, event.line) == ("metrics/n1.prom", 18)


def test_moved_indices_are_reported_and_events_keep_the_first():
    """After a restart without the lost GPU, index 1 is another card."""
    lines = []
    for at in range(20):
        for card in range(3):
            if card == 1 and at >= 8:
                continue
            index = card if at < 12 else {0: 0, 2: 1}[card]
            lines.append(
                f'DCGM_FI_DEV_GPU_TEMP{{gpu="{index}",UUID="GPU-a-{card}",Hostname="n1"}} {60 + at % 2} {START + 30 * at:.3f}'
            )
    found = {event.signature: event for event in detect_metrics(exposition(lines))}
    assert found["metric-gpu-vanished"].gpu == Gpu(1, "GPU-a-1", None)
    assert [found["metric-gpu-renumbered"].data[key] for key in ("before", "after")] == [2, 1]


NAMES = [
    "GPU_UTIL",
    "POWER_USAGE",
    "SM_CLOCK",
    "GPU_TEMP",
    "FB_USED",
    "FB_FREE",
    "XID_ERRORS",
    "PCIE_REPLAY_COUNTER",
    "PCIE_LINK_WIDTH",
    "CLOCK_THROTTLE_REASONS",
    "ROW_REMAP_PENDING",
    "FABRIC_MANAGER_STATUS",
    "FABRIC_HEALTH_MASK",
    "NVLINK_BANDWIDTH_TOTAL",
    "ECC_DBE_VOL_TOTAL",
]
VALUES = st.sampled_from([0.0, 1.0, 2.0, 3.0, 72.0, 100.0, 650.0, 2147483632.0, -1.0, float("inf"), float("nan")])
ROWS = st.tuples(
    st.sampled_from(NAMES),
    st.integers(0, 2),
    st.sampled_from(["a", "b", None]),
    st.booleans(),
    st.lists(VALUES, min_size=1, max_size=9),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(ROWS, max_size=14))
@example([("FB_USED", 0, "a", False, [0.0]), ("FB_FREE", 0, "a", False, [0.0])])
@example([("GPU_UTIL", 0, "b", False, [0.0]), ("SM_CLOCK", 0, "a", False, [0.0, -1.0, -1.0])])
def test_no_combination_of_series_raises(rows):
    """Fields missing, lengths uneven, nonsense in the values: events or none, never an exception."""
    series = []
    for name, gpu, node, held, values in rows:
        times = START + 30 * np.arange(len(values), dtype=float)
        series.append(
            Series(f"DCGM_FI_DEV_{name}", times, np.array(values), node, Gpu(gpu, None, None), pod="train-0" if held else None)
        )
    detect_metrics(series)


@pytest.mark.parametrize(
    "rows", [[], [Series("x", np.array([]), np.array([]))], [Series("x", np.array([np.nan]), np.array([1.0]))]]
)
def test_nothing_gives_nothing(rows):
    """No series, an empty one, one without a time."""
    assert detect_metrics(rows) == []


def test_a_single_scrape_gives_only_levels():
    """One exposition without history can show no onset."""
    raw = (Path(__file__).parents[1] / "data" / "metrics" / "spellings.prom").read_bytes()
    assert [
        event for event in detect_metrics(parse_exposition(raw, file="x", default_time=START).series) if role(event) == "cause"
    ] == []


def test_every_metric_signature_has_a_row():
    """An event without a catalog row has no meaning to anybody."""
    source = "".join(path.read_text() for path in (Path(detect_metrics.__code__.co_filename).parent).glob("*.py"))
    rows = [name for name in signatures() if name.startswith("metric-")]
    assert len(rows) >= 40
    assert [name for name in rows if f'"{name}"' not in source] == []
