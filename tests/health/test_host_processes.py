"""Processes that pile up: many stuck in the kernel at two looks, many zombies; not the one that waits for a disk."""

from __future__ import annotations

from pathlib import Path

from tests.health.host_tree import Host, codes
from workbench.health import fitness
from workbench.parse.proc_files import process


def add(host: Host, pid: int, name: str, state: str, *, parent: int = 1, flags: int = 0x400100, wchan: str = "") -> None:
    host.file(f"/proc/{pid}/stat", f"{pid} ({name}) {state} {parent} {pid} {pid} 0 -1 {flags} 1 2 3 4 5 6 7 8\n")
    if wchan:
        host.file(f"/proc/{pid}/wchan", wchan)


def test_a_few_are_ordinary(tmp_path: Path) -> None:
    host = Host(tmp_path)
    add(host, 1, "systemd", "S")
    for pid in range(100, 105):
        add(host, pid, "python", "D")
    for pid in range(200, 260):
        add(host, pid, "kworker/0:1", "D", flags=0x00200000)
    assert codes(host.run("host-processes")) == {("", "ok")}


def test_many_that_stay_in_the_kernel_and_where(tmp_path: Path) -> None:
    host = Host(tmp_path)
    for pid in range(100, 112):
        add(host, pid, "python", "D", wchan="rpc_wait_bit_killable")
    (only,) = host.run("host-processes")
    assert (only.code, only.status, only.action) == ("host-processes-blocked", "warning", "reboot-node")
    assert only.evidence[0] == "12 in rpc_wait_bit_killable"
    assert codes(host.run("host-processes", blocked=20)) == {("", "ok")}


def test_zombies_of_one_parent(tmp_path: Path) -> None:
    host = Host(tmp_path)
    for pid in range(1000, 1150):
        add(host, pid, "sh", "Z", parent=77)
    (only,) = host.run("host-processes")
    assert (only.code, only.evidence) == ("host-processes-zombie", ("150 children of 77",))


def test_no_list_is_unknown(tmp_path: Path) -> None:
    assert fitness(Host(tmp_path).run("processes", blocked=5)) == "unknown"


def test_a_name_may_hold_anything() -> None:
    row = process("12 (a) S (b)) D 3 12 12 0 -1 4194560 0 0 0 0 0\n")
    assert row is not None
    assert (row.pid, row.name, row.state, row.parent, row.kernel) == (12, "a) S (b)", "D", 3, False)
    assert process("12 (a") is None
