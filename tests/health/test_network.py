"""Network ports: what is down, slow, flapping or full of errors, and that an uncabled port is no news."""

from __future__ import annotations

from pathlib import Path

import pytest

import workbench
from tests.health.host_tree import NOW, Host, codes
from workbench.health import fitness
from workbench.health.checks.network import down_seconds
from workbench.health.folder import check_folder
from workbench.health.history import remember
from workbench.health.port_history import down_spans, growth, next_state
from workbench.model import Event
from workbench.parse.rdma_ports import RdmaPort, from_ibstat, from_rdma_link, rate_of, word_of

_COUNTERS = (
    "symbol_error",
    "link_error_recovery",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)


def add_port(host: Host, device: str, *, state: str = "4: ACTIVE", phys: str = "5: LinkUp", rate: str = "400 Gb/sec (4X NDR)",
             layer: str = "InfiniBand", netdev: str = "", driver: str = "mlx5_core", **counters: int) -> None:  # fmt: skip
    base = f"/sys/class/infiniband/{device}"
    host.files(base, {"hca_type": "MT4129", "board_id": "MT_0000000838"})
    host.files(f"{base}/ports/1", {"state": state, "phys_state": phys, "rate": rate, "link_layer": layer})
    host.files(f"{base}/ports/1/counters", {**dict.fromkeys((*_COUNTERS, "link_downed"), 0), **counters})
    host.path(f"/sys/bus/drivers/{driver}").mkdir(parents=True, exist_ok=True)
    device_folder = host.path(f"{base}/device")
    device_folder.mkdir()
    (device_folder / "driver").symlink_to(host.path(f"/sys/bus/drivers/{driver}"))
    if netdev:
        (device_folder / "net" / netdev).mkdir(parents=True)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    for number in range(8):
        add_port(host, f"mlx5_{number}")
    return host


def test_a_node_without_adapters_has_no_network_to_check(tmp_path: Path) -> None:
    assert codes(Host(tmp_path).run("network")) == {("", "not-applicable")}


def test_eight_healthy_ports_are_eight_times_ok(host: Host) -> None:
    findings = host.run("network", ports=8, port_rate=400)
    assert {one.status for one in findings} == {"ok"}
    assert len(findings) == 9
    assert fitness(findings) == "ok"


def test_a_port_that_nobody_cabled_is_no_finding_and_one_that_was_up_is(host: Host) -> None:
    add_port(host, "mlx5_8", state="1: DOWN", phys="2: Polling", rate="10 Gb/sec (4X SDR)")
    add_port(host, "mlx5_9", state="1: DOWN", phys="2: Polling", rate="10 Gb/sec (4X SDR)", link_downed=1)
    add_port(host, "mlx5_10", state="1: DOWN", phys="3: Disabled", rate="10 Gb/sec (4X SDR)", link_downed=1)
    findings = host.run("network")
    assert {("mlx5_8/1", "not-applicable"), ("mlx5_9/1", "port-lost"), ("mlx5_10/1", "not-applicable")} <= codes(findings)
    assert fitness(findings) == "warning"


def test_what_the_site_counts_on_makes_the_node_unfit(host: Host) -> None:
    host.file("/sys/class/infiniband/mlx5_3/ports/1/state", "1: DOWN\n")
    findings = host.run("network", ports=8)
    assert ("", "ports-missing") in codes(findings)
    assert fitness(findings) == "critical"
    named = host.run("network", port_names=["mlx5_3", "mlx5_11"])
    assert {("mlx5_3/1", "port-down"), ("mlx5_11", "port-missing")} <= codes(named)


def test_one_slow_port_among_its_twins_is_named(host: Host) -> None:
    host.file("/sys/class/infiniband/mlx5_5/ports/1/rate", "200 Gb/sec (2X NDR)\n")
    (slow,) = [one for one in host.run("network") if one.status != "ok"]
    assert (slow.part, slow.code, slow.status) == ("mlx5_5/1", "port-rate-low", "warning")
    assert ("mlx5_5/1", "port-rate-below") in codes(host.run("network", port_rate=400))
    host.file("/sys/class/infiniband/mlx5_6/ports/1/rate", "200 Gb/sec (2X NDR)\n")  # two are built so
    assert {one.status for one in host.run("network")} == {"ok"}
    host.file("/sys/class/infiniband/mlx5_6/ports/1/rate", "400 Gb/sec (4X NDR)\n")
    # storage ports may be slower when the site says how many fast ones there must be
    assert ("", "ports-missing") not in codes(host.run("network", ports=7, port_rate=400))


def test_a_rate_that_is_not_told_is_not_taken_for_enough(host: Host) -> None:
    host.path("/sys/class/infiniband/mlx5_5/ports/1/rate").unlink()
    findings = host.run("network", ports=8, port_rate=400)
    assert fitness(findings) == "unknown"


def test_a_port_without_a_subnet_manager_waits_for_one(host: Host) -> None:
    host.file("/sys/class/infiniband/mlx5_0/ports/1/state", "2: INIT\n")
    assert ("mlx5_0/1", "port-initializing") in codes(host.run("network"))


def test_counters_speak_by_their_rate(host: Host) -> None:
    folder = "/sys/class/infiniband/mlx5_{}/ports/1/counters/{}"
    host.file(folder.format(0, "symbol_error"), "4000\n")  # in 30 days: ordinary
    host.file(folder.format(1, "symbol_error"), "90000000\n")
    host.file(folder.format(2, "local_link_integrity_errors"), "3\n")
    bad = {one for one in codes(host.run("network")) if one[1] != "ok"}
    assert bad == {("mlx5_1/1", "port-symbol-errors"), ("mlx5_2/1", "port-link-errors")}


def test_a_link_that_was_away_for_half_a_minute_altogether_flaps(tmp_path: Path) -> None:
    host = Host(tmp_path)
    add_port(host, "mlx5_0", layer="Ethernet", netdev="ens10f0np0")
    add_port(host, "mlx5_1", layer="Ethernet", netdev="ens11f0np0")
    lines = []
    for minute, seconds in ((10, 12), (20, 11), (30, 10)):
        stamp = f"2027-01-15T07:{minute}:%02d.000000+00:00 n1 kernel: [2590000.0] mlx5_core 0000:17:00.0 ens10f0np0: Link %s"
        lines += [stamp % (0, "down"), stamp % (seconds, "up")]
    lines += [
        "2027-01-15T07:10:00.000000+00:00 n1 kernel: [2590000.0] mlx5_core 0000:18:00.0 ens11f0np0: Link down",
        "2027-01-15T07:10:03.000000+00:00 n1 kernel: [2590000.0] mlx5_core 0000:18:00.0 ens11f0np0: Link up",
    ]
    host.kernel_log(*sorted(lines))
    findings = host.run("network")
    assert codes(findings) == {("mlx5_0/1", "port-flaps"), ("mlx5_1/1", "ok")}
    assert "33 s" in next(one.summary for one in findings if one.code)


def test_efa_has_no_state_of_its_own_but_lost_commands(tmp_path: Path) -> None:
    host = Host(tmp_path)
    for number in range(4):
        name = f"rdmap{16 + number}s27"
        add_port(host, name, rate="100 Gb/sec (4X EDR)", layer="Unspecified", driver="efa")
        host.files(f"/sys/class/infiniband/{name}/hw_counters", {"no_completion_cmds": 3 if number == 1 else 0})
    findings = host.run("network", ports=4, port_rate=400)
    assert {one for one in codes(findings) if one[1] != "ok"} == {("rdmap17s27/1", "efa-commands-lost")}


def test_an_adapter_without_a_driver_is_seen_on_the_bus(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.files("/sys/bus/pci/devices/0000:17:00.0", {"vendor": "0x15b3", "class": "0x020700"})
    assert codes(host.run("network")) == {("0000:17:00.0", "port-driver-missing")}
    assert fitness(host.run("network", ports=1)) == "critical"


def test_an_ethernet_interface_that_the_site_names_is_looked_at(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.files("/sys/class/net/ens3", {"operstate": "up", "carrier": 1, "speed": 25000})
    host.files("/sys/class/net/ens4", {"operstate": "down", "carrier": 0, "speed": -1})
    host.files("/sys/class/net/ens5", {"operstate": "up", "carrier": 1, "speed": -1})
    findings = host.run("network", port_names=["ens3", "ens4", "ens5"], port_rate=100)
    assert codes(findings) == {("ens3", "port-rate-below"), ("ens4", "port-down"), ("ens5", "unread")}


def test_ibstat_is_asked_when_the_files_do_not_answer(host: Host) -> None:
    (host.root / "bin/grep").unlink()
    text = "".join(
        f"CA 'mlx5_{number}'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: {'Down' if number == 2 else 'Active'}\n"
        f"\t\tPhysical state: {'Polling' if number == 2 else 'LinkUp'}\n\t\tRate: 400\n\t\tLink layer: InfiniBand\n"
        for number in range(8)
    )
    host.tool("ibstat", text)
    findings = host.run("network", ports=8)
    assert ("", "ports-missing") in codes(findings)
    assert {one.path for one in findings} == {"ibstat"}
    assert findings[0].blind == ("error counters",)
    host.tool("ibstat", text[: len(text) // 2])  # half an output is no answer
    assert fitness(host.run("network", ports=8)) == "unknown"


@pytest.mark.parametrize(
    ("lid", "physical", "found"),
    [(868, "Polling", {("mlx5_0/1", "port-lost")}), (868, "Disabled", set()), (65535, "Polling", set()), (0, "Polling", set())],
)
def test_a_port_that_a_subnet_manager_gave_an_address_was_up(
    host: Host, lid: int, physical: str, found: set[tuple[str, str]]
) -> None:
    kept = host.path("/kept/ibstat.txt")
    kept.parent.mkdir()
    kept.write_text(
        "CA 'mlx5_0'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: Down\n"
        f"\t\tPhysical state: {physical}\n\t\tRate: 10\n\t\tBase lid: {lid}\n\t\tLink layer: InfiniBand\n"
    )
    assert {(one.part, one.code) for one in check_folder(kept) if one.status == "warning"} == found
    assert (workbench.load(kept).triage().cls == "hardware/network-link") == bool(found)
    host.file("/sys/class/infiniband/mlx5_2/ports/1/state", "1: DOWN")
    host.file("/sys/class/infiniband/mlx5_2/ports/1/phys_state", f"2: {physical}")
    host.file("/sys/class/infiniband/mlx5_2/ports/1/lid", hex(lid))
    host.file("/sys/class/infiniband/mlx5_2/ports/1/counters/link_downed", "0")
    mine = {one.code for one in host.run("network") if one.part == "mlx5_2/1" and one.status == "warning"}
    assert mine == {code for _, code in found}


@pytest.mark.parametrize("script", ["exit 1", "exit 0", "sleep 60", "echo garbage"])
def test_broken_tools_are_never_healthy(host: Host, script: str) -> None:
    for name in ("grep", "ibstat", "rdma"):
        (host.root / "bin" / name).unlink(missing_ok=True)
        host.tool(name, script=script)
    findings = host.run("network", ports=8)
    assert fitness(findings) == "unknown"


def test_words_and_rates() -> None:
    assert [word_of(text) for text in ("4: ACTIVE", "LINK_UP", "3: Disabled")] == ["active", "linkup", "disabled"]
    assert [rate_of(text) for text in ("2.5 Gb/sec (1X SDR)", "0", "x", "400")] == [2.5, None, None, 400.0]
    (port,) = from_rdma_link("link mlx5_3/1 state DOWN physical_state DISABLED netdev ibp3s0 \n")
    assert (port.name, port.active, port.physical, port.netdev) == ("mlx5_3/1", False, "disabled", "ibp3s0")
    assert from_ibstat("CA 'mlx5_0'\n\tPort 1:\n\t\tRate: 40\n") == ()


def test_down_time_is_cut_at_the_window_and_goes_on_while_it_lasts() -> None:
    gone = Event("nic-link-down", "kernel", time=NOW - 20)
    back = Event("nic-link-down", "kernel", time=NOW - 110, data={"down_seconds": 15.0})
    assert down_seconds([gone, back], since=NOW - 100, now=NOW) == 25.0


def test_what_the_kernel_said_of_an_adapter_is_laid_at_its_port(host: Host) -> None:
    host.kernel_log(
        "2027-01-12T07:30:00.000000+00:00 n1 kernel: [1.0] mlx5_core 0000:18:00.0: poll_health:800:(pid 0): device's health compromised - reached miss count",
        "mlx5_core 0000:17:00.0: poll_health:800:(pid 0): device's health compromised - reached miss count",
    )
    (bad,) = [one for one in host.run("network") if one.code]
    assert (bad.code, bad.part, bad.status) == ("nic-health", "0000:17:00.0", "critical")


def look(
    host: Host, before: dict[str, object] | None, *, now: float, active: bool = True, boot_id: str = "b1", **counters: int
) -> dict[str, object]:
    """A run that keeps what it saw of one port."""
    port = RdmaPort("mlx5_0", 1, "active" if active else "down", layer="infiniband", counters=counters)
    return next_state(before, [port], boot_id=boot_id, now=now)


def test_looks_add_up_the_time_that_a_port_was_down(host: Host) -> None:
    state = look(host, None, now=NOW - 900)
    for moment in (600, 580, 570):
        state = look(host, state, now=NOW - moment, active=False)
    state = look(host, state, now=NOW - 500)
    state = look(host, state, now=NOW - 300, active=False)
    port = RdmaPort("mlx5_0", 1, "down")
    assert down_spans(state, port, now=NOW - 285) == [(NOW - 600, NOW - 570), (NOW - 300, NOW - 285)]
    state = look(host, state, now=NOW - 290, active=False)
    state = look(host, state, now=NOW - 200)
    remember("ports", state, folder=host.path("/var/lib/workbench"))
    findings = host.run("network")
    assert ("mlx5_0/1", "port-flaps") in codes(findings)
    assert "40 s" in next(one.summary for one in findings if one.code == "port-flaps")
    # a day later it is history, and after a reboot it never was
    assert down_spans(state, port, now=NOW + 2 * 86400) == []
    assert down_spans(look(host, state, now=NOW, boot_id="b2"), port, now=NOW) == []


def test_a_counter_is_judged_by_how_it_grows_now(host: Host) -> None:
    host.file("/proc/sys/kernel/random/boot_id", "b1\n")
    counter = "/sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error"
    host.file(counter, "90000000\n")  # much since boot
    remember("ports", look(host, None, now=NOW - 3000, symbol_error=89999990), folder=host.path("/var/lib/workbench"))
    assert ("mlx5_0/1", "ok") in codes(host.run("network"))
    host.file(counter, "90900000\n")  # and as much again now
    assert ("mlx5_0/1", "port-symbol-errors") in codes(host.run("network"))


def test_a_damaged_state_costs_only_what_it_would_have_told(host: Host) -> None:
    host.file("/var/lib/workbench/ports.json", "{")
    assert {one.status for one in host.run("network", ports=8)} == {"ok"}


def test_counters_that_were_set_back_count_since_boot() -> None:
    state = next_state(None, [RdmaPort("mlx5_0", 1, "active", counters={"symbol_error": 50})], boot_id="b1", now=NOW - 3600)
    port = RdmaPort("mlx5_0", 1, "active", counters={"symbol_error": 7})
    told = growth(state, port, "symbol_error", boot_id="b1", uptime=7200.0, now=NOW)
    assert told is not None
    assert (told.value, told.seconds) == (7, 7200.0)
    assert growth(None, port, "symbol_error", boot_id="b1", uptime=None, now=NOW) is None
