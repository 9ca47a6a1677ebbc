"""What a job inherits: locked memory where RDMA needs it, shared memory, and nothing that cries wolf on an ordinary host."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.health.host_tree import Host, codes
from workbench.health import fitness

_LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max core file size        0                    unlimited            bytes
Max open files            {files:<20} 524288               files
Max locked memory         {memlock:<20} {memlock:<20} bytes
"""
_TABLE = "27 1 254:0 / / rw,relatime - ext4 /dev/sda2 rw\n25 24 0:23 / /dev/shm rw,nosuid - tmpfs tmpfs rw,size=1056695856k\n"


def shm(host: Host, blocks: int = 264173964, free: int = 264173000) -> None:
    (host.root / "bin/stat").unlink(missing_ok=True)
    host.tool("stat", f"4096 {blocks} {free}\n")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    host.file("/proc/self/mountinfo", _TABLE)
    host.file("/proc/self/limits", _LIMITS.format(memlock=8388608, files=1024))
    shm(host)
    return host


def slurmd(host: Host, memlock: object) -> None:
    host.file("/proc/812/stat", "812 (slurmd) S 1 812 812 0 -1 4194560 1 2 3 4 5\n")
    host.file("/proc/812/limits", _LIMITS.format(memlock=memlock, files=131072))


def test_an_ordinary_host_is_fine(host: Host) -> None:
    findings = host.run("limits")
    assert codes(findings) == {("memlock", "ok"), ("files", "ok"), ("/dev/shm", "ok")}


def test_the_limits_are_those_of_the_daemon_that_starts_jobs(host: Host) -> None:
    slurmd(host, "unlimited")
    summaries = [one.summary for one in host.run("limits", memlock="unlimited", files=65536)]
    assert all("slurmd" in text for text in summaries if "shm" not in text)
    assert fitness(host.run("limits", memlock="unlimited", files=65536)) == "ok"
    assert ("files", "files-too-few") in codes(host.run("limits", files=1000000))


def test_locked_memory_matters_where_there_is_rdma(host: Host) -> None:
    slurmd(host, 8388608)
    assert ("memlock", "ok") in codes(host.run("limits"))
    base = "/sys/class/infiniband/mlx5_0/ports/1"
    host.files(base, {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"})
    findings = host.run("limits")
    assert ("memlock", "memlock-limited") in codes(findings)
    assert fitness(findings) == "warning"
    assert fitness(host.run("limits", memlock="unlimited")) == "critical"


def test_a_setting_that_is_no_size_is_no_limit(host: Host) -> None:
    assert ("memlock", "unread") in codes(host.run("limits", memlock="much"))


@pytest.mark.parametrize(
    ("blocks", "free", "context", "code"),
    [
        (16384, 16384, "allocation", "shm-small"),
        (264173964, 1000000, "allocation", "shm-full"),
        (264173964, 10000000, "running", "ok"),
        (264173964, 10000, "running", "shm-full"),
    ],
)
def test_shared_memory(host: Host, blocks: int, free: int, context: str, code: str) -> None:
    shm(host, blocks, free)
    assert ("/dev/shm", code) in codes(host.run("limits", context))


def test_shared_memory_that_is_not_mounted_or_not_told(host: Host) -> None:
    host.file("/proc/self/mountinfo", _TABLE.splitlines()[0] + "\n")
    assert ("/dev/shm", "shm-missing") in codes(host.run("limits"))
    host.tool("stat", "garbage\n")
    assert fitness(host.run("limits", shm=1 << 30)) == "unknown"


def test_numa_balancing_is_told_and_no_fault(host: Host) -> None:
    host.file("/proc/sys/kernel/numa_balancing", "1\n")
    host.file("/sys/devices/system/node/has_memory", "0-1\n")
    findings = host.run("limits")
    assert ("NUMA", "numa-balancing") in codes(findings)
    assert fitness(findings) == "ok"


_SERVICE = "system.slice/slurmd.service"


def grouped(host: Host, rows: str, **files: object) -> set[tuple[str, str]]:
    """What is said of the control group of a slurmd on a node of 64 GiB; `files` are paths below /sys/fs/cgroup with ``__`` for a slash."""
    slurmd(host, "unlimited")
    host.file("/proc/meminfo", "MemTotal:       67108864 kB\n")
    host.file("/proc/812/cgroup", rows)
    for name, text in files.items():
        host.file(
            "/sys/fs/cgroup/" + name.replace("__", "/").replace("SERVICE", _SERVICE).replace("SLICE", "system.slice"), f"{text}\n"
        )
    return {one for one in codes(host.run("limits")) if one[0] == "cgroup"}


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"SERVICE__memory.max": "max", "SERVICE__pids.max": "max"}, "ok"),
        ({"SERVICE__memory.max": 66 << 30, "SERVICE__pids.max": 629145}, "ok"),
        ({"SERVICE__memory.max": "max", "SLICE__memory.max": 8 << 30}, "cgroup-memory-limited"),
        ({"SERVICE__pids.max": 4915, "SLICE__pids.max": "max"}, "cgroup-tasks-limited"),
        ({"SERVICE__pids.max": 30000, "SERVICE__pids.current": 29900}, "cgroup-tasks-limited"),
        ({"SERVICE__memory.max": "much"}, "unread"),
        ({}, "not-applicable"),
    ],
)
def test_a_control_group_that_is_too_tight_is_found_wherever_it_was_limited(
    host: Host, files: dict[str, object], code: str
) -> None:
    assert grouped(host, f"0::/{_SERVICE}\n", **files) == {("cgroup", code)}


def test_the_control_groups_of_version_1_are_read_as_well(host: Host) -> None:
    rows = f"9:pids:/{_SERVICE}\n4:memory:/{_SERVICE}\n1:name=systemd:/{_SERVICE}\n"
    whole = {"memory__SERVICE__memory.limit_in_bytes": 9223372036854771712, "pids__SERVICE__pids.max": "max"}
    assert grouped(host, rows, **whole) == {("cgroup", "ok")}
    tight = {"memory__SERVICE__memory.limit_in_bytes": 4 << 30}
    assert grouped(host, rows, **tight) == {("cgroup", "cgroup-memory-limited")}


def test_our_own_control_group_is_not_that_of_jobs(host: Host) -> None:
    host.file("/proc/self/cgroup", "0::/kubepods.slice/pod1\n")
    host.file("/sys/fs/cgroup/kubepods.slice/pod1/memory.max", "209715200\n")
    assert "cgroup" not in {part for part, _ in codes(host.run("limits"))}


@pytest.mark.parametrize("text", ["", "Max locked memory", "\0"])
def test_half_a_file_is_no_limit(host: Host, text: str) -> None:
    host.file("/proc/self/limits", text)
    assert fitness(host.run("limits", memlock="unlimited")) == "unknown"
