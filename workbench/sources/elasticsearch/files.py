"""
Turn the lines that a log server returned into log files as the machines would have written them: one a stream, in order, gaps marked.

A message stands as it was. The server's time is put in front of a line only where no line near it tells the time itself, and on the clock of
the stream: a job that writes local time is read as if it were UTC, so the server's UTC would not fit between its lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median

from workbench.parse.prefix import Context, split_prefix

__all__ = ["REST", "Entry", "Stream", "file_name", "job_text", "kernel_text", "rest_text"]

GAP = "[workbench] … lines of this log were not fetched here …"
REST = "rest-of-the-ranks"  # name of the file that says of the ranks of which nothing was fetched when each ended
_LAST = "[workbench] … the last of {:,} lines of this log was written now; it was not fetched …"
_SAMPLE = 200  # lines of a stream whose stamps are compared with the server's
_NEAR = 1.5  # seconds within which a line's time is told by the line before it
_AWAY = 2.0  # seconds between two clocks that are not the time a line takes to the server
# what a stamp looks like at the head of a line: 11:02:03 | 1714820523.123 | [12345.678901]
_CLOCK = re.compile(r".{0,60}?\d{1,2}:\d{2}:\d{2}|.{0,30}?(?<!\d)1\d{9}\.\d+")
_SYSLOG = re.compile(
    r"(?:<\d+>)?(?:[A-Z][a-z]{2}\s+\d{1,2} \d{2}:\d{2}:\d{2}|\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}\S*|\[[A-Z][a-z]{2} [A-Z][a-z]{2}\s+\d)"
)
_UNSAFE = re.compile(r"[^\w.@+=-]+")


@dataclass(slots=True)
class Entry:
    """One line: its time (seconds), what orders lines of one time, its text, and the server's own spelling of the time."""

    time: float
    order: tuple[float, float]  # place in the file, then in the shard
    text: str
    stamp: str
    key: object = None


@dataclass
class Stream:
    """
    The lines of one rank, container or node; `joined` holds the pairs of keys between which nothing is missing, None if nothing is.

    `total` and `end` are how many lines the server has and when the last was written, `rank` and `node` whose they are; 0 and None where
    that was not asked.
    """

    name: str
    entries: list[Entry] = field(default_factory=list)
    joined: set[tuple[object, object]] | None = None
    total: int = 0
    end: float = 0.0
    rank: int | None = None
    node: str = ""

    @property
    def lines(self) -> int:
        """How many different lines there are."""
        return len({id(each) if each.key is None else each.key for each in self.entries})

    def add_run(self, entries: Sequence[Entry]) -> None:
        """Add lines between which nothing is missing."""
        if self.joined is None:
            self.joined = set()
        self.entries += entries
        self.joined |= {(one.key, two.key) for one, two in pairwise(entries)}

    def ordered(self) -> Iterator[tuple[Entry, bool]]:
        """Yield each line once, in order, and whether lines are missing before it."""
        seen: set[object] = set()
        before: Entry | None = None
        for each in sorted(self.entries, key=lambda entry: (entry.time, entry.order)):
            if each.key is not None:
                if each.key in seen:
                    continue
                seen.add(each.key)
            yield each, self.joined is not None and before is not None and (before.key, each.key) not in self.joined
            before = each


def file_name(name: str) -> str:
    """Return a name of a file for what a log server calls a stream; hostile names lead nowhere."""
    return _UNSAFE.sub("_", name.strip()).strip("._")[:150] or "log"


def _own_time(text: str, ctx: Context) -> float | None:
    head = split_prefix(text, ctx)
    return head.time


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _shift(entries: Sequence[Entry]) -> float:
    """Return by how many seconds the clock that the lines tell is before the server's."""
    if not entries:
        return 0.0
    ctx = Context(year=datetime.fromtimestamp(entries[0].time, UTC).year)
    sample = (each for each in entries[:: max(len(entries) // _SAMPLE, 1)] if _CLOCK.match(each.text))
    offsets = [own - each.time for each in sample if (own := _own_time(each.text, ctx)) is not None]
    shift = median(offsets) if offsets else 0.0
    return shift if abs(shift) > _AWAY else 0.0


def rest_text(streams: Sequence[Stream], others: Sequence[Stream]) -> Iterable[bytes]:
    """Yield the file that says of ranks without a line when each ended, on the clock that the lines of the others tell."""
    known = [stream for stream in others if stream.entries]
    shift = median([_shift(stream.entries) for stream in known[:: max(len(known) // _SAMPLE, 1)]]) if known else 0.0
    for stream in streams:
        yield f"{_iso(stream.end + shift)} rank={stream.rank} host={stream.node} | {_LAST.format(stream.total)}\n".encode()


def job_text(stream: Stream) -> Iterable[bytes]:
    """Yield the file of a job's stream."""
    ordered = list(stream.ordered())
    shift = _shift([each for each, _ in ordered])
    told: float | None = None  # the time that the lines before tell, on the server's clock
    for each, gap in ordered:
        text = each.text.rstrip("\r\n")
        if gap:
            yield f"{GAP}\n".encode()
            told = None
        if _CLOCK.match(text):
            told = each.time
        elif told is None or each.time - told > _NEAR:
            text = f"{each.stamp if not shift and each.stamp else _iso(each.time + shift)} {text}"
            told = each.time
        yield (text + "\n").encode("utf-8", "replace")
    if stream.end and (not ordered or stream.end - ordered[-1][0].time > 0.001):
        yield f"{_iso(stream.end + shift)} {_LAST.format(stream.total)}\n".encode()


def kernel_text(stream: Stream, node: str) -> Iterable[bytes]:
    """Yield the file of a node's kernel lines, in the form of ``journalctl -o short-iso`` where they have no stamp of their own."""
    for each, gap in stream.ordered():
        text = each.text.rstrip("\r\n")
        if gap:
            yield f"{_iso(each.time)} {node} workbench: {GAP}\n".encode()
        if not _SYSLOG.match(text):
            body = text if text.startswith("kernel:") else f"kernel: {text}"
            text = f"{each.stamp or _iso(each.time)} {node} {body}"
        yield (text + "\n").encode("utf-8", "replace")
    newest = max((each.time for each in stream.entries), default=0.0)
    if stream.end - newest > 0.001:
        yield f"{_iso(stream.end)} {node} workbench: {_LAST.format(stream.total)}\n".encode()
