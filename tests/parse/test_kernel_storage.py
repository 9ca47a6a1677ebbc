"""Disks and network block devices: what failed first, and what only follows it; and stamps that tools leave in front of lines."""

from __future__ import annotations

import pytest

from workbench import catalog
from workbench.model import Event, Line
from workbench.parse.kernel import parse_kernel


def _parse(text: str, node: str | None = "node-a") -> list[Event]:
    return parse_kernel([Line(number, row) for number, row in enumerate(text.splitlines(), 1)], file="k", node=node).events


def _role(event: Event) -> str:
    return event.role or catalog.signatures()[event.signature].role


def test_a_bad_sector_comes_before_its_file_system() -> None:
    events = _parse(
        "[  10.000000] ata3.00: exception Emask 0x0 SAct 0x7000000 SErr 0x0 action 0x0\n"
        "[  10.000001] ata3.00: failed command: READ FPDMA QUEUED\n"
        "[  10.000002] ata3.00: error: { UNC }\n"
        "[  10.000003] blk_update_request: I/O error, dev sda, sector 211204096 op 0x0:(READ)\n"
        "[  10.500000] EXT4-fs error (device sda2): ext4_journal_check_start:83: Detected aborted journal\n"
        "[  10.600000] EXT4-fs (sda2): Remounting filesystem read-only\n"
    )
    assert [(event.signature, _role(event)) for event in events] == [
        ("ata-error", "cause"),
        ("disk-io-error", "cause"),
        ("fs-shutdown", "symptom"),
        ("fs-readonly", "symptom"),
    ]
    assert events[0].weight == 0.85
    assert events[0].data["error"] == "UNC"


def test_a_time_out_alone_weighs_little() -> None:
    (event,) = _parse("[  10.000000] ata1.00: exception Emask 0x0 SAct 0x0 SErr 0x0 action 0x6 frozen\n")
    assert event.weight == 0.4


def test_network_block_devices_are_storage() -> None:
    events = _parse(
        "[  716.124843] rbd: rbd2: read at objno 4 593920~4096 result -108\n"
        "[  716.124869] blk_update_request: I/O error, dev rbd2, sector 33928 op 0x0:(READ)\n"
        "[  716.130871] EXT4-fs error (device rbd2): __ext4_find_entry:1683: reading directory lblock 0\n"
    )
    rows = catalog.signatures()
    assert [(event.cls or rows[event.signature].cls) for event in events] == ["platform/storage"] * 3
    assert _role(events[0]) == "cause"
    assert _role(events[2]) == "symptom"


@pytest.mark.parametrize(
    ("task", "cls"),
    [("xfsaild/rbd0", "platform/storage"), ("jbd2/sda2-8", "platform/storage"), ("kworker/u64:2+flush-8:0", "platform/storage"),
     ("python", None), ("loopback-test", None)],
)  # fmt: skip
def test_threads_that_only_write_tell_what_hangs(task: str, cls: str | None) -> None:
    (event,) = _parse(f"[  716.124843] INFO: task {task}:13639 blocked for more than 120 seconds.\n")
    assert event.cls == cls


def test_an_nvme_reset_makes_its_time_outs_count() -> None:
    events = _parse(
        "[  265.311275] nvme nvme1: I/O 775 QID 2 timeout, aborting\n"
        "[  265.311382] nvme nvme1: I/O 779 QID 2 timeout, aborting\n"
        "[  296.031777] nvme nvme1: I/O 775 QID 2 timeout, reset controller\n"
    )
    assert events[0].line == 1
    assert _role(events[0]) == "cause"
    assert events[0].cls == "platform/storage"
    assert _role(_parse("[  265.311275] nvme nvme1: I/O 775 QID 2 timeout, aborting\n")[0]) == "context"


def test_nvme_errors_of_newer_kernels() -> None:
    """From 5.19 on the operation and the status are spelled out."""
    (event,) = _parse("[  1.000000] nvme0n1: Read(0x2) @ LBA 234, 8 blocks, Unrecovered Read Error (sct 0x2 / sc 0x81) DNR\n")
    assert event.signature == "nvme-io-error"
    assert event.data["sct"] == "2"


@pytest.mark.parametrize(
    ("line", "node"),
    [
        ("messages:Jun 17 20:18:08 gpu-7 kernel: INFO: task x:78808 blocked for more than 120 seconds.", "gpu-7"),
        ("/var/log/kern.log.1:4711:Jun 17 20:18:08 gpu-7 kernel: INFO: task x:78808 blocked for more than 120 seconds.", "gpu-7"),
        ("> Jun 17 20:18:08 gpu-7 kernel: INFO: task x:78808 blocked for more than 120 seconds.", "gpu-7"),
        ("20:18:08  INFO: task x:78808 blocked for more than 120 seconds.", "node-a"),
    ],
)
def test_what_grep_and_people_leave_in_front(line: str, node: str) -> None:
    (event,) = _parse(line)
    assert (event.signature, event.node) == ("hung-task", node)


def test_notes_that_put_the_number_first() -> None:
    events = _parse("19:15:34  Xid 31 PCI:0000:f0:00 pid=477448\nXID 79 on GPU 0000:3b:00.0\n")
    assert [(event.signature, event.gpu.pci if event.gpu else None) for event in events] == [
        ("xid-31", "0000:f0:00.0"),
        ("xid-79", "0000:3b:00.0"),
    ]


def test_a_crash_report_names_its_gpu() -> None:
    events = _parse(
        "[ 1.0] NVRM: kgspHealthCheck_TU102: ***** GSP-CrashCat Report *****\n"
        "[ 1.0] NVRM: GPU at PCI:0000:02:00: GPU-751acba2-df95-76f6-5914-000000000001\n"
    )
    assert events[0].signature == "gsp-crash"
    assert events[0].gpu is not None
    assert events[0].gpu.pci == "0000:02:00.0"


def test_the_status_word_tells_a_corrected_machine_check() -> None:
    first = _parse("[  1.000000] mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: cc00008000010092\n")
    second = _parse("[  1.000000] mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: be00000000800400\n")
    assert (first[0].signature, second[0].signature) == ("mce-corrected", "mce-uncorrected")
