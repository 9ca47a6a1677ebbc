"""The checks of the GPUs themselves: on a healthy node all is well, and each fault is found by the check that an operator would name."""

from __future__ import annotations

import json

import pytest

from tests.health.gpu_node import BUSES, NOW, UUIDS, Node, one
from workbench.health import checks, compare, fitness
from workbench.health.history import recall, remember
from workbench.health.inventory import inventory
from workbench.parse.gpu_state import NodeGpus, from_nvml
from workbench.parse.smi_links import links_of
from workbench.report.findings import FORMATS
from workbench.sources.node.nvml import read_nvml

MINE = [
    "agreement",
    "driver-log",
    "fabric",
    "gpu-inventory",
    "modes",
    "nvlink",
    "pcie",
    "processes",
    "recovery",
    "sxid",
    "thermal-power",
    "versions",
    "xid",
]


def test_a_healthy_node_is_fit_in_every_context(node: Node) -> None:
    for context in ("allocation", "running"):
        found = node.check(*MINE, context=context)
        assert {finding.check for finding in found} == set(MINE)
        assert {finding.status for finding in found} <= {"ok", "not-applicable"}, [
            f for f in found if f.status not in ("ok", "not-applicable")
        ]
    eights = [finding for finding in found if finding.check in ("nvlink", "pcie", "thermal-power", "modes", "recovery")]
    assert len(eights) == 40  # each GPU by itself
    assert all(finding.status == "ok" for finding in eights)


@pytest.mark.parametrize(
    ("plays", "check", "code", "status", "action"),
    [
        ("remap=2", "recovery", "smi-recovery-action", "critical", "reset-gpu"),
        ("lost=3", "recovery", "smi-gpu-lost", "critical", "reboot-node"),
        ("heat=2", "thermal-power", "smi-throttle-thermal", "critical", "drain"),
        ("heat=2", "thermal-power", "smi-over-temperature", "critical", "drain"),
        ("link=2", "nvlink", "smi-nvlink-inactive", "critical", "drain"),
        ("new-links=2", "nvlink", "smi-nvlink-recovery-failed", "critical", "reset-gpu"),
        ("narrow=2", "pcie", "pcie-narrower-than-peers", "critical", "drain"),
        ("fabric=2", "fabric", "smi-fabric-not-ready", "critical", "fix-platform"),
        ("fabric-slow=2", "fabric", "smi-fabric-health", "critical", "drain"),
        ("mig=2", "modes", "mig-mixed", "warning", "fix-platform"),
    ],
)
def test_what_nvml_says_is_found_on_its_gpu(node: Node, plays: str, check: str, code: str, status: str, action: str) -> None:
    node.plays = plays
    found = one(node.check(check), code)
    assert (found.status, found.action) == (status, action)
    assert found.gpu is not None
    assert found.gpu.index == int(plays.partition("=")[2])


@pytest.mark.parametrize(
    ("plays", "check"),
    [
        ("garbage=2", "thermal-power"),
        *(("unknown=2", check) for check in ("nvlink", "pcie", "thermal-power", "modes", "fabric", "recovery")),
    ],
)
def test_what_a_gpu_does_not_tell_is_not_ok(node: Node, plays: str, check: str) -> None:
    node.plays = plays
    mine = [finding.status for finding in node.check(check) if finding.gpu is not None and finding.gpu.index == 2]
    assert mine
    assert "ok" not in mine


@pytest.mark.parametrize("check", ["nvlink", "pcie", "thermal-power", "modes", "recovery", "fabric"])
def test_without_nvml_and_nvidia_smi_nothing_of_the_gpus_is_ok(node: Node, check: str) -> None:
    (node.tools / "nvidia-smi").unlink()
    node.library = ""
    assert {finding.status for finding in node.check(check) if not finding.part} == {"unknown"}


# ---- fabric


def test_a_fabric_manager_that_does_not_run_is_found_where_there_are_switches(node: Node) -> None:
    node.systemctl(manager="failed")
    assert one(node.check("fabric"), "fabric-manager-inactive").part == "nvidia-fabricmanager.service"
    node.systemctl(imex="failed")
    assert one(node.check("fabric"), "imex-inactive").status == "warning"


def test_without_systemd_the_process_tells_and_the_finding_says_what_it_cannot(node: Node) -> None:
    (node.tools / "systemctl").unlink()
    assert one(node.check("fabric"), "fabric-manager-inactive").status == "critical"
    node.process(77, "nv-fabricmanage", ())  # the kernel keeps fifteen letters
    assert fitness(node.check("fabric")) == "ok"


def test_a_service_of_which_nothing_is_told_is_unknown(node: Node) -> None:
    node.tool("systemctl", "garbage\n")
    for entry in (node.root / "proc").iterdir():
        if entry.name.isdigit():
            entry.rename(node.root / f"gone-{entry.name}")
    (found,) = [finding for finding in node.check("fabric") if finding.part == "services"]
    assert found.status == "unknown"


def test_an_sxid_is_judged_by_the_word_in_the_line(node: Node) -> None:
    node.log("nvidia-nvswitch1: SXid (PCI:0000:04:00.0): 20034, Non-fatal, Link 48 LTSSM Fault Up")
    (found,) = node.check("sxid")
    assert found.status == "ok"
    assert "1 non-fatal" in found.summary
    node.log("nvidia-nvswitch1: SXid (PCI:0000:04:00.0): 20034, Fatal, Link 48 LTSSM Fault Up")
    found = one(node.check("sxid"), "sxid-fatal")
    assert (found.action, found.part) == ("reboot-node", "NVSwitch 0000:04:00.0 link 48")


def test_traffic_that_was_stopped_is_critical_unless_all_is_up_again(node: Node) -> None:
    node.log("nvidia-nvswitch1: SXid (PCI:0000:04:00.0): 12028, Non-fatal, Link 43 egress non-posted PRIV error (First)")
    assert one(node.check("sxid"), "sxid-stopped-traffic").status == "warning"
    node.plays = "link=2"
    assert one(node.check("sxid"), "sxid-stops-traffic").status == "critical"
    node.plays = "unknown=2"
    assert one(node.check("sxid"), "sxid-stops-traffic").status == "critical"


# ---- kernel log: PCIe and driver


def test_an_error_of_the_port_above_a_gpu_is_that_gpus(node: Node) -> None:
    link = node.root / "sys/bus/pci/devices/0000:4c:00.0"
    link.unlink()
    node.device("0000:4c:00.0", "0x030200", above="0000:49:04.0")
    node.log(
        "pcieport 0000:49:04.0: AER: Uncorrected (Fatal) error received: 0000:49:04.0",
        "pcieport 0000:49:04.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)",
    )
    found = one(node.check("pcie"), "aer-uncorrected-fatal")
    assert found.gpu is not None
    assert found.gpu.index == 2


def test_corrected_errors_are_a_trend_until_they_are_many(node: Node) -> None:
    lines = [(60.0 + at, "nvidia 0000:4c:00.0: AER: Corrected error received: 0000:4c:00.0") for at in range(1200)]
    node.log(*reversed(lines[:20]))
    assert fitness(node.check("pcie")) == "ok"
    node.log(*reversed(lines))
    assert one(node.check("pcie"), "aer-corrected").status == "warning"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("NVRM: GPU 0000:4c:00.0: RmInitAdapter failed! (0x25:0x40:1470)", "rm-init-failed"),
        ("NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned from status @ kernel_channel.c:2827", "gpu-reset-required"),
        ("NVRM: GPU6 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 81231", "gsp-heartbeat-timeout"),
    ],
)  # fmt: skip
def test_a_fault_of_the_driver_without_an_xid_is_found(node: Node, line: str, code: str) -> None:
    node.log(line)
    assert one(node.check("driver-log"), code).status == "critical"


def test_a_gpu_whose_firmware_never_started_needs_a_reboot(node: Node) -> None:
    node.log(
        (3700, "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  595.71.05  Release Build"),
        (3650, "NVRM: GPU6 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 81231"),
    )
    assert one(node.check("driver-log"), "gsp-boot-failed").action == "reboot-node"


def test_what_leaves_many_checks_unknown_is_said_once_with_all_their_names(node: Node) -> None:
    node.plays = "init=999"
    (node.tools / "nvidia-smi").unlink()
    for folder in (node.root / "proc/driver/nvidia/gpus").iterdir():
        (folder / "information").unlink()
        folder.rmdir()
    found = node.check("fabric", "gpu-memory", "nvlink", "recovery", "driver")
    text = FORMATS["table"](found, verbose=False)
    assert "????  fabric, gpu-memory, nvlink, recovery: NVML" in text
    assert text.count("no such program") == 1
    assert FORMATS["table"](found, verbose=True).count("????") == 4


def test_of_two_findings_of_a_check_the_one_that_asks_for_more_stands_first(node: Node) -> None:
    node.log(
        "NVRM: Xid (PCI:0000:19:00): 119, pid=1, name=python, Timeout after 45s of waiting for RPC response from GPU0 GSP! Expected function 76",
        "NVRM: Xid (PCI:0000:bb:00): 79, pid=1, name=python, GPU has fallen off the bus.",
    )
    found = [each for each in node.check("xid") if each.status == "critical"]
    assert [(each.code, each.action) for each in found] == [("xid-79", "reboot-node"), ("xid-119", "reset-gpu")]


def test_what_is_to_be_done_is_said_once_for_gpus_with_the_same_trouble(node: Node) -> None:
    node.log(*(f"NVRM: Xid (PCI:0000:{bus}:00): 79, pid=1, name=python, GPU has fallen off the bus." for bus in ("19", "bb")))
    found = node.check("xid")
    text = FORMATS["table"](found, verbose=False)
    assert text.count("  CRIT  xid [GPU ") == 2
    assert text.count("→ reboot-node") == 1
    assert FORMATS["table"](found, verbose=True).count("→ reboot-node") == 2
    assert text.splitlines()[0].count(": GPU ") == 1


# ---- agreement


def test_lists_that_differ_are_found_by_the_list(node: Node) -> None:
    node.tool(
        "nvidia-smi", (node.tools / "nvidia-smi.out").read_text().replace(UUIDS[5], "GPU-00000000-0000-0000-0000-000000000099")
    )
    assert one(node.check("agreement"), "gpu-count-differs").part == "nvidia-smi"
    node.tool("nvidia-smi", "GPU 0: NVIDIA H100 80GB HBM3 (UUID: " + UUIDS[0] + ")\n")
    assert "lists 1 GPUs, NVML 8" in one(node.check("agreement"), "gpu-count-differs").summary


def test_a_gpu_that_only_the_bus_or_only_the_driver_shows_is_found(node: Node) -> None:
    (node.root / "sys/bus/pci/devices/0000:4c:00.0").unlink()
    assert "the bus has it no more" in one(node.check("agreement"), "gpu-count-differs").summary
    node.plays = "count=7"
    (node.root / "dev/nvidia7").unlink()
    node.device("0000:4d:00.0", "0x030200")
    assert [
        finding.gpu.pci
        for finding in node.check("agreement")
        if finding.code == "gpu-count-differs" and finding.part == "PCI" and finding.gpu
    ] == ["0000:4d:00.0", "0000:db:00.0", "0000:4c:00.0"]


@pytest.mark.parametrize("context", ["running", "allocation"])
def test_a_gpu_that_the_kernel_took_off_the_bus_is_never_counted_as_one_that_is_there(node: Node, context: str) -> None:
    (node.root / "sys/bus/pci/devices/0000:4c:00.0").unlink()
    (found,) = node.check("gpu-count", context=context)
    assert (found.code, found.status, found.cls, found.action) == (
        "gpu-off-the-bus",
        "critical",
        "hardware/gpu-lost",
        "reboot-node",
    )
    assert found.gpu is not None
    assert found.gpu.uuid == UUIDS[2]


def test_a_device_file_that_is_not_there_is_found(node: Node) -> None:
    (node.root / "dev/nvidia5").unlink()
    assert "/dev/nvidia5" in one(node.check("agreement"), "device-file-missing").summary


@pytest.mark.parametrize("out", ["", "garbage\n", "GPU 0: NVIDIA H100 80GB HBM3\n"])
def test_a_tool_that_says_something_else_is_unknown(node: Node, out: str) -> None:
    node.tool("nvidia-smi", out)
    (found,) = [finding for finding in node.check("agreement") if finding.part == "nvidia-smi"]
    assert found.status == "unknown"


def test_dcgm_counts_where_it_is_there_or_asked_for(node: Node) -> None:
    assert [finding.status for finding in node.check("agreement") if finding.part == "DCGM"] == ["not-applicable"]
    node.settings["dcgm"] = True
    assert [finding.status for finding in node.check("agreement") if finding.part == "DCGM"] == ["unknown"]
    rows = "".join(
        f"| {at}      | Name: NVIDIA H100 80GB HBM3 |\n|        | PCI Bus ID: 00000000:{BUSES[at].upper()}:00.0 |\n|        | Device UUID: {uuid} |\n"
        for at, uuid in enumerate(UUIDS)
    )
    node.tool("dcgmi", f"8 GPUs found.\n+--------+---+\n{rows}+--------+---+\n")
    assert [finding.status for finding in node.check("agreement") if finding.part == "DCGM"] == ["ok"]
    node.tool("dcgmi", "Error: unable to establish a connection to the specified host: localhost\n", 1)
    node.settings["dcgm"] = False
    assert [finding.status for finding in node.check("agreement") if finding.part == "DCGM"] == ["unknown"]


# ---- processes


def test_a_process_that_waits_in_the_driver_is_found_with_its_gpus(node: Node) -> None:
    node.process(4123, "python (x) D", ("/dev/nvidiactl", "/dev/nvidia3", "/dev/nvidia-uvm"), state="D")
    found = one(node.check("processes"), "gpu-process-stuck")
    assert (found.action, found.gpu and found.gpu.uuid) == ("reboot-node", UUIDS[3])
    assert "_nv000123rm" in found.summary


def test_a_zombie_whose_threads_still_hold_a_gpu_is_found(node: Node) -> None:
    node.process(4123, "python", (), state="Z")
    node.file("proc/4123/task/4130/stat", (node.root / "proc/1/stat").read_text())
    (node.root / "proc/4123/task/4130/fd").mkdir()
    (node.root / "proc/4123/task/4130/fd/7").symlink_to("/dev/nvidia2")
    assert one(node.check("processes"), "gpu-process-zombie").part == "pid 4123"


def test_a_zombie_that_the_driver_still_lists_is_found(node: Node) -> None:
    node.plays = "busy=4"
    node.process(91823, "python", (), state="Z")
    found = one(node.check("processes"), "gpu-process-zombie")
    assert found.gpu is not None
    assert found.gpu.index == 4


def test_who_computes_before_a_job_starts_is_told_and_a_monitor_is_not(node: Node) -> None:
    node.process(900, "dcgm-exporter", ("/dev/nvidiactl", *(f"/dev/nvidia{at}" for at in range(8))))
    assert fitness(node.check("processes")) == "ok"
    node.process(901, "python", ("/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia-uvm"))
    assert one(node.check("processes"), "gpu-shared").status == "warning"
    node.settings["exclusive"] = True
    assert one(node.check("processes"), "gpu-in-use").status == "critical"
    assert fitness(node.check("processes", context="running")) == "ok"  # while a job runs that is what should be


# ---- modes, versions


@pytest.mark.parametrize(
    ("settings", "plays", "code"),
    [
        ({"mig": "7"}, "mig=2", "mig-differs"),
        ({"mig": "off"}, "mig=2", "mig-differs"),
        ({"compute_mode": "Exclusive_Process"}, "", "compute-mode-differs"),
    ],
)
def test_a_mode_that_is_not_what_the_site_says_is_found(node: Node, settings: dict[str, str], plays: str, code: str) -> None:
    node.settings |= settings
    node.plays = plays
    assert code in {finding.code for finding in node.check("modes") if finding.status == "critical"}


def test_versions_that_do_not_fit_are_found(node: Node) -> None:
    node.settings["driver"] = "575"
    assert one(node.check("versions"), "version-unexpected").status == "critical"
    node.settings["driver"] = "570"
    assert fitness(node.check("versions")) == "ok"
    node.tool("modinfo", "570.158.01\n")
    assert one(node.check("versions"), "version-upgraded").status == "warning"
    node.file("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  565.57.01  Sun Mar 30\n")
    assert one(node.check("versions"), "version-library-differs").action == "reboot-node"


def test_a_jobs_nodes_are_compared_and_the_odd_one_is_named(node: Node) -> None:
    document = json.loads(FORMATS["json"](node.check("versions"), verbose=False))
    assert [finding.status for finding in compare([document, document])] == ["ok"]
    text = json.dumps(document).replace("570.133.20", "565.57.01").replace("gpu-7", "gpu-9").replace("12.8", "12.7")
    (found,) = compare([document, document, json.loads(text)])
    assert (found.node, found.code) == ("gpu-9", "versions-differ-across-nodes")
    assert "570.133.20 on 2" in found.summary
    assert {finding.node for finding in compare([document, json.loads(text)])} == {"gpu-7", "gpu-9"}
    silent = {"node": "gpu-8", "findings": [{"check": "versions", "status": "unknown"}]}
    assert [(finding.node, finding.status) for finding in compare([document, silent])] == [("gpu-8", "unknown")]
    assert compare([])[0].status == "unknown"


# ---- inventory


def _kept(node: Node, **change: object) -> None:
    document = read_nvml(20, node="gpu-7", env={"LD_LIBRARY_PATH": node.library, "FAKE_NVML": ""})
    kept = inventory(from_nvml(document), boot_id="an earlier one", now=NOW - 86400)
    kept["gpus"][3] |= change
    remember("gpus", kept, folder=node.root / "var/lib/workbench")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"uuid": "GPU-00000000-0000-0000-0000-000000000099"}, "gpu-swapped"),
        ({"pci": "0000:5e:00.0"}, "gpu-moved"),
        ({"serial": "1"}, "gpu-serial-differs"),
    ],
)
def test_what_changed_since_an_earlier_boot_is_told(node: Node, change: dict[str, str], code: str) -> None:
    assert [finding.status for finding in node.check("gpu-inventory")] == ["not-applicable"]  # nothing was kept
    _kept(node)
    assert [finding.status for finding in node.check("gpu-inventory")] == ["ok"]
    _kept(node, **change)
    assert one(node.check("gpu-inventory"), code).gpu is not None


def test_a_gpu_that_is_no_more_here_is_told_with_its_serial_number(node: Node) -> None:
    _kept(node)
    node.plays = "count=7"
    found = one(node.check("gpu-inventory"), "gpu-gone")
    assert found.status == "critical"
    assert "1650000000007" in found.summary


def test_a_damaged_state_is_unknown_and_not_nothing(node: Node) -> None:
    _kept(node)
    (node.root / "var/lib/workbench/gpus.json").write_text('{"schema": "workbench.sta')
    assert [finding.status for finding in node.check("gpu-inventory")] == ["unknown"]


def test_state_is_whole_or_not_there(node: Node) -> None:
    folder = node.root / "state"
    assert recall("gpus", folder=folder) is None
    remember("gpus", {"a": 1}, folder=folder)
    with pytest.raises(TypeError):
        remember("gpus", {"a": object()}, folder=folder)
    assert recall("gpus", folder=folder) == {"schema": "workbench.state.gpus/1", "a": 1}
    assert [path.name for path in folder.iterdir()] == ["gpus.json"]
    with pytest.raises(ValueError, match="no name"):
        remember("../x", {}, folder=folder)


def test_the_links_that_nvidia_smi_prints() -> None:
    text = "GPU 3: Tesla V100-SXM2-32GB (UUID: GPU-7775f835-5e4a-cd4e-363f-000000000003)\n\t Link 0: 25.781 GB/s\n\t Link 3: <inactive>\n"
    assert links_of(text.splitlines()) == [
        (3, "GPU-7775f835-5e4a-cd4e-363f-000000000003", [{"link": 0, "active": True}, {"link": 3, "active": False}])
    ]


def test_no_check_of_these_is_run_twice_under_another_name() -> None:
    assert set(MINE) <= set(checks())
    assert NodeGpus().states == ()


def test_a_processor_that_spins_in_the_driver_is_the_drivers_trouble(node: Node) -> None:
    stall = "watchdog: BUG: soft lockup - CPU#12 stuck for 52s! [nvidia-smi:30112]"
    node.log(stall, "Modules linked in: nvidia(POE) mlx5_ib(OE)", "RIP: 0010:_nv041234rm+0x1b/0x40 [nvidia]")
    found = one(node.check("driver-log"), "driver-lockup")
    assert (found.status, found.cls, found.action) == ("warning", "driver/hang", "reboot-node")
    node.log(stall, "Modules linked in: xfs", "RIP: 0010:xfs_bmapi_read+0x1b/0x40 [xfs]")
    assert {finding.code for finding in node.check("driver-log")} == {""}


def test_a_width_in_the_log_matters_only_where_the_gpu_does_not_tell_its_own(node: Node) -> None:
    node.log("nvidia 0000:4c:00.0: 63.012 Gb/s available PCIe bandwidth, limited by 16.0 GT/s PCIe x4 link at 0000:49:04.0 (capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)")  # fmt: skip
    assert fitness(node.check("pcie")) == "ok"  # the driver says x16 now
