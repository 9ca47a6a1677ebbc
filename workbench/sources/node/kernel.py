"""
Turn the kernel log of this node, from whichever place can be read, into one file of an incident folder and a word on how far back it goes.

There are four places: the journal (all boots, kept on disk on most nodes), the files of syslog, and the kernel's own ring buffer by
``/dev/kmsg`` or ``dmesg``, which forgets at every boot and whenever it is full. The first that reaches back to the begin of the window is
taken, else the one that reaches furthest. Which were refused and why is part of the answer: who may not read cannot say that all is well.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from workbench.errors import SourceError
from workbench.sources.command import run
from workbench.sources.contract import Answer, Deadline, Folder, FolderFull

__all__ = ["Reading", "collect_kernel", "places", "read_dmesg", "read_files", "read_journal", "read_kmsg"]

# Faults stand before a job's start and after its end: evidence counts in the window, what is around it explains.
MARGIN = 600.0
LIMIT = 64 << 20  # bytes of a log in memory
_BEFORE = 20  # lines that are kept when the window itself has none
_FILES = ("kern.log", "messages", "syslog")
_KERNEL_LINE = re.compile(rb"^.{0,120}?\bkernel(?:\[\d+\])?:")
# May  4 11:02:03 | 2026-05-04T11:02:03.120000+02:00
_STAMP = re.compile(rb"(?:<\d+>)?([A-Z][a-z]{2}) ([ \d]\d) (\d\d):(\d\d):(\d\d)(?=\s)")
_ISO = re.compile(rb"(?:<\d+>)?(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?")
_MONTHS = (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec")
# the kernel writes what is not printable ASCII, and the backslash, as \x5c: tabs and letters of other languages are given back
_ESCAPED = re.compile(rb"\\x(09|5c|[89a-f][0-9a-f])")
_OPENERS: dict[str, Callable[[Path], object]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}


@dataclass(frozen=True, slots=True)
class Reading:
    """
    What one place gave.

    Attributes
    ----------
    place : str
        ``journal``, ``files``, ``kmsg`` or ``dmesg``.
    status : str
        ``ok``, ``partial`` (some of it could not be read), ``refused``, ``missing`` or ``failed``.
    detail : str
        What was read, or why it was not.
    asked : str
        Command or paths.
    lines : list of bytes
        Without their ends; those of the window and, when it has none, the last before it.
    reach : float or None
        Time of the oldest line that the place has at all.
    """

    place: str
    status: str
    detail: str
    asked: str = ""
    lines: Sequence[bytes] = ()
    reach: float | None = None

    @property
    def usable(self) -> bool:
        """Whether the place could be read at all."""
        return self.status in ("ok", "partial")


def _iso(moment: float) -> bytes:
    """A time as ``dmesg --time-format iso`` prints it."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%S,%f+00:00").encode()


def _words(moment: float | None) -> str:
    return "an unknown time" if moment is None else datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _moment(line: bytes, zone: float, before: float) -> float | None:
    """Return when a line was written; a stamp without a year is of the last such day before the file's own time."""
    if found := _ISO.match(line):
        whole = [int(part) for part in found.groups()[:6]]
        try:
            moment = datetime(*whole, tzinfo=UTC).timestamp()  # type: ignore[misc,arg-type]  # six numbers
        except ValueError:
            return None
        east = zone
        if found[8]:
            signed = found[8].decode().replace(":", "")
            east = 0.0 if signed == "Z" else (1 if signed[0] == "+" else -1) * (int(signed[1:3]) * 3600 + int(signed[3:5]) * 60)
        return moment - east + (int(found[7]) / 10 ** len(found[7]) if found[7] else 0.0)
    if (found := _STAMP.match(line)) and found[1] in _MONTHS:
        last = datetime.fromtimestamp(before + 86400, UTC)
        for year in (last.year, last.year - 1):
            try:
                stamp = datetime(
                    year, _MONTHS.index(found[1]) + 1, int(found[2]), int(found[3]), int(found[4]), int(found[5]), tzinfo=UTC
                )
            except ValueError:
                continue
            if stamp <= last:
                return stamp.timestamp() - zone
    return None


def _windowed(stamped: Sequence[tuple[float | None, bytes]], since: float, until: float) -> list[bytes]:
    """Keep the lines of the window; a line without a stamp belongs to the one before. When there are none, the last before it."""
    kept: list[bytes] = []
    earlier: list[bytes] = []
    inside = False
    for moment, line in stamped:
        if moment is not None:
            inside = since - MARGIN <= moment <= until + MARGIN
        if inside:
            kept.append(line)
        elif moment is not None and moment < since:
            earlier.append(line)
            del earlier[:-_BEFORE]
    return kept or earlier


def _torn(out: bytes) -> bool:
    """Whether a log's text was cut off: it is printed oldest first and line by line."""
    return bool(out) and not out.endswith(b"\n")


# ---- the ring buffer


def _unescaped(found: re.Match[bytes]) -> bytes:
    return bytes((int(found[1], 16),))


def read_kmsg(since: float, until: float, deadline: Deadline, *, path: str = "/dev/kmsg") -> Reading:
    """Read the kernel's ring buffer record by record, never waiting for the next; stamps since boot become times in UTC."""
    try:
        device = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        refused = error.errno in (errno.EPERM, errno.EACCES)
        hint = " (kernel.dmesg_restrict, or no CAP_SYSLOG)" if refused else ""
        return Reading("kmsg", "refused" if refused else "missing", f"{path}: {error.strerror}{hint}", path)
    boot = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    stamped: list[tuple[float | None, bytes]] = []
    first, lost, size = -1, 0, 0
    try:
        while size < LIMIT and not deadline.over:
            try:
                record = os.read(device, 8192)
            except BlockingIOError:  # that was the newest
                break
            except BrokenPipeError:  # overwritten while we read: the next read goes on at the oldest
                lost += 1
                continue
            except InterruptedError:
                continue
            if not record:
                break
            size += len(record)
            head, _, text = record.partition(b";")
            parts = head.split(b",")
            if len(parts) < 3 or not parts[1].isdigit() or not parts[2].isdigit():
                continue
            first = int(parts[1]) if first < 0 else first
            moment = boot + int(parts[2]) / 1e6
            message = text.split(b"\n", 1)[0]  # what follows are the device's properties
            stamped.append((moment, b"%s %s" % (_iso(moment), _ESCAPED.sub(_unescaped, message))))
    except OSError as error:
        return Reading("kmsg", "failed", f"{path}: {error.strerror}", path)
    finally:
        os.close(device)
    if not stamped:
        return Reading("kmsg", "missing", f"{path} holds no record: a container has none of its host", path)
    # numbers begin with 0 at boot: a first record with another one has lost its elders
    reach = stamped[0][0]
    whole = " since boot" if first == 0 else f"; the ring buffer has forgotten {first:,} older records"
    note = f", {lost} overwritten while read" if lost else ""
    return Reading("kmsg", "ok", f"{len(stamped):,} records{whole}{note}", path, _windowed(stamped, since, until), reach)


def read_dmesg(since: float, until: float, deadline: Deadline, *, env: Mapping[str, str] | None = None) -> Reading:
    """Ask dmesg, in the form with the most exact stamps that this one knows."""
    said = ""
    for argv in (("dmesg", "--time-format", "iso"), ("dmesg", "-T"), ("dmesg",)):
        ran = run(argv, seconds=deadline.left(10.0), limit=LIMIT, env={"TZ": "UTC", **(env or {})})
        if ran.ending == "missing":
            return Reading("dmesg", "missing", f"dmesg {ran.sentence}", ran.asked)
        if b"not permitted" in ran.err or b"denied" in ran.err:
            return Reading("dmesg", "refused", f"dmesg {ran.sentence}", ran.asked)
        if ran.ok and ran.out.strip():
            lines = ran.out.splitlines()
            stamped = [(_moment(line, 0.0, time.time()), line) for line in lines]
            reach = next((moment for moment, _ in stamped if moment is not None), None)
            kept = lines if reach is None else _windowed(stamped, since, until)
            status, note = ("partial", "; the last of them is torn: the newest are missing") if _torn(ran.out) else ("ok", "")
            return Reading("dmesg", status, f"{len(lines):,} lines of the ring buffer{note}", ran.asked, kept, reach)
        said = f"dmesg {ran.sentence}" if not ran.ok else "dmesg printed nothing"
        if ran.ending == "time-out":
            return Reading("dmesg", "failed", said, ran.asked)
    return Reading("dmesg", "missing", said, "dmesg")


# ---- the journal


def read_journal(
    since: float, until: float, deadline: Deadline, *, root: str = "/", env: Mapping[str, str] | None = None
) -> Reading:
    """Ask journalctl for the kernel's lines of all boots; ``-k`` alone would mean this boot only."""
    ask = ["journalctl", "_TRANSPORT=kernel", "--output=short-iso-precise", "--no-pager", "--utc", "--all"]
    if root != "/":  # the host's root, mounted into a container
        ask.append(f"--root={root}")
    window = [f"--since=@{max(0, int(since - MARGIN))}", f"--until=@{int(until + MARGIN) + 1}"]
    oldest = run(ask, seconds=deadline.left(15.0), limit=4096, env=env)  # it prints for as long as it is let: the begin is enough
    if oldest.ending == "missing":
        return Reading("journal", "missing", f"journalctl {oldest.sentence}", oldest.asked)
    said = oldest.err + oldest.out[:200]
    if b"not seeing messages" in said or b"insufficient permissions" in said or b"Permission denied" in said:
        return Reading(
            "journal", "refused", "the journal shows only this user's lines: join the group systemd-journal", oldest.asked
        )
    if b"No journal files" in said or (oldest.ok and (not oldest.out.strip() or b"-- No entries --" in oldest.out)):
        return Reading("journal", "missing", "the journal has no line of the kernel", oldest.asked)
    if oldest.ending not in ("ok", "too-much"):
        return Reading("journal", "failed", f"journalctl {oldest.sentence}", oldest.asked)
    reach = next((moment for line in oldest.out.splitlines() if (moment := _moment(line, 0.0, time.time())) is not None), None)
    ran = run([*ask, "--quiet", *window], seconds=deadline.left(60.0), limit=LIMIT, env=env)
    if ran.ending not in ("ok", "too-much", "time-out"):
        return Reading("journal", "failed", f"journalctl {ran.sentence}", ran.asked)
    lines = [line for line in ran.out.splitlines() if not line.startswith(b"-- ")]
    status, note = ("ok", "") if ran.ok else ("partial", f"; it {ran.sentence}")
    if ran.ok and _torn(ran.out):
        status, note = "partial", "; the last of them is torn: the newest are missing"
    if not lines and ran.ok:
        before = run(
            [*ask, "--quiet", window[0].replace("--since", "--until"), f"--lines={_BEFORE}"], seconds=deadline.left(15.0), env=env
        )
        lines = before.out.splitlines()
        note = "; none in the window, so the last before it"
    if not lines and not ran.ok:
        return Reading("journal", "failed", f"journalctl {ran.sentence}", ran.asked)
    return Reading("journal", status, f"{len(lines):,} lines of the journal{note}", ran.asked, lines, reach)


# ---- the files of syslog


def read_files(since: float, until: float, deadline: Deadline, *, folder: str = "/var/log") -> Reading:
    """Read kern.log, messages or syslog with their rotated elders, as far back as the window; stamps get year and zone."""
    refused: list[str] = []
    for name in _FILES:
        found = _generations(Path(folder), name)
        if not found:
            continue
        stamped: list[tuple[float | None, bytes]] = []
        notes: list[str] = []
        read: list[str] = []
        size = 0
        # newest first, until one begins before the window
        for path in found:
            if deadline.over or size > LIMIT:
                notes.append(f"{path.name} and older were not read: {'the deadline is over' if deadline.over else 'too much'}")
                break
            try:
                lines, changed = _lines(path, kernel_only=name != "kern.log", most=LIMIT - size)
            except (PermissionError, FileNotFoundError) as error:
                notes.append(f"{path}: {error.strerror}")
                continue
            except (OSError, EOFError, lzma.LZMAError) as error:
                notes.append(f"{path}: {error}")
                continue
            part = [_dated(line, changed) for line in lines]
            stamped = part + stamped
            size += sum(len(line) for line in lines)
            read.append(path.name)
            first = next((moment for moment, _ in part if moment is not None), None)
            if first is not None and first <= since - MARGIN:
                break
        if not read:
            refused += notes
            continue
        reach = next((moment for moment, _ in stamped if moment is not None), None)
        detail = f"{len(stamped):,} lines of {', '.join(reversed(read))}" + "".join(f"; {note}" for note in notes)
        asked = " ".join(f"{folder}/{each}" for each in read)
        return Reading("files", "partial" if notes else "ok", detail, asked, _windowed(stamped, since, until), reach)
    if refused:
        return Reading("files", "refused", "; ".join(refused[:4]), folder)
    return Reading("files", "missing", f"none of {', '.join(_FILES)} is in {folder}", folder)


def _generations(folder: Path, name: str) -> list[Path]:
    """The file and its rotated elders (.1, .2.gz, -20260504, -20260504.gz), newest first."""
    pattern = re.compile(rf"{re.escape(name)}(?:[.-]\d{{1,10}})?(?:\.gz|\.xz|\.bz2)?")
    try:
        with os.scandir(folder) as entries:
            files = [entry for entry in entries if pattern.fullmatch(entry.name) and entry.is_file()]
        found = [(entry.name == name, entry.stat().st_mtime, Path(entry.path)) for entry in files]
    except OSError:
        return []
    return [path for _, _, path in sorted(found, reverse=True)]


def _lines(path: Path, *, kernel_only: bool, most: int) -> tuple[list[bytes], float]:
    """Return the lines of a log (of a large one its end) and when it was written last."""
    with open(path, "rb") as plain:
        changed = os.fstat(plain.fileno()).st_mtime
        opener = _OPENERS.get(path.suffix)
        if opener is None:
            size = os.fstat(plain.fileno()).st_size
            plain.seek(max(0, size - most))
            data = plain.read(most)
        else:
            with opener(path) as stream:  # type: ignore[attr-defined]
                data = stream.read(most)
    lines = data.splitlines()
    return ([line for line in lines if _KERNEL_LINE.match(line)] if kernel_only else lines), changed


def _dated(line: bytes, changed: float) -> tuple[float | None, bytes]:
    """Return when a line was written, and the line; the year and zone that its stamp lacks are known here, and only here."""
    found, full = _STAMP.match(line), _ISO.match(line)
    if not found and (full is None or full[8]):  # it names its zone, or there is no stamp
        return _moment(line, 0.0, changed), line
    zone = time.localtime(changed).tm_gmtoff
    moment = _moment(line, zone, changed)
    if moment is not None:  # daylight saving at that time, not now
        zone = time.localtime(moment).tm_gmtoff
        moment = _moment(line, zone, changed)
    if found and moment is not None:
        return moment, _iso(moment).replace(b",000000", b"") + line[found.end() :]
    return moment, line


# ---- all of them


def places(
    since: float, until: float, deadline: Deadline, *, root: str = "/", env: Mapping[str, str] | None = None
) -> Iterator[Reading]:
    """
    Yield what each place gives, best first; who has enough stops asking. One that takes all the time does not cost the next its turn.

    `root` is where the host's files lie, `env` is added to the environment of journalctl and dmesg.
    """
    below = root.rstrip("/")
    elsewhere = {} if root == "/" else {"root": root}
    told = {} if env is None else {"env": env}
    readers: tuple[tuple[str, Callable[[float, float, Deadline], Reading]], ...] = (
        ("journal", partial(read_journal, **elsewhere, **told)),  # type: ignore[arg-type]
        ("files", partial(read_files, folder=f"{below}/var/log") if below else read_files),
        # needs no time: it is memory, and never waits
        ("kmsg", partial(read_kmsg, path=f"{below}/dev/kmsg") if below else read_kmsg),
        ("dmesg", partial(read_dmesg, **told)),  # type: ignore[arg-type]
    )
    for place, read in readers:
        try:
            yield read(since, until, deadline)
        except SourceError as error:
            yield Reading(place, "failed", f"not asked: {error}")


def collect_kernel(
    node: str,
    since: float,
    until: float,
    folder: Folder,
    deadline: Deadline,
    *,
    readings: Callable[[float, float, Deadline], Iterator[Reading]] = places,
) -> Answer:
    """
    Write ``kernel/<node>.log`` from the place that reaches furthest back, and say which were refused and how far it reaches.

    Parameters
    ----------
    node : str
        This node's name as its scheduler knows it.
    since, until : float
        The window.
    readings : callable, optional
        Yields what each place gives; default `places`.
    """
    begun = time.monotonic()
    name = f"kernel/{re.sub(r'[^A-Za-z0-9_.-]', '_', node) or socket.gethostname()}.log"
    if folder.has(name):
        return Answer("kernel", "ok", "the kernel log was collected before", file=name)
    best: Reading | None = None
    others: list[str] = []
    try:
        for reading in readings(since, until, deadline):
            if not reading.usable:
                others.append(f"{reading.place} {reading.status}: {reading.detail}")
                continue
            if best is None or (reading.reach is not None and (best.reach is None or reading.reach < best.reach)):
                best = reading
            if best.reach is not None and best.reach <= since and best.status == "ok":
                break
    except (SourceError, OSError, ValueError) as error:  # the deadline, mostly: what was read until then counts
        others.append(str(error))
    seconds = time.monotonic() - begun
    tail = f" ({'; '.join(others)})" if others else ""
    if best is None:
        status = (
            "failed" if any(" refused" in other or " failed" in other or "deadline" in other for other in others) else "missing"
        )
        hint = "root, CAP_SYSLOG or the group systemd-journal may read it"
        return Answer("kernel", status, f"no kernel log of {node} could be read{tail}", hint, seconds=seconds)
    if not best.lines:
        detail = f"{best.detail}, and no line in the window or before it{tail}"
        return Answer("kernel", "missing", detail, "", best.asked, seconds=seconds)
    try:
        folder.write(name, b"\n".join(best.lines) + b"\n")
    except (FolderFull, OSError) as error:
        return Answer("kernel", "failed", f"not written: {error}", getattr(error, "hint", ""), best.asked, seconds=seconds)
    late = best.reach is None or best.reach > since
    detail = f"{best.detail}; it reaches back to {_words(best.reach)}" + (", after the window began" if late else "") + tail
    hint = "what happened before is lost, unless another host keeps it" if late else ""
    status = "partial" if late or best.status == "partial" else "ok"
    return Answer("kernel", status, detail, hint, best.asked, name, len(best.lines), seconds)
