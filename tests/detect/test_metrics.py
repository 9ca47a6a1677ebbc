"""Metrics become events at their onset; history, peers' common changes and other people's GPUs do not become causes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.detect.played_fleet import FAIL, SCRAPES, START, STEP, Fleet, column, role


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
