"""The kernel log is read from whichever place can be, and the answer says which were refused and how far back it reaches."""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from workbench.incident import load
from workbench.sources.contract import Deadline, Folder
from workbench.sources.node import kernel
from workbench.sources.node.kernel import Reading, collect_kernel, read_dmesg, read_files, read_journal, read_kmsg

NOW = time.time()
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus."
Tool = Callable[[str, str], Path]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """Put a script first on PATH; what it is asked stands in `asked`."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    (tmp_path / "bin").mkdir()

    def write(name: str, text: str) -> Path:
        path = tmp_path / "bin" / name
        path.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\n{text}\n')
        path.chmod(0o755)
        return tmp_path / "asked"

    return write


def iso(moment: float, form: str = "%Y-%m-%dT%H:%M:%S.%f+0000") -> str:
    return datetime.fromtimestamp(moment, UTC).strftime(form)


# ---- the ring buffer


class Ring:
    """Plays /dev/kmsg: one record a read, EAGAIN after the newest."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, records: Sequence[bytes | OSError]) -> None:
        self.records = list(records)
        monkeypatch.setattr(kernel.os, "open", lambda *_: 99)
        monkeypatch.setattr(kernel.os, "close", lambda _: None)
        monkeypatch.setattr(kernel.os, "read", self.read)

    def read(self, device: int, size: int) -> bytes:
        if not self.records:
            raise BlockingIOError
        record = self.records.pop(0)
        if isinstance(record, OSError):
            raise record
        return record


def uptime() -> int:
    return int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)


def test_records_become_lines_with_times(monkeypatch: pytest.MonkeyPatch) -> None:
    at = uptime() - 5_000_000
    Ring(monkeypatch, [
        b"6,100,%d,-;%s\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n" % (at, XID.encode()),
        BrokenPipeError(errno.EPIPE, "overwritten"),
        b"4,102,%d,c;torn\\x09text \\xc3\\xa4 \\x1b\n" % (at + 1_000_000),
        b"no record\n",
    ])  # fmt: skip
    reading = read_kmsg(NOW - 3600, NOW + 3600, Deadline(5))

    assert reading.status == "ok"
    assert "forgotten 100 older records" in reading.detail
    assert "1 overwritten while read" in reading.detail
    assert reading.reach == pytest.approx(time.time() - 5, abs=2)
    first, second = (line.decode() for line in reading.lines)
    assert first.endswith(" " + XID)
    assert abs(datetime.fromisoformat(first.split()[0].replace(",", ".")).timestamp() - (time.time() - 5)) < 2
    assert second.endswith(" torn\ttext ä \\x1b")  # an escape sequence stays harmless


@pytest.mark.parametrize(("number", "status"), [(errno.EPERM, "refused"), (errno.EACCES, "refused"), (errno.ENOENT, "missing")])
def test_a_ring_buffer_that_cannot_be_opened(monkeypatch: pytest.MonkeyPatch, number: int, status: str) -> None:
    def refused(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(kernel.os, "open", refused)
    assert read_kmsg(0, NOW, Deadline(5)).status == status


def test_an_empty_ring_buffer_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    Ring(monkeypatch, [])
    assert read_kmsg(0, NOW, Deadline(5)).status == "missing"


def test_the_real_ring_buffer_and_the_real_dmesg_agree() -> None:
    ring, told = read_kmsg(0, NOW + 60, Deadline(10)), read_dmesg(0, NOW + 60, Deadline(10))
    if not (ring.usable and told.usable):  # a plain user, a container, no util-linux
        assert {ring.status, told.status} & {"refused", "missing"}
        return
    assert ring.reach is not None
    assert told.reach is not None
    assert ring.reach == pytest.approx(told.reach, abs=2)
    assert abs(len(ring.lines) - len(told.lines)) < 50


def test_dmesg_falls_back_to_older_forms(tool: Tool) -> None:
    stamp = datetime.fromtimestamp(NOW, UTC).strftime("%a %b %e %H:%M:%S %Y")
    tool(
        "dmesg", f'case "$1" in --time-format) echo "dmesg: unrecognized option" >&2; exit 1;; -T) echo "[{stamp}] {XID}";; esac'
    )

    reading = read_dmesg(NOW - 60, NOW + 60, Deadline(5))
    assert reading.status == "ok"
    assert reading.lines[0].endswith(XID.encode())


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1", "refused"),
        ("exit 0", "missing"),
        ("sleep 30", "failed"),
    ],
)
def test_dmesg_that_tells_nothing(tool: Tool, script: str, status: str) -> None:
    tool("dmesg", script)
    assert read_dmesg(0, NOW, Deadline(0.5)).status == status


# ---- the journal


def journal(lines: Sequence[tuple[float, str]]) -> str:
    """A journalctl that knows --since, --until and --lines well enough."""
    text = "\n".join(f"{moment:.0f} {iso(moment)} gpu-7 kernel: {message}" for moment, message in lines)
    return f"""
since=0; until=99999999999; last=999999
for word in "$@"; do case "$word" in --since=@*) since=${{word#--since=@}};; --until=@*) until=${{word#--until=@}};; --lines=*) last=${{word#--lines=}};; esac; done
cat <<'EOF' | awk -v s=$since -v u=$until '$1 >= s && $1 <= u' | tail -n $last | cut -d' ' -f2-
{text}
EOF
"""


def test_the_journal_of_all_boots(tool: Tool) -> None:
    asked = tool("journalctl", journal([(NOW - 9e5, "Linux version 6.1"), (NOW - 100, XID), (NOW - 50, "after")]))
    reading = read_journal(NOW - 200, NOW, Deadline(5))

    assert (reading.status, len(reading.lines)) == ("ok", 2)
    assert reading.reach == pytest.approx(NOW - 9e5, abs=1)
    assert "-k" not in asked.read_text().split()
    assert "_TRANSPORT=kernel" in asked.read_text()


def test_a_quiet_window_keeps_the_lines_before_it(tool: Tool) -> None:
    tool("journalctl", journal([(NOW - 9e5 + second, f"line {second}") for second in range(50)]))
    reading = read_journal(NOW - 200, NOW, Deadline(5))

    assert len(reading.lines) == 20
    assert reading.lines[-1].endswith(b"line 49")
    assert "none in the window" in reading.detail


@pytest.mark.parametrize(
    ("script", "status"),
    [
        (
            "echo 'Hint: You are currently not seeing messages from other users and the system.' >&2; echo '-- No entries --'",
            "refused",
        ),
        ("echo 'No journal files were found.' >&2; echo '-- No entries --'", "missing"),
        ("echo 'Failed to open journal: Bad message' >&2; exit 1", "failed"),
        ("sleep 30", "failed"),
    ],
)
def test_a_journal_that_tells_nothing(tool: Tool, script: str, status: str) -> None:
    tool("journalctl", script)
    assert read_journal(NOW - 200, NOW, Deadline(1)).status == status


def test_a_long_journal_is_not_read_to_find_its_begin(tool: Tool) -> None:
    tool(
        "journalctl",
        f'case "$*" in *--since*) echo "{iso(NOW)} n kernel: x";; *) while :; do echo "{iso(NOW - 1e6)} n kernel: old"; done;; esac',
    )
    begun = time.monotonic()
    reading = read_journal(NOW - 200, NOW, Deadline(20))

    assert time.monotonic() - begun < 5
    assert reading.reach == pytest.approx(NOW - 1e6, abs=1)


# ---- files


def test_rotated_files_are_read_as_far_back_as_the_window(tmp_path: Path) -> None:
    def write(name: str, age: float, count: int = 3, opener: Callable[..., object] = open) -> None:
        path = tmp_path / name
        lines = "".join(f"{iso(NOW - age + second)} gpu-7 kernel: {name} {second}\n" for second in range(count))
        with opener(path, "wb") as stream:  # type: ignore[attr-defined]
            stream.write(lines.encode())
        os.utime(path, (NOW - age + count, NOW - age + count))

    write("kern.log", 100)
    write("kern.log.1", 1000)
    write("kern.log.2.gz", 5000, opener=gzip.open)
    write("kern.log-20200101.xz", 90000, opener=lzma.open)
    write("kern.log.3.bz2", 50000, opener=bz2.open)
    reading = read_files(NOW - 4000, NOW, Deadline(5), folder=str(tmp_path))

    assert reading.status == "ok"
    assert "kern.log.2.gz, kern.log.1, kern.log" in reading.detail
    assert [line.split()[-2] for line in reading.lines] == [b"kern.log.1"] * 3 + [b"kern.log"] * 3
    assert reading.reach == pytest.approx(NOW - 5000, abs=1)


def test_of_a_mixed_file_only_the_kernels_lines(tmp_path: Path) -> None:
    (tmp_path / "syslog").write_text(
        f"{iso(NOW)} gpu-7 sshd[12]: Accepted\n{iso(NOW)} gpu-7 kernel: [   12.3] {XID}\n{iso(NOW)} gpu-7 app: kernel: no\n"
    )
    reading = read_files(NOW - 60, NOW, Deadline(5), folder=str(tmp_path))

    assert sum(b"Xid" in line for line in reading.lines) == 1
    assert not any(b"sshd" in line for line in reading.lines)


def test_stamps_get_the_year_and_zone_that_they_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        path = tmp_path / "kern.log"
        path.write_text(f"Dec 31 23:59:58 gpu-7 kernel: {XID}\nJan  1 00:30:00 gpu-7 kernel: after\n")
        changed = datetime(2026, 1, 1, 0, 0, tzinfo=UTC).timestamp()
        os.utime(path, (changed, changed))
        reading = read_files(changed - 3 * 86400, changed, Deadline(5), folder=str(tmp_path))
    finally:
        monkeypatch.undo()
        time.tzset()

    assert [line.split()[0] for line in reading.lines] == [b"2025-12-31T22:59:58+00:00", b"2025-12-31T23:30:00+00:00"]
    assert b" gpu-7 kernel: " + XID.encode() in reading.lines[0]


def test_files_that_may_not_be_read_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kern.log").write_text("x\n")
    (tmp_path / "messages").write_text(f"{iso(NOW)} gpu-7 kernel: x\n")

    def lines(path: Path, **_: object) -> tuple[list[bytes], float]:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(kernel, "_lines", lines)
    reading = read_files(NOW - 60, NOW, Deadline(5), folder=str(tmp_path))
    assert reading.status == "refused"
    assert "kern.log: Permission denied" in reading.detail
    assert read_files(0, NOW, Deadline(5), folder=str(tmp_path / "no")).status == "missing"


def test_a_damaged_archive_is_a_part_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "kern.log").write_text(f"{iso(NOW)} gpu-7 kernel: x\n")
    (tmp_path / "kern.log.1.gz").write_bytes(gzip.compress(b"x" * 1000)[:20])
    os.utime(tmp_path / "kern.log.1.gz", (NOW - 10, NOW - 10))
    reading = read_files(NOW - 4000, NOW, Deadline(5), folder=str(tmp_path))

    assert reading.status == "partial"
    assert "kern.log.1.gz" in reading.detail


# ---- which is taken


def line(moment: float, text: str = XID) -> bytes:
    return f"{iso(moment)} gpu-7 kernel: {text}".encode()


def given_readings(*readings: Reading) -> Callable[[float, float, Deadline], Iterator[Reading]]:
    return lambda *_: iter(readings)


def test_the_first_that_reaches_back_is_taken(tmp_path: Path) -> None:
    def places(*_: object) -> Iterator[Reading]:
        yield Reading("journal", "ok", "3 lines", "journalctl", [line(NOW - 10)], NOW - 9e5)
        raise AssertionError("nobody else is asked")

    answer = collect_kernel("gpu-7", NOW - 100, NOW, Folder(tmp_path), Deadline(5), readings=places)
    assert (answer.status, answer.file, answer.rows) == ("ok", "kernel/gpu-7.log", 1)
    verdict = load(tmp_path).triage()
    assert (verdict.cls, verdict.node) == ("hardware/gpu-lost", "gpu-7")


def test_what_was_refused_is_said(tmp_path: Path) -> None:
    answer = collect_kernel("gpu-7", NOW - 100, NOW, Folder(tmp_path), Deadline(5), readings=given_readings(
        Reading("journal", "refused", "join the group systemd-journal"),
        Reading("files", "missing", "none"),
        Reading("kmsg", "ok", "5 records", "/dev/kmsg", [line(NOW)], NOW - 50),
    ))  # fmt: skip

    assert answer.status == "partial"
    assert "journal refused: join the group systemd-journal" in answer.detail
    assert "after the window began" in answer.detail


def test_the_one_that_reaches_furthest_is_taken(tmp_path: Path) -> None:
    answer = collect_kernel("gpu-7", NOW - 100, NOW, Folder(tmp_path), Deadline(5), readings=given_readings(
        Reading("journal", "ok", "j", "j", [line(NOW)], NOW - 10),
        Reading("files", "ok", "f", "f", [line(NOW - 80, "old"), line(NOW)], NOW - 90),
        Reading("kmsg", "ok", "k", "k", [line(NOW)], NOW - 50),
    ))  # fmt: skip

    assert (answer.asked, answer.rows, answer.status) == ("f", 2, "partial")


@pytest.mark.parametrize(
    ("readings", "status"),
    [
        ([Reading("kmsg", "refused", "no"), Reading("journal", "missing", "none")], "failed"),
        ([Reading("kmsg", "missing", "no"), Reading("journal", "missing", "none")], "missing"),
        ([Reading("journal", "ok", "0 lines", "j", [], NOW - 9e5)], "missing"),
    ],
)
def test_nothing_readable_is_never_ok(tmp_path: Path, readings: list[Reading], status: str) -> None:
    answer = collect_kernel("gpu-7", NOW - 100, NOW, Folder(tmp_path), Deadline(5), readings=given_readings(*readings))

    assert (answer.status, answer.file) == (status, "")


def test_a_deadline_in_the_middle_keeps_what_was_read(tmp_path: Path) -> None:
    def places(*_: object) -> Iterator[Reading]:
        yield Reading("kmsg", "ok", "k", "k", [line(NOW)], NOW - 50)
        Deadline(-1).left()

    answer = collect_kernel("gpu-7", NOW - 100, NOW, Folder(tmp_path), Deadline(5), readings=places)
    assert answer.file == "kernel/gpu-7.log"
    assert "deadline" in answer.detail


def test_a_journal_that_hangs_does_not_cost_the_ring_buffer(tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool("journalctl", "sleep 30")
    monkeypatch.setattr(kernel, "read_kmsg", lambda *_: Reading("kmsg", "ok", "1 record", "/dev/kmsg", [line(NOW)], NOW - 500))
    monkeypatch.setattr(kernel, "read_files", lambda *_: Reading("files", "missing", "none"))
    begun = time.monotonic()
    answer = collect_kernel("gpu-7", NOW - 100, NOW, Folder(tmp_path / "out"), Deadline(1))

    assert time.monotonic() - begun < 3
    assert (answer.status, answer.asked) == ("ok", "/dev/kmsg")
    assert "journal failed" in answer.detail


def test_it_is_collected_once_and_its_name_stays_inside(tmp_path: Path) -> None:
    readings = given_readings(Reading("kmsg", "ok", "k", "k", [line(NOW)], NOW - 500))
    first = collect_kernel("../../gpu-7", NOW - 100, NOW, Folder(tmp_path), Deadline(5), readings=readings)
    again = collect_kernel("../../gpu-7", NOW - 100, NOW, Folder(tmp_path), Deadline(5), readings=readings)

    assert first.file == ".._.._gpu-7.log".join(("kernel/", ""))
    assert "before" in again.detail
    full = collect_kernel("gpu-8", NOW - 100, NOW, Folder(tmp_path, limit=10), Deadline(5), readings=given_readings(Reading("kmsg", "ok", "k", "k", [line(NOW)], NOW - 500)))  # fmt: skip
    assert full.status == "failed"
