"""Turn what other tools wrote into a job's log (wall broadcasts, a wrapper's dmesg, a prolog's diag) into the events of their own parsers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from workbench.model import Event, Line, Parsed
from workbench.parse.prefix import Prefix

__all__ = ["Quoted"]

_MOST = 20_000  # lines kept; a job log that holds more is a node's log
# Message from syslogd@node-b at Mar  1 11:19:02 ...
_WALL = re.compile(r"Message from syslogd@(\S+) at ([A-Z][a-z]{2}\s+\d+ \d\d:\d\d:\d\d)")
# Broadcast message from root@node-b (pts/0) (Sat Mar  1 11:19:02 2025):
_BROADCAST = re.compile(r"Broadcast message from \S+@([\w.-]+)")
#  kernel:[Hardware Error]: CPU 52: …
_FROM_KERNEL = re.compile(r"\s*kernel: ?(.+)")
# [Tue Aug  5 06:20:52 2025] NVRM: … | [ 1234.567890] NVRM: … | NVRM: Xid (PCI:0000:5d:00): 79, … | node-a kernel: NVRM: …
_KERNEL = re.compile(
    r"NVRM: |\bnvidia-nvswitch\d*: S?Xid|\bS?Xid ?\((?:PCI:)?[0-9a-fA-F]{4}|\bkernel: ?\[ *\d+\.\d{3,6}\]"
    r"|^\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\] |^(?:<\d+>)?\[ *\d+\.\d{6}\](?:\[ *T?\d+\])? "
)
# node-a kernel: NVRM: …   (behind a stamp that was taken off)
_HOSTED = re.compile(r"\s*([A-Za-z][\w.-]*) kernel: ?(?=\S)")
# | Diagnostic                | Result       | | NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4     |
_TABLE = re.compile(r"\| (?:Diagnostic +\| Result|NVIDIA-SMI [\d.]+ )")
_INSIDE = ("+", "|")
# [prolog] node-c: running dcgmi diag -r 2 before job 778120
_SPEAKER = re.compile(r"^\[\w+\] ([A-Za-z][\w-]*[\d.-][\w.-]*|[A-Za-z]+-[a-z]): ")


@dataclass(slots=True)
class _Said:
    line: Line
    node: str | None
    time: float | None
    own: bool  # the time stood in the head that was taken off the line
    raw: str = ""  # the line as it was


@dataclass(slots=True)
class Quoted:
    """Gather such lines one by one; `events` reads them once the log is whole."""

    kernel: list[_Said] = field(default_factory=list)
    tables: list[list[_Said]] = field(default_factory=list)
    _wall: tuple[int, str, str] | None = None
    _cast: tuple[int, str] | None = None
    _open: bool = False
    _before: Line | None = None
    _named: str | None = None

    def feed(self, no: int, head: Prefix, moment: float | None, raw: str) -> bool:
        """Take the next line; return whether it is another tool's, so that the job's own tables need not look at it."""
        text = head.rest
        if text[:1] == "[" and (named := _SPEAKER.match(text)):
            self._named = named[1]
        if "essage from " in text and (found := _WALL.search(text)):
            self._wall = (no, found[1], found[2])
            return True
        if "Broadcast message" in text and (found := _BROADCAST.search(text)):
            self._cast = (no, found[1])
        elif self._cast is not None and no - self._cast[0] <= 3 and head.node is None and not head.stream:
            head.node = self._cast[1]  # an operator speaks to everybody on this node
        if self._wall is not None and text.strip():
            at, where, stamp = self._wall
            if no - at <= 2 and (found := _FROM_KERNEL.match(text)):
                self._keep(no, f"{stamp} {where} kernel: {found[1]}", where, moment, False, raw)
                return True
            self._wall = None
        if self._table(no, head, moment):
            return True
        said = _HOSTED.match(text) if head.time is not None and "kernel:" in text[:200] else None
        likely = "Xid" in text or "NVRM" in text or "kernel:" in text or text[:1] in "[<"
        if said or (likely and _KERNEL.search(text[:400])):
            node = head.node
            if said:
                node, text = said[1], text[said.end(1) + 1 :]
            self._keep(no, text, node, head.time if head.time is not None else moment, head.time is not None, raw)
            return True
        return False

    def _keep(self, no: int, text: str, node: str | None, time: float | None, own: bool, raw: str) -> None:
        if len(self.kernel) < _MOST:
            self.kernel.append(_Said(Line(no, text), node, time, own, raw))

    def _table(self, no: int, head: Prefix, moment: float | None) -> bool:
        text = head.rest
        inside = text[:1] in _INSIDE and bool(text)
        if self._open and not inside:
            self._open = False
        if not self._open and inside and text[:1] == "|" and _TABLE.match(text) and len(self.tables) < 256:
            self._open = True
            self.tables.append([])
            if self._before is not None and self._before.no == no - 1:
                self.tables[-1].append(_Said(self._before, head.node or self._named, moment, False))
        if self._open:
            self.tables[-1].append(_Said(Line(no, text), head.node or self._named, moment, False))
        self._before = Line(no, text) if inside else None
        return self._open

    def events(self, file: str, node: str | None, whose: Callable[[int], str | None]) -> list[Event]:
        """
        Return what the kernel's and the tools' own parsers make of the lines.

        Parameters
        ----------
        file : str
            Name that events carry.
        node : str, optional
            Where the log was written, for lines that name no node.
        whose : callable
            The node of a process id, as far as the job's own lines tell.
        """
        made: list[Event] = []
        if self.kernel:
            from workbench.parse.kernel import parse_kernel

            said = {one.line.no: one for one in self.kernel}
            by_node: dict[str | None, list[Line]] = {}
            for one in self.kernel:
                by_node.setdefault(one.node, []).append(one.line)
            reference = next((one.time for one in reversed(self.kernel) if one.time is not None), None)
            for name, lines in by_node.items():
                for event in parse_kernel(lines, file=file, node=name, reference=reference).events:
                    one = said.get(event.line or 0, self.kernel[0])
                    if event.time is None and one.time is not None:
                        event.time = one.time
                        if not one.own:
                            event.data["time_from"] = "previous"
                    if "\n" not in event.text and one.raw:
                        event.text = one.raw[:2000]
                    event.node = event.node or name or (whose(event.pid) if event.pid else None) or node
                    made.append(event)
        for table in self.tables:
            made += _read(table, file, node)
        return made


def _read(table: list[_Said], file: str, node: str | None) -> list[Event]:
    """Read one box of a tool; what it says of healthy devices is of no use in a job's log."""
    from workbench.catalog import signatures
    from workbench.parse.smi import parse_smi

    name = next((one.node for one in table if one.node), node)
    parsed: Parsed = parse_smi([one.line for one in table], file=file, node=name)
    rows = signatures()
    time = next((one.time for one in table if one.time is not None), None)
    kept = [event for event in parsed.events if (event.role or rows[event.signature].role) == "cause"]
    for event in kept:
        if event.time is None and time is not None:
            event.time = time
            event.data["time_from"] = "previous"
    return kept
