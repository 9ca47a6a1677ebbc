"""Lines that other tools wrote into a job's log are read by the parsers of those tools: kernel messages, a prolog's diag, nvidia-smi."""

from __future__ import annotations

from workbench.catalog import signatures
from workbench.model import Event, Line, Parsed
from workbench.parse.job import parse_job

STEPS = [f"[rank0]: 2025-03-01 11:18:{second:02d} step {second} loss 2.0" for second in range(10, 20)]


def _parse(*lines: str) -> Parsed:
    return parse_job([Line(no, text) for no, text in enumerate([*STEPS, *lines], 1)], file="logs/job.log", year=2025)


def _named(parsed: Parsed, signature: str) -> Event:
    found = [event for event in parsed.events if event.signature == signature]
    assert found, [event.signature for event in parsed.events]
    return found[0]


def test_wall_broadcast_is_of_the_node_that_it_names_and_of_its_time() -> None:
    parsed = _parse(
        "Message from syslogd@node-b at Mar  1 11:19:02 ...",
        " kernel:[Hardware Error]: CPU 52: Machine Check Exception: 5 Bank 7: be00000000010090",
        "",
        "Message from syslogd@node-b at Mar  1 11:19:02 ...",
        " kernel:NVRM: Xid (PCI:0000:5d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    )
    check = _named(parsed, "mce-fatal")
    assert (check.node, check.line, check.source) == ("node-b", 12, "kernel")
    assert check.text.startswith(" kernel:[Hardware Error]")
    assert check.time == 1740827942.0
    lost = _named(parsed, "xid-79")
    assert lost.gpu is not None
    assert (lost.gpu.pci, lost.code, lost.node) == ("0000:5d:00.0", 79, "node-b")


def test_wrappers_dmesg_has_its_own_times_and_the_pid_finds_the_node() -> None:
    parsed = _parse(
        "[wrapper] $ dmesg -T | tail -n 2",
        "[Sat Mar  1 11:19:30 2025] NVRM: Xid (PCI:0000:5d:00): 119, pid=508, name=python, Timeout after 45s of waiting for RPC "
        "response from GPU3 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20801702 0x4).",
        "mpirun noticed that process rank 3 with PID 508 on node node-k exited on signal 6 (Aborted).",
    )
    event = _named(parsed, "xid-119")
    assert event.pid == 508
    assert event.time == 1740827970.0
    assert event.gpu is not None
    assert event.gpu.pci == "0000:5d:00.0"


def test_kernel_line_behind_a_stamp_and_a_host_is_of_that_host() -> None:
    parsed = _parse("2025-03-01T11:19:30Z node-b kernel: NVRM: Xid (PCI:0000:5d:00): 48, pid=9, name=python, Ch 00000008")
    assert _named(parsed, "xid-48").node == "node-b"


def test_diag_of_a_prolog_blames_the_gpu_that_failed() -> None:
    parsed = _parse(
        "[prolog] node-c: running dcgmi diag -r 2",
        "Successfully ran diagnostic for group.",
        "+---------------------------+------------------------------------------------+",
        "| Diagnostic                | Result                                         |",
        "+===========================+================================================+",
        "| Inforom                   | Pass                                           |",
        "+-----  Integration  -------+------------------------------------------------+",
        "| PCIe                      | Fail - GPU: 3                                  |",
        "| Warning                   | GPU 3 PCIe link is running at width x4, expec  |",
        "|                           | ted x16.                                       |",
        "+---------------------------+------------------------------------------------+",
        "[rank0]: step 30 loss 2.0",
    )
    rows = signatures()
    causes = [event for event in parsed.events if (event.role or rows[event.signature].role) == "cause"]
    assert {(event.cls or rows[event.signature].cls, event.gpu and event.gpu.index, event.node) for event in causes} == {
        ("hardware/pcie", 3, "node-c")
    }


def test_healthy_table_of_nvidia_smi_says_nothing() -> None:
    parsed = _parse(
        "+-----------------------------------------------------------------------------------------+",
        "| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |",
        "|-----------------------------------------+------------------------+----------------------+",
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
        "|=========================================+========================+======================|",
        "|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |",
        "| N/A   31C    P0             70W /  700W |       4MiB /  81559MiB |      0%      Default |",
        "+-----------------------------------------+------------------------+----------------------+",
        "[rank0]: step 30 loss 2.0",
    )
    assert parsed.events == []


def test_ordinary_boxes_and_words_are_left_alone() -> None:
    parsed = _parse("| step | loss |", "|  10  | 2.0  |", "[Step 3] kernel size 5", "[WARNING] kernel: 3x3 convolution")
    rows = signatures()
    assert [event for event in parsed.events if (event.role or rows[event.signature].role) == "cause"] == []
