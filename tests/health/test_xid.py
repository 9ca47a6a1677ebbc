"""The xid check: which Xid makes a GPU unfit, which is history, and what nobody can know."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.health.gpu_node import BOOT, NOW, Node, one
from workbench.catalog import findings, skus, xid_rules
from workbench.catalog.xid_rules import XidContext, rule_for
from workbench.errors import CatalogError
from workbench.health import fitness

X = "NVRM: Xid (PCI:0000:{}): "
FELL = X.format("3b:00") + "79, pid=4123, name=python, GPU has fallen off the bus."
MMU = ", name=python, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC6 GPCCLIENT_T1_13 faulted @ 0x6f6f_320c2000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"


def statuses(node: Node) -> list[str]:
    return sorted({finding.status for finding in node.check("xid")})


def test_a_quiet_log_is_ok_and_says_how_far_it_reaches(node: Node) -> None:
    (found,) = node.check("xid")
    assert found.status == "ok"
    assert "the syslog reaches back to the last boot (2026-04-29 13:06Z)" in found.summary


def test_a_gpu_off_the_bus_is_named_with_all_its_names_and_the_rule(node: Node) -> None:
    node.log(FELL)
    found = one(node.check("xid"), "xid-79")
    assert (found.status, found.cls, found.action) == ("critical", "hardware/gpu-lost", "reboot-node")
    assert found.gpu is not None
    assert (found.gpu.index, found.gpu.pci) == (1, "0000:3b:00.0")
    assert any("xid_rules.csv:" in line for line in found.evidence)
    assert found.since == NOW - 3600


def test_in_a_guest_the_same_xid_calls_for_another_machine(node: Node) -> None:
    node.file("proc/cpuinfo", "flags\t\t: fpu hypervisor sse2\n")
    node.log(FELL)
    assert one(node.check("xid"), "xid-79").action == "replace-node"


@pytest.mark.parametrize(
    "after",
    [
        "Linux version 6.8.0-45-generic (buildd@x) #45-Ubuntu SMP",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.133.20  Sun Mar 30 05:06:19 UTC 2025",
    ],
)
def test_a_boot_or_a_driver_that_is_loaded_anew_makes_it_history(node: Node, after: str) -> None:
    node.log(
        (7200, X.format("3b:00") + "119, pid=1, name=x, Timeout after 6s of waiting for RPC response from GPU1 GSP!"),
        (3600, after),
    )
    (found,) = node.check("xid")
    assert found.status == "ok"
    assert "1 older ones were cleared" in found.summary


def test_what_was_logged_before_the_boot_that_the_kernel_tells_is_history(node: Node) -> None:
    node.log((NOW - BOOT + 600, FELL), first=BOOT - 3600)
    assert statuses(node) == ["ok"]


def test_the_driver_that_asks_no_more_clears_what_came_before(node: Node) -> None:
    asked = X.format("3b:00") + "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    done = X.format("3b:00") + "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    timeout = X.format("3b:00") + "119, pid=1, name=x, Timeout after 6s of waiting for RPC response from GPU1 GSP!"
    node.log((300, timeout), (299, asked), (200, done))
    assert statuses(node) == ["ok"]
    # no line of the reset, but NVML says that no recovery is needed: it happened
    node.log((300, timeout), (299, asked))
    assert statuses(node) == ["ok"]
    # a driver that does not tell the recovery action vouches for nothing
    node.plays = "unknown=1"
    assert {found.code for found in node.check("xid")} == {"xid-119", "xid-154"}


def test_an_applications_fault_makes_no_node_unfit(node: Node) -> None:
    node.log(
        *(X.format(f"{bus}:00") + f"31, pid={pid}{MMU}" for pid, bus in enumerate(("19", "3b", "4c", "5d"), 4000)),
        X.format("19:00") + "43, pid=4000, name=python, Ch 00000008",
        X.format("19:00") + "45, pid=4000, name=python, Ch 00000008",
    )
    findings_ = node.check("xid")
    assert fitness(findings_) == "ok"
    assert any("Xid 31" in line for line in findings_[0].evidence)


def test_processes_that_fault_on_one_gpu_only_make_it_a_suspect(node: Node) -> None:
    node.log(*((7200.0 - 1200 * pid, X.format("3b:00") + f"31, pid={4000 + pid}{MMU}") for pid in range(2)))
    assert one(node.check("xid"), "xid-31").status == "warning"
    node.log(*((7200.0 - 1200 * pid, X.format("3b:00") + f"31, pid={4000 + pid}{MMU}") for pid in range(4)))
    found = one(node.check("xid"), "xid-31")
    assert (found.status, found.action, found.cls) == ("critical", "drain", "hardware/gpu-other")


def test_a_job_that_restarts_on_all_gpus_accuses_none(node: Node) -> None:
    lines = [
        (7200.0 - 1200 * turn, X.format(f"{bus}:00") + f"31, pid={4000 + 10 * turn + at}{MMU}")
        for turn in range(5)
        for at, bus in enumerate(("19", "3b", "4c"))
    ]
    node.log(*lines)
    assert statuses(node) == ["ok"]


def test_the_same_unit_in_three_processes_over_days_is_the_gpu(node: Node) -> None:
    node.log(
        *(
            (
                86400.0 * day,
                X.format("3b:00")
                + f"13, pid={int(4000 + 10 * day)}, name=python, Graphics SM Warp Exception on (GPC 2, TPC 1, SM 0): Illegal Instruction Encoding",
            )
            for day in (4.5, 3, 1.5)
        )
    )
    assert one(node.check("xid"), "xid-13").status == "critical"
    node.log(
        *(
            (
                86400.0 * day,
                X.format("3b:00")
                + f"13, pid={int(4000 + 10 * day)}, name=python, Graphics SM Warp Exception on (GPC {int(day)}, TPC 1, SM 0): Out Of Range Address",
            )
            for day in (4.5, 3, 1.5)
        )
    )
    assert statuses(node) == ["ok"]


def test_a_contained_error_is_weighed_by_what_nvml_says_of_the_rows(node: Node) -> None:
    line = X.format("3b:00") + "94, pid=7194, name=python, Contained: SM (0x1). RST: No, D-RST: No"
    node.log(line)
    assert statuses(node) == ["ok"]
    node.plays = "remap=1"
    assert (one(node.check("xid"), "xid-94").status, one(node.check("xid"), "xid-94").action) == ("warning", "reset-gpu")
    node.plays = "remap-failed=1"
    assert (one(node.check("xid"), "xid-94").status, one(node.check("xid"), "xid-94").action) == ("critical", "replace-node")


def test_a_parents_fault_reaches_all_its_instances(node: Node) -> None:
    node.plays = "mig=1"
    node.log(
        X.format("3b:00") + "119, pid=1, name=x, Timeout after 6s of waiting for RPC response from GPU1 GSP!",
        X.format("3b:00 GPU-I:05") + "95, pid=9, name=python, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
    )
    found = node.check("xid")
    parent, instance = one(found, "xid-119"), one(found, "xid-95")
    assert "all 2 MIG instances" in parent.summary
    assert parent.part == ""
    assert instance.part == "MIG instance 5"
    assert any("MIG-00000000-0000-0000-0000-" in line for line in parent.evidence)


def test_an_nvlink_event_is_judged_by_its_words_and_not_by_its_number(node: Node) -> None:
    node.log(
        X.format("3b:00")
        + "145, RLW_REMAP  Nonfatal  XC1 i0 Link -1 (0x00000001 0x80000000 0x00000000 0x00000000 0x00000000 0x00000000)"
    )
    assert statuses(node) == ["ok"]
    node.log(
        X.format("3b:00")
        + "149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 13 (0x0215a5c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"
    )
    assert one(node.check("xid"), "xid-149").cls == "hardware/nvlink"


def test_a_number_that_no_table_knows_is_unknown_unless_the_driver_vouches(node: Node) -> None:
    node.log(X.format("3b:00") + "199, something new")
    assert one(node.check("xid"), "xid-199").status == "warning"
    node.plays = "unknown=1"
    assert one(node.check("xid"), "xid-199").status == "unknown"


def test_a_log_that_begins_after_the_boot_cannot_say_that_nothing_happened(node: Node) -> None:
    node.plays = "unknown=1"
    node.log(first=NOW - 7200)
    (found,) = node.check("xid")
    assert found.status == "unknown"
    assert "2026-05-04 11:06Z only" in found.summary
    node.log(first=NOW - 2 * 86400)  # a day is enough, and what it cannot show is said
    (found,) = node.check("xid")
    assert found.status == "ok"
    assert found.blind == ("Xids before 2026-05-02 13:06Z",)
    node.plays = ""  # the driver itself says of every GPU that nothing is needed
    node.log(first=NOW - 7200)
    assert node.check("xid")[0].status == "ok"


def test_no_log_at_all_is_unknown(node: Node) -> None:
    (node.root / "var/log/kern.log").unlink()
    (found,) = node.check("xid")
    assert (found.status, found.unfit) == ("unknown", True)


def test_a_sites_own_rule_decides_before_ours(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "catalog"
    folder.mkdir()
    head = "code,environment,architecture,driver,remap,repeats,content,status,class,action,why,source,evidence,date\n"
    (folder / "xid_rules_site.csv").write_text(
        head
        + "79,,Hopper,>=570;<580,,,text~fallen,warning,hardware/gpu-lost,replace-node,our vendor swaps these,,recall,2026-05-01\n"
    )
    monkeypatch.setenv("WORKBENCH_CATALOG", str(folder))
    for cache in (xid_rules.xid_rules, findings.findings_table, skus.skus):
        cache.cache_clear()
    try:
        node.log(FELL)
        found = one(node.check("xid"), "xid-79")
        assert (found.status, found.action) == ("warning", "replace-node")
        assert any("xid_rules_site.csv:2" in line for line in found.evidence)
        (folder / "xid_rules_site.csv").write_text(head + "79,,,,,often,,warning,hardware/gpu-lost,drain,x,,recall,\n")
        xid_rules.xid_rules.cache_clear()
        with pytest.raises(CatalogError, match=r"xid_rules_site.csv:2: repeats 'often'"):
            xid_rules.xid_rules()
    finally:
        monkeypatch.undo()
        for cache in (xid_rules.xid_rules, findings.findings_table, skus.skus):
            cache.cache_clear()


def test_every_code_has_a_rule_and_a_condition_that_is_not_known_fulfils_none() -> None:
    assert all(rule_for(XidContext(code)).status in ("ok", "warning", "critical", "unknown") for code in range(1, 1000))
    assert rule_for(XidContext(79, architecture="")).action == "reboot-node"
    assert rule_for(XidContext(63, architecture="V100 SXM2/SXM3 Volta")).why.startswith("a page waits")


@pytest.mark.parametrize(
    ("bound", "driver", "fits"),
    [
        ("<575", "570.133.20", True),
        ("<575", "575.57.08", False),
        (">=570;<575", "570.86", True),
        (">=570;<575", "565.57", False),
        ("<575", "", False),
    ],
)
def test_a_range_of_drivers_is_one_of_branches(bound: str, driver: str, fits: bool) -> None:
    row = {"code": "79", "driver": bound, "status": "ok", "class": "", "action": "none"}
    assert xid_rules._rule(row, "x").fits(XidContext(79, driver=driver)) is fits


def test_explain_names_the_rule_and_what_others_would_do(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from workbench.cli import main
    from workbench.sources.node import world

    node.log(
        X.format("3b:00")
        + "63, pid=1, name=x, Row Remapper: New row (0x0000000000abcdef) marked for remapping, reset gpu to activate."
    )
    node.plays = "remap=1"
    here = world.World(
        "gpu-7", node.root, {"PATH": str(node.tools), "LD_LIBRARY_PATH": node.library, "FAKE_NVML": node.plays}, lambda: NOW
    )
    monkeypatch.setattr(world, "World", lambda **_: here)
    assert main(["check", "xid", "--explain"]) == 1
    out = capsys.readouterr().out
    for text in ("Xid 63", "xid_rules.csv:", "remap pending", "H100 SXM Hopper", "gpud", "AWS", "Row Remapper"):
        assert text in out


def test_only_the_xid_check_can_be_explained(capsys: pytest.CaptureFixture[str]) -> None:
    from workbench.cli import main

    assert main(["check", "gpu-count", "--explain"]) == 78


def test_what_a_reset_does_has_failed_when_the_driver_could_not_bring_the_gpu_up_again(node: Node) -> None:
    timeout = X.format("3b:00") + "119, pid=1, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU1 GSP!"
    failed = "NVRM: GPU 0000:{}.0: RmInitAdapter failed! (0x62:0x40:2393)"
    node.log((300, timeout))
    assert one(node.check("xid"), "xid-119").action == "reset-gpu"
    node.log((300, timeout), (200, failed.format("4c:00")))  # another GPU
    assert one(node.check("xid"), "xid-119").action == "reset-gpu"
    node.log((300, timeout), (200, failed.format("3b:00")))
    assert one(node.check("xid"), "xid-119").action == "reboot-node"
    found = one(node.check("driver-log"), "rm-init-after-hang")
    assert (found.status, found.cls, found.action) == ("critical", "driver/hang", "reboot-node")
    node.log((300, failed.format("3b:00")), (200, timeout))  # it came up in between: no word on what a reset does
    assert one(node.check("xid"), "xid-119").action == "reset-gpu"


def test_a_link_that_vanished_before_the_gpu_did_is_looked_at_and_not_only_rebooted(node: Node) -> None:
    port = "pcieport 0000:3a:00.0: "
    down = [
        port + "AER: Uncorrected (Fatal) error received: 0000:3a:00.0",
        port + "PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)",
        port + "  device [8086:352a] error status/mask=00000020/00100000",
        port + "   [ 5] SDES                   (First)",
    ]
    link = node.root / "sys/bus/pci/devices/0000:3b:00.0"
    link.unlink()
    node.device("0000:3b:00.0", "0x030200", above="0000:3a:00.0")
    node.log(*((301.0, line) for line in down), (300.0, FELL))
    assert one(node.check("xid"), "xid-79").action == "drain"
    node.log(*((1301.0, line) for line in down), (300.0, FELL))  # a quarter of an hour before: another story
    assert one(node.check("xid"), "xid-79").action == "reboot-node"


def test_a_page_that_the_driver_retires_at_the_next_boot_asks_for_that_boot(node: Node) -> None:
    node.log(
        (301, X.format("3b:00") + "48, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer."),
        (300, X.format("3b:00") + "63, Dynamic Page Retirement: New page retired, reboot to activate (0x00000000002ce8ac)."),
    )
    assert {one(node.check("xid"), code).action for code in ("xid-48", "xid-63")} == {"reboot-node"}


def test_of_an_xid_that_only_follows_the_one_before_it_is_named(node: Node) -> None:
    node.log("NVRM: Xid (PCI:0000:3b:00): 45, pid=7, name=python, Ch 00000001 caused by previous Xid 149")
    (found,) = [each for each in node.check("xid") if each.code == "xid-45"]
    assert found.summary.startswith("Xid 45 after Xid 149: ")
    assert "explain xid:149" in found.hint


def test_a_page_that_cannot_be_retired_tells_that_the_gpu_has_no_rows_to_remap(node: Node) -> None:
    node.log(X.format("3b:00") + "64, pid=1, name=x, Dynamic Page Retirement: Blacklisting failed.")
    assert one(node.check("xid"), "xid-64").action == "replace-node"
    node.log(X.format("3b:00") + "64, pid=1, name=x, Row Remapper: New row (0x1) could not be recorded.")
    assert one(node.check("xid"), "xid-64").action == "reset-gpu"
