"""Kernel logs become events with the right code, device, time and boot."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.model import Event, Line, Parsed
from workbench.parse.kernel import parse_kernel

DATA = Path(__file__).parents[1] / "data" / "kernel"


def log(text: str, **options: object) -> Parsed:
    lines = [Line(number, line) for number, line in enumerate(text.splitlines(), start=1)]
    return parse_kernel(lines, file="kernel.log", **options)  # type: ignore[arg-type]


def data(name: str, **options: object) -> Parsed:
    return log((DATA / name).read_text(encoding="utf-8"), **options)


def one(parsed: Parsed, signature: str) -> Event:
    found = [event for event in parsed.events if event.signature == signature]
    assert len(found) == 1, [event.signature for event in parsed.events]
    return found[0]


def utc(*parts: int) -> float:
    return dt.datetime(*parts, tzinfo=dt.UTC).timestamp()  # type: ignore[misc,arg-type]


BODIES = [
    ("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", 79, None),
    ("NVRM: Xid (PCI:0000:3b:00): 79, pid=0, GPU has fallen off the bus.", 79, None),
    ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", 79, None),
    ("NVRM: Xid (PCI:0000:3b:00.0): 43, pid=4123, name=pt_main_thread, Ch 00000008", 43, 4123),
    ("NVRM: Xid (PCI:0000:3b:00): 45, pid=..., name=python, Ch 00000010", 45, None),
    ("NVRM: Xid (0000:3b:00): 31, Ch 00000010, engmask 00000111, intr 10000000", 31, None),
    (
        "NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=7194, name=python, Contained: CE User Channel (0x9). RST: No, D-RST: No",
        94,
        7194,
    ),
    ("NVRM: Xid (PCI:0000:3b:00): 62, 323f0f30 0000c3d8 00000000 206dae68", 62, None),
    ("NVRM: Xid (PCI:0000:3b:00): 32, pid=99, Channel ID 00000010 intr0 00040000", 32, 99),
    (
        "NVRM: Xid (PCI:0000:3b:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004 0x00000000 0x00000000",
        145,
        None,
    ),
    ("NVRM: Xid (PCI:0000:3b:00: 48, pid=12, DBE (double bit error) ECC Error", 48, 12),
    ("NVRM: Xid (PCI:0000:3b:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149", 45, 1818990),
]
STAMPS = [
    "",
    "[ 1234.567890] ",
    "[ 130.456250] [ T1946] ",
    "[Sat Jun  7 15:34:26 2025] ",
    "[Sat Jun  7 15:34:26] ",
    "[sam. juin  7 15:34:26 2025] ",
    "[  +0.000049] ",
    "kern  :err   : 2025-06-07T15:34:26,859532+00:00 ",
    "4,1812,1234567890,-;",
    "<4>[ 1234.567890] ",
    "Jun  7 15:34:26 gpu-1 kernel: ",
    "Jun  7 15:34:26 gpu-1 kernel: [ 1234.567890] ",
    "2025-06-07T15:34:26.845859+0000 gpu-1 kernel: ",
    "kernel: ",
    "Dez 07 15:34:26 gpu-1 kernel: ",
    "10.0.0.5: kern: warning: [1749310466]: ",
    "gpu-1: [ 1234.567890] ",
    "gpu-1: ",
]


@given(st.sampled_from(STAMPS), st.sampled_from(BODIES), st.integers(1, 176))
@settings(max_examples=120, deadline=None)
def test_every_xid_body_is_read_behind_every_stamp(stamp: str, body: tuple[str, int, int | None], code: int) -> None:
    """Code, GPU and process do not depend on who stamped the line."""
    text, printed, pid = body
    event = log(stamp + text.replace(f"): {printed},", f"): {code},")).events[0]
    expected = code if f"): {printed}," in text else printed
    assert (event.signature, event.code) == (f"xid-{expected}", expected)
    assert event.gpu is not None
    assert event.gpu.pci == "0000:3b:00.0"
    assert event.pid == pid


@given(st.text(max_size=400), st.text(max_size=80))
@settings(max_examples=80, deadline=None)
def test_any_text_is_survived(one_line: str, other: str) -> None:
    """Junk in, no exception out, whatever surrounds the words that rules look for."""
    log(
        f"{one_line}\n[ 1.5] {other}NVRM: Xid (PCI:{one_line}\n{other} invoked oom-killer: {one_line}\nAER: "
        f"{other}\nSXid (PCI:{other}"
    )


def test_a_folded_xid_is_joined() -> None:
    """A line without stamp in a stamped log continues the one before, even when it was cut inside the address."""
    parsed = log(
        "[ 10.000001] NVRM: Xid (PCI:0000:3b:00): 31, pid=77, name=python, Ch 00000008, intr 00000000. MMU Fault: "
        "ENGINE GRAPHICS\n"
        "             GPCCLIENT_T1_0 faulted @ 0x7f3a_00000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ\n"
        "[ 11.000001] NVRM: Xid (PCI:0000:\n"
        "5e:00): 79, GPU has fallen off the bus.\n"
    )
    fault, loss = parsed.events
    assert (fault.data["engine"], fault.data["access"], fault.data["client"]) == (
        "GRAPHICS",
        "ACCESS_TYPE_VIRT_READ",
        "GPCCLIENT_T1_0",
    )
    assert (loss.code, loss.gpu.pci if loss.gpu else None, loss.line) == (79, "0000:5e:00.0", 3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", ("symptom", "reboot-node")),
        ("154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", ("context", "none")),
        ("154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", ("symptom", "reset-gpu")),
        ("154, GPU recovery action changed from 0x0 (None) to 0x1", ("symptom", "reset-gpu")),
    ],
)
def test_a_154_says_what_it_asks_for(text: str, expected: tuple[str, str]) -> None:
    """The action after `to` decides; back to None is no fault."""
    event = log(f"NVRM: Xid (PCI:0000:3b:00): {text}").events[0]
    assert (event.role, event.data["remediation"]) == expected


def test_details_of_single_codes_are_read() -> None:
    """119 names function and seconds, 64 the row, 13 the unit, 94 containment."""
    parsed = log(
        "NVRM: Xid (PCI:0000:9b:00): 119, pid=20, name=nvidia-smi, Timeout after 6s of waiting for RPC response "
        "from GPU4 GSP! Expected function 103 (GSP_RM_ALLOC) (0x2081 0x4).\n"
        "NVRM: Xid (PCI:0000:9b:00): 64, pid='<unknown>', name=<unknown>, Row Remapper Error: (0x00000002eebc4100) "
        "- All reserved rows for bank are remapped\n"
        "NVRM: Xid (PCI:0000:9b:00): 63, Row Remapper: New row (0x00000002eebc4101) marked for remapping, reset gpu "
        "to activate.\n"
        "NVRM: Xid (PCI:0000:9b:00): 13, pid=9, Graphics SM Warp Exception on (GPC 9, TPC 1, SM 1): Out Of Range Address\n"
        "NVRM: Xid (PCI:0000:9b:00 GPU-I:05): 94, Contained: CE User Channel (0x9). RST: No, D-RST: No\n"
    )
    rpc, failed, pending, trap, contained = (event.data for event in parsed.events)
    assert (rpc["seconds"], rpc["function"], rpc["function_name"], rpc["rm_gpu"]) == (6, 103, "GSP_RM_ALLOC", 4)
    assert (failed["remap"], failed["address"], pending["remap"]) == ("failed", "0x00000002eebc4100", "pending")
    assert (trap["sm"], trap["exception"]) == ("GPC9/TPC1/SM1", "Out Of Range Address")
    assert (contained["mig"], contained["contained"], contained["drain_reset"]) == ("5", True, False)


def test_nvlink_words_are_decoded() -> None:
    """The sub-code moved in R575; the severity word in the line decides the role; register bits of 74 tell fault from echo."""
    parsed = log(
        "NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x004005c6 0x00000000 0x00000000)\n"
        "NVRM: Xid (PCI:0009:01:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x00000007 0x00000002 0x00000000)\n"
        "NVRM: Xid (PCI:0009:01:00): 74, pid=1, NVLink: fatal error detected on link 7(0x10, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)\n"
        "NVRM: Xid (PCI:0009:01:00): 74, pid=1, NVLink: fatal error detected on link 8(0x0, 0x0, 0x0, 0x10000, 0x0, 0x0, 0x0)\n"
    )
    link, minor, ecc, echo = parsed.events
    assert (link.role, link.cls, link.data["link"], link.data["layout"], link.data["action"]) == (
        "cause", "hardware/nvlink", 1, "before-r575", "RESET_GPU",
    )  # fmt: skip
    assert (minor.role, minor.data["layout"], minor.data["fatal"]) == ("context", "r575", False)
    assert (ecc.role, ecc.data["bits"][0][0], ecc.data["words"][0]) == (None, "ecc", "0x10")
    assert (echo.role, echo.data["link"]) == ("symptom", 8)


def test_a_consequence_stands_for_a_cause_that_left_the_log() -> None:
    """`caused by previous Xid N` counts as N when N itself is not in the log, and as itself when it is."""
    alone = log("NVRM: Xid (PCI:0000:dc:00): 45, pid=18, name=python3, Ch 00000001 caused by previous Xid 149")
    assert (alone.events[0].role, alone.events[0].cls, alone.events[0].data["caused_by"]) == ("cause", "hardware/nvlink", 149)
    both = log(
        "NVRM: Xid (PCI:0000:dc:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 13 (0x000a6000 0x00000000)\n"
        "NVRM: Xid (PCI:0000:dc:00): 45, pid=18, name=python3, Ch 00000001 caused by previous Xid 149"
    )
    assert both.events[1].role is None


def test_a_loss_without_a_number_is_found() -> None:
    """The notice of a lost GPU spans three lines, folded or each with its stamp."""
    folded = log(
        "[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0\n               NVRM: (PCI ID: 10de:26b5) installed in "
        "this system has\n"
        "               NVRM: fallen off the bus and is not responding to commands.\n[ 1843.439662] NVRM: The "
        "NVIDIA probe routine failed for 1 device(s).\n"
    )
    stamped = log(
        "[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0\n[ 1843.308146] NVRM: (PCI ID: 10de:26b5) installed in "
        "this system has\n"
        "[ 1843.308147] NVRM: fallen off the bus and is not responding to commands.\n"
    )
    for parsed in (folded, stamped):
        event = one(parsed, "gpu-off-bus")
        assert (event.line, event.gpu.pci if event.gpu else None) == (1, "0000:b3:00.0")
        assert "The NVIDIA GPU" in event.text


def test_a_flood_is_one_event() -> None:
    """Thousands of equal lines within seconds are counted, not kept."""
    line = "[ 100.{:06d}] NVRM: nvCheckOkFailedNoLog: Check failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F)"
    event = one(log("\n".join(line.format(number) for number in range(3000))), "gpu-lost-assert")
    assert event.count == 3000


def test_ordinary_messages_give_nothing() -> None:
    """A healthy node's log holds words such as error, failed and timeout all day."""
    assert data("noise.txt").events == []


def test_two_boots_and_a_turn_of_the_year() -> None:
    """The uptime that starts again is a new boot; dates without a year get it from messages that carry an epoch."""
    parsed = data("two-boots-syslog.txt", node="gpu-11")
    before, loss = one(parsed, "xid-13"), one(parsed, "xid-79")
    assert (before.data["boot"], loss.data["boot"]) == (0, 1)
    # the audit line shows that this clock is one hour east of UTC
    assert parsed.facts["tz_offset"] == 3600.0
    assert before.time == utc(2026, 12, 31, 22, 58, 10)
    assert loss.time == utc(2026, 12, 31, 23, 31, 0)
    assert [line for _, line in parsed.facts["boots"]] == [1, 3]
    assert parsed.facts["driver"] == "550.90.07"
    assert loss.gpu is not None
    assert loss.gpu.uuid == "GPU-0a0b0c0d-1111-2222-3333-444455556666"


def test_the_reference_settles_the_year() -> None:
    """With nothing else, the year is the one nearest to the moment the caller knows; without that there is no time."""
    text = "Dec 30 10:00:00 gpu-1 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    assert log(text, reference=utc(2026, 1, 2)).events[0].time == utc(2025, 12, 30, 10)
    alone = log(text)
    assert alone.events[0].time is None
    assert alone.facts["naive_local"] is True


def test_uptime_becomes_wall_time_by_a_line_that_has_both() -> None:
    """The real-time clock's line ties uptime to wall time; a machine check names its own second."""
    parsed = log(
        "[    3.000000] rtc_cmos 00:01: setting system clock to 2025-06-07T15:34:29 UTC (1749310469)\n"
        "[  103.500000] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    )
    assert parsed.events[0].time == pytest.approx(1749310569.5)
    crash = log(
        "Panic#1 Part1\n"
        "<0>[5984266.666476] mce: [Hardware Error]: CPU 20: Machine Check Exception: 5 Bank 6: be00000000800400\n"
        "<0>[5984266.866776] mce: [Hardware Error]: PROCESSOR 0:806f8 TIME 1752636816 SOCKET 1 APIC d0 microcode 2b000603\n"
        "<0>[5984267.666976] Kernel panic - not syncing: Fatal machine check\n"
    )
    assert crash.facts["pstore"] is True
    assert one(crash, "mce-fatal").data["uncorrected"] is True
    panic = one(crash, "kernel-panic")
    assert (panic.cls, panic.time) == ("hardware/host", pytest.approx(1752636816.8, abs=0.1))


def test_an_oom_report_is_one_event() -> None:
    """Who asked, who died, which group and which pod: one event over the whole report."""
    parsed = data("oom-in-pod.txt", node="gpu-07")
    event = one(parsed, "oom-kill-cgroup")
    assert (event.line, event.pid, event.data["task"], event.data["invoker"]) == (1, 551102, "python", "pt_data_worker")
    assert event.data["pod_uid"] == "0a1b2c3d-1111-2222-3333-444455556666"
    assert (event.data["also_killed"], event.data["limit_kb"], event.data["anon_rss_kb"]) == ([551103], 67108864, 48045240)
    assert "Killed process 551102" in event.text
    assert event.role is None
    assert len(parsed.events) == 1


SERVICE_FULL = (
    "[ 1.5] agent invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n"
    "[ 1.6] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,mems_allowed=0,"
    "oom_memcg=/system.slice/agent.service,task_memcg=/system.slice/agent.service,task=agent,pid=4123,uid=0\n"
    "[ 1.7] Memory cgroup out of memory: Killed process 4123 (agent) total-vm:9kB, anon-rss:5kB"
)


@pytest.mark.parametrize(
    ("text", "signature", "role"),
    [
        (
            "[ 1.5] Out of memory: Killed process 4123 (python) total-vm:981226948kB, anon-rss:512211332kB",
            "oom-kill-global",
            None,
        ),
        ("[ 1.5] Memory cgroup out of memory: Killed process 4123 (python) total-vm:9kB, anon-rss:5kB", "oom-kill-cgroup", None),
        ("[ 1.5] Out of memory: Kill process 4123 (python) score 985 or sacrifice child", "oom-kill-global", None),
        (
            SERVICE_FULL,
            "oom-kill-cgroup",
            "context",
        ),
    ],
)
def test_group_and_node_are_told_apart(text: str, signature: str, role: str | None) -> None:
    """A service that fills its own group says nothing about the job."""
    event = one(log(text), signature)
    assert (event.pid, event.role) == (4123, role)


def test_an_aer_report_names_the_gpu_below_the_port() -> None:
    """Fatal, surprise down, and the driver then says which GPU is gone: the port's error is that GPU's loss."""
    parsed = data("aer-surprise-down.txt")
    event = one(parsed, "aer-uncorrected-fatal")
    assert (event.line, event.data["port"], event.data["surprise_down"]) == (1, "0000:16:00.0", True)
    assert event.gpu is not None
    assert (event.gpu.pci, event.cls) == ("0000:17:00.0", "hardware/gpu-lost")
    assert "PCIe Bus Error" in event.text
    assert event.gpu.uuid == "GPU-11111111-2222-3333-4444-555555555555"


def test_old_aer_agents_are_decoded() -> None:
    """Kernels before 4.17 print the agent as a 16-bit number."""
    event = log("[ 1.000001] pcieport 0000:00:02.0: AER: Corrected error received: id=3a08").events[0]
    assert (event.signature, event.data["device"]) == ("aer-corrected", "0000:3a:01.0")


def test_a_narrow_link_names_gpu_and_port() -> None:
    """Lanes lost below a port: the GPU is slowed; the port's own corrected errors are then of that GPU."""
    parsed = log(
        "[ 9.000000] pcieport 0000:49:04.0: AER: Corrected error received: 0000:49:04.0\n"
        "[ 10.000000] nvidia 0000:4c:00.0: 63.012 Gb/s available PCIe bandwidth, limited by 16.0 GT/s PCIe x4 link "
        "at 0000:49:04.0 (capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)\n"
        "[ 11.000000] mlx5_core 0000:5e:00.0: 126.0 Gb/s available PCIe bandwidth, limited by 16.0 GT/s PCIe x8 "
        "link at 0000:5d:00.0 (capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)\n"
    )
    port, slow, card = parsed.events
    assert (port.gpu.pci if port.gpu else None) == "0000:4c:00.0"
    assert (slow.gpu.pci if slow.gpu else None, slow.data["width"], slow.data["fraction"], slow.role) == (
        "0000:4c:00.0",
        4,
        0.125,
        None,
    )
    assert (card.gpu, card.role) == (None, "context")


def test_a_port_that_comes_back_tells_how_long_it_was_down() -> None:
    """A flap shorter than transport retries weighs little; a management port weighs nothing."""
    parsed = log(
        "2026-03-01T10:00:00.000000+00:00 gpu-1 kernel: mlx5_core 0000:4f:00.0 ens5f0np0: Link down\n"
        "2026-03-01T10:02:15.500000+00:00 gpu-1 kernel: mlx5_core 0000:4f:00.0 ens5f0np0: Link up\n"
        "2026-03-01T11:00:00.000000+00:00 gpu-1 kernel: mlx5_core 0000:4f:00.0 ens5f0np0: Link down\n"
        "2026-03-01T11:00:02.000000+00:00 gpu-1 kernel: mlx5_core 0000:4f:00.0 ens5f0np0: Link up\n"
        "2026-03-01T12:00:00.000000+00:00 gpu-1 kernel: igb 0000:01:00.0 eno1: igb: eno1 NIC Link is Down\n"
        "2026-03-01T13:00:00.000000+00:00 gpu-1 kernel: mlx5_core 0000:5e:00.0: Port module event: module 0, Cable unplugged\n"
    )
    down = [event for event in parsed.events if event.signature == "nic-link-down"]
    assert [event.data.get("down_seconds") for event in down] == [135.5, 2.0, None]
    assert [event.role for event in down] == [None, None, "context"]
    assert down[1].weight is not None
    assert down[1].weight < 0.5
    assert down[0].data["port"] == "ens5f0np0"
    assert one(parsed, "nic-cable-unplugged").data["device"] == "0000:5e:00.0"


def test_a_stack_tells_what_a_task_waits_for() -> None:
    """Frames of the NVIDIA driver make a hang; frames of a file system make a wait for storage."""
    driver, storage = (event for event in data("hung-in-driver.txt").events if event.signature == "hung-task")
    assert (driver.pid, driver.data["nvidia_stack"], driver.cls, driver.line) == (30991, True, "driver/hang", 1)
    assert (storage.pid, storage.cls, storage.role) == (41000, "platform/storage", "symptom")


def test_switch_lines_come_together() -> None:
    """Main, Severity and Data line of an SXid are one event whose role follows the word in the line."""
    fatal, minor = data("switch-triples.txt").events
    assert (fatal.signature, fatal.role, fatal.data["link"], fatal.data["severity"], len(fatal.data["words"])) == (
        "sxid-22003",
        "cause",
        43,
        1,
        3,
    )
    assert (minor.signature, minor.role, minor.data["fatal"], minor.data["switch"]) == ("sxid-24007", "context", False, 2)
    lone = log(
        "kern  :err   : 2025-01-25T10:34:54,859532+00:00 nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 12028, Data "
        "{0x000001c0, 0x00bd5c8a}"
    )
    assert lone.events[0].code == 12028


def test_both_versions_of_a_mismatch_are_read() -> None:
    """The message goes on in the next line."""
    event = one(
        log(
            "[ 5.000001] NVRM: API mismatch: the client has the version 550.144.03, but\n"
            "[ 5.000002] NVRM: this kernel module has the version 550.90.07.  Please\n"
            "[ 5.000003] NVRM: make sure that this kernel module and all NVIDIA driver\n"
        ),
        "nvidia-api-mismatch",
    )
    assert (event.data["client"], event.data["module"]) == ("550.144.03", "550.90.07")


def test_a_storm_of_corrected_memory_errors_is_more_than_a_trend() -> None:
    """Single corrected errors are context; ten within seconds are a fault."""
    line = "[ {}.5] EDAC MC0: 3 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x1 offset:0x0)"
    assert one(log(line.format(10)), "edac-ce").data["errors"] == 3
    storm = one(log("\n".join(line.format(second) for second in range(10, 15))), "edac-ce-storm")
    assert (storm.count, storm.data["errors"], storm.data["dimm"]) == (5, 15, "CPU_SrcID#0_MC#0_Chan#1_DIMM#0")


def test_a_server_that_comes_back_closes_its_gap() -> None:
    """Repeated reports count onto the first; the answer gives the length."""
    parsed = log(
        "2026-03-01T10:00:00+00:00 gpu-1 kernel: nfs: server 10.0.0.21 not responding, still trying\n"
        "2026-03-01T10:01:00+00:00 gpu-1 kernel: nfs: server 10.0.0.21 not responding, still trying\n"
        "2026-03-01T10:13:14+00:00 gpu-1 kernel: nfs: server 10.0.0.21 OK\n"
    )
    event = one(parsed, "nfs-not-responding")
    assert (event.count, event.data["down_seconds"]) == (2, 794.0)


def test_unmapped_address_space_counts_when_the_gpu_fails() -> None:
    """BAR messages are ordinary at boot unless the device is a GPU that then does not start."""
    parsed = log(
        "[ 0.4] pci 0000:13:00.0: BAR 1: failed to assign [mem size 0x1000000000 64bit pref]\n"
        "[ 0.5] pci 0000:14:00.0: BAR 1: failed to assign [mem size 0x100000 64bit pref]\n"
        "[ 4.9] NVRM: GPU 0000:13:00.0: RmInitAdapter failed! (0x24:0xffff:1211)\n"
        "[ 4.95] NVRM: GPU 0000:13:00.0: rm_init_adapter failed, device minor number 0\n"
    )
    gpu, other = (event for event in parsed.events if event.signature == "pci-bar-unassigned")
    assert (gpu.role, other.role) == ("cause", None)
    failed = one(parsed, "rm-init-failed")
    assert (failed.count, failed.data["minor"], failed.data["code"]) == (2, 0, "0x24:0xffff:1211")


def test_a_host_in_the_line_wins_over_the_file() -> None:
    """One file may hold several nodes; a short name is the same node as the full one."""
    text = "gpu-1: [ 1.5] NVRM: Xid (PCI:0000:3b:00): 79, GPU lost\ngpu-2: [ 2.5] NVRM: Xid (PCI:0000:3b:00): 79, GPU lost"
    assert [event.node for event in log(text, node="gpu-1.cluster.local").events] == ["gpu-1.cluster.local", "gpu-2"]


def test_deltas_keep_the_order_of_time() -> None:
    """dmesg -H gives each minute once and then differences."""
    parsed = log(
        "[Jun 7 15:34] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024\n"
        "[ +12.500000] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n",
        reference=utc(2025, 6, 8),
    )
    assert one(parsed, "xid-79").time == utc(2025, 6, 7, 15, 34, 12) + 0.5


def test_numbers_of_thousands_of_digits_cost_only_their_line() -> None:
    """Damaged and hostile lines become a problem; the next line is still read."""
    digits = "9" * 5000
    parsed = log(
        f"[ 1.5] NVRM: Xid (PCI:0000:3b:00): 31, pid={digits}, name=x\n"
        f"6,1,{digits},-;NVRM: x\n[{digits}] x\n"
        f"[ 2.5] systemd[1]: Out of memory: Killed process {digits} (x)\n"
        "[ 3.5] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    )
    assert one(parsed, "xid-79").line == 5


def test_several_nodes_in_one_file_keep_their_own_boots() -> None:
    """Interleaved uptimes of two nodes are not restarts."""
    parsed = log(
        "gpu-1: [ 9000.500000] NVRM: Xid (PCI:0000:3b:00): 13, a\n"
        "gpu-2: [   10.500000] NVRM: Xid (PCI:0000:3b:00): 79, GPU lost\n"
        "gpu-1: [ 9001.500000] NVRM: Xid (PCI:0000:3b:00): 43, b\n"
    )
    assert [(event.node, event.data["boot"], event.line) for event in parsed.events] == [
        ("gpu-1", 0, 1),
        ("gpu-2", 0, 2),
        ("gpu-1", 0, 3),
    ]


@pytest.mark.parametrize("heading", ["gpu-2 | CHANGED | rc=0 >>\n", "----------------\ngpu-2\n----------------\n"])
def test_a_heading_names_the_node_below(heading: str) -> None:
    """Ansible, dshbak and clush -b print node after node."""
    parsed = log(f"{heading}[ 10.500000] NVRM: Xid (PCI:0000:3b:00): 79, GPU lost\n")
    assert parsed.events[0].node == "gpu-2"


def test_an_address_gives_way_to_the_name_that_the_caller_knows() -> None:
    """Talos prints the node's address."""
    parsed = log("10.0.0.5: kern: err: [2026-01-01T00:00:00Z]: NVRM: Xid (PCI:0000:3b:00): 79, GPU lost", node="gpu-2")
    assert parsed.events[0].node == "gpu-2"


def test_nodes_of_one_file_share_the_zone_that_one_of_them_tells() -> None:
    parsed = log(
        'node-a: [Tue Jun  3 22:00:00 2025] audit: type=1400 audit(1748980800.100:12): apparmor="STATUS"\n'
        "node-a: [Tue Jun  3 22:00:05 2025] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
        "node-b: [Tue Jun  3 22:00:07 2025] NVRM: Xid (PCI:0000:4c:00): 48, An uncorrectable double bit error (DBE) has been detected\n"
    )
    assert one(parsed, "xid-79").time == utc(2025, 6, 3, 20, 0, 5)
    assert one(parsed, "xid-48").time == utc(2025, 6, 3, 20, 0, 7)
    assert parsed.facts["tz_offset"] == 7200.0
    assert "naive_local" not in parsed.facts
