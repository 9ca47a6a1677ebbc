"""Turn a log of any size into the lines that matter: those that match a signature, with their neighbours and exact counts."""

from __future__ import annotations

import contextlib
import io
import os
import re
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, BinaryIO

from workbench.model import Line
from workbench.parse.engines import engine
from workbench.parse.text import TEXT, clean, split_lines

__all__ = ["ScanResult", "Scanner", "clean", "split_lines"]

BLOCK = 1 << 20  # 256 KiB to 4 MiB measure alike; more misses the cache
AHEAD = 64 << 10  # context after a hit, and the longest line that is kept whole
BEHIND = 4 << 10  # context before a hit
RANGE = 32 << 20  # bytes a thread takes at a time
LONG = 512 << 20  # a file that is worth the import of numpy
DETAIL = 32 << 20  # bytes of text of matched lines that are kept for one log
FLOOR = 20  # lines of a signature kept even when DETAIL is used up
PER_TOKEN = 4  # lines of a signature kept for one rank

# [rank3]:  |  37:  |  [1,3]<stdout>:  |  (Worker_TP0 pid=58215)  |  node-1:2918:4483
_TOKEN = re.compile(
    rb"\s*(\[[\w,]{1,20}\](?:<\w+>)?:|\d{1,6}:(?= )|\([\w ]{1,30}pid=\d+[^)\n\r]{0,40}\)"
    rb"|[\w.-]{1,60}:\d+:\d+(?= \[)|[\w.-]{1,60}: (?=\S))"
)
_numpy: Any = None
_TRACE = b"Traceback (most recent call last)"
Progress = Callable[[int], None]


@dataclass(slots=True)
class ScanResult:
    """
    What a scan found.

    `lines` are the matched lines and their neighbours (which have no `hits`) in order; `counts` says how many lines each
    signature matched, also those that `lines` leaves out; `cut` how many lines were too long to be kept whole.
    """

    lines: list[Line] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    total_lines: int = 0
    total_bytes: int = 0
    matched_lines: int = 0
    cut: int = 0
    error: str = ""  # why reading ended early
    head: bytes = b""
    tail: bytes = b""


class Scanner:
    """
    Finds the lines of a log that match any of a set of signatures.

    Parameters
    ----------
    patterns : sequence of (id, regular expression)
        Signatures. Of those that match a line the most specific comes first: the one with the longest text that each of its
        matches must contain.
    engine_name : str, optional
        ``hyperscan``, ``re2`` or ``re``; default the fastest one that is installed.
    cache : bool
        Keep the compiled patterns in the user's cache folder.
    """

    def __init__(self, patterns: Sequence[tuple[str, str]], *, engine_name: str | None = None, cache: bool = True) -> None:
        self.ids = [name for name, _ in patterns]
        self._engine = engine([pattern for _, pattern in patterns] + [re.escape(_TRACE.decode())], name=engine_name, cache=cache)
        order = sorted(range(len(self.ids)), key=lambda index: -self._engine.weights[index])
        self._rank = [0] * len(order)
        for place, index in enumerate(order):
            self._rank[index] = place
        self.rejected = [(self.ids[index], reason) for index, reason in self._engine.rejected if index < len(self.ids)]

    @property
    def engine_name(self) -> str:
        """Which engine does the work."""
        return self._engine.name

    def hits(self, text: str) -> tuple[str, ...]:
        """Return the signatures that match a text, most specific first."""
        raw = clean(text).encode("utf-8", "replace")
        return self._named({index for _, index in self._engine.matches(raw)})

    def _named(self, indices: Iterable[int]) -> tuple[str, ...]:
        rank, known = self._rank, len(self.ids)
        return tuple(self.ids[index] for index in sorted((index for index in indices if index < known), key=rank.__getitem__))

    def lines(self, data: bytes, *, first: int = 1, offset: int = 0) -> tuple[list[Line], dict[str, int]]:
        """
        Return every line of a text with its hits, and how many lines each signature matched.

        Parameters
        ----------
        data : bytes
            UTF-8 text, small enough to be kept whole; bytes that are no UTF-8 are replaced.
        first : int
            Number of the first line.
        offset : int
            Byte offset of `data` in its file.
        """
        result, starts = split_lines(data, first=first, offset=offset)
        counts: dict[str, int] = {}
        known = len(self.ids)
        found: dict[int, set[int]] = {}
        if b"\x1b" in data:  # match what a reader sees
            joined = "\n".join(line.text for line in result).encode("utf-8", "replace")
            edges, total = [], 0
            for line in result:
                edges.append(total)
                total += (len(line.text) if line.text.isascii() else len(line.text.encode("utf-8", "replace"))) + 1
            data, starts = joined, edges
        for end, index in self._engine.matches(data):
            if index < known:
                if end and data[end - 1] == 13:
                    end -= 1
                found.setdefault(bisect_right(starts, max(end - 1, 0)) - 1, set()).add(index)
        for at, indices in found.items():
            names = self._named(indices)
            result[at].hits = names
            for name in names:
                counts[name] = counts.get(name, 0) + 1
        return result, counts

    def scan(
        self,
        source: str | os.PathLike[str] | BinaryIO,
        *,
        workers: int = 2,
        progress: Progress | None = None,
        per_signature: int = 2000,
        head: int = 0,
        tail: int = 0,
    ) -> ScanResult:
        """
        Scan a file (by path: with threads over byte ranges) or a stream, in bounded memory.

        Parameters
        ----------
        source : path or binary stream
            Uncompressed UTF-8 (or any ASCII superset) text.
        workers : int
            Threads for a plain file.
        progress : callable, optional
            Called with the number of bytes done since the last call.
        per_signature : int
            Lines kept of each signature; the rest is only counted.
        head, tail : int
            Bytes of the begin and the end of the text to hand back as they are.
        """
        if isinstance(source, (str, os.PathLike)):
            return self._scan_file(os.fspath(source), max(workers, 1), progress, per_signature, head, tail)
        keeper = _Keeper(self.ids, per_signature)
        part = _Part(self._engine, source.readinto if hasattr(source, "readinto") else _reading(source), keeper, progress)
        part.keep_head, part.keep_tail = head, tail
        part.run(0, None)
        result = self._merged([part], per_signature)
        result.head, result.tail = bytes(part.head), bytes(part.tail[-tail:] if tail else b"")
        return result

    def _scan_file(self, path: str, workers: int, progress: Progress | None, per: int, head: int, tail: int) -> ScanResult:
        size = os.stat(path).st_size
        if size >= LONG:
            _use_numpy()
        starts = range(0, size, RANGE)
        parts: list[_Part | None] = [None] * len(starts)
        turn = iter(range(len(starts)))
        lock = threading.Lock()

        def work() -> None:
            keeper = _Keeper(self.ids, per)
            memory = bytearray(BLOCK + AHEAD + BEHIND)
            with open(path, "rb", buffering=0) as stream:
                while True:
                    with lock:
                        at = next(turn, None)
                    if at is None:
                        return
                    start, stop = starts[at], min(starts[at] + RANGE, size)
                    begin, torn = _line_start(stream, start, size)
                    part = _Part(self._engine, stream.readinto, keeper, progress, memory)
                    part.torn = torn
                    parts[at] = part
                    if begin < size:
                        stream.seek(begin)
                        part.run(begin, stop if stop < size else None)

        if workers == 1 or len(starts) <= 1:
            work()
        else:
            with ThreadPoolExecutor(workers) as pool:
                for job in [pool.submit(work) for _ in range(workers)]:
                    job.result()
        result = self._merged([part for part in parts if part], per)
        if head or tail:
            with open(path, "rb") as stream:
                result.head = stream.read(head)
                stream.seek(max(size - tail, 0))
                result.tail = stream.read(tail)
        return result

    def _merged(self, parts: Sequence[_Part], per_signature: int) -> ScanResult:
        result = ScanResult()
        ids = self.ids
        kept = [0] * (len(ids) + 1)
        totals = [0] * len(ids)
        for part in parts:
            for offset in sorted(part.lines):
                line = part.lines[offset]
                line.no += result.total_lines
                if line.hits:
                    indices = [int(each) for each in line.hits]
                    if all(kept[index] >= per_signature * 10 for index in indices):
                        continue
                    for index in indices:
                        kept[index] += 1
                    line.hits = self._named(indices)
                result.lines.append(line)
            for index in range(len(ids)):
                totals[index] += part.counts[index]
            result.total_lines += part.newlines
            result.total_bytes += part.size
            result.matched_lines += part.matched
            result.cut += part.cut
            result.error = result.error or part.error
        result.counts = {ids[index]: total for index, total in enumerate(totals) if total}
        used = [part for part in parts if part.size]
        if used and used[-1].open_end:
            result.total_lines += 1
        return result


def _use_numpy() -> None:
    global _numpy
    with contextlib.suppress(ImportError):
        import numpy as np

        _numpy = np


def _reading(stream: Any) -> Callable[[memoryview], int]:
    def readinto(view: memoryview) -> int:
        data = stream.read(len(view))
        view[: len(data)] = data
        return len(data)

    return readinto


def _line_start(stream: io.RawIOBase, start: int, size: int) -> tuple[int, bool]:
    # The same rule as at the end of a range: the line that holds the byte before `start` belongs to the range before, unless
    # it is longer than AHEAD; then it is cut here.
    if start == 0:
        return 0, False
    stream.seek(start - 1)
    window = b""
    while len(window) < AHEAD:
        more = stream.read(AHEAD - len(window))
        if not more:
            break
        window += more
    at = window.find(b"\n")
    if at >= 0:
        return start + at, False
    return (size, False) if start - 1 + len(window) >= size else (start, True)


class _Keeper:
    """Decides which matched lines are kept with their text; one per thread, so that no thread waits for another."""

    def __init__(self, ids: Sequence[str], per_signature: int) -> None:
        self.per = per_signature
        self.kept = [0] * (len(ids) + 1)
        self.full: set[int] = set()  # signatures of which nothing more is kept
        self.tokens: dict[tuple[int, bytes], int] = {}
        self.detail = 0

    def wants(self, indices: Iterable[int], prefix: bytes) -> bool:
        """Tell whether a line that starts with this rank prefix is kept for any of its signatures."""
        if self.detail >= DETAIL:
            self.full.update(index for index, kept in enumerate(self.kept) if kept >= FLOOR)
        wanted = False
        for index in indices:
            if index in self.full:
                continue
            if prefix:
                # a flood of many ranks: the first words of each rank say who is alive, the rest says nothing new
                seen = self.tokens.get((index, prefix), 0)
                if seen >= PER_TOKEN:
                    continue
                self.tokens[index, prefix] = seen + 1
            self.kept[index] += 1
            wanted = True
            if self.kept[index] >= (self.per * 10 if prefix else self.per):
                self.full.add(index)
        return wanted


class _Part:
    """One byte range (or a whole stream): reads, scans, keeps. Line numbers are relative to the range until merged."""

    def __init__(
        self,
        matcher: Any,
        readinto: Callable[[memoryview], int | None],
        keeper: _Keeper,
        progress: Progress | None,
        memory: bytearray | None = None,
    ) -> None:
        self.engine = matcher
        self.readinto = readinto
        self.keeper = keeper
        self.progress = progress
        self.memory = memory if memory is not None else bytearray(BLOCK + AHEAD + BEHIND)
        self.lines: dict[int, Line] = {}
        self.counts = [0] * len(keeper.kept)
        self.newlines = 0
        self.matched = 0
        self.size = 0
        self.cut = 0
        self.open_end = False
        self.torn = False  # the range begins inside a line that is too long
        self.dense = False
        self.error = ""
        self.keep_head = self.keep_tail = 0
        self.head = bytearray()
        self.tail = bytearray()

    def run(self, begin: int, stop: int | None) -> None:
        """Scan from `begin` (where the reader stands) to the line that holds byte `stop - 1`, or to the end."""
        buffer = self.memory
        view = memoryview(buffer)
        base = begin  # offset in the file of buffer[0]
        low = filled = 0  # what is not scanned yet starts at `low`
        partial = self.torn  # the line at `low` began earlier
        eof = False
        while not (eof and low >= filled):
            while not eof and filled < len(buffer):
                try:
                    got = self.readinto(view[filled:])
                except (OSError, EOFError, ValueError) as error:
                    self.error, got = str(error) or type(error).__name__, 0
                except Exception as error:  # zlib, zstd and tar have their own types
                    self.error, got = str(error) or type(error).__name__, 0
                if not got:
                    eof = True
                else:
                    if self.keep_head and len(self.head) < self.keep_head:
                        self.head += view[filled : filled + min(got, self.keep_head - len(self.head))]
                    if self.keep_tail:
                        self.tail += view[filled : filled + got]
                        if len(self.tail) > 2 * self.keep_tail + BLOCK:
                            del self.tail[: -self.keep_tail]
                    filled += got
            limit = filled if eof else filled - AHEAD
            last = False
            if stop is not None and base + limit >= stop - 1:
                edge = stop - 1 - base
                at = buffer.find(b"\n", max(edge, low), min(edge + AHEAD, filled)) if edge >= low else low - 1
                cut = at + 1 if at >= 0 else filled if edge + AHEAD > filled and eof else edge + 1
                last = True
            elif eof and limit == filled:
                cut = filled
                last = True
            else:
                cut = buffer.rfind(b"\n", low, limit) + 1
                if not cut:
                    cut = limit
                    self.cut += not partial
            if cut > low:
                self._block(view, low, cut, filled, base, partial)
                if self.progress:
                    self.progress(cut - low)
                self.size += cut - low
                partial = buffer[cut - 1] != 10
            if last:
                self.open_end = partial
                return
            keep = max(cut - BEHIND, 0)
            rest = filled - keep
            view[:rest] = view[keep:filled]
            base += keep
            low, filled = cut - keep, rest

    def _block(self, view: memoryview, low: int, cut: int, filled: int, base: int, partial: bool) -> None:
        buffer = self.memory
        if self.dense and not partial and self._repeats(view[low:cut]):
            self.newlines += self.count(low, cut)
            return
        begin = max(low - 1024, 0) if partial else low  # a match may start in what was scanned
        found = self.engine.matches(view[begin:cut])
        self.dense = len(found) > (cut - low) >> 9
        if not found:
            self.newlines += self.count(low, cut)
            return
        counted = low  # newlines before here are in self.newlines
        find = buffer.find
        ids: set[int] = set()
        end = spot = -1
        for at, index in found:
            at += begin
            if at <= low:
                continue  # its line was done with the block before
            if buffer[at - 1] == 13:
                at -= 1
            if at > end:
                if ids:
                    counted = self._matched(ids, spot, end, counted, filled, base)
                    ids = set()
                spot = at
                limit = min(spot + TEXT, filled)
                end = find(b"\n", spot, limit)
                if end < 0:
                    end = limit
                turn = find(b"\r", spot, end)
                if turn >= 0:
                    end = turn
            ids.add(index)
        if ids:
            counted = self._matched(ids, spot, end, counted, filled, base)
        self.newlines += self.count(counted, cut)

    def _repeats(self, block: memoryview) -> bool:
        """Count a block of few different lines by those, if it holds nothing that is still to be kept."""
        rows = bytes(block).replace(b"\r", b"\n").split(b"\n")
        different = Counter(rows)
        if len(different) * 8 > len(rows):
            return False
        each = list(different)
        edges = list(accumulate((len(row) + 1 for row in each), initial=0))
        hits: dict[int, set[int]] = {}
        for at, index in self.engine.matches(b"\n".join(each)):
            hits.setdefault(bisect_right(edges, max(at - 1, 0)) - 1, set()).add(index)
        if not all(ids <= self.keeper.full for ids in hits.values()):
            return False
        for place, ids in hits.items():
            times = different[each[place]]
            self.matched += times * (len(ids) > 1 or len(self.counts) - 1 not in ids)
            for index in ids:
                self.counts[index] += times
        return True

    def _matched(self, ids: set[int], spot: int, end: int, counted: int, filled: int, base: int) -> int:
        counts = self.counts
        for each in ids:
            counts[each] += 1
        self.matched += len(ids) > 1 or len(counts) - 1 not in ids
        return counted if ids <= self.keeper.full else self._line(ids, spot, end, counted, filled, base)

    def _line(self, ids: set[int], spot: int, end: int, counted: int, filled: int, base: int) -> int:
        buffer = self.memory
        known = len(self.counts) - 1
        start = max(buffer.rfind(b"\n", max(spot - TEXT, 0), spot) + 1, spot - TEXT, 0)
        start = max(start, buffer.rfind(b"\r", start, spot) + 1)
        token = _TOKEN.match(buffer, start, min(end, start + 120))
        prefix = token[1] if token else b""
        if not self.keeper.wants(ids, prefix):
            return counted
        if start > counted:
            self.newlines += self.count(counted, start)
            counted = start
        number = self.newlines + 1
        text = self._text(start, end)
        self.keeper.detail += len(text)
        hits = tuple(str(index) for index in ids if index < known)
        self.lines[base + start] = Line(number, text, hits, base + start)
        if self.keeper.detail < DETAIL and any(self.keeper.kept[index] <= self.keeper.per for index in ids):
            self._before(start, number, base)
            self._after(end, number, filled, base, prefix if known in ids else b"", 60 if known in ids else 5)
        return counted

    def count(self, start: int, stop: int) -> int:
        """Return the number of line ends in a part of the buffer."""
        if _numpy is None or stop - start < 4096:
            return self.memory.count(b"\n", start, stop)
        # numpy lets other threads run and is nearly twice as fast, but costs 0.1 s to import: only for what is long anyway
        return int(_numpy.count_nonzero(_numpy.frombuffer(self.memory, _numpy.uint8, stop - start, start) == 10))

    def _text(self, start: int, end: int) -> str:
        return clean(bytes(self.memory[start : min(end, start + TEXT)]).decode("utf-8", "replace")).rstrip("\r")

    def _before(self, start: int, number: int, base: int) -> None:
        at = start
        for back in range(1, 4):
            edge = at - 1
            at = self.memory.rfind(b"\n", 0, max(edge, 0)) + 1
            if edge <= 0 or at == 0 or number - back < 1:
                return
            if base + at in self.lines:
                return
            self._context(at, edge, number - back, base)

    def _after(self, end: int, number: int, filled: int, base: int, prefix: bytes, wanted: int) -> None:
        buffer = self.memory
        if end < filled and buffer[end] == 13:  # the rest of a rewritten line
            end = buffer.find(b"\n", end, filled)
            if end < 0:
                return
        limit = min(filled, end + AHEAD)
        while wanted and end + 1 < limit:
            start = end + 1
            end = buffer.find(b"\n", start, limit)
            if end < 0:
                return
            number += 1
            if prefix and not buffer.startswith(prefix, start, end):
                continue  # another rank's line in between
            wanted -= 1
            self._context(start, end, number, base)

    def _context(self, start: int, end: int, number: int, base: int) -> None:
        if base + start not in self.lines:
            text = self._text(start, end)
            self.keeper.detail += len(text)
            self.lines[base + start] = Line(number, text, (), base + start)
