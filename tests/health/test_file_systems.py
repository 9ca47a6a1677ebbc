"""Mounted file systems and local disks: missing, hanging, stale, full, read-only, and what is so by design."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from tests.health.host_tree import Host, codes
from workbench.health import fitness

_TABLE = """22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/nvme0n1p2 rw,errors=remount-ro
28 27 254:1 / /var rw,relatime - xfs /dev/nvme0n1p3 rw
29 27 254:1 /lib/docker /var/lib/docker rw,relatime - xfs /dev/nvme0n1p3 rw
30 27 7:1 / /snap/core rw - squashfs /dev/loop1 ro
31 27 0:50 / /scratch rw,relatime - lustre 10.0.0.1@o2ib:/scratch rw,flock,lazystatfs
32 27 0:51 / /home rw,relatime - nfs4 filer:/home rw,vers=4.2,hard
33 27 0:52 / /data\\040sets ro,relatime - nfs4 filer:/data rw,vers=4.2,hard
34 27 254:9 / /var/lib/kubelet/pods/1/volumes/x rw - ext4 /dev/nvme7n1 rw
35 27 0:53 / /net rw - autofs /etc/auto.net rw
"""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path, {"mounts": ["/scratch", "/home"]})
    host.file("/proc/self/mountinfo", _TABLE)
    stat(host)
    return host


def stat(host: Host, *, scratch: str = "0", home: str = "echo '1000 500 0 0'", space: int = 700) -> None:
    """What `stat -f` says: one figure for the mounts, with the name behind it for the local disks."""
    (host.root / "bin/stat").unlink()
    host.tool(
        "stat",
        script=f"""case "$3" in *%n*) shift 3; for place in "$@"; do echo "1000 {space} 1000 800 $place"; done; exit 0 ;; esac
case "$4" in */scratch) sleep {scratch}; echo '1000 900 1000 900' ;; */home) {home} ;; *) echo '1000 600 1000 800' ;; esac""",
    )


def test_what_answers_is_ok(host: Host) -> None:
    findings = host.run("mounts")
    assert codes(findings) == {("/scratch", "ok"), ("/home", "ok"), ("/data sets", "ok")}
    assert "files can be read" in findings[0].blind[0]


def test_nobody_named_a_file_system_and_none_is_mounted(host: Host) -> None:
    host.file(
        "/proc/self/mountinfo",
        "".join(line for line in _TABLE.splitlines(True) if " nfs4 " not in line and " lustre " not in line),
    )
    assert codes(host.run("mounts", mounts=[])) == {("", "not-applicable")}


def test_a_server_that_nobody_named_and_that_hangs_is_a_warning(host: Host) -> None:
    stat(host, scratch="60")
    findings = host.run("mounts", mounts=[], mount_seconds=1)
    assert codes(findings) == {("/scratch", "mount-hangs"), ("/home", "ok"), ("/data sets", "ok")}
    assert fitness(findings) == "warning"
    assert fitness(host.run("mounts", mounts=["/home"], mount_seconds=1)) == "warning"
    assert fitness(host.run("mounts", mounts=[], mount_seconds=1, required=["mounts"])) == "critical"


def test_how_full_a_server_is_that_nobody_named_is_its_owners_affair(host: Host) -> None:
    stat(host, home="echo '1000 0 1000 0'")
    assert ("/home", "ok") in codes(host.run("mounts", mounts=[]))


def test_one_server_mounted_many_times_is_asked_once(host: Host) -> None:
    pods = "".join(f"6{at} 27 0:51 /v{at} /var/lib/kubelet/pods/{at} rw - nfs4 filer:/home rw\n" for at in range(9))
    host.file("/proc/self/mountinfo", _TABLE + pods)
    assert {part for part, _ in codes(host.run("mounts", mounts=[]))} == {"/scratch", "/home", "/data sets"}


def test_a_users_own_fuse_mount_is_no_fault_and_one_whose_process_died_is(host: Host) -> None:
    host.file("/proc/self/mountinfo", _TABLE.replace("- nfs4 filer:/home", "- fuse.sshfs me@there:"))
    stat(host, home="echo \"stat: cannot read file system information for '/home': Permission denied\" >&2; exit 1")
    assert ("/home", "not-applicable") in codes(host.run("mounts", mounts=[]))
    stat(
        host,
        home="echo \"stat: cannot read file system information for '/home': Transport endpoint is not connected\" >&2; exit 1",
    )
    assert ("/home", "mount-broken") in codes(host.run("mounts", mounts=[]))


def test_one_that_hangs_costs_the_other_nothing(host: Host) -> None:
    stat(host, scratch="60")
    begun = time.monotonic()
    findings = host.run("mounts", mount_seconds=1)
    assert time.monotonic() - begun < 15
    assert codes(findings) == {("/scratch", "mount-hangs"), ("/home", "ok"), ("/data sets", "ok")}
    assert fitness(findings) == "critical"


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("cannot read file system information for '/home': Stale file handle", "mount-stale"),
        ("cannot read file system information for '/home': Transport endpoint is not connected", "mount-broken"),
        ("cannot read file system information for '/home': No such file or directory", "mount-missing"),
        ("cannot read file system information for '/home': Permission denied", "unread"),
    ],
)
def test_what_the_file_system_said_decides(host: Host, said: str, code: str) -> None:
    stat(host, home=f'echo "stat: {said}" >&2; exit 1')
    assert ("/home", code) in codes(host.run("mounts"))


def test_slow_is_a_warning(host: Host) -> None:
    stat(host, scratch="1.2")
    findings = host.run("mounts")
    assert ("/scratch", "mount-slow") in codes(findings)
    assert fitness(findings) == "warning"


def test_read_only_unmounted_and_never_mounted_by_the_automounter(host: Host) -> None:
    findings = host.run("mounts", mounts=["/data sets", "/checkpoints", "/net"])
    named = {("/data sets", "mount-read-only"), ("/checkpoints", "mount-missing"), ("/net", "mount-missing")}
    assert codes(findings) == named | {("/scratch", "ok"), ("/home", "ok")}


def test_little_and_none_are_the_sites_to_say(host: Host) -> None:
    stat(host, home="echo '1000 40 1000 900'")
    assert ("/home", "mount-nearly-full") in codes(host.run("mounts"))
    assert ("/home", "mount-full") in codes(host.run("mounts", space_critical=4))
    assert ("/home", "ok") in codes(host.run("mounts", space_warning=3))


@pytest.mark.parametrize(
    "script",
    ["exit 0", "echo garbage", "echo '1000 9'", f"{shutil.which('head')} -c 300000 /dev/zero", "exit 1", "head: not found"],
)
def test_nonsense_is_unknown(host: Host, script: str) -> None:
    (host.root / "bin/stat").unlink()
    host.tool("stat", script=script)
    assert fitness(host.run("mounts")) == "unknown"
    assert fitness(host.run("disk-space")) == "unknown"


def test_local_disks_are_found_once_each(host: Host) -> None:
    assert codes(host.run("disk-space")) == {("/", "ok"), ("/var", "ok")}


def test_a_full_root_makes_the_node_unfit(host: Host) -> None:
    stat(host, space=3)
    assert codes(host.run("disk-space")) == {("/", "disk-full"), ("/var", "disk-full")}
    stat(host, space=30)
    assert fitness(host.run("disk-space")) == "warning"


def test_read_only_by_design_is_none_by_the_kernel(host: Host) -> None:
    ro = _TABLE.replace("/ / rw,relatime - ext4 /dev/nvme0n1p2 rw,errors=remount-ro", "/ / ro - ext4 /dev/nvme0n1p2 ro")
    host.file("/proc/self/mountinfo", ro)
    assert codes(host.run("disk-space")) == {("/", "not-applicable"), ("/var", "ok")}
    host.kernel_log("EXT4-fs (nvme0n1p2): Remounting filesystem read-only")
    findings = host.run("disk-space")
    assert ("", "fs-went-read-only") in codes(findings)
    assert fitness(findings) == "critical"


def test_ext4_tells_an_emergency_itself(host: Host) -> None:
    host.file("/proc/self/mountinfo", _TABLE.replace("rw,errors=remount-ro", "ro,emergency_ro"))
    assert ("/", "fs-went-read-only") in codes(host.run("disk-space"))
