"""`workbench check` with a state folder: what earlier runs saw counts, two runs at once lose nothing, and a broken state makes nothing better."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.health.gpu_node import BOOT, NOW, UUIDS, Node
from workbench.cli import main
from workbench.health import Finding, check, fitness, run
from workbench.health.finding import STATUSES
from workbench.health.inventory import next_inventory
from workbench.health.registry import _CHECKS
from workbench.health.resets import asking_now, resets_of
from workbench.model import Event, Gpu
from workbench.parse.gpu_state import GpuState, NodeGpus
from workbench.sources.node.kernel_events import KernelLog
from workbench.sources.node.world import World

PLACE = "/var/lib/workbench"
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus."
LOADED = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.133.20  Sun Mar 30"


def look(node: Node, *names: str, ago: float = 0.0, state: str | None = PLACE, context: str = "allocation") -> list[Finding]:
    """Check the node so many seconds before NOW."""
    env = {"PATH": str(node.tools), "LD_LIBRARY_PATH": node.library, "FAKE_NVML": node.plays}
    world = World("gpu-7", node.root, env, lambda: NOW - ago, node.settings)
    return run(context, world=world, only=names, state=state)


def of(findings: Sequence[Finding], check: str) -> list[str]:
    """Return the statuses of a check."""
    return sorted(one.status for one in findings if one.check == check)


def rebooted(node: Node) -> None:
    """Give the node another boot id."""
    node.file("proc/sys/kernel/random/boot_id", "99999999-2222-3333-4444-555555555555\n")


# ---- what lasts


def test_a_fatal_xid_stays_when_its_line_is_gone_and_goes_with_a_boot(node: Node) -> None:
    node.log((7200, XID))
    assert of(look(node, "xid", ago=7000), "xid") == ["critical"]
    node.log()
    (stuck,) = look(node, "xid", ago=60)
    assert (stuck.status, stuck.code, stuck.gpu and stuck.gpu.uuid, stuck.action) == (
        "critical",
        "xid-79",
        UUIDS[1],
        "reboot-node",
    )
    assert of(look(node, "xid", ago=60, state=None), "xid") == ["ok"]
    rebooted(node)
    assert of(look(node, "xid"), "xid") == ["ok"]


def test_loading_the_driver_again_is_the_reset_that_clears_it(node: Node) -> None:
    node.log((7200, XID))
    look(node, "xid", ago=7000)
    node.log((8000, LOADED))  # before it was seen: no reset of it
    assert of(look(node, "xid", ago=600), "xid") == ["critical"]
    node.log((300, LOADED))
    assert of(look(node, "xid"), "xid") == ["ok"]


def test_a_check_alone_neither_shows_nor_forgets_what_stuck_to_another(node: Node) -> None:
    node.log((7200, XID))
    look(node, "xid", ago=7000)
    node.log()
    assert {one.check for one in look(node, "gpu-count", ago=600)} == {"gpu-count"}
    assert of(look(node, ago=300, context="running"), "xid") == ["critical"]
    assert of(look(node, "xid"), "xid") == ["critical"]


def test_the_site_may_still_say_that_it_does_not_count(node: Node) -> None:
    node.log((7200, XID))
    look(node, "xid", ago=7000)
    node.log()
    node.settings["optional"] = ["xid"]
    assert fitness(look(node, "xid")) == "warning"


def test_strikes_are_counted_from_run_to_run(node: Node) -> None:
    heard = []

    @check("test-heat", "heat", needs=("machine",))
    def heat(seen):  # type: ignore[no-untyped-def]
        yield seen.found("smi-throttle-thermal", "92 C")

    try:
        # a prolog and a health program in the same second are one look
        for ago in (700.0, 690.0, 400.0, 100.0):
            heard += of(look(node, "test-heat", ago=ago), "test-heat")
    finally:
        del _CHECKS["test-heat"]
    assert heard == ["warning", "warning", "warning", "critical"]


# ---- resets


def _gpus(action: str) -> NodeGpus:
    return NodeGpus((GpuState(Gpu(1, UUIDS[1], "0000:3b:00.0"), {"recovery_action": action}),))


def test_who_asked_for_a_reset_and_asks_no_more_was_reset() -> None:
    asked = asking_now(_gpus("GPU Reset"), NOW)
    assert asked == {UUIDS[1]: NOW, "0000:3b:00.0": NOW}
    still, kept = resets_of(None, _gpus("GPU Reset"), asked=asked)
    assert (still, kept) == ({}, asked)
    done, kept = resets_of(None, _gpus("None"), asked=asked)
    assert kept == {}
    # what was seen when it asked last is over, what was seen later is not
    assert NOW < done[UUIDS[1]] < NOW + 1


def test_peers_that_are_drained_were_not_reset() -> None:
    assert asking_now(_gpus("Drain P2P"), NOW) == {}


def test_the_kernel_log_tells_when_a_recovery_was_done() -> None:
    done = Event("xid-154", "kernel", time=NOW, gpu=Gpu(pci="0000:3b:00.0"), code=154, data={"remediation": "none"})
    log = KernelLog((done,), "journal", BOOT, BOOT)
    assert resets_of(log, _gpus("None"))[0] == {UUIDS[1]: NOW, "0000:3b:00.0": NOW}


# ---- which GPUs were here


def test_gpus_are_kept_when_the_node_is_whole_and_compared_at_the_next_boot(node: Node) -> None:
    assert of(look(node, "gpu-count", "gpu-inventory", ago=600), "gpu-inventory") == ["not-applicable"]
    assert of(look(node, "gpu-count", "gpu-inventory", ago=500), "gpu-inventory") == ["ok"]
    rebooted(node)
    text = (node.root / "var/lib/workbench/gpus.json").read_text()
    (node.root / "var/lib/workbench/gpus.json").write_text(text.replace(UUIDS[3], "GPU-of-before"))
    # told for as long as the node runs, not once
    for ago in (400, 300, 200):
        assert [one.code for one in look(node, "gpu-count", "gpu-inventory", ago=ago) if one.check == "gpu-inventory"] == [
            "gpu-swapped"
        ]
    node.file("proc/sys/kernel/random/boot_id", "aaaaaaaa-2222-3333-4444-555555555555\n")
    assert of(look(node, "gpu-count", "gpu-inventory"), "gpu-inventory") == ["ok"]


def test_a_gpu_that_does_not_come_back_is_not_forgotten_by_the_next_boot(node: Node) -> None:
    look(node, "gpu-count", "gpu-inventory", ago=600)
    kept = json.loads((node.root / "var/lib/workbench/gpus.json").read_text())
    kept["gpus"].append({"uuid": "GPU-ninth", "pci": "0000:ff:00.0", "serial": "9", "name": "NVIDIA H100 80GB HBM3"})
    (node.root / "var/lib/workbench/gpus.json").write_text(json.dumps(kept))
    for boot in "abc":
        node.file("proc/sys/kernel/random/boot_id", f"{boot}\n")
        found = look(node, "gpu-count", "gpu-inventory", ago=100)
        assert [one.code for one in found if one.check == "gpu-inventory"] == ["gpu-gone"]
    node.settings["gpus"] = 8  # the site says that eight are right
    look(node, "gpu-count", "gpu-inventory", ago=50)
    node.file("proc/sys/kernel/random/boot_id", "d\n")
    assert of(look(node, "gpu-count", "gpu-inventory"), "gpu-inventory") == ["ok"]


def test_an_incomplete_node_keeps_no_list(node: Node) -> None:
    node.settings["gpus"] = 16
    look(node, "gpu-count", "gpu-inventory")
    assert not (node.root / "var/lib/workbench/gpus.json").exists()


def test_this_boots_list_is_written_once() -> None:
    first = {"boot_id": "a", "time": 1.0, "gpus": [{"uuid": "x"}]}
    kept = next_inventory(None, first)
    assert kept == first
    assert next_inventory(kept, first | {"time": 2.0}) is None
    second = next_inventory(kept, {"boot_id": "b", "time": 3.0, "gpus": [{"uuid": "y"}]})
    assert second is not None
    assert (second["gpus"], second["next"]["gpus"]) == ([{"uuid": "x"}], [{"uuid": "y"}])
    assert next_inventory(second, {"boot_id": "b", "time": 4.0, "gpus": [{"uuid": "z"}]}) is None


# ---- a state that is broken makes nothing better


def _worst(findings: Sequence[Finding]) -> int:
    return STATUSES.index(fitness(findings))


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        '{"schema": "x"}',
        '{"schema": "workbench.state.findings/1", "seen": {"k": {"times": ["x"], "as": {}}}}',
        "[" * 9000,
    ],
    ids=["empty", "half", "list", "foreign", "odd", "deep"],
)
def test_a_damaged_state_is_said_and_begun_anew(node: Node, damage: str) -> None:
    node.log((7200, XID))
    node.file("var/lib/workbench/findings.json", damage)
    found = look(node, "xid", ago=60)
    assert of(found, "xid") == ["critical"]
    odd = damage.startswith('{"schema": "workbench')
    assert of(found, "history") == ([] if odd else ["warning"])
    assert (node.root / "var/lib/workbench/findings.damaged").exists() != odd
    node.log()
    assert of(look(node, "xid"), "history") == []


def test_a_state_that_cannot_be_written_does_not_take_a_fault_for_an_accident(node: Node) -> None:
    @check("test-heat", "heat", needs=("machine",))
    def heat(seen):  # type: ignore[no-untyped-def]
        yield seen.found("smi-throttle-thermal", "92 C")

    node.file("var/lib/workbench", "a file where the folder should be")
    try:
        found = look(node, "test-heat")
        assert of(found, "test-heat") == ["critical"]
        assert {(one.code, one.required) for one in found if one.check == "history"} == {
            ("state-unreadable", False),
            ("state-unwritable", False),
        }
        assert _worst(found) >= _worst(look(node, "test-heat", state=None))
    finally:
        del _CHECKS["test-heat"]


def test_who_may_only_read_the_state_sees_what_stuck(node: Node) -> None:
    node.log((7200, XID))
    look(node, "xid", ago=7000)
    node.log()
    folder = node.root / "var/lib/workbench"
    (folder / ".lock").unlink()
    (folder / ".lock").mkdir()  # as root every file can be written: a folder in its place cannot
    found = look(node, "xid")
    assert of(found, "xid") == ["critical"]
    assert [one.code for one in found if one.check == "history"] == ["state-unwritable"]


def test_a_lock_that_nobody_gives_back_is_said(node: Node) -> None:
    folder = node.root / "var/lib/workbench"
    folder.mkdir(parents=True)
    with (folder / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        found = look(node, "xid")
    assert [one.code for one in found if one.check == "history"] == ["state-unwritable"]
    assert "lock" in next(one.summary for one in found if one.check == "history")
    assert not (folder / "findings.json").exists()


def test_a_disk_that_hangs_is_left_behind(node: Node) -> None:
    folder = node.root / "var/lib/workbench"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "findings.json")  # who opens it waits for a writer that never comes
    node.log((7200, XID))
    found = look(node, "xid")
    assert of(found, "xid") == ["critical"]
    assert [one.code for one in found if one.check == "history"] == ["state-unreadable"]
    # let the threads go
    with (folder / "findings.json").open("wb"):
        pass


def test_the_command_says_it_on_stderr_and_ends_as_ever(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    codes = [
        main(["check", "gpu-count", "--state", str(tmp_path / "file"), "-o", "nagios"]),
        main(["check", "gpu-count", "--no-state"]),
    ]
    assert codes[0] == codes[1]
    assert "workbench: history: " in capsys.readouterr().err


# ---- several at once, and for ever


def test_runs_at_the_same_moment_lose_nothing(node: Node) -> None:
    """Eight processes, each with a finding of its own."""
    script = (
        "import sys; from pathlib import Path; from workbench.health.finding import Finding\n"
        "from workbench.health.state import with_history; from workbench.sources.node.world import World\n"
        "root, name = sys.argv[1:]\n"
        "world = World('n', Path(root))\n"
        "for turn in range(10):\n"
        "    one = Finding('xid', 'critical', 'x', 'xid-79', 'n', part=f'{name}-{turn}')\n"
        "    found = with_history([one], readings={}, world=world, folder=Path(root) / 'state', ran=['xid'], shown=[], node='n')\n"
        "    assert [each.check for each in found] == ['xid'], found\n"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", script, str(node.root), str(number)], stderr=subprocess.PIPE, text=True)
        for number in range(8)
    ]
    for one in started:
        assert one.wait(120) == 0, one.stderr and one.stderr.read()
        assert one.stderr
        one.stderr.close()
    seen = json.loads((node.root / "state/findings.json").read_text())["seen"]
    assert len(seen) == 80


def test_a_state_of_many_findings_can_still_be_read(node: Node) -> None:
    many = [
        Finding("nvlink", "warning", "x" * 900, "nvlink-errors", "n", Gpu(0), f"link {at}", evidence=("é" * 900,) * 9)
        for at in range(900)
    ]
    stuck = Finding("xid", "critical", "x", "xid-79", "n", Gpu(3, UUIDS[3]))
    from workbench.health.state import with_history

    world = World("n", node.root, clock=lambda: NOW)
    keep = {"readings": {}, "world": world, "folder": node.root / "s", "ran": ["nvlink", "xid"], "shown": ["xid"], "node": "n"}
    with_history([*many, stuck], **keep)  # type: ignore[arg-type]
    assert (node.root / "s/findings.json").stat().st_size < 1 << 20
    again = with_history([], **keep)  # type: ignore[arg-type]
    assert [one.code for one in again] == ["xid-79"]


def test_forgetting_is_asked_for_by_a_person(
    state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_HEALTH_GPUS", "4096")
    first = main(["check", "gpu-count"])
    monkeypatch.setenv("WORKBENCH_HEALTH_GPUS", "0")
    assert main(["check", "gpu-count"]) == first
    assert "--forget" in capsys.readouterr().out or first != 2
    assert main(["check", "gpu-count", "--forget"]) in (0, 2, 3)
    assert "last seen" not in capsys.readouterr().out
    assert (state / "findings.json").exists()


def test_who_looks_every_minute_leaves_one_thread_behind_not_one_each_time(node: Node) -> None:
    from workbench.health.runner import read
    from workbench.sources.node.world import READERS, Way, reader

    gate = threading.Event()
    reader("test-hangs", "never answers", seconds=0.2, ways=(Way("it", lambda world, deadline: gate.wait(30)),))
    try:
        world = World("n", node.root)
        first, second = read(["test-hangs"], world, 5)["test-hangs"], read(["test-hangs"], world, 5)["test-hangs"]
        left = [each for each in threading.enumerate() if each.name == "reading-test-hangs"]
    finally:
        gate.set()
        del READERS["test-hangs"]
    assert (first.ending, second.ending, len(left)) == ("time-out", "time-out", 1)
    assert "earlier look" in second.detail
