"""Turn the lines of one kernel log into records and hold what the handlers of message blocks share while they are read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from workbench.model import Event, Gpu, Line
from workbench.parse import ids
from workbench.parse.kernel_clock import Clock
from workbench.parse.kernel_stamps import Stamp

__all__ = ["ADDRESS", "Record", "Run", "records"]

ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
# A line without stamp that still begins a message of its own (pasted logs lose stamps here and there).
_HEAD = re.compile(
    r"\s{0,40}(?:NVRM: (?:Xid|GPU|API|The NVIDIA|nv[AC])|\S+ ?kernel:|nvidia-nvswitch\d|pcieport |mlx5_core |EDAC |mce: |INFO: |"
    r"Out of memory|Memory cgroup|Kernel panic|BUG: |watchdog: |nvme |EXT4-fs|XFS \(|nfs: |Lustre|LNet|\S+\[\d+\]: segfault)"
)
_TEXT_MOST = 4000  # characters; a kernel message holds about 1,000
_FOLD_MOST = 8  # lines of one message; the longest printk with line ends seen is the off-the-bus notice with 3
# A message that a terminal cut inside the Xid's head: "NVRM: Xid (PCI:0000:3b:" or "NVRM: Xid (PCI:0000:3b:00):"
_CUT_XID = re.compile(r"(?<![A-Za-z])Xid\s*\([^)]{0,30}\)?\s*:?\s*$")


_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")


@dataclass(slots=True)
class Record:
    """One kernel message: where it begins, what it says, with lines that were folded joined."""

    at: int  # position among the lines
    no: int  # line number in the file
    text: str  # the message without stamp, folded lines joined by a space
    raw: str  # the lines as they were
    used: bool = False  # a block has told of it already


def records(lines: Sequence[Line], stamps: Sequence[Stamp]) -> list[Record]:
    """Join folded lines: in a log whose lines bear stamps, one without any continues the message before."""
    bears = [
        stamp.time is not None
        or stamp.yearless is not None
        or stamp.uptime is not None
        or stamp.delta is not None
        or bool(stamp.level)
        or bool(stamp.host)
        for stamp in stamps
    ]
    stamped = any(bears)
    found: list[Record] = []
    folded = 0
    for at, (line, stamp) in enumerate(zip(lines, stamps, strict=True)):
        last = found[-1] if found else None
        joins = False
        if last is not None and folded < _FOLD_MOST and not bears[at] and line.text.strip() and not _HEAD.match(line.text):
            joins = stamped or bool(_CUT_XID.search(last.text))
        if joins and last is not None:
            glue = "" if re.search(r"[0-9a-fA-F]{1,4}:[0-9a-fA-F]{0,2}$", last.text) and "Xid" in last.text[-40:] else " "
            last.text = f"{last.text}{glue}{stamp.text.strip()}"[:_TEXT_MOST]
            last.raw = f"{last.raw}\n{line.text}"[:2000]
            folded += 1
            continue
        folded = 0
        text = (
            stamp.text.replace("#012", " ").replace("\\x0a", " ") if "#012" in stamp.text or "\\x0a" in stamp.text else stamp.text
        )
        found.append(Record(at, line.no, text, line.text[:2000]))
    return found


@dataclass(slots=True)
class Run:
    """One pass over one log."""

    file: str
    node: str | None
    stamps: Sequence[Stamp]
    clock: Clock
    records: list[Record]
    events: list[Event] = field(default_factory=list)
    uuids: dict[str, str] = field(default_factory=dict)  # PCI address → GPU UUID
    nvidia: set[str] = field(default_factory=set)  # PCI addresses of NVIDIA GPUs
    bridges: list[tuple[str, str, int, int]] = field(default_factory=list)  # port, domain, first and last bus below it
    ports: dict[str, str] = field(default_factory=dict)  # port → device right below it
    down: dict[tuple[str, str], Event] = field(default_factory=dict)  # (kind, device) → event that waits for its end
    recent: dict[tuple[object, ...], Event] = field(default_factory=dict)  # for coalescing

    def place(self, event: Event, record: Record) -> Event:
        """Fill where and when of an event from the record it stands in."""
        stamp = self.stamps[record.at]
        event.file, event.line, event.order = self.file, record.no, record.at
        event.text = event.text or record.raw
        host = stamp.host
        event.node = self.node if host is None or ids.same_node(host, self.node) else host
        if self.node and host and (host == "localhost" or _ADDRESS.fullmatch(host)):
            event.node = self.node  # an address or no name at all: the caller knows the name
        event.time = self.clock.times[record.at]
        event.data["boot"] = self.clock.boots[record.at]
        if stamp.uptime is not None:
            event.data["uptime"] = stamp.uptime
        if self.clock.how[record.at]:
            event.data["time_from"] = self.clock.how[record.at]
        if event.time is None and self.clock.elapsed[record.at] is not None:
            event.data["elapsed"] = self.clock.elapsed[record.at]
        if stamp.ago is not None:
            event.data["ago"] = stamp.ago
        return event

    def after(self, number: int, most: int) -> Iterator[Record]:
        """Yield up to `most` records after the one with this number, of the same boot."""
        boot = self.clock.boots[self.records[number].at]
        for record in self.records[number + 1 : number + 1 + most]:
            if self.clock.boots[record.at] != boot:
                return
            yield record

    def gpu(self, address: str | None) -> Gpu | None:
        """Return the GPU at a PCI address and remember that one is there."""
        canonical = ids.pci(address)
        if canonical is None:
            return None
        self.nvidia.add(canonical)
        return Gpu(pci=canonical, uuid=self.uuids.get(canonical))

    def below(self, port: str) -> str | None:
        """Return the one NVIDIA GPU below a PCIe port, when the log shows which."""
        if port in self.nvidia:
            return port
        direct = self.ports.get(port)
        if direct in self.nvidia:
            return direct
        for name, domain, first, last in self.bridges:
            if name == port:
                under = {
                    gpu for gpu in self.nvidia if gpu.split(":")[0] == domain and first <= int(gpu.split(":")[1], 16) <= last
                }
                if len(under) == 1:
                    return under.pop()
        return None
